/* Layouts as liblustreapi represents them in memory: creation, queries, and settings for a file. */
#include "llapi.h"

layout_t *llapi_layout_alloc(void)
{
    layout_t *made = calloc(1, sizeof *made);

    if (made == NULL)
        return NULL;
    made->mirrors = 1;
    made->parts = 1;
    made->part[0] = (struct part){.pattern = DEFAULT, .size = DEFAULT, .count = DEFAULT, .offset = DEFAULT, .end = END};
    return made;
}

void llapi_layout_free(layout_t *layout)
{
    free(layout);
}

static bool is_alignable(uint64_t size)
{
    return size == DEFAULT || (size != 0 && size % 65536 == 0 && size >> 32 == 0);
}

static bool is_count(uint64_t count)
{
    return count == DEFAULT || (count >= WIDE_MIN && count <= WIDE_MAX) || (count > 0 && count <= 2000);
}

static bool is_pattern(uint64_t pattern)
{
    return pattern == DEFAULT || pattern == 0 || pattern == 2 || pattern == 4;
}

#define FIELD(getter, setter, field, valid, otherwise)                  \
    int getter(const layout_t *layout, uint64_t *value)                 \
    {                                                                   \
        if (layout == NULL || value == NULL)                            \
            return failing(EINVAL);                                     \
        *value = layout->part[layout->current].field;                   \
        return 0;                                                       \
    }                                                                   \
    int setter(layout_t *layout, uint64_t value)                        \
    {                                                                   \
        if (layout == NULL || !valid(value))                            \
            return failing(layout == NULL ? EINVAL : otherwise);        \
        layout->part[layout->current].field = value;                    \
        return 0;                                                       \
    }
FIELD(llapi_layout_stripe_count_get, llapi_layout_stripe_count_set, count, is_count, EINVAL)
FIELD(llapi_layout_stripe_size_get, llapi_layout_stripe_size_set, size, is_alignable, EINVAL)
FIELD(llapi_layout_pattern_get, llapi_layout_pattern_set, pattern, is_pattern, EOPNOTSUPP)

int llapi_layout_ost_index_get(const layout_t *layout, uint64_t stripe, uint64_t *index)
{
    const struct part *part;

    if (layout == NULL || index == NULL)
        return failing(EINVAL);
    part = &layout->part[layout->current];
    if (stripe >= part->count || stripe >= part->objects)
        return failing(EINVAL);
    *index = part->offset == DEFAULT ? DEFAULT : part->ost[stripe];
    return 0;
}

int llapi_layout_ost_index_set(layout_t *layout, int stripe, uint64_t index)
{
    struct part *part;

    if (layout == NULL || stripe < 0 || stripe >= MOST_OSTS || (index != DEFAULT && index > 0xfffe))
        return failing(EINVAL);
    part = &layout->part[layout->current];
    if (index == DEFAULT && stripe != 0)
        return failing(EINVAL);
    if (index == DEFAULT) {
        part->offset = DEFAULT;
        part->pattern &= ~SPECIFIC;
        part->objects = 0;
        return 0;
    }
    part->ost[stripe] = index;
    if (part->objects <= (uint64_t)stripe)
        part->objects = (uint64_t)stripe + 1;
    if (stripe == 0)
        part->offset = index;
    else
        part->pattern = SPECIFIC | (part->pattern == DEFAULT ? 0 : part->pattern);
    if (part->count == DEFAULT || part->count <= (uint64_t)stripe)
        part->count = (uint64_t)stripe + 1;
    return 0;
}

int llapi_layout_pool_name_get(const layout_t *layout, char *name, size_t size)
{
    if (layout == NULL || name == NULL)
        return failing(EINVAL);
    snprintf(name, size, "%s", layout->part[layout->current].pool);
    return 0;
}

/* A name may be given as FILE_SYSTEM.POOL */
int llapi_layout_pool_name_set(layout_t *layout, const char *name)
{
    const char *dot = name != NULL ? strchr(name, '.') : NULL;

    name = dot != NULL ? dot + 1 : name;
    if (layout == NULL || name == NULL || strlen(name) >= POOL_BYTES)
        return failing(EINVAL);
    snprintf(layout->part[layout->current].pool, POOL_BYTES, "%s", name);
    return 0;
}

int llapi_layout_comp_extent_get(const layout_t *layout, uint64_t *start, uint64_t *end)
{
    if (layout == NULL || start == NULL || end == NULL)
        return failing(EINVAL);
    *start = layout->part[layout->current].start;
    *end = layout->part[layout->current].end;
    return 0;
}

int llapi_layout_comp_flags_get(const layout_t *layout, uint32_t *flags)
{
    if (layout == NULL || flags == NULL)
        return failing(EINVAL);
    *flags = layout->part[layout->current].flags;
    return 0;
}

bool llapi_layout_is_composite(layout_t *layout)
{
    return layout->composite;
}

int llapi_layout_mirror_count_get(layout_t *layout, uint16_t *count)
{
    *count = layout->mirrors;
    return 0;
}

int llapi_layout_comp_use(layout_t *layout, int which)
{
    int wanted;

    if (layout == NULL || which < FIRST || which > PREVIOUS)
        return failing(EINVAL);
    wanted = which == FIRST ? 0 : which == LAST ? layout->parts - 1 : layout->current + (which == NEXT ? 1 : -1);
    if (wanted < 0 || wanted >= layout->parts) {
        errno = ENOENT;
        return 1;
    }
    layout->current = wanted;
    return 0;
}

int llapi_layout_comp_iterate(layout_t *layout, int (*called)(layout_t *, void *), void *more)
{
    int result = llapi_layout_comp_use(layout, FIRST);

    while (result == 0) {
        if ((result = called(layout, more)) != 0)
            return result;
        result = llapi_layout_comp_use(layout, NEXT);
    }
    return result < 0 ? result : 0;
}

#ifndef OLD_LIBRARY
static int reset(layout_t *layout, void *more)
{
    (void)more;
    llapi_layout_ost_index_set(layout, 0, DEFAULT);
    return 0;
}

int llapi_layout_ost_index_reset(layout_t *layout)
{
    return llapi_layout_comp_iterate(layout, reset, NULL);
}
#endif
