"""The visitor of pchmod: changes, in batches, the items whose metadata are not the wanted ones, and collects
directories to enter.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.backend.batches import (
    BatchResult,
    ListNamesResult,
    SetMetadataBatch,
    SetUniformMetadataBatch,
    SetUniformMetadataResult,
    StatNamesBatch,
)
from pcopy.fsio.backend.columns import (
    GROUP_COLUMN,
    INODE_COLUMN,
    OWNER_COLUMN,
    ItemStatusColumns,
    OutcomeCode,
    pack_names,
    unpack_names,
)
from pcopy.fsio.backend.interface import await_ticket
from pcopy.fsio.problem import Problem
from pcopy.signature.items import FILE, type_byte
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import ItemAction
from pcopy.tasks.base.hashing import SOCKET_TYPE_BYTE
from pcopy.tasks.base.job_filters import JobFilter, report_excluded_items
from pcopy.tasks.base.kind import TaskSteps
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import RetryMode, TaskResult
from pcopy.tasks.base.values import Place
from pcopy.tasks.change.change_tree import MOUNT_POINT
from pcopy.tasks.change.intended_metadata import (
    ChangesNeeded,
    WantedMetadata,
    change_description,
    rows_without_excluded,
)
from pcopy.tasks.listed.deepest_first import DEFERRED_STATUS_COLUMNS, VisitDeferredDirectories, defer_directories
from pcopy.walk.visitor import VISITOR_COLUMNS, FoundItems

_TYPES_CHANGED_BY_LISTING = b"fl"
"""Type letters of items for which a listing says enough to change them without a stat(2): files and symbolic links."""
MAX_INODES = 1 << 20
"""Number of inodes with several hard links that a rank remembers in a dry run. If there are more, the oldest is
forgotten; its next name counts as another item that would be changed.
"""
MAX_CHANGE_DECISIONS = 3
"""Maximum number of times that the new metadata of one item are computed from its status. They are computed again if
another process has changed the item's mode or owner meanwhile; after so many times the item fails.
"""
_ITEM_REPLACED_TEXT = "it has changed, or another item has taken its name, since it was found: not changed"
"""Error text for an item that was not changed: it is not the one that the scan has found, or it changed each time after
its new metadata were computed.
"""


class MetadataChangeVisitor:
    """Visitor of pchmod, which changes items of all types. An item that has the wanted metadata in the end is counted
    by its type, and also as changed if it did not have them before.
    """

    needs_sorted_names = False
    separates_linked = False

    def __init__(self, rank: Rank, result: TaskResult, place: Place, attempt: int) -> None:
        self._rank = rank
        self._result = result
        self._place = place
        self.device = rank.source_device(place)
        self._intent = rank.shared_instance(WantedMetadata)
        self._selected = rank.shared_instance(JobFilter)
        self._is_listed = bool(rank.job.listed)
        self._is_command_line = not (place.path or self._is_listed)
        """True if the names are the PATHs of the command line."""
        self._below_path = place.path.partition(b"/")[2]
        self._items: list[tuple[FoundItems, Sequence[int]]] = []
        self.subdirectories: list[tuple[bytes, int]] = []
        """Directories to enter, with their inode numbers (or ``MOUNT_POINT``)."""
        self.listed_directories: Collection[bytes] = ()
        """Names that the listing states to be directories: if one is missing, items below it may be missed."""

    def visit_unstatted_item(self, name: bytes, problem: Problem) -> None:
        """Count and report an item that cannot be statted, unless its absence is ignored."""
        is_named = self._is_command_line or self._is_listed
        if self._may_ignore(name, problem):
            return
        self._result.count(counts.FOUND)
        if not is_named and self._selected.excludes_as_any_type(os.path.join(self._below_path, name)):
            self._count_excluded_items(1)
            self._result.item_recorder.record_item_outcome(ItemAction.SKIP, self._place, name, b"")
        else:
            self._report_failure(name, problem)

    def _may_ignore(self, name: bytes, problem: Problem) -> bool:
        """Return True if the item does not exist any more, is no directory, and was not named by the user."""
        is_named = self._is_command_line or self._is_listed or name in self.listed_directories
        return problem.errno == errno.ENOENT and not is_named

    def _report_failure(self, name: bytes, problem: Problem, size: int = 0) -> None:
        """Report an item that could not be changed or statted as failed. ``size`` is its size in bytes, if it is a
        regular file.
        """
        self._result.count_item_as_failed(self._place, name, problem, size, retry=RetryMode.NEVER)

    def _count_excluded_items(self, items: int) -> None:
        """Count ``items`` (a number) as skipped because filters exclude them."""
        self._result.count(counts.SKIPPED, items)
        self._result.count(counts.EXCLUDED, items)

    def rows_to_visit(self, found: FoundItems) -> Iterable[int]:
        """Return the rows of the items to change; count all others as excluded by the filters."""
        readable = len(found) - len(found.problems)
        self._result.count(counts.FOUND, readable)
        if not self._selected.has_filters:
            return range(len(found))
        if self._is_command_line:
            modes, sizes, times = found.rows.mode, found.rows.size, found.rows.exact_times_in_column("mtime")
            takes = self._selected.is_status_within_limits
            rows = [
                row
                for row, mode in enumerate(modes)
                if stat.S_ISDIR(mode) or row in found.problems or takes(mode, sizes[row], times[row])
            ]
        else:
            rows = self._selected.selected_rows(self._below_path, found)
        self._count_excluded_items(readable - sum(row not in found.problems for row in rows))
        report_excluded_items(self._rank, self._result, self._place, found, rows)
        return rows

    def visit_directories(self, found: FoundItems, rows: Sequence[int]) -> None:
        self._items.append((found, rows))

    visit_small_files = visit_large_files = visit_special_files = visit_hard_linked_items = visit_directories

    def process_collected_items(self) -> TaskSteps:
        """Change the items that were collected."""
        for found, rows in self._items:
            packed, columns = found.packed, found.rows
            if len(rows) < len(found):
                packed, columns = pack_names(map(found.names.__getitem__, rows)), columns.columns_of_selected_rows(rows)
            self._result.count(counts.FOUND_BYTES, _sum_of_file_sizes(columns))
            if any(map(stat.S_ISDIR, {*columns.mode})):
                yield from self._change_directories(found.directory, packed, columns)
            else:
                yield from self._change_items(found.directory, packed, columns)

    def end_directory_visit(self) -> None:
        """Do nothing: ``process_collected_items``, which is called before, has changed all items, or reported them as
        failed.
        """

    def _change_directories(self, directory: int, packed: bytes, rows: ItemStatusColumns) -> TaskSteps:
        """Change the items of a batch that contains directories. Collect the directories, whose contents are changed
        later, unless they come from a list (then only the listed items are changed).
        """
        names = unpack_names(packed)
        if not self._is_listed:
            self._add_subdirectories(names, rows)
        select = self._selected.select
        stay = select.has_size_limit or select.has_age_limit  # size and age filters do not select directories
        yield from self._change_items(
            directory, packed, rows, keeps_directories=bool(stay), may_lock_out=self._may_lose_directory_access
        )

    def _add_subdirectories(self, names: Sequence[bytes], rows: ItemStatusColumns) -> None:
        """Collect the directories among the items, which the caller enters later."""
        for row, mode in enumerate(rows.mode):
            if stat.S_ISDIR(mode):
                self.subdirectories.append(
                    (names[row], rows.inode[row] if rows.device[row] == self.device else MOUNT_POINT)
                )

    def _may_lose_directory_access(self, rows: ItemStatusColumns, row: int, mode: int, uid: int) -> bool:
        """Return True if this process may not be able to enter the directory in row ``row`` after its change, which
        gives it the permission bits ``mode`` and the owner ``uid``. Return False if the item is no directory.
        """
        return stat.S_ISDIR(rows.mode[row]) and self._intent.may_lose_directory_access(
            rows.mode[row], rows.uid[row], mode, uid
        )

    @property
    def can_change_without_stat(self) -> bool:
        """True if the types and inode numbers in a listing are enough to change files and links, so that the caller
        need not stat them. That is not so for a report of single items, ACLs and dry runs.
        """
        is_told = self._result.item_recorder.is_recording or self._rank.options.dry_run
        return not (is_told or self._intent.acls)

    def change_listed_files(self, directory: int, listed: ListNamesResult) -> TicketGenerator[bytes]:
        """Change files and symbolic links without a stat(2) by the caller: the listing states their types and inode
        numbers. Return the names that are left, packed; the caller must stat these.

        Among them are all directories and special files. So is a name whose inode number is no longer the listed one,
        because another item has taken the name. The new metadata of that item are computed from its own status, as
        chmod -R does; those that were computed for one item are never applied to another.
        """
        intent, packed, other_names = self._intent, listed.names, list[bytes]()
        rows = ItemStatusColumns(0, INODE_COLUMN)
        rows.row_count, rows.inode = len(listed.kinds), listed.inodes
        if listed.kinds.translate(None, _TYPES_CHANGED_BY_LISTING):
            names = unpack_names(packed)
            direct = [row for row, kind in enumerate(listed.kinds) if kind in _TYPES_CHANGED_BY_LISTING]
            if not direct:
                return packed
            other_names = [
                name for name, kind in zip(names, listed.kinds, strict=True) if kind not in _TYPES_CHANGED_BY_LISTING
            ]
            packed, rows = pack_names(names[row] for row in direct), rows.columns_of_selected_rows(direct)
        batch = SetUniformMetadataBatch(directory, packed, rows, intent.modes, intent.uid, intent.gid)
        batch_result = yield from self._rank.execute_batch_counting_changes(
            batch, self._count_items_changed_without_stat
        )
        codes = batch_result.verdicts.codes
        if codes.count(OutcomeCode.DONE) + codes.count(OutcomeCode.SKIPPED) < len(rows):
            names = unpack_names(packed)
            for row, code in enumerate(codes):
                if code in (OutcomeCode.DONE, OutcomeCode.SKIPPED):
                    continue
                # Whether an item is missing is decided by a stat: an open may have failed for another reason.
                if code == OutcomeCode.DECIDE_AGAIN or batch_result.verdicts.errnos[row] == errno.ENOENT:
                    other_names.append(names[row])
                else:
                    self._result.count(counts.FOUND)
                    self._report_failure(names[row], batch_result.verdicts.problem(row))
        return pack_names(other_names)

    def _count_items_changed_without_stat(self, batch_result: SetUniformMetadataResult) -> None:
        """Count the items that the backend has changed without a stat(2), and those that needed no change, from its
        ``batch_result``.
        """
        codes, seen = batch_result.verdicts.codes, batch_result.observed
        done, unchanged = codes.count(OutcomeCode.DONE), codes.count(OutcomeCode.SKIPPED)
        if done + unchanged < len(codes):
            seen = seen.columns_of_selected_rows(
                [row for row, code in enumerate(codes) if code in (OutcomeCode.DONE, OutcomeCode.SKIPPED)]
            )
        self._result.count(counts.FOUND, done + unchanged)
        self._result.count(counts.FOUND_BYTES, sum(seen.size))
        self._result.count(counts.MENDED, done)
        self._count_items_by_type(seen)

    def visit_deferred_directories(self, directory: int, names: bytes, rows: ItemStatusColumns) -> TaskSteps:
        """Change directories that had to wait until everything in them was done.

        In a dry run, count inodes with several hard links instead: all names of such an inode were sent to this rank,
        so that it is counted once.
        """
        if self._rank.options.dry_run and not any(map(stat.S_ISDIR, rows.mode)):
            yield from self._count_hard_links_in_dry_run(directory, names, rows)
        else:
            yield from self._change_items(directory, names, rows)

    def _count_hard_links_in_dry_run(self, directory: int, packed: bytes, before: ItemStatusColumns) -> TaskSteps:
        """In a dry run, count names of inodes with several hard links, on the one rank that is responsible for these
        inodes. ``before`` are their statuses when they were found.
        """
        stated = yield from self._rank.execute_batch(
            StatNamesBatch(directory, packed, VISITOR_COLUMNS | OWNER_COLUMN | GROUP_COLUMN)
        )
        rows, names, same = stated.rows, unpack_names(packed), list[int]()
        for row, code in enumerate(stated.verdicts.codes):
            if code == OutcomeCode.DONE and rows.inode[row] == before.inode[row]:
                same.append(row)
            else:
                problem = (
                    Problem("stat", 0, text=_ITEM_REPLACED_TEXT)
                    if code == OutcomeCode.DONE
                    else stated.verdicts.problem(row)
                )
                self._report_failed_item_change(names[row], problem, 0)
        if same:
            same_names = pack_names(map(names.__getitem__, same))
            yield from self._change_items(directory, same_names, rows.columns_of_selected_rows(same), is_owner=True)

    def _change_items(
        self,
        directory: int,
        packed: bytes,
        rows: ItemStatusColumns,
        *,
        keeps_directories: bool = False,
        may_lock_out: Callable[[ItemStatusColumns, int, int, int], bool] | None = None,
        is_owner: bool = False,
    ) -> TaskSteps:
        """Change those of the items ``packed`` whose metadata differ from the wanted ones; count and report all of
        them.

        Args:
            directory: descriptor of the directory.
            packed: names of the items, joined by slashes.
            rows: statuses of the items.
            keeps_directories: directories are not changed, because filters select files only.
            may_lock_out: returns True for a directory whose change must wait until everything below it is done.
            is_owner: this rank is responsible for the inodes. Without it, a dry run sends inodes with several hard
                links to the responsible rank.
        """
        names = unpack_names(packed)
        differing = self._intent.changes_needed(directory, names, rows)
        for row, problem in differing.unreadable.items():
            self._report_failure(names[row], problem, _sum_of_file_sizes(rows.columns_of_selected_rows([row])))
        if keeps_directories:
            differing = differing.without_rows(row for row in differing.rows if stat.S_ISDIR(rows.mode[row]))
        waiting: list[int] = []
        if may_lock_out is not None:
            columns = zip(differing.rows, differing.wanted.mode, differing.wanted.uid, strict=True)
            waiting = [row for row, mode, uid in columns if may_lock_out(rows, row, mode, uid)]
        if waiting:
            differing = differing.without_rows(waiting)
            defer_directories(
                self._result, self._place, [names[row] for row in waiting], rows.columns_of_selected_rows(waiting)
            )
        if self._rank.options.dry_run and (linked := _multiply_linked_rows(rows, differing)):
            if is_owner:
                foreseen = self._rank.shared_instance(InodesCountedInDryRun)
                differing = differing.without_rows([row for row in linked if foreseen.was_counted_before(rows, row)])
            else:
                self._send_items_to_inode_ranks(names, rows, linked)
                differing = differing.without_rows(linked)
                waiting += linked
        failed = yield from self._apply_or_count_changes(directory, packed, rows, differing)
        done = rows_without_excluded(range(len(rows)), {*waiting, *failed, *differing.unreadable})
        self._count_items_by_type(rows if len(done) == len(rows) else rows.columns_of_selected_rows(done))
        if self._result.item_recorder.is_recording:
            self._report_changes_of_items(names, rows, differing, {*done})

    def _send_items_to_inode_ranks(
        self, names: Sequence[bytes], rows: ItemStatusColumns, linked: Sequence[int]
    ) -> None:
        """In a dry run, send the items in the rows ``linked``, which have several hard links, to the ranks that are
        responsible for their inodes. These ranks count each inode once.
        """
        by_owner: dict[int, list[int]] = {}
        for row in linked:
            by_owner.setdefault(rows.inode[row] % self._rank.size, []).append(row)
        for owner, owner_rows in by_owner.items():
            packed, columns = (
                pack_names(names[row] for row in owner_rows),
                rows.columns_of_selected_rows(owner_rows).status_columns_as_bytes(DEFERRED_STATUS_COLUMNS),
            )
            self._result.spawn_task(
                VisitDeferredDirectories(self._place, packed, columns), len(owner_rows) * CALL_COST, owner=owner
            )

    def _apply_or_count_changes(
        self, directory: int, packed: bytes, rows: ItemStatusColumns, differing: ChangesNeeded
    ) -> TicketGenerator[set[int]]:
        """Make the changes ``differing``, or only count them in a dry run. Return the rows of the items that could not
        be changed.
        """
        if not differing.rows:
            return set()
        if self._rank.options.dry_run:
            self._result.count(counts.MENDED, len(differing.rows))
            return set()
        if len(differing.rows) < len(rows):
            names = unpack_names(packed)
            packed, rows = (
                pack_names(names[row] for row in differing.rows),
                rows.columns_of_selected_rows(differing.rows),
            )
        problems = yield from self._apply_changes(directory, packed, rows, differing.wanted)
        names = unpack_names(packed) if problems else []
        for row, problem in problems.items():
            size = rows.size[row] if rows.size and stat.S_ISREG(rows.mode[row]) else 0
            self._report_failed_item_change(names[row], problem, size)
        return {differing.rows[row] for row in problems}

    def _apply_changes(
        self,
        directory: int,
        packed: bytes,
        rows: ItemStatusColumns,
        wanted: ItemStatusColumns,
        tries: int = MAX_CHANGE_DECISIONS,
    ) -> TicketGenerator[dict[int, Problem]]:
        """Set the mode, owner and ACLs of the items ``packed`` (names joined by slashes). Return, by row, the problems
        of those that were not changed.

        If the mode or owner of an item changed after its new metadata were computed (another rank may have changed the
        item through another hard link), stat it and compute them again.

        Args:
            rows: statuses from which the new metadata were computed.
            wanted: mode, uid and gid that each item gets.
            tries: how often the new metadata of an item may be computed.
        """
        batch = SetMetadataBatch(directory, packed, rows, wanted, self._intent.acls)
        verdicts = (yield from self._rank.execute_batch_counting_changes(batch, self._count_changed_items)).verdicts
        if verdicts.codes.count(OutcomeCode.DONE) == len(rows):
            return {}
        problems = {
            row: Problem("stat", 0, text=_ITEM_REPLACED_TEXT)
            if code == OutcomeCode.DECIDE_AGAIN
            else verdicts.problem(row)
            for row, code in enumerate(verdicts.codes)
            if code != OutcomeCode.DONE
        }
        anew = [row for row, code in enumerate(verdicts.codes) if code == OutcomeCode.DECIDE_AGAIN]
        if anew and tries > 1:
            names = unpack_names(packed)
            changed_names = pack_names(map(names.__getitem__, anew))
            remaining = yield from self._change_items_with_new_status(
                directory, changed_names, rows.columns_of_selected_rows(anew), tries - 1
            )
            for at, row in enumerate(anew):
                del problems[row]
                if at in remaining:
                    problems[row] = remaining[at]
        return problems

    def _change_items_with_new_status(
        self, directory: int, packed: bytes, before: ItemStatusColumns, tries: int
    ) -> TicketGenerator[dict[int, Problem]]:
        """For items whose status has changed meanwhile: stat the items ``packed`` (names joined by slashes) again,
        compute their new metadata from that, and set these. Return, by row, the problems of those that were not
        changed.

        An item whose inode is not the one in ``before``, the earlier statuses, is not changed. ``tries`` is how often
        this may still be repeated.
        """
        ticket = self._rank.backend.submit_batch(StatNamesBatch(directory, packed, before.mask, on_source=True))
        stated = yield from await_ticket(self._rank.backend, ticket)
        now, names, problems, same = stated.rows, unpack_names(packed), dict[int, Problem](), list[int]()
        for row, code in enumerate(stated.verdicts.codes):
            if code != OutcomeCode.DONE:
                problems[row] = stated.verdicts.problem(row)
            elif now.is_same_item_in(row, before):
                same.append(row)
            else:
                problems[row] = Problem("stat", 0, text=_ITEM_REPLACED_TEXT)
        names, now = [names[row] for row in same], now.columns_of_selected_rows(same)
        differing = self._intent.changes_needed(directory, names, now)
        problems.update((same[row], problem) for row, problem in differing.unreadable.items())
        if differing.rows:
            differing_names, rows = (
                pack_names(names[row] for row in differing.rows),
                now.columns_of_selected_rows(differing.rows),
            )
            remaining = yield from self._apply_changes(directory, differing_names, rows, differing.wanted, tries)
            problems.update((same[differing.rows[row]], problem) for row, problem in remaining.items())
        return problems

    def _count_changed_items(self, batch_result: BatchResult) -> None:
        """Count the items that a call of the backend has changed; ``batch_result`` is its result."""
        self._result.count(counts.MENDED, batch_result.verdicts.codes.count(OutcomeCode.DONE))

    def _report_failed_item_change(self, name: bytes, problem: Problem, size: int) -> None:
        """Report an item that could not be changed as failed, unless its absence is ignored."""
        if self._may_ignore(name, problem):
            self._result.count(counts.FOUND, -1)
            self._result.count(counts.FOUND_BYTES, -size)
        else:
            self._report_failure(name, problem, size)

    def _count_items_by_type(self, rows: ItemStatusColumns) -> None:
        """Count the items ``rows`` by type, because they have the wanted metadata now."""
        for mode, number in Counter(rows.mode).items():
            self._result.count(counts.copied_counter(type_byte(mode)), number)
        self._result.count(counts.BYTES, _sum_of_file_sizes(rows))

    def _report_changes_of_items(
        self, names: Sequence[bytes], rows: ItemStatusColumns, differing: ChangesNeeded, done: set[int]
    ) -> None:
        """Add each item in the rows ``done`` to the report of single items: how it was changed (``differing`` are all
        changes), or that it needed no change.
        """
        wanted = differing.wanted
        changes = {
            row: change_description(rows, row, self._intent.resulting_mode_bits(rows.mode[row], mode), uid, gid)
            for row, mode, uid, gid in zip(differing.rows, wanted.mode, wanted.uid, wanted.gid, strict=True)
        }
        for row in done:
            kind = type_byte(rows.mode[row]) or SOCKET_TYPE_BYTE
            size = rows.size[row] if kind == FILE and rows.size else 0
            action = ItemAction.META if row in changes else ItemAction.SKIP
            self._result.item_recorder.record_item_outcome(
                action, self._place, names[row], kind, size, change=changes.get(row, "")
            )


class InodesCountedInDryRun:
    """The inodes with several hard links that this rank has counted as changed in a dry run. One rank is responsible
    for each inode, so that the inode is counted once.

    A real run changes such an inode through one of its names; under the other names it needs no change then.
    """

    def __init__(self, rank: Rank) -> None:
        self._seen: dict[tuple[int, int], None] = {}

    def was_counted_before(self, rows: ItemStatusColumns, row: int) -> bool:
        """Return True if the inode of item ``row`` was counted before, through another name. Otherwise remember the
        inode.
        """
        inode = rows.device[row], rows.inode[row]
        if inode in self._seen:
            return True
        self._seen[inode] = None
        if len(self._seen) > MAX_INODES:
            del self._seen[next(iter(self._seen))]
        return False


def _multiply_linked_rows(rows: ItemStatusColumns, differing: ChangesNeeded) -> list[int]:
    """Return those rows of ``differing`` (items to change) whose items have several hard links and are not
    directories.
    """
    links = rows.links
    return [row for row in differing.rows if links[row] > 1 and not stat.S_ISDIR(rows.mode[row])] if links else []


def _sum_of_file_sizes(rows: ItemStatusColumns) -> int:
    """Return the sum of the sizes, in bytes, of the regular files among the items whose statuses are ``rows``."""
    if not rows.size:
        return 0
    if all(map(stat.S_ISREG, {*rows.mode})):
        return sum(rows.size)
    return sum(size for size, mode in zip(rows.size, rows.mode, strict=True) if stat.S_ISREG(mode))
