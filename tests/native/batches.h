/* What the harness gives to the kernel: odd trees and batches of all kinds, and calls that fail at its will. */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/xattr.h>

#define MOST_ROWS 96
#define MOST_BATCHES 6
#define NO_FAULT 0

static uint64_t seed;
static _Atomic uint64_t drawn;
static _Atomic int faults; /* one of so many calls fails; 0: none */
static _Atomic int always;  /* with this errno; 0: with any */
static _Thread_local int checks; /* and none fails in a thread that looks at what has become of them */
static const int ERRNOS[] = {EIO, EINTR, EAGAIN, ENOSPC, EROFS, EDQUOT, EACCES, EPERM, ESTALE, ENOMEM, EMFILE, ENOENT};

static uint64_t mixed(uint64_t value)
{
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

/* Below limit. Any thread may ask. */
static uint32_t below(uint32_t limit)
{
    return (uint32_t)(mixed(seed ^ mixed(atomic_fetch_add(&drawn, 1))) % limit);
}

static void expect(int holds, const char *what, ...)
{
    if (holds)
        return;
    va_list values;
    va_start(values, what);
    fprintf(stderr, "seed %llu: ", (unsigned long long)seed);
    vfprintf(stderr, what, values);
    fprintf(stderr, "\n");
    va_end(values);
    exit(1);
}

/* Shall this call fail? */
static int fails(void)
{
    const int one_of = atomic_load(&faults);
    if (one_of == NO_FAULT || checks || below((uint32_t)one_of))
        return 0;
    const int number = atomic_load(&always);
    errno = number ? number : ERRNOS[below(sizeof ERRNOS / sizeof *ERRNOS)];
    return 1;
}

static size_t less(size_t size)
{
    return size > 1 && atomic_load(&faults) != NO_FAULT && !checks && !below(4) ? 1 + below((uint32_t)size - 1) : size;
}

#define WRAP(type, name, parameters, arguments)          \
    type __real_##name parameters;                       \
    type __wrap_##name parameters;                       \
    type __wrap_##name parameters                        \
    {                                                    \
        return fails() ? -1 : __real_##name arguments;   \
    }
WRAP(int, fstat, (int file, struct stat *out), (file, out))
WRAP(int, fstatat, (int at, const char *name, struct stat *out, int flags), (at, name, out, flags))
WRAP(int, pk_statx, (int at, const char *name, int flags, unsigned mask, struct statx *out), (at, name, flags, mask, out))
WRAP(ssize_t, flistxattr, (int file, char *out, size_t size), (file, out, size))
WRAP(ssize_t, fgetxattr, (int file, const char *name, void *out, size_t size), (file, name, out, size))
WRAP(int, fsetxattr, (int file, const char *name, const void *in, size_t size, int flags),
     (file, name, in, size, flags))
WRAP(int, fremovexattr, (int file, const char *name), (file, name))
WRAP(int, fchown, (int file, uid_t user, gid_t group), (file, user, group))
WRAP(int, fchmod, (int file, mode_t mode), (file, mode))
WRAP(int, futimens, (int file, const struct timespec *times), (file, times))
WRAP(int, fsync, (int file), (file))
WRAP(int, mkdirat, (int at, const char *name, mode_t mode), (at, name, mode))
WRAP(int, renameat, (int from, const char *name, int to, const char *other), (from, name, to, other))
WRAP(ssize_t, read, (int file, void *out, size_t size), (file, out, less(size)))
WRAP(ssize_t, write, (int file, const void *in, size_t size), (file, in, less(size)))

int __real_openat(int at, const char *name, int flags, ...);
int __wrap_openat(int at, const char *name, int flags, ...);
int __wrap_openat(int at, const char *name, int flags, ...)
{
    return fails() ? -1 : __real_openat(at, name, flags, 0600);
}

int __real_close(int file);
int __wrap_close(int file);
int __wrap_close(int file) /* which is closed, whatever it answers */
{
    const int bad = fails(), number = errno, answer = __real_close(file);
    errno = bad ? number : errno;
    return bad ? -1 : answer;
}

/* One batch, and what was there before. */
typedef struct {
    pk_batch in_c;
    int is_seen;
    char names[MOST_ROWS * 257], new_names[MOST_ROWS * 257], temporaries[MOST_ROWS * 16];
    char name[MOST_ROWS][257], new_name[MOST_ROWS][257];
    uint8_t plans[MOST_ROWS], codes[MOST_ROWS], operations[MOST_ROWS];
    int32_t errnos[MOST_ROWS], synced[MOST_ROWS];
    uint64_t bytes[MOST_ROWS], nanoseconds[MOST_ROWS], made[MOST_ROWS], offsets[2 * MOST_ROWS + 1];
    uint8_t outcomes[MOST_ROWS];
    char paths[MOST_ROWS * 257];
    uint8_t digests[MOST_ROWS * 32], marks[MOST_ROWS * PK_MARK];
    uint32_t mode[MOST_ROWS], uid[MOST_ROWS], gid[MOST_ROWS], links[MOST_ROWS];
    int64_t atime[MOST_ROWS], mtime[MOST_ROWS], ctime[MOST_ROWS];
    uint64_t inode[MOST_ROWS], size[MOST_ROWS], device[MOST_ROWS];
    uint8_t *arena;
    pk_tree tree;
    pk_directory directories[MOST_ROWS];
    pk_sums sums[MOST_ROWS];
} batch;

#define ABOVE "above/" /* of paths */

static unsigned char contents[SMALL_FILE + 4096], other[SMALL_FILE + 4096];

static size_t a_size(void)
{
    static const uint32_t edges[] = {0, 1, 4096, 65536, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, SMALL_FILE};
    switch (below(4)) {
    case 0: return edges[below(sizeof edges / sizeof *edges)];
    case 1: return below(3 * PIECE);
    default: return below(5000);
    }
}

static ssize_t all_of(int directory, const char *name, unsigned char *out)
{
    int file = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0)
        return -1;
    ssize_t got, size = 0;
    while ((got = read(file, out + size, SMALL_FILE + 4096 - (size_t)size)) > 0)
        size += got;
    close(file);
    return got < 0 ? -1 : size;
}

