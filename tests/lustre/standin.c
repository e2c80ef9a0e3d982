/* A stand-in for Lustre. Preloaded, it makes the file systems that LUSTRE_STANDIN names (mount points with colons
   between them) look like Lustre to a program: files have layouts on OSTs that are not there. Loaded, it is
   liblustreapi.so.1 (llapi.c). They must keep user.* attributes: ext4, XFS. What it does not see: openat2, and what the
   C library itself opens. tests/lustre/standin.py tells the variables of the environment, and reads what is logged. */
#include "standin.h"
#include <dlfcn.h>
#include <limits.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/statfs.h>
#include <sys/uio.h>
#include <sys/xattr.h>

#define REAL(name)                                             \
    ({                                                         \
        static __typeof__(&name) found;                        \
        if (found == NULL)                                     \
            found = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
        found;                                                 \
    })

#define LUSTRE 0x0BD00BD0
#define COUNT_TARGETS 0x800866A8u
#define SERVER_OF 0x800466AFu
#define DIRECTORY_STRIPES 0xC03066F1u
#define STRIPED_DIRECTORY 0x0CD20CD0u
#define CLONE 0x40049409u
#define CLONE_RANGE 0x4020940Du
#define EXTENTS 0xC020660Bu
#define IN_ORDER_OF_DEVICES 0x40000000u

static int failing(int number)
{
    errno = number;
    return -1;
}

static unsigned long inode(const struct item *item)
{
    return (unsigned long)item->status.st_ino;
}

static bool is_file(const struct item *item)
{
    return S_ISREG(item->status.st_mode);
}

static bool is_path_only(int descriptor)
{
    int flags = fcntl(descriptor, F_GETFL);
    return flags >= 0 && flags & O_PATH;
}

/* What `path` below `directory` is; false if that is not on Lustre. */
static bool item_at(int directory, const char *path, int flags, struct item *item)
{
    int before = errno;
    bool found = standin_points() && fstatat(directory, path, &item->status, flags) == 0;

    item->point = found ? standin_point(item->status.st_dev) : NULL;
    errno = before;
    return item->point != NULL;
}

/* statfs */

#define STATFS(name, type, what, kind, lookup)             \
    int name(type what, struct kind *status)               \
    {                                                      \
        struct item item;                                  \
        int result = REAL(name)(what, status);             \
        if (result == 0 && lookup)                         \
            status->f_type = LUSTRE;                       \
        return result;                                     \
    }
STATFS(statfs, const char *, path, statfs, standin_item_of_path(path, true, &item))
STATFS(statfs64, const char *, path, statfs64, standin_item_of_path(path, true, &item))
STATFS(fstatfs, int, descriptor, statfs, standin_item_of_descriptor(descriptor, &item))
STATFS(fstatfs64, int, descriptor, statfs64, standin_item_of_descriptor(descriptor, &item))

/* Group locks: by descriptor its file and the group, of this process. */

static atomic_ullong held[1 << 16];

static atomic_ullong *lock_of(int descriptor)
{
    return descriptor >= 0 && descriptor < 1 << 16 ? &held[descriptor] : NULL;
}

/* Is the lock held, and the layout another than when it was taken? To ask for the data version waits for ever then. */
static atomic_bool *swapped_under(int descriptor)
{
    static atomic_bool swapped[1 << 16];
    return &swapped[descriptor];
}

