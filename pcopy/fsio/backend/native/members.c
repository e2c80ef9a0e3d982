/* Rows of PK_MEMBER: each row reads a small file, and writes header and contents of a tar member for it into the arena.
 * Files that this code does not handle are deferred.
 *
 * The header is the one that pcopy/archive/headers.py makes for a file that needs no pax record except a time.
 */
#include "internal.h"

#include <stdio.h>

#define BLOCK 512
#define NAME 100    /* bytes of the name field */
#define NUMBERS 148 /* bytes that precede the checksum */
#define OWNER_AT 156 /* offset of the type field, where the part in pk_owner begins */
#define SECOND 1000000000

static const pk_owner *owner_of(const pk_batch *batch, const pk_member *member)
{
    for (uint32_t each = 0; each < batch->owners_number; each++)
        if (batch->owners[each].uid == member->uid && batch->owners[each].gid == member->gid)
            return &batch->owners[each];
    return NULL;
}

/* Write a number as this many octal digits, with a zero byte after them. */
static void put_octal(uint8_t *to, int digits, uint64_t number)
{
    for (to[digits] = '\0'; digits--; number >>= 3)
        to[digits] = (uint8_t)('0' + (number & 7));
}

/* Write the header into a block of zeros. The caller makes sure that the name and all numbers fit. */
static void put_header(const pk_member *member, const pk_owner *owner, const char *prefix, size_t prefix_size,
                       const char *name, size_t size, uint8_t *to)
{
    uint32_t sum = owner->sum;
    memcpy(to, prefix, prefix_size);
    memcpy(to + prefix_size, name, size);
    put_octal(to + 100, 7, member->mode & 07777);
    put_octal(to + 108, 7, owner->uid);
    put_octal(to + 116, 7, owner->gid);
    put_octal(to + 124, 11, member->size);
    put_octal(to + 136, 11, (uint64_t)(member->mtime / SECOND));
    for (int byte = 0; byte < NUMBERS; byte++)
        sum += to[byte];
    put_octal(to + 148, 6, sum);
    to[155] = ' ';
    memcpy(to + OWNER_AT, owner->end, sizeof owner->end);
}

static int is_found(const pk_member *member, int reading)
{
    struct stat status;
    int64_t mtime, ctime;
    return !fstat(reading, &status) && S_ISREG(status.st_mode) && status.st_ino == member->inode &&
           status.st_dev == member->device && (uint64_t)status.st_size == member->size &&
           in_nanoseconds(status.st_mtim, &mtime) && in_nanoseconds(status.st_ctim, &ctime) &&
           mtime == member->mtime && ctime == member->ctime;
}

/* Read the contents of a file, and return true if they are those of the file that the scan found. If another user may
 * have replaced the file, its status is checked before reading, because reading might change another item, such as a
 * FIFO. */
static int is_read(pk_worker *worker, const pk_place *place, const char *name, const pk_member *member, uint8_t *to)
{
    doing(worker, OP_OPEN);
    int reading = pk_open_source(place->directory, name, 0, NULL);
    if (reading < 0)
        return 0;
    int is_whole = !place->others_may || GUARD(MEMBER_MAY_BE_READ, is_found(member, reading));
    doing(worker, OP_READ);
    is_whole = is_whole && read(reading, to, member->size) == (ssize_t)member->size;
    doing(worker, OP_FSTAT);
    is_whole = is_whole && GUARD(MEMBER_UNCHANGED, is_found(member, reading));
    doing(worker, OP_CLOSE);
    return !close(reading) && is_whole;
}

int pk_member_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    const pk_member *member = &batch->members[row];
    const pk_place *place = &batch->places[batch->place[row]];
    const pk_owner *owner = owner_of(batch, member);
    const char *name = batch->work->name[row];
    const size_t length = strlen(name);
    const int64_t seconds = member->mtime / SECOND, part = member->mtime % SECOND;
    const uint32_t head = part ? 3 * BLOCK : BLOCK;
    uint8_t *to = batch->arena + batch->offsets[row];
    if (owner == NULL || member->mtime < 0 || member->size > SMALL_FILE || member->whole < head + member->size ||
        place->prefix_size > NAME || place->prefix_size + length > NAME)
        return PK_DEFERRED;
    if (member->size && !is_read(worker, place, name, member, to + head))
        return PK_DEFERRED;
    if (part) {
        memcpy(to, batch->pax, BLOCK);
        snprintf((char *)to + BLOCK, BLOCK, "30 mtime=%010lld.%09lld\n", (long long)seconds, (long long)part);
        to += 2 * BLOCK;
    }
    put_header(member, owner, batch->prefixes + place->prefix_at, place->prefix_size, name, length, to);
    batch->verdicts.bytes[row] = member->size;
    atomic_fetch_add_explicit(&batch->work->moved, member->size, memory_order_relaxed);
    return DONE;
}