/* Any bytes but zero and the slash, all names different by their first ones. */
static void a_name(char *out, uint32_t number)
{
    int length = sprintf(out, "%u-", number);
    const int longest = below(8) ? (int)below(20) : 255 - length;
    for (int at = 0; at < longest; at++) {
        char byte = (char)(1 + below(255));
        out[length++] = byte == '/' ? '\n' : byte;
    }
    out[length] = '\0';
}

static void make_item(int directory, const char *name)
{
    const uint32_t kind = below(20);
    if (kind == 0) {
        expect(!mkfifoat(directory, name, 0644), "mkfifo");
    } else if (kind == 1) {
        expect(!symlinkat("nowhere", directory, name), "symlink");
    } else if (kind == 2) {
        expect(!mkdirat(directory, name, 0755), "mkdir");
    } else {
        const size_t size = a_size();
        int file = openat(directory, name, O_WRONLY | O_CREAT | O_EXCL, 0600);
        expect(file >= 0, "create: %s", strerror(errno));
        for (size_t at = 0; at < size; at += 1 + at / 7)
            contents[at] = (unsigned char)below(256);
        if (kind == 3)
            expect(!ftruncate(file, (off_t)size), "truncate");
        else
            expect(write(file, contents, size) == (ssize_t)size, "write");
        for (uint32_t each = below(4) ? 0 : below(20); each; each--) {
            char attribute[32];
            sprintf(attribute, "trusted.harness%u", below(400));
            (void)fsetxattr(file, attribute, "value", 5, 0); /* only root may */
        }
        expect(!fchmod(file, below(010000)), "chmod");
        close(file);
    }
}

