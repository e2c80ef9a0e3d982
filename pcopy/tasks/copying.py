"""The visitor of a copy: it sorts the items that a scan finds into tasks, which copy them or only read them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from itertools import compress
from operator import attrgetter

from pcopy.fsio.half_written import SIDECAR, of_sidecar
from pcopy.fsio.identity import Identity
from pcopy.fsio.kernel.columns import FOUND, VERSION, Rows, pack_names
from pcopy.fsio.problem import Problem, changed
from pcopy.signature.items import FILE, type_of
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import Steps
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import CALL_COST, SCAN_COST, Rank
from pcopy.tasks.base.result import ATTEMPTS, Result, failed_or_retried
from pcopy.tasks.base.values import NOWHERE, Item, Place, bucket_of, pack_numbers
from pcopy.tasks.directories.scan_dir import ScanDir
from pcopy.tasks.files.copy_files import CopyFiles
from pcopy.tasks.files.copy_nodes import CopyNodes
from pcopy.tasks.files.deciding import decides_at_once, what_stays_at_once
from pcopy.tasks.files.split_file import SplitFile
from pcopy.tasks.links.group_links import LinkNote
from pcopy.tasks.verify.read_items import ReadItems
from pcopy.walk.visitor import Found, Visitor

BATCH_FILES = 256
"""Files of one task at most: more would stay with one rank for too long."""
BATCH_BYTES = 4 << 20
"""Bytes with which a task gets no more files."""

_SIZE = attrgetter("st_size")


def visitor_of(rank: Rank, result: Result, place: Place, attempt: int) -> Visitor:
    """For what a task finds in the source directory of ``place``: of what has no target nothing is copied."""
    return (_Reading if place.target_id == NOWHERE else _Copying)(rank, result, place, attempt)


class _Finding:
    """The part of a visitor that all kinds of items share, and directories; counts items as found, the first time."""

    def __init__(self, rank: Rank, result: Result, place: Place, attempt: int) -> None:
        self._rank = rank
        self._result = result
        self._place = place
        self._attempt = attempt
        self.device = rank.source_device(place)
        self._mounts = rank.sources[place.root].mounts
        self._mounted = rank.sources[place.root].mounted
        self._found = 0
        self._found_bytes = 0

    def failed(self, name: bytes, problem: Problem) -> None:
        failed_or_retried(self._result, self._place, name, problem, self._attempt, at_once=True)

    def chosen(self, found: Found) -> Iterable[int]:
        """All but what is mounted where something else should be, and the marks of files that are being written."""
        self._found += len(found.names)
        mounted = self._mounted.names_in(self._place.path)
        if not (mounted or b"/" + SIDECAR in b"/" + pack_names(found.names)):
            return range(len(found.names))
        return [row for row in range(len(found.names)) if self._is_chosen(found, row, mounted)]

    def _is_chosen(self, found: Found, row: int, mounted: set[bytes]) -> bool:
        name, mode = found.names[row], found.mode[row]
        if row in found.problems:
            return True
        if name in mounted and not stat.S_ISDIR(mode):
            try:
                self._mounted.check_file(os.path.join(self._place.path, name), found.directory, name)
            except Problem as problem:
                failed_or_retried(self._result, self._place, name, problem, self._attempt)
                return False
        if name.startswith(SIDECAR) and stat.S_ISREG(mode):
            failed_or_retried(self._result, self._place, name, of_sidecar(), ATTEMPTS)
            return False
        return True

    def directories(self, found: Found, rows: Sequence[int]) -> None:
        place, result = self._place, self._result
        for row in rows:
            path = os.path.join(place.path, found.names[row])
            if result.phase >= Phase.REPAIR:  # what is copied was no directory, and its phases are over
                problem = changed("stat", "a directory has taken its name since it was copied")
                result.fail(place, found.names[row], problem)
            elif (place.root, path) in self._rank.job.own:
                self._found -= 1
            else:
                mount = self._mounts.code(path, found.device[row], place.source_id.mount)
                task = ScanDir(place.root, path, Identity(mount, found.inode[row]), place, place.since)
                result.spawn(task, SCAN_COST, expands=True)
                result.count(counts.UNSCANNED)

    def settle(self, *, last: bool) -> Steps:
        yield from ()

    def finish(self) -> None:
        if not self._attempt:
            self._result.count(counts.FOUND, self._found)
            self._result.count(counts.FOUND_BYTES, self._found_bytes)


class _Copying(_Finding):
    """Small files and nodes are copied in batches, large files alone; names of one inode meet first."""

    def __init__(self, rank: Rank, result: Result, place: Place, attempt: int) -> None:
        super().__init__(rank, result, place, attempt)
        alone = len(rank.job.roots) == 1 and rank.job.roots[0].item
        self.links_apart = rank.options.preserve.links and not alone
        self._names: list[bytes] = []
        self._status: list[os.stat_result] = []
        self._files_bytes = 0
        self._decides = decides_at_once(rank, place)
        self._nodes: list[tuple[bytes, int]] = []
        self._links: dict[int, list[tuple[bytes, int, int, int]]] = {}
        """Name, mount, inode and size of each, by bucket."""

    def small_files(self, found: Found, rows: Sequence[int]) -> None:
        names, statuses = found.names, found.status
        if len(rows) < len(names):
            names, statuses = [names[row] for row in rows], [statuses[row] for row in rows]
        size = sum(map(_SIZE, statuses))
        self._found_bytes += size
        fits = len(self._names) + len(names) < BATCH_FILES and self._files_bytes + size < BATCH_BYTES
        if self._decides or fits:
            self._names += names
            self._status += statuses
            self._files_bytes += size
        else:
            self._add_files(names, statuses)

    def _add_files(self, names: Sequence[bytes], statuses: Sequence[os.stat_result]) -> None:
        """They are copied."""
        for name, status in zip(names, statuses, strict=True):
            self._names.append(name)
            self._status.append(status)
            self._files_bytes += status.st_size
            if len(self._names) >= BATCH_FILES or self._files_bytes >= BATCH_BYTES:
                self._spawn_files()

    def settle(self, *, last: bool) -> Steps:
        """A file that stays as it is makes no task."""
        if self._decides and self._names and (last or len(self._names) >= BATCH_FILES):
            names, statuses, self._names, self._status, self._files_bytes = self._names, self._status, [], [], 0
            rows = Rows.of(statuses, FOUND)
            stays = yield from what_stays_at_once(self._rank, self._result, self._place, names, rows)
            goes = [not stay for stay in stays]
            self._add_files([*compress(names, goes)], [*compress(statuses, goes)])
            if self._names:
                self._spawn_files()

    def _spawn_files(self) -> None:
        rows = Rows.of(self._status, VERSION)
        task = CopyFiles(self._place, pack_names(self._names), rows.packed(), self._attempt)
        self._result.spawn(task, self._files_bytes + len(rows) * CALL_COST)
        self._names.clear()
        self._status.clear()
        self._files_bytes = 0

    def large_files(self, found: Found, rows: Sequence[int]) -> None:
        for row in rows:
            name, size = found.names[row], found.size[row]
            mount = self._mount(name, found.device[row])
            self._found_bytes += size
            item = Item(mount, found.inode[row], size, ((self._place, name),), self._attempt)
            self._result.spawn(SplitFile(item), size)

    def _mount(self, name: bytes, device: int) -> int:
        """The mount code of a file."""
        path = os.path.join(self._place.path, name) if self._rank.options.dereference else b""
        return self._mounts.file_code(device, self._place.source_id.mount, path)

    def nodes(self, found: Found, rows: Sequence[int]) -> None:
        for row in rows:
            self._nodes.append((found.names[row], found.inode[row]))
            if len(self._nodes) >= BATCH_FILES:
                self._spawn_nodes()

    def _spawn_nodes(self) -> None:
        names, inodes = zip(*self._nodes, strict=True)
        task = CopyNodes(self._place, pack_names(names), pack_numbers([*inodes]), self._attempt)
        self._result.spawn(task, len(names) * CALL_COST)
        self._nodes.clear()

    def linked(self, found: Found, rows: Sequence[int]) -> None:
        """Names of one inode meet at the rank that the inode's number chooses, whichever rank finds them."""
        for row in rows:
            name, inode = found.names[row], found.inode[row]
            size = found.size[row] if stat.S_ISREG(found.mode[row]) else 0
            link = name, self._mount(name, found.device[row]), inode, size
            self._links.setdefault(bucket_of(inode), []).append(link)

    def finish(self) -> None:
        if self._names:
            self._spawn_files()
        if self._nodes:
            self._spawn_nodes()
        for bucket, links in self._links.items():
            names, *numbers = map(list, zip(*links, strict=True))
            mounts, inodes, sizes = map(pack_numbers, numbers)
            note = LinkNote(self._place, pack_names(names), mounts, inodes, sizes, self._attempt, bucket)
            self._result.spawn(note)
        super().finish()


