"""The state that all tasks of one rank (process of the job) share: the job, open directories, temporary names,
counters, and the way to report results.
"""

from __future__ import annotations

import errno
import io
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

from pcopy.engine.backlog import OpenSpool
from pcopy.engine.messages import HaltMessage
from pcopy.engine.task import Task
from pcopy.engine.ticket import TicketGenerator
from pcopy.errors import NO_SPACE_CODE, SYNC_FAILED_CODE, SYNC_FAILED_TEXT, InvariantBroken
from pcopy.fsio.backend.batches import BatchResult, FileOperationBatch
from pcopy.fsio.backend.interface import MAX_SMALL_FILE_BYTES, FileOperationBackend, TicketCancelled, await_ticket
from pcopy.fsio.close import is_mtime_set_on_close
from pcopy.fsio.data import ContentsCopier
from pcopy.fsio.directories import TaskDescriptors
from pcopy.fsio.incomplete_mark import remove_stale_sidecars
from pcopy.fsio.memory_copy import PageCachePolicy
from pcopy.fsio.naming import NonReplacingRenamer
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of_open_item
from pcopy.fsio.spelling import NameSpellingFinder
from pcopy.fsio.storage import UnsyncedDirectories, WrittenFileSystems
from pcopy.fsio.syncer import SyncHelperProcess, unsyncable_devices
from pcopy.fsio.temporary import TemporaryNameGenerator, leftover_notice, remove_leftover_temporary_files
from pcopy.signature.tree import ContentHasher
from pcopy.tasks.base import counts
from pcopy.tasks.base.both_sides import SourceAndTargetDescriptors, SourceAndTargetDirectories
from pcopy.tasks.base.distribution import Hosts, chunk_size
from pcopy.tasks.base.hashing import JobItemHasher
from pcopy.tasks.base.job import REPORT_ALL_ITEMS, Failure, Job, P, ProgressSink
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, Place
from pcopy.text import count_with_noun, printable_path
from pcopy.walk.visitor import DirectoryVisitor

CALL_COST = 64 << 10
"""Estimated cost of a file in addition to its size, in bytes: so many bytes could be copied, at a medium bandwidth, in
the time of its system calls.
"""

SCAN_COST = 4 << 20
"""Estimated cost of a directory that was not read yet, in bytes: a guess of what its files contain."""

FILES_PER_SLICE = 8
"""Number of small files after which a task yields, so that the rank can handle messages from other ranks."""

CLOCK_GRACE = 5 * 10**9
"""Nanoseconds by which the clocks of a file server and its clients may differ. A time stamp that is older than an event
by no more than this counts as later than the event.
"""

HOST_CLOCK_GRACE = 2 * 10**7
"""The same for times that one host has set, in nanoseconds. Time stamps of files follow a clock that advances at least
a hundred times a second.
"""

_NO_SPACE_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""Error numbers that may mean that the destination is full or read-only."""
_SPACE_USING_OPERATIONS = (
    *("write", "create", "mkdir", "mknod", "symlink", "link", "truncate", "copy_file_range", "fsync", "close"),
    *("fallocate", "fdatasync", "sync_file_range"),
)
"""Operations that need room in the destination. Only if one of them fails with ``_NO_SPACE_ERRNOS``, the destination
may be full.
"""
_NAME_CREATING_OPERATIONS = ("create", "mkdir", "mknod", "symlink", "link", "rename")
"""Operations that create a name in the destination. EILSEQ or EINVAL from one of them may mean that the file system
refuses the name.
"""
S = TypeVar("S")
M = TypeVar("M", bound=BatchResult)

VisitorFactory = Callable[["Rank", Any, Place, int], DirectoryVisitor]
"""Function that returns the visitor of a program, such as pcopy or prm: the object that receives the items which a task
finds in a directory, and decides what is done with them (``pcopy.walk.visitor.DirectoryVisitor``).

