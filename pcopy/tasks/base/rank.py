"""What all tasks of one rank share: the job, its open directories, its temporary names, and the way to tell results."""

from __future__ import annotations

import errno
import io
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

from pcopy.engine.backlog import SpoolFactory
from pcopy.engine.messages import Halt
from pcopy.engine.task import Task
from pcopy.engine.ticket import Stepwise
from pcopy.errors import NOT_SYNCED, UNSYNCED, InvariantBroken
from pcopy.fsio.close import late_times
from pcopy.fsio.data import Mover
from pcopy.fsio.directories import Held
from pcopy.fsio.half_written import drop_all_stale
from pcopy.fsio.kernel.batches import Batch, Copied, FilesMade
from pcopy.fsio.kernel.interface import SMALL_FILE, Cancelled, Kernel, waited
from pcopy.fsio.naming import Namer
from pcopy.fsio.passage import Manner
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of
from pcopy.fsio.spelling import Spellings
from pcopy.fsio.storage import Changed, Storage
from pcopy.fsio.syncer import Syncer, unsyncable
from pcopy.fsio.temporary import TemporaryNames, had_a_name, remove_leftovers
from pcopy.signature.tree import ContentHasher
from pcopy.tasks.base import counts
from pcopy.tasks.base.both_sides import BothSides, RootDescriptors
from pcopy.tasks.base.hashing import Hashing
from pcopy.tasks.base.job import Failure, Job, Options, Sink
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.spreading import Hosts, chunk_size
from pcopy.tasks.base.values import Place
from pcopy.text import counted, shown
from pcopy.walk.visitor import Visitor

CALL_COST = 64 << 10
"""What one file costs beside its bytes, in bytes: the time of its system calls at a middling bandwidth."""

SCAN_COST = 4 << 20
"""What an unread directory is taken to hold, in bytes."""

FILES_PER_SLICE = 8
"""Small files after each of which the rank looks up from its work."""

CLOCK_GRACE = 5 * 10**9
"""Nanoseconds that the clocks of a file server and its clients may differ."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_FILLING = (
    *("write", "create", "mkdir", "mknod", "symlink", "link", "truncate", "copy_file_range", "fsync", "close"),
    *("fallocate", "fdatasync", "sync_file_range"),
)
_NAMING = ("create", "mkdir", "mknod", "symlink", "link", "rename")
S = TypeVar("S")
M = TypeVar("M", FilesMade, Copied)

VisitorOf = Callable[["Rank", Any, Place, int], Visitor]
"""What the tool does with what a task finds in a directory, in which attempt. It is handed the task's result, too."""


class RankSet(set[S]):
    """Something that a rank remembers (``Rank.own``)."""

    def __init__(self, rank: Rank) -> None:
        super().__init__()


class Running:
    """What a rank has to know of a task while that runs: others may run while it waits.

    ``full`` are the failures for want of room since something was written: the errno of each, and to what it was
    charged (``pcopy.tasks.base.no_room.Charged``). What is ``held`` stays open.
    """

    __slots__ = ("changed", "full", "has_written", "held", "phase", "task")

    def __init__(self, phase: int) -> None:
        self.phase = phase
        self.task: Task | None = None
        self.changed = Changed()
        self.held = Held()
        self.full: tuple[tuple[int, Any], ...] = ()
        self.has_written = False


