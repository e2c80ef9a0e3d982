/* Rows of PK_ENTER, PK_FINISH and PK_SYNC: a row is a directory. The directories of a batch have one parent directory
 * in the source, and one in the target. PK_ENTER opens source and target directory and reads the status of all items;
 * PK_FINISH sets the metadata of a target directory; PK_SYNC syncs open directories.
 *
 * Directories that this code does not handle are deferred before anything is created. If that turns out only after the
 * target directory was created, the code of the row is ANEW (DECIDE_AGAIN): the slow path continues with the directory,
 * and knows that it was created.
 */
#include "internal.h"

#include <sys/xattr.h>

#define DEFAULT_ACL "system.posix_acl_default"
#define PRIVATE_MODE GUARD_VALUE(NEW_DIRECTORY_MODE, 0700, 0777)

/* Return true if an open directory has no extended attribute that is copied. In a target directory, attributes of
 * the namespace "system." always count, because new items may inherit them (default ACLs). */
static int is_bare(pk_worker *worker, int directory, int is_target)
{
    char names[MOST_NAMES + 1];
    ssize_t size = flistxattr(directory, names, MOST_NAMES);
    if (size < 0)
        return errno == ENOTSUP || errno == ENOSYS;
    names[size] = '\0'; /* terminate the list: a faulty file system may return names without a zero at the end */
    for (char *name = names; name < names + size; name += strlen(name) + 1)
        if ((is_target && !strncmp(name, "system.", 7)) || pk_attribute_of(worker->backend, name) != PK_LEAVE)
            return 0;
    return 1;
}

static int has_no_default_acl(int directory)
{
    return fgetxattr(directory, DEFAULT_ACL, NULL, 0) < 0 &&
           (errno == ENODATA || errno == ENOTSUP || errno == ENOSYS);
}

static struct timespec moment_of(int64_t nanoseconds)
{
    return (struct timespec){nanoseconds / 1000000000, nanoseconds % 1000000000};
}

/* Apply metadata to an open directory, where they differ from the existing ones, with the same result as
 * ``pcopy.fsio.attributes.apply_item_metadata``. Return 1 if something was set, 0 if nothing had to be, or -1 if the
 * slow path has to set all of them. */
static int set_metadata(const pk_batch *batch, int directory, const struct stat *status, const pk_metadata *wanted, int is_made)
{
    const int set_id = wanted->mode & (S_ISUID | S_ISGID);
    int is_written = 0;
    if (batch->flags & PK_OWNER) {
        is_written = status->st_uid != wanted->uid || status->st_gid != wanted->gid;
        if (is_written && fchown(directory, wanted->uid, wanted->gid))
            return -1;
    } else if (!GUARD(DIRECTORY_SET_ID_WITH_OWNER, !set_id)) {
        return -1;
    }
    mode_t mode = wanted->mode & 07777;
    if (!(batch->flags & PK_MODE))
        mode = is_made ? mode & ~batch->umask & 01777 : status->st_mode & 07777;
    if ((status->st_mode & 07777) != mode) {
        is_written = 1;
        if (set_mode(directory, mode))
            return -1;
    }
    if (!(batch->flags & PK_TIMES))
        return is_written;
    const struct timespec times[2] = {moment_of(wanted->atime), moment_of(wanted->mtime)};
    int64_t atime, mtime, ctime;
    if (!is_common(times[0].tv_sec) || !is_common(times[1].tv_sec))
        return -1;
    /* Reading a directory changes its atime. A different atime alone is no reason to change a directory that existed
     * before the job. */
    if (in_nanoseconds(status->st_mtim, &mtime) && in_nanoseconds(status->st_ctim, &ctime) && is_same_moment(wanted->mtime, mtime, ctime, batch->tree->window) &&
        (!is_made || (in_nanoseconds(status->st_atim, &atime) && atime == wanted->atime)))
        return is_written;
    return futimens(directory, times) ? -1 : 1;
}

/* Open or create the target directory. *made is set to 1 if it was created. Return the descriptor, or -1 if that fails
 * or the existing item is not a directory. */
