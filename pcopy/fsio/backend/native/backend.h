/* The interface of the C backend: all that Python sees of it.
 *
 * cffi parses this file, so it contains simple declarations only.
 *
 * Python creates a pk_batch: one operation on many items (rows). A column is an array with one value per row. Python
 * owns all columns to which the batch points, and keeps them alive until the batch is done. A column that is not needed
 * is NULL. The outcome of a row is a code (enum code in internal.h). A row is deferred, with nothing changed, if the C
 * code does not handle its item: Python, or the caller by its slow path, has to process it.
 */

/* Types of batches. The classes in ``pcopy.fsio.backend.batches`` and ``directory_batches`` describe what they do;
 * native_batches.py and native_directories.py say which class has which type. */
#define PK_STAT 1
#define PK_COPY 2
#define PK_READ 3
#define PK_REMOVE 4
#define PK_COPY_TREE 5
#define PK_FINISH 6
#define PK_SYNC 7
#define PK_SAME 8
#define PK_TRY 9
#define PK_UPDATE 10
#define PK_UPDATE_UNIFORM 11
#define PK_LOOK 12
#define PK_CHANGE 13
#define PK_BARE 14
#define PK_MEMBERS 15
#define PK_COMPARE_TREES 16
#define PK_MAKE 17
#define PK_REMOVE_TREE 18
#define PK_PATHS 19
#define PK_DESCRIBE 20
#define PK_UNPACK 21

/* Flags of batches. */
#define PK_FOLLOW 1     /* source names may be symbolic links, which are followed */
#define PK_SPARSE 2     /* sparse files get the code SLOW_PATH */
#define PK_OWNER 8      /* copies get owner and group */
#define PK_MODE 16      /* copies get the mode */
#define PK_TIMES 32     /* copies get the times */
#define PK_INHERITS 64  /* new files inherit an ACL that must be removed */
#define PK_COPIES 128   /* the files to read are copies: read them from storage; they may change meanwhile */
#define PK_WHOLE 256    /* a file that is marked as half written (--inplace) is deferred */
#define PK_IDENTIFY 512 /* return inode and identity mark also of files that are created under their final names */
#define PK_XATTRS 1024  /* extended attributes or ACLs are compared */
#define PK_ACLS 2048    /* ACLs are compared */
#define PK_EXCUSED 4096 /* this process may not change owners (no CAP_CHOWN): a refused chown is no error */
#define PK_LATE 8192    /* set the times of copies after closing them, because the server changes times at the close
                         * (``pcopy.fsio.close.is_mtime_set_on_close``) */
#define PK_BY_TYPE 16384 /* of PK_REMOVE_TREE: remove items by name and type of the listing, without reading their status */

/* Properties that PK_COMPARE_TREES compares, in the field "flags": the bits of ``pcopy.tasks.compare.properties``. */
#define PK_OF_SIZE 2
#define PK_OF_MTIME 4
#define PK_OF_MODE 8
#define PK_OF_OWNER 16
#define PK_OF_CONTENT 128
/* Another flag: the rows are items of any type, which are compared first. */
#define PK_OF_ITEMS 65536
/* Another flag: only names and types of items are compared; directories that are on both sides are entered. The first side
 * is the target of a copy. What only the second side has is ignored, and what only the first side has remains. */
#define PK_OF_NAMES 131072

/* The system call that each row of PK_TRY makes, in the field "flags":
 * ``pcopy.fsio.backend.batches.BenchmarkOperation``. */
#define PK_TRY_CREATE 1
#define PK_TRY_STAT 2
#define PK_TRY_OPEN 3
#define PK_TRY_RENAME 4
#define PK_TRY_UNLINK 5

/* Flags of a directory of PK_UNPACK, in the field "plans". */
#define PK_IS_MEMBER 1  /* a member describes it; others get the mode of a new directory */
#define PK_IS_LEAF 2    /* nothing but the files of this batch is created in it: it may get its metadata at once */

/* Code of a deferred row, in addition to the codes of Python: C has not processed it. Python, or the caller, has to
 * do that. */
#define PK_DEFERRED 255

/* How to treat an extended attribute, by its name: PK_LEAVE: ignore it. PK_KEEP: copy it. */
#define PK_LEAVE 1
#define PK_KEEP 2

