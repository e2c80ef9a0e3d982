/* The visitor that compares two trees (PK_COMPARE_TREES).
 *
 * Pairs of equal items are counted, and directories that are equal are entered. The frontier has all others: names that
 * exist on one side only, items that differ, and items that cannot be compared here.
 */
#include "walk.h"

#include <sys/sysmacros.h>

#define CONTENTS (64u << 10) /* bytes of each buffer for contents */
#define LARGEST (512u << 10) /* bytes; larger files are left to the slow path */
#define MOST_BYTES (8u << 20) /* bytes read for one directory; further files are left to other rows, so that other ranks
                               * get some of them */

/* A name of a listed directory, and its index in the listing. */
struct entry {
    const char *name;
    int index;
};

/* The state of comparing the directories of a row. */
struct pairs {
    pk_worker *worker;
    const pk_batch *batch;
    pk_sums *sums;
    int directories[2];     /* those that are compared now */
    unsigned char *contents[2];
    uint64_t bytes;         /* that were read before this directory */
    pk_listed other;        /* the names on the second side */
    uint64_t inodes[MOST_LISTED]; /* of the directories on the second side, by the index on the first one */
    struct entry entries[2][MOST_LISTED];
};

static int by_name(const void *one, const void *other)
{
    return strcmp(((const struct entry *)one)->name, ((const struct entry *)other)->name);
}

/* Store the names of a listing, sorted. */
static void sort_names(const pk_listed *listed, struct entry *entries)
{
    const char *name = listed->names;
    for (int each = 0; each < listed->number; each++) {
        entries[each] = (struct entry){name, each};
        name += strlen(name) + 1;
    }
    qsort(entries, (size_t)listed->number, sizeof *entries, by_name);
}

static int are_times_alike(const struct stat *one, const struct stat *other, int64_t window)
{
    const __int128 later = ((__int128)one->st_mtim.tv_sec - other->st_mtim.tv_sec) * 1000000000 +
                           (one->st_mtim.tv_nsec - other->st_mtim.tv_nsec);
    return (later < 0 ? -later : later) <= (__int128)window * 1000000000;
}

/* Return true if the statuses of two items agree in the properties to compare. Return 0 for devices and sockets, too: the
 * slow path compares devices, and knows whether sockets are compared. */
static int are_alike(const pk_batch *batch, const struct stat *one, const struct stat *other)
{
    const mode_t kind = one->st_mode & S_IFMT;
    const int has_size = kind == S_IFREG ? batch->flags & (PK_OF_SIZE | PK_OF_CONTENT)
                                         : kind == S_IFLNK && batch->flags & PK_OF_SIZE;
    if (kind != (other->st_mode & S_IFMT) || kind == S_IFCHR || kind == S_IFBLK || kind == S_IFSOCK)
        return 0;
    if (has_size && one->st_size != other->st_size)
        return 0;
    if (batch->flags & PK_OF_MTIME && !are_times_alike(one, other, batch->tree->window))
        return 0;
    if (batch->flags & PK_OF_MODE && kind != S_IFLNK && (one->st_mode ^ other->st_mode) & 07777)
        return 0;
    return !(batch->flags & PK_OF_OWNER) || (one->st_uid == other->st_uid && one->st_gid == other->st_gid);
}

/* Return true if two symbolic links have the same text. Return 0 if they differ or cannot be read. */
static int have_same_text(const struct pairs *pairs, const char *name)
{
    ssize_t sizes[2];
    doing(pairs->worker, OP_READ);
    for (int side = 0; side < 2; side++)
        sizes[side] = readlinkat(pairs->directories[side], name, (char *)pairs->contents[side], CONTENTS);
    return sizes[0] > 0 && sizes[0] < CONTENTS && sizes[0] == sizes[1] &&
           !memcmp(pairs->contents[0], pairs->contents[1], (size_t)sizes[0]);
}

/* Return 1 if two open files have the same contents of this size, 0 if the contents differ, -1 if a file cannot be
 * read or has another size. */
