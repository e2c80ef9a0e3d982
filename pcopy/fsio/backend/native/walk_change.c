/* PK_CHANGE: the visitor that changes owner, group and mode of all items of subtrees. A row is an item of any type.
 *
 * A directory is changed when it is entered, by its descriptor. If its new mode or owner might deny this process access to
 * it, it is changed when it is left; if something in it or below remains, the caller has to change it afterwards.
 */
#include "change.h"
#include "walk.h"

/* What the visitor needs in addition to the walk. */
typedef struct {
    int changes_row;             /* true if the directory of the row is to be changed, and not only its contents */
    uint8_t closes[MOST_LEVELS]; /* true if the directory of the level has to be changed when it is left */
} pk_changes;

/* Return true if this change might take away this process's access to a directory. */
static int closes(const pk_batch *batch, const struct stat *status, const pk_wish *wish)
{
    const uint32_t lost = wish->mode == KEEP ? 0 : status->st_mode & 0500 & ~wish->mode;
    return !(batch->tree->flags & PK_POWERFUL) && (wish->uid != KEEP || (lost && status->st_uid == batch->tree->user));
}

static pk_wish wish_for_directory(const pk_batch *batch, const struct stat *status)
{
    return pk_wish_for(batch, status->st_mode, status->st_uid, status->st_gid, batch->directory_modes);
}

static void count_item(pk_sums *sums, const struct stat *status, const pk_wish *wish)
{
    sums->changed += !is_nothing(wish);
    add_item(sums, status);
}

/* Return true if no further item may be begun. `done` is the number of items since the batch or directory was begun. */
static int is_over(const pk_batch *batch, uint32_t done)
{
    return atomic_load_explicit(&batch->work->is_cancelled, memory_order_relaxed) ||
           (done >= LEAST_NAMES && done % NAMES_PER_CLOCK_READING == 0 && pk_now() >= batch->tree->deadline);
}

/* Change an item that is no directory, and count it. Return 0, or the letter with which it is left to the caller. */
static int change_item(pk_worker *worker, const pk_batch *batch, int directory, const char *name, uint64_t inode,
                       pk_sums *sums)
{
    struct stat status;
    doing(worker, OP_STAT);
    if (fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) || !GUARD(CHANGED_AS_LISTED, status.st_ino == inode))
        return '?';
    if (S_ISDIR(status.st_mode) || !GUARD(CHANGED_AS_LISTED, status.st_dev == batch->tree->source_device))
        return '?';
    const pk_wish wish = pk_wish_for(batch, status.st_mode, status.st_uid, status.st_gid, batch->modes);
    const int result = is_nothing(&wish) ? 0 : pk_give_to(worker, directory, name, &status, &wish);
    if (result)
        return result == EXCHANGED ? '!' : '?';
    count_item(sums, &status, &wish);
    return 0;
}

/* Open a directory. If its mode does not permit that, but the mode that it should get does, change it first. */
static int open_directory(pk_walk *walk, int around, const char *name, uint64_t inode)
{
    const pk_batch *const batch = walk->batch;
    const pk_changes *const changes = walk->data;
    const int descriptor = pk_open_whole(walk->worker, around, name);
    struct stat status;
    if (descriptor >= 0 || errno != EACCES || !(walk->levels || changes->changes_row))
        return descriptor;
    doing(walk->worker, OP_STAT);
    if (fstatat(around, name, &status, AT_SYMLINK_NOFOLLOW) ||
        !GUARD(CHANGED_AS_LISTED, status.st_ino == inode && status.st_dev == batch->tree->source_device))
        return -1;
    const pk_wish wish = wish_for_directory(batch, &status);
    if (!S_ISDIR(status.st_mode) || status.st_uid != batch->tree->user || closes(batch, &status, &wish) ||
        wish.mode == KEEP || (wish.mode & 0500) != 0500 || pk_give_to(walk->worker, around, name, &status, &wish))
        return -1;
    walk->sums.changed++;
    return pk_open_whole(walk->worker, around, name);
}

/* Change an open directory and count it, or record that it has to be changed when it is left. Return 0, or the letter with
 * which it is left to the caller. */
static int change_directory(pk_walk *walk, const pk_level *level)
{
    pk_changes *const changes = walk->data;
    changes->closes[walk->levels] = 0;
    if (walk->levels == 0 && !changes->changes_row)
        return 0;
    const pk_wish wish = wish_for_directory(walk->batch, &level->status);
    changes->closes[walk->levels] = (uint8_t)closes(walk->batch, &level->status, &wish);
    if (changes->closes[walk->levels])
        return 0;
    if (!is_nothing(&wish) && pk_give(walk->worker, level->descriptor, &wish))
        return '?';
    count_item(&walk->sums, &level->status, &wish);
    return 0;
}

/* Change a directory, and all items in it but directories. */
static int change_names(pk_walk *walk, pk_level *level, pk_listed *listed)
{
    const char *name = listed->names;
    int is_at_end = 0;
    const int letter = change_directory(walk, level);
    if (letter)
        return letter;
    for (uint32_t each = 0; each < (uint32_t)listed->number; each++) {
        const uint8_t kind = listed->all.kinds[each];
        const uint64_t inode = listed->all.inodes[each];
        int left = 0;
        is_at_end = is_at_end || is_over(walk->batch, each);
        if (kind != 'd')
            left = is_at_end ? kind
                             : change_item(walk->worker, walk->batch, level->descriptor, name, inode, &walk->sums);
        if (left)
            pk_remain(walk, walk->levels, name, left, inode);
        name += strlen(name) + 1;
    }
    return 0;
}

/* Leave the change of a directory that was entered to the caller. */
static int stay(pk_walk *walk, pk_level *level)
{
    const pk_changes *const changes = walk->data;
    const uint32_t at = walk->levels - 1;
    if (!changes->closes[at])
        return 0;
    if (at)
        pk_remain(walk, at - 1, level->name, 'x', level->inode);
    else
        walk->found->letter = 'x';
    return 0;
}

/* Change a directory that had to be changed after all below it. */
static int leave(pk_walk *walk, pk_level *level, int around)
{
    const pk_changes *const changes = walk->data;
    struct stat status;
    (void)around;
    if (!changes->closes[walk->levels - 1])
        return 0;
    doing(walk->worker, OP_FSTAT);
    if (fstat(level->descriptor, &status))
        return stay(walk, level);
    const pk_wish wish = wish_for_directory(walk->batch, &status);
    if (!is_nothing(&wish) && pk_give(walk->worker, level->descriptor, &wish))
        return stay(walk, level);
    count_item(&walk->sums, &status, &wish);
    return 0;
}

/* Walk the directory of a row. Return the code of the row. */
static int change_subtree(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    static const pk_visitor visitor = {
        .names = change_names, .leave = leave, .stay = stay, .open = open_directory, .is_final = 1};
    pk_changes changes = {.changes_row = batch->kinds != NULL};
    return pk_walk_row(worker, batch, row, &visitor, "", &changes);
}

int pk_change_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    const uint8_t kind = batch->kinds != NULL ? batch->kinds[row] : 'd';
    if (is_over(batch, row) || (row && kind == 'd' && pk_now() >= batch->tree->deadline))
        return CANCELLED;
    if (kind == '?')
        return PK_DEFERRED;
    if (kind == 'd')
        return change_subtree(worker, batch, row);
    const int letter = change_item(worker, batch, batch->directory, batch->work->name[row], batch->given.inode[row],
                                   &batch->sums[row]);
    if (letter == '?')
        return PK_DEFERRED;
    batch->directories[row].letter = (uint8_t)letter;
    return DONE;
}
