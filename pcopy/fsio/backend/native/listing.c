/* Listing of directories: part by part for large ones, or completely for those that are processed as a whole. */
#include "internal.h"

#include <dirent.h>
#include <sys/syscall.h>

struct entry {
    uint64_t inode;
    int64_t next;
    unsigned short length;
    unsigned char kind;
    char name[];
};

static uint8_t kind_of(unsigned char kind)
{
    switch (kind) {
    case DT_REG: return 'f';
    case DT_DIR: return 'd';
    case DT_LNK: return 'l';
    case DT_FIFO: return 'p';
    case DT_SOCK: return 's';
    case DT_CHR: return 'c';
    case DT_BLK: return 'b';
    default: return '?';
    }
}

int pk_list(int directory, pk_listing *listing, char *buffer, size_t size, uint8_t *kinds, uint64_t *inodes, int most)
{
    int number = 0;
    listing->used = 0;
    if (!listing->has_begun && lseek(directory, 0, SEEK_SET))
        return -errno;
    listing->has_begun = 1;
    while (number < most) {
        if (listing->at == listing->end) {
            long got = syscall(SYS_getdents64, directory, listing->entries, sizeof listing->entries);
            if (got < 0 && errno == EINTR)
                continue;
            if (got < 0)
                return number ? number : -errno;
            listing->at = 0;
            listing->end = (uint32_t)got;
            listing->is_over = got == 0;
            if (listing->is_over)
                break;
        }
        const struct entry *entry = (const struct entry *)((const char *)listing->entries + listing->at);
        const size_t length = strlen(entry->name);
        if (strcmp(entry->name, ".") && strcmp(entry->name, "..")) {
            if (listing->used + length + 1 > size) {
                if (!number)
                    return -ENOBUFS;
                break;
            }
            if (number)
                buffer[listing->used++] = '/';
            memcpy(buffer + listing->used, entry->name, length);
            listing->used += length;
            if (kinds != NULL)
                kinds[number] = kind_of(entry->kind);
            if (inodes != NULL)
                inodes[number] = entry->inode;
            number++;
        }
        listing->at += entry->length;
    }
    return number;
}

int pk_open_whole(pk_worker *worker, int around, const char *name)
{
    doing(worker, OP_OPEN);
    return pk_open_quietly(around, name, DIRECTORY, NULL);
}

int pk_is_directory(pk_worker *worker, int directory, uint64_t inode, uint64_t device, struct stat *status)
{
    doing(worker, OP_FSTAT);
    return !fstat(directory, status) && GUARD(LISTED_DIRECTORY, status->st_ino == inode && status->st_dev == device);
}

/* A directory may list a name twice. Keep each of the names (joined by slashes, `used` bytes) once, with its kind
 * and inode if `all` is not NULL. Return the number of names that remain. */
static int drop_repeated(char *names, size_t *used, int number, pk_all *all)
{
    uint16_t rows[2 * MOST_LISTED] = {0}; /* hash table: index of a kept name + 1; 0: free */
    uint32_t starts[MOST_LISTED], lengths[MOST_LISTED];
    size_t from = 0, to = 0;
    int kept = 0;
    for (int each = 0; each < number; each++) {
        uint64_t hash = 14695981039346656037u; /* FNV-1a hash */
        size_t length = 0;
        for (; from + length < *used && names[from + length] != '/'; length++)
            hash = (hash ^ (unsigned char)names[from + length]) * 1099511628211u;
        size_t at = (hash ^ hash >> 32) % (2 * MOST_LISTED);
        while (rows[at] && (lengths[rows[at] - 1] != length || memcmp(names + starts[rows[at] - 1], names + from, length)))
            at = (at + 1) % (2 * MOST_LISTED);
        if (!rows[at]) {
            if (kept)
                names[to++] = '/';
            if (to != from)
                memmove(names + to, names + from, length);
            if (all != NULL) {
                all->kinds[kept] = all->kinds[each];
                all->inodes[kept] = all->inodes[each];
            }
            starts[kept] = (uint32_t)to;
            lengths[kept] = (uint32_t)length;
            rows[at] = (uint16_t)++kept;
            to += length;
        }
        from += length + 1;
    }
    *used = to;
    return kept;
}

int pk_list_all(pk_worker *worker, int directory, char *names, size_t room, int most, pk_all *all)
{
    pk_listing listing;
    doing(worker, OP_READDIR);
    listing.at = listing.end = 0;
    listing.has_begun = 1;
    listing.is_over = 0;
    if (most > MOST_LISTED)
        most = MOST_LISTED;
    const int number = all == NULL ? pk_list(directory, &listing, names, room, NULL, NULL, most)
                                   : pk_list(directory, &listing, names, room, all->kinds, all->inodes, most);
    if (number < 0 || !listing.is_over)
        return -1;
    size_t used = listing.used;
    const int kept = drop_repeated(names, &used, number, all);
    names[used] = '\0';
    return kept;
}