static int have_same_contents(const struct pairs *pairs, const int reading[2], size_t size)
{
    size_t at = 0;
    do { /* at the end, one byte more than expected is requested: so one read shows that a small file has not grown */
        const size_t wanted = size - at < CONTENTS ? size - at + 1 : CONTENTS;
        const size_t expected = wanted <= size - at ? wanted : size - at;
        for (int side = 0; side < 2; side++)
            if (read(reading[side], pairs->contents[side], wanted) != (ssize_t)expected)
                return -1;
        if (memcmp(pairs->contents[0], pairs->contents[1], expected))
            return 0;
        at += expected;
        if (wanted > expected)
            return 1;
    } while (1);
}

static int is_unchanged(int reading, const struct stat *before)
{
    struct stat now;
    return !fstat(reading, &now) && now.st_size == before->st_size && now.st_mtim.tv_sec == before->st_mtim.tv_sec &&
           now.st_mtim.tv_nsec == before->st_mtim.tv_nsec && now.st_ctim.tv_sec == before->st_ctim.tv_sec &&
           now.st_ctim.tv_nsec == before->st_ctim.tv_nsec;
}

/* Compare two open files. Return 0 if they are equal, 'c' if only their contents differ, or '?' if the slow path has
 * to compare them. */
static int compare_open(struct pairs *pairs, const int reading[2])
{
    struct stat status[2];
    doing(pairs->worker, OP_FSTAT);
    for (int side = 0; side < 2; side++)
        if (fstat(reading[side], &status[side]) || !GUARD(COMPARED_FILES, S_ISREG(status[side].st_mode)))
            return '?';
    const uint64_t size = (uint64_t)status[0].st_size;
    if (!are_alike(pairs->batch, &status[0], &status[1]) || size > LARGEST)
        return '?';
    doing(pairs->worker, OP_READ);
    const int are_same = have_same_contents(pairs, reading, size);
    if (are_same < 0 ||
        !GUARD(COMPARED_UNCHANGED, is_unchanged(reading[0], &status[0]) && is_unchanged(reading[1], &status[1])))
        return '?';
    pairs->sums->files++;
    pairs->sums->bytes += 2 * size;
    return are_same ? 0 : 'c';
}

static int compare_files(struct pairs *pairs, const char *name)
{
    int reading[2], result = '?', keeps_atime;
    if (!strncmp(name, PK_SIDECAR, sizeof PK_SIDECAR - 1)) /* the slow path knows whether such a file is an error */
        return '?';
    doing(pairs->worker, OP_OPEN);
    reading[0] = pk_open_source(pairs->directories[0], name, 0, &keeps_atime);
    if (reading[0] < 0)
        return '?';
    reading[1] = pk_open_source(pairs->directories[1], name, 0, &keeps_atime);
    if (reading[1] >= 0) {
        result = compare_open(pairs, reading);
        close(reading[1]);
    }
    close(reading[0]);
    return result;
}

static int look_at_both(const struct pairs *pairs, const char *name, struct stat status[2])
{
    doing(pairs->worker, OP_STAT);
    for (int side = 0; side < 2; side++)
        if (fstatat(pairs->directories[side], name, &status[side], AT_SYMLINK_NOFOLLOW))
            return -1;
    return 0;
}

/* Compare two items of the same name, of which the statuses are known. Return as `compare`. */
static int compare_statuses(struct pairs *pairs, const char *name, const struct stat status[2])
{
    const int has_content = pairs->batch->flags & PK_OF_CONTENT;
    if (!are_alike(pairs->batch, &status[0], &status[1]))
        return '?';
    switch (status[0].st_mode & S_IFMT) {
    case S_IFDIR: return 'd';
    case S_IFREG:
        if (has_content)
            return compare_files(pairs, name);
        pairs->sums->files++;
        return 0;
    case S_IFLNK:
        if (has_content && !have_same_text(pairs, name))
            return '?';
        pairs->sums->links++;
        return 0;
    default: pairs->sums->others++; return 0;
    }
}

