/* Sums over the columns of many items (bytes, unusual items, histograms), for ``pcopy.walk.sums``. */
#include "internal.h"

#define BLOCK 512 /* bytes */

static int is_file(uint8_t kind)
{
    return kind == 'f';
}

/* Add the bytes of regular files, and the bytes allocated for all items. Return -1, with nothing added, if a sum might
 * overflow. */
static int add_sizes(pk_tally *tally, const uint8_t *kinds, uint32_t number, const uint64_t *size, const uint64_t *blocks)
{
    uint64_t bytes = 0, allocated = 0, largest = 0, each;
    for (uint32_t row = 0; row < number; row++) {
        if (__builtin_mul_overflow(blocks[row], (uint64_t)BLOCK, &each) ||
            __builtin_add_overflow(allocated, each, &allocated))
            return -1;
        each = is_file(kinds[row]) ? size[row] : 0;
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

/* Return the class of a time: the number of bounds (which ascend) that are not before it. */
static uint32_t class_of(const pk_tally *tally, int64_t moment)
{
    uint32_t class = 0;
    while (class < PK_BOUNDS && tally->bounds[PK_BOUNDS - 1 - class] >= moment)
        class++;
    return class;
}

static void add_file(pk_tally *tally, uint64_t size, uint64_t allocated, uint32_t read, uint32_t modified)
{
    const uint32_t power = size ? 64 - (uint32_t)__builtin_clzll(size) : 0;
    tally->sizes[power]++;
    tally->size_bytes[power] += size;
    tally->modified[modified]++;
    tally->modified_bytes[modified] += size;
    tally->read[read]++;
    if (allocated < size) {
        tally->sparse++;
        tally->holes += size - allocated;
    }
}

int pk_tally_add(pk_tally *tally, const uint8_t *kinds, uint32_t number, const uint32_t *mode, const uint32_t *links,
                 const uint64_t *size, const uint64_t *blocks, const int64_t *atime, const int64_t *mtime)
{
    if (add_sizes(tally, kinds, number, size, blocks))
        return -1;
    for (uint32_t row = 0; row < number; row++) {
        const uint32_t kind = mode[row] & S_IFMT;
        const int is_sticky = kind == S_IFDIR && mode[row] & S_ISVTX;
        tally->world_writable += mode[row] & S_IWOTH && kind != S_IFLNK && !is_sticky;
        tally->set_id += mode[row] & (S_ISUID | S_ISGID) && kind == S_IFREG;
        tally->future += mtime[row] > tally->bounds[PK_BOUNDS - 1];
        if (is_file(kinds[row])) {
            tally->hard_linked += links[row] > 1;
            add_file(tally, size[row], blocks[row] * BLOCK, class_of(tally, atime[row]), class_of(tally, mtime[row]));
        }
    }
    return 0;
}

static int is_larger(const pk_large *file, uint64_t size, const char *path)
{
    return file->size != size ? file->size > size : strcmp(file->path, path) < 0;
}

int pk_tally_file(pk_tally *tally, uint64_t size, const char *path)
{
    pk_large *const files = tally->files;
    uint32_t at = tally->large_files;
    if (at == PK_LARGEST && is_larger(&files[at - 1], size, path))
        return 0;
    const size_t bytes = strlen(path) + 1;
    char *const copy = malloc(bytes);
    if (copy == NULL)
        return -1;
    memcpy(copy, path, bytes);
    if (at == PK_LARGEST)
        free(files[--at].path);
    else
        tally->large_files++;
    for (; at && !is_larger(&files[at - 1], size, path); at--)
        files[at] = files[at - 1];
    files[at] = (pk_large){size, copy};
    return 0;
}

void pk_tally_release(pk_tally *tally)
{
    while (tally->large_files)
        free(tally->files[--tally->large_files].path);
}
