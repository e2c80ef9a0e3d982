"""One rank of a job: creates its node, tasks, journal and transport, and runs them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from random import Random

from pcopy.checkpoint.journal import ThreadedTaskJournal
from pcopy.checkpoint.record import TaskRecordCollector
from pcopy.engine.driver import RankDriver, TaskGenerator, TaskOutcome
from pcopy.engine.limits import EngineLimits
from pcopy.engine.messages import ABANDONED_EPOCH, CounterSums, HaltMessage
from pcopy.engine.node import RankStateMachine
from pcopy.engine.phase_end import PhaseDirector
from pcopy.engine.queue import TaskQueue
from pcopy.engine.steering import RankSteering
from pcopy.engine.task import Task
from pcopy.engine.transport import MessageTransport
from pcopy.engine.victim import DivideTask
from pcopy.errors import (
    EXIT_OK,
    RESOURCE_EXCEPTIONS,
    SYNC_FAILED_CODE,
    RequestRefused,
    ResourceUnavailable,
    TemporaryFileFailed,
    resource_error_text,
)
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.choose import create_backend
from pcopy.fsio.backend.interface import (
    BackendSettings,
    FileOperationBackend,
    RowInProgress,
    ThreadPool,
    WakeDescriptor,
)
from pcopy.fsio.close import oldest_sync_under_way
from pcopy.fsio.storage import WrittenFileSystems
from pcopy.jobs.lifecycle import CheckpointSettings, JobDirectory
from pcopy.jobs.rank_store import RankProgressRecorder, restore_tasks_of_rank
from pcopy.jobs.spool import spool_error_text, spool_factory, task_database_factory
from pcopy.launch.control import JobControlThread
from pcopy.launch.in_flight import ThreadCountController, max_modifying_operations
from pcopy.launch.rank_control import RankLimiter, UserLimits
from pcopy.launch.tool import CompleteJob, JobResult, Tool
from pcopy.launch.watch.signals import StopSignalHandler
from pcopy.launch.watch.watchdog import MainThreadHeartbeat, NoticePipe, RankWatchdog, SilenceMessagePrinter
from pcopy.libc import type_of_file_system
from pcopy.report.streams import print_error as print_line
from pcopy.tasks.base import counts
from pcopy.tasks.base.both_sides import SourceAndTargetDescriptors
from pcopy.tasks.base.hashing import JobItemHasher
from pcopy.tasks.base.job import Job, JobCounters, ProgressSink
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.files.layouts import LayoutPoliciesAndCounts
from pcopy.tasks.runner import TaskRunner, current_activity, is_droppable_work, is_slow_note

TASK_SLOTS_WITHOUT_THREAD_POOL = 8
"""Number of tasks that a rank may have begun and not ended, if its backend (the code that performs system calls) works
in the background without a pool of threads. With a pool, its size determines the number of tasks.
"""

JOURNAL_TIMEOUT = 1.0
"""Maximum seconds that an ending rank waits for the thread that writes its records. The job itself has already waited
for the records that it needs.
"""

QUEUE_MEMORY_BYTES_OF_ALL_RANKS = 512 << 20
"""Bytes of queued tasks that all ranks together keep in memory if each has less than ``EngineLimits`` allow for one."""

DATABASE_BACKLOG_MEMORY_BYTES = 1 << 20
"""Bytes of waiting tasks that a rank keeps in memory before it uses a database (``--checkpoint-store lmdb``)."""


class RankSetup(NamedTuple):
    """What a rank gets before the job begins: the program and the job, the transport, open directories, and on rank 0
    the objects that show progress.

    Fields:
    - ``tool``, ``job``: the program and the job.
    - ``checkpoint``: how the job is recorded.
    - ``transport``: sends and receives messages between the ranks.
    - ``roots``: descriptors of the directories of each pair of source and destination.
    - ``first_ranks``: the lowest rank of each host.
    - ``hosts``: the host name of each rank; empty if all ranks are on this host.
    - ``signals``: has the reason to stop, once a signal has arrived.
    - ``notices``: pipe to rank 0 for messages of forked ranks; None under a launcher.
    - ``in_flight``: number of operations that the rank performs at the same time; 0: automatic.
    - ``collects_report``: True if the rank must collect the statistics of ``--report``.

    On rank 0 only:
    - ``sink``: receives progress, failures and notices; None on other ranks.
    - ``complete``: called when all items are processed; does the remaining work and returns the exit status.
    - ``job_directory``: the directory with the records of the job; None if the job is not recorded.
    - ``resume_advice``: how to resume the job; printed once a record exists, because launchers may kill all ranks
      without a message. Empty if it is not to be printed.
    - ``on_control``: called with a description of the user's limits after the user has changed them.
    """

    tool: Tool
    job: Job
    checkpoint: CheckpointSettings
    transport: MessageTransport
    roots: Sequence[SourceAndTargetDescriptors]
    first_ranks: Sequence[int]
    hosts: Sequence[str]
    signals: StopSignalHandler
    notices: NoticePipe | None = None
    in_flight: int = 0
    collects_report: bool = False
    sink: ProgressSink | None = None
    complete: CompleteJob = lambda rank, totals: EXIT_OK
    job_directory: JobDirectory | None = None
    resume_advice: str = ""
    on_control: Callable[[str], object] = lambda state: None

    @property
    def rank_and_host(self) -> str:
        """The number of this rank and its host as text, for messages."""
        return f"rank {self.transport.rank} on {os.uname().nodename}"


def run_rank(setup: RankSetup) -> JobResult:
    """Run this rank's share of the job; raise ``JobAborted`` if any rank failed.

    Raise ``ResourceUnavailable`` for an error of the system that concerns the rank and no item, such as a lack of
    memory.
    """
    try:
        return _RankRunner(setup).run()
    except RESOURCE_EXCEPTIONS as error:
        raise ResourceUnavailable(
            f"{setup.rank_and_host} cannot go on: {resource_error_text(error)}", setup.tool.unfinished_status
        ) from None


def make_rank(setup: RankSetup) -> Rank:
    """Return the ``Rank`` of this process: the state that all its tasks share, such as the backend, which performs
    system calls, and caches.
    """
    options, copy_options = setup.job.options, setup.job.copy_options
    digest = JobItemHasher(options.hash, options.block_size).digest_of_data if options.hash else None
    settings = BackendSettings(
        options.preserve, options.umask, copy_options.dereference, digest, options.hash or "", options.block_size
    )
    backend = create_backend(settings)
    rank = Rank(
        setup.job,
        setup.transport.rank,
        setup.transport.size,
        setup.roots,
        backend,
        setup.tool.make_visitor,
        sink=setup.sink,
        first_ranks=setup.first_ranks,
        hosts=setup.hosts,
        open_spool=spool_factory(setup.checkpoint.spool),
    )
    rank.collects_report_sums = setup.collects_report
    if copy_options.delete and setup.checkpoint.directory:
        from pcopy.jobs.deletion_count import deletion_counters_getter
        from pcopy.report.streams import print_error

        rank.deletion_counter = deletion_counters_getter(
            setup.checkpoint.directory, rank.number, partial(print_error, setup.tool.name)
        )
    return rank


def open_journal(setup: RankSetup, rank: Rank) -> tuple[ThreadedTaskJournal | None, RankProgressRecorder | None]:
    """Return the journal, which records the tasks of this rank, and the object that writes its records to the job
    directory; (None, None) if the job is not recorded.
    """
    if not setup.checkpoint.directory:
        return None, None
    rank.storage = WrittenFileSystems(
        type_of_file_system, rank.syncer, rank.shared_instance(LayoutPoliciesAndCounts).layout_policy_of_device
    )
    for target in {root.target: None for root in setup.roots}:
        status = os.fstat(target)
        rank.storage.register_file_system(target, status.st_dev, status.st_ino, rank.running.changed_directories)
    rank.running.changed_directories.close()  # Nothing has been created in the targets yet, so none must be synced.
    first = initial_counters_of_job(setup)
    store = RankProgressRecorder(setup.checkpoint, setup.job.run, rank.number, rank.size, setup.job_directory, first)
    if setup.checkpoint.resumed and rank.number:
        store.take_lock()
    window = TaskRecordCollector(setup.job.run, rank.number, rank.size, rank.destination_time, rank.open_spool)
    return ThreadedTaskJournal(window, store, rank.storage.sync), store


def make_rank_limiter(setup: RankSetup, rank: Rank) -> RankLimiter:
    """Return the object that applies the user's limits (bytes and operations per second, active ranks) to this rank."""
    options = setup.job.options
    wanted = UserLimits(options.bwlimit, options.oplimit)
    return RankLimiter(rank.hosts.ranks_round_robin.index(rank.number), rank.size, rank.throttle, wanted)


