/* Declarations that the source files of the C backend share. */
#ifndef PK_INTERNAL_H
#define PK_INTERNAL_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#ifndef STATX_TYPE /* the headers of glibc have struct statx since 2.28 */
#include <linux/stat.h>
#endif
#ifndef STATX_MNT_ID /* the headers of Linux have it since 5.8 */
#define STATX_MNT_ID 0x1000u
#endif
#include <time.h>
#include <unistd.h>

#include "backend.h"
#include "guards.h"

/* ``pcopy.fsio.backend.columns.OutcomeCode``, which has other names for some: LACKS is LACKS_METADATA, UNREAD is
 * SOURCE_FAILED, CHANGED is SOURCE_CHANGED. */
enum code { PENDING, DONE, SKIPPED, SLOW_PATH, DECIDE_AGAIN, LACKS, FAILED, UNREAD, CHANGED, CANCELLED };

/* The operations of ``pcopy.fsio.backend.columns.OPERATION_NAMES``, in the same order. */
enum operation {
    OP_NONE, OP_STAT, OP_OPEN, OP_FSTAT, OP_READ, OP_LISTXATTR, OP_GETXATTR, OP_CREATE, OP_WRITE, OP_CHOWN, OP_SETXATTR,
    OP_REMOVEXATTR, OP_CHMOD, OP_UTIMENSAT, OP_FSYNC, OP_CLOSE, OP_RENAME, OP_UNLINK, OP_RMDIR, OP_READDIR, OP_LSEEK,
    OP_LINK
};

/* ``pcopy.fsio.backend.batches.CopyPlan``; SLOW_PATH_PLAN is SLOW_PATH. SYNC is SYNC_FLAG, which may be added. */
enum plan { NEW = 1, REPLACE, TEMPORARY, SKIP, REFUSE, SLOW_PATH_PLAN };
#define SYNC 0x80

#define SMALL_FILE (4u << 20) /* bytes; larger files are deferred: ``interface.MAX_SMALL_FILE_BYTES`` */
#ifndef PIECE /* tests compile with smaller sizes */
#define PIECE (256u << 10) /* bytes of one read */
#endif
#define LISTED_BYTES (256u << 10) /* a directory whose names have more bytes is not processed as a whole but deferred */
#define BUFFER ((PIECE > 3 * LISTED_BYTES ? PIECE : 3 * LISTED_BYTES) + 4096)
#define PK_SIDECAR ".pcopy-incomplete-" /* begin of names of mark files: ``incomplete_mark.SIDECAR_NAME_PREFIX`` */
#define DIRECTORY \
    (O_RDONLY | O_CLOEXEC | GUARD_FLAG(DIRECTORY_ONLY, O_DIRECTORY) | GUARD_FLAG(DIRECTORY_NOFOLLOW, O_NOFOLLOW) | \
     GUARD_FLAG(DIRECTORY_NONBLOCK, O_NONBLOCK))
#define PRIVATE_DIRECTORY GUARD_VALUE(NEW_DIRECTORY_MODE, 0700, 0777) /* mode of a directory until it is finished */
#ifndef MOST_LISTED
#define MOST_LISTED 1024   /* a directory with this many or more names is not processed as a whole but deferred */
#endif
#define MOST_NAMES 4096    /* bytes; an item with a longer list of extended attribute names is deferred */
#define MOST_OPEN 40       /* directories on a path that a row has open; those below are left to the slow path */
#define NOT_LISTED UINT32_MAX /* in the place of the number of a directory: the batch has only others below it */

/* One thread, and the row that it is processing. Other threads read the atomic fields. */
typedef struct pk_worker {
    pk_backend *backend;
    pthread_t thread;
    _Atomic uint64_t since;
    _Atomic int operation;
    _Atomic(pk_batch *) batch;
    _Atomic uint32_t row;
    _Atomic uint64_t operations, wall, processor;
    /* The open directory in which the row works, if that is one below the directory of the row; otherwise -1. */
    _Atomic int inside;
    unsigned char *buffer; /* BUFFER bytes */
    int is_slow; /* true if its last rows took longer than SLOW each (pool.c) */
} pk_worker;

