"""The result of one task: what it spawns, counts, digests and reports. All of it takes effect together when the task is
done.

This module does not know the kinds of tasks. ``pcopy.tasks.runner`` turns the collected items into tasks when the task
is done.
"""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import chain

from pcopy.engine.driver import Outcome
from pcopy.engine.task import ANY_RANK, NewTask, TaskId
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.attributes import MetadataOutcome
from pcopy.fsio.problem import Problem
from pcopy.fsio.syncer import unsyncable_devices
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import NEW_COPY, NULL_RECORDER, CopyAction, NullItemRecorder
from pcopy.tasks.base.codec import encode
from pcopy.tasks.base.hashing import SOCKET
from pcopy.tasks.base.item_columns import ItemColumns
from pcopy.tasks.base.job import Failure
from pcopy.tasks.base.kind import TaskKind
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import CALL_COST, Rank, RunningTask
from pcopy.tasks.base.values import REPAIR_ATTEMPT, ContentInfo, FailedName, FileToRead, Item, ItemCopy, Place, Retry
from pcopy.text import printable_path

_EXAMINING_OPERATIONS = ("open", "stat", "readdir", "scan")
"""Operations on an item of the source before anything is created for it in the destination."""

MAX_ONE_TIME_NOTICES = 1000
"""Largest number of different notices that a rank sends only once; further ones are only counted. Notices may contain
names, so their number is otherwise unlimited.
"""


_UNSYNCABLE_CONSEQUENCE = (
    "a kill loses nothing, but what was written may be lost if this host or the file server stops, "
    "and a checkpoint is not used after a reboot"
)
"""Consequence, for the user, of a file system that cannot bring files to stable storage."""


class RetryMode(Enum):
    """How a resumed job retries a failed item that has no task of its own for that.

    - BY_NAME: the name is examined again.
    - WITH_ANOTHER: the task of another item that failed together with it retries it.
    - WHEN_FOUND: the phase that finds the item is repeated. Until then the item is not counted as found.
    - NEVER: it is not retried.
    """

    EXAMINE_AGAIN = "its name is looked at again"
    BY_OTHER_TASK = "by the task of another item that failed together with it"
    BY_REPEATED_PHASE = "by the phase that finds it again: until then it counts as not found, too"
    NEVER = "it stays failed"


class NamesToExamine(NamedTuple):
    """Names of a directory, joined by slashes, that are examined again. ``attempt`` counts from 0."""

    place: Place
    names: bytes
    attempt: int


RetryAction = TaskKind | Item | NamesToExamine | RetryMode
"""Type of the action that a resumed job takes for a failed item."""


