"""Which ranks are on other hosts than this one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from pcopy.engine.task import ANYBODY

_KNOWN_APART = 256  # hosts are told apart by a byte; those that share one are taken for the same


class Hosts:
    """``names`` are each rank's host; empty if all ranks are on this one."""

    def __init__(self, names: Sequence[str], rank: int) -> None:
        order = {name: number for number, name in enumerate(dict.fromkeys(names))}
        self._numbers = [order[name] % _KNOWN_APART for name in names]
        self.here = self._numbers[rank] if names else 0
        """This rank's host, as a byte."""
        self._turns = cycle(range(rank, rank + len(names)))

    def elsewhere(self, host: int) -> int:
        """A rank that is not on ``host``, each in its turn; ``ANYBODY`` if there is none."""
        for _ in self._numbers:
            rank = next(self._turns) % len(self._numbers)
            if self._numbers[rank] != host:
                return rank
        return ANYBODY
