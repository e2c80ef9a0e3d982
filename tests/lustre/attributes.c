/* Extended attributes: what a program sees of them, and layouts that it sets. */
#include "interposing.h"
#include <sys/xattr.h>

static bool is_hidden(const char *name)
{
    return !strncmp(name, HIDDEN, strlen(HIDDEN));
}

/* Attributes that Lustre itself sets; only root may see them. */
static bool is_internal(const char *name)
{
    static const char *const names[] = {"lov", "lma", "link", "som", "fid", "version", "hsm", "dmv", "lmv"};

    for (size_t each = 0; each < sizeof names / sizeof *names; each++)
        if (!strncmp(name, "trusted.", 8) && !strcmp(name + 8, names[each]))
            return true;
    return false;
}

static ssize_t give(const void *found, ssize_t length, void *value, size_t size)
{
    if (length < 0 || size == 0)
        return length;
    if ((size_t)length > size)
        return failing(ERANGE);
    memcpy(value, found, (size_t)length);
    return length;
}

/* The first OST is not shown, so that copies do not all begin at the same one. */
static void without_offsets(unsigned char *blob, size_t size)
{
    uint16_t entries;
    uint32_t magic, offset;

    memcpy(&magic, blob, sizeof magic);
    memcpy(&entries, blob + 14, sizeof entries);
    if (magic != MAGIC_COMPOSITE)
        memset(blob + 30, 0xff, 2);
    for (size_t each = 0; magic == MAGIC_COMPOSITE && COMPOSITE_BYTES + (each + 1) * ENTRY_BYTES <= size; each++) {
        memcpy(&offset, blob + COMPOSITE_BYTES + each * ENTRY_BYTES + 24, sizeof offset);
        if (each < entries && offset + (size_t)V1_BYTES <= size)
            memset(blob + offset + 30, 0xff, 2);
    }
}

static ssize_t get_layout(const struct item *item, void *value, size_t size, bool own)
{
    unsigned char blob[MOST_BYTES];
    ssize_t length;

    if (!is_file(item) && !S_ISDIR(item->status.st_mode))
        return failing(ENODATA);
    if (is_file(item) && standin_refuses("getxattr"))
        return failing(EIO);
    if (item->descriptor >= 0)
        length = syscall(SYS_fgetxattr, item->descriptor, LAYOUT, blob, sizeof blob);
    else
        length = syscall(item->follows ? SYS_getxattr : SYS_lgetxattr, item->path, LAYOUT, blob, sizeof blob);
    if (length < 0 && errno == ENODATA && !own && S_ISDIR(item->status.st_mode))
        length = syscall(SYS_getxattr, item->point->path, LAYOUT, blob, sizeof blob);
    if (length >= V1_BYTES && is_file(item))
        without_offsets(blob, (size_t)length);
    return give(blob, length, value, size);
}

static ssize_t get_attribute(const struct item *item, const char *name, void *value, size_t size, bool *known)
{
    *known = true;
    if (!strcmp(name, SHOWN))
        return get_layout(item, value, size, false);
    if (is_hidden(name))
        return failing(ENODATA);
    if (!is_internal(name) || geteuid() != 0) {
        *known = false;
        return 0;
    }
    if (!strcmp(name, "trusted.lov"))
        return get_layout(item, value, size, true);
    if (!strcmp(name, "trusted.lma") || !strcmp(name, "trusted.link"))
        return item->descriptor >= 0 && is_path_only(item->descriptor)
                   ? failing(EBADF)
                   : give("of the stand-in", 15, value, size);
    return failing(ENODATA);
}

static int change_layout(const struct item *item, const void *value, size_t size)
{
    int before = errno, failed = EOPNOTSUPP;

    if (item->descriptor >= 0 && is_path_only(item->descriptor))
        return failing(EBADF);
    if (standin_refuses("setxattr"))
        return failing(EPERM);
    if (is_file(item))
        failed = faccessat(AT_FDCWD, item->path, W_OK, AT_EACCESS) ? errno : standin_set_layout(item, value, size);
    else if (S_ISDIR(item->status.st_mode) && geteuid() != 0 && geteuid() != item->status.st_uid)
        failed = EACCES;
    else if (S_ISDIR(item->status.st_mode))
        failed = standin_set_default(item, value, size);
    errno = failed ? failed : before;
    return failed ? -1 : 0;
}

