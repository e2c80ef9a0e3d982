/* A library to be preloaded: on the file system with the device number PCOPY_TEST_FOLDS, names that differ only in the
   case of ASCII letters are equal, and the first spelling is stored. It simulates a file system that folds case, if the
   kernel has none: before each call with a directory and a name, an existing spelling of the name is looked up. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

struct spelling {
    char text[4096];
};

/* Returns the existing spelling of `name` below `directory`, or `name` itself. */
static const char *spelled(int directory, const char *name, struct spelling *found)
{
    const char *device = getenv("PCOPY_TEST_FOLDS");
    struct stat status;
    struct dirent *entry;
    DIR *stream;
    int opened;

    if (device == NULL || name == NULL || name[0] == '\0' || strchr(name, '/') != NULL)
        return name;
    if (directory < 0 || fstat(directory, &status) || status.st_dev != strtoul(device, NULL, 10))
        return name;
    opened = (int)syscall(SYS_openat, directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (opened < 0 || (stream = fdopendir(opened)) == NULL)
        return name;
    found->text[0] = '\0';
    while ((entry = readdir(stream)) != NULL)
        if (!strcasecmp(entry->d_name, name))
            snprintf(found->text, sizeof found->text, "%s", entry->d_name);
    closedir(stream);
    return found->text[0] ? found->text : name;
}

int openat(int directory, const char *name, int flags, ...)
{
    struct spelling found;
    va_list more;
    mode_t mode;

    va_start(more, flags);
    mode = va_arg(more, mode_t);
    va_end(more);
    return (int)syscall(SYS_openat, directory, spelled(directory, name, &found), flags, mode);
}

int openat64(int directory, const char *name, int flags, ...)
{
    va_list more;
    mode_t mode;

    va_start(more, flags);
    mode = va_arg(more, mode_t);
    va_end(more);
    return openat(directory, name, flags, mode);
}

int fstatat(int directory, const char *name, struct stat *status, int flags)
{
    struct spelling found;
    return REAL(fstatat)(directory, spelled(directory, name, &found), status, flags);
}

int fstatat64(int directory, const char *name, struct stat64 *status, int flags)
{
    struct spelling found;
    return REAL(fstatat64)(directory, spelled(directory, name, &found), status, flags);
}

int mkdirat(int directory, const char *name, mode_t mode)
{
    struct spelling found;
    return REAL(mkdirat)(directory, spelled(directory, name, &found), mode);
}

int mknodat(int directory, const char *name, mode_t mode, dev_t device)
{
    struct spelling found;
    return REAL(mknodat)(directory, spelled(directory, name, &found), mode, device);
}

int symlinkat(const char *goal, int directory, const char *name)
{
    struct spelling found;
    return REAL(symlinkat)(goal, directory, spelled(directory, name, &found));
}

int unlinkat(int directory, const char *name, int flags)
{
    struct spelling found;
    return REAL(unlinkat)(directory, spelled(directory, name, &found), flags);
}

int linkat(int from, const char *old, int to, const char *new, int flags)
{
    struct spelling found, free;
    return REAL(linkat)(from, spelled(from, old, &found), to, spelled(to, new, &free), flags);
}

int renameat(int from, const char *old, int to, const char *new)
{
    struct spelling found, free;
    return REAL(renameat)(from, spelled(from, old, &found), to, spelled(to, new, &free));
}
