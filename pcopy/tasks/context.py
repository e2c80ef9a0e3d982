"""What all tasks of one rank share: the job, its open directories, its temporary names, and the way to tell results."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from pcopy.engine.backlog import Backlog, SpoolFactory
from pcopy.engine.driver import Outcome
from pcopy.engine.task import ANYBODY, Spawn
from pcopy.fsio.attributes import Applied
from pcopy.fsio.data import Mover
from pcopy.fsio.directories import Directories, OpenDirectories
from pcopy.fsio.kernel import Kernel
from pcopy.fsio.problem import Problem
from pcopy.fsio.temporary import TemporaryNames
from pcopy.tasks import counts
from pcopy.tasks.job import Failure, Job, Root, mount_codes
from pcopy.tasks.phases import Phase
from pcopy.tasks.sinks import Sink
from pcopy.tasks.values import FileOpened, Place, ReportFailures, SealDir, encode

CALL_COST = 64 << 10
"""What one file costs beside its bytes, in bytes: the time of its system calls at a middling bandwidth."""

SCAN_COST = 4 << 20
"""What an unread directory is taken to hold, in bytes."""

_PUT_ASIDE: dict[int, int] = {Phase.LINK: counts.FOR_LINK, Phase.FINISH: counts.FOR_FINISH, Phase.SEAL: counts.FOR_SEAL}

_FULL = (errno.ENOSPC, errno.EROFS)
_FILLING = ("write", "create", "mkdir", "mknod", "symlink", "link", "truncate", "copy_file_range", "close")
_FULL_IN_A_ROW = 2


class RootDescriptors(NamedTuple):
    """The two directories of a root, opened before the job begins."""

    source: int
    target: int


class UnfinishedFile:
    """What the owner of a split file knows of its chunks."""

    __slots__ = ("opened", "problem", "remaining")

    def __init__(self, opened: FileOpened) -> None:
        self.opened = opened
        self.remaining = opened.chunks
        self.problem: Problem | None = None


class Context:
    """One rank's surroundings. ``counters`` are the node's, for what is counted while it moves."""

    def __init__(
        self,
        job: Job,
        rank: int,
        size: int,
        descriptors: Sequence[RootDescriptors],
        kernel: Kernel,
        *,
        sink: Sink | None = None,
        counters: list[int] | None = None,
        totals: Callable[[], tuple[int, ...]] | None = None,
        leaders: Sequence[int] = (0,),
        open_spool: SpoolFactory = io.BytesIO,
    ) -> None:
        self.job = job
        self.options = job.options
        self.rank = rank
        self.size = size
        self.kernel = kernel
        self.mover = Mover(sparse=job.options.preserve.sparse)
        self.sink = sink
        self.counters = counters if counters is not None else [0] * counts.COUNTERS
        self.totals = totals or (lambda: tuple(self.counters))
        self.leaders = leaders
        self.open_spool = open_spool
        self.sources, self.targets = _directories(job.roots, descriptors)
        self.temporary_names = TemporaryNames(job.name, job.run, rank)
        self.unfinished: dict[bytes, UnfinishedFile] = {}
        self.sealed: list[SealDir] = []
        self.links: dict[int, Backlog] = {}
        self.synced = {os.fstat(root.target).st_dev: root.target for root in descriptors}
        self.root_devices = tuple(self.synced)
        self.stop_reason: str | None = None
        self._reported = 0
        self._full = 0

    def open_source(self, place: Place) -> int:
        """The source directory of ``place``; raises ``Problem``."""
        return self.sources[place.root].open(place.path, place.source_id)

    def open_target(self, place: Place) -> int:
        """The target directory of ``place``; raises ``Problem``."""
        return self.targets[place.root].open(self.below_target(place.root, place.path), place.target_id)

    def source_device(self, place: Place, mount: int | None = None) -> int | None:
        """This host's st_dev of the source directory, or of another mount of that root; None if it is not known."""
        return self.sources[place.root].mounts.device(place.source_id[0] if mount is None else mount)

    def target_device(self, place: Place) -> int:
        """This host's st_dev of the target directory, which has been opened."""
        device = self.targets[place.root].mounts.device(place.target_id[0])
        assert device is not None
        return device

    def devices(self, place: Place) -> tuple[int, int]:
        """Both sides' st_dev."""
        return self.source_device(place) or 0, self.target_device(place)

    def is_target(self, root: int, status: os.stat_result) -> bool:
        """Is this directory of a source the one that its root is copied to? (A bind mount can lead there.)"""
        targets = self.targets[root]
        try:
            code, inode = targets.identity(self.below_target(root, b""))
        except Problem:
            return False  # it isn't there yet
        return (targets.mounts.device(code), inode) == (status.st_dev, status.st_ino)

    def below_target(self, root: int, path: bytes) -> bytes:
        """The path below the target's descriptor of what has ``path`` below the source's."""
        name = self.job.roots[root].name if not self.job.roots[root].item else b""
        return b"/".join(part for part in (name, path) if part)

    def new_name(self, place: Place, name: bytes) -> bytes:
        """What ``name`` is called in the target: the same, unless the root is one file and got another name."""
        root = self.job.roots[place.root]
        return root.name if root.item else name

    def shown(self, place: Place, name: bytes, *, on_source: bool) -> bytes:
        """A path for messages."""
        root = self.job.roots[place.root]
        if root.item:
            return root.source_shown if on_source else root.target_shown
        parts = (root.source_shown if on_source else root.target_shown, place.path, name)
        return b"/".join(part.rstrip(b"/") or part for part in parts if part)

    def bucket(self, number: int) -> Backlog:
        """The notes of one bucket of links."""
        return self.links.setdefault(number, Backlog(self.open_spool))

    def succeeded(self) -> None:
        """Something was written: the destination is not full."""
        self._full = 0

    def failed(self, problem: Problem) -> None:
        """Stops the job if the destination is full: one file after another would fail."""
        if problem.errno in _FULL and problem.operation in _FILLING:
            self._full += 1
            if self._full >= _FULL_IN_A_ROW:
                self.stop(os.strerror(problem.errno))

    def stop(self, reason: str) -> None:
        """Asks for an orderly stop of the job."""
        self.stop_reason = self.stop_reason or reason

    def tell(self, failures: Sequence[Failure], notices: Sequence[str]) -> None:
        """On rank 0: passes on what ranks report."""
        self._reported += len(failures)
        if self.sink is not None:
            if failures:
                self.sink.failures(failures)
            for notice in notices:
                self.sink.notice(notice)
        if self.options.max_errors and self._reported >= self.options.max_errors:
            self.stop(f"{self._reported} items failed (--max-errors {self.options.max_errors})")

    def close(self) -> None:
        """Gives back the directories."""
        for directories in (*self.sources, *self.targets):
            directories.close()


