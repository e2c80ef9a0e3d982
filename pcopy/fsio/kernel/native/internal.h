/* What the parts of the kernel share. */
#ifndef PK_INTERNAL_H
#define PK_INTERNAL_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "kernel.h"

/* pcopy.fsio.kernel.columns.Code */
enum code { PENDING, DONE, SKIPPED, CARE, ANEW, LACKS, FAILED, UNREAD, CHANGED, CANCELLED };

/* pcopy.fsio.kernel.columns.OPERATIONS */
enum operation {
    OP_NONE, OP_STAT, OP_OPEN, OP_FSTAT, OP_READ, OP_LISTXATTR, OP_GETXATTR, OP_CREATE, OP_WRITE, OP_CHOWN, OP_SETXATTR,
    OP_REMOVEXATTR, OP_CHMOD, OP_UTIMENSAT, OP_FSYNC, OP_CLOSE, OP_RENAME, OP_UNLINK, OP_RMDIR, OP_READDIR, OP_LSEEK,
    OP_LINK
};

/* pcopy.fsio.kernel.batches.Plan */
enum plan { NEW = 1, REPLACE, TEMPORARY, SKIP, REFUSE, CARE_PLAN };
#define SYNC 0x80

#define SMALL_FILE (4u << 20)
#define PIECE (256u << 10) /* bytes of one read */
#define PK_SIDECAR ".pcopy-incomplete-" /* pcopy.fsio.half_written.SIDECAR */
#define DIRECTORY (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK)
#define MOST_LISTED 1024   /* names of a directory that is done as a whole */
#define MOST_NAMES 4096    /* bytes of the names of a file's extended attributes that are looked at here */

/* One thread, and what it does now; the atomics are read by others. */
typedef struct pk_worker {
    pk_kernel *kernel;
    pthread_t thread;
    _Atomic uint64_t since;
    _Atomic int operation;
    _Atomic(pk_batch *) batch;
    _Atomic uint32_t row;
    _Atomic uint64_t operations, wall, processor;
    unsigned char *buffer; /* PIECE + 1 bytes */
    int is_slow; /* did its last rows take long? */
} pk_worker;

/* What is kept of a batch as long as it is not released. */
typedef struct pk_work {
    char *names; /* all names, each with a zero at its end */
    const char **name, **new_name, **temporary;
    uint32_t next, ended;
    pk_batch *following;
    _Atomic uint64_t moved;
    _Atomic int done, full, is_refused;
    /* Whose what is made in the target directory is, once one file has shown it: 1; -1: that may change. */
    _Atomic int owner_known;
    int is_ours; /* is the target directory known to be? */
    uid_t uid;
    gid_t gid;
    /* May others put something else in the place of a source? 1, or -1: nobody but us. */
    _Atomic int others_may;
} pk_work;

/* An extended attribute, and what is done with it. */
typedef struct pk_attribute {
    struct pk_attribute *following;
    int what;
    char name[];
} pk_attribute;

struct pk_kernel {
    pthread_mutex_t lock;
    pthread_cond_t more;
    int wake;
    int threads, is_closing;
    int most, working, resting; /* threads that may work, that have rows, and that wait for some */
    int modifying;
    uint32_t unfinished;        /* batches that are not done */
    uint64_t busy, busy_since;
    pk_digest digest;
    pk_batch *first, *last; /* with rows that nobody has begun */
    pk_worker main;
    pk_worker *workers[64];
    _Atomic(pk_attribute *) attributes;
    int learnt; /* how many of them there are */
    char unknown[256];
};

/* One row: fills its verdict, or returns PK_DEFERRED. */
typedef int (*pk_row)(pk_worker *worker, pk_batch *batch, uint32_t row);
pk_row pk_row_of(const pk_batch *batch);
/* Of all rows of a batch. */
int pk_changes_nothing(const pk_batch *batch);
int pk_makes_or_removes(const pk_batch *batch);
/* Makes batch->work of its names: 0, or an errno, as pk_submit. */
int pk_unpack(pk_batch *batch);
int pk_copy_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_read_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_stat_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_remove_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_enter_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_finish_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_look_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_paths_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_sync_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_same_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_try_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_mend_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_mend_plain_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_mend_within_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_compare_within_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_remove_within_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_bare_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_member_row(pk_worker *worker, pk_batch *batch, uint32_t row);
/* Whole directories: the one of that name, open without changing its atime, or -1; is an open one what was found; and
 * the names of all that is in it, joined by slashes, with a zero behind the last one, beside the `room` bytes for them.
 * Returns their number, or -1: there are `most` or more, or no room for them, or they can't be read. `all` may be NULL. */
