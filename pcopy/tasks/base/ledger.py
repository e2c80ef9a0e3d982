"""Bookkeeping for work in n parts: the owner counts the notes about parts, in any order, and acts
after the last one.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from pcopy.engine.task import TaskId
from pcopy.errors import InvariantBroken
from pcopy.fsio.problem import Problem
from pcopy.tasks.base.kind import Steps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult

Key = TypeVar("Key")
Opened = TypeVar("Opened")
Note = TypeVar("Note")


class AwaitedParts(Generic[Opened]):
    """An object of which parts are still awaited.

    Args:
        opened: description of the object, from the note that opened it.
        parts: number of parts.
        note_id: id of that note.
    """

    __slots__ = ("deferred_notes", "opened", "problem", "remaining")

    def __init__(self, opened: Opened, parts: int, note_id: TaskId) -> None:
        self.opened = opened
        self.deferred_notes = [note_id]
        """Ids of the notes whose completion is deferred until all parts have arrived."""
        self.remaining = parts
        self.problem: Problem | None = None
        """The first problem that a part has met."""


class CompletionLedger(Generic[Key, Opened, Note]):
    """The objects whose parts one rank awaits, by key.

    A resumed job replays its notes in any order. A note about a part may therefore arrive before the note that opens
    its object; it waits here.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.awaited: dict[Key, AwaitedParts[Opened]] = {}
        self._early_notes: dict[Key, list[tuple[Note, TaskId]]] = {}

    def record_part(self, awaited: AwaitedParts[Opened], note: Note) -> None:
        """Record the contents of a note about one part."""
        raise NotImplementedError

    def act_when_complete(self, awaited: AwaitedParts[Opened], result: TaskResult) -> Steps | None:
        """Act after the last part. Return an iterator over slices, or None if everything was done within this call."""
        raise NotImplementedError

    def open(self, key: Key, opened: Opened, parts: int, result: TaskResult) -> None:
        """Begin to await ``parts`` notes with this ``key``. Notes that arrived before are taken into
        account at once.
        """
        result.defer_completion()
        self.awaited[key] = AwaitedParts(opened, parts, result.id)
        for note, task_id in self._early_notes.pop(key, []):
            self._count_part(key, note, task_id, result)

    def count_part(self, key: Key, note: Note, result: TaskResult) -> Steps | None:
        """Count one part. If its object was not opened yet, keep the ``note`` until it is.

        Return the slices of ``result`` if this was the last part, else None. Raise ``InvariantBroken`` if the object
        was never opened and the job was not resumed.
        """
        # Until the last part has arrived, only this rank's memory contains what the note says.
        result.defer_completion()
        if key in self.awaited:
            return self._count_part(key, note, result.id, result)
        if self._rank.job.run > 1:
            self._early_notes.setdefault(key, []).append((note, result.id))
        else:
            raise InvariantBroken(f"a part of {key!r}, which is not awaited on rank {self._rank.number}")
        return None

    def _count_part(self, key: Key, note: Note, task_id: TaskId, result: TaskResult) -> Steps | None:
        """Count one part of an open object."""
        awaited = self.awaited[key]
        awaited.deferred_notes.append(task_id)
        self.record_part(awaited, note)
        awaited.remaining -= 1
        if not awaited.remaining:
            del self.awaited[key]
            result.complete_deferred(awaited.deferred_notes)
            return self.act_when_complete(awaited, result)
        return None
