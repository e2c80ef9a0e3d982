/* PK_DESCRIBE: the visitor that describes everything in subtrees as members of a tar archive, in the order of the archive: a
 * directory, the files in it by name, then each of its subdirectories with everything below it.
 *
 * It describes directories that contain nothing but subdirectories and simple files, and are simple themselves: names and
 * numbers fit into their fields, and there are no extended attributes. All other directories are left to the caller.
 */
#include "walk.h"

#define NAME 100 /* bytes of the name field */
#define BLOCK 512u
#define SECOND 1000000000
#define EARLIEST (INT64_C(1000000000) * SECOND) /* times with ten digits: ``headers.SIMPLE_MEMBER_MTIMES`` */
#define LATEST ((INT64_C(1) << 33) * SECOND)
#define LARGE 64u /* files from which on a directory begins a piece of its own */
#define GROUP 32u /* of so many directories, about one begins a piece: ``archive_directories.DIRECTORIES_PER_GROUP`` */

typedef struct {
    uint32_t owner;     /* index of the owner that was found last */
    uint32_t left;      /* items in the frontier when members were stored last */
    pk_member members[MOST_LISTED + 1];
} pk_description;

static int is_known_owner(pk_description *state, const pk_batch *batch, uint32_t uid, uint32_t gid)
{
    if (state->owner < batch->owners_number && batch->owners[state->owner].uid == uid && batch->owners[state->owner].gid == gid)
        return 1;
    for (state->owner = 0; state->owner < batch->owners_number; state->owner++)
        if (batch->owners[state->owner].uid == uid && batch->owners[state->owner].gid == gid)
            return 1;
    return 0;
}

/* Return true if the mode of a file shows that this process may read it. */
static int is_readable(const pk_tree *tree, const struct stat *status)
{
    if (!status->st_size || tree->flags & PK_POWERFUL)
        return 1;
    return status->st_uid == tree->user ? (status->st_mode & 0400) != 0 : (status->st_mode & 044) == 044;
}

/* Describe an item whose name has `length` bytes in the archive. Return false if it is not simple. */
static int describe(pk_description *state, const pk_batch *batch, const struct stat *status, size_t length, pk_member *out)
{
    const uint64_t size = S_ISDIR(status->st_mode) ? 0 : (uint64_t)status->st_size;
    if (length > NAME || status->st_dev != batch->tree->source_device || size > batch->tree->max_file_bytes ||
        !in_nanoseconds(status->st_mtim, &out->mtime) || !in_nanoseconds(status->st_ctim, &out->ctime) ||
        out->mtime < EARLIEST || out->mtime >= LATEST || !is_known_owner(state, batch, status->st_uid, status->st_gid))
        return 0;
    out->inode = status->st_ino;
    out->size = size;
    out->device = status->st_dev;
    out->mode = status->st_mode;
    out->uid = status->st_uid;
    out->gid = status->st_gid;
    out->whole = (out->mtime % SECOND ? 3 * BLOCK : BLOCK) + (uint32_t)((size + BLOCK - 1) / BLOCK * BLOCK);
    return 1;
}

/* Read and describe the status of all files of a directory. Return the number of files, or -1 if an item is not simple. */
static int describe_files(pk_walk *walk, int directory, const pk_listed *listed)
{
    pk_description *const state = walk->data;
    const char *name = listed->names;
    int files = 0;
    for (int each = 0; each < listed->number; each++)
        if (listed->all.kinds[each] != 'd' && listed->all.kinds[each] != 'f')
            return -1;
    for (int each = 0; each < listed->number; each++) {
        struct stat status;
        const size_t length = strlen(name);
        if (listed->all.kinds[each] == 'f') {
            doing(walk->worker, OP_STAT);
            if (fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) || !S_ISREG(status.st_mode) || status.st_nlink != 1 ||
                !is_readable(walk->batch->tree, &status) || !strncmp(name, PK_SIDECAR, strlen(PK_SIDECAR)) ||
                !describe(state, walk->batch, &status, walk->path.size + length, &state->members[++files]))
                return -1;
        }
        name += length + 1;
    }
    return files;
}

