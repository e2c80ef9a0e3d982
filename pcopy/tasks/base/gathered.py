"""What tasks learn of items, in columns: it is gathered until the task is done.

Then it goes two ways: packed, to the rank's entries for the signature; and as tasks of the verify phase, which read the
copies back.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from pcopy.fsio.kernel.columns import FIRST, LAST, VERSION, Rows
from pcopy.fsio.source import Version
from pcopy.signature.items import FILE
from pcopy.tasks.base.values import Entries, Known

_TIMES = ("mtime", "ctime")
"""The columns of times that a version has."""


class Versions:
    """Versions as columns, with the exact times of those that 64 bits cannot hold."""

    __slots__ = ("_far", "_rows")

    def __init__(self) -> None:
        self._rows = Rows(0, VERSION)
        self._far: dict[tuple[str, int], int] = {}
        self._rows.far = self._far

    def add(self, version: Version) -> None:
        inode, size, *times = version
        rows = self._rows
        within = [min(max(time, FIRST), LAST) for time in times]
        if within != times:
            row = len(rows.inode)
            self._far |= {
                (name, row): time for name, time in zip(_TIMES, times, strict=True) if not FIRST <= time <= LAST
            }
        rows.mtime.append(within[0])
        rows.ctime.append(within[1])
        rows.inode.append(inode)
        rows.size.append(size)

    def extend(self, more: Rows) -> None:
        """Append rows that have the columns of ``VERSION`` at least."""
        rows = self._rows
        before = len(rows.inode)
        if more.far:
            self._far |= {(name, before + row): time for (name, row), time in more.far.items() if name in _TIMES}
        rows.mtime.extend(more.mtime)
        rows.ctime.extend(more.ctime)
        rows.inode.extend(more.inode)
        rows.size.extend(more.size)

    def append(self, more: Versions) -> None:
        self.extend(more._rows)

    def packed(self) -> bytes:
        """Return them as ``Rows.packed`` does, with the columns of ``VERSION``."""
        return self._rows.packed()


def unpack_versions(packed: bytes, number: int) -> list[Version]:
    """The versions of so many rows."""
    return list(map(Version._make, Rows.unpacked(packed, number, VERSION).versions()))


def cut_versions(packed: bytes, number: int, at: Sequence[slice]) -> list[bytes]:
    """Packed ``Versions`` of so many rows, in stretches."""
    rows = Rows.unpacked(packed, number, VERSION)
    return [rows.part(each.start, each.stop).packed() for each in at]


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
