"""Running of tasks: a task is unpacked and run, and at its end everything that it collected becomes new tasks and
notes.

A kind is known once its module is loaded, or when a task of it is met (``LATER`` in ``pcopy.tasks.base.codec``). The
kinds of a copy and of pverify are loaded by ``pcopy.tasks.copying`` before ranks are forked; those of a signature are
loaded here.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pcopy.engine.driver import Outcome, Slices
from pcopy.engine.task import ANYBODY, Spawn, Task
from pcopy.fsio.kernel.batches import SyncDirectories
from pcopy.fsio.kernel.columns import Code, pack_names
from pcopy.fsio.kernel.interface import Cancelled
from pcopy.fsio.syncer import unsyncable
from pcopy.tasks.base.codec import decode, encode, load_later
from pcopy.tasks.base.dividing import LEAST_COST, MOST_PORTIONS, Paces, cuts
from pcopy.tasks.base.kind import Kind, Steps
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import Names, Result
from pcopy.tasks.base.values import Item, pack_numbers
from pcopy.tasks.report_failures import ReportFailures
from pcopy.text import shown

if TYPE_CHECKING:
    from pcopy.tasks.base.unheard import Unheard


def is_work(task: Task) -> bool:
    """Return True if a job that stops may leave ``task`` undone. All other tasks are notes, which are short and sent to
    one rank.
    """
    return task.owner == ANYBODY or not decode(task.payload).is_note


def is_slow_note(task: Task) -> bool:
    """Return True for a note that may wait for storage: a job that stops drops it, as it drops work."""
    return task.owner != ANYBODY and decode(task.payload).may_be_dropped


def whereabouts(rank: Rank) -> str:
    """Return what the rank is doing, for instance ``copying files of data/run7``, with the path on the source's side;
    empty before the first task.

    It is called by another thread than the one that runs tasks, once the rank has been silent. If several tasks run,
    the one of the last slice is described: a rank whose tasks all wait is not silent.
    """
    task = rank.running.task
    if task is None:
        return ""
    value = decode(task.payload)
    found = value.about()
    return value.doing if found is None else f"{value.doing} {shown(rank.shown(*found, on_source=True))}"


class TaskRunner:
    """Runner of tasks on one rank."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._paces = rank.own(Paces)
        self._last: tuple[bytes, Kind | None] = b"", None
        if rank.signs or rank.options.verify or rank.options.itemize:
            load_later()
        self._unheard = _unheard_of(rank)
        if not rank.options.walk:
            from pcopy.tasks.directories.sync_files import FileSystems

            # Opened before anything is written: the system reports a write-back error only to descriptors that were
            # open when the error occurred.
            rank.own(FileSystems)

    def __call__(self, task: Task) -> Slices:
        """Run ``task`` in slices and return its ``Outcome``. If it is cancelled before it ends, its outcome is the same
        task again.
        """
        value = self._unpacked(task)
        if self._unheard is not None and not value.is_note and not (yield from self._unheard.heard()):
            return Outcome([Spawn(*task[1:])])
        self._rank.begin(task.phase)
        result = Result(self._rank, task.phase, task.id, value.about())
        result.attempt = value.attempt
        if task.phase >= Phase.SIGN:  # a resumed job repeats signing from its start: none of it is recorded as done
            result.hold()
        result.running.task = task
        self._rank.go_on(result.running)
        began = time.monotonic()
        try:
            if self._rank.throttle.is_on and not value.is_note:
                yield from self._resumed(self._rank.throttle.spend(operations=value.effort), result)
            steps = value.run(self._rank, result)
            if steps is not None:
                yield from self._resumed(steps, result)
            if value.items:
                self._paces.took(value.code, value.items, time.monotonic() - began)
            if not value.is_note:
                yield from self._resumed(_sync_directories(self._rank), result)
            return outcome_of(result, self._rank)
        except Cancelled:
            self._cut(value, result)
            return Outcome([Spawn(*task[1:])])
        except GeneratorExit:
            self._cut(value, result)
            raise
        finally:
            self._rank.end(result.running)

    def _cut(self, value: Kind, result: Result) -> None:
        """Add the counts of an unfinished task to those of the rank, if its kind requires that."""
        if value.counts_when_cut:
            result.add_done(self._rank.counters)

    def _unpacked(self, task: Task) -> Kind:
        """Return the unpacked task. It is kept, because the same task is usually unpacked twice: for the decision
        whether to divide it, and to run it.
        """
        payload, value = self._last
        if value is None or payload is not task.payload:
            unpacked: Kind = decode(task.payload)
            self._last = task.payload, unpacked
            return unpacked
        return value

    def divide(self, task: Task, hungry: bool) -> list[Spawn]:
        """Return the portions of ``task``, or an empty list if it takes too little time to be worth dividing
        (``pcopy.engine.victim``).
        """
        throttle = self._rank.throttle
        if (task.cost < LEAST_COST or self._rank.size == 1) and not throttle.is_on:
            return []
        value = self._unpacked(task)
        portions = self._paces.portions(value.code, value.items, value.least_items, hungry=hungry)
        if throttle.is_on and value.items > 1:
            slow = throttle.portions(max(0, task.cost - value.items * CALL_COST), value.effort)
            portions = max(portions, min(value.items, MOST_PORTIONS, slow))
        if portions < 2:
            return []
        costs = (each.stop - each.start for each in cuts(task.cost, portions))
        return [
            Spawn(task.phase, encode(portion), cost, task.expands)
            for portion, cost in zip(value.divide(portions), costs, strict=True)
        ]

    def _resumed(self, steps: Steps, result: Result) -> Steps:
        """Yield the steps of a task. Whenever it continues, restore its state in the rank, since other tasks may have
        run meanwhile.
        """
        try:
            for step in steps:
                yield step
                self._rank.go_on(result.running)
        finally:
            self._rank.go_on(result.running)
            steps.close()


