"""The state that all tasks of one rank share: the job, open directories, temporary names, counters, and the way to
report results.
"""

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
"""Estimated cost of a file in addition to its size, in bytes: the duration of its system calls times a medium
bandwidth.
"""

SCAN_COST = 4 << 20
"""Estimated contents of a directory that was not read yet, in bytes."""

FILES_PER_SLICE = 8
"""Number of small files after which a task yields, so that the rank can answer messages."""

CLOCK_GRACE = 5 * 10**9
"""Tolerated difference, in nanoseconds, between the clocks of a file server and its clients."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""Error numbers that may mean that the destination is full or read-only."""
_FILLING = (
    *("write", "create", "mkdir", "mknod", "symlink", "link", "truncate", "copy_file_range", "fsync", "close"),
    *("fallocate", "fdatasync", "sync_file_range"),
)
"""Operations that need room in the destination."""
_NAMING = ("create", "mkdir", "mknod", "symlink", "link", "rename")
"""Operations that create a name in the destination."""
S = TypeVar("S")
M = TypeVar("M", FilesMade, Copied)

VisitorOf = Callable[["Rank", Any, Place, int], Visitor]
"""Function that returns the visitor for the items that a task finds in a directory.

It receives the rank, the result of the task, the directory, and the number of the attempt (from 0). Each tool has its
own.
"""


class RankSet(set[S]):
    """A set that belongs to a rank (``Rank.own``)."""

    def __init__(self, rank: Rank) -> None:
        super().__init__()


