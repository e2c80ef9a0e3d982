"""The visitor of ``ptar -c``: it describes what the walk finds, and sends the descriptions to the ranks that own
directories.

``MembersNote`` carries descriptions. Names of inodes with several hard links are first brought together
(``GroupLinkNames``): the first of them in the order of the archive becomes the file, the others become links to it.
"""

from __future__ import annotations

import marshal
import os
import zlib
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence

from pcopy.engine.ticket import Stepwise
from pcopy.fsio.identity import Identity
from pcopy.fsio.kernel.columns import LINKS, Code, pack_names
from pcopy.fsio.kernel.directory_batches import Bare
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of
from pcopy.signature.sorting import ExternalSorter, KeyValue
from pcopy.tasks.archive.described import Described, Describing, as_link, described_in, directory_in
from pcopy.tasks.archive.plain_files import is_of_plain, plain_in, plain_rows, sorted_files
from pcopy.tasks.archive.readable import Readable
from pcopy.tasks.base import counts
from pcopy.tasks.base.attempts import failed_or_retried
from pcopy.tasks.base.kind import Note, Steps
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result, Tried
from pcopy.tasks.base.values import NOWHERE, Place
from pcopy.tasks.copying import Finding
from pcopy.walk.visitor import Found

SORT_BUDGET = 32 << 20
"""Bytes of memory for sorting the members of a rank. Further members are spilled to a spool."""
MOST_PLAIN = 8 << 20
"""Bytes of records of simple files of one directory that are kept in their packed form."""
_BUCKETS = 1 << 14
"""Number of groups of directories for which the bytes of such records are counted. A small directory seldom shares its
group with a large one."""
_ITEMS_PER_SLICE = 32
"""Number of items that are described in one slice of a task."""
_AT_ONCE = 512
"""Number of links that are sent together."""


def owner_of_members(rank: Rank, root: int, path: bytes) -> int:
    """Return the number of the rank that lays out the members of the directory ``path``.

    All members of a compressed archive are laid out by rank 0.
    """
    return 0 if rank.options.compress_as else zlib.crc32(path, root) % rank.size