def _sync_directories(rank: Rank) -> Steps:
    """Sync the directories that the task wrote to, as ``Rank.ended`` does, but by the threads of the backend, so that
    other tasks run meanwhile.
    """
    changed, storage = rank.running.changed, rank.storage
    if storage is not None and changed:
        verdicts = (yield from rank.done(SyncDirectories(tuple(changed.values())))).verdicts
        for row in verdicts.rows(Code.FAILED):
            storage.note_unsynced(verdicts.problem(row))
        changed.close()


def outcome_of(result: Result, rank: Rank) -> Outcome:
    """Turn everything that a task collected into tasks and notes. Return the outcome for the engine.

    Collected items become tasks; failures become a note for rank 0.
    """
    for names, phase in result.looks:
        result.spawn(_scan(names), phase=phase, expands=True)
    if result.copies or result.inodes:
        _go_on_with_links(result)
    if result.entries:
        _store_entries(result, rank)
    for (place, failed), files in result.over.items():
        from pcopy.tasks.files.unmark import Unmark

        names_of, inodes = zip(*files, strict=True)
        link = Phase.REPAIR_LINK if result.phase >= Phase.REPAIR else Phase.LINK
        unmark = Unmark(place, pack_names([*names_of]), pack_numbers([*inodes]), failed)
        result.spawn(unmark, len(files) * CALL_COST, phase=max(link, result.phase))
    for large in result.large_copies:
        from pcopy.tasks.verify.split_read import SplitRead

        result.spawn_elsewhere(SplitRead(large), large.known.size, large.writers[0], phase=result.verify_phase)
    for (place, writer), gathered in result.verifications.items():
        from pcopy.tasks.verify.verify_items import VerifyItems

        kinds, sizes, versions, digests = gathered.columns
        counters = bytes(gathered.counters)
        verify = VerifyItems(place, gathered.packed_names, kinds, counters, sizes, versions, digests, writer)
        result.spawn_elsewhere(verify, gathered.bytes, writer, phase=result.verify_phase)
    if result.items.is_wanted:
        _hand_on_items(result, rank)
    if unsyncable:
        result.warn_unsyncable()
    if result.failures or result.notices or result.unknown or result.once:
        failures = tuple(tuple(failure) for failure in result.failures)
        retries = tuple(retry._replace(task=_packed(again)) for again, retry in result.failed)
        reported_once = tuple(result.unknown), tuple(result.once)
        note = ReportFailures(failures, tuple(result.notices), retries, *reported_once)  # type: ignore[arg-type]
        result.spawn(note, owner=0)
    rank.ended()
    return result.outcome()


def _go_on_with_links(result: Result) -> None:
    """Spawn tasks that copy items with all of their names, and notes about copies of inodes with several names."""
    from pcopy.tasks.links.group_links import InodeCopied
    from pcopy.tasks.links.inodes_copied import notes_of
    from pcopy.tasks.links.link_groups import groups_of

    for group, cost, phase in groups_of(result.copies):
        result.spawn(group, cost, phase=phase)
    for note in notes_of(InodeCopied(item, copy) for item, copy in result.inodes):
        result.spawn(note, phase=max(Phase.FINISH, result.phase))


def _unheard_of(rank: Rank) -> Unheard | None:
    """Return the flow control for reports to rank 0; None if the job sends none."""
    if rank.options.walk:
        from pcopy.tasks.walk.tell_found import UnheardBytes

        return rank.own(UnheardBytes)
    if rank.options.itemize or rank.options.compare:
        from pcopy.tasks.tell_items import UnheardItems

        return rank.own(UnheardItems)
    return None


def _hand_on_items(result: Result, rank: Rank) -> None:
    """Add the items to the sums of a report, and report them to rank 0 if the user requested that."""
    if rank.gathers:
        from pcopy.tasks.base.rank_sums import RankSums

        rank.own(RankSums).add(result.items.packed())
    if rank.options.itemize:
        from pcopy.tasks.tell_items import tell_items

        tell_items(rank, result)


def _store_entries(result: Result, rank: Rank) -> None:
    """Spawn tasks that keep entries for the signature on this rank until the sign phase."""
    from pcopy.tasks.sign.digest_level import StoredEntries

    again = 2 * (rank.job.run - 1) + (result.phase >= Phase.REPAIR)
    for (side, path), gathered in result.entries.items():
        result.spawn(StoredEntries(gathered.entries(side, path, again)), phase=Phase.SIGN, owner=rank.number)


def _scan(names: Names) -> Kind:
    """Return a task that examines the names again."""
    from pcopy.tasks.directories.scan_dir import ScanNames

    return ScanNames(*names)


def _packed(again: Kind | Item | Names | None) -> bytes:
    """Return the packed task that retries the item; empty if there is none."""
    if isinstance(again, Names):
        again = _scan(again)
    elif isinstance(again, Item):
        from pcopy.tasks.links.link_group import LinkGroup

        again = LinkGroup(again)
    return b"" if again is None else encode(again)
