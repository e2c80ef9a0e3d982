"""Is there room for what is to be copied? Asked on rank 0 before anything is touched, and once more when all is found.

Blocks are counted, not sizes, so that holes need no room; and what a file takes that gives way to a copy. It stays an
estimate: a file system may compress, share or pad what it stores, and quotas are not seen. So a copy is refused only if
the whole tree was looked at, which is done up to a budget (``pcopy.walk.look_ahead``).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress

from pcopy.errors import Refused
from pcopy.fsio.existing import Decision, decide
from pcopy.fsio.kernel.interface import SMALL_FILE
from pcopy.fsio.patience import open_patiently
from pcopy.fsio.preserve import CAP_SYS_RESOURCE, capable
from pcopy.libc import free_bytes, type_of_file_system
from pcopy.named import NamedTuple
from pcopy.tasks.base.job import InFront, Options, Root, Sink, Totals
from pcopy.text import shown
from pcopy.units import show_size
from pcopy.walk.look_ahead import LookAhead
from pcopy.walk.selection import Selection

_CLONING = frozenset((0x9123683E, 0x58465342, 0xCA451A4E, 0x7461636F))
"""File systems that may share contents between files: btrfs, XFS, bcachefs, OCFS2 (statfs(2))."""

_SECTOR = 512
"""Bytes of what st_blocks counts (stat(2))."""


class Room(NamedTuple):
    """Bytes, and inodes; -1 of these where a file system makes as many as it has room for."""

    bytes: int
    inodes: int


def free_on(path: bytes) -> Room:
    """Return what is free for this process where ``path`` lies; raise ``OSError``, also if that is unknown."""
    there = os.statvfs(path)
    free = free_bytes(there, reserved=capable(CAP_SYS_RESOURCE))
    return Room(free, there.f_favail if there.f_files else -1)


class NoRoom(Refused):
    """``why``: what is lacking where ``target`` lies, with both figures."""

    def __init__(self, target: bytes, why: str) -> None:
        super().__init__(f"{shown(target)}: {why}; make room, or try it all the same with --force")
        self.why = why


def check_space(roots: Sequence[Root], options: Options, ahead: LookAhead) -> bool:
    """Raises ``NoRoom`` if there is too little room for sure; True if there is enough, as far as can be told."""
    target = roots[0].target
    try:
        free = free_on(target)
        if _takes_less(roots, free):
            return True
    except OSError:
        return False  # it will be met again
    if options.files_from or options.dereference:
        return False
    needed = _Needed(options)
    for root in roots:
        needed.add_root(root, ahead)
        if not ahead.is_complete:
            return False
    if needed.bytes > free.bytes:
        sizes = f"{show_size(needed.bytes)} are needed and {show_size(free.bytes)} are free"
        raise NoRoom(target, f"too little room: about {sizes}")
    if free.inodes >= 0 and needed.inodes > free.inodes:
        numbers = f"{needed.inodes:,} are needed and {free.inodes:,} are free"
        raise NoRoom(target, f"too few inodes: {numbers}")
    return True


def _takes_less(roots: Sequence[Root], free: Room) -> bool:
    """Is less used on all of the sources' file systems together, whatever of that is copied?"""
    size = inodes = 0
    for there in {root.source_id[0]: os.statvfs(root.source) for root in roots}.values():
        if not there.f_blocks:  # its size is unknown
            return False
        size += (there.f_blocks - there.f_bfree) * there.f_frsize
        inodes += there.f_files - there.f_ffree
    return size < free.bytes and (free.inodes < 0 or inodes < free.inodes)


class _Needed:
    """What a copy would need, added up."""

    def __init__(self, options: Options) -> None:
        self.bytes = 0
        self.inodes = 0
        self._options = options
        self._selection = Selection(options.select)
        self._linked: set[tuple[int, int]] = set()

    def add_root(self, root: Root, ahead: LookAhead) -> None:
        clones = self._options.reflink != "never" and _may_clone(root)
        source = os.path.join(root.source, root.item)
        try:
            top = os.lstat(source)
        except OSError:
            ahead.is_complete = False
            return
        if root.item:
            self._add(top, os.path.join(root.target, root.name), clones)
            return
        to = os.path.join(root.target, root.name)
        self._add(top, to, clones)
        for path, status in ahead.items(source, self._selects, one_file_system=self._options.one_file_system):
            self._add(status, os.path.join(to, path), clones)

    def _selects(self, path: bytes, status: os.stat_result) -> bool:
        selection = self._selection
        return not selection.anything or selection.takes(path, status.st_mode, status.st_size, status.st_mtime_ns)

    def _add(self, status: os.stat_result, target: bytes, clones: bool) -> None:
        if status.st_nlink > 1 and self._options.preserve.links and not stat.S_ISDIR(status.st_mode):
            inode = status.st_dev, status.st_ino
            if inode in self._linked:
                return
            self._linked.add(inode)
        there = None
        with suppress(OSError):
            there = os.lstat(target)
        self.inodes += there is None
        if not stat.S_ISREG(status.st_mode) or (clones and status.st_size > SMALL_FILE):
            return
        taken = status.st_size
        if self._options.preserve.sparse:
            taken = min(taken, status.st_blocks * _SECTOR)
        if there is not None:
            taken -= self._freed(status, there, taken)
        self.bytes += max(0, taken)

    def _freed(self, status: os.stat_result, there: os.stat_result, taken: int) -> int:
        """What need not be found of it, since what is ``there`` stays or gives way."""
        decision = decide(self._options.existing, self._options.modify_window, status, there)
        if decision is not Decision.REPLACE:
            return taken
        gives_way = stat.S_ISREG(there.st_mode) and there.st_nlink == 1 and not self._options.backup
        return there.st_blocks * _SECTOR if gives_way else 0


def _may_clone(root: Root) -> bool:
    if root.source_id[0] != root.target_id[0]:
        return False
    try:
        descriptor = open_patiently(root.target, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return type_of_file_system(descriptor) in _CLONING
    finally:
        os.close(descriptor)


class RoomWatch(InFront):
    """Tells once that what is left to be copied will not fit, when all of it has been found."""

    def __init__(self, sink: Sink, target: bytes) -> None:
        super().__init__(sink)
        self._target = target
        self._is_told = False

    def progress(self, phase: str, totals: Totals, silent: Sequence[int]) -> None:
        super().progress(phase, totals, silent)
        if self._is_told or totals.unscanned or phase != "copy":
            return
        self._is_told = True
        left = totals.found_bytes - totals.skipped_bytes - totals.failed_bytes - max(totals.moved, totals.bytes)
        with suppress(OSError):
            free = free_on(self._target).bytes
            if left > free:
                self.notice(
                    f"{shown(self._target)}: {show_size(left)} are to be copied yet and {show_size(free)} are free: "
                    "unless files have holes or replace others, the job will stop for want of room, and can go on then"
                )
