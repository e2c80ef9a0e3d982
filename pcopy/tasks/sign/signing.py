"""What one rank holds in the sign phase: the entries of the directories that it owns, sorted, the deepest level first.

Each directory of a dataset belongs to the rank that its path chooses, so that all of its entries meet there and nowhere
else. Rule: a level is begun when the one below it is over on every rank; then all entries of its directories are there,
subdirectories with their digests among them. Memory holds a part of the entries only, however many there are.
"""

from __future__ import annotations

import heapq
import struct
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import add
from typing import BinaryIO, NamedTuple

from pcopy.signature.algorithms import Algorithm
from pcopy.signature.items import DIRECTORY, FILE, SYMLINK, DirectoryHasher
from pcopy.signature.manifest import ROOT, Entry, ManifestWriter, pack, unpack
from pcopy.signature.sorting import ExternalSorter
from pcopy.tasks.base.rank import Rank

SORT_BUDGET = 8 << 20
"""Bytes of memory for each of the three sorters of a rank."""

ROWS_AT_ONCE = 2048
"""Entries of one directory between two looks up from the work."""

Line = tuple[bytes, bytes]
"""The key that lines are sorted by, and the packed entry."""

_DEEPEST = 1 << 32
"""A level is taken from it, so that the deepest directories are sorted first."""
_ROW = struct.Struct(">cIQB")  # type, round, size, bytes of the digest
_TALLY = struct.Struct(">5Q")
_COLUMNS = {FILE: 0, DIRECTORY: 1, SYMLINK: 2}  # of a tally
_SPECIAL = 3
"""The column of a tally for all other types."""
_BYTES = 4
"""That of the sizes."""
_NAME_FOLLOWS = b"\0\0"  # no path has an empty name in it


class Tally(NamedTuple):
    """What a dataset holds: numbers of items, the root among the directories, and the bytes of its files."""

    files: int = 0
    directories: int = 0
    symlinks: int = 0
    special: int = 0
    bytes: int = 0


class Row(NamedTuple):
    """An entry as it is sorted; that of a digested directory has the ``tally`` of all below it and itself."""

    kind: bytes
    round: int
    size: int
    digest: bytes
    tally: Tally | None = None

    def packed(self) -> bytes:
        tally = _TALLY.pack(*self.tally) if self.tally else b""
        return _ROW.pack(self.kind, self.round, self.size, len(self.digest)) + self.digest + tally

    def count_in(self, sums: list[int]) -> None:
        if self.tally is None:
            sums[_COLUMNS.get(self.kind, _SPECIAL)] += 1
            sums[_BYTES] += self.size if self.kind == FILE else 0
        else:
            sums[:] = map(add, sums, self.tally)

    @classmethod
    def unpacked(cls, value: bytes) -> Row:
        kind, round_, size, length = _ROW.unpack_from(value)
        end = _ROW.size + length
        tally = Tally(*_TALLY.unpack_from(value, end)) if len(value) > end else None
        return cls(kind, round_, size, value[_ROW.size : end], tally)


def depth_of(path: bytes) -> int:
    """How many names the path of a directory has; the root's (``b""``) has none."""
    return path.count(b"/") + 1 if path else 0


def owner_of(path: bytes, size: int) -> int:
    """The rank that digests the directory ``path``, whichever side it is on."""
    return zlib.crc32(path) % size


def _directory_key(path: bytes) -> bytes:
    """What the keys of all entries of the directory ``path`` begin with."""
    level = (_DEEPEST - 1 - depth_of(path)).to_bytes(4, "big")
    return level + path.replace(b"/", b"\0") + _NAME_FOLLOWS


def _side_key(side: int) -> bytes:
    """What the keys of all entries of one side end with."""
    return bytes((0, side))


Directory = tuple[int, bytes, bytes, Tally]
"""A digested directory: its side, path, digest and tally."""

Difference = tuple[str, bytes]
"""What (changed, missing on the second side, or extra: there only), and the path."""