def make_job_control_thread(setup: RankSetup, limits: RankLimiter, ranks: int) -> JobControlThread | None:
    """On rank 0: return the object that applies the requests of ``pcopy --control`` and writes progress reports. Return
    None on other ranks, or if the job is not recorded.

    Args:
        setup: the setup of the rank.
        limits: applies the user's limits.
        ranks: number of ranks.
    """
    if setup.job_directory is None:
        return None
    return JobControlThread(
        setup.checkpoint.directory, setup.job.run, ranks, setup.tool.stages, limits, setup.on_control
    )


def make_rank_node(
    setup: RankSetup,
    rank: Rank,
    director: PhaseDirector,
    journal: ThreadedTaskJournal | None,
    divide: DivideTask,
    steering: RankSteering,
) -> RankStateMachine:
    """Return the node (state machine) of this rank. If the job is resumed, it has the rank's remaining tasks and
    counts.

    Args:
        setup: the setup of the rank.
        rank: state that all tasks share; some of its attributes are connected to the node here.
        director: decides on the phases of the job.
        journal: records tasks; None if the job is not recorded.
        divide: returns the tasks into which a task is divided, or nothing.
        steering: says which tasks the rank may begin.
    """
    tool, job, keeping = setup.tool, setup.job, setup.checkpoint
    size, on_host = rank.size, rank.size / len(setup.first_ranks)
    limits = engine_limits(size, on_host, keeping)._replace(phases_after_checkpoint_cut=tool.durable_before)
    if rank.backend.wake is not None and rank.backend.pool is None:
        limits = limits._replace(task_slots=TASK_SLOTS_WITHOUT_THREAD_POOL)
    overflow = None if keeping.store == "pickle" else task_database_factory(keeping.spool)
    node = RankStateMachine(
        rank.number,
        size,
        run=job.run,
        counters=counts.NUMBER_OF_COUNTERS,
        director=director,
        random=Random(f"{job.name} {job.run} {rank.number}"),
        queue=TaskQueue(limits, spool_factory(keeping.spool), overflow, is_droppable_work, is_slow_note),
        limits=limits,
        termination=job.options.termination,
        journal=journal,
        divide=divide,
        steering=steering,
    )
    node.queue.keeps_dropped = rank.names_late
    rank.counters, rank.totals_at_phase_start = node.counters, lambda: node.totals_at_phase_start
    rank.totals = lambda: node.counter_tree.totals
    work, queue = node.begun_tasks, node.queue
    rank.total_task_slots = lambda: size * work.slots
    rank.all_ranks_have_work = lambda: (
        (size == 1 or queue.has_enough_to_share) and (work.slots == 1 or queue.stealable_count >= work.slots)
    )
    if keeping.resumed:
        restore_tasks_of_rank(node, keeping, job.run)
    elif rank.number == 0:
        node.counters[:] = initial_counters_of_job(setup)
    return node


