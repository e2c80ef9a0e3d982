/* Files of the source: how they are opened, and whether they are still what was found. */
#include "internal.h"

#define READING (O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)

int pk_open_quietly(int directory, const char *name, int flags, int *keeps_atime)
{
    int opened = openat(directory, name, flags | O_NOATIME);
    if (keeps_atime != NULL)
        *keeps_atime = opened >= 0;
    if (opened < 0 && errno == EPERM) /* O_NOATIME is for owners */
        opened = openat(directory, name, flags);
    return opened;
}

int pk_open_source(int directory, const char *name, int follow, int *keeps_atime)
{
    return pk_open_quietly(directory, name, follow ? READING & ~O_NOFOLLOW : READING, keeps_atime);
}

int pk_is_found(const pk_batch *batch, uint32_t row, const struct stat *status)
{
    int64_t mtime, ctime;
    return S_ISREG(status->st_mode) && status->st_ino == batch->given.inode[row] &&
           status->st_dev == batch->given.device[row] && (uint64_t)status->st_size == batch->given.size[row] &&
           in_nanoseconds(status->st_mtim, &mtime) && in_nanoseconds(status->st_ctim, &ctime) &&
           mtime == batch->given.mtime[row] && ctime == batch->given.ctime[row];
}

int pk_is_still_found(const pk_batch *batch, uint32_t row, int reading)
{
    struct stat status;
    return !fstat(reading, &status) && pk_is_found(batch, row, &status);
}

int pk_others_may_exchange(pk_batch *batch)
{
    int known = atomic_load_explicit(&batch->work->others_may, memory_order_relaxed);
    if (!known) {
        struct stat directory;
        const int failed = fstat(batch->directory, &directory);
        known = failed || others_may_write(directory.st_uid, directory.st_mode, geteuid()) ? 1 : -1;
        atomic_store_explicit(&batch->work->others_may, known, memory_order_relaxed);
    }
    return known > 0;
}
