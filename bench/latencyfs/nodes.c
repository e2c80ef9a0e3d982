/* The inodes that the kernel knows, and how they are found again. */
#include "latencyfs.h"

#include <pthread.h>

double entry_timeout, attribute_timeout;
int root_fd;

/* A name for an inode that its file system gives, and understands later; an inode that gets the number of one that is
 * gone has another. Descriptors instead would be as many as there are files. */
struct handle {
    struct file_handle head;
    unsigned char room[64];
};

/* One per inode that the kernel knows; held in a table by its number. */
struct node {
    fuse_ino_t id;
    struct handle handle;
    uint64_t lookups;
    struct node *next;
};

#define BUCKETS (1 << 16)
static struct node *nodes[BUCKETS];
static pthread_mutex_t nodes_lock = PTHREAD_MUTEX_INITIALIZER;
static dev_t device;
static ino_t root_ino;

static fuse_ino_t id_of(ino_t ino)
{
    /* The root is 1 to the kernel; what has that number below takes the root's. */
    return ino == root_ino ? FUSE_ROOT_ID : ino == FUSE_ROOT_ID ? root_ino : ino;
}

/* A descriptor of O_PATH to let_go() later, or -1 with errno. */
int hold(fuse_ino_t id)
{
    if (id == FUSE_ROOT_ID)
        return root_fd;
    struct handle handle;
    pthread_mutex_lock(&nodes_lock);
    struct node *node = nodes[id % BUCKETS];
    while (node && node->id != id)
        node = node->next;
    if (node)
        handle = node->handle;
    pthread_mutex_unlock(&nodes_lock);
    if (!node) {
        fprintf(stderr, "latencyfs: the kernel asks for inode %lu, which it has forgotten\n", (unsigned long)id);
        abort();
    }
    return open_by_handle_at(root_fd, &handle.head, O_PATH | O_NOFOLLOW | O_CLOEXEC);
}

void let_go(int *fd)
{
    if (*fd != root_fd)
        close(*fd);
}

static bool remember(fuse_ino_t id, const struct handle *handle)
{
    struct node *fresh = malloc(sizeof *fresh);
    pthread_mutex_lock(&nodes_lock);
    struct node *node = nodes[id % BUCKETS];
    while (node && node->id != id)
        node = node->next;
    if (node) {
        node->lookups++;
        node->handle = *handle; /* another one, if the number has been given out again */
    } else if (fresh) {
        *fresh = (struct node){id, *handle, 1, nodes[id % BUCKETS]};
        node = nodes[id % BUCKETS] = fresh;
        fresh = NULL;
    }
    pthread_mutex_unlock(&nodes_lock);
    free(fresh);
    return node;
}

void forget_node(fuse_ino_t id, uint64_t lookups)
{
    if (id == FUSE_ROOT_ID)
        return;
    pthread_mutex_lock(&nodes_lock);
    struct node **at = &nodes[id % BUCKETS], *gone = NULL;
    while (*at && (*at)->id != id)
        at = &(*at)->next;
    if (*at && ((*at)->lookups -= lookups) == 0) {
        gone = *at;
        *at = gone->next;
    }
    pthread_mutex_unlock(&nodes_lock);
    free(gone);
}

/* 0 or errno. */
static int get_handle(int fd, struct handle *handle)
{
    int mount;
    *handle = (struct handle){.head = {.handle_bytes = sizeof handle->room}};
    return name_to_handle_at(fd, "", &handle->head, &mount, AT_EMPTY_PATH) ? errno : 0;
}

static uint32_t generation_of(const struct handle *handle)
{
    uint32_t sum = 2166136261u;
    for (unsigned at = 0; at < handle->head.handle_bytes; at++)
        sum = (sum ^ handle->room[at]) * 16777619u;
    return sum;
}

/* A name for the inode itself, also if it is a symlink, for calls that take no descriptor of O_PATH. */
struct path path_of(int fd)
{
    struct path path;
    snprintf(path.text, sizeof path.text, "/proc/self/fd/%d", fd);
    return path;
}

/* 0 or errno. */
int find(int directory, const char *name, struct fuse_entry_param *entry)
{
    struct handle handle;
    int fd = openat(directory, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno;
    *entry = (struct fuse_entry_param){.entry_timeout = entry_timeout, .attr_timeout = attribute_timeout};
    int error = fstatat(fd, "", &entry->attr, AT_EMPTY_PATH) ? errno : 0;
    if (!error)
        error = entry->attr.st_dev == device ? get_handle(fd, &handle) : EXDEV;
    close(fd);
    if (error)
        return error;
    entry->ino = id_of(entry->attr.st_ino);
    distort(&entry->attr);
    entry->generation = generation_of(&handle);
    return remember(entry->ino, &handle) ? 0 : ENOMEM;
}

void reply_found(fuse_req_t req, int directory, const char *name)
{
    struct fuse_entry_param entry;
    int error = find(directory, name, &entry);
    if (error == ENOENT && entry_timeout > 0) { /* the kernel may remember that there is none */
        entry = (struct fuse_entry_param){.entry_timeout = entry_timeout};
        fuse_reply_entry(req, &entry);
    } else if (error)
        fuse_reply_err(req, error);
    else if (fuse_reply_entry(req, &entry) == -ENOENT) /* interrupted: the kernel does not know it */
        forget_node(entry.ino, 1);
}

void reply_done(fuse_req_t req, int result)
{
    fuse_reply_err(req, result < 0 ? errno : 0);
}

/* All numbers of inodes are those of the file system of ``directory``; false if it can't be had. */
bool take_root(const char *directory)
{
    struct stat status;
    struct handle handle;
    root_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root_fd < 0 || fstat(root_fd, &status) || (errno = get_handle(root_fd, &handle)))
        return false;
    device = status.st_dev;
    root_ino = status.st_ino;
    return true;
}
