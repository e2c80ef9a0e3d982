/* Answers the system calls of the C backend by functions in Python: the simulated disk of tests/recovery.
 *
 * The C backend is linked with --wrap for each function below, so that it calls `__wrap_openat` in place of `openat`.
 * The functions `sim_…` are in tests/recovery/native_calls.py. They return the result of the system call, or a negative
 * errno, or ENDED if the simulated process was killed in this call. Then control leaves the C backend at once by
 * longjmp: nothing of it runs after its last system call.
 *
 * Threads of the C backend are strands of the simulation (tests/recovery/world.py). One strand runs at a time, so that
 * locks are never contended; only waiting for a condition variable is simulated.
 */
#include "simulated.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

static __thread jmp_buf *killed; /* where control continues if the simulated process is killed */

static long result(long answer)
{
    if (answer == SIM_ENDED)
        longjmp(*killed, 1);
    if (answer < 0) {
        errno = (int)-answer;
        return -1;
    }
    return answer;
}

/* Functions of the C backend that make system calls. They return SIM_ENDED if the process was killed meanwhile. */

#define ENDS_HERE(value)        \
    jmp_buf here;               \
    killed = &here;             \
    if (setjmp(here))           \
        return value

int sim_poll(pk_backend *backend, uint64_t nanoseconds)
{
    ENDS_HERE(SIM_ENDED);
    pk_poll(backend, nanoseconds);
    return 0;
}

int sim_list(int directory, pk_listing *listing, char *names, size_t size, uint8_t *kinds, uint64_t *inodes, int most)
{
    ENDS_HERE(SIM_ENDED);
    return pk_list(directory, listing, names, size, kinds, inodes, most);
}

int sim_open_directory(int around, const char *name, int flags, int wants_mark, pk_opened *opened)
{
    ENDS_HERE(SIM_ENDED);
    return pk_open_directory(around, name, flags, wants_mark, opened);
}

/* End the threads, as pk_close does, but release no memory: the process may be killed meanwhile. */
int sim_end_threads(pk_backend *backend)
{
    ENDS_HERE(SIM_ENDED);
    pthread_mutex_lock(&backend->lock);
    backend->is_closing = 1;
    pthread_cond_broadcast(&backend->more);
    pthread_mutex_unlock(&backend->lock);
    for (int each = 0; each < backend->threads; each++)
        pthread_join(backend->workers[each]->thread, NULL);
    return 0;
}

/* Run the thread that the C backend has created; return when it has ended, or was killed. */
void sim_run_thread(void *(*run)(void *), void *argument)
{
    ENDS_HERE();
    run(argument);
}

/* Release the memory of a backend whose process was killed. No thread of it runs any more. */
void sim_discard(pk_backend *backend)
{
    for (int each = 0; each < backend->threads; each++) {
        free(backend->workers[each]->buffer);
        free(backend->workers[each]);
    }
    free(backend->main.buffer);
    for (pk_attribute *each = backend->attributes; each != NULL;) {
        pk_attribute *following = each->following;
        free(each);
        each = following;
    }
    free(backend);
}

/* Status. */

static struct timespec time_of(int64_t nanoseconds)
{
    return (struct timespec){nanoseconds / 1000000000, nanoseconds % 1000000000};
}

static int status(int at, const char *name, int flags, struct stat *out)
{
    sim_stat found;
    if (result(sim_status(at, name, flags, &found)))
        return -1;
    memset(out, 0, sizeof *out);
    out->st_dev = found.device;
    out->st_ino = found.inode;
    out->st_mode = found.mode;
    out->st_nlink = found.links;
    out->st_uid = found.uid;
    out->st_gid = found.gid;
    out->st_rdev = found.special;
    out->st_size = found.size;
    out->st_blksize = 4096;
    out->st_blocks = found.blocks;
    out->st_atim = time_of(found.atime);
    out->st_mtim = time_of(found.mtime);
    out->st_ctim = time_of(found.ctime);
    return 0;
}

static struct statx_timestamp stamp_of(int64_t nanoseconds)
{
    struct statx_timestamp stamp = {0};
    stamp.tv_sec = nanoseconds / 1000000000;
    stamp.tv_nsec = (uint32_t)(nanoseconds % 1000000000);
    return stamp;
}