/* Data of a batch that C keeps until the batch is released. */
typedef struct pk_work {
    char *names; /* all names, each with a zero at its end */
    const char **name, **new_name, **temporary; /* of each row */
    uint32_t next, ended; /* first row that no thread has begun; number of rows that have ended or were cancelled */
    pk_batch *following; /* next batch in the queue */
    _Atomic uint64_t moved; /* bytes copied or read */
    _Atomic size_t results; /* bytes of the results of walks that have ended */
    /* done: 1 when all rows have ended. full: how often the file system was full or read-only since the last success.
     * is_refused: 1 if metadata could not be set, so that further rows are deferred. is_cancelled: 1 if rows that are in
     * progress should end early. */
    _Atomic int done, full, is_refused, is_cancelled;
    /* State of uid and gid: 1 if every new file in the target directory gets this owner, as one file has shown; -1 if
     * the owner may vary; 0 if it is not known yet. */
    _Atomic int owner_known;
    int is_ours; /* true if the target directory is known to belong to this process's user */
    uid_t uid;
    gid_t gid;
    /* State of the source directory: 1 if other users may replace files in it, -1 if only this user can, 0 if it is not
     * known yet. */
    _Atomic int others_may;
    _Atomic uint64_t mounts[2]; /* of PK_COMPARE_TREES: ids of the mounts of both directories, plus 1; 0: not known yet */
} pk_work;

/* An extended attribute name, and how it is treated (PK_LEAVE, PK_KEEP, or 0 to defer). */
typedef struct pk_attribute {
    struct pk_attribute *following;
    int what;
    char name[];
} pk_attribute;

struct pk_backend {
    pthread_mutex_t lock;
    pthread_cond_t more;
    int wake;
    int threads, is_closing;
    int most, working, resting; /* number of threads that may work, that have rows, and that wait for rows */
    int modifying;              /* rows that may modify anything at the same time; 0: no limit */
    uint32_t unfinished;        /* batches that are not done */
    uint64_t busy, busy_since;  /* pk_load.busy until busy_since; since then batches are unfinished */
    pk_digest digest;
    pk_batch *first, *last; /* queue of the batches that have rows which no thread has begun */
    pk_worker main; /* the thread that calls pk_poll */
    pk_worker *workers[64];
    _Atomic(pk_attribute *) attributes;
    int learnt; /* how often pk_learn was called */
    char unknown[256]; /* name of an attribute that was met and not learnt yet; empty if there is none */
};

/* Process one row: fill in its verdict and return its code, or return PK_DEFERRED. */
typedef int (*pk_row)(pk_worker *worker, pk_batch *batch, uint32_t row);
pk_row pk_row_of(const pk_batch *batch);
/* pk_changes_nothing: true if rows of this type of batch only read. pk_makes_or_removes: true if they create or
 * remove names in the target directory. */
int pk_changes_nothing(const pk_batch *batch);
int pk_makes_or_removes(const pk_batch *batch);
/* Create batch->work, with the joined names split. Return 0, or an errno: ENOMEM, or EINVAL if there is not one name
 * for each row. */
int pk_create_work(pk_batch *batch);
int pk_copy_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_read_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_stat_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_remove_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_copy_tree_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_finish_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_look_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_paths_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_sync_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_same_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_try_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_update_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_update_uniform_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_change_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_compare_trees_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_remove_tree_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_bare_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_members_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_describe_row(pk_worker *worker, pk_batch *batch, uint32_t row);
int pk_unpack_row(pk_worker *worker, pk_batch *batch, uint32_t row);
/* Functions for directories that are processed as a whole.
 *
 * pk_open_whole opens a directory by its name, without changing its atime if possible; it returns the descriptor, or
 * -1. pk_is_directory reads the status of an open directory, and returns true if it has this inode and device.
 * pk_list_all lists an open directory: names go to `names`, which has `room` bytes, joined by slashes, with a zero at the
 * end; types and inode numbers go to `all`, which may be NULL. It returns the number of names, or -1 if there are `most`
 * or more, if they do not fit, or if they cannot be read.
 */
