"""Tasks of one step of a benchmark, on each rank that takes part: prepare, wait until all are ready, measure, report to
rank 0.

Everything happens in a private directory in the root, which the first step creates. The measured time includes the
system calls and the overhead of pcopy in a batch; names are generated before. The steps of round 0 warm up: their files
have other names, and their results are not counted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Sequence
from itertools import cycle
from mmap import mmap
from typing import cast

from pcopy.engine.ticket import Ticket
from pcopy.fsio.close import close_read, let_go
from pcopy.fsio.kernel.batches import Call, List, Trial
from pcopy.fsio.kernel.columns import Code, pack_names
from pcopy.fsio.kernel.interface import waited
from pcopy.fsio.patience import open_patiently
from pcopy.fsio.problem import Problem, failing
from pcopy.fsio.syncer import sync_written
from pcopy.fsio.temporary import NEW, remove
from pcopy.tasks.base import counts
from pcopy.tasks.base.job import Job
from pcopy.tasks.base.kind import Kind, Note, Steps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.bench.private import DIRECTORY, Private, open_private
from pcopy.tasks.bench.steps import Notebook, Step, Test, Timed

MOST_ROWS = 1024
"""Maximum number of files in one batch. The first batch is small, and later ones grow while a batch takes a small share
of the time.
"""

PART = 16
"""Divisor of the time of a step: a batch grows only while it is expected to take no more than this fraction of it."""

SLICE = 2_000_000
"""Nanoseconds after which a rank that writes or reads yields to handle messages, which takes some microseconds."""

_PATTERN = 1 << 20
"""Bytes of random data that fill the blocks: blocks of zeros might be compressed, or not be stored at all."""

_FOR_EVER = 1 << 60
"""Microseconds of a step that is not measured and must run to its end."""

Part = Generator[Ticket | None, None, tuple[int, int, int]]
"""Type of a running test: a generator that returns the number of operations or bytes, and its start and end in
nanoseconds.
"""


def private_name(job: Job) -> bytes:
    """Return the name of the private directory of the job."""
    return b".pdbench-%s" % job.name.encode()


class OfStep(Kind, is_note=False):
    """Base class of the tasks of a step, which concern no directory of the job. ``step`` holds the fields of a
    ``Step``.
    """

    step: tuple[int, int, int, bool, int, int, int, int, bool]

    def about(self) -> None:
        return None


class Prepare(OfStep, code=150, doing="preparing a measurement"):
    """Creates and opens what the step needs, and reports to rank 0 that this rank is ready.

    Fields:
    - ``whose``: the rank whose files are read or examined.
    - ``made``: the number of files that rank has created, or the number of bytes that it has written.
    - ``private``: the inode of the private directory; 0 if it must be created.
    """

    whose: int
    made: int
    private: int

    def run(self, rank: Rank, result: Result) -> None:
        step = Step(*self.step)
        try:
            rank.own(Bench).prepare(step, self.whose, self.made, self.private)
        except OSError as error:
            give_up(rank, result, Problem.of("mkdir", error))
            return
        result.spawn(RankReady(), owner=0)


class RankReady(Note, code=151, doing="waiting for all ranks"):
    """Reports to rank 0 that a rank has prepared the step. When all have, rank 0 starts the measurement on
    all of them.
    """

    def run(self, rank: Rank, result: Result) -> None:
        book = notebook_of(rank)
        book.ready += 1
        step = book.step
        assert step is not None
        if book.ready == step.ranks:
            for number in range(step.ranks):
                result.spawn(Measure(step[:]), owner=number)


class Measure(OfStep, code=152, doing="measuring"):
    """Runs the test, and reports to rank 0 the number of operations or bytes, and the time."""

    def run(self, rank: Rank, result: Result) -> Steps:
        step = Step(*self.step)
        test = Test(step.test)
        try:
            number, begin, end = yield from rank.own(Bench).run(step)
        except OSError as error:
            give_up(rank, result, Problem.of(test.name.lower(), error))
            return
        if step.is_measured:
            for counter in (counts.FOUND_BYTES, counts.BYTES) if test.moves else (counts.FOUND, counts.FILES):
                result.count(counter, number)
        result.spawn(Told(rank.number, begin, end, number), owner=0)


class Told(Note, code=153, doing="recording what was measured"):
    """Reports to rank 0 what a rank has measured. After the last report of a step, the next step starts."""

    number: int
    begin: int
    end: int
    done: int

    def run(self, rank: Rank, result: Result) -> None:
        book = notebook_of(rank)
        if book.add(Timed(self.number, self.begin, self.end, self.done), one_clock=len(rank.leaders) == 1):
            for owner, task in first_tasks(book, rank.hosts.names):
                result.spawn(task, owner=owner)


def first_tasks(book: Notebook, hosts: Sequence[str]) -> list[tuple[int, Prepare]]:
    """Return the first tasks of the next step, each with its rank; none after the last step. ``hosts`` as in
    ``neighbours``.
    """
    step = book.begin_next()
    if step is None:
        return []
    looks = step.test in (Test.STAT, Test.OPEN, Test.READ, Test.READDIR)
    owners = neighbours(hosts, step.ranks) if looks else range(step.ranks)
    inode = book.private.inode if book.private else 0
    return [(number, Prepare(step[:], owner, book.made.get(owner, 0), inode)) for number, owner in enumerate(owners)]


def notebook_of(rank: Rank) -> Notebook:
    """Return the notebook, on rank 0."""
    return cast(Notebook, rank.sink)


def neighbours(hosts: Sequence[str], ranks: int) -> list[int]:
    """Return for each of ``ranks`` ranks the rank whose files it reads and examines.

    That rank is on another host, whose caches do not help this one; if there is only one host, it is another rank.
    ``hosts`` are the host names of all ranks; empty: all are on one host.
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


