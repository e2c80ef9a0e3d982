/* Operations on inodes: attributes, of both kinds, and what a symlink says. */
#include "latencyfs.h"

#include <limits.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>

#define CONTROL "user.latencyfs"

static void reply_attributes(fuse_req_t req, int fd)
{
    struct stat status;
    if (fstatat(fd, "", &status, AT_EMPTY_PATH) < 0)
        fuse_reply_err(req, errno);
    else
        fuse_reply_attr(req, &status, attribute_timeout);
}

static void op_getattr(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *file)
{
    (void)file;
    count(KIND_getattr);
    HOLD(fd, id);
    reply_attributes(req, fd);
}

static struct timespec new_time(struct timespec given, bool now, bool change)
{
    return !change ? (struct timespec){0, UTIME_OMIT} : now ? (struct timespec){0, UTIME_NOW} : given;
}

/* In this order: a change of owner clears set-id bits, and a change of size sets times. */
static int change(int fd, const struct stat *wanted, int what, const struct fuse_file_info *file)
{
    if (what & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID)) {
        uid_t owner = what & FUSE_SET_ATTR_UID ? wanted->st_uid : (uid_t)-1;
        gid_t group = what & FUSE_SET_ATTR_GID ? wanted->st_gid : (gid_t)-1;
        if (fchownat(fd, "", owner, group, AT_EMPTY_PATH))
            return -1;
    }
    if (what & FUSE_SET_ATTR_SIZE && (file ? ftruncate(file->fh, wanted->st_size)
                                           : truncate(path_of(fd).text, wanted->st_size)))
        return -1;
    if (what & FUSE_SET_ATTR_MODE && chmod(path_of(fd).text, wanted->st_mode))
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
    count(KIND_setattr);
    HOLD(fd, id);
    if (change(fd, wanted, what, file) < 0)
        fuse_reply_err(req, errno);
    else
        reply_attributes(req, fd);
}

static void op_readlink(fuse_req_t req, fuse_ino_t id)
{
    count(KIND_readlink);
    HOLD(fd, id);
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
    count(KIND_statfs);
    struct statvfs status;
    if (fstatvfs(root_fd, &status) < 0)
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
        reply_value(req, value, tell_counts(value, sizeof value), room);
        return;
    }
    count(KIND_getxattr);
    HOLD(fd, id);
    reply_value(req, value, getxattr(path_of(fd).text, name, value, room), room);
}

static void op_listxattr(fuse_req_t req, fuse_ino_t id, size_t room)
{
    static __thread char list[XATTR_LIST_MAX];
    count(KIND_listxattr);
    HOLD(fd, id);
    reply_value(req, list, listxattr(path_of(fd).text, list, room), room);
}

static void op_setxattr(fuse_req_t req, fuse_ino_t id, const char *name, const char *value, size_t size, int flags)
{
    if (id == FUSE_ROOT_ID && !strcmp(name, CONTROL)) {
        char *text = strndup(value, size);
        fuse_reply_err(req, text && set_delays(text) ? 0 : EINVAL);
        free(text);
        return;
    }
    count(KIND_setxattr);
    HOLD(fd, id);
    reply_done(req, setxattr(path_of(fd).text, name, value, size, flags));
}

static void op_removexattr(fuse_req_t req, fuse_ino_t id, const char *name)
{
    count(KIND_removexattr);
    HOLD(fd, id);
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
