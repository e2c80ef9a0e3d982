/* Rows of PK_COPY: each row copies one small file. If this code does not handle the file, the row is deferred with
 * nothing changed, and the Python backend copies the file.
 *
 * The file is read first and its status is read after that. If the status is the one that the scan found, nobody has
 * changed the file between the scan and the end of the reading; otherwise the data are discarded. If another user may
 * have replaced the file by a FIFO or a device, the status is checked before reading, too, because reading such an item
 * changes it.
 */
#include "internal.h"

#include <linux/magic.h>
#include <stdio.h>
#include <sys/vfs.h>
#include <sys/xattr.h>

#define READING (O_RDONLY | O_CLOEXEC | GUARD_FLAG(SOURCE_NONBLOCK, O_NONBLOCK) | GUARD_FLAG(SOURCE_NOCTTY, O_NOCTTY))
#define MOST_KEPT 16 /* a file with more extended attributes to copy is deferred */

/* The extended attributes that the copy gets. */
typedef struct {
    char names[MOST_NAMES + 1];
    const char *kept[MOST_KEPT];
    int number;
} attributes;

int pk_open_quietly(int directory, const char *name, int flags, int *keeps_atime)
{
    int opened = openat(directory, name, flags | O_NOATIME);
    if (keeps_atime != NULL)
        *keeps_atime = opened >= 0;
    if (opened < 0 && errno == EPERM) /* only the owner of a file may use O_NOATIME */
        opened = openat(directory, name, flags);
    return opened;
}

/* Return true for a file in /proc or tracefs whose contents are removed by reading them; the names are those of
 * ``pcopy.fsio.source.FILE_NAMES_CONSUMED_BY_READING``. */
static int is_consumed(int directory, const char *name)
{
    static const char *const names[] = {"kmsg", "trace_pipe", "trace_pipe_raw", "snapshot_raw", "free_buffer"};
    struct statfs place;
    for (size_t each = 0; each < sizeof names / sizeof *names; each++)
        if (!strcmp(name, names[each]))
            return fstatfs(directory, &place) || place.f_type == PROC_SUPER_MAGIC || place.f_type == TRACEFS_MAGIC;
    return 0;
}

int pk_open_source(int directory, const char *name, int follow, int *keeps_atime)
{
    if (is_consumed(directory, name)) {
        errno = EPERM; /* the Python backend reports the reason */
        return -1;
    }
    const int flags = follow ? READING : READING | GUARD_FLAG(SOURCE_NOFOLLOW, O_NOFOLLOW);
    return pk_open_quietly(directory, name, flags, keeps_atime);
}

static int is_found(const pk_batch *batch, uint32_t row, const struct stat *status)
{
    int64_t mtime, ctime;
    return S_ISREG(status->st_mode) && status->st_ino == batch->given.inode[row] &&
           status->st_dev == batch->given.device[row] && (uint64_t)status->st_size == batch->given.size[row] &&
           in_nanoseconds(status->st_mtim, &mtime) && in_nanoseconds(status->st_ctim, &ctime) &&
           mtime == batch->given.mtime[row] && ctime == batch->given.ctime[row];
}

static int is_still_found(const pk_batch *batch, uint32_t row, int reading)
{
    struct stat status;
    return !fstat(reading, &status) && is_found(batch, row, &status);
}

/* Return true if other users may write to the source directory, so that they may have put another item under a name
 * since the scan. */
static int others_may_exchange(pk_batch *batch)
{
    int known = atomic_load_explicit(&batch->work->others_may, memory_order_relaxed);
    if (!known) {
        struct stat directory;
        const int failed = fstat(batch->directory, &directory);
        known = failed || others_may_write(directory.st_uid, directory.st_mode, geteuid()) ? 1 : -1;
        atomic_store_explicit(&batch->work->others_may, known, memory_order_relaxed);
    }
    return known > 0;
}

