"""The content tree: one digest for the contents of a file, made from the digests of its blocks.

With ``H`` the algorithm, the root of one block is its digest, that of no blocks is ``H(b"")``, and that of n > 1 blocks
is ``H(0x01, root of the first k, root of the rest)`` with k the largest power of two smaller than n.

Rule: while blocks come in order, what is known is a list of complete subtrees whose sizes are the bits of the number of
blocks, from the highest to the lowest. A new block, or a subtree that starts at a multiple of its own size, is put at
the end, and two neighbours of equal size become one. At the end the list is folded from the right: what lies right of a
subtree of k blocks is smaller than k, and so k is the largest power of two smaller than their sum. The list is never
longer than a block count has bits. For the same reason chunks of a power of two of blocks may be hashed apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from pcopy.signature.algorithms import Algorithm, Hasher

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

NODE = b"\x01"
_ZEROS = bytes(1 << 16)
_PREFIXES = 64
"""Hashers that have taken in zeros alone, and are kept: as many times ``_ZEROS`` as a block of the usual size has."""
_LEVELS = 65
"""Of a tree over all the blocks that a file can have, and one more."""


class ContentHasher:
    """The content root of bytes that come in order, in pieces of any length."""

    __slots__ = ("_algorithm", "_block_size", "_blocks", "_filled", "_partial", "_subtrees")

    def __init__(self, algorithm: Algorithm, block_size: int) -> None:
        """``block_size`` in bytes; raises ``ValueError`` unless it is a power of two."""
        if not is_power_of_two(block_size):
            raise ValueError(f"a block size of {block_size} is no power of two")
        self._algorithm = algorithm
        self._block_size = block_size
        self._blocks = 0
        self._filled = 0
        self._partial: Hasher | None = None
        self._subtrees = _Subtrees(algorithm)

    @property
    def size(self) -> int:
        return self._blocks * self._block_size + self._filled

    def update(self, data: Buffer) -> None:
        """The next bytes; nothing is copied or kept of them."""
        view = memoryview(data)
        if not view.nbytes:
            return
        if view.format != "B" or view.ndim != 1:
            view = view.cast("B")
        at, end, block_size = 0, view.nbytes, self._block_size
        if self._filled:
            at = min(block_size - self._filled, end)
            self._fill(view[:at])
        while end - at >= block_size:
            self._add(0, self._algorithm.digest(view[at : at + block_size]))
            at += block_size
        if at < end:
            self._fill(view[at:])

    def zeros(self, count: int) -> None:
        """``count`` zero bytes, as a hole reads; takes time only for blocks that are not all of the hole's."""
        if count < 0:
            raise ValueError(f"a hole of {count} bytes")
        block_size = self._block_size
        if self._filled:
            head = min(block_size - self._filled, count)
            self._fill_zeros(head)
            count -= head
        blocks, tail = divmod(count, block_size)
        if blocks:
            roots = _zero_roots(self._algorithm, block_size)
        while blocks:
            level = blocks.bit_length() - 1
            if self._blocks:
                level = min(level, (self._blocks & -self._blocks).bit_length() - 1)
            self._add(level, roots[level])
            blocks -= 1 << level
        self._fill_zeros(tail)

    def root(self) -> bytes:
        """The content root of all bytes so far; more may follow."""
        if self._partial is None:
            return self._subtrees.root()
        return self._subtrees.root(self._partial.digest())

    def _fill(self, view: memoryview) -> None:
        """More bytes of the block that is under way; at most those that it lacks."""
        if self._partial is None:
            self._partial = self._algorithm.new()
        self._partial.update(view)
        self._filled += len(view)
        if self._filled == self._block_size:
            digest = self._partial.digest()
            self._partial, self._filled = None, 0
            self._add(0, digest)

    def _fill_zeros(self, count: int) -> None:
        whole = min(count // len(_ZEROS), _PREFIXES)
        if whole and not self._filled:  # a hole before data: files with many extents have many of them
            self._partial = _after_zeros(self._algorithm)[whole - 1].copy()
            self._filled = whole * len(_ZEROS)
            count -= self._filled
        while count:
            piece = memoryview(_ZEROS)[: min(count, len(_ZEROS))]
            self._fill(piece)
            count -= len(piece)

    def _add(self, level: int, root: bytes) -> None:
        self._subtrees.add(level, root)
        self._blocks += 1 << level


class _Subtrees:
    """The complete subtrees of what came so far, each of a power of two of leaves, the largest first."""

    __slots__ = ("_algorithm", "_roots")

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm
        self._roots: list[tuple[int, bytes]] = []

    def add(self, level: int, root: bytes) -> None:
        """The next 2^``level`` leaves; those before must be a multiple of as many."""
        roots = self._roots
        while roots and roots[-1][0] == level:
            root = self._algorithm.digest(NODE + roots.pop()[1] + root)
            level += 1
        roots.append((level, root))

    def root(self, rest: bytes | None = None) -> bytes:
        """The root of everything, with the leaf ``rest`` as the last one if there is one."""
        for _, root in reversed(self._roots):
            rest = root if rest is None else self._algorithm.digest(NODE + root + rest)
        return self._algorithm.digest(b"") if rest is None else rest


def content_root(algorithm: Algorithm, block_size: int, data: Buffer) -> bytes:
    """The content root of bytes that are all in memory."""
    if memoryview(data).nbytes <= block_size:
        return algorithm.digest(data)
    hasher = ContentHasher(algorithm, block_size)
    hasher.update(data)
    return hasher.root()


def combine(algorithm: Algorithm, parts: Sequence[bytes]) -> bytes:
    """The content root of a file from those of its chunks, in order.

    All chunks must have the same size, the block size times a power of two; only the last one may be shorter.
    """
    subtrees = _Subtrees(algorithm)
    for part in parts[:-1]:
        subtrees.add(0, part)
    return subtrees.root(*parts[-1:])


def is_power_of_two(number: int) -> bool:
    return number > 0 and not number & (number - 1)


@lru_cache(maxsize=2)
def _after_zeros(algorithm: Algorithm) -> tuple[Hasher, ...]:
    """Return hashers that have taken in ``_ZEROS`` once, twice, and so on; they have to be copied."""
    hasher, hashers = algorithm.new(), []
    for _ in range(_PREFIXES):
        hasher.update(_ZEROS)
        hashers.append(hasher.copy())
    return tuple(hashers)


@lru_cache(maxsize=8)
def _zero_roots(algorithm: Algorithm, block_size: int) -> tuple[bytes, ...]:
    """The content roots of 1, 2, 4, 8, ... blocks of zeros."""
    block = algorithm.new()
    for _ in range(0, block_size, len(_ZEROS)):
        block.update(memoryview(_ZEROS)[: min(block_size, len(_ZEROS))])
    roots = [block.digest()]
    while len(roots) < _LEVELS:
        roots.append(algorithm.digest(NODE + roots[-1] * 2))
    return tuple(roots)