/* Return true if neither the directory nor a file in it has an extended attribute or an ACL that is archived. */
static int has_no_attributes(pk_walk *walk, int directory, const pk_listed *listed)
{
    const char *name = listed->names;
    const int flags = walk->batch->flags;
    for (int each = 0; each < listed->number; each++, name += strlen(name) + 1)
        if (listed->all.kinds[each] == 'f' && !pk_has_no_attributes(walk->worker, flags, directory, name))
            return 0;
    return pk_has_no_attributes(walk->worker, flags, directory, ".");
}

/* If something was left to the caller since members were stored last, record that it belongs before the member that
 * follows. There must be room for a number. */
static void record_gap(pk_directory *found, pk_description *state)
{
    const uint32_t number = (uint32_t)(found->items.size / sizeof *state->members);
    if (state->left != found->frontier.left)
        pk_append(&found->gaps, &number, sizeof number);
    state->left = found->frontier.left;
}

/* Store a directory and the files in it. Return -1, with nothing stored, if there is no memory. */
static int store(pk_walk *walk, const pk_listed *listed, int files)
{
    pk_directory *const found = walk->found;
    pk_description *const state = walk->data;
    const size_t prefix = strlen(walk->batch->prefixes), path = walk->path.size - prefix;
    const size_t bytes = (size_t)(files + 1) * sizeof *state->members;
    const char *name = listed->names;
    if (pk_room_for(&found->text, (size_t)(files + 1) * (path + 1) + listed->size) == NULL ||
        pk_room_for(&found->items, bytes) == NULL || pk_room_for(&found->gaps, 2 * sizeof(uint32_t)) == NULL)
        return -1;
    record_gap(found, state);
    pk_append(&found->items, state->members, bytes);
    pk_append(&found->text, walk->path.at + prefix, path);
    pk_append(&found->text, "", 1);
    for (int each = 0; each < listed->number; each++) {
        const size_t size = strlen(name) + 1;
        if (listed->all.kinds[each] == 'f') {
            pk_append(&found->text, walk->path.at + prefix, path);
            pk_append(&found->text, name, size);
        }
        name += size;
    }
    walk->results += bytes;
    return 0;
}

/* The letter m stands for a directory that is not simple. */
static int describe_directory(pk_walk *walk, pk_level *level, pk_listed *listed)
{
    pk_description *const state = walk->data;
    if (!describe(state, walk->batch, &level->status, walk->path.size, &state->members[0]))
        return 'm';
    const int files = describe_files(walk, level->descriptor, listed);
    if (files < 0 || !has_no_attributes(walk, level->descriptor, listed) || store(walk, listed, files))
        return 'm';
    for (int each = 1; each <= files; each++)
        walk->sums.bytes += state->members[each].size;
    walk->sums.directories++;
    walk->sums.files += (uint64_t)files;
    walk->sums.others += (uint64_t)listed->number;
    return 0;
}

/* Return the CRC-32 of a text that follows one with the CRC-32 `value`, as zlib computes it. */
static uint32_t crc32(uint32_t value, const char *text)
{
    for (value = ~value; *text; text++) {
        value ^= (uint8_t)*text;
        for (int bit = 0; bit < 8; bit++)
            value = value >> 1 ^ (value & 1 ? 0xedb88320u : 0);
    }
    return ~value;
}

/* Return true if the directory of a row begins a piece because of its name. */
static int begins_group(const pk_batch *batch, uint32_t row)
{
    return crc32(crc32(crc32(0, batch->prefixes), batch->work->name[row]), "/") % GROUP == 0;
}

/* Rows that were not begun when the time is over get the code CANCELLED, except the first one, and those that follow in the
 * same piece. */
int pk_describe_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    static const pk_visitor describes = {.names = describe_directory, .is_sorted = 1};
    if (row && pk_now() >= batch->tree->deadline &&
        (batch->verdicts.codes[row - 1] != DONE || batch->directories[row - 1].frontier.left || begins_group(batch, row)))
        return CANCELLED;
    pk_description *const state = malloc(sizeof *state);
    if (state == NULL)
        return PK_DEFERRED;
    state->owner = state->left = 0;
    const int code = pk_walk_row(worker, batch, row, &describes, batch->prefixes, state);
    if (code == DONE)
        record_gap(&batch->directories[row], state);
    free(state);
    return code;
}

