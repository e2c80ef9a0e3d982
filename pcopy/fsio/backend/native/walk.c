/* Rows that are subtrees: a walk goes down from the directory of the row, depth first, and does something with the
 * names of each directory.
 *
 * It ends early if its time is over, if its results are large, if it cannot handle several directories one after the
 * other, or if the batch is cancelled. What it has not entered by
 * then is its frontier. A directory that this code does not handle belongs to the frontier, too: one that cannot be
 * opened or listed, is another one than the listing has shown, lies on another device, or has many names. Only if that
 * is the directory of the row, the row is deferred.
 */
#include "internal.h"

#define MOST_LEVELS 32u           /* directories that are open at the same time */
#define MOST_RESULTS (1u << 20)   /* bytes of results of a batch after which its walks enter no further directory */
#define MOST_FAILURES 4u          /* directories in a row that this code does not handle, after which a walk ends */
#define NOT_NUMBERED UINT32_MAX

/* An open directory, and its subdirectories that are not entered yet. */
typedef struct {
    int descriptor;
    uint32_t number;              /* in the frontier; NOT_NUMBERED: nothing of this directory is there yet */
    uint32_t left;                /* subdirectories from here on */
    const uint64_t *inodes;
    char *names;                  /* each with a zero at its end */
    char *block;                  /* the memory of both */
    const char *name;             /* of the directory itself, in the level above it */
    uint64_t inode;
    size_t path;                  /* bytes of the path of the directory, with a slash at its end */
} pk_level;

typedef struct pk_walk pk_walk;

/* The names of an open directory, joined by slashes, with the letters of their types. */
typedef struct {
    char *names;
    int number;
    pk_all all;
} pk_listed;

/* Does something with the names of a directory that was listed. Returns 0; or -1, with nothing done, if the directory
 * has to be left to the caller. */
typedef int (*pk_visit)(pk_walk *walk, int directory, pk_listed *listed);

struct pk_walk {
    pk_worker *worker;
    pk_batch *batch;
    pk_directory *found;
    pk_visit visit;
    uint64_t *memory;             /* of PK_SUM_UP: the columns of a directory */
    pk_sums sums;
    pk_memory path;               /* of the directory that was entered last, after the prefix of the batch */
    uint32_t failures;            /* directories that were not handled since the last one that was */
    uint32_t levels;
    pk_level level[MOST_LEVELS];
};

/* Return a pointer to `more` unused bytes, or NULL if there is no memory. The caller adds to `size`. */
static char *room_for(pk_memory *memory, size_t more)
{
    if (memory->at == NULL || memory->size + more > memory->room) {
        const size_t room = 2 * memory->room + more + 256;
        char *const at = realloc(memory->at, room);
        if (at == NULL)
            return NULL;
        memory->at = at;
        memory->room = room;
    }
    return memory->at + memory->size;
}

/* Return the end of the first of the names from `name` to `end` that are joined by slashes. */
static const char *end_of(const char *name, const char *end)
{
    const char *const slash = memchr(name, '/', (size_t)(end - name));
    return slash != NULL ? slash : end;
}

static int append(pk_memory *memory, const void *data, size_t size)
{
    char *const at = room_for(memory, size);
    if (at == NULL)
        return -1;
    memcpy(at, data, size);
    memory->size += size;
    return 0;
}

void pk_release_walk(pk_directory *found)
{
    pk_frontier *const frontier = &found->frontier;
    pk_memory *const all[] = {&found->text,        &frontier->parents,     &frontier->inodes,     &frontier->names,
                              &frontier->left_parents, &frontier->left_inodes, &frontier->left_names};
    for (size_t each = 0; each < sizeof all / sizeof *all; each++) {
        free(all[each]->at);
        *all[each] = (pk_memory){0};
    }
    frontier->entered = frontier->left = 0;
}

/* The frontier. */

/* Add a directory to lists of parents, inodes and names. Return 0, or -1 if there is no memory. */
static int add(pk_memory *parents, pk_memory *inodes, pk_memory *names, uint32_t parent, uint64_t inode, const char *name)
{
    const int is_first = parents->size == 0;
    if ((!is_first && append(names, "/", 1)) || append(names, name, strlen(name)))
        return -1;
    return append(parents, &parent, sizeof parent) || append(inodes, &inode, sizeof inode) ? -1 : 0;
}

/* Give numbers to the open directories up to `at`. Return the number of that one, or NOT_NUMBERED if there is no
 * memory. */
static uint32_t number_of(pk_walk *walk, uint32_t at)
{
    pk_frontier *const frontier = &walk->found->frontier;
    for (uint32_t each = 0; each <= at; each++) {
        pk_level *const level = &walk->level[each];
        if (level->number != NOT_NUMBERED)
            continue;
        const uint32_t parent = each ? walk->level[each - 1].number : 0;
        if (add(&frontier->parents, &frontier->inodes, &frontier->names, parent, level->inode, each ? level->name : ""))
            return NOT_NUMBERED;
        level->number = frontier->entered++;
    }
    return walk->level[at].number;
}