typedef struct {
    uint32_t *mode, *uid, *gid, *links;
    int64_t *atime, *mtime, *ctime;
    uint64_t *inode, *size, *device, *blocks;
} pk_columns;

typedef struct {
    uint8_t *codes, *operations;
    int32_t *errnos;
    uint64_t *bytes, *nanoseconds;
} pk_verdicts;

typedef struct pk_digest {
    int size;             /* bytes of a digest; 0: digests are not computed */
    int algorithm;        /* the value that pk_find_digest returned */
    uint64_t block_size;
} pk_digest;

/* Sums over the items of directories (the "tally"). Regular files are counted by size (sizes, size_bytes: classes
 * bounded by powers of two) and by the age of their mtime (modified, modified_bytes) and atime (read); "bytes" are
 * those of the files of a class. holes: bytes of files that are not allocated. sparse, hard_linked, set_id,
 * world_writable, future: numbers of unusual items. The bounds of the age classes ascend; the last one is the
 * present. files: the largest files of PK_LOOK, the largest first; of files with the same size, the one whose path is
 * smaller comes first. */
#define PK_BOUNDS 9
#define PK_LARGEST 20
typedef struct {
    uint64_t size;
    char *path;
} pk_large;
typedef struct {
    int64_t bounds[9];
    uint64_t bytes, allocated, holes, sparse, hard_linked, set_id, world_writable, future;
    uint64_t sizes[65], size_bytes[65], modified[10], modified_bytes[10], read[10];
    uint64_t last_bytes, last_allocated, last_largest; /* the same for the last call of pk_tally_add alone */
    pk_large files[20];
    uint32_t large_files; /* number of them */
} pk_tally;

/* Filters of the user. rules: the patterns, the last one first: size of the program and flags (PK_EXCLUDES and the like),
 * then the program (filter.c). above: path of the parent directory of the rows, as patterns see it, with a slash at its end;
 * or empty. Items other than directories are excluded if their mtime is not later than `after`, or not earlier than `before`;
 * files also if they are not larger than `larger`, or not smaller than `smaller`. */
#define PK_EXCLUDES 1         /* the pattern excludes what it matches; otherwise it includes it */
#define PK_DIRECTORIES_ONLY 2 /* it matches directories only */
#define PK_WHOLE_PATH 4       /* it is compared with the path, not with the name */
typedef struct {
    const uint8_t *rules;
    size_t size;
    const char *above;
    int64_t after, before, larger, smaller;
} pk_filter;

/* Flags of pk_tree. */
#define PK_IN_NEW 1      /* this job created the parent directory of the targets: it is expected to be empty */
#define PK_POWERFUL 2    /* this process is not restricted by permissions (CAP_DAC_OVERRIDE) */
#define PK_COMPARE 4     /* skip files that have a matching copy, and do not return them */
#define PK_LINKS 8       /* do not skip or copy a file with several hard links */
#define PK_COPY_NEW 16   /* copy small files into a new directory, within a time limit */
#define PK_GIVING 32     /* this process may change owners of files (CAP_CHOWN) */
#define PK_RESUMED 64    /* earlier runs of this job may have created or changed items of the target since `begun`; of
                          * PK_FINISH: a directory whose items are not those of its source is left to the slow path */
#define PK_OWN 128       /* directories that they have created can be recognised */
#define PK_KEEP_ROWS 256 /* return a row that has subdirectories even if nothing remains in it and below */
#define PK_APART 512     /* of PK_DESCRIBE: other directories of the same parent may belong between those of the rows */
#define PK_REPORT 1024   /* report the files that are copied, and return existing directories whose metadata differ */
#define PK_REPORT_ALL 2048 /* report also those that are skipped, and return all directories */
#define PK_BY_PATH 4096   /* of PK_FINISH: finish the directory that has the path, whatever its identity is */

/* Settings that the directories of a batch have in common. Times are in nanoseconds since 1970, the window
 * (difference of times that is ignored) is in seconds. shunned: the target root, which must not be copied into
 * itself. */
