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

from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.backend.columns import LINKS, RowCode, pack_names
from pcopy.fsio.backend.directory_batches import FindWithoutXattrs
from pcopy.fsio.identity import Identity
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of
from pcopy.signature.sorting import ExternalSorter, SortRecord
from pcopy.tasks.archive.descriptions import (
    DescribedItem,
    MemberDescriber,
    as_hard_link,
    directory_key,
    unpack_described,
)
from pcopy.tasks.archive.readable import ReadPermissions
from pcopy.tasks.archive.simple_files import holds_simple_files, simple_file_rows, simple_files, unpack_simple_files
from pcopy.tasks.base import counts
from pcopy.tasks.base.attempts import fail_or_retry
from pcopy.tasks.base.kind import Note, Steps
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import RetryMode, TaskResult
from pcopy.tasks.base.values import NO_DIRECTORY, Place
from pcopy.tasks.copying import ItemVisitor
from pcopy.walk.visitor import FoundItems

SORT_BUDGET = 32 << 20
"""Bytes of memory for sorting the members of a rank. Further members are spilled to a spool."""
MAX_SIMPLE_BYTES = 8 << 20
"""Bytes of records of simple files of one directory that are kept in their packed form."""
_DIRECTORY_GROUPS = 1 << 14
"""Number of groups of directories for which the bytes of such records are counted. A small directory seldom shares its
group with a large one."""
_ITEMS_PER_SLICE = 32
"""Number of items that are described in one slice of a task."""
_LINKS_PER_NOTE = 512
"""Number of links that are sent together."""


def owner_of_members(rank: Rank, root: int, path: bytes) -> int:
    """Return the number of the rank that lays out the members of the directory ``path``.

    All members of a compressed archive are laid out by rank 0.
    """
    return 0 if rank.options.compress_as else zlib.crc32(path, root) % rank.size


