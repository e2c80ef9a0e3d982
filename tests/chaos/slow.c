/* To be preloaded: fsync(2) takes four seconds more as soon as there is the file that PCOPY_TEST_SLOW names. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int fsync(int descriptor)
{
    const char *slow = getenv("PCOPY_TEST_SLOW");

    if (slow != NULL && access(slow, F_OK) == 0)
        sleep(4);
    return (int)syscall(SYS_fsync, descriptor);
}
