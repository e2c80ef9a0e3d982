/* New files: creation, metadata, identity mark, and removal after an error. */
#include "internal.h"

#include <stdio.h>
#include <sys/vfs.h>
#include <sys/xattr.h>

#define MAKING \
    (O_WRONLY | O_CREAT | O_CLOEXEC | GUARD_FLAG(NEW_FILE_EXCL, O_EXCL) | GUARD_FLAG(NEW_FILE_NOFOLLOW, O_NOFOLLOW))
#define PRIVATE_MODE GUARD_VALUE(NEW_FILE_MODE, 0600, 0666)
#define ACCESS_ACL "system.posix_acl_access"
#define FUSE_MAGIC 0x65735546
#define FILEID_INO64_GEN 0x81

int pk_create(const pk_batch *batch, const char *name)
{
    int writing;
    while ((writing = openat(batch->target, name, MAKING, PRIVATE_MODE)) < 0 && errno == EINTR)
        ;
    return writing;
}

void pk_take_back(const pk_batch *batch, int writing, const char *name)
{
    if (writing >= 0)
        close(writing);
    while (name != NULL && unlinkat(batch->target, name, 0) && errno == EINTR)
        ;
}

int pk_write_all(int writing, const unsigned char *data, size_t size)
{
    while (size) {
        ssize_t put = write(writing, data, size);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return put ? errno : EIO;
        data += put;
        size -= (size_t)put;
    }
    return 0;
}

/* In a directory of this user, all new files of this process get the same owner and group, since nobody else can
 * change the directory. So the owner of the first new file is that of all others, and fchown is called only if it
 * differs from the wanted one. */
int pk_has_owner(pk_batch *batch, int writing, uid_t uid, gid_t gid)
{
    pk_work *work = batch->work;
    int known = atomic_load_explicit(&work->owner_known, memory_order_acquire);
    if (!known) {
        struct stat directory, made;
        const int is_ours = work->is_ours || (!fstat(batch->target, &directory) &&
                                              GUARD(KNOWN_OWNER, directory.st_uid == geteuid()));
        known = is_ours && !fstat(writing, &made) ? 1 : -1;
        if (known > 0) { /* several threads may get here, and all find the same values */
            __atomic_store_n(&work->uid, made.st_uid, __ATOMIC_RELAXED);
            __atomic_store_n(&work->gid, made.st_gid, __ATOMIC_RELAXED);
        }
        atomic_store_explicit(&work->owner_known, known, memory_order_release);
    }
    return known > 0 && uid == __atomic_load_n(&work->uid, __ATOMIC_RELAXED) &&
           gid == __atomic_load_n(&work->gid, __ATOMIC_RELAXED);
}

int pk_give_mode_and_times(pk_worker *worker, const pk_batch *batch, int writing, mode_t mode,
                           const struct timespec times[2])
{
    mode &= 07777;
    if (batch->flags & GUARD_FLAG(INHERITED_ACL, PK_INHERITS)) {
        doing(worker, OP_REMOVEXATTR);
        if (fremovexattr(writing, ACCESS_ACL) && errno != ENODATA && errno != ENOTSUP && errno != ENOSYS)
            return -1;
    }
    if (!(batch->flags & PK_MODE))
        mode &= ~(batch->umask | S_ISUID | S_ISGID);
    doing(worker, OP_CHMOD);
    if (set_mode(writing, mode))
        return -1;
    if (!(batch->flags & PK_TIMES) || batch->flags & PK_LATE)
        return 0;
    doing(worker, OP_UTIMENSAT);
    return futimens(writing, times);
}

/* Close a new file whose contents are written. With PK_LATE its times are set after that, through an O_PATH
 * descriptor that was opened before: the name may belong to another file by then. Return 0, -1 if closing failed, or
 * 1 if the times are not set; errno is set. The file is closed in any case. */
int pk_close_new(pk_worker *worker, const pk_batch *batch, int writing, const struct timespec times[2])
{
    const int is_late = batch->flags & PK_LATE && batch->flags & PK_TIMES;
    char path[32];
    int path_only = -1;
    if (is_late) {
        doing(worker, OP_OPEN);
        snprintf(path, sizeof path, "/proc/self/fd/%d", writing);
        path_only = open(path, O_PATH | O_CLOEXEC);
    }
    doing(worker, OP_CLOSE);
    int result = close(writing) ? -1 : is_late && path_only < 0;
    if (path_only < 0)
        return result;
    if (!result) {
        doing(worker, OP_UTIMENSAT);
        snprintf(path, sizeof path, "/proc/self/fd/%d", path_only);
        result = utimensat(AT_FDCWD, path, times, 0) ? 1 : 0;
    }
    const int number = errno;
    close(path_only);
    errno = number;
    return result;
}

static int is_fuse(int directory)
{
    struct statfs place;
    return fstatfs(directory, &place) || place.f_type == FUSE_MAGIC;
}

/* Make the identity mark from the file handle, or else from the time of birth, for an item that this job has
 * created; empty if there is neither. Same as ``pcopy.fsio.identity.identity_mark_of`` with created_by_job. */
void pk_mark(int directory, int descriptor, uint8_t *out)
{
    struct {
        struct file_handle head;
        unsigned char room[128];
    } handle;
    int mount;
    handle.head.handle_bytes = sizeof handle.room;
    if (!name_to_handle_at(descriptor, "", &handle.head, &mount, AT_EMPTY_PATH) &&
        !(handle.head.handle_type == FILEID_INO64_GEN && is_fuse(directory))) {
        out[0] = (uint8_t)(5 + handle.head.handle_bytes);
        out[1] = 'H';
        memcpy(out + 2, &handle.head.handle_type, 4);
        memcpy(out + 6, handle.room, handle.head.handle_bytes);
        return;
    }
    struct statx born;
    out[0] = 0;
    if (!pk_statx(descriptor, "", AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW, STATX_BTIME, &born) &&
        born.stx_mask & STATX_BTIME) {
        int64_t moment;
        if (in_nanoseconds((struct timespec){born.stx_btime.tv_sec, born.stx_btime.tv_nsec}, &moment) && moment)
            out[0] = (uint8_t)snprintf((char *)out + 1, PK_MARK - 1, "B%lld", (long long)moment);
    }
}
