/* Layouts: their form as an extended attribute, and the OSTs that a file gets. */
#include "standin.h"

#define SMALLEST_STRIPE 65536u
#define USUAL_STRIPE (1u << 20)
enum { READ_ONLY = 1, WRITE_PENDING = 2, OF_MIRRORS = 3 }; /* flags of a layout */

#define NUMBER(type)                                              \
    static type get_##type(const unsigned char *from)             \
    {                                                             \
        type number;                                              \
        memcpy(&number, from, sizeof number);                     \
        return number;                                            \
    }                                                             \
    static void put_##type(unsigned char *to, uint64_t value)     \
    {                                                             \
        type number = (type)value;                                \
        memcpy(to, &number, sizeof number);                       \
    }
NUMBER(uint16_t)
NUMBER(uint32_t)
NUMBER(uint64_t)

/* Of a layout without components, or of one component. `size` may exceed its length. */
static int parse_component(const unsigned char *blob, size_t size, struct component *one)
{
    size_t header = V1_BYTES;
    uint32_t magic;

    if (size < V1_BYTES)
        return ERANGE;
    magic = get_uint32_t(blob);
    if (magic == MAGIC_V3 || magic == MAGIC_SPECIFIC)
        header = V3_BYTES;
    else if (magic != MAGIC_V1)
        return ERANGE;
    if (size < header)
        return ERANGE;
    one->pattern = get_uint32_t(blob + 4);
    one->size = get_uint32_t(blob + 24);
    one->count = get_uint16_t(blob + 28);
    one->offset = get_uint16_t(blob + 30);
    one->specific = magic == MAGIC_SPECIFIC;
    if (header == V3_BYTES)
        memcpy(one->pool, blob + 32, POOL_BYTES - 1);
    one->objects = (int)((size - header) / OBJECT_BYTES);
    if (one->objects > MOST_OSTS)
        one->objects = MOST_OSTS;
    if (one->specific && one->objects < one->count)
        return ERANGE;
    for (int each = 0; each < one->objects; each++)
        one->ost[each] = (uint16_t)get_uint32_t(blob + header + (size_t)each * OBJECT_BYTES + 20);
    return 0;
}

int standin_parse(const unsigned char *blob, size_t size, struct layout *layout)
{
    int failed = 0;

    memset(layout, 0, sizeof *layout);
    layout->components = 1;
    layout->component[0].end = END;
    if (size < V1_BYTES)
        return ERANGE;
    if (get_uint32_t(blob) != MAGIC_COMPOSITE)
        return parse_component(blob, size, &layout->component[0]);
    layout->composite = true;
    layout->generation = get_uint32_t(blob + 8);
    layout->flags = get_uint16_t(blob + 12);
    layout->components = get_uint16_t(blob + 14);
    layout->mirrors = get_uint16_t(blob + 16);
    if (layout->components == 0 || layout->components > MOST_COMPONENTS)
        return EINVAL;
    if (size < COMPOSITE_BYTES + (size_t)layout->components * ENTRY_BYTES || size < get_uint32_t(blob + 4))
        return ERANGE;
    for (int each = 0; each < layout->components && !failed; each++) {
        const unsigned char *entry = blob + COMPOSITE_BYTES + each * ENTRY_BYTES;
        struct component *one = &layout->component[each];
        size_t offset = get_uint32_t(entry + 24), length = get_uint32_t(entry + 28);
        if (offset > size || length > size - offset)
            return ERANGE;
        one->id = get_uint32_t(entry);
        one->flags = get_uint32_t(entry + 4);
        one->start = get_uint64_t(entry + 8);
        one->end = get_uint64_t(entry + 16);
        failed = parse_component(blob + offset, length, one);
    }
    return failed;
}

