/* The items of one source directory: reads the status of all, and skips or copies those files for which that is
 * possible immediately. */
#include "walk.h"

#include <sys/sysmacros.h>

#define LONGEST 10000000 /* nanoseconds; after this time the remaining files of a directory are left to the caller */

/* Allocate the columns of `names` items, and copy their names, which take `size` bytes. The memory begins with room for a
 * pointer to each name, and ends with room for a byte for each. Return -1 if there is no memory. */
static int make_room(pk_directory *found, uint32_t names, const char *text, size_t size)
{
    char *block = malloc((size_t)names * (64 + sizeof(char *) + 1) + size);
    if (block == NULL)
        return -1;
    found->block = block;
    pk_columns *rows = &found->rows;
    rows->mtime = (int64_t *)(block + names * sizeof(char *));
    rows->ctime = rows->mtime + names;
    rows->inode = (uint64_t *)(rows->ctime + names);
    rows->size = rows->inode + names;
    rows->device = rows->size + names;
    found->took = rows->device + names;
    rows->mode = (uint32_t *)(found->took + names);
    rows->links = rows->mode + names;
    rows->uid = rows->links + names;
    rows->gid = rows->uid + names;
    found->names = (char *)(rows->gid + names);
    memcpy(found->names, text, size);
    found->names_size = size;
    return 0;
}

static int look(int directory, const char *name, struct statx *status)
{
    return pk_statx(directory, name, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, STATX_BASIC_STATS, status);
}

static struct timespec time_of(struct statx_timestamp time)
{
    return (struct timespec){time.tv_sec, time.tv_nsec};
}

int pk_look_at_all(pk_directory *found, int source, const char *names, size_t size)
{
    if (make_room(found, found->left, names, size))
        return -1;
    pk_columns *rows = &found->rows;
    const char *name = found->names;
    for (uint32_t row = 0; row < found->left; row++) {
        struct statx status;
        if (look(source, name, &status) || !in_nanoseconds(time_of(status.stx_mtime), &rows->mtime[row]) ||
            !in_nanoseconds(time_of(status.stx_ctime), &rows->ctime[row]))
            return -1;
        rows->mode[row] = status.stx_mode;
        rows->links[row] = status.stx_nlink;
        rows->uid[row] = status.stx_uid;
        rows->gid[row] = status.stx_gid;
        rows->inode[row] = status.stx_ino;
        rows->size[row] = status.stx_size;
        rows->device[row] = makedev(status.stx_dev_major, status.stx_dev_minor);
        name += strlen(name) + 1;
    }
    return 0;
}

static int is_small_file(const pk_tree *tree, const pk_columns *rows, uint32_t row, const char *name)
{
    return S_ISREG(rows->mode[row]) && rows->size[row] <= SMALL_FILE && rows->device[row] == tree->source_device &&
           !(tree->flags & PK_LINKS && rows->links[row] > 1) && strncmp(name, PK_SIDECAR, sizeof PK_SIDECAR - 1);
}

/* Return true if an item that is no directory is outside the limits of time and size. */
static int is_outside_limits(const pk_filter *filter, const pk_columns *rows, uint32_t row)
{
    return !S_ISDIR(rows->mode[row]) &&
           (rows->mtime[row] <= filter->after || rows->mtime[row] >= filter->before ||
            (S_ISREG(rows->mode[row]) &&
             ((int64_t)rows->size[row] <= filter->larger || (int64_t)rows->size[row] >= filter->smaller)));
}

static int are_we_in(uint32_t group)
{
    gid_t groups[256];
    const int number = getgroups(256, groups);
    for (int each = 0; each < number; each++)
        if (groups[each] == group)
            return 1;
    return number < 0 || getegid() == group;
}

/* Return true if an existing file, whose mtime is equal to its source's, also has the owner and mode that it should
 * have, as far as this process may set them: as ``pcopy.fsio.metadata_update.has_metadata_of_source``. */