static int open_target(const pk_batch *batch, const char *name, uint8_t *made)
{
    int target = -1;
    if (!(batch->tree->flags & PK_IN_NEW)) {
        target = pk_open_quietly(batch->target, name, DIRECTORY, NULL);
        if (target >= 0 || errno != ENOENT)
            return target;
    }
    if (mkdirat(batch->target, name, PRIVATE_MODE))
        return -1;
    *made = 1;
    return pk_open_quietly(batch->target, name, DIRECTORY, NULL);
}

/* Return true if files can be created in the open target directory without further preparation: same file system,
 * sufficient permissions, no ACL to inherit, and (unless it was just created) not changed since `touched`. */
static int is_simple_target(pk_worker *worker, const pk_batch *batch, int target, struct stat *status, int is_made)
{
    const pk_tree *tree = batch->tree;
    int64_t ctime;
    if (fstat(target, status) || status->st_dev != tree->target_device)
        return 0;
    if (!(tree->flags & PK_POWERFUL) && (status->st_mode & 0700) != 0700)
        return 0;
    if (is_made)
        return GUARD(NEW_DIRECTORY_OWNER, status->st_uid == tree->user) &&
               GUARD(NEW_DIRECTORY_ACL, has_no_default_acl(target));
    return in_nanoseconds(status->st_ctim, &ctime) && GUARD(KEPT_SINCE_BEFORE, ctime < tree->touched) &&
           is_bare(worker, target, 1);
}

/* List an open source directory and read the status of everything in it, before anything is created. Return 0, or -1
 * to defer the row. */
static int look_into(pk_worker *worker, pk_batch *batch, uint32_t row, int source)
{
    const pk_tree *tree = batch->tree;
    pk_directory *found = &batch->directories[row];
    struct stat status;
    char *names = (char *)worker->buffer;
    doing(worker, OP_FSTAT);
    if (fstat(source, &status) ||
        !GUARD(SOURCE_DIRECTORY, status.st_ino == batch->given.inode[row] && status.st_dev == tree->source_device) ||
        (status.st_dev == tree->shunned_device && status.st_ino == tree->shunned_inode) ||
        !in_nanoseconds(status.st_atim, &found->metadata.atime) || !in_nanoseconds(status.st_mtim, &found->metadata.mtime))
        return -1;
    found->metadata.mode = status.st_mode;
    found->metadata.uid = status.st_uid;
    found->metadata.gid = status.st_gid;
    doing(worker, OP_LISTXATTR);
    if (!is_bare(worker, source, 0))
        return -1;
    const int number = pk_list_all(worker, source, names, LISTED_BYTES, tree->most, NULL);
    if (number < 0)
        return -1;
    found->left = (uint32_t)number;
    if (number == 0) /* a directory that was removed after it was opened looks empty, but has no links */
        return fstat(source, &status) || !GUARD(DIRECTORY_EXISTS, status.st_nlink) ? -1 : 0;
    doing(worker, OP_STAT);
    return pk_look_at_all(found, source, names, strlen(names));
}

/* Record the status of a target directory that existed before. Return 0, or -1 if its times cannot be represented. */
static int record_present(pk_directory *found, const struct stat *status)
{
    found->present = (pk_metadata){status->st_mode, status->st_uid, status->st_gid, 0, 0};
    return in_nanoseconds(status->st_mtim, &found->present.mtime) && in_nanoseconds(status->st_ctim, &found->present_ctime) ? 0 : -1;
}

/* Return true if owner, mode or mtime of an open directory, which were set, are not those in `before`: a file system
 * may accept a change and not store it. */
static int has_changed(int directory, const struct stat *before)
{
    struct stat now;
    return fstat(directory, &now) || now.st_mode != before->st_mode || now.st_uid != before->st_uid ||
           now.st_gid != before->st_gid || now.st_mtim.tv_sec != before->st_mtim.tv_sec ||
           now.st_mtim.tv_nsec != before->st_mtim.tv_nsec;
}

/* Skip or copy files of a directory whose target is open, and set its metadata if nothing remains. Return 0 if the
 * slow path has to continue with the directory. */
