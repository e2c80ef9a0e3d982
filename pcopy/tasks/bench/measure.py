"""Prepare, RankReady, Measure, Told: one step of a benchmark, on each of its ranks, led by rank 0.

All is done in a private directory below the root, which the first step makes. What is timed are the calls and what
pcopy itself needs around them in a batch; names are made before. The steps of round 0, which warm up, have files of
other names, and are not counted.
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
"""Rows of one batch; it begins with few, and has more as long as a batch takes a small part of the time."""

PART = 16
"""A batch takes this part of a step's time at most, if that can be foreseen."""

SLICE = 2_000_000
"""Nanoseconds after which a rank looks up from writing and reading: that takes some microseconds."""

_PATTERN = 1 << 20
"""Random bytes of which blocks are made: what is all zeros may be compressed, or not stored at all."""

_FOR_EVER = 1 << 60
"""Microseconds: what is not measured is done to its end."""

Part = Generator[Ticket | None, None, tuple[int, int, int]]
"""A test as it runs; returns what it has counted, and its begin and end in nanoseconds."""


def private_name(job: Job) -> bytes:
    """Of the directory in which all is done."""
    return b".pdbench-%s" % job.name.encode()


class OfStep(Kind, is_note=False):
    """It is about no directory that the job knows. ``step`` is a ``Step``."""

    step: tuple[int, int, int, bool, int, int, int, int, bool]

    def about(self) -> None:
        return None


class Prepare(OfStep, code=150, doing="preparing a measurement"):
    """Makes and opens what the step needs, and tells rank 0 that this rank is ready. The rank ``whose`` files are
    looked at has ``made`` so many, or so many bytes; ``private`` is the inode of the directory; 0: it is to be made."""

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
    """A rank has prepared the step: once all have, all measure."""

    def run(self, rank: Rank, result: Result) -> None:
        book = notebook_of(rank)
        book.ready += 1
        step = book.step
        assert step is not None
        if book.ready == step.ranks:
            for number in range(step.ranks):
                result.spawn(Measure(step[:]), owner=number)


class Measure(OfStep, code=152, doing="measuring"):
    """Does the test, and tells rank 0 how much and how long."""

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


class Told(Note, code=153, doing="noting what was measured"):
    """What a rank has measured; after the last one of a step the next one begins."""

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
    """Those of the next step, each with its rank; none if all are over. ``hosts`` as ``neighbours``."""
    step = book.begin_next()
    if step is None:
        return []
    looks = step.test in (Test.STAT, Test.OPEN, Test.READ, Test.READDIR)
    whose = neighbours(hosts, step.ranks) if looks else range(step.ranks)
    inode = book.private.inode if book.private else 0
    return [(number, Prepare(step[:], other, book.made.get(other, 0), inode)) for number, other in enumerate(whose)]


def notebook_of(rank: Rank) -> Notebook:
    """Of rank 0."""
    return cast(Notebook, rank.sink)


def neighbours(hosts: Sequence[str], ranks: int) -> list[int]:
    """Whose files each of so many ranks looks at and reads: those of one of them on another host, whose caches are
    others; if there is none, of another rank. ``hosts`` are each rank's; empty: all are on one."""
    groups: dict[str, list[int]] = {}
    for rank in range(ranks):
        groups.setdefault(hosts[rank] if hosts else "", []).append(rank)
    order = [rank for group in groups.values() for rank in group]
    if len(groups) == 1:
        return [*order[1:], order[0]]
    far = max(map(len, groups.values()))  # leads out of each host that has no more than half of them
    whose = dict(zip(order, (*order[far:], *order[:far]), strict=True))
    for group in groups.values():
        here = set(group)
        elsewhere = cycle([rank for rank in order if rank not in here])
        whose |= {rank: next(elsewhere) for rank in group if whose[rank] in here}
    return [whose[rank] for rank in range(ranks)]


def give_up(rank: Rank, result: Result, problem: Problem) -> None:
    """A test that fails says nothing of the file system: the steps end with it."""
    result.count(counts.FOUND)
    result.count(counts.FAILED)
    path = os.path.join(rank.job.roots[0].target_shown, private_name(rank.job))
    result.report(path, problem)


