/* Rows of PK_FINISH and PK_SYNC, and the metadata of directories. PK_FINISH sets the metadata of target directories after
 * everything in them was copied; PK_SYNC syncs open directories.
 */
#include "internal.h"

#include <sys/xattr.h>

int pk_is_bare(pk_worker *worker, int directory, int is_target)
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

int pk_has_no_default_acl(int directory)
{
    return fgetxattr(directory, "system.posix_acl_default", NULL, 0) < 0 &&
           (errno == ENODATA || errno == ENOTSUP || errno == ENOSYS);
}

static struct timespec moment_of(int64_t nanoseconds)
{
    return (struct timespec){nanoseconds / 1000000000, nanoseconds % 1000000000};
}

int pk_has_metadata(const pk_batch *batch, const struct stat *status, const pk_metadata *wanted)
{
    int64_t mtime, ctime;
    const int set_id = wanted->mode & (S_ISUID | S_ISGID);
    return (batch->flags & PK_OWNER ? status->st_uid == wanted->uid && status->st_gid == wanted->gid : !set_id) &&
           (!(batch->flags & PK_MODE) || (status->st_mode & 07777) == (wanted->mode & 07777)) &&
           (!(batch->flags & PK_TIMES) ||
            (in_nanoseconds(status->st_mtim, &mtime) && in_nanoseconds(status->st_ctim, &ctime) &&
             is_same_moment(wanted->mtime, mtime, ctime, batch->tree->window)));
}

int pk_set_metadata(const pk_batch *batch, int directory, const struct stat *status, const pk_metadata *wanted,
                    int is_made)
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
    if (in_nanoseconds(status->st_mtim, &mtime) && in_nanoseconds(status->st_ctim, &ctime) &&
        is_same_moment(wanted->mtime, mtime, ctime, batch->tree->window) &&
        (!is_made || (in_nanoseconds(status->st_atim, &atime) && atime == wanted->atime)))
        return is_written;
    return futimens(directory, times) ? -1 : 1;
}

int pk_sync_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    doing(worker, OP_FSYNC);
    while (!IS_DISABLED(SYNC_DIRECTORY) && fsync(batch->synced[row]))
        if (errno != EINTR)
            return set_verdict(batch, row, FAILED, OP_FSYNC, errno);
    return DONE;
}

/* An open target directory on the way to others. */
typedef struct {
    int descriptor, parent;
    int source;                   /* the source directory of the same path; -1 if the two are not compared */
    const char *path;             /* the first `length` bytes are the path of the directory */
    size_t length;
    uint32_t number;              /* of the directory in the batch, or NOT_LISTED */
    struct stat status;
} open_target;

#define TEMPORARY "pcopy-"        /* begin of names of temporary files, perhaps after a dot: ``pcopy.fsio.temporary`` */

/* Return true if an item of the target has the type of the item of the same name in the source and, if it is a file or a
 * link, its size. `kind` is the letter of the source item in its listing. */
static int is_like_source(int source, int target, const char *name, uint8_t kind)
{
    struct stat wanted, present;
    if (fstatat(target, name, &present, AT_SYMLINK_NOFOLLOW))
        return 0;
    if (kind == 'd')
        return S_ISDIR(present.st_mode);
    return !fstatat(source, name, &wanted, AT_SYMLINK_NOFOLLOW) && !((wanted.st_mode ^ present.st_mode) & S_IFMT) &&
           (S_ISREG(present.st_mode) || S_ISLNK(present.st_mode)) && wanted.st_size == present.st_size;
}

/* Return true if an open target directory, in which an earlier run has created all items, has exactly the items of its open
 * source, and no temporary file. The slow path examines others: ``pcopy.tasks.directories.lost_items``. */
static int has_items_of_source(pk_worker *worker, int source, int target)
{
    char *name = (char *)worker->buffer;
    pk_all all;
    doing(worker, OP_READDIR);
    const int number = pk_list_all(worker, source, name, LISTED_BYTES - 1, MOST_LISTED, &all);
    if (number < 0 || pk_list_all(worker, target, name + LISTED_BYTES, LISTED_BYTES - 1, MOST_LISTED, NULL) != number)
        return 0;
    doing(worker, OP_STAT);
    for (int each = 0; each < number; each++) {
        char *const next = cut_off(name);
        if (!strncmp(name + (*name == '.'), TEMPORARY, sizeof TEMPORARY - 1) ||
            !is_like_source(source, target, name, all.kinds[each]))
            return 0;
        name = next;
    }
    return 1;
}

