/* Operations on open files and directories. */
#include "latencyfs.h"

#include <dirent.h>
#include <pthread.h>

static int flags_below(int flags)
{
    /* The kernel gives the places of appended data itself; direct I/O would want aligned memory here. */
    return (flags & ~(O_CREAT | O_EXCL | O_NOFOLLOW | O_APPEND | O_DIRECT)) | O_CLOEXEC;
}

static void op_open(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *file)
{
    count(KIND_open);
    HOLD(fd, id);
    int opened = open(path_of(fd).text, flags_below(file->flags));
    if (opened < 0) {
        fuse_reply_err(req, errno);
        return;
    }
    file->fh = opened;
    if (fuse_reply_open(req, file) == -ENOENT)
        close(opened);
}

static void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, struct fuse_file_info *file)
{
    count(KIND_create);
    take_umask(req);
    HOLD(directory, parent);
    int flags = flags_below(file->flags) | O_NOFOLLOW;
    int fd = openat(directory, name, flags | O_CREAT | O_EXCL, mode);
    bool made = fd >= 0;
    if (!made && errno == EEXIST && !(file->flags & O_EXCL))
        fd = openat(directory, name, flags); /* somebody else made it below */
    struct fuse_entry_param entry;
    int error = fd < 0 || (made && give(req, directory, name) < 0) ? errno : find(directory, name, &entry);
    if (error) {
        if (fd >= 0)
            close(fd);
        fuse_reply_err(req, error);
        return;
    }
    file->fh = fd;
    if (fuse_reply_create(req, &entry, file) == -ENOENT) {
        close(fd);
        forget_node(entry.ino, 1);
    }
}

static void op_read(fuse_req_t req, fuse_ino_t id, size_t size, off_t start, struct fuse_file_info *file)
{
    (void)id;
    static __thread char *buffer;
    static __thread size_t room;
    count(KIND_read);
    if (room < size) {
        free(buffer);
        buffer = malloc(size);
        room = buffer ? size : 0;
    }
    ssize_t length = buffer ? pread(file->fh, buffer, size, start) : (errno = ENOMEM, -1);
    if (length < 0)
        fuse_reply_err(req, errno);
    else
        fuse_reply_buf(req, buffer, length);
}

static void op_write(fuse_req_t req, fuse_ino_t id, const char *data, size_t size, off_t start,
                     struct fuse_file_info *file)
{
    (void)id;
    count(KIND_write);
    ssize_t length = pwrite(file->fh, data, size, start);
    if (length < 0)
        fuse_reply_err(req, errno);
    else
        fuse_reply_write(req, length);
}

static void op_copy_file_range(fuse_req_t req, fuse_ino_t from, off_t read_at, struct fuse_file_info *source,
                               fuse_ino_t to, off_t write_at, struct fuse_file_info *target, size_t size, int flags)
{
    (void)from, (void)to;
    count(KIND_copy_file_range);
    ssize_t length = copy_file_range(source->fh, &read_at, target->fh, &write_at, size, flags);
    if (length < 0)
        fuse_reply_err(req, errno);
    else
        fuse_reply_write(req, length);
}

static void op_fallocate(fuse_req_t req, fuse_ino_t id, int mode, off_t start, off_t size, struct fuse_file_info *file)
{
    (void)id;
    count(KIND_fallocate);
    reply_done(req, fallocate(file->fh, mode, start, size));
}

static void op_lseek(fuse_req_t req, fuse_ino_t id, off_t start, int whence, struct fuse_file_info *file)
{
    (void)id;
    count(KIND_lseek);
    off_t found = lseek(file->fh, start, whence);
    if (found < 0)
        fuse_reply_err(req, errno);
    else
        fuse_reply_lseek(req, found);
}

static void op_flush(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *file)
{
    (void)id;
    count(KIND_flush);
    reply_done(req, close(dup(file->fh)));
}

static void op_release(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *file)
{
    (void)id;
    count(KIND_release);
    reply_done(req, close(file->fh));
}