/* Compare the types of listed items of the same name; 0: the item is missing on this side. Return as `compare`, or, if only
 * the first side has the item, the letter of its type as a capital. */
static int compare_types(int kind, int other)
{
    if (kind && !other)
        return kind + 'A' - 'a';
    return kind != 'd' ? 0 : other == 'd' ? 'd' : '?';
}

/* Compare two listed items of the same name, of these types. Return 0 if they are equal, 'd' for directories (which are
 * compared when they are entered), 'c' for files that differ only in their contents, 'n' for files that are not compared
 * because enough of this directory has been read, or '?' if the slow path has to compare them. */
static int compare(struct pairs *pairs, const char *name, int kind, int other)
{
    struct stat status[2];
    if (kind == 'd' && other == 'd')
        return 'd';
    if (kind == 'f' && other == 'f' && pairs->batch->flags & PK_OF_CONTENT)
        return pairs->sums->bytes - pairs->bytes > MOST_BYTES ? 'n' : compare_files(pairs, name);
    if (look_at_both(pairs, name, status) || S_ISDIR(status[0].st_mode))
        return '?';
    return compare_statuses(pairs, name, status);
}

/* Return true if the filters exclude a name: the item of each side that has it. kind, other: the types of these items; NULL:
 * the side does not have it. If only names are compared, only directories that both sides have are excluded. Return -1 if a
 * type cannot be examined. */
static int excludes(pk_walk *walk, const struct pairs *pairs, const char *name, uint8_t *kind, uint8_t *other)
{
    const int compares_names = walk->batch->flags & PK_OF_NAMES;
    if (walk->batch->tree->filter == NULL ||
        (compares_names && (kind == NULL || other == NULL || *kind != 'd' || *other != 'd')))
        return 0;
    const int is_excluded = kind == NULL ? 1 : pk_excludes(walk, pairs->directories[0], name, kind);
    return is_excluded <= 0 || compares_names || other == NULL
               ? is_excluded
               : pk_excludes(walk, pairs->directories[1], name, other);
}

/* Compare the names of both listings one by one. Names that only one side has are left with the letters < (first side) and
 * > (second side). Return 0, or -1 if there is no memory for the frontier. */
static int compare_all(pk_walk *walk, struct pairs *pairs, pk_listed *listed)
{
    const struct entry *one = pairs->entries[0], *other = pairs->entries[1];
    const struct entry *const end = one + listed->number, *const other_end = other + pairs->other.number;
    _Atomic int *const is_cancelled = &pairs->batch->work->is_cancelled;
    while (one < end || other < other_end) {
        const int order = one == end ? 1 : other == other_end ? -1 : by_name(one, other);
        const char *const name = (order > 0 ? other : one)->name;
        uint8_t *const kind = order > 0 ? NULL : &listed->all.kinds[one->index];
        const uint64_t inode = kind != NULL ? listed->all.inodes[one->index] : 0;
        uint8_t *const other_type = order >= 0 ? &pairs->other.all.kinds[other->index] : NULL;
        const int is_excluded = excludes(walk, pairs, name, kind, other_type);
        const int other_kind = other_type != NULL ? *other_type : 0;
        int letter = order < 0 ? '<' : order > 0 ? '>' : '?';
        if (is_excluded) {
            letter = is_excluded < 0 ? '?' : 0;
            listed->excluded += is_excluded > 0;
        } else if (pairs->batch->flags & PK_OF_NAMES)
            letter = compare_types(kind != NULL ? *kind : 0, other_kind);
        else if (!order && !atomic_load_explicit(is_cancelled, memory_order_relaxed))
            letter = compare(pairs, name, *kind, other_kind);
        if (letter == 'd')
            pairs->inodes[one->index] = pairs->other.all.inodes[other->index];
        else if (kind != NULL)
            *kind = '-';
        if (letter && letter != 'd' && pk_remain(walk, walk->levels, name, letter, inode))
            return -1;
        one += order <= 0;
        other += order >= 0;
    }
    return 0;
}

