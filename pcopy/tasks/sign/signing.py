"""What one rank holds in the sign phase: the entries of the directories that it owns, sorted, the deepest level first.

Each directory of a dataset belongs to the rank that its path chooses, so that all of its entries meet there and nowhere
else. Rule: a level is begun when the one below it is over on every rank; then all entries of its directories are there,
subdirectories with their digests among them. Memory holds a part of the entries only, however many there are.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from itertools import chain, groupby
from operator import itemgetter
from typing import BinaryIO

from pcopy.named import NamedTuple
from pcopy.signature.algorithms import Algorithm
from pcopy.signature.items import DIRECTORY, ROOT, DirectoryHasher
from pcopy.signature.manifest import Entry, ManifestWriter, pack, unpack
from pcopy.signature.sorting import ExternalSorter, KeyValue
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.spreading import depth_of
from pcopy.tasks.sign.children import Bundle, Siblings, Tally, in_batches, total

SORT_BUDGET = 8 << 20
"""Bytes of memory for each of the four sorters of a rank."""

ROWS_AT_ONCE = 4096
"""Entries of one directory that are in memory at once, but for those that a sorter holds."""

Line = tuple[bytes, bytes]
"""The key that lines are sorted by, and the packed entry."""

_key = itemgetter(0)
_NONE = Siblings(False, [], b"", [], [], Tally())
_DEEPEST = 1 << 32
"""A level is taken from it, so that the deepest directories are sorted first."""


def _level_key(depth: int) -> bytes:
    """What the keys of all directories of a level begin with."""
    return (_DEEPEST - 1 - depth).to_bytes(4, "big")


Directory = tuple[int, bytes, bytes, Tally]
"""A digested directory: its side, path, digest and tally."""

Difference = tuple[str, bytes]
"""What (changed, missing on the second side, or extra: there only), and the path."""


class Digested(NamedTuple):
    """Directories of which all is known, and differences found on the way; ``rows`` were looked at for this."""

    directories: list[Directory]
    differences: list[Difference]
    rows: int = 0


class Signing:
    def __init__(
        self, algorithm: Algorithm, open_spool: Callable[[], BinaryIO], *, lines: bool = False, compares: bool = False
    ) -> None:
        """``lines``: all entries are kept for a manifest. ``compares``: the two sides are compared."""
        self._algorithm = algorithm
        self._open_spool = open_spool
        self._found = ExternalSorter(open_spool, SORT_BUDGET)
        self._risen: defaultdict[int, ExternalSorter] = defaultdict(lambda: ExternalSorter(open_spool, SORT_BUDGET))
        """What belongs to a level, and has come from the one below it."""
        self._sorted: Iterator[KeyValue] | None = None
        self._head: KeyValue | None = None
        self._compares = compares
        self._large: ExternalSorter | None = None
        """The children of the directory that is digested now, if they are many."""
        self.lines = ExternalSorter(open_spool, SORT_BUDGET) if lines else None

    def add(self, path: bytes, bundle: Bundle) -> None:
        """Entries of the directory ``path``."""
        self._found.add(_level_key(depth_of(path)) + path, bundle.packed())

    def add_directories(self, path: bytes, bundle: Bundle) -> None:
        """Digested directories that lie in the directory ``path``, which is this rank's."""
        depth = depth_of(path)
        self._risen[depth].add(_level_key(depth) + path, bundle.packed())

    def level(self, depth: int) -> Iterator[Digested]:
        """The directories of ``depth``, each with all sides that it is on, and how these differ.

        Of a large directory there are several parts, of which the last one has its digests.
        """
        risen = self._risen.pop(depth, None)
        found = self._level_found(depth)
        merged = heapq.merge(found, risen.sorted(), key=_key) if risen else found
        for key, records in groupby(merged, _key):
            yield from self._digest(key[4:], (Bundle.unpacked(packed) for _, packed in records))
        if risen:
            risen.close()

    def _level_found(self, depth: int) -> Iterator[KeyValue]:
        if self._sorted is None:
            self._sorted = self._found.sorted()
            self._head = next(self._sorted, None)
        level = _level_key(depth)
        while self._head is not None and self._head[0][:4] == level:
            yield self._head
            self._head = next(self._sorted, None)

    def _digest(self, path: bytes, bundles: Iterator[Bundle]) -> Iterator[Digested]:
        digested = _Directory(self._algorithm, path)
        held: list[Bundle] = []
        rows = 0
        for bundle in bundles:
            held.append(bundle)
            rows += bundle.number
            if rows > ROWS_AT_ONCE:
                break
        else:
            differences = self._take(digested, held)
            yield Digested(digested.all_sides(), differences, rows)
            return
        self._large = ExternalSorter(self._open_spool, SORT_BUDGET)
        for bundle in chain(held, bundles):
            for row in bundle.rows():
                self._large.add(*row)
            yield Digested([], [], bundle.number)
        for batch in in_batches(self._large.sorted(), ROWS_AT_ONCE):
            yield Digested([], self._take(digested, batch), sum(bundle.number for bundle in batch))
        self._large.close()
        self._large = None
        yield Digested(digested.all_sides(), [])

    def _take(self, digested: _Directory, bundles: list[Bundle]) -> list[Difference]:
        """The next children of a directory, on all sides; returns how these differ."""
        sides = {bundle.side for bundle in bundles}
        children = {side: Siblings.of([bundle for bundle in bundles if bundle.side == side]) for side in sides}
        taken = {side: digested.take(side, some) for side, some in children.items()}
        if self.lines is not None:
            some = children[0]
            for path, kind, digest, size in zip(
                digested.paths(some.names), some.kinds, some.digests, some.sizes, strict=True
            ):
                self.lines.add(*pack(Entry(bytes((kind,)), digest, size, path)))
        if self._compares and not (len(taken) > 1 and taken[0] == taken[1]):
            return list(_compared(digested, children))
        return []

    def close(self) -> None:
        for sorter in (self._found, self.lines, self._large, *self._risen.values()):
            if sorter is not None:
                sorter.close()


