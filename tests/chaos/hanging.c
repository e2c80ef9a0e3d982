/* To be preloaded: syncfs(2) hangs, from the call on that PCOPY_TEST_HANGS numbers; those before it do their work.
   Once one hangs, there is the file that PCOPY_TEST_HANGING names, if it is set. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int syncfs(int descriptor)
{
    static int calls;
    const char *first = getenv("PCOPY_TEST_HANGS"), *told = getenv("PCOPY_TEST_HANGING");

    if (first != NULL && __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST) >= atoi(first)) {
        if (told != NULL)
            open(told, O_CREAT | O_WRONLY, 0600);
        for (;;)
            pause();
    }
    return (int)syscall(SYS_syncfs, descriptor);
}
