"""The result of one task: the tasks that it spawns, and what it counts, digests and reports. All of it takes effect
together when the task is done; if the process dies before, none of it does.

This module knows no concrete kinds of tasks. ``pcopy.tasks.runner.make_task_outcome`` turns what was collected here
into tasks when the task is done.
"""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import chain

from pcopy.engine.driver import TaskOutcome
from pcopy.engine.task import ANY_RANK, NewTask, TaskId
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.attributes import MetadataOutcome
from pcopy.fsio.problem import Problem
from pcopy.fsio.syncer import unsyncable_devices
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import NULL_RECORDER, UNTIMED_NEW_COPY, NullItemOutcomeRecorder, TimedCopyAction
from pcopy.tasks.base.codec import encode_task
from pcopy.tasks.base.hashing import SOCKET_TYPE_BYTE
from pcopy.tasks.base.item_columns import ItemColumns
from pcopy.tasks.base.job import Failure
from pcopy.tasks.base.kind import TaskKind
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import CALL_COST, Rank, RunningTask
from pcopy.tasks.base.values import (
    REPAIR_ATTEMPT,
    ContentInfo,
    FailedName,
    FailureRetry,
    FileToRead,
    Item,
    ItemCopy,
    Place,
)
from pcopy.text import printable_path

_EXAMINING_OPERATIONS = ("open", "stat", "readdir", "scan")
"""Operations on an item of the source that precede the creation of anything in the destination. If one of them fails,
nothing was created for the item.
"""

MAX_ONE_TIME_NOTICES = 1000
"""Largest number of different notices that a rank remembers as sent, so that it sends each only once. Once so many are
remembered, other notices are not sent, but only counted as warnings. Notices may contain names, so their number would
otherwise be unlimited.
"""


_UNSYNCABLE_CONSEQUENCE_TEXT = (
    "a kill loses nothing, but what was written may be lost if this host or the file server stops, "
    "and a checkpoint is not used after a reboot"
)
"""What it means for the user that files on a file system cannot be brought to stable storage."""


class RetryMode(Enum):
    """Way in which a resumed job retries a failed item, if no task or item is given for that.

    - EXAMINE_AGAIN: its name is examined again, and the item is copied according to its type then.
    - BY_OTHER_TASK: another name (hard link) of its inode failed together with it; the task that is recorded for that
      name retries both.
    - BY_REPEATED_PHASE: the phase that found the item is repeated. Until then the item is not counted as found.
    - NEVER: it is not tried again.
    """

    EXAMINE_AGAIN = "its name is examined again"
    BY_OTHER_TASK = "by the task of another item that failed together with it"
    BY_REPEATED_PHASE = "by the phase that finds it again: until then it does not count as found"
    NEVER = "it is not tried again"


class NamesToExamine(NamedTuple):
    """Names of the directory ``place`` that are looked up again in the source, and copied according to their type then.

    Fields:
        names: names joined by slashes.
        attempt: number of earlier attempts in this run, from 0.
    """

    place: Place
    names: bytes
    attempt: int


RetryAction = TaskKind | Item | NamesToExamine | RetryMode
"""What a resumed job does about a failed item: it runs the task, copies the item with all of its names, examines the
names, or acts as the ``RetryMode`` says.
"""


