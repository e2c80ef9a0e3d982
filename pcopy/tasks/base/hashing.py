"""Digests for tasks, with the algorithm and the block size of a job."""

from __future__ import annotations

import os
import stat

from pcopy.fsio.source import Version
from pcopy.signature.algorithms import Algorithm, algorithm
from pcopy.signature.items import DIRECTORY, file_digest, special_digest, symlink_digest, type_of
from pcopy.signature.tree import ContentHasher, combine, content_root
from pcopy.tasks.base.values import Known

SOCKET = b"s"
"""Type byte of sockets, which are verified but are not part of a dataset."""

NO_VERSION = Version(0, 0, 0, 0)
"""Version of items whose version is not known or not compared."""


class Hashing:
    """Algorithm and block size (in bytes) of a job."""

    def __init__(self, name: str, block_size: int) -> None:
        self.algorithm: Algorithm = algorithm(name)
        self.block_size = block_size

    @property
    def directory(self) -> Known:
        """The value that stands for a directory before the sign phase, when only its existence is known."""
        return Known(DIRECTORY, 0, bytes(self.algorithm.size), NO_VERSION)

    def hasher(self) -> ContentHasher:
        """Return a hasher for contents that are read in pieces."""
        return ContentHasher(self.algorithm, self.block_size)

    def whole(self, data: bytes) -> bytes:
        """Return the digest of a regular file that contains ``data``."""
        return file_digest(self.algorithm, len(data), content_root(self.algorithm, self.block_size, data))

    def file(self, hasher: ContentHasher) -> bytes:
        """Return the digest of the regular file whose contents went through ``hasher``."""
        return file_digest(self.algorithm, hasher.size, hasher.root())

    def chunks(self, size: int, roots: list[bytes]) -> bytes:
        """Return the digest of a regular file of ``size`` bytes, given the content roots of its chunks in order."""
        return file_digest(self.algorithm, size, combine(self.algorithm, roots))

    def node(self, status: os.stat_result, link: bytes) -> bytes:
        """Return the digest of a symbolic link with the target text ``link``, of a FIFO or of a device; zeros for a
        socket, which has no digest.
        """
        if stat.S_ISLNK(status.st_mode):
            return symlink_digest(self.algorithm, link)
        if stat.S_ISSOCK(status.st_mode):
            return bytes(self.algorithm.size)
        return special_digest(self.algorithm, status.st_mode, status.st_rdev)


def kind_of(status: os.stat_result) -> bytes:
    """Return the type byte of an item; ``SOCKET`` for a socket."""
    return type_of(status.st_mode) or SOCKET
