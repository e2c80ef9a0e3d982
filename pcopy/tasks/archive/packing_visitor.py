"""The visitor of ``ptar -c``: it describes the items that the walk finds, and sends the descriptions to the ranks that
own their directories.

``DescribedMembersNote`` carries descriptions. The names of an inode with several hard links are first sent to one rank
(``GroupLinkNames``): the first of them in the order of the archive becomes the file, the others become links to it.

To lay out members is to determine the order of the members in the archive and the offset of each.
"""

from __future__ import annotations

import marshal
import os
import zlib
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence

from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.backend.batches import FindItemsWithoutXattrsBatch
from pcopy.fsio.backend.columns import LINKS_COLUMN, OutcomeCode, pack_names
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of_open_item
from pcopy.signature.sorting import ExternalSorter, SortRecord
from pcopy.tasks.archive.descriptions import (
    ItemToArchive,
    MemberDescriber,
    description_as_hard_link,
    directory_part_of_key,
    unpack_item_to_archive,
)
from pcopy.tasks.archive.readable import ReadPermissions
from pcopy.tasks.archive.simple_files import holds_simple_files, simple_file_rows, simple_files, unpack_simple_files
from pcopy.tasks.base import counts
from pcopy.tasks.base.attempts import fail_or_retry
from pcopy.tasks.base.job import ArchiveOptions
from pcopy.tasks.base.job_filters import report_excluded_items
from pcopy.tasks.base.kind import TaskSteps, TaskWithoutDirectory
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import RetryMode, TaskResult
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, Place
from pcopy.tasks.copying import ItemVisitor
from pcopy.walk.visitor import FoundItems

MEMBER_SORT_MEMORY_BYTES = 32 << 20
"""Bytes of memory in which a rank sorts its members. If they take more, they are spilled to a temporary file."""
MAX_SIMPLE_BYTES = 8 << 20
"""Bytes of records of simple files (regular files without xattrs, links and holes) of one directory that are kept in
packed form, many files in one record. Further files become one record each.
"""
_DIRECTORY_GROUPS = 1 << 14
"""Number of groups into which directories are hashed. The bytes of simple files in packed form (``MAX_SIMPLE_BYTES``)
are counted for each group. With so many groups, a small directory seldom is in the same group as a large one.
"""
_ITEMS_PER_SLICE = 32
"""Number of items that a task describes before it yields to other work."""
_LINKS_PER_NOTE = 512
"""Number of links that are sent in one message."""


def rank_laying_out_members(rank: Rank, root: int, path: bytes) -> int:
    """Return the number of the rank that lays out the members of a directory, that is, determines their order and
    offsets in the archive. ``path`` is the directory below the PATH number ``root`` of the command line.

    Rank 0 lays out all members of a compressed archive.
    """
    return 0 if rank.program_options(ArchiveOptions).compress_as else zlib.crc32(path, root) % rank.size


