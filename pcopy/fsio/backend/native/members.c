/* Rows of PK_MEMBERS: each row reads consecutive members of an archive, which are small files and directories below one directory,
 * and writes header and contents of each into the arena. The outcome of each member is stored; the caller reads those that
 * this code does not handle.
 *
 * The header is the one that pcopy/archive/headers.py makes for an item that needs no pax record except a time.
 */
#include "internal.h"

#include <stdio.h>

#define BLOCK 512
#define NAME 100    /* bytes of the name field */
#define NUMBERS 148 /* bytes that precede the checksum */
#define OWNER_AT 156 /* offset of the type field, where the part in pk_owner begins */
#define SECOND 1000000000

static const pk_owner *owner_of(const pk_batch *batch, const pk_member *member)
{
    for (uint32_t each = 0; each < batch->owners_number; each++)
        if (batch->owners[each].uid == member->uid && batch->owners[each].gid == member->gid)
            return &batch->owners[each];
    return NULL;
}

/* Write a number as this many octal digits, with a zero byte after them. */
static void put_octal(uint8_t *to, int digits, uint64_t number)
{
    for (to[digits] = '\0'; digits--; number >>= 3)
        to[digits] = (uint8_t)('0' + (number & 7));
}

/* Write the header into a block of zeros. The caller makes sure that the name and all numbers fit. */
static void put_header(const pk_member *member, const pk_owner *owner, const char *prefix, size_t prefix_size,
                       const char *name, size_t size, uint8_t *to)
{
    const uint32_t to_directory = S_ISDIR(member->mode) ? '5' - '0' : 0; /* from the type of a file, in owner->end */
    uint32_t sum = owner->sum + to_directory;
    memcpy(to, prefix, prefix_size);
    memcpy(to + prefix_size, name, size);
    put_octal(to + 100, 7, member->mode & 07777);
    put_octal(to + 108, 7, owner->uid);
    put_octal(to + 116, 7, owner->gid);
    put_octal(to + 124, 11, member->size);
    put_octal(to + 136, 11, (uint64_t)(member->mtime / SECOND));
    for (int byte = 0; byte < NUMBERS; byte++)
        sum += to[byte];
    put_octal(to + 148, 6, sum);
    to[155] = ' ';
    memcpy(to + OWNER_AT, owner->end, sizeof owner->end);
    to[OWNER_AT] = (uint8_t)(to[OWNER_AT] + to_directory);
}

static int is_found(const pk_member *member, int reading)
{
    struct stat status;
    int64_t mtime, ctime;
    return !fstat(reading, &status) && S_ISREG(status.st_mode) && status.st_ino == member->inode &&
           status.st_dev == member->device && (uint64_t)status.st_size == member->size &&
           in_nanoseconds(status.st_mtim, &mtime) && in_nanoseconds(status.st_ctim, &ctime) &&
           mtime == member->mtime && ctime == member->ctime;
}

/* Read the contents of a file, and return true if they are those of the file that the scan found. If another user may
 * have replaced the file, its status is checked before reading, because reading might change another item, such as a
 * FIFO. */
static int is_read(pk_worker *worker, int directory, int others_may, const char *name, const pk_member *member, uint8_t *to)
{
    doing(worker, OP_OPEN);
    int reading = pk_open_source(directory, name, 0, NULL);
    if (reading < 0)
        return 0;
    int is_whole = !others_may || GUARD(MEMBER_MAY_BE_READ, is_found(member, reading));
    doing(worker, OP_READ);
    is_whole = is_whole && read(reading, to, member->size) == (ssize_t)member->size;
    doing(worker, OP_FSTAT);
    is_whole = is_whole && GUARD(MEMBER_UNCHANGED, is_found(member, reading));
    doing(worker, OP_CLOSE);
    return !close(reading) && is_whole;
}

