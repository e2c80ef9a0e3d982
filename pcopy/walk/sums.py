"""What a walk has found, summed up in bounded memory: by type, size, age, depth, owner; the largest; what is unusual.

Each rank sums up what it finds, and rank 0 merges what all of them say. A file with several names counts with each.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
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

_FILE, _LINK, _DIRECTORY = ord("f"), ord("l"), ord("d")


class WalkSums:
    """Of one rank, or of all. ``now``: ages count back from it, in nanoseconds since 1970."""

    MASK = MODE | LINKS | OWNER | GROUP | SIZE | BLOCKS | ATIME | MTIME

    def __init__(self, now: int) -> None:
        self._now = now
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
        """Items of one directory, all of which have the columns of ``MASK``."""
        rows, kinds = items.seen, items.kinds
        for kind in set(kinds):
            self.types[TYPES[kind]] += kinds.count(kind)
        self.depths[min(depth, DEEPEST)] += len(kinds)
        self.allocated += BLOCK * sum(rows.blocks)
        self._add_owners(self.owners["users"], rows.uid, items)
        self._add_owners(self.owners["groups"], rows.gid, items)
        self._add_names(items)
        columns = zip(kinds, rows.mode, rows.links, rows.size, rows.blocks, rows.mtime, rows.atime, strict=True)
        for row, (kind, mode, links, size, blocks, mtime, atime) in enumerate(columns):
            if mode & 0o2 and kind != _LINK and not (kind == _DIRECTORY and mode & 0o1000):
                self.unusual["world_writable"] += 1
            if mtime > self._now:
                self.unusual["future"] += 1
            if kind == _FILE:
                self._add_file(items, row, (mode, links, size, blocks, mtime, atime))

    def _add_file(self, items: Items, row: int, of: tuple[int, ...]) -> None:
        mode, links, size, blocks, mtime, atime = of
        power, age = size.bit_length(), self._age(mtime)
        self.size += size
        self.sizes[power] += 1
        self.size_bytes[power] += size
        self.ages["mtime"][age] += 1
        self.ages["mtime_bytes"][age] += size
        self.ages["atime"][self._age(atime)] += 1
        if mode & 0o6000:
            self.unusual["set_id"] += 1
        if links > 1:
            self.unusual["hard_linked"] += 1
        if blocks * BLOCK < size:
            self.unusual["sparse"] += 1
            self.holes += size - blocks * BLOCK
        if len(self._files) < TOP or size > self._files[0][0]:
            _keep(self._files, (size, items.above + items.names[row]))

    def _age(self, moment: int) -> int:
        days = (self._now - moment) // _DAY
        return 0 if moment > self._now else 1 + sum(days >= limit for limit in AGES)

    def _add_owners(self, known: dict[int, list[int]], numbers: Sequence[int], items: Items) -> None:
        rows = items.seen
        for number, kind, size, blocks in zip(numbers, items.kinds, rows.size, rows.blocks, strict=True):
            row = known.get(number)
            if row is None:
                row = known.setdefault(number if len(known) < MOST_OWNERS else OTHERS, [0, 0, 0])
            row[0] += 1
            row[1] += size if kind == _FILE else 0
            row[2] += blocks * BLOCK

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


def _keep(heap: list[tuple[int, bytes]], each: Any) -> None:
    if len(heap) < TOP:
        heapq.heappush(heap, each)
    else:
        heapq.heappushpop(heap, each)
