/* To be preloaded: files whose names ask for it meet errors, or calls that do less than they were asked for.
 *
 * "x!rread5" cannot be read (errno 5) where it is open for reading, "x!wfchmod1" not be dressed where it is made; the
 * words are the calls. "x!rshort" and "x!wshort" are read and written a few bytes at a time. So what happens to a file
 * does not depend on the order of the calls, and two programs must come to the same end.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static char faults[1024][48]; /* by descriptor: what its name asks for, beginning with r or w */

static int meets(int file, const char *call)
{
    const char *fault = file >= 0 && file < 1024 ? faults[file] : "";
    const size_t length = strlen(call);
    if (fault[0] == '\0' || strncmp(fault + 1, call, length) || strspn(fault + 1 + length, "0123456789") == 0)
        return 0;
    errno = atoi(fault + 1 + length);
    return 1;
}

static size_t less(int file, size_t size)
{
    return file >= 0 && file < 1024 && !strcmp(faults[file] + (faults[file][0] != 0), "short") && size > 4096 ? 4096 : size;
}

#define REAL(type, name, parameters) static type (*real) parameters; if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name)
#define REAL2(type, name, parameters) \
    static type (*real_##name) parameters; if (!real_##name) *(void **)&real_##name = dlsym(RTLD_NEXT, #name)
#define FAULTY(type, name, call, parameters, arguments, file)      \
    type name parameters;                                          \
    type name parameters                                           \
    {                                                              \
        REAL(type, name, parameters);                              \
        return meets(file, call) ? -1 : real arguments;            \
    }
FAULTY(int, fstat, "fstat", (int file, struct stat *out), (file, out), file)
FAULTY(int, fstat64, "fstat", (int file, struct stat64 *out), (file, out), file)
FAULTY(ssize_t, flistxattr, "flistxattr", (int file, char *out, size_t size), (file, out, size), file)
FAULTY(ssize_t, fgetxattr, "fgetxattr", (int file, const char *name, void *out, size_t size), (file, name, out, size),
       file)
FAULTY(int, fsetxattr, "fsetxattr", (int file, const char *name, const void *in, size_t size, int flags),
       (file, name, in, size, flags), file)
FAULTY(int, fchmod, "fchmod", (int file, mode_t mode), (file, mode), file)
FAULTY(int, futimens, "futimens", (int file, const struct timespec *times), (file, times), file)
FAULTY(int, fsync, "fsync", (int file), (file), file)
FAULTY(ssize_t, read, "read", (int file, void *out, size_t size), (file, out, less(file, size)), file)
FAULTY(ssize_t, write, "write", (int file, const void *in, size_t size), (file, in, less(file, size)), file)

/* Only where it changes something: the C backend leaves out the call where it does not. */
int fchown(int file, uid_t user, gid_t group)
{
    REAL(int, fchown, (int, uid_t, gid_t));
    REAL2(int, fstat, (int, struct stat *));
    struct stat status;
    if (!real_fstat(file, &status) && (status.st_uid != user || status.st_gid != group) && meets(file, "fchown"))
        return -1;
    return real(file, user, group);
}

int close(int file)
{
    REAL(int, close, (int));
    const int bad = meets(file, "close"), number = errno;
    if (file >= 0 && file < 1024)
        faults[file][0] = '\0';
    const int answer = real(file);
    errno = bad ? number : errno;
    return bad ? -1 : answer;
}

int renameat(int from, const char *name, int to, const char *other)
{
    REAL(int, renameat, (int, const char *, int, const char *));
    const char *fault = strstr(name, "!wrename");
    if (fault != NULL) {
        errno = atoi(fault + 8);
        return -1;
    }
    return real(from, name, to, other);
}

static int opened(int (*real)(int, const char *, int, ...), int at, const char *name, int flags, mode_t mode)
{
    const char side = (flags & O_ACCMODE) == O_RDONLY ? 'r' : 'w', *fault = strrchr(name, '!');
    if (fault != NULL && fault[1] == side && !strncmp(fault + 2, "open", 4)) {
        errno = atoi(fault + 6);
        return -1;
    }
    const int file = real(at, name, flags, mode);
    if (file >= 0 && file < 1024) {
        faults[file][0] = '\0';
        if (fault != NULL && fault[1] == side)
            strncat(faults[file], fault + 1, sizeof faults[file] - 1);
    }
    return file;
}

#define OPENS(name)                                                                              \
    int name(int at, const char *path, int flags, ...)                                           \
    {                                                                                            \
        va_list values;                                                                          \
        va_start(values, flags);                                                                 \
        const mode_t mode = flags & O_CREAT ? va_arg(values, mode_t) : 0;                        \
        va_end(values);                                                                          \
        REAL(int, name, (int, const char *, int, ...));                                          \
        return opened(real, at, path, flags, mode);                                              \
    }
OPENS(openat)
OPENS(openat64)