class ArchivingItemVisitor(ItemVisitor):
    """Visitor of ``ptar -c``: it gets the items that the scan finds in a directory, and describes them as members of
    the archive.
    """

    separates_linked = True

    def __init__(self, rank: Rank, result: TaskResult, place: Place, attempt: int) -> None:
        super().__init__(rank, result, place, attempt)
        self._describing = rank.shared_instance(MemberDescriber)
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

    def visit_hard_linked_items(self, found: FoundItems, rows: Sequence[int]) -> None:
        self._linked.append((found, rows))

    def _rows_passing_filters(self, found: FoundItems) -> Sequence[int]:
        """Return the rows of those items of ``found`` that the filters select. An item that the user has listed may lie
        in a directory that the filters exclude; then it is excluded, too.
        """
        if self._rank.job.listed and self._filter.excludes_path_or_ancestor(self._place.path + b"/"):
            for counter in (counts.SKIPPED, counts.EXCLUDED):
                self._result.count(counter, len(found))
            report_excluded_items(self._rank, self._result, self._place, found, ())
            return ()
        return super()._rows_passing_filters(found)

    def visit_directories(self, found: FoundItems, rows: Sequence[int]) -> None:
        """Describe the directories in ``rows``, and add those that are archived to the directories that the scan
        enters.
        """
        super().visit_directories(found, [row for row in rows if self._add_description_record(found, row) is not None])

    def _add_description_record(self, found: FoundItems, row: int) -> ItemToArchive | None:
        """Describe the item in row ``row`` of ``found``, and add its record to those for the rank that owns its
        directory.

        Return the description; None if that failed, or if the item is not archived.
        """
        described = self._item_description(found, row)
        if described is not None:
            owner = rank_laying_out_members(self._rank, described.root, described.path)
            self._records[owner].append(described.record_for_sorting)
        return described

    def _item_description(self, found: FoundItems, row: int) -> ItemToArchive | None:
        """Return the description of the item in row ``row`` of ``found``; None if that failed, or if the item is not
        archived. Failures are reported.
        """
        place, name = self._place, found.names[row]
        if self._rank.job.own and self._skip_archive_itself(name):
            return None
        try:
            described = self._describing.describe_item(place, found, row)
        except Problem as problem:
            fail_or_retry(self._result, place, name, problem, self._attempt, in_same_phase=True)
            return None
        if described is None:
            self._result.count(counts.SKIPPED)
            self._result.warn_about_item(
                place, name, "a socket, which no archive holds: it is left out", on_source=True
            )
        return described

    def _skip_archive_itself(self, name: bytes) -> bool:
        """Return True if the item ``name`` is the archive that is being created; it is then counted as skipped, with a
        warning.
        """
        path = self._place.path + b"/" + name if self._place.path else name
        if (self._place.root, path) not in self._rank.job.own:
            return False
        self._result.count(counts.SKIPPED)
        self._result.warn_about_item(self._place, name, "is the archive itself: it is left out", on_source=True)
        return True

    def process_collected_items(self) -> TaskSteps:
        """Describe all items that were collected, and yield from time to time."""
        for found, rows in self._small:
            if others := (yield from self._add_simple_file_records(found, rows)):
                self._items.append((found, others))
        for found, rows in self._items:
            for at, row in enumerate(rows):
                described = self._add_description_record(found, row)
                if described is not None:
                    self._found_bytes += described.member.size
                if at % _ITEMS_PER_SLICE == _ITEMS_PER_SLICE - 1:
                    yield None
        for found, rows in self._linked:
            for row in rows:
                self._collect_hard_link_name(found, row)
            yield None

    def _add_simple_file_records(self, found: FoundItems, rows: Sequence[int]) -> TicketGenerator[Sequence[int]]:
        """Add the simple files (small regular files without xattrs, links and holes) among ``rows``, all of small
        files, to the records for the rank that owns the directory. Return the other rows, whose files must be described
        one by one.
        """
        place = self._place
        try:
            is_generated = rows and self._rank.mover.generated_file_systems.is_on_pseudo_file_system(
                found.directory, found.rows.device[rows[0]]
            )
        except Problem:  # each file meets the error when it is described, and reports it
            return rows
        if is_generated or not self._rank.backend.has_directory_batches or self._rank.job.roots[place.root].item:
            return rows
        archive_names = {
            os.path.basename(path) for root, path in self._rank.job.own if (root, os.path.dirname(path)) == place[:2]
        }
        chosen = [row for row in rows if found.names[row] not in archive_names] if archive_names else rows
        prefix, owners = self._describing.archive_name_prefix(place), self._describing.owner_names(found)
        chosen = simple_file_rows(found, chosen, prefix, owners)
        if doubtful := {*self._rank.shared_instance(ReadPermissions).possibly_unreadable_rows(found, chosen)}:
            chosen = [row for row in chosen if row not in doubtful]
        if chosen:
            packed = found.packed if len(chosen) == len(found) else pack_names(found.names[row] for row in chosen)
            outcome = yield from self._rank.execute_batch(FindItemsWithoutXattrsBatch(found.directory, packed))
            without_attributes = outcome.verdicts.rows_with_code(OutcomeCode.DONE)
            chosen = chosen if len(without_attributes) == len(chosen) else [chosen[each] for each in without_attributes]
        if chosen:
            files = simple_files(place.root, place.path, prefix, found, chosen, owners)
            owner = rank_laying_out_members(self._rank, place.root, place.path)
            self._records[owner].append(files.record_for_sorting)
            self._found_bytes += sum(files.sizes)
        return [*{*rows}.difference(chosen)] if len(chosen) < len(rows) else ()

    def _collect_hard_link_name(self, found: FoundItems, row: int) -> None:
        """Record a name of an inode with several hard links, for the rank that collects the names of this inode."""
        described = self._item_description(found, row)
        if described is None:
            return
        mount = self._mounts.mount_code_of_file(found.rows.device[row], self._place.source_id.mount_code, b"")
        inode = b"%016x%016x" % (mount, described.inode)
        key, value = described.record_for_sorting
        self._names[described.inode % self._rank.size].append((inode + key, value))
        if found.rows.mask & LINKS_COLUMN:
            self._found_bytes += described.member.size

    def end_directory_visit(self) -> None:
        """Send the records of the described items to the ranks that own their directories."""
        for owner, records in self._records.items():
            self._result.spawn_task(DescribedMembersNote(marshal.dumps(records)), owner=owner)
        for owner, records in self._names.items():
            self._result.spawn_task(DescribedMembersNote(marshal.dumps(records), True), owner=owner)
        super().end_directory_visit()


