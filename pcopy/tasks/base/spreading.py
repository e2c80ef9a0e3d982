"""How work is spread: a large file over ranks, directories over those that own them, and what is read back over other
hosts than those that have written it.

A chunk is a power of two of blocks, and so a whole subtree of the digest tree.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import cycle

from pcopy.engine.task import ANYBODY

CHUNKS_PER_RANK = 64
"""The bytes of the job that are known, divided by so many chunks for each rank, are a chunk: ranks end together."""
SMALLEST_CHUNK = 16 << 20
"""Bytes; below that a chunk's own calls and messages would count."""
SMALLEST_IN_TURN = 256 << 20
"""Bytes of chunks that follow one another: enough that beginning one takes nothing, and a killed job loses little."""
LARGEST_CHUNK = 1 << 30
"""Bytes; a chunk that was under way at a stop or a kill is copied again."""
MOST_CHUNKS = 1 << 16
"""Chunks of one file: each is a task, and all are made at once."""

CHUNKS_OF_HOLES = 16
"""Chunks for each rank into which a file with little data is cut: a chunk costs its calls and messages, also if it is a
hole."""

_KNOWN_APART = 256  # hosts are told apart by a byte; those that share one are taken for the same


class Hosts:
    """``names`` are each rank's host; empty if all ranks are on this one."""

    def __init__(self, names: Sequence[str], rank: int, ranks: int = 1) -> None:
        self.names = names
        order = {name: number for number, name in enumerate(dict.fromkeys(names))}
        self._numbers = [order[name] % _KNOWN_APART for name in names]
        self.here = self._numbers[rank] if names else 0
        """This rank's host, as a byte."""
        self._turns = cycle(range(rank, rank + len(names)))
        self.number = max(1, len(order))
        """How many hosts there are."""
        self.by_turns = _by_turns(names) or [*range(ranks)]
        """All ranks: the first one of each host, then the second ones, and so on."""

    def elsewhere(self, host: int) -> int:
        """A rank that is not on ``host``, each in its turn; ``ANYBODY`` if there is none."""
        for _ in self._numbers:
            rank = next(self._turns) % len(self._numbers)
            if self._numbers[rank] != host:
                return rank
        return ANYBODY


def _by_turns(names: Sequence[str]) -> list[int]:
    seen: dict[str, int] = {}
    turn = []
    for name in names:
        turn.append(seen.get(name, 0))
        seen[name] = turn[-1] + 1
    return sorted(range(len(names)), key=turn.__getitem__)


def depth_of(path: bytes) -> int:
    """How many names the path of a directory has; the root's (``b""``) has none."""
    return path.count(b"/") + 1 if path else 0


def owner_of(path: bytes, size: int) -> int:
    """The rank that digests the directory ``path``, whichever side it is on."""
    return zlib.crc32(path) % size


def chunk_size(asked: int, block: int, size: int, known: int, ranks: int, unit: int = 0) -> int:
    """Bytes of one chunk of a file of ``size``: block·2^k, which makes ``MOST_CHUNKS`` of them or less.

    It is ``asked`` or more if that is not 0, else chosen for the ``known`` bytes of the job; and ``unit`` or more: a
    stripe of a power of two of blocks lies in one chunk then.
    """
    wanted = asked or min(max(known // (ranks * CHUNKS_PER_RANK), SMALLEST_CHUNK), LARGEST_CHUNK)
    wanted = max(wanted, unit, -(-size // MOST_CHUNKS))
    chunk = block
    while chunk < wanted:
        chunk *= 2
    return chunk


def chunk_with_holes(chunk: int, size: int, data: int, ranks: int) -> int:
    """Return the bytes of one chunk, at least ``chunk``, of a file of ``size`` bytes that holds ``data`` bytes.

    There are no more chunks than its data make, or ``CHUNKS_OF_HOLES`` for each rank: the rest is holes.
    """
    most = max(-(-data // chunk), CHUNKS_OF_HOLES * ranks)
    while size > most * chunk:
        chunk *= 2
    return chunk