/* With some items in it. */
static void make_directory(int around, const char *name)
{
    expect(!mkdirat(around, name, 0755), "mkdir");
    int directory = openat(around, name, O_RDONLY | O_DIRECTORY);
    for (uint32_t number = below(4) ? 0 : 1 + below(3); number; number--) {
        char inner[257];
        snprintf(inner, sizeof inner, "below%u", number);
        make_directory(directory, inner);
    }
    for (uint32_t number = below(3) ? below(6) : 0; number; number--) {
        char inner[257];
        a_name(inner, number);
        make_item(directory, inner);
    }
    close(directory);
}

static char *joined(char *to, const char *name, uint32_t row)
{
    return to + sprintf(to, "%s%s", row ? "/" : "", name);
}

/* What whole directories need; those that are finished lie in the source here. */
static void prepare_tree(batch *batch, int source, int target, int kind, uint32_t rows)
{
    struct stat one, two;
    expect(!fstat(source, &one) && !fstat(target, &two), "stat");
    batch->tree = (pk_tree){.source_device = one.st_dev, .target_device = two.st_dev, .touched = INT64_MAX, .window = 1,
                            .user = geteuid(), .most = 1 + (int)below(8), .flags = (int)below(32) | (int)below(4) * PK_REPORT,
                            .mask = below(3) ? below(1 << 21) : 0,
                            .depth = below(4), .deadline = below(3) ? UINT64_MAX : pk_now() + below(2000000)};
    if (kind == PK_COMPARE_TREES)
        batch->tree.depth = UINT32_MAX;
    /* Patterns of which neither excludes anything: no name begins with a hyphen. */
    static const uint8_t rules[] = {10, 0, 0, 0, PK_EXCLUDES | PK_WHOLE_PATH, 6, 1, '-', 4, 0,
                                    9, 0, 0, 0, PK_EXCLUDES | PK_DIRECTORIES_ONLY, 1, '-', 4, 0};
    static const pk_filter filter = {rules, sizeof rules, "above/", INT64_MIN, INT64_MAX, -1, INT64_MAX};
    batch->tree.filter = below(2) ? &filter : NULL;
    strcpy(batch->tree.kinds, below(2) ? "" : "fl");
    uint8_t *mark = batch->marks;
    char *path = batch->paths;
    for (uint32_t row = 0; row < rows; row++) {
        int item = openat(source, batch->name[row], O_PATH | O_NOFOLLOW);
        pk_mark(source, item, mark);
        close(item);
        batch->atime[row] = batch->mtime[row];
        if (kind != PK_FINISH)
            continue;
        batch->tree.most = 1;
        batch->plans[row] = (uint8_t)below(2);
        batch->offsets[2 * row] = (uint64_t)(path - batch->paths);
        batch->offsets[2 * row + 1] = (uint64_t)(mark - batch->marks);
        mark += 1 + mark[0];
        path = stpcpy(path, batch->name[row]) + 1;
    }
}

static int is_of_directories(int kind)
{
    return kind == PK_COPY_TREE || kind == PK_FINISH || kind == PK_LOOK || kind == PK_PATHS || kind == PK_COMPARE_TREES;
}

