/* PK_PATHS: the visitor that returns the paths of all items of subtrees. */
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
        count_type(&walk->sums, listed->all.kinds[each]);
    }
    text->size = (size_t)(at - text->at);
    return 0;
}

int pk_paths_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    static const pk_visitor paths = {.names = report_paths};
    return pk_walk_row(worker, batch, row, &paths, batch->prefixes, NULL);
}