typedef struct {
    uint64_t source_device, target_device, shunned_device, shunned_inode;
    int64_t touched;      /* items in the target that have changed since then are deferred; PK_OF_NAMES: directories that
                           * were created since then are ignored */
    int64_t begun;        /* of PK_COPY_TREE: only this job can have changed directories of the target since then; of
                           * PK_OF_NAMES: directories of the target that have changed since then are deferred */
    int64_t window;
    uint32_t user;        /* effective user id of this process */
    int most;             /* a directory with this many or more names is deferred; of PK_FINISH: directories of a row */
    int flags;
    uint64_t deadline;    /* of walks: rows enter no further directory after this time (CLOCK_MONOTONIC, nanoseconds) */
    uint32_t depth;       /* of walks: how many levels below the directories of the rows may be entered */
    uint64_t mount;       /* of PK_REMOVE_TREE: mount (stx_mnt_id) of all directories */
    uint32_t mask;        /* of PK_LOOK: the columns to return for the items of the directories */
    char kinds[8];        /* letters of the types whose columns are returned, ended by a zero; empty: all types */
    pk_tally *tally;      /* of PK_LOOK: NULL, or sums to which a directory is added instead of being returned, if all
                           * its items have one owner and printable ASCII names. No lock protects the sums: only for
                           * backends without threads. */
    uint64_t max_file_bytes; /* of PK_DESCRIBE: size of the largest simple file */
    const pk_filter *filter; /* of walks: NULL, or the filters: items that they exclude are counted and left out */
} pk_tree;

typedef struct {
    uint32_t mode, uid, gid;
    int64_t atime, mtime;
} pk_metadata;

#define PK_MARK 144

/* Memory that grows: `size` of `room` bytes are used. */
typedef struct {
    char *at;
    size_t size, room;
} pk_memory;

/* What a walk of a subtree leaves to the caller: items, each with the number of its parent and a letter. The letter is d
 * for a directory that was not entered, c for files that differ only in their contents, ! for a name that another item took
 * meanwhile, ? for other items for the slow path. A number is an index of `parents`, `inodes` and `names`, which describe
 * the directories that were entered and in which or below which something remains; number 0 is the directory of the row.
 * Other letters of PK_CHANGE: x for a directory that was entered and must be changed after all below it; those of pk_list
 * for items that were not begun because the time was over. Of PK_COPY_TREE: s for a directory for the slow path, a for one
 * whose target was created, too. Of PK_COMPARE_TREES: < and > for items that only the first or only the second side has;
 * with PK_OF_NAMES the letters of pk_list, as capitals, for items that only the first side has. Of PK_DESCRIBE: m for a
 * directory that is not simple; d for one that was not begun. */
typedef struct {
    uint32_t entered, left;                          /* numbers of these directories, and of the items that remain */
    pk_memory parents, inodes, names;                /* uint32_t, uint64_t, names joined by slashes */
    pk_memory left_parents, left_inodes, left_names; /* the same of the items that remain */
    pk_memory left_kinds;                            /* their letters */
    pk_memory other_inodes;                          /* uint64_t: those of the directories on the second side; or 0 */
} pk_frontier;

/* What C has found in one directory of a batch: a source directory with the state of its target, or a directory that
 * is listed, compared or changed. */
typedef struct {
    pk_metadata metadata;       /* metadata of the source directory */
    pk_metadata present;  /* metadata of the target before anything in it was changed; zeros if it was created */
    int64_t present_ctime;
    uint64_t inode;       /* inode number of the target; the mark is that of the target, too */
    uint8_t mark[144];
    uint8_t is_made, is_anothers, is_finished; /* the target was created; belongs to another user; nothing remains */
    uint8_t is_changed;   /* of a finished directory: its owner, mode or mtime differs from what it was before */
    uint8_t is_touched;   /* an earlier run of the job may have created it, or items in it */
    uint32_t skipped, copied, left; /* numbers of items skipped and copied, and of items that remain */
    uint32_t excluded;    /* of the skipped items, those that filters exclude */
    uint32_t finished, changed; /* of a finished row: number of directories below it, and of those that have changed */
    uint64_t skipped_bytes, copied_bytes;
    uint64_t *took;       /* the nanoseconds that the copy of each item took; 0: it was not copied */
    char *names;          /* the names that remain to be processed, joined by slashes; their columns are in rows */
    size_t names_size;
    pk_columns rows;
    pk_memory text;       /* of PK_PATHS and PK_LOOK: paths of items, each ended by a zero */
    pk_memory items;      /* of PK_LOOK: for each directory, types, inode numbers and columns of its items; of PK_DESCRIBE:
                           * pk_members, whose paths are in text; of PK_COPY_TREE: pk_reported, with what follows each */
    pk_memory entered, above; /* of PK_LOOK: a pk_entered for each directory that was entered, and their paths, each ended
                               * by a zero */
    pk_memory gaps;       /* of PK_DESCRIBE: numbers (uint32_t) of members before which something is left to the caller */
    pk_frontier frontier; /* of walks */
    pk_memory copies;     /* of PK_COPY_TREE: a pk_copied for each directory that was entered and is not finished; text has
                           * their paths, each ended by a zero */
    pk_memory marks;      /* of PK_COPY_TREE: the marks of their targets, each preceded by its length (one byte) */
    pk_memory partly;     /* of PK_COPY_TREE: a pk_directory for each of them in which items remain */
    uint8_t letter;       /* of PK_CHANGE and PK_COMPARE_TREES: what remains to be done with the item of the row itself, as
                           * in `frontier`; 0: nothing */
    void *block;          /* the allocated memory to which the pointers of this structure lead */
} pk_directory;

