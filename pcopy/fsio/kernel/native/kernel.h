/* The interface of the kernel in C: what Python sees of it.
 *
 * cffi reads this file, so it holds plain declarations only. A batch is made by Python, which owns all columns that it
 * points to, and keeps them until the batch is done. A column that is not wanted is NULL.
 */

/* Kinds of batches. */
#define PK_STAT 1
#define PK_COPY 2
#define PK_READ 3
#define PK_REMOVE 4
#define PK_ENTER 5
#define PK_FINISH 6
#define PK_SYNC 7
#define PK_SAME 8
#define PK_TRY 9
#define PK_MEND 10
#define PK_MEND_PLAIN 11
#define PK_LOOK 12
#define PK_MEND_WITHIN 13
#define PK_BARE 14
#define PK_MEMBER 15
#define PK_COMPARE_WITHIN 16
#define PK_MAKE 17
#define PK_REMOVE_WITHIN 18
#define PK_PATHS 19

/* Flags of batches. */
#define PK_FOLLOW 1     /* a name on the source's side may be a symbolic link */
#define PK_SPARSE 2     /* files with holes want care */
#define PK_OWNER 8      /* copies get owner and group */
#define PK_MODE 16      /* copies get the mode */
#define PK_TIMES 32     /* copies get the times */
#define PK_INHERITS 64  /* what is made inherits an ACL, which must go */
#define PK_COPIES 128   /* what is read are copies: from storage, and they may change meanwhile */
#define PK_WHOLE 256    /* a file that is marked as half written is not read */
#define PK_IDENTIFY 512 /* inode and mark are told of files, too, that keep the names under which they were made */
#define PK_XATTRS 1024  /* extended attributes or ACLs are compared */
#define PK_ACLS 2048    /* ACLs are */
#define PK_EXCUSED 4096 /* we may not give files away, which is no error */
#define PK_LATE 8192    /* copies get the times after they are closed: pcopy.fsio.close.late_times */

/* What PK_COMPARE_WITHIN compares, in the place of flags: as pcopy.tasks.compare.properties has it. */
#define PK_OF_SIZE 2
#define PK_OF_MTIME 4
#define PK_OF_MODE 8
#define PK_OF_OWNER 16
#define PK_OF_CONTENT 128

/* What the rows of PK_TRY are, in the place of flags: pcopy.fsio.kernel.batches.Call. */
#define PK_TRY_CREATE 1
#define PK_TRY_STAT 2
#define PK_TRY_OPEN 3
#define PK_TRY_RENAME 4
#define PK_TRY_UNLINK 5

/* Codes that Python does not have: the row is not done, and is to be done by the kernel in Python. */
#define PK_DEFERRED 255

/* What is to be done with an extended attribute of this name. */
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
    int size;             /* bytes of a digest; 0: none is wanted */
    int algorithm;        /* as pk_find_digest has returned it */
    uint64_t block_size;
} pk_digest;

/* What is in directories, summed up: regular files by the power of two that their sizes lie below and by their ages, with
 * their bytes; and what is unusual. The last one of the bounds of ages is the present. */
#define PK_BOUNDS 9
typedef struct {
    int64_t bounds[9];
    uint64_t bytes, allocated, holes, sparse, hard_linked, set_id, world_writable, future;
    uint64_t sizes[65], size_bytes[65], modified[10], modified_bytes[10], read[10];
    uint64_t last_bytes, last_allocated, last_largest; /* of what was added last */
} pk_tally;

/* Flags of trees. */
#define PK_IN_NEW 1      /* the directory around the targets was made by this job: nothing is expected in it */
#define PK_POWERFUL 2    /* permissions do not keep us out */
#define PK_COMPARE 4     /* files that are like their copies stay as they are, and are left out of what was found */
#define PK_LINKS 8       /* a file with several names is not left out, nor copied */
#define PK_COPY_NEW 16   /* small files are copied into a directory that is made, as long as that is quick */
#define PK_GIVING 32     /* we may give a file to anybody */

/* What the directories of a batch have in common. Times are in nanoseconds, the window is in seconds. */
typedef struct {
    uint64_t source_device, target_device, shunned_device, shunned_inode;
    int64_t touched;      /* what has changed since then in the target wants care */
    int64_t window;
    uint32_t user;        /* who we are */
    int most;             /* names; a directory with more is deferred */
    int flags;
    uint32_t mask;        /* of PK_LOOK: the columns that are wanted of what is in the directories */
    char kinds[8];        /* and of which types (letters, with a zero at the end); none: of all */
    pk_tally *tally;      /* NULL, or what a directory is added to if all in it has one owner and plain names, */
    int64_t largest;      /* and no file is larger than this; nothing guards it: only where no threads do rows */
} pk_tree;

typedef struct {
    uint32_t mode, uid, gid;
    int64_t atime, mtime;
} pk_dress;

