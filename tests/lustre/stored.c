/* The layouts of items: kept in an extended attribute that the program does not see. */
#include "standin.h"
#include <dlfcn.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/xattr.h>

/* Lustre knows the layout of a file that its owner may not read. Here its mode is changed for that moment. */
static bool unlock_mode(const struct item *item, mode_t *before)
{
    struct stat status;

    if (errno != EACCES || fstatat(AT_FDCWD, item->path, &status, item->follows ? 0 : AT_SYMLINK_NOFOLLOW))
        return false;
    *before = status.st_mode & 07777;
    return status.st_uid == geteuid() && !S_ISLNK(status.st_mode) && chmod(item->path, *before | 0600) == 0;
}

ssize_t standin_get(const struct item *item, const char *name, void *value, size_t size)
{
    long call = item->follows ? SYS_getxattr : SYS_lgetxattr;
    ssize_t result = syscall(call, item->path, name, value, size);
    mode_t before;

    if (result < 0 && unlock_mode(item, &before)) {
        result = syscall(call, item->path, name, value, size);
        chmod(item->path, before);
    }
    return result;
}

int standin_set(const struct item *item, const char *name, const void *value, size_t size, int flags)
{
    long call = item->follows ? SYS_setxattr : SYS_lsetxattr;
    long result = syscall(call, item->path, name, value, size, flags);
    mode_t before;

    if (result && unlock_mode(item, &before)) {
        result = syscall(call, item->path, name, value, size, flags);
        chmod(item->path, before);
    }
    return result ? errno : 0;
}

static int store(const struct item *item, const struct layout *layout, int flags)
{
    unsigned char blob[MOST_BYTES];
    int failed = standin_set(item, LAYOUT, blob, standin_format(layout, blob), flags);

    if (failed && failed != EEXIST)
        standin_log("broken ino=%lu errno=%d", (unsigned long)item->status.st_ino, failed);
    return failed;
}

static bool load(const struct item *item, struct layout *layout)
{
    unsigned char blob[MOST_BYTES];
    ssize_t size = standin_get(item, LAYOUT, blob, sizeof blob);

    return size >= 0 && standin_parse(blob, (size_t)size, layout) == 0;
}

static void root_of(const struct item *item, struct item *root)
{
    *root = (struct item){.point = item->point, .descriptor = -1, .path = item->point->path, .follows = true};
}

/* Stores the default layout of the parent directory in `wanted`; false if it has none. */
static bool default_above(const struct item *item, int directory, const char *path, struct layout *wanted,
                          bool *is_root)
{
    int opened = standin_open_above(item, directory, path);
    char server[16];
    struct item above;
    bool found;

    if (opened < 0 || !standin_item_of_descriptor(opened, &above)) {
        if (opened >= 0)
            syscall(SYS_close, opened);
        return false;
    }
    if (standin_mdts() > 1) { /* a new item lies on the MDT of its directory */
        ssize_t length = standin_get(&above, SERVER, server, sizeof server);
        if (length > 0)
            standin_set(item, SERVER, server, (size_t)length, XATTR_CREATE);
    }
    *is_root = above.status.st_ino == item->point->root;
    found = load(&above, wanted);
    syscall(SYS_close, opened);
    return found;
}

/* A file that has a layout keeps it. */
int standin_give_default(const struct item *item, int directory, const char *path)
{
    struct layout wanted, made;
    struct item root;
    bool is_root;

    if (standin_get(item, LAYOUT, NULL, 0) >= 0)
        return 0;
    root_of(item, &root);
    if (!default_above(item, directory, path, &wanted, &is_root) && !load(&root, &wanted)) {
        memset(&wanted, 0, sizeof wanted);
        wanted.components = 1;
        wanted.component[0].offset = ANY;
        wanted.component[0].end = END;
    }
    if (standin_make(&wanted, &made))
        return EINVAL;
    return store(item, &made, XATTR_CREATE);
}

/* The default of the root applies everywhere anyway. */
int standin_inherit_default(const struct item *item, int directory, const char *path)
{
    struct layout wanted;
    bool is_root;

    if (!default_above(item, directory, path, &wanted, &is_root) || is_root)
        return 0;
    return store(item, &wanted, 0);
}

/* A file that has a layout keeps it, and this succeeds all the same. */
/* Components without a pool get that of the directory's default, but for those that name "ignore". */
static void take_pool(const struct item *item, struct layout *wanted)
{
    char link[40], path[PATH_MAX] = "";
    struct layout above;
    struct item directory;
    const char *pool = "";
    int opened = -1;

    snprintf(link, sizeof link, "/proc/self/fd/%d", item->descriptor);
    if (item->descriptor >= 0 && readlink(link, path, sizeof path - 1) > 0 && strrchr(path, '/') != NULL) {
        *strrchr(path, '/') = '\0';
        opened = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_DIRECTORY);
    }
    if (opened >= 0 && standin_item_of_descriptor(opened, &directory) && load(&directory, &above))
        pool = above.component[0].pool;
    for (int each = 0; each < wanted->components; each++) {
        struct component *one = &wanted->component[each];
        if (!strcmp(one->pool, "ignore"))
            memset(one->pool, 0, sizeof one->pool);
        else if (!one->pool[0] && !(one->pattern & ON_MDT))
            memcpy(one->pool, pool, strlen(pool));
    }
    if (opened >= 0)
        syscall(SYS_close, opened);
}

