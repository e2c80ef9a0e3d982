/* The visitor of PK_COPY_TREE: a row copies a tree, as far as that is simple. It opens or creates the target of each
 * directory, and copies or skips small files.
 *
 * An existing directory without subdirectories, in which nothing remains to be done, gets its metadata at once: it is
 * finished. One whose subdirectories are finished is finished, too, if its metadata are right. All others get them later
 * (PK_FINISH), and so do, in a resumed job, directories that an earlier run may have changed. Items that this code does
 * not handle are returned with their status. A directory that it does not handle is left with a letter: s if its source is
 * not simple; d if a directory or its target cannot be opened or used; a if that turns out only after the target was
 * created (the row: with the code DECIDE_AGAIN): the slow path continues with the directory, and knows that it was created.
 */
#include "walk.h"

/* Open or create the target directory `name` in the open directory `around`; if that is one that this job has created, it
 * is expected to be empty. *made is set to 1 if the target was created. Return the descriptor, or -1 if that fails or the
 * existing item is not a directory. */
static int open_target(int around, const char *name, int is_in_new, uint8_t *made)
{
    int target = -1;
    if (!is_in_new) {
        target = pk_open_quietly(around, name, DIRECTORY, NULL);
        if (target >= 0 || errno != ENOENT)
            return target;
    }
    if (mkdirat(around, name, PRIVATE_DIRECTORY))
        return -1;
    *made = 1;
    return pk_open_quietly(around, name, DIRECTORY, NULL);
}

/* Return true if another spelling of the name of a directory in the open directory `around` leads to it, too, or may do so:
 * then it may be the target of another source. `status` is that of the directory. */
static int may_have_other_spelling(int around, const char *name, const struct stat *status)
{
    char other[256];
    struct stat found;
    size_t length = strlen(name);
    int is_other = 0;
    if (length >= sizeof other)
        return 1;
    for (size_t at = 0; at <= length; at++) {
        const char letter = name[at], lower = (char)(letter | 0x20);
        if (letter & (char)0x80)
            return 1;
        other[at] = lower >= 'a' && lower <= 'z' ? (char)(letter ^ 0x20) : letter;
        is_other |= other[at] != letter;
    }
    return is_other && !fstatat(around, other, &found, AT_SYMLINK_NOFOLLOW) && found.st_ino == status->st_ino &&
           found.st_dev == status->st_dev;
}

/* Return true if an earlier run of this job has created the open directory: as ``_create_directory`` in
 * ``pcopy.tasks.directories.scan_dir``. */
static int is_made_earlier(const pk_tree *tree, int target, const struct stat *status)
{
    struct statx born;
    int64_t moment;
    return tree->flags & PK_OWN && status->st_uid == tree->user && (status->st_mode & 05777) == 0700 &&
           !pk_statx(target, "", AT_EMPTY_PATH, STATX_BTIME, &born) && born.stx_mask & STATX_BTIME &&
           in_nanoseconds((struct timespec){born.stx_btime.tv_sec, born.stx_btime.tv_nsec}, &moment) && moment >= tree->begun;
}

/* Return true if an existing target directory can be used: it has not changed since the job began; or earlier runs of the
 * job may have changed it, and it is not the target of another source. */
static int is_usable(const pk_batch *batch, pk_directory *one, int around, const char *name, int target,
                     const struct stat *status)
{
    const pk_tree *const tree = batch->tree;
    int64_t ctime;
    if (!in_nanoseconds(status->st_ctim, &ctime))
        return 0;
    if (GUARD(KEPT_SINCE_BEFORE, ctime < tree->begun))
        return 1;
    if (!(tree->flags & PK_RESUMED) || !GUARD(OTHER_SPELLING, !may_have_other_spelling(around, name, status)))
        return 0;
    one->is_touched = 1;
    one->is_made = (uint8_t)is_made_earlier(tree, target, status);
    return 1;
}

/* Return true if files can be created in the open target directory without further preparation: same file system,
 * sufficient permissions, no ACL to inherit, and usable if it existed before. `around` is its parent. */
