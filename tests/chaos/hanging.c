/* A library to be preloaded: syncfs(2) hangs from the call with the number PCOPY_TEST_HANGS on; earlier calls work.
   When a call hangs, the file PCOPY_TEST_HANGING is created, if the variable is set. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int syncfs(int descriptor)
{
    static int calls;
    const char *first = getenv("PCOPY_TEST_HANGS"), *marker = getenv("PCOPY_TEST_HANGING");

    if (first != NULL && __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST) >= atoi(first)) {
        if (marker != NULL)
            open(marker, O_CREAT | O_WRONLY, 0600);
        for (;;)
            pause();
    }
    return (int)syscall(SYS_syncfs, descriptor);
}
