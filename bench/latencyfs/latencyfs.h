/* What the parts of latencyfs know of each other. */
#define _GNU_SOURCE
#define FUSE_USE_VERSION 312
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* delays.c */

/* Nobody waits for release, releasedir and forget: "metadata" gives them no delay, only their own names do. */
#define KINDS(X) \
    X(lookup, METADATA) X(getattr, METADATA) X(setattr, METADATA) X(readlink, METADATA) X(mknod, METADATA) \
    X(mkdir, METADATA) X(unlink, METADATA) X(rmdir, METADATA) X(symlink, METADATA) X(rename, METADATA) \
    X(link, METADATA) X(create, METADATA) X(open, METADATA) X(flush, METADATA) X(fsync, METADATA) \
    X(opendir, METADATA) X(readdir, METADATA) X(fsyncdir, METADATA) X(statfs, METADATA) X(setxattr, METADATA) \
    X(getxattr, METADATA) X(listxattr, METADATA) X(removexattr, METADATA) \
    X(read, DATA) X(write, DATA) X(fallocate, DATA) X(lseek, DATA) X(copy_file_range, DATA) \
    X(release, UNWAITED) X(releasedir, UNWAITED)

#define AS_ENUM(name, group) KIND_##name,
enum kind { KINDS(AS_ENUM) MOST_KINDS };

void count(enum kind kind);

/* Counts an operation and lets it wait; true if it is refused, and has been answered. */
bool refused(fuse_req_t req, enum kind kind);
bool set_delays(char *text);
size_t tell_counts(char *text, size_t size);

/* quirks.c */

#define SETATTR_PARTS(X) X(chown) X(chmod) X(utimens) X(truncate)
#define AS_PART_ENUM(name) PART_##name,
enum part { PART_before = MOST_KINDS - 1, SETATTR_PARTS(AS_PART_ENUM) MOST_OPERATIONS };
#define QUIRK_WORD 64

/* Off: 0, or -1 where 0 means something. */
struct quirks {
    bool close_time, decompose, fixed_ctime, fold_case, listed_inodes, no_blocks, no_dot_names;
    bool sequential, short_reads, silent, twice, untyped, utf8_only;
    long coarse_times, early_end, fixed_mode, fixed_owner, list_ends, list_fails, stale;
    char foreign[QUIRK_WORD], full[QUIRK_WORD], unknown[QUIRK_WORD];
    int refusals[MOST_OPERATIONS];
};

extern struct quirks quirks;

bool set_quirks(char *text);
int refusal_of(int operation);
void distort(struct stat *status);
const char *stored_name(const char *name, char room[NAME_MAX + 1]);
int name_refusal(int directory, const char *name);
void note_open(int fd);
void note_write(int fd);
void note_close(int fd);
bool is_stale(void);
bool begins_anew(int fd, int flags);
bool is_end(int fd, off_t place);

/* nodes.c */

extern double entry_timeout, attribute_timeout;
extern int root_fd;

bool take_root(const char *directory);
int hold(fuse_ino_t id);
void let_go(int *fd);
void forget_node(fuse_ino_t id, uint64_t lookups);
int find(int directory, const char *name, struct fuse_entry_param *entry);
void reply_found(fuse_req_t req, int directory, const char *name);
void reply_done(fuse_req_t req, int result);

/* Declares a descriptor of the inode until the end of the block, or replies and returns. */
#define HOLD(fd, id) \
    __attribute__((cleanup(let_go))) int fd = hold(id); \
    if (fd < 0) { \
        fuse_reply_err(req, errno); \
        return; \
    }

/* Declares the name that is stored for a new one, or replies and returns. */
#define NAMED(stored, directory, name) \
    char stored##_room[NAME_MAX + 1]; \
    const char *stored = stored_name(name, stored##_room); \
    int stored##_error = name_refusal(directory, name); \
    if (stored##_error) { \
        fuse_reply_err(req, stored##_error); \
        return; \
    }

struct path {
    char text[32];
};

struct path path_of(int fd);

/* names.c: what is made takes the caller's umask and owner. */

void take_umask(fuse_req_t req);
int give(fuse_req_t req, int directory, const char *name);

/* The parts that do operations; each puts its own in. */

void add_names(struct fuse_lowlevel_ops *operations);
void add_inodes(struct fuse_lowlevel_ops *operations);
void add_files(struct fuse_lowlevel_ops *operations);
