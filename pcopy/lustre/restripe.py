"""Change of the layout of an existing file.

The file keeps its inode, and so its names, its metadata and its open descriptors. A second file, without a name, gets
the new layout and a copy of the contents, which are read back and compared. Then Lustre swaps the layouts, and with
them the data, of the two files (LL_IOC_LOV_SWAP_LAYOUTS). The old data are removed together with the file without a
name. Meanwhile a group lock of the file keeps other clients from reading and writing. If the contents have changed
nevertheless, Lustre refuses the swap.
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
from pcopy.fsio.contents import IncrementalDigest, digest_contents, may_have_holes
from pcopy.fsio.data import ContentsCopier, set_file_size
from pcopy.fsio.layout import LayoutRecipe, set_layout
from pcopy.fsio.problem import Problem, errors_as_problem
from pcopy.fsio.source import check_is_file_found_by_scan, status_of_open_item
from pcopy.fsio.syncer import sync_file_if_supported
from pcopy.lustre.default_layout import read_layout
from pcopy.lustre.layout_comparison import normalised_layout
from pcopy.lustre.llapi import acquire_group_lock, mdt_of_item, mdts_of_directory
from pcopy.lustre.volatile import create_volatile_file

DATA_VERSION_REQUEST = 0x801066DA
"""Request LL_IOC_DATA_VERSION of ioctl(2), from lustre_user.h: returns a number that changes with the contents."""
SWAP_LAYOUTS_REQUEST = 0x402066DB
"""Request LL_IOC_LOV_SWAP_LAYOUTS: swaps the layouts and data of two files."""
LEASE_REQUEST = 0xC00C66F3
"""Request LL_IOC_SET_LEASE: acquires or releases a lease of a file."""

FLUSH_FIRST_FLAG = 1
"""Flag of the request ``DATA_VERSION_REQUEST``: all clients first write to the servers the data that are in their
memory.
"""
READ_LEASE, NO_LEASE = 1, 4
"""Modes of the request ``LEASE_REQUEST``. ``READ_LEASE``: acquire a lease, which is granted only if no process has the
file open for writing. ``NO_LEASE``: release it.
"""
SWAP_IF_UNCHANGED_FLAG = 1
"""Flag of ``SWAP_LAYOUTS_REQUEST``: swap only if the first file still has the data version in the request.

