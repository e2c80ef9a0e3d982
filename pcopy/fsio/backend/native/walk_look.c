/* PK_LOOK: the visitor that returns all items of subtrees, with those columns of their status that are wanted, or adds
 * them to sums (tally). Also the functions by which the caller gets what all rows of a batch have found, as one set of
 * columns. */
#include "walk.h"

#define DEVICE_BIT (1u << 20) /* ``pcopy.fsio.backend.columns.DEVICE_COLUMN`` */
#define WIDEST 8u             /* bytes of an item in a column */

/* The columns: their bits in a mask, where pk_columns has the pointer, and the bytes of an item. */
static const struct {
    uint32_t bits;
    uint32_t width;
    size_t at;
} COLUMNS[] = {
    {STATX_MODE | STATX_TYPE, sizeof(uint32_t), offsetof(pk_columns, mode)},
    {STATX_UID, sizeof(uint32_t), offsetof(pk_columns, uid)},
    {STATX_GID, sizeof(uint32_t), offsetof(pk_columns, gid)},
    {STATX_NLINK, sizeof(uint32_t), offsetof(pk_columns, links)},
    {STATX_ATIME, sizeof(int64_t), offsetof(pk_columns, atime)},
    {STATX_MTIME, sizeof(int64_t), offsetof(pk_columns, mtime)},
    {STATX_CTIME, sizeof(int64_t), offsetof(pk_columns, ctime)},
    {STATX_INO, sizeof(uint64_t), offsetof(pk_columns, inode)},
    {STATX_SIZE, sizeof(uint64_t), offsetof(pk_columns, size)},
    {DEVICE_BIT, sizeof(uint64_t), offsetof(pk_columns, device)},
    {STATX_BLOCKS, sizeof(uint64_t), offsetof(pk_columns, blocks)},
};
enum { COLUMN_COUNT = sizeof COLUMNS / sizeof *COLUMNS };

static char *column_of(const pk_columns *rows, size_t each)
{
    char *column;
    memcpy(&column, (const char *)rows + COLUMNS[each].at, sizeof column);
    return column;
}

static void set_column(pk_columns *rows, size_t each, const char *column)
{
    memcpy((char *)rows + COLUMNS[each].at, &column, sizeof column);
}

uint8_t pk_letter_of(uint32_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFREG: return 'f';
    case S_IFDIR: return 'd';
    case S_IFLNK: return 'l';
    case S_IFIFO: return 'p';
    case S_IFSOCK: return 's';
    case S_IFCHR: return 'c';
    case S_IFBLK: return 'b';
    default: return '?';
    }
}

/* Read the status of all items of a directory, or of those types for which it is wanted; others get zeros. Return -1 if
 * one cannot be read. */
static int look_at_items(pk_walk *walk, int directory, const pk_listed *listed, const pk_columns *rows)
{
    const pk_tree *const tree = walk->batch->tree;
    const char *name = listed->names;
    if (!tree->mask)
        return 0;
    for (size_t each = 0; tree->kinds[0] && each < COLUMN_COUNT; each++)
        if (column_of(rows, each) != NULL)
            memset(column_of(rows, each), 0, (size_t)listed->number * COLUMNS[each].width);
    for (uint32_t each = 0; each < (uint32_t)listed->number; each++) {
        uint32_t mode;
        if (!tree->kinds[0] || strchr(tree->kinds, listed->all.kinds[each])) {
            doing(walk->worker, OP_STAT);
            if (pk_look_at(directory, name, AT_SYMLINK_NOFOLLOW, rows, each, &mode))
                return -1;
        }
        name += strlen(name) + 1;
    }
    return 0;
}

static int has_simple_names(const pk_listed *listed)
{
    for (size_t each = 0; each < listed->size; each++)
        if (listed->names[each] && (listed->names[each] < ' ' || listed->names[each] > '~'))
            return 0;
    return 1;
}

