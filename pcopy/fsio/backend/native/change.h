/* Changes of owner, group and mode: declarations that metadata.c (single items) and walk_change.c (subtrees) share. */
#ifndef PK_CHANGE_H
#define PK_CHANGE_H

#include "internal.h"

/* UNCHANGED of ``pcopy.fsio.backend.batches``: a mode, owner or group that is not to be changed */
#define KEEP UINT32_MAX

/* The owner, group and mode that an item should get. */
typedef struct {
    uint32_t uid, gid, mode; /* KEEP: unchanged */
} pk_wish;

enum { EXCHANGED = -2 };

static inline int is_nothing(const pk_wish *wish)
{
    return wish->uid == KEEP && wish->gid == KEEP && wish->mode == KEEP;
}

/* Return the changes that an item needs. `modes` has the new permission bits for each value of the old ones. */
pk_wish pk_wish_for(const pk_batch *batch, uint32_t mode, uint32_t uid, uint32_t gid, const uint16_t *modes);
/* Set owner, group and mode of an open item (also one that is open with O_PATH), in this order. Return 0, or -1 if not
 * all was set, with the reason in errno; if errno is 0, the slow path decides. */
int pk_give(pk_worker *worker, int item, const pk_wish *wish);
/* Change an item whose status was read by its name. Return EXCHANGED if another item has the name by now (an attack
 * or a race); that item is not changed. Otherwise return 0 or -1 as pk_give does. */
int pk_give_to(pk_worker *worker, int directory, const char *name, const struct stat *seen, const pk_wish *wish);

#endif
