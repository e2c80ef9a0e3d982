"""The children of directories as columns: bundles of some children, as tasks send them, and all children of a directory
on one side, sorted.

A side is a dataset: 0, or 1 for the second of two datasets that are compared. Children are processed one by one only if
several have the same name, or if they are compared with those of the other side.
"""

from __future__ import annotations

import marshal
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, compress, groupby, islice
from operator import add

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.columns import pack_names
from pcopy.signature.items import DIRECTORY, FILE, SYMLINK

_COUNTED_TYPES = (FILE, DIRECTORY, SYMLINK)
"""Type bytes that have a field of their own in ``DatasetCounts``, in the order of its fields; all others are
special.
"""


class DatasetCounts(NamedTuple):
    """How many items of each type a dataset or a part of it contains (the top directory counts as one of the
    directories), and the bytes of its regular files.
    """

    files: int = 0
    directories: int = 0
    symlinks: int = 0
    special: int = 0
    bytes: int = 0


class DirectoryChildBundle(NamedTuple):
    """Some children of a directory on one side, as columns (one element per child, packed).

    Either all children are directories that were digested already, or none is; in the second case ``tallies`` is empty.

    Fields:

    - ``side``: 0, or 1 for the second of two datasets that are compared.
    - ``round``: a number that is raised when an item is digested again. Of several children with one name, the one with
      the highest number is valid.
    - ``names``: the names, joined by ``/``. An empty name stands for the directory itself.
    - ``kinds``: one type byte each.
    - ``sizes``: size in bytes, 8 bytes each.
    - ``digests``: one digest each.
    - ``tallies``: what each directory contains, five numbers of 8 bytes each (``DatasetCounts``).
    """

    side: int
    round: int
    names: bytes
    kinds: bytes
    sizes: bytes
    digests: bytes
    tallies: bytes = b""

    def bundle_as_bytes(self) -> bytes:
        """Return the bundle as bytes, to be stored in a sorter."""
        return marshal.dumps(tuple(self))

    @classmethod
    def bundle_from_bytes(cls, packed: bytes) -> DirectoryChildBundle:
        """Return the bundle that ``packed`` has made into these bytes."""
        return cls(*marshal.loads(packed))

    @property
    def child_count(self) -> int:
        """Number of children."""
        return len(self.kinds)

    def sortable_records(self) -> Iterator[tuple[bytes, bytes]]:
        """Generator: yield a record (key and value) for each child, to be sorted by key. After sorting, the records of
        one name stand together, even if they come from different bundles.
        """
        end, size = bytes((0, self.side)), len(self.digests) // self.child_count
        for row, name in enumerate(self.names.split(b"/")):
            digest = self.digests[row * size : (row + 1) * size]
            tally = self.tallies[40 * row : 40 * (row + 1)]
            sizes = self.sizes[8 * row : 8 * (row + 1)]
            yield name + end, marshal.dumps((self.round, self.kinds[row : row + 1], sizes, digest, tally))

    def selected_children(self, rows: Sequence[int]) -> DirectoryChildBundle:
        """Return a bundle of only the children at these indices."""
        names, size = self.names.split(b"/"), len(self.digests) // self.child_count
        return self._replace(
            names=b"/".join([names[row] for row in rows]),
            kinds=bytes(map(self.kinds.__getitem__, rows)),
            sizes=b"".join([self.sizes[8 * row : 8 * (row + 1)] for row in rows]),
            digests=b"".join([self.digests[size * row : size * (row + 1)] for row in rows]),
            tallies=b"".join([self.tallies[40 * row : 40 * (row + 1)] for row in rows]),
        )


def bundle_of_directories(side: int, directories: Iterable[tuple[bytes, bytes, DatasetCounts]]) -> DirectoryChildBundle:
    """Return a bundle of digested ``directories`` of one directory: the name, digest and contents of each."""
    names, digests, tallies = zip(*directories, strict=True)
    return DirectoryChildBundle(
        side,
        0,
        pack_names(names),
        DIRECTORY * len(names),
        bytes(8 * len(names)),
        b"".join(digests),
        array("Q", chain.from_iterable(tallies)).tobytes(),
    )