def _directories(
    roots: Sequence[Root], descriptors: Sequence[RootDescriptors]
) -> tuple[list[Directories], list[Directories]]:
    """Both sides' directories of each root."""
    sources, targets = [], []
    kept, kept_targets = OpenDirectories(), OpenDirectories()
    both = zip(mount_codes(roots), descriptors, strict=True)
    for number, ((source_code, target_code), (source, target)) in enumerate(both):
        sources.append(Directories(source, source_code, on_source=True, kept=kept, number=number))
        targets.append(Directories(target, target_code, on_source=False, kept=kept_targets, number=number))
    return sources, targets


class Result:
    """Gathers what one task spawns, counts and reports."""

    __slots__ = ("_context", "_counts", "_failures", "_notices", "_own", "_spawned", "phase")

    def __init__(self, context: Context, phase: int) -> None:
        self._context = context
        self.phase = int(phase)
        self._counts = [0] * counts.COUNTERS
        self._own: list[Spawn] = []
        self._spawned: Iterable[Spawn] = self._own
        self._failures: list[Failure] = []
        self._notices: list[str] = []

    def spawn(
        self,
        task: tuple[Any, ...],
        cost: int = 0,
        *,
        phase: int | None = None,
        expands: bool = False,
        owner: int = ANYBODY,
    ) -> None:
        """A new task, of this phase unless another is named."""
        at = self.phase if phase is None else int(phase)  # primitives only: an enum's member is none
        if at > self.phase and (counter := _PUT_ASIDE.get(at)) is not None:
            self.count(counter)
        self._own.append(Spawn(at, encode(task), cost + CALL_COST, expands, owner))

    def spawn_each(self, tasks: Iterator[tuple[Any, ...]], cost: int, *, expands: bool) -> None:
        """Very many tasks of this phase, which are made one by one as they are handed over."""
        made = (Spawn(self.phase, encode(task), cost, expands) for task in tasks)
        self._spawned = chain(self._spawned, made)

    def count(self, counter: int, number: int = 1) -> None:
        self._counts[counter] += number

    def fail(self, place: Place, name: bytes, problem: Problem, size: int = 0) -> None:
        """The item ``name`` (``b""``: the directory itself) is not in the target as it should be."""
        self.count(counts.FAILED)
        self.count(counts.FAILED_BYTES, size)
        if problem.changed:
            self.count(counts.VANISHED if problem.errno == errno.ENOENT else counts.CHANGED)
        self._context.failed(problem)
        self.report(self._context.shown(place, name, on_source=problem.on_source), problem)

    def report(self, path: bytes, problem: Problem) -> None:
        """A failure that is no item's."""
        text = problem.strerror or ""
        self._failures.append(Failure(path, problem.operation, problem.errno or 0, text))

    def applied(self, place: Place, name: bytes, applied: Applied) -> None:
        """What was excused or is worth a notice when metadata was set."""
        self.count(counts.EXCUSED, applied.excused)
        for notice in applied.notices:
            self.count(counts.WARNINGS)
            self._notices.append(os.fsdecode(self._context.shown(place, name, on_source=False)) + ": " + notice)

    def outcome(self) -> Outcome:
        """Everything at once, failures as a note for rank 0."""
        if self._failures or self._notices:
            note = ReportFailures(tuple(tuple(failure) for failure in self._failures), tuple(self._notices))  # type: ignore[misc]
            self.spawn(note, owner=0)
        return Outcome(self._spawned, self._counts)