typedef struct {
    uint8_t kinds[MOST_LISTED];
    uint64_t inodes[MOST_LISTED];
} pk_all;
int pk_open_whole(pk_worker *worker, int around, const char *name);
int pk_is_directory(pk_worker *worker, int directory, uint64_t inode, uint64_t device);
int pk_list_all(pk_worker *worker, int directory, char *names, size_t room, int most, pk_all *all);
/* One more item is left of a directory, with room for its name of so many bytes. */
void pk_leave(pk_directory *found, const char *name, size_t length, int letter, uint64_t inode);
/* What an item is goes into a row of the columns that there are. -1 with errno set; EOVERFLOW: these can't hold it. */
int pk_look_at(int directory, const char *name, int flags, const pk_columns *out, uint32_t row, uint32_t *mode);
int pk_make_row(pk_worker *worker, pk_batch *batch, uint32_t row);
/* A new file in the target directory, open, or -1 with errno set. */
int pk_create(const pk_batch *batch, const char *name);
/* Closes it, unless that is -1, and removes it, unless it has no name. */
void pk_take_back(const pk_batch *batch, int writing, const char *name);
/* 0, or an errno. */
int pk_write_all(int writing, const unsigned char *data, size_t size);
/* Has it that owner already, as far as that is known? */
int pk_has_owner(pk_batch *batch, int writing, uid_t uid, gid_t gid);
/* Close a new file that is written, and set its times after that if the server changes them at the close. */
int pk_close_new(pk_worker *worker, const pk_batch *batch, int writing, const struct timespec times[2]);
/* What follows its owner and attributes, in the order of pcopy/fsio/attributes.py: ACL, mode and times. -1: not all. */
int pk_give_mode_and_times(pk_worker *worker, const pk_batch *batch, int writing, mode_t mode,
                           const struct timespec times[2]);
void pk_release_directories(pk_batch *batch);
/* Looks at so many names (`left`), which are joined in `names`, in an open directory of the source. -1: one can't be
 * looked at, or there is no memory. */
int pk_look_at_all(pk_directory *found, int source, const char *names, size_t used);
/* Skips or copies what can be at once, and leaves it out of what was found. */
void pk_do_at_once(pk_worker *worker, const pk_batch *batch, pk_directory *found, int source, int target);
/* The mark of what is open, and lies in that directory: its length, and as many bytes. */
void pk_mark(int directory, int descriptor, uint8_t *out);
int pk_attribute_of(pk_kernel *kernel, const char *name);
/* Have two items the same attributes, as far as these are copied? 0: no, or that takes more care. */
int pk_has_same_attributes(pk_worker *worker, int flags, int source, const char *name, int target, const char *new_name);
/* Opens it without changing its atime, where that is allowed: does it stay then when it is read? (NULL: nobody
 * asks.) -1 with errno set. */
int pk_open_quietly(int directory, const char *name, int flags, int *keeps_atime);
/* The same for a source, which may be no regular file by now. */
int pk_open_source(int directory, const char *name, int follow, int *keeps_atime);

/* The digest of a file, whose bytes come in order. */
typedef struct pk_hasher {
    const pk_digest *digest;
    uint64_t size, filled;
    int subtrees;
    uint8_t levels[24];
    uint8_t roots[24][32];
    _Alignas(64) uint8_t state[2048];
} pk_hasher;
void pk_begin(pk_hasher *hasher, const pk_digest *digest);
void pk_update(pk_hasher *hasher, const uint8_t *data, size_t size);
void pk_end(pk_hasher *hasher, uint8_t *out);
void pk_digest_whole(const pk_digest *digest, const uint8_t *data, size_t size, uint8_t *out);

/* Others only read what a worker counts. */
static inline void count(_Atomic uint64_t *sum, uint64_t number)
{
    atomic_store_explicit(sum, atomic_load_explicit(sum, memory_order_relaxed) + number, memory_order_relaxed);
}

/* A zero at the end of the first one of joined names. Returns where the next one begins. */
static inline char *cut_off(char *name)
{
    char *after = strchrnul(name, '/');
    *after = '\0';
    return after + 1;
}

/* An item counts as what it is. */
static inline void add_item(pk_sums *sums, const struct stat *status)
{
    switch (status->st_mode & S_IFMT) {
    case S_IFREG:
        sums->files++;
        sums->bytes += (uint64_t)status->st_size;
        break;
    case S_IFDIR: sums->directories++; break;
    case S_IFLNK: sums->links++; break;
    default: sums->others++;
    }
}

