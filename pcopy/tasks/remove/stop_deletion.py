"""Stops the deletion (``--delete``) on all ranks after one rank could not compare a directory with its source.

The other directories could still be compared correctly. But if the source changes while it is compared, for instance
because a mount in it is removed, the comparison is no reliable basis for deleting.
"""

from __future__ import annotations

from pcopy.tasks.base.kind import TaskWithoutDirectory
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult


class DeletionState:
    """Whether this rank may continue to delete; one object per rank."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.is_stopped = False

    def stop(self, result: TaskResult) -> None:
        """Stop the deletion on this rank, and notify the others. This has no effect in the phase COUNT, which only
        counts extra items: after a failure there, the phase that deletes does not begin.
        """
        if self.is_stopped or self._rank.phase != Phase.DELETE:
            return
        self.is_stopped = True
        for number in range(self._rank.size):
            if number != self._rank.number:
                result.spawn_task(StopDeletion(self._rank.job.run), owner=number)


class StopDeletion(TaskWithoutDirectory, code=166, doing="stopping the deletion"):
    """Message that stops the deletion on the rank that receives it. It has an effect only in the run ``of_run`` of the
    job (each resume is a new run); a later run compares the trees again.
    """

    of_run: int
    is_respawned_on_resume = True

    def run(self, rank: Rank, result: TaskResult) -> None:
        if self.of_run == rank.job.run:
            rank.shared_instance(DeletionState).is_stopped = True
