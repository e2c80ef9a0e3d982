"""Stops the deletion (``--delete``) on all ranks when one rank could not compare a directory with its source.

Each directory is compared separately, so deleting further might still be right. But a source that changes while it is
compared, for instance because a mount below it is removed, is not a reliable basis for deleting.
"""

from __future__ import annotations

from pcopy.tasks.base.kind import Note
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult


class DeletionState:
    """Records on each rank whether it may continue to delete (``Rank.own``)."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.is_stopped = False

    def stop(self, result: TaskResult) -> None:
        """Stop the deletion on this rank, and notify the others. In the phase COUNT this does nothing: nothing is
        deleted after a failure anyway.
        """
        if self.is_stopped or self._rank.phase != Phase.DELETE:
            return
        self.is_stopped = True
        for number in range(self._rank.size):
            if number != self._rank.number:
                result.spawn(StopDeletion(self._rank.job.run), owner=number)


class StopDeletion(Note, code=166, doing="stopping the deletion"):
    """A note that stops the deletion on one rank in the run ``of_run``; a later run compares the trees again."""

    of_run: int
    is_respawned_on_resume = True

    def run(self, rank: Rank, result: TaskResult) -> None:
        if self.of_run == rank.job.run:
            rank.instance(DeletionState).is_stopped = True