/* Flags of pk_copied: PK_FINISH can set the metadata of the directory; the target was created; it belongs to another user;
 * its metadata are those of the source; an earlier run of the job may have created it, or items in it; nothing had to be
 * done in it and below; the same is true of subdirectories of it that are not returned, and have subdirectories. */
#define PK_IS_SIMPLE 1
#define PK_IS_MADE 2
#define PK_IS_ANOTHERS 4
#define PK_IS_UNCHANGED 8
#define PK_IS_TOUCHED 16
#define PK_IS_COMPLETE 32
#define PK_HAS_COMPLETE 64

/* A directory that PK_COPY_TREE has entered and not finished. metadata: of the source. present: of the target before anything
 * in it was changed; zeros if it was created. source, target: inode numbers. copied, skipped: items, of which filters exclude
 * `excluded`. remaining: items.
 * subdirectories: those that were entered and are not finished. finished: those that are finished, with all below them, of
 * which `changed` had other metadata before; files in them count as skipped in this directory. mark_size: bytes of the mark
 * of the target, with its length. */
typedef struct {
    pk_metadata metadata;
    uint64_t source, target, copied_bytes, skipped_bytes;
    pk_metadata present;
    int64_t present_ctime;
    uint32_t copied, skipped, excluded, remaining, subdirectories, finished, changed, flags, mark_size;
} pk_copied;

/* What PK_COPY_TREE has done with files of a directory: they were copied, or skipped. The path of the directory (path_size
 * bytes) follows, the names of the files, joined by slashes (names_size bytes), their sizes, and the nanoseconds that each
 * copy took (uint64_t). */
typedef struct {
    uint32_t files, path_size, names_size, is_copied;
} pk_reported;

/* A directory that PK_LOOK has entered. items: number of items in it. is_summed: true if they were added to the tally; all
 * of them have this owner and group then, and kinds has their numbers by type, in the order of the letters "fdlpscb".
 * Otherwise their columns were stored. */
typedef struct {
    uint64_t inode, bytes, allocated;
    uint32_t items, is_summed, kinds[7], uid, gid;
} pk_entered;

/* What the rows of PK_LOOK have found together: numbers of items that were stored, of directories that were entered, and
 * bytes of the paths of items (text) and directories (above), with a zero at the end of each path. */
typedef struct {
    size_t items, directories, text, above;
} pk_found;

/* Counts of the items of a directory that were processed, the number of those that were changed, and the bytes of
 * the files. PK_COMPARE_TREES: pairs of items that are equal or differ only in their contents, and the bytes that were
 * read from both. PK_REMOVE_TREE: removed items. PK_PATHS: all items, without bytes. excluded: items that filters exclude,
 * which are in no other sum. */
typedef struct {
    uint64_t files, directories, links, others, bytes, changed, excluded;
} pk_sums;

/* A member of PK_MEMBERS: status of an item as the scan found it. whole: bytes of its member in the archive, with headers
 * and padding. */
typedef struct {
    uint64_t inode, size, device;
    int64_t mtime, ctime;
    uint32_t mode, uid, gid, whole;
} pk_member;