def initial_counters_of_job(setup: RankSetup) -> list[int]:
    """Return the counters with which rank 0 begins a job that has no records. If earlier runs of the job have deleted
    items and left no records, the counters include these items.
    """
    first = setup.tool.initial_counts(setup.job)
    if not setup.checkpoint.resumed:
        first[counts.DELETED] += setup.checkpoint.deleted
    return first


def engine_limits(ranks: int, ranks_per_host: float, checkpoint: CheckpointSettings) -> EngineLimits:
    """Return the limits of the engine (times, and sizes of queues) on one rank, adapted to the number of ranks: the
    ranks of a host share its memory.

    If all ranks are on one host, or several share a core, idle ranks request tasks less often, because their requests
    take processor time from ranks that work.

    Args:
        ranks: number of ranks.
        ranks_per_host: average number of ranks per host.
        checkpoint: how the job is recorded.
    """
    limits = EngineLimits()
    in_core = (
        DATABASE_BACKLOG_MEMORY_BYTES
        if checkpoint.store == "lmdb"
        else min(limits.queue_memory_bytes, max(1 << 20, QUEUE_MEMORY_BYTES_OF_ALL_RANKS // ranks))
    )
    crowd = max(1.0, ranks_per_host / len(os.sched_getaffinity(0)))
    return limits._replace(
        first_steal_wait=limits.first_steal_wait * crowd,
        longest_steal_wait=limits.longest_steal_wait * min(4.0, max(crowd, 2.0 if ranks == ranks_per_host else 1.0)),
        scan_ahead_bytes=min(limits.scan_ahead_bytes // 2, 2 * limits.scan_ahead_bytes // ranks),
        queue_memory_bytes=int(checkpoint.memory / ranks_per_host) if checkpoint.memory else in_core,
        checkpoint_cut_interval=checkpoint.interval,
    )


def oldest_operation(pool: ThreadPool | None) -> RowInProgress | None:
    """Return the operation that has been in progress for longest: one of the threads in ``pool``, or the sync of a
    file; None if there is none.

    May be called from any thread.
    """
    row, sync = pool.oldest_row_in_progress() if pool is not None else None, oldest_sync_under_way()
    calls = [call for call in (row, RowInProgress(*sync) if sync else None) if call is not None]
    return min(calls, key=lambda call: call.since, default=None)


def make_thread_count_controller(setup: RankSetup, rank: Rank, node: RankStateMachine) -> ThreadCountController | None:
    """Return the object that adapts the number of operations that the rank performs at the same time; None if the
    backend has no threads.
    """
    on_host = -(-rank.size // len(setup.first_ranks))

    def modifying() -> int:
        descriptors = {root.target if setup.tool.writes_to_targets else root.source for root in setup.roots}
        return max_modifying_operations(map(type_of_file_system, descriptors), on_host)

    if rank.backend.pool is None:
        return None
    return ThreadCountController(rank.backend.pool, node.begun_tasks, setup.in_flight, on_host, modifying)


class BackendWakeDescriptor:
    """File descriptor that wakes the sleeping rank when an operation of the backend (the code that performs system
    calls) is complete; implements ``pcopy.engine.ticket.WakeDescriptor``.

    ``clear`` also polls the backend, because only then the tickets of complete operations become done.
    """

    def __init__(self, backend: FileOperationBackend, wake: WakeDescriptor) -> None:
        self._backend = backend
        self._wake = wake
        self.fileno = wake.fileno

    def clear(self) -> None:
        self._wake.clear()
        self._backend.poll()


class _RankRunner:
    """Runs one rank, from its first task to its end: owns the node, the journal, the backend and the watchdog of the
    rank.
    """

    def __init__(self, setup: RankSetup) -> None:
        self._setup = setup
        self._rank = make_rank(setup)
        self._journal, self._store = open_journal(setup, self._rank)
        self._director = setup.tool.make_director(self._rank, setup.complete, setup.tool.unfinished_status)
        self._run_task = TaskRunner(self._rank)
        self._limits = make_rank_limiter(setup, self._rank)
        self._node = make_rank_node(
            setup, self._rank, self._director, self._journal, self._run_task.divide, self._limits
        )
        self._in_flight = make_thread_count_controller(setup, self._rank, self._node)
        self._control = make_job_control_thread(setup, self._limits, self._rank.size)
        self._heartbeat = MainThreadHeartbeat()
        self._advice = setup.resume_advice
        self._store_to_lock = self._store if setup.hosts and self._rank.number else None
        self._driver: RankDriver | None = None
        self._began = time.monotonic()
        self._counters_at_start = tuple(self._node.counters)
        if setup.collects_report:
            self._node.barrier.combine_reports = self._combined_rank_statistics

    def run(self) -> JobResult:
        """Run the rank until the job ends; return how it ended."""
        setup, journal, backend = self._setup, self._journal, self._rank.backend
        driver = self._driver = RankDriver(
            self._node,
            setup.transport,
            self._run_task_or_stop_job,
            host=os.uname().nodename,
            program=setup.tool.name,
            status_if_refused=setup.tool.unfinished_status,
            on_report=self._report_progress if setup.sink else None,
            stop_reason=self._stop_reason,
            wake=None if backend.wake is None else BackendWakeDescriptor(backend, backend.wake),
        )
        report: Callable[[str], object] = partial(print_line, setup.tool.name)
        if setup.sink is not None:
            report = setup.sink.receive_notice
        elif setup.notices is not None:
            report = partial(setup.notices.send, self._rank.number)
        voice = SilenceMessagePrinter(self._rank.number, setup.hosts, report, setup.notices)
        watchdog = self._watchdog = RankWatchdog(
            voice, self._heartbeat, lambda: current_activity(self._rank), oldest=partial(oldest_operation, backend.pool)
        )
        watchdog.end_process = setup.signals.end_process
        if setup.job_directory is not None and journal is not None:
            try:
                setup.job_directory.create_without_sync()
            except (
                RequestRefused
            ) as refused:  # Stop recording now, so that the user learns it now and not when resuming.
                journal.stop_recording(refused)
        watchdog.start()
        if self._control is not None:
            self._control.start()  # After the watchdog has blocked signals, so that the new thread blocks them, too.
        try:
            status = driver.run()
        finally:
            watchdog.stop()
            if self._control is not None:
                self._control.stop()
            self._close()
        self._rank.close()
        return self._director.result._replace(
            status=status,
            work_of_ranks=self._node.barrier.combined_report,
            is_durable=self._node.cut_schedule.are_all_records_durable,
        )

    def _run_task_or_stop_job(self, task: Task) -> TaskGenerator:
        """Generator that runs one task, and yields whenever the rank may handle messages. An error that concerns no
        item (no memory, no space for waiting tasks) stops the job; the task is then not recorded as done, so that a
        resumed job runs it again.
        """
        node = self._node
        if self._store_to_lock is not None:
            self._acquire_rank_lock(self._store_to_lock)
        try:
            return (yield from self._run_task(task))
        except TemporaryFileFailed as trouble:
            node.queue.spill_error = trouble
        except RESOURCE_EXCEPTIONS as error:  # The task has not reported it as the failure of an item.
            self._rank.request_stop(f"{self._setup.rank_and_host}: {resource_error_text(error)}")
        while node.halt_reason is None:  # Wait until the job is being stopped, so that the driver drops this task.
            yield None
        return TaskOutcome(is_deferred=True)

    def _acquire_rank_lock(self, store: RankProgressRecorder) -> None:
        """Lock this rank's lock file in the job directory, by means of ``store``, before the rank writes anything;
        ignore errors here.

        While a rank on an unreachable host lives, the lock prevents another run from resuming the job. (Ranks on one
        host end together, and need no lock of their own.)
        """
        self._store_to_lock = None
        with suppress(RequestRefused, OSError):  # The attempt to write the first record reports the error.
            store.take_lock()

    def _combined_rank_statistics(self, below: Sequence[bytes]) -> bytes:
        """Return statistics of this rank and of all ranks below it in the tree of ranks, packed, for ``--report``.

        ``below`` are the results of this function on the child ranks.
        """
        from pcopy.tasks.base.rank_sums import RankWorkStatistics, ReportSums

        assert self._driver is not None
        now, before = JobCounters(*self._node.counters), JobCounters(*self._counters_at_start)
        items = sum(getattr(now, name) - getattr(before, name) for name in ("copied", "skipped", "failed"))
        bytes_moved = sum(getattr(now, name) - getattr(before, name) for name in ("moved", "verified_bytes"))
        seconds, work = time.monotonic() - self._began, self._node.begun_tasks
        busy = max(0.0, seconds - self._driver.idle_seconds)
        sums = self._rank.shared_instance(ReportSums)
        row = RankWorkStatistics(
            self._rank.number,
            items,
            bytes_moved,
            work.ended_count,
            round(busy, 3),
            round(seconds, 3),
            work.received_count,
            work.given_count,
        )
        sums.ranks.append(row)
        for words in below:
            sums.merge(words)
        return sums.sums_as_bytes()

    def _stop_reason(self) -> HaltMessage | None:
        """Return why the job must stop, or None. The driver calls it every few milliseconds. So it also leaves a sign
        of life for the watchdog, adapts the number of threads, and reports news of the journal.
        """
        setup, journal, trouble = self._setup, self._journal, self._node.queue.spill_error
        self._heartbeat.beats += 1
        self._watchdog.check_thread()
        if self._in_flight is not None:
            self._in_flight.measure_and_adapt_thread_count()
        if journal is not None:
            journal.check_thread()
            self._print_checkpoint_messages(journal)
        reason = setup.signals.reason or self._rank.stop_reason
        if reason is None and journal is not None and journal.data_loss_reason:
            reason = HaltMessage(journal.data_loss_reason, SYNC_FAILED_CODE)
        if reason is None and trouble is not None:
            reason = HaltMessage(spool_error_text(setup.checkpoint.spool, trouble, setup.tool.spool_advice))
        return reason

    def _print_checkpoint_messages(self, journal: ThreadedTaskJournal) -> None:
        """Print how to resume the job, once its first record is on storage. Print the warning of the journal that the
        job can no longer be recorded, if there is one.
        """
        if self._advice and 0 < journal.durable_epoch < ABANDONED_EPOCH and not self._node.is_job_over:
            self._print_warning(self._advice)
            self._advice = ""
        if journal.warning is not None:
            if self._setup.notices is None or self._setup.notices.claim_right_to_report():
                self._print_warning(journal.warning)
            journal.warning = None

    def _print_warning(self, text: str) -> None:
        """Print ``text`` as a warning; on rank 0 through the sink, which does not disturb the progress display."""
        if self._setup.sink is not None:
            self._setup.sink.receive_notice(text)
        else:
            print_line(self._setup.tool.name, f"{self._setup.rank_and_host}: {text}")

    def _report_progress(self, phase: int, report: CounterSums) -> None:
        """Pass new sums of the counters over all ranks (``report``) to the progress display, to progress reports for
        ``pcopy --jobs``, and to the watchdog.
        """
        self._heartbeat.silent = report.silent_ranks
        progress = self._setup.tool.phase_name(phase), JobCounters(*report.totals), report.silent_ranks
        if self._control is not None:
            self._control.report_progress(*progress)
        if self._setup.sink is not None:
            self._setup.sink.receive_progress(*progress)

    def _close(self) -> None:
        """Close the journal, remove temporary files that no later run will use, and release the rank's resources."""
        journal, rank, store = self._journal, self._rank, self._store
        ended = journal is None or journal.close(JOURNAL_TIMEOUT)  # Closed first: then ``durable_epoch`` is final.
        if journal is None or (
            ended and journal.durable_epoch in (0, ABANDONED_EPOCH)
        ):  # Otherwise a resumed job continues with the temporary files.
            unrecorded = journal is None or journal.durable_epoch == ABANDONED_EPOCH
            since = 1 if unrecorded else self._setup.job.run  # A resumed job continues with files of earlier runs.
            rank.stop_reason = rank.stop_reason or self._node.halt_reason
            self._setup.tool.remove_temporary_files(rank, self._node.queue.pop_dropped(), since)
        rank.syncer.close()
        rank.storer.close()
        if rank.storage is not None:
            rank.storage.close()
        if rank.number and store is not None and store.lock is not None:
            store.lock.close()