/* Return true if the items may be added to the tally: they have one owner and printable names. */
static int is_simple(const pk_listed *listed, const pk_columns *rows)
{
    for (uint32_t each = 0; each < (uint32_t)listed->number; each++) {
        const uint8_t kind = pk_letter_of(rows->mode[each]);
        if (rows->uid[each] != rows->uid[0] || rows->gid[each] != rows->gid[0] || kind != listed->all.kinds[each] ||
            kind == '?')
            return 0;
    }
    return has_simple_names(listed);
}

/* Add all items, which are simple, to the tally. Return -1, with nothing added, if a sum might overflow. */
static int sum_up(pk_tally *tally, const pk_listed *listed, const pk_columns *rows, pk_entered *entered)
{
    static const char letters[] = "fdlpscb";
    if (pk_tally_add(tally, listed->all.kinds, entered->items, rows->mode, rows->links, rows->size, rows->blocks,
                     rows->atime, rows->mtime))
        return -1;
    entered->is_summed = 1;
    entered->bytes = tally->last_bytes;
    entered->allocated = tally->last_allocated;
    entered->uid = listed->number ? rows->uid[0] : 0;
    entered->gid = listed->number ? rows->gid[0] : 0;
    for (int each = 0; each < listed->number; each++)
        entered->kinds[strchr(letters, listed->all.kinds[each]) - letters]++;
    return 0;
}

/* Add the files of the directory that was entered last to the largest files of the tally, as far as they belong to them.
 * Return 0, or -1 if there is no memory. */
static int add_large_files(const pk_walk *walk, const pk_listed *listed, const pk_columns *rows)
{
    pk_tally *const tally = walk->batch->tree->tally;
    const size_t above = strlen(walk->batch->prefixes), room = above + walk->path.size + listed->size + 1;
    const char *name = listed->names;
    char *path = NULL;
    int result = 0;
    for (int each = 0; each < listed->number && !result; each++, name += strlen(name) + 1) {
        if (listed->all.kinds[each] != 'f' ||
            (tally->large_files == PK_LARGEST && rows->size[each] < tally->files[PK_LARGEST - 1].size))
            continue;
        if (path == NULL) {
            if ((path = malloc(room)) == NULL)
                return -1;
            memcpy(path, walk->batch->prefixes, above);
            memcpy(path + above, walk->path.at, walk->path.size);
        }
        memcpy(path + above + walk->path.size, name, strlen(name) + 1);
        result = pk_tally_file(tally, rows->size[each], path);
    }
    free(path);
    return result;
}

/* Reserve memory for all that a directory may add to the results. Return 0, or -1 if there is no memory. */
static int reserve(pk_walk *walk, const pk_listed *listed)
{
    pk_directory *const found = walk->found;
    const size_t number = (size_t)listed->number;
    return pk_room_for(&found->text, listed->size + number * walk->path.size) == NULL ||
                   pk_room_for(&found->items, number * (COLUMN_COUNT + 2) * WIDEST) == NULL ||
                   pk_room_for(&found->entered, sizeof(pk_entered)) == NULL ||
                   pk_room_for(&found->above, walk->path.size + 1) == NULL
               ? -1
               : 0;
}

static void store(pk_memory *memory, const void *data, size_t size)
{
    memcpy(memory->at + memory->size, data, size);
    memory->size += size;
}

/* Store the paths of the items, their types, inode numbers and columns. */
static void store_items(pk_walk *walk, const pk_listed *listed, const pk_columns *rows)
{
    pk_directory *const found = walk->found;
    const size_t number = (size_t)listed->number;
    const char *name = listed->names;
    for (size_t each = 0; each < number; each++) {
        const size_t size = strlen(name) + 1;
        store(&found->text, walk->path.at, walk->path.size);
        store(&found->text, name, size);
        name += size;
    }
    const size_t before = found->items.size;
    store(&found->items, listed->all.kinds, number);
    store(&found->items, listed->all.inodes, number * sizeof *listed->all.inodes);
    for (size_t each = 0; each < COLUMN_COUNT; each++)
        if (column_of(rows, each) != NULL)
            store(&found->items, column_of(rows, each), number * COLUMNS[each].width);
    walk->results += found->items.size - before;
}

