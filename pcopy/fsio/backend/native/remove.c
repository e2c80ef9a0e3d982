/* Rows of PK_REMOVE_WITHIN: a row is a directory. Everything in it except subdirectories is removed, and then the
 * directory, if it is empty.
 *
 * If an item cannot be removed, its directory remains, too: the slow path finds the item there and reports the error.
 */
#include "internal.h"

#include <sys/syscall.h>
#include <sys/sysmacros.h>

#ifndef STATX_MNT_ID
#define STATX_MNT_ID 0x1000u
#endif

/* Read the status and the mount of an open directory. Return -1 if the mount cannot be found out. */
static int look_at(int directory, struct statx *status)
{
    const unsigned mask = STATX_BASIC_STATS | STATX_MNT_ID;
    return pk_statx(directory, "", AT_EMPTY_PATH, mask, status) || !(status->stx_mask & STATX_MNT_ID) ? -1 : 0;
}

/* Return true if the open directory is the one that was found, and is on the same mount as its parent directory.
 * (Another file system may have been mounted there since.) */
static int is_found(const pk_batch *batch, uint32_t row, int directory)
{
    struct statx around, status;
    return !look_at(batch->directory, &around) && !look_at(directory, &status) &&
           GUARD(REMOVED_DIRECTORY,
                 status.stx_ino == batch->given.inode[row] && status.stx_mnt_id == around.stx_mnt_id &&
                     makedev(status.stx_dev_major, status.stx_dev_minor) == batch->tree->source_device);
}

/* Remove an item of an open directory and count it. Return 0, or -1 if it is a directory, or if the slow path has to
 * remove it. */
static int remove_item(pk_worker *worker, const pk_batch *batch, int directory, const char *name, uint64_t inode,
                       pk_sums *sums)
{
    struct stat status;
    doing(worker, OP_STAT);
    if (fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) ||
        !GUARD(REMOVED_AS_LISTED, status.st_ino == inode && status.st_dev == batch->tree->source_device) ||
        S_ISDIR(status.st_mode))
        return -1;
    doing(worker, OP_UNLINK);
    if (unlinkat(directory, name, 0))
        return -1;
    add_item(sums, &status);
    return 0;
}

/* List an open directory completely, then remove its items. Return 0, or -1 if an item remains. */
static int remove_all(pk_worker *worker, pk_batch *batch, uint32_t row, int directory)
{
    char *name = (char *)worker->buffer;
    pk_all all;
    int left = 0;
    const int number = pk_list_all(worker, directory, name, LISTED_BYTES, batch->tree->most, &all);
    if (number < 0)
        return -1;
    for (int each = 0; each < number; each++) {
        char *const next = cut_off(name);
        if (all.kinds[each] == 'd' || remove_item(worker, batch, directory, name, all.inodes[each], &batch->sums[row]))
            left = -1;
        name = next;
    }
    return left;
}

/* Remove a directory with the items in it. Return DONE if it was removed, otherwise PK_DEFERRED. */
int pk_remove_within_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    const char *name = batch->work->name[row];
    struct stat status;
    const int directory = pk_open_whole(worker, batch->directory, name);
    if (directory < 0)
        return PK_DEFERRED;
    int has_gone = is_found(batch, row, directory) && !remove_all(worker, batch, row, directory);
    close(directory);
    if (has_gone) {
        doing(worker, OP_RMDIR);
        has_gone = !fstatat(batch->directory, name, &status, AT_SYMLINK_NOFOLLOW) &&
                   GUARD(REMOVED_EMPTY_DIRECTORY, status.st_ino == batch->given.inode[row] &&
                                                      status.st_dev == batch->tree->source_device) &&
                   !unlinkat(batch->directory, name, AT_REMOVEDIR);
    }
    batch->sums[row].directories += (uint64_t)has_gone;
    return has_gone ? DONE : PK_DEFERRED;
}