static int enter_target(pk_worker *worker, pk_batch *batch, pk_directory *found, int source, int target)
{
    const pk_tree *tree = batch->tree;
    struct stat status;
    if (!is_simple_target(worker, batch, target, &status, found->is_made) ||
        (!found->is_made && record_present(found, &status)))
        return 0;
    if (found->left && tree->flags & (found->is_made ? PK_COPY_NEW : PK_COMPARE)) {
        doing(worker, OP_STAT);
        pk_do_at_once(worker, batch, found, source, target);
    }
    const int can_enter = tree->flags & PK_POWERFUL || (found->metadata.mode & 0700) == 0700;
    if (!found->left && !found->is_made && can_enter) {
        doing(worker, OP_UTIMENSAT);
        const int written = set_metadata(batch, target, &status, &found->metadata, 0);
        found->is_finished = written >= 0;
        if (found->is_finished) {
            found->is_changed = written && has_changed(target, &status);
            return 1;
        }
    }
    found->inode = status.st_ino;
    found->is_anothers = status.st_uid != tree->user;
    pk_mark(batch->target, target, found->mark);
    return found->is_made || has_no_default_acl(target);
}

int pk_enter_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    const char *name = batch->work->name[row];
    pk_directory *found = &batch->directories[row];
    const int source = pk_open_whole(worker, batch->directory, name);
    if (source < 0)
        return PK_DEFERRED;
    if (look_into(worker, batch, row, source)) {
        close(source);
        return PK_DEFERRED;
    }
    doing(worker, OP_OPEN);
    int target = open_target(batch, name, &found->is_made);
    int is_simple = target >= 0 && enter_target(worker, batch, found, source, target);
    if (target >= 0)
        close(target);
    close(source);
    return is_simple ? DONE : found->is_made ? ANEW : PK_DEFERRED;
}

int pk_sync_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    doing(worker, OP_FSYNC);
    while (!IS_DISABLED(SYNC_DIRECTORY) && fsync(batch->synced[row]))
        if (errno != EINTR)
            return set_verdict(batch, row, FAILED, OP_FSYNC, errno);
    return DONE;
}

int pk_finish_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    const pk_columns *given = &batch->given;
    const pk_metadata wanted = {given->mode[row], given->uid[row], given->gid[row], given->atime[row], given->mtime[row]};
    const uint8_t *known = batch->marks + (size_t)row * PK_MARK;
    const int is_made = batch->plans[row];
    uint8_t mark[PK_MARK];
    struct stat status;
    doing(worker, OP_OPEN);
    int target = pk_open_quietly(batch->target, batch->work->name[row], DIRECTORY, NULL);
    if (target < 0)
        return PK_DEFERRED;
    int is_simple = !fstat(target, &status) &&
                    GUARD(FINISHED_INODE,
                          status.st_ino == given->inode[row] && status.st_dev == batch->tree->target_device) &&
                    (is_made || is_bare(worker, target, 1));
    if (is_simple) {
        pk_mark(batch->target, target, mark);
        is_simple = GUARD(FINISHED_MARK, mark[0] == known[0] && !memcmp(mark, known, 1u + mark[0]));
    }
    doing(worker, OP_UTIMENSAT);
    is_simple = is_simple && set_metadata(batch, target, &status, &wanted, is_made) >= 0;
    close(target);
    return is_simple ? DONE : PK_DEFERRED;
}

void pk_release_directories(pk_batch *batch)
{
    for (uint32_t row = 0; batch->directories != NULL && row < batch->rows; row++) {
        free(batch->directories[row].block);
        batch->directories[row].block = NULL;
        pk_release_walk(&batch->directories[row]);
    }
}

int pk_open_directory(int around, const char *name, int flags, int wants_mark, pk_opened *opened)
{
    struct stat status;
    int descriptor = openat(around, name, flags);
    if (descriptor < 0)
        return -1;
    if (fstat(descriptor, &status)) {
        close(descriptor);
        return -1;
    }
    opened->device = status.st_dev;
    opened->inode = status.st_ino;
    opened->mark[0] = 0;
    if (wants_mark)
        pk_mark(descriptor, descriptor, opened->mark);
    return descriptor;
}