The request also has a data version for the second file: Lustre stores it as the version that HSM has archived.
"""

GET_FSXATTR_REQUEST, SET_FSXATTR_REQUEST = 0x801C581F, 0x401C5820
"""Requests FS_IOC_FSGETXATTR and FS_IOC_FSSETXATTR, for a struct fsxattr (ioctl_xfs_fsgetxattr(2))."""
_FSXATTR_FORMAT = struct.Struct("=12sI12s")
"""Format of struct fsxattr: bytes before the project id, the project id, the rest."""
_DATA_VERSION_FORMAT = struct.Struct("=QII")
"""Format of the argument of ``DATA_VERSION_REQUEST``: version (output), a field that is not used, flags."""
_SWAP_FORMAT = struct.Struct("=QIIQQ")
"""Format of the argument of ``SWAP_LAYOUTS_REQUEST``: flags, descriptor of the second file, a field that is not used,
data versions of the first and of the second file.
"""
_LEASE_FORMAT = struct.Struct("=III")
"""Format of the argument of ``LEASE_REQUEST``: mode, and two fields that are not used."""


class CopyAndVerifyTools(NamedTuple):
    """Objects that copy and verify the contents of a file whose layout is changed. ``mover`` copies the contents;
    ``new_digest`` returns a new object that computes the digest by which the copy is verified.
    """

    mover: ContentsCopier
    new_digest: Callable[[], IncrementalContentDigest]


class IncrementalContentDigest(IncrementalDigest, Protocol):
    """Protocol of an object that computes the digest of contents which are passed to it piece by piece. ``root``
    returns the digest.
    """

    def root(self) -> bytes: ...


def change_file_layout(
    directory: int,
    name: bytes,
    inode: int,
    change: Callable[[int, int], LayoutRecipe | None],
    look: Callable[[int], None],
    means: CopyAndVerifyTools,
) -> Generator[int | None, None, None]:
    """Generator: give another layout to the file ``name`` of an open directory.

    Yield the number of bytes that were copied since the last yield, or None after an attempt to get the group lock.

    Raise ``Problem``. Then the file is unchanged, except that the group lock may have made Lustre create the objects of
    all its components. But if the error occurs after the swap (while the lock is released, the times are set, ``look``
    is called or the file is closed), the file has its new layout.

    Args:
        directory: the open directory.
        name: name of the file.
        inode: its inode number; raise ``Problem`` if ``name`` is another file now.
        change: called with the open file and its size in bytes; returns the recipe (flags and attribute for creating a
            file) of the new layout, or None if the layout is right already; may raise ``Problem``.
        look: called with the open file at the end, even if the layout was right; may raise ``Problem``.
        means: objects that copy and verify the contents.
    """
    file = _open_file(directory, name)
    try:
        check_is_file_found_by_scan(status_of_open_item(file), status_of_open_item(directory).st_dev, inode)
        _check_no_writers(file)
        with (yield from acquire_group_lock(file, inode & 0x7FFFFFFF | 1, is_required=True)):
            status = status_of_open_item(file)
            recipe = change(file, status.st_size)
            version = -1
            if recipe is not None:
                version = yield from _copy_and_swap_layouts(directory, file, status, recipe, means)
        if version >= 0:
            _restore_times(file, status, version)
        look(file)
    except BaseException:
        close_after_failure(file)
        raise
    close_after_read(file)


def _copy_and_swap_layouts(
    directory: int, file: int, status: os.stat_result, recipe: LayoutRecipe, means: CopyAndVerifyTools
) -> Generator[int, None, int]:
    """Generator: copy the open file ``file`` to a new file with the layout of ``recipe``, and swap the layouts of the
    two files. Yield the number of bytes that each step has copied. Return the data version of ``file`` after the swap,
    a number that changes with its contents. Raise ``Problem``.

    Return -1 if nothing was swapped, because Lustre would give the new file the layout that ``file`` already has.

    Args:
        directory: the open directory that contains the file.
        file: descriptor of the file.
        status: its status.
        recipe: how a file with the new layout is created.
        means: objects that copy and verify the contents.
    """
    version = _data_version(file)
    other = _create_unnamed_file(directory, file, recipe)
    try:
        if recipe.attribute:
            with errors_as_problem("setstripe"):
                result = set_layout(other, recipe)
            if not result.is_acceptable:
                raise Problem("setstripe", 0, text=result.deviation)
            if result.deviation and normalised_layout(read_layout(file)) == normalised_layout(result.value):
                return -1
        _give_same_owner(other, status)
        copy_project_id(file, other)
        yield from _copy_and_verify(file, other, status, means)
        with errors_as_problem("utime"):  # the swap transfers the times together with the contents
            os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
        new_version = _data_version(other)
        _swap_layouts(file, version, other, new_version)
        return new_version
    finally:
        close_ignoring_errors(other)


def _give_same_owner(other: int, status: os.stat_result) -> None:
    """Give ``other``, the file without a name, the owner and group in ``status``, which are those of the file to
    change. Lustre swaps layouts only of files with the same owner and group.

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
    """Give the open file ``other`` the project id of the open file ``file``, so that the space of ``other`` counts for
    the same project (quota). Do nothing if the file system has no project ids.

    Raise ``Problem``.
    """
    try:
        _, project, _ = _fsxattr(file)
        before, inherited, after = _fsxattr(other)
    except OSError:  # the file system has no project ids
        return
    if project != inherited:
        with errors_as_problem("set project"):
            fcntl.ioctl(other, SET_FSXATTR_REQUEST, _FSXATTR_FORMAT.pack(before, project, after))


def _fsxattr(file: int) -> tuple[bytes, int, bytes]:
    """Return the struct fsxattr (project id and other attributes) of an open file in three parts: the bytes before the
    project id, the project id, the other bytes. Raise ``OSError``.
    """
    return _FSXATTR_FORMAT.unpack(fcntl.ioctl(file, GET_FSXATTR_REQUEST, bytes(_FSXATTR_FORMAT.size)))


