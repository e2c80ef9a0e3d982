/* Drives the C backend by itself, without Python: odd trees, several threads, calls that fail or do less than they
 * were asked for, batches that are cancelled, and a thread that always asks what is under way.
 *
 *     harness SEED ROUNDS DIRECTORY      (linked with --wrap for each call below; built with sanitizers)
 *
 * What is wrong is told on standard error, with status 1. What is expected is worked out from the files themselves.
 */
#include "batches.h"
#include "tally.h"
#include "unpacking.h"

#include <dirent.h>
#include <sys/eventfd.h>

/* Files in a new directory are like those in the source, and they are those that are counted. */
static void check_copied(const batch *batch, int source, int target, const char *path, const pk_copied *made, uint32_t row)
{
    const int from = openat(source, path, O_RDONLY | O_DIRECTORY);
    DIR *stream = fdopendir(openat(target, path, O_RDONLY | O_DIRECTORY));
    expect(from >= 0 && stream != NULL, "row %u: can't be looked at", row);
    uint32_t copied = 0, directories = 0;
    uint64_t bytes = 0;
    for (struct dirent *entry; (entry = readdir(stream)) != NULL;) {
        struct stat one, two;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        expect(!fstatat(from, entry->d_name, &one, 0) && !fstatat(dirfd(stream), entry->d_name, &two, 0), "stat");
        if (S_ISDIR(two.st_mode)) {
            expect(S_ISDIR(one.st_mode), "row %u: a directory", row);
            directories++;
            continue;
        }
        const ssize_t size = all_of(from, entry->d_name, contents), there = all_of(dirfd(stream), entry->d_name, other);
        expect(size >= 0 && size == there && !memcmp(contents, other, (size_t)size), "row %u: other contents", row);
        if (batch->in_c.flags & PK_TIMES)
            expect(one.st_mtim.tv_sec == two.st_mtim.tv_sec && one.st_mtim.tv_nsec == two.st_mtim.tv_nsec, "row %u", row);
        copied++;
        bytes += (uint64_t)size;
    }
    expect(copied == made->copied && bytes == made->copied_bytes, "row %u: %u files are there, and %u are counted", row,
           copied, made->copied);
    expect(directories >= made->subdirectories, "row %u: %u directories, %u are counted", row, directories, made->subdirectories);
    expect(!copied || batch->tree.flags & PK_COPY_NEW, "row %u: files were copied", row);
    closedir(stream);
    close(from);
}

