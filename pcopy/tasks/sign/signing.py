"""The entries that one rank owns in the signature phases, sorted by directory, the deepest level first.

Each directory of a dataset belongs to the rank that its path determines, so that all of its entries meet on one rank.
Rule: a level starts when the level below it is complete on all ranks; then all entries of its directories are present,
including digested subdirectories. Only a part of the entries is in memory, however many there are.
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
"""Maximum number of entries of one directory in memory, apart from those that a sorter holds."""

Line = tuple[bytes, bytes]
"""Type of a line of the manifest: its sort key, and the packed entry."""

_key = itemgetter(0)
_NONE = Siblings(False, [], b"", [], [], Tally())
"""The children of a directory that does not exist on one side."""
_DEEPEST = 1 << 32
"""Number from which the depth is subtracted in keys, so that the deepest directories are sorted first."""


def _level_key(depth: int) -> bytes:
    """Return the prefix of the keys of all directories of one level."""
    return (_DEEPEST - 1 - depth).to_bytes(4, "big")


Directory = tuple[int, bytes, bytes, Tally]
"""Type of a digested directory: its side, path, digest and tally."""

Difference = tuple[str, bytes]
"""Type of a difference: ``changed``, ``missing`` (on the second side) or ``extra`` (only there), and the path."""


class Digested(NamedTuple):
    """Some digested directories, and the differences found so far. ``rows`` is the number of entries that were
    processed for this.
    """

    directories: list[Directory]
    differences: list[Difference]
    rows: int = 0


class Signing:
    """Digests the directories that one rank owns, level by level, and finds the differences between two sides."""

    def __init__(
        self, algorithm: Algorithm, open_spool: Callable[[], BinaryIO], *, lines: bool = False, compares: bool = False
    ) -> None:
        """Create it without entries.

        Args:
            algorithm: the hash algorithm.
            open_spool: opens a temporary file.
            lines: True if all entries are kept for a manifest.
            compares: True if two sides are compared.
        """
        self._algorithm = algorithm
        self._open_spool = open_spool
        self._found = ExternalSorter(open_spool, SORT_BUDGET)
        self._risen: defaultdict[int, ExternalSorter] = defaultdict(lambda: ExternalSorter(open_spool, SORT_BUDGET))
        """Digested directories of the level below, by the level of their parents."""
        self._sorted: Iterator[KeyValue] | None = None
        self._head: KeyValue | None = None
        self._compares = compares
        self._large: ExternalSorter | None = None
        """The children of the directory that is being digested, if they are too many for memory."""
        self.lines = ExternalSorter(open_spool, SORT_BUDGET) if lines else None
        """The entries for the manifest; None if there is none."""

    def add(self, path: bytes, bundle: Bundle) -> None:
        """Add entries of the directory ``path``."""
        self._found.add(_level_key(depth_of(path)) + path, bundle.packed())

    def add_directories(self, path: bytes, bundle: Bundle) -> None:
        """Add digested directories whose parent is the directory ``path``, which this rank owns."""
        depth = depth_of(path)
        self._risen[depth].add(_level_key(depth) + path, bundle.packed())

    def level(self, depth: int) -> Iterator[Digested]:
        """Digest the directories of ``depth`` on all their sides, and find how the sides differ.

        Several results are yielded for a large directory; the last one contains its digests.
        """
        risen = self._risen.pop(depth, None)
        found = self._level_found(depth)
        merged = heapq.merge(found, risen.sorted(), key=_key) if risen else found
        for key, records in groupby(merged, _key):
            yield from self._digest(key[4:], (Bundle.unpacked(packed) for _, packed in records))
        if risen:
            risen.close()

    def _level_found(self, depth: int) -> Iterator[KeyValue]:
        """Yield the records of one level that were added by ``add``."""
        if self._sorted is None:
            self._sorted = self._found.sorted()
            self._head = next(self._sorted, None)
        level = _level_key(depth)
        while self._head is not None and self._head[0][:4] == level:
            yield self._head
            self._head = next(self._sorted, None)

    def _digest(self, path: bytes, bundles: Iterator[Bundle]) -> Iterator[Digested]:
        """Digest one directory from its bundles."""
        digested = _Directory(self._algorithm, path)
        bundles_in_memory: list[Bundle] = []
        rows = 0
        for bundle in bundles:
            bundles_in_memory.append(bundle)
            rows += bundle.number
            if rows > ROWS_AT_ONCE:
                break
        else:
            differences = self._take(digested, bundles_in_memory)
            yield Digested(digested.all_sides(), differences, rows)
            return
        self._large = ExternalSorter(self._open_spool, SORT_BUDGET)
        for bundle in chain(bundles_in_memory, bundles):
            for row in bundle.rows():
                self._large.add(*row)
            yield Digested([], [], bundle.number)
        for batch in in_batches(self._large.sorted(), ROWS_AT_ONCE):
            yield Digested([], self._take(digested, batch), sum(bundle.number for bundle in batch))
        self._large.close()
        self._large = None
        yield Digested(digested.all_sides(), [])

    def _take(self, digested: _Directory, bundles: list[Bundle]) -> list[Difference]:
        """Add the next children of a directory, on all sides. Return how the sides differ in them."""
        sides = {bundle.side for bundle in bundles}
        children = {side: Siblings.of([bundle for bundle in bundles if bundle.side == side]) for side in sides}
        hashed = {side: digested.take(side, merged) for side, merged in children.items()}
        if self.lines is not None:
            merged = children[0]
            for path, kind, digest, size in zip(
                digested.paths(merged.names), merged.kinds, merged.digests, merged.sizes, strict=True
            ):
                self.lines.add(*pack(Entry(bytes((kind,)), digest, size, path)))
        if self._compares and not (len(hashed) > 1 and hashed[0] == hashed[1]):
            return list(_compared(digested, children))
        return []

    def close(self) -> None:
        """Release the temporary files."""
        for sorter in (self._found, self.lines, self._large, *self._risen.values()):
            if sorter is not None:
                sorter.close()


class _Directory:
    """One directory on all sides that have it, or a dataset that is a single item."""

    def __init__(self, algorithm: Algorithm, path: bytes) -> None:
        self._algorithm = algorithm
        self._path = path
        self._hashers: dict[int, DirectoryHasher] = {}
        self._tallies: dict[int, Tally] = {}
        self._items: list[Directory] = []

    def paths(self, names: list[bytes]) -> list[bytes]:
        """Return the paths of children."""
        return [b"%b/%b" % (self._path, name) for name in names] if self._path else names

    def take(self, side: int, children: Siblings) -> bytes:
        """Add the next children of one side. Return the bytes that determine their part of the digest, for comparing
        the sides.
        """
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
        """Return the digests on all sides, after all children were added."""
        directories = [
            (side, self._path, hasher.digest(), self._tallies[side]) for side, hasher in self._hashers.items()
        ]
        return self._items + directories


class Merging:
    """Merges the lines of all ranks on rank 0, in order, into the file of the manifest."""

    def __init__(self, writer: ManifestWriter, ranks: int) -> None:
        self._writer = writer
        self._parts: list[deque[Line]] = [deque() for _ in range(ranks)]
        self._ended = [False] * ranks
        self._heads: list[tuple[Line, int]] = []
        self._missing = set(range(ranks))
        """Ranks of which no line is in memory, although they may have more."""
        self._asked: set[int] = set()
        """Ranks from which a part was requested that has not arrived."""

    def take(self, rank: int, rows: tuple[Line, ...], last: bool) -> None:
        """Add the requested part of the lines of ``rank``."""
        self._parts[rank].extend(rows)
        self._ended[rank] = last
        self._missing.discard(rank)
        self._asked.discard(rank)
        self._next_of(rank)

    def _next_of(self, rank: int) -> None:
        """Move the next line of ``rank`` into the heap, or record that its next part is needed."""
        if self._parts[rank]:
            heapq.heappush(self._heads, (self._parts[rank].popleft(), rank))
        elif not self._ended[rank]:
            self._missing.add(rank)

    def write(self) -> Iterator[None]:
        """Write lines in order until a rank must be asked for more; yield after each line."""
        while self._heads and not self._missing:
            line, rank = heapq.heappop(self._heads)
            self._next_of(rank)
            self._writer.write(unpack(*line))
            yield

    def to_ask(self) -> list[int]:
        """Return the ranks whose next part is needed and was not requested."""
        ranks = sorted(self._missing - self._asked)
        self._asked.update(ranks)
        return ranks

    @property
    def is_done(self) -> bool:
        """True if all lines were written."""
        return not self._heads and not self._missing

    def finish(self) -> None:
        """Complete the file and rename it to its final name."""
        self._writer.__exit__(None, None, None)

    def abandon(self) -> None:
        """Remove the incomplete file. An existing manifest remains unchanged."""
        error = InterruptedError()
        self._writer.__exit__(type(error), error, None)


class SignState:
    """The state of one rank in the signature phases."""

    def __init__(self, rank: Rank) -> None:
        job = rank.job
        compares = not job.copies and (len(job.roots) > 1 or bool(job.against))
        lines = bool(job.options.manifest)
        self.signing = Signing(rank.hashing.algorithm, rank.open_spool, lines=lines, compares=compares)
        """The directories that this rank owns, from the phase SIGN on."""
        self.level: Iterator[Digested] | None = None
        """The level that is being digested; None between levels."""
        self.sorted_lines: Iterator[Line] | None = None
        """The lines of this rank for the manifest that rank 0 has not requested yet."""
        self.signatures: dict[int, tuple[bytes, Tally]] = {}
        """On rank 0: digest and contents of the dataset on each side."""
        self.differences = ExternalSorter(rank.open_spool)
        """On rank 0: the differences, sorted by path."""
        self.merging: Merging | None = None
        """On rank 0: the manifest while it is written."""
        self.unwritten: Exception | None = None
        """On rank 0: the error because of which the manifest could not be written."""

    def close(self) -> None:
        """Release everything, and remove an incomplete manifest."""
        if self.merging is not None:
            self.merging.abandon()
            self.merging = None
        self.signing.close()
        self.differences.close()


def _compared(directory: _Directory, children: dict[int, Siblings]) -> Iterator[Difference]:
    """Yield the differences between the two sides in some children of a directory.

    A directory that exists on both sides is no difference itself: the differences in it are found with its own entries.
    """
    first, second = (
        {
            path: (kind, b"" if kind == DIRECTORY[0] else digest)
            for path, kind, digest in zip(directory.paths(merged.names), merged.kinds, merged.digests, strict=True)
        }
        for merged in (children.get(side, _NONE) for side in (0, 1))
    )
    for path in {**first, **second}:
        if path == ROOT and (
            path not in first or path not in second
        ):  # One dataset is a single item, the other a directory.
            yield "changed", path
        elif path not in second:
            yield "missing", path
        elif path not in first:
            yield "extra", path
        elif first[path] != second[path]:
            yield "changed", path
