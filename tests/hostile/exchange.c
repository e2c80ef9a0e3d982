/* A library to be preloaded: right after the EXCHANGE_AFTER-th call that examines or opens "mine" below a directory
 * "tree" by its name, that name is exchanged with EXCHANGE_WITH, and the file EXCHANGE_DONE is created. The system call
 * is made directly, since the stand-in for Lustre, which some tests preload, refuses to exchange names. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int is_victim(int directory, const char *name)
{
    char link[64], path[4096] = "";
    const char *last = strrchr(name, '/');
    if (strcmp(last ? last + 1 : name, "mine"))
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    if (directory != AT_FDCWD && *name != '/' && readlink(link, path, sizeof path - 1) < 0)
        return 0;
    return strstr(path, "/tree") || strstr(name, "/tree/");
}

static void after(int directory, const char *name)
{
    static _Atomic int calls;
    const int number = errno;
    const char *done = getenv("EXCHANGE_DONE");
    if (done && is_victim(directory, name) && ++calls == atoi(getenv("EXCHANGE_AFTER")) &&
        !syscall(SYS_renameat2, directory, name, AT_FDCWD, getenv("EXCHANGE_WITH"), RENAME_EXCHANGE))
        mknod(done, S_IFREG | 0600, 0);
    errno = number;
}

#define LOOKS(symbol, status) \
    int symbol(int at, const char *name, struct status *s, int flags) \
    { \
        int (*next)(int, const char *, struct status *, int) = dlsym(RTLD_NEXT, #symbol); \
        const int result = next(at, name, s, flags); \
        if (!result) \
            after(at, name); \
        return result; \
    }

#define LOOKS_BY_PATH(symbol, status) \
    int symbol(const char *name, struct status *s) \
    { \
        int (*next)(const char *, struct status *) = dlsym(RTLD_NEXT, #symbol); \
        const int result = next(name, s); \
        if (!result) \
            after(AT_FDCWD, name); \
        return result; \
    }

#define OPENS(symbol) \
    int symbol(int at, const char *name, int flags, ...) \
    { \
        va_list more; \
        va_start(more, flags); \
        const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        int (*next)(int, const char *, int, ...) = dlsym(RTLD_NEXT, #symbol); \
        const int result = next(at, name, flags, mode); \
        if (result >= 0) \
            after(at, name); \
        return result; \
    }

int statx(int at, const char *restrict name, int flags, unsigned mask, struct statx *restrict s)
{
    int (*next)(int, const char *, int, unsigned, struct statx *) = dlsym(RTLD_NEXT, "statx");
    const int result = next(at, name, flags, mask, s);
    if (!result)
        after(at, name);
    return result;
}

LOOKS(fstatat, stat)
LOOKS(fstatat64, stat64)
LOOKS_BY_PATH(lstat, stat)
LOOKS_BY_PATH(lstat64, stat64)
OPENS(openat)
OPENS(openat64)
