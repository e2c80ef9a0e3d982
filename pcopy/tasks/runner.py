"""Runs tasks: it unpacks a task and runs it, and at the end turns everything that the task collected into new tasks and
notes (messages in the form of short tasks).

A kind of task can be unpacked once its module is loaded. ``pcopy.tasks.base.codec`` loads the modules in
``LAZY_MODULES`` when it meets a task of their kinds. The kinds of a copy and of pverify are loaded by
``pcopy.tasks.copying`` before ranks are forked, and those that write a signature, verify or report items by
``TaskRunner``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pcopy.engine.driver import TaskGenerator, TaskOutcome
from pcopy.engine.task import ANY_RANK, NewTask, Task
from pcopy.fsio.backend.batches import SyncDirectoriesBatch
from pcopy.fsio.backend.columns import OutcomeCode, pack_names
from pcopy.fsio.backend.interface import TicketCancelled
from pcopy.fsio.syncer import unsyncable_devices
from pcopy.tasks.base.codec import decode_task, encode_task, import_all_task_modules
from pcopy.tasks.base.dividing import MAX_PORTIONS, MIN_DIVISIBLE_COST, ItemDurations, portion_slices
from pcopy.tasks.base.job import CompareOptions, WalkOptions
from pcopy.tasks.base.kind import TaskKind, TaskSteps
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import NamesToExamine, TaskResult
from pcopy.tasks.base.values import Item, pack_numbers
from pcopy.tasks.report_failures import ReportFailures
from pcopy.text import printable_path

if TYPE_CHECKING:
    from pcopy.tasks.base.report_window import SendWindow


def is_droppable_work(task: Task) -> bool:
    """Return True if ``task`` is work, which a job that is being stopped may leave undone. Return False for a note, a
    short task that brings data to one rank: a stopping job still runs it (except a note for which ``is_slow_note`` is
    True).
    """
    return task.owner == ANY_RANK or not decode_task(task.payload).is_note


def is_slow_note(task: Task) -> bool:
    """Return True for a note (message in the form of a short task) that may have to wait for storage. A job that is
    being stopped leaves such a note undone, like other work.
    """
    return task.owner != ANY_RANK and decode_task(task.payload).is_dropped_on_stop


def current_activity(rank: Rank) -> str:
    """Return what the rank is doing, with the path in the source, for instance ``copying files of data/run7``; empty
    before the first task.

    Another thread than the one that runs tasks calls this, once the rank has sent no message for some time. If several
    tasks of the rank have begun, the one that ran last is described.
    """
    task = rank.running.task
    if task is None:
        return ""
    value = decode_task(task.payload)
    found = value.subject()
    return (
        value.doing
        if found is None
        else f"{value.doing} {printable_path(rank.path_for_display(*found, on_source=True))}"
    )


class TaskRunner:
    """Runs the tasks of one rank. The engine calls the object to run a task, and ``divide`` to share the items of a
    waiting task with other ranks.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._paces = rank.shared_instance(ItemDurations)
        self._last_unpacked: tuple[bytes, TaskKind | None] = b"", None
        needs_many_modules = rank.collects_signature_entries and not rank.job.compares_by_digest
        if needs_many_modules or rank.copy_options.verify or rank.options.itemize:
            import_all_task_modules()
        self._send_window = _send_window_of(rank)
        if not isinstance(rank.job.program, WalkOptions):
            from pcopy.tasks.directories.sync_files import TargetFileSystems

            # Opened before anything is written: the system reports a write-back error only to descriptors that were
            # open when the error occurred.
            rank.shared_instance(TargetFileSystems)

    def __call__(self, task: Task) -> TaskGenerator:
        """Run ``task`` and return its ``TaskOutcome`` (new tasks and counts). Yield from time to time, so that the rank
        can handle messages. If the task is cancelled before it ends, the outcome contains the same task again as a new
        one.
        """
        value = self._unpacked_task(task)
        if (
            self._send_window is not None
            and not value.is_note
            and not (yield from self._send_window.wait_until_sending_allowed())
        ):
            return TaskOutcome([NewTask(*task[1:])])
        self._rank.prepare_for_phase(task.phase)
        result = TaskResult(self._rank, task.phase, task.id, value.subject())
        result.attempt = value.attempt
        if (
            task.phase >= Phase.SIGN
        ):  # a resumed job repeats the phases of the signature: none of their tasks is recorded as done
            result.defer_task_completion()
        result.running.task = task
        self._rank.set_running_task(result.running)
        began = time.monotonic()
        try:
            if self._rank.throttle.is_on and not value.is_note:
                yield from self._steps_as_current_task(
                    self._rank.throttle.charge_limits_and_wait(operations=value.estimated_operations), result
                )
            steps = value.run(self._rank, result)
            if steps is not None:
                yield from self._steps_as_current_task(steps, result)
            if value.item_count:
                self._paces.record_duration(value.code, value.item_count, time.monotonic() - began)
            if not value.is_note:
                yield from self._steps_as_current_task(_sync_directories(self._rank), result)
            return make_task_outcome(result, self._rank)
        except TicketCancelled:
            self._count_unfinished_task(value, result)
            return TaskOutcome([NewTask(*task[1:])])
        except GeneratorExit:
            self._count_unfinished_task(value, result)
            raise
        finally:
            self._rank.release_task_resources(result.running)

    def _count_unfinished_task(self, value: TaskKind, result: TaskResult) -> None:
        """Add the counts so far of a task that was ended before it was done to the counters of the rank, if its kind
        wants that (``is_counted_if_unfinished``): what it has changed or deleted is counted although the task will run
        again.
        """
        if value.is_counted_if_unfinished:
            result.add_counts_of_unfinished_task(self._rank.counters)

    def _unpacked_task(self, task: Task) -> TaskKind:
        """Return the unpacked task, and keep it for the next call: usually a task is unpacked twice, first to decide
        whether to divide it and then to run it.
        """
        payload, value = self._last_unpacked
        if value is None or payload is not task.payload:
            unpacked: TaskKind = decode_task(task.payload)
            self._last_unpacked = task.payload, unpacked
            return unpacked
        return value

    def divide(self, task: Task, hungry: bool) -> list[NewTask]:
        """Return the portions of ``task``: new tasks, each with a part of its items, that together do the same. Return
        an empty list if the task takes too little time to be divided. ``hungry`` is True if another rank is idle and
        asks for work (``pcopy.engine.victim``).
        """
        throttle = self._rank.throttle
        if (task.cost < MIN_DIVISIBLE_COST or self._rank.size == 1) and not throttle.is_on:
            return []
        value = self._unpacked_task(task)
        portions = self._paces.task_portion_count(
            value.code, value.item_count, value.min_items_per_portion, hungry=hungry
        )
        if throttle.is_on and value.item_count > 1:
            slow = throttle.throttled_portion_count(
                max(0, task.cost - value.item_count * CALL_COST), value.estimated_operations
            )
            portions = max(portions, min(value.item_count, MAX_PORTIONS, slow))
        if portions < 2:
            return []
        costs = (each.stop - each.start for each in portion_slices(task.cost, portions))
        return [
            NewTask(task.phase, encode_task(portion), cost, task.may_find_work)
            for portion, cost in zip(value.divide(portions), costs, strict=True)
        ]

    def _steps_as_current_task(self, steps: TaskSteps, result: TaskResult) -> TaskSteps:
        """Yield what the generator ``steps`` of a task yields. Each time it continues, make the task the current one of
        the rank again, since other tasks may have run meanwhile.
        """
        try:
            for step in steps:
                yield step
                self._rank.set_running_task(result.running)
        finally:
            self._rank.set_running_task(result.running)
            steps.close()


