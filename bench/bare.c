/* The minimum cost of copying a tree: a C program that makes only the system calls for each file (one fstat and one
 * fchown more than pcopy).
 *
 *   bare -p PROCESSES SOURCE TARGET     processes that share the work, as ranks do
 *   bare -t THREADS SOURCE TARGET       threads of one process, with one operation in flight each
 *
 * TARGET must not exist. Each directory is listed by one worker; its files are copied in slices, by all workers. Per
 * file: stat; open, fstat, read, flistxattr, fstat, close; create, write, fchown, fchmod, futimens, close. Directories
 * get their metadata when everything below them is done. Symbolic links are copied, too. Anything else (extended
 * attributes, devices) ends the program, as does each error. Hard links are split and holes are filled: this is not a
 * tool for copying.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#define ARENA (16ul << 30) /* bytes of address space; memory is allocated when it is touched, and never freed */
#define BUFFER (1 << 20)
#define SLICE_BYTES 4096

struct directory {
    struct directory *parent;
    _Atomic long remaining; /* slices and subdirectories that are not done, and its own listing */
    int source, target; /* descriptors for all threads; -1 with processes, each of which opens its own */
    struct stat status;
    char path[];
};

/* A unit of work: ``number`` names to copy, each with a final zero byte; with 0 names, list the directory. */
struct unit {
    struct unit *next;
    struct directory *directory;
    unsigned number, size;
    char names[];
};

struct shared {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct unit *waiting; /* newest first, so that few directories are open at the same time */
    long undone;          /* units that wait or are being processed */
    _Atomic size_t used;
};

static struct shared *shared;
static int source_root, target_root;
static bool in_threads;
static unsigned slice_names;

/* The directory that a process has opened last. Threads share descriptors instead. */
static __thread struct directory *current;
static __thread int current_source, current_target;

static void fail(const char *operation, const char *path, const char *name)
{
    fprintf(stderr, "bare: %s %s/%s: %s\n", operation, path, name, strerror(errno));
    _exit(1);
}

static void *take(size_t size)
{
    size_t start = atomic_fetch_add(&shared->used, (size + 15) & ~15ul);
    if (start + size > ARENA) {
        errno = ENOMEM;
        fail("take memory", "", "");
    }
    return (char *)shared + start;
}

/* ---- queue of units ---- */

static void push(struct unit *unit)
{
    pthread_mutex_lock(&shared->lock);
    unit->next = shared->waiting;
    shared->waiting = unit;
    shared->undone++;
    pthread_cond_signal(&shared->changed);
    pthread_mutex_unlock(&shared->lock);
}

/* Wait for a unit and return it; return NULL if all are done. */
static struct unit *pop(void)
{
    pthread_mutex_lock(&shared->lock);
    while (!shared->waiting && shared->undone)
        pthread_cond_wait(&shared->changed, &shared->lock);
    struct unit *unit = shared->waiting;
    if (unit)
        shared->waiting = unit->next;
    pthread_mutex_unlock(&shared->lock);
    return unit;
}

static void unit_done(void)
{
    pthread_mutex_lock(&shared->lock);
    if (--shared->undone == 0)
        pthread_cond_broadcast(&shared->changed);
    pthread_mutex_unlock(&shared->lock);
}

static void push_directory(struct directory *parent, const char *path, const char *name)
{
    size_t length = strlen(path) + strlen(name) + 2;
    struct directory *directory = take(sizeof *directory + length);
    *directory = (struct directory){.parent = parent, .remaining = 1, .source = -1, .target = -1};
    snprintf(directory->path, length, "%s%s%s", path, *path ? "/" : "", name);
    if (parent)
        atomic_fetch_add(&parent->remaining, 1);
    struct unit *unit = take(sizeof *unit);
    *unit = (struct unit){.directory = directory};
    push(unit);
}

/* ---- items ---- */

static void apply_metadata(int source, int target, const struct stat *status, const char *path, const char *name)
{
    if (flistxattr(source, NULL, 0) != 0) {
        errno = ENOTSUP;
        fail("copy the extended attributes of", path, name);
    }
    if (fchown(target, status->st_uid, status->st_gid))
        fail("fchown", path, name);
    if (fchmod(target, status->st_mode & 07777))
        fail("fchmod", path, name);
    if (futimens(target, (struct timespec[]){status->st_atim, status->st_mtim}))
        fail("futimens", path, name);
}