/* Consecutive members that PK_DESCRIBE has found: `members` of them from the member number `first` on; `size`: their bytes in
 * the archive; `names`: the offset of the first of their names, each of which is ended by a zero. */
typedef struct {
    uint64_t size, names;
    uint32_t first, members;
} pk_piece;

/* A row of PK_MEMBERS: `members` consecutive members, from the member number `first` on. Their names, of which the first one is
 * at the offset `names`, are paths below the directory (descriptor); those of directories end with a slash. others_may:
 * another user may replace files that are in this directory itself. In the archive, the names have a prefix: prefix_size
 * bytes of the field "prefixes", from prefix_at on. */
typedef struct {
    int32_t directory;
    uint32_t first, members, prefix_at, prefix_size, others_may;
    uint64_t names;
} pk_run;

/* The last part of a tar header, from the type field on, for files of this owner. sum: sum of its bytes, plus the 8
 * spaces that stand for the checksum field. */
typedef struct {
    uint32_t uid, gid, sum;
    uint8_t end[356];
} pk_owner;

typedef struct pk_batch {
    int kind, flags;
    uint32_t rows;
    int directory, target;
    uint32_t umask;
    const char *names, *new_names, *temporaries; /* joined by slashes; new_names and temporaries may be NULL */
    size_t names_size, new_names_size, temporaries_size;
    const uint8_t *plans; /* of PK_COPY: enum plan, perhaps with SYNC; of PK_FINISH: 1 if the job created a directory; of
                           * PK_UNPACK: flags of each directory */
    uint32_t finished;    /* of PK_FINISH and PK_UNPACK: number of all directories */
    uint8_t *outcomes;    /* of PK_FINISH: code of each directory, 0 at first, and if the slow path has to finish it; of
                           * PK_MEMBERS: code of each member; of PK_UNPACK: codes of the directories, then of the files:
                           * DONE; DECIDE_AGAIN: the directory is to be finished; LACKS: the file has another owner,
                           * because this process may not change it; 0: left to the slow path */
    pk_columns given, found, wanted; /* mode, owner or group in "wanted": 0xffffffff means unchanged; of PK_UNPACK: given:
                                      * of the files; wanted: of the directories, links: number of files in each */
    pk_verdicts verdicts;
    uint8_t *digests;
    uint64_t *made;       /* of PK_COPY: inode numbers of new files. Of PK_UNPACK, for each directory: how many bytes of
                           * its path lead to a new directory that has no mode yet, and that no member describes; or 0 */
    uint8_t *marks;       /* PK_MARK bytes for each row: the length of the mark, then the mark; of PK_FINISH: without
                           * gaps, for each directory */
    uint8_t *arena;       /* NULL, or memory in which the contents of all files are left; of PK_MAKE and PK_UNPACK: the
                           * contents to write */
    const pk_tree *tree;
    pk_directory *directories;
    const uint64_t *offsets; /* for each row, where its file begins in the arena. There is room for its size and one
                              * byte more; of PK_MEMBERS: up to the next offset. Of PK_FINISH: two numbers for each
                              * row, where its first path and its first mark begin */
    const uint16_t *modes; /* the new permission bits of items that are not directories, for each of the 4096 values */
    const uint16_t *directory_modes; /* the same for directories, for PK_CHANGE */
    const uint8_t *kinds;  /* of PK_CHANGE: letters of the types of the rows, as of pk_list; NULL: all rows are directories
                            * that were changed, and whose contents remain */
    pk_sums *sums;         /* of PK_PATHS, PK_CHANGE, PK_COMPARE_TREES and PK_REMOVE_TREE: one for each row,
                            * zeros at first */
    uint32_t uid, gid;     /* new owner and group of all rows; 0xffffffff: unchanged */
    const int32_t *synced; /* of PK_SYNC: open directories, one for each row */
    const pk_owner *owners; /* the fields from here to "members" are those of PK_MEMBERS; of PK_DESCRIBE: known owners */
    uint32_t owners_number;
    const pk_member *members; /* one for each row */
    const char *prefixes;  /* of PK_MEMBERS: see pk_run; of PK_PATHS: the path of the parent directory, with a slash
                            * and a zero at its end; of PK_FINISH and PK_UNPACK: paths of directories, each ended by a
                            * zero */
    const pk_run *runs;    /* of PK_MEMBERS: one for each row */
    const char *paths;     /* of PK_MEMBERS and PK_UNPACK: the names of all members or files, each ended by a zero */
    const uint8_t *pax;    /* of PK_MEMBERS: the header block that precedes a pax record with only an mtime */
    uint64_t *removed;     /* of PK_REMOVE: NULL, or a counter to which 1 is added right after each removal */
    int at_once;          /* rows that may modify the target directory at the same time; 0: no limit */
    /* Set by the C code only. */
    int cancelled;        /* 1 if rows got the code CANCELLED */
    struct pk_work *work;
} pk_batch;