class Gathering(Finding):
    """Visitor that describes every item that the walk finds in a directory."""

    links_apart = True

    def __init__(self, rank: Rank, result: Result, place: Place, attempt: int) -> None:
        super().__init__(rank, result, place, attempt)
        self._describing = rank.own(Describing)
        self._small: list[tuple[Found, Sequence[int]]] = []
        self._items: list[tuple[Found, Sequence[int]]] = []
        self._linked: list[tuple[Found, Sequence[int]]] = []
        self._records: defaultdict[int, list[KeyValue]] = defaultdict(list)
        self._names: defaultdict[int, list[KeyValue]] = defaultdict(list)

    def small_files(self, found: Found, rows: Sequence[int]) -> None:
        self._small.append((found, rows))

    def large_files(self, found: Found, rows: Sequence[int]) -> None:
        self._items.append((found, rows))

    nodes = large_files

    def linked(self, found: Found, rows: Sequence[int]) -> None:
        self._linked.append((found, rows))

    def _selected_rows(self, found: Found) -> Sequence[int]:
        """Return the rows that the filters select. An item that was listed can lie in an excluded directory: then all
        are excluded."""
        if self._rank.job.listed and self._selected.excludes_below(self._place.path + b"/"):
            for counter in (counts.SKIPPED, counts.EXCLUDED):
                self._result.count(counter, len(found))
            return ()
        return super()._selected_rows(found)

    def directories(self, found: Found, rows: Sequence[int]) -> None:
        super().directories(found, [row for row in rows if self._describe(found, row) is not None])

    def _describe(self, found: Found, row: int) -> Described | None:
        """Describe an item, and record it for the rank that owns its directory.

        Return the description; None if that failed, or the item is not archived.
        """
        described = self._described(found, row)
        if described is not None:
            owner = owner_of_members(self._rank, described.root, described.path)
            self._records[owner].append(described.record)
        return described

    def _described(self, found: Found, row: int) -> Described | None:
        """Return the description of an item; None if that failed, or the item is not archived. Failures are
        reported."""
        place, name = self._place, found.names[row]
        if self._rank.job.own and self._is_own(name):
            return None
        try:
            described = self._describing.item(place, found, row)
        except Problem as problem:
            failed_or_retried(self._result, place, name, problem, self._attempt, at_once=True)
            return None
        if described is None:
            self._result.count(counts.SKIPPED)
            self._result.warn(place, name, "a socket, which no archive holds: it is left out", on_source=True)
        return described

    def _is_own(self, name: bytes) -> bool:
        """Return True if the item ``name`` is the archive itself; it is counted as skipped, with a warning."""
        path = self._place.path + b"/" + name if self._place.path else name
        if (self._place.root, path) not in self._rank.job.own:
            return False
        self._result.count(counts.SKIPPED)
        self._result.warn(self._place, name, "is the archive itself: it is left out", on_source=True)
        return True

    def settle(self) -> Steps:
        """Describe all items that were collected, in slices."""
        for found, rows in self._small:
            if others := (yield from self._plain(found, rows)):
                self._items.append((found, others))
        for found, rows in self._items:
            for at, row in enumerate(rows):
                described = self._describe(found, row)
                if described is not None:
                    self._found_bytes += described.member.size
                if at % _ITEMS_PER_SLICE == _ITEMS_PER_SLICE - 1:
                    yield None
        for found, rows in self._linked:
            for row in rows:
                self._link(found, row)
            yield None

    def _plain(self, found: Found, rows: Sequence[int]) -> Stepwise[Sequence[int]]:
        """Record the simple files (``pcopy.tasks.archive.plain_files``) among the small files ``rows``; return the
        other rows."""
        place = self._place
        try:
            is_generated = rows and self._rank.mover.generated.is_on(found.directory, found.rows.device[rows[0]])
        except Problem:  # each file reports it
            return rows
        if is_generated or not self._rank.kernel.enters or self._rank.job.roots[place.root].item:
            return rows
        archive_names = {
            os.path.basename(path) for root, path in self._rank.job.own if (root, os.path.dirname(path)) == place[:2]
        }
        chosen = [row for row in rows if found.names[row] not in archive_names] if archive_names else rows
        prefix, owners = self._describing.prefix(place), self._describing.owners(found)
        chosen = plain_rows(found, chosen, prefix, owners)
        if doubtful := {*self._rank.own(Readable).doubtful(found, chosen)}:
            chosen = [row for row in chosen if row not in doubtful]
        if chosen:
            packed = found.packed if len(chosen) == len(found) else pack_names(found.names[row] for row in chosen)
            outcome = yield from self._rank.done(Bare(found.directory, packed))
            without_attributes = outcome.verdicts.rows(Code.DONE)
            chosen = chosen if len(without_attributes) == len(chosen) else [chosen[each] for each in without_attributes]
        if chosen:
            files = sorted_files(place.root, place.path, prefix, found, chosen, owners)
            owner = owner_of_members(self._rank, place.root, place.path)
            self._records[owner].append(files.record)
            self._found_bytes += sum(files.sizes)
        return [*{*rows}.difference(chosen)] if len(chosen) < len(rows) else ()

    def _link(self, found: Found, row: int) -> None:
        """Record a name of an inode with several hard links, for the rank that brings its names together."""
        described = self._described(found, row)
        if described is None:
            return
        mount = self._mounts.file_code(found.rows.device[row], self._place.source_id.mount, b"")
        inode = b"%016x%016x" % (mount, described.inode)
        key, value = described.record
        self._names[described.inode % self._rank.size].append((inode + key, value))
        if found.rows.mask & LINKS:
            self._found_bytes += described.member.size

    def finish(self) -> None:
        """Send the records to the ranks that own the directories."""
        for owner, records in self._records.items():
            self._result.spawn(MembersNote(marshal.dumps(records)), owner=owner)
        for owner, records in self._names.items():
            self._result.spawn(MembersNote(marshal.dumps(records), True), owner=owner)
        super().finish()


