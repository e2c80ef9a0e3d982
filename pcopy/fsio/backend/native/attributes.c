/* Remembers how extended attributes are treated: Python says so once for each name (pk_learn). Also compares the
 * attributes of two items. */
#include "internal.h"

#include <stdio.h>
#include <sys/xattr.h>

#define MOST_LEARNT 256 /* largest number of names: a hostile user may create many attributes, and names are compared
                         * one by one */

void pk_learn(pk_backend *backend, const char *name, int what)
{
    size_t size = strlen(name) + 1;
    pk_attribute *attribute = backend->learnt < MOST_LEARNT ? malloc(sizeof *attribute + size) : NULL;
    if (attribute != NULL) {
        attribute->what = what;
        memcpy(attribute->name, name, size);
        attribute->following = backend->attributes;
        atomic_store_explicit(&backend->attributes, attribute, memory_order_release);
    }
    pthread_mutex_lock(&backend->lock);
    backend->learnt++;
    backend->unknown[0] = '\0';
    pthread_mutex_unlock(&backend->lock);
}

int pk_unknown(pk_backend *backend, char *name)
{
    pthread_mutex_lock(&backend->lock);
    memcpy(name, backend->unknown, sizeof backend->unknown);
    pthread_mutex_unlock(&backend->lock);
    return name[0] != '\0';
}

int pk_attribute_of(pk_backend *backend, const char *name)
{
    pk_attribute *each = atomic_load_explicit(&backend->attributes, memory_order_acquire);
    for (; each != NULL; each = each->following)
        if (!strcmp(each->name, name))
            return each->what;
    pthread_mutex_lock(&backend->lock);
    if (backend->unknown[0] == '\0' && backend->learnt < MOST_LEARNT)
        strncpy(backend->unknown, name, sizeof backend->unknown - 1);
    pthread_mutex_unlock(&backend->lock);
    return 0;
}

#define LONGEST_VALUE 4096 /* largest size in bytes of a value that is compared here */
#define LONGEST_PATH 320

/* Build the path of an item through its directory's descriptor, because no call for extended attributes takes a
 * descriptor and a name. Return 0 if it does not fit. */
static int path_of(char *path, int directory, const char *name)
{
    const int size = snprintf(path, LONGEST_PATH, "/proc/self/fd/%d/%s", directory, name);
    return size > 0 && size < LONGEST_PATH;
}

/* List the names of an item's attributes, each ended by a zero. Return their size in bytes, 0 if the file system has
 * no attributes, or -1 if listing fails. */
static ssize_t list(const char *path, char *names, int follow)
{
    ssize_t size = (follow ? listxattr : llistxattr)(path, names, MOST_NAMES);
    if (size < 0)
        size = errno == ENOTSUP || errno == ENOSYS ? 0 : -1;
    if (size >= 0)
        names[size] = '\0'; /* terminate the list: a faulty file system may return names without a zero at the end */
    return size;
}

static int is_among(const char *wanted, const char *names, ssize_t size)
{
    for (const char *name = names; name < names + size; name += strlen(name) + 1)
        if (!strcmp(name, wanted))
            return 1;
    return 0;
}

/* Return PK_KEEP if the attribute is compared, PK_LEAVE if it is ignored, or 0 if Python has to decide. A source's
 * access ACL is left to Python if ACLs are not copied: the mode of the copy depends on it. */
static int what_of(pk_worker *worker, int flags, const char *name, int is_source)
{
    const int is_access = !strcmp(name, "system.posix_acl_access");
    if (is_access || !strcmp(name, "system.posix_acl_default"))
        return flags & PK_ACLS ? PK_KEEP : is_access && is_source ? 0 : PK_LEAVE;
    return pk_attribute_of(worker->backend, name);
}

static int has_same_value(const char *source, const char *target, const char *name, int follow)
{
    char one[LONGEST_VALUE], other[LONGEST_VALUE];
    ssize_t size = (follow ? getxattr : lgetxattr)(source, name, one, sizeof one);
    return size >= 0 && lgetxattr(target, name, other, sizeof other) == size && !memcmp(one, other, (size_t)size);
}

int pk_has_same_attributes(pk_worker *worker, int flags, int source, const char *name, int target, const char *new_name)
{
    char ours[LONGEST_PATH], theirs[LONGEST_PATH];
    char names[MOST_NAMES + 1], there[MOST_NAMES + 1];
    if (!(flags & PK_XATTRS))
        return 1;
    if (!path_of(ours, source, name) || !path_of(theirs, target, new_name))
        return 0;
    doing(worker, OP_LISTXATTR);
    const int follow = flags & PK_FOLLOW;
    const ssize_t size = list(ours, names, follow), size_there = list(theirs, there, 0);
    if (size < 0 || size_there < 0)
        return 0;
    for (const char *each = names; each < names + size; each += strlen(each) + 1) {
        const int what = what_of(worker, flags, each, 1);
        if (what == 0 ||
            (what == PK_KEEP && (!is_among(each, there, size_there) || !has_same_value(ours, theirs, each, follow))))
            return 0;
    }
    for (const char *each = there; each < there + size_there; each += strlen(each) + 1) {
        const int what = what_of(worker, flags, each, 0);
        if (what == 0 || (what == PK_KEEP && strcmp(each, "security.selinux") && !is_among(each, names, size)))
            return 0; /* a file system may add an SELinux label itself, where the source has none */
    }
    return 1;
}

int pk_same_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    const pk_work *work = batch->work;
    const int is_same = pk_has_same_attributes(worker, batch->flags, batch->directory, work->name[row], batch->target,
                                               work->new_name[row]);
    return is_same ? DONE : PK_DEFERRED;
}

int pk_has_no_attributes(pk_worker *worker, int flags, int directory, const char *name)
{
    char path[LONGEST_PATH], names[MOST_NAMES + 1];
    if (!path_of(path, directory, name))
        return 0;
    doing(worker, OP_LISTXATTR);
    const ssize_t size = list(path, names, 0);
    if (size < 0)
        return 0;
    for (const char *each = names; each < names + size; each += strlen(each) + 1)
        if (what_of(worker, flags, each, 1) != PK_LEAVE)
            return 0;
    return 1;
}

int pk_bare_row(pk_worker *worker, pk_batch *batch, uint32_t row)
{
    return pk_has_no_attributes(worker, batch->flags, batch->directory, batch->work->name[row]) ? DONE : PK_DEFERRED;
}
