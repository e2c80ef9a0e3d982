/* Declarations that the parts of latencyfs share. */
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

/* No process waits for release, releasedir and forget: the group "metadata" does not delay them, only their own
 * names do. */
#define KINDS(X) \
    X(lookup, METADATA) X(getattr, METADATA) X(setattr, METADATA) X(readlink, METADATA) X(mknod, METADATA) \
    X(mkdir, METADATA) X(unlink, METADATA) X(rmdir, METADATA) X(symlink, METADATA) X(rename, METADATA) \
    X(link, METADATA) X(create, METADATA) X(open, METADATA) X(flush, METADATA) X(fsync, METADATA) \
    X(opendir, METADATA) X(readdir, METADATA) X(fsyncdir, METADATA) X(statfs, METADATA) X(setxattr, METADATA) \
    X(getxattr, METADATA) X(listxattr, METADATA) X(removexattr, METADATA) \
    X(read, DATA) X(write, DATA) X(fallocate, DATA) X(lseek, DATA) X(copy_file_range, DATA) \
    X(release, UNWAITED) X(releasedir, UNWAITED)

#define AS_ENUM(name, group) KIND_##name,
enum kind { KINDS(AS_ENUM) KIND_COUNT };

void count(enum kind kind);

/* Count an operation and delay it. Return true if a quirk refuses it; the error has been sent then. */
bool is_refused(fuse_req_t req, enum kind kind);
bool set_delays(char *text);
size_t format_counts(char *text, size_t size);

/* quirks.c */

#define SETATTR_PARTS(X) X(chown) X(chmod) X(utimens) X(truncate)
#define AS_PART_ENUM(name) PART_##name,
enum part { PART_before = KIND_COUNT - 1, SETATTR_PARTS(AS_PART_ENUM) OPERATION_COUNT };
#define QUIRK_WORD 64

/* The quirks in effect. A quirk is off if it is 0, or -1 if 0 is a valid value. */
struct quirks {
    bool close_time, decompose, fixed_ctime, fold_case, listed_inodes, no_blocks, no_dot_names;
    bool sequential, short_reads, silent, twice, untyped, utf8_only;
    long coarse_times, early_end, fixed_mode, fixed_owner, list_ends, list_fails, stale;
    char foreign[QUIRK_WORD], full[QUIRK_WORD], unknown[QUIRK_WORD];
    int refusals[OPERATION_COUNT];
};

extern struct quirks quirks;

bool set_quirks(char *text);
int refusal_errno(int operation);
void apply_status_quirks(struct stat *status);
const char *stored_name(const char *name, char room[NAME_MAX + 1]);
int name_error(int directory, const char *name);
void record_open(int fd);
void record_write(int fd);
void record_close(int fd);
bool is_stale(void);
bool may_open_sequentially(int fd, int flags);
bool is_at_end(int fd, off_t place);

/* nodes.c */

extern double entry_timeout, attribute_timeout;
extern int root_fd;

bool open_root(const char *directory);
int open_inode(fuse_ino_t id);
void close_inode(int *fd);
void drop_node(fuse_ino_t id, uint64_t lookups);
int fill_entry(int directory, const char *name, struct fuse_entry_param *entry);
void reply_entry(fuse_req_t req, int directory, const char *name);
void reply_done(fuse_req_t req, int result);

/* Declare an O_PATH descriptor of the inode until the end of the block; on failure, reply with the error and return. */
#define WITH_INODE(fd, id) \
    __attribute__((cleanup(close_inode))) int fd = open_inode(id); \
    if (fd < 0) { \
        fuse_reply_err(req, errno); \
        return; \
    }

/* Declare the name under which a new item is stored; if the name is refused, reply with the error and return. */
#define WITH_STORED_NAME(stored, directory, name) \
    char stored##_room[NAME_MAX + 1]; \
    const char *stored = stored_name(name, stored##_room); \
    int stored##_error = name_error(directory, name); \
    if (stored##_error) { \
        fuse_reply_err(req, stored##_error); \
        return; \
    }

struct path {
    char text[32];
};

struct path path_of(int fd);

/* names.c: new items get the caller's umask and owner. */

void set_callers_umask(fuse_req_t req);
int give_to_caller(fuse_req_t req, int directory, const char *name);

/* The parts that implement operations. Each adds its own to the table. */

void add_names(struct fuse_lowlevel_ops *operations);
void add_inodes(struct fuse_lowlevel_ops *operations);
void add_files(struct fuse_lowlevel_ops *operations);
