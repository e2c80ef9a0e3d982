/* Functions of liblustreapi for files: layouts are read and written, and group locks are taken. */
#include "llapi.h"
#include <limits.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/xattr.h>

static atomic_int level = 4;

void llapi_msg_set_level(int wanted)
{
    level = wanted;
}

static void print_error(int number, const char *format, ...)
{
    int before = errno;
    char line[PATH_MAX + 128];
    va_list more;

    va_start(more, format);
    vsnprintf(line, sizeof line, format, more);
    va_end(more);
    if (level > 0)
        dprintf(2, "error: %s: %s (%d)\n", line, strerror(number), number);
    errno = before;
}

static void take(const struct component *one, struct part *part)
{
    uint32_t kind = one->pattern;

    *part = (struct part){.start = one->start, .end = one->end, .id = one->id, .flags = one->flags};
    part->pattern = kind == RAID0 ? 0 : kind == (RAID0 | OVERSTRIPING) ? 4 : kind & ON_MDT ? 2 : kind;
    part->size = one->size ? one->size : DEFAULT;
    part->count = one->count >= WIDEST ? WIDE_MIN + (ANY - one->count) : one->count ? one->count : DEFAULT;
    part->offset = one->offset == ANY ? DEFAULT : one->offset;
    memcpy(part->pool, one->pool, POOL_BYTES);
    part->objects = (uint64_t)one->objects;
    for (int each = 0; each < one->objects; each++)
        part->ost[each] = one->ost[each];
    if (one->objects)
        part->offset = one->ost[0];
}

static layout_t *by_xattr(const void *blob, ssize_t size)
{
    struct layout found;
    layout_t *made;
    int failed = blob == NULL || size <= 0 ? EINVAL : standin_parse(blob, (size_t)size, &found);

    if (failed) {
        errno = failed;
        return NULL;
    }
    if ((made = llapi_layout_alloc()) == NULL)
        return NULL;
    made->composite = found.composite;
    made->flags = found.flags;
    made->mirrors = (uint16_t)(found.mirrors + 1);
    made->parts = found.components;
    made->current = found.components - 1;
    for (int each = 0; each < found.components; each++)
        take(&found.component[each], &made->part[each]);
    return made;
}

layout_t *llapi_layout_get_by_fd(int descriptor, int flags)
{
    unsigned char blob[MOST_BYTES];
    ssize_t size = fgetxattr(descriptor, SHOWN, blob, sizeof blob);

    (void)flags;
    if (size >= 0)
        return by_xattr(blob, size);
    if (errno == ENODATA)
        return llapi_layout_alloc();
    if (errno == EOPNOTSUPP)
        errno = ENOTTY;
    return NULL;
}

layout_t *llapi_layout_get_by_path(const char *path, int flags)
{
    int before, opened = open(path, O_RDONLY | O_NONBLOCK);
    layout_t *found;

    if (opened < 0)
        return NULL;
    found = llapi_layout_get_by_fd(opened, flags);
    before = errno;
    close(opened);
    errno = before;
    return found;
}

#ifndef OLD_LIBRARY
layout_t *llapi_layout_get_by_xattr(void *blob, ssize_t size, int flags)
{
    (void)flags;
    return by_xattr(blob, size);
}
#endif

static void put(const struct part *part, struct component *one)
{
    uint64_t pattern = part->pattern & ~SPECIFIC;

    one->start = part->start;
    one->end = part->end;
    one->id = part->id;
    one->flags = part->flags;
    one->specific = part->pattern != DEFAULT && part->pattern & SPECIFIC;
    one->pattern = part->pattern == DEFAULT || pattern == 0 ? RAID0
                   : pattern == 4                           ? RAID0 | OVERSTRIPING
                   : pattern == 2                           ? ON_MDT
                                                            : (uint32_t)pattern;
    one->size = part->size == DEFAULT ? 0 : (uint32_t)part->size;
    one->count = part->count == DEFAULT    ? 0
                 : part->count >= WIDE_MIN ? (uint16_t)(ANY - (part->count - WIDE_MIN))
                                           : (uint16_t)part->count;
    one->offset = part->offset == DEFAULT ? ANY : (uint16_t)part->offset;
    memcpy(one->pool, part->pool, POOL_BYTES);
    one->objects = one->specific ? (int)part->count : 0;
    for (int each = 0; each < one->objects; each++)
        one->ost[each] = (uint16_t)part->ost[each];
}

static int set_by_fd(int descriptor, const layout_t *layout)
{
    unsigned char blob[MOST_BYTES];
    struct layout wanted;

    memset(&wanted, 0, sizeof wanted);
    wanted.composite = layout->composite;
    wanted.mirrors = (uint16_t)(layout->mirrors - 1);
    wanted.components = layout->parts;
    for (int each = 0; each < layout->parts; each++)
        put(&layout->part[each], &wanted.component[each]);
    return fsetxattr(descriptor, SHOWN, blob, standin_format(&wanted, blob), 0);
}

static bool is_on_lustre(const char *path)
{
    char above[PATH_MAX];
    struct item item;
    char *slash;

    if (standin_item_of_path(path, true, &item))
        return true;
    snprintf(above, sizeof above, "%s", path);
    slash = strrchr(above, '/');
    if (slash == NULL)
        return standin_item_of_path(".", true, &item);
    slash[slash == above] = '\0';
    return standin_item_of_path(above, true, &item);
}

int llapi_layout_file_open(const char *path, int flags, mode_t mode, const layout_t *layout)
{
    uint16_t osts[MOST_OSTS];
    int opened, before;

    if (path == NULL)
        return failing(EINVAL);
    if (standin_refuses("llapi"))
        return failing(EDQUOT);
    for (int each = 0; layout != NULL && each < layout->parts; each++) {
        const char *pool = layout->part[each].pool;
        if (pool[0] == '\0' || !strcmp(pool, "none") || !strcmp(pool, "ignore"))
            continue;
        if (!is_on_lustre(path))
            return failing(ENOTTY);
        if (standin_pool(pool, osts) == 0) {
            print_error(0, "Invalid pool name %s", pool);
            return failing(0);
        }
    }
    if (flags & O_CREAT)
        flags |= DELAYED;
    opened = open(path, flags, mode);
    if (opened < 0 || layout == NULL || set_by_fd(opened, layout) == 0)
        return opened;
    before = errno == EOPNOTSUPP ? ENOTTY : errno;
    close(opened);
    return failing(before);
}

int llapi_layout_file_create(const char *path, int flags, int mode, const layout_t *layout)
{
    return llapi_layout_file_open(path, flags | O_CREAT | O_EXCL, (mode_t)mode, layout);
}

/* Writes into a buffer of 64 KiB. */
int llapi_file_get_stripe(const char *path, void *blob)
{
    int failed = getxattr(path, SHOWN, blob, MOST_BYTES) < 0 ? errno : 0;

    failed = failed == EOPNOTSUPP ? ENOTTY : failed;
    if (failed && failed != ENODATA)
        print_error(failed, "can't get the stripes of %s", path);
    return -failed;
}

static int group(int descriptor, unsigned long request, int number)
{
    int failed = ioctl(descriptor, request, (unsigned long)number) ? errno : 0;

    if (failed)
        print_error(failed, "cannot change group lock");
    return -failed;
}

int llapi_group_lock(int descriptor, int number)
{
    return group(descriptor, GROUP_LOCK, number);
}

int llapi_group_unlock(int descriptor, int number)
{
    return group(descriptor, GROUP_UNLOCK, number);
}
