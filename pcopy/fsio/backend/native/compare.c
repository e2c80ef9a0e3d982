/* Rows of PK_COMPARE_WITHIN: a row is a directory that two trees have in common. Its items on both sides are compared.
 *
 * Pairs of equal items are counted. All others are returned to Python: names that exist on one side only, items that
 * differ, and items that cannot be compared here.
 */
#include "internal.h"

#define MOST_COMPARED 256 /* a directory with this many or more names on one side is deferred */
#define NAMES (64u << 10) /* bytes of these names */
#define CONTENTS (64u << 10) /* bytes of each buffer for contents */
#define LARGEST (512u << 10)    /* bytes; larger files are left to the slow path */
#define MOST_BYTES (8u << 20)   /* bytes read for one directory; further files are left to the slow path: a row must be
                                 * short */

struct item {
    const char *name;
    uint64_t inode;
    uint8_t kind;
};

/* A directory on one side, with its items sorted by name. */
struct side {
    int directory, number;
    struct item items[MOST_COMPARED];
};

/* The state of comparing the directories of one row. */
struct pairs {
    pk_worker *worker;
    const pk_batch *batch;
    const struct side *sides[2];
    pk_directory *found;
    pk_sums *sums;
    unsigned char *contents[2];
};

static int by_name(const void *one, const void *other)
{
    return strcmp(((const struct item *)one)->name, ((const struct item *)other)->name);
}

/* List an open directory, which must have this inode; `names` has room for NAMES bytes. Return -1 to defer the row. */
static int list(pk_worker *worker, struct side *side, char *names, uint64_t inode, uint64_t device, int most)
{
    struct stat status;
    pk_all all;
    if (!pk_is_directory(worker, side->directory, inode, device, &status))
        return -1;
    most = most < MOST_COMPARED ? most : MOST_COMPARED;
    side->number = pk_list_all(worker, side->directory, names, NAMES - 1, most, &all);
    if (side->number < 0)
        return -1;
    if (side->number == 0) /* a directory that was removed after it was opened looks empty, but has no links */
        return fstat(side->directory, &status) || !GUARD(DIRECTORY_EXISTS, status.st_nlink) ? -1 : 0;
    for (int each = 0; each < side->number; each++) {
        char *const next = cut_off(names);
        side->items[each] = (struct item){names, all.inodes[each], all.kinds[each]};
        names = next;
    }
    qsort(side->items, (size_t)side->number, sizeof *side->items, by_name);
    return 0;
}

static int are_times_alike(const struct stat *one, const struct stat *other, int64_t window)
{
    const __int128 later = ((__int128)one->st_mtim.tv_sec - other->st_mtim.tv_sec) * 1000000000 +
                           (one->st_mtim.tv_nsec - other->st_mtim.tv_nsec);
    return (later < 0 ? -later : later) <= (__int128)window * 1000000000;
}

/* Return true if the statuses of two items agree in the properties to compare. Return 0 for devices, too: the slow
 * path compares them. */
static int are_alike(const pk_batch *batch, const struct stat *one, const struct stat *other)
{
    const mode_t kind = one->st_mode & S_IFMT;
    const int has_size = kind == S_IFREG ? batch->flags & (PK_OF_SIZE | PK_OF_CONTENT)
                                         : kind == S_IFLNK && batch->flags & PK_OF_SIZE;
    if (kind != (other->st_mode & S_IFMT) || kind == S_IFCHR || kind == S_IFBLK)
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
        sizes[side] = readlinkat(pairs->sides[side]->directory, name, (char *)pairs->contents[side], CONTENTS);
    return sizes[0] > 0 && sizes[0] < CONTENTS && sizes[0] == sizes[1] &&
           !memcmp(pairs->contents[0], pairs->contents[1], (size_t)sizes[0]);
}

/* Return 1 if two open files have the same contents of this size, 0 if the contents differ, -1 if a file cannot be
 * read or has another size. */