static void write_all(int target, const char *data, ssize_t size, const char *path, const char *name)
{
    while (size) {
        ssize_t written = write(target, data, size);
        if (written <= 0)
            fail("write", path, name);
        data += written, size -= written;
    }
}

static void copy_file(int sources, int targets, const char *path, const char *name)
{
    static __thread char *buffer;
    struct stat before, after;
    if (!buffer && !(buffer = malloc(BUFFER)))
        fail("malloc", path, name);
    int source = openat(sources, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (source < 0 || fstat(source, &before))
        fail("open", path, name);
    off_t remaining = before.st_size;
    int target = -1;
    do {
        size_t wanted = remaining < BUFFER ? remaining + 1 : BUFFER;
        ssize_t got = read(source, buffer, wanted);
        if (got < 0 || got > remaining || (!got && remaining)) {
            errno = got < 0 ? errno : ESTALE;
            fail("read", path, name);
        }
        if (target < 0)
            target = openat(targets, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (target < 0)
            fail("create", path, name);
        write_all(target, buffer, got, path, name);
        remaining -= got;
    } while (remaining);
    apply_metadata(source, target, &before, path, name);
    if (fstat(source, &after) || close(source))
        fail("close", path, name);
    if (after.st_ctim.tv_sec != before.st_ctim.tv_sec || after.st_ctim.tv_nsec != before.st_ctim.tv_nsec) {
        errno = ESTALE;
        fail("copy", path, name);
    }
    if (close(target))
        fail("close", path, name);
}

static void copy_symlink(int sources, int targets, const struct stat *status, const char *path, const char *name)
{
    char text[4096];
    ssize_t length = readlinkat(sources, name, text, sizeof text - 1);
    if (length < 0)
        fail("readlink", path, name);
    text[length] = 0;
    if (symlinkat(text, targets, name) || fchownat(targets, name, status->st_uid, status->st_gid, AT_SYMLINK_NOFOLLOW)
        || utimensat(targets, name, (struct timespec[]){status->st_atim, status->st_mtim}, AT_SYMLINK_NOFOLLOW))
        fail("symlink", path, name);
}

static void copy_item(int sources, int targets, const char *path, const char *name)
{
    struct stat status;
    if (fstatat(sources, name, &status, AT_SYMLINK_NOFOLLOW))
        fail("stat", path, name);
    if (S_ISREG(status.st_mode))
        copy_file(sources, targets, path, name);
    else if (S_ISLNK(status.st_mode))
        copy_symlink(sources, targets, &status, path, name);
    else {
        errno = ENOTSUP;
        fail("copy", path, name);
    }
}

/* ---- directories ---- */

static int opened(int root, const char *path)
{
    int fd = openat(root, *path ? path : ".", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        fail("open", path, "");
    return fd;
}

static void enter(struct directory *directory)
{
    if (current == directory)
        return;
    if (current && !in_threads) {
        close(current_source);
        close(current_target);
    }
    current = directory;
    current_source = in_threads && directory->source >= 0 ? directory->source : opened(source_root, directory->path);
    current_target = in_threads && directory->target >= 0 ? directory->target : opened(target_root, directory->path);
}

/* Record that one part of the directory is done. After the last part, apply the directory's metadata, and record the
 * same for its parent. */
static void one_done(struct directory *directory)
{
    while (directory && atomic_fetch_sub(&directory->remaining, 1) == 1) {
        enter(directory);
        apply_metadata(current_source, current_target, &directory->status, directory->path, "");
        if (in_threads) {
            close(current_source);
            close(current_target);
            current = NULL;
        }
        directory = directory->parent;
    }
}

static void push_slice(struct directory *directory, struct unit *slice)
{
    struct unit *unit = take(sizeof *unit + slice->size);
    memcpy(unit, slice, sizeof *slice + slice->size);
    atomic_fetch_add(&directory->remaining, 1);
    push(unit);
    slice->number = slice->size = 0;
}

static bool is_directory(int fd, const struct dirent *entry, const char *path)
{
    struct stat status;
    if (entry->d_type != DT_UNKNOWN)
        return entry->d_type == DT_DIR;
    if (fstatat(fd, entry->d_name, &status, AT_SYMLINK_NOFOLLOW))
        fail("stat", path, entry->d_name);
    return S_ISDIR(status.st_mode);
}

static void list(struct directory *directory)
{
    static __thread char room[sizeof(struct unit) + SLICE_BYTES];
    struct unit *slice = (struct unit *)room;
    *slice = (struct unit){.directory = directory};
    if (*directory->path && mkdirat(target_root, directory->path, 0700))
        fail("mkdir", directory->path, "");
    enter(directory);
    directory->source = in_threads ? current_source : -1;
    directory->target = in_threads ? current_target : -1;
    if (fstat(current_source, &directory->status))
        fail("fstat", directory->path, "");
    DIR *stream = fdopendir(dup(current_source));
    for (;;) {
        errno = 0;
        struct dirent *entry = stream ? readdir(stream) : NULL;
        if (!entry)
            break;
        const char *name = entry->d_name;
        if (!strcmp(name, ".") || !strcmp(name, ".."))
            continue;
        if (is_directory(current_source, entry, directory->path)) {
            push_directory(directory, directory->path, name);
            continue;
        }
        size_t size = strlen(name) + 1;
        if (slice->number == slice_names || slice->size + size > SLICE_BYTES)
            push_slice(directory, slice);
        memcpy(slice->names + slice->size, name, size);
        slice->size += size;
        slice->number++;
    }
    if (errno)
        fail("readdir", directory->path, "");
    closedir(stream);
    if (slice->number)
        push_slice(directory, slice);
}

static void *work(void *unused)
{
    for (struct unit *unit; (unit = pop()); unit_done()) {
        struct directory *directory = unit->directory;
        if (!unit->number)
            list(directory);
        else {
            enter(directory);
            for (const char *name = unit->names; name < unit->names + unit->size; name += strlen(name) + 1)
                copy_item(current_source, current_target, directory->path, name);
        }
        one_done(directory);
    }
    return unused;
}

static void share(void)
{
    pthread_mutexattr_t of_lock;
    pthread_condattr_t of_condition;
    shared = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (shared == MAP_FAILED)
        fail("mmap", "", "");
    shared->used = sizeof *shared;
    pthread_mutexattr_init(&of_lock);
    pthread_mutexattr_setpshared(&of_lock, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&shared->lock, &of_lock);
    pthread_condattr_init(&of_condition);
    pthread_condattr_setpshared(&of_condition, PTHREAD_PROCESS_SHARED);
    pthread_cond_init(&shared->changed, &of_condition);
}

static int run(int workers)
{
    int failed = 0;
    if (in_threads) {
        pthread_t threads[workers];
        for (int number = 0; number < workers; number++)
            if ((errno = pthread_create(&threads[number], NULL, work, NULL)))
                fail("start a thread", "", "");
        for (int number = 0; number < workers; number++)
            pthread_join(threads[number], NULL);
        return 0;
    }
    pid_t parent = getpid();
    for (int number = 0; number < workers; number++) {
        pid_t child = fork();
        if (child < 0)
            fail("fork", "", "");
        if (!child) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent)
                _exit(1); /* the parent ended before PR_SET_PDEATHSIG was in effect */
            work(NULL);
            _exit(0);
        }
    }
    for (int number = 0; number < workers && !failed; number++) {
        int status;
        failed = wait(&status) < 0 || status;
    }
    return failed; /* after a failure, other processes would wait forever: they end with this one (PR_SET_PDEATHSIG) */
}

int main(int argc, char **argv)
{
    int workers = argc == 5 ? atoi(argv[2]) : 0;
    if (workers < 1 || workers > 1024 || (strcmp(argv[1], "-p") && strcmp(argv[1], "-t"))) {
        fputs("usage: bare -p PROCESSES | -t THREADS SOURCE TARGET\n", stderr);
        return 2;
    }
    in_threads = !strcmp(argv[1], "-t");
    slice_names = in_threads ? 4 : 64;
    umask(0);
    if (mkdir(argv[4], 0700))
        fail("mkdir", argv[4], "");
    source_root = opened(AT_FDCWD, argv[3]);
    target_root = opened(AT_FDCWD, argv[4]);
    share();
    push_directory(NULL, "", "");
    return run(workers);
}