static int is_simple_target(pk_worker *worker, const pk_batch *batch, pk_directory *one, int around, const char *name,
                            int target, struct stat *status)
{
    const pk_tree *tree = batch->tree;
    if (fstat(target, status) || status->st_dev != tree->target_device)
        return 0;
    if (!(tree->flags & PK_POWERFUL) && (status->st_mode & 0700) != 0700)
        return 0;
    if (one->is_made)
        return GUARD(NEW_DIRECTORY_OWNER, status->st_uid == tree->user) &&
               GUARD(NEW_DIRECTORY_ACL, pk_has_no_default_acl(target));
    return is_usable(batch, one, around, name, target, status) && pk_is_bare(worker, target, 1);
}

/* Read the metadata of an open source directory. Return 0, or -1 if the slow path has to copy it. */
static int read_metadata(pk_worker *worker, const pk_batch *batch, const pk_level *level, pk_metadata *metadata)
{
    const pk_tree *const tree = batch->tree;
    const struct stat *const status = &level->status;
    if ((status->st_dev == tree->shunned_device && status->st_ino == tree->shunned_inode) ||
        !in_nanoseconds(status->st_atim, &metadata->atime) || !in_nanoseconds(status->st_mtim, &metadata->mtime))
        return -1;
    metadata->mode = status->st_mode;
    metadata->uid = status->st_uid;
    metadata->gid = status->st_gid;
    doing(worker, OP_LISTXATTR);
    return pk_is_bare(worker, level->descriptor, 0) ? 0 : -1;
}

/* Read the status of everything in an open source directory, before anything is created. Return 0, or -1 if the slow path
 * has to copy it. */
static int look_into(pk_worker *worker, pk_directory *found, int source, const pk_listed *listed)
{
    struct stat status;
    found->left = (uint32_t)listed->number;
    if (listed->number == 0) /* a directory that was removed after it was opened looks empty, but has no links */
        return fstat(source, &status) || !GUARD(DIRECTORY_EXISTS, status.st_nlink) ? -1 : 0;
    doing(worker, OP_STAT);
    return pk_look_at_all(found, source, listed->names, listed->size);
}

