/* The row of PK_UNPACK: it creates directories of an archive, and the small files in them, whose contents and metadata
 * Python has in memory. Directories and files that this code does not handle are left to the slow path.
 */
#include "internal.h"

/* An open directory. Its path is the first `length` bytes of `path`; number: of the directory in the batch, or
 * NOT_LISTED. is_whole: true if this row has created the directory, and all files in it. */
typedef struct {
    int descriptor, is_whole;
    const char *path;
    size_t length;
    uint32_t number;
} level;

/* Return true if files and directories can be created in the open directory without further preparation. */
static int is_simple(const pk_tree *tree, int directory, const struct stat *status)
{
    return status->st_dev == tree->target_device && GUARD(NEW_DIRECTORY_OWNER, status->st_uid == tree->user) &&
           (tree->flags & PK_POWERFUL || (status->st_mode & 0700) == 0700) &&
           GUARD(NEW_DIRECTORY_ACL, pk_has_no_default_acl(directory));
}

/* Open an existing or new directory in the open directory `parent`. A new directory gets `mode`, unless that is
 * PRIVATE_DIRECTORY. Return its descriptor; or -1, with errno set if it cannot be opened, and with errno 0 if the slow
 * path has to prepare it. */
static int open_simple(const pk_batch *batch, int parent, const char *name, mode_t mode)
{
    struct stat status;
    const int opened = pk_open_quietly(parent, name, DIRECTORY, NULL);
    if (opened < 0)
        return -1;
    if (!fstat(opened, &status) && is_simple(batch->tree, opened, &status) &&
        (mode == PRIVATE_DIRECTORY || !set_mode(opened, (status.st_mode & S_ISGID) | mode)))
        return opened;
    close(opened);
    errno = 0;
    return -1;
}

/* Open the directory `name` in the open directory `parent`, or create it. Unless a member describes it (`is_described`), a
 * new one gets the mode of a new directory. *is_made is set to 1 if it was created. Return its descriptor, or -1; then a
 * new directory remains, because another rank may create items in it already. */
static int open_or_make(pk_worker *worker, const pk_batch *batch, int parent, const char *name, int is_described,
                        int *is_made)
{
    doing(worker, OP_OPEN);
    if (!is_described) { /* it probably exists, because something lies in it that was extracted before */
        const int opened = open_simple(batch, parent, name, PRIVATE_DIRECTORY);
        if (opened >= 0 || errno != ENOENT)
            return opened;
    }
    *is_made = !mkdirat(parent, name, PRIVATE_DIRECTORY);
    if (!*is_made && errno != EEXIST)
        return -1;
    return open_simple(batch, parent, name,
                       is_described || !*is_made ? PRIVATE_DIRECTORY : 0777 & ~batch->umask);
}

/* Create `number` files in the open directory: those of the batch from `first` on, which have these `names`. Store the
 * code of each. Return true if all were created. */
static int make_files(pk_worker *worker, pk_batch *batch, int directory, const char *names, uint32_t first,
                      uint32_t number)
{
    pk_work work = {.is_ours = 1};
    pk_batch inside = *batch;
    uint8_t *const codes = batch->outcomes + batch->finished;
    uint32_t made = 0;
    inside.work = &work;
    inside.target = directory;
    atomic_store_explicit(&work.is_refused, batch->work->is_refused, memory_order_relaxed);
    atomic_store_explicit(&worker->inside, directory, memory_order_relaxed);
    for (uint32_t each = first; each < first + number; each++) {
        if (pk_make_file(worker, &inside, each, names) == DONE) {
            codes[each] = batch->verdicts.errnos[each] ? LACKS : DONE;
            made++;
        }
        names += strlen(names) + 1;
    }
    atomic_store_explicit(&worker->inside, -1, memory_order_relaxed);
    atomic_store_explicit(&batch->work->is_refused, work.is_refused, memory_order_relaxed);
    atomic_fetch_add_explicit(&batch->work->moved, work.moved, memory_order_relaxed);
    return made == number;
}