class TaskResult(counts.TaskCounts):
    """Everything that one task spawns, counts and reports."""

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
            found: the directory that the task is about and a name in it, or None.
        """
        super().__init__(found[0] if found else None, by_directory=bool(rank.job.began))
        self._rank = rank
        self.phase = int(phase)
        self.running = RunningTask(self.phase)
        self.id = task_id
        self.attempt = 0
        """Number of the task's attempt, from 0; 0 for tasks that have none."""
        self._is_deferred = False
        self._completed: list[TaskId] = []
        self._spawned_list: list[NewTask] = []
        self._spawned: Iterable[NewTask] = self._spawned_list
        self.failures: list[Failure] = []
        self.retries: list[tuple[TaskKind | Item | NamesToExamine | None, Retry]] = []
        """For each failure, the action of a resumed job: the task or item that ``Retry`` will contain in packed form,
        and the ``Retry`` itself.
        """
        self.notices: list[str] = []
        self.unsupported_notices: list[tuple[str, str]] = []
        """Notices that count as one warning and are shown once in the whole job. Each has a key, by which duplicates of
        other ranks are recognised.
        """
        self.one_time_notices: list[tuple[str, str]] = []
        """Notices that are shown once in the whole job and were counted already. Each has a key, by which duplicates of
        other ranks are recognised.
        """
        self.names_to_examine: list[tuple[NamesToExamine, int]] = []
        """Names that are examined again, each group with the phase in which that happens."""
        self.items_to_copy: list[tuple[Item, int]] = []
        """Items that are copied or copied again, each with the phase in which that happens."""
        self.copied_inodes: list[tuple[Item, ItemCopy]] = []
        """Copies of inodes with several names, which are recorded for a resumed job."""
        self.entries: defaultdict[tuple[int, bytes], ItemColumns] = defaultdict(ItemColumns)
        """Entries for the signature, by side and path."""
        self.verifications: defaultdict[tuple[Place, int], ItemColumns] = defaultdict(ItemColumns)
        """Copies that are read back, by directory and by the number of the host that wrote them."""
        self.large_copies: list[FileToRead] = []
        """Copies that are read back in chunks."""
        self.overwritten_files: defaultdict[tuple[Place, bool], list[tuple[bytes, int]]] = defaultdict(list)
        """Existing files that were overwritten (name and inode number), by directory and by whether they failed."""
        self.item_recorder = _make_item_recorder(rank)
        """Recorder of the outcomes of items."""

    def spawn(
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
            cost: estimated cost in bytes, in addition to ``CALL_COST``.
            phase: phase of the task; by default that of the spawning task.
            expands: True if the task may find further work.
            owner: the only rank that may run it; by default the task's ``home``, or any rank.
        """
        if owner is None:
            home = task.assigned_rank(self._rank.size)
            owner = ANY_RANK if home is None else home
        at = self.phase if phase is None else int(phase)  # a plain int: only primitives can be packed
        if at > self.phase and (counter := counts.DEFERRED_COUNTERS.get(at)) is not None:
            self.count(counter)
        self._spawned_list.append(NewTask(at, encode(task), cost + CALL_COST, expands, owner))

    def examine_again(self, place: Place, names: bytes, attempt: int, *, phase: int | None = None) -> None:
        """Have names of a directory examined again. Their items are copied according to their type then."""
        self.names_to_examine.append(
            (NamesToExamine(place, names, attempt), self.phase if phase is None else int(phase))
        )

    def spawn_copy(self, item: Item, *, phase: int | None = None) -> None:
        """Have ``item`` copied by a task of its own: the first of its names that can be copied, with the other names as
        hard links to the copy.
        """
        self.items_to_copy.append((item, self.phase if phase is None else int(phase)))

    def record_copied_inode(self, item: Item, copy: ItemCopy) -> None:
        """Record that names of an inode were created, because a resumed job may find more names. The first name of
        ``item`` is the copy.
        """
        if self._rank.job.began and self._rank.options.preserve.links:
            self.copied_inodes.append((item, copy))

    def spawn_on_other_host(self, task: TaskKind, cost: int, writer: int, *, phase: int | None = None) -> None:
        """Spawn a task that must run on another host than ``writer``, if there are several. The page cache of
        ``writer`` contains the data that the task is to read from storage.
        """
        self.spawn(task, cost, phase=phase, owner=self._rank.hosts.rank_on_other_host(writer))

    def spawn_each(self, tasks: Iterator[TaskKind], cost: int, *, expands: bool) -> None:
        """Spawn a large number of tasks of this phase. Each is created only when the engine takes it."""
        made = (NewTask(self.phase, encode(task), cost, expands) for task in tasks)
        self._spawned = chain(self._spawned, made)

    def defer_completion(self) -> None:
        """Defer the recording of this task as done, because its effect is in this rank's memory only. Another task
        completes it (``Outcome``).
        """
        self._is_deferred = True

    def complete_deferred(self, tasks: Iterable[TaskId]) -> None:
        """Complete ``tasks`` whose recording was deferred: this task has used up their effects. Its own recording is
        not deferred.
        """
        self._completed += (task for task in tasks if task != self.id)
        self._is_deferred = False

    def count_copied(
        self,
        place: Place,
        name: bytes,
        known: ContentInfo,
        *,
        is_only_name: bool = True,
        chunk: int = 0,
        writers: bytes = b"",
        how: CopyAction = NEW_COPY,
    ) -> None:
        """Count an item that was copied completely.

        Args:
            known: type, size, digest and version of the contents.
            is_only_name: False if the item has further names; it is verified together with them.
            chunk, writers: as in ``pcopy.tasks.base.values.FileToRead``.
            how: action and duration, which are recorded for the report of each item.
        """
        self.item_recorder.record(how.action, place, name, known.kind, known.size, how.nanoseconds)
        self._rank.record_success()
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
        """Collect the digest of an item that was counted already, for the signature and for verification.

        Args:
            counter: the counter in which the item was counted.
            verify: True if the item is verified now; False if it is verified with its links.

        The other arguments are those of ``copied``.
        """
        rank = self._rank
        if rank.collects_entries and name and known.kind != SOCKET:
            side, path, entry = rank.dataset_entry(place, name)
            self.entries[side, path].add_item(entry, known)
        if not (verify and rank.options.verify):
            return
        self.count_to_verify(1, known.size, place)
        if chunk:
            self.large_copies.append(FileToRead(place, name, known, False, 0, counter, chunk, writers))
        else:
            self.verifications[place, writers[0] if writers else rank.hosts.this_host].add_item(name, known, counter)

    def collect_file_digests(self, place: Place, files: ItemColumns, *, verify: bool = True) -> None:
        """Collect the digests of regular files of one directory, as ``digested`` does. Copies among them were written
        by this host.
        """
        rank = self._rank
        if not files:
            return
        if rank.collects_entries:
            side, path, _ = rank.dataset_entry(place, b"")
            item = rank.job.roots[place.root].item
            names = [rank.dataset_entry(place, name)[2] for name in files.packed_names.split(b"/")] if item else None
            self.entries[side, path].extend(files, names)
        if verify and rank.options.verify:
            self.count_to_verify(len(files), files.total_size, place)
            self.verifications[place, rank.hosts.this_host].extend(files)

    def count_to_verify(self, items: int, size: int, place: Place) -> None:
        """Count ``items`` of a directory, of ``size`` bytes together, that will be read back."""
        self.count(counts.TO_VERIFY, items, place)
        self.count(counts.TO_VERIFY_BYTES, size, place)

    def collect_directory_entry(self, place: Place) -> None:
        """Collect the entry of a directory for the signature."""
        if self._rank.collects_entries:
            side, path, _ = self._rank.dataset_entry(place, b"")
            self.entries[side, path].add_item(b"", self._rank.hashing.directory_item)

    @property
    def verify_phase(self) -> int:
        """The phase in which the copies of this task are read back."""
        return Phase.VERIFY if self.phase < Phase.VERIFY else Phase.REPAIR_VERIFY

    def fail(
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
        """Count an item as failed and report it. In a job that deletes, defer it to AGAIN instead if a directory that
        will be deleted has its name.

        Args:
            place, name: directory and name of the item; the name ``b""`` means the directory itself.
            problem: the error.
            size: size of the item in bytes.
            retry: what a resumed job does: it runs this task, copies this item, or acts as ``RetryMode`` says.
            retry_phase: the phase of the retry.
            may_exist: True if something may have been created for the item, whatever the ``problem`` is.
        """
        if self._awaits_deletion(problem):
            self._defer_until_deletion(place, name, retry)
        else:
            self._record_failure(place, name, problem, size, retry, retry_phase, may_exist=may_exist)

    def _awaits_deletion(self, problem: Problem) -> bool:
        """Return True if the item failed because a directory has its name that is going to be deleted, as far as
        deletion is permitted.

        With ``--existing newer`` no directory is deleted to make room for an item, so the item fails.
        """
        options = self._rank.options
        return (
            problem.is_directory_not_empty
            and options.delete
            and not options.keeps_existing
            and self.phase < Phase.DELETE
        )

    def _defer_until_deletion(self, place: Place, name: bytes, retry: RetryAction) -> None:
        """Defer the item to AGAIN, where it is copied or finally fails. Names of one inode are copied together, as in a
        resumed job.
        """
        if isinstance(retry, Item):
            self.spawn_copy(retry, phase=Phase.AGAIN)
        elif isinstance(retry, TaskKind):
            self.spawn(retry, phase=Phase.AGAIN)
        else:
            self.examine_again(place, name, max(1, self.attempt), phase=Phase.AGAIN)

    def _record_failure(
        self,
        place: Place,
        name: bytes,
        problem: Problem,
        size: int,
        retry: RetryAction,
        retry_in: int,
        *,
        may_exist: bool,
    ) -> None:
        """Count the item as failed, and record the failure and its retry. The arguments are those of ``fail``."""
        counted = [(counts.FAILED, 1), (counts.FAILED_BYTES, size)]
        if problem.changed:
            counted.append((counts.VANISHED if problem.errno == errno.ENOENT else counts.CHANGED, 1))
        counted += [(counts.FOUND, 1)] if retry is RetryMode.BY_REPEATED_PHASE else []
        for counter, number in counted:
            self.count(counter, number, place)
        message = self._rank.handle_failure(problem, place, name, size)
        text, common = problem.strerror or "", os.strerror(problem.errno or 0)
        if not message or text.startswith(f"{common};"):  # a text that was appended to the system's is kept
            message += text.removeprefix(common) if message else text
        if retry is RetryMode.NEVER:
            self.retries.append((None, Retry()))
        elif isinstance(retry, RetryMode) and retry is not RetryMode.EXAMINE_AGAIN:
            self.retries.append((None, Retry(counts_to_subtract=tuple(counted), place=place)))
        else:
            again = retry if isinstance(retry, tuple) else NamesToExamine(place, name, max(1, self.attempt))
            untouched = not may_exist and self.is_untouched(place, problem)
            self.retries.append((again, Retry(b"", int(retry_in), tuple(counted), untouched, place)))
        self.item_recorder.record_failure(place, name, size)
        path = self._rank.display_path(place, name, on_source=problem.on_source)
        self.failures.append(Failure(path, problem.operation, problem.errno or 0, message))

    def fail_all_names(self, failed: Iterable[FailedName], size: int, retry: RetryAction, *, may_exist: bool) -> None:
        """Count names of one inode as failed. A resumed job retries all of them by the task ``retry``."""
        problems = [(place, name, Problem.from_packed(problem)) for place, name, problem in failed]
        if problems and all(self._awaits_deletion(problem) for *_, problem in problems):
            self._defer_until_deletion(*problems[0][:2], retry)
            return
        for place, name, problem in problems:
            self._record_failure(place, name, problem, size, retry, Phase.COPY, may_exist=may_exist)
            retry = RetryMode.BY_OTHER_TASK

    def record_link_to_repeat(self, place: Place) -> None:
        """Record that the retry of a failed item creates the hard link in ``place`` once more, which was counted
        already.
        """
        self.retries.append((None, Retry(counts_to_subtract=((counts.HARDLINKS, 1),), place=place)))

    def is_untouched(self, place: Place, problem: Problem) -> bool:
        """Return True if this job certainly created nothing for an item that failed with ``problem``.

        An item that an earlier run may have tried before it was stopped is not certain. If a new file failed with
        EEXIST, the existing item was examined already.
        """
        if (problem.operation, problem.errno) == ("create", errno.EEXIST):
            return True
        job = self._rank.job
        is_first = job.run == 1 or place.first_run[0] == job.run
        return is_first and not job.options.inplace and problem.on_source and problem.operation in _EXAMINING_OPERATIONS

    def record_overwritten(self, place: Place, name: bytes, inode: int, *, lacks_metadata: bool) -> None:
        """Record that the existing file ``name`` was overwritten completely and still has its mark
        (``pcopy.fsio.incomplete_mark``).

        Args:
            inode: its inode number.
            lacks_metadata: True if it lacks metadata.
        """
        self.overwritten_files[place, lacks_metadata].append((name, inode))

    def report_failure(self, path: bytes, problem: Problem) -> None:
        """Report a failure that concerns no item."""
        self.retries.append((None, Retry()))
        self.failures.append(Failure(path, problem.operation, problem.errno or 0, problem.strerror or ""))

    def record_applied_metadata(self, place: Place, name: bytes, applied: MetadataOutcome) -> None:
        """Count and report what happened when metadata was set: exceptions that were excused, notices, and unsupported
        features.

        It does nothing if the item was copied before in an earlier attempt, because it was counted then.
        """
        if self.attempt >= REPAIR_ATTEMPT:
            return
        self.count(counts.EXCUSED, applied.excused, place)
        for notice in applied.notices:
            self.warn(place, name, notice)
        if applied.layout_reason:
            self.warn_other_layout(place, name, applied.layout_reason)
        if applied.unsupported:
            self.report_unsupported(self._rank.display_path(place, name, on_source=False), applied.unsupported)

    def report_unsupported(self, path: bytes, unknown: frozenset[str]) -> None:
        """Report once the features that the file system of ``path`` does not support (``MetadataOutcome.unknown``)."""
        new = unknown - self._rank.notices_sent_once
        self._rank.notices_sent_once |= new
        for feature in sorted(new):
            text = (
                f"{printable_path(path)}: {feature} is left out, here and elsewhere: the file system does not support "
                "it"
            )
            self.unsupported_notices.append((feature, text))

    def warn_other_layout(self, place: Place, name: bytes, why: str) -> None:
        """Count an item that did not get the wanted layout; report the first one for each reason."""
        self.warn_once(place, name, why)

    def warn_once(self, place: Place, name: bytes, text: str) -> None:
        """Count a warning that may concern many items; report only the first one with this ``text``."""
        self.count(counts.WARNINGS, 1, place)
        if text not in self._rank.notices_sent_once and len(self._rank.notices_sent_once) < MAX_ONE_TIME_NOTICES:
            self._rank.notices_sent_once.add(text)
            path = printable_path(self._rank.display_path(place, name, on_source=False))
            self.one_time_notices.append((text, f"{path}: {text} (others like it are only counted)"))

    def warn_unsyncable(self) -> None:
        """Report, once for each device, that data which this rank wrote there cannot be brought to stable storage."""
        sent = self._rank.notices_sent_once
        for path, number in unsyncable_devices.values():
            where = printable_path(path or b"a file system")
            text = f"{where}: files cannot be synced here ({os.strerror(number)}): {_UNSYNCABLE_CONSEQUENCE}"
            if text not in sent:
                sent.add(text)
                self.unsupported_notices.append((text, text))

    def warn(self, place: Place, name: bytes, text: str, *, on_source: bool = False) -> None:
        """Count and report a warning about an item, which is not a failure."""
        self.count(counts.WARNINGS, 1, place)
        self.notices.append(f"{printable_path(self._rank.display_path(place, name, on_source=on_source))}: {text}")

    def outcome(self) -> Outcome:
        """Return the part of the result that the engine needs."""
        return Outcome(
            self._spawned, self._counts, self._completed, self._is_deferred, tuple(self._counts_by_directory())
        )


def _make_item_recorder(rank: Rank) -> NullItemRecorder:
    """Return the recorder of the outcomes of items; one that ignores them if neither the user nor a
    report needs them.
    """
    if not (rank.options.itemize or rank.collects_report_sums):
        return NULL_RECORDER
    from pcopy.tasks.base.item_outcomes import ItemRecorder

    return ItemRecorder(rank)
