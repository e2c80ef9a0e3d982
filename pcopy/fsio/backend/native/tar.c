/* Parser for the headers in a part of a tar archive that is in memory. pk_tar_members handles only simple members:
 * regular files and directories whose headers have only name, owner, mode, size and times. ``pcopy.archive.reader`` and
 * ``pcopy.archive.member_search`` handle all members, and return the same for simple ones. */
#include "internal.h"

#define BLOCK 512u
#define LAST_SECOND ((uint64_t)1 << 33) /* seconds since 1970; members with later times are not simple */
#define MOST_HEADERS (1u << 20) /* most bytes of extended headers before a member, as in ``pcopy.archive.reader`` */

/* The fields of a pax or GNU header that precedes the header of a member. */
typedef struct {
    const char *name;
    size_t length;
    int has_mtime;
    int64_t mtime;
} extended_header;

/* Parse a number in octal digits. Return -1 if the field has another format. */
static int number(const uint8_t *field, size_t size, uint64_t *out)
{
    size_t at = 0;
    *out = 0;
    while (at < size && (field[at] == ' ' || field[at] == '\0'))
        at++;
    for (; at < size && field[at] >= '0' && field[at] <= '7'; at++)
        *out = *out << 3 | (uint64_t)(field[at] - '0');
    for (; at < size; at++)
        if (field[at] != ' ' && field[at] != '\0')
            return -1;
    return 0;
}

static int is_header(const uint8_t *block)
{
    uint64_t wanted;
    uint32_t sum = 8 * ' ';
    for (int each = 0; each < 148; each++)
        sum += block[each];
    for (int each = 156; each < (int)BLOCK; each++)
        sum += block[each];
    return !number(block + 148, 8, &wanted) && wanted == sum;
}

static uint64_t filled_up(uint64_t size)
{
    return (size + BLOCK - 1) / BLOCK * BLOCK;
}

/* Return the header block at an offset, or NULL if it was not read completely. */
static const uint8_t *block_at(const pk_tar *tar, uint64_t at)
{
    return at >= tar->start && tar->size >= BLOCK && at - tar->start <= tar->size - BLOCK ? tar->data + (at - tar->start)
                                                                                          : NULL;
}

/* Return the data that follow a header, or NULL if they were not read completely. */
static const char *body_at(const pk_tar *tar, uint64_t at, uint64_t size)
{
    const uint64_t offset = at - tar->start;
    return offset <= tar->size && size <= tar->size - offset ? (const char *)tar->data + offset : NULL;
}

/* Parse a time such as "1234567890.123456789". Return -1 if it has another format. */
static int moment(const char *at, const char *end, int64_t *out)
{
    uint64_t seconds = 0, part = 0;
    int digits = 0;
    for (; at < end && *at >= '0' && *at <= '9' && digits < 11; at++, digits++)
        seconds = seconds * 10 + (uint64_t)(*at - '0');
    if (!digits || seconds >= LAST_SECOND)
        return -1;
    if (at < end && *at == '.') {
        digits = 0;
        for (at++; at < end && *at >= '0' && *at <= '9'; at++)
            if (digits++ < 9)
                part = part * 10 + (uint64_t)(*at - '0');
        for (; digits < 9; digits++)
            part *= 10;
    }
    *out = (int64_t)(seconds * 1000000000u + part);
    return at == end ? 0 : -1;
}

static int is_key(const char *key, const char *end, const char *name)
{
    return (size_t)(end - key) == strlen(name) && !memcmp(key, name, (size_t)(end - key));
}

/* Parse the records of a pax header. Return 0, or -1 if it is damaged, or has records other than path, mtime, atime
 * and ctime. */
static int take_records(const char *at, size_t size, extended_header *extended)
{
    const char *const past = at + size;
    while (at < past) {
        size_t length = 0;
        const char *key = at;
        for (; key < past && *key >= '0' && *key <= '9' && length <= size; key++)
            length = length * 10 + (size_t)(*key - '0');
        if (key == at || key == past || *key++ != ' ' || length > (size_t)(past - at) || at + length <= key + 1 ||
            at[length - 1] != '\n')
            return -1;
        const char *const end = at + length - 1, *equals = memchr(key, '=', (size_t)(end - key));
        if (equals == NULL)
            return -1;
        const char *const value = equals + 1;
        if (is_key(key, equals, "path")) {
            extended->name = value;
            extended->length = (size_t)(end - value);
            if (!extended->length || memchr(value, '\0', extended->length))
                return -1;
        } else if (is_key(key, equals, "mtime")) {
            extended->has_mtime = 1;
            if (moment(value, end, &extended->mtime))
                return -1;
        } else if (!is_key(key, equals, "atime") && !is_key(key, equals, "ctime")) {
            return -1;
        }
        at += length;
    }
    return 0;
}

/* Store the uid or gid of a member in *out: of the name in `field` if this host knows it, else `id`, the number in
 * the header. Return 0, or -1 if Python has to look up the name first. */