/* Return true if a directory may get its metadata before everything is extracted: it keeps its owner, and nobody else may
 * write to it, because hard links to files in it may be created later; and the process keeps access to it, because the
 * archive may be extracted again after an interruption. `status` is that of the directory. */
static int is_safe_to_finish(const pk_batch *batch, uint32_t each, const struct stat *status)
{
    const mode_t mode = batch->wanted.mode[each] & ~(batch->flags & PK_MODE ? 0 : batch->umask);
    return !(mode & (S_IWGRP | S_IWOTH)) && (batch->tree->flags & PK_POWERFUL || (mode & S_IRWXU) == S_IRWXU) &&
           (!(batch->flags & PK_OWNER) || batch->wanted.uid[each] == status->st_uid);
}

/* Set the metadata of an open directory, if nothing else is created in it or below, and if that may be done now. */
static void finish(pk_worker *worker, pk_batch *batch, const level *last)
{
    const pk_columns *wanted = &batch->wanted;
    const uint32_t each = last->number;
    struct stat status;
    if (each == NOT_LISTED || !last->is_whole || !(batch->plans[each] & PK_IS_LEAF) ||
        !is_common(whole_seconds(wanted->mtime[each])) || fstat(last->descriptor, &status) ||
        !is_safe_to_finish(batch, each, &status))
        return;
    const pk_metadata metadata = {wanted->mode[each], wanted->uid[each], wanted->gid[each], wanted->mtime[each],
                                  wanted->mtime[each]};
    doing(worker, OP_UTIMENSAT);
    if (pk_set_metadata(batch, last->descriptor, &status, &metadata, 1) >= 0)
        batch->outcomes[each] = DONE;
}

static void leave(pk_worker *worker, pk_batch *batch, const level *last)
{
    finish(worker, batch, last);
    close(last->descriptor);
}

/* Open or create the directories on the path of directory `each` that are not open yet. Return the number of those that
 * are open then. */
static uint32_t enter(pk_worker *worker, pk_batch *batch, level *open, uint32_t levels, const char *path, uint32_t each)
{
    size_t done = levels ? open[levels - 1].length : 0;
    char name[NAME_MAX + 1];
    while (path[done] && levels < MOST_OPEN) {
        const size_t length = pk_next_name(path, done, name);
        const int parent = levels ? open[levels - 1].descriptor : batch->target;
        const int is_described = batch->plans[each] & PK_IS_MEMBER && !path[length];
        int is_made = 0, opened = -1;
        if (length)
            opened = open_or_make(worker, batch, parent, name, is_described, &is_made);
        if (opened < 0) {
            batch->made[each] = is_made && !is_described ? length : 0;
            break;
        }
        open[levels++] = (level){opened, is_made, path, length, NOT_LISTED};
        done = length;
    }
    return levels;
}

/* Return the text that follows `number` texts, each of which is ended by a zero. */
static const char *after(const char *text, uint32_t number)
{
    while (number--)
        text += strlen(text) + 1;
    return text;
}

int pk_unpack_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    level open[MOST_OPEN];
    uint32_t levels = 0, file = 0;
    const char *path = batch->prefixes, *names = batch->paths;
    (void)row;
    if (!pk_has_no_default_acl(batch->target))
        return DONE;
    for (uint32_t each = 0; each < batch->finished && (!each || pk_now() < batch->tree->deadline); each++) {
        const uint32_t files = batch->wanted.links[each];
        while (levels && !pk_leads_to(open[levels - 1].path, open[levels - 1].length, path))
            leave(worker, batch, &open[--levels]);
        levels = enter(worker, batch, open, levels, path, each);
        if (levels && !path[open[levels - 1].length]) {
            level *const last = &open[levels - 1];
            batch->outcomes[each] = DECIDE_AGAIN;
            last->number = each;
            last->is_whole &= make_files(worker, batch, last->descriptor, names, file, files);
        }
        names = after(names, files);
        file += files;
        path = after(path, 1);
    }
    while (levels)
        leave(worker, batch, &open[--levels]);
    return DONE;
}