static int synced(int fd, int only_data)
{
    return only_data ? fdatasync(fd) : fsync(fd);
}

static void op_fsync(fuse_req_t req, fuse_ino_t id, int only_data, struct fuse_file_info *file)
{
    (void)id;
    count(KIND_fsync);
    reply_done(req, synced(file->fh, only_data));
}

/* ---- directories ---- */

struct listing {
    DIR *stream;
    struct dirent *next; /* read, and not told yet */
    off_t offset;        /* of what was told last */
    pthread_mutex_t lock;
};

static struct listing *listing_of(const struct fuse_file_info *file)
{
    return (struct listing *)(uintptr_t)file->fh;
}

static void op_opendir(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *file)
{
    count(KIND_opendir);
    HOLD(directory, id);
    struct listing *listing = calloc(1, sizeof *listing);
    int fd = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC | (file->flags & O_NOATIME));
    if (listing && fd >= 0)
        listing->stream = fdopendir(fd);
    if (!listing || !listing->stream) {
        int error = errno;
        if (fd >= 0)
            close(fd);
        free(listing);
        fuse_reply_err(req, error);
        return;
    }
    pthread_mutex_init(&listing->lock, NULL);
    file->fh = (uintptr_t)listing;
    if (fuse_reply_open(req, file) == -ENOENT) {
        closedir(listing->stream);
        free(listing);
    }
}

/* Fills ``buffer``; the bytes used, or -1 with errno. */
static ssize_t list(fuse_req_t req, struct listing *listing, char *buffer, size_t size, off_t offset)
{
    size_t used = 0;
    if (offset != listing->offset) {
        seekdir(listing->stream, offset);
        listing->next = NULL;
        listing->offset = offset;
    }
    for (;;) {
        if (!listing->next) {
            errno = 0;
            listing->next = readdir(listing->stream);
            if (!listing->next)
                return errno && !used ? -1 : (ssize_t)used;
        }
        struct dirent *entry = listing->next;
        struct stat status = {.st_ino = entry->d_ino, .st_mode = DTTOIF(entry->d_type)};
        size_t more = fuse_add_direntry(req, buffer + used, size - used, entry->d_name, &status, entry->d_off);
        if (more > size - used)
            return used;
        used += more;
        listing->offset = entry->d_off;
        listing->next = NULL;
    }
}

static void op_readdir(fuse_req_t req, fuse_ino_t id, size_t size, off_t offset, struct fuse_file_info *file)
{
    (void)id;
    count(KIND_readdir);
    struct listing *listing = listing_of(file);
    char *buffer = malloc(size);
    pthread_mutex_lock(&listing->lock);
    ssize_t used = buffer ? list(req, listing, buffer, size, offset) : (errno = ENOMEM, -1);
    pthread_mutex_unlock(&listing->lock);
    if (used < 0)
        fuse_reply_err(req, errno);
    else
        fuse_reply_buf(req, buffer, used);
    free(buffer);
}

static void op_releasedir(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *file)
{
    (void)id;
    count(KIND_releasedir);
    closedir(listing_of(file)->stream);
    pthread_mutex_destroy(&listing_of(file)->lock);
    free(listing_of(file));
    fuse_reply_err(req, 0);
}

static void op_fsyncdir(fuse_req_t req, fuse_ino_t id, int only_data, struct fuse_file_info *file)
{
    (void)id;
    count(KIND_fsyncdir);
    reply_done(req, synced(dirfd(listing_of(file)->stream), only_data));
}

void add_files(struct fuse_lowlevel_ops *operations)
{
    operations->open = op_open;
    operations->create = op_create;
    operations->read = op_read;
    operations->write = op_write;
    operations->copy_file_range = op_copy_file_range;
    operations->fallocate = op_fallocate;
    operations->lseek = op_lseek;
    operations->flush = op_flush;
    operations->release = op_release;
    operations->fsync = op_fsync;
    operations->opendir = op_opendir;
    operations->readdir = op_readdir;
    operations->releasedir = op_releasedir;
    operations->fsyncdir = op_fsyncdir;
}
