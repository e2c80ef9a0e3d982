"""How large files are cut: into powers of two of blocks, so that a chunk is a whole subtree of the digest tree."""

from __future__ import annotations

CHUNKS_PER_RANK = 64
SMALLEST_CHUNK = 16 << 20
LARGEST_CHUNK = 1 << 30


def chunk_size(asked: int, block: int, known: int, ranks: int) -> int:
    """Bytes of one chunk: ``asked`` if that is not 0, else chosen for ``known`` bytes; block·2^k in any case."""
    wanted = asked or min(max(known // (ranks * CHUNKS_PER_RANK), SMALLEST_CHUNK), LARGEST_CHUNK)
    chunk = block
    while chunk < wanted:
        chunk *= 2
    return chunk
