"""The content tree: one digest for the contents of a file (the content root), computed from the digests of its blocks.

Let ``H`` be the digest algorithm. The root of one block is its digest, and the root of no blocks is ``H(b"")``. The
root of n > 1 blocks is ``H(0x01, root of the first k blocks, root of the other blocks)``, where k is the largest power
of two smaller than n.

While blocks are added in order, the state is a list of complete subtrees, each of a power of two of blocks, in
descending order of size: these sizes are the bits of the number of blocks so far. A new block, or a subtree that starts
at a multiple of its own size, is appended, and two neighbours of equal size are merged into one. At the end the last
two subtrees are merged until one is left. All subtrees to the right of one with k blocks have fewer than k blocks
together. So k is the largest power of two smaller than the number of blocks in it and in them, as the definition
demands.

The list is never longer than the number of blocks has bits. Since subtrees can be added, chunks of a power of two of
blocks can be hashed separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from pcopy.signature.algorithms import DigestAlgorithm, Hasher

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

INNER_NODE_PREFIX = b"\x01"
"""Prefix of the hashed data of an inner node, that is, of the roots of its two subtrees."""
_ZEROS = bytes(1 << 16)
"""Zeros that are hashed in place of a hole, piece by piece."""
_ZERO_HASHERS = 64
"""Number of cached hashers that have processed only zeros: 64 pieces ``_ZEROS`` are 4 MiB, a block of the usual
size.
"""
_MAX_LEVELS = 65
"""Number of cached roots of 1, 2, 4, ... blocks of zeros: enough for the largest file with the smallest blocks."""


class ContentHasher:
    """Computes the content root (the digest that is computed from the digests of the blocks) of bytes that are passed
    in order, in pieces of any length.
    """

    __slots__ = ("_algorithm", "_block_size", "_blocks", "_filled", "_partial", "_subtrees")

    def __init__(self, algorithm: DigestAlgorithm, block_size: int) -> None:
        """Start with no contents. ``block_size`` is in bytes. Raise ``ValueError`` unless it is a power of two."""
        if not is_power_of_two(block_size):
            raise ValueError(f"a block size of {block_size} is no power of two")
        self._algorithm = algorithm
        self._block_size = block_size
        self._blocks = 0
        self._filled = 0
        self._partial: Hasher | None = None
        self._subtrees = _ContentTreeHasher(algorithm)

    @property
    def size(self) -> int:
        """Number of bytes that have been added."""
        return self._blocks * self._block_size + self._filled

    def update(self, data: Buffer) -> None:
        """Add the next bytes. ``data`` is neither copied nor used after the call."""
        view = memoryview(data)
        if not view.nbytes:
            return
        if view.format != "B" or view.ndim != 1:
            view = view.cast("B")
        at, end, block_size = 0, view.nbytes, self._block_size
        if self._filled:
            at = min(block_size - self._filled, end)
            self._add_to_block(view[:at])
        while end - at >= block_size:
            self._add_subtree(0, self._algorithm.digest(view[at : at + block_size]))
            at += block_size
        if at < end:
            self._add_to_block(view[at:])

    def add_zero_bytes(self, count: int) -> None:
        """Add ``count`` zero bytes, as read(2) returns them for a hole.

        Whole blocks of zeros are not hashed, because their roots are cached. Raise ``ValueError`` if ``count`` is
        negative.
        """
        if count < 0:
            raise ValueError(f"a hole cannot have {count} bytes")
        block_size = self._block_size
        if self._filled:
            head = min(block_size - self._filled, count)
            self._add_zeros_to_block(head)
            count -= head
        blocks, tail = divmod(count, block_size)
        if blocks:
            roots = _root_digests_of_zero_blocks(self._algorithm, block_size)
        while blocks:
            level = blocks.bit_length() - 1
            if self._blocks:
                level = min(level, (self._blocks & -self._blocks).bit_length() - 1)
            self._add_subtree(level, roots[level])
            blocks -= 1 << level
        self._add_zeros_to_block(tail)

    def root(self) -> bytes:
        """Return the content root of all bytes so far; more may follow."""
        if self._partial is None:
            return self._subtrees.root()
        return self._subtrees.root(self._partial.digest())

    def _add_to_block(self, view: memoryview) -> None:
        """Add the bytes in ``view`` to the incomplete block; they are at most those that complete it."""
        if self._partial is None:
            self._partial = self._algorithm.new_hasher()
        self._partial.update(view)
        self._filled += len(view)
        if self._filled == self._block_size:
            digest = self._partial.digest()
            self._partial, self._filled = None, 0
            self._add_subtree(0, digest)

    def _add_zeros_to_block(self, count: int) -> None:
        """Add ``count`` zero bytes to the incomplete block; they are at most those that complete it."""
        whole = min(count // len(_ZEROS), _ZERO_HASHERS)
        if whole and not self._filled:  # A cached hasher saves time for files with many holes.
            self._partial = _hashers_of_zeros(self._algorithm)[whole - 1].copy()
            self._filled = whole * len(_ZEROS)
            count -= self._filled
        while count:
            piece = memoryview(_ZEROS)[: min(count, len(_ZEROS))]
            self._add_to_block(piece)
            count -= len(piece)

    def _add_subtree(self, level: int, root: bytes) -> None:
        """Add the next 2^``level`` blocks, which form a complete subtree with this ``root``."""
        self._subtrees.add(level, root)
        self._blocks += 1 << level


class _ContentTreeHasher:
    """Computes the root of a content tree from its leaves, which are added in order. A leaf is a block, or a chunk of a
    power of two of blocks. The object stores only the roots of complete subtrees, the largest subtree first.
    """

    __slots__ = ("_algorithm", "_roots")

    def __init__(self, algorithm: DigestAlgorithm) -> None:
        self._algorithm = algorithm
        self._roots: list[tuple[int, bytes]] = []

    def add(self, level: int, root: bytes) -> None:
        """Add the next 2^``level`` leaves as a subtree with this ``root``. The number of leaves before must be a
        multiple of 2^``level``.
        """
        roots = self._roots
        while roots and roots[-1][0] == level:
            root = self._algorithm.digest(INNER_NODE_PREFIX + roots.pop()[1] + root)
            level += 1
        roots.append((level, root))

    def root(self, rest: bytes | None = None) -> bytes:
        """Return the root of the tree of all leaves. ``rest`` is one more leaf at the end, unless it is None."""
        for _, root in reversed(self._roots):
            rest = root if rest is None else self._algorithm.digest(INNER_NODE_PREFIX + root + rest)
        return self._algorithm.digest(b"") if rest is None else rest


def content_root_digest(algorithm: DigestAlgorithm, block_size: int, data: Buffer) -> bytes:
    """Return the content root of a file whose contents are ``data``."""
    if memoryview(data).nbytes <= block_size:
        return algorithm.digest(data)
    hasher = ContentHasher(algorithm, block_size)
    hasher.update(data)
    return hasher.root()


def content_root_digest_of_chunks(algorithm: DigestAlgorithm, parts: Sequence[bytes]) -> bytes:
    """Return the content root of a whole file, given the content roots of its chunks (``parts``), in order.

    All chunks must have the same size, the block size times a power of two; only the last one may be shorter.
    """
    subtrees = _ContentTreeHasher(algorithm)
    for part in parts[:-1]:
        subtrees.add(0, part)
    return subtrees.root(*parts[-1:])


def is_power_of_two(number: int) -> bool:
    """Return True if ``number`` is a positive power of two."""
    return number > 0 and not number & (number - 1)


@lru_cache(maxsize=2)
def _hashers_of_zeros(algorithm: DigestAlgorithm) -> tuple[Hasher, ...]:
    """Return hashers that have processed the zeros ``_ZEROS`` once, twice, and so on. They are cached, so the caller
    must copy a hasher before it passes further bytes to it.
    """
    hasher, hashers = algorithm.new_hasher(), []
    for _ in range(_ZERO_HASHERS):
        hasher.update(_ZEROS)
        hashers.append(hasher.copy())
    return tuple(hashers)


@lru_cache(maxsize=8)
def _root_digests_of_zero_blocks(algorithm: DigestAlgorithm, block_size: int) -> tuple[bytes, ...]:
    """Return the content roots of 1, 2, 4, 8, ... blocks of zeros, each of ``block_size`` bytes. They are cached."""
    block = algorithm.new_hasher()
    for _ in range(0, block_size, len(_ZEROS)):
        block.update(memoryview(_ZEROS)[: min(block_size, len(_ZEROS))])
    roots = [block.digest()]
    while len(roots) < _MAX_LEVELS:
        roots.append(algorithm.digest(INNER_NODE_PREFIX + roots[-1] * 2))
    return tuple(roots)