Its arguments are the rank, the result of the task, the directory, and the number of earlier attempts (from 0).
"""


class SetSharedByTasks(set[S]):
    """A set that all tasks of a rank share. The rank creates it when a task first asks for it
    (``Rank.shared_instance``).
    """

    def __init__(self, rank: Rank) -> None:
        super().__init__()


class RunningTask:
    """State of one task while it runs. Other tasks of the rank may run while this one waits.

    Fields:
        phase: number of the task's phase.
        task: the engine's description of the task.
        changed_directories: directories in which the task created names and that must be synced one by one.
        pinned_descriptors: descriptors that stay open for the task.
        shortages: failures for lack of space since the task last wrote something: the error number of each, and the
            directory, project and owner to which the item was charged
            (``pcopy.tasks.base.space_failures.ChargedQuota``; None for EROFS).
        has_written: True if the task has written something.
    """

    __slots__ = ("changed_directories", "has_written", "phase", "pinned_descriptors", "shortages", "task")

    def __init__(self, phase: int) -> None:
        self.phase = phase
        self.task: Task | None = None
        self.changed_directories = UnsyncedDirectories()
        self.pinned_descriptors = TaskDescriptors()
        self.shortages: tuple[tuple[int, Any], ...] = ()
        self.has_written = False


class Rank(SourceAndTargetDirectories):
    """One process of a run, with everything that its tasks share.

    Args:
        job: the job.
        number: number of this rank.
        size: number of ranks.
        descriptors: open descriptors of the source and target directory of each root.
        backend: the backend (in C or in Python) that executes batches of system calls.
        visitor: function that returns the program's visitor for a directory.
        sink: receiver of progress and failures on rank 0; None on other ranks.
        first_ranks: number of one rank of each host.
        hosts: name of each rank's host; empty if all ranks run on one host.
        open_spool: function that opens a temporary file for data that would take too much memory.
    """

    collects_report_sums = False
    """True if the rank sums up the outcomes of items for the report of the job."""
    _earlier_shortages: tuple[tuple[int, Any], ...] = ()
    """Failures for lack of space of the tasks that have ended since the last successful write, in the form of
    ``RunningTask.shortages``.
    """
    deletion_counter: Callable[[], memoryview | None] = staticmethod(lambda: None)
    """Return the shared memory in which each deletion is counted at once (``RemoveItemsBatch.removal_counters``), so
    that the count survives if this process is killed. Return None if the job is not recorded.
    """

    def __init__(
        self,
        job: Job,
        number: int,
        size: int,
        descriptors: Sequence[SourceAndTargetDescriptors],
        backend: FileOperationBackend,
        visitor: VisitorFactory,
        *,
        sink: ProgressSink | None = None,
        first_ranks: Sequence[int] = (0,),
        hosts: Sequence[str] = (),
        open_spool: OpenSpool = io.BytesIO,
    ) -> None:
        super().__init__(job, descriptors, backend, one_host=len(first_ranks) == 1)
        self._instances: dict[Callable[[Rank], Any], Any] = {}
        self.number = number
        self.size = size
        self.backend = backend
        self.visitor = visitor
        self.mover = make_contents_copier(job)
        self.throttle = self.mover.throttle
        self.sink = sink
        self.counters = [0] * counts.NUMBER_OF_COUNTERS
        """Counters of this rank, by the indices in ``pcopy.tasks.base.counts``. Moved bytes are added at once, other
        counts when a task ends. In a job with several ranks the engine replaces the list by its own.
        """
        self.totals: Callable[[], tuple[int, ...]] = lambda: tuple(self.counters)
        """Return the sums of the counters over all ranks, as far as they are known to this rank."""
        self.totals_at_phase_start = self.totals
        """Return the sums of the counters over all ranks at the start of the current phase."""
        self.all_ranks_have_work: Callable[[], bool] = lambda: False
        """Return True if no rank lacks work: the other ranks would find some, and this rank has at least as many
        waiting tasks as it may have in progress at the same time. The engine replaces this function.
        """
        self.total_task_slots: Callable[[], int] = lambda: size
        """Return the number of tasks that all ranks together may have in progress at the same time. The engine replaces
        this function.
        """
        self.first_ranks = first_ranks
        self.open_spool = open_spool
        self.temporary_names = TemporaryNameGenerator(job.name, job.run, number, hidden=not job.options.sequential)
        self.notices_sent_once: set[str] = set()
        """Keys of the notices that this rank has sent to rank 0 and sends only once, such as names of unsupported
        features.
        """
        self.spellings = NameSpellingFinder()
        self.namer = NonReplacingRenamer()
        self.began = time.monotonic()
        self.syncer, self.storer = SyncHelperProcess(), SyncHelperProcess()
        """Helper processes for syncs: ``syncer`` syncs file systems, ``storer`` syncs single files before they get
        their final names.

        There are two, so that the sync of a file does not wait for that of a file system.
        """
        self.hosts = Hosts(hosts, number, size)
        self.names_late = job.copies and job.copy_options.keeps_existing
        """True if copies get their final names only in the phase NAME, and replace existing items only as
        ``--existing`` (newer, skip or fail) permits.
        """
        self._phase = int(Phase.COPY)
        self.running = RunningTask(int(Phase.COPY))
        """State of the task that runs now; another task may run once this one yields."""
        self._hashing = JobItemHasher(self.options.hash, self.options.block_size) if self.options.hash else None
        self.storage: WrittenFileSystems | None = None
        """Syncs what was written before the checkpoint records it as done; None if the job is not recorded."""
        self.stop_reason: HaltMessage | None = None
        self._failure_count = 0

    def shared_instance(self, state: Callable[[Rank], S]) -> S:
        """Return this rank's only instance of the class ``state``; the first call creates it.

        Such a class is defined in the module of the tasks that use it. If the instance has a method ``close``, the end
        of the job calls it.
        """
        instance = self._instances.get(state)
        if instance is None:
            instance = self._instances[state] = state(self)
        return cast(S, instance)

    def program_options(self, program: type[P]) -> P:
        """Return the options of the job's program (``Job.program_options``)."""
        return self.job.program_options(program)

    def prepare_for_phase(self, phase: int) -> None:
        """Prepare for a task of ``phase``. At the start of a verify phase, open target directories are closed, so that
        each is opened by its path again: one that was moved away must not be read.
        """
        if phase != self._phase and phase in (Phase.VERIFY, Phase.REPAIR_VERIFY):
            for directories in self.targets:
                directories.close()
        self._phase = phase

    def set_running_task(self, running: RunningTask) -> None:
        """Make ``running`` the state of the current task. Descriptors that are used from now on stay open until that
        task ends.
        """
        self.running = running
        self.backend.pins.task_descriptors = running.pinned_descriptors

    def release_task_resources(self, running: RunningTask) -> None:
        """Release all descriptors and directories that were kept open for the task ``running``, which has ended."""
        self.backend.pins.task_descriptors = None
        self.backend.pins.release_descriptors_of_task(running.pinned_descriptors)
        running.changed_directories.close()

    def execute_batch(self, batch: FileOperationBatch[S]) -> TicketGenerator[S]:
        """Yield until the backend has executed ``batch`` (the same system calls on many items); return the result of
        the batch. Raise ``TicketCancelled`` if the batch was cancelled before all items were processed.
        """
        return await_ticket(self.backend, self.backend.submit_batch(batch))

    def execute_batch_counting_changes(
        self, batch: FileOperationBatch[S], count: Callable[[S], None]
    ) -> TicketGenerator[S]:
        """Execute ``batch``, which changes items; return its result. Raise ``TicketCancelled`` if the batch was
        cancelled.

        ``count`` is a function that counts what was changed. It is called with the final result in any case, even if
        the batch is cancelled or the task is dropped.
        """
        ticket = self.backend.submit_batch(batch)
        try:
            return (yield from await_ticket(self.backend, ticket))
        finally:
            count(ticket.result)

    def execute_batch_counting_bytes(self, batch: FileOperationBatch[M]) -> TicketGenerator[M]:
        """Execute ``batch``, which reads or writes contents; return its result. Bytes are counted as moved while the
        batch runs, so that progress is visible.

        If the batch is cancelled, the result is returned nevertheless: operations that had begun are completed and
        counted.
        """
        ticket = self.backend.submit_batch(batch)
        verdicts, counted_bytes = ticket.result.verdicts, 0

        def count_moved() -> None:
            nonlocal counted_bytes
            self.counters[counts.MOVED] += verdicts.moved - counted_bytes
            counted_bytes = verdicts.moved

        with suppress(TicketCancelled):
            yield from await_ticket(self.backend, ticket, count_moved)
        count_moved()
        return ticket.result

    @property
    def phase(self) -> int:
        """Number of the current task's phase."""
        return self.running.phase

    @property
    def reports_items(self) -> bool:
        """True if the outcome of each item that is changed is collected, for the user or for the report of the job."""
        return bool(self.options.itemize) or self.collects_report_sums

    @property
    def reports_unchanged_items(self) -> bool:
        """True if the outcome of all other items is collected, too."""
        return self.options.itemize == REPORT_ALL_ITEMS or self.collects_report_sums

    @property
    def collects_signature_entries(self) -> bool:
        """True if tasks collect the items of datasets with their digests, for a signature or for a comparison of
        digests.
        """
        return self.options.writes_signature or (
            self.computes_digests and not self.job.copies and not self.job.compares_properties
        )

    @property
    def verifies_kept_items(self) -> bool:
        """True if existing items that were kept are read back as well: with ``--verify`` and ``--existing changed``,
        which kept them because they seemed to equal their source.
        """
        return self.copy_options.verify and self.copy_options.existing == "changed"

    @property
    def computes_digests(self) -> bool:
        """True if the job computes digests of contents."""
        return self._hashing is not None

    @property
    def job_item_hasher(self) -> JobItemHasher:
        """The job's digest algorithm and block size. Raise ``InvariantBroken`` in a job that computes no digests."""
        if self._hashing is None:
            raise InvariantBroken("a digest was requested in a job without digests")
        return self._hashing

    def new_hasher(self) -> ContentHasher | None:
        """Return a hasher for the contents of one file; None if the job computes no digests."""
        return self._hashing.new_hasher() if self._hashing else None

    def chunk_size_of_file(self, size: int, unit: int = 0) -> int:
        """Return the size, in bytes, of the chunks in which a file of ``size`` bytes is copied. It depends on the bytes
        of all files that the job has found so far.

        Args:
            unit: least size of a chunk, such as a stripe; 0 for none (``pcopy.tasks.base.distribution.chunk_size``).
        """
        known = max(self.totals()[counts.FOUND_BYTES], self.counters[counts.FOUND_BYTES], size)
        return chunk_size(self.copy_options.chunk_size, self.options.block_size, size, known, self.size, unit)

    def bytes_to_copy(self, status: os.stat_result) -> int:
        """Return the number of bytes to copy of a file with this ``status``: its size, or, if holes are preserved, at
        most the bytes of its allocated blocks.
        """
        return min(status.st_size, status.st_blocks * 512) if self.options.preserve.sparse else status.st_size

    def is_processed_in_chunks(self, size: int) -> bool:
        """Return True if a file of ``size`` bytes is copied or read in chunks by several tasks: there are several
        ranks, the file is not small, and it makes at least one and a half chunks.
        """
        return self.size > 1 and size > MAX_SMALL_FILE_BYTES and 2 * size >= 3 * self.chunk_size_of_file(size)

    def has_generated_files(self, place: Place) -> bool:
        """Return True if the files of the source directory ``place`` are generated when they are read, as in /proc:
        their sizes say nothing. Raise ``Problem`` if the directory cannot be opened.
        """
        directory = self.open_source_directory(place)
        return self.mover.generated_file_systems.is_on_pseudo_file_system(
            directory, status_of_open_item(directory, on_source=True).st_dev
        )

    def open_target_directory(self, place: Place) -> int:
        """Return a descriptor of the target directory of ``place``; the rank keeps it open and closes it later. Raise
        ``Problem`` if it cannot be opened, or if another directory has its path now.
        """
        target = self.targets[place.root].open(self.path_below_target(place.root, place.path), place.target_id)
        if self.storage is not None:
            self.storage.register_file_system(
                target, self.target_device(place), place.target_id.inode, self.running.changed_directories
            )
        return target

    def open_target_parent(self, place: Place | None, root: int) -> int:
        """Return a descriptor of the directory in which something is created: the target directory of ``place``, or, if
        ``place`` is None, the directory that contains the target of root number ``root``. Raise ``Problem`` on failure.
        """
        if place is not None:
            return self.open_target_directory(place)
        targets = self.targets[root]
        target = targets.open(b"")
        if self.storage is not None:
            status = status_of_open_item(target)
            self.storage.register_file_system(target, status.st_dev, status.st_ino, self.running.changed_directories)
        return target

    def syncs_each_file(self, place: Place) -> bool:
        """Return True if each file in the target directory of ``place`` is synced before it is closed: because of
        --fsync, because the file gets its final name before the next sync of its file system, or because a sync of the
        whole file system (syncfs) would not reach its data (``pcopy.fsio.storage``).
        """
        if unsyncable_devices and self.target_device(place) in unsyncable_devices:
            return False
        if self.copy_options.fsync or (self.names_late and self.phase >= Phase.NAME):
            return True  # the file gets its final name before the next sync of the file system
        storage = self.storage
        return (
            storage is not None
            and bool(storage.per_file_devices)
            and self.target_device(place) in storage.per_file_devices
        )

    def detect_times_set_on_close(self, directory: int, device: int, notices: list[str]) -> None:
        """Find out whether the file server changes the modification time of a file when the file is closed. If it does,
        times are set after the close (``pcopy.fsio.server.determine_if_close_sets_mtime``).

        Tasks that write files call this first; it acts once for each device, and creates a test file there. With
        ``Options.sequential`` it assumes that the server does so, because the test file might not be removable.

        Args:
            directory: descriptor of the target directory.
            device: st_dev of that directory.
            notices: list to which a notice is appended if the test file cannot be removed.
        """
        if device in is_mtime_set_on_close or not self.options.preserve.timestamps:
            return
        if self.mover.transfer_traits.transfer_traits_of_file_system(device, directory).keeps_times_on_close:
            is_mtime_set_on_close[device] = False
            return
        if self.options.sequential:
            is_mtime_set_on_close[device] = True
            return
        from pcopy.fsio.server import (
            determine_if_close_sets_mtime,  # only here: local file systems do not need the module
        )

        name = self.temporary_names.next_name()
        try:
            determine_if_close_sets_mtime(directory, device, name)
        except Problem as problem:
            path = os.path.join(os.readlink(b"/proc/self/fd/%d" % directory), name)
            notices.append(f"{printable_path(path)}: a temporary file cannot be removed: {problem.strerror}; remove it")

    def finish_task(self) -> None:
        """End the current task: if directories are synced one by one, sync those in which it created names. Stop the
        job if that fails.
        """
        self._earlier_shortages = self._consecutive_shortages()
        if self.storage is not None and self.storage.per_file_devices:
            try:
                self.storage.sync_directories(self.running.changed_directories)
            except (
                Problem
            ) as problem:  # the storage object remembers the error, too: from now on each of its syncs fails
                self.request_stop(f"{SYNC_FAILED_TEXT}: {problem.strerror}", SYNC_FAILED_CODE)

    def remove_leftover_files(self, target: int) -> Problem | None:
        """Remove the temporary files that earlier runs of this job left in the target directory with the descriptor
        ``target``, whose contents are complete now. Raise ``Problem`` on failure.

        If an item with the name of a temporary file may be the user's, it is not removed. Return a ``Problem`` that
        names such items; None if there are none.
        """
        kept = remove_leftover_temporary_files(target, self.job.name, self.job.run) if self.job.run > 1 else []
        if self.job.run > 1 and self.copy_options.inplace:
            remove_stale_sidecars(target, self.job.name)
        return Problem("rename", 0, text=leftover_notice(kept)) if kept else None

    def destination_time(self) -> int:
        """Return the time of the destination's clock in nanoseconds since 1970, or a little less.

        The clock was read when the run began; the time since then is measured on this host.
        """
        return (self.job.resumed or self.job.began) + int((time.monotonic() - self.began) * 10**9)

    def is_target_on_this_host(self, place: Place) -> bool:
        """Return True if the target directory of ``place`` lies on a local file system, and so does the one by whose
        clock the job began. Return False if that cannot be found out.
        """
        if place.target_id == NO_DIRECTORY_IDENTITY:
            return False
        try:
            device, target = self.target_device(place), self.open_target_directory(place)
            top = self.targets[0].mount_codes.device_of_mount_code(
                self.targets[0].identity_of_directory(self.path_below_target(0, b"")).mount_code
            )
        except Problem:
            return False
        return device == top and self.mover.transfer_traits.transfer_traits_of_file_system(device, target).is_local

    def may_lack_contents(self, status: os.stat_result) -> bool:
        """Return True if another job that did not finish may have written this item of the destination, so that its
        contents may not be on stable storage.

        After a power failure such an item may have its size and time without its contents. So equal size and time do
        not prove that it is a copy: its contents must be compared.
        """
        return bool(self.job.doubted) and status.st_ctime_ns >= self.job.doubted - CLOCK_GRACE

    def is_changed_since_job_start(self, status: os.stat_result) -> bool:
        """Return True if the item with this ``status`` was created or changed since the first run of the job began, by
        its ctime. Clocks may differ by ``CLOCK_GRACE``.
        """
        return status.st_ctime_ns >= self.job.began - CLOCK_GRACE

    def may_be_from_earlier_run(self, place: Place, status: os.stat_result) -> bool:
        """Return True if an earlier run of this job may have created or changed the item with this ``status`` in the
        target directory ``place``.
        """
        return is_ctime_since_earlier_run(self.job, place, status.st_ctime_ns)

    def record_write_success(self) -> None:
        """Record that the current task has written something. This shows that the destination is not full, so
        earlier failures for lack of space no longer count as consecutive.
        """
        self.running.shortages, self.running.has_written = (), True

    def find_item_failure_reason(self, problem: Problem, place: Place, name: bytes, size: int = 0) -> str:
        """Look for the reason of an item's failure. Stop the job if all other items would fail too, because the
        destination is full or read-only.

        Args:
            problem: the error.
            place: the directory of the item.
            name: name of the item; ``b""`` for the directory itself.
            size: size of the item in bytes.

        Return an explanation for the user in addition to the error itself; empty if there is none.
        """
        if problem.on_source:
            return ""
        if problem.errno == errno.EILSEQ and problem.operation in _NAME_CREATING_OPERATIONS:
            return "the file system may refuse names that are not UTF-8"
        if problem.errno == errno.EINVAL and problem.operation in _NAME_CREATING_OPERATIONS:
            is_dotted = (name or os.path.basename(place.path)).startswith(b".")
            return "the file system may refuse names with a leading dot" if is_dotted else ""
        if problem.errno not in _NO_SPACE_ERRNOS or problem.operation not in _SPACE_USING_OPERATIONS:
            return ""
        from pcopy.tasks.base import space_failures  # only here: most jobs have no shortage

        if problem.errno == errno.EROFS:
            self.running.shortages += ((errno.EROFS, None),)
            if [number for number, _ in self._consecutive_shortages()].count(
                errno.EROFS
            ) >= space_failures.MAX_READ_ONLY_FAILURES:
                self.request_stop(os.strerror(errno.EROFS))
            return ""
        directory, file_system = -1, self.descriptors[place.root].target
        # Opened without an expected identity: a mismatch would close directories that the task still uses.
        with suppress(Problem):
            directory = self.targets[place.root].open(self.path_below_target(place.root, place.path))
            if status_of_open_item(directory).st_dev != status_of_open_item(file_system).st_dev:
                file_system = directory
        lacks, free = space_failures.file_system_shortage(problem, file_system, size)
        charged = space_failures.charged_quota_of_new_items(place, directory)
        self.running.shortages += ((problem.errno, charged),)
        in_a_row = tuple(each for number, each in self._consecutive_shortages() if number != errno.EROFS)
        where = space_failures.charge_description(charged, self.path_for_display(place, name, on_source=False))
        if why := space_failures.reason_to_stop(in_a_row, lacks, where):
            self.request_stop(f"{os.strerror(problem.errno)}: {why}", NO_SPACE_CODE)
        return lacks or f"in {where}; {free}"

    def _consecutive_shortages(self) -> tuple[tuple[int, Any], ...]:
        """Return the failures for lack of space since the last successful write of this rank, in the form of
        ``RunningTask.shortages``.
        """
        return self.running.shortages if self.running.has_written else self._earlier_shortages + self.running.shortages

    def request_stop(self, reason: str, code: int = 0) -> None:
        """Stop the job. If it is called several times, only the first reason is kept.

        Args:
            reason: the reason in words.
            code: kind of the reason: the number of a signal, ``SYNC_FAILED_CODE``, ``NO_SPACE_CODE``, or 0 for any
                other reason.
        """
        self.stop_reason = self.stop_reason or HaltMessage(reason, code)

    def report_failures_and_notices(self, failures: Sequence[Failure], notices: Sequence[str]) -> None:
        """On rank 0: pass failures and notices, of whichever rank, on to the sink. Stop the job if ``--max-errors`` is
        reached.
        """
        self._failure_count += len(failures)
        if self.sink is not None:
            if failures:
                self.sink.receive_failures(failures)
            for notice in notices:
                self.sink.receive_notice(notice)
        if self.options.max_errors and self._failure_count >= self.options.max_errors:
            self.request_stop(
                f"{count_with_noun(self._failure_count, 'item', 'items')} failed (--max-errors "
                f"{self.options.max_errors})"
            )

    def close(self) -> None:
        """Close the backend, all objects that ``shared_instance`` created, and all directories. No task may run
        afterwards.
        """
        self.backend.close()
        for state in self._instances.values():
            if hasattr(state, "close"):
                state.close()
        for directories in (*self.sources, *self.targets):
            directories.close()


def make_contents_copier(job: Job) -> ContentsCopier:
    """Return the object that copies contents of files, with the user's options for holes, reflinks and the page
    cache.
    """
    options = job.options
    manner = PageCachePolicy(options.direct, options.drop_cache)
    return ContentsCopier(sparse=options.preserve.sparse, reflink=job.copy_options.reflink, cache_policy=manner)


def is_ctime_since_earlier_run(job: Job, place: Place, moment: int) -> bool:
    """Return True if ``moment``, a ctime in nanoseconds since 1970, shows that an earlier run of the job may have
    created or changed an item of the target directory ``place``: it is not before the start of the first run that may
    have created items there, with a tolerance of ``CLOCK_GRACE``.

    Return False in that first run itself, because no earlier run can have created anything there.
    """
    run, began = place.first_run if place.first_run[0] else (1, job.began)
    return job.run > run and moment >= began - CLOCK_GRACE