class Laid:
    """The members that this rank owns and lays out, sorted by key."""

    def __init__(self, rank: Rank) -> None:
        self.members = ExternalSorter(rank.open_spool, SORT_BUDGET)
        self.names = ExternalSorter(rank.open_spool, SORT_BUDGET)
        """Names of inodes with several hard links, sorted by inode."""
        self.has_names = False
        """True once any such name was received, and ``GroupLinkNames`` was spawned."""
        self._plain = array("Q", [0]) * _BUCKETS

    def add(self, key: bytes, value: bytes) -> None:
        """Add a record.

        A record that holds many simple files is split into one record for each file if its directory has too many: the
        pieces of such a directory would otherwise all be in memory at the same time.
        """
        if is_of_plain(value):
            bucket = zlib.crc32(directory_in(key)) % _BUCKETS
            self._plain[bucket] += len(value)
            if self._plain[bucket] > MOST_PLAIN:
                files = plain_in(value)
                for row in range(len(files)):
                    self.members.add(*files.described(row).record)
                return
        self.members.add(key, value)

    def close(self) -> None:
        """Close the sorters and their spools."""
        self.members.close()
        self.names.close()


class MembersNote(Note, code=130, doing="gathering members"):
    """Note to the rank that lays out members: their descriptions, packed.

    If ``linked`` is true, they are names of inodes with several hard links. Their keys begin with the inode, and the
    rank first brings the names of each inode together.
    """

    records: bytes
    linked: bool = False

    def run(self, rank: Rank, result: Result) -> None:
        laid = rank.own(Laid)
        if self.linked and not laid.has_names:
            laid.has_names = True
            result.spawn(GroupLinkNames(), phase=Phase.LINK, owner=rank.number)
        if self.linked:
            for record in marshal.loads(self.records):
                laid.names.add(*record)
            return
        for key, value in marshal.loads(self.records):
            laid.add(key, value)


class GroupLinkNames(Note, code=132, doing="finding hard links", is_note=False):
    """Task of a rank that has received names of inodes with several hard links.

    The first name of each inode becomes the file, the others become links to it.
    """

    def run(self, rank: Rank, result: Result) -> Steps:
        laid = rank.own(Laid)
        records: defaultdict[int, list[KeyValue]] = defaultdict(list)
        for number, (owner, record) in enumerate(self._grouped(rank, laid.names, result)):
            records[owner].append(record)
            if number % _AT_ONCE == _AT_ONCE - 1:
                _send(result, records)
                yield None
        _send(result, records)
        laid.names.close()

    def _grouped(self, rank: Rank, names: ExternalSorter, result: Result) -> Iterator[tuple[int, KeyValue]]:
        """Yield the record of each name, and the number of the rank that owns its directory."""
        first: Described | None = None
        inode, others = b"", list[tuple[bytes, bytes]]()
        for key, value in names.sorted():
            described = described_in(value)
            if first is not None and key[:32] == inode:
                if described.member.name == first.member.name:  # the user has given the same PATH twice
                    result.count(counts.SKIPPED)
                    continue
                others.append((described.path, described.name))
                yield _addressed(rank, as_link(described, first))
                continue
            if first is not None:
                yield _addressed(rank, first._replace(names=tuple(others) if rank.signs else ()))
            first, inode, others = described, key[:32], []
        if first is not None:
            yield _addressed(rank, first._replace(names=tuple(others) if rank.signs else ()))


def _addressed(rank: Rank, described: Described) -> tuple[int, KeyValue]:
    """Return the record of ``described``, and the number of the rank that owns its directory."""
    return owner_of_members(rank, described.root, described.path), described.record


def _send(result: Result, records: defaultdict[int, list[KeyValue]]) -> None:
    """Send ``records`` to the ranks that own the directories, and clear them."""
    for owner, some in records.items():
        result.spawn(MembersNote(marshal.dumps(some)), owner=owner)
    records.clear()


class DescribeRoot(Note, code=133, doing="examining", is_note=False):
    """Task that describes the directory of the root number ``root``, which becomes its first member."""

    root: int

    def run(self, rank: Rank, result: Result) -> None:
        place = Place(self.root, b"", Identity(0, 0), NOWHERE, False, False)
        try:
            directory = rank.sources[self.root].open(b"")
            described = rank.own(Describing).top(self.root, directory, status_of(directory, on_source=True))
        except Problem as problem:
            result.count(counts.FOUND)
            result.fail(place, b"", problem, retry=Tried.NEVER)
            return
        owner = owner_of_members(rank, self.root, b"")
        result.spawn(MembersNote(marshal.dumps([described.record])), owner=owner)
