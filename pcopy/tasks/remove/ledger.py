"""RemovalEndedNote and RemovalLedger: a directory is removed after everything in it was removed, by whatever tasks.

A *part* of a removal is a task that removes a directory or some of its names. The rank that has found directories opens
an entry in its ledger. The entry waits until the parts that remove these directories have ended. Then the directory
that contains them is removed, and the entry of the directory above counts that.

A part that ends on the rank that waits for it is counted at once; another one sends a note. One task removes all
directories that become empty one after the other, from the bottom up.
"""

from __future__ import annotations

import time
from itertools import count
from typing import Protocol, cast

from pcopy.fast_named_tuple import NamedTuple
from pcopy.tasks.base.kind import TaskKind, TaskSteps, TaskWithoutDirectory
from pcopy.tasks.base.ledger import CompletionLedger, ObjectAwaitingParts
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.sibling_directories import MAX_TASK_SECONDS

Waiter = tuple[int, int, int]
"""Identifies the rank that waits for the end of a task: its number, the number under which it waits (in its
``RemovalLedger``), and the run of the job (each resume is a new run).
"""

NO_WAITER: Waiter = (-1, -1, -1)
"""Value of ``waiter`` of a task for a PATH of the command line: no rank waits until the PATH has been removed."""

MAX_RELATIVE_BYTES = 1024
"""Bytes of a path relative to another one from which on the ledger stores the paths below it relative to it: with
fewer, more steps are needed to make a whole path; with more, more memory.
"""


class RemovalEndedNote(TaskWithoutDirectory, code=83, doing="recording removals in"):
    """Message to a rank that waits until sub-directories have been removed: the task for one of them, or for some, is
    complete. ``has_remaining`` is True if that task has left an item.

    ``number`` is the number under which the rank waits. The rank ignores the message in any other run of the job than
    ``of_run``, since it does not wait there.
    """

    number: int
    has_remaining: bool
    of_run: int
    is_respawned_on_resume = True

    def run(self, rank: Rank, result: TaskResult) -> None:
        if self.of_run == rank.job.run:
            ledger = rank.shared_instance(RemovalLedger)
            ledger.count_part(self.number, self, result)
            ledger.count_ended_parts(result)
            ledger.spawn_removal_tasks(result)


