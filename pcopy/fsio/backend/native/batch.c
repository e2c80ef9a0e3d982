/* Properties of the types of batches: the function that processes a row, and what rows change. Also the data that C
 * keeps until a batch is released. */
#include "internal.h"

/* What the rows of a batch change. LOOKS: nothing. CHANGES: existing items. NAMES: which names exist in the target
 * directory. */
enum effect { LOOKS, CHANGES, NAMES };

static const struct {
    pk_row row;
    enum effect effect;
} KINDS[] = {
    [PK_STAT] = {pk_stat_row, LOOKS},
    [PK_COPY] = {pk_copy_row, NAMES},
    [PK_READ] = {pk_read_row, LOOKS},
    [PK_REMOVE] = {pk_remove_row, NAMES},
    [PK_COPY_TREE] = {pk_copy_tree_row, NAMES},
    [PK_FINISH] = {pk_finish_row, CHANGES},
    [PK_SYNC] = {pk_sync_row, LOOKS},
    [PK_SAME] = {pk_same_row, LOOKS},
    [PK_TRY] = {pk_try_row, CHANGES},
    [PK_UPDATE] = {pk_update_row, CHANGES},
    [PK_UPDATE_UNIFORM] = {pk_update_uniform_row, CHANGES},
    [PK_LOOK] = {pk_look_row, LOOKS},
    [PK_CHANGE] = {pk_change_row, CHANGES},
    [PK_BARE] = {pk_bare_row, LOOKS},
    [PK_MEMBERS] = {pk_members_row, LOOKS},
    [PK_COMPARE_TREES] = {pk_compare_trees_row, LOOKS},
    [PK_MAKE] = {pk_make_row, NAMES},
    [PK_REMOVE_TREE] = {pk_remove_tree_row, NAMES},
    [PK_PATHS] = {pk_paths_row, LOOKS},
    [PK_DESCRIBE] = {pk_describe_row, LOOKS},
    [PK_UNPACK] = {pk_unpack_row, NAMES},
};

pk_row pk_row_of(const pk_batch *batch)
{
    return KINDS[batch->kind].row;
}

int pk_changes_nothing(const pk_batch *batch)
{
    return KINDS[batch->kind].effect == LOOKS;
}

int pk_makes_or_removes(const pk_batch *batch)
{
    return KINDS[batch->kind].effect == NAMES;
}

/* Split names that are joined by slashes into single ones, each with a zero at its end. Return the end of the memory
 * that was used, or NULL if there is not one name for each row. */
static char *split(char *to, const char **each, const char *names, size_t size, uint32_t rows)
{
    if (size)
        memcpy(to, names, size);
    char *at = to, *const past = to + size + 1;
    for (uint32_t row = 0; row < rows; row++) {
        if (at == past)
            return NULL;
        each[row] = at;
        char *end = memchr(at, '/', (size_t)(past - 1 - at));
        at = end != NULL ? end : past - 1;
        *at++ = '\0';
    }
    return rows && at != past ? NULL : past;
}

int pk_create_work(pk_batch *batch)
{
    const size_t lists = 1u + (batch->new_names != NULL) + (batch->temporaries != NULL);
    size_t text = batch->names_size + batch->new_names_size + batch->temporaries_size + 3;
    pk_work *work = calloc(1, sizeof *work + lists * batch->rows * sizeof(char *) + text);
    if (work == NULL)
        return ENOMEM;
    const char **each = (const char **)(work + 1);
    char *at = (char *)(each + lists * batch->rows);
    work->name = work->new_name = each;
    at = split(at, each, batch->names, batch->names_size, batch->rows);
    if (at != NULL && batch->new_names != NULL) {
        work->new_name = each += batch->rows;
        at = split(at, each, batch->new_names, batch->new_names_size, batch->rows);
    }
    if (at != NULL && batch->temporaries != NULL) {
        work->temporary = each += batch->rows;
        at = split(at, each, batch->temporaries, batch->temporaries_size, batch->rows);
    }
    if (at == NULL) {
        free(work);
        return EINVAL;
    }
    batch->work = work;
    return 0;
}

void pk_release(pk_batch *batch)
{
    pk_release_directories(batch);
    free(batch->work);
    batch->work = NULL;
}

int pk_is_done(pk_batch *batch)
{
    return atomic_load_explicit(&batch->work->done, memory_order_acquire);
}

uint64_t pk_moved(pk_batch *batch)
{
    return atomic_load_explicit(&batch->work->moved, memory_order_relaxed);
}
