/* The digest of a file's contents, computed by a system library that is loaded when it is needed. The C backend of a
 * wheel contains XXH3 (PCOPY_XXH3), from xxHash's public header, and uses it where there is no such library.
 *
 * The digest is that of a signature, a hash tree: contents are divided into blocks. The root of one block is its hash.
 * The root of n > 1 blocks is H(1, root of the first k, root of the rest) with k the largest power of two smaller than
 * n. Roots of complete subtrees are kept, the largest first. The digest of the file is H(2, its size in 8 bytes
 * big-endian, root). pcopy/signature/tree.py does the same in Python and explains the reasons.
 */
#include "internal.h"

#include <dlfcn.h>
#ifdef PCOPY_XXH3
#define XXH_INLINE_ALL
#include "xxhash.h"
#endif

#define XXH3 1
#define BLAKE3 2
#define BLAKE3_STATE 2048 /* bytes for the state of a hash: libblake3 needs 1912, libxxhash 576 */

typedef struct { uint64_t low, high; } hash128;

static struct {
    unsigned (*version)(void);
    hash128 (*at_once)(const void *, size_t);
    int (*reset)(void *);
    int (*update)(void *, const void *, size_t);
    hash128 (*digest)(const void *);
} xxh;

static struct {
    void (*init)(void *);
    void (*update)(void *, const void *, size_t);
    void (*finalize)(const void *, uint8_t *, size_t);
    const char *(*version)(void);
} blake;

/* XXH3 has its final form from version 0.8.0 on; before, each version computed other digests. */
#define FIRST_WITH_XXH3 800

static void *symbol(void *library, const char *name, int *missing)
{
    void *found = dlsym(library, name);
    *missing |= found == NULL;
    return found;
}

