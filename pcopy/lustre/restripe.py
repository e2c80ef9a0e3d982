"""Gives a file that is there another layout: it keeps its inode, and so its names, its metadata and who has it open.

A file without a name gets the layout and the contents, which are read back from it. Then Lustre swaps the layouts of
the two, and what nobody needs goes with the file that has no name. Meanwhile the group lock of the file keeps other
clients out, and Lustre refuses to swap if its contents have changed all the same (LL_IOC_LOV_SWAP_LAYOUTS).
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from typing import Protocol

from pcopy.fsio.close import abandon, close_read, let_go
from pcopy.fsio.contents import Digest, digest_contents, has_holes
from pcopy.fsio.data import Mover, set_size
from pcopy.fsio.layout import Recipe, lay_out
from pcopy.fsio.problem import Problem, failing
from pcopy.fsio.source import check_found, status_of
from pcopy.fsio.syncer import sync_written
from pcopy.lustre.comparing import normal_of
from pcopy.lustre.inherited import read_layout
from pcopy.lustre.llapi import group_lock, server_of, servers_of
from pcopy.lustre.volatile import create_volatile
from pcopy.named import NamedTuple

DATA_VERSION = 0x801066DA
SWAP_LAYOUTS = 0x402066DB
SET_LEASE = 0xC00C66F3
"""Requests of ioctl(2), from lustre_user.h: LL_IOC_DATA_VERSION, LL_IOC_LOV_SWAP_LAYOUTS, LL_IOC_SET_LEASE."""

FLUSH = 1
"""Of DATA_VERSION: what clients still have in memory is written first."""
READ_LEASE, NO_LEASE = 1, 4
"""Of SET_LEASE: as long as nobody has the file open for writing, and none."""
CHECKED = 1
"""Of SWAP_LAYOUTS: swap only if the data version of the first file is still the one that is named. The one that is
named for the second file becomes the version that an archive (HSM) knows."""

GET_ATTRIBUTES, SET_ATTRIBUTES = 0x801C581F, 0x401C5820
"""FS_IOC_FSGETXATTR and _FSSETXATTR: a struct fsxattr, see ioctl_xfs_fsgetxattr(2)."""
_ATTRIBUTES = struct.Struct("=12sI12s")
"""What comes before the number of the project, that, and the rest."""
_VERSION = struct.Struct("=QII")
_SWAP = struct.Struct("=QIIQQ")
_LEASE = struct.Struct("=III")


class Means(NamedTuple):
    """Two digests from ``new_digest`` are compared."""

    mover: Mover
    new_digest: Callable[[], ContentDigest]


class ContentDigest(Digest, Protocol):
    """Of contents, once they have all gone through it."""

    def root(self) -> bytes: ...


def restripe(
    directory: int,
    name: bytes,
    inode: int,
    change: Callable[[int, int], Recipe | None],
    look: Callable[[int], None],
    means: Means,
) -> Generator[int | None, None, None]:
    """The file ``name`` of an open directory, which is ``inode``, gets another layout.

    ``change`` tells which, of the open file and its size, or None if it has the right one by now; ``look`` gets the
    open file at the end. Both may raise ``Problem``. Yields the bytes that each step has copied, None where it has
    waited. Raises ``Problem``: then the file is as it was, but for objects of its components that Lustre has made for
    the group lock. (Only if the lock cannot be given back, its times not be set, or the file not be looked at or
    closed, it has its new layout all the same.)
    """
    file = _open(directory, name)
    try:
        check_found(status_of(file), status_of(directory).st_dev, inode)
        _refuse_writers(file)
        with (yield from group_lock(file, inode & 0x7FFFFFFF | 1, insists=True)):
            status = status_of(file)
            recipe = change(file, status.st_size)
            version = -1
            if recipe is not None:
                version = yield from _restripe(directory, file, status, recipe, means)
        if version >= 0:
            _keep_times(file, status, version)
        look(file)
    except BaseException:
        abandon(file)
        raise
    close_read(file)


def _restripe(
    directory: int, file: int, status: os.stat_result, recipe: Recipe, means: Means
) -> Generator[int, None, int]:
    """Return the data version that the file has from then on; -1 if it has already got what Lustre would give."""
    version = _data_version(file)
    other = _make_other(directory, file, recipe)
    try:
        if recipe.attribute:
            with failing("setstripe"):
                given = lay_out(other, recipe)
            if not given.serves:
                raise Problem("setstripe", 0, text=given.why)
            if given.why and normal_of(read_layout(file)) == normal_of(given.value):
                return -1
        _give(other, status)
        keep_project(file, other)
        yield from _fill(file, other, status, means)
        with failing("utime"):  # they come with the contents
            os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
        new_version = _data_version(other)
        _swap(file, version, other, new_version)
        return new_version
    finally:
        let_go(other)


def _give(other: int, status: os.stat_result) -> None:
    """Lustre swaps the layouts of files of one owner and group only."""
    try:
        os.fchown(other, status.st_uid, status.st_gid)
    except PermissionError as error:
        text = "you are not in its group, or not its owner: it stays as it is"
        raise Problem("chown", errno.EPERM, text=text) from error
    except OSError as error:
        raise Problem.of("chown", error) from error


def keep_project(file: int, other: int) -> None:
    """The space counts for the project of the file, too; raises ``Problem``."""
    try:
        _, project, _ = _attributes(file)
        before, inherited, after = _attributes(other)
    except OSError:  # there are no projects
        return
    if project != inherited:
        with failing("set project"):
            fcntl.ioctl(other, SET_ATTRIBUTES, _ATTRIBUTES.pack(before, project, after))


def _attributes(file: int) -> tuple[bytes, int, bytes]:
    return _ATTRIBUTES.unpack(fcntl.ioctl(file, GET_ATTRIBUTES, bytes(_ATTRIBUTES.size)))


def _open(directory: int, name: bytes) -> int:
    """For reading and writing, by which the access time stays if its owner opens it; raises ``Problem``."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    with failing("open"):
        try:
            return os.open(name, flags | os.O_NOATIME, dir_fd=directory)
        except PermissionError:
            return os.open(name, flags, dir_fd=directory)