static int extended_status(int at, const char *name, int flags, struct statx *out)
{
    sim_stat found;
    if (result(sim_status(at, name, flags, &found)))
        return -1;
    memset(out, 0, sizeof *out);
    out->stx_mask = STATX_BASIC_STATS | STATX_BTIME | STATX_MNT_ID;
    out->stx_dev_major = major(found.device);
    out->stx_dev_minor = minor(found.device);
    out->stx_ino = found.inode;
    out->stx_mode = (uint16_t)found.mode;
    out->stx_nlink = (uint32_t)found.links;
    out->stx_uid = found.uid;
    out->stx_gid = found.gid;
    out->stx_rdev_major = major(found.special);
    out->stx_rdev_minor = minor(found.special);
    out->stx_size = (uint64_t)found.size;
    out->stx_blksize = 4096;
    out->stx_blocks = (uint64_t)found.blocks;
    out->stx_atime = stamp_of(found.atime);
    out->stx_mtime = stamp_of(found.mtime);
    out->stx_ctime = stamp_of(found.ctime);
    out->stx_btime = stamp_of(found.birth);
    out->stx_mnt_id = 1;
    return 0;
}

#define WRAP(type, name, parameters) \
    type __wrap_##name parameters;   \
    type __wrap_##name parameters

WRAP(int, fstat, (int file, struct stat *out)) { return status(file, "", AT_EMPTY_PATH, out); }
WRAP(int, fstatat, (int at, const char *name, struct stat *out, int flags)) { return status(at, name, flags, out); }

WRAP(int, fstatfs, (int file, struct statfs *out))
{
    memset(out, 0, sizeof *out);
    out->f_type = result(sim_file_system(file));
    return out->f_type < 0 ? -1 : 0;
}

WRAP(int, name_to_handle_at, (int at, const char *name, struct file_handle *out, int *mount, int flags))
{
    (void)name, (void)flags;
    const long size = result(sim_handle(at, (char *)out->f_handle, out->handle_bytes));
    if (size < 0)
        return -1;
    out->handle_bytes = (unsigned)size;
    out->handle_type = 1;
    *mount = 1;
    return 0;
}

WRAP(long, syscall, (long number, ...))
{
    va_list values;
    va_start(values, number);
    long answer;
    if (number == SYS_getdents64) {
        const int directory = va_arg(values, int);
        char *out = va_arg(values, char *);
        answer = result(sim_entries(directory, out, va_arg(values, size_t)));
    } else if (number == SYS_statx) {
        const int at = va_arg(values, int);
        const char *name = va_arg(values, const char *);
        const int flags = va_arg(values, int);
        (void)va_arg(values, unsigned);
        answer = extended_status(at, name, flags, va_arg(values, struct statx *));
    } else { /* fchmodat2, which Linux has since 6.6 */
        answer = result(-ENOSYS);
    }
    va_end(values);
    return answer;
}

/* Names. */

static int open_at(int at, const char *name, int flags, int mode) { return (int)result(sim_open(at, name, flags, mode)); }

WRAP(int, openat, (int at, const char *name, int flags, ...))
{
    va_list values;
    va_start(values, flags);
    const int mode = flags & O_CREAT ? va_arg(values, int) : 0;
    va_end(values);
    return open_at(at, name, flags, mode);
}

WRAP(int, open, (const char *name, int flags, ...)) { return open_at(AT_FDCWD, name, flags, 0); }
WRAP(int, close, (int file)) { return (int)result(sim_close(file)); }
WRAP(int, mkdirat, (int at, const char *name, mode_t mode)) { return (int)result(sim_make_directory(at, name, (int)mode)); }
WRAP(int, unlinkat, (int at, const char *name, int flags)) { return (int)result(sim_unlink(at, name, flags)); }
WRAP(int, renameat, (int from, const char *old, int to, const char *new)) { return (int)result(sim_rename(from, old, to, new)); }
WRAP(ssize_t, readlinkat, (int at, const char *name, char *out, size_t size)) { return result(sim_link_target(at, name, out, size)); }

/* Contents. */

WRAP(ssize_t, read, (int file, void *out, size_t size)) { return result(sim_read(file, out, size)); }
WRAP(ssize_t, write, (int file, const void *data, size_t size)) { return result(sim_write(file, data, size)); }
WRAP(off_t, lseek, (int file, off_t at, int whence)) { return result(sim_seek(file, at, whence)); }
WRAP(int, fsync, (int file)) { return (int)result(sim_sync(file)); }
WRAP(int, posix_fadvise, (int file, off_t at, off_t size, int advice)) { (void)file, (void)at, (void)size, (void)advice; return 0; }

