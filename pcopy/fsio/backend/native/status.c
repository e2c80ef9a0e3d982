/* The status of an item. */
#include "internal.h"

#include <sys/syscall.h>
#include <sys/sysmacros.h>

#define STATX_FLAGS (AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_EMPTY_PATH) /* flags that fstatat has, too */

static struct statx_timestamp timestamp_of(struct timespec time)
{
    struct statx_timestamp stamp = {0};
    stamp.tv_sec = time.tv_sec;
    stamp.tv_nsec = (uint32_t)time.tv_nsec;
    return stamp;
}

/* Fill in the fields that fstatat returns. The mask has no bits for other fields, such as birth time and mount id. */
static int status_by_fstatat(int directory, const char *name, int flags, struct statx *status)
{
    struct stat found;
    if (fstatat(directory, name, &found, flags & STATX_FLAGS))
        return -1;
    *status = (struct statx){0};
    status->stx_mask = STATX_BASIC_STATS;
    status->stx_blksize = (uint32_t)found.st_blksize;
    status->stx_nlink = (uint32_t)found.st_nlink;
    status->stx_uid = found.st_uid;
    status->stx_gid = found.st_gid;
    status->stx_mode = (uint16_t)found.st_mode;
    status->stx_ino = found.st_ino;
    status->stx_size = (uint64_t)found.st_size;
    status->stx_blocks = (uint64_t)found.st_blocks;
    status->stx_atime = timestamp_of(found.st_atim);
    status->stx_mtime = timestamp_of(found.st_mtim);
    status->stx_ctime = timestamp_of(found.st_ctim);
    status->stx_rdev_major = major(found.st_rdev);
    status->stx_rdev_minor = minor(found.st_rdev);
    status->stx_dev_major = major(found.st_dev);
    status->stx_dev_minor = minor(found.st_dev);
    return 0;
}

int pk_statx(int directory, const char *name, int flags, unsigned mask, struct statx *status)
{
    if (!syscall(SYS_statx, directory, name, flags, mask, status))
        return 0;
    return errno == ENOSYS ? status_by_fstatat(directory, name, flags, status) : -1;
}
