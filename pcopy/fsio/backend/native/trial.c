/* Rows of PK_TRY: each row makes one system call with one name (or open and close), so that pdbench can measure a
 * file system. No row is deferred. */
#include "internal.h"

#include <stdio.h> /* renameat */

#define CLOSED (O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK)

static int try_open(pk_worker *worker, const pk_batch *batch, uint32_t row, int flags)
{
    int descriptor = openat(batch->directory, batch->work->name[row], flags | CLOSED, 0600);
    if (descriptor < 0)
        return -1;
    doing(worker, OP_CLOSE);
    return close(descriptor);
}

int pk_try_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    const char *name = batch->work->name[row];
    struct stat status;
    int operation = OP_NONE, failed = -1;
    errno = EINVAL;
    switch (batch->flags) {
    case PK_TRY_CREATE:
        doing(worker, operation = OP_CREATE);
        failed = try_open(worker, batch, row, O_WRONLY | O_CREAT | O_EXCL);
        break;
    case PK_TRY_STAT:
        doing(worker, operation = OP_STAT);
        failed = fstatat(batch->directory, name, &status, AT_SYMLINK_NOFOLLOW);
        break;
    case PK_TRY_OPEN:
        doing(worker, operation = OP_OPEN);
        failed = try_open(worker, batch, row, O_RDONLY);
        break;
    case PK_TRY_RENAME:
        doing(worker, operation = OP_RENAME);
        failed = renameat(batch->directory, name, batch->directory, batch->work->new_name[row]);
        break;
    case PK_TRY_UNLINK:
        doing(worker, operation = OP_UNLINK);
        failed = unlinkat(batch->directory, name, 0);
        break;
    }
    return failed ? set_verdict(batch, row, FAILED, operation, errno) : DONE;
}
