/* Operations on inodes: status, extended attributes and targets of symbolic links. */
#include "latencyfs.h"

#include <limits.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>

#define CONTROL "user.latencyfs"
#define QUIRKS_CONTROL "user.latencyfs.quirks"

static void reply_attributes(fuse_req_t req, int fd)
{
    struct stat status;
    if (fstatat(fd, "", &status, AT_EMPTY_PATH) < 0)
        fuse_reply_err(req, errno);
    else {
        apply_status_quirks(&status);
        fuse_reply_attr(req, &status, attribute_timeout);
    }
}

static void op_getattr(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *file)
{
    (void)file;
    if (is_refused(req, KIND_getattr))
        return;
    WITH_INODE(fd, id);
    reply_attributes(req, fd);
}

static struct timespec new_time(struct timespec given, bool now, bool change)
{
    return !change ? (struct timespec){0, UTIME_OMIT} : now ? (struct timespec){0, UTIME_NOW} : given;
}

/* Change the size of a file. Return 0, or -1 with errno. */
static int change_size(int fd, off_t size, const struct fuse_file_info *file)
{
    if (quirks.sequential && size && !is_at_end(fd, size)) {
        errno = EOPNOTSUPP;
        return -1;
    }
    return file ? ftruncate(file->fh, size) : truncate(path_of(fd).text, size);
}

static bool is_refused_part(int what, int flags, enum part part)
{
    errno = refusal_errno(part);
    return what & flags && errno;
}

/* Change the requested attributes. The order matters: a change of owner clears set-id bits, and a change of size sets
 * times. */
static int change(int fd, const struct stat *wanted, int what, const struct fuse_file_info *file)
{
    if (is_refused_part(what, FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID, PART_chown) ||
        is_refused_part(what, FUSE_SET_ATTR_SIZE, PART_truncate) ||
        is_refused_part(what, FUSE_SET_ATTR_MODE, PART_chmod) ||
        is_refused_part(what, FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME, PART_utimens))
        return -1;
    if (what & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID) && quirks.fixed_owner < 0) {
        uid_t owner = what & FUSE_SET_ATTR_UID ? wanted->st_uid : (uid_t)-1;
        gid_t group = what & FUSE_SET_ATTR_GID ? wanted->st_gid : (gid_t)-1;
        if (fchownat(fd, "", owner, group, AT_EMPTY_PATH))
            return -1;
    }
    if (what & FUSE_SET_ATTR_SIZE && change_size(fd, wanted->st_size, file))
        return -1;
    if (what & FUSE_SET_ATTR_MODE && quirks.fixed_mode < 0 && chmod(path_of(fd).text, wanted->st_mode))
        return -1;
    if (what & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME)) {
        struct timespec times[] = {
            new_time(wanted->st_atim, what & FUSE_SET_ATTR_ATIME_NOW, what & FUSE_SET_ATTR_ATIME),
            new_time(wanted->st_mtim, what & FUSE_SET_ATTR_MTIME_NOW, what & FUSE_SET_ATTR_MTIME),
        };
        return utimensat(fd, "", times, AT_EMPTY_PATH);
    }
    return 0;
}

static void op_setattr(fuse_req_t req, fuse_ino_t id, struct stat *wanted, int what, struct fuse_file_info *file)
{
    if (is_refused(req, KIND_setattr))
        return;
    WITH_INODE(fd, id);
    if (change(fd, wanted, what, file) < 0)
        fuse_reply_err(req, errno);
    else
        reply_attributes(req, fd);
}

static void op_readlink(fuse_req_t req, fuse_ino_t id)
{
    if (is_refused(req, KIND_readlink))
        return;
    WITH_INODE(fd, id);
    char target[PATH_MAX + 1];
    ssize_t length = readlinkat(fd, "", target, sizeof target - 1);
    if (length < 0) {
        fuse_reply_err(req, errno);
        return;
    }
    target[length] = 0;
    fuse_reply_readlink(req, target);
}