#define PK_MARK 144

/* What was found in a directory, and what became of its target. */
typedef struct {
    pk_dress dress;       /* the source's */
    uint64_t inode;       /* of the target, as its mark */
    uint8_t mark[144];
    uint8_t is_made, is_anothers, is_finished;
    uint8_t is_summed;    /* added to the tally: bytes and what is allocated for it; dress has the owner */
    uint64_t bytes, allocated;
    uint32_t skipped, copied, left;
    uint64_t skipped_bytes, copied_bytes;
    char *names;          /* those that are left, joined by slashes, with the columns of what they are */
    size_t names_size;
    pk_columns rows;
    uint8_t *kinds;       /* of PK_LOOK: letters, as of pk_list; of PK_MEND_WITHIN and
                           * PK_COMPARE_WITHIN: d for a directory that is done, and is to be entered, ? for what takes
                           * care, c for files that differ in their contents alone */
    uint64_t *inodes;     /* and inodes, as the directory tells them */
    char *text;           /* of PK_PATHS: the paths of all, each ended by a zero; names are those of directories */
    size_t text_size;
    void *block;
} pk_directory;

/* What is in a directory and as it should be, how much of that was changed, and the bytes of its files. Of
 * PK_COMPARE_WITHIN: what is on both sides, and the bytes that were read. Of PK_REMOVE_WITHIN: what has gone. Of
 * PK_PATHS: what there is, without bytes. */
typedef struct {
    uint64_t files, directories, links, others, bytes, changed;
} pk_sums;

/* Of PK_MEMBER, a row: a file as it was found, and the bytes that it takes in an archive. */
typedef struct {
    uint64_t inode, size, device;
    int64_t mtime, ctime;
    uint32_t mode, uid, gid, whole;
} pk_member;

/* A directory with rows. others_may: somebody else may put something in the place of a file. Before its names there
 * stands a stretch of the text of prefixes. */
typedef struct {
    int32_t directory;
    uint32_t others_may, prefix_at, prefix_size;
} pk_place;

/* What a header of a regular file has from its type on, and what that, and its sum as spaces, adds to the sum. */
typedef struct {
    uint32_t uid, gid, sum;
    uint8_t end[356];
} pk_owner;

typedef struct pk_batch {
    int kind, flags;
    uint32_t rows;
    int directory, target;
    uint32_t umask;
    const char *names, *new_names, *temporaries; /* joined by slashes; new_names may be NULL */
    size_t names_size, new_names_size, temporaries_size;
    const uint8_t *plans;
    pk_columns given, found, wanted; /* a wanted mode, owner or group of 0xffffffff: the present one stays */
    pk_verdicts verdicts;
    uint8_t *digests;
    uint64_t *made;
    uint8_t *marks;       /* PK_MARK bytes for each row, the first one of which tells the length */
    uint8_t *arena;       /* NULL, or room for all contents, which are left there; of PK_MAKE: they are there */
    const pk_tree *tree;
    pk_directory *directories;
    const uint64_t *offsets; /* where in the arena each row has room for its size and one byte more; of PK_MEMBER: for
                              * the member, up to the next offset */
    const uint16_t *modes; /* what becomes of the permission bits of what is no directory, for each of 4096 */
    const uint16_t *directory_modes; /* and of directories, for PK_MEND_WITHIN */
    pk_sums *sums;         /* of PK_PATHS, PK_MEND_WITHIN, PK_COMPARE_WITHIN and PK_REMOVE_WITHIN: one for each row, zeros
                            * at first */
    uint32_t uid, gid;     /* what all rows get; 0xffffffff: as it is */
    const int32_t *synced; /* open directories, one for each row */
    const pk_owner *owners;
    uint32_t owners_number;
    const pk_member *members;
    const pk_place *places;
    const uint32_t *place; /* of each row */
    const char *prefixes;  /* of PK_PATHS: the path of the directory, with a slash and a zero at its end */
    const uint8_t *pax;    /* the block before a record of nothing but a time */
    uint64_t *gone;        /* of PK_REMOVE: NULL, or a number to which 1 is added right after each removal */
    int at_once;          /* rows that may change the target directory at a time; 0: any number */
    /* The kernel's own. */
    int cancelled;
    struct pk_work *work;
} pk_batch;

typedef struct pk_kernel pk_kernel;

/* What one thread does now, since when (CLOCK_MONOTONIC, nanoseconds; 0: nothing), and with which name. */
typedef struct {
    uint64_t since;
    int operation;
    int directory;
    char name[256];
} pk_doing;

/* What has been done since the kernel was opened. Times are in nanoseconds: while any row was left to be done; while
 * rows were being done, added up over the threads; and of their processors. */
typedef struct {
    uint64_t busy, wall, processor, operations;
} pk_load;

