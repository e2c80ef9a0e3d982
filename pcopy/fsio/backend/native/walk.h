/* The interface between the walk (walk.c), which goes down a tree, and its visitors, which do something with the names of
 * each directory. */
#ifndef PK_WALK_H
#define PK_WALK_H

#include "internal.h"

#define MOST_LEVELS 32u           /* directories that are open at the same time */
#define NOT_NUMBERED UINT32_MAX
#define NAMES_PER_CLOCK_READING 16
#define LEAST_NAMES 256           /* names of a directory, or rows, that are removed or changed even if the time is over */

typedef struct pk_walk pk_walk;

/* An open directory, and its subdirectories that are not entered yet. */
typedef struct {
    int descriptor;
    int other;                    /* the directory of the same path on the second side; -1 if the operation has none */
    uint32_t number;              /* in the frontier; NOT_NUMBERED: nothing of this directory is there yet */
    uint32_t left;                /* number of the subdirectories that are not entered yet */
    const uint64_t *inodes, *other_inodes; /* of these subdirectories, on the first and on the second side */
    char *names;                  /* of these subdirectories, each with a zero at its end */
    char *block;                  /* the memory of inodes, other_inodes and names */
    const char *name;             /* of the directory itself, in the level above it */
    uint64_t inode, other_inode;
    struct stat status;           /* of the open directory, before it was listed */
    size_t path;                  /* bytes of the path of the directory, with a slash at its end */
} pk_level;

/* The names of an open directory, each with a zero at its end, with the letters of their types and their inodes. */
typedef struct {
    char *names;
    size_t size;                  /* bytes of the names, with the zeros */
    int number;
    pk_all all;
    const uint64_t *other_inodes; /* of an operation with two sides, which sets it: inodes on the second side; or NULL */
    uint32_t excluded;            /* number of names that filters exclude; they are left out */
} pk_listed;

/* An operation on trees. */
typedef struct {
    /* Do something with the names of the directory `level`, which was listed. Directories whose letter is 'd' afterwards
     * are entered. An operation with two sides opens level->other. Return 0; or, if the directory has to be left to the
     * caller, 'd' with nothing done, or the letter with which it is left. */
    int (*names)(pk_walk *walk, pk_level *level, pk_listed *listed);
    /* Do something with a directory when nothing in it or below remains; `around` is the descriptor of its parent. It may
     * close the directory, and set its descriptor to -1. Return 0, or -1 if it remains. NULL: nothing is to be done. */
    int (*leave)(pk_walk *walk, pk_level *level, int around);
    /* Do something with a directory that is not left because something in it or below remains, for example record what the
     * caller has to do with it. Return 0, or -1 if there is no memory. NULL: nothing is to be done. */
    int (*stay)(pk_walk *walk, pk_level *level);
    /* Return true if the open directory `level` is the one that was found. NULL: its inode and device are compared, and
     * level->status is set. */
    int (*is_found)(const pk_walk *walk, const pk_level *level);
    /* Open a directory, as pk_open_whole does. NULL: pk_open_whole. */
    int (*open)(pk_walk *walk, int around, const char *name, uint64_t inode);
    int is_sorted;                /* true if names are listed and entered in the order of their bytes. A directory that this
                                   * code does not handle is left with the letter m then, and d stands for one that was not
                                   * tried: all that follow it in the same directory were not tried either. */
    int applies_filters;          /* true if it applies the filters itself; otherwise excluded names are left out before */
    int is_final;                 /* true if what was done with a directory cannot be done again by the slow path */
} pk_visitor;

/* The walk of one row. */
struct pk_walk {
    pk_worker *worker;
    pk_batch *batch;
    pk_directory *found;
    const pk_visitor *visitor;
    void *data;                   /* of the visitor */
    pk_sums sums;
    pk_memory path;               /* of the directory that was entered last, after the prefix of the batch */
    size_t prefix;                /* bytes of that prefix */
    pk_memory filtered;           /* path of the item to which the filters were applied last */
    size_t results;               /* bytes of results that are not in found->text */
    int is_over;                  /* set by the visitor: no further directory is entered */
    int is_out_of_memory;         /* true if an item is missing in the frontier */
    uint32_t failures;            /* directories that were not handled since the last one that was */
    uint32_t levels;              /* the directory whose names are processed is level[levels], those above it precede it */
    pk_level level[MOST_LEVELS];
};

/* Walk the subtree of a row. `prefix` is the path of its parent. Return the code of the row. */
int pk_walk_row(pk_worker *worker, pk_batch *batch, uint32_t row, const pk_visitor *visitor, const char *prefix, void *data);
/* Return a pointer to `more` unused bytes, or NULL if there is no memory. The caller adds to `size`. */
char *pk_room_for(pk_memory *memory, size_t more);
/* Append data. Return 0, or -1 if there is no memory. */
int pk_append(pk_memory *memory, const void *data, size_t size);
/* Return the number that the directory level[at] has in the frontier, after it and those above it were given one if they
 * had none; or NOT_NUMBERED if there is no memory. */
uint32_t pk_number_of(pk_walk *walk, uint32_t at);
/* Take back the number of the directory that was entered last. No other may have been numbered since, and no name in it may
 * have been left to the caller. */
void pk_forget_number(pk_walk *walk);
/* Leave a name of the directory level[at] to the caller. `letter` says why: d for a directory that was not entered; the
 * others are those of pk_frontier. Return 0, or -1 if there is no memory. */
int pk_remain(pk_walk *walk, uint32_t at, const char *name, int letter, uint64_t inode);
/* Skip files with a matching copy, or copy small files into a new directory, as far as that is possible here, and report that
 * if it is wanted. Remove these files from `found`, and the items whose letter in `kinds` is 'd'. The names are joined by
 * slashes then. Return 0; or -1 if the file system was full or read-only, so that no further file should be copied. */
int pk_process_items(pk_walk *walk, const pk_level *level, pk_directory *found, const uint8_t *kinds);
/* List an open directory; `names` has room for LISTED_BYTES. Return 0, or -1 if it has to be left to the caller. */
int pk_list_for_walk(pk_walk *walk, int directory, char *names, pk_listed *listed);

/* Return true if the patterns of the user exclude an item of the directory that was entered last, which is open. If that
 * depends on its type, the type is examined, and *kind becomes its letter. Return -1 if that fails, or if there is no
 * memory. */
int pk_excludes(pk_walk *walk, int directory, const char *name, uint8_t *kind);
/* Leave out the listed names that the patterns exclude, and count them. Return -1 as pk_excludes. */
int pk_leave_out_excluded(pk_walk *walk, int directory, pk_listed *listed);

/* Count an item by its listed type. */
static inline void count_type(pk_sums *sums, uint8_t kind)
{
    switch (kind) {
    case 'f': sums->files++; break;
    case 'd': sums->directories++; break;
    case 'l': sums->links++; break;
    default: sums->others++;
    }
}

#endif