/* The results of a batch. */

size_t pk_size_of_described(const pk_batch *batch, size_t *text)
{
    size_t members = 0;
    *text = 0;
    for (uint32_t row = 0; row < batch->rows; row++) {
        members += batch->directories[row].items.size / sizeof(pk_member);
        *text += batch->directories[row].text.size;
    }
    return members;
}

/* Return the number of files of the directory that is the member number `at` of `end`. */
static uint32_t files_of(const pk_member *members, size_t at, size_t end)
{
    size_t after = at + 1;
    while (after < end && !S_ISDIR(members[after].mode))
        after++;
    return (uint32_t)(after - at - 1);
}

void pk_copy_described(const pk_batch *batch, pk_member *members, char *text)
{
    for (uint32_t row = 0; row < batch->rows; row++) {
        const pk_directory *const found = &batch->directories[row];
        if (found->items.size == 0)
            continue;
        memcpy(members, found->items.at, found->items.size);
        memcpy(text, found->text.at, found->text.size);
        members += found->items.size / sizeof *members;
        text += found->text.size;
    }
}

/* The state of dividing members into pieces. */
typedef struct {
    const pk_member *members;
    const char *text;
    pk_piece *pieces;
    uint32_t seed;      /* CRC-32 of what precedes the names */
    size_t number;      /* of pieces */
    size_t used;        /* bytes of the names of the members that were divided */
    uint32_t files;     /* in the directory that was divided last */
    int is_apart;       /* true if something that is not here may belong before the next member */
} pk_division;

/* Return true if a directory begins a piece: it or the one before it has many files, or its name says so. */
static int begins_piece(const pk_division *division, uint32_t files)
{
    return files >= LARGE || division->files >= LARGE ||
           crc32(division->seed, division->text + division->used) % GROUP == 0;
}

/* Divide the members of a row, those from number `first` up to, but not including, `end`. */
static void divide_row(pk_division *division, const pk_directory *found, size_t first, size_t end, uint32_t most,
                       uint64_t most_bytes)
{
    const uint32_t *gap = (const uint32_t *)found->gaps.at;
    const uint32_t *const last_gap = gap + found->gaps.size / sizeof *gap;
    for (size_t each = first; each < end; each++) {
        const pk_piece *const last = division->number ? &division->pieces[division->number - 1] : NULL;
        for (; gap < last_gap && *gap == each - first; gap++)
            division->is_apart = 1;
        int begins = last == NULL || division->is_apart || last->members >= most || last->size >= most_bytes;
        if (S_ISDIR(division->members[each].mode)) {
            const uint32_t files = files_of(division->members, each, end);
            begins = begins || begins_piece(division, files);
            division->files = files;
        }
        if (begins)
            division->pieces[division->number++] = (pk_piece){.names = division->used, .first = (uint32_t)each};
        division->is_apart = 0;
        division->pieces[division->number - 1].members++;
        division->pieces[division->number - 1].size += division->members[each].whole;
        division->used += strlen(division->text + division->used) + 1;
    }
    division->is_apart = division->is_apart || gap < last_gap;
}

/* Where pieces begin depends as little as possible on what a row contains, so that a resumed run finds the same pieces: at
 * directories with many files, after these, and at other directories according to their names. */
size_t pk_divide_described(const pk_batch *batch, const pk_member *members, const char *text, pk_piece *pieces,
                           uint32_t most, uint64_t most_bytes)
{
    pk_division division = {.members = members, .text = text, .pieces = pieces, .is_apart = 1};
    division.seed = crc32(0, batch->prefixes);
    size_t first = 0;
    for (uint32_t row = 0; row < batch->rows; row++) {
        const pk_directory *const found = &batch->directories[row];
        const size_t end = first + found->items.size / sizeof *members;
        divide_row(&division, found, first, end, most, most_bytes);
        division.is_apart = division.is_apart || batch->tree->flags & PK_APART || batch->verdicts.codes[row] != DONE;
        first = end;
    }
    return division.number;
}