/* NULL with errno set if there is no memory or no descriptor. */
pk_kernel *pk_open(int wake, pk_digest digest);
void pk_close(pk_kernel *kernel);
/* From now on so many threads work, beside the one that polls (0, as long as none was started: that one works). Of
 * threads that were started before, the others rest. modifying: rows that may change anything at a time; 0: any number.
 * Returns how many threads work, which may be fewer. */
int pk_set_threads(pk_kernel *kernel, int threads, int modifying);
void pk_measure(pk_kernel *kernel, pk_load *load);
/* 0, or an errno: there is no memory (ENOMEM), or not one name for each row (EINVAL). */
int pk_submit(pk_kernel *kernel, pk_batch *batch);
/* Without threads: works for so many nanoseconds. */
void pk_poll(pk_kernel *kernel, uint64_t nanoseconds);
int pk_is_done(pk_batch *batch);
uint64_t pk_moved(pk_batch *batch);
void pk_cancel(pk_kernel *kernel, pk_batch *batch);
/* Gives back what the kernel keeps of a batch that is done. */
void pk_release(pk_batch *batch);
/* Tells what is done with an extended attribute: PK_LEAVE or PK_KEEP. */
void pk_learn(pk_kernel *kernel, const char *name, int what);
/* An attribute that nobody has told of yet, in a buffer of 256 bytes; 0 if there is none, or if many were learnt. */
int pk_unknown(pk_kernel *kernel, char *name);
/* The row that has been under way for longest, with the directory and the name that its operation is about. */
int pk_oldest(pk_kernel *kernel, pk_doing *doing);

/* The number of the algorithm whose library is there ("xxh3-128" or "blake3"), or 0. */
int pk_find_digest(const char *name);

/* Lists an open directory from its beginning on, or goes on: names with slashes between them into a buffer, types (f, d,
 * l, p, s, c, b as in find -type; ?: the directory does not tell) and inodes of each, which may both be NULL. Returns the
 * number of names, or a negative errno. */
typedef struct {
    uint32_t at, end;
    int has_begun, is_over;
    size_t used; /* bytes of the names */
    uint64_t entries[8192];
} pk_listing;
int pk_list(int directory, pk_listing *listing, char *buffer, size_t size, uint8_t *kinds, uint64_t *inodes, int most);

/* Opens a directory by its name in another one, and tells which it is; the mark (as in pk_batch) only if it is wanted.
 * Returns its descriptor, or -1: nothing is open then, and Python finds out why. */
typedef struct {
    uint64_t device, inode;
    uint8_t mark[PK_MARK];
} pk_opened;
int pk_open_directory(int around, const char *name, int flags, int wants_mark, pk_opened *opened);

/* Adds so many rows, with their types (letters). -1: nothing was added, for no sum is sure to have room for it. */
int pk_tally_add(pk_tally *tally, const uint8_t *kinds, uint32_t number, const uint32_t *mode, const uint32_t *links,
                 const uint64_t *size, const uint64_t *blocks, const int64_t *atime, const int64_t *mtime);

/* Headers of a tar archive, of which `size` bytes from the offset `start` on were read. */
#define PK_TAR_MORE 0     /* what stands at `at` was not read, or not all of it; or it begins at `end` or behind */
#define PK_TAR_OTHER 1    /* what stands at `at` is no plain member: pcopy.archive.reader reads it */
#define PK_TAR_USER 2     /* nobody has told yet who is meant by `unknown` */
#define PK_TAR_GROUP 3
#define PK_TAR_ROOM 4     /* there is no room for further members */
#define PK_TAR_NAMES 16

/* What users or groups of these names have here as numbers; -1: they are not known. */
typedef struct {
    int number;
    char names[16][33];
    int64_t numbers[16];
} pk_owners;

typedef struct {
    const uint8_t *data;
    size_t size;
    uint64_t start, end;
    int is_numeric;       /* names of owners mean nothing */
    pk_owners users, groups;
    /* Where to go on, which is filled in, and begun with. */
    uint64_t at;
    int why;
    char unknown[33];
    /* Of each plain member what is kept of it (pcopy.tasks.archive.to_unpack), where its key ends, and the rows where
     * another directory begins. */
    uint32_t most, members, directories;
    uint64_t *values;     /* PK_TAR_WORDS for each */
    uint32_t *key_ends, *begins;
    char *keys;
    size_t keys_size;
    uint64_t bytes;       /* of the contents of all */
} pk_tar;

#define PK_TAR_WORDS 5

/* Finds plain members: regular files whose headers say nothing unusual. */
void pk_tar_members(pk_tar *tar);
/* Where members begin, of any sort, into `begins_at`: up to `most`. Returns their number; `at` is where to go on, and `why`
 * PK_TAR_MORE or PK_TAR_OTHER. */
uint32_t pk_tar_skim(pk_tar *tar, uint64_t *begins_at);
