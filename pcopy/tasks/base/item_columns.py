"""Columns in which a task collects types, sizes, versions and digests of items until it is done. Value number i of each
column belongs to item number i.

Afterwards they are used for the signature, and as the fields of the tasks that read the copies back in the verify
phase.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from pcopy.fsio.backend.columns import EARLIEST_TIME, LATEST_TIME, VERSION_COLUMNS, ItemStatusColumns
from pcopy.fsio.source import FileContentVersion
from pcopy.signature.items import FILE
from pcopy.tasks.base.values import ContentInfo, SignatureEntries

_TIME_COLUMNS = ("mtime", "ctime")
"""Those columns of a version (inode, size, mtime, ctime) that contain times. A time may not fit into 64 bits."""


class ContentVersionColumns:
    """Versions (inode number, size, mtime, ctime) of items, in columns. Times that do not fit into signed 64-bit
    nanoseconds are kept separately and exactly.
    """

    __slots__ = ("_exact_times", "_rows")

    def __init__(self) -> None:
        self._rows = ItemStatusColumns(0, VERSION_COLUMNS)
        self._exact_times: dict[tuple[str, int], int] = {}
        self._rows.out_of_range_times = self._exact_times

    def add(self, version: FileContentVersion) -> None:
        """Append the version of one item."""
        inode, size, *times = version
        rows = self._rows
        within = [min(max(time, EARLIEST_TIME), LATEST_TIME) for time in times]
        if within != times:  # a column gets the nearest value that 64 bits can hold
            row = len(rows.inode)
            self._exact_times |= {
                (name, row): time
                for name, time in zip(_TIME_COLUMNS, times, strict=True)
                if not EARLIEST_TIME <= time <= LATEST_TIME
            }
        rows.mtime.append(within[0])
        rows.ctime.append(within[1])
        rows.inode.append(inode)
        rows.size.append(size)

    def extend(self, more: ItemStatusColumns) -> None:
        """Append the versions of all rows (items) of ``more``, which must have at least the columns
        ``VERSION_COLUMNS``.
        """
        rows = self._rows
        before = len(rows.inode)
        if more.out_of_range_times:
            self._exact_times |= {
                (name, before + row): time
                for (name, row), time in more.out_of_range_times.items()
                if name in _TIME_COLUMNS
            }
        rows.mtime.extend(more.mtime)
        rows.ctime.extend(more.ctime)
        rows.inode.extend(more.inode)
        rows.size.extend(more.size)

    def append(self, more: ContentVersionColumns) -> None:
        """Append all versions in ``more``."""
        self.extend(more._rows)

    def versions_as_bytes(self) -> bytes:
        """Return the versions as one byte string: the columns one after the other, then the times that do not fit into
        64 bits.
        """
        return self._rows.status_columns_as_bytes()


def unpack_versions(packed: bytes, number: int) -> list[FileContentVersion]:
    """Return the ``number`` versions in the bytes ``packed``, which ``ContentVersionColumns.versions_as_bytes`` has
    returned.
    """
    return list(
        map(
            FileContentVersion._make,
            ItemStatusColumns.status_columns_from_bytes(packed, number, VERSION_COLUMNS).content_versions(),
        )
    )


def split_versions(packed: bytes, number: int, slices: Sequence[slice]) -> list[bytes]:
    """Return the versions in the bytes ``packed`` in parts, one for each of the slices ``slices``. ``packed`` and each
    part are in the form of ``ContentVersionColumns.versions_as_bytes``; ``number`` is the number of versions.
    """
    rows = ItemStatusColumns.status_columns_from_bytes(packed, number, VERSION_COLUMNS)
    return [rows.rows_in_range(each.start, each.stop).status_columns_as_bytes() for each in slices]


class ItemColumns:
    """Types, sizes, versions and digests of items of one directory, in columns, as one task collects them."""

    def __init__(self) -> None:
        self._names: list[bytes] = []
        """Names in pieces: each piece is one name, or several names joined by slashes."""
        self._kinds = bytearray()
        self.counters = bytearray()
        self._sizes = array("Q")
        self._versions = ContentVersionColumns()
        self._digests = bytearray()

    def __len__(self) -> int:
        return len(self._kinds)

    def add_item(self, name: bytes, known: ContentInfo, counter: int = 0) -> None:
        """Append one item: its ``name``, and its type, size, version and digest, which ``known`` contains. ``counter``
        is the index of the counter in which it was counted.
        """
        self.add_file(name, known.version, known.size, known.digest, counter, known.kind)

    def add_file(
        self, name: bytes, version: FileContentVersion, size: int, digest: bytes, counter: int, kind: bytes = FILE
    ) -> None:
        """Append one item, a regular file unless ``kind`` says something else. For many items this is faster than
        ``add_item``, because no ``ContentInfo`` is needed.

        Args:
            name, version, digest: name, version and digest of the item.
            size: number of bytes that the file contained when it was read.
            counter: index of the counter in which it was counted.
            kind: type byte.
        """
        self._names.append(name)
        self._kinds += kind
        self.counters.append(counter)
        self._sizes.append(size)
        self._versions.add(version)
        self._digests += digest

    def add_rows(
        self, names: bytes, versions: ItemStatusColumns, sizes: array[int], digests: bytes | bytearray, counter: int = 0
    ) -> None:
        """Append all items of a batch of regular files, which the backend has processed in one call.

        Args:
            names: names joined by slashes.
            versions: version of each file, in rows that have at least the columns ``VERSION_COLUMNS``.
            sizes: size of each file in bytes.
            digests: digests of all files, joined.
            counter: index of the counter in which all these files were counted.
        """
        number = len(sizes)
        if not number:
            return
        self._names.append(names)
        self._kinds += FILE * number
        self.counters += bytes((counter,)) * number
        self._sizes += sizes
        self._versions.extend(versions)
        self._digests += digests

    def add_selected_rows(
        self,
        rows: Sequence[int],
        names: Sequence[bytes],
        versions: ItemStatusColumns,
        sizes: array[int],
        digests: bytes | bytearray,
        counter: int = 0,
    ) -> None:
        """Append some items of a batch of regular files: those with the indices ``rows``. The next four arguments
        describe all files of the batch, also those that are not appended.

        Args:
            names: name of each file.
            versions: version of each file, in rows that have at least the columns ``VERSION_COLUMNS``.
            sizes: size of each file in bytes.
            digests: digests of all files, joined.
            counter: index of the counter in which all these files were counted.
        """
        size = len(digests) // (len(sizes) or 1)
        chosen = b"".join([digests[row * size : (row + 1) * size] for row in rows])
        chosen_sizes = array("Q", map(sizes.__getitem__, rows))
        self.add_rows(
            b"/".join(map(names.__getitem__, rows)),
            versions.columns_of_selected_rows(rows),
            chosen_sizes,
            chosen,
            counter,
        )

    def extend(self, more: ItemColumns, names: Iterable[bytes] | None = None) -> None:
        """Append all items of ``more``. Their names are replaced by ``names``, if given."""
        self._names += more._names if names is None else names
        self._kinds += more._kinds
        self.counters += more.counters
        self._sizes += more._sizes
        self._versions.append(more._versions)
        self._digests += more._digests

    @property
    def packed_names(self) -> bytes:
        """Names of all items, joined by slashes."""
        return b"/".join(self._names)

    @property
    def packed_columns(self) -> tuple[bytes, bytes, bytes, bytes]:
        """The columns as bytes: types, sizes, versions and digests."""
        return bytes(self._kinds), self._sizes.tobytes(), self._versions.versions_as_bytes(), bytes(self._digests)

    def signature_entries(self, side: int, path: bytes, round_: int) -> SignatureEntries:
        """Return the items as entries of a signature.

        Args:
            side: number of the dataset.
            path: path of the directory that contains the items.
            round_: number of the attempt; if several entries have one name, the one with the highest number is valid.
        """
        return SignatureEntries(
            side, path, self.packed_names, bytes(self._kinds), self._sizes.tobytes(), bytes(self._digests), round_
        )

    @property
    def total_size(self) -> int:
        """Sum of all sizes in bytes."""
        return sum(self._sizes)


def unpack_content_infos(
    kinds: bytes, sizes: Sequence[int], versions: bytes, digests: Sequence[bytes]
) -> list[ContentInfo]:
    """Return type, size, digest and version of each item, from the columns that ``ItemColumns.packed_columns`` returns.
    ``kinds`` and ``versions`` are still packed, ``sizes`` and ``digests`` are unpacked already.
    """
    columns = zip(kinds, sizes, digests, unpack_versions(versions, len(kinds)), strict=True)
    return [ContentInfo(bytes((kind,)), size, digest, version) for kind, size, digest, version in columns]


def split_digests(packed: bytes, size: int) -> list[bytes]:
    """Return as a list the digests that ``packed`` contains, one after the other. Each has ``size`` bytes."""
    return [packed[at : at + size] for at in range(0, len(packed), size)]
