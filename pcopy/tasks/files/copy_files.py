"""``CopyFiles`` copies small regular files of one directory.

Words: a *batch* is a list of items that the backend processes in one call; a *row* is one item of a batch; the *plan*
of a row says how its file is copied (``CopyPlan``). The *slow path* is the code that copies files one by one in Python;
it handles what the batch cannot.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.backend.batches import SYNC_FILE_FLAG, CopyPlan, CopySmallFilesBatch, CopySmallFilesResult
from pcopy.fsio.backend.columns import (
    DEVICE_COLUMN,
    VERSION_COLUMNS,
    BatchOutcomeColumns,
    ItemStatusColumns,
    OutcomeCode,
    pack_names,
    unpack_names,
)
from pcopy.fsio.incomplete_mark import sidecar_name
from pcopy.fsio.layout import DEFAULT_LAYOUT_RECIPE, LayoutRecipe, TargetDirectory
from pcopy.fsio.problem import MetadataProblem, Problem
from pcopy.fsio.retries import TRANSIENT_ERRNOS
from pcopy.fsio.temporary import remove_item_if_present
from pcopy.signature.items import FILE
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import ItemAction
from pcopy.tasks.base.attempts import fail_or_retry
from pcopy.tasks.base.dividing import portion_slices, split_names
from pcopy.tasks.base.item_columns import ItemColumns
from pcopy.tasks.base.kind import DivisibleTask, TaskSteps
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import ContentInfo, Item, Place, UnnamedCopy
from pcopy.tasks.files.existing import inherits_acl
from pcopy.tasks.files.file_decisions import copy_plans_for_files
from pcopy.tasks.files.layouts import count_files_created_by_recipe, target_layout_policy
from pcopy.tasks.files.name_items import UnnamedCopies
from pcopy.tasks.files.whole_file import ItemResult, copy_file
from pcopy.tasks.verify.read_items import count_skipped_or_spawn_read

if TYPE_CHECKING:
    from pcopy.tasks.base.storing import FileSyncBatch

_CREATING_PLANS = frozenset(map(int, (CopyPlan.NEW, CopyPlan.REPLACE, CopyPlan.TEMPORARY)))
"""Plans (``CopyPlan``) with which a new file is created."""
_TEMPORARY_NAME_PLANS = {
    int(plan) | sync for plan in (CopyPlan.REPLACE, CopyPlan.TEMPORARY) for sync in (0, SYNC_FILE_FLAG)
}
"""Plans, with and without ``SYNC_FILE_FLAG``, that create a file under a temporary name."""
_SOURCE_FAILURE_CODES = (OutcomeCode.SOURCE_FAILED, OutcomeCode.SOURCE_CHANGED)
"""Codes (``OutcomeCode``) of files that were not copied because the source could not be read or has changed."""
_DONE = int(OutcomeCode.DONE)  # in the module, because it is compared for each file


class CopyFiles(DivisibleTask, code=10, doing="copying files of", is_note=False):
    """Task that copies small regular files of one directory.

    Fields:
        place: the directory.
        names: names of the files, joined by slashes.
        rows: inode number, size, mtime and ctime of each file as a scan found them (``VERSION_COLUMNS``), packed.
        attempt: number of earlier attempts in this run, from 0.
    """

    rows: bytes
    attempt: int

    def divide(self, portions: int) -> list[CopyFiles]:
        found, at = self.source_status_columns(), portion_slices(self.item_count, portions)
        rows = [found.columns_of_selected_rows(range(each.start, each.stop)).status_columns_as_bytes() for each in at]
        parts = zip(split_names(self.names, at), rows, strict=True)
        return [self._replace(names=names, rows=rows) for names, rows in parts]

    def source_status_columns(self) -> ItemStatusColumns:
        """Return what a scan found about each file: the columns inode number, size, mtime and ctime."""
        return ItemStatusColumns.status_columns_from_bytes(self.rows, self.item_count, VERSION_COLUMNS)

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Copy the files by batches of the backend (the code that makes system calls for many items). Files that it
        leaves to the slow path are then copied one by one.
        """
        if rank.options.dry_run:
            from pcopy.tasks.files.forecast import report_dry_run_files

            yield from report_dry_run_files(
                rank, result, self.place, unpack_names(self.names), self.source_status_columns()
            )
            return
        place = self.place
        rows = self.source_status_columns()
        try:
            source, target = rank.open_source_directory(place), rank.open_target_directory(place)
            inherits = inherits_acl(rank, place, target)
            rank.detect_times_set_on_close(target, rank.target_device(place), result.notices)
        except Problem as problem:
            for name, size in zip(unpack_names(self.names), rows.size, strict=True):
                result.count_item_as_failed(place, name, problem, size)
            return
        waiting = UnnamedCopies(rank, place, self.attempt)
        with waiting.spawn_naming_task_at_end(result):
            planned = yield from _batch_with_copy_plans(self, rank, source, target, rows, inherits=inherits)
            if result.item_recorder.is_recording:
                _note_differences_of_replaced_files(rank, result, place, planned)
            try:
                batches = _split_by_layout(rank, place, planned)
            except Problem as problem:
                for name, size in zip(unpack_names(self.names), rows.size, strict=True):
                    fail_or_retry(result, place, name, problem, self.attempt, size)
                return
            for batch in batches:
                slow_rows = yield from _copy_file_batch(self, rank, result, batch, waiting)
                if slow_rows:
                    names = unpack_names(batch.names)
                    items = [_item_of_row(self, names, batch.rows, row) for row in slow_rows]
                    yield from _copy_files_one_by_one(rank, result, items, waiting)