class ArchiveVisitor(ItemVisitor):
    """Visitor that describes every item that the walk finds in a directory."""

    separates_linked = True

    def __init__(self, rank: Rank, result: TaskResult, place: Place, attempt: int) -> None:
        super().__init__(rank, result, place, attempt)
        self._describing = rank.instance(MemberDescriber)
        self._small: list[tuple[FoundItems, Sequence[int]]] = []
        self._items: list[tuple[FoundItems, Sequence[int]]] = []
        self._linked: list[tuple[FoundItems, Sequence[int]]] = []
        self._records: defaultdict[int, list[SortRecord]] = defaultdict(list)
        self._names: defaultdict[int, list[SortRecord]] = defaultdict(list)

    def visit_small_files(self, found: FoundItems, rows: Sequence[int]) -> None:
        self._small.append((found, rows))

    def visit_large_files(self, found: FoundItems, rows: Sequence[int]) -> None:
        self._items.append((found, rows))

    visit_special_files = visit_large_files

    def visit_linked(self, found: FoundItems, rows: Sequence[int]) -> None:
        self._linked.append((found, rows))

    def _rows_passing_filters(self, found: FoundItems) -> Sequence[int]:
        """Return the rows that the filters select. An item that was listed can lie in an excluded directory: then all
        are excluded."""
        if self._rank.job.listed and self._filter.excludes_below(self._place.path + b"/"):
            for counter in (counts.SKIPPED, counts.EXCLUDED):
                self._result.count(counter, len(found))
            return ()
        return super()._rows_passing_filters(found)

    def visit_directories(self, found: FoundItems, rows: Sequence[int]) -> None:
        super().visit_directories(found, [row for row in rows if self._record_description(found, row) is not None])

    def _record_description(self, found: FoundItems, row: int) -> DescribedItem | None:
        """Describe an item, and record it for the rank that owns its directory.

        Return the description; None if that failed, or the item is not archived.
        """
        described = self._description_of(found, row)
        if described is not None:
            owner = owner_of_members(self._rank, described.root, described.path)
            self._records[owner].append(described.record)
        return described

    def _description_of(self, found: FoundItems, row: int) -> DescribedItem | None:
        """Return the description of an item; None if that failed, or the item is not archived. Failures are
        reported."""
        place, name = self._place, found.names[row]
        if self._rank.job.own and self._is_archive_itself(name):
            return None
        try:
            described = self._describing.describe(place, found, row)
        except Problem as problem:
            fail_or_retry(self._result, place, name, problem, self._attempt, in_same_phase=True)
            return None
        if described is None:
            self._result.count(counts.SKIPPED)
            self._result.warn(place, name, "a socket, which no archive holds: it is left out", on_source=True)
        return described

    def _is_archive_itself(self, name: bytes) -> bool:
        """Return True if the item ``name`` is the archive itself; it is counted as skipped, with a warning."""
        path = self._place.path + b"/" + name if self._place.path else name
        if (self._place.root, path) not in self._rank.job.own:
            return False
        self._result.count(counts.SKIPPED)
        self._result.warn(self._place, name, "is the archive itself: it is left out", on_source=True)
        return True

    def process_visited(self) -> Steps:
        """Describe all items that were collected, in slices."""
        for found, rows in self._small:
            if others := (yield from self._record_simple_files(found, rows)):
                self._items.append((found, others))
        for found, rows in self._items:
            for at, row in enumerate(rows):
                described = self._record_description(found, row)
                if described is not None:
                    self._found_bytes += described.member.size
                if at % _ITEMS_PER_SLICE == _ITEMS_PER_SLICE - 1:
                    yield None
        for found, rows in self._linked:
            for row in rows:
                self._record_linked_name(found, row)
            yield None

    def _record_simple_files(self, found: FoundItems, rows: Sequence[int]) -> TicketGenerator[Sequence[int]]:
        """Record the simple files (``pcopy.tasks.archive.simple_files``) among the small files ``rows``; return the
        other rows."""
        place = self._place
        try:
            is_generated = rows and self._rank.mover.generated_file_systems.is_generated(
                found.directory, found.rows.device[rows[0]]
            )
        except Problem:  # each file reports it
            return rows
        if is_generated or not self._rank.backend.has_directory_batches or self._rank.job.roots[place.root].item:
            return rows
        archive_names = {
            os.path.basename(path) for root, path in self._rank.job.own if (root, os.path.dirname(path)) == place[:2]
        }
        chosen = [row for row in rows if found.names[row] not in archive_names] if archive_names else rows
        prefix, owners = self._describing.name_prefix(place), self._describing.owner_names(found)
        chosen = simple_file_rows(found, chosen, prefix, owners)
        if doubtful := {*self._rank.instance(ReadPermissions).possibly_unreadable_rows(found, chosen)}:
            chosen = [row for row in chosen if row not in doubtful]
        if chosen:
            packed = found.packed if len(chosen) == len(found) else pack_names(found.names[row] for row in chosen)
            outcome = yield from self._rank.execute(FindWithoutXattrs(found.directory, packed))
            without_attributes = outcome.verdicts.rows_with_code(RowCode.DONE)
            chosen = chosen if len(without_attributes) == len(chosen) else [chosen[each] for each in without_attributes]
        if chosen:
            files = simple_files(place.root, place.path, prefix, found, chosen, owners)
            owner = owner_of_members(self._rank, place.root, place.path)
            self._records[owner].append(files.record)
            self._found_bytes += sum(files.sizes)
        return [*{*rows}.difference(chosen)] if len(chosen) < len(rows) else ()

    def _record_linked_name(self, found: FoundItems, row: int) -> None:
        """Record a name of an inode with several hard links, for the rank that brings its names together."""
        described = self._description_of(found, row)
        if described is None:
            return
        mount = self._mounts.file_code(found.rows.device[row], self._place.source_id.mount_code, b"")
        inode = b"%016x%016x" % (mount, described.inode)
        key, value = described.record
        self._names[described.inode % self._rank.size].append((inode + key, value))
        if found.rows.mask & LINKS:
            self._found_bytes += described.member.size

    def end_visit(self) -> None:
        """Send the records to the ranks that own the directories."""
        for owner, records in self._records.items():
            self._result.spawn(MembersNote(marshal.dumps(records)), owner=owner)
        for owner, records in self._names.items():
            self._result.spawn(MembersNote(marshal.dumps(records), True), owner=owner)
        super().end_visit()