int standin_set_layout(const struct item *item, const unsigned char *blob, size_t size)
{
    struct layout wanted, made;
    unsigned long inode = item->status.st_ino;
    int failed;

    if (size == 0)
        return 0;
    if ((failed = standin_parse(blob, size, &wanted)) != 0)
        return failed;
    take_pool(item, &wanted);
    if ((failed = standin_make(&wanted, &made)) != 0)
        return failed;
    failed = store(item, &made, XATTR_CREATE);
    if (failed == EEXIST) {
        standin_log("keptlayout ino=%lu", inode);
        return 0;
    }
    if (!failed)
        standin_log("setlayout ino=%lu count=%d components=%d", inode, standin_objects(&made), made.components);
    return failed;
}

int standin_set_default(const struct item *item, const unsigned char *blob, size_t size)
{
    struct layout wanted, made;
    const struct component *first = &wanted.component[0];
    int failed;

    if (standin_parse(blob, size, &wanted) || standin_make(&wanted, &made))
        return EINVAL;
    for (int each = 0; each < wanted.components; each++) {
        if (!wanted.component[each].specific)
            wanted.component[each].objects = 0;
        wanted.component[each].flags &= WISHED_FLAGS;
    }
    standin_log("setdefault ino=%lu count=%d", (unsigned long)item->status.st_ino, first->count);
    if (wanted.composite || first->count || first->size || first->pool[0] || first->offset != ANY)
        return store(item, &wanted, 0);
    failed = syscall(SYS_removexattr, item->path, LAYOUT) ? errno : 0; /* no default is set */
    return failed == ENODATA ? 0 : failed;
}

/* An error if the descriptor was opened for a layout that has not been set yet. */
int standin_before_write(const struct item *item)
{
    if (standin_get(item, LAYOUT, NULL, 0) >= 0 || errno != ENODATA)
        return 0;
    if (fcntl(item->descriptor, F_GETFL) & O_ASYNC) /* the part of DELAYED that F_GETFL returns */
        return EBADF;
    standin_give_default(item, -1, NULL);
    return 0;
}

/* Layouts are changed by one process at a time, which has locked this library. */
static int lock_changes(void)
{
    Dl_info own;
    int lock = -1;

    if (dladdr((void *)lock_changes, &own))
        lock = (int)syscall(SYS_openat, AT_FDCWD, own.dli_fname, O_RDONLY | O_CLOEXEC);
    while (lock >= 0 && flock(lock, LOCK_EX) && errno == EINTR)
        ;
    return lock;
}

static bool reach(const struct item *item, uint64_t start, uint64_t end, struct layout *layout)
{
    struct layout changed;
    int lock;

    if (!load(item, layout))
        return false;
    changed = *layout;
    if (!standin_reach(&changed, start, end))
        return true;
    lock = lock_changes();
    if (load(item, layout) && standin_reach(layout, start, end))
        store(item, layout, XATTR_REPLACE);
    if (lock >= 0) {
        flock(lock, LOCK_UN); /* also for a child that has just got a copy */
        syscall(SYS_close, lock);
    }
    return true;
}

void standin_reach_all(const struct item *item)
{
    struct layout layout;
    int before = errno;

    reach(item, 0, END, &layout);
    errno = before;
}

/* The bytes written to each OST. The MDT counts as the last of them. */
static void distribute(const struct component *one, uint64_t start, uint64_t end, uint64_t *bytes)
{
    uint64_t size = one->size;

    if (one->pattern & ON_MDT) {
        bytes[MOST_OSTS] += end - start;
        return;
    }
    if (size == 0 || one->objects == 0)
        return;
    while (start < end) {
        uint64_t next = (start / size + 1) * size, piece = (next < end ? next : end) - start;
        uint16_t ost = one->ost[start / size % (uint64_t)one->objects];
        bytes[ost < MOST_OSTS ? ost : 0] += piece;
        start += piece;
    }
}

void standin_after_write(const struct item *item, uint64_t start, uint64_t written)
{
    uint64_t end = start + written, bytes[MOST_OSTS + 1] = {0};
    struct layout layout;
    int before = errno;

    if (written == 0 || !reach(item, start, end, &layout)) {
        errno = before;
        return;
    }
    for (int each = 0; each < layout.components; each++) {
        const struct component *one = &layout.component[each];
        uint64_t from = start > one->start ? start : one->start, to = end < one->end ? end : one->end;
        if (from < to && standin_writes_to(&layout, each) && !(one->flags & EXTENSION))
            distribute(one, from, to, bytes);
    }
    for (int ost = 0; ost <= MOST_OSTS; ost++)
        if (bytes[ost])
            standin_log("write ino=%lu ost=%d bytes=%llu", (unsigned long)item->status.st_ino,
                        ost < MOST_OSTS ? ost : -1, (unsigned long long)bytes[ost]);
    errno = before;
}
