/* Rows of PK_LOOK: a row is a directory that is listed; the status of its items is returned as columns.
 *
 * Directories that this code does not handle are deferred.
 */
#include "internal.h"

#define DEVICE_BIT (1u << 20) /* ``pcopy.fsio.backend.columns.DEVICE_COLUMN`` */

/* Return the next `size` bytes of a memory block, for a column, and advance *at. Return NULL if the column is not
 * wanted. */
static void *part(char **at, size_t size, uint32_t is_wanted)
{
    char *begin = *at;
    if (!is_wanted)
        return NULL;
    *at += size;
    return begin;
}

/* Allocate memory for the results of a directory. Return -1 if there is no memory. The memory is zeroed, because items
 * whose status is not read must have zeros. */
static int make_room(pk_directory *found, uint32_t mask)
{
    const size_t rows = found->left, narrow = rows * sizeof(uint32_t), wide = rows * sizeof(uint64_t);
    pk_columns *to = &found->rows;
    char *at = calloc(1, wide + (mask ? 7 * wide + 4 * narrow : 0) + rows + found->names_size);
    found->block = at;
    if (at == NULL)
        return -1;
    found->inodes = part(&at, wide, 1);
    to->atime = part(&at, wide, mask & STATX_ATIME);
    to->mtime = part(&at, wide, mask & STATX_MTIME);
    to->ctime = part(&at, wide, mask & STATX_CTIME);
    to->inode = part(&at, wide, mask & STATX_INO);
    to->size = part(&at, wide, mask & STATX_SIZE);
    to->device = part(&at, wide, mask & DEVICE_BIT);
    to->blocks = part(&at, wide, mask & STATX_BLOCKS);
    to->mode = part(&at, narrow, mask & (STATX_MODE | STATX_TYPE));
    to->uid = part(&at, narrow, mask & STATX_UID);
    to->gid = part(&at, narrow, mask & STATX_GID);
    to->links = part(&at, narrow, mask & STATX_NLINK);
    found->kinds = part(&at, rows, 1);
    found->names = at;
    return 0;
}

uint8_t pk_letter_of(uint32_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFREG: return 'f';
    case S_IFDIR: return 'd';
    case S_IFLNK: return 'l';
    case S_IFIFO: return 'p';
    case S_IFSOCK: return 's';
    case S_IFCHR: return 'c';
    case S_IFBLK: return 'b';
    default: return '?';
    }
}

static int has_simple_names(const pk_directory *found)
{
    for (const char *at = found->names; at < found->names + found->names_size; at++)
        if (*at < ' ' || *at > '~')
            return 0;
    return 1;
}

/* Add the items of a directory to the sums (pk_tally) if all have one owner and printable names, and no file is
 * larger than `largest`. Python needs no other data of these items then, unless they are directories. */
static void sum_up(const pk_tree *tree, pk_directory *found)
{
    const pk_columns *rows = &found->rows;
    for (uint32_t row = 0; row < found->left; row++)
        if (rows->uid[row] != rows->uid[0] || rows->gid[row] != rows->gid[0] ||
            (found->kinds[row] == 'f' && (int64_t)rows->size[row] > tree->largest))
            return;
    if (!has_simple_names(found) || pk_tally_add(tree->tally, found->kinds, found->left, rows->mode, rows->links,
                                                rows->size, rows->blocks, rows->atime, rows->mtime))
        return;
    found->is_summed = 1;
    found->bytes = tree->tally->last_bytes;
    found->allocated = tree->tally->last_allocated;
    found->metadata.uid = rows->uid[0];
    found->metadata.gid = rows->gid[0];
}

/* List an open directory and read the status of those items for which columns are wanted. Return 0, or -1 to defer
 * the row. */
static int list_all(pk_worker *worker, pk_batch *batch, uint32_t row, int directory)
{
    const pk_tree *tree = batch->tree;
    pk_directory *found = &batch->directories[row];
    char *name = (char *)worker->buffer;
    struct stat status;
    pk_all all;
    if (!pk_is_directory(worker, directory, batch->given.inode[row], tree->source_device, &status))
        return -1;
    const int number = pk_list_all(worker, directory, name, LISTED_BYTES, tree->most, &all);
    if (number < 0)
        return -1;
    found->left = (uint32_t)number;
    found->names_size = strlen(name);
    if (number == 0)
        return 0;
    if (make_room(found, tree->mask))
        return -1;
    memcpy(found->names, name, found->names_size);
    memcpy(found->kinds, all.kinds, (size_t)number);
    memcpy(found->inodes, all.inodes, (size_t)number * sizeof *all.inodes);
    if (!tree->mask && memchr(all.kinds, '?', (size_t)number) == NULL)
        return 0;
    for (uint32_t each = 0; each < found->left; each++) {
        char *const next = cut_off(name);
        const uint8_t kind = all.kinds[each];
        const int is_wanted = tree->mask && (!tree->kinds[0] || strchr(tree->kinds, kind));
        uint32_t mode;
        if (is_wanted || kind == '?') {
            doing(worker, OP_STAT);
            if (pk_look_at(directory, name, AT_SYMLINK_NOFOLLOW, &found->rows, each, &mode))
                return -1;
            if (kind == '?')
                found->kinds[each] = pk_letter_of(mode);
        }
        name = next;
    }
    if (tree->tally != NULL)
        sum_up(tree, found);
    return 0;
}

int pk_look_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    const int directory = pk_open_whole(worker, batch->directory, batch->work->name[row]);
    if (directory < 0)
        return PK_DEFERRED;
    const int is_simple = !list_all(worker, batch, row, directory);
    close(directory);
    return is_simple ? DONE : PK_DEFERRED;
}