class TaskResult(counts.TaskCounts):
    """Everything that one running task spawns, counts and reports."""

    __slots__ = (
        "_completed",
        "_is_deferred",
        "_rank",
        "_spawned",
        "_spawned_list",
        "attempt",
        "copied_inodes",
        "entries",
        "failures",
        "id",
        "item_recorder",
        "items_to_copy",
        "large_copies",
        "names_to_examine",
        "notices",
        "one_time_notices",
        "overwritten_files",
        "phase",
        "retries",
        "running",
        "unsupported_notices",
        "verifications",
    )  # fmt: skip

    def __init__(self, rank: Rank, phase: int, task_id: TaskId, found: tuple[Place, bytes] | None = None) -> None:
        """Create an empty result.

        Args:
            rank: the rank that runs the task.
            phase, task_id: phase and id of the task.
            found: the directory that the task is about and a name in it; None for a task about no directory.
        """
        super().__init__(found[0] if found else None, by_directory=bool(rank.job.began))
        self._rank = rank
        self.phase = int(phase)
        self.running = RunningTask(self.phase)
        self.id = task_id
        self.attempt = 0
        """Number of earlier attempts of this run at the items of the task; 0 for a task of a kind that has no
        attempts.
        """
        self._is_deferred = False
        self._completed: list[TaskId] = []
        self._spawned_list: list[NewTask] = []
        self._spawned: Iterable[NewTask] = self._spawned_list
        self.failures: list[Failure] = []
        self.retries: list[tuple[TaskKind | Item | NamesToExamine | None, FailureRetry]] = []
        """What a resumed job does about each failure, in the order of ``failures``, as pairs: what tries again (a task,
        or the names or item for which a task will be created; None if nothing is tried again), and the ``FailureRetry``
        that will contain this task in packed form.
        """
        self.notices: list[str] = []
        self.unsupported_notices: list[tuple[str, str]] = []
        """Pairs (key, text) of notices about features, such as ACLs or fsync, that a file system does not support. Each
        is shown once in the whole job and counts as one warning then. Rank 0 recognises by the key that another rank
        has sent the same notice.
        """
        self.one_time_notices: list[tuple[str, str]] = []
        """Pairs (key, text) of notices that are shown once in the whole job. The task has counted them as warnings
        already.
        """
        self.names_to_examine: list[tuple[NamesToExamine, int]] = []
        """Names that are examined again, each group with the number of the phase in which that happens."""
        self.items_to_copy: list[tuple[Item, int]] = []
        """Items that are copied, or copied again, with all of their names; each with the number of the phase in which
        that happens.
        """
        self.copied_inodes: list[tuple[Item, ItemCopy]] = []
        """Copies of inodes with several names (hard links). They are recorded for a resumed job, which may find more
        names and links them to the copy.
        """
        self.entries: defaultdict[tuple[int, bytes], ItemColumns] = defaultdict(ItemColumns)
        """Items for the signature, by (number of the dataset, path of the directory)."""
        self.verifications: defaultdict[tuple[Place, int], ItemColumns] = defaultdict(ItemColumns)
        """Small copies that are read back, by directory and by the number of the host that wrote them."""
        self.large_copies: list[FileToRead] = []
        """Large copies that are read back in chunks."""
        self.overwritten_files: defaultdict[tuple[Place, bool], list[tuple[bytes, int]]] = defaultdict(list)
        """Name and inode number of existing files that were overwritten (``--inplace``) and must lose their mark of
        incompleteness, by directory and by whether their metadata could not be set.
        """
        self.item_recorder = _make_item_outcome_recorder(rank)
        """Recorder of what was done with each item, for ``-vv``, ``--log`` and reports."""

    def spawn_task(
        self,
        task: TaskKind,
        cost: int = 0,
        *,
        phase: int | None = None,
        expands: bool = False,
        owner: int | None = None,
    ) -> None:
        """Spawn a new task.

        Args:
            task: the task.
            cost: estimated cost in bytes; ``CALL_COST`` is added.
            phase: phase of the task; by default that of the spawning task.
            expands: True if the task may find more work, as a scan does.
            owner: number of the only rank that may run the task; by default the one that ``TaskKind.assigned_rank``
                returns, or any rank.
        """
        if owner is None:
            home = task.assigned_rank(self._rank.size)
            owner = ANY_RANK if home is None else home
        at = self.phase if phase is None else int(phase)  # a plain int: only primitives can be packed
        if at > self.phase and (counter := counts.DEFERRED_COUNTERS.get(at)) is not None:
            self.count(counter)
        self._spawned_list.append(NewTask(at, encode_task(task), cost + CALL_COST, expands, owner))

    def examine_names_again(self, place: Place, names: bytes, attempt: int, *, phase: int | None = None) -> None:
        """Have names of the directory ``place`` looked up again in the source, and copied according to their type then.

        Args:
            names: names joined by slashes.
            attempt: number of earlier attempts in this run.
            phase: phase in which that happens; by default that of this task.
        """
        self.names_to_examine.append(
            (NamesToExamine(place, names, attempt), self.phase if phase is None else int(phase))
        )

    def spawn_copy_task(self, item: Item, *, phase: int | None = None) -> None:
        """Have ``item`` copied by a task of its own. The task copies the first name that can be copied and creates the
        other names as hard links to that copy. ``phase`` is by default that of this task.
        """
        self.items_to_copy.append((item, self.phase if phase is None else int(phase)))

    def record_copied_inode(self, item: Item, copy: ItemCopy) -> None:
        """Record ``copy`` as the copy of the inode of ``item``, because a resumed job may find more names of that inode
        and must link them to it. The copy has the first name of ``item``. Nothing is recorded if the job cannot be
        resumed or does not preserve hard links.
        """
        if self._rank.job.began and self._rank.options.preserve.links:
            self.copied_inodes.append((item, copy))

    def spawn_task_on_other_host(self, task: TaskKind, cost: int, writer: int, *, phase: int | None = None) -> None:
        """Spawn a task that reads data back, on another host than ``writer`` if the job has several. On the host that
        wrote the data, its page cache would answer instead of the storage.

        Args:
            cost: estimated cost in bytes.
            writer: number of the host that wrote the data.
            phase: phase of the task; by default that of this task.
        """
        self.spawn_task(task, cost, phase=phase, owner=self._rank.hosts.rank_on_other_host(writer))

    def spawn_tasks_lazily(self, tasks: Iterator[TaskKind], cost: int, *, expands: bool) -> None:
        """Spawn a large number of tasks in the phase of this task. Each is created only when the engine takes it, so
        that they are never all in memory.

        Args:
            tasks: iterator that creates the tasks.
            cost: estimated cost of each task in bytes, including its system calls.
            expands: True if the tasks may find more work, as a scan does.
        """
        made = (NewTask(self.phase, encode_task(task), cost, expands) for task in tasks)
        self._spawned = chain(self._spawned, made)

    def defer_task_completion(self) -> None:
        """Do not record this task as done when it ends, because its only effect is in this rank's memory. It is
        recorded when another task has used that effect and names this task in ``complete_deferred_tasks``; until then a
        resumed job runs this task again.
        """
        self._is_deferred = True

    def complete_deferred_tasks(self, tasks: Iterable[TaskId]) -> None:
        """Have ``tasks``, whose completion was deferred, recorded as done together with this task, which has used their
        effects.

        If the completion of this task itself was deferred, it is no longer.
        """
        self._completed += (task for task in tasks if task != self.id)
        self._is_deferred = False

    def count_copied_item(
        self,
        place: Place,
        name: bytes,
        known: ContentInfo,
        *,
        is_only_name: bool = True,
        chunk: int = 0,
        writers: bytes = b"",
        how: TimedCopyAction = UNTIMED_NEW_COPY,
    ) -> None:
        """Count an item that was copied completely, record the outcome for the user, and collect its digest.

        Args:
            place, name: directory and name of the item.
            known: type, size, digest and version of the contents.
            is_only_name: False if the item has other names (hard links): it is verified later, together with them.
            chunk: size in bytes of the chunks in which the file was copied; 0 if one task copied it.
            writers: number of the host that wrote each chunk, one byte each; empty if this host wrote the item.
            how: what was done (copied, or replaced an existing item) and how long it took.
        """
        self.item_recorder.record_item_outcome(how.action, place, name, known.kind, known.size, how.nanoseconds)
        self._rank.record_write_success()
        counter = counts.copied_counter(known.kind)
        self.count(counter, 1, place)
        if counter == counts.FILES:
            self.count(counts.BYTES, known.size, place)
        self.collect_digest(place, name, known, counter, verify=is_only_name, chunk=chunk, writers=writers)

    def collect_digest(
        self,
        place: Place,
        name: bytes,
        known: ContentInfo,
        counter: int,
        *,
        verify: bool = True,
        chunk: int = 0,
        writers: bytes = b"",
    ) -> None:
        """Collect the digest of an item that was counted already, for the signature and for verification. Nothing is
        collected if the job neither writes a signature nor verifies.

        Args:
            place, name: directory and name of the item.
            known: type, size, digest and version of the contents.
            counter: index of the counter in which the item was counted.
            verify: True if the item may be verified by itself; False if it is verified together with its other names.
            chunk: size in bytes of the chunks in which the file was copied; 0 if one task copied it.
            writers: number of the host that wrote each chunk, one byte each; empty if this host wrote the item.
        """
        rank = self._rank
        if rank.collects_signature_entries and name and known.kind != SOCKET_TYPE_BYTE:
            side, path, entry = rank.item_location_in_dataset(place, name)
            self.entries[side, path].add_item(entry, known)
        if not (verify and rank.copy_options.verify):
            return
        self.count_items_to_verify(1, known.size, place)
        if chunk:
            self.large_copies.append(FileToRead(place, name, known, False, 0, counter, chunk, writers))
        else:
            self.verifications[place, writers[0] if writers else rank.hosts.this_host].add_item(name, known, counter)

    def collect_file_digests(self, place: Place, files: ItemColumns, *, verify: bool = True) -> None:
        """Collect the digests of regular files of the directory ``place`` that were counted already, for the signature
        and for verification. They were copied by this host, or skipped.

        ``verify`` is False if the files are not read back.
        """
        rank = self._rank
        if not files:
            return
        if rank.collects_signature_entries:
            side, path, _ = rank.item_location_in_dataset(place, b"")
            item = rank.job.roots[place.root].item
            names = (
                [rank.item_location_in_dataset(place, name)[2] for name in files.packed_names.split(b"/")]
                if item
                else None
            )
            self.entries[side, path].extend(files, names)
        if verify and rank.copy_options.verify:
            self.count_items_to_verify(len(files), files.total_size, place)
            self.verifications[place, rank.hosts.this_host].extend(files)

    def count_items_to_verify(self, items: int, size: int, place: Place) -> None:
        """Count ``items`` items of a directory that will be read back; together they have ``size`` bytes."""
        self.count(counts.TO_VERIFY, items, place)
        self.count(counts.TO_VERIFY_BYTES, size, place)

    def collect_directory_entry(self, place: Place) -> None:
        """Collect the directory ``place`` itself for the signature, if the job writes one.

        If only the items that differ are compared by digests, it is one of the items of its parent; a root is none.
        """
        if not self._rank.collects_signature_entries:
            return
        side, path, _ = self._rank.item_location_in_dataset(place, b"")
        name = b""
        if self._rank.job.compares_by_digest:
            if not path:
                return
            path, _, name = path.rpartition(b"/")
        self.entries[side, path].add_item(name, self._rank.job_item_hasher.placeholder_directory_info)

    @property
    def verification_phase(self) -> int:
        """The phase in which copies that this task creates are read back: VERIFY, or REPAIR_VERIFY for copies of a
        repair.
        """
        return Phase.VERIFY if self.phase < Phase.VERIFY else Phase.REPAIR_VERIFY

    def count_item_as_failed(
        self,
        place: Place,
        name: bytes,
        problem: Problem,
        size: int = 0,
        *,
        retry: RetryAction = RetryMode.EXAMINE_AGAIN,
        retry_phase: int = Phase.COPY,
        may_exist: bool = False,
    ) -> None:
        """Count an item as failed and report it. If the job deletes extra items (``--delete``) and a directory that it
        may delete has the item's name, defer the item to the phase AGAIN instead.

        Args:
            place, name: directory and name of the item; the name ``b""`` means the directory itself.
            problem: the error.
            size: size of the item in bytes.
            retry: what a resumed job does: it runs this task, copies this item, or acts as ``RetryMode`` says.
            retry_phase: the phase in which it does so.
            may_exist: True if something may have been created for the item, even if ``problem`` suggests otherwise.
        """
        if self._awaits_deletion(problem):
            self._defer_until_deletion(place, name, retry)
        else:
            self._record_failure(place, name, problem, size, retry, retry_phase, may_exist=may_exist)

    def _awaits_deletion(self, problem: Problem) -> bool:
        """Return True if the item failed because a directory that is not empty has its name in the target, and the
        phase DELETE may still remove that directory.

        With ``--existing newer``, ``skip`` or ``fail`` no directory is deleted to make room for an item, so the item
        fails.
        """
        options = self._rank.copy_options
        return (
            problem.is_directory_not_empty_error
            and options.delete
            and not options.keeps_existing
            and self.phase < Phase.DELETE
        )

    def _defer_until_deletion(self, place: Place, name: bytes, retry: RetryAction) -> None:
        """Defer the item to the phase AGAIN, which follows DELETE: there it is copied or finally fails. If ``retry`` is
        an ``Item``, all of its names are copied together, because they must become hard links of one inode.
        """
        if isinstance(retry, Item):
            self.spawn_copy_task(retry, phase=Phase.AGAIN)
        elif isinstance(retry, TaskKind):
            self.spawn_task(retry, phase=Phase.AGAIN)
        else:
            self.examine_names_again(place, name, max(1, self.attempt), phase=Phase.AGAIN)

    def _record_failure(
        self,
        place: Place,
        name: bytes,
        problem: Problem,
        size: int,
        retry: RetryAction,
        retry_phase: int,
        *,
        may_exist: bool,
    ) -> None:
        """Count the item as failed, report the error to the user, and record what a resumed job does about the item.

        Args:
            place, name: directory and name of the item; the name ``b""`` means the directory itself.
            problem: the error.
            size: size of the item in bytes.
            retry: what a resumed job does: it runs this task, copies this item, or acts as ``RetryMode`` says.
            retry_phase: the phase in which it does so.
            may_exist: True if something may have been created for the item, even if ``problem`` suggests otherwise.
        """
        counted = [(counts.FAILED, 1), (counts.FAILED_BYTES, size)]
        if problem.changed:
            counted.append((counts.VANISHED if problem.errno == errno.ENOENT else counts.CHANGED, 1))
        counted += [(counts.FOUND, 1)] if retry is RetryMode.BY_REPEATED_PHASE else []
        for counter, number in counted:
            self.count(counter, number, place)
        message = self._rank.find_item_failure_reason(problem, place, name, size)
        text, common = problem.strerror or "", os.strerror(problem.errno or 0)
        if not message or text.startswith(f"{common};"):  # keep a text that pcopy has appended to the system's
            message += text.removeprefix(common) if message else text
        if retry is RetryMode.NEVER:
            self.retries.append((None, FailureRetry()))
        elif isinstance(retry, RetryMode) and retry is not RetryMode.EXAMINE_AGAIN:
            self.retries.append((None, FailureRetry(counts_to_subtract=tuple(counted), place=place)))
        else:
            again = retry if isinstance(retry, tuple) else NamesToExamine(place, name, max(1, self.attempt))
            untouched = not may_exist and self.has_created_nothing(place, problem)
            self.retries.append((again, FailureRetry(b"", int(retry_phase), tuple(counted), untouched, place)))
        self.item_recorder.record_failure(place, name, size)
        path = self._rank.path_for_display(place, name, on_source=problem.on_source)
        self.failures.append(Failure(path, problem.operation, problem.errno or 0, message))

    def count_all_names_as_failed(
        self, failed: Iterable[FailedName], size: int, retry: RetryAction, *, may_exist: bool
    ) -> None:
        """Count several names of one inode as failed. A resumed job retries all of them together.

        Args:
            failed: the names, each with its error.
            size: size of the inode in bytes.
            retry: the task or item by which a resumed job retries the names. It is recorded for the first name only.
            may_exist: True if something may have been created for one of the names.
        """
        problems = [(place, name, Problem.from_packed_tuple(problem)) for place, name, problem in failed]
        if problems and all(self._awaits_deletion(problem) for *_, problem in problems):
            self._defer_until_deletion(*problems[0][:2], retry)
            return
        for place, name, problem in problems:
            self._record_failure(place, name, problem, size, retry, Phase.COPY, may_exist=may_exist)
            retry = RetryMode.BY_OTHER_TASK

    def record_link_to_repeat(self, place: Place) -> None:
        """Record that a resumed job, when it retries a failed item, will create a hard link in the directory ``place``
        that was created and counted already. It subtracts 1 from the count first.
        """
        self.retries.append((None, FailureRetry(counts_to_subtract=((counts.HARDLINKS, 1),), place=place)))

    def has_created_nothing(self, place: Place, problem: Problem) -> bool:
        """Return True if this job has certainly created nothing in the directory ``place`` for an item that failed with
        ``problem``.

        It is not certain if an earlier run may have tried the item and was stopped. It is certain after EEXIST for a
        new file: then the existing item had been examined, and it stays.
        """
        if (problem.operation, problem.errno) == ("create", errno.EEXIST):
            return True
        job = self._rank.job
        is_first = job.run == 1 or place.first_run[0] == job.run
        return (
            is_first
            and not job.copy_options.inplace
            and problem.on_source
            and problem.operation in _EXAMINING_OPERATIONS
        )

    def record_overwritten_file(self, place: Place, name: bytes, inode: int, *, lacks_metadata: bool) -> None:
        """Record that the existing file ``name`` was overwritten completely (``--inplace``). It still has its mark of
        incompleteness (``pcopy.fsio.incomplete_mark``), which a later task removes.

        Args:
            inode: inode number of the file.
            lacks_metadata: True if its metadata could not be set.
        """
        self.overwritten_files[place, lacks_metadata].append((name, inode))

    def report_failure(self, path: bytes, problem: Problem) -> None:
        """Report a failure that concerns no item and is not counted, for example of the file ``path``."""
        self.retries.append((None, FailureRetry()))
        self.failures.append(Failure(path, problem.operation, problem.errno or 0, problem.strerror or ""))

    def record_applied_metadata(self, place: Place, name: bytes, applied: MetadataOutcome) -> None:
        """Count and report what happened (``applied``) when the metadata of an item was set: metadata that could not be
        set for lack of privilege or support and is excused, notices, and features that the file system lacks.

        This does nothing in a repair (``REPAIR_ATTEMPT``), because the first copy of the item was counted already.
        """
        if self.attempt >= REPAIR_ATTEMPT:
            return
        self.count(counts.EXCUSED, applied.excused, place)
        for notice in applied.notices:
            self.warn_about_item(place, name, notice)
        if applied.layout_reason:
            self.warn_of_unwanted_layout(place, name, applied.layout_reason)
        if applied.unsupported:
            self.report_unsupported_features(
                self._rank.path_for_display(place, name, on_source=False), applied.unsupported
            )

    def report_unsupported_features(self, path: bytes, features: frozenset[str]) -> None:
        """Report to the user each of ``features``, such as ACLs, that the file system of ``path`` does not support. A
        feature that this rank has reported before is left out.
        """
        new = features - self._rank.notices_sent_once
        self._rank.notices_sent_once |= new
        for feature in sorted(new):
            text = (
                f"{printable_path(path)}: {feature} is left out, here and elsewhere: the file system does not support "
                "it"
            )
            self.unsupported_notices.append((feature, text))

    def warn_of_unwanted_layout(self, place: Place, name: bytes, why: str) -> None:
        """Count a warning about an item that did not get the wanted Lustre layout (striping). ``why`` is the reason;
        only the first item with this reason is shown to the user.
        """
        self.warn_once(place, name, why)

    def warn_once(self, place: Place, name: bytes, text: str) -> None:
        """Count a warning about an item which many other items may cause, too. Only the first item with this ``text``
        is shown to the user.
        """
        self.count(counts.WARNINGS, 1, place)
        if text not in self._rank.notices_sent_once and len(self._rank.notices_sent_once) < MAX_ONE_TIME_NOTICES:
            self._rank.notices_sent_once.add(text)
            path = printable_path(self._rank.path_for_display(place, name, on_source=False))
            self.one_time_notices.append((text, f"{path}: {text} (more warnings like this are only counted)"))

    def warn_of_unsyncable_devices(self) -> None:
        """Report, once for each device, that the data which this rank wrote to the device cannot be brought to stable
        storage.
        """
        sent = self._rank.notices_sent_once
        for path, number in unsyncable_devices.values():
            where = printable_path(path or b"a file system")
            text = f"{where}: files cannot be synced here ({os.strerror(number)}): {_UNSYNCABLE_CONSEQUENCE_TEXT}"
            if text not in sent:
                sent.add(text)
                self.unsupported_notices.append((text, text))

    def warn_about_item(self, place: Place, name: bytes, text: str, *, on_source: bool = False) -> None:
        """Count and report a warning about an item. ``on_source`` is True if the message shall show the item's path in
        the source.
        """
        self.count(counts.WARNINGS, 1, place)
        self.notices.append(f"{printable_path(self._rank.path_for_display(place, name, on_source=on_source))}: {text}")

    def outcome_for_engine(self) -> TaskOutcome:
        """Return the part of the result that the engine needs: the new tasks, the counts, and which tasks are recorded
        as done.
        """
        return TaskOutcome(
            self._spawned, self._counts, self._completed, self._is_deferred, tuple(self._counts_by_directory())
        )


def _make_item_outcome_recorder(rank: Rank) -> NullItemOutcomeRecorder:
    """Return a recorder of what is done with each item. Return one that ignores everything if neither the user
    (``-vv``, ``--log``) nor a report needs it.
    """
    if not rank.reports_items:
        return NULL_RECORDER
    from pcopy.tasks.base.item_outcomes import ItemOutcomeRecorder

    return ItemOutcomeRecorder(rank, records_unchanged=rank.reports_unchanged_items)
