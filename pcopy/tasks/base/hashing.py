"""Digests as tasks use them: one job's algorithm and block size."""

from __future__ import annotations

import os
import stat

from pcopy.fsio.source import Version
from pcopy.signature.algorithms import Algorithm, algorithm
from pcopy.signature.items import DIRECTORY, file_digest, special_digest, symlink_digest, type_of
from pcopy.signature.tree import ContentHasher, combine, content_root
from pcopy.tasks.base.values import Known

SOCKET = b"s"
"""The type byte of sockets, which are verified, but no part of a dataset."""

NO_VERSION = Version(0, 0, 0, 0)
"""Of what no version is known, or none is compared."""


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
