/* Rows of PK_MAKE: each row creates one small file whose contents and metadata Python has in memory. If this code does
 * not handle the file, the row is deferred and nothing of the file remains. */
#include "internal.h"

/* Set owner and group. Return 0, -1 on failure, or 1 if this process may not change owners (PK_EXCUSED), so that the
 * file keeps another owner; ``pcopy.fsio.attributes.change_owner`` does the same. */
static int own(pk_batch *batch, int writing, uint32_t uid, uint32_t gid)
{
    if (pk_has_owner(batch, writing, uid, gid) || !fchown(writing, uid, gid))
        return 0;
    if (errno != EPERM || !(batch->flags & PK_EXCUSED))
        return -1;
    return fchown(writing, (uid_t)-1, gid) && errno != EPERM ? -1 : 1;
}

/* Apply the metadata, in the order of pcopy/fsio/attributes.py. Return 0, -1 if Python has to create the file
 * instead, or 1 if the file keeps another owner because this process may not change it. */
static int set_metadata(pk_worker *worker, pk_batch *batch, uint32_t row, int writing, const struct timespec times[2])
{
    const pk_columns *given = &batch->given;
    const mode_t mode = given->mode[row];
    int is_excused = 0;
    if (IS_DISABLED(OWNER_BEFORE_MODE))
        fchmod(writing, mode & 07777);
    if (batch->flags & PK_OWNER) {
        doing(worker, OP_CHOWN);
        is_excused = own(batch, writing, given->uid[row], given->gid[row]);
        if (is_excused < 0 || (is_excused && !GUARD(MEMBER_SET_ID_EXCUSED, !(mode & (S_ISUID | S_ISGID)))))
            return -1;
    }
    return pk_give_mode_and_times(worker, batch, writing, mode, times) ? -1 : is_excused;
}

int pk_make_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    return pk_make_file(worker, batch, row, batch->work->name[row]);
}

int pk_make_file(pk_worker *worker, pk_batch *batch, uint32_t row, const char *name)
{
    const pk_columns *given = &batch->given;
    const size_t size = given->size[row];
    const struct timespec mtime = {given->mtime[row] / 1000000000, given->mtime[row] % 1000000000};
    const struct timespec times[2] = {mtime, mtime};
    if (atomic_load_explicit(&batch->work->is_refused, memory_order_relaxed) ||
        given->mtime[row] < 0 || !is_common(given->mtime[row] / 1000000000) ||
        (given->mode[row] & (S_ISUID | S_ISGID) && !GUARD(MEMBER_SET_ID_WITH_OWNER, batch->flags & PK_OWNER)))
        return PK_DEFERRED;
    doing(worker, OP_CREATE);
    const int writing = pk_create(batch, name);
    if (writing < 0)
        return is_passing(errno) ? PK_DEFERRED
                                 : set_verdict(batch, row, errno == EEXIST ? DECIDE_AGAIN : FAILED, OP_CREATE, errno);
    doing(worker, OP_WRITE);
    int number = pk_write_all(writing, batch->arena + batch->offsets[row], size);
    if (number) {
        pk_take_back(batch, writing, name);
        return is_passing(number) ? PK_DEFERRED : set_verdict(batch, row, FAILED, OP_WRITE, number);
    }
    const int is_excused = set_metadata(worker, batch, row, writing, times);
    const int closed = is_excused < 0 ? 0 : pk_close_new(worker, batch, writing, times);
    if (is_excused < 0 || closed > 0) {
        atomic_store_explicit(&batch->work->is_refused, 1, memory_order_relaxed);
        pk_take_back(batch, is_excused < 0 ? writing : -1, name);
        return PK_DEFERRED;
    }
    if (closed) {
        number = errno;
        pk_take_back(batch, -1, name);
        return is_passing(number) ? PK_DEFERRED : set_verdict(batch, row, FAILED, OP_CLOSE, number);
    }
    batch->verdicts.bytes[row] = size;
    atomic_fetch_add_explicit(&batch->work->moved, size, memory_order_relaxed);
    return is_excused ? set_verdict(batch, row, DONE, OP_CHOWN, EPERM) : DONE;
}