/* Items that remain are in the source, with this status. */
static void check_remaining(const pk_directory *found, int source, const char *path, uint32_t row)
{
    const char *name = found->names, *const end = name + found->names_size;
    const int directory = openat(source, path, O_RDONLY | O_DIRECTORY);
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

/* Return the number of items in a directory. */
static uint32_t items_in(int source, const char *path)
{
    uint32_t number = 0;
    DIR *stream = fdopendir(openat(source, path, O_RDONLY | O_DIRECTORY));
    expect(stream != NULL, "%s can't be listed", path);
    while (readdir(stream) != NULL)
        number++;
    closedir(stream);
    return number - 2;
}

/* Return the number of items that are finished in a directory: all files in it and in its finished subdirectories. */
static uint32_t finished_in(const pk_copied *one)
{
    return one->copied + one->skipped + one->subdirectories + one->finished;
}

/* Each directory that was entered has all items: copied, skipped, entered, finished, not entered, or remaining. */
static void check_entered(const batch *batch, int source, int target, uint32_t row)
{
    const pk_directory *found = &batch->directories[row], *partly = (const pk_directory *)found->partly.at;
    const pk_frontier *frontier = &found->frontier;
    const pk_copied *made = (const pk_copied *)found->copies.at;
    const uint32_t number = (uint32_t)(found->copies.size / sizeof *made);
    const char *path = found->text.at;
    for (uint32_t each = 0; each < number; each++, path += strlen(path) + 1) {
        struct stat status;
        uint32_t not_entered = 0;
        expect(!fstatat(source, path, &status, AT_SYMLINK_NOFOLLOW) && status.st_ino == made[each].source, "row %u: %s", row, path);
        expect(!fstatat(target, path, &status, AT_SYMLINK_NOFOLLOW) && status.st_ino == made[each].target, "row %u: %s", row, path);
        if (made[each].flags & PK_IS_MADE)
            check_copied(batch, source, target, path, &made[each], row);
        if (made[each].remaining) {
            expect(partly->left == made[each].remaining, "row %u: other items remain", row);
            check_remaining(partly++, source, path, row);
        }
        for (uint32_t left = 0; left < frontier->left; left++)
            not_entered += ((const uint32_t *)frontier->left_parents.at)[left] == each;
        const uint32_t all = finished_in(&made[each]) + made[each].remaining + not_entered;
        expect(made[each].finished ? all >= items_in(source, path) : all == items_in(source, path),
               "row %u: %s has other items", row, path);
    }
    expect(path == found->text.at + found->text.size, "row %u: paths are left", row);
}

/* Items that remain are in the source; targets that were not reported were not created. */
static void check_directory(const batch *batch, int source, int target, uint32_t row)
{
    const pk_directory *found = &batch->directories[row];
    const int code = batch->codes[row];
    if (code == DONE && found->left)
        check_remaining(found, source, batch->name[row], row);
    if (code == DONE && found->copies.size)
        check_entered(batch, source, target, row);
    if (code == DONE || code == DECIDE_AGAIN)
        expect(!faccessat(target, batch->name[row], F_OK, AT_SYMLINK_NOFOLLOW), "row %u: no target", row);
    expect(!found->copies.size || code == DONE, "row %u: entered, and not reported", row);
}

/* Return the number of all items below an open directory, down to a depth, and close it. */
static uint64_t items_below(int directory, uint32_t depth)
{
    uint64_t number = 0;
    DIR *stream = fdopendir(directory);
    expect(stream != NULL, "can't be looked at");
    for (struct dirent *entry; (entry = readdir(stream)) != NULL;) {
        struct stat status;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        number++;
        expect(!fstatat(dirfd(stream), entry->d_name, &status, AT_SYMLINK_NOFOLLOW), "stat");
        if (S_ISDIR(status.st_mode) && depth)
            number += items_below(openat(dirfd(stream), entry->d_name, O_RDONLY | O_DIRECTORY), depth - 1);
    }
    closedir(stream);
    return number;
}

/* Return the part with a number of a text whose parts are joined by slashes. */
static void part_of(const pk_memory *text, uint32_t number, char *out)
{
    const char *at = text->at, *const end = text->at + text->size;
    for (; number; number--)
        at = (const char *)memchr(at, '/', (size_t)(end - at)) + 1;
    const char *const slash = memchr(at, '/', (size_t)(end - at));
    const size_t size = (size_t)((slash != NULL ? slash : end) - at);
    memcpy(out, at, size);
    out[size] = '\0';
}

/* Open the directory with a number in the frontier of a row, whose own directory is `top`. *depth is increased by the
 * levels between them. */
static int entered(const pk_frontier *frontier, int top, uint32_t number, uint32_t *depth)
{
    char name[257];
    if (number == 0)
        return dup(top);
    part_of(&frontier->names, number, name);
    const int parent = entered(frontier, top, ((const uint32_t *)frontier->parents.at)[number], depth);
    const int found = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    close(parent);
    ++*depth;
    return found;
}

/* Check the frontier of a row, whose directory is open. Return the number of the items below it. */
static uint64_t check_frontier(const batch *batch, int top, uint32_t row)
{
    const pk_frontier *frontier = &batch->directories[row].frontier;
    uint64_t remaining = 0;
    for (uint32_t each = 0; each < frontier->left; each++) {
        char name[257];
        struct stat status;
        uint32_t depth = 1, parent = ((const uint32_t *)frontier->left_parents.at)[each];
        const int directory = entered(frontier, top, parent, &depth);
        expect(parent < frontier->entered && !fstat(directory, &status), "row %u: no parent", row);
        expect(((const uint64_t *)frontier->inodes.at)[parent] == status.st_ino, "row %u: another parent", row);
        part_of(&frontier->left_names, each, name);
        const int left = openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
        expect(left >= 0 && !fstat(left, &status), "row %u: %s is no directory", row, name);
        expect(((const uint64_t *)frontier->left_inodes.at)[each] == status.st_ino, "row %u: another directory", row);
        expect(depth <= batch->tree.depth, "row %u: %s is too deep", row, name);
        remaining += items_below(left, batch->tree.depth - depth);
        close(directory);
    }
    return remaining;
}

/* Each path is that of an item. Each item has one, unless it is below a directory that was not entered or deeper than
 * allowed. */
static void check_paths(const batch *batch, int source, uint32_t row)
{
    const pk_directory *found = &batch->directories[row];
    const pk_sums *sums = &batch->sums[row];
    char above[300];
    struct stat status;
    uint64_t paths = 0;
    if (batch->codes[row] != DONE)
        return;
    const int around = snprintf(above, sizeof above, "%s%s/", ABOVE, batch->name[row]), top = openat(source, batch->name[row], O_RDONLY | O_DIRECTORY);
    for (const char *path = found->text.at; found->text.size && path < found->text.at + found->text.size; path += strlen(path) + 1, paths++)
        expect(!strncmp(path, above, (size_t)around) && !fstatat(top, path + around, &status, AT_SYMLINK_NOFOLLOW), "row %u: %s", row, path);
    expect(paths == sums->files + sums->directories + sums->links + sums->others, "row %u: %u paths", row, (unsigned)paths);
    const uint64_t remaining = check_frontier(batch, top, row);
    expect(paths + remaining == items_below(top, batch->tree.depth), "row %u: %u paths and %u remaining", row, (unsigned)paths, (unsigned)remaining);
}

/* A tree is compared with itself: each item is equal to itself, or remains. */
static void check_compared(const batch *batch, int source, uint32_t row)
{
    const pk_frontier *frontier = &batch->directories[row].frontier;
    const pk_sums *sums = &batch->sums[row];
    uint64_t number = sums->files + sums->directories + sums->links + sums->others;
    struct stat status;
    char name[257];
    expect(!sums->changed, "row %u: it differs from itself", row);
    if (batch->codes[row] != DONE) {
        expect(!number && !frontier->left, "row %u: something is counted, and not done", row);
        return;
    }
    const int top = openat(source, batch->name[row], O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (batch->in_c.flags & PK_OF_ITEMS)
        expect(number--, "row %u: it is not counted", row);
    if (top < 0) {
        expect(!number && batch->in_c.flags & PK_OF_ITEMS, "row %u: it is no directory", row);
        return;
    }
    for (uint32_t each = 0; each < frontier->left; each++, number++) {
        uint32_t depth = 1, parent = ((const uint32_t *)frontier->left_parents.at)[each];
        const char letter = frontier->left_kinds.at[each];
        const int directory = entered(frontier, top, parent, &depth);
        expect(parent < frontier->entered && !fstat(directory, &status), "row %u: no parent", row);
        expect(((const uint64_t *)frontier->inodes.at)[parent] == status.st_ino, "row %u: another parent", row);
        expect(((const uint64_t *)frontier->other_inodes.at)[parent] == status.st_ino, "row %u: another parent", row);
        part_of(&frontier->left_names, each, name);
        expect(!fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW), "row %u: %s", row, name);
        expect(letter == '?' || (letter == 'd' && S_ISDIR(status.st_mode)), "row %u: %s has the letter %c", row, name, letter);
        if (S_ISDIR(status.st_mode))
            number += items_below(openat(directory, name, O_RDONLY | O_DIRECTORY), UINT32_MAX);
        close(directory);
    }
    expect(number == items_below(top, UINT32_MAX), "row %u: %u items", row, (unsigned)number);
}

/* Each item of a batch has its path, type, inode and columns, unless it is below a directory that was not entered or deeper
 * than allowed. */
static void check_looked(const batch *batch, int source)
{
    const pk_found sizes = pk_size_of_found(&batch->in_c);
    const uint32_t mask = batch->tree.mask;
    char *text = malloc(sizes.text + 1), *above = malloc(sizes.above + 1);
    uint8_t *kinds = malloc(sizes.items + 1);
    uint64_t *inodes = malloc((sizes.items + 1) * sizeof *inodes), items = 0, remaining = 0, size = 0;
    pk_entered *directories = malloc((sizes.directories + 1) * sizeof *directories);
    uint32_t *modes = malloc((sizes.items + 1) * sizeof *modes);
    uint64_t *lengths = malloc((sizes.items + 1) * sizeof *lengths), *devices = malloc((sizes.items + 1) * sizeof *devices);
    uint64_t *rest = malloc((sizes.items + 1) * sizeof *rest);
    const pk_columns rows = {.mode = mask & (STATX_MODE | STATX_TYPE) ? modes : NULL,
                             .size = mask & STATX_SIZE ? lengths : NULL,
                             .device = mask & 1u << 20 ? devices : NULL,
                             .uid = (uint32_t *)(mask & STATX_UID ? rest : NULL),
                             .gid = (uint32_t *)(mask & STATX_GID ? rest : NULL),
                             .links = (uint32_t *)(mask & STATX_NLINK ? rest : NULL),
                             .atime = (int64_t *)(mask & STATX_ATIME ? rest : NULL),
                             .mtime = (int64_t *)(mask & STATX_MTIME ? rest : NULL),
                             .ctime = (int64_t *)(mask & STATX_CTIME ? rest : NULL),
                             .inode = mask & STATX_INO ? rest : NULL,
                             .blocks = mask & STATX_BLOCKS ? rest : NULL};
    pk_copy_found(&batch->in_c, &rows, kinds, inodes, text, directories, above);
    const char *path = text, *directory = above;
    for (; path < text + sizes.text; path += strlen(path) + 1, items++) {
        struct stat status;
        expect(items < sizes.items && !fstatat(source, path, &status, AT_SYMLINK_NOFOLLOW), "no item %s", path);
        const char letter = S_ISREG(status.st_mode) ? 'f' : S_ISDIR(status.st_mode) ? 'd' : S_ISLNK(status.st_mode) ? 'l' : 'p';
        const int is_seen = !batch->tree.kinds[0] || strchr(batch->tree.kinds, letter) != NULL;
        expect(kinds[items] == letter && inodes[items] == status.st_ino, "%s: another item", path);
        if (rows.mode != NULL)
            expect(modes[items] == (is_seen ? status.st_mode : 0), "%s: another mode", path);
        if (rows.size != NULL)
            expect(lengths[items] == (is_seen ? (uint64_t)status.st_size : 0), "%s: another size", path);
        if (rows.device != NULL)
            expect(devices[items] == (is_seen ? status.st_dev : 0), "%s: another device", path);
    }
    expect(items == sizes.items, "%u paths", (unsigned)items);
    for (size_t each = 0; each < sizes.directories; each++, directory += strlen(directory) + 1) {
        struct stat status;
        expect(!fstatat(source, directory, &status, AT_SYMLINK_NOFOLLOW) && status.st_ino == directories[each].inode, "%s", directory);
        size += directories[each].items;
    }
    expect(directory == above + sizes.above && size == items, "%u items in directories", (unsigned)size);
    for (uint32_t row = 0; row < batch->in_c.rows; row++) {
        if (batch->codes[row] != DONE)
            continue;
        const int top = openat(source, batch->name[row], O_RDONLY | O_DIRECTORY);
        remaining += check_frontier(batch, top, row);
        size -= items_below(top, batch->tree.depth);
    }
    expect(size + remaining == 0, "items are missing");
    void *const all[] = {text, above, kinds, inodes, directories, modes, lengths, devices, rest};
    for (size_t each = 0; each < sizeof all / sizeof *all; each++)
        free(all[each]);
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
        expect((plan == NEW && !(batch->in_c.flags & PK_IDENTIFY)) || batch->made[row] == two.st_ino, "row %u: another inode was made", row);
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
    for (uint32_t row = 0; batch->in_c.kind == PK_COPY_TREE && row < batch->in_c.rows; row++)
        check_directory(batch, source, target, row);
    if (batch->in_c.kind == PK_LOOK)
        check_looked(batch, source);
    if (batch->in_c.kind == PK_UNPACK)
        check_unpacked(batch, target);
    for (uint32_t row = 0; batch->in_c.kind == PK_PATHS && row < batch->in_c.rows; row++)
        check_paths(batch, source, row);
    for (uint32_t row = 0; batch->in_c.kind == PK_COMPARE_TREES && row < batch->in_c.rows; row++)
        check_compared(batch, source, row);
    pk_release(&batch->in_c);
    for (uint32_t row = 0; row < batch->in_c.rows; row++) {
        const int code = batch->codes[row];
        expect(code != PENDING && (code <= CANCELLED || code == PK_DEFERRED), "row %u: code %d", row, code);
        const int may_be_late = batch->in_c.kind == PK_COMPARE_TREES || batch->in_c.kind == PK_COPY_TREE;
        cancelled |= code == CANCELLED && !may_be_late; /* those are cancelled also if the time is over */
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

static void learn(pk_backend *backend)
{
    char name[256];
    while (pk_unknown(backend, name))
        pk_learn(backend, name, (int)below(3));
}

static void drive(pk_backend *backend, batch *batches, uint32_t number, int source, int target)
{
    atomic_store(&always, below(3) ? 0 : ENOSPC);
    atomic_store(&faults, below(3) ? (int)(5 + below(400)) : NO_FAULT);
    for (uint32_t each = 0; each < number; each++)
        expect(!pk_submit(backend, &batches[each].in_c), "submit");
    for (uint32_t left = number; left;) {
        pk_poll(backend, below(3) * 100000);
        if (!below(3))
            learn(backend);
        if (!below(200))
            (void)pk_set_threads(backend, (int)below(9), (int)below(5)); /* others rest, or begin */
        const uint32_t one = below(number);
        if (!batches[one].is_seen && !below(6))
            pk_cancel(backend, &batches[one].in_c);
        for (uint32_t each = 0; each < number; each++)
            if (!batches[each].is_seen && pk_is_done(&batches[each].in_c)) {
                batches[each].is_seen = 1;
                left--;
                check(&batches[each], source, target);
            }
    }
    atomic_store(&faults, NO_FAULT);
}

static void check_names(pk_backend *backend)
{
    pk_batch few = {.kind = PK_STAT, .rows = 3, .names = "a/b", .names_size = 3, .directory = -1};
    expect(pk_submit(backend, &few) == EINVAL, "names for two of three rows");
    few.names_size = 0;
    expect(pk_submit(backend, &few) == EINVAL, "no names for three rows");
    few.rows = 1;
    few.names_size = 3;
    expect(pk_submit(backend, &few) == EINVAL, "two names for one row");
    few.rows = 0;
    few.names = NULL;
    few.names_size = 0;
    expect(!pk_submit(backend, &few) && pk_is_done(&few), "no rows");
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
    pk_backend *backend = pk_open(wake, (pk_digest){16, algorithm, 65536u << below(4)});
    expect(backend != NULL, "open");
    const int threads = below(4) ? (int)below(9) : below(4) ? 0 : 100;
    const uint32_t number = 1 + below(MOST_BATCHES);
    pthread_t looking;
    atomic_store(&is_over, 0);
    expect(!pthread_create(&looking, NULL, look, backend), "thread");
    for (uint32_t each = 0, rows; each < number; each++) {
        static const int kinds[] = {PK_COPY, PK_COPY, PK_COPY, PK_STAT, PK_REMOVE, PK_COPY_TREE, PK_FINISH, PK_SYNC,
                                    PK_LOOK, PK_PATHS, PK_COMPARE_TREES, PK_UNPACK, PK_UNPACK, PK_UNPACK, PK_READ};
        const int kind = kinds[below(algorithm ? 15 : 14)];
        rows = 1 + below(MOST_ROWS);
        if (kind == PK_UNPACK)
            prepare_unpacking(&batches[each], target, each * MOST_ROWS);
        else
            prepare(&batches[each], source, target, each * MOST_ROWS, kind, rows, algorithm != 0);
    }
    list_all(source);
    if (below(2))
        expect(pk_set_threads(backend, threads, (int)below(5)) == (threads > 64 ? 64 : threads), "threads");
    drive(backend, batches, number, source, target);
    check_names(backend);
    check_tally();
    atomic_store(&is_over, 1);
    pthread_join(looking, NULL);
    pk_close(backend);
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