typedef struct {
    uint8_t kinds[MOST_LISTED];
    uint64_t inodes[MOST_LISTED];
} pk_all;
/* The letter of a file type, as pk_list has it. */
uint8_t pk_letter_of(uint32_t mode);
int pk_open_whole(pk_worker *worker, int around, const char *name);
int pk_is_directory(pk_worker *worker, int directory, uint64_t inode, uint64_t device, struct stat *status);
int pk_list_all(pk_worker *worker, int directory, char *names, size_t room, int most, pk_all *all);
/* Read the status of an item into a row of those columns that exist, and its mode into *mode. Return 0, or -1 with
 * errno set; EOVERFLOW means that 64 bits cannot hold a time in nanoseconds. */
int pk_look_at(int directory, const char *name, int flags, const pk_columns *out, uint32_t row, uint32_t *mode);
int pk_make_row(pk_worker *worker, pk_batch *batch, uint32_t row);
/* Create the file of a row under this name in the target directory. Return its code. */
int pk_make_file(pk_worker *worker, pk_batch *batch, uint32_t row, const char *name);
/* Create a file in the target directory, with mode 0600, and return its descriptor, or -1 with errno set. */
int pk_create(const pk_batch *batch, const char *name);
/* Close a new file, unless its descriptor `writing` is -1, and remove it, unless `name` is NULL. */
void pk_take_back(const pk_batch *batch, int writing, const char *name);
/* Write all bytes. Return 0, or an errno. */
int pk_write_all(int writing, const unsigned char *data, size_t size);
/* Return true if the new file is known to have this owner and group already. */
int pk_has_owner(pk_batch *batch, int writing, uid_t uid, gid_t gid);
/* Close a new file whose contents are written; if the server changes times at the close (PK_LATE), set them after
 * that. Return 0, -1 if closing failed, or 1 if the times are not set. */
int pk_close_new(pk_worker *worker, const pk_batch *batch, int writing, const struct timespec times[2]);
/* Apply the metadata that follows owner and extended attributes in the order of pcopy/fsio/attributes.py: remove an
 * inherited ACL, set mode and times. Return 0, or -1 if something could not be set. */
int pk_give_mode_and_times(pk_worker *worker, const pk_batch *batch, int writing, mode_t mode,
                           const struct timespec times[2]);
void pk_release_directories(pk_batch *batch);
void pk_release_walk(pk_directory *found);
/* Return true if an open directory has no extended attribute that is copied. In a target directory, attributes of
 * the namespace "system." always count, because new items may inherit them (default ACLs). */
int pk_is_bare(pk_worker *worker, int directory, int is_target);
/* Return true if items that are created in an open directory inherit no ACL. */
int pk_has_no_default_acl(int directory);
/* Apply metadata to an open directory, where they differ from the existing ones, with the same result as
 * ``pcopy.fsio.attributes.apply_item_metadata``. Return 1 if something was set, 0 if nothing had to be, or -1 if the
 * slow path has to set all of them. */
int pk_set_metadata(const pk_batch *batch, int directory, const struct stat *status, const pk_metadata *wanted,
                    int is_made);
/* Return true if the status of an existing directory has the wanted metadata. The caller asks again if it has not: a file
 * server may show others than those that were set. */
int pk_has_metadata(const pk_batch *batch, const struct stat *status, const pk_metadata *wanted);
/* Read the status of all names (found->left of them, each with a zero at its end, `size` bytes together) in an open source
 * directory. Return -1 if a status cannot be read, or if there is no memory. */
