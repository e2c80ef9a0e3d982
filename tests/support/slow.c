/* To be preloaded: calls that PCOPY_TEST_DELAYS names take longer ("mkdirat=60,utimensat=3", in milliseconds).
 *
 * The delay precedes the call, and no signal shortens it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void wait_before(const char *call)
{
    const char *at = getenv("PCOPY_TEST_DELAYS");
    size_t length = strlen(call);
    int before = errno;

    while (at != NULL && *at != '\0') {
        if (strncmp(at, call, length) == 0 && at[length] == '=') {
            long milliseconds = atol(at + length + 1);
            struct timespec left = {milliseconds / 1000, milliseconds % 1000 * 1000000};

            while (nanosleep(&left, &left) != 0 && errno == EINTR)
                continue;
            break;
        }
        at = strchr(at, ',');
        at = at == NULL ? NULL : at + 1;
    }
    errno = before;
}

#define SLOW(result, name, call, parameters, ...)                  \
    result name parameters                                         \
    {                                                              \
        static result(*next) parameters;                           \
                                                                   \
        if (next == NULL)                                          \
            next = (result(*) parameters)dlsym(RTLD_NEXT, #name);  \
        wait_before(call);                                         \
        return next(__VA_ARGS__);                                  \
    }

SLOW(int, utimensat, "utimensat", (int at, const char *path, const struct timespec *times, int flags),
     at, path, times, flags)
SLOW(int, futimens, "utimensat", (int file, const struct timespec *times), file, times)
SLOW(int, mkdirat, "mkdirat", (int at, const char *path, mode_t mode), at, path, mode)
SLOW(int, linkat, "linkat", (int at, const char *path, int to, const char *name, int flags), at, path, to, name, flags)
SLOW(ssize_t, copy_file_range, "copy_file_range",
     (int in, off64_t *from, int out, off64_t *to, size_t length, unsigned flags), in, from, out, to, length, flags)
