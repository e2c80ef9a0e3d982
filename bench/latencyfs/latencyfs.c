/* A slow and odd file system: passes everything on to a directory, lets each operation take as long as it is set to,
 * and differs from other file systems as its quirks say.
 *
 *   latencyfs [--delay KIND=MICROSECONDS,...] [--quirks QUIRK,...] [--entry-timeout S] [--attribute-timeout S]
 *             DIRECTORY MOUNTPOINT
 *
 * KIND is one of the operations below, or a group of them: metadata, data, all. An operation sleeps in a thread of its
 * own before it is done, so that any number of them sleep at once. What comes first in one directory makes the others
 * wait, as on any file system: the kernel itself lets only one create, unlink, rename, link, mkdir or rmdir work in a
 * directory at a time, and so it sends them here one after the other.
 *
 * Runs in the foreground, as root, until it is unmounted or gets SIGTERM. It writes "mounted" when it is, and at the end
 * the counts. On a running one, the extended attribute user.latencyfs of the mount's root reads as the counts
 * ("KIND NUMBER" a line; "sleeping" is the most that slept at once since delays were given), and takes other delays, in
 * the form of --delay; user.latencyfs.quirks takes other quirks, in the form of --quirks, which replace all.
 *
 * A quirk is one of
 *   OPERATION=ERRNO         each operation of that kind fails; chown, chmod, utimens and truncate are kinds, too
 *   close_time              a file that was written gets the time of its close as mtime
 *   coarse_times=N          times are rounded down to N seconds
 *   decompose, fold_case    the letter U+00E9 is stored as two code points; names are stored in lower case
 *   early_end=N             sizes of files are N bytes more than can be read
 *   fixed_ctime             ctime never moves
 *   fixed_mode=OCTAL        all but symlinks have that mode; fixed_owner=N: all have that owner and group
 *   foreign=NAME            each inode has one more extended attribute
 *   full=NAME               nothing can be made in directories of that name (ENOSPC)
 *   list_ends=N             a listing ends after N names; list_fails=N: it fails there with EIO
 *   listed_inodes           inode numbers of listings are not those of stat; untyped: listings know no types
 *   no_blocks               statfs knows no sizes
 *   no_dot_names            no name begins with a dot (EINVAL); utf8_only: each is in UTF-8 (EILSEQ)
 *   sequential              a file is written once, from its begin to its end (EOPNOTSUPP)
 *   short_reads             a read returns half of the bytes that it could
 *   silent                  nothing is answered any more, until the process gets SIGUSR1
 *   stale=N                 each N-th open, of files and directories, fails with ESTALE
 *   twice                   listings have each name twice
 *   unknown=PREFIX          no extended attribute whose name begins so can be set (EOPNOTSUPP)
 *
 * An inode here is the inode number there; what lies on another file system below DIRECTORY is not shown (EXDEV).
 * Not passed on: FICLONE and other ioctls, O_TMPFILE, birth times, O_DIRECT (of the file below).
 */
#include "latencyfs.h"

#include <linux/fuse.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/uio.h>

#define THREADS 1024

static void op_init(void *unused, struct fuse_conn_info *connection)
{
    (void)unused;
    connection->want |= connection->capable & (FUSE_CAP_POSIX_ACL | FUSE_CAP_DONT_MASK);
    connection->max_background = connection->congestion_threshold = THREADS / 2;
    puts("mounted");
    fflush(stdout);
}

static ssize_t read_request(int fd, void *buffer, size_t size, void *unused)
{
    (void)unused;
    return read(fd, buffer, size);
}

/* The first answer is the one to FUSE_INIT. libfuse before 3.17 cannot tell the kernel there that look-ups in one
 * directory may be under way at the same time, as they are on NFS and Lustre. */
static ssize_t write_answer(int fd, struct iovec *parts, int number, void *unused)
{
    (void)unused;
    static bool has_begun;
    if (!has_begun && number > 1 && parts[1].iov_len >= sizeof(struct fuse_init_out))
        ((struct fuse_init_out *)parts[1].iov_base)->flags |= FUSE_PARALLEL_DIROPS;
    has_begun = true;
    return writev(fd, parts, number);
}

static int usage(void)
{
    fputs("usage: latencyfs [--delay KIND=MICROSECONDS,...] [--quirks QUIRK,...] [--entry-timeout S] "
          "[--attribute-timeout S] DIRECTORY MOUNTPOINT\n", stderr);
    return 2;
}

static bool understand(int argc, char **argv)
{
    for (int at = 1; at + 1 < argc - 2; at += 2) {
        if (!strcmp(argv[at], "--delay") && set_delays(argv[at + 1]))
            continue;
        if (!strcmp(argv[at], "--quirks") && set_quirks(argv[at + 1]))
            continue;
        if (!strcmp(argv[at], "--entry-timeout"))
            entry_timeout = atof(argv[at + 1]);
        else if (!strcmp(argv[at], "--attribute-timeout"))
            attribute_timeout = atof(argv[at + 1]);
        else
            return false;
    }
    return argc >= 3 && argc % 2;
}

static void answer_again(int unused)
{
    (void)unused;
    quirks.silent = false;
}

static void prepare(void)
{
    signal(SIGUSR1, answer_again);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    prctl(PR_SET_TIMERSLACK, 1); /* nanosecond; threads inherit it */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
}

static int serve(struct fuse_session *session, const char *point)
{
    struct fuse_loop_config *config = fuse_loop_cfg_create();
    fuse_loop_cfg_set_max_threads(config, THREADS);
    fuse_loop_cfg_set_idle_threads(config, THREADS);
    int status = 1;
    const struct fuse_custom_io io = {.read = read_request, .writev = write_answer};
    if (fuse_set_signal_handlers(session) == 0 && fuse_session_mount(session, point) == 0 &&
        fuse_session_custom_io(session, &io, fuse_session_fd(session)) == 0) {
        status = fuse_session_loop_mt(session, config) != 0;
        fuse_session_unmount(session);
    }
    fuse_loop_cfg_destroy(config);
    return status;
}

int main(int argc, char **argv)
{
    char *options[] = {argv[0], "-oallow_other,default_permissions,fsname=latencyfs,subtype=latencyfs"};
    struct fuse_args arguments = FUSE_ARGS_INIT(2, options);
    if (!understand(argc, argv))
        return usage();
    if (!take_root(argv[argc - 2])) {
        perror(argv[argc - 2]);
        return 1;
    }
    prepare();
    struct fuse_lowlevel_ops operations = {.init = op_init};
    add_names(&operations);
    add_inodes(&operations);
    add_files(&operations);
    struct fuse_session *session = fuse_session_new(&arguments, &operations, sizeof operations, NULL);
    if (!session)
        return 1;
    int status = serve(session, argv[argc - 1]);
    fuse_session_destroy(session);
    char text[4096];
    tell_counts(text, sizeof text);
    fputs(text, stdout);
    return status;
}
