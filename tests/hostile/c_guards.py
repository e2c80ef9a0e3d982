"""The guards of the C backend (``guards.h``), each with the attacks that do harm when it is disabled.

Where several guards prevent the same harm, each of them is sufficient, and a row disables all of them; ``reason`` says
why. ``FOLDED``, ``SIMULATED`` and ``REDUNDANT`` have the guards without a row.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.hostile.rules import NO_UMASK
from tests.support.edits import Edit


class Row(NamedTuple):
    """With ``guards`` disabled in C, each of ``attacks`` does harm, or makes the run hang.

    ``edits`` are made in Python, also where the guards are not disabled.
    """

    guards: tuple[str, ...]
    attacks: tuple[str, ...]
    reason: str = ""
    edits: tuple[Edit, ...] = ()
    hangs: bool = False


NO_GRACE = Edit("tasks/base/rank.py", "", "5 * 10**9", "0")
UMASK = "the umask of the process keeps new items private, too"
OLD_TARGET = "files that were created a moment before the job are left to the slow path, since clocks may differ"

LIKE_FUSE = Edit(
    "fsio/storage.py", "WrittenFileSystems._open_file_system", "self._type_of(descriptor) == FUSE_TYPE", "True"
)

ROWS = (
    Row(("DIRECTORY_NOFOLLOW",), ("a new target directory becomes a link",)),
    Row(("DIRECTORY_ONLY",), ("a new target directory becomes a file of root",)),
    Row(
        ("DIRECTORY_NONBLOCK", "DIRECTORY_ONLY"),
        ("a new target directory becomes a FIFO",),
        "the kernel refuses a FIFO before it waits for a writer if a directory is required",
        hangs=True,
    ),
    Row(
        ("DIRECTORY_NOFOLLOW", "LISTED_DIRECTORY"),
        (
            "a source directory becomes a link in pverify",
            "a directory becomes a link in pchmod",
            "a directory becomes a link in pwalk",
            "a directory becomes a link in ptar",
        ),
        "a directory at the target of a link is another one",
    ),
    Row(("DIRECTORY_NOFOLLOW", "REMOVED_DIRECTORY"), ("a directory becomes a link in prm",), "as above"),
    Row(
        ("LISTED_DIRECTORY",),
        (
            "a directory is mounted over in pwalk",
            "a directory is mounted over in ptar",
            "a directory is mounted over in pchmod",
            "a directory is mounted over in pverify",
            "a directory is mounted over in pcopy",
            "a directory of the second tree is mounted over in pverify",
            "a directory is mounted over in pverify of two trees",
        ),
    ),
    Row(("REMOVED_DIRECTORY",), ("a directory is mounted over in prm", "a file system is mounted in prm -q")),
    Row(
        ("FINISHED_INODE", "FINISHED_MARK"),
        ("target directories change places before they are finished",),
        "the mark of most file systems contains the inode number",
    ),
    Row(("FINISHED_MARK",), ("a new directory becomes another one with its inode's number",)),
    Row(("SOURCE_NOFOLLOW",), ("a source file becomes a link",)),
    Row(("SOURCE_NONBLOCK",), ("a source file becomes a FIFO",), hangs=True),
    Row(("SOURCE_MAY_BE_READ",), ("a source file becomes a device with data",)),
    Row(("SOURCE_IN_OUR_DIRECTORY",), ("a source file becomes a device with data",)),
    Row(("SOURCE_UNCHANGED",), ("a file is written again after it was read",)),
    Row(("PIECES_UNCHANGED",), ("a file is written again between two pieces",)),
    Row(("ATTRIBUTES_UNCHANGED",), ("a file gets other attributes while they are copied",)),
    Row(("DIGEST_OF_FILE",), ("a file becomes a device with data in pverify",)),
    Row(("DIGEST_UNCHANGED",), ("a file is written again while its digest is computed",)),
    Row(
        ("COMPARED_MOUNT",),
        (
            "a directory is mounted over in pverify",
            "a directory of the second tree is mounted over in pverify",
            "a directory is mounted over in pverify of two trees",
        ),
    ),
    Row(("COMPARED_FILES",), ("files that are compared become FIFOs",)),
    Row(("COMPARED_UNCHANGED",), ("files are written again while they are compared",)),
    Row(
        ("MEMBER_MAY_BE_READ",),
        (
            "a file becomes a device with data in ptar",
            "a file of a subdirectory becomes a device with data in ptar",
        ),
    ),
    Row(
        ("MEMBER_UNCHANGED",),
        (
            "a file is written again while it is packed",
            "a file of a subdirectory is written again while it is packed",
        ),
    ),
    Row(("NEW_FILE_EXCL",), ("a new file's name is taken by a hard link to a canary",)),
    Row(
        ("NEW_FILE_EXCL", "NEW_FILE_NOFOLLOW"),
        ("a new file's name is taken by a link",),
        "O_EXCL alone makes the kernel follow no link",
    ),
    Row(("NEW_FILE_MODE",), ("a new file in root's directory is read before it has its metadata",), UMASK, (NO_UMASK,)),
    Row(("NEW_DIRECTORY_MODE",), ("a new directory is read before it is finished",), UMASK, (NO_UMASK,)),
    Row(
        ("NEW_DIRECTORY_OWNER", "NEW_DIRECTORY_ACL"),
        ("a new directory becomes one with a default ACL", "a new directory becomes one with a default ACL in ptar"),
        "either keeps the files of such a directory for the slow path, which removes inherited ACLs",
    ),
    Row(("NEW_DIRECTORY_ACL",), ("a directory gets a default ACL before another is created in it",)),
    Row(("INHERITED_ACL",), ("a directory gets a default ACL after it was looked at",)),
    Row(("KNOWN_OWNER",), ("a directory gives its group to new files",)),
    Row(("OWNER_BEFORE_MODE",), ("a new file is set-id before it has its owner",)),
    Row(("SET_ID_WITH_OWNER",), ("a set-id program is copied without its owner",)),
    Row(("MEMBER_SET_ID_EXCUSED",), ("a user unpacks a set-id program of another user",)),
    Row(("DIRECTORY_SET_ID_WITH_OWNER",), ("a set-gid directory is copied without its owner",)),
    Row(("MODE_STORED",), ("the set-gid bit of a copy is dropped",)),
    Row(("MODE_STORED_AGAIN",), ("the set-gid bit of a file is dropped",)),
    Row(("RENAMED_ITEM",), ("a small temporary file is replaced before it is renamed",), OLD_TARGET, (NO_GRACE,)),
    Row(("RENAMED_NOFOLLOW",), ("a renamed copy becomes a link to it",), OLD_TARGET, (NO_GRACE,)),
    Row(("DIGEST_NOT_MARKED",), ("a file is marked as half written",)),
    Row(
        ("CHANGED_NOFOLLOW", "CHANGED_ITEM"),
        ("a file becomes a link in pchmod",),
        "the item at the target of a link is another one",
    ),
    Row(("CHANGED_ITEM",), ("a file becomes a hard link in pchmod",)),
    Row(("CHANGED_AS_DECIDED",), ("a directory becomes a hard link to a file in pchmod",)),
    Row(
        ("REMOVED_DIRECTORY", "REMOVED_AS_LISTED"),
        ("a file system is mounted in prm",),
        "each item is compared with the listing, too, if its status is read",
    ),
    Row(("REMOVED_AS_FOUND",), ("a selected file becomes another one in prm",)),
    Row(("MEMBER_NAME",), ("a member leads out of the destination",)),
)


class TracedRow(NamedTuple):
    """What only a loss of power or special hardware would show.

    When ``pcopy --fsync`` replaces a file, a system call of ``calls`` matches ``wanted`` with the guard, and none does
    without it. With ``before``, it precedes the first call that matches that.
    """

    guard: str
    calls: str
    wanted: str
    reason: str
    before: str = ""
    edits: tuple[Edit, ...] = (NO_GRACE,)


TRACED_ROWS = (
    TracedRow(
        "SOURCE_NOCTTY",
        "openat",
        r'openat\(.*"victim", O_RDONLY\|O_NOCTTY',
        "only a terminal with a driver, such as a serial line, can become the controlling terminal",
    ),
    TracedRow(
        "SYNC_BEFORE_NAME",
        "fsync,renameat,renameat2",
        r"fsync\(\d+<[^>]*/\.pcopy-",
        "only a loss of power shows which data were stored",
        before=r'rename.*"\.pcopy-',
    ),
    TracedRow(
        "SYNC_DIRECTORY",
        "fsync",
        r"fsync\(\d+<[^>]*/target/inner>",
        "only a loss of power shows which names were stored, on FUSE and old kernels",
        edits=(NO_GRACE, LIKE_FUSE),
    ),
)


class DoubtedRow(NamedTuple):
    """With ``guards`` disabled, files of this ``mode`` that lost their contents in a loss of power are kept as copies
    when another job copies to the destination of the job that was interrupted.
    """

    guards: tuple[str, ...]
    mode: int
    reason: str = ""


DOUBTED_ROWS = (
    DoubtedRow(("KEPT_SINCE_BEFORE",), 0o644),
    DoubtedRow(
        ("KEPT_SINCE_BEFORE", "KEPT_NOT_PRIVATE"),
        0o600,
        "files of this mode are left to the slow path, however old they are",
    ),
)

FOLDED = {"OTHER_SPELLING": "only a file system that ignores case has one directory for two names"}
"""Guards whose harm only such a file system can show, and why."""

SIMULATED = {
    "DIRECTORY_EXISTS": "Linux reports ENOENT for a directory that was removed on the same host; one that another "
    "client of a network file system has removed looks empty",
}
"""Guards whose harm only a network file system can show, and why."""

REDUNDANT = {
    "CHANGED_AS_LISTED": "an item that took the name before it was examined is part of the tree, and changed by the "
    "slow path, too; the comparison leaves mount points to the slow path",
    "MEMBER_SET_ID_WITH_OWNER": "ptar, the only program that makes files from data in memory, always sets the owner",
    "REMOVED_EMPTY_DIRECTORY": "rmdir removes only an empty directory, and only one in the tree that is removed",
}
"""Guards without which no attack is known, and why: each is a second line of defence."""
