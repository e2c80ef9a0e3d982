"""The entries (items with type, size and digest) of the directories that one rank owns in the signature phases, sorted
by directory, the deepest level first.

Each directory of a dataset is owned by the rank that its path determines, so that all of its entries are sent to one
rank. Rule: a level (all directories of one depth) starts when the level below it is complete on all ranks. Then all
entries of its directories are present, including digested sub-directories. Only some of the entries are in memory,
however many there are.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from itertools import chain, groupby
from operator import itemgetter
from typing import BinaryIO

from pcopy.fast_named_tuple import NamedTuple
from pcopy.signature.algorithms import DigestAlgorithm
from pcopy.signature.items import DIRECTORY, ROOT_PATH, DirectoryHasher
from pcopy.signature.manifest import ManifestEntry, ManifestWriter, pack_manifest_entry, unpack_manifest_entry
from pcopy.signature.sorting import ExternalSorter, SortRecord
from pcopy.tasks.base.distribution import directory_depth
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.sign.children import (
    DatasetCounts,
    DirectoryChildBundle,
    MergedDirectoryChildren,
    bundle_of_directories,
    bundles_from_records,
    sum_of_counts,
)

SORT_MEMORY_BYTES = 8 << 20
"""Bytes of memory for each of the four sorters of a rank. What does not fit goes to temporary files."""

MAX_ENTRIES_IN_MEMORY = 4096
"""Maximum number of entries of one directory that are processed in memory. A directory with more is sorted in a
temporary file.
"""

ManifestLine = tuple[bytes, bytes]
"""Type of a line of the manifest: its sort key, and the packed entry."""

_record_key = itemgetter(0)
_NO_CHILDREN = MergedDirectoryChildren(False, [], b"", [], [], DatasetCounts())
"""The children of a directory that does not exist on one side."""
_DEPTH_ORIGIN = 1 << 32
"""A number greater than any depth. The depth is subtracted from it to make keys by which the deepest directories sort
first.
"""


def _level_sort_key(depth: int) -> bytes:
    """Return the beginning of the sort keys of all directories of one ``depth``."""
    return (_DEPTH_ORIGIN - 1 - depth).to_bytes(4, "big")


def _depth_in_sort_key(key: bytes) -> int:
    """Return the depth of the directory whose sort key is ``key``."""
    return _DEPTH_ORIGIN - 1 - int.from_bytes(key[:4], "big")


DigestedDirectory = tuple[int, bytes, bytes, DatasetCounts]
"""Type of a digested directory: its side, path, digest, and what it contains."""

DatasetDifference = tuple[str, bytes]
"""Type of a difference between the two sides: what it is (``changed``; ``missing`` on the second side; or ``extra``,
only there), and the path.
"""


class DigestResult(NamedTuple):
    """Some directories that were digested, and differences that were found between the two sides. ``rows`` is the
    number of entries that were processed to get them.
    """

    directories: list[DigestedDirectory]
    differences: list[DatasetDifference]
    rows: int = 0


class DirectoryDigester:
    """Computes the digests of the directories that one rank owns, level by level (all directories of one depth), and
    finds the differences between two sides.

    A side is a dataset: 0, or 1 for the second of two datasets that are compared.
    """

    def __init__(
        self,
        algorithm: DigestAlgorithm,
        open_spool: Callable[[], BinaryIO],
        *,
        manifest_lines: bool = False,
        compares: bool = False,
    ) -> None:
        """Initialise the object without entries.

        Args:
            algorithm: the hash algorithm.
            open_spool: opens a temporary file.
            manifest_lines: True if the entries are also kept for a manifest.
            compares: True if two sides are compared.
        """
        self._algorithm = algorithm
        self._open_spool = open_spool
        self._entries = ExternalSorter(open_spool, SORT_MEMORY_BYTES)
        self._digested_children: defaultdict[int, ExternalSorter] = defaultdict(
            lambda: ExternalSorter(open_spool, SORT_MEMORY_BYTES)
        )
        """Digested directories of the level below, to be used as children of their parents. The key is the depth of the
        parents.
        """
        self._sorted: Iterator[SortRecord] | None = None
        self._next_record: SortRecord | None = None
        self._compares = compares
        self._large_directory: ExternalSorter | None = None
        """The children of the directory that is being digested, in a temporary file; None if they fit in memory."""
        self.manifest_lines = ExternalSorter(open_spool, SORT_MEMORY_BYTES) if manifest_lines else None
        """The entries for the manifest; None if no manifest is written."""

    def add(self, path: bytes, bundle: DirectoryChildBundle) -> None:
        """Add the entries in ``bundle`` (items with their digests) of the directory ``path``. All entries must be added
        before the first call of ``digest_directories_of_depth``.
        """
        self._entries.add(_level_sort_key(directory_depth(path)) + path, bundle.bundle_as_bytes())

    def add_directories(self, path: bytes, bundle: DirectoryChildBundle) -> None:
        """Add the directories in ``bundle``, which have been digested. Their parent is the directory ``path``, which
        this rank owns.
        """
        depth = directory_depth(path)
        self._digested_children[depth].add(_level_sort_key(depth) + path, bundle.bundle_as_bytes())

    def digest_directories_of_depth(self, depth: int) -> Iterator[DigestResult]:
        """Digest the directories of this ``depth`` on all sides, and find how the sides differ.

        A large directory yields several results; only the last one contains its digests.
        """
        risen = self._digested_children.pop(depth, None)
        found = self._entries_of_level(depth)
        merged = heapq.merge(found, risen.sorted(), key=_record_key) if risen else found
        for key, records in groupby(merged, _record_key):
            yield from self._digest_directory(
                key[4:], (DirectoryChildBundle.bundle_from_bytes(packed) for _, packed in records)
            )
        if risen:
            risen.close()

    def digest_directories_from_depth(self, depth: int) -> Iterator[DigestResult]:
        """Digest the directories of this ``depth`` and all directories below them, the deepest first. This rank must
        own all of these. The results contain only the directories of this ``depth``.
        """
        self._sorted_entries()
        deepest = depth if self._next_record is None else _depth_in_sort_key(self._next_record[0])
        for level in range(deepest, depth, -1):
            for digested in self.digest_directories_of_depth(level):
                for side, path, digest, tally in digested.directories:
                    parent, _, name = path.rpartition(b"/")
                    self.add_directories(parent, bundle_of_directories(side, [(name, digest, tally)]))
                yield digested._replace(directories=[])
        yield from self.digest_directories_of_depth(depth)

    def _sorted_entries(self) -> Iterator[SortRecord]:
        """Return the iterator over all sorted entries but ``_next_record``, which comes before them."""
        if self._sorted is None:
            self._sorted = self._entries.sorted()
            self._next_record = next(self._sorted, None)
        return self._sorted

    def _entries_of_level(self, depth: int) -> Iterator[SortRecord]:
        """Generator: yield the sorted records that were added by ``add`` for the directories of one ``depth``: the
        entries of all items but sub-directories.
        """
        records, level = self._sorted_entries(), _level_sort_key(depth)
        while self._next_record is not None and self._next_record[0][:4] == level:
            yield self._next_record
            self._next_record = next(records, None)

    def _digest_directory(self, path: bytes, bundles: Iterator[DirectoryChildBundle]) -> Iterator[DigestResult]:
        """Generator: digest the directory ``path``, whose entries are in ``bundles``, and yield the results."""
        digested = _DigestedDirectoryBySide(self._algorithm, path)
        bundles_in_memory: list[DirectoryChildBundle] = []
        rows = 0
        for bundle in bundles:
            bundles_in_memory.append(bundle)
            rows += bundle.child_count
            if rows > MAX_ENTRIES_IN_MEMORY:
                break
        else:
            differences = self._add_children(digested, bundles_in_memory)
            yield DigestResult(digested.directory_with_digests(), differences, rows)
            return
        self._large_directory = ExternalSorter(self._open_spool, SORT_MEMORY_BYTES)
        for bundle in chain(bundles_in_memory, bundles):
            for row in bundle.sortable_records():
                self._large_directory.add(*row)
            yield DigestResult([], [], bundle.child_count)
        for batch in bundles_from_records(self._large_directory.sorted(), MAX_ENTRIES_IN_MEMORY):
            yield DigestResult([], self._add_children(digested, batch), sum(bundle.child_count for bundle in batch))
        self._large_directory.close()
        self._large_directory = None
        yield DigestResult(digested.directory_with_digests(), [])

    def _add_children(
        self, digested: _DigestedDirectoryBySide, bundles: list[DirectoryChildBundle]
    ) -> list[DatasetDifference]:
        """Add children to the directory ``digested``, on all sides. ``bundles`` contain all entries of some names.
        Return the differences between the sides in these names.
        """
        sides = {bundle.side for bundle in bundles}
        children = {
            side: MergedDirectoryChildren.from_bundles([bundle for bundle in bundles if bundle.side == side])
            for side in sides
        }
        hashed = {side: digested.add_children(side, merged) for side, merged in children.items()}
        if self.manifest_lines is not None:
            merged = children[0]
            for path, kind, digest, size in zip(
                digested.child_paths(merged.names), merged.kinds, merged.digests, merged.sizes, strict=True
            ):
                self.manifest_lines.add(*pack_manifest_entry(ManifestEntry(bytes((kind,)), digest, size, path)))
        if self._compares and not (len(hashed) > 1 and hashed[0] == hashed[1]):
            return list(_differences_in_children(digested, children))
        return []

    def close(self) -> None:
        """Release the temporary files."""
        for sorter in (self._entries, self.manifest_lines, self._large_directory, *self._digested_children.values()):
            if sorter is not None:
                sorter.close()


class UnequalItemsComparison(DirectoryDigester):
    """Compares items of two sides by their digests, if most items were found equal before, and are not here.

    A directory on either side is one of the items of its parent, and has no digest: directories are compared in any
    order, all as one level.
    """

    def __init__(self, algorithm: DigestAlgorithm, open_spool: Callable[[], BinaryIO]) -> None:
        super().__init__(algorithm, open_spool, compares=True)
        self._tallies: dict[int, DatasetCounts] = {side: DatasetCounts() for side in (0, 1)}

    def add(self, path: bytes, bundle: DirectoryChildBundle) -> None:
        self._entries.add(_level_sort_key(0) + path, bundle.bundle_as_bytes())

    def digest_directories_of_depth(self, depth: int) -> Iterator[DigestResult]:
        """Find how the sides differ. The last result has one value for each side, with the counts of all its items here
        instead of a digest.
        """
        yield from super().digest_directories_of_depth(depth)
        yield DigestResult([(side, b"", b"", tally) for side, tally in self._tallies.items()], [])

    def _add_children(
        self, digested: _DigestedDirectoryBySide, bundles: list[DirectoryChildBundle]
    ) -> list[DatasetDifference]:
        children = {
            side: MergedDirectoryChildren.from_bundles([bundle for bundle in bundles if bundle.side == side])
            for side in {bundle.side for bundle in bundles}
        }
        for side, merged in children.items():
            self._tallies[side] = sum_of_counts((self._tallies[side], merged.tally))
        return list(_differences_in_children(digested, children))


class _DigestedDirectoryBySide:
    """The directory ``path`` while it is digested, on each side that has it. If a dataset is a single item and no
    directory, that item is used instead.
    """

    def __init__(self, algorithm: DigestAlgorithm, path: bytes) -> None:
        self._algorithm = algorithm
        self._path = path
        self._hashers: dict[int, DirectoryHasher] = {}
        self._tallies: dict[int, DatasetCounts] = {}
        self._single_items: list[DigestedDirectory] = []

    def child_paths(self, names: list[bytes]) -> list[bytes]:
        """Return the paths of the children with these ``names``."""
        return [b"%b/%b" % (self._path, name) for name in names] if self._path else names

    def add_children(self, side: int, children: MergedDirectoryChildren) -> bytes:
        """Add the next children of the side ``side``, in the order of their names. Return the bytes that they
        contribute to the digest: if these are equal on both sides, the children are equal.
        """
        if children.names == [ROOT_PATH]:
            digest = children.digests[0]
            self._single_items.append((side, self._path, digest, children.tally))
            return children.kinds + digest
        if children.has_directory:
            self._hashers[side] = DirectoryHasher(self._algorithm)
            self._tallies[side] = DatasetCounts()
        self._tallies[side] = sum_of_counts((self._tallies[side], children.tally))
        return self._hashers[side].add_all_children(children.kinds, children.names, children.digests)

    def directory_with_digests(self) -> list[DigestedDirectory]:
        """After all children were added: return the directory with its digest, once for each side."""
        directories = [
            (side, self._path, hasher.digest(), self._tallies[side]) for side, hasher in self._hashers.items()
        ]
        return self._single_items + directories


class ManifestMerger:
    """Writes the manifest on rank 0: merges the sorted lines of all ranks."""

    def __init__(self, writer: ManifestWriter, ranks: int) -> None:
        self._writer = writer
        self._parts: list[deque[ManifestLine]] = [deque() for _ in range(ranks)]
        self._ended = [False] * ranks
        self._heads: list[tuple[ManifestLine, int]] = []
        self._ranks_without_lines = set(range(ranks))
        """Ranks of which no line is in memory, although they may have more. Until these have sent some, nothing can be
        written.
        """
        self._requested_ranks: set[int] = set()
        """Ranks that were asked for lines and have not sent them yet."""

    def add_lines(self, rank: int, rows: tuple[ManifestLine, ...], last: bool) -> None:
        """Add the lines ``rows`` that ``rank`` has sent; ``last`` is True if it has no more."""
        self._parts[rank].extend(rows)
        self._ended[rank] = last
        self._ranks_without_lines.discard(rank)
        self._requested_ranks.discard(rank)
        self._push_next_line(rank)

    def _push_next_line(self, rank: int) -> None:
        """Put the next line of ``rank`` into the heap, whose smallest line is the next one to be written. If no line of
        the rank is left, record that it must send more.
        """
        if self._parts[rank]:
            heapq.heappush(self._heads, (self._parts[rank].popleft(), rank))
        elif not self._ended[rank]:
            self._ranks_without_lines.add(rank)

    def write_available_lines(self) -> Iterator[None]:
        """Generator: write lines in order, as long as a line of each rank is in memory; yield after each line."""
        while self._heads and not self._ranks_without_lines:
            line, rank = heapq.heappop(self._heads)
            self._push_next_line(rank)
            self._writer.write(unpack_manifest_entry(*line))
            yield

    def take_ranks_to_ask(self) -> list[int]:
        """Return the ranks that must be asked for more lines, and record that they have been asked."""
        ranks = sorted(self._ranks_without_lines - self._requested_ranks)
        self._requested_ranks.update(ranks)
        return ranks

    @property
    def is_done(self) -> bool:
        """True if all lines of all ranks were written."""
        return not self._heads and not self._ranks_without_lines

    def complete_manifest_file(self) -> None:
        """Complete the file and rename it to its final name."""
        self._writer.__exit__(None, None, None)

    def abandon_incomplete_manifest(self) -> None:
        """Remove the incomplete file. An existing manifest remains unchanged."""
        error = InterruptedError()
        self._writer.__exit__(type(error), error, None)


class SignatureState:
    """State of the computation of a signature on one rank; most of it is used on rank 0 only."""

    def __init__(self, rank: Rank) -> None:
        job = rank.job
        compares = not job.copies and (len(job.roots) > 1 or bool(job.against))
        manifest_lines = bool(job.options.manifest)
        algorithm = rank.job_item_hasher.algorithm
        self.digester = (
            UnequalItemsComparison(algorithm, rank.open_spool)
            if job.compares_by_digest
            else DirectoryDigester(algorithm, rank.open_spool, manifest_lines=manifest_lines, compares=compares)
        )
        """The entries of the directories that this rank owns, from the phase SIGN on."""
        self.current_level: Iterator[DigestResult] | None = None
        """Yields the directories of the level that is being digested; None between levels."""
        self.sorted_lines: Iterator[ManifestLine] | None = None
        """Yields the lines for the manifest that this rank has not sent yet; None before the first request."""
        self.signatures: dict[int, tuple[bytes, DatasetCounts]] = {}
        """On rank 0: digest and contents of the whole dataset, by side. If only the items that may differ are compared
        (``Job.compares_by_digest``), the contents are those of these items, and there is no digest.
        """
        self.differences = ExternalSorter(rank.open_spool)
        """On rank 0: the differences between the two sides, sorted by path."""
        self.merge: ManifestMerger | None = None
        """On rank 0: the manifest while it is written, else None."""
        self.manifest_error: Exception | None = None
        """On rank 0: the error because of which the manifest was not written, or None."""

    def close(self) -> None:
        """Release the temporary files, and remove the manifest if it is incomplete."""
        if self.merge is not None:
            self.merge.abandon_incomplete_manifest()
            self.merge = None
        self.digester.close()
        self.differences.close()


def _differences_in_children(
    directory: _DigestedDirectoryBySide, children: dict[int, MergedDirectoryChildren]
) -> Iterator[DatasetDifference]:
    """Generator: yield the differences between the two sides in some children of the directory ``directory``.
    ``children`` are the children on each side.

    A sub-directory that exists on both sides is no difference itself: what differs in it is found when it is digested.
    """
    first, second = (
        {
            path: (kind, b"" if kind == DIRECTORY[0] else digest)
            for path, kind, digest in zip(
                directory.child_paths(merged.names), merged.kinds, merged.digests, strict=True
            )
        }
        for merged in (children.get(side, _NO_CHILDREN) for side in (0, 1))
    )
    for path in {**first, **second}:
        if path == ROOT_PATH and (
            path not in first or path not in second
        ):  # One dataset is a single item, the other a directory.
            yield "changed", path
        elif path not in second:
            yield "missing", path
        elif path not in first:
            yield "extra", path
        elif first[path] != second[path]:
            yield "changed", path