/* Return true if an open directory is the recorded one, or with PK_BY_PATH any directory, and if its metadata can be set
 * here. */
static int is_recorded(pk_worker *worker, const pk_batch *batch, open_target *one, const uint8_t *known)
{
    uint8_t mark[PK_MARK];
    struct stat source;
    const int is_resumed = batch->tree->flags & PK_RESUMED;
    if (batch->tree->flags & PK_BY_PATH)
        return !fstat(one->descriptor, &one->status) && one->status.st_dev == batch->tree->target_device &&
               pk_is_bare(worker, one->descriptor, 1);
    if (is_resumed && (one->source < 0 || fstat(one->source, &source) ||
                       source.st_ino != batch->wanted.inode[one->number] ||
                       source.st_dev != batch->tree->source_device ||
                       !has_items_of_source(worker, one->source, one->descriptor)))
        return 0;
    if (fstat(one->descriptor, &one->status) ||
        !GUARD(FINISHED_INODE, one->status.st_ino == batch->given.inode[one->number] &&
                                   one->status.st_dev == batch->tree->target_device) ||
        !((batch->plans[one->number] && !is_resumed) || pk_is_bare(worker, one->descriptor, 1)))
        return 0;
    pk_mark(one->parent, one->descriptor, mark);
    return GUARD(FINISHED_MARK, mark[0] == known[0] && !memcmp(mark, known, 1u + mark[0]));
}

/* Close the directory that was opened last, after everything below it is finished, and set its metadata. */
static void close_last(pk_worker *worker, pk_batch *batch, open_target *one)
{
    const pk_columns *given = &batch->given;
    const uint32_t each = one->number;
    if (each != NOT_LISTED) {
        const pk_metadata wanted = {given->mode[each], given->uid[each], given->gid[each], given->atime[each],
                                    given->mtime[each]};
        doing(worker, OP_UTIMENSAT);
        if (pk_set_metadata(batch, one->descriptor, &one->status, &wanted, batch->plans[each]) >= 0)
            batch->outcomes[each] = DONE;
    }
    close(one->descriptor);
    if (one->source >= 0)
        close(one->source);
}

/* Open the next directory on a path, whose first `done` bytes lead to the open directory `parent`, and its source below the
 * open directory `source`, unless that is -1. Return 0 if the target cannot be opened. */
static int open_next(pk_worker *worker, open_target *next, int parent, int source, const char *path, size_t done)
{
    char name[NAME_MAX + 1];
    const size_t length = pk_next_name(path, done, name);
    if (!length)
        return 0;
    doing(worker, OP_OPEN);
    *next = (open_target){.parent = parent, .source = -1, .path = path, .length = length, .number = NOT_LISTED};
    next->descriptor = pk_open_quietly(parent, name, DIRECTORY, NULL);
    if (next->descriptor >= 0 && source >= 0)
        next->source = pk_open_quietly(source, name, DIRECTORY, NULL);
    return next->descriptor >= 0;
}

/* Finish some directories. A directory precedes those below it, so each is opened from the one before, or from one of those
 * that lead to it. Those that remain open are finished when another path does not lead through them. */
int pk_finish_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    const uint32_t portion = (uint32_t)batch->tree->most, first = row * portion;
    const uint32_t rest = batch->finished - first;
    const char *path = batch->prefixes + batch->offsets[2 * row];
    const uint8_t *known = batch->marks + batch->offsets[2 * row + 1];
    open_target open[MOST_OPEN];
    uint32_t levels = 0;
    const int top_source = batch->tree->flags & PK_RESUMED ? batch->directory : -1;
    for (uint32_t each = first; each < first + (rest < portion ? rest : portion); each++) {
        while (levels && !pk_leads_to(open[levels - 1].path, open[levels - 1].length, path))
            close_last(worker, batch, &open[--levels]);
        size_t done = levels ? open[levels - 1].length : 0;
        int parent = levels ? open[levels - 1].descriptor : batch->target;
        int source = levels ? open[levels - 1].source : top_source;
        while (path[done] && levels < MOST_OPEN && open_next(worker, &open[levels], parent, source, path, done)) {
            parent = open[levels].descriptor;
            source = open[levels].source;
            done = open[levels++].length;
        }
        if (!path[done]) {
            open[levels - 1].number = each;
            if (!is_recorded(worker, batch, &open[levels - 1], known))
                open[levels - 1].number = NOT_LISTED;
        }
        path += strlen(path) + 1;
        known += 1 + known[0];
    }
    while (levels)
        close_last(worker, batch, &open[--levels]);
    return DONE;
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
