"""Running of tasks: a task is unpacked and run, and at its end everything that it collected becomes new tasks and
notes.

A kind is known once its module is loaded, or when a task of it is met (``LATER`` in ``pcopy.tasks.base.codec``). The
kinds of a copy and of pverify are loaded by ``pcopy.tasks.copying`` before ranks are forked; those of a signature are
loaded here.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pcopy.engine.driver import Outcome, TaskGenerator
from pcopy.engine.task import ANY_RANK, NewTask, Task
from pcopy.fsio.backend.batches import SyncDirectories
from pcopy.fsio.backend.columns import RowCode, pack_names
from pcopy.fsio.backend.interface import TicketCancelled
from pcopy.fsio.syncer import unsyncable_devices
from pcopy.tasks.base.codec import decode, encode, load_all_kinds
from pcopy.tasks.base.dividing import MAX_PORTIONS, MIN_DIVISIBLE_COST, ItemDurations, portion_slices
from pcopy.tasks.base.kind import Steps, TaskKind
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import NamesToExamine, TaskResult
from pcopy.tasks.base.values import Item, pack_numbers
from pcopy.tasks.report_failures import ReportFailures
from pcopy.text import printable_path

if TYPE_CHECKING:
    from pcopy.tasks.base.report_window import SendWindow


def is_droppable_work(task: Task) -> bool:
    """Return True if a job that stops may leave ``task`` undone. All other tasks are notes, which are short and sent to
    one rank.
    """
    return task.owner == ANY_RANK or not decode(task.payload).is_note


def is_slow_note(task: Task) -> bool:
    """Return True for a note that may wait for storage: a job that stops drops it, as it drops work."""
    return task.owner != ANY_RANK and decode(task.payload).is_dropped_on_stop


def current_activity(rank: Rank) -> str:
    """Return what the rank is doing, for instance ``copying files of data/run7``, with the path on the source's side;
    empty before the first task.

    It is called by another thread than the one that runs tasks, once the rank has been silent. If several tasks run,
    the one of the last slice is described: a rank whose tasks all wait is not silent.
    """
    task = rank.running.task
    if task is None:
        return ""
    value = decode(task.payload)
    found = value.subject()
    return (
        value.doing if found is None else f"{value.doing} {printable_path(rank.display_path(*found, on_source=True))}"
    )


class TaskRunner:
    """Runner of tasks on one rank."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._paces = rank.instance(ItemDurations)
        self._last_unpacked: tuple[bytes, TaskKind | None] = b"", None
        if rank.collects_entries or rank.options.verify or rank.options.itemize:
            load_all_kinds()
        self._send_window = _send_window_of(rank)
        if not rank.options.walk:
            from pcopy.tasks.directories.sync_files import TargetFileSystems

            # Opened before anything is written: the system reports a write-back error only to descriptors that were
            # open when the error occurred.
            rank.instance(TargetFileSystems)

    def __call__(self, task: Task) -> TaskGenerator:
        """Run ``task`` in slices and return its ``Outcome``. If it is cancelled before it ends, its outcome is the same
        task again.
        """
        value = self._unpack(task)
        if self._send_window is not None and not value.is_note and not (yield from self._send_window.wait_until_open()):
            return Outcome([NewTask(*task[1:])])
        self._rank.prepare_for_phase(task.phase)
        result = TaskResult(self._rank, task.phase, task.id, value.subject())
        result.attempt = value.attempt
        if task.phase >= Phase.SIGN:  # a resumed job repeats signing from its start: none of it is recorded as done
            result.defer_completion()
        result.running.task = task
        self._rank.set_running(result.running)
        began = time.monotonic()
        try:
            if self._rank.throttle.is_on and not value.is_note:
                yield from self._steps_of(
                    self._rank.throttle.charge_and_wait(operations=value.estimated_operations), result
                )
            steps = value.run(self._rank, result)
            if steps is not None:
                yield from self._steps_of(steps, result)
            if value.item_count:
                self._paces.record_duration(value.code, value.item_count, time.monotonic() - began)
            if not value.is_note:
                yield from self._steps_of(_sync_directories(self._rank), result)
            return make_outcome(result, self._rank)
        except TicketCancelled:
            self._count_unfinished(value, result)
            return Outcome([NewTask(*task[1:])])
        except GeneratorExit:
            self._count_unfinished(value, result)
            raise
        finally:
            self._rank.release_task(result.running)

    def _count_unfinished(self, value: TaskKind, result: TaskResult) -> None:
        """Add the counts of an unfinished task to those of the rank, if its kind requires that."""
        if value.is_counted_if_unfinished:
            result.add_unfinished_counts(self._rank.counters)

    def _unpack(self, task: Task) -> TaskKind:
        """Return the unpacked task. It is kept, because the same task is usually unpacked twice: for the decision
        whether to divide it, and to run it.
        """
        payload, value = self._last_unpacked
        if value is None or payload is not task.payload:
            unpacked: TaskKind = decode(task.payload)
            self._last_unpacked = task.payload, unpacked
            return unpacked
        return value

    def divide(self, task: Task, hungry: bool) -> list[NewTask]:
        """Return the portions of ``task``, or an empty list if it takes too little time to be worth dividing
        (``pcopy.engine.victim``).
        """
        throttle = self._rank.throttle
        if (task.cost < MIN_DIVISIBLE_COST or self._rank.size == 1) and not throttle.is_on:
            return []
        value = self._unpack(task)
        portions = self._paces.portion_count(value.code, value.item_count, value.min_items_per_portion, hungry=hungry)
        if throttle.is_on and value.item_count > 1:
            slow = throttle.portion_count(max(0, task.cost - value.item_count * CALL_COST), value.estimated_operations)
            portions = max(portions, min(value.item_count, MAX_PORTIONS, slow))
        if portions < 2:
            return []
        costs = (each.stop - each.start for each in portion_slices(task.cost, portions))
        return [
            NewTask(task.phase, encode(portion), cost, task.may_find_work)
            for portion, cost in zip(value.divide(portions), costs, strict=True)
        ]

    def _steps_of(self, steps: Steps, result: TaskResult) -> Steps:
        """Yield the steps of a task. Whenever it continues, restore its state in the rank, since other tasks may have
        run meanwhile.
        """
        try:
            for step in steps:
                yield step
                self._rank.set_running(result.running)
        finally:
            self._rank.set_running(result.running)
            steps.close()


