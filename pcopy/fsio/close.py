"""Closing of descriptors, with or without fsync(2), and syncs of single files.

An error of close(2) counts like that of any other call: the item whose descriptor is closed fails. The module also has
small helpers that list open directories.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pcopy.fsio.problem import Problem, errors_as_problem
from pcopy.fsio.retries import open_with_retries
from pcopy.fsio.syncer import SYNC_UNSUPPORTED_ERRNOS, record_unsyncable_device, sync_file, sync_file_if_supported

is_mtime_set_on_close: dict[int, bool] = {}
"""By st_dev: True if the server sets the modification time of a file when the file is closed after writing.

``pcopy.fsio.server.determine_if_close_sets_mtime`` finds that out, once for each file system that this process writes
to.
"""

_syncs_under_way: dict[object, tuple[float, str, int]] = {}
"""Syncs of single files that are under way in this process.

Each value is (start in seconds of time.monotonic(), operation such as "fsync", descriptor). Keys only identify entries.
"""


@contextmanager
def entries_of_open_directory(directory: int) -> Iterator[Iterator[os.DirEntry[str]]]:
    """Context manager: yield an iterator over the entries that an open directory has now; raise ``OSError``.

    The directory is rewound first, since a descriptor continues where the last listing ended. On btrfs, a listing also
    lacks names that were created after the directory was opened or rewound.
    """
    os.lseek(directory, 0, os.SEEK_SET)
    with os.scandir(directory) as entries:
        yield entries


def names_in_directory(directory: int) -> list[bytes]:
    """Return all names in an open directory; raise ``OSError``."""
    with entries_of_open_directory(directory) as entries:
        return [os.fsencode(entry.name) for entry in entries]


@contextmanager
def record_sync_under_way(operation: str, descriptor: int) -> Iterator[None]:
    """Context manager: record that a sync is under way while the block runs. ``operation`` is its name, such as
    "fsync", ``descriptor`` the file.

    If a rank does not answer for a long time, the report about it names the sync for which it waits
    (``oldest_sync_under_way``).
    """
    key = object()
    _syncs_under_way[key] = time.monotonic(), operation, descriptor
    try:
        yield
    finally:
        del _syncs_under_way[key]


def oldest_sync_under_way() -> tuple[float, str, bytes] | None:
    """Return the start, operation and path of the oldest sync of a file that is under way; None if there is none.

    The start is a value of time.monotonic(). Any thread may call this.
    """
    if not _syncs_under_way:
        return None
    since, operation, descriptor = min(tuple(_syncs_under_way.values()), default=(0.0, "", -1))
    try:
        return (since, operation, os.readlink(b"/proc/self/fd/%d" % descriptor)) if operation else None
    except OSError:  # the sync has ended and the descriptor is closed
        return None


def close_after_write(descriptor: int, *, sync: bool = False, store: bool = False) -> None:
    """Close a file that was written; raise ``Problem``. An error of close(2) counts, because quota and network file
    systems report lost writes only then.

    Args:
        descriptor: the open file.
        sync: call fsync(2) before the file is closed.
        store: if ``sync`` is False, call fdatasync(2) before the file is closed.
    """
    try:
        if sync:
            with errors_as_problem("fsync"), record_sync_under_way("fsync", descriptor):
                sync_file_if_supported(descriptor)
        elif store:
            sync_data(descriptor)
    except Problem:
        close_after_failure(descriptor)
        raise
    with errors_as_problem("close"):
        os.close(descriptor)


def must_set_times_after_close(descriptor: int) -> bool:
    """Return True if the times of new files on the file system of ``descriptor`` must be set after the files are
    closed, because its server changes them at the close.
    """
    return True in is_mtime_set_on_close.values() and is_mtime_set_on_close.get(os.fstat(descriptor).st_dev, False)


def close_and_set_times(descriptor: int, atime: int, mtime: int, *, sync: bool, store: bool) -> OSError | None:
    """Close a file that was written, then set its times. Return the error if the times cannot be set, else None.

    The times are in nanoseconds since 1970. They are set through an O_PATH descriptor that was opened before the close,
    since the name may belong to another file by then. Raise ``Problem`` if the file cannot be synced or closed.

    Args:
        descriptor: the open file.
        atime: the access time to set.
        mtime: the modification time to set.
        sync: call fsync(2) before the file is closed.
        store: if ``sync`` is False, call fdatasync(2) before the file is closed.
    """
    try:
        with errors_as_problem("open"):
            path_only = open_with_retries(b"/proc/self/fd/%d" % descriptor, os.O_PATH | os.O_CLOEXEC)
    except Problem:
        close_after_failure(descriptor)
        raise
    with closing_descriptor(path_only):
        close_after_write(descriptor, sync=sync, store=store)
        try:
            os.utime(b"/proc/self/fd/%d" % path_only, ns=(atime, mtime))
        except OSError as error:
            return error
    return None


def sync_data(descriptor: int) -> None:
    """Bring the contents of an open file to stable storage (fdatasync(2)); raise ``Problem`` if that fails. If the file
    system cannot sync single files, record that in ``pcopy.fsio.syncer.unsyncable_devices`` instead.
    """
    number = 0
    try:
        with record_sync_under_way("fdatasync", descriptor):
            sync_file(descriptor, data=True)
    except OSError as error:
        number = error.errno or errno.EIO
    raise_if_data_lost(descriptor, number)


def raise_if_data_lost(descriptor: int, number: int) -> None:
    """Raise ``Problem`` if fdatasync(2) has failed for ``descriptor`` so that contents are lost. ``number`` is the
    errno of the call; 0 means success.

    An errno that only means that the file system cannot sync single files (``SYNC_UNSUPPORTED_ERRNOS``) raises nothing:
    the device is added to ``pcopy.fsio.syncer.unsyncable_devices``.
    """
    if number in SYNC_UNSUPPORTED_ERRNOS:
        with errors_as_problem("stat"):
            record_unsyncable_device(descriptor, number)
    elif number:
        raise Problem("fdatasync", number)


def close_after_read(descriptor: int) -> None:
    """Close the descriptor of a source file that was read. Raise ``Problem`` if close(2) fails, as it may on a FUSE
    file system.
    """
    with errors_as_problem("close", on_source=True):
        os.close(descriptor)


def close_after_failure(descriptor: int) -> None:
    """Close a descriptor after an operation on it has failed, and ignore errors of close(2).

    The caller reports the failure of the operation, and an error of close(2) would only hide it: after a write that
    exceeded a quota, NFS returns the same error again when the file is closed.
    """
    with suppress(OSError):
        os.close(descriptor)


def close_ignoring_errors(descriptor: int) -> None:
    """Close a descriptor through which nothing was read or written, and ignore errors of close(2).

    Such descriptors are directories, O_PATH descriptors, and files that are opened again later. An error here does not
    mean that any part of the copy is lost.
    """
    with suppress(OSError):
        os.close(descriptor)


@contextmanager
def closing_descriptor(descriptor: int) -> Iterator[int]:
    """Context manager: yield ``descriptor``, and close it at the end of the block. Errors of close(2) are ignored."""
    try:
        yield descriptor
    finally:
        close_ignoring_errors(descriptor)
