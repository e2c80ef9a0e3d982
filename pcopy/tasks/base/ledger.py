"""A thing in n parts: its owner counts the notes about them, in any order; after the last one something is done."""

from __future__ import annotations

from typing import Generic, TypeVar

from pcopy.engine.task import TaskId
from pcopy.errors import InvariantBroken
from pcopy.fsio.problem import Problem
from pcopy.tasks.base.kind import Steps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result

Key = TypeVar("Key")
Opened = TypeVar("Opened")
Note = TypeVar("Note")


class Awaited(Generic[Opened]):
    """Something of which ``parts`` are awaited; ``opened`` is what was told of it first."""

    __slots__ = ("held", "opened", "problem", "remaining")

    def __init__(self, opened: Opened, parts: int, told_by: TaskId) -> None:
        self.opened = opened
        self.held = [told_by]
        """The notes that are held for it."""
        self.remaining = parts
        self.problem: Problem | None = None
        """The first that any part has met."""


class Ledger(Generic[Key, Opened, Note]):
    """What one rank waits for. A resumed job tells its notes in any order: some wait here for what they belong to."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.awaited: dict[Key, Awaited[Opened]] = {}
        self._early: dict[Key, list[tuple[Note, TaskId]]] = {}

    def noted(self, awaited: Awaited[Opened], note: Note) -> None:
        """Takes what a note tells."""
        raise NotImplementedError

    def ended(self, awaited: Awaited[Opened], result: Result) -> Steps | None:
        """Does what is to be done after the last note, at once or in slices."""
        raise NotImplementedError

    def open(self, key: Key, opened: Opened, parts: int, result: Result) -> None:
        """From now on ``parts`` notes of ``key`` are awaited; some may have come before."""
        result.hold()
        self.awaited[key] = Awaited(opened, parts, result.id)
        for note, task_id in self._early.pop(key, []):
            self._take(key, note, task_id, result)

    def take(self, key: Key, note: Note, result: Result) -> Steps | None:
        """One part less to wait for. If nobody has told of what it belongs to yet, the ``note`` waits.

        Returns what ``ended`` does in slices.
        """
        result.hold()
        if key in self.awaited:
            return self._take(key, note, result.id, result)
        if self._rank.job.run > 1:
            self._early.setdefault(key, []).append((note, result.id))
        else:
            raise InvariantBroken(f"a part of {key!r}, which is not awaited on rank {self._rank.number}")
        return None

    def _take(self, key: Key, note: Note, task_id: TaskId, result: Result) -> Steps | None:
        awaited = self.awaited[key]
        awaited.held.append(task_id)
        self.noted(awaited, note)
        awaited.remaining -= 1
        if not awaited.remaining:
            del self.awaited[key]
            result.settle(awaited.held)
            return self.ended(awaited, result)
        return None
