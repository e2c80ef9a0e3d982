/* Preloaded: after the first look at "mine" by its name, that name is exchanged with $EXCHANGE_WITH. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int fstatat(int directory, const char *name, struct stat *status, int flags)
{
    static int is_done;
    int (*real)(int, const char *, struct stat *, int) = dlsym(RTLD_NEXT, "fstatat");
    const int result = real(directory, name, status, flags);
    const char *other = getenv("EXCHANGE_WITH");
    if (!result && other && !is_done && !strcmp(name, "mine") && S_ISREG(status->st_mode)) {
        is_done = 1;
        renameat2(directory, name, AT_FDCWD, other, RENAME_EXCHANGE);
    }
    return result;
}