def _sync_directories(rank: Rank) -> Steps:
    """Sync the directories that the task wrote to, as ``Rank.ended`` does, but by the threads of the backend, so that
    other tasks run meanwhile.
    """
    changed, storage = rank.running.changed_directories, rank.storage
    if storage is not None and changed:
        verdicts = (yield from rank.execute(SyncDirectories(tuple(changed.values())))).verdicts
        for row in verdicts.rows_with_code(RowCode.FAILED):
            storage.record_sync_failure(verdicts.problem(row))
        changed.close()


def make_outcome(result: TaskResult, rank: Rank) -> Outcome:
    """Turn everything that a task collected into tasks and notes. Return the outcome for the engine.

    Collected items become tasks; failures become a note for rank 0.
    """
    for names, phase in result.names_to_examine:
        result.spawn(_scan_task(names), phase=phase, expands=True)
    if result.items_to_copy or result.copied_inodes:
        _spawn_links(result)
    if result.entries:
        _store_entries(result, rank)
    for (place, failed), files in result.overwritten_files.items():
        from pcopy.tasks.files.remove_marks import Unmark

        names_of, inodes = zip(*files, strict=True)
        link = Phase.REPAIR_LINK if result.phase >= Phase.REPAIR else Phase.LINK
        unmark = Unmark(place, pack_names([*names_of]), pack_numbers([*inodes]), failed)
        result.spawn(unmark, len(files) * CALL_COST, phase=max(link, result.phase))
    for large in result.large_copies:
        from pcopy.tasks.verify.split_read import SplitRead

        result.spawn_on_other_host(SplitRead(large), large.known.size, large.writers[0], phase=result.verify_phase)
    for (place, writer), gathered in result.verifications.items():
        from pcopy.tasks.verify.verify_items import VerifyItems

        kinds, sizes, versions, digests = gathered.packed_columns
        counters = bytes(gathered.counters)
        verify = VerifyItems(place, gathered.packed_names, kinds, counters, sizes, versions, digests, writer)
        result.spawn_on_other_host(verify, gathered.total_size, writer, phase=result.verify_phase)
    if result.item_recorder.is_recording:
        _report_items(result, rank)
    if unsyncable_devices:
        result.warn_unsyncable()
    if result.failures or result.notices or result.unsupported_notices or result.one_time_notices:
        failures = tuple(tuple(failure) for failure in result.failures)
        retries = tuple(retry._replace(task=_packed_retry(again)) for again, retry in result.retries)
        reported_once = tuple(result.unsupported_notices), tuple(result.one_time_notices)
        note = ReportFailures(failures, tuple(result.notices), retries, *reported_once)  # type: ignore[arg-type]
        result.spawn(note, owner=0)
    rank.finish_task()
    return result.outcome()


