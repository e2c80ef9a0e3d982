"""Bookkeeping for work that several tasks do in parts: one rank counts the notes (messages about finished parts), in
any order, and acts after the last one.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from pcopy.engine.task import TaskId
from pcopy.errors import InvariantBroken
from pcopy.fsio.problem import Problem
from pcopy.tasks.base.kind import TaskSteps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult

Key = TypeVar("Key")
Opened = TypeVar("Opened")
Note = TypeVar("Note")


class ObjectAwaitingParts(Generic[Opened]):
    """An object, such as a file that is copied in chunks, some parts of which have not arrived yet.

    Args:
        opened: description of the object, from the note that announced it.
        parts: number of parts that are awaited.
        note_id: id of the task of that note.
    """

    __slots__ = ("deferred_notes", "opened", "problem", "remaining")

    def __init__(self, opened: Opened, parts: int, note_id: TaskId) -> None:
        self.opened = opened
        self.deferred_notes = [note_id]
        """Ids of the notes about this object. They are recorded as done only when all parts have arrived: until then a
        resumed job runs them again.
        """
        self.remaining = parts
        self.problem: Problem | None = None
        """The error of the first part that failed; None if none has."""


class CompletionLedger(Generic[Key, Opened, Note]):
    """The objects, such as large files, whose parts one rank awaits. A note about a part (message in the form of a
    short task) contains the key of its object. A subclass says what is done with a part, and after the last one.

    A resumed job runs its notes again, in any order. A note about a part may therefore arrive before the note that
    announces its object; then it is kept.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.awaited: dict[Key, ObjectAwaitingParts[Opened]] = {}
        self._early_notes: dict[Key, list[tuple[Note, TaskId]]] = {}

    def record_part_result(self, awaited: ObjectAwaitingParts[Opened], note: Note) -> None:
        """Store what ``note`` says about one part in ``awaited``, the object to which the part belongs. A subclass
        defines this.
        """
        raise NotImplementedError

    def complete_awaited_object(self, awaited: ObjectAwaitingParts[Opened], result: TaskResult) -> TaskSteps | None:
        """Complete the object ``awaited``, whose last part has arrived, for example record its digest. A subclass
        defines this.

        Return a generator that does it in slices (between them the rank handles messages), or None if all was done
        within this call.
        """
        raise NotImplementedError

    def open(self, key: Key, opened: Opened, parts: int, result: TaskResult) -> None:
        """Begin to await ``parts`` notes with this ``key``. Notes that arrived before are counted at once.

        Args:
            opened: description of the object.
            result: the result of the task of the note that announces the object.
        """
        result.defer_task_completion()
        self.awaited[key] = ObjectAwaitingParts(opened, parts, result.id)
        for note, task_id in self._early_notes.pop(key, []):
            self._count_part(key, note, task_id, result)

    def count_part(self, key: Key, note: Note, result: TaskResult) -> TaskSteps | None:
        """Count one part of the object with this ``key``. If the object was not announced yet, keep the ``note`` until
        it is.

        If this was the last part, the object is completed: return the generator that does this
        (``complete_awaited_object``), else None. Raise ``InvariantBroken`` if the object was not announced and the job
        was not resumed.
        """
        # Until the last part has arrived, only this rank's memory contains what the note says.
        result.defer_task_completion()
        if key in self.awaited:
            return self._count_part(key, note, result.id, result)
        if self._rank.job.run > 1:
            self._early_notes.setdefault(key, []).append((note, result.id))
        else:
            raise InvariantBroken(f"a part of {key!r}, which is not awaited on rank {self._rank.number}")
        return None

    def _count_part(self, key: Key, note: Note, task_id: TaskId, result: TaskResult) -> TaskSteps | None:
        """Count one part of an object that was announced, and complete the object if it was the last one. ``task_id``
        is the id of the task of the ``note`` about the part.
        """
        awaited = self.awaited[key]
        awaited.deferred_notes.append(task_id)
        self.record_part_result(awaited, note)
        awaited.remaining -= 1
        if not awaited.remaining:
            del self.awaited[key]
            result.complete_deferred_tasks(awaited.deferred_notes)
            return self.complete_awaited_object(awaited, result)
        return None
