/* Rows that are subtrees: a walk goes down from the directory of the row, depth first, and its visitor (walk.h) does
 * something with the names of each directory.
 *
 * It ends early if its time is over, if its results are large, if it cannot handle several directories one after the
 * other, or if the batch is cancelled. What it has not entered by then is its frontier. A directory that this code does
 * not handle belongs to the frontier, too: one that cannot be opened or listed, is another one than the listing has shown,
 * lies on another device, or has many names. Only if that is the directory of the row, the row is deferred.
 */
#include "walk.h"

#define MOST_RESULTS (1u << 20)   /* bytes of results of a batch after which its walks enter no further directory */
#define MOST_CONTENTS (64u << 20) /* bytes read for a batch after which its walks enter no further directory */
#define MOST_FAILURES 4u          /* directories in a row that this code does not handle, after which a walk ends */

char *pk_room_for(pk_memory *memory, size_t more)
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

int pk_append(pk_memory *memory, const void *data, size_t size)
{
    char *const at = pk_room_for(memory, size);
    if (at == NULL)
        return -1;
    memcpy(at, data, size);
    memory->size += size;
    return 0;
}

void pk_release_walk(pk_directory *found)
{
    pk_frontier *const frontier = &found->frontier;
    pk_memory *const all[] = {&found->text,           &found->copies,         &found->marks,
                              &found->partly,         &found->items,          &found->entered,
                              &found->above,          &found->gaps,           &frontier->parents,
                              &frontier->inodes,      &frontier->names,       &frontier->left_parents,
                              &frontier->left_inodes, &frontier->left_names,  &frontier->left_kinds,
                              &frontier->other_inodes};
    for (size_t at = 0; at < found->partly.size; at += sizeof(pk_directory))
        free(((pk_directory *)(found->partly.at + at))->block);
    for (size_t each = 0; each < sizeof all / sizeof *all; each++) {
        free(all[each]->at);
        *all[each] = (pk_memory){0};
    }
    frontier->entered = frontier->left = 0;
}

/* The frontier. */

/* Add an item to lists of parents, inodes and names. Return 0, or -1 if there is no memory. */
static int add(pk_memory *parents, pk_memory *inodes, pk_memory *names, uint32_t parent, uint64_t inode, const char *name)
{
    const int is_first = parents->size == 0;
    if ((!is_first && pk_append(names, "/", 1)) || pk_append(names, name, strlen(name)))
        return -1;
    return pk_append(parents, &parent, sizeof parent) || pk_append(inodes, &inode, sizeof inode) ? -1 : 0;
}

uint32_t pk_number_of(pk_walk *walk, uint32_t at)
{
    pk_frontier *const frontier = &walk->found->frontier;
    for (uint32_t each = 0; each <= at; each++) {
        pk_level *const level = &walk->level[each];
        if (level->number != NOT_NUMBERED)
            continue;
        const uint32_t parent = each ? walk->level[each - 1].number : 0;
        if (add(&frontier->parents, &frontier->inodes, &frontier->names, parent, level->inode, each ? level->name : "") ||
            pk_append(&frontier->other_inodes, &level->other_inode, sizeof level->other_inode))
            return NOT_NUMBERED;
        level->number = frontier->entered++;
    }
    return walk->level[at].number;
}

void pk_forget_number(pk_walk *walk)
{
    pk_frontier *const frontier = &walk->found->frontier;
    pk_level *const level = &walk->level[walk->levels - 1];
    level->number = NOT_NUMBERED;
    frontier->parents.size -= sizeof level->number;
    frontier->inodes.size -= sizeof level->inode;
    frontier->other_inodes.size -= sizeof level->other_inode;
    if (--frontier->entered) /* the first one has no name here, and no slash */
        frontier->names.size -= strlen(level->name) + 1;
}

