"""How large files are cut: into powers of two of blocks, so that a chunk is a whole subtree of the digest tree."""

from __future__ import annotations

CHUNKS_PER_RANK = 64
SMALLEST_CHUNK = 16 << 20
LARGEST_CHUNK = 1 << 30
MOST_CHUNKS = 1 << 16
"""Chunks of one file: each is a task, and all are made at once."""


def chunk_size(asked: int, block: int, size: int, known: int, ranks: int) -> int:
    """Bytes of one chunk of a file of ``size``: block·2^k, which makes ``MOST_CHUNKS`` of them or less.

    It is ``asked`` or more if that is not 0, else chosen for the ``known`` bytes of the job.
    """
    wanted = asked or min(max(known // (ranks * CHUNKS_PER_RANK), SMALLEST_CHUNK), LARGEST_CHUNK)
    wanted = max(wanted, -(-size // MOST_CHUNKS))
    chunk = block
    while chunk < wanted:
        chunk *= 2
    return chunk
