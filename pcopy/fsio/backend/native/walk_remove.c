/* A visitor that removes trees (PK_REMOVE_TREE): everything in a directory except subdirectories is removed after the
 * directory was listed completely, and the directory itself when nothing in it or below remains.
 *
 * If an item cannot be removed, it belongs to the frontier, with the letter ?: the slow path tries it again and reports the
 * error. Items that were not reached in time have the letters of their types.
 */
#include "walk.h"

#include <sys/syscall.h>
#include <sys/sysmacros.h>

/* Return true if the open directory is the one that was found, and is on the mount of the tree. (Another file system may
 * have been mounted there since.) */
static int is_found(const pk_walk *walk, const pk_level *level)
{
    const pk_tree *const tree = walk->batch->tree;
    struct statx status;
    doing(walk->worker, OP_FSTAT);
    return !pk_statx(level->descriptor, "", AT_EMPTY_PATH, STATX_TYPE | STATX_INO | STATX_MNT_ID, &status) &&
           status.stx_mask & STATX_MNT_ID &&
           GUARD(REMOVED_DIRECTORY, status.stx_ino == level->inode && status.stx_mnt_id == tree->mount &&
                                        makedev(status.stx_dev_major, status.stx_dev_minor) == tree->source_device);
}

/* Return true if no further item may be removed now. `number` items of the directory were removed or tried. */
static int is_over(const pk_walk *walk, int number)
{
    const int is_first = walk->levels == 0 && walk->found == walk->batch->directories;
    if (atomic_load_explicit(&walk->batch->work->is_cancelled, memory_order_relaxed))
        return 1;
    return number && number % NAMES_PER_CLOCK_READING == 0 && (!is_first || number >= LEAST_NAMES) &&
           pk_now() >= walk->batch->tree->deadline;
}

/* Remove an item of an open directory that is listed as no directory, and count it. Return 0, or -1 if the slow path has to
 * remove it. (unlinkat removes no directory, and no item on which something is mounted.) */
static int remove_item(pk_walk *walk, int directory, const char *name, uint8_t kind, uint64_t inode)
{
    const pk_batch *const batch = walk->batch;
    const int by_type = batch->flags & PK_BY_TYPE;
    struct stat status;
    if (!by_type) {
        doing(walk->worker, OP_STAT);
        if (fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) ||
            !GUARD(REMOVED_AS_LISTED, status.st_ino == inode && status.st_dev == batch->tree->source_device))
            return -1;
    }
    doing(walk->worker, OP_UNLINK);
    if (unlinkat(directory, name, 0))
        return -1;
    if (by_type)
        count_type(&walk->sums, kind);
    else
        add_item(&walk->sums, &status);
    return 0;
}

/* Remove the items of a directory that are no directories. Those that are not removed belong to the frontier, and so do those
 * that the filters exclude: the slow path counts them. */
static int remove_items(pk_walk *walk, pk_level *level, pk_listed *listed)
{
    const int has_filter = walk->batch->tree->filter != NULL;
    const char *name = listed->names;
    int has_ended = 0;
    for (int each = 0; each < listed->number; each++, name += strlen(name) + 1) {
        const int is_excluded =
            has_filter ? pk_excludes(walk, level->descriptor, name, &listed->all.kinds[each]) : 0;
        const uint8_t kind = listed->all.kinds[each];
        const uint64_t inode = listed->all.inodes[each];
        if (is_excluded) {
            listed->all.kinds[each] = '-';
            pk_remain(walk, walk->levels, name, '?', inode);
            continue;
        }
        if (kind == 'd')
            continue;
        has_ended = has_ended || is_over(walk, each);
        if (has_ended)
            pk_remain(walk, walk->levels, name, kind, inode);
        else if (remove_item(walk, level->descriptor, name, kind, inode))
            pk_remain(walk, walk->levels, name, '?', inode);
    }
    return 0;
}

/* Close a directory and remove it from its parent. Some file systems remove no open directory. */
static int remove_directory(pk_walk *walk, pk_level *level, int around)
{
    struct stat status;
    atomic_store_explicit(&walk->worker->inside, walk->levels > 2 ? around : -1, memory_order_relaxed);
    close(level->descriptor);
    level->descriptor = -1;
    doing(walk->worker, OP_RMDIR);
    if (fstatat(around, level->name, &status, AT_SYMLINK_NOFOLLOW) ||
        !GUARD(REMOVED_EMPTY_DIRECTORY,
               status.st_ino == level->inode && status.st_dev == walk->batch->tree->source_device) ||
        unlinkat(around, level->name, AT_REMOVEDIR))
        return -1;
    walk->sums.directories++;
    return 0;
}

/* Rows that were not begun when the time is over get the code CANCELLED, except the first one. */
int pk_remove_tree_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    static const pk_visitor removal = {
        .names = remove_items, .leave = remove_directory, .is_found = is_found, .applies_filters = 1, .is_final = 1};
    if (row && pk_now() >= batch->tree->deadline)
        return CANCELLED;
    return pk_walk_row(worker, batch, row, &removal, "", NULL);
}
