"""Change of the layout of an existing file.

It keeps its inode, and so its names, its metadata and its open descriptors. A file without a name gets the layout and a
copy of the contents, which are read back and compared. Then Lustre swaps the layouts of the two files, and the old data
are removed with the file without a name. Meanwhile the group lock of the file excludes other clients. If the contents
have changed nevertheless, Lustre refuses the swap (LL_IOC_LOV_SWAP_LAYOUTS).
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from typing import Protocol

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.close import close_after_failure, close_after_read, close_ignoring_errors
from pcopy.fsio.contents import Digest, digest_contents, may_have_holes
from pcopy.fsio.data import ContentsCopier, set_size
from pcopy.fsio.layout import Recipe, set_layout
from pcopy.fsio.problem import Problem, as_problem
from pcopy.fsio.source import check_is_found_file, status_of
from pcopy.fsio.syncer import sync_if_supported
from pcopy.lustre.default_layout import read_layout
from pcopy.lustre.layout_comparison import normalised_layout
from pcopy.lustre.llapi import group_lock, mdt_of, mdts_of
from pcopy.lustre.volatile import create_volatile

DATA_VERSION = 0x801066DA
"""Requests of ioctl(2), from lustre_user.h: LL_IOC_DATA_VERSION, LL_IOC_LOV_SWAP_LAYOUTS, LL_IOC_SET_LEASE."""
SWAP_LAYOUTS = 0x402066DB
SET_LEASE = 0xC00C66F3
"""Requests of ioctl(2), from lustre_user.h: LL_IOC_DATA_VERSION, LL_IOC_LOV_SWAP_LAYOUTS, LL_IOC_SET_LEASE."""

FLUSH_FIRST = 1
"""Flag of DATA_VERSION: data in the memory of clients are written first."""
READ_LEASE, NO_LEASE = 1, 4
"""Modes of SET_LEASE: a lease that is granted only if no process has the file open for writing, and the end of the
lease.
"""
SWAP_IF_UNCHANGED = 1
"""Flag of SWAP_LAYOUTS: swap only if the first file still has the data version in the request.

The data version in the request for the second file becomes the version that an archive (HSM) knows.
"""

GET_FSXATTR, SET_FSXATTR = 0x801C581F, 0x401C5820
"""Requests FS_IOC_FSGETXATTR and FS_IOC_FSSETXATTR, for a struct fsxattr (ioctl_xfs_fsgetxattr(2))."""
_FSXATTR_FORMAT = struct.Struct("=12sI12s")
"""Format of struct fsxattr: bytes before the project id, the project id, the rest."""
_DATA_VERSION_FORMAT = struct.Struct("=QII")
_SWAP_FORMAT = struct.Struct("=QIIQQ")
_LEASE_FORMAT = struct.Struct("=III")


class CopyTools(NamedTuple):
    """Tools for the copy: ``mover`` copies contents; ``new_digest`` returns the digests by which they are verified."""

    mover: ContentsCopier
    new_digest: Callable[[], ContentDigest]


class ContentDigest(Digest, Protocol):
    """Digest of contents that are passed to it piece by piece. ``root`` returns it at the end."""

    def root(self) -> bytes: ...


def restripe(
    directory: int,
    name: bytes,
    inode: int,
    change: Callable[[int, int], Recipe | None],
    look: Callable[[int], None],
    means: CopyTools,
) -> Generator[int | None, None, None]:
    """Give another layout to the file ``name`` of an open directory.

    Yield the number of bytes that each step has copied, None after a wait.

    Raise ``Problem``. The file is unchanged then, except that Lustre may have created objects of its components for the
    group lock. If the error occurs after the swap (while the lock is released, the times are set, ``look`` is called or
    the file is closed), the file has its new layout.

    Args:
        directory: the open directory.
        name: name of the file.
        inode: its inode number, which is checked.
        change: returns the recipe for the open file and its size in bytes, None if the layout is right already; may
            raise ``Problem``.
        look: called with the open file at the end; may raise ``Problem``.
        means: tools for the copy.
    """
    file = _open(directory, name)
    try:
        check_is_found_file(status_of(file), status_of(directory).st_dev, inode)
        _check_no_writers(file)
        with (yield from group_lock(file, inode & 0x7FFFFFFF | 1, is_required=True)):
            status = status_of(file)
            recipe = change(file, status.st_size)
            version = -1
            if recipe is not None:
                version = yield from _restripe(directory, file, status, recipe, means)
        if version >= 0:
            _restore_times(file, status, version)
        look(file)
    except BaseException:
        close_after_failure(file)
        raise
    close_after_read(file)


def _restripe(
    directory: int, file: int, status: os.stat_result, recipe: Recipe, means: CopyTools
) -> Generator[int, None, int]:
    """Copy the file, and swap the layouts. Return the new data version of the file. Raise ``Problem``.

    Return -1 if nothing was swapped, because Lustre would assign the layout that the file already has.
    """
    version = _data_version(file)
    other = _create_unnamed(directory, file, recipe)
    try:
        if recipe.attribute:
            with as_problem("setstripe"):
                result = set_layout(other, recipe)
            if not result.is_acceptable:
                raise Problem("setstripe", 0, text=result.deviation)
            if result.deviation and normalised_layout(read_layout(file)) == normalised_layout(result.value):
                return -1
        _match_owner(other, status)
        copy_project_id(file, other)
        yield from _copy_and_verify(file, other, status, means)
        with as_problem("utime"):  # the swap transfers the times together with the contents
            os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
        new_version = _data_version(other)
        _swap(file, version, other, new_version)
        return new_version
    finally:
        close_ignoring_errors(other)


def _match_owner(other: int, status: os.stat_result) -> None:
    """Give the file without a name the owner and group of the file: Lustre swaps layouts only then.

    Raise ``Problem``.
    """
    try:
        os.fchown(other, status.st_uid, status.st_gid)
    except PermissionError as error:
        text = "you are not in its group, or not its owner: its layout is not changed"
        raise Problem("chown", errno.EPERM, text=text) from error
    except OSError as error:
        raise Problem.from_error("chown", error) from error


def copy_project_id(file: int, other: int) -> None:
    """Give the file ``other`` the project id of ``file``, so that its space counts for that project.

    Raise ``Problem``.
    """
    try:
        _, project, _ = _fsxattr(file)
        before, inherited, after = _fsxattr(other)
    except OSError:  # the file system has no project ids
        return
    if project != inherited:
        with as_problem("set project"):
            fcntl.ioctl(other, SET_FSXATTR, _FSXATTR_FORMAT.pack(before, project, after))


def _fsxattr(file: int) -> tuple[bytes, int, bytes]:
    """Return the struct fsxattr of an open file as in ``_FSXATTR_FORMAT``. Raise ``OSError``."""
    return _FSXATTR_FORMAT.unpack(fcntl.ioctl(file, GET_FSXATTR, bytes(_FSXATTR_FORMAT.size)))


def _open(directory: int, name: bytes) -> int:
    """Open the file for reading and writing, with O_NOATIME if the caller owns it. Raise ``Problem``."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    with as_problem("open"):
        try:
            return os.open(name, flags | os.O_NOATIME, dir_fd=directory)
        except PermissionError:
            return os.open(name, flags, dir_fd=directory)