static int change_group_lock(const struct item *item, unsigned long request, uint32_t group)
{
    atomic_ullong *lock = lock_of(item->descriptor);
    unsigned long long wanted = (unsigned long long)inode(item) << 32 | group, found;

    if (!is_file(item) || standin_refuses("grouplock") || lock == NULL)
        return failing(ENOTTY);
    found = atomic_load(lock);
    if (group == 0)
        return failing(EINVAL);
    if (request == GROUP_LOCK) {
        static atomic_uint asked;
        if (fcntl(item->descriptor, F_GETFL) & O_NONBLOCK &&
            (standin_refuses("locked") || atomic_fetch_add(&asked, 1) % 3 < 2))
            return failing(EAGAIN); /* others give back what they have of the file, which nobody waits for here */
        if (found != 0 && found >> 32 == wanted >> 32)
            return failing(EINVAL);
        atomic_store(lock, wanted);
        standin_log("grouplock ino=%lu gid=%u", inode(item), group);
        standin_reach_all(item);
        return 0;
    }
    if (found != wanted)
        return failing(EINVAL);
    atomic_store(lock, 0);
    atomic_store(swapped_under(item->descriptor), false);
    standin_log("groupunlock ino=%lu gid=%u", inode(item), group);
    if (standin_refuses("quiet"))
        syscall(SYS_pwrite64, item->descriptor, "x", 1, item->status.st_size);
    return 0;
}

/* Opening and making */

#define VOLATILE ".\x0c\x13\x14\x12:VOLATILE"

/* A file of such a name has none, and the directory stays as it was: `before` is its status. */
static void without_name(int directory, const char *path, const struct stat *before)
{
    const struct timespec times[2] = {before->st_atim, before->st_mtim};

    syscall(SYS_unlinkat, directory, path, 0);
    syscall(SYS_utimensat, directory, NULL, times, 0);
}

/* The MDT that such a name asks for, -1 for any. */
static int wanted_server(const char *path)
{
    const char *index = path + strlen(VOLATILE) + 1;

    return *index == ':' ? -1 : (int)strtol(index, NULL, 16);
}

/* Only root may have a file without a name on another MDT than those of the directory. */
static bool may_lie_on(int directory, int server)
{
    char wanted[24], servers[24] = ",0";
    struct item item;
    ssize_t length;

    if (server < 0 || geteuid() == 0 || !standin_item_of_descriptor(directory, &item))
        return true;
    length = standin_get(&item, SERVER, servers + 1, sizeof servers - 3);
    strcpy(servers + 1 + (length > 0 ? length : 1), ",");
    snprintf(wanted, sizeof wanted, ",%d,", server);
    return strstr(servers, wanted) != NULL;
}

static void keep_on(const struct item *item, int server)
{
    char digits[16];

    snprintf(digits, sizeof digits, "%d", server);
    standin_set(item, SERVER, digits, strlen(digits), 0);
}

static int open_at(int directory, const char *path, int flags, mode_t mode)
{
    bool writes = (flags & O_ACCMODE) != O_RDONLY, existed = !(flags & O_CREAT);
    bool delayed = writes && (flags & DELAYED) == DELAYED;
    bool is_volatile = flags & O_CREAT && strncmp(path, VOLATILE, strlen(VOLATILE)) == 0;
    struct item item;
    struct stat status, around;
    int opened, before = errno;

    if (standin_points() == 0)
        return REAL(openat)(directory, path, flags, mode);
    if (is_volatile && fstat(directory, &around))
        return -1;
    if (is_volatile && wanted_server(path) >= standin_mdts())
        return failing(ENODEV);
    if (is_volatile && !may_lie_on(directory, wanted_server(path)))
        return failing(EACCES);
    if ((flags & O_TMPFILE) == O_TMPFILE && item_at(directory, path, 0, &item))
        return failing(EOPNOTSUPP);
    if (flags & O_CREAT && !(flags & O_EXCL))
        existed = fstatat(directory, path, &status, 0) == 0;
    errno = before;
    opened = REAL(openat)(directory, path, flags, mode);
    if (opened < 0 || flags & O_PATH)
        return opened;
    before = errno;
    if (lock_of(opened) != NULL)
        atomic_store(lock_of(opened), 0);
    if ((existed && !writes) || !standin_item_of_descriptor(opened, &item) || !is_file(&item))
        return opened;
    if (!existed)
        standin_log("create ino=%lu delayed=%d %s", inode(&item), delayed, path);
    if (!delayed)
        standin_give_default(&item, directory, path);
    if (is_volatile) {
        if (wanted_server(path) >= 0)
            keep_on(&item, wanted_server(path));
        without_name(directory, path, &around);
    }
    errno = before;
    return opened;
}