class Rank(BothSides):
    gathers = False
    """Does it gather what a report tells of it?"""
    _full: tuple[tuple[int, Any], ...] = ()
    """As ``Running.full``, of the tasks that are done."""
    deleted: Callable[[], memoryview | None] = staticmethod(lambda: None)
    """Returns where each deletion is counted at once (``Remove.gone``), so that the number survives this process; None
    where the job is not kept."""

    def __init__(
        self,
        job: Job,
        number: int,
        size: int,
        descriptors: Sequence[RootDescriptors],
        kernel: Kernel,
        visitor: VisitorOf,
        *,
        sink: Sink | None = None,
        leaders: Sequence[int] = (0,),
        hosts: Sequence[str] = (),
        open_spool: SpoolFactory = io.BytesIO,
    ) -> None:
        super().__init__(job, descriptors, kernel, one_host=len(leaders) == 1)
        self._own: dict[Callable[[Rank], Any], Any] = {}
        self.number = number
        self.size = size
        self.kernel = kernel
        self.visitor = visitor
        self.mover = mover_of(job.options)
        self.throttle = self.mover.throttle
        self.sink = sink
        self.counters = [0] * counts.COUNTERS
        """What moves is counted here at once; of a job with several ranks these are the node's."""
        self.totals: Callable[[], tuple[int, ...]] = lambda: tuple(self.counters)
        """The sums of all ranks, as last heard."""
        self.begun_with = self.totals
        """Those with which the phase has begun."""
        self.has_plenty: Callable[[], bool] = lambda: False
        """Would other ranks find work, and this one for each task that it may have under way? The node knows."""
        self.hands: Callable[[], int] = lambda: size
        """How many tasks all ranks may have under way."""
        self.leaders = leaders
        self.open_spool = open_spool
        self.temporary_names = TemporaryNames(job.name, job.run, number, hidden=not job.options.sequential)
        self.told: set[str] = set()
        """What this rank has told rank 0 once, however often it is met: attributes, and reasons."""
        self.spellings = Spellings()
        self.namer = Namer()
        self.began = time.monotonic()
        self.syncer, self.storer = Syncer(), Syncer()
        """What syncs file systems, and single files before they get their names: these do not wait for those."""
        self.hosts = Hosts(hosts, number, size)
        self.keeps = job.copies and job.options.keeps
        """Is what is copied named at last, and without replacing anything unasked?"""
        self._phase = int(Phase.COPY)
        self.running = Running(int(Phase.COPY))
        """The task that runs now."""
        self._hashing = Hashing(self.options.hash, self.options.block_size) if self.options.hash else None
        self.storage: Storage | None = None
        """Syncs what was written, before a journal records it."""
        self.stop_reason: Halt | None = None
        self._reported = 0

    def own(self, state: Callable[[Rank], S]) -> S:
        """This rank's one ``state``, a class that lives beside the kinds that need it; made when it is first asked for.
        If it has a ``close``, that is called at the end of the job."""
        made = self._own.get(state)
        if made is None:
            made = self._own[state] = state(self)
        return cast(S, made)

    def begin(self, phase: int) -> None:
        """A task of ``phase`` begins. What is verified is looked up anew: a directory that is open may have moved."""
        if phase != self._phase and phase in (Phase.VERIFY, Phase.REPAIR_VERIFY):
            for directories in self.targets:
                directories.close()
        self._phase = phase

    def go_on(self, running: Running) -> None:
        """From now on this task runs, until another one does."""
        self.running = running
        self.kernel.pins.held = running.held

    def end(self, running: Running) -> None:
        """This task is over: nothing is held for it any more."""
        self.kernel.pins.held = None
        self.kernel.pins.release(running.held)
        running.changed.close()

    def done(self, batch: Batch[S]) -> Stepwise[S]:
        """What the kernel makes of it, for a task; raises ``Cancelled``."""
        return waited(self.kernel, self.kernel.submit(batch))

    def counted(self, batch: Batch[S], count: Callable[[S], None]) -> Stepwise[S]:
        """The same of one that changes items: ``count`` is told of what has been done in the end, also if it is cut
        short, or the task is dropped."""
        ticket = self.kernel.submit(batch)
        try:
            return (yield from waited(self.kernel, ticket))
        finally:
            count(ticket.result)

    def moved(self, batch: Batch[M]) -> Stepwise[M]:
        """The same of one that moves contents, which count at once. If it is cut short, what was begun has ended, and
        counts."""
        ticket = self.kernel.submit(batch)
        verdicts, told = ticket.result.verdicts, 0

        def tell() -> None:
            nonlocal told
            self.counters[counts.MOVED] += verdicts.moved - told
            told = verdicts.moved

        with suppress(Cancelled):
            yield from waited(self.kernel, ticket, tell)
        tell()
        return ticket.result

    @property
    def phase(self) -> int:
        return self.running.phase

    @property
    def signs(self) -> bool:
        """Are entries gathered for a signature, or to be compared?"""
        return self.options.signs or (self.digests and not self.job.copies and not self.options.compare)

    @property
    def verifies_skipped(self) -> bool:
        """Is what is there, and stays, read back as well?"""
        return self.options.verify and self.options.existing == "changed"

    @property
    def digests(self) -> bool:
        return self._hashing is not None

    @property
    def hashing(self) -> Hashing:
        """The job's digests; only where they are wanted."""
        if self._hashing is None:
            raise InvariantBroken("a digest is wanted in a job without digests")
        return self._hashing

    def hasher(self) -> ContentHasher | None:
        """For the contents of one file, or None if nobody wants their digest."""
        return self._hashing.hasher() if self._hashing else None

    def chunk(self, size: int, unit: int = 0) -> int:
        """Bytes of the chunks of a file of ``size``, from what is known of the whole job by now; ``unit``: as for
        ``pcopy.tasks.base.spreading.chunk_size``."""
        known = max(self.totals()[counts.FOUND_BYTES], self.counters[counts.FOUND_BYTES], size)
        return chunk_size(self.options.chunk_size, self.options.block_size, size, known, self.size, unit)

    def data_in(self, status: os.stat_result) -> int:
        """Return how many bytes of a file with this ``status`` are moved: not those of its holes."""
        return min(status.st_size, status.st_blocks * 512) if self.options.preserve.sparse else status.st_size

    def splits(self, size: int) -> bool:
        """Is a file of that size worth splitting? One of less than one and a half chunks is not."""
        return self.size > 1 and size > SMALL_FILE and 2 * size >= 3 * self.chunk(size)

    def is_generated(self, place: Place) -> bool:
        """Return True if files of the source directory ``place`` are generated as they are read (/proc), so that their
        sizes say nothing; raises ``Problem``."""
        directory = self.open_source(place)
        return self.mover.generated.is_on(directory, status_of(directory, on_source=True).st_dev)

    def open_target(self, place: Place) -> int:
        """The target directory of ``place``; raises ``Problem``."""
        target = self.targets[place.root].open(self.below_target(place.root, place.path), place.target_id)
        if self.storage is not None:
            self.storage.add(target, self.target_device(place), place.target_id.inode, self.running.changed)
        return target

    def open_above(self, place: Place | None, root: int) -> int:
        """The target directory ``place``, or that of a root for what the root is copied to; raises ``Problem``."""
        if place is not None:
            return self.open_target(place)
        targets = self.targets[root]
        target = targets.open(b"")
        if self.storage is not None:
            status = status_of(target)
            self.storage.add(target, status.st_dev, status.st_ino, self.running.changed)
        return target

    def syncs_items(self, place: Place) -> bool:
        """Is each file in this target directory synced before it is closed? (``pcopy.fsio.storage``)"""
        if unsyncable and self.target_device(place) in unsyncable:
            return False
        if self.options.fsync or (self.keeps and self.phase >= Phase.NAME):
            return True  # it gets its name before the next sync
        storage = self.storage
        return storage is not None and bool(storage.one_by_one) and self.target_device(place) in storage.one_by_one

    def learn_times(self, directory: int, device: int, notices: list[str]) -> None:
        """Find out if files in the open target ``directory`` lose their times when they are closed
        (``pcopy.fsio.server.learn_times``). Tasks that write files call it before; it acts once for each device.

        With ``Options.sequential`` that is assumed: a file made to find it out might not be removable.
        """
        if device in late_times or not self.options.preserve.timestamps:
            return
        if self.mover.ways.of(device, directory).keeps_times:
            late_times[device] = False
            return
        if self.options.sequential:
            late_times[device] = True
            return
        from pcopy.fsio.server import learn_times  # local file systems do not need it

        name = self.temporary_names.next()
        try:
            learn_times(directory, device, name)
        except Problem as problem:
            path = os.path.join(os.readlink(b"/proc/self/fd/%d" % directory), name)
            notices.append(f"{shown(path)}: a temporary file cannot be removed: {problem.strerror}; remove it")

    def ended(self) -> None:
        """The task that runs is done: so are the names that it has made, where they are synced one by one."""
        self._full = self._full_in_a_row()
        if self.storage is not None and self.storage.one_by_one:
            try:
                self.storage.sync_directories(self.running.changed)
            except Problem as problem:  # which the storage remembers
                self.stop(f"{NOT_SYNCED}: {problem.strerror}", UNSYNCED)

    def remove_leftovers(self, target: int) -> Problem | None:
        """Removes what earlier runs of this job left in a target directory that is whole now; raises ``Problem``.

        Returns what there is to say of an item that may be the user's, and stays.
        """
        others = remove_leftovers(target, self.job.name, self.job.run) if self.job.run > 1 else []
        if self.job.run > 1 and self.options.inplace:
            drop_all_stale(target, self.job.name)
        return Problem("rename", 0, text=had_a_name(others)) if others else None

    def destination_time(self) -> int:
        """Return the time of the destination's clock, or a little less: as measured when the run began, and what has
        passed since then."""
        return (self.job.resumed or self.job.began) + int((time.monotonic() - self.began) * 10**9)

    def is_doubted(self, status: os.stat_result) -> bool:
        """True if an unfinished job may have written this item of the destination, and it may not be durable.

        After a loss of power it may have its size and time without its contents, which must be compared.
        """
        return bool(self.job.doubted) and status.st_ctime_ns >= self.job.doubted - CLOCK_GRACE

    def is_touched(self, status: os.stat_result) -> bool:
        """Was this item made or changed since the job began, as far as clocks agree?"""
        return status.st_ctime_ns >= self.job.began - CLOCK_GRACE

    def is_ours(self, place: Place, status: os.stat_result) -> bool:
        """Is this item of the target directory ``place`` one that an earlier run made, or has touched at least?"""
        return is_since(self.job, place, status.st_ctime_ns)

    def succeeded(self) -> None:
        """The task has written something: the destination is not full."""
        self.running.full, self.running.has_written = (), True

    def failed(self, problem: Problem, place: Place, name: bytes, size: int = 0) -> str:
        """Stop the job if an item has failed, and others would fail for the same reason: the destination is full.

        Return what the user should know beside the error itself.
        """
        if problem.on_source:
            return ""
        if problem.errno == errno.EILSEQ and problem.operation in _NAMING:
            return "the file system may refuse names that are not UTF-8"
        if problem.errno == errno.EINVAL and problem.operation in _NAMING:
            is_dotted = (name or os.path.basename(place.path)).startswith(b".")
            return "the file system may refuse names with a leading dot" if is_dotted else ""
        if problem.errno not in _FULL or problem.operation not in _FILLING:
            return ""
        from pcopy.tasks.base import no_room  # most jobs find room

        if problem.errno == errno.EROFS:
            self.running.full += ((errno.EROFS, None),)
            if [number for number, _ in self._full_in_a_row()].count(errno.EROFS) >= no_room.MOST_READ_ONLY:
                self.stop(os.strerror(errno.EROFS))
            return ""
        directory, file_system = -1, self.descriptors[place.root].target
        with suppress(Problem):  # of any identity, since one that differs would close what the task works with
            directory = self.targets[place.root].open(self.below_target(place.root, place.path))
            if status_of(directory).st_dev != status_of(file_system).st_dev:
                file_system = directory
        lacks = no_room.what_lacks(problem, file_system, size)
        charged = no_room.charged_to(place, directory)
        self.running.full += ((problem.errno, charged),)
        in_a_row = tuple(each for number, each in self._full_in_a_row() if number != errno.EROFS)
        where = no_room.where(charged, self.shown(place, name, on_source=False))
        if why := no_room.why_to_stop(in_a_row, lacks, where):
            self.stop(f"{os.strerror(problem.errno)}: {why}")
        return lacks or f"in {where}; the file system has room"

    def _full_in_a_row(self) -> tuple[tuple[int, Any], ...]:
        return self.running.full if self.running.has_written else self._full + self.running.full

    def stop(self, reason: str, code: int = 0) -> None:
        self.stop_reason = self.stop_reason or Halt(reason, code)

    def tell(self, failures: Sequence[Failure], notices: Sequence[str]) -> None:
        """On rank 0: passes on what ranks report."""
        self._reported += len(failures)
        if self.sink is not None:
            if failures:
                self.sink.failures(failures)
            for notice in notices:
                self.sink.notice(notice)
        if self.options.max_errors and self._reported >= self.options.max_errors:
            self.stop(f"{counted(self._reported, 'item', 'items')} failed (--max-errors {self.options.max_errors})")

    def close(self) -> None:
        """Gives back the directories, once nobody works with them any more."""
        self.kernel.close()
        for state in self._own.values():
            if hasattr(state, "close"):
                state.close()
        for directories in (*self.sources, *self.targets):
            directories.close()


def mover_of(options: Options) -> Mover:
    """What moves contents as the user wants it."""
    manner = Manner(options.direct, options.drop_cache)
    return Mover(sparse=options.preserve.sparse, reflink=options.reflink, manner=manner)


def is_since(job: Job, place: Place, moment: int) -> bool:
    """Is this ``moment`` after the time at which an earlier run may have begun to make what is in ``place``?"""
    run, began = place.since if place.since[0] else (1, job.began)
    return job.run > run and moment >= began - CLOCK_GRACE