def _copy_files_one_by_one(rank: Rank, result: TaskResult, items: Sequence[Item], waiting: UnnamedCopies) -> TaskSteps:
    """Copy the files ``items`` one by one. Those that must be on stable storage before they get their names are synced
    together; the generator that copies such a file waits until this is done.

    ``waiting`` collects the copies that get their final names in a later phase.
    """
    from pcopy.tasks.base.storing import FileSyncBatch  # only here: the backend copies most files

    together, waiting_steps = FileSyncBatch(), list[TaskSteps]()
    try:
        for item in items:
            steps, known = _copy_one_file(rank, result, item, waiting, together), len(together)
            waiting_steps.append(steps)
            for step in steps:
                if len(together) > known:
                    break
                yield step
            else:
                waiting_steps.pop()
            if together.is_full:
                yield from _sync_and_name_files(rank, together, waiting_steps)
        yield from _sync_and_name_files(rank, together, waiting_steps)
    finally:
        for steps in waiting_steps:
            steps.close()  # removes the temporary file


def _sync_and_name_files(rank: Rank, together: FileSyncBatch, waiting_steps: list[TaskSteps]) -> TaskSteps:
    """Bring the files in ``together`` to stable storage, then finish the generators in ``waiting_steps``, which have
    written these files and wait to give them their names.
    """
    yield from together.sync_added_files(rank)
    while waiting_steps:
        yield from waiting_steps[0]
        del waiting_steps[0]
        yield None


def _copy_one_file(
    rank: Rank, result: TaskResult, item: Item, waiting: UnnamedCopies, together: FileSyncBatch
) -> TaskSteps:
    """Copy one file. If that fails, the file is tried again later or counted as failed. ``waiting`` gets the copy if it
    is named in a later phase; ``together`` gets it if it must be on stable storage first.
    """
    try:
        item_result = yield from copy_file(rank, result, item, may_get_links=False, storage_batch=together)
        if item_result.unnamed is not None:
            waiting.add(result, item, item_result)
    except Problem as problem:
        fail_or_retry(result, item.place, item.name, problem, item.attempt, item.size)