class EmptyDirectoryRemoval(Protocol):
    """Protocol: the task that removes a directory in which nothing remains."""

    @property
    def estimated_operations(self) -> int:
        """The operations that --oplimit charges for the task."""

    def remove_empty_directory(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Remove the directory, and notify the rank that waits for that."""


class AwaitingRemoval(Protocol):
    """Protocol: a task, or a directory, that is finished when everything found in it was removed or has failed."""

    def finish_after_contents(self, rank: Rank, result: TaskResult, *, has_remaining: bool) -> None:
        """Called when all parts have ended. ``has_remaining`` is True if any item was not removed."""


class RelativePath:
    """The path of a directory, stored relative to that of a directory above it. A ledger may have an entry for each
    directory of a deep tree, whose full paths would together take memory in proportion to the square of its depth.
    """

    __slots__ = ("_above", "_path")

    def __init__(self, path: bytes, above: RelativePath | None = None) -> None:
        """Store ``path``, which is relative to ``above``."""
        self._path = path
        self._above = above

    def path_of(self, name: bytes) -> RelativePath:
        """Return the path of the item ``name`` in the directory."""
        if len(self._path) < MAX_RELATIVE_BYTES:
            return RelativePath(self._path + b"/" + name, self._above)
        return RelativePath(name, self)

    def full_path(self) -> bytes:
        """Return the whole path."""
        parts, path = list[bytes](), self
        while path._above is not None:
            parts.append(path._path)
            path = path._above
        return b"/".join((path._path, *reversed(parts)))


class _WaitingRemoval(NamedTuple):
    """A task or directory (``part``) that is finished when all directories that were found in it were removed or have
    failed. ``has_remaining`` is True if an item of it was not removed.
    """

    part: AwaitingRemoval
    has_remaining: bool


class RemovalLedger(CompletionLedger[int, _WaitingRemoval, RemovalEndedNote]):
    """The removals that are not finished because other tasks still remove directories in them. The keys are numbers
    that this rank assigns.
    """

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank)
        self._numbers = count()
        self._ended: list[RemovalEndedNote] = []
        """Parts that have ended on this rank and are not counted yet."""
        self._emptied: list[TaskKind] = []
        """Tasks (``EmptyDirectoryRemoval``) for directories in which nothing remains."""

    def new_waiters(self, number: int) -> list[Waiter]:
        """Return new values for the field ``waiter`` of tasks, for entries that the caller opens."""
        return [(self._rank.number, next(self._numbers), self._rank.job.run) for _ in range(number)]

    def open_entry(
        self, waiter: Waiter, part: AwaitingRemoval, parts: int, result: TaskResult, *, has_remaining: bool = False
    ) -> None:
        """Finish ``part`` only when ``parts`` tasks with this ``waiter`` have ended. ``has_remaining`` is True if
        ``part`` itself has left an item.
        """
        self.open(waiter[1], _WaitingRemoval(part, has_remaining), parts, result)

    def awaiting_part(self, waiter: Waiter) -> AwaitingRemoval | None:
        """Return the part that waits for the tasks with this ``waiter``; None if it does not wait on this rank."""
        owner, number, run = waiter
        is_here = (owner, run) == (self._rank.number, self._rank.job.run) and number in self.awaited
        return self.awaited[number].opened.part if is_here else None

    def notify(self, waiter: Waiter, result: TaskResult, *, has_remaining: bool) -> None:
        """Record that a task with this ``waiter`` is complete: notify the rank that waits for it. Do nothing if no rank
        waits in this run. ``has_remaining`` is True if any item was not removed.
        """
        owner, number, run = waiter
        if run != self._rank.job.run:
            return
        note = RemovalEndedNote(number, has_remaining, run)
        if owner == self._rank.number and self.counts_parts_at_once:
            self._ended.append(note)
        else:
            result.spawn_task(note, owner=owner)

    @property
    def counts_parts_at_once(self) -> bool:
        """True if a part that ends on the rank that waits for it is counted at once. A copy job sends notes, which are
        recorded for a resumed run.
        """
        return not self._rank.copy_options.delete

    def add_emptied_directory(self, task: TaskKind, result: TaskResult) -> None:
        """Have a directory removed in which nothing remains. ``task`` is an ``EmptyDirectoryRemoval``."""
        if self.counts_parts_at_once:
            self._emptied.append(task)
        else:
            result.spawn_task(task)

    def count_ended_parts(self, result: TaskResult) -> None:
        """Count the parts that have ended on this rank, and those that end thereby."""
        while self._ended:
            note = self._ended.pop()
            self.count_part(note.number, note, result)

    def spawn_removal_tasks(self, result: TaskResult) -> None:
        """Spawn a task for each directory that has become empty."""
        while self._emptied:
            result.spawn_task(self._emptied.pop())

    def remove_emptied_directories(self, result: TaskResult) -> TaskSteps:
        """Count the parts that have ended on this rank, and remove the directories that have become empty, from the
        bottom up. After ``MAX_TASK_SECONDS`` spawn tasks for the others.
        """
        end = time.monotonic() + MAX_TASK_SECONDS
        self.count_ended_parts(result)
        while self._emptied and self._rank.stop_reason is None and time.monotonic() < end:
            task = cast("EmptyDirectoryRemoval", self._emptied.pop())
            yield from self._rank.throttle.charge_limits_and_wait(operations=task.estimated_operations)
            yield from task.remove_empty_directory(self._rank, result)
            self.count_ended_parts(result)
        self.spawn_removal_tasks(result)

    def record_part_result(self, awaited: ObjectAwaitingParts[_WaitingRemoval], note: RemovalEndedNote) -> None:
        """Record in ``awaited`` that one of the tasks that it waits for has ended, and whether that one has left an
        item (``note.has_remaining``).
        """
        if note.has_remaining:
            awaited.opened = awaited.opened._replace(has_remaining=True)

    def complete_awaited_object(self, awaited: ObjectAwaitingParts[_WaitingRemoval], result: TaskResult) -> None:
        """Finish the waiting part (``awaited``): all tasks that it waited for have ended."""
        awaited.opened.part.finish_after_contents(self._rank, result, has_remaining=awaited.opened.has_remaining)
