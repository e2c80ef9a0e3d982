/* Rows of PK_UPDATE and PK_UPDATE_UNIFORM, which change owner, group and mode of existing items. Items that this code does
 * not handle are deferred: the slow path changes them, or reports the error.
 */
#include "change.h"

#include <stdio.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452 /* since Linux 6.6; the same number on all architectures except alpha */
#endif

/* Return true if fchmodat2 exists and no seccomp filter refuses this mode: then the call fails with EBADF, because
 * -1 is no descriptor. */
static int has_fchmodat2(mode_t mode)
{
    return syscall(SYS_fchmodat2, -1, "", mode, AT_EMPTY_PATH) && errno == EBADF;
}

/* Change the mode of the item of an O_PATH descriptor. Return -1 with errno set on failure.
 *
 * Linux before 6.6 has no call for that (ENOSYS), and seccomp filters of containers may answer EPERM to calls that they
 * do not know. In both cases the item is changed by its path below /proc; if chmod is refused, that call returns the
 * real error. ENOENT: the call is missing, and /proc is not mounted.
 */
static int change_mode(int item, mode_t mode)
{
    static _Atomic int is_missing;
    char path[32];
    int number = ENOSYS;
    if (!atomic_load_explicit(&is_missing, memory_order_relaxed)) {
        if (!syscall(SYS_fchmodat2, item, "", mode, AT_EMPTY_PATH))
            return 0;
        number = errno;
        if (number != ENOSYS && number != EPERM)
            return -1;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", item);
    if (chmod(path, mode)) {
        if (errno == ENOENT && number == EPERM)
            errno = has_fchmodat2(mode) ? EPERM : ENOENT;
        return -1;
    }
    atomic_store_explicit(&is_missing, 1, memory_order_relaxed);
    return 0;
}

int pk_give(pk_worker *worker, int item, const pk_wish *wish)
{
    struct stat status;
    if (IS_DISABLED(OWNER_BEFORE_MODE) && wish->mode != KEEP)
        change_mode(item, wish->mode);
    if (wish->uid != KEEP || wish->gid != KEEP) {
        doing(worker, OP_CHOWN);
        if (fchownat(item, "", wish->uid, wish->gid, AT_EMPTY_PATH))
            return -1;
    }
    if (wish->mode == KEEP)
        return 0;
    doing(worker, OP_CHMOD);
    if (change_mode(item, wish->mode))
        return -1;
    errno = 0;
    /* fchmod silently drops the set-gid bit if the caller is not in the group. */
    return !(wish->mode & S_ISGID) ||
                   GUARD(MODE_STORED_AGAIN, !fstat(item, &status) && (status.st_mode & 07777) == wish->mode)
               ? 0
               : -1;
}

/* Open an item with O_PATH and read its status. Calls that take the descriptor act on that item, even if its name is
 * given to another one. Return -1 with errno set on failure. */
static int open_item(pk_worker *worker, int directory, const char *name, struct stat *status)
{
    doing(worker, OP_OPEN);
    const int item = openat(directory, name, O_PATH | O_CLOEXEC | GUARD_FLAG(CHANGED_NOFOLLOW, O_NOFOLLOW));
    if (item < 0)
        return -1;
    doing(worker, OP_FSTAT);
    if (fstat(item, status)) {
        const int number = errno;
        close(item);
        errno = number;
        return -1;
    }
    return item;
}

/* Return true if both statuses are those of the same item, with the same mode, owner and group. */
static int is_same(const struct stat *one, const struct stat *other)
{
    return one->st_ino == other->st_ino && one->st_dev == other->st_dev && one->st_mode == other->st_mode &&
           one->st_uid == other->st_uid && one->st_gid == other->st_gid;
}

int pk_give_to(pk_worker *worker, int directory, const char *name, const struct stat *seen, const pk_wish *wish)
{
    struct stat status;
    const int item = open_item(worker, directory, name, &status);
    if (item < 0) {
        errno = 0;
        return -1;
    }
    const int is_item = GUARD(CHANGED_ITEM, seen->st_ino == status.st_ino && seen->st_dev == status.st_dev &&
                                                (seen->st_mode & S_IFMT) == (status.st_mode & S_IFMT));
    errno = 0;
    const int result = !is_item ? EXCHANGED
                       : GUARD(CHANGED_ITEM, is_same(seen, &status)) ? pk_give(worker, item, wish) : -1;
    const int number = errno;
    close(item);
    errno = number;
    return result;
}

/* Record the outcome of a row for which pk_give or pk_give_to has returned `result`, and return its code. */
static int verdict(pk_worker *worker, pk_batch *batch, uint32_t row, int result)
{
    const int operation = atomic_load_explicit(&worker->operation, memory_order_relaxed);
    if (!result)
        return DONE;
    if (result == EXCHANGED)
        return set_verdict(batch, row, FAILED, OP_OPEN, ESTALE); /* the text is set in ``pcopy.fsio.backend.native_batches`` */
    return errno == EPERM ? set_verdict(batch, row, FAILED, operation, EPERM) : PK_DEFERRED;
}

pk_wish pk_wish_for(const pk_batch *batch, uint32_t mode, uint32_t uid, uint32_t gid, const uint16_t *modes)
{
    pk_wish wish = {batch->uid == uid ? KEEP : batch->uid, batch->gid == gid ? KEEP : batch->gid, KEEP};
    uint32_t bits = mode & 07777;
    if (S_ISLNK(mode))
        return wish;
    if (!S_ISDIR(mode) && (wish.uid != KEEP || wish.gid != KEEP)) /* the operating system clears these bits when the
                                                                   * owner changes */
        bits &= bits & S_IXGRP ? ~(uint32_t)(S_ISUID | S_ISGID) : ~(uint32_t)S_ISUID;
    if (modes[bits] != bits)
        wish.mode = modes[bits];
    return wish;
}

/* Return true if owner, group and mode are those of the row, from which Python has decided the change. Columns that
 * are NULL are ignored. */
static int is_as_decided(const pk_columns *rows, uint32_t row, const struct stat *status)
{
    return (rows->mode == NULL || rows->mode[row] == status->st_mode) &&
           (rows->uid == NULL || rows->uid[row] == status->st_uid) &&
           (rows->gid == NULL || rows->gid[row] == status->st_gid);
}

int pk_update_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    const pk_columns *wanted = &batch->wanted;
    const pk_wish wish = {wanted->uid[row], wanted->gid[row], wanted->mode[row]};
    struct stat status;
    const int item = open_item(worker, batch->directory, batch->work->name[row], &status);
    if (item < 0)
        return PK_DEFERRED;
    int code = DECIDE_AGAIN;
    if (GUARD(CHANGED_AS_DECIDED,
              pk_is_item(&batch->given, row, &status) && is_as_decided(&batch->given, row, &status)))
        code = verdict(worker, batch, row, pk_give(worker, item, &wish));
    close(item);
    return code;
}

int pk_update_uniform_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    struct stat status;
    doing(worker, OP_STAT);
    if (fstatat(batch->directory, batch->work->name[row], &status, AT_SYMLINK_NOFOLLOW))
        return PK_DEFERRED;
    if (!GUARD(CHANGED_AS_LISTED, pk_is_item(&batch->given, row, &status)) || S_ISDIR(status.st_mode))
        return DECIDE_AGAIN;
    batch->found.mode[row] = status.st_mode;
    batch->found.size[row] = S_ISREG(status.st_mode) ? (uint64_t)status.st_size : 0;
    const pk_wish wish = pk_wish_for(batch, status.st_mode, status.st_uid, status.st_gid, batch->modes);
    if (is_nothing(&wish))
        return SKIPPED;
    return verdict(worker, batch, row, pk_give_to(worker, batch->directory, batch->work->name[row], &status, &wish));
}
