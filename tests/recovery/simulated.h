/* The interface between simulated.c and tests/recovery/native_calls.py, which reads the part between the markers. */
#ifndef SIMULATED_H
#define SIMULATED_H
#include "internal.h"

/* begin of the interface */
#define SIM_ENDED -100000   /* the simulated process was killed */
#define SIM_OMIT -1         /* a time that is not changed */
#define SIM_USER 1000       /* user and group of the simulated process */

typedef struct {
    uint64_t device, inode, links, special;
    int64_t size, blocks, atime, mtime, ctime, birth; /* times in nanoseconds */
    uint32_t mode, uid, gid;
} sim_stat;

int sim_poll(pk_backend *backend, uint64_t nanoseconds);
int sim_list(int directory, pk_listing *listing, char *names, size_t size, uint8_t *kinds, uint64_t *inodes, int most);
int sim_open_directory(int around, const char *name, int flags, int wants_mark, pk_opened *opened);
int sim_end_threads(pk_backend *backend);
void sim_run_thread(void *(*run)(void *), void *argument);
void sim_discard(pk_backend *backend);
/* end of the interface */

long sim_status(int at, const char *name, int flags, sim_stat *out);
long sim_file_system(int file);
long sim_handle(int file, char *out, size_t size);
long sim_entries(int directory, char *out, size_t size);
long sim_open(int at, const char *name, int flags, int mode);
long sim_close(int file);
long sim_make_directory(int at, const char *name, int mode);
long sim_unlink(int at, const char *name, int flags);
long sim_rename(int from, const char *old, int to, const char *new_name);
long sim_link_target(int at, const char *name, char *out, size_t size);
long sim_read(int file, char *out, size_t size);
long sim_write(int file, const char *data, size_t size);
long sim_seek(int file, long at, int whence);
long sim_sync(int file);
long sim_change_mode(int at, const char *path, int mode);
long sim_change_owner(int file, int uid, int gid);
long sim_change_times(int at, const char *path, int64_t atime, int64_t mtime);
long sim_attribute_names(int at, const char *path, int follow, char *out, size_t size);
long sim_attribute(int at, const char *path, int follow, const char *name, char *out, size_t size);
long sim_set_attribute(int file, const char *name, const char *value, size_t size);
long sim_remove_attribute(int file, const char *name);
int64_t sim_clock(int is_monotonic);
long sim_start_thread(void *(*run)(void *), void *argument);
long sim_join_thread(long thread);
long sim_wait_for(void *condition);
long sim_wake_waiting(void *condition, int all);
#endif
