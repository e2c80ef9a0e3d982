"""The tasks of the sign phase: entries come to the owners of their directories, which are digested then.

``StoredEntries`` wait for the phase where they were found. ``SendEntries`` sends them to the owners of the directories.
``DigestLevel`` digests one level of directories, the deepest first, each by its owner. Both are done in parts, each as
a task of its own, so that a rank takes what it is sent between two parts, and nothing piles up.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from pcopy.engine.backlog import SpoolBacklog
from pcopy.engine.task import Task
from pcopy.fsio.kernel.columns import unpack_names
from pcopy.signature.items import DIRECTORY
from pcopy.signature.manifest import order_key
from pcopy.tasks.base.codec import decode, encode
from pcopy.tasks.base.hashing import split_digests
from pcopy.tasks.base.kind import Again, Gone, Note, Steps
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import Entries, unpack_numbers
from pcopy.tasks.sign.signing import Row, SignState, Tally, depth_of, owner_of

DIRECTORIES_AT_ONCE = 1024
"""Directories that one task digests."""
DIFFERENCES_AT_ONCE = 4096
"""In one message; a single part of a directory may bring some more."""


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
        signing, digest_size = rank.own(SignState).signing, rank.hashing.algorithm.size
        for entries in self.parts:
            columns = (unpack_names(entries.names), entries.kinds, unpack_numbers(entries.sizes))
            items = zip(*columns, split_digests(entries.digests, digest_size), strict=True)
            rows = ((name, Row(bytes((kind,)), entries.round, size, digest)) for name, kind, size, digest in items)
            signing.add(entries.side, entries.path, rows)
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


class DigestLevel(Again, code=54, doing="digesting directories"):
    """The next part of the directories of one level is due."""

    depth: int

    def run(self, rank: Rank, result: Result) -> Steps:
        sign = rank.own(SignState)
        if sign.level is None:
            sign.level = sign.signing.level(self.depth)
        rising: dict[int, list[tuple[int, bytes, bytes]]] = {}
        differences: list[tuple[str, bytes]] = []
        more = False
        for number, done in enumerate(islice(sign.level, DIRECTORIES_AT_ONCE), 1):
            differences += done.differences
            for side, path, digest, tally in done.directories:
                if self.depth:
                    owner = owner_of(path.rpartition(b"/")[0], rank.size)
                    row = Row(DIRECTORY, 0, 0, digest, tally).packed()
                    rising.setdefault(owner, []).append((side, path, row))
                else:
                    result.spawn(SignatureNote(side, digest, tally), owner=0)
            more = number == DIRECTORIES_AT_ONCE or len(differences) >= DIFFERENCES_AT_ONCE
            yield None
            if more:
                break
        for owner, rows in rising.items():
            result.spawn(DirectoriesNote(tuple(rows)), owner=owner)
        if differences:
            result.spawn(DifferencesNote(tuple(differences)), owner=0)
        if more:
            result.spawn(self, owner=rank.number)
        else:
            sign.level = None


class DirectoriesNote(Again, code=55, doing="noting digested directories"):
    """Digested directories: (side, path, packed entry) each, for the owner of the directory around them."""

    rows: tuple[tuple[int, bytes, bytes], ...]

    def run(self, rank: Rank, result: Result) -> None:
        for row in self.rows:
            rank.own(SignState).signing.add_directory(*row)


class SignatureNote(Again, code=56, doing="noting the signature"):
    """Tells rank 0 the digest of a whole dataset, and its counts (``pcopy.tasks.sign.signing.Tally``)."""

    side: int
    digest: bytes
    tally: tuple[int, ...]

    def run(self, rank: Rank, result: Result) -> None:
        rank.own(SignState).signatures[self.side] = (self.digest, Tally(*self.tally))


class DifferencesNote(Again, code=57, doing="noting differences"):
    """Tells rank 0 what differs between the two sides: (what, path) each."""

    rows: tuple[tuple[str, bytes], ...]

    def run(self, rank: Rank, result: Result) -> None:
        for what, path in self.rows:
            rank.own(SignState).differences.add(order_key(path), what.encode())
