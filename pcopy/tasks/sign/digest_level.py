"""The tasks of the sign phase: entries come to the owners of their directories, which are digested then.

``StoredEntries`` wait for the phase where they were found. ``SendEntries`` sends them to the owners of the directories.
``DigestLevel`` digests one level of directories, the deepest first, each by its owner. Both are done in parts, each as
a task of its own, so that a rank takes what it is sent between two parts, and nothing piles up.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain

from pcopy.engine.backlog import SpoolBacklog
from pcopy.engine.task import Task
from pcopy.fsio.kernel.columns import pack_names
from pcopy.signature.items import DIRECTORY
from pcopy.signature.manifest import order_key
from pcopy.tasks.base.codec import decode, encode
from pcopy.tasks.base.kind import Again, Gone, Note, Steps
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.spreading import depth_of, owner_of
from pcopy.tasks.base.values import Entries
from pcopy.tasks.sign.children import Bundle, Tally
from pcopy.tasks.sign.signing import SignState

DIRECTORIES_AT_ONCE = 1024
"""Directories that one task digests."""
DIFFERENCES_AT_ONCE = 4096
"""In one message; a single part of a directory may bring some more."""
ROWS_PER_SLICE = 512
"""Entries of directories after which a rank looks up from its work."""


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
        signing = rank.own(SignState).signing
        for entries in self.parts:
            bundle = Bundle(entries.side, entries.round, entries.names, entries.kinds, entries.sizes, entries.digests)
            signing.add(entries.path, bundle)
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
        rising: defaultdict[tuple[int, bytes], list[tuple[bytes, bytes, Tally]]] = defaultdict(list)
        differences: list[tuple[str, bytes]] = []
        rows, more = 0, False
        for number, done in enumerate(sign.level, 1):
            differences += done.differences
            for side, path, digest, tally in done.directories:
                if self.depth:
                    around, _, name = path.rpartition(b"/")
                    rising[side, around].append((name, digest, tally))
                else:
                    result.spawn(SignatureNote(side, digest, tally), owner=0)
            rows += done.rows
            more = number == DIRECTORIES_AT_ONCE or len(differences) >= DIFFERENCES_AT_ONCE
            if more or rows >= ROWS_PER_SLICE:
                rows = 0
                yield None
            if more:
                break
        _rise(rising, rank, result)
        if differences:
            result.spawn(DifferencesNote(tuple(differences)), owner=0)
        if more:
            result.spawn(self, owner=rank.number)
        else:
            sign.level = None


def _rise(rising: dict[tuple[int, bytes], list[tuple[bytes, bytes, Tally]]], rank: Rank, result: Result) -> None:
    """Sends digested directories, by side and the directory around them, to the owners of those."""
    shares: defaultdict[int, list[tuple[int, bytes, bytes, bytes, bytes]]] = defaultdict(list)
    for (side, around), directories in rising.items():
        names, digests, tallies = zip(*directories, strict=True)
        numbers = array("Q", chain.from_iterable(tallies)).tobytes()
        shares[owner_of(around, rank.size)].append((side, around, pack_names(names), b"".join(digests), numbers))
    for owner, parts in shares.items():
        result.spawn(DirectoriesNote(tuple(parts)), owner=owner)


class DirectoriesNote(Again, code=55, doing="noting digested directories"):
    """Digested directories for the owners of the directories around them: the side and path of that directory, and the
    columns of those in it each: names, digests and tallies (five numbers of 8 bytes)."""

    parts: tuple[tuple[int, bytes, bytes, bytes, bytes], ...]

    def run(self, rank: Rank, result: Result) -> None:
        signing = rank.own(SignState).signing
        for side, path, names, digests, tallies in self.parts:
            number = names.count(b"/") + 1
            signing.add_directories(
                path, Bundle(side, 0, names, DIRECTORY * number, bytes(8 * number), digests, tallies)
            )


class SignatureNote(Again, code=56, doing="noting the signature"):
    """Tells rank 0 the digest of a whole dataset, and its counts (``pcopy.tasks.sign.children.Tally``)."""

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
