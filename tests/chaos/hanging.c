/* To be preloaded: syncfs(2) hangs, from the call on that PCOPY_TEST_HANGS numbers; those before it do their work. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int syncfs(int descriptor)
{
    static int calls;
    const char *first = getenv("PCOPY_TEST_HANGS");

    if (first != NULL && __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST) >= atoi(first))
        for (;;)
            pause();
    return (int)syscall(SYS_syncfs, descriptor);
}
