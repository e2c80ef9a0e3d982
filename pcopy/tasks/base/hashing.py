"""Computes digests for tasks, with the algorithm and the block size of the job."""

from __future__ import annotations

import os
import stat

from pcopy.fsio.source import FileContentVersion
from pcopy.signature.algorithms import DigestAlgorithm, digest_algorithm_named
from pcopy.signature.items import DIRECTORY, file_digest, special_file_digest, symlink_digest, type_byte
from pcopy.signature.tree import ContentHasher, content_root_digest, content_root_digest_of_chunks
from pcopy.tasks.base.values import ContentInfo

SOCKET_TYPE_BYTE = b"s"
"""Type byte of sockets. They are verified, but a signature does not list them."""

UNKNOWN_VERSION = FileContentVersion(0, 0, 0, 0)
"""Version (inode, size, mtime, ctime) of an item whose real version is not known, or is not compared."""


class JobItemHasher:
    """Computes digests of items with the digest algorithm of a job. ``block_size`` is the size in bytes of the blocks,
    the leaves of the digest tree of a file.
    """

    def __init__(self, name: str, block_size: int) -> None:
        self.algorithm: DigestAlgorithm = digest_algorithm_named(name)
        self.block_size = block_size

    @property
    def placeholder_directory_info(self) -> ContentInfo:
        """Value that says only that a directory exists: size 0 and a digest of zeros. It stands for the directory until
        the phase SIGN, in which directories are digested.
        """
        return ContentInfo(DIRECTORY, 0, bytes(self.algorithm.digest_size), UNKNOWN_VERSION)

    def new_hasher(self) -> ContentHasher:
        """Return a hasher for the contents of one file, which are given to it piece by piece."""
        return ContentHasher(self.algorithm, self.block_size)

    def digest_of_data(self, data: bytes) -> bytes:
        """Return the digest of a regular file whose whole contents are ``data``."""
        return file_digest(self.algorithm, len(data), content_root_digest(self.algorithm, self.block_size, data))

    def digest_of_file(self, hasher: ContentHasher) -> bytes:
        """Return the digest of the regular file whose whole contents were given to ``hasher``."""
        return file_digest(self.algorithm, hasher.size, hasher.root())

    def digest_of_chunks(self, size: int, roots: list[bytes]) -> bytes:
        """Return the digest of a regular file of ``size`` bytes. ``roots`` are the digests of the contents of its
        chunks, in order (``content_root_digest``).
        """
        return file_digest(self.algorithm, size, content_root_digest_of_chunks(self.algorithm, roots))

    def digest_of_special_file(self, status: os.stat_result, link: bytes) -> bytes:
        """Return the digest of a symbolic link whose target text is ``link``, or of the FIFO or device with this
        ``status``. For a socket return zeros: sockets have no digest.
        """
        if stat.S_ISLNK(status.st_mode):
            return symlink_digest(self.algorithm, link)
        if stat.S_ISSOCK(status.st_mode):
            return bytes(self.algorithm.digest_size)
        return special_file_digest(self.algorithm, status.st_mode, status.st_rdev)


def item_type_byte(status: os.stat_result) -> bytes:
    """Return the type byte of an item with this ``status``, as in a signature; ``SOCKET_TYPE_BYTE`` for a socket, which
    a signature does not list.
    """
    return type_byte(status.st_mode) or SOCKET_TYPE_BYTE