def _batch_with_copy_plans(
    task: CopyFiles, rank: Rank, source: int, target: int, rows: ItemStatusColumns, *, inherits: bool
) -> TicketGenerator[CopySmallFilesBatch]:
    """Return the batch that copies all files of the task, with a plan for each.

    Args:
        source, target: descriptors of the two directories.
        rows: what the scan found about each file.
        inherits: True if new items in the target directory inherit ACLs, which must be removed from copies.
    """
    place = task.place
    renames = rank.job.roots[place.root].item
    new_names = (
        pack_names([rank.target_name(place, name) for name in unpack_names(task.names)]) if renames else task.names
    )
    rows.mask |= DEVICE_COLUMN
    rows.device = array("Q", [rank.source_device(place) or 0]) * len(rows)
    plans = yield from copy_plans_for_files(rank, place, target, new_names, rows)
    if rank.throttle.is_on:
        plans = yield from _plans_within_rate_limit(rank, plans, rows)
    temporaries = []
    if not _TEMPORARY_NAME_PLANS.isdisjoint(plans):
        temporaries = [rank.temporary_names.next_name() if plan in _TEMPORARY_NAME_PLANS else b"" for plan in plans]
    renamed = new_names if renames else b""
    return CopySmallFilesBatch(
        source, task.names, target, plans, rows, renamed, pack_names(temporaries), inherits_acl=inherits
    )


def _note_differences_of_replaced_files(
    rank: Rank, result: TaskResult, place: Place, batch: CopySmallFilesBatch
) -> None:
    """Note, for the report of each item, what differs between files that ``batch`` will replace and their sources."""
    plans = zip(unpack_names(batch.names), batch.plans, strict=True)
    if names := [name for name, plan in plans if plan & ~SYNC_FILE_FLAG == CopyPlan.REPLACE]:
        from pcopy.tasks.files.differences import note_differences_of_names

        note_differences_of_names(rank, result, place, names)


def _plans_within_rate_limit(
    rank: Rank, plans: bytes | bytearray, rows: ItemStatusColumns
) -> TicketGenerator[bytearray]:
    """Yield until the rate limit (--bwlimit, --oplimit) permits to copy the files with the status ``rows``; return
    their plans.

    A file that is too large to be copied at once under the limit gets the plan of the slow path, which copies it piece
    by piece.
    """
    most = rank.throttle.max_bytes_per_task_step()
    is_copied = [plan & ~SYNC_FILE_FLAG in _CREATING_PLANS for plan in plans]
    sizes = [size if copied and size <= most else 0 for copied, size in zip(is_copied, rows.size, strict=True)]
    yield from rank.throttle.charge_limits_and_wait(sum(sizes))
    return bytearray(
        CopyPlan.SLOW_PATH if copied and size > most else plan
        for copied, size, plan in zip(is_copied, rows.size, plans, strict=True)
    )


def _split_by_layout(rank: Rank, place: Place, batch: CopySmallFilesBatch) -> list[CopySmallFilesBatch]:
    """Split the batch into batches whose files get the same Lustre layout (striping). Raise ``Problem`` on failure."""
    layout = target_layout_policy(rank, place)
    if layout.uses_only_default:
        return [batch]
    creating = [row for row, plan in enumerate(batch.plans) if plan & ~SYNC_FILE_FLAG in _CREATING_PLANS]
    if not creating:
        return [batch]
    names, sizes = unpack_names(batch.names), batch.rows.size
    found = layout.layout_recipes_for_small_files(
        batch.directory,
        [names[row] for row in creating],
        [sizes[row] for row in creating],
        TargetDirectory(batch.target, place.target_id.inode),
        follow=rank.copy_options.dereference,
    )
    if len(found) == 1 and found[0][0] is DEFAULT_LAYOUT_RECIPE:
        return [batch]
    other_rows = [row for row, plan in enumerate(batch.plans) if plan & ~SYNC_FILE_FLAG not in _CREATING_PLANS]
    parts = [(recipe, [creating[row] for row in rows]) for recipe, rows in found]
    if other_rows:
        parts.append((DEFAULT_LAYOUT_RECIPE, other_rows))
    return [_batch_of_selected_files(batch, rows, recipe) for recipe, rows in parts]


