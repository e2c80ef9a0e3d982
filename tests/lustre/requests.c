/* Requests of ioctl(2): group locks, servers, and requests to give a file another layout. */
#include "interposing.h"
#include <stdarg.h>
#include <sys/ioctl.h>

#define COUNT_TARGETS 0x800866A8u
#define SERVER_OF 0x800466AFu
#define DIRECTORY_STRIPES 0xC03066F1u
#define STRIPED_DIRECTORY 0x0CD20CD0u
#define CLONE 0x40049409u
#define CLONE_RANGE 0x4020940Du
#define EXTENTS 0xC020660Bu
#define IN_ORDER_OF_DEVICES 0x40000000u

/* By descriptor its file and the group, of this process. */

static atomic_ullong held[1 << 16];

static atomic_ullong *lock_of(int descriptor)
{
    return descriptor >= 0 && descriptor < 1 << 16 ? &held[descriptor] : NULL;
}

/* True if the lock is held and the layout has changed since: then a request for the data version waits forever. */
static atomic_bool *swapped_under(int descriptor)
{
    static atomic_bool swapped[1 << 16];
    return &swapped[descriptor];
}

void standin_forget_lock(int descriptor)
{
    if (lock_of(descriptor) != NULL)
        atomic_store(lock_of(descriptor), 0);
}

static int change_group_lock(const struct item *item, unsigned long request, uint32_t group)
{
    atomic_ullong *lock = lock_of(item->descriptor);
    unsigned long long wanted = (unsigned long long)inode(item) << 32 | group, found;

    if (!is_file(item) || standin_refuses("grouplock") || lock == NULL)
        return failing(ENOTTY);
    found = atomic_load(lock);
    if (group == 0)
        return failing(EINVAL);
    if (request == GROUP_LOCK) {
        static atomic_uint asked;
        if (fcntl(item->descriptor, F_GETFL) & O_NONBLOCK &&
            (standin_refuses("locked") || atomic_fetch_add(&asked, 1) % 3 < 2))
            return failing(EAGAIN); /* other clients release their locks, which takes no time here */
        if (found != 0 && found >> 32 == wanted >> 32)
            return failing(EINVAL);
        atomic_store(lock, wanted);
        standin_log("grouplock ino=%lu gid=%u", inode(item), group);
        standin_reach_all(item);
        return 0;
    }
    if (found != wanted)
        return failing(EINVAL);
    atomic_store(lock, 0);
    atomic_store(swapped_under(item->descriptor), false);
    standin_log("groupunlock ino=%lu gid=%u", inode(item), group);
    if (standin_refuses("quiet"))
        syscall(SYS_pwrite64, item->descriptor, "x", 1, item->status.st_size);
    return 0;
}

int standin_server(const struct item *item)
{
    char digits[16] = "";

    return standin_get(item, SERVER, digits, sizeof digits - 1) > 0 ? atoi(digits) : 0;
}

/* A directory with several has them in SERVER, separated by commas. The result is an lmv_user_md_v1. */
static int directory_stripes(const struct item *item, uint32_t *answer)
{
    char digits[16] = "";
    uint32_t stripes = 0;
    ssize_t length = standin_get(item, SERVER, digits, sizeof digits - 1);

    if (length <= 0 || strchr(digits, ',') == NULL || answer[0] != STRIPED_DIRECTORY)
        return failing(ENODATA);
    for (char *each = digits; each != NULL; each = strchr(each, ',') ? strchr(each, ',') + 1 : NULL)
        answer[12 + 6 * stripes++ + 4] = (uint32_t)atoi(each);
    answer[1] = stripes;
    return 0;
}

static bool is_striped(const struct item *item)
{
    unsigned char blob[MOST_BYTES];
    struct layout layout;
    ssize_t size = standin_get(item, LAYOUT, blob, sizeof blob);

    return size >= 0 && standin_parse(blob, (size_t)size, &layout) == 0 && standin_objects(&layout) > 1;
}

struct swapping {
    uint64_t flags;
    uint32_t descriptor, group;
    uint64_t version, other_version;
};

static int swap(const struct item *item, const struct swapping *asked)
{
    int error = 0;

    if (asked->flags & 1 && (standin_refuses("swap") || asked->version != standin_version(item)))
        error = EAGAIN;
    else
        error = standin_swap(item, (int)asked->descriptor);
    if (!error && asked->other_version != standin_version(item))
        error = EINVAL; /* a real Lustre accepts the value, and then has a wrong archive state of the file */
    if (!error && lock_of(item->descriptor) != NULL && atomic_load(lock_of(item->descriptor)))
        atomic_store(swapped_under(item->descriptor), true);
    return error ? failing(error) : 0;
}

static int control(const struct item *item, unsigned long request, void *more, bool *known)
{
    int before = errno, *number = more;

    *known = true;
    switch (request) {
    case GROUP_LOCK:
    case GROUP_UNLOCK:
        return change_group_lock(item, request, (uint32_t)(uintptr_t)more);
    case COUNT_TARGETS:
        if (!S_ISDIR(item->status.st_mode))
            return failing(ENOTTY);
        *number = *number ? standin_mdts() : standin_osts();
        return 0;
    case SERVER_OF:
        if (standin_refuses("mdtidx"))
            return failing(ENOTTY);
        *number = standin_server(item);
        errno = before;
        return 0;
    case DIRECTORY_STRIPES:
        return directory_stripes(item, more);
    case DATA_VERSION:
        if (lock_of(item->descriptor) != NULL && atomic_load(swapped_under(item->descriptor)))
            return failing(EDEADLK);
        *(uint64_t *)more = standin_version(item);
        errno = before;
        return 0;
    case SWAP_LAYOUTS:
        return swap(item, more);
    case SET_LEASE:
        if (*number != 4 && (standin_refuses("lease") || standin_is_written(item)))
            return failing(EBUSY);
        errno = before;
        return 1;
    case CLONE:
    case CLONE_RANGE:
        return failing(EOPNOTSUPP);
    case EXTENTS:
        if (is_file(item) && !(((uint32_t *)more)[4] & IN_ORDER_OF_DEVICES) && is_striped(item))
            return failing(EOPNOTSUPP);
        errno = before;
        break;
    default:
        break;
    }
    *known = false;
    return 0;
}

int ioctl(int descriptor, unsigned long request, ...)
{
    struct item item;
    va_list arguments;
    void *more;
    bool known;

    va_start(arguments, request);
    more = va_arg(arguments, void *);
    va_end(arguments);
    request &= 0xffffffff; /* some pass it as a signed int */
    if (standin_item_of_descriptor(descriptor, &item) && !is_path_only(descriptor)) {
        int result = control(&item, request, more, &known);
        if (known)
            return result;
    }
    return REAL(ioctl)(descriptor, request, more);
}
