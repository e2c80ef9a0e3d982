"""TellSums: each rank tells what it has found, summed up, when all is walked; SumsHeard: rank 0 hears it."""

from __future__ import annotations

from typing import cast

from pcopy.tasks.base.kind import Again
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.walk.finder import Finder
from pcopy.tasks.walk.tell_found import Hearer


class TellSums(Again, code=105, doing="summing up"):
    """On each rank, once."""

    def run(self, rank: Rank, result: Result) -> None:
        sums = rank.own(Finder).sums
        if sums is not None:
            result.spawn(SumsHeard(sums.words()), owner=0)


class SumsHeard(Again, code=106, doing="summing up"):
    """What one rank has found (``pcopy.walk.sums.WalkSums.words``)."""

    words: bytes

    def run(self, rank: Rank, result: Result) -> None:
        cast(Hearer, rank.sink).summed(self.words)
