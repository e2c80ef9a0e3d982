"""The outcome for an item when one operation fails with one error. One letter for each of ``ERRORS``:

    -  copied: another method was used, or the error does not concern the copy; status 0
    F  failed: not in the target, or still with its old content; status 1
    W  whole: reported as failed, but present with its contents (metadata, or a later operation, failed)
    E  empty: a directory that exists without its contents; it has failed
    e  failed with the C backend, and otherwise empty without a message: ENOENT of getdents64, which the C library
       treats as the end of a directory that is being removed (readdir(3))
    V  vanished: failed, because its name no longer exists; at the second attempt too
    C  changed: failed, because it is no longer the same item; at the second attempt too
    S  stopped: status 75; after two such errors in a row the target is considered full
    s  stopped or failed: depends on how many ranks get the error before the first one is reported
    N  notice: copied, with a message that is no failure; status 0
    U  unsynced: everything is copied, the last sync of the file system failed; status 1

An operation that is made in several ways (a small file by the backend, a replaced file under a temporary name, a split
file by several ranks) has a row for each. Errors that cannot occur in reality are injected as well.
"""

from __future__ import annotations

from tests.faults.injection import Row

ERRORS = ("EIO", "ENOSPC", "EDQUOT", "EACCES", "EPERM", "ENOENT", "ESTALE", "EMFILE", "ENAMETOOLONG")
PASSING = ("EIO", "ESTALE")
"""Errors that are retried when the source is read."""

_STAT = "newfstatat statx fstat lstat stat"
_COPY = "copy_file_range sendfile splice"
_READ = f"read pread64 readv preadv preadv2 {_COPY}"
_WRITE = "write pwrite64 writev pwritev pwritev2"
_RENAME = "rename renameat renameat2"
_CHOWN = "chown lchown fchownat"
_CHMOD = "chmod fchmodat fchmodat2"
_XATTR = "setxattr lsetxattr"


def _source(world: str, calls: str, at: str, operation: str, outcomes: str, when: str = "1+", failed: int = 1) -> Row:
    return Row(world, calls, at, operation, "source", outcomes, when, failed)


def _target(
    world: str,
    calls: str,
    at: str,
    operation: str,
    outcomes: str,
    when: str = "1+",
    failed: int = 1,
    besides: str = "",
    in_c: str = "",
) -> Row:
    return Row(world, calls, at, operation, "target", outcomes, when, failed, besides, in_c)


# Column by column: EIO ENOSPC EDQUOT EACCES EPERM ENOENT ESTALE EMFILE ENAMETOOLONG.
READING = (
    _source("small", _STAT, "name", "stat", "FFFFFVFFF"),
    _source("links", _STAT, "name", "stat", "FFFFFVFFF", failed=2),
    _source("fifo", _STAT, "name", "stat", "FFFFFVFFF"),
    _source("directory", _STAT, "name", "stat", "FFFFFVFFF"),
    _source("small", "openat", "name", "open", "FFFFFVCFF"),
    _source("replaced", "openat", "name", "open", "FFFFFVCFF"),
    _source("chunked", "openat", "name", "open", "FFFFFVCFF"),
    _source("fifo", "openat", "name", "open", "FFFFFVCFF"),
    _source("directory", "openat", "name", "open", "FFFFFVFFF"),
    _source("small", _STAT, "source", "fstat", "FFFFFFFFF"),
    _source("chunked", _STAT, "source", "fstat", "FFFFFFFFF"),
    _source("fifo", _STAT, "source", "fstat", "FFFFFFFFF"),
    _source("directory", _STAT, "source", "fstat", "FFFFFFFFF"),
    _source("directory", "getdents64", "source", "readdir", "FFFFFeFFF"),
    _source("small", _READ, "source", "read", "FFFFFFFFF"),
    _source("large", _READ, "source", "read", "FFFFFFFFF"),
    _source("chunked", _READ, "source", "read", "FFFFFFFFF"),
    _source("links", _READ, "source", "read", "FFFFFFFFF", failed=2),
    _source("symlink", "readlinkat readlink", "source", "readlink", "FFFFFFFFF"),
    _source("small", "flistxattr", "source", "listxattr", "WWWWWWWWW"),
    _source("small", "fgetxattr", "source", "getxattr user.dress", "WWWWWWWWW"),
    _source("directory", "flistxattr", "source", "listxattr", "WWWWWWWWW"),
    _source("fifo", "listxattr llistxattr", "handle", "listxattr", "WWWWWWWWW"),
)
"""Errors here may be transient: an immediate retry is made up to four times."""

CLOSING = (
    _source("small", "close", "source", "close", "WFFFFFWWF"),
    _source("large", "close", "source", "close", "WWWWWWWWW"),
    _source("chunked", "close", "source", "close", "FFFFFFFFF"),
    _source("links", "close", "source", "close", "WWWWWWWWW", failed=2),
    _source("fifo", "close", "source", "close", "---------"),
    _source("directory", "close", "source", "close", "---------"),
    _target("small", "close", "target", "close", "FFFFFFFFF"),
    _target("replaced", "close", "temporary", "close", "FFFFFFFFF"),
    _target("chunked", "close", "temporary", "close", "FFFFFFFFF"),
    _target("links", "close", "temporary", "close", "FsFFFFFFF", failed=2),
    _target("fifo", "close", "target", "close", "---------"),
    _target("directory", "close", "target", "close", "---------"),
)

