"""The visitor of ``ptar -c``: it describes the items that the slow path finds, and sends the descriptions to the ranks
that own their directories. Sub-directories become tasks of the fast path (``ArchiveDirectories``).
"""

from __future__ import annotations

import marshal
import os
from collections import defaultdict
from collections.abc import Sequence

from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.backend.batches import FindItemsWithoutXattrsBatch
from pcopy.fsio.backend.columns import LINKS_COLUMN, OutcomeCode, pack_names
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of_open_item
from pcopy.signature.sorting import SortRecord
from pcopy.tasks.archive.archive_directories import can_archive_subtrees, spawn_archive_tasks
from pcopy.tasks.archive.descriptions import ItemToArchive, MemberDescriber
from pcopy.tasks.archive.member_records import DescribedMembersNote, rank_laying_out_members
from pcopy.tasks.archive.readable import ReadPermissions
from pcopy.tasks.archive.simple_files import simple_file_rows, simple_files
from pcopy.tasks.base import counts
from pcopy.tasks.base.attempts import fail_or_retry
from pcopy.tasks.base.job_filters import report_excluded_items
from pcopy.tasks.base.kind import TaskSteps, TaskWithoutDirectory
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import RetryMode, TaskResult
from pcopy.tasks.base.sibling_directories import Siblings
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, Place
from pcopy.tasks.copying import ItemVisitor
from pcopy.walk.visitor import FoundItems

_ITEMS_PER_SLICE = 32
"""Number of items that a task describes before it yields to other work."""


class ArchivingItemVisitor(ItemVisitor):
    """Visitor of ``ptar -c``: it gets the items that the scan finds in a directory, and describes them as members of
    the archive.
    """

    needs_sorted_names = True
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
        """Leave directories to the fast path, or describe them, and add those that are archived to the directories that
        the scan enters.
        """
        if not self._attempt and can_archive_subtrees(self._rank, self._place):
            rows = self._spawn_subtree_tasks(found, rows)
        super().visit_directories(found, [row for row in rows if self._add_description_record(found, row) is not None])

    def _spawn_subtree_tasks(self, found: FoundItems, rows: Sequence[int]) -> Sequence[int]:
        """Spawn tasks that archive directories with everything below them. Return the rows of those directories that
        the fast path cannot process as a whole, because of a mount or a file of the job in them.
        """
        place, own, names = self._place, self._rank.job.own, found.names
        others = [
            row
            for row in rows
            if found.rows.device[row] != self.device
            or (own and any(_is_at_or_above(place, names[row], file) for file in own))
        ]
        chosen = sorted({*rows}.difference(others), key=names.__getitem__)
        # Names of a list, and names between which one is tried again, are not all that belong here in the archive.
        is_apart = bool(others or found.problems or self._rank.job.listed)
        self._describing.owner_names(found)
        directories = Siblings(place, [names[row] for row in chosen], [found.rows.inode[row] for row in chosen])
        spawn_archive_tasks(self._rank, self._result, directories, is_apart=is_apart)
        self._result.count(counts.UNSCANNED, len(chosen))
        return others

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


def _is_at_or_above(place: Place, name: bytes, file: tuple[int, bytes]) -> bool:
    """Return True if the directory ``name`` of ``place`` contains ``file`` (number of a PATH, and path below it)."""
    path = place.path + b"/" + name if place.path else name
    return file[0] == place.root and (file[1] + b"/").startswith(path + b"/")
