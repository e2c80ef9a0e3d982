"""Closing descriptors: its errors count like those of any other call, and belong to one item (close(2))."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pcopy.fsio.patience import open_patiently
from pcopy.fsio.problem import Problem, failing
from pcopy.fsio.syncer import NO_SYNC, note_unsyncable, sync_file, sync_written

late_times: dict[int, bool] = {}
"""By st_dev: True if the server sets the time of modification of a file when the file is closed after writing.

``pcopy.fsio.server.learn_times`` finds that out, once for each file system that this process writes to.
"""

_syncs: dict[object, tuple[float, str, int]] = {}
"""Syncs of files that are under way for this process: the time.monotonic() of the start, the operation, the
descriptor."""


@contextmanager
def entries_of(directory: int) -> Iterator[Iterator[os.DirEntry[str]]]:
    """Yield what an open directory holds now, from the first entry on; raises ``OSError``.

    A descriptor continues where the last listing ended. On btrfs it also shows no names that are newer than its opening
    or its last rewinding.
    """
    os.lseek(directory, 0, os.SEEK_SET)
    with os.scandir(directory) as entries:
        yield entries


def names_in(directory: int) -> list[bytes]:
    """Return all names of an open directory; raises ``OSError``."""
    with entries_of(directory) as entries:
        return [os.fsencode(entry.name) for entry in entries]


@contextmanager
def noted(operation: str, descriptor: int) -> Iterator[None]:
    """Note that a sync is under way, for the report of a rank that is silent."""
    key = object()
    _syncs[key] = time.monotonic(), operation, descriptor
    try:
        yield
    finally:
        del _syncs[key]


def oldest_sync() -> tuple[float, str, bytes] | None:
    """Return since when the oldest sync of a file has been under way, its operation and its path; None without a sync.

    Any thread may ask.
    """
    if not _syncs:
        return None
    since, operation, descriptor = min(tuple(_syncs.values()), default=(0.0, "", -1))
    try:
        return (since, operation, os.readlink(b"/proc/self/fd/%d" % descriptor)) if operation else None
    except OSError:  # it has ended meanwhile
        return None


def close_written(descriptor: int, *, sync: bool = False, store: bool = False) -> None:
    """Closes, after an fsync if that is wanted, or after ``store_data``; raises ``Problem``. Quota and network file
    systems report lost writes here."""
    try:
        if sync:
            with failing("fsync"), noted("fsync", descriptor):
                sync_written(descriptor)
        elif store:
            store_data(descriptor)
    except Problem:
        abandon(descriptor)
        raise
    with failing("close"):
        os.close(descriptor)


def has_late_times(descriptor: int) -> bool:
    """True if the times of new files on the file system of ``descriptor`` must be set after the files are closed."""
    return True in late_times.values() and late_times.get(os.fstat(descriptor).st_dev, False)


def close_timed(descriptor: int, atime: int, mtime: int, *, sync: bool, store: bool) -> OSError | None:
    """Close as ``close_written``, and set the times of the file afterwards; return the error if they cannot be set.

    They are set through a descriptor that was opened before: the name may be another file's by then.
    """
    try:
        with failing("open"):
            held = open_patiently(b"/proc/self/fd/%d" % descriptor, os.O_PATH | os.O_CLOEXEC)
    except Problem:
        abandon(descriptor)
        raise
    with held_open(held):
        close_written(descriptor, sync=sync, store=store)
        try:
            os.utime(b"/proc/self/fd/%d" % held, ns=(atime, mtime))
        except OSError as error:
            return error
    return None


def store_data(descriptor: int) -> None:
    """Bring the contents of an open file to stable storage (fdatasync(2)); raise ``Problem`` if they are lost."""
    number = 0
    try:
        with noted("fdatasync", descriptor):
            sync_file(descriptor, data=True)
    except OSError as error:
        number = error.errno or errno.EIO
    raise_unless_stored(descriptor, number)


def raise_unless_stored(descriptor: int, number: int) -> None:
    """Raise ``Problem`` if the errno of ``sync_file`` (0: success) says that contents are lost.

    An errno of ``NO_SYNC`` adds the device to ``unsyncable`` instead.
    """
    if number in NO_SYNC:
        with failing("stat"):
            note_unsyncable(descriptor, number)
    elif number:
        raise Problem("fdatasync", number)


def close_read(descriptor: int) -> None:
    """Closes a source's descriptor; raises ``Problem``, since FUSE file systems may answer anything here."""
    with failing("close", on_source=True):
        os.close(descriptor)


def abandon(descriptor: int) -> None:
    """Closes what was written in vain. The failure that made it so is the one to tell: after a write that met a full
    quota, NFS says so once more when the file is closed."""
    with suppress(OSError):
        os.close(descriptor)


def let_go(descriptor: int) -> None:
    """Closes what nothing was read or written through: a directory, an O_PATH descriptor, a file to be opened again.

    Whatever the file system says to that, nothing of the copy is lost by it.
    """
    with suppress(OSError):
        os.close(descriptor)


@contextmanager
def held_open(descriptor: int) -> Iterator[int]:
    """Lets it go when the block ends."""
    try:
        yield descriptor
    finally:
        let_go(descriptor)