static int owner_of(const pk_tar *tar, const pk_owners *known, const uint8_t *field, uint64_t id, uint32_t *out)
{
    *out = (uint32_t)id;
    if (tar->is_numeric || !field[0])
        return 0;
    for (int each = 0; each < known->number; each++)
        if (!strncmp(known->names[each], (const char *)field, 32)) {
            if (known->numbers[each] >= 0)
                *out = (uint32_t)known->numbers[each];
            return 0;
        }
    return -1;
}

static int is_simple_name(const char *name, size_t length)
{
    if (!length || name[0] == '/' || name[length - 1] == '/' || name[length - 1] == '.')
        return 0;
    const char *begin = name;
    for (const char *at = name; (at = memchr(at, '/', length - (size_t)(at - name))) != NULL; at++) {
        if (at[1] == '/' || at[-1] == '.' || at - begin > NAME_MAX)
            return 0;
        begin = at + 1;
    }
    return name + length - begin <= NAME_MAX;
}

/* Copy the name that a header block contains. Return its length, or 0 if the format of the block is unusual. */
static size_t name_in(const uint8_t *block, char *to)
{
    size_t length = 0;
    if (!memcmp(block + 257, "ustar", 6) && block[345]) {
        if (!memcmp(block + 508, "tar", 4))
            return 0;
        length = strnlen((const char *)block + 345, 155);
        memcpy(to, block + 345, length);
        to[length++] = '/';
    }
    const size_t last = strnlen((const char *)block, 100);
    memcpy(to + length, block, last);
    return length + last;
}

/* Append the key by which members are sorted, as ``member_sort_key`` in ``pcopy.tasks.archive.members_to_extract`` makes
 * it: directory (the first `before` bytes of the name), rest of the name, offset of the data. Return its length, or 0 if
 * it does not fit. */
static size_t put_key(pk_tar *tar, size_t used, const char *name, size_t length, size_t before, uint64_t data)
{
    const size_t last = before && before < length ? before + 1 : before;
    char *to = tar->keys + used;
    if (tar->keys_size - used < length + 20)
        return 0;
    for (size_t each = 0; each < before; each++)
        *to++ = name[each] == '/' ? '\0' : name[each];
    *to++ = '\0';
    *to++ = '\0';
    memcpy(to, name + last, length - last);
    to += length - last;
    *to++ = '\0';
    for (int shift = 60; shift >= 0; shift -= 4)
        *to++ = "0123456789abcdef"[data >> shift & 15];
    return (size_t)(to - tar->keys) - used;
}

/* Find the header of the member that begins at *at, and parse the extended headers before it. Set *header and
 * advance *at to it if it was found and is that of a regular file or a directory. Otherwise *header is NULL. Return PK_TAR_OTHER if
 * the member is not simple, else PK_TAR_MORE. */
static int find_header(const pk_tar *tar, uint64_t *at, extended_header *extended, const uint8_t **header)
{
    uint64_t size;
    const uint8_t *block = block_at(tar, *at);
    *header = NULL;
    if (block == NULL)
        return PK_TAR_MORE;
    if (!is_header(block))
        return PK_TAR_OTHER;
    if (block[156] == 'x' || block[156] == 'L') {
        if (number(block + 124, 12, &size))
            return PK_TAR_OTHER;
        const char *body = body_at(tar, *at + BLOCK, size);
        if (body == NULL)
            return PK_TAR_MORE;
        if (block[156] == 'L') {
            extended->name = body;
            extended->length = strnlen(body, size);
        } else if (take_records(body, size, extended)) {
            return PK_TAR_OTHER;
        }
        *at += BLOCK + filled_up(size);
        block = block_at(tar, *at);
        if (block == NULL)
            return PK_TAR_MORE;
        if (!is_header(block))
            return PK_TAR_OTHER;
    }
    if (block[156] != '0' && block[156] != '\0' && block[156] != '5')
        return PK_TAR_OTHER;
    *header = block;
    return PK_TAR_MORE;
}

static int same_directory(const char *name, size_t before, const char *last, size_t last_before)
{
    return before == last_before && !memcmp(name, last, before);
}

