/* The inodes that Linux refers to, and file handles to open them again. */
#include "latencyfs.h"

#include <pthread.h>

double entry_timeout, attribute_timeout;
int root_fd;

/* A file handle of an inode (name_to_handle_at). An inode that reuses the number of a removed one has another handle.
 * Descriptors instead of handles would be as many as there are files. */
struct handle {
    struct file_handle head;
    unsigned char room[64];
};

/* An inode that Linux refers to, in a hash table by its number. */
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
    /* FUSE requires number 1 for the root; an item with that number in the backing file system gets the root's. */
    return ino == root_ino ? FUSE_ROOT_ID : ino == FUSE_ROOT_ID ? root_ino : ino;
}

/* Return an O_PATH descriptor of an inode, to be closed with close_inode(), or -1 with errno. */
int open_inode(fuse_ino_t id)
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
        fprintf(stderr, "latencyfs: FUSE requested inode %lu, which Linux has dropped before\n", (unsigned long)id);
        abort();
    }
    return open_by_handle_at(root_fd, &handle.head, O_PATH | O_NOFOLLOW | O_CLOEXEC);
}

void close_inode(int *fd)
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
        node->handle = *handle; /* another inode, if the number has been reused */
    } else if (fresh) {
        *fresh = (struct node){id, *handle, 1, nodes[id % BUCKETS]};
        node = nodes[id % BUCKETS] = fresh;
        fresh = NULL;
    }
    pthread_mutex_unlock(&nodes_lock);
    free(fresh);
    return node;
}

void drop_node(fuse_ino_t id, uint64_t lookups)
{
    if (id == FUSE_ROOT_ID)
        return;
    pthread_mutex_lock(&nodes_lock);
    struct node **at = &nodes[id % BUCKETS], *removed = NULL;
    while (*at && (*at)->id != id)
        at = &(*at)->next;
    if (*at && ((*at)->lookups -= lookups) == 0) {
        removed = *at;
        *at = removed->next;
    }
    pthread_mutex_unlock(&nodes_lock);
    free(removed);
}

/* Get the file handle of an open inode. Return 0 or an errno. */
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

/* Return a path of the inode itself, also of a symbolic link, for calls that do not accept an O_PATH descriptor. */
struct path path_of(int fd)
{
    struct path path;
    snprintf(path.text, sizeof path.text, "/proc/self/fd/%d", fd);
    return path;
}

/* Look up ``name`` in ``directory``, and fill ``entry``. Return 0 or an errno. */
int fill_entry(int directory, const char *name, struct fuse_entry_param *entry)
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
    apply_status_quirks(&entry->attr);
    entry->generation = generation_of(&handle);
    return remember(entry->ino, &handle) ? 0 : ENOMEM;
}

void reply_entry(fuse_req_t req, int directory, const char *name)
{
    struct fuse_entry_param entry;
    int error = fill_entry(directory, name, &entry);
    if (error == ENOENT && entry_timeout > 0) { /* Linux may cache that the name does not exist */
        entry = (struct fuse_entry_param){.entry_timeout = entry_timeout};
        fuse_reply_entry(req, &entry);
    } else if (error)
        fuse_reply_err(req, error);
    else if (fuse_reply_entry(req, &entry) == -ENOENT) /* interrupted: Linux has not got the inode */
        drop_node(entry.ino, 1);
}

void reply_done(fuse_req_t req, int result)
{
    fuse_reply_err(req, result < 0 ? errno : 0);
}

/* Open the backing ``directory``, from whose file system all inode numbers come. Return false on failure. */
bool open_root(const char *directory)
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
