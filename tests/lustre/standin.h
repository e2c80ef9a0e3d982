/* Shared by the parts of the stand-in for Lustre, which standin.c describes. */
#undef _FORTIFY_SOURCE /* its inline functions have the names that are defined here */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST_OSTS 512
#define MOST_COMPONENTS 16
#define MOST_BYTES 65536 /* of an extended attribute */
#define END UINT64_MAX   /* where the last component ends */

#define MAGIC_V1 0x0BD10BD0u
#define MAGIC_V3 0x0BD30BD0u
#define MAGIC_SPECIFIC 0x0BD50BD0u
#define MAGIC_COMPOSITE 0x0BD60BD0u
enum { V1_BYTES = 32, V3_BYTES = 48, OBJECT_BYTES = 24, COMPOSITE_BYTES = 32, ENTRY_BYTES = 48, POOL_BYTES = 16 };
enum { STALE = 1, INITIALISED = 0x10, EXTENSION = 0x40, WISHED_FLAGS = 0x66 };
#define RAID0 1u
#define ON_MDT 0x100u
#define OVERSTRIPING 0x200u
#define WITH_A_HOLE 0x40000000u
#define RELEASED 0x80000000u
enum { ANY = 0xffff, WIDEST = 0xffe0 }; /* of offsets and counts: the OSTs, or with overstriping so many times them */

#define SHOWN "lustre.lov"
#define HIDDEN "user.standin."
#define LAYOUT HIDDEN "lov"
#define SERVER HIDDEN "mdt" /* the number of an item's MDT, in digits */

#define DELAYED (O_NOCTTY | FASYNC)
#define GROUP_LOCK 0x4008669Eu
#define GROUP_UNLOCK 0x4008669Fu
#define DATA_VERSION 0x801066DAu
#define SWAP_LAYOUTS 0x402066DBu
#define SET_LEASE 0xC00C66F3u

struct component {
    uint64_t start, end;
    uint32_t id, flags, pattern, size;
    uint16_t count, offset;
    bool specific;
    char pool[POOL_BYTES];
    int objects;
    uint16_t ost[MOST_OSTS];
};

struct layout {
    bool composite;
    uint32_t generation;
    uint16_t flags, mirrors; /* other than the first one */
    int components;
    struct component component[MOST_COMPONENTS];
};

/* A file system that is Lustre. */
struct point {
    dev_t device;
    ino_t root;
    char *path;
};

/* An item on such a file system: an open descriptor, or a path. */
struct item {
    const struct point *point;
    struct stat status;
    int descriptor; /* -1 for a path */
    const char *path;
    bool follows;
    char own_path[40];
};

/* targets.c: the file systems, what they refuse, and what is logged. */
int standin_points(void);
const struct point *standin_point(dev_t device);
int standin_osts(void);
int standin_mdts(void);
int standin_pool(const char *name, uint16_t *osts); /* how many OSTs it has; 0 if there is no such pool */
bool standin_refuses(const char *word);
int standin_taking(uint16_t *osts, int count); /* keeps those that accept new files, and returns their number */
void standin_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool standin_item_of_descriptor(int descriptor, struct item *item);
bool standin_item_of_path(const char *path, bool follows, struct item *item);
int standin_open_above(const struct item *item, int directory, const char *path);

/* layouts.c: the form of layouts, and how files get one. Numbers that are returned are errors, 0 is none. */
int standin_parse(const unsigned char *blob, size_t size, struct layout *layout);
size_t standin_format(const struct layout *layout, unsigned char *blob);
int standin_make(const struct layout *wanted, struct layout *made);
bool standin_reach(struct layout *layout, uint64_t start, uint64_t end);
bool standin_writes_to(const struct layout *layout, int component);
int standin_objects(const struct layout *layout);

/* stored.c: the layouts of items. */
ssize_t standin_get(const struct item *item, const char *name, void *value, size_t size);
int standin_set(const struct item *item, const char *name, const void *value, size_t size, int flags);
int standin_give_default(const struct item *item, int directory, const char *path);
int standin_inherit_default(const struct item *item, int directory, const char *path);
int standin_set_layout(const struct item *item, const unsigned char *blob, size_t size);
int standin_set_default(const struct item *item, const unsigned char *blob, size_t size);
int standin_before_write(const struct item *item);
void standin_after_write(const struct item *item, uint64_t start, uint64_t bytes);
void standin_reach_all(const struct item *item);

/* swap.c: functions to give a file another layout. */
uint64_t standin_version(const struct item *item);
bool standin_is_written(const struct item *item);
int standin_swap(const struct item *one, int descriptor);

/* requests.c: the number of an item's MDT, and group locks. */
int standin_server(const struct item *item);
void standin_forget_lock(int descriptor); /* it belongs to another file now */