def _spawn_links(result: TaskResult) -> None:
    """Spawn tasks that copy items with all of their names, and notes about copies of inodes with several names."""
    from pcopy.tasks.links.group_links import InodeCopiedNote
    from pcopy.tasks.links.inodes_copied import packed_notes
    from pcopy.tasks.links.link_groups import tasks_for_items

    for group, cost, phase in tasks_for_items(result.items_to_copy):
        result.spawn(group, cost, phase=phase)
    for note in packed_notes(InodeCopiedNote(item, copy) for item, copy in result.copied_inodes):
        result.spawn(note, phase=max(Phase.FINISH, result.phase))


def _send_window_of(rank: Rank) -> SendWindow | None:
    """Return the flow control for reports to rank 0; None if the job sends none."""
    if rank.options.walk:
        from pcopy.tasks.walk.report_found import UnacknowledgedBytes

        return rank.instance(UnacknowledgedBytes)
    if rank.options.itemize or rank.options.compare:
        from pcopy.tasks.report_items import ItemSendWindow

        return rank.instance(ItemSendWindow)
    return None


def _report_items(result: TaskResult, rank: Rank) -> None:
    """Add the items to the sums of a report, and report them to rank 0 if the user requested that."""
    if rank.collects_report_sums:
        from pcopy.tasks.base.rank_sums import RankSums

        rank.instance(RankSums).add(result.item_recorder.packed_outcomes())
    if rank.options.itemize:
        from pcopy.tasks.report_items import report_items

        report_items(rank, result)


def _store_entries(result: TaskResult, rank: Rank) -> None:
    """Spawn tasks that keep entries for the signature on this rank until the sign phase."""
    from pcopy.tasks.sign.digest_level import StoredEntries

    again = 2 * (rank.job.run - 1) + (result.phase >= Phase.REPAIR)
    for (side, path), gathered in result.entries.items():
        result.spawn(StoredEntries(gathered.signature_entries(side, path, again)), phase=Phase.SIGN, owner=rank.number)


def _scan_task(names: NamesToExamine) -> TaskKind:
    """Return a task that examines the names again."""
    from pcopy.tasks.directories.scan_dir import ScanNames

    return ScanNames(*names)


def _packed_retry(again: TaskKind | Item | NamesToExamine | None) -> bytes:
    """Return the packed task that retries the item; empty if there is none."""
    if isinstance(again, NamesToExamine):
        again = _scan_task(again)
    elif isinstance(again, Item):
        from pcopy.tasks.links.link_group import CopyLinkGroup

        again = CopyLinkGroup(again)
    return b"" if again is None else encode(again)