/* Items in the source, perhaps some in the target; all columns. */
static void prepare(batch *batch, int source, int target, uint32_t number, int kind, uint32_t rows, int digest)
{
    memset(batch, 0, sizeof *batch);
    char *names = batch->names, *new_names = batch->new_names, *temporaries = batch->temporaries;
    const int renames = !below(3), copies = kind == PK_COPY;
    for (uint32_t row = 0; row < rows; row++) {
        char temporary[16];
        struct stat status;
        a_name(batch->name[row], number + row);
        if (renames)
            sprintf(batch->new_name[row], "n%u", number + row);
        else
            strcpy(batch->new_name[row], batch->name[row]);
        sprintf(temporary, ".t%u", number + row);
        if (is_of_directories(kind) && below(10))
            make_directory(source, batch->name[row]);
        else
            make_item(source, batch->name[row]);
        if (kind == PK_COPY_TREE && !below(3))
            make_directory(target, batch->name[row]);
        names = joined(names, batch->name[row], row);
        new_names = joined(new_names, batch->new_name[row], row);
        temporaries = joined(temporaries, temporary, row);
        expect(!fstatat(source, batch->name[row], &status, AT_SYMLINK_NOFOLLOW), "stat");
        batch->inode[row] = status.st_ino + (below(40) ? 0 : 1);
        batch->size[row] = (uint64_t)status.st_size + (below(40) ? 0 : 1);
        batch->device[row] = status.st_dev;
        batch->synced[row] = below(2) ? source : target;
        batch->mode[row] = status.st_mode;
        expect(in_nanoseconds(status.st_mtim, &batch->mtime[row]), "mtime");
        expect(in_nanoseconds(status.st_ctim, &batch->ctime[row]), "ctime");
        batch->plans[row] = (uint8_t)((below(10) ? 1 + below(3) : 1 + below(6)) | (below(4) ? 0 : SYNC));
        const int plan = batch->plans[row] & ~SYNC;
        if (copies && (plan == REPLACE || !below(20))) {
            int old = openat(target, batch->new_name[row], O_WRONLY | O_CREAT | O_EXCL, 0600);
            expect(old >= 0 && write(old, "old", 3) == 3, "old");
            close(old);
        }
        batch->offsets[row + 1] = batch->offsets[row] + (batch->size[row] < SMALL_FILE ? batch->size[row] : SMALL_FILE) + 1;
    }
    if (is_of_directories(kind))
        prepare_tree(batch, source, target, kind, rows);
    const pk_columns given = {.inode = batch->inode, .size = batch->size, .device = batch->device, .mtime = batch->mtime,
                              .ctime = batch->ctime, .mode = batch->mode, .uid = batch->uid, .gid = batch->gid,
                              .atime = batch->atime};
    const pk_columns found = {batch->mode, batch->uid, batch->gid, batch->links, batch->atime, batch->mtime,
                              batch->ctime, batch->inode, batch->size, batch->device};
    pk_batch *in_c = &batch->in_c;
    in_c->kind = kind;
    in_c->flags = (int)below(256) & ~PK_INHERITS;
    if (copies && below(2))
        in_c->flags |= PK_OWNER | PK_MODE | PK_TIMES;
    if (copies && below(2))
        in_c->flags |= PK_IDENTIFY;
    if (kind == PK_COMPARE_TREES && below(2))
        in_c->flags |= PK_OF_ITEMS;
    in_c->rows = rows;
    in_c->at_once = (int)below(5);
    in_c->directory = source;
    in_c->target = copies || kind == PK_COPY_TREE ? target : source;
    in_c->tree = &batch->tree;
    in_c->directories = is_of_directories(kind) && kind != PK_FINISH ? batch->directories : NULL;
    in_c->sums = batch->sums;
    in_c->prefixes = kind == PK_FINISH ? batch->paths : ABOVE;
    in_c->outcomes = batch->outcomes;
    in_c->finished = rows;
    in_c->umask = 022;
    in_c->names = batch->names;
    in_c->names_size = (size_t)(names - batch->names);
    if (copies && renames) {
        in_c->new_names = batch->new_names;
        in_c->new_names_size = (size_t)(new_names - batch->new_names);
    }
    if (copies && below(10)) {
        in_c->temporaries = batch->temporaries;
        in_c->temporaries_size = (size_t)(temporaries - batch->temporaries);
    }
    in_c->plans = batch->plans;
    in_c->synced = batch->synced;
    in_c->given = given;
    if (kind == PK_COMPARE_TREES)
        in_c->wanted.inode = batch->inode;
    in_c->found = found;
    in_c->verdicts = (pk_verdicts){batch->codes, batch->operations, batch->errnos, batch->bytes, batch->nanoseconds};
    in_c->made = batch->made;
    in_c->marks = batch->marks;
    if (kind == PK_FINISH)
        in_c->offsets = batch->offsets;
    if (digest && (kind == PK_READ || below(2)))
        in_c->digests = batch->digests;
    else if (copies && below(2)) {
        expect((batch->arena = malloc(batch->offsets[rows])) != NULL, "memory");
        in_c->arena = batch->arena;
        in_c->offsets = batch->offsets;
    }
}
