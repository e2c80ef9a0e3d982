/* Drives the kernel in C by itself, without Python: odd trees, several threads, calls that fail or do less than they
 * were asked for, batches that are cancelled, and a thread that always asks what is under way.
 *
 *     harness SEED ROUNDS DIRECTORY      (linked with --wrap for each call below; built with sanitizers)
 *
 * What is wrong is told on standard error, with status 1. What is expected is worked out from the files themselves.
 */
#include "internal.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/eventfd.h>
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
WRAP(int, statx, (int at, const char *name, int flags, unsigned mask, struct statx *out), (at, name, flags, mask, out))
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
    uint64_t bytes[MOST_ROWS], nanoseconds[MOST_ROWS], made[MOST_ROWS], offsets[MOST_ROWS + 1];
    uint8_t digests[MOST_ROWS * 32], marks[MOST_ROWS * PK_MARK];
    uint32_t mode[MOST_ROWS], uid[MOST_ROWS], gid[MOST_ROWS], links[MOST_ROWS];
    int64_t atime[MOST_ROWS], mtime[MOST_ROWS], ctime[MOST_ROWS];
    uint64_t inode[MOST_ROWS], size[MOST_ROWS], device[MOST_ROWS];
    uint8_t *arena;
    pk_tree tree;
    pk_directory directories[MOST_ROWS];
} batch;

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
                            .user = geteuid(), .most = 1 + (int)below(8), .flags = (int)below(16)};
    for (uint32_t row = 0; row < rows; row++) {
        int held = openat(source, batch->name[row], O_PATH | O_NOFOLLOW);
        pk_mark(source, held, batch->marks + (size_t)row * PK_MARK);
        close(held);
        batch->atime[row] = batch->mtime[row];
        if (kind == PK_FINISH)
            batch->plans[row] = (uint8_t)below(2);
    }
}