MAKING = (
    _target("directory", "mkdirat mkdir", "name", "mkdir", "FFFFFFFFF"),
    _target("fifo", "mknodat mknod", "name", "mknod", "FFFFFFFFF"),
    _target("symlink", "symlinkat symlink", "name", "symlink", "FFFFFFFFF"),
    _target("links", "linkat link", "name", "link", "FFFFNFFFF"),
    _target("small", "openat", "name", "create", "FFFFFFFrF", "2+", in_c="2+2"),
    _target("replaced", "openat", "temporary", "create", "FFFFFFFFF"),
    _target("chunked", "openat", "temporary", "create", "FFFFFFFFF"),
    _target("chunked", "openat", "temporary", "open", "FFFFFFFFF", "2+"),
    _target("directory", "openat", "name", "open", "EEEEEEEEE", "2+", in_c="3+"),
    _target("fifo", "openat", "name", "open", "WWWWWWWWW", "2+"),
    _target("replaced", _STAT, "name", "stat", "FFFFFWFFF", "2+"),
    _target("replaced", "newfstatat", "name", "stat", "WWWWWWWWW", "4+", in_c="2+"),
    _target("fifo", _STAT, "name", "stat", "FFFFF-FFF", "3+", in_c="2+"),
    _target("links", _STAT, "name", "stat", "FFFFF-FFF", "6+", in_c="4+"),
    _target("replaced", _STAT, "temporary", "fstat", "FFFFFFFFF"),
    _target("chunked", _STAT, "temporary", "fstat", "FFFFFFFFF"),
    _target("directory", _STAT, "target", "fstat", "EEEEEEEEE"),
    _target("replaced", _RENAME, "name", "rename", "FFFFFFFFF"),
    _target("chunked", _RENAME, "name", "rename", "FFFFFFFFF"),
    _target("links", _RENAME, "name", "rename", "FFFFFFFFF", failed=2),
)

WRITING = (
    _target("small", _WRITE, "target", "write", "FFFFFFFFF"),
    _target("replaced", _WRITE, "temporary", "write", "FFFFFFFFF"),
    _target("chunked", _WRITE, "temporary", "write", "FsFFFFFFF"),
    _target("links", _WRITE, "temporary", "write", "FsFFFFFFF", failed=2),
    _target("replaced", "ioctl", "temporary", "clone", "FFFF-FFFF"),
    _target("chunked", "ftruncate", "temporary", "truncate", "FFFFFFFFF"),
    _target("chunked", "fdatasync", "temporary", "fdatasync", "FsFFFFFFF"),
    _target("small", "syncfs", "anything", "syncfs", "UUUUUUUUU"),
)

SETTING_METADATA = (
    _target("small", "fchown", "target", "chown", "WWWW-WWWW"),
    _target("replaced", "fchown", "temporary", "chown", "WWWW-WWWW"),
    _target("chunked", "fchown", "temporary", "chown", "WWWW-WWWW"),
    _target("fifo", _CHOWN, "handle", "chown", "WWWW-WWWW"),
    _target("directory", "fchown", "target", "chown", "WWWW-WWWW"),
    _target("small", "fchmod", "target", "chmod", "WWWWWWWWW"),
    _target("replaced", "fchmod", "temporary", "chmod", "WWWWWWWWW"),
    _target("fifo", _CHMOD, "handle", "chmod", "WWWWWWWWW"),
    _target("directory", "fchmod", "target", "chmod", "WWWWWWWWW"),
    _target("existing directory", "fchmod", "target", "chmod", "WWWWWWWWW"),
    _target("small", "utimensat", "target", "utimensat", "WWWWWWWWW"),
    _target("chunked", "utimensat", "temporary", "utimensat", "WWWWWWWWW"),
    _target("symlink", "utimensat", "handle", "utimensat", "WWWWWWWWW"),
    _target("directory", "utimensat", "target", "utimensat", "WWWWWWWWW"),
    _target("small", "fsetxattr", "target", "setxattr user.dress", "WWWWWWWWW"),
    _target("chunked", "fsetxattr", "temporary", "setxattr user.dress", "WWWWWWWWW"),
    _target("fifo", _XATTR, "handle", "setxattr trusted.dress", "WWWWWWWWW"),
    _target("directory", "fsetxattr", "target", "setxattr user.dress", "WWWWWWWWW"),
    _target("label", "fsetxattr", "target", "setxattr security.selinux", "NNNNNNNNN"),
)

TABLE = (*READING, *CLOSING, *MAKING, *WRITING, *SETTING_METADATA)

NEVER_CALLED = ("fsync",)
"""Durability is ensured by one syncfs at the end, and by fdatasync for files whose size is set first."""
