"""Distribution of work over ranks: the size of the chunks of large files, the rank that digests a directory, and the
host that reads a copy back.

A chunk consists of a power of two of blocks. So it is a complete subtree of the digest tree, whose leaves are blocks.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from itertools import cycle

from pcopy.engine.task import ANY_RANK

CHUNKS_PER_RANK = 64
"""Number of chunks per rank into which all bytes that the job has found are divided. With many chunks all ranks finish
at about the same time.
"""
MIN_CHUNK = 16 << 20
"""Least size of a chunk in bytes. With smaller chunks the time for system calls and messages would be noticeable."""
MIN_SEQUENTIAL_CHUNK = 256 << 20
"""Least size in bytes of chunks of a file that are copied one after the other. To start such a chunk takes little time
in comparison, and a job that is killed loses little.
"""
MAX_CHUNK = 1 << 30
"""Largest size of a chunk in bytes. A chunk that is not finished when the job stops or is killed is copied again."""
MAX_CHUNKS = 1 << 16
"""Largest number of chunks of one file. Each chunk is a task, and all tasks of a file are spawned together."""

SPARSE_CHUNKS_PER_RANK = 16
"""Number of chunks per rank into which a file that consists mostly of holes is divided. Even a chunk that is a hole
costs system calls and messages.
"""

DEEPEST_SEPARATE_LEVEL = 32
"""Depth of the directories that are digested in one phase with everything below them, by one rank. Each level above has
a phase of its own, in which its directories are distributed over all ranks.
"""

_HOST_NUMBER_LIMIT = 256  # a host's number is stored in one byte; hosts with the same number are treated as one


class Hosts:
    """The hosts on which the ranks run, by number.

    Args:
        names: name of each rank's host; empty if all ranks run on this host.
        rank: number of this rank.
        ranks: number of ranks; used only without ``names``.
    """

    def __init__(self, names: Sequence[str], rank: int, ranks: int = 1) -> None:
        self.names = names
        order = {name: number for number, name in enumerate(dict.fromkeys(names))}
        self._numbers = [order[name] % _HOST_NUMBER_LIMIT for name in names]
        self.this_host = self._numbers[rank] if names else 0
        """Number of the host on which this rank runs, from 0 to 255."""
        self._rank_cycle = cycle(range(rank, rank + len(names)))
        self.host_count = max(1, len(order))
        """Number of different hosts on which ranks run."""
        self.ranks_round_robin = _ranks_round_robin(names) or [*range(ranks)]
        """Numbers of all ranks, in the order: the first rank of each host, then the second of each, and so on."""

    def rank_on_other_host(self, host: int) -> int:
        """Return the number of a rank that is not on the host number ``host``; successive calls return different ranks.
        Return ``ANY_RANK`` if all ranks are on that host.
        """
        for _ in self._numbers:
            rank = next(self._rank_cycle) % len(self._numbers)
            if self._numbers[rank] != host:
                return rank
        return ANY_RANK


def _ranks_round_robin(names: Sequence[str]) -> list[int]:
    """Return the numbers of all ranks: the first rank of each host, then the second of each, and so on. ``names`` has
    the name of each rank's host.
    """
    seen: dict[str, int] = {}
    turn = []
    for name in names:
        turn.append(seen.get(name, 0))
        seen[name] = turn[-1] + 1
    return sorted(range(len(names)), key=turn.__getitem__)


def directory_depth(path: bytes) -> int:
    """Return the number of names in the path of a directory; 0 for the root directory (``b""``)."""
    return path.count(b"/") + 1 if path else 0


_match_highest_levels = re.compile(rb"[^/]*(?:/[^/]*){,%d}" % (DEEPEST_SEPARATE_LEVEL - 1)).match


def highest_levels_of_path(path: bytes) -> bytes:
    """Return the path of the ancestor of the directory ``path`` that has the depth ``DEEPEST_SEPARATE_LEVEL``. Return
    ``path`` itself if it is not deeper.
    """
    found = _match_highest_levels(path)
    assert found is not None
    return found[0]


def rank_digesting_directory(path: bytes, size: int) -> int:
    """Return the number of the rank that digests the directory ``path``, in a job of ``size`` ranks. If two trees are
    compared, one rank digests the directories of both trees with this path.

    A directory below ``DEEPEST_SEPARATE_LEVEL`` is digested by the same rank as its ancestor of that depth.
    """
    return zlib.crc32(highest_levels_of_path(path)) % size


def chunk_size(requested: int, block: int, size: int, found_bytes: int, ranks: int, unit: int = 0) -> int:
    """Return the size in bytes of the chunks (parts that one task copies) of a file of ``size`` bytes. It is ``block``
    times a power of two, and there are at most ``MAX_CHUNKS`` chunks.

    Args:
        requested: least size of a chunk that the user wants; 0 to derive it from ``found_bytes``.
        block: size in bytes of a block, a leaf of the digest tree.
        found_bytes: bytes of all files of the job that were found so far.
        ranks: number of ranks.
        unit: another least size, such as the size of a stripe; 0 for none. If a stripe is a power of two of blocks, no
            stripe is then part of two chunks.
    """
    least = requested or min(max(found_bytes // (ranks * CHUNKS_PER_RANK), MIN_CHUNK), MAX_CHUNK)
    least = max(least, unit, -(-size // MAX_CHUNKS))
    chunk = block
    while chunk < least:
        chunk *= 2
    return chunk


def sparse_chunk_size(chunk: int, size: int, data: int, ranks: int) -> int:
    """Return the size in bytes of the chunks of a file with holes: ``chunk``, or a power of two of it.

    The number of chunks depends on the data, not on the size of the file: there are at most as many chunks as the data
    alone would fill, or ``SPARSE_CHUNKS_PER_RANK`` for each rank, whichever is more.

    Args:
        chunk: size of the chunks if the file had no holes.
        size: size of the file in bytes.
        data: bytes of the file outside of holes.
        ranks: number of ranks.
    """
    most = max(-(-data // chunk), SPARSE_CHUNKS_PER_RANK * ranks)
    while size > most * chunk:
        chunk *= 2
    return chunk