/* All names that are left are in the source, and what they are is there; other targets were not made. */
static void check_directory(const batch *batch, int source, int target, uint32_t row)
{
    const pk_directory *found = &batch->directories[row];
    const int code = batch->codes[row];
    if (code == DONE && found->left) {
        const char *name = found->names, *const end = name + found->names_size;
        int directory = openat(source, batch->name[row], O_RDONLY | O_DIRECTORY);
        for (uint32_t each = 0; each < found->left; each++) {
            char one[257];
            struct stat status;
            const char *after = memchr(name, '/', (size_t)(end - name));
            after = after != NULL ? after : end;
            snprintf(one, sizeof one, "%.*s", (int)(after - name), name);
            expect(!fstatat(directory, one, &status, AT_SYMLINK_NOFOLLOW), "row %u: %s", row, one);
            expect(status.st_ino == found->rows.inode[each] && (uint64_t)status.st_size == found->rows.size[each] &&
                   status.st_mode == found->rows.mode[each], "row %u: another item", row);
            name = after + 1;
        }
        expect(name == end + 1, "row %u: names are left", row);
        close(directory);
    }
    if (code == DONE || found->is_made)
        expect(!faccessat(target, batch->name[row], F_OK, AT_SYMLINK_NOFOLLOW), "row %u: no target", row);
    expect(!found->is_made || code == DONE || code == ANEW, "row %u: made, and nobody knows", row);
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
        if ((kind == PK_ENTER || kind == PK_FINISH) && below(10))
            make_directory(source, batch->name[row]);
        else
            make_item(source, batch->name[row]);
        if (kind == PK_ENTER && !below(3))
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
    if (kind == PK_ENTER || kind == PK_FINISH)
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
    in_c->rows = rows;
    in_c->at_once = (int)below(5);
    in_c->directory = source;
    in_c->target = copies || kind == PK_ENTER ? target : source;
    in_c->tree = &batch->tree;
    in_c->directories = kind == PK_ENTER ? batch->directories : NULL;
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
    in_c->found = found;
    in_c->verdicts = (pk_verdicts){batch->codes, batch->operations, batch->errnos, batch->bytes, batch->nanoseconds};
    in_c->made = batch->made;
    in_c->marks = batch->marks;
    if (digest && (kind == PK_READ || below(2)))
        in_c->digests = batch->digests;
    else if (copies && below(2)) {
        expect((batch->arena = malloc(batch->offsets[rows])) != NULL, "memory");
        in_c->arena = batch->arena;
        in_c->offsets = batch->offsets;
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

static void check_copy(const batch *batch, int source, int target, uint32_t row)
{
    const int plan = batch->plans[row] & ~SYNC, code = batch->codes[row];
    char temporary[16];
    snprintf(temporary, sizeof temporary, "%s", batch->in_c.temporaries != NULL ? "" : ".none");
    const char *at = batch->temporaries;
    for (uint32_t each = 0; each < row; each++)
        at = strchr(at, '/') + 1;
    if (batch->in_c.temporaries != NULL)
        snprintf(temporary, 1 + strcspn(at, "/"), "%s", at);
    const char *made = plan == TEMPORARY ? temporary : batch->new_name[row];
    const ssize_t there = all_of(target, made, other);
    const int is_old = there == 3 && !memcmp(other, "old", 3);
    const int may_be_new = code == DONE || (plan == REPLACE && code == FAILED && batch->operations[row] == OP_STAT) ||
                           (plan == REPLACE && code == PK_DEFERRED); /* a signal came after the rename */
    if (plan != TEMPORARY || code != DONE)
        expect(faccessat(target, temporary, F_OK, AT_SYMLINK_NOFOLLOW), "row %u: %s is left", row, temporary);
    if (code == DONE) {
        struct stat one, two;
        const ssize_t size = all_of(source, batch->name[row], contents);
        expect(size >= 0 && size == there && !memcmp(contents, other, (size_t)size), "row %u: other contents", row);
        expect(batch->bytes[row] == (uint64_t)size, "row %u: bytes", row);
        expect(batch->arena == NULL || !memcmp(batch->arena + batch->offsets[row], contents, (size_t)size),
               "row %u: other contents in memory", row);
        expect(!fstatat(source, batch->name[row], &one, 0) && !fstatat(target, made, &two, 0), "stat");
        if (batch->in_c.flags & PK_MODE && batch->in_c.flags & PK_OWNER)
            expect(one.st_mode == two.st_mode, "row %u: mode %o", row, two.st_mode);
        if (batch->in_c.flags & PK_TIMES)
            expect(one.st_mtim.tv_sec == two.st_mtim.tv_sec && one.st_mtim.tv_nsec == two.st_mtim.tv_nsec, "row %u", row);
        expect(plan == NEW || batch->made[row] == two.st_ino, "row %u: another inode was made", row);
    } else if (!may_be_new) {
        expect(there < 0 || is_old, "row %u: half a copy is left after %d, %d of %d", row, code,
               batch->errnos[row], batch->operations[row]);
    }
}

/* It is done: looks at all that it has made, and gives it back. */
static void check(batch *batch, int source, int target)
{
    int cancelled = 0;
    checks = 1;
    (void)pk_moved(&batch->in_c);
    for (uint32_t row = 0; batch->in_c.kind == PK_ENTER && row < batch->in_c.rows; row++)
        check_directory(batch, source, target, row);
    pk_release(&batch->in_c);
    for (uint32_t row = 0; row < batch->in_c.rows; row++) {
        const int code = batch->codes[row];
        expect(code != PENDING && (code <= CANCELLED || code == PK_DEFERRED), "row %u: code %d", row, code);
        cancelled |= code == CANCELLED;
        expect(batch->in_c.kind != PK_SYNC || code == DONE || code == FAILED, "row %u: not synced", row);
        if (batch->in_c.kind == PK_COPY)
            check_copy(batch, source, target, row);
        if (batch->in_c.kind == PK_REMOVE && code == DONE)
            expect(faccessat(source, batch->name[row], F_OK, AT_SYMLINK_NOFOLLOW), "row %u: is not removed", row);
    }
    expect(!cancelled || batch->in_c.cancelled, "cancelled, and nobody says so");
    free(batch->arena);
    checks = 0;
}

static _Atomic int is_over;

static void *look(void *argument)
{
    pk_doing doing;
    pk_load load, before = {0};
    while (!atomic_load(&is_over)) {
        if (pk_oldest(argument, &doing))
            expect(doing.since && strlen(doing.name) < sizeof doing.name && doing.operation <= OP_LINK, "doing");
        pk_measure(argument, &load);
        expect(load.operations >= before.operations && load.busy >= before.busy && load.wall >= before.wall, "load");
        before = load;
    }
    return NULL;
}

static int number_of_descriptors(void)
{
    int number = 0;
    DIR *directory = opendir("/proc/self/fd");
    while (readdir(directory) != NULL)
        number++;
    closedir(directory);
    return number;
}

static void learn(pk_kernel *kernel)
{
    char name[256];
    while (pk_unknown(kernel, name))
        pk_learn(kernel, name, (int)below(3));
}

static void drive(pk_kernel *kernel, batch *batches, uint32_t number, int source, int target)
{
    atomic_store(&always, below(3) ? 0 : ENOSPC);
    atomic_store(&faults, below(3) ? (int)(5 + below(400)) : NO_FAULT);
    for (uint32_t each = 0; each < number; each++)
        expect(!pk_submit(kernel, &batches[each].in_c), "submit");
    for (uint32_t left = number; left;) {
        pk_poll(kernel, below(3) * 100000);
        if (!below(3))
            learn(kernel);
        if (!below(200))
            (void)pk_set_threads(kernel, (int)below(9), (int)below(5)); /* others rest, or begin */
        const uint32_t one = below(number);
        if (!batches[one].is_seen && !below(6))
            pk_cancel(kernel, &batches[one].in_c);
        for (uint32_t each = 0; each < number; each++)
            if (!batches[each].is_seen && pk_is_done(&batches[each].in_c)) {
                batches[each].is_seen = 1;
                left--;
                check(&batches[each], source, target);
            }
    }
    atomic_store(&faults, NO_FAULT);
}

static void check_names(pk_kernel *kernel)
{
    pk_batch few = {.kind = PK_STAT, .rows = 3, .names = "a/b", .names_size = 3, .directory = -1};
    expect(pk_submit(kernel, &few) == EINVAL, "names for two of three rows");
    few.names_size = 0;
    expect(pk_submit(kernel, &few) == EINVAL, "no names for three rows");
    few.rows = 1;
    few.names_size = 3;
    expect(pk_submit(kernel, &few) == EINVAL, "two names for one row");
    few.rows = 0;
    few.names = NULL;
    few.names_size = 0;
    expect(!pk_submit(kernel, &few) && pk_is_done(&few), "no rows");
    pk_release(&few);
}

static void list_all(int directory)
{
    static pk_listing listing;
    static char names[64 * 256];
    uint8_t kinds[64];
    uint64_t inodes[64];
    int got, listed = 0, there = 0;
    memset(&listing, 0, sizeof listing);
    do {
        got = pk_list(directory, &listing, names, sizeof names, kinds, inodes, 1 + (int)below(64));
        expect(got >= 0, "list: %d", got);
        listed += got;
    } while (!listing.is_over);
    DIR *stream = fdopendir(dup(directory));
    rewinddir(stream);
    while (readdir(stream) != NULL)
        there++;
    closedir(stream);
    expect(listed == there - 2, "%d of %d names", listed, there - 2);
}

static void round_of(int place, uint32_t round)
{
    static batch batches[MOST_BATCHES];
    char one[32], two[32];
    sprintf(one, "s%u", round);
    sprintf(two, "t%u", round);
    expect(!mkdirat(place, one, 0700) && !mkdirat(place, two, 0700), "mkdir: %s", strerror(errno));
    const int source = openat(place, one, O_RDONLY), target = openat(place, two, O_RDONLY);
    const int wake = below(3) ? eventfd(0, EFD_NONBLOCK) : -1, algorithm = pk_find_digest("xxh3-128");
    pk_kernel *kernel = pk_open(wake, (pk_digest){16, algorithm, 65536u << below(4)});
    expect(kernel != NULL, "open");
    const int threads = below(4) ? (int)below(9) : below(4) ? 0 : 100;
    const uint32_t number = 1 + below(MOST_BATCHES);
    pthread_t looking;
    atomic_store(&is_over, 0);
    expect(!pthread_create(&looking, NULL, look, kernel), "thread");
    for (uint32_t each = 0, rows; each < number; each++) {
        static const int kinds[] = {PK_COPY, PK_COPY, PK_COPY, PK_STAT, PK_REMOVE, PK_ENTER, PK_FINISH, PK_SYNC,
                                    PK_READ};
        rows = 1 + below(MOST_ROWS);
        prepare(&batches[each], source, target, each * MOST_ROWS, kinds[below(algorithm ? 9 : 8)], rows, algorithm != 0);
    }
    list_all(source);
    if (below(2))
        expect(pk_set_threads(kernel, threads, (int)below(5)) == (threads > 64 ? 64 : threads), "threads");
    drive(kernel, batches, number, source, target);
    check_names(kernel);
    atomic_store(&is_over, 1);
    pthread_join(looking, NULL);
    pk_close(kernel);
    if (wake >= 0)
        close(wake);
    close(source);
    close(target);
}

int main(int count, char **words)
{
    if (count != 4)
        return 2;
    seed = strtoull(words[1], NULL, 10);
    const int place = open(words[3], O_RDONLY | O_DIRECTORY), before = number_of_descriptors();
    expect(place >= 0, "%s: %s", words[3], strerror(errno));
    for (uint32_t round = 0; round < strtoul(words[2], NULL, 10); round++) {
        round_of(place, round);
        expect(number_of_descriptors() == before, "round %u: a descriptor is left open", round);
    }
    return 0;
}