class MembersToLayOut:
    """The members whose order and offsets in the archive this rank determines, sorted by key (the order of the
    archive).
    """

    def __init__(self, rank: Rank) -> None:
        self.members = ExternalSorter(rank.open_spool, MEMBER_SORT_MEMORY_BYTES)
        self.linked_names = ExternalSorter(rank.open_spool, MEMBER_SORT_MEMORY_BYTES)
        """Names of inodes with several hard links, sorted by inode."""
        self.has_linked_names = False
        """True once any such name was received: then ``GroupLinkNames`` was spawned."""
        self._simple_bytes = array("Q", [0]) * _DIRECTORY_GROUPS

    def add_record(self, key: bytes, value: bytes) -> None:
        """Add the record of a member, or of many simple files.

        A record of many simple files is split into one record per file if its directory has too many. Otherwise all
        files of such a directory would be in memory at the same time.
        """
        if holds_simple_files(value):
            bucket = zlib.crc32(directory_part_of_key(key)) % _DIRECTORY_GROUPS
            self._simple_bytes[bucket] += len(value)
            if self._simple_bytes[bucket] > MAX_SIMPLE_BYTES:
                files = unpack_simple_files(value)
                for row in range(len(files)):
                    self.members.add(*files.file_description_in_row(row).record_for_sorting)
                return
        self.members.add(key, value)

    def close(self) -> None:
        """Close the sorters and their temporary files."""
        self.members.close()
        self.linked_names.close()


class DescribedMembersNote(TaskWithoutDirectory, code=130, doing="gathering members"):
    """Message to the rank that lays out members, with packed descriptions of them.

    If ``is_linked`` is true, the descriptions are names of inodes with several hard links, and their keys begin with
    the inode. The receiving rank first collects all names of each inode.
    """

    records: bytes
    is_linked: bool = False

    def run(self, rank: Rank, result: TaskResult) -> None:
        laid = rank.shared_instance(MembersToLayOut)
        if self.is_linked and not laid.has_linked_names:
            laid.has_linked_names = True
            result.spawn_task(GroupLinkNames(), phase=Phase.LINK, owner=rank.number)
        if self.is_linked:
            for record in marshal.loads(self.records):
                laid.linked_names.add(*record)
            return
        for key, value in marshal.loads(self.records):
            laid.add_record(key, value)


class GroupLinkNames(TaskWithoutDirectory, code=132, doing="finding hard links", is_note=False):
    """Task of a rank that has received names of inodes with several hard links.

    The first name of each inode becomes the file, the others become links to it.
    """

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        laid = rank.shared_instance(MembersToLayOut)
        records: defaultdict[int, list[SortRecord]] = defaultdict(list)
        for number, (owner, record) in enumerate(self._records_grouped_by_inode(rank, laid.linked_names, result)):
            records[owner].append(record)
            if number % _LINKS_PER_NOTE == _LINKS_PER_NOTE - 1:
                _send_records(result, records)
                yield None
        _send_records(result, records)
        laid.linked_names.close()

    def _records_grouped_by_inode(
        self, rank: Rank, names: ExternalSorter, result: TaskResult
    ) -> Iterator[tuple[int, SortRecord]]:
        """Generator: yield each of ``names``, which are sorted by inode, as a record, together with the number of the
        rank that owns its directory. The first name of an inode stays a file; the others become links to it.
        """
        first: ItemToArchive | None = None
        inode, others = b"", list[tuple[bytes, bytes]]()
        for key, value in names.sorted():
            described = unpack_item_to_archive(value)
            if first is not None and key[:32] == inode:
                if described.member.name == first.member.name:  # the user has given the same PATH twice
                    result.count(counts.SKIPPED)
                    continue
                others.append((described.path, described.name))
                yield _record_with_owning_rank(rank, description_as_hard_link(described, first))
                continue
            if first is not None:
                yield _record_with_owning_rank(
                    rank, first._replace(names=tuple(others) if rank.collects_signature_entries else ())
                )
            first, inode, others = described, key[:32], []
        if first is not None:
            yield _record_with_owning_rank(
                rank, first._replace(names=tuple(others) if rank.collects_signature_entries else ())
            )


def _record_with_owning_rank(rank: Rank, described: ItemToArchive) -> tuple[int, SortRecord]:
    """Return the number of the rank that owns the directory of ``described``, and the record of ``described``."""
    return rank_laying_out_members(rank, described.root, described.path), described.record_for_sorting


def _send_records(result: TaskResult, records: defaultdict[int, list[SortRecord]]) -> None:
    """Send ``records`` to the ranks that own the directories (the keys of ``records``), and clear them."""
    for owner, some in records.items():
        result.spawn_task(DescribedMembersNote(marshal.dumps(some)), owner=owner)
    records.clear()


class DescribeRoot(TaskWithoutDirectory, code=133, doing="examining", is_note=False):
    """Task that describes a directory which the user has named as PATH number ``root`` of the command line. This
    directory becomes the first of the members below that PATH.
    """

    root: int

    def run(self, rank: Rank, result: TaskResult) -> None:
        place = Place(self.root, b"", ItemIdentity(0, 0), NO_DIRECTORY_IDENTITY, False, False)
        try:
            directory = rank.sources[self.root].open(b"")
            described = rank.shared_instance(MemberDescriber).describe_root_directory(
                self.root, directory, status_of_open_item(directory, on_source=True)
            )
        except Problem as problem:
            result.count(counts.FOUND)
            result.count_item_as_failed(place, b"", problem, retry=RetryMode.NEVER)
            return
        owner = rank_laying_out_members(rank, self.root, b"")
        result.spawn_task(DescribedMembersNote(marshal.dumps([described.record_for_sorting])), owner=owner)
