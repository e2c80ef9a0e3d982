"""Digests as tasks use them, and where they are gathered until their task is done.

What is gathered goes two ways: packed, to the rank's store of entries for the signature; and as tasks of the verify
phase, which read the copies back.
"""

from __future__ import annotations

import os
import stat
import struct
from array import array

from pcopy.fsio.source import Version
from pcopy.signature.algorithms import Algorithm, algorithm
from pcopy.signature.items import DIRECTORY, FILE, file_digest, special_digest, symlink_digest, type_of
from pcopy.signature.tree import ContentHasher, combine, content_root
from pcopy.tasks.read_values import VerifyItems
from pcopy.tasks.sign_values import Entries
from pcopy.tasks.values import Known, Place, pack_names

SOCKET = b"s"
"""The type byte of sockets, which are verified, but no part of a dataset."""

_VERSION = struct.Struct("=QQqIqI")
"""Inode, size, mtime and ctime. Times in seconds and nanoseconds: as one number they reach 292 years from 1970."""
_SECOND = 10**9


class Hashing:
    """One job's algorithm and block size (bytes)."""

    def __init__(self, name: str, block_size: int) -> None:
        self.algorithm: Algorithm = algorithm(name)
        self.block_size = block_size

    @property
    def directory(self) -> Known:
        """What is known of a directory before the sign phase: that it is there."""
        return Known(DIRECTORY, 0, bytes(self.algorithm.size), Version(0, 0, 0, 0))

    def hasher(self) -> ContentHasher:
        """For contents that come piece by piece."""
        return ContentHasher(self.algorithm, self.block_size)

    def whole(self, data: bytes) -> bytes:
        """The digest of a regular file that holds ``data``."""
        return file_digest(self.algorithm, len(data), content_root(self.algorithm, self.block_size, data))

    def file(self, hasher: ContentHasher) -> bytes:
        """The digest of a regular file whose contents went through ``hasher``."""
        return file_digest(self.algorithm, hasher.size, hasher.root())

    def chunks(self, size: int, roots: list[bytes]) -> bytes:
        """The digest of a regular file of ``size`` bytes from the content roots of its chunks, in order."""
        return file_digest(self.algorithm, size, combine(self.algorithm, roots))

    def node(self, status: os.stat_result, link: bytes) -> bytes:
        """The digest of a symbolic link (to ``link``), FIFO or device; zeros for a socket, which has none."""
        if stat.S_ISLNK(status.st_mode):
            return symlink_digest(self.algorithm, link)
        if stat.S_ISSOCK(status.st_mode):
            return bytes(self.algorithm.size)
        return special_digest(self.algorithm, status.st_mode, status.st_rdev)


def kind_of(status: os.stat_result) -> bytes:
    """The type byte, ``SOCKET`` among them."""
    return type_of(status.st_mode) or SOCKET


class Gathered:
    """What one task has learned of items of one directory, column by column."""

    __slots__ = ("_counters", "_digests", "_kinds", "_sizes", "_versions", "names")

    def __init__(self) -> None:
        self.names: list[bytes] = []
        self._kinds = bytearray()
        self._counters = bytearray()
        self._sizes = array("Q")
        self._versions = bytearray()
        self._digests = bytearray()

    def add(self, name: bytes, known: Known, counter: int = 0) -> None:
        """One more item, which has been counted by ``counter``."""
        self.names.append(name)
        self._kinds += known.kind
        self._counters.append(counter)
        self._sizes.append(known.size)
        self._versions += _pack_version(*known.version)
        self._digests += known.digest

    def add_file(self, name: bytes, status: os.stat_result, size: int, digest: bytes, counter: int) -> None:
        """As ``add`` for a regular file that held ``size`` bytes, with less to make for each of very many."""
        self.names.append(name)
        self._kinds += FILE
        self._counters.append(counter)
        self._sizes.append(size)
        self._versions += _pack_version(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        self._digests += digest

    def extend(self, more: Gathered, names: list[bytes]) -> None:
        """``more`` items, which are called ``names`` here."""
        self.names += names
        self._kinds += more._kinds
        self._counters += more._counters
        self._sizes += more._sizes
        self._versions += more._versions
        self._digests += more._digests

    def entries(self, side: int, path: bytes, round_: int) -> Entries:
        """Packed for the signature."""
        names = pack_names(self.names)
        return Entries(side, path, names, bytes(self._kinds), self._sizes.tobytes(), bytes(self._digests), round_)

    def verification(self, place: Place, writer: int) -> VerifyItems:
        """Packed for the verify phase."""
        return VerifyItems(
            place,
            pack_names(self.names),
            bytes(self._kinds),
            bytes(self._counters),
            self._sizes.tobytes(),
            bytes(self._versions),
            bytes(self._digests),
            writer,
        )

    @property
    def columns(self) -> tuple[bytes, bytes, bytes, bytes]:
        """Type bytes, sizes, versions and digests."""
        return bytes(self._kinds), self._sizes.tobytes(), bytes(self._versions), bytes(self._digests)

    @property
    def bytes(self) -> int:
        """The sizes of all items."""
        return sum(self._sizes)


def _pack_version(inode: int, size: int, mtime: int, ctime: int) -> bytes:
    return _VERSION.pack(inode, size, *divmod(mtime, _SECOND), *divmod(ctime, _SECOND))


def unpack_versions(packed: bytes) -> list[tuple[int, ...]]:
    """The fields of the ``Version``s of a ``VerifyItems``."""
    return [
        (inode, size, mtime * _SECOND + part, ctime * _SECOND + rest)
        for inode, size, mtime, part, ctime, rest in _VERSION.iter_unpack(packed)
    ]


def split_digests(packed: bytes, size: int) -> list[bytes]:
    """Joined digests of ``size`` bytes each."""
    return [packed[at : at + size] for at in range(0, len(packed), size)]