typedef struct pk_backend pk_backend;

/* The row that a thread is processing: when it began (CLOCK_MONOTONIC, nanoseconds; 0: the thread is idle), its
 * operation (enum operation), and the directory and name to which the operation is applied. */
typedef struct {
    uint64_t since;
    int operation;
    int directory;
    char name[256];
} pk_doing;

/* Work done since the backend was opened. Times are in nanoseconds. busy: while at least one batch was unfinished.
 * wall: spent on rows, summed over the threads. processor: processor time of the threads. operations: number of
 * system calls, roughly. */
typedef struct {
    uint64_t busy, wall, processor, operations;
} pk_load;

/* Open a backend without threads. wake: an eventfd that is written when a thread has finished a batch, or -1. Return
 * NULL, with errno set, if there is no memory. */
pk_backend *pk_open(int wake, pk_digest digest);
void pk_close(pk_backend *backend);
/* Set the number of threads that process rows, in addition to the thread that polls. Threads that were started before
 * and exceed the number stay idle. If the number is 0, the polling thread processes the rows. modifying: rows that may
 * modify anything at the same time; 0: no limit. Return the number of threads, which may be lower than requested. */
int pk_set_threads(pk_backend *backend, int threads, int modifying);
void pk_measure(pk_backend *backend, pk_load *load);
/* Submit a batch: put its rows into the queue. Return 0, or an errno: ENOMEM if there is no memory, EINVAL if the
 * number of names is not that of the rows. */
int pk_submit(pk_backend *backend, pk_batch *batch);
/* Process rows for this time in the calling thread, if there are no worker threads. Otherwise do nothing. */
void pk_poll(pk_backend *backend, uint64_t nanoseconds);
int pk_is_done(pk_batch *batch);
/* Of a PK_LOOK batch that is done: return the sizes of what its rows have found together; and copy that to memory of these
 * sizes, in the order of the rows. rows: the columns of the mask. */
pk_found pk_size_of_found(const pk_batch *batch);
void pk_copy_found(const pk_batch *batch, const pk_columns *rows, uint8_t *kinds, uint64_t *inodes, char *text,
                   pk_entered *entered, char *above);
/* Of a PK_DESCRIBE batch that is done: return the number of the members that its rows have found together, and the bytes of
 * their names in *text; copy both to memory of these sizes, in the order of the archive; and divide the members into
 * pieces of at most `most` members, which end after `most_bytes` bytes. The last function returns the number of pieces;
 * there must be room for one per member. */
size_t pk_size_of_described(const pk_batch *batch, size_t *text);
void pk_copy_described(const pk_batch *batch, pk_member *members, char *text);
size_t pk_divide_described(const pk_batch *batch, const pk_member *members, const char *text, pk_piece *pieces,
                           uint32_t most, uint64_t most_bytes);
uint64_t pk_moved(pk_batch *batch);
void pk_cancel(pk_backend *backend, pk_batch *batch);
/* Release the memory that the C code has allocated for a batch that is done. */
void pk_release(pk_batch *batch);
/* Set how the extended attribute "name" is treated: PK_LEAVE, PK_KEEP, or 0 to defer files that have it. */
void pk_learn(pk_backend *backend, const char *name, int what);
/* Copy the name of an attribute that was met, and for which pk_learn has not been called, into a buffer of 256
 * bytes. Return 0 if there is none, or if the table is full; otherwise 1. */
int pk_unknown(pk_backend *backend, char *name);
/* Store the row that has been in progress longest in *doing. Return 0 if no row is in progress. */
int pk_oldest(pk_backend *backend, pk_doing *doing);