def _sync_directories(rank: Rank) -> TaskSteps:
    """Sync the directories in which the current task created names, if this file system requires that directories are
    synced one by one. The backend does it, so that other tasks can run meanwhile (``Rank.finish_task`` would block).
    """
    changed, storage = rank.running.changed_directories, rank.storage
    if storage is not None and changed:
        verdicts = (yield from rank.execute_batch(SyncDirectoriesBatch(tuple(changed.values())))).verdicts
        for row in verdicts.rows_with_code(OutcomeCode.FAILED):
            storage.record_sync_failure(verdicts.problem(row))
        changed.close()


def make_task_outcome(result: TaskResult, rank: Rank) -> TaskOutcome:
    """Complete a task that has ended: turn everything that it collected in ``result`` into new tasks, and its failures
    into a note for rank 0. Return the new tasks and counts, for the engine.
    """
    for names, phase in result.names_to_examine:
        result.spawn_task(_scan_task_for_names(names), phase=phase, expands=True)
    if result.items_to_copy or result.copied_inodes:
        _spawn_link_tasks(result)
    if result.entries:
        _spawn_signature_entry_storage(result, rank)
    for (place, failed), files in result.overwritten_files.items():
        from pcopy.tasks.files.remove_marks import RemoveIncompleteMarks

        names_of, inodes = zip(*files, strict=True)
        link = Phase.REPAIR_LINK if result.phase >= Phase.REPAIR else Phase.LINK
        unmark = RemoveIncompleteMarks(place, pack_names([*names_of]), pack_numbers([*inodes]), failed)
        result.spawn_task(unmark, len(files) * CALL_COST, phase=max(link, result.phase))
    for large in result.large_copies:
        from pcopy.tasks.verify.split_read import SplitFileForReading

        result.spawn_task_on_other_host(
            SplitFileForReading(large), large.known.size, large.writers[0], phase=result.verification_phase
        )
    for (place, writer), gathered in result.verifications.items():
        from pcopy.tasks.verify.verify_items import VerifyItems

        kinds, sizes, versions, digests = gathered.packed_columns
        counters = bytes(gathered.counters)
        verify = VerifyItems(place, gathered.packed_names, kinds, counters, sizes, versions, digests, writer)
        result.spawn_task_on_other_host(verify, gathered.total_size, writer, phase=result.verification_phase)
    if result.item_recorder.is_recording:
        _report_item_outcomes(result, rank)
    if unsyncable_devices:
        result.warn_of_unsyncable_devices()
    if result.failures or result.notices or result.unsupported_notices or result.one_time_notices:
        failures = tuple(tuple(failure) for failure in result.failures)
        retries = tuple(retry._replace(task=_packed_retry_task(again)) for again, retry in result.retries)
        reported_once = tuple(result.unsupported_notices), tuple(result.one_time_notices)
        note = ReportFailures(failures, tuple(result.notices), retries, *reported_once)  # type: ignore[arg-type]
        result.spawn_task(note, owner=0)
    rank.finish_task()
    return result.outcome_for_engine()