int pk_look_at_all(pk_directory *found, int source, const char *names, size_t size);
/* Store the identity mark of an open item in `out`: its length, then the mark. `directory` is the directory that
 * contains the item. */
void pk_mark(int directory, int descriptor, uint8_t *out);
int pk_attribute_of(pk_backend *backend, const char *name);
/* Return 1 if an item has no extended attribute and no ACL that is kept. Return 0 if it may have one. */
int pk_has_no_attributes(pk_worker *worker, int flags, int directory, const char *name);
/* Return 1 if two items have the same extended attributes, apart from those that are not copied. Return 0 if they
 * differ, or if the slow path has to compare them. */
int pk_has_same_attributes(pk_worker *worker, int flags, int source, const char *name, int target, const char *new_name);
/* Open an item with O_NOATIME, or without it if that is not permitted. *keeps_atime is set to true if reading does not
 * change the atime; the pointer may be NULL. Return the descriptor, or -1 with errno set. */
int pk_open_quietly(int directory, const char *name, int flags, int *keeps_atime);
/* Open a source file for reading, with O_NOATIME if permitted. Opening is harmless even if the name refers to a FIFO
 * or device by now. Return the descriptor, or -1 with errno set. *keeps_atime is set as by pk_open_quietly. */
int pk_open_source(int directory, const char *name, int follow, int *keeps_atime);

/* State of the digest of a file whose contents are added in order. `state` is that of the block that is being
 * hashed, which has `filled` bytes; `roots` are those of complete subtrees of blocks (digest.c), `levels` their
 * heights. */
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

/* Add to a counter of a worker. Only the worker itself changes it, so that no atomic addition is needed. */
static inline void count(_Atomic uint64_t *sum, uint64_t number)
{
    atomic_store_explicit(sum, atomic_load_explicit(sum, memory_order_relaxed) + number, memory_order_relaxed);
}

/* Replace the slash that ends the first of the joined names by a zero byte. Return the begin of the next name. */
static inline char *cut_off(char *name)
{
    char *after = strchrnul(name, '/');
    *after = '\0';
    return after + 1;
}

/* Return true if the directory whose path is the first `length` bytes of `above` is on the way to `path`. */
static inline int pk_leads_to(const char *above, size_t length, const char *path)
{
    return !strncmp(above, path, length) && path[length] == '/';
}

/* Copy the name that follows the first `done` bytes of a path. Return the length of the path to the end of this name, or 0
 * if the name is too long. */
static inline size_t pk_next_name(const char *path, size_t done, char name[NAME_MAX + 1])
{
    const char *const begin = path + done + (done > 0);
    const size_t length = strcspn(begin, "/");
    if (length > NAME_MAX)
        return 0;
    memcpy(name, begin, length);
    name[length] = '\0';
    return (size_t)(begin - path) + length;
}

/* Count an item by its type, and add the size of a regular file. */
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

/* Record the system call that this worker makes next, and count it. */
static inline void doing(pk_worker *worker, int operation)
{
    atomic_store_explicit(&worker->operation, operation, memory_order_relaxed);
    count(&worker->operations, 1);
}

/* Record the operation and errno of a verdict, and return its code. */
static inline int set_verdict(pk_batch *batch, uint32_t row, int code, int operation, int number)
{
    batch->verdicts.operations[row] = (uint8_t)operation;
    batch->verdicts.errnos[row] = number;
    return code;
}

/* Return true for an error that may not occur again if the operation is repeated: interrupted by a signal, would block,
 * too many open files. */
static inline int is_passing(int number)
{
    return number == EINTR || number == EAGAIN || number == EMFILE || number == ENFILE;
}

/* Return true if all file systems can store this time (seconds since 1970, ``pcopy.fsio.attributes.are_times_portable``).
 * For other times, the stored time has to be compared with the wanted one, which the slow path does. */
static inline int is_common(time_t seconds)
{
    return seconds >= 315532800 && seconds < (time_t)1 << 31;
}

