/* Sums over the columns of what is in one directory, for pcopy.walk.sums. */
#include "internal.h"

#define BLOCK 512 /* bytes */

static int is_file(uint8_t kind)
{
    return kind == 'f';
}

/* Bytes of the regular files, and of what is allocated for all. -1: no counter is sure to hold them. */
static int add_sizes(pk_tally *tally, const pk_columns *rows, const uint8_t *kinds, uint32_t number)
{
    uint64_t bytes = 0, allocated = 0, largest = 0, each;
    for (uint32_t row = 0; row < number; row++) {
        if (__builtin_mul_overflow(rows->blocks[row], (uint64_t)BLOCK, &each) ||
            __builtin_add_overflow(allocated, each, &allocated))
            return -1;
        each = is_file(kinds[row]) ? rows->size[row] : 0;
        if (__builtin_add_overflow(bytes, each, &bytes))
            return -1;
        largest = each > largest ? each : largest;
    }
    if (bytes > UINT64_MAX - tally->bytes || allocated > UINT64_MAX - tally->allocated)
        return -1;
    tally->bytes += tally->last_bytes = bytes;
    tally->allocated += tally->last_allocated = allocated;
    tally->last_largest = largest;
    return 0;
}

/* The class of a time: of the bounds, which ascend, so many are not before it. */
static uint32_t class_of(const pk_tally *tally, int64_t moment)
{
    uint32_t class = 0;
    while (class < PK_BOUNDS && tally->bounds[PK_BOUNDS - 1 - class] >= moment)
        class++;
    return class;
}

static void add_file(pk_tally *tally, const pk_columns *rows, uint32_t row)
{
    const uint64_t size = rows->size[row], allocated = rows->blocks[row] * BLOCK;
    const uint32_t power = size ? 64 - (uint32_t)__builtin_clzll(size) : 0;
    const uint32_t modified = class_of(tally, rows->mtime[row]);
    tally->sizes[power]++;
    tally->size_bytes[power] += size;
    tally->modified[modified]++;
    tally->modified_bytes[modified] += size;
    tally->read[class_of(tally, rows->atime[row])]++;
    tally->hard_linked += rows->links[row] > 1;
    if (allocated < size) {
        tally->sparse++;
        tally->holes += size - allocated;
    }
}

int pk_tally_add(pk_tally *tally, const pk_columns *rows, const uint8_t *kinds, uint32_t number)
{
    if (add_sizes(tally, rows, kinds, number))
        return -1;
    for (uint32_t row = 0; row < number; row++) {
        const uint32_t mode = rows->mode[row], kind = mode & S_IFMT;
        const int is_sticky = kind == S_IFDIR && mode & S_ISVTX;
        tally->world_writable += mode & S_IWOTH && kind != S_IFLNK && !is_sticky;
        tally->set_id += mode & (S_ISUID | S_ISGID) && kind == S_IFREG;
        tally->future += rows->mtime[row] > tally->bounds[PK_BOUNDS - 1];
        if (is_file(kinds[row]))
            add_file(tally, rows, row);
    }
    return 0;
}