/* Return true if a directory, whose status was read after it was listed, looks empty because it was removed after it was
 * opened: then it has no links. */
static int looks_removed(const pk_listed *listed, const struct stat *status)
{
    return !listed->number && !GUARD(DIRECTORY_EXISTS, status->st_nlink);
}

/* Open, compare and list a directory on the second side. Return 0, or the letter with which it is left to the caller. */
static int open_other(pk_walk *walk, pk_level *level, struct pairs *pairs)
{
    const int around = walk->levels ? walk->level[walk->levels - 1].other : walk->batch->target;
    struct stat status;
    level->other = pk_open_whole(walk->worker, around, level->name);
    if (level->other < 0 ||
        pk_list_for_walk(walk, level->other, (char *)walk->worker->buffer + LISTED_BYTES, &pairs->other) ||
        !pk_is_directory(walk->worker, level->other, level->other_inode, walk->batch->tree->target_device, &status) ||
        looks_removed(&pairs->other, &status))
        return 'd';
    if (walk->batch->flags & PK_OF_NAMES || !walk->levels) /* a row was compared before */
        return 0;
    return are_alike(walk->batch, &level->status, &status) ? 0 : '?';
}

/* Return true if a directory of the target was created after the job began, so that it has nothing that the source lacks.
 * Its ctime is not older than it is. */
static int was_created_by_job(const pk_walk *walk, const pk_level *level)
{
    const int64_t began = walk->batch->tree->touched;
    struct statx status;
    int64_t changed, born;
    if (!(walk->batch->flags & PK_OF_NAMES) || (in_nanoseconds(level->status.st_ctim, &changed) && changed <= began))
        return 0;
    doing(walk->worker, OP_STAT);
    if (pk_statx(level->descriptor, "", AT_EMPTY_PATH, STATX_BTIME, &status) || !(status.stx_mask & STATX_BTIME))
        return 0;
    const struct timespec birth = {status.stx_btime.tv_sec, status.stx_btime.tv_nsec};
    return in_nanoseconds(birth, &born) && born > began;
}

/* Return true if an earlier run may have deleted items of a directory of the target without recording that: then the slow
 * path applies the metadata of the directory again. */
static int may_lack_metadata(const pk_walk *walk, const pk_level *level)
{
    int64_t changed;
    return walk->batch->flags & PK_OF_NAMES &&
           (!in_nanoseconds(level->status.st_ctim, &changed) || changed >= walk->batch->tree->begun);
}

static int compare_names(pk_walk *walk, pk_level *level, pk_listed *listed)
{
    struct pairs *const pairs = walk->data;
    const uint64_t before = pairs->bytes = walk->sums.bytes;
    struct stat status;
    if (was_created_by_job(walk, level)) {
        memset(listed->all.kinds, '-', (size_t)listed->number);
        return 0;
    }
    const int letter = may_lack_metadata(walk, level) ? 'd' : open_other(walk, level, pairs);
    if (letter)
        return letter;
    if (!listed->number) {
        doing(walk->worker, OP_FSTAT);
        if (fstat(level->descriptor, &status) || looks_removed(listed, &status))
            return 'd';
    }
    sort_names(listed, pairs->entries[0]);
    sort_names(&pairs->other, pairs->entries[1]);
    pairs->directories[0] = level->descriptor;
    pairs->directories[1] = level->other;
    pairs->sums = &walk->sums;
    listed->other_inodes = pairs->inodes;
    if (compare_all(walk, pairs, listed))
        return 'd';
    walk->sums.directories += walk->levels > 0;
    atomic_fetch_add_explicit(&walk->batch->work->moved, walk->sums.bytes - before, memory_order_relaxed);
    return 0;
}

