/* The guards: checks and flags that change nothing in ordinary work, and prevent harm by an attacker, a race or a
 * crash.
 *
 * In the test build (PK_TEST_BUILD), the environment variable PCOPY_TEST_DISABLED_GUARDS disables those that it names,
 * separated by commas. In the normal build the macros leave only the expression itself. For each guard,
 * tests/hostile/c_guards.py has an attack or a crash that does harm when the guard is disabled.
 */
#ifndef PK_GUARDS_H
#define PK_GUARDS_H

/* All guards, each with the harm that it prevents. */
#define PK_GUARDS(GUARD_IS) \
    /* directories that are opened by their names */ \
    GUARD_IS(DIRECTORY_NOFOLLOW, "a symbolic link in the place of a directory leads out of the tree") \
    GUARD_IS(DIRECTORY_ONLY, "a file in the place of a directory gets the directory's owner and mode") \
    GUARD_IS(DIRECTORY_NONBLOCK, "a FIFO in the place of a directory blocks the program") \
    GUARD_IS(LISTED_DIRECTORY, "another directory is listed or copied, such as that of a new mount") \
    GUARD_IS(DIRECTORY_EXISTS, "a directory that was removed and created again is copied or compared as an empty one") \
    GUARD_IS(FINISHED_INODE, "the metadata of a directory are given to another one that took its name") \
    GUARD_IS(FINISHED_MARK, "the same, for a directory that got the inode number of a removed one") \
    /* files that are read */ \
    GUARD_IS(SOURCE_NOFOLLOW, "a symbolic link in the place of a file leads out of the tree") \
    GUARD_IS(SOURCE_NONBLOCK, "a FIFO in the place of a file blocks the program") \
    GUARD_IS(SOURCE_NOCTTY, "a terminal in the place of a file becomes the program's controlling terminal") \
    GUARD_IS(SOURCE_MAY_BE_READ, "a copy reads another item that took the name, which changes a FIFO or a device") \
    GUARD_IS(SOURCE_IN_OUR_DIRECTORY, "the same, in a directory where other users may write") \
    GUARD_IS(SOURCE_UNCHANGED, "the copy of a file that changed meanwhile has the old contents and the new time") \
    GUARD_IS(PIECES_UNCHANGED, "the copy of a file has pieces of two versions") \
    GUARD_IS(ATTRIBUTES_UNCHANGED, "the copy of a file has extended attributes of two versions") \
    GUARD_IS(DIGEST_OF_FILE, "computing a digest reads another item that took the name") \
    GUARD_IS(DIGEST_UNCHANGED, "a digest is that of pieces of two versions") \
    GUARD_IS(COMPARED_FILES, "comparing reads other items that took the names") \
    GUARD_IS(COMPARED_MOUNT, "what was mounted meanwhile is compared") \
    GUARD_IS(COMPARED_UNCHANGED, "files that are equal are reported to differ because both changed meanwhile") \
    GUARD_IS(MEMBER_MAY_BE_READ, "packing reads another item that took the name") \
    GUARD_IS(MEMBER_UNCHANGED, "a member of an archive has new contents and an old time") \
    /* new items */ \
    GUARD_IS(NEW_FILE_EXCL, "an existing file that took the name of a new one is written to") \
    GUARD_IS(NEW_FILE_NOFOLLOW, "a file is created or written at the target of a symbolic link") \
    GUARD_IS(NEW_FILE_MODE, "a new file can be read before it has its owner and mode") \
    GUARD_IS(NEW_DIRECTORY_MODE, "a new directory can be entered before it has its owner and mode") \
    GUARD_IS(NEW_DIRECTORY_OWNER, "another user's directory that took the name of a new one is used like our own") \
    GUARD_IS(NEW_DIRECTORY_ACL, "files in a new directory inherit an ACL from a directory of another user") \
    GUARD_IS(INHERITED_ACL, "a new file keeps an ACL that it inherited") \
    GUARD_IS(KNOWN_OWNER, "a new file in another user's directory keeps the group that the directory gave to it") \
    GUARD_IS(OWNER_BEFORE_MODE, "a file has a set-id bit while it has another owner") \
    GUARD_IS(SET_ID_WITH_OWNER, "a copy is set-id for another owner than the source") \
    GUARD_IS(MEMBER_SET_ID_WITH_OWNER, "an unpacked file is set-id for another owner than the member") \
    GUARD_IS(MEMBER_SET_ID_EXCUSED, "a program that a user unpacks is set-id for this user") \
    GUARD_IS(DIRECTORY_SET_ID_WITH_OWNER, "new files get the group of a directory that has another group than its source") \
    GUARD_IS(MODE_STORED, "the system drops a set-gid bit, and no error is reported") \
    GUARD_IS(MODE_STORED_AGAIN, "the same, for existing items") \
    GUARD_IS(OTHER_SPELLING, "a resumed job copies two directories, whose names differ in case, into one") \
    GUARD_IS(RENAMED_ITEM, "another file than the copy gets the final name, without an error") \
    GUARD_IS(RENAMED_NOFOLLOW, "a symbolic link to the copy has its final name, without an error") \
    GUARD_IS(SYNC_BEFORE_NAME, "after a crash a file has its final name and not its contents") \
    GUARD_IS(SYNC_DIRECTORY, "after a crash the name of a finished file is lost") \
    /* existing items */ \
    GUARD_IS(KEPT_SINCE_BEFORE, "a file that an interrupted run left half written is kept as a copy") \
    GUARD_IS(KEPT_NOT_PRIVATE, "the same, for a file that does not have its final mode yet") \
    GUARD_IS(DIGEST_NOT_MARKED, "the same, for a file that is marked as half written (--inplace)") \
    GUARD_IS(CHANGED_NOFOLLOW, "the target of a symbolic link gets another owner or mode") \
    GUARD_IS(CHANGED_ITEM, "another item that took the name gets another owner or mode") \
    GUARD_IS(CHANGED_AS_DECIDED, "the same, where the change was decided from a status that was read before") \
    GUARD_IS(CHANGED_AS_LISTED, "another item than the listed one gets another owner or mode") \
    GUARD_IS(REMOVED_DIRECTORY, "what was mounted meanwhile is removed") \
    GUARD_IS(REMOVED_EMPTY_DIRECTORY, "another empty directory that took the name is removed") \
    GUARD_IS(REMOVED_AS_LISTED, "another item than the listed one is removed") \
    GUARD_IS(REMOVED_AS_FOUND, "another item than the one that was found is removed") \
    /* archives */ \
    GUARD_IS(MEMBER_NAME, "a member is unpacked outside of the destination")

/* GUARD: true if the condition is; in the test build also if the guard is disabled. GUARD_FLAG: the flag, or 0.
 * GUARD_VALUE: the value, or the other one. IS_DISABLED: for an operation that only a disabled guard makes. */
#ifdef PK_TEST_BUILD
#define PK_GUARD_NUMBER(name, harm) GUARD_##name,
enum pk_guard { PK_GUARDS(PK_GUARD_NUMBER) };
int pk_is_disabled(enum pk_guard guard);
#define IS_DISABLED(name) pk_is_disabled(GUARD_##name)
#define GUARD(name, condition) ((condition) || IS_DISABLED(name))
#define GUARD_FLAG(name, flag) (IS_DISABLED(name) ? 0 : (flag))
#define GUARD_VALUE(name, value, other) (IS_DISABLED(name) ? (other) : (value))
#else
#define IS_DISABLED(name) 0
#define GUARD(name, condition) (condition)
#define GUARD_FLAG(name, flag) (flag)
#define GUARD_VALUE(name, value, other) (value)
#endif
#endif
