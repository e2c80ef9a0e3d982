/* Rows of PK_STAT, PK_READ and PK_REMOVE: each reads the status of an item, computes the digest of a small file, or
 * removes an item.
 *
 * Errors on the source side are deferred, because the Python backend knows which of them are transient.
 */
#include "internal.h"

#include <sys/sysmacros.h>
#include <sys/xattr.h>

/* Return the mask of the statx fields that these columns need. Other fields are not requested, because some file
 * systems have to ask a server for each field. */
static unsigned mask_of(const pk_columns *out)
{
    return STATX_TYPE | STATX_MODE | (out->uid != NULL ? STATX_UID : 0) | (out->gid != NULL ? STATX_GID : 0) |
           (out->links != NULL ? STATX_NLINK : 0) | (out->inode != NULL ? STATX_INO : 0) |
           (out->size != NULL ? STATX_SIZE : 0) | (out->blocks != NULL ? STATX_BLOCKS : 0) |
           (out->mtime != NULL ? STATX_MTIME : 0) | (out->ctime != NULL ? STATX_CTIME : 0) |
           (out->atime != NULL ? STATX_ATIME : 0);
}

int pk_look_at(int directory, const char *name, int flags, const pk_columns *out, uint32_t row, uint32_t *mode)
{
    struct statx status;
    if (pk_statx(directory, name, flags | AT_NO_AUTOMOUNT, mask_of(out), &status))
        return -1;
    const struct timespec mtime = {status.stx_mtime.tv_sec, status.stx_mtime.tv_nsec};
    const struct timespec ctime = {status.stx_ctime.tv_sec, status.stx_ctime.tv_nsec};
    const struct timespec atime = {status.stx_atime.tv_sec, status.stx_atime.tv_nsec};
    if ((out->mtime != NULL && !in_nanoseconds(mtime, &out->mtime[row])) ||
        (out->ctime != NULL && !in_nanoseconds(ctime, &out->ctime[row])) ||
        (out->atime != NULL && !in_nanoseconds(atime, &out->atime[row]))) {
        errno = EOVERFLOW;
        return -1;
    }
    if (out->mode != NULL)
        out->mode[row] = status.stx_mode;
    if (out->uid != NULL)
        out->uid[row] = status.stx_uid;
    if (out->gid != NULL)
        out->gid[row] = status.stx_gid;
    if (out->links != NULL)
        out->links[row] = status.stx_nlink;
    if (out->inode != NULL)
        out->inode[row] = status.stx_ino;
    if (out->size != NULL)
        out->size[row] = status.stx_size;
    if (out->device != NULL)
        out->device[row] = makedev(status.stx_dev_major, status.stx_dev_minor);
    if (out->blocks != NULL)
        out->blocks[row] = status.stx_blocks;
    *mode = status.stx_mode;
    return 0;
}

int pk_stat_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    const int follow = batch->flags & PK_FOLLOW ? 0 : AT_SYMLINK_NOFOLLOW;
    uint32_t mode;
    doing(worker, OP_STAT);
    if (!pk_look_at(batch->directory, batch->work->name[row], follow, &batch->found, row, &mode))
        return DONE;
    if (errno == ENOENT && batch->flags & PK_COPIES) /* an expected result: most names do not exist in the target */
        return set_verdict(batch, row, FAILED, OP_STAT, ENOENT);
    return PK_DEFERRED;
}

/* Compute the digest of an open file and store it in the row. Return 0, or -1 to defer the row. */
static int digest(pk_worker *worker, pk_batch *batch, uint32_t row, int reading, const struct stat *status)
{
    const pk_digest *wanted = &worker->backend->digest;
    const size_t size = (size_t)status->st_size;
    uint8_t *out = batch->digests + (size_t)row * (size_t)wanted->size;
    doing(worker, OP_READ);
    if (size < PIECE) {
        if (read(reading, worker->buffer, size + 1) != (ssize_t)size)
            return -1;
        pk_digest_whole(wanted, worker->buffer, size, out);
        return 0;
    }
    pk_hasher hasher;
    pk_begin(&hasher, wanted);
    for (size_t at = 0; at < size;) {
        ssize_t got = read(reading, worker->buffer, size - at < PIECE ? size - at : PIECE);
        if (got <= 0)
            return -1;
        pk_update(&hasher, worker->buffer, (size_t)got);
        at += (size_t)got;
    }
    if (read(reading, worker->buffer, 1))
        return -1;
    pk_end(&hasher, out);
    return 0;
}

