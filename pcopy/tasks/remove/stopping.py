"""Deletion (``--delete``) stops on all ranks when one of them could not compare a directory with its source.

What a mirror deletes after that might be right, since each directory is compared by itself. But a source that changes
while it is compared, as when a mount below it is removed, is not one to delete by.
"""

from __future__ import annotations

from pcopy.tasks.base.kind import Note
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result


class Deletion:
    """Whether a rank may go on deleting (``Rank.own``)."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.is_stopped = False

    def stop(self, result: Result) -> None:
        """Stop the deletion on this rank, and notify the others; in COUNT nothing is deleted afterwards anyway."""
        if self.is_stopped or self._rank.phase != Phase.DELETE:
            return
        self.is_stopped = True
        for number in range(self._rank.size):
            if number != self._rank.number:
                result.spawn(StopDeletion(self._rank.job.run), owner=number)


class StopDeletion(Note, code=166, doing="stopping the deletion"):
    """Stops the deletion on one rank, in the run ``of_run``: a later run compares the trees again."""

    of_run: int
    is_found_anew = True

    def run(self, rank: Rank, result: Result) -> None:
        if self.of_run == rank.job.run:
            rank.own(Deletion).is_stopped = True
