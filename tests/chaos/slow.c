/* A library to be preloaded: fsync(2) takes four more seconds as soon as the file PCOPY_TEST_SLOW exists. */
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
