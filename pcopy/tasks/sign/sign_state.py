"""The state of one rank in the sign phase: its share of the directories, and at rank 0 the results."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator

from pcopy.signature.manifest import ManifestWriter, unpack
from pcopy.signature.sorting import ExternalSorter
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.sign.signing import Digested, Signing, Tally

Line = tuple[bytes, bytes]
"""The key that lines are sorted by, and the packed entry."""


class Merging:
    """The parts that rank 0 has of all ``ranks``, on their way into the file."""

    def __init__(self, writer: ManifestWriter, ranks: int) -> None:
        self._writer = writer
        self._parts: list[deque[Line]] = [deque() for _ in range(ranks)]
        self._ended = [False] * ranks
        self._heads: list[tuple[Line, int]] = []
        self._missing = set(range(ranks))
        self._asked: set[int] = set()

    def take(self, rank: int, rows: tuple[Line, ...], last: bool) -> None:
        """The part that was asked of ``rank``."""
        self._parts[rank].extend(rows)
        self._ended[rank] = last
        self._missing.discard(rank)
        self._asked.discard(rank)
        self._next_of(rank)

    def _next_of(self, rank: int) -> None:
        if self._parts[rank]:
            heapq.heappush(self._heads, (self._parts[rank].popleft(), rank))
        elif not self._ended[rank]:
            self._missing.add(rank)

    def write(self) -> Iterator[None]:
        """Writes the lines that are the next of all, until a rank must be asked for more."""
        while self._heads and not self._missing:
            line, rank = heapq.heappop(self._heads)
            self._next_of(rank)
            self._writer.write(unpack(*line))
            yield

    def to_ask(self) -> list[int]:
        """The ranks whose next part is wanted and has not been asked for."""
        ranks = sorted(self._missing - self._asked)
        self._asked.update(ranks)
        return ranks

    @property
    def is_done(self) -> bool:
        return not self._heads and not self._missing

    def finish(self) -> None:
        """Gives the file its name."""
        self._writer.__exit__(None, None, None)

    def abandon(self) -> None:
        """Leaves the old file, if there was one."""
        error = InterruptedError()
        self._writer.__exit__(type(error), error, None)


class SignState:
    def __init__(self, rank: Rank) -> None:
        job = rank.job
        compares = not job.copies and (len(job.roots) > 1 or bool(job.against))
        lines = bool(job.options.manifest)
        self.signing = Signing(rank.hashing.algorithm, rank.open_spool, lines=lines, compares=compares)
        """This rank's directories, from the sign phase on."""
        self.level: Iterator[Digested] | None = None
        """The level that is digested now."""
        self.sorted_lines: Iterator[Line] | None = None
        """The manifest's lines of this rank that rank 0 has not asked for yet."""
        self.signatures: dict[int, tuple[bytes, Tally]] = {}
        """At rank 0: each side's digest and what it holds."""
        self.differences = ExternalSorter(rank.open_spool)
        """At rank 0: what differs, by the order of paths."""
        self.merging: Merging | None = None
        self.unwritten: Exception | None = None
        """At rank 0: why the manifest could not be written."""

    def close(self) -> None:
        """Forgets everything, and leaves a manifest that is not complete unwritten."""
        if self.merging is not None:
            self.merging.abandon()
            self.merging = None
        self.signing.close()
        self.differences.close()