class _Reading(_Finding):
    """Items that are only read, in batches, of any type. Sockets are no part of a dataset."""

    links_apart = False

    def __init__(self, rank: Rank, result: Result, place: Place, attempt: int) -> None:
        super().__init__(rank, result, place, attempt)
        self._items: list[tuple[bytes, bytes, int]] = []
        """Name, type byte and inode of each."""
        self._bytes = 0

    def small_files(self, found: Found, rows: Sequence[int]) -> None:
        for row in rows:
            kind = type_of(found.mode[row])
            if not kind:
                self._result.count(counts.SKIPPED)
                continue
            size = found.size[row] if kind == FILE else 0
            self._items.append((found.names[row], kind, found.inode[row]))
            self._found_bytes += size
            self._bytes += size
            if len(self._items) >= BATCH_FILES or self._bytes >= BATCH_BYTES:
                self._spawn()

    large_files = nodes = linked = small_files

    def _spawn(self) -> None:
        names, kinds, inodes = zip(*self._items, strict=True)
        task = ReadItems(self._place, pack_names(names), b"".join(kinds), pack_numbers([*inodes]), self._attempt, -1)
        self._result.spawn(task, self._bytes + len(names) * CALL_COST)
        self._items, self._bytes = [], 0

    def finish(self) -> None:
        if self._items:
            self._spawn()
        super().finish()
