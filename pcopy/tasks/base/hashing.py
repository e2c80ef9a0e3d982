"""Digests for tasks, with the algorithm and the block size of a job."""

from __future__ import annotations

import os
import stat

from pcopy.fsio.source import FileVersion
from pcopy.signature.algorithms import Algorithm, algorithm_named
from pcopy.signature.items import DIRECTORY, file_digest, special_digest, symlink_digest, type_byte
from pcopy.signature.tree import ContentHasher, combined_root, content_root
from pcopy.tasks.base.values import ContentInfo

SOCKET = b"s"
"""Type byte of sockets, which are verified but are not part of a dataset."""

NO_VERSION = FileVersion(0, 0, 0, 0)
"""Version of items whose version is not known or not compared."""


class JobHashing:
    """Algorithm and block size (in bytes) of a job."""

    def __init__(self, name: str, block_size: int) -> None:
        self.algorithm: Algorithm = algorithm_named(name)
        self.block_size = block_size

    @property
    def directory_item(self) -> ContentInfo:
        """The value that stands for a directory before the sign phase, when only its existence is known."""
        return ContentInfo(DIRECTORY, 0, bytes(self.algorithm.digest_size), NO_VERSION)

    def new_hasher(self) -> ContentHasher:
        """Return a hasher for contents that are read in pieces."""
        return ContentHasher(self.algorithm, self.block_size)

    def digest_of_data(self, data: bytes) -> bytes:
        """Return the digest of a regular file that contains ``data``."""
        return file_digest(self.algorithm, len(data), content_root(self.algorithm, self.block_size, data))

    def digest_of_file(self, hasher: ContentHasher) -> bytes:
        """Return the digest of the regular file whose contents went through ``hasher``."""
        return file_digest(self.algorithm, hasher.size, hasher.root())

    def digest_of_chunks(self, size: int, roots: list[bytes]) -> bytes:
        """Return the digest of a regular file of ``size`` bytes, given the content roots of its chunks in order."""
        return file_digest(self.algorithm, size, combined_root(self.algorithm, roots))

    def digest_of_node(self, status: os.stat_result, link: bytes) -> bytes:
        """Return the digest of a symbolic link with the target text ``link``, of a FIFO or of a device; zeros for a
        socket, which has no digest.
        """
        if stat.S_ISLNK(status.st_mode):
            return symlink_digest(self.algorithm, link)
        if stat.S_ISSOCK(status.st_mode):
            return bytes(self.algorithm.digest_size)
        return special_digest(self.algorithm, status.st_mode, status.st_rdev)


def type_byte_of(status: os.stat_result) -> bytes:
    """Return the type byte of an item; ``SOCKET`` for a socket."""
    return type_byte(status.st_mode) or SOCKET
