"""Digests as tasks use them; they are gathered until their task is done.

Then they go two ways: packed, to the rank's entries for the signature; and as tasks of the verify phase, which read the
copies back.
"""

from __future__ import annotations

import os
import stat
import struct
from array import array
from collections.abc import Sequence

from pcopy.fsio.kernel.columns import pack_names
from pcopy.fsio.source import Version
from pcopy.signature.algorithms import Algorithm, algorithm
from pcopy.signature.items import DIRECTORY, FILE, file_digest, special_digest, symlink_digest, type_of
from pcopy.signature.tree import ContentHasher, combine, content_root
from pcopy.tasks.base.values import Entries, Known

SOCKET = b"s"
"""The type byte of sockets, which are verified, but no part of a dataset."""

NO_VERSION = Version(0, 0, 0, 0)
"""Of what no version is known, or none is compared."""

_VERSION = struct.Struct("=QQqIqI")
"""Inode, size, mtime and ctime. Times in seconds and nanoseconds: as one number they reach 292 years from 1970."""
_SECOND = 10**9
"""In nanoseconds."""


class Hashing:
    """One job's algorithm and block size (bytes)."""

    def __init__(self, name: str, block_size: int) -> None:
        self.algorithm: Algorithm = algorithm(name)
        self.block_size = block_size

    @property
    def directory(self) -> Known:
        """Before the sign phase only one thing is known of a directory: that it is there."""
        return Known(DIRECTORY, 0, bytes(self.algorithm.size), NO_VERSION)

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

    def __init__(self) -> None:
        self.names: list[bytes] = []
        self._kinds = bytearray()
        self.counters = bytearray()
        self._sizes = array("Q")
        self._versions = bytearray()
        self._digests = bytearray()

    def add(self, name: bytes, known: Known, counter: int = 0) -> None:
        """One more item, which has been counted by ``counter``."""
        self.add_file(name, known.version, known.size, known.digest, counter, known.kind)

    def add_file(
        self, name: bytes, version: Version, size: int, digest: bytes, counter: int, kind: bytes = FILE
    ) -> None:
        """As ``add`` for a regular file that held ``size`` bytes, with less to make for each of very many."""
        self.names.append(name)
        self._kinds += kind
        self.counters.append(counter)
        self._sizes.append(size)
        inode, length, mtime, ctime = version
        self._versions += _VERSION.pack(inode, length, *divmod(mtime, _SECOND), *divmod(ctime, _SECOND))
        self._digests += digest

    def extend(self, more: Gathered, names: list[bytes]) -> None:
        """``more`` items, which are called ``names`` here."""
        self.names += names
        self._kinds += more._kinds
        self.counters += more.counters
        self._sizes += more._sizes
        self._versions += more._versions
        self._digests += more._digests

    @property
    def packed_names(self) -> bytes:
        return pack_names(self.names)

    @property
    def columns(self) -> tuple[bytes, bytes, bytes, bytes]:
        """Type bytes, sizes, versions and digests."""
        return bytes(self._kinds), self._sizes.tobytes(), bytes(self._versions), bytes(self._digests)

    def entries(self, side: int, path: bytes, round_: int) -> Entries:
        """For a signature."""
        kinds, sizes, _, digests = self.columns
        return Entries(side, path, self.packed_names, kinds, sizes, digests, round_)

    @property
    def bytes(self) -> int:
        return sum(self._sizes)


def unpack_known(kinds: bytes, sizes: Sequence[int], versions: bytes, digests: Sequence[bytes]) -> list[Known]:
    """What ``Gathered`` has packed."""
    return [
        Known(bytes((kind,)), size, digest, Version(inode, length, mtime * _SECOND + part, ctime * _SECOND + rest))
        for kind, size, digest, (inode, length, mtime, part, ctime, rest) in zip(
            kinds, sizes, digests, _VERSION.iter_unpack(versions), strict=True
        )
    ]


def split_digests(packed: bytes, size: int) -> list[bytes]:
    """Joined digests of ``size`` bytes each."""
    return [packed[at : at + size] for at in range(0, len(packed), size)]
