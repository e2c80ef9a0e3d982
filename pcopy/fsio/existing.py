"""Decides whether an existing target is replaced, and compares its contents with the source's.

The decision rests on the status of both sides alone, or on their contents (``--checksum``), which are compared byte by
byte, without digests.
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
from pcopy.fsio.contents import PIECE_BYTES, borrowed_buffer
from pcopy.fsio.problem import Problem, TargetChanged, as_problem, source_changed
from pcopy.fsio.retries import with_retries
from pcopy.fsio.source import FileVersion, check_unchanged, open_to_read, status_of
from pcopy.fsio.throttle import Throttle

MAX_TIME_NS = 2**63 - 1
"""The largest number of nanoseconds since 1970 that 64 bits can hold."""

TIME_RESOLUTIONS = (100, 1_000, 10_000_000, 1_000_000_000, 2_000_000_000)
"""Resolutions of modification times in nanoseconds, to which file systems or tools cut times (round them down).

They are those of SMB and NTFS, of network file systems, of exFAT, of ext3 and HFS+, and of FAT. ``native/internal.h``
has the same list.
"""


class ComparedStatus(Protocol):
    """The fields of an item's status on which the decision rests."""

    @property
    def st_mode(self) -> int: ...
    @property
    def st_size(self) -> int: ...
    @property
    def st_rdev(self) -> int: ...
    @property
    def st_mtime_ns(self) -> int: ...


class ExistingDecision(Enum):
    """Decision about an item whose name exists in the target."""

    REPLACE = "replace"
    SKIP = "skip"
    FAIL = "fail"


def decision_for_existing(
    policy: str, modify_window: int, source: ComparedStatus, target: ComparedStatus, *, contents: bool = False
) -> ExistingDecision:
    """Return what the policy of ``--existing`` does with ``target``.

    ``changed`` and ``newer`` replace an item of another type. ``newer`` skips a target with a later modification time,
    and decides as ``changed`` does if the times are equal (``are_times_equal``).

    Args:
        policy: one of ``pcopy.tasks.base.job.EXISTING_CHOICES``.
        modify_window: difference of times that is ignored, in seconds.
        contents: True if contents decide and not times. Then the contents of an item that is to be skipped must still
            be compared (``same_contents``).
    """
    if policy not in ("changed", "newer"):
        return ExistingDecision(policy)
    if stat.S_IFMT(source.st_mode) != stat.S_IFMT(target.st_mode):
        return ExistingDecision.REPLACE
    if policy == "newer" and not are_times_equal(source.st_mtime_ns, target.st_mtime_ns, modify_window):
        return ExistingDecision.REPLACE if source.st_mtime_ns > target.st_mtime_ns else ExistingDecision.SKIP
    return (
        ExistingDecision.SKIP
        if looks_like_copy(source, target, modify_window, contents=contents)
        else ExistingDecision.REPLACE
    )


