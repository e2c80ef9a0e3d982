/* To be preloaded: fdatasync(2) hangs as long as the file that PCOPY_TEST_STORES names exists. Each call adds a byte to
 * this file. The first PCOPY_TEST_STORES_PASS calls of all processes together do not hang. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int fdatasync(int descriptor)
{
    const char *path = getenv("PCOPY_TEST_STORES"), *pass = getenv("PCOPY_TEST_STORES_PASS");
    const struct timespec nap = {0, 20000000};
    int calls = path == NULL ? -1 : open(path, O_WRONLY | O_APPEND | O_CLOEXEC);

    if (calls >= 0) {
        off_t number = write(calls, "", 1) == 1 ? lseek(calls, 0, SEEK_CUR) : 0;

        close(calls);
        while (number > (pass == NULL ? 0 : atol(pass)) && access(path, F_OK) == 0)
            nanosleep(&nap, NULL);
    }
    return (int)syscall(SYS_fdatasync, descriptor);
}