def _batch_of_selected_files(batch: CopySmallFilesBatch, rows: list[int], recipe: LayoutRecipe) -> CopySmallFilesBatch:
    """Return a batch of those files of ``batch`` whose indices are ``rows``. ``recipe`` is the way in which they are
    created, so that they get their Lustre layout (striping).
    """

    def chosen(packed: bytes) -> bytes:
        names = unpack_names(packed) if packed else []
        return pack_names([names[row] for row in rows]) if names else b""

    return CopySmallFilesBatch(
        batch.directory,
        chosen(batch.names),
        batch.target,
        bytes(batch.plans[row] for row in rows),
        batch.rows.columns_of_selected_rows(rows),
        chosen(batch.new_names),
        chosen(batch.temporary_names),
        inherits_acl=batch.inherits_acl,
        recipe=recipe,
    )


def _copy_file_batch(
    task: CopyFiles, rank: Rank, result: TaskResult, batch: CopySmallFilesBatch, waiting: UnnamedCopies
) -> TicketGenerator[list[int]]:
    """Copy the files of a batch by the backend. Return the indices, in the batch, of the files that remain for the slow
    path. ``waiting`` collects the copies that get their final names in a later phase.
    """
    place = task.place
    if rank.names_late:
        waiting.add_temporary_names(unpack_names(batch.temporary_names))
    done = yield from rank.execute_batch_counting_bytes(batch)
    codes = done.verdicts.codes
    if _DONE in codes:
        rank.record_write_success()
        _handle_copied_files(place, rank, result, batch, done, waiting)
        with_other_layout = [
            each for row, each in done.metadata_outcomes.items() if each.layout_reason and codes[row] == _DONE
        ]
        for applied in with_other_layout:
            recipe = DEFAULT_LAYOUT_RECIPE
            if batch.recipe.attribute is not None and applied.reduced_layout:
                recipe = LayoutRecipe(attribute=(batch.recipe.attribute[0], applied.reduced_layout))
            count_files_created_by_recipe(rank, result, place, recipe, batch.target, 1)
        count_files_created_by_recipe(
            rank, result, place, batch.recipe, batch.target, codes.count(_DONE) - len(with_other_layout)
        )
    if codes.count(_DONE) == len(codes) and not done.metadata_outcomes:
        return []
    return _handle_uncopied_files(task, rank, result, batch, done, waiting)


def _handle_uncopied_files(
    task: CopyFiles,
    rank: Rank,
    result: TaskResult,
    batch: CopySmallFilesBatch,
    done: CopySmallFilesResult,
    waiting: UnnamedCopies,
) -> list[int]:
    """Handle the files of a batch that were not copied: count the skipped and failed ones, and spawn a task for those
    that were not begun because the batch was cancelled. Return the indices, in the batch, of the files that remain for
    the slow path.

    Args:
        batch: the batch.
        done: its result.
        waiting: collects the copies that get their final names in a later phase.
    """
    place, verdicts = task.place, done.verdicts
    names = unpack_names(batch.names)
    slow_rows, not_begun = [], []
    for row, code in enumerate(verdicts.codes):
        if code == _DONE:
            continue
        if code == OutcomeCode.SKIPPED:
            count_skipped_or_spawn_read(
                rank,
                result,
                place,
                names[row],
                ContentInfo(FILE, batch.rows.size[row], b"", batch.rows.content_version_of_row(row)),
            )
        elif code in (OutcomeCode.SLOW_PATH, OutcomeCode.DECIDE_AGAIN) or (
            code in _SOURCE_FAILURE_CODES and verdicts.errnos[row] in TRANSIENT_ERRNOS
        ):
            slow_rows.append(row)
        elif code == OutcomeCode.CANCELLED:
            not_begun.append(row)
        elif (
            code == OutcomeCode.LACKS_METADATA and rank.names_late
        ):  # it gets its name nevertheless: a file with wrong metadata, and a message, is better than none
            made = UnnamedCopy(unpack_names(batch.temporary_names)[row], done.created_inodes[row], done.marks[row])
            known = ContentInfo(FILE, verdicts.bytes[row], done.digests[row], batch.rows.content_version_of_row(row))
            problem = verdicts.problem(row)
            assert isinstance(problem, MetadataProblem)
            waiting.add(result, _item_of_row(task, names, batch.rows, row), ItemResult(known, None, made, problem))
        else:
            fail_or_retry(result, place, names[row], verdicts.problem(row), task.attempt, batch.rows.size[row])
    for row, applied in done.metadata_outcomes.items():
        result.record_applied_metadata(place, names[row], applied)
    if not_begun:
        not_begun += slow_rows
        rows = batch.rows.columns_of_selected_rows(not_begun).status_columns_as_bytes(VERSION_COLUMNS)
        part = task._replace(names=pack_names(names[row] for row in not_begun), rows=rows)
        result.spawn_task(part, sum(batch.rows.size[row] for row in not_begun) + len(not_begun) * CALL_COST)
        return []
    return slow_rows


