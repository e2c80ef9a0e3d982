/* A slow and unusual file system for tests: it passes all operations on to a directory, delays each for a set time, and
 * differs from other file systems by quirks.
 *
 *   latencyfs [--delay KIND=MICROSECONDS,...] [--quirks QUIRK,...] [--entry-timeout S] [--attribute-timeout S]
 *             DIRECTORY MOUNTPOINT
 *
 * KIND is one of the operations below, or a group of them: metadata, data, all. An operation sleeps in a thread of its
 * own before it is executed, so that any number of them sleep at the same time. Changes of one directory wait for each
 * other, as on any file system: Linux itself allows only one create, unlink, rename, link, mkdir or rmdir in a
 * directory at a time, and so sends them one after the other.
 *
 * It runs in the foreground, as root, until it is unmounted or gets SIGTERM. It writes "mounted" when it is ready, and
 * the counts at the end. While it runs, the extended attribute user.latencyfs of the mount's root returns the counts
 * ("KIND NUMBER" per line; "sleeping" is the maximum of operations that slept at the same time since delays were set).
 * Setting user.latencyfs changes the delays, in the form of --delay; setting user.latencyfs.quirks replaces all quirks,
 * in the form of --quirks.
 *
 * A quirk is one of
 *   OPERATION=ERRNO         each operation of that type fails; chown, chmod, utimens and truncate are types, too
 *   close_time              a file that was written gets the time of its closing as mtime
 *   coarse_times=N          times are rounded down to N seconds
 *   decompose, fold_case    the letter U+00E9 is stored as two code points; names are stored in lower case
 *   early_end=N             sizes of files are N bytes larger than what can be read
 *   fixed_ctime             ctime never changes
 *   fixed_mode=OCTAL        all items but symbolic links have that mode; fixed_owner=N: all have that owner and group
 *   foreign=NAME            each inode has one more extended attribute
 *   full=NAME               nothing can be created in directories of that name (ENOSPC)
 *   list_ends=N             a listing ends after N names; list_fails=N: it fails there with EIO
 *   listed_inodes           inode numbers of listings are not those of stat; untyped: listings have no types
 *   no_blocks               statfs returns no sizes
 *   no_dot_names            no name may begin with a dot (EINVAL); utf8_only: names must be in UTF-8 (EILSEQ)
 *   sequential              a file can be written only once, from its begin to its end (EOPNOTSUPP)
 *   short_reads             a read returns half of the bytes that it could
 *   silent                  no operation is answered until the process gets SIGUSR1
 *   stale=N                 each N-th open, of files and directories, fails with ESTALE
 *   twice                   listings contain each name twice
 *   unknown=PREFIX          no extended attribute with that prefix can be set (EOPNOTSUPP)
 *
 * Inode numbers are those of the backing file system; items of another file system mounted below DIRECTORY are not
 * shown (EXDEV). Not supported: FICLONE and other ioctls, O_TMPFILE, birth times, O_DIRECT on the backing file.
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

/* Write an answer to /dev/fuse. The first one answers FUSE_INIT: libfuse before 3.17 cannot set the flag for parallel
 * look-ups in one directory, as NFS and Lustre have them, so it is set here. */
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

static bool parse_arguments(int argc, char **argv)
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
    prctl(PR_SET_TIMERSLACK, 1); /* 1 ns, so that short sleeps are exact; threads inherit it */
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
    if (!parse_arguments(argc, argv))
        return usage();
    if (!open_root(argv[argc - 2])) {
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
    format_counts(text, sizeof text);
    fputs(text, stdout);
    return status;
}
