/* Filters of the user (--exclude, --include): the items of listed directories that they exclude are left out of a walk.
 *
 * A pattern was translated by Python (``pcopy.walk.patterns``) to a program, a sequence of the operations below. Two points
 * to which a comparison may return suffice: the last star, and the last operation DEEP. For each of them, the first
 * position from which the next part matches leaves the longest rest to the parts that follow.
 */
#include "walk.h"

/* END: the pattern ends. BYTE: the next byte of the program. ANY: one byte. SET: one byte of a set, for which 32 bytes of
 * bits follow. STAR: any number of bytes. SLASH: a slash. DEEP: any number of directories, each with its slash. No other
 * operation than SLASH and DEEP matches a slash. */
enum operation_of_pattern { END, BYTE, ANY, SET, STAR, SLASH, DEEP };

/* Return how many bytes of the program the operation takes that matches this byte; 0 if it does not match. */
static size_t fits(const uint8_t *operation, uint8_t byte)
{
    if (byte == '\0' || byte == '/')
        return *operation == SLASH && byte == '/';
    switch (*operation) {
    case BYTE: return operation[1] == byte ? 2 : 0;
    case ANY: return 1;
    case SET: return operation[1 + byte / 8] >> byte % 8 & 1 ? 33 : 0;
    default: return 0;
    }
}

static int matches(const uint8_t *operation, const char *text)
{
    const uint8_t *star = NULL, *deep = NULL;
    const char *star_at = NULL, *deep_at = NULL;
    for (;;) {
        if (*operation == STAR) {
            star = ++operation;
            star_at = text;
            continue;
        }
        if (*operation == DEEP) {
            deep = ++operation;
            deep_at = text;
            star = NULL;
            continue;
        }
        if (*operation == END && *text == '\0')
            return 1;
        const size_t taken = fits(operation, (uint8_t)*text);
        if (taken) {
            if (*operation == SLASH)
                star = NULL;
            operation += taken;
            text++;
        } else if (star != NULL && *star_at != '\0' && *star_at != '/') {
            operation = star;
            text = ++star_at;
        } else if (deep != NULL && (deep_at = strchr(deep_at, '/')) != NULL) {
            operation = deep;
            text = ++deep_at;
            star = NULL;
        } else {
            return 0;
        }
    }
}

/* Return true if the patterns exclude an item of this path and type. `name` is the last part of the path. */
static int is_excluded(const pk_filter *filter, const char *path, const char *name, int is_directory)
{
    for (const uint8_t *rule = filter->rules; rule < filter->rules + filter->size;) {
        uint32_t size;
        const uint8_t flags = rule[sizeof size];
        memcpy(&size, rule, sizeof size);
        if ((is_directory || !(flags & PK_DIRECTORIES_ONLY)) &&
            matches(rule + sizeof size + 1, flags & PK_WHOLE_PATH ? path : name))
            return flags & PK_EXCLUDES;
        rule += size;
    }
    return 0;
}

int pk_excludes(pk_walk *walk, int directory, const char *name, uint8_t *kind)
{
    static const pk_columns none;
    const pk_filter *const filter = walk->batch->tree->filter;
    const size_t above = strlen(filter->above), below = walk->path.size - walk->prefix, length = strlen(name);
    uint32_t mode;
    walk->filtered.size = 0;
    char *const path = pk_room_for(&walk->filtered, above + below + length + 1);
    if (path == NULL || length > 255)
        return -1;
    memcpy(path, filter->above, above);
    memcpy(path + above, walk->path.at + walk->prefix, below);
    memcpy(path + above + below, name, length + 1);
    const char *const last = path + above + below;
    const int excludes = is_excluded(filter, path, last, *kind == 'd');
    if (excludes == is_excluded(filter, path, last, *kind != 'd'))
        return excludes;
    doing(walk->worker, OP_STAT); /* the type matters, and the directory may list another one */
    if (pk_look_at(directory, name, AT_SYMLINK_NOFOLLOW, &none, 0, &mode))
        return -1;
    *kind = pk_letter_of(mode);
    return is_excluded(filter, path, last, *kind == 'd');
}

int pk_leave_out_excluded(pk_walk *walk, int directory, pk_listed *listed)
{
    const char *name = listed->names;
    char *to = listed->names;
    int kept = 0;
    for (int each = 0; each < listed->number; each++) {
        const size_t size = strlen(name) + 1;
        const int excludes = pk_excludes(walk, directory, name, &listed->all.kinds[each]);
        if (excludes < 0)
            return -1;
        if (!excludes) {
            memmove(to, name, size);
            to += size;
            listed->all.kinds[kept] = listed->all.kinds[each];
            listed->all.inodes[kept++] = listed->all.inodes[each];
        }
        name += size;
    }
    listed->excluded = (uint32_t)(listed->number - kept);
    listed->number = kept;
    listed->size = (size_t)(to - listed->names);
    return 0;
}