static int remove_layout(const struct item *item)
{
    if (is_file(item))
        return 0; /* the existing layout is kept */
    if (!S_ISDIR(item->status.st_mode))
        return failing(EOPNOTSUPP);
    if (geteuid() != 0 && geteuid() != item->status.st_uid)
        return failing(EPERM);
    standin_log("removedefault ino=%lu", inode(item));
    return (int)syscall(SYS_removexattr, item->path, LAYOUT);
}

/* Without a value the attribute is removed. */
static int change_attribute(const struct item *item, const char *name, const void *value, size_t size, bool *known)
{
    *known = true;
    if (!strcmp(name, SHOWN))
        return value != NULL ? change_layout(item, value, size) : remove_layout(item);
    if (is_hidden(name))
        return failing(value != NULL ? EPERM : ENODATA);
    if (is_internal(name)) {
        standin_log("settrusted ino=%lu %s", inode(item), name);
        return failing(EPERM);
    }
    *known = false;
    return 0;
}

/* Names without the hidden ones, and with Lustre's own. */
static ssize_t list(const struct item *item, const char *real, ssize_t length, char *names, size_t size)
{
    char all[MOST_BYTES + 256], *end = all;
    bool is_root = geteuid() == 0;
    int before = errno;

    for (const char *each = real; each < real + length; each += strlen(each) + 1)
        if (!is_hidden(each))
            end = stpcpy(end, each) + 1;
    if ((is_file(item) || S_ISDIR(item->status.st_mode)) && standin_get(item, LAYOUT, NULL, 0) >= 0) {
        end = stpcpy(end, SHOWN) + 1;
        if (is_root)
            end = stpcpy(end, "trusted.lov") + 1;
    }
    if (is_root) {
        end = stpcpy(end, "trusted.lma") + 1;
        end = stpcpy(end, "trusted.link") + 1;
    }
    errno = before;
    return give(all, end - all, names, size);
}

#define ATTRIBUTES(prefix, type, what, lookup)                                                     \
    ssize_t prefix##getxattr(type what, const char *name, void *value, size_t size)                \
    {                                                                                              \
        struct item item;                                                                          \
        bool known;                                                                                \
        if (lookup) {                                                                              \
            ssize_t result = get_attribute(&item, name, value, size, &known);                      \
            if (known)                                                                             \
                return result;                                                                     \
        }                                                                                          \
        return REAL(prefix##getxattr)(what, name, value, size);                                    \
    }                                                                                              \
    int prefix##setxattr(type what, const char *name, const void *value, size_t size, int flags)   \
    {                                                                                              \
        struct item item;                                                                          \
        bool known;                                                                                \
        if (lookup) {                                                                              \
            int result = change_attribute(&item, name, value != NULL ? value : "", size, &known);  \
            if (known)                                                                             \
                return result;                                                                     \
        }                                                                                          \
        return REAL(prefix##setxattr)(what, name, value, size, flags);                             \
    }                                                                                              \
    int prefix##removexattr(type what, const char *name)                                           \
    {                                                                                              \
        struct item item;                                                                          \
        bool known;                                                                                \
        if (lookup) {                                                                              \
            int result = change_attribute(&item, name, NULL, 0, &known);                           \
            if (known)                                                                             \
                return result;                                                                     \
        }                                                                                          \
        return REAL(prefix##removexattr)(what, name);                                              \
    }                                                                                              \
    ssize_t prefix##listxattr(type what, char *names, size_t size)                                 \
    {                                                                                              \
        struct item item;                                                                          \
        char real[MOST_BYTES];                                                                     \
        ssize_t length;                                                                            \
        if (!(lookup))                                                                             \
            return REAL(prefix##listxattr)(what, names, size);                                     \
        length = REAL(prefix##listxattr)(what, real, sizeof real);                                 \
        return length < 0 ? length : list(&item, real, length, names, size);                       \
    }
ATTRIBUTES(, const char *, path, standin_item_of_path(path, true, &item))
ATTRIBUTES(l, const char *, path, standin_item_of_path(path, false, &item))
ATTRIBUTES(f, int, descriptor, standin_item_of_descriptor(descriptor, &item))