class Digested(NamedTuple):
    """Directories of which all is known, and differences found on the way."""

    directories: list[Directory]
    differences: list[Difference]


class Signing:
    def __init__(
        self, algorithm: Algorithm, open_spool: Callable[[], BinaryIO], *, lines: bool = False, compares: bool = False
    ) -> None:
        """``lines``: all entries are kept for a manifest. ``compares``: the two sides are compared."""
        self._algorithm = algorithm
        self._found = ExternalSorter(open_spool, SORT_BUDGET)
        self._risen: defaultdict[int, ExternalSorter] = defaultdict(lambda: ExternalSorter(open_spool, SORT_BUDGET))
        """What belongs to a level, and has come from the one below it."""
        self._sorted: Iterator[tuple[bytes, bytes]] | None = None
        self._head: tuple[bytes, bytes] | None = None
        self._compares = compares
        self.lines = ExternalSorter(open_spool, SORT_BUDGET) if lines else None

    def add(self, side: int, path: bytes, rows: Iterable[tuple[bytes, Row]]) -> None:
        """Entries of the directory ``path``, with their names; with an empty one that directory itself."""
        begin, end = _directory_key(path), _side_key(side)
        for name, row in rows:
            self._found.add(begin + name + end, row.packed())

    def add_directory(self, side: int, path: bytes, packed: bytes) -> None:
        """The digest of the directory ``path``, which lies in a directory of this rank's."""
        around, _, name = path.rpartition(b"/")
        self._risen[depth_of(around)].add(_directory_key(around) + name + _side_key(side), packed)

    def level(self, depth: int) -> Iterator[Digested]:
        """The directories of ``depth``, each with all sides that it is on, and how these differ.

        Of a large directory there are several parts, of which the last one has its digests.
        """
        risen = self._risen.pop(depth, None)
        found = self._level_found(depth)
        merged = heapq.merge(found, risen.sorted()) if risen else found
        for path, rows in groupby(merged, _path_of):
            yield from self._digest(path.replace(b"\0", b"/"), rows)
        if risen:
            risen.close()

    def _level_found(self, depth: int) -> Iterator[tuple[bytes, bytes]]:
        if self._sorted is None:
            self._sorted = self._found.sorted()
            self._head = next(self._sorted, None)
        level = (_DEEPEST - 1 - depth).to_bytes(4, "big")
        while self._head is not None and self._head[0][:4] == level:
            yield self._head
            self._head = next(self._sorted, None)

    def _digest(self, path: bytes, rows: Iterator[tuple[bytes, bytes]]) -> Iterator[Digested]:
        hashers: dict[int, DirectoryHasher] = {}
        tallies: dict[int, list[int]] = {}
        done = Digested([], [])
        for number, (name, group) in enumerate(groupby(rows, _name_of), 1):
            sides = _latest(group)
            if not name:
                for side in sides:
                    hashers[side] = DirectoryHasher(self._algorithm)
                    tallies[side] = [*Tally(directories=1)]
                continue
            child = path + b"/" + name if path else name
            for side, row in sides.items():
                if name == ROOT:  # the dataset is this one item
                    alone = [*Tally()]
                    row.count_in(alone)
                    done.directories.append((side, path, row.digest, Tally(*alone)))
                else:
                    hashers[side].add(row.kind, name, row.digest)
                    row.count_in(tallies[side])
            if self.lines is not None:
                self.lines.add(*pack(Entry(sides[0].kind, sides[0].digest, sides[0].size, child)))
            if self._compares:
                done.differences.extend(_compared(child, sides))
            if not number % ROWS_AT_ONCE:
                yield done
                done = Digested([], [])
        for side, hasher in hashers.items():
            done.directories.append((side, path, hasher.digest(), Tally(*tallies[side])))
        yield done

    def close(self) -> None:
        for sorter in (self._found, self.lines, *self._risen.values()):
            if sorter is not None:
                sorter.close()


