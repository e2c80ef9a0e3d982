"""StoredEntries, SendEntries, EntriesNote, DeepestNote: they bring entries to the owners of their directories.

``StoredEntries`` wait for the sign phase where they were found. ``SendEntries`` sends them to the owners of the
directories, part by part, each as a task of its own, so that a rank which sends takes what it is sent in between.
"""

from __future__ import annotations

from collections.abc import Iterator

from pcopy.engine.backlog import SpoolBacklog
from pcopy.engine.task import Task
from pcopy.tasks.base.codec import decode, encode
from pcopy.tasks.base.hashing import split_digests
from pcopy.tasks.base.kind import Again, Gone, Note, Steps
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import Entries, unpack_names, unpack_numbers
from pcopy.tasks.sign.signing import Row, SignState, depth_of, owner_of


class StoredEntries(Note, code=50, doing="keeping entries of the signature"):
    """Entries that wait for the sign phase at the rank where they were found."""

    entries: Entries

    def mended(self, task: Task, gone: Gone) -> Iterator[Task]:
        return iter(()) if gone.has_entries(self.entries.path) else iter((task,))

    def run(self, rank: Rank, result: Result) -> None:
        found = rank.own(FoundEntries)
        if not found.waiting.count:
            result.spawn(SendEntries(), owner=rank.number)
        found.keep(self.entries)


class SendEntries(Again, code=51, doing="sorting the entries of the signature"):
    """The next part of this rank's entries is due."""

    def run(self, rank: Rank, result: Result) -> None:
        found = rank.own(FoundEntries)
        shares: dict[int, list[Entries]] = {}
        for packed in found.waiting.take_frame():
            note: EntriesNote = decode(packed.payload)
            for entries in note.parts:
                shares.setdefault(owner_of(entries.path, rank.size), []).append(entries)
        for owner, parts in shares.items():
            result.spawn(EntriesNote(tuple(parts)), owner=owner)
        if found.waiting.count:
            result.spawn(SendEntries(), owner=rank.number)
        else:
            result.spawn(DeepestNote(found.deepest), owner=0)


class EntriesNote(Again, code=52, doing="noting entries of the signature"):
    """Entries for the owner of their directories."""

    parts: tuple[Entries, ...]

    def run(self, rank: Rank, result: Result) -> Steps:
        signing, size = rank.own(SignState).signing, rank.hashing.algorithm.size
        for entries in self.parts:
            signing.add(entries.side, entries.path, _rows(entries, size))
            yield None


class DeepestNote(Again, code=53, doing="noting how deep directories lie"):
    """Tells rank 0 the depth of the deepest directory that a rank knows; the root has depth 0."""

    depth: int

    def run(self, rank: Rank, result: Result) -> None:
        """The levels begin at the deepest of all."""
        found = rank.own(FoundEntries)
        found.deepest = max(found.deepest, self.depth)


class FoundEntries:
    """What one rank has found for the signature and has not sent to the owners of the directories yet."""

    def __init__(self, rank: Rank) -> None:
        self.waiting = SpoolBacklog(rank.open_spool)
        self.deepest = 0
        """The depth of the deepest directory; at rank 0 that of all ranks, once they have told it."""

    def keep(self, entries: Entries) -> None:
        self.deepest = max(self.deepest, depth_of(entries.path))
        self.waiting.append(Task((0, 0, 0), int(Phase.SIGN), encode(EntriesNote((entries,))), 0))

    def close(self) -> None:
        self.waiting.close()


def _rows(entries: Entries, digest_size: int) -> Iterator[tuple[bytes, Row]]:
    columns = (unpack_names(entries.names), entries.kinds, unpack_numbers(entries.sizes))
    for name, code, size, digest in zip(*columns, split_digests(entries.digests, digest_size), strict=True):
        yield name, Row(bytes((code,)), entries.round, size, digest)
