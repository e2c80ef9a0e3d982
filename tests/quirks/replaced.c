/* To be preloaded: a directory is replaced between its listing and its opening.
 *
 * At the REPLACED_NTH opening of a directory named "victim" in the directory REPLACED_PARENT by any process of the run, it
 * is moved to REPLACED_AWAY; each opening adds a byte to the file REPLACED_COUNT, which numbers them. REPLACED_HOW says what
 * takes its name: nothing, a file, a directory with a file, or (late) such a directory, but only after the opening.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int (*next_openat)(int, const char *, int, ...);

static int number_of_opening(void)
{
    const int file = next_openat(AT_FDCWD, getenv("REPLACED_COUNT"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    const int number = file >= 0 && write(file, ".", 1) == 1 ? (int)lseek(file, 0, SEEK_CUR) : 0;
    close(file);
    return number;
}

static int is_victim(int at, const char *name)
{
    char link[64], path[4096];
    if (strcmp(name, "victim"))
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    const ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = '\0';
    return !strcmp(path, getenv("REPLACED_PARENT"));
}

static void make_directory(int at, const char *name)
{
    char path[64];
    if (mkdirat(at, name, 0755))
        abort();
    snprintf(path, sizeof path, "%s/new", name);
    close(next_openat(at, path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
}

static int opened(int at, const char *name, int flags, mode_t mode)
{
    const char *how = getenv("REPLACED_HOW");
    if (next_openat == NULL)
        next_openat = (int (*)(int, const char *, int, ...))dlsym(RTLD_NEXT, "openat");
    if (how == NULL || !is_victim(at, name) || number_of_opening() != atoi(getenv("REPLACED_NTH")))
        return next_openat(at, name, flags, mode);
    if (renameat(at, name, AT_FDCWD, getenv("REPLACED_AWAY")))
        abort();
    if (!strcmp(how, "file"))
        close(next_openat(at, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
    else if (!strcmp(how, "directory"))
        make_directory(at, name);
    const int result = next_openat(at, name, flags, mode), error = errno;
    if (!strcmp(how, "late"))
        make_directory(at, name);
    errno = error;
    return result;
}

#define OPENED(symbol)                                                        \
    int symbol(int at, const char *name, int flags, ...)                      \
    {                                                                         \
        va_list more;                                                         \
        va_start(more, flags);                                                \
        const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more);                                                         \
        return opened(at, name, flags, mode);                                 \
    }

OPENED(openat64)
OPENED(openat)