static void op_statfs(fuse_req_t req, fuse_ino_t id)
{
    (void)id;
    if (is_refused(req, KIND_statfs))
        return;
    struct statvfs status;
    int result = fstatvfs(root_fd, &status);
    if (quirks.no_blocks)
        status.f_blocks = status.f_bfree = status.f_bavail = 0;
    if (result < 0)
        fuse_reply_err(req, errno);
    else
        fuse_reply_statfs(req, &status);
}

static void reply_value(fuse_req_t req, const char *value, ssize_t length, size_t room)
{
    if (length < 0)
        fuse_reply_err(req, errno);
    else if (!room)
        fuse_reply_xattr(req, length);
    else if ((size_t)length > room)
        fuse_reply_err(req, ERANGE);
    else
        fuse_reply_buf(req, value, length);
}

static void op_getxattr(fuse_req_t req, fuse_ino_t id, const char *name, size_t room)
{
    static __thread char value[XATTR_SIZE_MAX];
    if (id == FUSE_ROOT_ID && !strcmp(name, CONTROL)) {
        reply_value(req, value, format_counts(value, sizeof value), room);
        return;
    }
    bool is_systems = !strncmp(name, "system.", 7) || !strncmp(name, "security.", 9);
    /* Linux itself reads system attributes: to refuse these would make other calls fail, too. */
    if (!is_systems && is_refused(req, KIND_getxattr))
        return;
    if (*quirks.foreign && !strcmp(name, quirks.foreign)) {
        reply_value(req, "odd", 3, room);
        return;
    }
    WITH_INODE(fd, id);
    reply_value(req, value, getxattr(path_of(fd).text, name, value, room), room);
}

static void op_listxattr(fuse_req_t req, fuse_ino_t id, size_t room)
{
    static __thread char list[XATTR_LIST_MAX];
    if (is_refused(req, KIND_listxattr))
        return;
    WITH_INODE(fd, id);
    size_t more = *quirks.foreign ? strlen(quirks.foreign) + 1 : 0;
    ssize_t length = listxattr(path_of(fd).text, list, sizeof list - more);
    if (length >= 0 && more)
        memcpy(list + length, quirks.foreign, more);
    reply_value(req, list, length < 0 ? length : length + (ssize_t)more, room);
}

static void op_setxattr(fuse_req_t req, fuse_ino_t id, const char *name, const char *value, size_t size, int flags)
{
    if (id == FUSE_ROOT_ID && !strcmp(name, CONTROL)) {
        char *text = strndup(value, size);
        fuse_reply_err(req, text && set_delays(text) ? 0 : EINVAL);
        free(text);
        return;
    }
    if (id == FUSE_ROOT_ID && !strcmp(name, QUIRKS_CONTROL)) {
        char *text = strndup(value, size);
        fuse_reply_err(req, text && set_quirks(text) ? 0 : EINVAL);
        free(text);
        return;
    }
    if (is_refused(req, KIND_setxattr))
        return;
    if (*quirks.unknown && !strncmp(name, quirks.unknown, strlen(quirks.unknown))) {
        fuse_reply_err(req, EOPNOTSUPP);
        return;
    }
    WITH_INODE(fd, id);
    reply_done(req, setxattr(path_of(fd).text, name, value, size, flags));
}

static void op_removexattr(fuse_req_t req, fuse_ino_t id, const char *name)
{
    if (is_refused(req, KIND_removexattr))
        return;
    WITH_INODE(fd, id);
    reply_done(req, removexattr(path_of(fd).text, name));
}

void add_inodes(struct fuse_lowlevel_ops *operations)
{
    operations->getattr = op_getattr;
    operations->setattr = op_setattr;
    operations->readlink = op_readlink;
    operations->statfs = op_statfs;
    operations->getxattr = op_getxattr;
    operations->listxattr = op_listxattr;
    operations->setxattr = op_setxattr;
    operations->removexattr = op_removexattr;
}