class Running:
    """State of one task while it runs. Other tasks of the rank may run while it waits.

    Fields:
        phase: phase of the task.
        task: the packed task.
        changed: directories that the task wrote to and that must be synced.
        held: descriptors that stay open for the task.
        full: failures for lack of space since the task last wrote something: the error number of each, and the
            directory, project and owner to which the item was charged (``pcopy.tasks.base.no_room.Charged``).
        has_written: True if the task has written something.
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
    """One process of a run, with everything that its tasks share.

    Args:
        job: the job.
        number: number of this rank.
        size: number of ranks.
        descriptors: open descriptors of the two directories of each root.
        kernel: the backend that executes batches.
        visitor: function that returns the tool's visitor for a directory.
        sink: receiver of progress and failures, on rank 0.
        leaders: one rank of each host.
        hosts: name of each rank's host; empty if all ranks run on one host.
        open_spool: function that opens a spool.
    """

    gathers = False
    """True if the rank collects the sums that a report shows."""
    _full: tuple[tuple[int, Any], ...] = ()
    """Failures for lack of space of the tasks that have ended, in the form of ``Running.full``."""
    deleted: Callable[[], memoryview | None] = staticmethod(lambda: None)
    """Return the shared memory in which each deletion is counted at once (``Remove.gone``), so that the count survives
    a kill of this process; None if the job is not recorded.
    """

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
        """Counters of this rank. Moved bytes are added at once; other counts are added when a task ends. With several
        ranks the list belongs to the engine's node.
        """
        self.totals: Callable[[], tuple[int, ...]] = lambda: tuple(self.counters)
        """Return the latest known sums over all ranks."""
        self.begun_with = self.totals
        """Return the sums over all ranks at the start of the phase."""
        self.has_plenty: Callable[[], bool] = lambda: False
        """Return True if other ranks would find work, and this rank has work for each task that it may run at a time.
        The engine's node sets it.
        """
        self.hands: Callable[[], int] = lambda: size
        """Return the number of tasks that all ranks together may run at a time."""
        self.leaders = leaders
        self.open_spool = open_spool
        self.temporary_names = TemporaryNames(job.name, job.run, number, hidden=not job.options.sequential)
        self.told: set[str] = set()
        """Notices that this rank has sent to rank 0 and sends only once, such as unsupported attributes."""
        self.spellings = Spellings()
        self.namer = Namer()
        self.began = time.monotonic()
        self.syncer, self.storer = Syncer(), Syncer()
        """Sync file systems (``syncer``) and single files before they get their final names (``storer``).

        They are two objects so that the sync of a file does not wait for that of a file system.
        """
        self.hosts = Hosts(hosts, number, size)
        self.keeps = job.copies and job.options.keeps
        """True if copies get their final names late, in the phase NAME, and replace existing items only as
        ``--existing`` permits.
        """
        self._phase = int(Phase.COPY)
        self.running = Running(int(Phase.COPY))
        """State of the task that runs now."""
        self._hashing = Hashing(self.options.hash, self.options.block_size) if self.options.hash else None
        self.storage: Storage | None = None
        """Syncs written data before a journal records it; None if the job is not recorded."""
        self.stop_reason: Halt | None = None
        self._reported = 0

    def own(self, state: Callable[[Rank], S]) -> S:
        """Return this rank's only instance of the class ``state``; it is created at the first call.

        Such a class is defined in the module of the tasks that use it. If it has a method ``close``, that is called at
        the end of the job.
        """
        instance = self._own.get(state)
        if instance is None:
            instance = self._own[state] = state(self)
        return cast(S, instance)

    def begin(self, phase: int) -> None:
        """Prepare for a task of ``phase``. In a verify phase, target directories are opened anew, because an open
        directory may have been moved.
        """
        if phase != self._phase and phase in (Phase.VERIFY, Phase.REPAIR_VERIFY):
            for directories in self.targets:
                directories.close()
        self._phase = phase

    def go_on(self, running: Running) -> None:
        """Make ``running`` the current task, until another task is."""
        self.running = running
        self.kernel.pins.held = running.held

    def end(self, running: Running) -> None:
        """Release all descriptors and directories that were kept open for a task."""
        self.kernel.pins.held = None
        self.kernel.pins.release(running.held)
        running.changed.close()

    def done(self, batch: Batch[S]) -> Stepwise[S]:
        """Yield until the backend has executed ``batch``, and return its result. Raise ``Cancelled`` if the batch was
        cancelled.
        """
        return waited(self.kernel, self.kernel.submit(batch))

    def counted(self, batch: Batch[S], count: Callable[[S], None]) -> Stepwise[S]:
        """Execute ``batch``, which changes items, as ``done`` does.

        ``count`` is called with the final result in any case, also if the batch is cancelled or the task is dropped.
        """
        ticket = self.kernel.submit(batch)
        try:
            return (yield from waited(self.kernel, ticket))
        finally:
            count(ticket.result)

    def moved(self, batch: Batch[M]) -> Stepwise[M]:
        """Execute ``batch``, which moves contents, as ``done`` does. Moved bytes are counted while it runs.

        If the batch is cancelled, this returns its result nevertheless: operations that had begun are completed and
        counted.
        """
        ticket = self.kernel.submit(batch)
        verdicts, counted_bytes = ticket.result.verdicts, 0

        def count_moved() -> None:
            nonlocal counted_bytes
            self.counters[counts.MOVED] += verdicts.moved - counted_bytes
            counted_bytes = verdicts.moved

        with suppress(Cancelled):
            yield from waited(self.kernel, ticket, count_moved)
        count_moved()
        return ticket.result

    @property
    def phase(self) -> int:
        """Phase of the current task."""
        return self.running.phase

    @property
    def signs(self) -> bool:
        """True if entries are collected for a signature or for a comparison."""
        return self.options.signs or (self.digests and not self.job.copies and not self.options.compare)

    @property
    def verifies_skipped(self) -> bool:
        """True if existing items that were kept are read back as well."""
        return self.options.verify and self.options.existing == "changed"

    @property
    def digests(self) -> bool:
        """True if digests are computed."""
        return self._hashing is not None

    @property
    def hashing(self) -> Hashing:
        """Algorithm and block size of the job's digests. Raise ``InvariantBroken`` in a job without digests."""
        if self._hashing is None:
            raise InvariantBroken("a digest was requested in a job without digests")
        return self._hashing

    def hasher(self) -> ContentHasher | None:
        """Return a hasher for the contents of one file; None if the job computes no digests."""
        return self._hashing.hasher() if self._hashing else None

    def chunk(self, size: int, unit: int = 0) -> int:
        """Return the size, in bytes, of the chunks of a file of ``size`` bytes, based on the bytes that the job has
        found so far.

        Args:
            unit: least size of a chunk; see ``pcopy.tasks.base.spreading.chunk_size``.
        """
        known = max(self.totals()[counts.FOUND_BYTES], self.counters[counts.FOUND_BYTES], size)
        return chunk_size(self.options.chunk_size, self.options.block_size, size, known, self.size, unit)

    def data_in(self, status: os.stat_result) -> int:
        """Return the number of bytes to copy of a file with this ``status``: its size, without its holes if holes are
        preserved.
        """
        return min(status.st_size, status.st_blocks * 512) if self.options.preserve.sparse else status.st_size

    def splits(self, size: int) -> bool:
        """Return True if a file of ``size`` bytes is copied in chunks. It must have at least one and a half chunks."""
        return self.size > 1 and size > SMALL_FILE and 2 * size >= 3 * self.chunk(size)

    def is_generated(self, place: Place) -> bool:
        """Return True if the files of the source directory ``place`` are generated when they are read (/proc), so that
        their sizes are meaningless. Raise ``Problem`` on failure.
        """
        directory = self.open_source(place)
        return self.mover.generated.is_on(directory, status_of(directory, on_source=True).st_dev)

    def open_target(self, place: Place) -> int:
        """Return a descriptor of the target directory of ``place``. Raise ``Problem`` if it cannot be opened or is
        another directory now.
        """
        target = self.targets[place.root].open(self.below_target(place.root, place.path), place.target_id)
        if self.storage is not None:
            self.storage.add(target, self.target_device(place), place.target_id.inode, self.running.changed)
        return target

    def open_above(self, place: Place | None, root: int) -> int:
        """Return a descriptor of the directory that contains a target: of ``place``, or of the target of root number
        ``root`` if ``place`` is None. Raise ``Problem`` on failure.
        """
        if place is not None:
            return self.open_target(place)
        targets = self.targets[root]
        target = targets.open(b"")
        if self.storage is not None:
            status = status_of(target)
            self.storage.add(target, status.st_dev, status.st_ino, self.running.changed)
        return target

    def syncs_items(self, place: Place) -> bool:
        """Return True if each file in this target directory is synced before it is closed (``pcopy.fsio.storage``)."""
        if unsyncable and self.target_device(place) in unsyncable:
            return False
        if self.options.fsync or (self.keeps and self.phase >= Phase.NAME):
            return True  # the file gets its final name before the file system is synced the next time
        storage = self.storage
        return storage is not None and bool(storage.one_by_one) and self.target_device(place) in storage.one_by_one

    def learn_times(self, directory: int, device: int, notices: list[str]) -> None:
        """Find out whether the server changes the modification time of a file when the file is closed
        (``pcopy.fsio.server.learn_times``).

        Tasks that write files call it first; it acts once for each device. With ``Options.sequential`` the answer is
        assumed to be yes, because a file that is created for the test might not be removable.

        Args:
            directory: open target directory.
            device: its st_dev.
            notices: list to which a notice is appended if the test file cannot be removed.
        """
        if device in late_times or not self.options.preserve.timestamps:
            return
        if self.mover.ways.of(device, directory).keeps_times:
            late_times[device] = False
            return
        if self.options.sequential:
            late_times[device] = True
            return
        from pcopy.fsio.server import learn_times  # imported late: local file systems do not need it

        name = self.temporary_names.next()
        try:
            learn_times(directory, device, name)
        except Problem as problem:
            path = os.path.join(os.readlink(b"/proc/self/fd/%d" % directory), name)
            notices.append(f"{shown(path)}: a temporary file cannot be removed: {problem.strerror}; remove it")

    def ended(self) -> None:
        """Finish the current task: sync the directories that it wrote to, if directories are synced one by one. Stop
        the job if that fails.
        """
        self._full = self._full_in_a_row()
        if self.storage is not None and self.storage.one_by_one:
            try:
                self.storage.sync_directories(self.running.changed)
            except Problem as problem:  # the storage remembers it too: from now on each of its syncs fails
                self.stop(f"{NOT_SYNCED}: {problem.strerror}", UNSYNCED)

    def remove_leftovers(self, target: int) -> Problem | None:
        """Remove the temporary files of earlier runs of this job from a target directory that is complete now. Raise
        ``Problem`` on failure.

        Return a ``Problem`` that describes items that may be the user's and were not removed, or None.
        """
        kept = remove_leftovers(target, self.job.name, self.job.run) if self.job.run > 1 else []
        if self.job.run > 1 and self.options.inplace:
            drop_all_stale(target, self.job.name)
        return Problem("rename", 0, text=had_a_name(kept)) if kept else None

    def destination_time(self) -> int:
        """Return the time of the destination's clock in nanoseconds, or a little less.

        It was measured when the run began; the time since then is measured on this host.
        """
        return (self.job.resumed or self.job.began) + int((time.monotonic() - self.began) * 10**9)

    def is_doubted(self, status: os.stat_result) -> bool:
        """Return True if another, unfinished job may have written this item of the destination, so that it may not be
        on stable storage.

        After a power failure such an item may have its size and time without its contents, which must therefore be
        compared.
        """
        return bool(self.job.doubted) and status.st_ctime_ns >= self.job.doubted - CLOCK_GRACE

    def is_touched(self, status: os.stat_result) -> bool:
        """Return True if the item was created or changed since the job began, with tolerance for differing clocks."""
        return status.st_ctime_ns >= self.job.began - CLOCK_GRACE

    def is_ours(self, place: Place, status: os.stat_result) -> bool:
        """Return True if an earlier run may have created or changed this item of the target directory ``place``."""
        return is_since(self.job, place, status.st_ctime_ns)

    def succeeded(self) -> None:
        """Record that the current task has written something, so that the destination is not full."""
        self.running.full, self.running.has_written = (), True

    def failed(self, problem: Problem, place: Place, name: bytes, size: int = 0) -> str:
        """Record the failure of an item. Stop the job if all further items would fail too because the destination is
        full.

        Args:
            place: the directory of the item.
            name: name of the item; ``b""`` for the directory itself.
            size: size of the item in bytes.

        Return an explanation for the user in addition to the error itself; empty if there is none.
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
        from pcopy.tasks.base import no_room  # imported late: most jobs have no shortage

        if problem.errno == errno.EROFS:
            self.running.full += ((errno.EROFS, None),)
            if [number for number, _ in self._full_in_a_row()].count(errno.EROFS) >= no_room.MOST_READ_ONLY:
                self.stop(os.strerror(errno.EROFS))
            return ""
        directory, file_system = -1, self.descriptors[place.root].target
        # Opened without an expected identity: a mismatch would close directories that the task still uses.
        with suppress(Problem):
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
        """Return the failures for lack of space since the last successful write."""
        return self.running.full if self.running.has_written else self._full + self.running.full

    def stop(self, reason: str, code: int = 0) -> None:
        """Stop the job. Only the first reason counts.

        Args:
            reason: the reason in words.
            code: kind of the reason (``pcopy.engine.messages.Halt``).
        """
        self.stop_reason = self.stop_reason or Halt(reason, code)

    def tell(self, failures: Sequence[Failure], notices: Sequence[str]) -> None:
        """Pass failures and notices of all ranks on to the sink, on rank 0. Stop the job if ``--max-errors`` is
        reached.
        """
        self._reported += len(failures)
        if self.sink is not None:
            if failures:
                self.sink.failures(failures)
            for notice in notices:
                self.sink.notice(notice)
        if self.options.max_errors and self._reported >= self.options.max_errors:
            self.stop(f"{counted(self._reported, 'item', 'items')} failed (--max-errors {self.options.max_errors})")

    def close(self) -> None:
        """Close the backend, all objects that ``own`` created, and all directories. No task may use them any longer."""
        self.kernel.close()
        for state in self._own.values():
            if hasattr(state, "close"):
                state.close()
        for directories in (*self.sources, *self.targets):
            directories.close()


def mover_of(options: Options) -> Mover:
    """Return the object that copies contents according to the user's options."""
    manner = Manner(options.direct, options.drop_cache)
    return Mover(sparse=options.preserve.sparse, reflink=options.reflink, manner=manner)


def is_since(job: Job, place: Place, moment: int) -> bool:
    """Return True if ``moment`` (nanoseconds since 1970) is not before the start of the first run that may have created
    items in ``place``.

    Return False in that run itself, because no earlier run can have created anything there.
    """
    run, began = place.since if place.since[0] else (1, job.began)
    return job.run > run and moment >= began - CLOCK_GRACE
