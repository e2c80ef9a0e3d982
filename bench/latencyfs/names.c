/* Operations on names in directories. */
#include "latencyfs.h"

#include <sched.h>

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    if (refused(req, KIND_lookup))
        return;
    HOLD(directory, parent);
    char room[NAME_MAX + 1];
    reply_found(req, directory, stored_name(name, room));
}

static void op_forget(fuse_req_t req, fuse_ino_t id, uint64_t lookups)
{
    forget_node(id, lookups);
    fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t number, struct fuse_forget_data *forgets)
{
    for (size_t at = 0; at < number; at++)
        forget_node(forgets[at].ino, forgets[at].nlookup);
    fuse_reply_none(req);
}

/* What is made next gets the caller's umask: unless a default ACL decides, which the file system below knows. */
void take_umask(fuse_req_t req)
{
    static __thread bool alone;
    if (!alone && unshare(CLONE_FS) == 0)
        alone = true;
    umask(fuse_req_ctx(req)->umask);
}

/* Gives what this process made to who asked for it; a set-gid directory has given it its group already. */
int give(fuse_req_t req, int directory, const char *name)
{
    const struct fuse_ctx *caller = fuse_req_ctx(req);
    struct stat parent, made;
    if (fstatat(directory, "", &parent, AT_EMPTY_PATH) || fstatat(directory, name, &made, AT_SYMLINK_NOFOLLOW))
        return -1;
    gid_t group = parent.st_mode & S_ISGID ? made.st_gid : caller->gid;
    if (made.st_uid == caller->uid && made.st_gid == group)
        return 0;
    if (fchownat(directory, name, caller->uid, group, AT_SYMLINK_NOFOLLOW))
        return -1;
    bool cleared = !S_ISLNK(made.st_mode) && made.st_mode & (S_ISUID | S_ISGID);
    return cleared ? fchmodat(directory, name, made.st_mode & 07777, 0) : 0;
}

static void reply_made(fuse_req_t req, int directory, const char *name, int result)
{
    if (result < 0 || give(req, directory, name) < 0)
        fuse_reply_err(req, errno);
    else
        reply_found(req, directory, name);
}

static void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t number)
{
    if (refused(req, KIND_mknod))
        return;
    HOLD(directory, parent);
    NAMED(stored, directory, name);
    take_umask(req);
    reply_made(req, directory, stored, mknodat(directory, stored, mode, number));
}

static void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
    if (refused(req, KIND_mkdir))
        return;
    HOLD(directory, parent);
    NAMED(stored, directory, name);
    take_umask(req);
    reply_made(req, directory, stored, mkdirat(directory, stored, mode));
}

static void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
    if (refused(req, KIND_symlink))
        return;
    HOLD(directory, parent);
    NAMED(stored, directory, name);
    reply_made(req, directory, stored, symlinkat(target, directory, stored));
}

static void op_link(fuse_req_t req, fuse_ino_t id, fuse_ino_t parent, const char *name)
{
    if (refused(req, KIND_link))
        return;
    HOLD(fd, id);
    HOLD(directory, parent);
    NAMED(stored, directory, name);
    if (linkat(fd, "", directory, stored, AT_EMPTY_PATH) < 0)
        fuse_reply_err(req, errno);
    else
        reply_found(req, directory, stored);
}

static void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    if (refused(req, KIND_unlink))
        return;
    HOLD(directory, parent);
    char room[NAME_MAX + 1];
    reply_done(req, unlinkat(directory, stored_name(name, room), 0));
}

static void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    if (refused(req, KIND_rmdir))
        return;
    HOLD(directory, parent);
    char room[NAME_MAX + 1];
    reply_done(req, unlinkat(directory, stored_name(name, room), AT_REMOVEDIR));
}

static void op_rename(fuse_req_t req, fuse_ino_t from, const char *old, fuse_ino_t to, const char *new, unsigned flags)
{
    if (refused(req, KIND_rename))
        return;
    HOLD(source, from);
    HOLD(target, to);
    NAMED(stored, target, new);
    char room[NAME_MAX + 1];
    reply_done(req, renameat2(source, stored_name(old, room), target, stored, flags));
}

void add_names(struct fuse_lowlevel_ops *operations)
{
    operations->lookup = op_lookup;
    operations->forget = op_forget;
    operations->forget_multi = op_forget_multi;
    operations->mknod = op_mknod;
    operations->mkdir = op_mkdir;
    operations->symlink = op_symlink;
    operations->link = op_link;
    operations->unlink = op_unlink;
    operations->rmdir = op_rmdir;
    operations->rename = op_rename;
}
