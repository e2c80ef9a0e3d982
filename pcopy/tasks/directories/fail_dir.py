"""FailDir: a directory may fail more than once, and counts as failed once.

Each time its owner is told, who moves it from the copied items to the failed ones the first time. So before it is told,
the directory must have been counted as copied, or the note runs in a later phase: no count falls below zero.
"""

from __future__ import annotations

from pcopy.fsio.problem import Plain, Problem
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import Kind, OfPlace
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank, RankSet
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import Place
from pcopy.tasks.sign.signing import owner_of


class FailDir(OfPlace, code=6, doing="finishing", is_note=True):
    """Tells the rank that a directory belongs to what it has met; ``retry`` is for a job that is resumed."""

    problem: Plain
    retry: Kind | None

    def run(self, rank: Rank, result: Result) -> None:
        """Counts the directory as failed, unless it does already; tells of the problem in any case."""
        problem = Problem.from_plain(self.problem)
        failed = rank.own(FailedDirectories)
        if self.place.directory in failed:
            result.report(rank.shown(self.place, b"", on_source=problem.on_source), problem)
            return
        failed.add(self.place.directory)
        result.count(counts.DIRECTORIES, -1, self.place)
        if self.retry is None:
            result.fail(self.place, b"", problem, retry=self)
        else:
            result.fail(self.place, b"", problem, retry=self.retry, retry_in=Phase.FINISH)

    def home(self, ranks: int) -> int:
        return owner_of(self.place.path, ranks)

    def try_again(self, rank: Rank, result: Result, phase: int) -> None:
        """It takes the directory from the copied ones, where it counts until then."""
        result.count(counts.DIRECTORIES, 1, self.place)
        result.spawn(self, phase=phase, expands=phase == 0)


class FailedDirectories(RankSet[tuple[int, bytes]]):
    """Root and path of those that belong to this rank and count as failed."""


def directory_failed(
    result: Result, place: Place, problem: Problem, retry: Kind | None = None, *, phase: int | None = None
) -> None:
    """The directory has met ``problem``; a job that is resumed tries ``retry``. Without one it fails again then."""
    result.spawn(FailDir(place, problem.plain, retry), phase=phase)