class MembersToLayOut:
    """The members that this rank owns and lays out, sorted by key."""

    def __init__(self, rank: Rank) -> None:
        self.members = ExternalSorter(rank.open_spool, SORT_BUDGET)
        self.linked_names = ExternalSorter(rank.open_spool, SORT_BUDGET)
        """Names of inodes with several hard links, sorted by inode."""
        self.has_linked_names = False
        """True once any such name was received, and ``GroupLinkNames`` was spawned."""
        self._simple_bytes = array("Q", [0]) * _DIRECTORY_GROUPS

    def add_record(self, key: bytes, value: bytes) -> None:
        """Add a record.

        A record that holds many simple files is split into one record for each file if its directory has too many: the
        pieces of such a directory would otherwise all be in memory at the same time.
        """
        if holds_simple_files(value):
            bucket = zlib.crc32(directory_key(key)) % _DIRECTORY_GROUPS
            self._simple_bytes[bucket] += len(value)
            if self._simple_bytes[bucket] > MAX_SIMPLE_BYTES:
                files = unpack_simple_files(value)
                for row in range(len(files)):
                    self.members.add(*files.describe_row(row).record)
                return
        self.members.add(key, value)

    def close(self) -> None:
        """Close the sorters and their spools."""
        self.members.close()
        self.linked_names.close()


class MembersNote(Note, code=130, doing="gathering members"):
    """Note to the rank that lays out members: their descriptions, packed.

    If ``is_linked`` is true, they are names of inodes with several hard links. Their keys begin with the inode, and the
    rank first brings the names of each inode together.
    """

    records: bytes
    is_linked: bool = False

    def run(self, rank: Rank, result: TaskResult) -> None:
        laid = rank.instance(MembersToLayOut)
        if self.is_linked and not laid.has_linked_names:
            laid.has_linked_names = True
            result.spawn(GroupLinkNames(), phase=Phase.LINK, owner=rank.number)
        if self.is_linked:
            for record in marshal.loads(self.records):
                laid.linked_names.add(*record)
            return
        for key, value in marshal.loads(self.records):
            laid.add_record(key, value)


class GroupLinkNames(Note, code=132, doing="finding hard links", is_note=False):
    """Task of a rank that has received names of inodes with several hard links.

    The first name of each inode becomes the file, the others become links to it.
    """

    def run(self, rank: Rank, result: TaskResult) -> Steps:
        laid = rank.instance(MembersToLayOut)
        records: defaultdict[int, list[SortRecord]] = defaultdict(list)
        for number, (owner, record) in enumerate(self._grouped_records(rank, laid.linked_names, result)):
            records[owner].append(record)
            if number % _LINKS_PER_NOTE == _LINKS_PER_NOTE - 1:
                _send_records(result, records)
                yield None
        _send_records(result, records)
        laid.linked_names.close()

    def _grouped_records(
        self, rank: Rank, names: ExternalSorter, result: TaskResult
    ) -> Iterator[tuple[int, SortRecord]]:
        """Yield the record of each name, and the number of the rank that owns its directory."""
        first: DescribedItem | None = None
        inode, others = b"", list[tuple[bytes, bytes]]()
        for key, value in names.sorted():
            described = unpack_described(value)
            if first is not None and key[:32] == inode:
                if described.member.name == first.member.name:  # the user has given the same PATH twice
                    result.count(counts.SKIPPED)
                    continue
                others.append((described.path, described.name))
                yield _with_owner(rank, as_hard_link(described, first))
                continue
            if first is not None:
                yield _with_owner(rank, first._replace(names=tuple(others) if rank.collects_entries else ()))
            first, inode, others = described, key[:32], []
        if first is not None:
            yield _with_owner(rank, first._replace(names=tuple(others) if rank.collects_entries else ()))


def _with_owner(rank: Rank, described: DescribedItem) -> tuple[int, SortRecord]:
    """Return the record of ``described``, and the number of the rank that owns its directory."""
    return owner_of_members(rank, described.root, described.path), described.record


def _send_records(result: TaskResult, records: defaultdict[int, list[SortRecord]]) -> None:
    """Send ``records`` to the ranks that own the directories, and clear them."""
    for owner, some in records.items():
        result.spawn(MembersNote(marshal.dumps(some)), owner=owner)
    records.clear()


class DescribeRoot(Note, code=133, doing="examining", is_note=False):
    """Task that describes the directory of the root number ``root``, which becomes its first member."""

    root: int

    def run(self, rank: Rank, result: TaskResult) -> None:
        place = Place(self.root, b"", Identity(0, 0), NO_DIRECTORY, False, False)
        try:
            directory = rank.sources[self.root].open(b"")
            described = rank.instance(MemberDescriber).describe_root(
                self.root, directory, status_of(directory, on_source=True)
            )
        except Problem as problem:
            result.count(counts.FOUND)
            result.fail(place, b"", problem, retry=RetryMode.NEVER)
            return
        owner = owner_of_members(rank, self.root, b"")
        result.spawn(MembersNote(marshal.dumps([described.record])), owner=owner)
