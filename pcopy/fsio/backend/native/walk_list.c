/* Visitors that list trees: PK_PATHS returns the paths of all items, PK_SUM_UP adds their status to sums. */
#include "walk.h"

/* Store the paths of all items, and count them. */
static int report_paths(pk_walk *walk, pk_level *level, pk_listed *listed)
{
    (void)level;
    pk_memory *const text = &walk->found->text;
    const size_t above = walk->path.size;
    char *at = pk_room_for(text, listed->size + (size_t)listed->number * above);
    const char *name = listed->names;
    if (at == NULL)
        return 'd';
    for (int each = 0; each < listed->number; each++) {
        const size_t size = strlen(name) + 1;
        memcpy(at, walk->path.at, above);
        memcpy(at + above, name, size);
        at += above + size;
        name += size;
        switch (listed->all.kinds[each]) {
        case 'f': walk->sums.files++; break;
        case 'd': walk->sums.directories++; break;
        case 'l': walk->sums.links++; break;
        default: walk->sums.others++;
        }
    }
    text->size = (size_t)(at - text->at);
    return 0;
}

static int has_simple_names(const pk_listed *listed)
{
    for (size_t each = 0; each < listed->size; each++)
        if (listed->names[each] && (listed->names[each] < ' ' || listed->names[each] > '~'))
            return 0;
    return 1;
}

/* Divide the memory of the visitor into the columns that the tally and pk_summed need. */
static pk_columns columns_of(const pk_walk *walk)
{
    uint64_t *const at = walk->data;
    uint32_t *const narrow = (uint32_t *)(at + 4 * MOST_LISTED);
    return (pk_columns){.size = at,
                        .blocks = at + MOST_LISTED,
                        .atime = (int64_t *)(at + 2 * MOST_LISTED),
                        .mtime = (int64_t *)(at + 3 * MOST_LISTED),
                        .mode = narrow,
                        .uid = narrow + MOST_LISTED,
                        .gid = narrow + 2 * MOST_LISTED,
                        .links = narrow + 3 * MOST_LISTED};
}

/* Read the status of all items. Return -1 if one cannot be read, if they have several owners, or if a file is larger than
 * those that may be summed up. */
static int look_at_items(pk_walk *walk, int directory, pk_listed *listed, const pk_columns *rows, pk_summed *summed)
{
    static const char letters[] = "fdlpscb";
    const pk_tree *const tree = walk->batch->tree;
    const char *name = listed->names;
    for (uint32_t each = 0; each < (uint32_t)listed->number; each++) {
        uint32_t mode;
        doing(walk->worker, OP_STAT);
        if (pk_look_at(directory, name, AT_SYMLINK_NOFOLLOW, rows, each, &mode))
            return -1;
        const char *const letter = strchr(letters, pk_letter_of(mode));
        const uint8_t kind = listed->all.kinds[each];
        if (rows->uid[each] != rows->uid[0] || rows->gid[each] != rows->gid[0] || letter == NULL || *letter != kind ||
            (kind == 'f' && (int64_t)rows->size[each] > tree->largest))
            return -1;
        summed->kinds[letter - letters]++;
        name += strlen(name) + 1;
    }
    summed->uid = listed->number ? rows->uid[0] : 0;
    summed->gid = listed->number ? rows->gid[0] : 0;
    return 0;
}

/* Add all items to the tally, and store the sums of the directory. */
static int sum_up(pk_walk *walk, pk_level *level, pk_listed *listed)
{
    pk_tally *const tally = walk->batch->tree->tally;
    const pk_columns rows = columns_of(walk);
    pk_summed summed = {0};
    if (!has_simple_names(listed) || look_at_items(walk, level->descriptor, listed, &rows, &summed) ||
        pk_room_for(&walk->found->text, sizeof summed) == NULL)
        return 'd';
    summed.number = pk_number_of(walk, walk->levels);
    if (summed.number == NOT_NUMBERED ||
        pk_tally_add(tally, listed->all.kinds, (uint32_t)listed->number, rows.mode, rows.links, rows.size, rows.blocks,
                     rows.atime, rows.mtime))
        return 'd';
    summed.bytes = tally->last_bytes;
    summed.allocated = tally->last_allocated;
    return pk_append(&walk->found->text, &summed, sizeof summed) ? 'd' : 0;
}

int pk_paths_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    static const pk_visitor paths = {.names = report_paths};
    return pk_walk_row(worker, batch, row, &paths, batch->prefixes, NULL);
}

int pk_sum_up_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    static const pk_visitor sums = {.names = sum_up, .is_final = 1};
    uint64_t *const memory = malloc(6 * MOST_LISTED * sizeof *memory);
    const int has_no_tally = batch->tree->tally == NULL; /* with threads */
    const int code = memory == NULL || has_no_tally ? PK_DEFERRED : pk_walk_row(worker, batch, row, &sums, "", memory);
    free(memory);
    return code;
}