static int look(pk_walk *walk, pk_level *level, pk_listed *listed)
{
    pk_directory *const found = walk->found;
    const pk_tree *const tree = walk->batch->tree;
    const pk_columns *const rows = walk->data;
    pk_entered entered = {.inode = level->inode, .items = (uint32_t)listed->number};
    if (look_at_items(walk, level->descriptor, listed, rows) || reserve(walk, listed))
        return 'd';
    if (tree->tally == NULL || !is_simple(listed, rows) || sum_up(tree->tally, listed, rows, &entered))
        store_items(walk, listed, rows);
    else if (add_large_files(walk, listed, rows))
        walk->is_out_of_memory = 1;
    store(&found->entered, &entered, sizeof entered);
    store(&found->above, walk->path.at, walk->path.size - 1); /* without the slash at its end */
    store(&found->above, "", 1);
    return 0;
}

int pk_look_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    static const pk_visitor looks = {.names = look}, sums = {.names = look, .is_final = 1};
    const uint32_t mask = batch->tree->mask;
    pk_columns rows = {0};
    char *const memory = malloc(COLUMN_COUNT * MOST_LISTED * WIDEST);
    if (memory == NULL)
        return PK_DEFERRED;
    for (size_t each = 0; each < COLUMN_COUNT; each++)
        if (mask & COLUMNS[each].bits)
            set_column(&rows, each, memory + each * MOST_LISTED * WIDEST);
    const int code = pk_walk_row(worker, batch, row, batch->tree->tally != NULL ? &sums : &looks, "", &rows);
    free(memory);
    return code;
}

/* The results of a batch. */

pk_found pk_size_of_found(const pk_batch *batch)
{
    pk_found sizes = {0};
    for (uint32_t row = 0; row < batch->rows; row++) {
        const pk_directory *const found = &batch->directories[row];
        const pk_entered *const entered = (const pk_entered *)found->entered.at;
        const size_t directories = found->entered.size / sizeof *entered;
        for (size_t each = 0; each < directories; each++)
            sizes.items += entered[each].is_summed ? 0 : entered[each].items;
        sizes.text += found->text.size;
        sizes.above += found->above.size;
        sizes.directories += directories;
    }
    return sizes;
}

/* Copy the columns of one directory behind the first `before` items. Return the end of what was copied. */
static const char *copy_columns(const pk_columns *rows, uint8_t *kinds, uint64_t *inodes, size_t before, size_t number,
                                const char *from)
{
    memcpy(kinds + before, from, number);
    from += number;
    memcpy(inodes + before, from, number * sizeof *inodes);
    from += number * sizeof *inodes;
    for (size_t each = 0; each < COLUMN_COUNT; each++) {
        const size_t width = COLUMNS[each].width;
        if (column_of(rows, each) == NULL)
            continue;
        memcpy(column_of(rows, each) + before * width, from, number * width);
        from += number * width;
    }
    return from;
}

static char *copy_memory(char *to, const pk_memory *memory)
{
    if (memory->size)
        memcpy(to, memory->at, memory->size);
    return to + memory->size;
}

void pk_copy_found(const pk_batch *batch, const pk_columns *rows, uint8_t *kinds, uint64_t *inodes, char *text,
                   pk_entered *entered, char *above)
{
    size_t before = 0;
    char *directories = (char *)entered;
    for (uint32_t row = 0; row < batch->rows; row++) {
        const pk_directory *const found = &batch->directories[row];
        const pk_entered *const each = (const pk_entered *)found->entered.at;
        const char *from = found->items.at;
        for (size_t at = 0; at < found->entered.size / sizeof *each; at++) {
            if (each[at].is_summed || !each[at].items)
                continue;
            from = copy_columns(rows, kinds, inodes, before, each[at].items, from);
            before += each[at].items;
        }
        text = copy_memory(text, &found->text);
        directories = copy_memory(directories, &found->entered);
        above = copy_memory(above, &found->above);
    }
}
