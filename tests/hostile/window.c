/* A library to be preloaded: holds a process at one system call, so that an attack happens at the worst moment.
 *
 * WINDOW is "CALL NAME UNDER NTH WHEN": the NTH time that any process of the run makes CALL on NAME (`*` at its end: on
 * any name that begins so) below a directory whose path has UNDER in it, the process writes the name to the FIFO
 * WINDOW_REACHED, before or after the call as WHEN says, and continues when it has read a byte from WINDOW_GO. Each
 * match adds a byte to the file WINDOW_COUNT, which numbers them over all processes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int (*next_open)(const char *, int, ...);
static ssize_t (*next_read)(int, void *, size_t), (*next_write)(int, const void *, size_t);
static struct { char call[32], name[256], under[256], when[8]; long nth; } window;

static void begin(void)
{
    next_open = dlsym(RTLD_NEXT, "open64");
    next_read = dlsym(RTLD_NEXT, "read");
    next_write = dlsym(RTLD_NEXT, "write");
    sscanf(getenv("WINDOW"), "%31s %255s %255s %ld %7s", window.call, window.name, window.under, &window.nth, window.when);
}

static int matches(const char *call, int directory, const char *name)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    char link[64], path[8192];
    if (!getenv("WINDOW"))
        return 0; /* not yet, where runs are forked */
    pthread_once(&once, begin);
    size_t prefix = strcspn(window.name, "*");
    if (strcmp(call, window.call) || !name || strncmp(name, window.name, prefix))
        return 0;
    if (window.name[prefix] != '*' && name[prefix])
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    if (!strstr(path, window.under))
        return 0;
    int file = next_open(getenv("WINDOW_COUNT"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    int first = file >= 0 && next_write(file, ".", 1) == 1 && lseek(file, 0, SEEK_CUR) == window.nth;
    close(file);
    return first;
}

static void hold(const char *when, int matched, const char *name)
{
    char go;
    int kept = errno;
    if (!matched || strcmp(when, window.when))
        return;
    int reached = next_open(getenv("WINDOW_REACHED"), O_WRONLY | O_CLOEXEC);
    if (next_write(reached, name, strlen(name)) < 0)
        abort();
    close(reached);
    int waiting = next_open(getenv("WINDOW_GO"), O_RDONLY | O_CLOEXEC);
    if (next_read(waiting, &go, 1) < 0)
        abort();
    close(waiting);
    errno = kept;
}

#define HELD(call, directory, name, type, symbol, parameters, arguments) \
    type symbol parameters \
    { \
        static type (*next) parameters; \
        if (!next) \
            next = dlsym(RTLD_NEXT, #symbol); \
        int matched = matches(call, directory, name); \
        hold("before", matched, name); \
        type result = next arguments; \
        hold("after", matched, name); \
        return result; \
    }

HELD("stat", at, name, int, fstatat64, (int at, const char *name, struct stat64 *s, int flags), (at, name, s, flags))
HELD("stat", at, name, int, fstatat, (int at, const char *name, struct stat *s, int flags), (at, name, s, flags))
HELD("mkdir", at, name, int, mkdirat, (int at, const char *name, mode_t mode), (at, name, mode))
HELD("mknod", at, name, int, mknodat, (int at, const char *name, mode_t mode, dev_t device), (at, name, mode, device))
HELD("symlink", at, name, int, symlinkat, (const char *text, int at, const char *name), (text, at, name))
HELD("rename", at, old, int, renameat, (int at, const char *old, int to, const char *name), (at, old, to, name))
HELD("link", to, name, int, linkat, (int at, const char *old, int to, const char *name, int f), (at, old, to, name, f))

/* A change through a descriptor matches the name and the directory in the path of the descriptor. */
static const char *name_of(int descriptor)
{
    static char path[8192];
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

HELD("chown", file, name_of(file), int, fchown, (int file, uid_t uid, gid_t gid), (file, uid, gid))
HELD("chmod", file, name_of(file), int, fchmod, (int file, mode_t mode), (file, mode))
HELD("listxattr", file, name_of(file), ssize_t, flistxattr, (int file, char *list, size_t size), (file, list, size))
HELD("setxattr", file, name_of(file), int, fsetxattr,
     (int file, const char *attribute, const void *value, size_t size, int flags), (file, attribute, value, size, flags))
HELD("read", file, name_of(file), ssize_t, read, (int file, void *data, size_t size), (file, data, size))
HELD("write", file, name_of(file), ssize_t, write, (int file, const void *data, size_t size), (file, data, size))

int utimensat(int at, const char *path, const struct timespec times[2], int flags)
{
    static int (*next)(int, const char *, const struct timespec *, int);
    int descriptor, held = path && sscanf(path, "/proc/self/fd/%d", &descriptor) == 1;
    if (!next)
        next = dlsym(RTLD_NEXT, "utimensat");
    int matched = held && matches("utime", descriptor, name_of(descriptor));
    int result = next(at, path, times, flags);
    hold("after", matched, window.name);
    return result;
}

static int opened(const char *symbol, int at, const char *name, int flags, mode_t mode)
{
    int (*next)(int, const char *, int, ...) = dlsym(RTLD_NEXT, symbol);
    int matched = matches(flags & O_CREAT ? "create" : "open", at, name);
    hold("before", matched, name);
    int result = next(at, name, flags, mode);
    hold("after", matched, name);
    return result;
}

#define OPENED(symbol) \
    int symbol(int at, const char *name, int flags, ...) \
    { \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        return opened(#symbol, at, name, flags, mode); \
    }

OPENED(openat64)
OPENED(openat)
