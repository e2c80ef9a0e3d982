/* Small files as members of an archive: header and contents, in one buffer. What is no plain case is deferred.
 *
 * The header is the one that pcopy/archive/headers.py makes, where there is no more to tell than a time.
 */
#include "internal.h"

#include <stdio.h>

#define BLOCK 512
#define NAME 100    /* bytes of a name */
#define NUMBERS 148 /* what stands before the sum */
#define OWNER_AT 156

static const pk_owner *owner_of(const pk_batch *batch, uint32_t row)
{
    for (uint32_t each = 0; each < batch->owners_number; each++)
        if (batch->owners[each].uid == batch->given.uid[row] && batch->owners[each].gid == batch->given.gid[row])
            return &batch->owners[each];
    return NULL;
}

/* With a zero at its end. */
static void put_octal(uint8_t *to, int digits, uint64_t number)
{
    for (to[digits] = '\0'; digits--; number >>= 3)
        to[digits] = (uint8_t)('0' + (number & 7));
}

/* Into a block of zeros; the name is short, and all numbers have room. */
static void put_header(const pk_batch *batch, uint32_t row, const pk_owner *owner, size_t length, uint8_t *to)
{
    uint32_t sum = owner->sum;
    memcpy(to, batch->prefix, batch->prefix_size);
    memcpy(to + batch->prefix_size, batch->work->name[row], length);
    put_octal(to + 100, 7, batch->given.mode[row] & 07777);
    put_octal(to + 108, 7, owner->uid);
    put_octal(to + 116, 7, owner->gid);
    put_octal(to + 124, 11, batch->given.size[row]);
    put_octal(to + 136, 11, (uint64_t)(batch->given.mtime[row] / 1000000000));
    for (int byte = 0; byte < NUMBERS; byte++)
        sum += to[byte];
    put_octal(to + 148, 6, sum);
    to[155] = ' ';
    memcpy(to + OWNER_AT, owner->end, sizeof owner->end);
}

/* All of the contents, if they are those of what was found. */
static int is_read(pk_worker *worker, pk_batch *batch, uint32_t row, size_t size, uint8_t *to)
{
    doing(worker, OP_OPEN);
    int reading = pk_open_source(batch->directory, batch->work->name[row], 0, NULL);
    if (reading < 0)
        return 0;
    int is_whole = !pk_others_may_exchange(batch) || pk_is_still_found(batch, row, reading);
    doing(worker, OP_READ);
    is_whole = is_whole && read(reading, to, size) == (ssize_t)size;
    doing(worker, OP_FSTAT);
    is_whole = is_whole && pk_is_still_found(batch, row, reading);
    doing(worker, OP_CLOSE);
    return !close(reading) && is_whole;
}

int pk_member_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    const uint64_t size = batch->given.size[row], start = batch->offsets[row], end = batch->offsets[row + 1];
    const int64_t time = batch->given.mtime[row];
    const uint64_t head = time % 1000000000 ? 3 * BLOCK : BLOCK;
    const size_t length = strlen(batch->work->name[row]);
    const pk_owner *owner = owner_of(batch, row);
    uint8_t *to = batch->arena + start;
    if (owner == NULL || time < 0 || size > SMALL_FILE || end < start || end - start < head + size ||
        batch->prefix_size > NAME || batch->prefix_size + length > NAME)
        return PK_DEFERRED;
    if (size && !is_read(worker, batch, row, size, to + head))
        return PK_DEFERRED;
    if (head > BLOCK) {
        memcpy(to, batch->pax, BLOCK);
        snprintf((char *)to + BLOCK, BLOCK, "30 mtime=%010lld.%09lld\n", (long long)(time / 1000000000),
                 (long long)(time % 1000000000));
        to += 2 * BLOCK;
    }
    put_header(batch, row, owner, length, to);
    batch->verdicts.bytes[row] = size;
    atomic_fetch_add_explicit(&batch->work->moved, size, memory_order_relaxed);
    return DONE;
}
