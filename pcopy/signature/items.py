"""Digests of the items of a dataset: files, symbolic links, special files, and directories (from their children).

Rule: the first byte of the hashed data identifies the type of the item, so that the hashed data of items of different
types are never equal. Fields of variable length come last or are preceded by their length. Integers are unsigned and
big-endian.
"""

from __future__ import annotations

import os
import stat
import struct
from itertools import chain, islice
from operator import lt

from pcopy.signature.algorithms import DigestAlgorithm

FILE, DIRECTORY, SYMLINK, FIFO, CHARACTER_DEVICE, BLOCK_DEVICE = b"f", b"d", b"l", b"p", b"c", b"b"
"""Type bytes, which represent the types of items in signatures and manifests."""
ROOT_PATH = b"."
"""Path of the top directory of a dataset in its manifest."""
TYPE_BYTES = frozenset((FILE, DIRECTORY, SYMLINK, FIFO, CHARACTER_DEVICE, BLOCK_DEVICE))
"""All type bytes."""
_ALL_TYPE_BYTES = b"".join(TYPE_BYTES)
_CHILD_HEADER = struct.Struct(">BI")
"""Format of a child in the hashed data of its directory: type byte and length of the name."""
_TYPE_BY_MODE = {
    stat.S_IFREG: FILE,
    stat.S_IFDIR: DIRECTORY,
    stat.S_IFLNK: SYMLINK,
    stat.S_IFIFO: FIFO,
    stat.S_IFCHR: CHARACTER_DEVICE,
    stat.S_IFBLK: BLOCK_DEVICE,
}
"""Type byte by the file type of ``st_mode``."""


def type_byte(mode: int) -> bytes:
    """Return the type byte for the ``st_mode`` of an item; empty for a socket, which is not part of a dataset."""
    return _TYPE_BY_MODE.get(stat.S_IFMT(mode), b"")


def file_digest(algorithm: DigestAlgorithm, size: int, root: bytes) -> bytes:
    """Return the digest of a regular file of ``size`` bytes. ``root`` is its content root: the digest of its contents,
    computed from the digests of its blocks.
    """
    return algorithm.digest(b"\x02" + size.to_bytes(8, "big") + root)


def symlink_digest(algorithm: DigestAlgorithm, target: bytes) -> bytes:
    """Return the digest of a symbolic link to ``target``."""
    return algorithm.digest(b"\x04" + target)


def special_file_digest(algorithm: DigestAlgorithm, mode: int, rdev: int) -> bytes:
    """Return the digest of a FIFO or device with this ``st_mode`` and ``st_rdev``.

    Raise ``ValueError`` for any other type.
    """
    kind = type_byte(mode)
    if kind == FIFO:
        return algorithm.digest(b"\x05")
    if kind not in (CHARACTER_DEVICE, BLOCK_DEVICE):
        raise ValueError(f"mode {mode:o} is neither a FIFO nor a device")
    numbers = os.major(rdev).to_bytes(4, "big") + os.minor(rdev).to_bytes(4, "big")
    return algorithm.digest((b"\x06" if kind == CHARACTER_DEVICE else b"\x07") + numbers)


class DirectoryHasher:
    """Object that computes the digest of a directory from its children, which are passed in ascending order of the
    bytes of their names.
    """

    __slots__ = ("_hasher", "_last", "_size")

    def __init__(self, algorithm: DigestAlgorithm) -> None:
        self._hasher = algorithm.new_hasher()
        self._hasher.update(b"\x03")
        self._last = b""
        self._size = algorithm.digest_size

    def add_child(self, kind: bytes, name: bytes, digest: bytes) -> None:
        """Add the next child: its type byte, name and digest.

        If the child is out of order, or if its type or digest is invalid, raise ``ValueError`` and do not add it.
        """
        if name <= self._last:
            raise ValueError(f"{name!r} is listed after {self._last!r}: names must be unique and sorted by bytes")
        if kind not in TYPE_BYTES or len(digest) != self._size:
            raise ValueError(f"{name!r} has type {kind!r} and a digest of {len(digest)} bytes")
        self._hasher.update(b"%b%b%b%b" % (kind, len(name).to_bytes(4, "big"), name, digest))
        self._last = name

    def add_all_children(self, kinds: bytes, names: list[bytes], digests: list[bytes]) -> bytes:
        """Add the next children, which have these type bytes, names and digests. Return the data that were hashed for
        them: if two directories have equal data, their children are equal.

        If a child is out of order, or if a type or digest is invalid, raise ``ValueError`` and add none.
        """
        if not names:
            return b""
        if names[0] <= self._last or not all(map(lt, names, islice(names, 1, None))):
            raise ValueError(f"names from {names[0]!r} on are out of order: names must be unique and sorted by bytes")
        if kinds.strip(_ALL_TYPE_BYTES) or {*map(len, digests)} != {self._size}:
            raise ValueError(f"names from {names[0]!r} on have types {kinds!r}, or digests of another size")
        begins = map(_CHILD_HEADER.pack, kinds, map(len, names))
        hashed = b"".join(chain.from_iterable(zip(begins, names, digests, strict=True)))
        self._hasher.update(hashed)
        self._last = names[-1]
        return hashed

    def digest(self) -> bytes:
        """Return the digest of the children so far; more may follow."""
        return self._hasher.digest()