def _open_file(directory: int, name: bytes) -> int:
    """Open the file ``name`` in an open directory for reading and writing, and return its descriptor; use O_NOATIME if
    the caller owns the file. Raise ``Problem``.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    with errors_as_problem("open"):
        try:
            return os.open(name, flags | os.O_NOATIME, dir_fd=directory)
        except PermissionError:
            return os.open(name, flags, dir_fd=directory)


def _create_unnamed_file(directory: int, file: int, recipe: LayoutRecipe) -> int:
    """Create a file without a name on the MDT of the open file ``file``, because Lustre swaps layouts only within one
    MDT; return its descriptor. ``recipe`` has the flags of open(2) for a file that gets the new layout.

    Raise ``Problem``.
    """
    server = mdt_of_item(file)
    try:
        return create_volatile_file(directory, recipe.flags, server=server)
    except Problem as problem:
        if problem.errno != errno.EACCES or server in mdts_of_directory(directory):
            raise
        text = f"it lies on MDT {server}, its directory on another: its layout is not changed (lfs migrate can move it)"
        raise Problem("create", errno.EACCES, text=text) from problem


def _copy_and_verify(
    file: int, other: int, status: os.stat_result, means: CopyAndVerifyTools
) -> Generator[int, None, None]:
    """Generator: copy the contents of the open file ``file``, whose status is ``status``, to ``other`` by the objects
    in ``means``, sync them, read them back and compare the digests. Yield the number of bytes that each step has copied
    (0 while they are read back). Raise ``Problem``, also if the digests differ.
    """
    size, devices = status.st_size, (status.st_dev, status.st_dev)
    if not size:
        return
    digest, digest_read = means.new_digest(), means.new_digest()
    set_file_size(other, size)
    with closing(
        means.mover.copy_byte_range(file, other, 0, size, devices, may_have_holes=may_have_holes(status), digest=digest)
    ) as steps:
        yield from steps
    with errors_as_problem("fsync"):
        sync_file_if_supported(other)
    with suppress(OSError):
        os.posix_fadvise(other, 0, 0, os.POSIX_FADV_DONTNEED)
    with closing(
        digest_contents(other, 0, size, digest_read, may_have_holes=may_have_holes(status_of_open_item(other)))
    ) as steps:
        for _ in steps:
            yield 0
    if digest.root() != digest_read.root():
        raise Problem(
            "verify", errno.EIO, text="the data read back differ from those written: its layout is not changed"
        )


def _check_no_writers(file: int) -> None:
    """Raise ``Problem`` if a process on any client has the open file ``file`` open for writing,
    this process excepted.
    """
    try:
        fcntl.ioctl(file, LEASE_REQUEST, _LEASE_FORMAT.pack(READ_LEASE, 0, 0))
    except OSError as error:
        if error.errno in (errno.EBUSY, errno.EAGAIN):
            text = "another process has it open for writing: its layout is not changed"
            raise Problem("lease", error.errno, text=text) from error
        raise Problem.from_error("lease", error) from error
    with errors_as_problem("lease"):
        fcntl.ioctl(file, LEASE_REQUEST, _LEASE_FORMAT.pack(NO_LEASE, 0, 0))


def _restore_times(file: int, status: os.stat_result, version: int) -> None:
    """Set the times of ``file`` to those in ``status`` after the swap, unless its contents have changed since. Raise
    ``Problem``.

    If contents are stored on an MDT, the swap does not restore the times. They cannot be set before the group lock is
    released, because that would wait for ever. If another process has written to the file since (its data version is
    not ``version``), the times are not changed.
    """
    before, now = (status.st_atime_ns, status.st_mtime_ns), status_of_open_item(file)
    if (now.st_atime_ns, now.st_mtime_ns) != before and _data_version(file, FLUSH_FIRST_FLAG) == version:
        with errors_as_problem("utime"):
            os.utime(file, ns=before)


def _data_version(file: int, flags: int = 0) -> int:
    """Return the data version of an open file, a number that changes whenever the contents change. Raise ``Problem``.

    ``flags`` is 0 or ``FLUSH_FIRST_FLAG``.
    """
    with errors_as_problem("data version"):
        return int(
            _DATA_VERSION_FORMAT.unpack(
                fcntl.ioctl(file, DATA_VERSION_REQUEST, _DATA_VERSION_FORMAT.pack(0, 0, flags))
            )[0]
        )


def _swap_layouts(file: int, version: int, other: int, other_version: int) -> None:
    """Swap the layouts, and with them the data, of the open files ``file`` and ``other`` if ``file`` still has the data
    version ``version``, so that its contents have not changed. Raise ``Problem``, also if they have changed.
    ``other_version``, the data version of ``other``, is stored as the version that an archive (HSM) has.
    """
    try:
        fcntl.ioctl(
            file, SWAP_LAYOUTS_REQUEST, _SWAP_FORMAT.pack(SWAP_IF_UNCHANGED_FLAG, other, 0, version, other_version)
        )
    except OSError as error:
        if error.errno == errno.EAGAIN:
            raise Problem(
                "swap layouts", error.errno, text="it has changed meanwhile: its layout is not changed"
            ) from error
        raise Problem.from_error("swap layouts", error) from error