class _Directory:
    """One directory, or the dataset that is one item, on all sides on which it is."""

    def __init__(self, algorithm: Algorithm, path: bytes) -> None:
        self._algorithm = algorithm
        self._path = path
        self._hashers: dict[int, DirectoryHasher] = {}
        self._tallies: dict[int, Tally] = {}
        self._items: list[Directory] = []

    def paths(self, names: list[bytes]) -> list[bytes]:
        return [b"%b/%b" % (self._path, name) for name in names] if self._path else names

    def take(self, side: int, children: Siblings) -> bytes:
        """The next children of one side; returns what their digests are made from."""
        if children.names == [ROOT]:
            digest = children.digests[0]
            self._items.append((side, self._path, digest, children.tally))
            return children.kinds + digest
        if children.is_there:
            self._hashers[side] = DirectoryHasher(self._algorithm)
            self._tallies[side] = Tally()
        self._tallies[side] = total((self._tallies[side], children.tally))
        return self._hashers[side].add_all(children.kinds, children.names, children.digests)

    def all_sides(self) -> list[Directory]:
        """Once all children were taken."""
        done = [(side, self._path, hasher.digest(), self._tallies[side]) for side, hasher in self._hashers.items()]
        return self._items + done


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


def _compared(directory: _Directory, children: dict[int, Siblings]) -> Iterator[Difference]:
    """How the two sides differ; in which items of a directory they do is told where its entries are."""
    one, other = (
        {
            path: (kind, b"" if kind == DIRECTORY[0] else digest)
            for path, kind, digest in zip(directory.paths(some.names), some.kinds, some.digests, strict=True)
        }
        for some in (children.get(side, _NONE) for side in (0, 1))
    )
    for path in {**one, **other}:
        if path == ROOT and (path not in one or path not in other):  # the other dataset is a directory
            yield "changed", path
        elif path not in other:
            yield "missing", path
        elif path not in one:
            yield "extra", path
        elif one[path] != other[path]:
            yield "changed", path