class Bench:
    """What a rank keeps between two steps."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._private = self._directory = self._file = -1
        self._block: mmap | None = None
        self._segmented = b""
        """The name of the file that all ranks have written last, on rank 0."""
        self._whose = rank.number
        self._made = 0
        self._names: dict[bytes, list[bytes]] = {}
        """Those of files that were made or looked at last, by how they begin."""
        self._files: list[bytes] = []
        """Those of this rank that are there, by their names."""
        self._others: list[bytes] = []
        """Those that the test takes: this rank's, or another's."""
        self._renamed: list[bytes] = []

    def close(self) -> None:
        for descriptor in (self._private, self._directory, self._file):
            if descriptor >= 0:
                let_go(descriptor)

    def prepare(self, step: Step, whose: int, made: int, private: int) -> None:
        """Raises ``OSError``. The arguments are those of ``Prepare``."""
        rank, test = self._rank, Test(step.test)
        self._whose, self._made = whose, made
        self._open_private(private)
        if test.moves:
            self._prepare_data(step, test, whose)
            return
        if rank.kernel.pool is not None:
            rank.kernel.pool.want(step.in_flight if step.in_flight > 1 else 0)
        if test == Test.CREATE:
            self._files = self._named(step, whose, step.most)
            if not step.shared or rank.number == 0:
                with failing("mkdir"):
                    os.mkdir(_directory_of(step, whose), 0o700, dir_fd=self._private)
        self._others = self._files if whose == rank.number else self._named(step, whose, made)
        self._renamed = [b"r" + name for name in self._files] if test == Test.RENAME else []

    def _named(self, step: Step, whose: int, number: int) -> list[bytes]:
        """The names of the first files of a rank."""
        stem = b"%s%d." % (b"" if step.round else b"w", whose)
        names = self._names.get(stem, [])
        if len(names) < number:
            names = [b"%s%d" % (stem, each) for each in range(number)]
            own = b"%d." % self._rank.number
            self._names = {key: kept for key, kept in self._names.items() if key == own} | {stem: names}
        return names[:number]

    def _open_private(self, inode: int) -> None:
        if self._private >= 0:
            return
        root, name = self._rank.descriptors[0].target, private_name(self._rank.job)
        if inode:
            self._private = open_private(root, name, inode)
            return
        private = notebook_of(self._rank).private = Private(root, name)
        self._private = os.dup(private.descriptor)

    def _prepare_data(self, step: Step, test: Test, whose: int) -> None:
        direct = os.O_DIRECT if step.direct else 0
        if self._block is None or len(self._block) != step.block:
            self._block = mmap(-1, step.block)  # which begins with a page, as direct I/O wants it
            pattern = os.urandom(min(_PATTERN, step.block))
            for at in range(0, step.block, len(pattern)):
                self._block[at : at + len(pattern)] = pattern[: step.block - at]
        name = b"data.%d.%d.%d" % (step.round, step.ranks, step.block) if step.shared else b"data.%d" % whose
        if test == Test.WRITE:
            for old in filter(None, (b"data.%d" % whose, self._segmented)):
                remove(self._private, old)
            self._segmented = name if step.shared and self._rank.number == 0 else b""
            flags = NEW & ~os.O_EXCL if step.shared else NEW  # who comes first makes it
            with failing("create"):
                self._file = open_patiently(name, flags | direct, 0o600, dir_fd=self._private)
            return
        with failing("open"):
            self._file = open_patiently(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | direct, dir_fd=self._private)
            os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)

    def run(self, step: Step) -> Part:
        """The test; raises ``OSError``."""
        test = Test(step.test)
        if test == Test.WRITE:
            return self._write(step)
        if test == Test.READ:
            return self._read(step)
        return self._in_directory(step, test)

    def _in_directory(self, step: Step, test: Test) -> Part:
        name = _directory_of(step, self._whose)
        with failing("open"):
            self._directory = open_patiently(name, DIRECTORY, dir_fd=self._private)
        try:
            if test == Test.READDIR:
                return (yield from self._list(step))
            if test == Test.CLEAR:
                part = yield from self._call(step._replace(microseconds=_FOR_EVER), Call.UNLINK, self._files)
                if not step.shared:
                    with failing("rmdir"):
                        os.rmdir(name, dir_fd=self._private)
                return part
            return (yield from self._call(step, Call(test), self._others))
        finally:
            descriptor, self._directory = self._directory, -1
            let_go(descriptor)

    def _call(self, step: Step, call: Call, files: list[bytes]) -> Part:
        """One call for each file, in batches."""
        kernel, new_names = self._rank.kernel, self._renamed
        begin = now = time.monotonic_ns()
        end = begin + step.microseconds * 1000
        at, rows = 0, 4 * step.in_flight
        while at < len(files) and now < end:
            some = slice(at, at + rows)
            batch = Trial(self._directory, pack_names(files[some]), call, pack_names(new_names[some]))
            verdicts = (yield from waited(kernel, kernel.submit(batch))).verdicts
            for row in verdicts.rows(Code.FAILED):
                raise verdicts.problem(row)
            at, before, now = at + len(verdicts), now, time.monotonic_ns()
            if (now - before) * 2 * PART < end - begin:
                rows = min(MOST_ROWS, 2 * rows)
        if call == Call.CREATE:
            self._files = files[:at]
        elif call == Call.RENAME:
            self._files = new_names[:at] + files[at:]
        elif call == Call.UNLINK:
            self._files = files[at:]
        return at, begin, now

    def _list(self, step: Step) -> Part:
        """All names of the directory, again and again."""
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
        """Up to ``step.most`` bytes, and what brings them to storage."""
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
        """Where the segment begins that is written or read."""
        return self._whose * step.most if step.shared else 0

    def _read(self, step: Step) -> Part:
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


def _directory_of(step: Step, whose: int) -> bytes:
    return b"%d.shared" % step.round if step.shared else b"%d.%d" % (step.round, whose)
