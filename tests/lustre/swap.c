/* Part of the stand-in for Lustre: functions to give a file another layout. Files are small in tests. */
#include <dirent.h>
#include <limits.h>
#include <sys/xattr.h>

#include "standin.h"

/* The contents of the file; to be freed. */
static unsigned char *contents(int descriptor, size_t *size)
{
    struct stat status;
    unsigned char *bytes;

    if (syscall(SYS_fstat, descriptor, &status) || !(bytes = malloc((size_t)status.st_size + 1)))
        return NULL;
    *size = 0;
    while (*size < (size_t)status.st_size) {
        long got = syscall(SYS_pread64, descriptor, bytes + *size, (size_t)status.st_size - *size, (off_t)*size);
        if (got <= 0) {
            free(bytes);
            return NULL;
        }
        *size += (size_t)got;
    }
    return bytes;
}

static bool store(int descriptor, const unsigned char *bytes, size_t size)
{
    size_t at = 0;

    if (syscall(SYS_ftruncate, descriptor, 0))
        return false;
    while (at < size) {
        long put = syscall(SYS_pwrite64, descriptor, bytes + at, size - at, (off_t)at);
        if (put <= 0)
            return false;
        at += (size_t)put;
    }
    return true;
}

/* A hash of the contents (FNV). */
uint64_t standin_version(const struct item *item)
{
    size_t size;
    unsigned char *bytes = contents(item->descriptor, &size);
    uint64_t version = 0xcbf29ce484222325;

    for (size_t at = 0; bytes && at < size; at++)
        version = (version ^ bytes[at]) * 0x100000001b3;
    free(bytes);
    return version;
}

static bool writes(const char *process, const char *number)
{
    char path[PATH_MAX], line[128];
    unsigned flags = 0;
    FILE *info;

    snprintf(path, sizeof path, "/proc/%s/fdinfo/%s", process, number);
    if (!(info = fopen(path, "re")))
        return false;
    while (fgets(line, sizeof line, info))
        if (sscanf(line, "flags: %o", &flags) == 1)
            break;
    fclose(info);
    return (flags & O_ACCMODE) != O_RDONLY;
}

/* True if another process has the file open for writing. */
bool standin_is_written(const struct item *item)
{
    DIR *processes = opendir("/proc"), *descriptors;
    struct dirent *process, *number;
    struct stat status;
    char path[PATH_MAX];
    bool found = false;

    while (processes && !found && (process = readdir(processes))) {
        snprintf(path, sizeof path, "/proc/%s/fd", process->d_name);
        if (atoi(process->d_name) <= 0 || atoi(process->d_name) == getpid() || !(descriptors = opendir(path)))
            continue;
        while (!found && (number = readdir(descriptors))) {
            snprintf(path, sizeof path, "/proc/%s/fd/%s", process->d_name, number->d_name);
            found = !syscall(SYS_stat, path, &status) && status.st_dev == item->status.st_dev &&
                    status.st_ino == item->status.st_ino && writes(process->d_name, number->d_name);
        }
        closedir(descriptors);
    }
    if (processes)
        closedir(processes);
    return found;
}

/* The number of bytes of a file with this layout on its MDT. */
static uint64_t on_mdt(const unsigned char *blob, ssize_t length)
{
    struct layout layout;
    uint64_t bytes = 0;

    if (standin_parse(blob, (size_t)length, &layout))
        return 0;
    for (int each = 0; each < layout.components; each++)
        if (layout.component[each].pattern & ON_MDT)
            bytes += layout.component[each].end - layout.component[each].start;
    return bytes;
}

static bool keep_times(int descriptor, const struct stat *status)
{
    const struct timespec times[2] = {status->st_atim, status->st_mtim};

    return syscall(SYS_utimensat, descriptor, NULL, times, 0) == 0;
}

/* Exchanges contents, layouts and their times of both files; returns an error, 0 for none. */
int standin_swap(const struct item *one, int descriptor)
{
    unsigned char blobs[2][MOST_BYTES], *bytes[2] = {NULL, NULL};
    struct item other;
    ssize_t lengths[2];
    size_t sizes[2];
    int error = EIO;

    if (!standin_item_of_descriptor(descriptor, &other) || other.status.st_dev != one->status.st_dev)
        return EXDEV;
    if (standin_server(one) != standin_server(&other))
        return EPERM;
    lengths[0] = standin_get(one, LAYOUT, blobs[0], MOST_BYTES);
    lengths[1] = standin_get(&other, LAYOUT, blobs[1], MOST_BYTES);
    if (lengths[0] < 0 || lengths[1] < 0)
        return ENODATA;
    if (on_mdt(blobs[1], lengths[1]) && on_mdt(blobs[0], lengths[0]) != on_mdt(blobs[1], lengths[1]))
        return EOPNOTSUPP;
    bytes[0] = contents(one->descriptor, &sizes[0]);
    bytes[1] = contents(descriptor, &sizes[1]);
    if (bytes[0] && bytes[1] && store(one->descriptor, bytes[1], sizes[1]) && store(descriptor, bytes[0], sizes[0])) {
        error = standin_set(one, LAYOUT, blobs[1], (size_t)lengths[1], 0);
        if (!error)
            error = standin_set(&other, LAYOUT, blobs[0], (size_t)lengths[0], 0);
        if (!error && !(keep_times(one->descriptor, &other.status) && keep_times(descriptor, &one->status)))
            error = EIO;
    }
    free(bytes[0]);
    free(bytes[1]);
    standin_log("swap ino=%lu other=%lu", (unsigned long)one->status.st_ino, (unsigned long)other.status.st_ino);
    return error;
}