void pk_tar_members(pk_tar *tar)
{
    size_t used = 0, last_length = 0;
    const char *last = NULL; /* the directory of the previous member, as a part of its key */
    tar->members = tar->directories = 0;
    tar->bytes = 0;
    tar->why = PK_TAR_MORE;
    while (tar->at < tar->end) {
        char room[300];
        extended_header extended = {NULL, 0, 0, 0};
        const uint8_t *block;
        uint64_t at = tar->at, mode, uid, gid, size, seconds;
        tar->why = find_header(tar, &at, &extended, &block);
        if (block == NULL)
            return;
        tar->why = PK_TAR_OTHER;
        if (extended.name == NULL) {
            extended.length = name_in(block, room);
            extended.name = room;
        }
        if (extended.length > 1 && extended.name[0] == '.' && extended.name[1] == '/') {
            extended.name += 2;
            extended.length -= 2;
        }
        const int is_directory = block[156] == '5';
        if (is_directory && extended.length && extended.name[extended.length - 1] == '/')
            extended.length--;
        if (!GUARD(MEMBER_NAME, is_simple_name(extended.name, extended.length)) ||
            number(block + 100, 8, &mode) || number(block + 108, 8, &uid) || number(block + 116, 8, &gid) ||
            number(block + 124, 12, &size) || number(block + 136, 12, &seconds) || seconds >= LAST_SECOND || (is_directory && size))
            return;
        const uint64_t data = at + BLOCK;
        uint32_t owner, group;
        if (owner_of(tar, &tar->users, block + 265, uid, &owner)) {
            tar->why = PK_TAR_USER;
            memcpy(tar->unknown, block + 265, 32);
            return;
        }
        if (owner_of(tar, &tar->groups, block + 297, gid, &group)) {
            tar->why = PK_TAR_GROUP;
            memcpy(tar->unknown, block + 297, 32);
            return;
        }
        tar->why = PK_TAR_ROOM;
        if (tar->members == tar->most)
            return;
        const char *const slash = memrchr(extended.name, '/', extended.length);
        const size_t before = is_directory ? extended.length : slash != NULL ? (size_t)(slash - extended.name) : 0;
        const size_t length = put_key(tar, used, extended.name, extended.length, before, data);
        if (!length)
            return;
        if (last == NULL || is_directory || !same_directory(tar->keys + used, before, last, last_length))
            tar->begins[tar->directories++] = tar->members;
        last = tar->keys + used;
        last_length = before;
        used += length;
        uint64_t *value = tar->values + (size_t)tar->members * PK_TAR_WORDS;
        uint32_t *halves = (uint32_t *)value;
        halves[0] = (uint32_t)is_directory;
        halves[1] = (uint32_t)mode & 07777;
        halves[2] = owner;
        halves[3] = group;
        value[2] = data;
        value[3] = size;
        value[4] = (uint64_t)(extended.has_mtime ? extended.mtime : (int64_t)(seconds * 1000000000u));
        tar->key_ends[tar->members++] = (uint32_t)used;
        tar->bytes += size;
        tar->at = data + filled_up(size);
        tar->why = PK_TAR_MORE;
    }
}

/* Return 1 if a pax header may contain a record with the size of the contents. */
static int has_size_record(const char *body, size_t size)
{
    return memmem(body, size, "size=", 5) != NULL;
}

/* Return 1 if a pax header or a long name may name a member with a slash at the end. Such a member is a directory even
 * if its type is that of a file, and no data follow it. */
static int may_end_with_slash(const char *body, size_t size, uint8_t kind)
{
    const size_t length = strnlen(body, size);
    return kind == 'x' ? memmem(body, size, "/\n", 2) != NULL : kind == 'L' && length && body[length - 1] == '/';
}

/* Return 1 if the name in a header block ends with a slash, or is empty, so that the prefix field may end with one:
 * the member may be a directory. */
static int may_name_directory(const uint8_t *block)
{
    const size_t length = strnlen((const char *)block, 100);
    return !length || block[length - 1] == '/';
}

/* Return the bytes of data, with padding to whole blocks, that follow the header of a member of a type that
 * pk_tar_skim handles; -1 if ``pcopy.archive.member_search`` has to find that out. */
static int64_t data_after(const uint8_t *block, uint64_t size, int has_slash)
{
    const uint8_t kind = block[156];
    if (!size || (kind >= '2' && kind <= '6'))
        return 0;
    if (kind == '1' || (kind != 'D' && (has_slash || may_name_directory(block))))
        return -1;
    return (int64_t)filled_up(size);
}

uint32_t pk_tar_skim(pk_tar *tar, uint64_t *begins_at)
{
    uint32_t found = 0;
    tar->why = PK_TAR_MORE;
    while (found < tar->most) {
        uint64_t at = tar->at, size, before = 0;
        const uint8_t *block;
        int has_slash = 0;
        for (;;) {
            block = block_at(tar, at);
            if (block == NULL)
                return found;
            tar->why = PK_TAR_OTHER;
            if (!is_header(block) || !memchr("0123456xLK7D", block[156], 13) || number(block + 124, 12, &size))
                return found;
            tar->why = PK_TAR_MORE;
            if (!memchr("xLK", block[156], 3))
                break;
            const char *body = body_at(tar, at + BLOCK, size);
            if (body == NULL)
                return found;
            before += size;
            if (before > MOST_HEADERS || (block[156] == 'x' && has_size_record(body, size))) {
                tar->why = PK_TAR_OTHER;
                return found;
            }
            has_slash |= may_end_with_slash(body, size, block[156]);
            at += BLOCK + filled_up(size);
        }
        const int64_t data = data_after(block, size, has_slash);
        if (data < 0) {
            tar->why = PK_TAR_OTHER;
            return found;
        }
        begins_at[found++] = tar->at;
        tar->at = at + BLOCK + (uint64_t)data;
    }
    return found;
}