/* Find the extended attributes that the copy gets. Return 0, or -1 if Python has to decide about an attribute. */
static int look_at_attributes(pk_worker *worker, int reading, attributes *found)
{
    found->number = 0;
    doing(worker, OP_LISTXATTR);
    ssize_t size = flistxattr(reading, found->names, MOST_NAMES);
    if (size < 0)
        return errno == ENOTSUP || errno == ENOSYS ? 0 : -1;
    found->names[size] = '\0'; /* terminate the list: a faulty file system may return names without a zero at the end */
    for (char *name = found->names; name < found->names + size; name += strlen(name) + 1) {
        int what = pk_attribute_of(worker->backend, name);
        if (what == 0 || (what == PK_KEEP && found->number == MOST_KEPT))
            return -1;
        if (what == PK_KEEP)
            found->kept[found->number++] = name;
    }
    return 0;
}

/* Copy the extended attributes, through the worker's buffer: the contents of the file, which were in it, have been
 * written before. Return 0, or -1 if that fails. */
static int give_attributes(pk_worker *worker, int reading, int writing, const attributes *found)
{
    for (int each = 0; each < found->number; each++) {
        doing(worker, OP_GETXATTR);
        ssize_t size = fgetxattr(reading, found->kept[each], worker->buffer, PIECE);
        if (size < 0)
            return -1;
        doing(worker, OP_SETXATTR);
        if (fsetxattr(writing, found->kept[each], worker->buffer, (size_t)size, 0))
            return -1;
    }
    return 0;
}

/* Apply owner, extended attributes, mode and times to the copy, in the order of pcopy/fsio/attributes.py. Return -1 if
 * that fails. */
static int set_metadata(pk_worker *worker, pk_batch *batch, int reading, int writing, const struct stat *source,
                 const attributes *found)
{
    if (IS_DISABLED(OWNER_BEFORE_MODE))
        fchmod(writing, source->st_mode & 07777);
    if (batch->flags & PK_OWNER) {
        doing(worker, OP_CHOWN);
        if (!pk_has_owner(batch, writing, source->st_uid, source->st_gid) &&
            fchown(writing, source->st_uid, source->st_gid))
            return -1;
    }
    const struct timespec times[2] = {source->st_atim, source->st_mtim};
    if (give_attributes(worker, reading, writing, found))
        return -1;
    return pk_give_mode_and_times(worker, batch, writing, source->st_mode, times);
}

static int is_full(int number)
{
    return number == ENOSPC || number == EROFS;
}

/* Close both files, remove the copy, and defer the row: the Python backend copies the file from the beginning. */
static int given_up(pk_batch *batch, int reading, int writing, const char *name)
{
    if (reading >= 0)
        close(reading);
    pk_take_back(batch, writing, name);
    return PK_DEFERRED;
}

/* Close both files, remove the copy and defer the row, because metadata could not be set. The following rows of the
 * batch are deferred, too. */
static int refused(pk_batch *batch, int reading, int writing, const char *name)
{
    atomic_store_explicit(&batch->work->is_refused, 1, memory_order_relaxed);
    return given_up(batch, reading, writing, name);
}

/* Close and remove the copy, and record the error as the verdict of the row. For a transient error, as after a
 * signal, defer the row instead. */
static int failed(pk_batch *batch, uint32_t row, int writing, const char *name, int operation, int number)
{
    given_up(batch, -1, writing, name);
    if (is_passing(number))
        return PK_DEFERRED;
    if (is_full(number))
        atomic_fetch_add(&batch->work->full, 1);
    return set_verdict(batch, row, FAILED, operation, number);
}

/* Write the piece that is in the buffer, then read and write the rest of the file. Return 0, -1 if reading failed or
 * the file has another size, or the errno of a failed write. */
static int write_pieces(pk_worker *worker, int reading, int writing, size_t size, size_t got, pk_hasher *hasher)
{
    size_t at = 0;
    for (;;) {
        doing(worker, OP_WRITE);
        int number = pk_write_all(writing, worker->buffer, got);
        if (number)
            return number;
        if (hasher != NULL)
            pk_update(hasher, worker->buffer, got);
        at += got;
        if (at == size)
            break;
        doing(worker, OP_READ);
        ssize_t more = read(reading, worker->buffer, size - at < PIECE ? size - at : PIECE);
        if (more <= 0)
            return -1;
        got = (size_t)more;
    }
    return read(reading, worker->buffer, 1) ? -1 : 0; /* not 0 if the file has grown, or cannot be read */
}

