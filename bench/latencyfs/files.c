/* Operations on open files and directories. */
#include "latencyfs.h"

#include <dirent.h>
#include <pthread.h>

static int flags_below(int flags)
{
    /* Linux passes the offsets of appended data; O_DIRECT would require aligned buffers here. */
    return (flags & ~(O_CREAT | O_EXCL | O_NOFOLLOW | O_APPEND | O_DIRECT)) | O_CLOEXEC;
}

static void op_open(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *file)
{
    if (is_refused(req, KIND_open))
        return;
    WITH_INODE(fd, id);
    if (quirks.sequential && !may_open_sequentially(fd, file->flags)) {
        fuse_reply_err(req, EOPNOTSUPP);
        return;
    }
    int opened = is_stale() ? (errno = ESTALE, -1) : open(path_of(fd).text, flags_below(file->flags));
    if (opened < 0) {
        fuse_reply_err(req, errno);
        return;
    }
    file->fh = opened;
    file->direct_io = quirks.short_reads || quirks.early_end;
    record_open(opened);
    if (fuse_reply_open(req, file) == -ENOENT)
        close(opened);
}

static void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, struct fuse_file_info *file)
{
    if (is_refused(req, KIND_create))
        return;
    set_callers_umask(req);
    WITH_INODE(directory, parent);
    WITH_STORED_NAME(stored, directory, name);
    int flags = flags_below(file->flags) | O_NOFOLLOW;
    int fd = openat(directory, stored, flags | O_CREAT | O_EXCL, mode);
    bool made = fd >= 0;
    if (!made && errno == EEXIST && !(file->flags & O_EXCL))
        fd = openat(directory, stored, flags); /* another process created it in the backing directory */
    struct fuse_entry_param entry;
    int error = fd < 0 || (made && give_to_caller(req, directory, stored) < 0)
                    ? errno : fill_entry(directory, stored, &entry);
    if (error) {
        if (fd >= 0)
            close(fd);
        fuse_reply_err(req, error);
        return;
    }
    file->fh = fd;
    file->direct_io = quirks.short_reads || quirks.early_end;
    record_open(fd);
    if (fuse_reply_create(req, &entry, file) == -ENOENT) {
        close(fd);
        drop_node(entry.ino, 1);
    }
}

static void op_read(fuse_req_t req, fuse_ino_t id, size_t size, off_t start, struct fuse_file_info *file)
{
    (void)id;
    static __thread char *buffer;
    static __thread size_t room;
    if (is_refused(req, KIND_read))
        return;
    if (room < size) {
        free(buffer);
        buffer = malloc(size);
        room = buffer ? size : 0;
    }
    if (quirks.short_reads)
        size = size / 2 + size % 2;
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
    if (is_refused(req, KIND_write))
        return;
    bool possible = !quirks.sequential || is_at_end(file->fh, start);
    ssize_t length = possible ? pwrite(file->fh, data, size, start) : (errno = EOPNOTSUPP, -1);
    record_write(file->fh);
    if (length < 0)
        fuse_reply_err(req, errno);
    else
        fuse_reply_write(req, length);
}

static void op_copy_file_range(fuse_req_t req, fuse_ino_t from, off_t read_at, struct fuse_file_info *source,
                               fuse_ino_t to, off_t write_at, struct fuse_file_info *target, size_t size, int flags)
{
    (void)from, (void)to;
    if (is_refused(req, KIND_copy_file_range))
        return;
    bool possible = !quirks.sequential && !quirks.early_end;
    record_write(target->fh);
    ssize_t length = !possible ? (errno = EOPNOTSUPP, -1) : copy_file_range(source->fh, &read_at, target->fh, &write_at, size, flags);
    if (length < 0)
        fuse_reply_err(req, errno);
    else
        fuse_reply_write(req, length);
}

static void op_fallocate(fuse_req_t req, fuse_ino_t id, int mode, off_t start, off_t size, struct fuse_file_info *file)
{
    (void)id;
    if (is_refused(req, KIND_fallocate))
        return;
    if (quirks.sequential)
        fuse_reply_err(req, EOPNOTSUPP);
    else
        reply_done(req, fallocate(file->fh, mode, start, size));
}

static void op_lseek(fuse_req_t req, fuse_ino_t id, off_t start, int whence, struct fuse_file_info *file)
{
    (void)id;
    if (is_refused(req, KIND_lseek))
        return;
    off_t found = lseek(file->fh, start, whence);
    if (found < 0)
        fuse_reply_err(req, errno);
    else
        fuse_reply_lseek(req, found);
}

static void op_flush(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *file)
{
    (void)id;
    if (is_refused(req, KIND_flush))
        return;
    record_close(file->fh);
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
    if (is_refused(req, KIND_fsync))
        return;
    reply_done(req, synced(file->fh, only_data));
}

/* ---- directories ---- */

struct listing {
    DIR *stream;
    struct dirent *next; /* read, but not returned yet */
    off_t offset;        /* of the entry that was returned last */
    long listed;         /* names returned since the begin, without "." and ".." */
    pthread_mutex_t lock;
};

static struct listing *listing_of(const struct fuse_file_info *file)
{
    return (struct listing *)(uintptr_t)file->fh;
}

static void op_opendir(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *file)
{
    if (is_refused(req, KIND_opendir))
        return;
    WITH_INODE(directory, id);
    struct listing *listing = calloc(1, sizeof *listing);
    int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | (file->flags & O_NOATIME);
    int fd = is_stale() ? (errno = ESTALE, -1) : openat(directory, ".", flags);
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

/* Fill ``buffer`` with entries. Return the number of bytes used, or -1 with errno. */
static ssize_t list(fuse_req_t req, struct listing *listing, char *buffer, size_t size, off_t offset)
{
    size_t used = 0;
    if (offset != listing->offset) {
        seekdir(listing->stream, offset);
        listing->next = NULL;
        listing->offset = offset;
        if (!offset)
            listing->listed = 0;
    }
    for (;;) {
        if (!listing->next) {
            errno = 0;
            listing->next = readdir(listing->stream);
            if (!listing->next)
                return errno && !used ? -1 : (ssize_t)used;
        }
        struct dirent *entry = listing->next;
        bool is_name = strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
        if (is_name && quirks.list_fails >= 0 && listing->listed >= quirks.list_fails)
            return used ? (ssize_t)used : (errno = EIO, -1);
        if (is_name && quirks.list_ends >= 0 && listing->listed >= quirks.list_ends)
            return used;
        struct stat status = {.st_ino = entry->d_ino + (quirks.listed_inodes ? 1000000 : 0),
                              .st_mode = quirks.untyped ? 0 : DTTOIF(entry->d_type)};
        size_t more = fuse_add_direntry(req, buffer + used, size - used, entry->d_name, &status, entry->d_off);
        if (more > size - used)
            return used;
        used += more;
        listing->listed += is_name;
        if (is_name && quirks.twice && more <= size - used)
            used += fuse_add_direntry(req, buffer + used, size - used, entry->d_name, &status, entry->d_off);
        listing->offset = entry->d_off;
        listing->next = NULL;
    }
}

static void op_readdir(fuse_req_t req, fuse_ino_t id, size_t size, off_t offset, struct fuse_file_info *file)
{
    (void)id;
    if (is_refused(req, KIND_readdir))
        return;
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
    if (is_refused(req, KIND_fsyncdir))
        return;
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
