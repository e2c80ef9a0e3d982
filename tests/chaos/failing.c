/* A library to be preloaded: the first fsync(2) of a process on a path that matches the pattern PCOPY_TEST_FAILS (see
   fnmatch(3)) does nothing and fails, whichever thread makes it and whatever other threads sync. */
#define _GNU_SOURCE
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int fsync(int descriptor)
{
    static int matches;
    const char *pattern = getenv("PCOPY_TEST_FAILS");
    char link[64], path[4096];
    ssize_t length;

    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = '\0';
    if (pattern != NULL && fnmatch(pattern, path, 0) == 0
        && __atomic_add_fetch(&matches, 1, __ATOMIC_SEQ_CST) == 1) {
        errno = EIO;
        return -1;
    }
    return (int)syscall(SYS_fsync, descriptor);
}
