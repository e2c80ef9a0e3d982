"""InodesCopied: several ``InodeCopied`` notes of one bucket, packed into one note."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pcopy.engine.task import Task
from pcopy.tasks.base.codec import decode, encode
from pcopy.tasks.base.kind import Gone, Kind, Note
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import Place, bucket_of
from pcopy.tasks.links.group_links import InodeCopied


class InodesCopied(Note, code=36, doing="recording copies with hard links"):
    """A note that contains the packed ``InodeCopied`` ``notes`` of one bucket."""

    notes: tuple[bytes, ...]
    bucket: int

    waits_for_others = True

    def home(self, ranks: int) -> int:
        return self.bucket % ranks

    def readdress(self, task: Task, ranks: int) -> Task:
        return task._replace(phase=int(Phase.COPY), owner=self.home(ranks))

    def held(self) -> Iterator[InodeCopied]:
        return map(decode, self.notes)

    def places(self) -> Iterator[Place]:
        for note in self.held():
            yield from note.places()

    def reduced(self, task: Task, gone: Gone) -> Iterator[Task]:
        remaining: list[bytes] = []
        for note, packed in zip(self.held(), self.notes, strict=True):
            remaining += (each.payload for each in note.mended(task._replace(payload=packed), gone))
        if remaining:
            yield task._replace(payload=encode(self._replace(notes=tuple(remaining))))

    def run(self, rank: Rank, result: Result) -> None:
        result.hold()
        if result.id[0] < rank.job.run:
            for note in self.held():
                note.run(rank, result)


def notes_of(copied: Iterable[InodeCopied]) -> Iterator[Kind]:
    """Yield one note for each bucket."""
    buckets: dict[int, list[InodeCopied]] = {}
    for note in copied:
        buckets.setdefault(bucket_of(note.item.inode), []).append(note)
    for bucket, notes in buckets.items():
        yield InodesCopied(tuple(map(encode, notes)), bucket) if len(notes) > 1 else notes[0]
