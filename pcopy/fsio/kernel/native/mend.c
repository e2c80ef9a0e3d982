/* Rows of the batches that give what exists other owners, groups and modes. A batch has items of one directory, or whole
 * directories, whose plain contents are changed.
 *
 * What is no plain case is deferred, or left: the kernel in Python changes it, or tells what is wrong.
 */
#include "internal.h"

#include <stdio.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452 /* since Linux 6.6; the same number on all machines but alpha, which has other ones */
#endif

/* As change_mode, where there is no call for it. */
static int change_mode_opened(int directory, const char *name, mode_t mode)
{
    char path[32];
    int held = openat(directory, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (held < 0)
        return -1;
    snprintf(path, sizeof path, "/proc/self/fd/%d", held);
    const int result = chmod(path, mode), number = errno;
    close(held);
    errno = number;
    return result;
}

/* The mode of an item itself, never of what it leads to; -1 with errno set. */
static int change_mode(int directory, const char *name, mode_t mode)
{
    static _Atomic int is_old;
    if (!atomic_load_explicit(&is_old, memory_order_relaxed)) {
        if (!syscall(SYS_fchmodat2, directory, name, mode, AT_SYMLINK_NOFOLLOW))
            return 0;
        if (errno != ENOSYS)
            return -1;
        atomic_store_explicit(&is_old, 1, memory_order_relaxed);
    }
    return change_mode_opened(directory, name, mode);
}

/* KEEP of pcopy.fsio.kernel.batches */
#define KEEP UINT32_MAX

struct wish {
    uint32_t uid, gid, mode; /* KEEP: the present one stays */
};

static int is_nothing(const struct wish *wish)
{
    return wish->uid == KEEP && wish->gid == KEEP && wish->mode == KEEP;
}

/* Owner, group and mode of an item, in this order. -1: some of it is not done, for the reason in errno; 0 there: that
 * takes more care. */
static int give(pk_worker *worker, int directory, const char *name, const struct wish *wish)
{
    struct stat status;
    if (wish->uid != KEEP || wish->gid != KEEP) {
        doing(worker, OP_CHOWN);
        if (fchownat(directory, name, wish->uid, wish->gid, AT_SYMLINK_NOFOLLOW))
            return -1;
    }
    if (wish->mode == KEEP)
        return 0;
    doing(worker, OP_CHMOD);
    if (change_mode(directory, name, wish->mode))
        return -1;
    errno = 0;
    return wish->mode & S_ISGID && (fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) ||
                                    (status.st_mode & 07777) != wish->mode) /* who is not in the group can't set that */
               ? -1
               : 0;
}

static int mend(pk_worker *worker, pk_batch *batch, uint32_t row, const struct wish *wish)
{
    if (!give(worker, batch->directory, batch->work->name[row], wish))
        return DONE;
    const int operation = atomic_load_explicit(&worker->operation, memory_order_relaxed);
    return errno == EPERM ? told(batch, row, FAILED, operation, EPERM) : PK_DEFERRED;
}

/* What an item is to get of which `modes` tells what becomes of its permission bits. */
static struct wish wish_for(const pk_batch *batch, uint32_t mode, uint32_t uid, uint32_t gid, const uint16_t *modes)
{
    struct wish wish = {batch->uid == uid ? KEEP : batch->uid, batch->gid == gid ? KEEP : batch->gid, KEEP};
    uint32_t bits = mode & 07777;
    if (S_ISLNK(mode))
        return wish;
    if (!S_ISDIR(mode) && (wish.uid != KEEP || wish.gid != KEEP)) /* the kernel takes them away */
        bits &= bits & S_IXGRP ? ~(uint32_t)(S_ISUID | S_ISGID) : ~(uint32_t)S_ISUID;
    if (modes[bits] != bits)
        wish.mode = modes[bits];
    return wish;
}