/* Return the bytes of all headers of a member, or 0 if this code does not handle it. */
static uint32_t head_of(const pk_member *member, const pk_owner *owner, size_t length)
{
    const uint32_t head = member->mtime % SECOND ? 3 * BLOCK : BLOCK;
    return owner == NULL || member->mtime < 0 || member->size > SMALL_FILE || member->whole < head + member->size ||
                   length > NAME
               ? 0
               : head;
}

/* Write the headers of a member. */
static void put_headers(const pk_batch *batch, const pk_member *member, const pk_owner *owner, const char *prefix,
                        size_t prefix_size, const char *name, size_t length, uint8_t *to)
{
    const int64_t seconds = member->mtime / SECOND, part = member->mtime % SECOND;
    if (part) {
        memcpy(to, batch->pax, BLOCK);
        snprintf((char *)to + BLOCK, BLOCK, "30 mtime=%010lld.%09lld\n", (long long)seconds, (long long)part);
        to += 2 * BLOCK;
    }
    put_header(member, owner, prefix, prefix_size, name, length, to);
}

/* The open directories on the way to the directory that was used last: that of the row, then, for each of `number`, its
 * descriptor and the end of its path (with a slash) in `path`. */
typedef struct {
    int top, number;
    const char *path;
    int descriptor[MOST_OPEN];
    size_t end[MOST_OPEN];
} opened_path;

static void close_down_to(opened_path *opened, int number)
{
    while (opened->number > number)
        close(opened->descriptor[--opened->number]);
}

/* Open the directory whose path is the first `size` bytes of `path`, with a slash at its end. Return its descriptor, or -1.
 * Each directory is opened from the one above it; those that are on the way to the last one are open already. */
static int open_path(pk_worker *worker, opened_path *opened, const char *path, size_t size)
{
    char name[256];
    int usable = 0;
    while (usable < opened->number && opened->end[usable] <= size && !memcmp(opened->path, path, opened->end[usable]))
        usable++;
    close_down_to(opened, usable);
    opened->path = path;
    for (size_t at = usable ? opened->end[usable - 1] : 0; at < size;) {
        const char *const slash = memchr(path + at, '/', size - at);
        const size_t length = slash != NULL ? (size_t)(slash - path) - at : sizeof name;
        if (length >= sizeof name || opened->number == MOST_OPEN)
            return -1;
        memcpy(name, path + at, length);
        name[length] = '\0';
        const int around = opened->number ? opened->descriptor[opened->number - 1] : opened->top;
        const int directory = pk_open_whole(worker, around, name);
        if (directory < 0)
            return -1;
        at += length + 1;
        opened->descriptor[opened->number] = directory;
        opened->end[opened->number++] = at;
    }
    return opened->number ? opened->descriptor[opened->number - 1] : opened->top;
}

int pk_members_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    const pk_run *const run = &batch->runs[row];
    const char *path = batch->paths + run->names, *const prefix = batch->prefixes + run->prefix_at;
    uint8_t *to = batch->arena + batch->offsets[row];
    opened_path opened = {.top = run->directory};
    for (uint32_t each = run->first; each < run->first + run->members; each++) {
        const pk_member *const member = &batch->members[each];
        const pk_owner *const owner = owner_of(batch, member);
        const size_t length = strlen(path);
        const uint32_t head = run->prefix_size > NAME ? 0 : head_of(member, owner, run->prefix_size + length);
        int is_done = head != 0;
        if (is_done && member->size) {
            const char *const slash = strrchr(path, '/'), *const name = slash != NULL ? slash + 1 : path;
            const int directory = open_path(worker, &opened, path, (size_t)(name - path));
            is_done = directory >= 0 && is_read(worker, directory, slash != NULL || run->others_may, name, member, to + head);
        }
        if (is_done) {
            put_headers(batch, member, owner, prefix, run->prefix_size, path, length, to);
            atomic_fetch_add_explicit(&batch->work->moved, member->size, memory_order_relaxed);
        }
        batch->outcomes[each] = is_done ? DONE : SLOW_PATH;
        to += member->whole;
        path += length + 1;
    }
    close_down_to(&opened, 0);
    return DONE;
}