def _make_other(directory: int, file: int, recipe: Recipe) -> int:
    """A file without a name on the MDT of ``file``: layouts are not swapped with what another one keeps."""
    server = server_of(file)
    try:
        return create_volatile(directory, recipe.flags, server=server)
    except Problem as problem:
        if problem.errno != errno.EACCES or server in servers_of(directory):
            raise
        text = f"it lies on MDT {server}, and its directory on another: it stays as it is (lfs migrate can move it)"
        raise Problem("create", errno.EACCES, text=text) from problem


def _fill(file: int, other: int, status: os.stat_result, means: Means) -> Generator[int, None, None]:
    """Copies the contents, brings them to storage, and reads them back."""
    size, devices = status.st_size, (status.st_dev, status.st_dev)
    if not size:
        return
    digest, back = means.new_digest(), means.new_digest()
    set_size(other, size)
    with closing(means.mover.copy(file, other, 0, size, devices, holes=has_holes(status), digest=digest)) as steps:
        yield from steps
    with failing("fsync"):
        sync_written(other)
    with suppress(OSError):
        os.posix_fadvise(other, 0, 0, os.POSIX_FADV_DONTNEED)
    with closing(digest_contents(other, 0, size, back, holes=has_holes(status_of(other)))) as steps:
        for _ in steps:
            yield 0
    if digest.root() != back.root():
        raise Problem("verify", errno.EIO, text="what was read back is not what was written: it stays as it is")


def _refuse_writers(file: int) -> None:
    """Raises ``Problem`` if anybody has the file open for writing, on whatever client."""
    try:
        fcntl.ioctl(file, SET_LEASE, _LEASE.pack(READ_LEASE, 0, 0))
    except OSError as error:
        if error.errno in (errno.EBUSY, errno.EAGAIN):
            text = "somebody has it open for writing: it stays as it is"
            raise Problem("lease", error.errno, text=text) from error
        raise Problem.of("lease", error) from error
    with failing("lease"):
        fcntl.ioctl(file, SET_LEASE, _LEASE.pack(NO_LEASE, 0, 0))


def _keep_times(file: int, status: os.stat_result, version: int) -> None:
    """Those of contents that lay on an MDT do not come with them, and cannot be set under the lock: that would wait for
    ever. If somebody who has waited has written meanwhile, the times are theirs. Raises ``Problem``."""
    before, now = (status.st_atime_ns, status.st_mtime_ns), status_of(file)
    if (now.st_atime_ns, now.st_mtime_ns) != before and _data_version(file, FLUSH) == version:
        with failing("utime"):
            os.utime(file, ns=before)


def _data_version(file: int, flags: int = 0) -> int:
    """Changes with the contents."""
    with failing("data version"):
        return int(_VERSION.unpack(fcntl.ioctl(file, DATA_VERSION, _VERSION.pack(0, 0, flags)))[0])


def _swap(file: int, version: int, other: int, other_version: int) -> None:
    try:
        fcntl.ioctl(file, SWAP_LAYOUTS, _SWAP.pack(CHECKED, other, 0, version, other_version))
    except OSError as error:
        if error.errno == errno.EAGAIN:
            raise Problem("swap layouts", error.errno, text="it has changed meanwhile: it stays as it is") from error
        raise Problem.of("swap layouts", error) from error