def _create_unnamed(directory: int, file: int, recipe: Recipe) -> int:
    """Create a file without a name on the MDT of ``file``, because Lustre swaps layouts only within one MDT.

    Raise ``Problem``.
    """
    server = mdt_of(file)
    try:
        return create_volatile(directory, recipe.flags, server=server)
    except Problem as problem:
        if problem.errno != errno.EACCES or server in mdts_of(directory):
            raise
        text = f"it lies on MDT {server}, its directory on another: its layout is not changed (lfs migrate can move it)"
        raise Problem("create", errno.EACCES, text=text) from problem


def _copy_and_verify(file: int, other: int, status: os.stat_result, means: CopyTools) -> Generator[int, None, None]:
    """Copy the contents to ``other``, sync them, read them back and compare the digests. Raise ``Problem``."""
    size, devices = status.st_size, (status.st_dev, status.st_dev)
    if not size:
        return
    digest, digest_read = means.new_digest(), means.new_digest()
    set_size(other, size)
    with closing(
        means.mover.copy_range(file, other, 0, size, devices, may_have_holes=may_have_holes(status), digest=digest)
    ) as steps:
        yield from steps
    with as_problem("fsync"):
        sync_if_supported(other)
    with suppress(OSError):
        os.posix_fadvise(other, 0, 0, os.POSIX_FADV_DONTNEED)
    with closing(
        digest_contents(other, 0, size, digest_read, may_have_holes=may_have_holes(status_of(other)))
    ) as steps:
        for _ in steps:
            yield 0
    if digest.root() != digest_read.root():
        raise Problem(
            "verify", errno.EIO, text="the data read back differ from those written: its layout is not changed"
        )


def _check_no_writers(file: int) -> None:
    """Raise ``Problem`` if a process on any client has the file open for writing."""
    try:
        fcntl.ioctl(file, SET_LEASE, _LEASE_FORMAT.pack(READ_LEASE, 0, 0))
    except OSError as error:
        if error.errno in (errno.EBUSY, errno.EAGAIN):
            text = "another process has it open for writing: its layout is not changed"
            raise Problem("lease", error.errno, text=text) from error
        raise Problem.from_error("lease", error) from error
    with as_problem("lease"):
        fcntl.ioctl(file, SET_LEASE, _LEASE_FORMAT.pack(NO_LEASE, 0, 0))


def _restore_times(file: int, status: os.stat_result, version: int) -> None:
    """Restore the times of the file after the swap, unless its contents have changed since. Raise ``Problem``.

    The times of contents on an MDT are not swapped. They cannot be set while the group lock is held, because that would
    wait for ever. If another process has written to the file since, its times are kept.
    """
    before, now = (status.st_atime_ns, status.st_mtime_ns), status_of(file)
    if (now.st_atime_ns, now.st_mtime_ns) != before and _data_version(file, FLUSH_FIRST) == version:
        with as_problem("utime"):
            os.utime(file, ns=before)


def _data_version(file: int, flags: int = 0) -> int:
    """Return a number that changes whenever the contents change. Raise ``Problem``."""
    with as_problem("data version"):
        return int(
            _DATA_VERSION_FORMAT.unpack(fcntl.ioctl(file, DATA_VERSION, _DATA_VERSION_FORMAT.pack(0, 0, flags)))[0]
        )


def _swap(file: int, version: int, other: int, other_version: int) -> None:
    """Swap the layouts of both files, if they still have these data versions. Raise ``Problem``."""
    try:
        fcntl.ioctl(file, SWAP_LAYOUTS, _SWAP_FORMAT.pack(SWAP_IF_UNCHANGED, other, 0, version, other_version))
    except OSError as error:
        if error.errno == errno.EAGAIN:
            raise Problem(
                "swap layouts", error.errno, text="it has changed meanwhile: its layout is not changed"
            ) from error
        raise Problem.from_error("swap layouts", error) from error