static int hold_same(const struct pairs *pairs, const int reading[2], size_t size)
{
    size_t at = 0;
    do { /* at the end, one byte more than expected is requested: so one read shows that a small file has not grown */
        const size_t wanted = size - at < CONTENTS - 1 ? size - at + 1 : CONTENTS - 1;
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
    if (!are_alike(pairs->batch, &status[0], &status[1]) || size > LARGEST || pairs->sums->bytes > MOST_BYTES)
        return '?';
    doing(pairs->worker, OP_READ);
    const int are_same = hold_same(pairs, reading, size);
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
    doing(pairs->worker, OP_OPEN);
    reading[0] = pk_open_source(pairs->sides[0]->directory, name, 0, &keeps_atime);
    if (reading[0] < 0)
        return '?';
    reading[1] = pk_open_source(pairs->sides[1]->directory, name, 0, &keeps_atime);
    if (reading[1] >= 0) {
        result = compare_open(pairs, reading);
        close(reading[1]);
    }
    close(reading[0]);
    return result;
}

/* Compare two items of the same name. Return 0 if they are equal, 'd' for directories (whose contents remain to be
 * compared), 'c' for files that differ only in their contents, or '?' if the slow path has to compare them. */
static int compare(struct pairs *pairs, const struct item *one, const struct item *other)
{
    const pk_batch *batch = pairs->batch;
    const pk_tree *tree = batch->tree;
    struct stat status[2];
    if (one->kind == 'f' && other->kind == 'f' && batch->flags & PK_OF_CONTENT)
        return compare_files(pairs, one->name);
    doing(pairs->worker, OP_STAT);
    for (int side = 0; side < 2; side++)
        if (fstatat(pairs->sides[side]->directory, one->name, &status[side], AT_SYMLINK_NOFOLLOW))
            return '?';
    if (!are_alike(batch, &status[0], &status[1]))
        return '?';
    switch (status[0].st_mode & S_IFMT) {
    case S_IFDIR:
        if (status[0].st_ino != one->inode || status[0].st_dev != tree->source_device ||
            status[1].st_ino != other->inode || status[1].st_dev != tree->target_device)
            return '?';
        pairs->sums->directories++;
        return 'd';
    case S_IFREG:
        if (batch->flags & PK_OF_CONTENT)
            return '?';
        pairs->sums->files++;
        return 0;
    case S_IFLNK:
        if (batch->flags & PK_OF_CONTENT && !have_same_text(pairs, one->name))
            return '?';
        pairs->sums->links++;
        return 0;
    default: pairs->sums->others++; return 0;
    }
}

static void leave(pk_directory *found, const char *name, int letter, uint64_t inode, uint64_t other)
{
    found->rows.inode[found->left] = other;
    pk_leave(found, name, strlen(name), letter, inode);
}

/* Compare both sides name by name. Return 0, or -1 if there is no memory. */
static int compare_all(struct pairs *pairs)
{
    const struct side *one = pairs->sides[0], *other = pairs->sides[1];
    const size_t rows = (size_t)(one->number + other->number);
    pk_directory *found = pairs->found;
    if (!rows)
        return 0;
    found->block = malloc(rows * (2 * sizeof(uint64_t) + 1) + 2 * NAMES);
    if (found->block == NULL)
        return -1;
    found->inodes = found->block;
    found->rows.inode = found->inodes + rows;
    found->kinds = (uint8_t *)(found->rows.inode + rows);
    found->names = (char *)(found->kinds + rows);
    for (int a = 0, b = 0; a < one->number || b < other->number;) {
        const int order = a == one->number ? 1 : b == other->number ? -1 : by_name(&one->items[a], &other->items[b]);
        if (order) {
            leave(found, order < 0 ? one->items[a++].name : other->items[b++].name, '?', 0, 0);
            continue;
        }
        const int letter = compare(pairs, &one->items[a], &other->items[b]);
        if (letter)
            leave(found, one->items[a].name, letter, one->items[a].inode, other->items[b].inode);
        a++;
        b++;
    }
    return 0;
}

int pk_compare_within_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    const pk_tree *tree = batch->tree;
    const char *name = batch->work->name[row];
    char *names = (char *)worker->buffer;
    unsigned char *contents = worker->buffer + 2 * NAMES;
    struct side one, other;
    struct pairs pairs = {
        worker, batch, {&one, &other}, &batch->directories[row], &batch->sums[row], {contents, contents + CONTENTS}};
    int is_simple = 0;
    one.directory = pk_open_whole(worker, batch->directory, name);
    if (one.directory < 0)
        return PK_DEFERRED;
    other.directory = pk_open_whole(worker, batch->target, name);
    if (other.directory >= 0) {
        is_simple = !list(worker, &one, names, batch->given.inode[row], tree->source_device, tree->most) &&
                   !list(worker, &other, names + NAMES, batch->wanted.inode[row], tree->target_device, tree->most) &&
                   !compare_all(&pairs);
        close(other.directory);
    }
    close(one.directory);
    return is_simple ? DONE : PK_DEFERRED;
}
