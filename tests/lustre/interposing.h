/* Shared by the files that replace functions of the C library: standin.c, requests.c, attributes.c. */
#include "standin.h"
#include <dlfcn.h>

#define REAL(name)                                             \
    ({                                                         \
        static __typeof__(&name) found;                        \
        if (found == NULL)                                     \
            found = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
        found;                                                 \
    })

static inline int failing(int number)
{
    errno = number;
    return -1;
}

static inline unsigned long inode(const struct item *item)
{
    return (unsigned long)item->status.st_ino;
}

static inline bool is_file(const struct item *item)
{
    return S_ISREG(item->status.st_mode);
}

static inline bool is_path_only(int descriptor)
{
    int flags = fcntl(descriptor, F_GETFL);
    return flags >= 0 && flags & O_PATH;
}
