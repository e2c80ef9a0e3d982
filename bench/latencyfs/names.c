/* Operations on names in directories. */
#include "latencyfs.h"

#include <sched.h>

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    if (is_refused(req, KIND_lookup))
        return;
    WITH_INODE(directory, parent);
    char room[NAME_MAX + 1];
    reply_entry(req, directory, stored_name(name, room));
}

static void op_forget(fuse_req_t req, fuse_ino_t id, uint64_t lookups)
{
    drop_node(id, lookups);
    fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t number, struct fuse_forget_data *forgets)
{
    for (size_t at = 0; at < number; at++)
        drop_node(forgets[at].ino, forgets[at].nlookup);
    fuse_reply_none(req);
}

/* Set this thread's umask to the caller's. The backing file system applies it to new items, unless a default ACL
 * decides. */
void set_callers_umask(fuse_req_t req)
{
    static __thread bool alone;
    if (!alone && unshare(CLONE_FS) == 0)
        alone = true;
    umask(fuse_req_ctx(req)->umask);
}

/* Change the owner of a new item to the caller. In a set-gid directory, its group is correct already. */
int give_to_caller(fuse_req_t req, int directory, const char *name)
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
    if (result < 0 || give_to_caller(req, directory, name) < 0)
        fuse_reply_err(req, errno);
    else
        reply_entry(req, directory, name);
}

static void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t number)
{
    if (is_refused(req, KIND_mknod))
        return;
    WITH_INODE(directory, parent);
    WITH_STORED_NAME(stored, directory, name);
    set_callers_umask(req);
    reply_made(req, directory, stored, mknodat(directory, stored, mode, number));
}

static void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
    if (is_refused(req, KIND_mkdir))
        return;
    WITH_INODE(directory, parent);
    WITH_STORED_NAME(stored, directory, name);
    set_callers_umask(req);
    reply_made(req, directory, stored, mkdirat(directory, stored, mode));
}

static void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
    if (is_refused(req, KIND_symlink))
        return;
    WITH_INODE(directory, parent);
    WITH_STORED_NAME(stored, directory, name);
    reply_made(req, directory, stored, symlinkat(target, directory, stored));
}

static void op_link(fuse_req_t req, fuse_ino_t id, fuse_ino_t parent, const char *name)
{
    if (is_refused(req, KIND_link))
        return;
    WITH_INODE(fd, id);
    WITH_INODE(directory, parent);
    WITH_STORED_NAME(stored, directory, name);
    if (linkat(fd, "", directory, stored, AT_EMPTY_PATH) < 0)
        fuse_reply_err(req, errno);
    else
        reply_entry(req, directory, stored);
}

static void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    if (is_refused(req, KIND_unlink))
        return;
    WITH_INODE(directory, parent);
    char room[NAME_MAX + 1];
    reply_done(req, unlinkat(directory, stored_name(name, room), 0));
}

static void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    if (is_refused(req, KIND_rmdir))
        return;
    WITH_INODE(directory, parent);
    char room[NAME_MAX + 1];
    reply_done(req, unlinkat(directory, stored_name(name, room), AT_REMOVEDIR));
}

static void op_rename(fuse_req_t req, fuse_ino_t from, const char *old, fuse_ino_t to, const char *new, unsigned flags)
{
    if (is_refused(req, KIND_rename))
        return;
    WITH_INODE(source, from);
    WITH_INODE(target, to);
    WITH_STORED_NAME(stored, target, new);
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
