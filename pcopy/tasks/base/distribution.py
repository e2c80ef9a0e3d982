"""Distribution of work over ranks: chunks of large files, directories over the ranks that own them, and verification on
other hosts than the one that wrote.

A chunk is a power of two of blocks, so it is a complete subtree of the digest tree.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import cycle

from pcopy.engine.task import ANY_RANK

CHUNKS_PER_RANK = 64
"""Number of chunks per rank into which the known bytes of the job are divided. With many chunks all ranks finish at
about the same time.
"""
MIN_CHUNK = 16 << 20
"""Least size of a chunk in bytes. For smaller chunks the cost of calls and messages would be noticeable."""
MIN_SEQUENTIAL_CHUNK = 256 << 20
"""Least size in bytes of chunks that are copied one after the other: starting one costs little in comparison, and a
killed job loses little.
"""
MAX_CHUNK = 1 << 30
"""Largest size of a chunk in bytes. A chunk that is unfinished when the job stops or is killed is copied again."""
MAX_CHUNKS = 1 << 16
"""Largest number of chunks of one file. Each is a task, and all are spawned together."""

SPARSE_CHUNKS_PER_RANK = 16
"""Number of chunks per rank into which a file with little data is divided. A chunk costs calls and messages even if it
is a hole.
"""

_HOST_NUMBERS = 256  # a host's number is stored in one byte; hosts with the same number are treated as one


class Hosts:
    """The hosts of all ranks.

    Args:
        names: name of each rank's host; empty if all ranks run on this host.
        rank: number of this rank.
        ranks: number of ranks.
    """

    def __init__(self, names: Sequence[str], rank: int, ranks: int = 1) -> None:
        self.names = names
        order = {name: number for number, name in enumerate(dict.fromkeys(names))}
        self._numbers = [order[name] % _HOST_NUMBERS for name in names]
        self.this_host = self._numbers[rank] if names else 0
        """Number of this rank's host, from 0 to 255."""
        self._rank_cycle = cycle(range(rank, rank + len(names)))
        self.host_count = max(1, len(order))
        """Number of hosts."""
        self.ranks_round_robin = _round_robin(names) or [*range(ranks)]
        """All ranks, in the order: the first rank of each host, then the second of each, and so on."""

    def rank_on_other_host(self, host: int) -> int:
        """Return a rank that is not on ``host``, another one at each call; ``ANY_RANK`` if all ranks
        are on that host.
        """
        for _ in self._numbers:
            rank = next(self._rank_cycle) % len(self._numbers)
            if self._numbers[rank] != host:
                return rank
        return ANY_RANK


def _round_robin(names: Sequence[str]) -> list[int]:
    """Return the numbers of all ranks in the order of ``Hosts.ranks_round_robin``."""
    seen: dict[str, int] = {}
    turn = []
    for name in names:
        turn.append(seen.get(name, 0))
        seen[name] = turn[-1] + 1
    return sorted(range(len(names)), key=turn.__getitem__)


def directory_depth(path: bytes) -> int:
    """Return the number of names in the path of a directory; 0 for the root (``b""``)."""
    return path.count(b"/") + 1 if path else 0


def directory_owner(path: bytes, size: int) -> int:
    """Return the rank that digests the directory ``path``. It is the same for both sides."""
    return zlib.crc32(path) % size


def chunk_size(asked: int, block: int, size: int, known: int, ranks: int, unit: int = 0) -> int:
    """Return the size in bytes of the chunks of a file of ``size`` bytes: a power of two of blocks, so that there are
    at most ``MAX_CHUNKS`` chunks.

    Args:
        asked: least size that the user wants; 0 to derive it from ``known``.
        block: size of a block.
        known: bytes of the whole job, as far as they are known.
        ranks: number of ranks.
        unit: least size. If a stripe is a power of two of blocks, no stripe extends over two chunks then.
    """
    least = asked or min(max(known // (ranks * CHUNKS_PER_RANK), MIN_CHUNK), MAX_CHUNK)
    least = max(least, unit, -(-size // MAX_CHUNKS))
    chunk = block
    while chunk < least:
        chunk *= 2
    return chunk


def sparse_chunk_size(chunk: int, size: int, data: int, ranks: int) -> int:
    """Return the size in bytes of the chunks, at least ``chunk``, of a file of ``size`` bytes that holds ``data`` bytes
    outside of holes.

    There are at most as many chunks as its data alone would have, or ``SPARSE_CHUNKS_PER_RANK`` for each rank,
    whichever is more.
    """
    most = max(-(-data // chunk), SPARSE_CHUNKS_PER_RANK * ranks)
    while size > most * chunk:
        chunk *= 2
    return chunk