int pk_remain(pk_walk *walk, uint32_t at, const char *name, int letter, uint64_t inode)
{
    pk_frontier *const frontier = &walk->found->frontier;
    const uint8_t kind = (uint8_t)letter;
    const uint32_t parent = pk_number_of(walk, at);
    if (parent == NOT_NUMBERED || pk_append(&frontier->left_kinds, &kind, 1) ||
        add(&frontier->left_parents, &frontier->left_inodes, &frontier->left_names, parent, inode, name)) {
        walk->is_out_of_memory = 1;
        return -1;
    }
    frontier->left++;
    return 0;
}

/* Return true if another directory may be entered now. */
static int may_enter_another(const pk_walk *walk)
{
    const pk_frontier *const frontier = &walk->found->frontier;
    pk_work *const work = walk->batch->work;
    const size_t before = atomic_load_explicit(&work->results, memory_order_relaxed);
    return walk->levels < MOST_LEVELS && walk->failures < MOST_FAILURES && !walk->is_over &&
           before + walk->found->text.size + walk->results + frontier->left_names.size < MOST_RESULTS &&
           atomic_load_explicit(&work->moved, memory_order_relaxed) < MOST_CONTENTS &&
           !atomic_load_explicit(&work->is_cancelled, memory_order_relaxed) &&
           pk_now() < walk->batch->tree->deadline;
}

/* The walk. */

/* Find out the types that the directory does not list. Return -1 if the status of an item cannot be read, or if the name
 * is longer than those of most file systems: FUSE has names of up to 1,024 bytes. */
static int complete_types(pk_walk *walk, int directory, pk_listed *listed)
{
    static const pk_columns none;
    const char *name = listed->names;
    if (memchr(listed->all.kinds, '?', (size_t)listed->number) == NULL)
        return 0;
    for (int each = 0; each < listed->number; each++) {
        const size_t length = strlen(name);
        if (listed->all.kinds[each] == '?') {
            uint32_t mode;
            if (length > 255)
                return -1;
            doing(walk->worker, OP_STAT);
            if (pk_look_at(directory, name, AT_SYMLINK_NOFOLLOW, &none, 0, &mode))
                return -1;
            listed->all.kinds[each] = pk_letter_of(mode);
        }
        name += length + 1;
    }
    return 0;
}

int pk_list_for_walk(pk_walk *walk, int directory, char *names, pk_listed *listed)
{
    listed->names = names;
    listed->other_inodes = NULL;
    listed->excluded = 0;
    listed->number = pk_list_all(walk->worker, directory, names, LISTED_BYTES - 1, walk->batch->tree->most, &listed->all);
    if (listed->number < 0)
        return -1;
    listed->size = listed->number ? strlen(listed->names) + 1 : 0;
    char *const end = listed->names + listed->size;
    for (char *slash = listed->names; (slash = memchr(slash, '/', (size_t)(end - slash))) != NULL;)
        *slash++ = '\0';
    return complete_types(walk, directory, listed);
}

typedef struct {
    const char *name;
    uint64_t inode;
    uint8_t kind;
} listed_name;

static int by_name(const void *one, const void *other)
{
    return strcmp(((const listed_name *)one)->name, ((const listed_name *)other)->name);
}

/* Sort listed names. The memory behind LISTED_BYTES of the buffer is used. */
static void sort_names(pk_walk *walk, pk_listed *listed)
{
    listed_name all[MOST_LISTED];
    const char *name = listed->names;
    char *to = (char *)walk->worker->buffer + LISTED_BYTES;
    for (int each = 0; each < listed->number; each++, name += strlen(name) + 1)
        all[each] = (listed_name){name, listed->all.inodes[each], listed->all.kinds[each]};
    qsort(all, (size_t)listed->number, sizeof *all, by_name);
    for (int each = 0; each < listed->number; each++) {
        to = stpcpy(to, all[each].name) + 1;
        listed->all.inodes[each] = all[each].inode;
        listed->all.kinds[each] = all[each].kind;
    }
    memcpy(listed->names, walk->worker->buffer + LISTED_BYTES, listed->size);
}