/* Set the mode of an open item. Return 0, or -1 if it is not set. fchmod silently drops the set-gid bit if the
 * caller is not in the group; so a mode with that bit is read back. */
static inline int set_mode(int descriptor, mode_t mode)
{
    struct stat status;
    if (fchmod(descriptor, mode))
        return -1;
    return !(mode & S_ISGID) ||
                   GUARD(MODE_STORED, !fstat(descriptor, &status) && (status.st_mode & 07777) == mode)
               ? 0
               : -1;
}

/* Return true if the status has the inode, device and type of the row. Columns that are NULL are ignored. */
static inline int pk_is_item(const pk_columns *rows, uint32_t row, const struct stat *status)
{
    return (rows->inode == NULL || rows->inode[row] == status->st_ino) &&
           (rows->device == NULL || rows->device[row] == status->st_dev) &&
           (rows->mode == NULL || (rows->mode[row] & S_IFMT) == (status->st_mode & S_IFMT));
}

/* Return true if another user than `us` may create or replace names in a directory with this owner and mode. */
static inline int others_may_write(uid_t owner, mode_t mode, uid_t us)
{
    return owner != us || mode & 022;
}

/* Convert a time to nanoseconds since 1970, and return true. Return 0 if 64 bits cannot hold it, or if it would be
 * one of the two ends of the range, which stand for times outside the range. */
static inline int in_nanoseconds(struct timespec time, int64_t *out)
{
    return !__builtin_mul_overflow((int64_t)time.tv_sec, (int64_t)1000000000, out) &&
           !__builtin_add_overflow(*out, (int64_t)time.tv_nsec, out) && *out != INT64_MIN && *out != INT64_MAX;
}

static inline int64_t whole_seconds(int64_t nanoseconds)
{
    return nanoseconds / 1000000000 - (nanoseconds % 1000000000 < 0);
}

/* Return true if two times, in nanoseconds, differ by `seconds` at most. */
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

/* Resolutions to which file systems round times down, in nanoseconds: first those of
 * ``pcopy.fsio.existing.TIME_RESOLUTIONS``, then one that counts only if the ctime is rounded to it, too
 * (``pcopy.fsio.metadata_update._TIME_RESOLUTIONS``). */
static const int64_t time_steps[] = {100, 1000, 10000000, 1000000000, 2000000000, 1000000};
enum { MOMENT_STEPS = sizeof time_steps / sizeof *time_steps, EQUAL_STEPS = MOMENT_STEPS - 1 };

/* Return true if `present` is the time `source`, as exactly as the file system stores times; `changed`, the ctime of
 * the existing item, shows its resolution. Same as ``pcopy.fsio.metadata_update.is_time_equal_as_stored``. */
static inline int is_same_moment(int64_t source, int64_t present, int64_t changed, int64_t window)
{
    if (is_within(source, present, window))
        return 1;
    for (int each = 0; each < MOMENT_STEPS; each++)
        if (changed % time_steps[each] == 0 && is_cut_to(source, present, time_steps[each]))
            return 1;
    return 0;
}

/* Return true if `present` is the mtime of an unchanged copy of an item with the mtime `source`. Same as
 * ``pcopy.fsio.existing.are_times_equal``. */
static inline int are_times_equal(int64_t source, int64_t present, int64_t window)
{
    if (is_within(source, present, window))
        return 1;
    for (int each = 0; each < EQUAL_STEPS; each++)
        if (is_cut_to(source, present, time_steps[each]))
            return 1;
    return 0;
}

/* statx(2). It is called by its number, because glibc has the function only since 2.28; the wheels are for 2.17 and
 * later. Linux has the call since 4.11: before, the status comes from fstatat(2). */
int pk_statx(int directory, const char *name, int flags, unsigned mask, struct statx *status);

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

/* Return the processor time of the calling thread, in nanoseconds. */
static inline uint64_t processor_time(void)
{
    return clock_nanoseconds(CLOCK_THREAD_CPUTIME_ID);
}
#endif