static int is_unchanged(const struct stat *one, const struct stat *other)
{
    return one->st_size == other->st_size && one->st_mtim.tv_sec == other->st_mtim.tv_sec &&
           one->st_mtim.tv_nsec == other->st_mtim.tv_nsec && one->st_ctim.tv_sec == other->st_ctim.tv_sec &&
           one->st_ctim.tv_nsec == other->st_ctim.tv_nsec;
}

/* Return true if a file is marked as half written (``pcopy.fsio.incomplete_mark.INCOMPLETE_MARK_XATTRS``), or if its attributes cannot be
 * listed. */
static int is_marked(int reading)
{
    char names[MOST_NAMES];
    ssize_t size = flistxattr(reading, names, sizeof names);
    if (size < 0)
        return errno != ENOTSUP && errno != ENOSYS;
    for (const char *name = names; name < names + size; name += strlen(name) + 1)
        if (!strcmp(name, "trusted.pcopy.incomplete") || !strcmp(name, "user.pcopy.incomplete"))
            return 1;
    return 0;
}

int pk_read_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    const int copies = batch->flags & PK_COPIES;
    struct stat status, again;
    int keeps_atime;
    doing(worker, OP_OPEN);
    int reading = pk_open_source(batch->directory, batch->work->name[row], batch->flags & PK_FOLLOW, &keeps_atime);
    if (reading < 0)
        return PK_DEFERRED;
    doing(worker, OP_FSTAT);
    int is_simple = !fstat(reading, &status) && GUARD(DIGEST_OF_FILE, S_ISREG(status.st_mode)) &&
                   status.st_size <= SMALL_FILE &&
                   in_nanoseconds(status.st_mtim, &batch->found.mtime[row]) &&
                   in_nanoseconds(status.st_ctim, &batch->found.ctime[row]);
    if (is_simple && copies)
        is_simple = !posix_fadvise(reading, 0, 0, POSIX_FADV_DONTNEED);
    if (is_simple && batch->flags & PK_WHOLE) {
        doing(worker, OP_LISTXATTR);
        is_simple = GUARD(DIGEST_NOT_MARKED, !is_marked(reading));
    }
    is_simple = is_simple && !digest(worker, batch, row, reading, &status);
    if (is_simple && !copies)
        is_simple = !fstat(reading, &again) && GUARD(DIGEST_UNCHANGED, is_unchanged(&status, &again));
    doing(worker, OP_CLOSE);
    if (close(reading) || !is_simple)
        return PK_DEFERRED;
    batch->found.inode[row] = status.st_ino;
    batch->found.size[row] = (uint64_t)status.st_size;
    batch->verdicts.bytes[row] = (uint64_t)status.st_size;
    atomic_fetch_add_explicit(&batch->work->moved, (uint64_t)status.st_size, memory_order_relaxed);
    return DONE;
}

int pk_remove_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    const char *name = batch->work->name[row];
    const int is_directory = batch->given.mode != NULL && S_ISDIR(batch->given.mode[row]);
    struct stat status;
    if (batch->given.inode != NULL) {
        doing(worker, OP_STAT);
        if (fstatat(batch->directory, name, &status, AT_SYMLINK_NOFOLLOW))
            return PK_DEFERRED;
        if (!GUARD(REMOVED_AS_FOUND, pk_is_item(&batch->given, row, &status)))
            return DECIDE_AGAIN;
        batch->found.size[row] = S_ISREG(status.st_mode) ? (uint64_t)status.st_size : 0;
    }
    doing(worker, is_directory ? OP_RMDIR : OP_UNLINK);
    if (unlinkat(batch->directory, name, is_directory ? AT_REMOVEDIR : 0))
        return PK_DEFERRED;
    if (batch->removed != NULL)
        __atomic_fetch_add(batch->removed, 1, __ATOMIC_RELAXED);
    return DONE;
}