def give_up(rank: Rank, result: Result, problem: Problem) -> None:
    """Report a failed test. No further step starts: a test that fails says nothing about the file system."""
    result.count(counts.FOUND)
    result.count(counts.FAILED)
    path = os.path.join(rank.job.roots[0].target_shown, private_name(rank.job))
    result.report(path, problem)


class Bench:
    """The state of one rank between two steps."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._private = self._directory = self._file = -1
        self._block: mmap | None = None
        self._segmented = b""
        """On rank 0: name of the last file that all ranks wrote together."""
        self._whose = rank.number
        self._made = 0
        self._names: dict[bytes, list[bytes]] = {}
        """File names that were generated last, by their prefix."""
        self._files: list[bytes] = []
        """Names of this rank's files that exist."""
        self._others: list[bytes] = []
        """Names of the files that the test uses: those of this rank, or of another one."""
        self._renamed: list[bytes] = []
        """New names for the test RENAME."""

    def close(self) -> None:
        """Close all descriptors."""
        for descriptor in (self._private, self._directory, self._file):
            if descriptor >= 0:
                let_go(descriptor)

    def prepare(self, step: Step, owner: int, made: int, private: int) -> None:
        """Create and open what the step needs. Raise ``OSError``. The arguments are those of ``Prepare``."""
        rank, test = self._rank, Test(step.test)
        self._whose, self._made = owner, made
        self._open_private(private)
        if test.moves:
            self._prepare_data(step, test, owner)
            return
        if rank.kernel.pool is not None:
            rank.kernel.pool.want(step.in_flight if step.in_flight > 1 else 0)
        if test == Test.CREATE:
            self._files = self._named(step, owner, step.most)
            if not step.shared or rank.number == 0:
                with failing("mkdir"):
                    os.mkdir(_directory_of(step, owner), 0o700, dir_fd=self._private)
        self._others = self._files if owner == rank.number else self._named(step, owner, made)
        self._renamed = [b"r" + name for name in self._files] if test == Test.RENAME else []

    def _named(self, step: Step, owner: int, number: int) -> list[bytes]:
        """Return the names of the first ``number`` files of the rank ``owner``."""
        stem = b"%s%d." % (b"" if step.round else b"w", owner)
        names = self._names.get(stem, [])
        if len(names) < number:
            names = [b"%s%d" % (stem, each) for each in range(number)]
            own_prefix = b"%d." % self._rank.number
            self._names = {key: kept for key, kept in self._names.items() if key == own_prefix} | {stem: names}
        return names[:number]

    def _open_private(self, inode: int) -> None:
        """Open the private directory; create it if ``inode`` is 0."""
        if self._private >= 0:
            return
        root, name = self._rank.descriptors[0].target, private_name(self._rank.job)
        if inode:
            self._private = open_private(root, name, inode)
            return
        private = notebook_of(self._rank).private = Private(root, name)
        self._private = os.dup(private.descriptor)

    def _prepare_data(self, step: Step, test: Test, owner: int) -> None:
        """Open the file of a data test, and fill the block with random data. Raise ``OSError``."""
        direct = os.O_DIRECT if step.direct else 0
        if self._block is None or len(self._block) != step.block:
            self._block = mmap(-1, step.block)  # It is aligned to a page, as direct I/O requires.
            pattern = os.urandom(min(_PATTERN, step.block))
            for at in range(0, step.block, len(pattern)):
                self._block[at : at + len(pattern)] = pattern[: step.block - at]
        name = b"data.%d.%d.%d" % (step.round, step.ranks, step.block) if step.shared else b"data.%d" % owner
        if test == Test.WRITE:
            for old in filter(None, (b"data.%d" % owner, self._segmented)):
                remove(self._private, old)
            self._segmented = name if step.shared and self._rank.number == 0 else b""
            flags = NEW & ~os.O_EXCL if step.shared else NEW  # The first rank creates a shared file.
            with failing("create"):
                self._file = open_patiently(name, flags | direct, 0o600, dir_fd=self._private)
            return
        with failing("open"):
            self._file = open_patiently(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | direct, dir_fd=self._private)
            os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)

    def run(self, step: Step) -> Part:
        """Run the test of the step. Raise ``OSError``."""
        test = Test(step.test)
        if test == Test.WRITE:
            return self._write(step)
        if test == Test.READ:
            return self._read(step)
        return self._in_directory(step, test)

    def _in_directory(self, step: Step, test: Test) -> Part:
        """Run a metadata test in the directory of the step."""
        name = _directory_of(step, self._whose)
        with failing("open"):
            self._directory = open_patiently(name, DIRECTORY, dir_fd=self._private)
        try:
            if test == Test.READDIR:
                return (yield from self._list(step))
            if test == Test.CLEAR:
                measured = yield from self._call(step._replace(microseconds=_FOR_EVER), Call.UNLINK, self._files)
                if not step.shared:
                    with failing("rmdir"):
                        os.rmdir(name, dir_fd=self._private)
                return measured
            return (yield from self._call(step, Call(test), self._others))
        finally:
            descriptor, self._directory = self._directory, -1
            let_go(descriptor)

    def _call(self, step: Step, call: Call, files: list[bytes]) -> Part:
        """Make one system call for each of ``files``, in batches, until the time of the step is over."""
        kernel, new_names = self._rank.kernel, self._renamed
        begin = now = time.monotonic_ns()
        end = begin + step.microseconds * 1000
        at, rows = 0, 4 * step.in_flight
        while at < len(files) and now < end:
            chosen = slice(at, at + rows)
            batch = Trial(self._directory, pack_names(files[chosen]), call, pack_names(new_names[chosen]))
            verdicts = (yield from waited(kernel, kernel.submit(batch))).verdicts
            for row in verdicts.rows(Code.FAILED):
                raise verdicts.problem(row)
            at, start, now = at + len(verdicts), now, time.monotonic_ns()
            if (now - start) * 2 * PART < end - begin:
                rows = min(MOST_ROWS, 2 * rows)
        if call == Call.CREATE:
            self._files = files[:at]
        elif call == Call.RENAME:
            self._files = new_names[:at] + files[at:]
        elif call == Call.UNLINK:
            self._files = files[at:]
        return at, begin, now

    def _list(self, step: Step) -> Part:
        """List the directory repeatedly until the time of the step is over."""
        kernel, number = self._rank.kernel, 0
        begin = now = time.monotonic_ns()
        end = begin + step.microseconds * 1000
        while now < end:
            batch: List | None = List(self._directory, on_source=False)
            while batch is not None:
                listed = yield from waited(kernel, kernel.submit(batch))
                for row in listed.verdicts.rows(Code.FAILED):
                    raise listed.verdicts.problem(row)
                number, batch = number + listed.number, listed.rest
            now = time.monotonic_ns()
            yield None
        return number, begin, now

    def _write(self, step: Step) -> Part:
        """Write up to ``step.most`` bytes and sync them; the sync is part of the measured time."""
        assert self._block is not None
        block, at, start = memoryview(self._block), 0, self._start(step)
        begin = now = looked_up = time.monotonic_ns()
        end = begin + step.microseconds * 1000
        with failing("write"):
            while at < step.most and now < end:
                at += os.pwrite(self._file, block, start + at)
                now = time.monotonic_ns()
                if now - looked_up > SLICE:
                    looked_up = now
                    yield None
        with failing("fsync"):
            sync_written(self._file)
        now = time.monotonic_ns()
        descriptor, self._file = self._file, -1
        with failing("close"):
            os.close(descriptor)
        return at, begin, now

    def _start(self, step: Step) -> int:
        """Return the offset at which this rank starts to write or read: that of its segment, if all ranks
        use one file.
        """
        return self._whose * step.most if step.shared else 0

    def _read(self, step: Step) -> Part:
        """Read the file, or the segment of it, that a rank wrote."""
        assert self._block is not None
        block, at, start = [memoryview(self._block)], 0, self._start(step)
        begin = now = looked_up = time.monotonic_ns()
        end = begin + step.microseconds * 1000
        with failing("read"):
            while at < self._made and now < end:
                got = os.preadv(self._file, block, start + at)
                if not got:
                    raise Problem("read", 0, text="the file is shorter than what was written")
                at, now = at + got, time.monotonic_ns()
                if now - looked_up > SLICE:
                    looked_up = now
                    yield None
        descriptor, self._file = self._file, -1
        close_read(descriptor)
        return at, begin, now


def _directory_of(step: Step, owner: int) -> bytes:
    """Return the name of the directory for the files of the rank ``owner``."""
    return b"%d.shared" % step.round if step.shared else b"%d.%d" % (step.round, owner)