int pk_mend_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    const pk_columns *wanted = &batch->wanted;
    struct stat status;
    doing(worker, OP_STAT);
    if (fstatat(batch->directory, batch->work->name[row], &status, AT_SYMLINK_NOFOLLOW))
        return PK_DEFERRED;
    if (!pk_is_item(&batch->given, row, &status))
        return ANEW;
    const struct wish wish = {wanted->uid[row], wanted->gid[row], wanted->mode[row]};
    return mend(worker, batch, row, &wish);
}

int pk_mend_plain_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    struct stat status;
    doing(worker, OP_STAT);
    if (fstatat(batch->directory, batch->work->name[row], &status, AT_SYMLINK_NOFOLLOW))
        return PK_DEFERRED;
    if (!pk_is_item(&batch->given, row, &status) || S_ISDIR(status.st_mode))
        return ANEW;
    batch->found.mode[row] = status.st_mode;
    batch->found.size[row] = S_ISREG(status.st_mode) ? (uint64_t)status.st_size : 0;
    const struct wish wish = wish_for(batch, status.st_mode, status.st_uid, status.st_gid, batch->modes);
    return is_nothing(&wish) ? SKIPPED : mend(worker, batch, row, &wish);
}

/* Would or might a directory be closed to us by that? Then it waits until all in it is done. */
static int closes(const pk_batch *batch, const struct stat *status, const struct wish *wish)
{
    const uint32_t lost = wish->mode == KEEP ? 0 : status->st_mode & 0500 & ~wish->mode;
    return !(batch->tree->flags & PK_POWERFUL) && (wish->uid != KEEP || (lost && status->st_uid == batch->tree->user));
}

/* An item of an open directory is as it should be then, and counted; -1: it takes more care. */
static int mend_item(pk_worker *worker, const pk_batch *batch, int directory, const char *name, uint8_t kind,
                     uint64_t inode, pk_sums *sums)
{
    struct stat status;
    doing(worker, OP_STAT);
    if (fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) || status.st_ino != inode)
        return -1;
    const int is_directory = S_ISDIR(status.st_mode);
    if (is_directory != (kind == 'd') || status.st_dev != batch->tree->source_device)
        return -1;
    const struct wish wish = wish_for(batch, status.st_mode, status.st_uid, status.st_gid,
                                      is_directory ? batch->directory_modes : batch->modes);
    if ((is_directory && closes(batch, &status, &wish)) || (!is_nothing(&wish) && give(worker, directory, name, &wish)))
        return -1;
    sums->changed += !is_nothing(&wish);
    add_item(sums, &status);
    return 0;
}

/* All that is in an open directory; -1: it is no plain case, and nothing of it was changed. */
static int mend_all(pk_worker *worker, pk_batch *batch, uint32_t row, int directory)
{
    const pk_tree *tree = batch->tree;
    pk_directory *found = &batch->directories[row];
    char *name = (char *)worker->buffer;
    pk_all all;
    if (!pk_is_directory(worker, directory, batch->given.inode[row], tree->source_device))
        return -1;
    const int number = pk_list_all(worker, directory, name, PIECE, tree->most, &all);
    if (number <= 0)
        return number;
    found->block = malloc((size_t)number * (sizeof(uint64_t) + 1) + strlen(name));
    if (found->block == NULL)
        return -1;
    found->inodes = found->block;
    found->kinds = (uint8_t *)(found->inodes + number);
    found->names = (char *)(found->kinds + number);
    for (int each = 0; each < number; each++) {
        char *const next = cut_off(name);
        const uint8_t kind = all.kinds[each];
        const int left = mend_item(worker, batch, directory, name, kind, all.inodes[each], &batch->sums[row]);
        if (left || kind == 'd')
            pk_leave(found, name, (size_t)(next - name) - 1, left ? '?' : 'd', all.inodes[each]);
        name = next;
    }
    return 0;
}

int pk_mend_within_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    const int directory = pk_open_whole(worker, batch->directory, batch->work->name[row]);
    if (directory < 0)
        return PK_DEFERRED;
    const int is_plain = !mend_all(worker, batch, row, directory);
    close(directory);
    return is_plain ? DONE : PK_DEFERRED;
}