/* Allocate memory for the subdirectories of a listed directory, and copy all names to it: the visitor may use the buffer in
 * which they are. Return 0, or -1 if there is no memory. */
static int copy_names(pk_level *level, const pk_listed *listed)
{
    size_t number = 0;
    for (int each = 0; each < listed->number; each++)
        number += listed->all.kinds[each] == 'd';
    if (number == 0)
        return 0;
    uint64_t *const inodes = malloc(2 * number * sizeof *inodes + listed->size);
    level->block = (char *)inodes;
    if (inodes == NULL)
        return -1;
    level->inodes = inodes;
    level->other_inodes = inodes + number;
    level->names = (char *)(inodes + 2 * number);
    memcpy(level->names, listed->names, listed->size);
    return 0;
}

/* Keep the subdirectories that are to be entered. */
static void keep_subdirectories(pk_level *level, const pk_listed *listed)
{
    uint64_t *const inodes = (uint64_t *)level->block, *const others = inodes + (level->other_inodes - level->inodes);
    char *to = level->names;
    const char *name = to;
    for (int each = 0; each < listed->number; each++) {
        const size_t size = strlen(name) + 1;
        if (listed->all.kinds[each] == 'd') {
            others[level->left] = listed->other_inodes != NULL ? listed->other_inodes[each] : 0;
            inodes[level->left++] = listed->all.inodes[each];
            memmove(to, name, size);
            to += size;
        }
        name += size;
    }
}

static int is_found(const pk_walk *walk, pk_level *level)
{
    const uint64_t device = walk->batch->tree->source_device;
    return walk->visitor->is_found != NULL
               ? walk->visitor->is_found(walk, level)
               : pk_is_directory(walk->worker, level->descriptor, level->inode, device, &level->status);
}

/* List an open directory, have the visitor process its names, and store its subdirectories. Return 0, or the letter with
 * which the directory is left to the caller. */
static int process(pk_walk *walk, pk_level *level)
{
    pk_listed listed;
    const int is_deepest = walk->levels >= walk->batch->tree->depth;
    if (!is_found(walk, level) || pk_list_for_walk(walk, level->descriptor, (char *)walk->worker->buffer, &listed))
        return 'd';
    if (walk->batch->tree->filter != NULL && !walk->visitor->applies_filters &&
        pk_leave_out_excluded(walk, level->descriptor, &listed))
        return 'd';
    if (walk->visitor->is_sorted)
        sort_names(walk, &listed);
    if (!is_deepest && copy_names(level, &listed))
        return 'd';
    const int letter = walk->visitor->names(walk, level, &listed);
    if (!letter && level->block != NULL)
        keep_subdirectories(level, &listed);
    if (!letter)
        walk->sums.excluded += listed.excluded;
    return letter;
}

/* Return the descriptor of the parent of the directory that was entered last. */
static int around_last(const pk_walk *walk)
{
    return walk->levels > 1 ? walk->level[walk->levels - 2].descriptor : walk->batch->directory;
}

/* Close those descriptors of a directory that are open. */
static void close_sides(const pk_level *level)
{
    if (level->descriptor >= 0)
        close(level->descriptor);
    if (level->other >= 0)
        close(level->other);
}

/* Enter the directory `name` of the open directory `around`: it becomes the last level. Return 0, or the letter with which
 * it is left to the caller. */