/* Leave a subdirectory of the directory that was entered last to the caller. Return 0, or -1 if there is no memory. */
static int leave(pk_walk *walk, const char *name, uint64_t inode)
{
    pk_frontier *const frontier = &walk->found->frontier;
    const uint32_t parent = number_of(walk, walk->levels - 1);
    if (parent == NOT_NUMBERED ||
        add(&frontier->left_parents, &frontier->left_inodes, &frontier->left_names, parent, inode, name))
        return -1;
    frontier->left++;
    return 0;
}

/* Return true if another directory may be entered now. */
static int goes_on(const pk_walk *walk)
{
    const pk_frontier *const frontier = &walk->found->frontier;
    pk_work *const work = walk->batch->work;
    const size_t before = atomic_load_explicit(&work->results, memory_order_relaxed);
    return walk->levels < MOST_LEVELS && walk->failures < MOST_FAILURES && before + walk->found->text.size + frontier->left_names.size < MOST_RESULTS &&
           !atomic_load_explicit(&work->is_cancelled, memory_order_relaxed) &&
           pk_now() < walk->batch->tree->deadline;
}

/* What is done with the names of a directory. */

/* Store the paths of all items, and count them. */
static int report_paths(pk_walk *walk, int directory, pk_listed *listed)
{
    (void)directory;
    pk_memory *const text = &walk->found->text;
    const size_t above = walk->path.size, size = strlen(listed->names);
    char *at = room_for(text, size + 1 + (size_t)listed->number * above);
    const char *name = listed->names, *const end = name + size;
    if (at == NULL)
        return -1;
    for (int each = 0; each < listed->number; each++) {
        const char *const after = end_of(name, end);
        const size_t length = (size_t)(after - name);
        memcpy(at, walk->path.at, above);
        memcpy(at + above, name, length);
        at[above + length] = '\0';
        at += above + length + 1;
        name = after + 1;
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

static int has_simple_names(const char *names)
{
    for (; *names; names++)
        if (*names < ' ' || *names > '~')
            return 0;
    return 1;
}

/* Divide the memory of the walk into the columns that the tally and pk_summed need. */
static pk_columns columns_of(const pk_walk *walk)
{
    uint64_t *const at = walk->memory;
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
    char *name = listed->names;
    for (uint32_t each = 0; each < (uint32_t)listed->number; each++) {
        char *const next = cut_off(name);
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
        name = next;
    }
    summed->uid = listed->number ? rows->uid[0] : 0;
    summed->gid = listed->number ? rows->gid[0] : 0;
    return 0;
}

/* Add all items to the tally, and store the sums of the directory. */
static int sum_up(pk_walk *walk, int directory, pk_listed *listed)
{
    pk_tally *const tally = walk->batch->tree->tally;
    const pk_columns rows = columns_of(walk);
    pk_summed summed = {0};
    if (!has_simple_names(listed->names) || look_at_items(walk, directory, listed, &rows, &summed) ||
        room_for(&walk->found->text, sizeof summed) == NULL)
        return -1;
    summed.number = number_of(walk, walk->levels);
    if (summed.number == NOT_NUMBERED ||
        pk_tally_add(tally, listed->all.kinds, (uint32_t)listed->number, rows.mode, rows.links, rows.size, rows.blocks,
                     rows.atime, rows.mtime))
        return -1;
    summed.bytes = tally->last_bytes;
    summed.allocated = tally->last_allocated;
    return append(&walk->found->text, &summed, sizeof summed);
}

/* The walk. */

/* Find out the types that the directory does not list. Return -1 if the status of an item cannot be read, or if the name
 * is longer than those of most file systems: FUSE has names of up to 1,024 bytes. */
static int complete_types(pk_walk *walk, int directory, pk_listed *listed)
{
    static const pk_columns none;
    const char *name = listed->names, *const end = name + strlen(name);
    if (memchr(listed->all.kinds, '?', (size_t)listed->number) == NULL)
        return 0;
    for (int each = 0; each < listed->number; each++) {
        const char *const after = end_of(name, end);
        if (listed->all.kinds[each] == '?') {
            char one[256];
            uint32_t mode;
            if ((size_t)(after - name) >= sizeof one)
                return -1;
            memcpy(one, name, (size_t)(after - name));
            one[after - name] = '\0';
            doing(walk->worker, OP_STAT);
            if (pk_look_at(directory, one, AT_SYMLINK_NOFOLLOW, &none, 0, &mode))
                return -1;
            listed->all.kinds[each] = pk_letter_of(mode);
        }
        name = after + 1;
    }
    return 0;
}

/* Store the subdirectories of a listed directory in its level. Return 0, or -1 if there is no memory. */
static int keep_subdirectories(pk_level *level, const pk_listed *listed)
{
    const char *name = listed->names, *const end = name + strlen(name);
    size_t number = 0;
    for (int each = 0; each < listed->number; each++)
        number += listed->all.kinds[each] == 'd';
    if (number == 0)
        return 0;
    level->block = malloc(number * sizeof(uint64_t) + (size_t)(end - name) + 1);
    if (level->block == NULL)
        return -1;
    uint64_t *const inodes = (uint64_t *)level->block;
    char *to = level->block + number * sizeof *inodes;
    level->inodes = inodes;
    level->names = to;
    for (int each = 0; each < listed->number; each++) {
        const char *const after = end_of(name, end);
        if (listed->all.kinds[each] == 'd') {
            inodes[level->left++] = listed->all.inodes[each];
            memcpy(to, name, (size_t)(after - name));
            to += after - name;
            *to++ = '\0';
        }
        name = after + 1;
    }
    return 0;
}

/* List an open directory, do with its names what the batch does, and store its subdirectories. Return -1 if it has to be
 * left to the caller. */
static int process(pk_walk *walk, pk_level *level)
{
    pk_listed listed;
    const pk_tree *const tree = walk->batch->tree;
    listed.names = (char *)walk->worker->buffer;
    if (!pk_is_directory(walk->worker, level->descriptor, level->inode, tree->source_device))
        return -1;
    listed.number = pk_list_all(walk->worker, level->descriptor, listed.names, LISTED_BYTES, tree->most, &listed.all);
    if (listed.number < 0 || complete_types(walk, level->descriptor, &listed) ||
        (walk->levels < tree->depth && keep_subdirectories(level, &listed)))
        return -1;
    return walk->visit(walk, level->descriptor, &listed);
}

/* Enter the directory `name` of the open directory `around`: it becomes the last level. Return 0; or -1 if it has to be
 * left to the caller. */
static int enter(pk_walk *walk, int around, const char *name, uint64_t inode, size_t path)
{
    pk_level *const entered = &walk->level[walk->levels];
    *entered = (pk_level){.name = name, .inode = inode, .number = NOT_NUMBERED};
    walk->path.size = path;
    if (append(&walk->path, name, strlen(name)) || append(&walk->path, "/", 1))
        return -1;
    entered->path = walk->path.size;
    entered->descriptor = pk_open_whole(walk->worker, around, name);
    if (entered->descriptor < 0)
        return -1;
    if (walk->levels)
        atomic_store_explicit(&walk->worker->inside, entered->descriptor, memory_order_relaxed);
    if (process(walk, entered)) {
        atomic_store_explicit(&walk->worker->inside, walk->levels ? around : -1, memory_order_relaxed);
        close(entered->descriptor);
        free(entered->block);
        return -1;
    }
    walk->levels++;
    return 0;
}

/* Close the directory that was entered last. */
static void close_level(pk_walk *walk)
{
    pk_level *const last = &walk->level[--walk->levels];
    atomic_store_explicit(&walk->worker->inside, walk->levels > 1 ? walk->level[walk->levels - 1].descriptor : -1,
                          memory_order_relaxed);
    close(last->descriptor);
    free(last->block);
}

/* Walk all below the directory of the row, which is open. Return 0, or -1 if there is no memory for the frontier. */
static int go_down(pk_walk *walk)
{
    int result = 0;
    while (walk->levels) {
        pk_level *const last = &walk->level[walk->levels - 1];
        if (last->left == 0) {
            close_level(walk);
            continue;
        }
        const char *const name = last->names;
        const uint64_t inode = *last->inodes;
        last->names += strlen(name) + 1;
        last->inodes++;
        last->left--;
        if (!result && goes_on(walk) && !enter(walk, last->descriptor, name, inode, last->path)) {
            walk->failures = 0;
        } else if (!result) {
            walk->failures++;
            result = leave(walk, name, inode);
        }
    }
    return result;
}

/* Walk the subtree of a row. Return the code of the row. */
static int walk_row(pk_worker *worker, pk_batch *batch, uint32_t row, pk_visit visit, const char *prefix, uint64_t *memory)
{
    pk_walk walk = {.worker = worker, .batch = batch, .found = &batch->directories[row], .visit = visit, .memory = memory};
    int result = append(&walk.path, prefix, strlen(prefix));
    if (!result)
        result = enter(&walk, batch->directory, batch->work->name[row], batch->given.inode[row], walk.path.size);
    if (!result)
        result = go_down(&walk);
    free(walk.path.at);
    if (result && walk.found->text.size && visit == sum_up) /* the tally has a part of the subtree */
        return set_verdict(batch, row, FAILED, OP_READDIR, ENOMEM);
    if (result) {
        pk_release_walk(walk.found);
        return PK_DEFERRED;
    }
    batch->sums[row] = walk.sums;
    atomic_fetch_add_explicit(&batch->work->results, walk.found->text.size, memory_order_relaxed);
    return DONE;
}

int pk_paths_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    return walk_row(worker, batch, row, report_paths, batch->prefixes, NULL);
}

int pk_sum_up_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    uint64_t *const memory = malloc(6 * MOST_LISTED * sizeof *memory);
    const int has_no_tally = batch->tree->tally == NULL; /* with threads */
    const int code = memory == NULL || has_no_tally ? PK_DEFERRED : walk_row(worker, batch, row, sum_up, "", memory);
    free(memory);
    return code;
}
