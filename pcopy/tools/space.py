"""Estimate of the free space that a copy needs. Rank 0 compares it with the free space before anything is modified; if
the result is unknown then, it warns when all items were found.

The estimate counts allocated blocks instead of sizes, so that holes need no space, and subtracts the blocks of files
that the copy replaces. It is uncertain: a file system may compress, share or pad data, and quotas are not known. A copy
is refused only if the whole source was examined within the limit of ``pcopy.walk.preliminary_walk`` and does not fit.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress

from pcopy.errors import RequestRefused
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.interface import MAX_SMALL_FILE_BYTES
from pcopy.fsio.existing import ExistingItemDecision, decision_for_existing_item
from pcopy.fsio.preserve import CAP_SYS_RESOURCE, has_capability
from pcopy.fsio.retries import open_with_retries
from pcopy.libc import free_space_in_bytes, type_of_file_system
from pcopy.tasks.base.job import ForwardingProgressSink, Job, JobCounters, ProgressSink, Root
from pcopy.text import printable_path
from pcopy.units import format_size
from pcopy.walk.preliminary_walk import PreliminaryWalk
from pcopy.walk.selection import ItemSelector

_BLOCK_SHARING_TYPES = frozenset((0x9123683E, 0x58465342, 0xCA451A4E, 0x7461636F))
"""Magic numbers (statfs(2)) of file systems that can share blocks between files: btrfs, XFS, bcachefs, OCFS2."""

_ST_BLOCKS_UNIT = 512
"""Bytes of the unit of ``st_blocks`` (stat(2))."""


class FreeSpace(NamedTuple):
    """Free space of a file system in bytes, and its number of free inodes. ``inodes`` is -1 if the file system creates
    inodes as needed.
    """

    bytes: int
    inodes: int


def free_space_of_file_system(path: bytes) -> FreeSpace:
    """Return the free space that this process may use on the file system of ``path``; root may also use the reserved
    part. Raise ``OSError`` if it cannot be determined, or if the file system does not state it.
    """
    file_system = os.statvfs(path)
    free = free_space_in_bytes(file_system, reserved=has_capability(CAP_SYS_RESOURCE))
    return FreeSpace(free, file_system.f_favail if file_system.f_files else -1)


class InsufficientSpace(RequestRefused):
    """The file system of ``target`` has too little free space. ``why`` says what is lacking (space or inodes), how much
    is needed and how much is free.
    """

    def __init__(self, target: bytes, why: str) -> None:
        super().__init__(f"{printable_path(target)}: {why}; make room, or copy anyway with --force")
        self.reason = why


def is_space_sufficient(job: Job, ahead: PreliminaryWalk) -> bool:
    """Return True if the space that the copy needs, as estimated, is free; False if that is unknown. Raise
    ``InsufficientSpace`` if the whole source was examined and the copy does not fit.

    Args:
        job: the job.
        ahead: a walk of the sources before the job starts, which ends at a limit of entries and seconds.
    """
    roots, target = job.roots, job.roots[0].target
    try:
        free = free_space_of_file_system(target)
        if _do_sources_fit_entirely(roots, free):
            return True
    except OSError:
        return False  # The copy will meet the same error and report it.
    if job.copy_options.list_file or job.copy_options.dereference:
        return False
    needed = _NeededSpaceEstimate(job)
    for root in roots:
        needed.add_needs_of_root(root, ahead)
        if not ahead.is_complete:
            return False
    if needed.bytes > free.bytes:
        sizes = f"{format_size(needed.bytes)} are needed and {format_size(free.bytes)} are free"
        raise InsufficientSpace(target, f"too little space: about {sizes}")
    if free.inodes >= 0 and needed.inodes > free.inodes:
        numbers = f"{needed.inodes:,} are needed and {free.inodes:,} are free"
        raise InsufficientSpace(target, f"too few inodes: {numbers}")
    return True


def _do_sources_fit_entirely(roots: Sequence[Root], free: FreeSpace) -> bool:
    """True if the copy certainly fits: fewer bytes and inodes are in use on the file systems of the sources than are
    free at the target.

    No tree must be walked to know that, because any part of those file systems fits.
    """
    size = inodes = 0
    for file_system in {root.source_id[0]: os.statvfs(root.source) for root in roots}.values():
        if not file_system.f_blocks:  # The file system does not report its size.
            return False
        size += (file_system.f_blocks - file_system.f_bfree) * file_system.f_frsize
        inodes += file_system.f_files - file_system.f_ffree
    return size < free.bytes and (free.inodes < 0 or inodes < free.inodes)


class _NeededSpaceEstimate:
    """The estimated numbers of bytes and inodes that a copy needs at its target, summed over the items that were
    added.
    """

    def __init__(self, job: Job) -> None:
        self.bytes = 0
        """Bytes that the copy needs, as estimated from the items that were added."""
        self.inodes = 0
        """New inodes that the copy needs; an item that exists in the target needs none."""
        self._options, self._copy_options = job.options, job.copy_options
        self._selection = ItemSelector(job.options.select)
        self._counted_inodes: set[tuple[int, int]] = set()
        """Device and inode number of each file with several hard links that was added already."""

    def add_needs_of_root(self, root: Root, ahead: PreliminaryWalk) -> None:
        """Add the needs of everything in a root (source and target).

        If the walk ``ahead`` reaches its limit, not everything is added, and ``ahead.is_complete`` is False.
        """
        clones = self._copy_options.reflink != "never" and _can_share_blocks(root)
        source = os.path.join(root.source, root.item)
        try:
            top = os.lstat(source)
        except OSError:
            ahead.is_complete = False
            return
        if root.item:
            self._add_needs_of_item(top, os.path.join(root.target, root.name), clones)
            return
        to = os.path.join(root.target, root.name)
        self._add_needs_of_item(top, to, clones)
        for path, status in ahead.selected_items(
            source, self._is_item_selected, one_file_system=self._options.one_file_system
        ):
            self._add_needs_of_item(status, os.path.join(to, path), clones)

    def _is_item_selected(self, path: bytes, status: os.stat_result) -> bool:
        """True if the filters select the item ``path`` with this status, or if there are no filters."""
        selection = self._selection
        return not selection.has_filters or selection.selects_item_at_path(
            path, status.st_mode, status.st_size, status.st_mtime_ns
        )

    def _add_needs_of_item(self, status: os.stat_result, target: bytes, clones: bool) -> None:
        """Add the needs of one item of the source.

        Args:
            status: status of the item.
            target: path of its copy.
            clones: True if source and target can share blocks (reflink), so that all but small files need no space.
        """
        if status.st_nlink > 1 and self._options.preserve.links and not stat.S_ISDIR(status.st_mode):
            inode = status.st_dev, status.st_ino
            if inode in self._counted_inodes:
                return
            self._counted_inodes.add(inode)
        existing = None
        with suppress(OSError):
            existing = os.lstat(target)
        self.inodes += existing is None
        if not stat.S_ISREG(status.st_mode) or (clones and status.st_size > MAX_SMALL_FILE_BYTES):
            return
        needed = status.st_size
        if self._options.preserve.sparse:
            needed = min(needed, status.st_blocks * _ST_BLOCKS_UNIT)
        if existing is not None:
            needed -= self._bytes_freed_by_existing(status, existing, needed)
        self.bytes += max(0, needed)

    def _bytes_freed_by_existing(self, status: os.stat_result, existing: os.stat_result, needed: int) -> int:
        """Return how many of the ``needed`` bytes for one item are not needed because an item of this name exists in
        the target.

        All of them, if the existing item is kept. If it is replaced, the bytes of its blocks are freed, unless another
        hard link or a backup keeps the blocks allocated.

        Args:
            status, existing: status of the item, and of the existing item in the target.
        """
        decision = decision_for_existing_item(
            self._copy_options.existing, self._copy_options.modify_window, status, existing
        )
        if decision is not ExistingItemDecision.REPLACE:
            return needed
        gives_way = stat.S_ISREG(existing.st_mode) and existing.st_nlink == 1 and not self._copy_options.backup
        return existing.st_blocks * _ST_BLOCKS_UNIT if gives_way else 0


def _can_share_blocks(root: Root) -> bool:
    """True if source and target of the root are on the same file system, and it is of a type that can share blocks."""
    if root.source_id[0] != root.target_id[0]:
        return False
    try:
        descriptor = open_with_retries(root.target, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return type_of_file_system(descriptor) in _BLOCK_SHARING_TYPES
    finally:
        os.close(descriptor)


class FreeSpaceWarningSink(ForwardingProgressSink):
    """Receives progress on rank 0 if it is not known before the job whether there is enough free space; passes
    everything on.

    When all items have been found, it prints a warning if the remaining bytes are more than the free ones.
    """

    def __init__(self, sink: ProgressSink, target: bytes) -> None:
        super().__init__(sink)
        self._target = target
        self._has_warned = False

    def receive_progress(self, phase: str, totals: JobCounters, silent: Sequence[int]) -> None:
        super().receive_progress(phase, totals, silent)
        if self._has_warned or totals.unscanned or phase != "copy":
            return
        self._has_warned = True
        remaining = totals.found_bytes - totals.skipped_bytes - totals.failed_bytes - max(totals.moved, totals.bytes)
        with suppress(OSError):
            free = free_space_of_file_system(self._target).bytes
            if remaining > free:
                self.receive_notice(
                    f"{printable_path(self._target)}: {format_size(remaining)} remain to be copied and "
                    f"{format_size(free)} are free: unless files have holes or replace others, the job will stop when "
                    "the space is used up; it can be resumed"
                )