def _handle_copied_files(
    place: Place,
    rank: Rank,
    result: TaskResult,
    batch: CopySmallFilesBatch,
    done: CopySmallFilesResult,
    waiting: UnnamedCopies,
) -> None:
    """Count the files that ``batch`` has copied, and collect their digests; ``done`` is its result. Copies that get
    their final names in a later phase are not counted yet, but added to ``waiting``.
    """
    verdicts = done.verdicts
    rows = verdicts.rows_with_code(OutcomeCode.DONE)
    names = unpack_names(batch.names) if _needs_unpacked_names(rank) else []
    if rank.copy_options.inplace and rank.job.run > 1:
        new_names = unpack_names(batch.new_names) if batch.new_names else names
        for row in rows:
            # If an earlier run was overwriting a file of this name (--inplace), that file has been replaced now. So its
            # mark of incompleteness is removed. If that fails, FINISH removes it.
            with suppress(Problem):
                remove_item_if_present(batch.target, sidecar_name(new_names[row]))
    if rank.names_late:
        temporaries = unpack_names(batch.temporary_names)
        for row in rows:
            made = UnnamedCopy(temporaries[row], done.created_inodes[row], done.marks[row])
            known = verdicts.bytes[row], done.digests[row]
            waiting.add_file(
                names[row], made, batch.rows.content_version_of_row(row), *known, verdicts.nanoseconds[row]
            )
        return
    if result.item_recorder.is_recording:
        _record_outcomes(place, result, batch, verdicts)
    result.count(counts.FILES, len(rows))
    is_all = len(rows) == len(batch.rows)
    result.count(counts.BYTES, verdicts.moved if is_all else sum(map(verdicts.bytes.__getitem__, rows)))
    if rank.collects_signature_entries or rank.copy_options.verify:
        digested = ItemColumns()
        columns = batch.rows, verdicts.bytes, done.digests.data, counts.FILES
        if len(rows) == len(names):
            digested.add_rows(batch.names, *columns)
        else:
            digested.add_selected_rows(rows, names, *columns)
        result.collect_file_digests(place, digested)


def _needs_unpacked_names(rank: Rank) -> bool:
    """Return True if the names of copied files must be unpacked after a batch, for digests, reports or marks, or
    because the copies are named later. Otherwise that time is saved.
    """
    options = rank.copy_options
    return rank.names_late or options.inplace or rank.collects_signature_entries or options.verify or rank.reports_items


def _record_outcomes(
    place: Place, result: TaskResult, batch: CopySmallFilesBatch, verdicts: BatchOutcomeColumns
) -> None:
    """Record, for the report of each item, the files that were created and those that replaced an existing item."""
    names, codes, plans = unpack_names(batch.names), verdicts.codes, batch.plans
    for action, plan in ((ItemAction.COPY, CopyPlan.NEW), (ItemAction.REPLACE, CopyPlan.REPLACE)):
        rows = [row for row, code in enumerate(codes) if code == _DONE and plans[row] & ~SYNC_FILE_FLAG == plan]
        columns = (array("Q", map(column.__getitem__, rows)) for column in (verdicts.bytes, verdicts.nanoseconds))
        result.item_recorder.record_outcome_of_files(action, place, [names[row] for row in rows], *columns)


def _item_of_row(task: CopyFiles, names: list[bytes], rows: ItemStatusColumns, row: int) -> Item:
    """Return the file with the index ``row`` in ``names`` and ``rows`` as an ``Item``, for the code that copies files
    one by one.
    """
    place = task.place
    return Item(place.source_id.mount_code, rows.inode[row], rows.size[row], ((place, names[row]),), task.attempt)