static int synced(int writing)
{
    int result;
    while ((result = fsync(writing)) && errno == EINTR)
        ;
    return result;
}

/* Sync (if the plan says so) and close a copy whose contents and metadata are written, and give it its final name.
 * Return the code of the row. */
static int name_it(pk_worker *worker, pk_batch *batch, uint32_t row, int writing, const char *made_as,
                   const struct stat *source)
{
    const int plan = batch->plans[row] & ~SYNC;
    const struct timespec times[2] = {source->st_atim, source->st_mtim};
    struct stat made;
    if (plan != NEW || batch->flags & PK_IDENTIFY) {
        if (fstat(writing, &made))
            return given_up(batch, -1, writing, made_as);
        batch->made[row] = made.st_ino;
        if (plan != REPLACE)
            pk_mark(batch->target, writing, batch->marks + (size_t)row * PK_MARK);
    }
    doing(worker, OP_FSYNC);
    if (batch->plans[row] & GUARD_FLAG(SYNC_BEFORE_NAME, SYNC) && synced(writing)) {
        if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP) /* another way to sync may work
                                                                        * (pcopy/fsio/syncer.py) */
            return given_up(batch, -1, writing, made_as);
        return failed(batch, row, writing, made_as, OP_FSYNC, errno);
    }
    const int closed = pk_close_new(worker, batch, writing, times);
    if (closed < 0)
        return failed(batch, row, -1, made_as, OP_CLOSE, errno);
    if (closed)
        return refused(batch, -1, -1, made_as);
    if (plan == REPLACE) {
        const char *name = batch->work->new_name[row];
        struct stat named;
        doing(worker, OP_RENAME);
        if (renameat(batch->target, made_as, batch->target, name))
            return failed(batch, row, -1, made_as, OP_RENAME, errno);
        doing(worker, OP_STAT);
        if (fstatat(batch->target, name, &named, GUARD_FLAG(RENAMED_NOFOLLOW, AT_SYMLINK_NOFOLLOW)))
            return failed(batch, row, -1, NULL, OP_STAT, errno);
        if (!GUARD(RENAMED_ITEM, named.st_ino == made.st_ino))
            return failed(batch, row, -1, NULL, OP_RENAME, ESTALE);
    }
    return DONE;
}

/* Create the copy of an open source, of which the first `got` bytes have been read. Return the code of the row. */
static int make(pk_worker *worker, pk_batch *batch, uint32_t row, int reading, size_t got, const struct stat *source,
                const attributes *found)
{
    const pk_digest *digest = batch->digests != NULL ? &worker->backend->digest : NULL;
    const size_t size = (size_t)source->st_size;
    const int is_new = (batch->plans[row] & ~SYNC) == NEW;
    const char *made_as = is_new ? batch->work->new_name[row] : batch->work->temporary[row];
    const unsigned char *data = batch->arena != NULL ? batch->arena + batch->offsets[row] : worker->buffer;
    uint8_t *const out = digest != NULL ? batch->digests + (size_t)row * (size_t)digest->size : NULL;
    doing(worker, OP_CREATE);
    const int writing = pk_create(batch, made_as);
    if (writing < 0) {
        int number = errno;
        close(reading);
        if (number == EEXIST && is_new)
            return set_verdict(batch, row, DECIDE_AGAIN, OP_CREATE, EEXIST);
        return failed(batch, row, -1, NULL, OP_CREATE, number);
    }
    pk_hasher hasher;
    int number;
    if (got == size) {
        doing(worker, OP_WRITE);
        number = pk_write_all(writing, data, got);
        if (!number && digest != NULL)
            pk_digest_whole(digest, data, got, out);
    } else {
        if (digest != NULL)
            pk_begin(&hasher, digest);
        number = write_pieces(worker, reading, writing, size, got, digest != NULL ? &hasher : NULL);
        if (!number && !GUARD(PIECES_UNCHANGED, is_still_found(batch, row, reading)))
            number = -1;
        if (!number && digest != NULL)
            pk_end(&hasher, out);
    }
    if (number > 0)
        close(reading);
    if (number > 0)
        return failed(batch, row, writing, made_as, OP_WRITE, number);
    if (number < 0)
        return given_up(batch, reading, writing, made_as);
    if (set_metadata(worker, batch, reading, writing, source, found))
        return refused(batch, reading, writing, made_as);
    /* The extended attributes were read after the status. */
    if (found->number && !GUARD(ATTRIBUTES_UNCHANGED, is_still_found(batch, row, reading)))
        return given_up(batch, reading, writing, made_as);
    doing(worker, OP_CLOSE);
    if (close(reading))
        return given_up(batch, -1, writing, made_as);
    number = name_it(worker, batch, row, writing, made_as, source);
    if (number == DONE) {
        batch->verdicts.bytes[row] = size;
        atomic_fetch_add_explicit(&batch->work->moved, size, memory_order_relaxed);
        atomic_store_explicit(&batch->work->full, 0, memory_order_relaxed);
    }
    return number;
}