def _spawn_link_tasks(result: TaskResult) -> None:
    """Spawn the tasks by which items that the task has collected are copied with all of their names (hard links), and
    the notes that record copies of inodes with several names for a resumed job.
    """
    from pcopy.tasks.links.group_links import InodeCopiedNote
    from pcopy.tasks.links.inodes_copied import combined_notes_by_bucket
    from pcopy.tasks.links.link_groups import copy_tasks_for_items

    for group, cost, phase in copy_tasks_for_items(result.items_to_copy):
        result.spawn_task(group, cost, phase=phase)
    for note in combined_notes_by_bucket(InodeCopiedNote(item, copy) for item, copy in result.copied_inodes):
        result.spawn_task(note, phase=max(Phase.FINISH, result.phase))


def _send_window_of(rank: Rank) -> SendWindow | None:
    """Return the object that limits what this rank may send to rank 0 without an acknowledgement; None if the job sends
    no reports of items.
    """
    if isinstance(rank.job.program, WalkOptions):
        from pcopy.tasks.walk.report_found import UnacknowledgedBytes

        return rank.shared_instance(UnacknowledgedBytes)
    if rank.options.itemize or isinstance(rank.job.program, CompareOptions):
        from pcopy.tasks.report_items import ItemSendWindow

        return rank.shared_instance(ItemSendWindow)
    return None


def _report_item_outcomes(result: TaskResult, rank: Rank) -> None:
    """Add what the task did with items to the sums for the report of the job, and report it to rank 0 if the user
    requested that.
    """
    if rank.collects_report_sums:
        from pcopy.tasks.base.rank_sums import ReportSums

        rank.shared_instance(ReportSums).add(result.item_recorder.packed_outcomes())
    if rank.options.itemize:
        from pcopy.tasks.report_items import report_items

        report_items(rank, result)


def _spawn_signature_entry_storage(result: TaskResult, rank: Rank) -> None:
    """Spawn tasks that keep the items which the task has collected for the signature on this rank, until the phase
    SIGN.
    """
    from pcopy.tasks.sign.digest_level import StoreSignatureEntries

    again = 2 * (rank.job.run - 1) + (result.phase >= Phase.REPAIR)
    for (side, path), gathered in result.entries.items():
        result.spawn_task(
            StoreSignatureEntries(gathered.signature_entries(side, path, again)), phase=Phase.SIGN, owner=rank.number
        )


def _scan_task_for_names(names: NamesToExamine) -> TaskKind:
    """Return a task that looks up the names again in the source directory and has the items that it finds copied."""
    from pcopy.tasks.directories.scan_dir import ScanNames

    return ScanNames(*names)


def _packed_retry_task(again: TaskKind | Item | NamesToExamine | None) -> bytes:
    """Return, as bytes, the task by which a resumed job retries a failed item. ``again`` is that task, an item to copy
    with all of its names, or names to look up again in the source. If it is None, nothing is retried, and no bytes are
    returned.
    """
    if isinstance(again, NamesToExamine):
        again = _scan_task_for_names(again)
    elif isinstance(again, Item):
        from pcopy.tasks.links.link_group import CopyHardLinkGroup

        again = CopyHardLinkGroup(again)
    return b"" if again is None else encode_task(again)