#define MODE_OF(flags)                                             \
    mode_t mode = 0;                                               \
    if ((flags) & O_CREAT || ((flags) & O_TMPFILE) == O_TMPFILE) { \
        va_list more;                                              \
        va_start(more, flags);                                     \
        mode = va_arg(more, mode_t);                               \
        va_end(more);                                              \
    }

#define OPEN(name)                                         \
    int name(const char *path, int flags, ...)             \
    {                                                      \
        MODE_OF(flags)                                     \
        return open_at(AT_FDCWD, path, flags, mode);       \
    }
#define OPENAT(name)                                            \
    int name(int directory, const char *path, int flags, ...)   \
    {                                                           \
        MODE_OF(flags)                                          \
        return open_at(directory, path, flags, mode);           \
    }
OPEN(open)
OPEN(open64)
OPEN(__open_2)
OPEN(__open64_2)
OPENAT(openat)
OPENAT(openat64)
OPENAT(__openat_2)
OPENAT(__openat64_2)

int creat(const char *path, mode_t mode)
{
    return open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

int creat64(const char *path, mode_t mode)
{
    return open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

int mkdirat(int directory, const char *path, mode_t mode)
{
    int opened, before, result = REAL(mkdirat)(directory, path, mode);
    struct item item;

    if (result || standin_points() == 0)
        return result;
    before = errno;
    opened = (int)syscall(SYS_openat, directory, path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (standin_item_of_descriptor(opened, &item))
        standin_inherit_default(&item, directory, path);
    if (opened >= 0)
        syscall(SYS_close, opened);
    errno = before;
    return result;
}

int mkdir(const char *path, mode_t mode)
{
    return mkdirat(AT_FDCWD, path, mode);
}

int renameat2(int from, const char *old, int to, const char *new, unsigned flags)
{
    struct item item, there;

    if (flags && item_at(from, old, AT_SYMLINK_NOFOLLOW, &item)) {
        bool taken = item_at(to, new, AT_SYMLINK_NOFOLLOW, &there);
        if (flags & RENAME_NOREPLACE && taken)
            return failing(EEXIST);
        return failing(flags & RENAME_EXCHANGE && !taken ? ENOENT : EINVAL);
    }
    return REAL(renameat2)(from, old, to, new, flags);
}

/* Writing */

/* Sets errno and gives false if nothing may be written. */
static bool may_write(int descriptor, struct item *item, bool *logged)
{
    int failed, before = errno;

    *logged = standin_item_of_descriptor(descriptor, item) && is_file(item);
    failed = *logged && !is_path_only(descriptor) ? standin_before_write(item) : 0;
    errno = failed ? failed : before;
    return !failed;
}

/* `offset` is -1 for a write where the file stands. */
static ssize_t wrote(const struct item *item, bool logged, ssize_t result, off_t offset)
{
    if (logged && result > 0) {
        int before = errno;
        if (offset < 0)
            offset = lseek(item->descriptor, 0, SEEK_CUR) - result;
        standin_after_write(item, (uint64_t)offset, (uint64_t)result);
        errno = before;
    }
    return result;
}

#define WRITE(name, offset, arguments, ...)                                          \
    ssize_t name(int descriptor, __VA_ARGS__)                                        \
    {                                                                                \
        struct item item;                                                            \
        bool logged;                                                                 \
        if (standin_points() == 0)                                                   \
            return REAL(name) arguments;                                             \
        if (!may_write(descriptor, &item, &logged))                                  \
            return -1;                                                               \
        return wrote(&item, logged, REAL(name) arguments, offset);                   \
    }
WRITE(write, -1, (descriptor, data, size), const void *data, size_t size)
WRITE(pwrite, at, (descriptor, data, size, at), const void *data, size_t size, off_t at)
WRITE(pwrite64, at, (descriptor, data, size, at), const void *data, size_t size, off64_t at)
WRITE(writev, -1, (descriptor, pieces, count), const struct iovec *pieces, int count)
WRITE(pwritev, at, (descriptor, pieces, count, at), const struct iovec *pieces, int count, off_t at)
WRITE(pwritev64, at, (descriptor, pieces, count, at), const struct iovec *pieces, int count, off64_t at)
WRITE(pwritev2, at, (descriptor, pieces, count, at, how), const struct iovec *pieces, int count, off_t at, int how)
WRITE(pwritev64v2, at, (descriptor, pieces, count, at, how), const struct iovec *pieces, int count, off64_t at, int how)

ssize_t copy_file_range(int from, off64_t *from_offset, int to, off64_t *offset, size_t size, unsigned flags)
{
    struct item source, item;
    off64_t at = offset != NULL ? *offset : -1;
    struct stat status;
    bool logged;

    if (standin_points() && fstat(from, &source.status) == 0 && fstat(to, &status) == 0 &&
        source.status.st_dev != status.st_dev && (standin_point(source.status.st_dev) || standin_point(status.st_dev)))
        return failing(EXDEV);
    if (!may_write(to, &item, &logged))
        return -1;
    return wrote(&item, logged, REAL(copy_file_range)(from, from_offset, to, offset, size, flags), at);
}

#define GROW(name, grows, arguments, ...)                       \
    int name(int descriptor, __VA_ARGS__)                       \
    {                                                           \
        struct item item;                                       \
        bool logged;                                            \
        if (grows && !may_write(descriptor, &item, &logged))    \
            return -1;                                          \
        return REAL(name) arguments;                            \
    }
GROW(fallocate, true, (descriptor, how, start, size), int how, off_t start, off_t size)
GROW(fallocate64, true, (descriptor, how, start, size), int how, off64_t start, off64_t size)

#define SYNC(name, text)                                                    \
    int name(int descriptor)                                                \
    {                                                                       \
        struct item item;                                                   \
        int result;                                                         \
        if (standin_item_of_descriptor(descriptor, &item))                  \
            standin_log(text, inode(&item), (unsigned long)item.point->device); \
        result = REAL(name)(descriptor);                                    \
        return result;                                                      \
    }
SYNC(fsync, "fsync ino=%lu dev=%lu")
SYNC(fdatasync, "fsync ino=%lu dev=%lu data=1")
SYNC(syncfs, "syncfs ino=%lu dev=%lu")

/* Times have a resolution of a second. */

static const struct timespec *floored(const struct timespec *times, struct timespec *kept)
{
    for (int each = 0; times != NULL && each < 2; each++) {
        kept[each] = times[each];
        if (kept[each].tv_nsec != UTIME_NOW && kept[each].tv_nsec != UTIME_OMIT)
            kept[each].tv_nsec = 0;
    }
    return times != NULL ? kept : NULL;
}

static bool is_valid(const struct timespec *times)
{
    for (int each = 0; times != NULL && each < 2; each++)
        if ((unsigned long)times[each].tv_nsec > 999999999 && times[each].tv_nsec != UTIME_NOW &&
            times[each].tv_nsec != UTIME_OMIT)
            return false;
    return true;
}

int futimens(int descriptor, const struct timespec times[2])
{
    struct timespec kept[2];
    struct item item;

    if (standin_item_of_descriptor(descriptor, &item) && is_valid(times))
        times = floored(times, kept);
    return REAL(futimens)(descriptor, times);
}

int utimensat(int directory, const char *path, const struct timespec times[2], int flags)
{
    struct timespec kept[2];
    struct item item;

    if (item_at(directory, path, flags & (AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH), &item) && is_valid(times))
        times = floored(times, kept);
    return REAL(utimensat)(directory, path, times, flags);
}

/* ioctl */

int standin_server(const struct item *item)
{
    char digits[16] = "";

    return standin_get(item, SERVER, digits, sizeof digits - 1) > 0 ? atoi(digits) : 0;
}

/* A directory with several has them in SERVER, with commas between. What is told is lmv_user_md_v1. */
static int directory_stripes(const struct item *item, uint32_t *told)
{
    char digits[16] = "";
    uint32_t stripes = 0;
    ssize_t length = standin_get(item, SERVER, digits, sizeof digits - 1);

    if (length <= 0 || strchr(digits, ',') == NULL || told[0] != STRIPED_DIRECTORY)
        return failing(ENODATA);
    for (char *each = digits; each != NULL; each = strchr(each, ',') ? strchr(each, ',') + 1 : NULL)
        told[12 + 6 * stripes++ + 4] = (uint32_t)atoi(each);
    told[1] = stripes;
    return 0;
}

static bool is_striped(const struct item *item)
{
    unsigned char blob[MOST_BYTES];
    struct layout layout;
    ssize_t size = standin_get(item, LAYOUT, blob, sizeof blob);

    return size >= 0 && standin_parse(blob, (size_t)size, &layout) == 0 && standin_objects(&layout) > 1;
}

struct swapping {
    uint64_t flags;
    uint32_t descriptor, group;
    uint64_t version, other_version;
};

static int swap(const struct item *item, const struct swapping *asked)
{
    int error = 0;

    if (asked->flags & 1 && (standin_refuses("swap") || asked->version != standin_version(item)))
        error = EAGAIN;
    else
        error = standin_swap(item, (int)asked->descriptor);
    if (!error && asked->other_version != standin_version(item))
        error = EINVAL; /* a real one takes what it is told, and is wrong of what an archive has of the file */
    if (!error && lock_of(item->descriptor) != NULL && atomic_load(lock_of(item->descriptor)))
        atomic_store(swapped_under(item->descriptor), true);
    return error ? failing(error) : 0;
}

static int control(const struct item *item, unsigned long request, void *more, bool *known)
{
    int before = errno, *number = more;

    *known = true;
    switch (request) {
    case GROUP_LOCK:
    case GROUP_UNLOCK:
        return change_group_lock(item, request, (uint32_t)(uintptr_t)more);
    case COUNT_TARGETS:
        if (!S_ISDIR(item->status.st_mode))
            return failing(ENOTTY);
        *number = *number ? standin_mdts() : standin_osts();
        return 0;
    case SERVER_OF:
        if (standin_refuses("mdtidx"))
            return failing(ENOTTY);
        *number = standin_server(item);
        errno = before;
        return 0;
    case DIRECTORY_STRIPES:
        return directory_stripes(item, more);
    case DATA_VERSION:
        if (lock_of(item->descriptor) != NULL && atomic_load(swapped_under(item->descriptor)))
            return failing(EDEADLK);
        *(uint64_t *)more = standin_version(item);
        errno = before;
        return 0;
    case SWAP_LAYOUTS:
        return swap(item, more);
    case SET_LEASE:
        if (*number != 4 && (standin_refuses("lease") || standin_is_written(item)))
            return failing(EBUSY);
        errno = before;
        return 1;
    case CLONE:
    case CLONE_RANGE:
        return failing(EOPNOTSUPP);
    case EXTENTS:
        if (is_file(item) && !(((uint32_t *)more)[4] & IN_ORDER_OF_DEVICES) && is_striped(item))
            return failing(EOPNOTSUPP);
        errno = before;
        break;
    default:
        break;
    }
    *known = false;
    return 0;
}

int ioctl(int descriptor, unsigned long request, ...)
{
    struct item item;
    va_list arguments;
    void *more;
    bool known;

    va_start(arguments, request);
    more = va_arg(arguments, void *);
    va_end(arguments);
    request &= 0xffffffff; /* some pass it as a signed int */
    if (standin_item_of_descriptor(descriptor, &item) && !is_path_only(descriptor)) {
        int result = control(&item, request, more, &known);
        if (known)
            return result;
    }
    return REAL(ioctl)(descriptor, request, more);
}

/* Extended attributes */

static bool is_hidden(const char *name)
{
    return !strncmp(name, HIDDEN, strlen(HIDDEN));
}

/* Those that Lustre keeps for itself; they are root's. */
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

/* Which OST comes first is not told, so that no copy begins at the same. */
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
        return 0; /* and it is kept */
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
