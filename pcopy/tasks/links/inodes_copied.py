"""``InodesCopiedNote`` contains several ``InodeCopiedNote`` of one bucket (group of inodes), so that fewer messages are
sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pcopy.engine.task import Task
from pcopy.tasks.base.codec import decode_task, encode_task
from pcopy.tasks.base.kind import MissingDirectories, TaskKind, TaskWithoutDirectory
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import Place, inode_bucket_number
from pcopy.tasks.links.group_links import InodeCopiedNote


class InodesCopiedNote(TaskWithoutDirectory, code=36, doing="recording copies with hard links"):
    """Note (message in the form of a short task) that contains several packed notes, each of which says that a copy of
    an inode with several names exists (``InodeCopiedNote``). All inodes belong to the group with the number ``bucket``.
    """

    notes: tuple[bytes, ...]
    bucket: int

    depends_on_other_tasks = True

    def assigned_rank(self, ranks: int) -> int:
        return self.bucket % ranks

    def with_reassigned_owner(self, task: Task, ranks: int) -> Task:
        return task._replace(phase=int(Phase.COPY), owner=self.assigned_rank(ranks))

    def carried_tasks(self) -> Iterator[InodeCopiedNote]:
        return map(decode_task, self.notes)

    def contained_directory_places(self) -> Iterator[Place]:
        for note in self.carried_tasks():
            yield from note.contained_directory_places()

    def replacement_tasks_if_directories_missing(self, task: Task, missing: MissingDirectories) -> Iterator[Task]:
        remaining: list[bytes] = []
        for note, packed in zip(self.carried_tasks(), self.notes, strict=True):
            remaining += (each.payload for each in note.replacement_tasks(task._replace(payload=packed), missing))
        if remaining:
            yield task._replace(payload=encode_task(self._replace(notes=tuple(remaining))))

    def run(self, rank: Rank, result: TaskResult) -> None:
        result.defer_task_completion()
        if result.id[0] < rank.job.run:
            for note in self.carried_tasks():
                note.run(rank, result)


def combined_notes_by_bucket(copied: Iterable[InodeCopiedNote]) -> Iterator[TaskKind]:
    """Combine the notes in ``copied``: yield one note for each group of inodes (``inode_bucket_number``), which
    contains all notes about inodes of that group.
    """
    buckets: dict[int, list[InodeCopiedNote]] = {}
    for note in copied:
        buckets.setdefault(inode_bucket_number(note.item.inode), []).append(note)
    for bucket, notes in buckets.items():
        yield InodesCopiedNote(tuple(map(encode_task, notes)), bucket) if len(notes) > 1 else notes[0]
