"""What a walk has found, summed up in bounded memory: by type, size, age, depth, owner; the largest; what is unusual.

Each rank sums up what it finds, and rank 0 merges what all of them say. A file with several names counts with each.
"""

from __future__ import annotations

import heapq
import stat
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import compress
from operator import mul, sub
from typing import Any

from pcopy.engine.messages import dump_primitives, load_primitives
from pcopy.fsio.kernel.columns import ATIME, BLOCKS, GROUP, LINKS, MODE, MTIME, OWNER, SIZE
from pcopy.walk.forms import BLOCK, TYPES
from pcopy.walk.matching import Items

TOP = 20
"""Files and directories that are named since they are the largest."""

MOST_OWNERS = 1 << 16
"""Different users, or groups, that are told apart; all further ones are one."""

OTHERS = -1
"""Their number."""

DEEPEST = 1000
"""Depths from which on all count as this one."""

_DAY = 86400 * 10**9
"""In nanoseconds."""

AGES = (1, 7, 30, 90, 180, 365, 730, 1825)
"""Days that part the ages of files. Before the first class is one for times that have not come yet."""

UNUSUAL = ("set_id", "world_writable", "future", "control_characters", "not_utf8", "sparse", "hard_linked")
"""What is counted of unusual items: set-user-ID or set-group-ID files; what everybody may write to; modified in the
future; names with control characters; names that are no UTF-8; files with holes; files with several names."""

_FILE = ord("f")


class WalkSums:
    """Of one rank, or of all. ``now``: ages count back from it, in nanoseconds since 1970."""

    MASK = MODE | LINKS | OWNER | GROUP | SIZE | BLOCKS | ATIME | MTIME

    def __init__(self, now: int) -> None:
        self._now = now
        self._bounds = [*(now - days * _DAY for days in reversed(AGES)), now]
        """Moments that part the classes of age; one that is such a moment belongs to the older class."""
        self.types: Counter[str] = Counter()
        self.size = 0
        """Bytes of regular files, and what is allocated for all items."""
        self.allocated = 0
        self.sizes: Counter[int] = Counter()
        """Files by the power of two that their size lies below, and the bytes of these."""
        self.size_bytes: Counter[int] = Counter()
        self.ages: dict[str, Counter[int]] = {name: Counter() for name in ("mtime", "atime", "mtime_bytes")}
        """Files by their class of age (0: the future)."""
        self.depths: Counter[int] = Counter()
        self.entries: Counter[int] = Counter()
        """Directories by the power of two that the number of their entries lies below."""
        self.owners: dict[str, dict[int, list[int]]] = {"users": {}, "groups": {}}
        """Items, bytes, and allocated bytes, by number."""
        self.unusual: Counter[str] = Counter()
        self.holes = 0
        """Bytes of sparse files that are not allocated."""
        self._files: list[tuple[int, bytes]] = []
        self._directories: list[tuple[int, bytes]] = []

    def add(self, items: Items, depth: int) -> None:
        """Items of one directory, all of which have the columns of ``MASK``.

        Each column is looked at as a whole; one by one only where its items differ.
        """
        rows, kinds = items.seen, items.kinds
        for kind in set(kinds):
            self.types[TYPES[kind]] += kinds.count(kind)
        self.depths[min(depth, DEEPEST)] += len(kinds)
        self.allocated += BLOCK * sum(rows.blocks)
        are_files = bytes(map(_FILE.__eq__, kinds))
        sizes = rows.size if all(are_files) else list(map(mul, rows.size, are_files))
        _add_owners(self.owners["users"], rows.uid, sizes, rows.blocks)
        _add_owners(self.owners["groups"], rows.gid, sizes, rows.blocks)
        self._add_names(items)
        self._add_modes(rows.mode)
        if max(rows.mtime, default=0) > self._now:
            self.unusual["future"] += sum(map(self._now.__lt__, rows.mtime))
        if any(are_files):
            self._add_files(items, are_files)

    def _add_modes(self, modes: Sequence[int]) -> None:
        for mode in set(modes):
            kind = stat.S_IFMT(mode)
            sticky = kind == stat.S_IFDIR and mode & stat.S_ISVTX
            if mode & stat.S_IWOTH and kind != stat.S_IFLNK and not sticky:
                self.unusual["world_writable"] += modes.count(mode)
            if mode & (stat.S_ISUID | stat.S_ISGID) and kind == stat.S_IFREG:
                self.unusual["set_id"] += modes.count(mode)

    def _add_files(self, items: Items, are_files: bytes) -> None:
        """What is told of regular files only, of which there is one at least."""
        rows = items.seen
        names: Sequence[bytes] = items.names
        columns: tuple[Sequence[int], ...] = rows.size, rows.blocks, rows.links, rows.mtime, rows.atime
        if not all(are_files):
            names = list(compress(names, are_files))
            columns = tuple([*compress(column, are_files)] for column in columns)
        sizes, blocks, links, mtimes, atimes = columns
        self.size += sum(sizes)
        _add_classes(self.sizes, self.size_bytes, list(map(int.bit_length, sizes)), sizes)
        _add_classes(self.ages["mtime"], self.ages["mtime_bytes"], self._ages_of(mtimes), sizes)
        _add_classes(self.ages["atime"], None, self._ages_of(atimes), sizes)
        if max(links) > 1:
            self.unusual["hard_linked"] += sum(map((1).__lt__, links))
        missing = list(map(sub, sizes, map(BLOCK.__mul__, blocks)))
        if max(missing) > 0:
            holes = [each for each in missing if each > 0]
            self.unusual["sparse"] += len(holes)
            self.holes += sum(holes)
        if len(self._files) < TOP or max(sizes) > self._files[0][0]:
            for name, size in zip(names, sizes, strict=True):
                if len(self._files) < TOP or size > self._files[0][0]:
                    _keep(self._files, (size, items.above + name))

    def _ages_of(self, moments: Sequence[int]) -> list[int]:
        """Their classes of age; only one for all of them, if they have the same."""
        oldest, newest = self._age(min(moments)), self._age(max(moments))
        return [oldest] if oldest == newest else list(map(self._age, moments))

    def _age(self, moment: int) -> int:
        return len(self._bounds) - bisect_left(self._bounds, moment)

    def _add_names(self, items: Items) -> None:
        joined = b"/".join(items.names)
        if joined.isascii() and joined.decode().isprintable():
            return
        for name in items.names:
            if any(byte < 32 or byte == 127 for byte in name):
                self.unusual["control_characters"] += 1
            try:
                name.decode()
            except UnicodeDecodeError:
                self.unusual["not_utf8"] += 1

    def add_directory(self, path: bytes, entries: int) -> None:
        """A directory was listed: it has so many entries."""
        self.entries[entries.bit_length()] += 1
        if len(self._directories) < TOP or entries > self._directories[0][0]:
            _keep(self._directories, (entries, path))

    @property
    def largest_files(self) -> list[tuple[int, bytes]]:
        """Sizes and paths, the largest first."""
        return sorted(self._files, key=lambda each: (-each[0], each[1]))

    @property
    def largest_directories(self) -> list[tuple[int, bytes]]:
        """Numbers of entries, and paths."""
        return sorted(self._directories, key=lambda each: (-each[0], each[1]))

    def words(self) -> bytes:
        """For ``merge``."""
        counters = [dict(each) for each in self._counters()]
        numbers = self.size, self.allocated, self.holes
        return dump_primitives((counters, numbers, self.owners, self._files, self._directories))

    def merge(self, words: bytes) -> None:
        """Adds what another rank has found."""
        counters, numbers, owners, files, directories = load_primitives(words)
        for mine, other in zip(self._counters(), counters, strict=True):
            mine.update(other)
        self.size += numbers[0]
        self.allocated += numbers[1]
        self.holes += numbers[2]
        for what, others in owners.items():
            known = self.owners[what]
            for number, values in others.items():
                row = known.setdefault(number if number in known or len(known) < MOST_OWNERS else OTHERS, [0, 0, 0])
                row[:] = [old + new for old, new in zip(row, values, strict=True)]
        for each in files:
            _keep(self._files, tuple(each))
        for each in directories:
            _keep(self._directories, tuple(each))

    def _counters(self) -> list[Counter[Any]]:
        return [
            self.types, self.sizes, self.size_bytes, *self.ages.values(), self.depths, self.entries, self.unusual
        ]  # fmt: skip


