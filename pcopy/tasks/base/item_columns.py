"""Columns in which a task collects types, sizes, versions and digests of items until it is done.

They are then used twice: packed, as entries for the signature; and as tasks of the verify phase, which read the copies
back.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from pcopy.fsio.backend.columns import EARLIEST_TIME, LATEST_TIME, VERSION_COLUMNS, Rows
from pcopy.fsio.source import FileVersion
from pcopy.signature.items import FILE
from pcopy.tasks.base.values import ContentInfo, Entries

_TIME_COLUMNS = ("mtime", "ctime")
"""Names of the columns of times in a version."""


class VersionColumns:
    """Versions of items in columns. Times that do not fit in 64 bits are kept separately and exactly."""

    __slots__ = ("_exact_times", "_rows")

    def __init__(self) -> None:
        self._rows = Rows(0, VERSION_COLUMNS)
        self._exact_times: dict[tuple[str, int], int] = {}
        self._rows.out_of_range_times = self._exact_times

    def add(self, version: FileVersion) -> None:
        """Append a version."""
        inode, size, *times = version
        rows = self._rows
        within = [min(max(time, EARLIEST_TIME), LATEST_TIME) for time in times]
        if within != times:  # the columns get the nearest value that 64 bits can hold
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

    def extend(self, more: Rows) -> None:
        """Append rows that have at least the columns of ``VERSION``."""
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

    def append(self, more: VersionColumns) -> None:
        """Append all versions of another object."""
        self.extend(more._rows)

    def packed(self) -> bytes:
        """Return the columns of ``VERSION`` in the form of ``Rows.packed``."""
        return self._rows.packed()


def unpack_versions(packed: bytes, number: int) -> list[FileVersion]:
    """Return the ``number`` versions that ``VersionColumns.packed`` packed."""
    return list(map(FileVersion._make, Rows.unpacked(packed, number, VERSION_COLUMNS).versions()))


def split_versions(packed: bytes, number: int, at: Sequence[slice]) -> list[bytes]:
    """Return packed versions in parts according to the slices ``at``. ``number`` is the number of versions."""
    rows = Rows.unpacked(packed, number, VERSION_COLUMNS)
    return [rows.row_range(each.start, each.stop).packed() for each in at]


class ItemColumns:
    """Types, sizes, versions and digests of items of one directory, in columns, as one task collected them."""

    def __init__(self) -> None:
        self._names: list[bytes] = []
        """Names in pieces; each piece is one name or several names joined by slashes."""
        self._kinds = bytearray()
        self.counters = bytearray()
        self._sizes = array("Q")
        self._versions = VersionColumns()
        self._digests = bytearray()

    def __len__(self) -> int:
        return len(self._kinds)

    def add_item(self, name: bytes, known: ContentInfo, counter: int = 0) -> None:
        """Append one item. ``counter`` is the counter in which it was counted."""
        self.add_file(name, known.version, known.size, known.digest, counter, known.kind)

    def add_file(
        self, name: bytes, version: FileVersion, size: int, digest: bytes, counter: int, kind: bytes = FILE
    ) -> None:
        """Append one item whose values are given separately. For many items this is faster than ``add``.

        Args:
            size: number of bytes that the file contained.
            counter: the counter in which it was counted.
            kind: type byte.
        """
        self._names.append(name)
        self._kinds += kind
        self.counters.append(counter)
        self._sizes.append(size)
        self._versions.add(version)
        self._digests += digest

    def add_rows(
        self, names: bytes, versions: Rows, sizes: array[int], digests: bytes | bytearray, counter: int = 0
    ) -> None:
        """Append all rows of a batch of regular files.

        Args:
            names: names joined by slashes.
            versions: rows that have at least the columns of ``VERSION``.
            sizes: size of each file in bytes.
            digests: digests of all files, joined.
            counter: the counter in which the files were counted.
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
        versions: Rows,
        sizes: array[int],
        digests: bytes | bytearray,
        counter: int = 0,
    ) -> None:
        """Append some ``rows`` of a batch. The other arguments describe all rows of the batch, as for ``add_rows``."""
        size = len(digests) // (len(sizes) or 1)
        chosen = b"".join([digests[row * size : (row + 1) * size] for row in rows])
        chosen_sizes = array("Q", map(sizes.__getitem__, rows))
        self.add_rows(b"/".join(map(names.__getitem__, rows)), versions.selected(rows), chosen_sizes, chosen, counter)

    def extend(self, more: ItemColumns, names: Iterable[bytes] | None = None) -> None:
        """Append all items of ``more``. ``names`` are their names here, if these differ."""
        self._names += more._names if names is None else names
        self._kinds += more._kinds
        self.counters += more.counters
        self._sizes += more._sizes
        self._versions.append(more._versions)
        self._digests += more._digests

    @property
    def packed_names(self) -> bytes:
        """All names, joined by slashes."""
        return b"/".join(self._names)

    @property
    def packed_columns(self) -> tuple[bytes, bytes, bytes, bytes]:
        """Packed type bytes, sizes, versions and digests."""
        return bytes(self._kinds), self._sizes.tobytes(), self._versions.packed(), bytes(self._digests)

    def signature_entries(self, side: int, path: bytes, round_: int) -> Entries:
        """Return the items as entries of the directory ``path`` for a signature."""
        return Entries(
            side, path, self.packed_names, bytes(self._kinds), self._sizes.tobytes(), bytes(self._digests), round_
        )

    @property
    def total_size(self) -> int:
        """Sum of all sizes."""
        return sum(self._sizes)


def unpack_items(kinds: bytes, sizes: Sequence[int], versions: bytes, digests: Sequence[bytes]) -> list[ContentInfo]:
    """Return the items that ``ItemColumns.columns`` packed, without their names."""
    columns = zip(kinds, sizes, digests, unpack_versions(versions, len(kinds)), strict=True)
    return [ContentInfo(bytes((kind,)), size, digest, version) for kind, size, digest, version in columns]


def split_digests(packed: bytes, size: int) -> list[bytes]:
    """Return the joined digests, of ``size`` bytes each, as a list."""
    return [packed[at : at + size] for at in range(0, len(packed), size)]