static int find_xxh3_in_library(void)
{
    int missing = 0;
    void *library = dlopen("libxxhash.so.0", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return 0;
    *(void **)&xxh.version = symbol(library, "XXH_versionNumber", &missing);
    *(void **)&xxh.at_once = symbol(library, "XXH3_128bits", &missing);
    *(void **)&xxh.reset = symbol(library, "XXH3_128bits_reset", &missing);
    *(void **)&xxh.update = symbol(library, "XXH3_128bits_update", &missing);
    *(void **)&xxh.digest = symbol(library, "XXH3_128bits_digest", &missing);
    return missing || xxh.version() < FIRST_WITH_XXH3 ? 0 : XXH3;
}

#ifdef PCOPY_XXH3
static hash128 hash_of(XXH128_hash_t hash)
{
    return (hash128){hash.low64, hash.high64};
}

static hash128 at_once_inside(const void *data, size_t size)
{
    return hash_of(XXH3_128bits(data, size));
}

static int reset_inside(void *state)
{
    return (int)XXH3_128bits_reset(state);
}

static int update_inside(void *state, const void *data, size_t size)
{
    return (int)XXH3_128bits_update(state, data, size);
}

static hash128 digest_inside(const void *state)
{
    return hash_of(XXH3_128bits_digest(state));
}

static int find_xxh3_inside(void)
{
    _Static_assert(sizeof(XXH3_state_t) <= BLAKE3_STATE, "the state of XXH3 has room");
    _Static_assert(XXH_VERSION_NUMBER >= FIRST_WITH_XXH3, "XXH3 has its final form");
    xxh.at_once = at_once_inside;
    xxh.reset = reset_inside;
    xxh.update = update_inside;
    xxh.digest = digest_inside;
    return XXH3;
}
#else
static int find_xxh3_inside(void)
{
    return 0;
}
#endif

static int find_blake3(void)
{
    int missing = 0;
    void *library = dlopen("libblake3.so.0", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        library = dlopen("libblake3.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return 0;
    *(void **)&blake.init = symbol(library, "blake3_hasher_init", &missing);
    *(void **)&blake.update = symbol(library, "blake3_hasher_update", &missing);
    *(void **)&blake.finalize = symbol(library, "blake3_hasher_finalize", &missing);
    *(void **)&blake.version = symbol(library, "blake3_version", &missing);
    return missing || strncmp(blake.version(), "1.", 2) ? 0 : BLAKE3;
}

int pk_find_digest(const char *name)
{
    if (!strcmp(name, "xxh3-128"))
        return find_xxh3_in_library() ? XXH3 : find_xxh3_inside();
    return strcmp(name, "blake3") ? 0 : find_blake3();
}

static void in_order(hash128 hash, uint8_t *out)
{
    for (int byte = 0; byte < 8; byte++) {
        out[byte] = (uint8_t)(hash.high >> (56 - 8 * byte));
        out[8 + byte] = (uint8_t)(hash.low >> (56 - 8 * byte));
    }
}

static void at_once(const pk_digest *digest, const uint8_t *data, size_t size, uint8_t *out)
{
    if (digest->algorithm == XXH3) {
        in_order(xxh.at_once(data, size), out);
        return;
    }
    _Alignas(64) uint8_t state[BLAKE3_STATE];
    blake.init(state);
    blake.update(state, data, size);
    blake.finalize(state, out, 32);
}

static void add(pk_hasher *hasher, const uint8_t *root)
{
    const size_t size = (size_t)hasher->digest->size;
    uint8_t node[65], made[32];
    uint8_t level = 0;
    memcpy(made, root, size);
    while (hasher->subtrees && hasher->levels[hasher->subtrees - 1] == level) {
        node[0] = 1;
        memcpy(node + 1, hasher->roots[--hasher->subtrees], size);
        memcpy(node + 1 + size, made, size);
        at_once(hasher->digest, node, 1 + 2 * size, made);
        level++;
    }
    hasher->levels[hasher->subtrees] = level;
    memcpy(hasher->roots[hasher->subtrees++], made, size);
}

void pk_begin(pk_hasher *hasher, const pk_digest *digest)
{
    hasher->digest = digest;
    memset(hasher->state, 0, sizeof hasher->state);
    hasher->size = hasher->filled = 0;
    hasher->subtrees = 0;
}

static void begin_block(pk_hasher *hasher)
{
    if (hasher->digest->algorithm == BLAKE3)
        blake.init(hasher->state);
    else
        xxh.reset(hasher->state);
}

static void finish_block(pk_hasher *hasher, uint8_t *out)
{
    if (hasher->digest->algorithm == BLAKE3)
        blake.finalize(hasher->state, out, 32);
    else
        in_order(xxh.digest(hasher->state), out);
}

void pk_update(pk_hasher *hasher, const uint8_t *data, size_t size)
{
    uint8_t root[32];
    hasher->size += size;
    while (size) {
        size_t part = hasher->digest->block_size - hasher->filled;
        if (part > size)
            part = size;
        if (!hasher->filled)
            begin_block(hasher);
        if (hasher->digest->algorithm == BLAKE3)
            blake.update(hasher->state, data, part);
        else
            xxh.update(hasher->state, data, part);
        hasher->filled += part;
        data += part;
        size -= part;
        if (hasher->filled == hasher->digest->block_size) {
            finish_block(hasher, root);
            hasher->filled = 0;
            add(hasher, root);
        }
    }
}

static void digest_of_file(const pk_digest *digest, uint64_t size, const uint8_t *root, uint8_t *out)
{
    uint8_t node[41];
    node[0] = 2;
    for (int byte = 0; byte < 8; byte++)
        node[1 + byte] = (uint8_t)(size >> (56 - 8 * byte));
    memcpy(node + 9, root, (size_t)digest->size);
    at_once(digest, node, 9 + (size_t)digest->size, out);
}

void pk_end(pk_hasher *hasher, uint8_t *out)
{
    const size_t size = (size_t)hasher->digest->size;
    uint8_t node[65] = {0}, root[32];
    int has_root = hasher->filled || !hasher->subtrees;
    if (hasher->filled)
        finish_block(hasher, root);
    else if (has_root)
        at_once(hasher->digest, node, 0, root);
    while (hasher->subtrees) {
        const uint8_t *left = hasher->roots[--hasher->subtrees];
        if (!has_root) {
            memcpy(root, left, size);
            has_root = 1;
            continue;
        }
        node[0] = 1;
        memcpy(node + 1, left, size);
        memcpy(node + 1 + size, root, size);
        at_once(hasher->digest, node, 1 + 2 * size, root);
    }
    digest_of_file(hasher->digest, hasher->size, root, out);
}

void pk_digest_whole(const pk_digest *digest, const uint8_t *data, size_t size, uint8_t *out)
{
    if (size > digest->block_size) {
        pk_hasher hasher;
        pk_begin(&hasher, digest);
        pk_update(&hasher, data, size);
        pk_end(&hasher, out);
        return;
    }
    uint8_t root[32];
    at_once(digest, data, size, root);
    digest_of_file(digest, size, root, out);
}