def _add_classes(
    numbers: Counter[int], all_bytes: Counter[int] | None, classes: Sequence[int], sizes: Sequence[int]
) -> None:
    """So many files, and their bytes, are of these ``classes``: one for each, or one for all of them."""
    found = set(classes)
    if len(found) == 1:
        numbers[classes[0]] += len(sizes)
        if all_bytes is not None:
            all_bytes[classes[0]] += sum(sizes)
        return
    numbers.update(classes)
    if all_bytes is not None:
        for each, size in zip(classes, sizes, strict=True):
            all_bytes[each] += size


def _add_owners(
    known: dict[int, list[int]], numbers: Sequence[int], sizes: Sequence[int], blocks: Sequence[int]
) -> None:
    """``sizes`` are those of files, 0 of all else."""
    owners = set(numbers)
    if len(owners) == 1:
        numbers, sums = numbers[:1], [(len(numbers), sum(sizes), sum(blocks))]
    else:
        sums = [(1, size, some) for size, some in zip(sizes, blocks, strict=True)]
    for number, (items, size, some) in zip(numbers, sums, strict=True):
        row = known.get(number)
        if row is None:
            row = known.setdefault(number if len(known) < MOST_OWNERS else OTHERS, [0, 0, 0])
        row[0] += items
        row[1] += size
        row[2] += some * BLOCK


def _keep(heap: list[tuple[int, bytes]], each: Any) -> None:
    if len(heap) < TOP:
        heapq.heappush(heap, each)
    else:
        heapq.heappushpop(heap, each)