static size_t format_component(const struct component *one, unsigned char *blob)
{
    bool has_pool = one->pool[0] != '\0' || one->specific;
    size_t size = has_pool ? V3_BYTES : V1_BYTES;

    put_uint32_t(blob, one->specific ? MAGIC_SPECIFIC : has_pool ? MAGIC_V3 : MAGIC_V1);
    put_uint32_t(blob + 4, one->pattern);
    put_uint32_t(blob + 24, one->size);
    put_uint16_t(blob + 28, one->count);
    put_uint16_t(blob + 30, one->offset);
    if (has_pool)
        memcpy(blob + 32, one->pool, POOL_BYTES);
    for (int each = 0; each < one->objects; each++) {
        put_uint64_t(blob + size, 1u + (unsigned)each); /* a number of the object, which is not 0 */
        put_uint32_t(blob + size + 20, one->ost[each]);
        size += OBJECT_BYTES;
    }
    return size;
}

/* Writes into a buffer of MOST_BYTES; returns the length. */
size_t standin_format(const struct layout *layout, unsigned char *blob)
{
    size_t size = COMPOSITE_BYTES + (size_t)layout->components * ENTRY_BYTES;

    memset(blob, 0, MOST_BYTES);
    if (!layout->composite)
        return format_component(&layout->component[0], blob);
    for (int each = 0; each < layout->components; each++) {
        unsigned char *entry = blob + COMPOSITE_BYTES + each * ENTRY_BYTES;
        const struct component *one = &layout->component[each];
        if (size + V3_BYTES + (size_t)one->objects * OBJECT_BYTES > MOST_BYTES)
            return MOST_BYTES; /* more than a file system accepts, which then fails */
        size_t length = format_component(one, blob + size);
        put_uint32_t(entry, one->id);
        put_uint32_t(entry + 4, one->flags);
        put_uint64_t(entry + 8, one->start);
        put_uint64_t(entry + 16, one->end);
        put_uint32_t(entry + 24, size);
        put_uint32_t(entry + 28, length);
        size += length;
    }
    put_uint32_t(blob, MAGIC_COMPOSITE);
    put_uint32_t(blob + 4, size);
    put_uint32_t(blob + 8, layout->generation);
    put_uint16_t(blob + 12, layout->flags);
    put_uint16_t(blob + 14, (uint64_t)layout->components);
    put_uint16_t(blob + 16, layout->mirrors);
    return size;
}

int standin_objects(const struct layout *layout)
{
    int sum = 0;

    for (int each = 0; each < layout->components; each++)
        sum += layout->component[each].objects;
    return sum;
}

/* Uses the next OSTs in turn, or those from the requested offset on. Processes begin at different ones. */
static void choose(struct component *one)
{
    static atomic_uint turn;
    uint16_t osts[MOST_OSTS];
    int wanted = one->count, available = one->pool[0] ? standin_pool(one->pool, osts) : 0;
    unsigned begin;

    if (available == 0) { /* a missing pool is no error */
        available = standin_osts();
        for (int each = 0; each < available; each++)
            osts[each] = (uint16_t)each;
    }
    available = standin_taking(osts, available);
    if (wanted == 0)
        wanted = 1;
    if (wanted >= WIDEST)
        wanted = available * (one->pattern & OVERSTRIPING ? ANY - wanted + 1 : 1);
    if (!(one->pattern & OVERSTRIPING) && wanted > available)
        wanted = available;
    if (wanted > MOST_OSTS)
        wanted = MOST_OSTS;
    begin = (unsigned)getpid() + atomic_fetch_add(&turn, 1);
    for (int each = 0; each < available && one->offset != ANY; each++)
        if (osts[each] == one->offset)
            begin = (unsigned)each;
    for (int each = 0; each < wanted; each++)
        one->ost[each] = osts[(begin % (unsigned)available + (unsigned)each) % (unsigned)available];
    one->objects = wanted;
}

static void initialise(struct component *one, bool composite)
{
    if (one->pattern & (ON_MDT | RELEASED))
        one->objects = 0;
    else if (one->specific)
        one->objects = one->count;
    else
        choose(one);
    if (!(one->pattern & RELEASED))
        one->count = (uint16_t)one->objects;
    one->specific = false;
    one->offset = ANY; /* as Lustre shows it */
    if (composite)
        one->flags |= INITIALISED;
}

