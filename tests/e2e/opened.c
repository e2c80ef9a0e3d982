/* To be preloaded: before an item named "shared" is opened by O_PATH without O_DIRECTORY, the further name
   PCOPY_TEST_FURTHER/<number> of it is removed, for the numbers 0, 1, 2, ... in turn. It stands for another rank that
   replaces a further name of the inode between this rank's stat and its open. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int next;

static int opened(int directory, const char *name, int flags, mode_t mode)
{
    const char *further = getenv("PCOPY_TEST_FURTHER");
    const char *ending = getenv("PCOPY_TEST_ENDING");
    char path[4096], wanted[64];

    snprintf(wanted, sizeof wanted, "shared%s", ending ? ending : "");
    if (further && name && !strcmp(name, wanted) && (flags & O_PATH) && !(flags & O_DIRECTORY)) {
        snprintf(path, sizeof path, "%s/%d", further, next++);
        unlink(path);
    }
    return (int)syscall(SYS_openat, directory, name, flags, mode);
}

int openat(int directory, const char *name, int flags, ...)
{
    va_list more;
    mode_t mode;

    va_start(more, flags);
    mode = va_arg(more, mode_t);
    va_end(more);
    return opened(directory, name, flags, mode);
}

int openat64(int directory, const char *name, int flags, ...)
{
    va_list more;
    mode_t mode;

    va_start(more, flags);
    mode = va_arg(more, mode_t);
    va_end(more);
    return opened(directory, name, flags, mode);
}
