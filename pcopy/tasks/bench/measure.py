"""Tasks of one step of a benchmark (one test, one number of ranks), on each rank that takes part: prepare, wait until
all are ready, measure, report to rank 0.

Everything happens in a private directory in the root, which the first step creates. The measured time includes the
system calls and the overhead of pcopy in a batch. Names are generated before. The steps of round 0 warm up: their files
have other names, and their results are not counted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Sequence
from itertools import cycle
from mmap import mmap
from typing import cast

from pcopy.engine.ticket import OperationTicket
from pcopy.fsio.backend.batches import BenchmarkCallsBatch, BenchmarkOperation, ListNamesBatch
from pcopy.fsio.backend.columns import OutcomeCode, pack_names
from pcopy.fsio.backend.interface import await_ticket
from pcopy.fsio.close import close_after_read, close_ignoring_errors
from pcopy.fsio.problem import Problem, errors_as_problem
from pcopy.fsio.retries import open_with_retries
from pcopy.fsio.syncer import sync_file_if_supported
from pcopy.fsio.temporary import CREATE_FLAGS, remove_item_if_present
from pcopy.tasks.base import counts
from pcopy.tasks.base.job import Job
from pcopy.tasks.base.kind import TaskKind, TaskSteps, TaskWithoutDirectory
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.bench.private import OPEN_DIRECTORY_FLAGS, PrivateDirectory, open_private_directory
from pcopy.tasks.bench.steps import BenchmarkState, BenchmarkStep, BenchmarkTest, RankTiming

MAX_FILES_PER_BATCH = 1024
"""Maximum number of files in one batch. The first batch is small; later ones grow while a batch takes only a small part
of the time.
"""

MIN_BATCHES_PER_STEP = 16
"""A batch of files grows only as long as it is expected to take at most the time of the step divided by this number."""

SLICE_NANOSECONDS = 2_000_000
"""Nanoseconds after which a rank that writes or reads yields, so that it can handle messages. A yield takes some
microseconds.
"""

_PATTERN_BYTES = 1 << 20
"""Bytes of random data that fill the blocks: blocks of zeros might be compressed, or not be stored at all."""

_UNLIMITED_MICROSECONDS = 1 << 60
"""Time limit in microseconds of a step that is not measured, and must process all files (CLEAR)."""

RunningTest = Generator[OperationTicket | None, None, tuple[int, int, int]]
"""Type of a running test: a generator that returns the number of operations or bytes, and start and end of the
measurement in nanoseconds (``time.monotonic_ns``).
"""


def private_directory_name(job: Job) -> bytes:
    """Return the name of the private directory of the job."""
    return b".pdbench-%s" % job.name.encode()


class BenchmarkStepTask(TaskKind, is_note=False):
    """Base class of the tasks by which a rank takes part in a step of a benchmark. ``step`` contains the fields of a
    ``BenchmarkStep``.
    """

    step: tuple[int, int, int, bool, int, int, int, int, bool]

    def subject(self) -> None:
        return None


class PrepareBenchmarkStep(BenchmarkStepTask, code=150, doing="preparing a measurement"):
    """Task that creates and opens what this rank needs for the step, and reports to rank 0 that this rank is ready.

    Fields:

    - ``file_owner``: the rank whose files are read or examined.
    - ``created``: the number of files that this other rank has created, or the number of bytes that it has written.
    - ``private_inode``: the inode number of the private directory; 0 if this task must create it.
    """

    file_owner: int
    created: int
    private_inode: int

    def run(self, rank: Rank, result: TaskResult) -> None:
        step = BenchmarkStep(*self.step)
        try:
            rank.shared_instance(BenchmarkOnRank).prepare_step(step, self.file_owner, self.created, self.private_inode)
        except OSError as error:
            report_failed_test(rank, result, Problem.from_error("mkdir", error))
            return
        result.spawn_task(RankReadyNote(), owner=0)


class RankReadyNote(TaskWithoutDirectory, code=151, doing="waiting for all ranks"):
    """Message to rank 0: a rank has prepared the step. After the last such message, rank 0 starts the measurement on
    all ranks of the step.
    """

    def run(self, rank: Rank, result: TaskResult) -> None:
        book = benchmark_state(rank)
        book.ready_ranks += 1
        step = book.step
        assert step is not None
        if book.ready_ranks == step.ranks:
            for number in range(step.ranks):
                result.spawn_task(MeasureBenchmarkStep(step[:]), owner=number)


class MeasureBenchmarkStep(BenchmarkStepTask, code=152, doing="measuring"):
    """Task that runs the test of the step on this rank, and reports to rank 0 the number of operations or bytes, and
    the time.
    """

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        step = BenchmarkStep(*self.step)
        test = BenchmarkTest(step.test)
        try:
            number, begin, end = yield from rank.shared_instance(BenchmarkOnRank).run(step)
        except OSError as error:
            report_failed_test(rank, result, Problem.from_error(test.name.lower(), error))
            return
        if step.is_measured:
            for counter in (counts.FOUND_BYTES, counts.BYTES) if test.is_data_test else (counts.FOUND, counts.FILES):
                result.count(counter, number)
        result.spawn_task(MeasurementNote(rank.number, begin, end, number), owner=0)


class MeasurementNote(TaskWithoutDirectory, code=153, doing="recording what was measured"):
    """Message to rank 0 with what a rank has measured: ``begin`` and ``end`` in nanoseconds, and the number
    (``amount``) of operations or bytes. After the last message of a step, the next step starts.
    """

    rank: int
    begin: int
    end: int
    amount: int

    def run(self, rank: Rank, result: TaskResult) -> None:
        book = benchmark_state(rank)
        if book.add_timing(
            RankTiming(self.rank, self.begin, self.end, self.amount), one_clock=len(rank.first_ranks) == 1
        ):
            for owner, task in next_step_tasks(book, rank.hosts.names):
                result.spawn_task(task, owner=owner)


def next_step_tasks(book: BenchmarkState, hosts: Sequence[str]) -> list[tuple[int, PrepareBenchmarkStep]]:
    """Return the first tasks of the next step of the benchmark, each with the rank that runs it; none after the last
    step. ``book`` holds the steps and results; ``hosts`` are the host names of all ranks (empty if all are on one
    host).
    """
    step = book.start_next_step()
    if step is None:
        return []
    looks = step.test in (BenchmarkTest.STAT, BenchmarkTest.OPEN, BenchmarkTest.READ, BenchmarkTest.READDIR)
    owners = ranks_whose_files_are_read(hosts, step.ranks) if looks else range(step.ranks)
    inode = book.private.inode if book.private else 0
    return [
        (number, PrepareBenchmarkStep(step[:], owner, book.created.get(owner, 0), inode))
        for number, owner in enumerate(owners)
    ]


def benchmark_state(rank: Rank) -> BenchmarkState:
    """Return the object that has the steps and results of the benchmark. It exists on rank 0 only."""
    return cast(BenchmarkState, rank.sink)


def ranks_whose_files_are_read(hosts: Sequence[str], ranks: int) -> list[int]:
    """Return, for each of ``ranks`` ranks, the rank whose files it reads and examines.

    That rank is on another host, so that the files are not in the cache of this host. If there is only one host, it is
    another rank of the same host. ``hosts`` are the host names of all ranks; empty if all are on one host.
    """
    groups: dict[str, list[int]] = {}
    for rank in range(ranks):
        groups.setdefault(hosts[rank] if hosts else "", []).append(rank)
    order = [rank for group in groups.values() for rank in group]
    if len(groups) == 1:
        return [*order[1:], order[0]]
    # Rotating by the size of the largest group leads to another host, unless one host has more than half of the ranks.
    shift = max(map(len, groups.values()))
    owner_of = dict(zip(order, (*order[shift:], *order[:shift]), strict=True))
    for group in groups.values():
        host_ranks = set(group)
        elsewhere = cycle([rank for rank in order if rank not in host_ranks])
        owner_of |= {rank: next(elsewhere) for rank in group if owner_of[rank] in host_ranks}
    return [owner_of[rank] for rank in range(ranks)]


def report_failed_test(rank: Rank, result: TaskResult, problem: Problem) -> None:
    """Report a failed test. No further step starts: after a failure, the results would say nothing about the file
    system.
    """
    result.count(counts.FOUND)
    result.count(counts.FAILED)
    path = os.path.join(rank.job.roots[0].target_shown, private_directory_name(rank.job))
    result.report_failure(path, problem)


class BenchmarkOnRank:
    """What one rank remembers from step to step of a benchmark."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._private = self._directory = self._file = -1
        self._block: mmap | None = None
        self._shared_file = b""
        """On rank 0: name of the last file that all ranks wrote together; empty if there is none."""
        self._file_owner = rank.number
        self._created = 0
        self._names_by_prefix: dict[bytes, list[bytes]] = {}
        """Generated file names, by their prefix, so that they need not be generated again."""
        self._own_names: list[bytes] = []
        """Names of the files of this rank that exist."""
        self._test_names: list[bytes] = []
        """Names of the files on which the test makes its system calls: those of this rank, or of another one."""
        self._new_names: list[bytes] = []
        """Names that the test RENAME gives to the files."""

    def close(self) -> None:
        """Close all descriptors that are open."""
        for descriptor in (self._private, self._directory, self._file):
            if descriptor >= 0:
                close_ignoring_errors(descriptor)

    def prepare_step(self, step: BenchmarkStep, owner: int, made: int, private: int) -> None:
        """Create and open what the step needs. Raise ``OSError`` if that fails.

        Args:
            owner: the rank whose files are read or examined.
            made: the number of files that this other rank has created, or the number of bytes that it has written.
            private: the inode number of the private directory; 0 if it must be created.
        """
        rank, test = self._rank, BenchmarkTest(step.test)
        self._file_owner, self._created = owner, made
        self._open_private_directory(private)
        if test.is_data_test:
            self._prepare_data_test(step, test, owner)
            return
        if rank.backend.pool is not None:
            rank.backend.pool.request_threads(step.in_flight if step.in_flight > 1 else 0)
        if test == BenchmarkTest.CREATE:
            self._own_names = self._file_names(step, owner, step.max_amount)
            if not step.is_shared or rank.number == 0:
                with errors_as_problem("mkdir"):
                    os.mkdir(_directory_name(step, owner), 0o700, dir_fd=self._private)
        self._test_names = self._own_names if owner == rank.number else self._file_names(step, owner, made)
        self._new_names = [b"r" + name for name in self._own_names] if test == BenchmarkTest.RENAME else []

    def _file_names(self, step: BenchmarkStep, owner: int, number: int) -> list[bytes]:
        """Return the names of the first ``number`` files that the rank ``owner`` creates."""
        stem = b"%s%d." % (b"" if step.round else b"w", owner)
        names = self._names_by_prefix.get(stem, [])
        if len(names) < number:
            names = [b"%s%d" % (stem, each) for each in range(number)]
            own_prefix = b"%d." % self._rank.number
            self._names_by_prefix = {key: kept for key, kept in self._names_by_prefix.items() if key == own_prefix} | {
                stem: names
            }
        return names[:number]

    def _open_private_directory(self, inode: int) -> None:
        """Open the private directory in which everything is measured, if it has this ``inode`` number; create it if
        ``inode`` is 0.
        """
        if self._private >= 0:
            return
        root, name = self._rank.descriptors[0].target, private_directory_name(self._rank.job)
        if inode:
            self._private = open_private_directory(root, name, inode)
            return
        private = benchmark_state(self._rank).private = PrivateDirectory(root, name)
        self._private = os.dup(private.descriptor)

    def _prepare_data_test(self, step: BenchmarkStep, test: BenchmarkTest, owner: int) -> None:
        """Open the file of a test that writes or reads data, and fill the block that is written with random data. Raise
        ``OSError`` if that fails. ``owner`` is the rank whose file is used.
        """
        direct = os.O_DIRECT if step.direct else 0
        if self._block is None or len(self._block) != step.block_bytes:
            self._block = mmap(-1, step.block_bytes)  # A mapping is aligned to a page, as direct I/O requires.
            pattern = os.urandom(min(_PATTERN_BYTES, step.block_bytes))
            for at in range(0, step.block_bytes, len(pattern)):
                self._block[at : at + len(pattern)] = pattern[: step.block_bytes - at]
        name = b"data.%d.%d.%d" % (step.round, step.ranks, step.block_bytes) if step.is_shared else b"data.%d" % owner
        if test == BenchmarkTest.WRITE:
            for old in filter(None, (b"data.%d" % owner, self._shared_file)):
                remove_item_if_present(self._private, old)
            self._shared_file = name if step.is_shared and self._rank.number == 0 else b""
            flags = (
                CREATE_FLAGS & ~os.O_EXCL if step.is_shared else CREATE_FLAGS
            )  # The first rank to open a shared file creates it.
            with errors_as_problem("create"):
                self._file = open_with_retries(name, flags | direct, 0o600, dir_fd=self._private)
            return
        with errors_as_problem("open"):
            self._file = open_with_retries(
                name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | direct, dir_fd=self._private
            )
            os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)

    def run(self, step: BenchmarkStep) -> RunningTest:
        """Return a generator that runs the test of the step: it returns the number of operations or bytes, and start
        and end of the measurement. Raise ``OSError`` if the test fails.
        """
        test = BenchmarkTest(step.test)
        if test == BenchmarkTest.WRITE:
            return self._run_write_test(step)
        if test == BenchmarkTest.READ:
            return self._run_read_test(step)
        return self._run_metadata_test(step, test)

    def _run_metadata_test(self, step: BenchmarkStep, test: BenchmarkTest) -> RunningTest:
        """Run a test that makes system calls for files, or the removal of the files (CLEAR), in the directory of the
        step.
        """
        name = _directory_name(step, self._file_owner)
        with errors_as_problem("open"):
            self._directory = open_with_retries(name, OPEN_DIRECTORY_FLAGS, dir_fd=self._private)
        try:
            if test == BenchmarkTest.READDIR:
                return (yield from self._run_readdir_test(step))
            if test == BenchmarkTest.CLEAR:
                measured = yield from self._run_benchmark_calls(
                    step._replace(microseconds=_UNLIMITED_MICROSECONDS), BenchmarkOperation.UNLINK, self._own_names
                )
                if not step.is_shared:
                    with errors_as_problem("rmdir"):
                        os.rmdir(name, dir_fd=self._private)
                return measured
            return (yield from self._run_benchmark_calls(step, BenchmarkOperation(test), self._test_names))
        finally:
            descriptor, self._directory = self._directory, -1
            close_ignoring_errors(descriptor)

    def _run_benchmark_calls(self, step: BenchmarkStep, call: BenchmarkOperation, files: list[bytes]) -> RunningTest:
        """Make the system call ``call`` once for each of ``files``, in batches, until the time of the step is over."""
        backend, new_names = self._rank.backend, self._new_names
        begin = now = time.monotonic_ns()
        end = begin + step.microseconds * 1000
        at, rows = 0, 4 * step.in_flight
        while at < len(files) and now < end:
            chosen = slice(at, at + rows)
            batch = BenchmarkCallsBatch(self._directory, pack_names(files[chosen]), call, pack_names(new_names[chosen]))
            verdicts = (yield from await_ticket(backend, backend.submit_batch(batch))).verdicts
            for row in verdicts.rows_with_code(OutcomeCode.FAILED):
                raise verdicts.problem(row)
            at, start, now = at + len(verdicts), now, time.monotonic_ns()
            if (now - start) * 2 * MIN_BATCHES_PER_STEP < end - begin:
                rows = min(MAX_FILES_PER_BATCH, 2 * rows)
        if call == BenchmarkOperation.CREATE:
            self._own_names = files[:at]
        elif call == BenchmarkOperation.RENAME:
            self._own_names = new_names[:at] + files[at:]
        elif call == BenchmarkOperation.UNLINK:
            self._own_names = files[at:]
        return at, begin, now

    def _run_readdir_test(self, step: BenchmarkStep) -> RunningTest:
        """List the directory again and again until the time of the step is over. The number of operations is that of
        the listed names.
        """
        backend, number = self._rank.backend, 0
        begin = now = time.monotonic_ns()
        end = begin + step.microseconds * 1000
        while now < end:
            batch: ListNamesBatch | None = ListNamesBatch(self._directory, on_source=False)
            while batch is not None:
                listed = yield from await_ticket(backend, backend.submit_batch(batch))
                for row in listed.verdicts.rows_with_code(OutcomeCode.FAILED):
                    raise listed.verdicts.problem(row)
                number, batch = number + listed.name_count, listed.next_batch
            now = time.monotonic_ns()
            yield None
        return number, begin, now

    def _run_write_test(self, step: BenchmarkStep) -> RunningTest:
        """Write up to ``step.max_amount`` bytes and sync them. The sync is part of the measured time."""
        assert self._block is not None
        block, at, start = memoryview(self._block), 0, self._start_offset(step)
        begin = now = looked_up = time.monotonic_ns()
        end = begin + step.microseconds * 1000
        with errors_as_problem("write"):
            while at < step.max_amount and now < end:
                at += os.pwrite(self._file, block, start + at)
                now = time.monotonic_ns()
                if now - looked_up > SLICE_NANOSECONDS:
                    looked_up = now
                    yield None
        with errors_as_problem("fsync"):
            sync_file_if_supported(self._file)
        now = time.monotonic_ns()
        descriptor, self._file = self._file, -1
        with errors_as_problem("close"):
            os.close(descriptor)
        return at, begin, now

    def _start_offset(self, step: BenchmarkStep) -> int:
        """Return the offset in bytes at which this rank starts to write or read: that of its segment if all ranks use
        one file, else 0.
        """
        return self._file_owner * step.max_amount if step.is_shared else 0

    def _run_read_test(self, step: BenchmarkStep) -> RunningTest:
        """Read what another rank wrote (its file, or its segment of the shared file), until all of it was read or the
        time of the step is over.
        """
        assert self._block is not None
        block, at, start = [memoryview(self._block)], 0, self._start_offset(step)
        begin = now = looked_up = time.monotonic_ns()
        end = begin + step.microseconds * 1000
        with errors_as_problem("read"):
            while at < self._created and now < end:
                got = os.preadv(self._file, block, start + at)
                if not got:
                    raise Problem("read", 0, text="the file is shorter than what was written to it")
                at, now = at + got, time.monotonic_ns()
                if now - looked_up > SLICE_NANOSECONDS:
                    looked_up = now
                    yield None
        descriptor, self._file = self._file, -1
        close_after_read(descriptor)
        return at, begin, now


def _directory_name(step: BenchmarkStep, owner: int) -> bytes:
    """Return the name of the directory that contains the files of the rank ``owner`` in this ``step``."""
    return b"%d.shared" % step.round if step.is_shared else b"%d.%d" % (step.round, owner)
