"""Decides whether an existing item of the target is replaced, and compares contents of source and target.

The decision uses only the status (stat(2)) of both items, or with ``--checksum`` their contents. Contents are compared
byte by byte, without digests.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator
from enum import Enum
from functools import partial
from typing import Protocol

from pcopy.fsio.close import close_after_failure, close_after_read
from pcopy.fsio.contents import BYTES_PER_READ, borrowed_buffer
from pcopy.fsio.problem import Problem, TargetChangedProblem, errors_as_problem, source_changed_problem
from pcopy.fsio.retries import call_with_retries
from pcopy.fsio.source import FileContentVersion, check_file_is_unchanged, open_item_to_read, status_of_open_item
from pcopy.fsio.throttle import Throttle

MAX_TIME_NS = 2**63 - 1
"""The largest number of nanoseconds since 1970 that 64 bits can hold."""

TIME_RESOLUTIONS = (100, 1_000, 10_000_000, 1_000_000_000, 2_000_000_000)
"""Resolutions of modification times, in nanoseconds. File systems and tools round times down to a multiple of one of
them.

They are those of SMB and NTFS, of network file systems, of exFAT, of ext3 and HFS+, and of FAT. ``native/internal.h``
has the same list.
"""


class ComparedStatus(Protocol):
    """Protocol of a status (``os.stat_result`` or a row of columns) with the fields that decide whether an existing
    item is replaced.
    """

    @property
    def st_mode(self) -> int: ...
    @property
    def st_size(self) -> int: ...
    @property
    def st_rdev(self) -> int: ...
    @property
    def st_mtime_ns(self) -> int: ...


class ExistingItemDecision(Enum):
    """Decision about an existing item of the target: it is replaced or skipped, or the copy of this item fails."""

    REPLACE = "replace"
    SKIP = "skip"
    FAIL = "fail"


def decision_for_existing_item(
    policy: str, modify_window: int, source: ComparedStatus, target: ComparedStatus, *, contents: bool = False
) -> ExistingItemDecision:
    """Return whether ``target``, an existing item, is replaced by the copy of ``source``, is skipped, or is an error,
    by the policy of ``--existing``.

    The policy ``changed`` skips an item that looks like a copy (``looks_like_copy``) and replaces any other. ``newer``
    skips an item with a later modification time and replaces one with an earlier time; if the times are equal
    (``are_times_equal``), it decides as ``changed`` does. Both replace an item of another type.

    Args:
        policy: ``replace``, ``changed``, ``newer``, ``skip`` or ``fail``.
        modify_window: difference of times that is ignored, in seconds.
        contents: True if contents decide instead of times (``--checksum``). If the result is SKIP then, the caller must
            still compare the contents (``has_same_contents``).
    """
    if policy not in ("changed", "newer"):
        return ExistingItemDecision(policy)
    if stat.S_IFMT(source.st_mode) != stat.S_IFMT(target.st_mode):
        return ExistingItemDecision.REPLACE
    if policy == "newer" and not are_times_equal(source.st_mtime_ns, target.st_mtime_ns, modify_window):
        return ExistingItemDecision.REPLACE if source.st_mtime_ns > target.st_mtime_ns else ExistingItemDecision.SKIP
    return (
        ExistingItemDecision.SKIP
        if looks_like_copy(source, target, modify_window, contents=contents)
        else ExistingItemDecision.REPLACE
    )


def are_times_equal(source: int, target: int, modify_window: int) -> bool:
    """Return True if ``target`` is the modification time of an unchanged copy of an item that has the time ``source``.

    Both are in nanoseconds since 1970. They count as equal in these cases:
    - They are the same, or differ by at most ``modify_window`` seconds.
    - ``target`` is ``source``, rounded down to a multiple of one of ``TIME_RESOLUTIONS``. Times before 1970 are rounded
      down, too, as Linux does.
    """
    if source == target or abs(source - target) <= modify_window * 10**9:
        return True
    return any(source // step * step == target for step in TIME_RESOLUTIONS)


def looks_like_copy(
    source: ComparedStatus, target: ComparedStatus, modify_window: int, *, contents: bool = False
) -> bool:
    """Return True if ``target`` looks like a copy of ``source``, by their status alone.

    The type must be the same, also the size of a regular file or symbolic link (the length of its text) and the device
    number of a device. The modification times must be equal (``are_times_equal``); differences up to ``modify_window``
    seconds are ignored. With ``contents`` the times are ignored, since the contents are compared later.
    """
    if stat.S_IFMT(source.st_mode) != stat.S_IFMT(target.st_mode):
        return False
    if (stat.S_ISREG(source.st_mode) or stat.S_ISLNK(source.st_mode)) and source.st_size != target.st_size:
        return False
    if (stat.S_ISBLK(source.st_mode) or stat.S_ISCHR(source.st_mode)) and source.st_rdev != target.st_rdev:
        return False
    return contents or are_times_equal(source.st_mtime_ns, target.st_mtime_ns, modify_window)


def can_compare_contents(source: ComparedStatus, target: ComparedStatus) -> bool:
    """Return True if source and target are regular files of the same size, so that their contents may be equal although
    their times differ.

    Return False if a modification time is ``MAX_TIME_NS`` or more away from 1970: few file systems can store it, so the
    copy's time would differ in every later run.
    """
    if not (stat.S_ISREG(source.st_mode) and stat.S_ISREG(target.st_mode)) or source.st_size != target.st_size:
        return False
    return max(abs(source.st_mtime_ns), abs(target.st_mtime_ns)) < MAX_TIME_NS


def has_same_contents(
    reading: int, source: os.stat_result, directory: int, name: bytes, present: os.stat_result, throttle: Throttle
) -> Generator[None, None, bool]:
    """Generator: return True if the regular file ``name`` of the target has the same contents as an open source file.

    Yield after each piece, and while ``throttle`` delays the next one. Raise ``Problem`` for the side that cannot be
    read, or if either file has changed.

    Args:
        reading: descriptor of the source file.
        source: its status.
        directory: the open directory of the target.
        name: name of the existing file in it.
        present: status that the existing file had when it was examined.
        throttle: the rank's limit on bytes per second; bytes of the source are charged to it.
    """
    if source.st_size != present.st_size:
        return False
    existing = open_existing_file(directory, name, present)
    try:
        same = yield from _are_contents_equal(reading, source.st_size, existing, throttle)
    except BaseException:
        close_after_failure(existing)
        raise
    close_after_read(existing)
    check_file_is_unchanged(reading, FileContentVersion.from_status(source))
    return same


def _are_contents_equal(reading: int, size: int, existing: int, throttle: Throttle) -> Generator[None, None, bool]:
    """Generator: return True if the two open files ``reading`` (the source) and ``existing`` have the same contents.

    Yield after each piece, and while ``throttle``, the rank's limit on bytes per second, delays the next one. Raise
    ``Problem`` if a file cannot be read or the source is shorter than ``size``, its st_size.
    """
    piece = min(
        BYTES_PER_READ, size + 1
    )  # one byte more than the size shows if the file is longer: files in /proc show the size 0
    with borrowed_buffer() as expected, borrowed_buffer() as actual:
        at = 0
        while True:
            got = _read_fully(reading, expected[:piece], at, on_source=True)
            if got < piece and at + got < size:
                raise source_changed_problem("read", f"the file ends at byte {at + got}, earlier than its size says")
            if _read_fully(existing, actual[:piece], at, on_source=False) != got or expected[:got] != actual[:got]:
                return False
            if got < piece:
                return True
            at += got
            yield
            yield from throttle.charge_limits_and_wait(got)


def _read_fully(descriptor: int, piece: memoryview, at: int, *, on_source: bool) -> int:
    """Read from offset ``at`` until the buffer ``piece`` is full or the file ends; return the number of bytes. Raise
    ``Problem``.
    """
    got = 0
    while got < len(piece):
        with errors_as_problem("read", on_source=on_source):
            more = call_with_retries(partial(os.preadv, descriptor, [piece[got:]], at + got))
        if not more:
            break
        got += more
    return got


def open_existing_file(directory: int, name: bytes, present: os.stat_result) -> int:
    """Open the existing file ``name`` for reading; return its descriptor.

    Raise ``Problem`` if it cannot be opened, and ``TargetChangedProblem`` if it is no longer the regular file that had
    the status ``present``.
    """
    with errors_as_problem("open"):
        descriptor = open_item_to_read(directory, name)
    try:
        status = status_of_open_item(descriptor)
        # Another item may have taken the name since it was examined.
        if (status.st_dev, status.st_ino) != (present.st_dev, present.st_ino) or not stat.S_ISREG(status.st_mode):
            raise TargetChangedProblem
    except Problem:
        close_after_failure(descriptor)
        raise
    return descriptor


def has_same_symlink_text(
    source: int, source_name: bytes, target: int, target_name: bytes, *, on_source: bool = True
) -> bool:
    """Return True if two symbolic links have the same text; raise ``Problem``. Each is given by an open directory
    (``source``, ``target``) and its name in it.

    ``on_source``: True if the first link is in the source; False if it is a copy that has no final name yet.
    """
    return _symlink_text(source, source_name, on_source=on_source) == _symlink_text(
        target, target_name, on_source=False
    )


def _symlink_text(directory: int, name: bytes, *, on_source: bool) -> bytes:
    """Return the text of the symbolic link ``name`` in an open directory; raise ``Problem``. ``on_source``: True if the
    link is in the source. If such a link was removed or replaced, the source counts as changed.
    """
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError as error:
        is_changed = on_source and error.errno in (errno.ENOENT, errno.EINVAL)
        raise Problem("readlink", error.errno or errno.EIO, on_source=on_source, changed=is_changed) from error