class Merging:
    """The parts that rank 0 has of all ``ranks``, on their way into the file."""

    def __init__(self, writer: ManifestWriter, ranks: int) -> None:
        self._writer = writer
        self._parts: list[deque[Line]] = [deque() for _ in range(ranks)]
        self._ended = [False] * ranks
        self._heads: list[tuple[Line, int]] = []
        self._missing = set(range(ranks))
        self._asked: set[int] = set()

    def take(self, rank: int, rows: tuple[Line, ...], last: bool) -> None:
        """The part that was asked of ``rank``."""
        self._parts[rank].extend(rows)
        self._ended[rank] = last
        self._missing.discard(rank)
        self._asked.discard(rank)
        self._next_of(rank)

    def _next_of(self, rank: int) -> None:
        if self._parts[rank]:
            heapq.heappush(self._heads, (self._parts[rank].popleft(), rank))
        elif not self._ended[rank]:
            self._missing.add(rank)

    def write(self) -> Iterator[None]:
        """Writes the lines that are the next of all, until a rank must be asked for more."""
        while self._heads and not self._missing:
            line, rank = heapq.heappop(self._heads)
            self._next_of(rank)
            self._writer.write(unpack(*line))
            yield

    def to_ask(self) -> list[int]:
        """The ranks whose next part is wanted and has not been asked for."""
        ranks = sorted(self._missing - self._asked)
        self._asked.update(ranks)
        return ranks

    @property
    def is_done(self) -> bool:
        return not self._heads and not self._missing

    def finish(self) -> None:
        """Gives the file its name."""
        self._writer.__exit__(None, None, None)

    def abandon(self) -> None:
        """Leaves the old file, if there was one."""
        error = InterruptedError()
        self._writer.__exit__(type(error), error, None)


class SignState:
    def __init__(self, rank: Rank) -> None:
        job = rank.job
        compares = not job.copies and (len(job.roots) > 1 or bool(job.against))
        lines = bool(job.options.manifest)
        self.signing = Signing(rank.hashing.algorithm, rank.open_spool, lines=lines, compares=compares)
        """This rank's directories, from the sign phase on."""
        self.level: Iterator[Digested] | None = None
        """The level that is digested now."""
        self.sorted_lines: Iterator[Line] | None = None
        """The manifest's lines of this rank that rank 0 has not asked for yet."""
        self.signatures: dict[int, tuple[bytes, Tally]] = {}
        """At rank 0: each side's digest and what it holds."""
        self.differences = ExternalSorter(rank.open_spool)
        """At rank 0: what differs, by the order of paths."""
        self.merging: Merging | None = None
        self.unwritten: Exception | None = None
        """At rank 0: why the manifest could not be written."""

    def close(self) -> None:
        """Forgets everything, and leaves a manifest that is not complete unwritten."""
        if self.merging is not None:
            self.merging.abandon()
            self.merging = None
        self.signing.close()
        self.differences.close()


def _path_of(record: tuple[bytes, bytes]) -> bytes:
    return record[0][4 : record[0].index(_NAME_FOLLOWS, 4)]


def _name_of(record: tuple[bytes, bytes]) -> bytes:
    return record[0][record[0].index(_NAME_FOLLOWS, 4) + 2 : -2]


def _latest(group: Iterator[tuple[bytes, bytes]]) -> dict[int, Row]:
    """Each side's row; of several that of the last round."""
    sides: dict[int, Row] = {}
    for key, value in group:
        side, row = key[-1], Row.unpacked(value)
        if side not in sides or row.round >= sides[side].round:
            sides[side] = row
    return sides


def _compared(path: bytes, sides: dict[int, Row]) -> list[Difference]:
    if len(sides) == 1:
        if path == ROOT:  # the other dataset is a directory
            return [("changed", path)]
        return [("missing" if 0 in sides else "extra", path)]
    one, other = sides[0], sides[1]
    if one.kind != other.kind or (one.kind != DIRECTORY and one.digest != other.digest):
        return [("changed", path)]
    return []  # directories: what differs in them is told where their entries are