static int has_metadata(const pk_batch *batch, const pk_columns *rows, uint32_t row, const struct statx *there)
{
    const pk_tree *tree = batch->tree;
    if (batch->flags & PK_OWNER && tree->flags & PK_GIVING &&
        (there->stx_uid != rows->uid[row] || there->stx_gid != rows->gid[row]))
        return 0;
    if (batch->flags & PK_OWNER && !(tree->flags & PK_GIVING) && there->stx_gid != rows->gid[row] &&
        there->stx_uid == tree->user && are_we_in(rows->gid[row]))
        return 0;
    return !(batch->flags & PK_MODE) || (there->stx_mode & 07777) == (rows->mode[row] & 07777);
}

/* Return 1 if the existing item is a copy of this file and is left unchanged, as ``pcopy.fsio.backend.plan_copies``
 * decides. Return 0 if it is not, or if its status is not sufficient to decide that. */
static int stays(pk_worker *worker, const pk_batch *batch, const pk_columns *rows, uint32_t row, int source, int target,
                 const char *name)
{
    const pk_tree *tree = batch->tree;
    if (!is_small_file(tree, rows, row, name))
        return 0;
    struct statx there;
    int64_t mtime, ctime;
    if (look(target, name, &there) || !S_ISREG(there.stx_mode) || there.stx_size != rows->size[row] ||
        !in_nanoseconds(time_of(there.stx_mtime), &mtime) || !in_nanoseconds(time_of(there.stx_ctime), &ctime))
        return 0;
    if (!GUARD(KEPT_SINCE_BEFORE, ctime < tree->touched) ||
        !GUARD(KEPT_NOT_PRIVATE, there.stx_uid != tree->user || (there.stx_mode & 07777) != 0600))
        return 0;
    return are_times_equal(rows->mtime[row], mtime, tree->window) && has_metadata(batch, rows, row, &there) &&
           pk_has_same_attributes(worker, batch->flags, source, name, target, name);
}

/* Remove the items that are done from those that were found. */
static void leave_out(pk_directory *found, const char **names, const uint8_t *done)
{
    pk_columns *rows = &found->rows;
    char *to = found->names;
    uint32_t kept = 0;
    for (uint32_t row = 0; row < found->left; row++) {
        const char *name = names[row];
        const size_t length = strlen(name);
        if (!done[row]) {
            if (kept)
                *to++ = '/';
            memmove(to, name, length);
            to += length;
            rows->mode[kept] = rows->mode[row];
            rows->links[kept] = rows->links[row];
            rows->mtime[kept] = rows->mtime[row];
            rows->ctime[kept] = rows->ctime[row];
            rows->inode[kept] = rows->inode[row];
            rows->size[kept] = rows->size[row];
            rows->device[kept] = rows->device[row];
            kept++;
        }
    }
    found->left = kept;
    found->names_size = (size_t)(to - found->names);
}

/* Skip the files whose copies are left unchanged. */
static void skip(pk_worker *worker, const pk_batch *batch, pk_directory *found, const char **names, uint8_t *done,
                 int source, int target)
{
    for (uint32_t row = 0; row < found->left; row++)
        if (!done[row] && (done[row] = (uint8_t)stays(worker, batch, &found->rows, row, source, target, names[row]))) {
            found->skipped++;
            found->skipped_bytes += found->rows.size[row];
        }
}

/* Copy small files into a directory that was just created. Files that cannot be copied here remain in `found`: the
 * slow path copies them or reports the error. Return -1 if the file system is full or read-only. */
