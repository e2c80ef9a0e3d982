/* To be preloaded: a directory lists wrong types for names that begin with "odd": the letter of PCOPY_TEST_TYPE. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

struct entry {
    uint64_t inode;
    int64_t next;
    unsigned short length;
    unsigned char kind;
    char name[];
};

static unsigned char wrong_kind(void)
{
    const char *type = getenv("PCOPY_TEST_TYPE");
    switch (type != NULL ? *type : 0) {
    case 'f': return DT_REG;
    case 'd': return DT_DIR;
    case 'l': return DT_LNK;
    case 'p': return DT_FIFO;
    default: return DT_UNKNOWN;
    }
}

long syscall(long number, ...)
{
    static long (*real)(long, ...);
    va_list list;
    long given[6];
    if (real == NULL)
        real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    va_start(list, number);
    for (int each = 0; each < 6; each++)
        given[each] = va_arg(list, long);
    va_end(list);
    const long result = real(number, given[0], given[1], given[2], given[3], given[4], given[5]);
    if (number != SYS_getdents64)
        return result;
    for (long at = 0; at < result;) {
        struct entry *const entry = (struct entry *)(given[1] + at);
        if (!strncmp(entry->name, "odd", 3))
            entry->kind = wrong_kind();
        at += entry->length;
    }
    return result;
}
