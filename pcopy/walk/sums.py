"""What a walk has found, summed up in bounded memory: by type, size, age, depth, owner; the largest; what is unusual.

Each rank sums up what it finds, and rank 0 merges what all of them say. A file with several names counts with each.
"""

from __future__ import annotations

import stat
from array import array
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Sequence
from itertools import compress
from operator import sub
from typing import TYPE_CHECKING, Any

from pcopy.engine.messages import dump_primitives, load_primitives
from pcopy.fsio.kernel.columns import ATIME, BLOCKS, GROUP, LINKS, MODE, MTIME, OWNER, SIZE, Rows
from pcopy.walk.forms import BLOCK, TYPES
from pcopy.walk.matching import Items
from pcopy.walk.tree_sums import TreeSums

if TYPE_CHECKING:
    from pcopy.fsio.kernel.directory_batches import Summed
    from pcopy.fsio.kernel.interface import Kernel

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
    """Of one rank, or of all.

    ``now``: ages count back from it, in nanoseconds since 1970. A ``kernel`` that has a tally adds up columns.
    """

    MASK = MODE | LINKS | OWNER | GROUP | SIZE | BLOCKS | ATIME | MTIME

    def __init__(self, now: int, kernel: Kernel | None = None) -> None:
        self._now = now
        self._bounds = [*(now - days * _DAY for days in reversed(AGES)), now]
        """Moments that part the classes of age; one that is such a moment belongs to the older class."""
        self.tally = None if kernel is None else kernel.tally(self._bounds)
        """What adds up columns; a kernel may add to it by itself (``pcopy.fsio.kernel.directory_batches.Look``)."""
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
        self.trees = TreeSums()
        """What lies below directories."""
        self._files: list[tuple[int, bytes]] = []
        self._directories: list[tuple[int, bytes]] = []

    def add(self, items: Items, depth: int) -> None:
        """Items of one directory, all of which have the columns of ``MASK``."""
        rows, kinds = items.seen, items.kinds
        self._add_kinds(kinds, depth)
        self._add_names(items)
        size, allocated, largest = (self.tally and self.tally.add(rows, kinds)) or self._add_columns(rows, kinds)
        if depth > 0:
            self.trees.add(items.above, depth - 1, len(kinds), size, allocated)
        _add_owners(self.owners["users"], rows.uid, items, (size, allocated))
        _add_owners(self.owners["groups"], rows.gid, items, (size, allocated))
        if _FILE in kinds and largest > (least := self.least_named(items.above)):
            for name, kind, each in zip(items.names, kinds, rows.size, strict=True):
                if kind == _FILE and each > least:
                    _keep(self._files, (each, items.above + name))
                    least = self.least_named(items.above)

    def add_summed(self, above: bytes, kinds: bytes, depth: int, summed: Summed) -> None:
        """All that is in the directory ``above`` (with a slash at its end), which ``tally`` has: types and owner."""
        self._add_kinds(kinds, depth)
        sums = len(kinds), summed.size, summed.allocated
        self.trees.add(above, depth - 1, *sums)
        _add_owner(self.owners["users"], summed.user, *sums)
        _add_owner(self.owners["groups"], summed.group, *sums)

    def least_named(self, above: bytes) -> int:
        """A file of more bytes may be one of the largest, if its path begins with ``above``: of equal ones the first by
        their path are, whoever finds them first."""
        if len(self._files) < TOP:
            return -1
        size, path = self._files[-1]
        return size if above > path else size - 1

    def _add_kinds(self, kinds: bytes, depth: int) -> None:
        for kind in set(kinds):
            self.types[TYPES[kind]] += kinds.count(kind)
        self.depths[min(depth, DEEPEST)] += len(kinds)

    def _add_columns(self, rows: Rows, kinds: bytes) -> tuple[int, int, int]:
        """As ``Tally.add``. Each column is looked at as a whole; one by one only where its items differ."""
        allocated = BLOCK * sum(rows.blocks)
        self.allocated += allocated
        self._add_modes(rows.mode)
        if max(rows.mtime, default=0) > self._now:
            self.unusual["future"] += sum(map(self._now.__lt__, rows.mtime))
        columns: tuple[Sequence[int], ...] = rows.size, rows.blocks, rows.links, rows.mtime, rows.atime
        if kinds.count(_FILE) < len(kinds):
            are_files = bytes(map(_FILE.__eq__, kinds))
            columns = tuple([*compress(column, are_files)] for column in columns)
        return (self._add_files(*columns), allocated, max(columns[0])) if columns[0] else (0, allocated, 0)

    def _add_modes(self, modes: Sequence[int]) -> None:
        for mode in set(modes):
            kind = stat.S_IFMT(mode)
            sticky = kind == stat.S_IFDIR and mode & stat.S_ISVTX
            if mode & stat.S_IWOTH and kind != stat.S_IFLNK and not sticky:
                self.unusual["world_writable"] += modes.count(mode)
            if mode & (stat.S_ISUID | stat.S_ISGID) and kind == stat.S_IFREG:
                self.unusual["set_id"] += modes.count(mode)

    def _add_files(
        self,
        sizes: Sequence[int],
        blocks: Sequence[int],
        links: Sequence[int],
        mtimes: Sequence[int],
        atimes: Sequence[int],
    ) -> int:
        """What is told of regular files only, of which there is one at least; returns their bytes."""
        size = sum(sizes)
        self.size += size
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
        return size

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
        if len(self._directories) < TOP or entries >= self._directories[-1][0]:
            _keep(self._directories, (entries, path))

    @property
    def largest_files(self) -> list[tuple[int, bytes]]:
        """Sizes and paths, the largest first."""
        return self._files

    @property
    def largest_directories(self) -> list[tuple[int, bytes]]:
        """Numbers of entries, and paths."""
        return self._directories

    def words(self) -> bytes:
        """For ``merge``; nothing is added any more."""
        self._take_tally()
        counters = [dict(each) for each in self._counters()]
        numbers = self.size, self.allocated, self.holes
        trees = self.trees.rows, self.trees.is_folded
        return dump_primitives((counters, numbers, self.owners, self._files, self._directories, trees))

    def _take_tally(self) -> None:
        if self.tally is None:
            return
        sums, classes = self.tally.sums(), self.tally.classes()
        self.tally = None
        self.size += sums.pop("bytes")
        self.allocated += sums.pop("allocated")
        self.holes += sums.pop("holes")
        self.unusual.update({key: number for key, number in sums.items() if number})
        self.sizes.update(classes["sizes"])
        self.size_bytes.update(classes["size_bytes"])
        self.ages["mtime"].update(classes["modified"])
        self.ages["mtime_bytes"].update(classes["modified_bytes"])
        self.ages["atime"].update(classes["read"])

    def merge(self, words: bytes) -> None:
        """Adds what another rank has found."""
        counters, numbers, owners, files, directories, trees = load_primitives(words)
        self.trees.merge(*trees)
        for mine, other in zip(self._counters(), counters, strict=True):
            mine.update(other)
        self.size += numbers[0]
        self.allocated += numbers[1]
        self.holes += numbers[2]
        for what, others in owners.items():
            known = self.owners[what]
            for number, values in others.items():
                _add_owner(known, number, *values)
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


def _add_owners(known: dict[int, list[int]], numbers: array[int], items: Items, whole: tuple[int, int]) -> None:
    """``numbers`` are the owners of ``items``; ``whole``: the bytes of all, and what is allocated for them."""
    rows = items.seen
    if numbers == numbers[:1] * len(numbers):
        _add_owner(known, numbers[0], len(numbers), *whole)
        return
    for number, kind, size, blocks in zip(numbers, items.kinds, rows.size, rows.blocks, strict=True):
        _add_owner(known, number, 1, size if kind == _FILE else 0, blocks * BLOCK)


def _add_owner(known: dict[int, list[int]], number: int, *values: int) -> None:
    row = known.setdefault(number if number in known or len(known) < MOST_OWNERS else OTHERS, [0, 0, 0])
    row[:] = [old + new for old, new in zip(row, values, strict=True)]


def _keep(largest: list[tuple[int, bytes]], each: Any) -> None:
    """Among the ``TOP`` largest, equal ones by their path."""
    insort(largest, each, key=lambda one: (-one[0], one[1]))
    del largest[TOP:]