def bundles_from_records(records: Iterator[tuple[bytes, bytes]], names: int) -> Iterator[list[DirectoryChildBundle]]:
    """Generator: make bundles of the sorted ``records`` of children (``DirectoryChildBundle.sortable_records``), and
    yield lists of bundles. Each list contains at most ``names`` different names.

    All records of one name are in the same list.
    """
    by_name = groupby(records, lambda record: record[0][:-2])
    while batch := [(name, list(rows)) for name, rows in islice(by_name, names)]:
        columns: dict[tuple[int, int, bool], list[list[bytes]]] = {}
        for name, rows in batch:
            for key, packed in rows:
                round_, *values = marshal.loads(packed)
                lists = columns.setdefault((key[-1], round_, bool(values[-1])), [[], [], [], [], []])
                for column, value in zip(lists, (name, *values), strict=True):
                    column.append(value)
        yield [
            DirectoryChildBundle(side, round_, b"/".join(found), *map(b"".join, rest))
            for (side, round_, _), (found, *rest) in columns.items()
        ]


class MergedDirectoryChildren(NamedTuple):
    """The children of a directory on one side, sorted by name, each name once.

    Fields:

    - ``has_directory``: True if an entry of the directory itself (the empty name) was among the children.
    - ``names``, ``kinds``, ``sizes``, ``digests``: one element for each child.
    - ``tally``: what the children and everything below them contain, added up.
    """

    has_directory: bool
    names: list[bytes]
    kinds: bytes
    sizes: Sequence[int]
    digests: list[bytes]
    tally: DatasetCounts

    @classmethod
    def from_bundles(cls, bundles: Sequence[DirectoryChildBundle]) -> MergedDirectoryChildren:
        """Return the children of one side in all ``bundles``, each name once. Of several children with one name, only
        the one with the highest ``round`` is used, and of these the last one.
        """
        names = b"/".join([bundle.names for bundle in bundles]).split(b"/")
        if len({*names}) < len(names):
            bundles = _bundles_without_outdated_children(bundles)
            names = b"/".join([bundle.names for bundle in bundles]).split(b"/")
        kinds = b"".join([bundle.kinds for bundle in bundles])
        sizes = array("Q", b"".join([bundle.sizes for bundle in bundles]))
        digests, size = (
            b"".join([bundle.digests for bundle in bundles]),
            len(bundles[0].digests) // bundles[0].child_count,
        )
        order = sorted(range(len(names)), key=names.__getitem__)
        is_there = not names[order[0]]
        if is_there:
            del order[0]
        return cls(
            is_there,
            [names[row] for row in order],
            bytes([kinds[row] for row in order]),
            [sizes[row] for row in order],
            [digests[size * row : size * (row + 1)] for row in order],
            sum_of_counts(map(_child_bundle_counts, bundles)),
        )


def _bundles_without_outdated_children(bundles: Sequence[DirectoryChildBundle]) -> list[DirectoryChildBundle]:
    """Return the bundles without outdated children. A child is outdated if another child has the same name and a higher
    ``round``, or the same ``round`` and a later position.
    """
    latest: dict[bytes, tuple[int, int, int]] = {}
    for number, bundle in enumerate(bundles):
        for row, name in enumerate(bundle.names.split(b"/")):
            if name not in latest or bundle.round >= latest[name][0]:
                latest[name] = bundle.round, number, row
    rows: list[list[int]] = [[] for _ in bundles]
    for _, number, row in latest.values():
        rows[number].append(row)
    return [bundle.selected_children(chosen) for bundle, chosen in zip(bundles, rows, strict=True) if chosen]


def _child_bundle_counts(bundle: DirectoryChildBundle) -> DatasetCounts:
    """Return what the children of a bundle contain, added up by type. If an entry for the directory itself (the empty
    name) is among the children, the directory is counted, too.
    """
    if bundle.tallies:
        numbers = array("Q", bundle.tallies)
        return DatasetCounts(*(sum(numbers[column::5]) for column in range(5)))
    counted = [bundle.kinds.count(kind) for kind in _COUNTED_TYPES]
    sizes: Iterable[int] = array("Q", bundle.sizes)
    if counted[0] < bundle.child_count:
        sizes = compress(sizes, map(FILE[0].__eq__, bundle.kinds))
    files, directories, symlinks = counted
    return DatasetCounts(files, directories, symlinks, bundle.child_count - sum(counted), sum(sizes))


def sum_of_counts(tallies: Iterable[DatasetCounts]) -> DatasetCounts:
    """Return all ``tallies`` added up, field by field."""
    sums = list(DatasetCounts())
    for tally in tallies:
        sums = list(map(add, sums, tally))
    return DatasetCounts(*sums)