/* Record the status of a target directory that existed before. Return 0, or -1 if its times cannot be represented. */
static int record_present(pk_directory *found, const struct stat *status)
{
    found->present = (pk_metadata){status->st_mode, status->st_uid, status->st_gid, 0, 0};
    return in_nanoseconds(status->st_mtim, &found->present.mtime) &&
                   in_nanoseconds(status->st_ctim, &found->present_ctime)
               ? 0
               : -1;
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

/* Choose the subdirectories that are entered: their letters in `listed` remain 'd'. Return their number. */
static uint32_t choose_subdirectories(const pk_walk *walk, const pk_directory *found, pk_listed *listed)
{
    const pk_tree *const tree = walk->batch->tree;
    const pk_columns *const rows = &found->rows;
    uint32_t chosen = 0;
    for (uint32_t row = 0; row < found->left; row++) {
        const int is_entered = walk->levels < tree->depth && listed->all.kinds[row] == 'd' && S_ISDIR(rows->mode[row]) &&
                               rows->device[row] == tree->source_device && rows->inode[row] == listed->all.inodes[row];
        listed->all.kinds[row] = is_entered ? 'd' : '-';
        chosen += (uint32_t)is_entered;
    }
    return chosen;
}

/* Allocate the memory that store needs. Return 0, or -1 if there is none. */
static int make_room_to_store(pk_walk *walk)
{
    pk_directory *const found = walk->found;
    return pk_room_for(&found->copies, sizeof(pk_copied)) == NULL || pk_room_for(&found->marks, PK_MARK) == NULL ||
                   pk_room_for(&found->text, walk->path.size) == NULL ||
                   pk_room_for(&found->partly, sizeof(pk_directory)) == NULL
               ? -1
               : 0;
}

/* Return the entry of the directory that contains the one which is entered now; NULL if that is the parent of the rows. */
static pk_copied *entry_above(const pk_walk *walk)
{
    pk_copied *const entries = (pk_copied *)walk->found->copies.at;
    return walk->levels ? &entries[walk->level[walk->levels - 1].number] : NULL;
}

/* Store a directory that is not finished, and the items that remain in it. Return 0, or -1 if there is no memory. */
static int store(pk_walk *walk, const pk_level *level, const pk_directory *one, int is_unchanged)
{
    pk_directory *const found = walk->found;
    const pk_tree *const tree = walk->batch->tree;
    const pk_metadata *const metadata = &one->metadata;
    const int is_simple = (tree->flags & PK_POWERFUL || (metadata->mode & 0700) == 0700) &&
                          is_common(whole_seconds(metadata->atime)) && is_common(whole_seconds(metadata->mtime));
    const pk_copied entered = {
        .metadata = *metadata,
        .source = level->inode,
        .target = one->inode,
        .copied_bytes = one->copied_bytes,
        .skipped_bytes = one->skipped_bytes,
        .present = one->present,
        .present_ctime = one->present_ctime,
        .copied = one->copied,
        .skipped = one->skipped,
        .excluded = one->excluded,
        .remaining = one->left,
        .flags = (is_simple ? PK_IS_SIMPLE : 0u) | (one->is_made ? PK_IS_MADE : 0u) |
                 (one->is_anothers ? PK_IS_ANOTHERS : 0u) | (is_unchanged ? PK_IS_UNCHANGED : 0u) |
                 (one->is_touched ? PK_IS_TOUCHED : 0u),
        .mark_size = 1u + one->mark[0],
    };
    if (pk_number_of(walk, walk->levels) == NOT_NUMBERED)
        return -1;
    pk_append(&found->copies, &entered, sizeof entered);
    pk_append(&found->marks, one->mark, entered.mark_size);
    pk_append(&found->text, walk->path.at, walk->path.size - 1); /* without the slash at its end */
    pk_append(&found->text, "", 1);
    if (one->left)
        pk_append(&found->partly, one, sizeof *one);
    if (entry_above(walk) != NULL)
        entry_above(walk)->subdirectories++;
    walk->results += sizeof entered + (one->left ? one->names_size + 64 * (size_t)one->left : 0);
    return 0;
}

/* Count a finished directory: for the one that contains it, or for the row. */
static void count_finished(pk_walk *walk, const pk_directory *one)
{
    pk_copied *const above = entry_above(walk);
    if (above == NULL) {
        walk->found->is_finished = 1;
        walk->found->is_changed = one->is_changed;
        walk->found->skipped = one->skipped;
        walk->found->excluded = one->excluded;
        walk->found->skipped_bytes = one->skipped_bytes;
        return;
    }
    above->finished++;
    above->changed += one->is_changed;
    above->skipped += one->skipped;
    above->excluded += one->excluded;
    above->skipped_bytes += one->skipped_bytes;
}

/* Set the metadata of a directory that existed before, and in which nothing remains to be done. Return true, or 0 if it
 * has to be done later: also if the caller has to report it. */
static int finish(const pk_batch *batch, pk_directory *one, int target, const struct stat *status)
{
    const int flags = batch->tree->flags;
    if (flags & PK_REPORT_ALL || (flags & PK_REPORT && !pk_has_metadata(batch, status, &one->metadata)))
        return 0;
    const int written = pk_set_metadata(batch, target, status, &one->metadata, 0);
    one->is_finished = written >= 0;
    one->is_changed = written > 0 && has_changed(target, status);
    return one->is_finished;
}

/* Skip or copy files of a directory whose target is open; subdirectories that are entered have the letter 'd'. Return 0,
 * or the letter with which the directory is left to the slow path. */
static int process_target(pk_walk *walk, const pk_level *level, pk_directory *one, pk_listed *listed)
{
    pk_worker *const worker = walk->worker;
    const pk_batch *const batch = walk->batch;
    struct stat status;
    const int around = walk->levels ? walk->level[walk->levels - 1].other : batch->target;
    if (!is_simple_target(worker, batch, one, around, level->name, level->other, &status) ||
        (!one->is_made && record_present(one, &status)) || make_room_to_store(walk))
        return 'd';
    const uint32_t chosen = choose_subdirectories(walk, one, listed);
    doing(worker, OP_STAT);
    if (one->left && pk_process_items(walk, level, one, listed->all.kinds))
        walk->is_over = 1;
    doing(worker, OP_UTIMENSAT);
    const int can_enter = batch->tree->flags & PK_POWERFUL || (one->metadata.mode & 0700) == 0700;
    if (!one->is_made && !one->is_touched && !one->left && !chosen && can_enter &&
        finish(batch, one, level->other, &status)) {
        count_finished(walk, one);
        return 0;
    }
    one->inode = status.st_ino;
    one->is_anothers = status.st_uid != batch->tree->user;
    pk_mark(batch->target, level->other, one->mark);
    const int is_unchanged = !one->is_made && !one->is_touched && pk_has_metadata(batch, &status, &one->metadata);
    return store(walk, level, one, is_unchanged) ? 'd' : 0;
}

/* Copy the directory `level`, as far as that is simple. The status of everything in it is read before anything is created. A
 * target that this row has created is expected to be empty. */
static int copy_directory(pk_walk *walk, pk_level *level, pk_listed *listed)
{
    const pk_batch *const batch = walk->batch;
    const pk_copied *const above = entry_above(walk);
    const int is_in_new = above != NULL ? (above->flags & (PK_IS_MADE | PK_IS_TOUCHED)) == PK_IS_MADE
                                        : !!(batch->tree->flags & PK_IN_NEW);
    pk_directory one = {.skipped = listed->excluded, .excluded = listed->excluded};
    if (read_metadata(walk->worker, batch, level, &one.metadata) ||
        look_into(walk->worker, &one, level->descriptor, listed)) {
        free(one.block);
        return 's';
    }
    doing(walk->worker, OP_OPEN);
    level->other = open_target(above != NULL ? walk->level[walk->levels - 1].other : batch->target, level->name, is_in_new,
                               &one.is_made);
    const int letter = level->other >= 0 ? process_target(walk, level, &one, listed) : 'd';
    if (letter) {
        free(one.block);
        return one.is_made && !one.is_touched ? 'a' : letter;
    }
    if (!one.left)
        free(one.block);
    return 0;
}

/* Return true if nothing remains in a directory and below it, and it has the right metadata: it existed, and all
 * directories below it are finished. */
static int is_complete(const pk_walk *walk, const pk_level *level)
{
    const pk_frontier *const frontier = &walk->found->frontier;
    const pk_copied *const entry = (const pk_copied *)walk->found->copies.at + level->number;
    const uint32_t *const parents = (const uint32_t *)frontier->left_parents.at;
    return entry->flags & PK_IS_UNCHANGED && !entry->remaining && !entry->copied && level->number + 1 == frontier->entered &&
           !(frontier->left && parents[frontier->left - 1] == level->number);
}

/* Return true if the caller needs the directory that is closed, although it is complete: to report it, or to check it in a
 * later run. */
static int is_kept(const pk_walk *walk)
{
    const int flags = walk->batch->tree->flags;
    return flags & PK_REPORT_ALL || (walk->levels == 1 && flags & PK_KEEP_ROWS);
}

/* If a directory that is closed is complete, count it as finished, and do not return it. Otherwise do nothing. */
static int count_complete(pk_walk *walk, pk_level *level)
{
    pk_directory *const found = walk->found;
    pk_copied *const entries = (pk_copied *)found->copies.at;
    if (!is_complete(walk, level))
        return 0;
    const pk_copied entry = entries[level->number];
    if (is_kept(walk)) {
        entries[level->number].flags |= PK_IS_COMPLETE;
        return 0;
    }
    if (walk->levels == 1) {
        found->is_finished = 1;
        found->finished = entry.finished;
        found->changed = entry.changed;
        found->skipped = entry.skipped;
        found->excluded = entry.excluded;
        found->skipped_bytes = entry.skipped_bytes;
    } else {
        pk_copied *const above = &entries[walk->level[walk->levels - 2].number];
        above->subdirectories--;
        above->finished += 1 + entry.finished;
        above->changed += entry.changed;
        above->skipped += entry.skipped;
        above->excluded += entry.excluded;
        above->skipped_bytes += entry.skipped_bytes;
        above->flags |= PK_HAS_COMPLETE;
    }
    found->copies.size -= sizeof entry;
    found->marks.size -= entry.mark_size;
    found->text.size -= level->path;
    walk->results -= sizeof entry;
    pk_forget_number(walk);
    return 0;
}

int pk_copy_tree_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    static const pk_visitor copy = {.names = copy_directory, .stay = count_complete, .is_final = 1};
    if (row && batch->tree->deadline && pk_now() >= batch->tree->deadline)
        return CANCELLED;
    return pk_walk_row(worker, batch, row, &copy, "", NULL);
}