/* Load the library of a hash algorithm ("xxh3-128" or "blake3"). Return the number of the algorithm, or 0 if there is
 * no such library. */
int pk_find_digest(const char *name);

/* List an open directory, from its beginning, or from where *listing stopped. Names go to the buffer, joined by
 * slashes. kinds gets a letter for each name (f, d, l, p, s, c, b as in find -type; ? if the directory does not list
 * types), and inodes the inode number; both may be NULL. Return the number of names, at most "most", or a negative
 * errno. */
typedef struct {
    uint32_t at, end;
    int has_begun, is_over;
    size_t used; /* bytes of the names in the buffer */
    uint64_t entries[8192];
} pk_listing;
int pk_list(int directory, pk_listing *listing, char *buffer, size_t size, uint8_t *kinds, uint64_t *inodes, int most);

/* Open a directory by its name in the directory "around" (a descriptor), and store its identity in *opened. The mark
 * (in the format of pk_batch) is set only if wants_mark is true. Return the descriptor, or -1 if anything fails:
 * then no descriptor is open, and Python repeats the calls to find the error. */
typedef struct {
    uint64_t device, inode;
    uint8_t mark[PK_MARK];
} pk_opened;
int pk_open_directory(int around, const char *name, int flags, int wants_mark, pk_opened *opened);

/* Add rows (items) to the sums; kinds are letters of types, as of pk_list. Return -1, with nothing added, if a sum
 * might overflow; otherwise 0. */
int pk_tally_add(pk_tally *tally, const uint8_t *kinds, uint32_t number, const uint32_t *mode, const uint32_t *links,
                 const uint64_t *size, const uint64_t *blocks, const int64_t *atime, const int64_t *mtime);
/* Add a file to the largest files, if it is one of them so far. Return 0, or -1 if there is no memory. */
int pk_tally_file(pk_tally *tally, uint64_t size, const char *path);
/* Release the memory of the paths of the largest files. */
void pk_tally_release(pk_tally *tally);

/* A parser for the headers of a tar archive, of which `size` bytes from the offset `start` on were read. The following
 * values of `why` say why it stopped. */
#define PK_TAR_MORE 0     /* the header at `at` was not read completely, or it begins at `end` or later */
#define PK_TAR_OTHER 1    /* the member at `at` has an unusual header: ``pcopy.archive.reader`` has to parse it */
#define PK_TAR_USER 2     /* the number of the user `unknown` has to be looked up first */
#define PK_TAR_GROUP 3    /* the number of the group `unknown` has to be looked up first */
#define PK_TAR_ROOM 4     /* the memory for the results is full: call again */

#define PK_TAR_NAMES 16   /* most names in a pk_owners */

/* Numbers of users or groups on this host, by name; -1: the name does not exist here. */
typedef struct {
    int number;
    char names[16][33];
    int64_t numbers[16];
} pk_owners;

typedef struct {
    const uint8_t *data;
    size_t size;
    uint64_t start, end;  /* offset of the data; offset before which members must begin */
    int is_numeric;       /* use the numbers in the archive and ignore names of owners */
    pk_owners users, groups;
    /* Offset of the next header: set by the caller before the first call, and by each call. */
    uint64_t at;
    int why;
    char unknown[33];
    /* Results, for each simple member: its values (``pack_simple_member`` in ``pcopy.tasks.archive.members_to_extract``), and
     * where its key ends in `keys`. `begins` has the indices of the members that are directories, or are in another
     * directory than the one before. */
    uint32_t most, members, directories; /* most members; numbers of members and of `begins` */
    uint64_t *values;     /* PK_TAR_WORDS numbers for each member */
    uint32_t *key_ends, *begins;
    char *keys;
    size_t keys_size;
    uint64_t bytes;       /* size of the contents of all members */
} pk_tar;

#define PK_TAR_WORDS 5    /* numbers of 64 bits in the values of a member */

/* Find simple members: regular files and directories whose headers have only name, owner, mode, size and times. */
void pk_tar_members(pk_tar *tar);
/* Store the offsets at which members of any type begin in `begins_at`, at most `most`. Return their number. `at`
 * becomes the offset to continue from, and `why` PK_TAR_MORE or PK_TAR_OTHER. */
uint32_t pk_tar_skim(pk_tar *tar, uint64_t *begins_at);