static int enter(pk_walk *walk, int around, const char *name, uint64_t inode, uint64_t other_inode, size_t path)
{
    pk_level *const entered = &walk->level[walk->levels];
    entered->descriptor = entered->other = -1;
    entered->number = NOT_NUMBERED;
    entered->left = 0;
    entered->block = NULL;
    entered->name = name;
    entered->inode = inode;
    entered->other_inode = other_inode;
    walk->path.size = path;
    if (pk_append(&walk->path, name, strlen(name)) || pk_append(&walk->path, "/", 1))
        return 'd';
    entered->path = walk->path.size;
    entered->descriptor = walk->visitor->open != NULL ? walk->visitor->open(walk, around, name, inode)
                                                      : pk_open_whole(walk->worker, around, name);
    if (entered->descriptor < 0)
        return 'd';
    if (walk->levels)
        atomic_store_explicit(&walk->worker->inside, entered->descriptor, memory_order_relaxed);
    const int letter = process(walk, entered);
    if (letter) {
        atomic_store_explicit(&walk->worker->inside, walk->levels ? around : -1, memory_order_relaxed);
        close_sides(entered);
        free(entered->block);
        return letter;
    }
    walk->levels++;
    return 0;
}

/* Leave the directory that was entered last, and close it. Return 0, or -1 if there is no memory for the frontier. */
static int close_level(pk_walk *walk)
{
    pk_level *const last = &walk->level[walk->levels - 1];
    int result = 0;
    if (walk->visitor->stay != NULL && last->number != NOT_NUMBERED)
        result = walk->visitor->stay(walk, last);
    else if (walk->visitor->leave != NULL && last->number == NOT_NUMBERED &&
        walk->visitor->leave(walk, last, around_last(walk)) &&
        pk_number_of(walk, walk->levels - 1) == NOT_NUMBERED)
        result = -1;
    walk->levels--;
    atomic_store_explicit(&walk->worker->inside, walk->levels > 1 ? walk->level[walk->levels - 1].descriptor : -1,
                          memory_order_relaxed);
    close_sides(last);
    free(last->block);
    return result;
}

/* Walk all below the directory of the row, which is open. Return 0, or -1 if there is no memory for the frontier. */
static int go_down(pk_walk *walk)
{
    int result = 0;
    while (walk->levels) {
        pk_level *const last = &walk->level[walk->levels - 1];
        if (last->left == 0 || result) {
            result |= close_level(walk);
            continue;
        }
        const char *const name = last->names;
        const uint64_t inode = *last->inodes, other_inode = *last->other_inodes;
        last->names += strlen(name) + 1;
        last->inodes++;
        last->other_inodes++;
        last->left--;
        const int is_tried = may_enter_another(walk);
        int letter = is_tried ? enter(walk, last->descriptor, name, inode, other_inode, last->path) : 'd';
        if (letter && is_tried && walk->visitor->is_sorted)
            letter = 'm';
        if (letter && !walk->is_out_of_memory) {
            walk->failures++;
            pk_remain(walk, walk->levels - 1, name, letter, inode);
        } else {
            walk->failures = 0;
        }
        result |= walk->is_out_of_memory;
    }
    return result || walk->is_out_of_memory;
}

int pk_walk_row(pk_worker *worker, pk_batch *batch, uint32_t row, const pk_visitor *visitor, const char *prefix, void *data)
{
    pk_walk walk = {.worker = worker, .batch = batch, .found = &batch->directories[row], .visitor = visitor, .data = data};
    const char *const name = batch->work->name[row];
    const uint64_t other_inode = batch->wanted.inode != NULL ? batch->wanted.inode[row] : 0;
    walk.prefix = strlen(prefix);
    const int letter = pk_append(&walk.path, prefix, strlen(prefix))
                           ? 'd'
                           : enter(&walk, batch->directory, name, batch->given.inode[row], other_inode, walk.path.size);
    const int has_failed = !letter && go_down(&walk);
    free(walk.path.at);
    free(walk.filtered.at);
    if (has_failed && visitor->is_final)
        return set_verdict(batch, row, FAILED, OP_READDIR, ENOMEM);
    if (letter || has_failed) {
        pk_release_walk(walk.found);
        return letter == 'a' ? DECIDE_AGAIN : PK_DEFERRED;
    }
    if (batch->sums != NULL)
        batch->sums[row] = walk.sums;
    atomic_fetch_add_explicit(&batch->work->results, walk.found->text.size + walk.results, memory_order_relaxed);
    return DONE;
}
