"""Decides what is done with a target that exists: from the status of both sides alone, or by reading both
(``--checksum``), without digests."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator
from enum import Enum
from functools import partial
from typing import Protocol

from pcopy.fsio.close import abandon, close_read
from pcopy.fsio.contents import PIECE, lent_buffer
from pcopy.fsio.patience import patiently
from pcopy.fsio.problem import Problem, TargetChanged, changed, failing
from pcopy.fsio.source import Version, check_unchanged, open_to_read, status_of
from pcopy.fsio.throttle import Throttle

FAR = 2**63 - 1
"""Nanoseconds from 1970 that 64 bits no longer hold."""

TIME_STEPS = (100, 1_000, 10_000_000, 1_000_000_000, 2_000_000_000)
"""Nanoseconds to which times are cut: by SMB and NTFS, network file systems, exFAT, ext3 and HFS+, FAT; and by tools.

They stand in ``native/internal.h``, too."""


class Status(Protocol):
    """What of an item's status decides."""

    @property
    def st_mode(self) -> int: ...
    @property
    def st_size(self) -> int: ...
    @property
    def st_rdev(self) -> int: ...
    @property
    def st_mtime_ns(self) -> int: ...


class Decision(Enum):
    """For one item whose target's name is taken."""

    REPLACE = "replace"
    SKIP = "skip"
    FAIL = "fail"


def decide(policy: str, modify_window: int, source: Status, target: Status, *, contents: bool = False) -> Decision:
    """Return what ``policy`` (``pcopy.tasks.base.job.EXISTING``) does with ``target``; ``modify_window`` is in seconds.

    With ``contents`` what is to be skipped must still be compared (``same_contents``); times don't count then.
    ``changed`` and ``newer`` replace an item of another type. ``newer`` skips a later one, and decides as ``changed``
    does if the times are equal (``are_times_equal``).
    """
    if policy not in ("changed", "newer"):
        return Decision(policy)
    if stat.S_IFMT(source.st_mode) != stat.S_IFMT(target.st_mode):
        return Decision.REPLACE
    if policy == "newer" and not are_times_equal(source.st_mtime_ns, target.st_mtime_ns, modify_window):
        return Decision.REPLACE if source.st_mtime_ns > target.st_mtime_ns else Decision.SKIP
    return Decision.SKIP if alike(source, target, modify_window, contents=contents) else Decision.REPLACE


def are_times_equal(source: int, target: int, modify_window: int) -> bool:
    """Return True if ``target`` is the modification time of an unchanged copy of an item that has the time ``source``.

    Both are in nanoseconds since 1970. They are equal if they are the same, if ``target`` is ``source`` cut (rounded
    down, as Linux cuts times, those before 1970, too) to one of ``TIME_STEPS``, or if they differ by ``modify_window``
    seconds at most and that is not 0.
    """
    if source == target or abs(source - target) <= modify_window * 10**9:
        return True
    return any(source // step * step == target for step in TIME_STEPS)


def alike(source: Status, target: Status, modify_window: int, *, contents: bool = False) -> bool:
    """Does ``target`` look like a copy of ``source``, from their status? (A symbolic link's size is its text's.)

    With ``contents`` it is those that decide, where there are any, and not the times.
    """
    if stat.S_IFMT(source.st_mode) != stat.S_IFMT(target.st_mode):
        return False
    if (stat.S_ISREG(source.st_mode) or stat.S_ISLNK(source.st_mode)) and source.st_size != target.st_size:
        return False
    if (stat.S_ISBLK(source.st_mode) or stat.S_ISCHR(source.st_mode)) and source.st_rdev != target.st_rdev:
        return False
    return contents or are_times_equal(source.st_mtime_ns, target.st_mtime_ns, modify_window)


def may_be_compared(source: Status, target: Status) -> bool:
    """Are both regular files of one size, so that their contents may be the same whatever their times are?

    Not where a time lies centuries away: few file systems hold it, and the next look would find them to differ again.
    """
    if not (stat.S_ISREG(source.st_mode) and stat.S_ISREG(target.st_mode)) or source.st_size != target.st_size:
        return False
    return max(abs(source.st_mtime_ns), abs(target.st_mtime_ns)) < FAR


def same_contents(
    reading: int, source: os.stat_result, directory: int, name: bytes, present: os.stat_result, throttle: Throttle
) -> Generator[None, None, bool]:
    """Return True if the regular file ``name``, which had the status ``present``, holds the same bytes as ``reading``.

    Yields after each piece, and while ``throttle`` delays the next one. Raises ``Problem``, with the side that can't be
    read, and where either has changed.
    """
    if source.st_size != present.st_size:
        return False
    there = open_existing(directory, name, present)
    try:
        same = yield from _same(reading, source.st_size, there, throttle)
    except BaseException:
        abandon(there)
        raise
    close_read(there)
    check_unchanged(reading, Version.of(source))
    return same


def _same(reading: int, size: int, there: int, throttle: Throttle) -> Generator[None, None, bool]:
    piece = min(PIECE, size + 1)  # a file of size 0 may have contents all the same (/proc)
    with lent_buffer() as ours, lent_buffer() as theirs:
        at = 0
        while True:
            got = _fill(reading, ours[:piece], at, on_source=True)
            if got < piece and at + got < size:
                raise changed("read", f"the file ended at byte {at + got}, before its size")
            if _fill(there, theirs[:piece], at, on_source=False) != got or ours[:got] != theirs[:got]:
                return False
            if got < piece:
                return True
            at += got
            yield
            yield from throttle.spend(got)


def _fill(descriptor: int, piece: memoryview, at: int, *, on_source: bool) -> int:
    """Reads from offset ``at`` until ``piece`` is full or the file ends; returns the number of bytes."""
    got = 0
    while got < len(piece):
        with failing("read", on_source=on_source):
            more = patiently(partial(os.preadv, descriptor, [piece[got:]], at + got))
        if not more:
            break
        got += more
    return got


def open_existing(directory: int, name: bytes, present: os.stat_result) -> int:
    """The existing file for reading, the very one that was looked at; raises ``Problem``."""
    with failing("open"):
        descriptor = open_to_read(directory, name)
    try:
        status = status_of(descriptor)
        if (status.st_dev, status.st_ino) != (present.st_dev, present.st_ino) or not stat.S_ISREG(status.st_mode):
            raise TargetChanged
    except Problem:
        abandon(descriptor)
        raise
    return descriptor


def same_link(source: int, source_name: bytes, target: int, target_name: bytes, *, on_source: bool = True) -> bool:
    """Return True if two symbolic links, in two open directories, have the same text. Raises ``Problem``.

    ``on_source``: whether the first one lies in the source; it may be a copy that has no final name yet.
    """
    return _text(source, source_name, on_source=on_source) == _text(target, target_name, on_source=False)


def _text(directory: int, name: bytes, *, on_source: bool) -> bytes:
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError as error:
        gone = on_source and error.errno in (errno.ENOENT, errno.EINVAL)
        raise Problem("readlink", error.errno or errno.EIO, on_source=on_source, changed=gone) from error