static int check(const struct layout *wanted, int number)
{
    const struct component *one = &wanted->component[number];
    uint32_t kind = one->pattern & ~(WITH_A_HOLE | RELEASED | OVERSTRIPING);

    if (kind != RAID0 && kind != ON_MDT && kind != 0)
        return EINVAL;
    if (one->size % SMALLEST_STRIPE && !(one->flags & EXTENSION))
        return EINVAL;
    if (one->objects == 0 && one->offset != ANY && one->offset >= standin_osts())
        return EINVAL;
    for (int each = 0; one->specific && each < one->count; each++)
        if (one->ost[each] >= standin_osts())
            return EINVAL;
    if (!wanted->composite)
        return 0;
    if (one->start > one->end)
        return EINVAL;
    if (one->start != 0 && (number == 0 || one->start != one[-1].end))
        return EINVAL;
    return kind == ON_MDT && (one->start != 0 || one->pool[0]) ? EINVAL : 0;
}

/* The layout of a new file. Objects of another file in the blob are ignored. */
int standin_make(const struct layout *wanted, struct layout *made)
{
    uint32_t mirror = 0;
    bool copied = false;
    int failed;

    *made = *wanted;
    for (int each = 0; each < wanted->components; each++) {
        if ((failed = check(wanted, each)) != 0)
            return failed;
        copied |= (wanted->component[each].flags & INITIALISED) != 0;
    }
    made->generation = wanted->composite;
    made->flags = made->mirrors ? READ_ONLY : 0;
    for (int each = 0; each < made->components; each++) {
        struct component *one = &made->component[each];
        if (one->pattern == 0)
            one->pattern = RAID0;
        if (one->size == 0)
            one->size = USUAL_STRIPE;
        if (copied || (one->objects && !one->specific))
            one->offset = ANY;
        if (!one->specific)
            one->objects = 0;
        mirror += made->mirrors && one->start == 0;
        one->flags &= WISHED_FLAGS;
        one->id = made->composite ? mirror << 16 | (uint32_t)(each + 1) : 0;
        if (one->start == 0 && !(one->flags & EXTENSION))
            initialise(one, made->composite);
    }
    return 0;
}

/* One mirror only is written: that of the first component that is not stale. */
bool standin_writes_to(const struct layout *layout, int component)
{
    int first = 0;

    while (layout->component[first].flags & STALE && first + 1 < layout->components)
        first++;
    return !layout->mirrors || layout->component[first].id >> 16 == layout->component[component].id >> 16;
}

/* A component that ends where another may extend it grows by steps: the other's stripe size, in units of 1 KiB. */
static bool extend(struct component *one, struct component *other, uint64_t end)
{
    uint64_t step = other->size ? (uint64_t)other->size << 10 : USUAL_STRIPE;
    uint64_t room = other->end - other->start, missing = end - one->end;

    if (end <= one->end || room == 0)
        return false;
    missing = missing > room ? room : (missing + step - 1) / step * step;
    one->end = other->start += missing > room ? room : missing;
    return true;
}

/* Changes a layout as a write from `start` to `end` does; returns true if it changed. */
bool standin_reach(struct layout *layout, uint64_t start, uint64_t end)
{
    bool changed = false;

    for (int each = 0; layout->composite && each < layout->components; each++) {
        struct component *one = &layout->component[each];
        if (layout->mirrors && !standin_writes_to(layout, each)) {
            changed |= !(one->flags & STALE);
            one->flags |= STALE;
            continue;
        }
        if (one->flags & EXTENSION)
            continue;
        if (each + 1 < layout->components && one[1].flags & EXTENSION)
            changed |= extend(one, one + 1, end);
        if (one->start < end && one->end > start && !(one->flags & INITIALISED)) {
            initialise(one, true);
            changed = true;
        }
    }
    if (changed) {
        layout->generation++;
        if (layout->mirrors)
            layout->flags = (uint16_t)((layout->flags & ~OF_MIRRORS) | WRITE_PENDING);
    }
    return changed;
}