def are_times_equal(source: int, target: int, modify_window: int) -> bool:
    """Return True if ``target`` is the modification time of an unchanged copy of an item that has the time ``source``.

    Both are in nanoseconds since 1970. They are equal if they are the same, if ``target`` is ``source`` cut (rounded
    down, as Linux cuts times, those before 1970, too) to one of ``TIME_RESOLUTIONS``, or if they differ by
    ``modify_window`` seconds at most and that is not 0.
    """
    if source == target or abs(source - target) <= modify_window * 10**9:
        return True
    return any(source // step * step == target for step in TIME_RESOLUTIONS)


def looks_like_copy(
    source: ComparedStatus, target: ComparedStatus, modify_window: int, *, contents: bool = False
) -> bool:
    """Return True if ``target`` looks like a copy of ``source``, by their status alone.

    Type, size or device number must be the same, and the modification times must be equal. With ``contents`` the times
    are ignored, since the contents are compared later. The size of a symbolic link is the length of its text.
    """
    if stat.S_IFMT(source.st_mode) != stat.S_IFMT(target.st_mode):
        return False
    if (stat.S_ISREG(source.st_mode) or stat.S_ISLNK(source.st_mode)) and source.st_size != target.st_size:
        return False
    if (stat.S_ISBLK(source.st_mode) or stat.S_ISCHR(source.st_mode)) and source.st_rdev != target.st_rdev:
        return False
    return contents or are_times_equal(source.st_mtime_ns, target.st_mtime_ns, modify_window)


def can_compare_contents(source: ComparedStatus, target: ComparedStatus) -> bool:
    """Return True if both are regular files of one size, so that their contents may be equal whatever their times are.

    Return False if a time is ``FAR`` from 1970 or further: few file systems can store it, so the files would differ in
    every later run.
    """
    if not (stat.S_ISREG(source.st_mode) and stat.S_ISREG(target.st_mode)) or source.st_size != target.st_size:
        return False
    return max(abs(source.st_mtime_ns), abs(target.st_mtime_ns)) < MAX_TIME_NS


def has_same_contents(
    reading: int, source: os.stat_result, directory: int, name: bytes, present: os.stat_result, throttle: Throttle
) -> Generator[None, None, bool]:
    """Return True if the regular file ``name`` has the same contents as the open file ``reading``.

    Yield after each piece, and while ``throttle`` delays the next one. Raise ``Problem`` for the side that cannot be
    read, or if either file has changed.

    Args:
        source: status of ``reading``.
        present: status that ``name`` had when it was examined.
    """
    if source.st_size != present.st_size:
        return False
    existing = open_existing(directory, name, present)
    try:
        same = yield from _are_contents_equal(reading, source.st_size, existing, throttle)
    except BaseException:
        close_after_failure(existing)
        raise
    close_after_read(existing)
    check_unchanged(reading, FileVersion.from_status(source))
    return same


def _are_contents_equal(reading: int, size: int, existing: int, throttle: Throttle) -> Generator[None, None, bool]:
    """Return True if two open files have the same contents.

    ``size`` is that of the source; yield and raise as ``same_contents`` does.
    """
    piece = min(
        PIECE_BYTES, size + 1
    )  # 1 more than the size, since files in /proc have the size 0 and contents nevertheless
    with borrowed_buffer() as expected, borrowed_buffer() as actual:
        at = 0
        while True:
            got = _read_fully(reading, expected[:piece], at, on_source=True)
            if got < piece and at + got < size:
                raise source_changed("read", f"the file ended at byte {at + got}, before its size")
            if _read_fully(existing, actual[:piece], at, on_source=False) != got or expected[:got] != actual[:got]:
                return False
            if got < piece:
                return True
            at += got
            yield
            yield from throttle.charge_and_wait(got)


def _read_fully(descriptor: int, piece: memoryview, at: int, *, on_source: bool) -> int:
    """Read from offset ``at`` until ``piece`` is full or the file ends; return the number of bytes."""
    got = 0
    while got < len(piece):
        with as_problem("read", on_source=on_source):
            more = with_retries(partial(os.preadv, descriptor, [piece[got:]], at + got))
        if not more:
            break
        got += more
    return got


def open_existing(directory: int, name: bytes, present: os.stat_result) -> int:
    """Open the existing file ``name`` for reading; return its descriptor.

    Raise ``Problem``; raise ``TargetChanged`` if it is not the file that had the status ``present``.
    """
    with as_problem("open"):
        descriptor = open_to_read(directory, name)
    try:
        status = status_of(descriptor)
        # Another item may have taken the name since it was examined.
        if (status.st_dev, status.st_ino) != (present.st_dev, present.st_ino) or not stat.S_ISREG(status.st_mode):
            raise TargetChanged
    except Problem:
        close_after_failure(descriptor)
        raise
    return descriptor


def has_same_link_text(
    source: int, source_name: bytes, target: int, target_name: bytes, *, on_source: bool = True
) -> bool:
    """Return True if two symbolic links, in two open directories, have the same text; raise ``Problem``.

    ``on_source``: True if the first one is in the source; False if it is a copy that has no final name yet.
    """
    return _link_text(source, source_name, on_source=on_source) == _link_text(target, target_name, on_source=False)


def _link_text(directory: int, name: bytes, *, on_source: bool) -> bytes:
    """Return the text of a symbolic link; raise ``Problem``."""
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError as error:
        is_changed = on_source and error.errno in (errno.ENOENT, errno.EINVAL)
        raise Problem("readlink", error.errno or errno.EIO, on_source=on_source, changed=is_changed) from error