static inline void doing(pk_worker *worker, int operation)
{
    atomic_store_explicit(&worker->operation, operation, memory_order_relaxed);
    count(&worker->operations, 1);
}

/* The row has ended so. */
static inline int told(pk_batch *batch, uint32_t row, int code, int operation, int number)
{
    batch->verdicts.operations[row] = (uint8_t)operation;
    batch->verdicts.errnos[row] = number;
    return code;
}

/* A signal came between, it would have to wait, or too many files are open: done once more, it may be well. */
static inline int is_passing(int number)
{
    return number == EINTR || number == EAGAIN || number == EMFILE || number == ENFILE;
}

/* Times that all file systems hold, in seconds (pcopy.fsio.attributes.has_common_times): what others make of theirs must
 * be looked at. */
static inline int is_common(time_t seconds)
{
    return seconds >= 315532800 && seconds < (time_t)1 << 31;
}

/* -1: it is not set. fchmod takes a set-gid bit away from whoever is not in the group, and does not say so. */
static inline int set_mode(int descriptor, mode_t mode)
{
    struct stat status;
    if (fchmod(descriptor, mode))
        return -1;
    return mode & S_ISGID && (fstat(descriptor, &status) || (status.st_mode & 07777) != mode) ? -1 : 0;
}

/* Is it the item of that row, as far as there are columns that tell? */
static inline int pk_is_item(const pk_columns *rows, uint32_t row, const struct stat *status)
{
    return (rows->inode == NULL || rows->inode[row] == status->st_ino) &&
           (rows->device == NULL || rows->device[row] == status->st_dev) &&
           (rows->mode == NULL || (rows->mode[row] & S_IFMT) == (status->st_mode & S_IFMT));
}

static inline int others_may_write(uid_t owner, mode_t mode, uid_t us)
{
    return owner != us || mode & 022;
}

/* Nanoseconds since 1970; 0 if 64 bits can't hold them, or if they would be one of the two ends. */
static inline int in_nanoseconds(struct timespec time, int64_t *out)
{
    return !__builtin_mul_overflow((int64_t)time.tv_sec, (int64_t)1000000000, out) &&
           !__builtin_add_overflow(*out, (int64_t)time.tv_nsec, out) && *out != INT64_MIN && *out != INT64_MAX;
}

static inline int64_t whole_seconds(int64_t nanoseconds)
{
    return nanoseconds / 1000000000 - (nanoseconds % 1000000000 < 0);
}

/* Return true if two times, in nanoseconds, differ by so many seconds at most. */
static inline int is_within(int64_t one, int64_t other, int64_t seconds)
{
    const __int128 later = (__int128)one - other;
    return (later < 0 ? -later : later) <= (__int128)seconds * 1000000000;
}

/* Return true if `present` is the time `source`, rounded down to a multiple of `step` nanoseconds. */
static inline int is_cut_to(int64_t source, int64_t present, int64_t step)
{
    const int64_t rest = source % step;
    return (__int128)source - (rest < 0 ? rest + step : rest) == present;
}

/* pcopy.fsio.mending._STEPS: first pcopy.fsio.existing.TIME_STEPS, then what counts only if the ctime is cut alike */
static const int64_t time_steps[] = {100, 1000, 10000000, 1000000000, 2000000000, 1000000};
enum { MOMENT_STEPS = sizeof time_steps / sizeof *time_steps, EQUAL_STEPS = MOMENT_STEPS - 1 };

/* pcopy.fsio.mending.is_same_moment */
static inline int is_same_moment(int64_t source, int64_t present, int64_t changed, int64_t window)
{
    if (is_within(source, present, window))
        return 1;
    for (int each = 0; each < MOMENT_STEPS; each++)
        if (changed % time_steps[each] == 0 && is_cut_to(source, present, time_steps[each]))
            return 1;
    return 0;
}

/* pcopy.fsio.existing.are_times_equal */
static inline int are_times_equal(int64_t source, int64_t present, int64_t window)
{
    if (is_within(source, present, window))
        return 1;
    for (int each = 0; each < EQUAL_STEPS; each++)
        if (is_cut_to(source, present, time_steps[each]))
            return 1;
    return 0;
}

static inline uint64_t clock_nanoseconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline uint64_t pk_now(void)
{
    return clock_nanoseconds(CLOCK_MONOTONIC);
}

/* Of the thread that asks. */
static inline uint64_t processor_time(void)
{
    return clock_nanoseconds(CLOCK_THREAD_CPUTIME_ID);
}
#endif
