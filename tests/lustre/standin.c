/* A stand-in for Lustre. Preloaded, it makes the file systems that LUSTRE_STANDIN names (mount points with colons
   between them) look like Lustre to a program: files have layouts on OSTs that do not exist. Loaded, it is
   liblustreapi.so.1 (llapi.c). They must keep user.* attributes: ext4, XFS. What it does not see: openat2, and what the
   C library itself opens. tests/lustre/standin.py sets the variables of the environment, and reads the log. */
#include "interposing.h"
#include <limits.h>
#include <stdarg.h>
#include <sys/statfs.h>
#include <sys/uio.h>

#define LUSTRE 0x0BD00BD0

/* Finds the item `path` below `directory`; false if it is not on Lustre. */
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

/* Opening and creating */

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
    standin_forget_lock(opened);
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

/* `offset` is -1 for a write at the current position. */
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