/* Metadata. */

WRAP(int, fchmod, (int file, mode_t mode)) { return (int)result(sim_change_mode(file, "", (int)mode)); }
WRAP(int, chmod, (const char *path, mode_t mode)) { return (int)result(sim_change_mode(AT_FDCWD, path, (int)mode)); }
WRAP(int, fchown, (int file, uid_t uid, gid_t gid)) { return (int)result(sim_change_owner(file, (int)uid, (int)gid)); }

WRAP(int, fchownat, (int at, const char *name, uid_t uid, gid_t gid, int flags))
{
    (void)name, (void)flags;
    return (int)result(sim_change_owner(at, (int)uid, (int)gid));
}

static int change_times(int at, const char *path, const struct timespec times[2])
{
    int64_t in_nanoseconds[2];
    for (int each = 0; each < 2; each++)
        in_nanoseconds[each] = times[each].tv_nsec == UTIME_OMIT ? SIM_OMIT : times[each].tv_sec * 1000000000 + times[each].tv_nsec;
    return (int)result(sim_change_times(at, path, in_nanoseconds[0], in_nanoseconds[1]));
}

WRAP(int, futimens, (int file, const struct timespec *times)) { return change_times(file, "", times); }

WRAP(int, utimensat, (int at, const char *name, const struct timespec *times, int flags))
{
    (void)flags;
    return change_times(at, name, times);
}

#define LISTS(name, at, path, follow, first)                                                      \
    WRAP(ssize_t, name, (first, char *out, size_t size))                                          \
    {                                                                                             \
        return result(sim_attribute_names(at, path, follow, out, size));                          \
    }
LISTS(flistxattr, file, "", 0, int file)
LISTS(listxattr, AT_FDCWD, path, 1, const char *path)
LISTS(llistxattr, AT_FDCWD, path, 0, const char *path)

#define GETS(name, at, path, follow, first)                                                       \
    WRAP(ssize_t, name, (first, const char *attribute, void *out, size_t size))                   \
    {                                                                                             \
        return result(sim_attribute(at, path, follow, attribute, out, size));                     \
    }
GETS(fgetxattr, file, "", 0, int file)
GETS(getxattr, AT_FDCWD, path, 1, const char *path)
GETS(lgetxattr, AT_FDCWD, path, 0, const char *path)

WRAP(int, fsetxattr, (int file, const char *name, const void *value, size_t size, int flags))
{
    (void)flags;
    return (int)result(sim_set_attribute(file, name, value, size));
}

WRAP(int, fremovexattr, (int file, const char *name)) { return (int)result(sim_remove_attribute(file, name)); }

/* The process. */

WRAP(uid_t, geteuid, (void)) { return SIM_USER; }
WRAP(gid_t, getegid, (void)) { return SIM_USER; }
WRAP(int, getgroups, (int size, gid_t *out)) { (void)size, (void)out; return 0; }

WRAP(int, clock_gettime, (clockid_t clock, struct timespec *out))
{
    *out = time_of(sim_clock(clock == CLOCK_MONOTONIC));
    return 0;
}

/* Threads. */

WRAP(int, pthread_create, (pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument))
{
    (void)attributes;
    *thread = (pthread_t)sim_start_thread(run, argument);
    return 0;
}

WRAP(int, pthread_join, (pthread_t thread, void **out)) { (void)out; return (int)result(sim_join_thread((long)thread)); }

WRAP(int, pthread_cond_wait, (pthread_cond_t *condition, pthread_mutex_t *mutex))
{
    pthread_mutex_unlock(mutex);
    result(sim_wait_for(condition));
    pthread_mutex_lock(mutex);
    return 0;
}

WRAP(int, pthread_cond_signal, (pthread_cond_t *condition)) { sim_wake_waiting(condition, 0); return 0; }
WRAP(int, pthread_cond_broadcast, (pthread_cond_t *condition)) { sim_wake_waiting(condition, 1); return 0; }

/* Memory, which sim_discard releases without knowing its size. */

WRAP(void *, mmap, (void *at, size_t size, int protection, int flags, int file, off_t offset))
{
    (void)at, (void)protection, (void)flags, (void)file, (void)offset;
    return calloc(1, size);
}

WRAP(int, munmap, (void *at, size_t size)) { (void)size; free(at); return 0; }