/* Return the number of the mount on which an open directory of the batch lies, plus 1; or 0 if it is not known. */
static uint64_t mount_around(const struct pairs *pairs, int side)
{
    _Atomic uint64_t *const known = &pairs->batch->work->mounts[side];
    struct statx status;
    if (!atomic_load_explicit(known, memory_order_relaxed) &&
        !pk_statx(pairs->directories[side], "", AT_EMPTY_PATH, STATX_MNT_ID, &status) && status.stx_mask & STATX_MNT_ID)
        atomic_store_explicit(known, status.stx_mnt_id + 1, memory_order_relaxed);
    return atomic_load_explicit(known, memory_order_relaxed);
}

/* Read the status of a row on one side. Return 0, or -1 if that fails or if it is a directory on another mount. */
static int look_at_row(const struct pairs *pairs, int side, const char *name, struct stat *out)
{
    struct statx status;
    doing(pairs->worker, OP_STAT);
    if (pk_statx(pairs->directories[side], name, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, STATX_BASIC_STATS | STATX_MNT_ID,
                 &status))
        return -1;
    *out = (struct stat){.st_mode = status.stx_mode, .st_uid = status.stx_uid, .st_gid = status.stx_gid};
    out->st_dev = makedev(status.stx_dev_major, status.stx_dev_minor);
    out->st_ino = status.stx_ino;
    out->st_size = (off_t)status.stx_size;
    out->st_mtim = (struct timespec){status.stx_mtime.tv_sec, status.stx_mtime.tv_nsec};
    const int is_on_mount = status.stx_mask & STATX_MNT_ID && status.stx_mnt_id + 1 == mount_around(pairs, side);
    return !S_ISDIR(out->st_mode) || GUARD(COMPARED_MOUNT, is_on_mount) ? 0 : -1;
}

/* Compare the item of a row, or, if it is a directory that was compared before, only examine it. Return as `compare`. */
static int compare_item(struct pairs *pairs, uint32_t row)
{
    const pk_batch *const batch = pairs->batch;
    const char *const name = batch->work->name[row];
    struct stat status[2];
    pairs->directories[0] = batch->directory;
    pairs->directories[1] = batch->target;
    if (look_at_row(pairs, 0, name, &status[0]) || look_at_row(pairs, 1, name, &status[1]))
        return '?';
    if (!(batch->flags & PK_OF_ITEMS))
        return 'd';
    batch->wanted.inode[row] = status[1].st_ino;
    if (batch->flags & PK_OF_NAMES)
        return 'd';
    batch->given.inode[row] = status[0].st_ino;
    return compare_statuses(pairs, name, status);
}

/* Compare the row. Return its code. */
static int compare_row(struct pairs *pairs, pk_batch *batch, uint32_t row)
{
    static const pk_visitor visitor = {.names = compare_names, .applies_filters = 1};
    pk_sums sums = {0};
    pairs->bytes = 0;
    pairs->sums = &sums;
    const int letter = compare_item(pairs, row);
    if (letter == '?')
        return PK_DEFERRED;
    if (letter == 'd') {
        const int code = pk_walk_row(pairs->worker, batch, row, &visitor, "", pairs);
        batch->sums[row].directories += batch->flags & PK_OF_ITEMS && code == DONE;
        return code;
    }
    batch->directories[row].letter = letter == 'c' ? 'c' : 0;
    batch->sums[row] = sums;
    atomic_fetch_add_explicit(&batch->work->moved, sums.bytes, memory_order_relaxed);
    return DONE;
}

int pk_compare_trees_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    if (row && pk_now() >= batch->tree->deadline)
        return CANCELLED;
    struct pairs *const pairs = malloc(sizeof *pairs); /* it is large for the stack of a thread */
    if (pairs == NULL)
        return PK_DEFERRED;
    pairs->worker = worker;
    pairs->batch = batch;
    pairs->contents[0] = worker->buffer + 2 * LISTED_BYTES;
    pairs->contents[1] = pairs->contents[0] + CONTENTS;
    const int code = compare_row(pairs, batch, row);
    free(pairs);
    return code;
}
