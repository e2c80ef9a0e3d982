"""What tasks learn of items, in columns: it is gathered until the task is done.

Then it goes two ways: packed, to the rank's entries for the signature; and as tasks of the verify phase, which read the
copies back.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence

from pcopy.fsio.kernel.columns import FIRST, LAST, VERSION, Rows
from pcopy.fsio.source import Version
from pcopy.signature.items import FILE
from pcopy.tasks.base.values import Entries, Known

_FAR = struct.Struct("=QqIqI")
"""A row, and its mtime and ctime in seconds and nanoseconds."""
_SECOND = 10**9
"""In nanoseconds."""
_WIDTH = 32
"""Bytes of a version in columns."""


class Versions:
    """Versions as columns. Times that these cannot hold (``pcopy.fsio.kernel.columns``) stand beside them.

    Packed they are the columns of ``VERSION``, as in ``Rows.packed``, and after these the rows with such times.
    """

    __slots__ = ("_columns", "_far")

    def __init__(self) -> None:
        self._columns = array("q"), array("q"), array("Q"), array("Q")
        self._far = b""

    def add(self, version: Version) -> None:
        inode, size, *times = version
        mtimes, ctimes, inodes, sizes = self._columns
        row = len(inodes)
        within = [min(max(time, FIRST), LAST) for time in times]
        if within != times:
            self._far += _FAR.pack(row, *(number for time in times for number in divmod(time, _SECOND)))
        mtimes.append(within[0])
        ctimes.append(within[1])
        inodes.append(inode)
        sizes.append(size)

    def extend(self, more: Rows) -> None:
        """What a kernel has found."""
        before = len(self._columns[0])
        for row in sorted({row for _, row in more.far}):
            times = more.version(row)[2:]
            self._far += _FAR.pack(before + row, *(number for time in times for number in divmod(time, _SECOND)))
        for column, found in zip(self._columns, (more.mtime, more.ctime, more.inode, more.size), strict=True):
            column.extend(found)

    def append(self, more: Versions) -> None:
        before = len(self._columns[0])
        for column, added in zip(self._columns, more._columns, strict=True):
            column.extend(added)
        if more._far:
            self._far += b"".join(_FAR.pack(before + row, *times) for row, *times in _FAR.iter_unpack(more._far))

    def packed(self) -> bytes:
        return b"".join([*self._columns, self._far])


def unpack_versions(packed: bytes, number: int) -> list[Version]:
    """The versions of so many rows."""
    end = number * _WIDTH
    versions = list(map(Version._make, Rows.unpacked(packed[:end], number, VERSION).versions()))
    for row, mtime, part, ctime, rest in _FAR.iter_unpack(packed[end:]):
        versions[row] = versions[row]._replace(mtime=mtime * _SECOND + part, ctime=ctime * _SECOND + rest)
    return versions


def cut_versions(packed: bytes, number: int, at: Sequence[slice]) -> list[bytes]:
    """Packed ``Versions`` of so many rows, in stretches."""
    end = number * _WIDTH
    rows, far = Rows.unpacked(packed[:end], number, VERSION), list(_FAR.iter_unpack(packed[end:]))
    return [
        rows.part(each.start, each.stop).packed()
        + b"".join(_FAR.pack(row - each.start, *times) for row, *times in far if each.start <= row < each.stop)
        for each in at
    ]


class Gathered:
    """What one task has learned of items of one directory, column by column."""

    def __init__(self) -> None:
        self._names: list[bytes] = []
        """Parts of the names, joined by slashes each."""
        self._kinds = bytearray()
        self.counters = bytearray()
        self._sizes = array("Q")
        self._versions = Versions()
        self._digests = bytearray()

    def __len__(self) -> int:
        return len(self._kinds)

    def add(self, name: bytes, known: Known, counter: int = 0) -> None:
        """One more item, which has been counted by ``counter``."""
        self.add_file(name, known.version, known.size, known.digest, counter, known.kind)

    def add_file(
        self, name: bytes, version: Version, size: int, digest: bytes, counter: int, kind: bytes = FILE
    ) -> None:
        """As ``add`` for a regular file that held ``size`` bytes, with less to make for each of very many."""
        self._names.append(name)
        self._kinds += kind
        self.counters.append(counter)
        self._sizes.append(size)
        self._versions.add(version)
        self._digests += digest

    def add_rows(
        self, names: bytes, versions: Rows, sizes: array[int], digests: bytes | bytearray, counter: int = 0
    ) -> None:
        """All rows of a batch: regular files that held so many bytes each, and have been counted by ``counter``.

        ``names`` is joined by slashes; ``versions`` has the columns of ``VERSION`` at least.
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

    def add_chosen(
        self,
        rows: Sequence[int],
        names: Sequence[bytes],
        versions: Rows,
        sizes: array[int],
        digests: bytes | bytearray,
        counter: int = 0,
    ) -> None:
        """As ``add_rows``, for some ``rows`` of the batch; ``names`` are all of its names."""
        size = len(digests) // (len(sizes) or 1)
        chosen = b"".join([digests[row * size : (row + 1) * size] for row in rows])
        some = array("Q", map(sizes.__getitem__, rows))
        self.add_rows(b"/".join(map(names.__getitem__, rows)), versions.chosen(rows), some, chosen, counter)

    def extend(self, more: Gathered, names: Iterable[bytes] | None = None) -> None:
        """``more`` items, which are called ``names`` here, if these are others."""
        self._names += more._names if names is None else names
        self._kinds += more._kinds
        self.counters += more.counters
        self._sizes += more._sizes
        self._versions.append(more._versions)
        self._digests += more._digests

    @property
    def packed_names(self) -> bytes:
        return b"/".join(self._names)

    @property
    def columns(self) -> tuple[bytes, bytes, bytes, bytes]:
        """Type bytes, sizes, versions and digests."""
        return bytes(self._kinds), self._sizes.tobytes(), self._versions.packed(), bytes(self._digests)

    def entries(self, side: int, path: bytes, round_: int) -> Entries:
        """For a signature."""
        return Entries(
            side, path, self.packed_names, bytes(self._kinds), self._sizes.tobytes(), bytes(self._digests), round_
        )

    @property
    def bytes(self) -> int:
        return sum(self._sizes)


def unpack_known(kinds: bytes, sizes: Sequence[int], versions: bytes, digests: Sequence[bytes]) -> list[Known]:
    """What ``Gathered`` has packed."""
    columns = zip(kinds, sizes, digests, unpack_versions(versions, len(kinds)), strict=True)
    return [Known(bytes((kind,)), size, digest, version) for kind, size, digest, version in columns]


def split_digests(packed: bytes, size: int) -> list[bytes]:
    """Joined digests of ``size`` bytes each."""
    return [packed[at : at + size] for at in range(0, len(packed), size)]