static int copy_new(pk_worker *worker, const pk_batch *batch, pk_directory *found, const char **names, uint8_t *done,
                     int source, int target)
{
    uint8_t plan = NEW, operation;
    int32_t number;
    uint64_t bytes;
    const int others_may = others_may_write(found->metadata.uid, found->metadata.mode, batch->tree->user);
    pk_work work = {.is_ours = 1, .others_may = others_may ? 1 : -1}; /* the status of both directories is known */
    pk_batch files = {
        .kind = PK_COPY, .flags = batch->flags & ~PK_IDENTIFY, .rows = 1, .directory = source, .target = target,
        .umask = batch->umask,
        .plans = &plan, .verdicts = {.operations = &operation, .errnos = &number, .bytes = &bytes}, .work = &work,
    };
    const pk_columns *rows = &found->rows;
    uint64_t began = pk_now();
    const uint64_t latest = began + LONGEST, deadline = batch->tree->deadline;
    const uint64_t until = deadline && deadline < latest ? deadline : latest;
    for (uint32_t row = 0; row < found->left && !atomic_load(&work.full) && began < until; row++) {
        if (done[row] || !is_small_file(batch->tree, rows, row, names[row]))
            continue;
        work.name = work.new_name = names + row;
        files.given = (pk_columns){.mtime = rows->mtime + row, .ctime = rows->ctime + row, .inode = rows->inode + row,
                                   .size = rows->size + row, .device = rows->device + row};
        if (pk_copy_row(worker, &files, 0) == DONE) {
            done[row] = 1;
            found->copied++;
            found->copied_bytes += bytes;
        }
        const uint64_t now = pk_now();
        found->took[row] = done[row] ? now - began : 0;
        began = now;
    }
    return atomic_load(&work.full) ? -1 : 0;
}

static int is_reported(const pk_directory *found, const uint8_t *done, uint32_t row)
{
    return found->is_made ? found->took[row] != 0 : done[row];
}

static char *report_numbers(char *to, const pk_directory *found, const uint8_t *done, const uint64_t *numbers)
{
    for (uint32_t row = 0; row < found->left; row++)
        if (is_reported(found, done, row))
            to = (char *)memcpy(to, &numbers[row], sizeof *numbers) + sizeof *numbers;
    return to;
}

/* Report the files of a directory that were copied, or skipped if the directory existed before. Return 0, or -1 if there is
 * no memory. */
static int report(pk_walk *walk, const pk_directory *found, const char **names, const uint8_t *done)
{
    pk_memory *const items = &walk->found->items;
    pk_reported reported = {.path_size = (uint32_t)walk->path.size - 1, .is_copied = found->is_made};
    const size_t fixed = sizeof reported + reported.path_size;
    char *const start = pk_room_for(items, fixed + found->names_size + 2 * sizeof *found->took * found->left);
    if (start == NULL)
        return -1;
    char *to = start + fixed;
    for (uint32_t row = 0; row < found->left; row++)
        if (is_reported(found, done, row)) {
            if (reported.files++)
                *to++ = '/';
            to = (char *)memcpy(to, names[row], strlen(names[row])) + strlen(names[row]);
        }
    if (!reported.files)
        return 0;
    reported.names_size = (uint32_t)((size_t)(to - start) - fixed);
    memcpy(start, &reported, sizeof reported);
    memcpy(start + sizeof reported, walk->path.at, reported.path_size);
    to = report_numbers(report_numbers(to, found, done, found->rows.size), found, done, found->took);
    items->size += (size_t)(to - start);
    walk->results += (size_t)(to - start);
    return 0;
}

int pk_process_items(pk_walk *walk, const pk_level *level, pk_directory *found, const uint8_t *kinds)
{
    pk_worker *const worker = walk->worker;
    const pk_batch *const batch = walk->batch;
    const int flags = batch->tree->flags, source = level->descriptor, target = level->other;
    const uint32_t number = found->left;
    const char **names = found->block;
    uint8_t *done = (uint8_t *)found->names + found->names_size;
    int result = 0;
    memset(done, 0, number);
    memset(found->took, 0, number * sizeof *found->took);
    const char *name = found->names;
    for (uint32_t row = 0; row < number; row++) {
        names[row] = name;
        if (batch->tree->filter != NULL && is_outside_limits(batch->tree->filter, &found->rows, row)) {
            done[row] = 1;
            found->excluded++;
            found->skipped++;
        }
        name += strlen(name) + 1;
    }
    if (found->is_made && flags & PK_COPY_NEW)
        result = copy_new(worker, batch, found, names, done, source, target);
    else if (!found->is_made && flags & PK_COMPARE)
        skip(worker, batch, found, names, done, source, target);
    if (flags & (found->is_made ? PK_REPORT : PK_REPORT_ALL) && report(walk, found, names, done))
        walk->is_out_of_memory = 1;
    for (uint32_t row = 0; row < number; row++)
        done[row] |= kinds[row] == 'd';
    leave_out(found, names, done);
    return result;
}