int pk_copy_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    const int plan = batch->plans[row] & ~SYNC;
    struct stat source, before;
    int keeps_atime;
    attributes found;
    found.number = 0;
    if (plan == SKIP)
        return SKIPPED;
    if (plan == SLOW_PATH_PLAN)
        return SLOW_PATH;
    if (plan == REFUSE)
        return set_verdict(batch, row, FAILED, OP_CREATE, EEXIST);
    if (atomic_load_explicit(&batch->work->is_refused, memory_order_relaxed) ||
        (plan != NEW && batch->work->temporary == NULL))
        return PK_DEFERRED;
    if (batch->given.size[row] > SMALL_FILE)
        return PK_DEFERRED;
    doing(worker, OP_OPEN);
    int reading = pk_open_source(batch->directory, batch->work->name[row], batch->flags & PK_FOLLOW, &keeps_atime);
    if (reading < 0)
        return PK_DEFERRED;
    const size_t size = batch->given.size[row];
    const int at_once = size <= PIECE || batch->arena != NULL;
    /* Check the status before reading, too, if the name may refer to another item by now, which reading might
     * change, or if reading changes the atime of the file. */
    const int is_asked_first = batch->flags & PK_FOLLOW || !keeps_atime ||
                               !GUARD(SOURCE_IN_OUR_DIRECTORY, !others_may_exchange(batch));
    if (is_asked_first && (fstat(reading, &before) || !GUARD(SOURCE_MAY_BE_READ, is_found(batch, row, &before))))
        return given_up(batch, reading, -1, NULL);
    doing(worker, OP_READ);
    ssize_t got = read(reading, batch->arena != NULL ? batch->arena + batch->offsets[row] : worker->buffer,
                       at_once ? size + 1 : PIECE);
    if (got < 0 || (size_t)got != (at_once ? size : PIECE) ||
        look_at_attributes(worker, reading, &found))
        return given_up(batch, reading, -1, NULL);
    doing(worker, OP_FSTAT);
    if (fstat(reading, &source) || !GUARD(SOURCE_UNCHANGED, is_found(batch, row, &source)) ||
        !is_common(source.st_atim.tv_sec) || !is_common(source.st_mtim.tv_sec))
        return given_up(batch, reading, -1, NULL);
    if (is_asked_first)
        source.st_atim = before.st_atim;
    if (source.st_mode & (S_ISUID | S_ISGID) && !GUARD(SET_ID_WITH_OWNER, batch->flags & PK_OWNER))
        return given_up(batch, reading, -1, NULL); /* without the owner of the source, set-id bits need the decisions of
                                                    * the slow path */
    if (batch->flags & PK_SPARSE && (uint64_t)source.st_blocks << 9 < size)
        return close(reading) ? PK_DEFERRED : SLOW_PATH;
    return make(worker, batch, row, reading, (size_t)got, &source, &found);
}
