"""A whole copy in this process, without an engine: every task runs here, in a deterministic order.

Tests act between tasks, for example change files: a race of a real run happens at one chosen moment.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from pcopy.engine.task import NewTask, Task
from pcopy.fsio.backend.choose import create_backend
from pcopy.fsio.backend.interface import BackendSettings
from pcopy.fsio.preserve import PreservedMetadataKinds
from pcopy.launch import mounts
from pcopy.launch.group import RankGroup
from pcopy.tasks.base import counts
from pcopy.tasks.base.both_sides import SourceAndTargetDescriptors
from pcopy.tasks.base.codec import decode_task, encode_task
from pcopy.tasks.base.hashing import JobItemHasher
from pcopy.tasks.base.item_outcomes import ItemOutcome, PackedItemOutcomes
from pcopy.tasks.base.job import CopyOptions, Failure, Job, JobCounters, Options, ProgramOptions, Root
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.values import Place
from pcopy.tasks.copying import make_visitor
from pcopy.tasks.directories.copy_listed import CopyListedPaths
from pcopy.tasks.directories.scan_dir import ScanDir, ScanNames
from pcopy.tasks.directories.scan_dirs import ScanDirs
from pcopy.tasks.files.chunk_ledger import ChunkLedger
from pcopy.tasks.runner import TaskRunner

Hook = Callable[[Any], None]
"""Called with each task just before it runs."""


def scans(value: object, path: bytes) -> bool:
    """Return True if this is a task that scans the directory ``path``."""
    each = value.single_directory_tasks() if isinstance(value, ScanDirs) else [value]
    return any(isinstance(scan, ScanDir) and scan.path == path for scan in each)


class RecordingSink:
    """Implements ``pcopy.tasks.base.job.ProgressSink``."""

    def __init__(self) -> None:
        self.failed: list[Failure] = []
        self.notices: list[str] = []
        self.itemized: list[ItemOutcome] = []

    def receive_progress(self, phase: str, totals: JobCounters, silent: Sequence[int]) -> None:
        """Ignore the progress."""

    def receive_failures(self, failures: Sequence[Failure]) -> None:
        self.failed += failures

    def receive_notice(self, text: str) -> None:
        self.notices.append(text)

    def items(self, items: Sequence[PackedItemOutcomes]) -> None:
        self.itemized += [line for each in items for line in each.unpacked_outcomes()]


class Copied:
    """The result of a copy."""

    def __init__(self, totals: JobCounters, reported: RecordingSink, kinds: list[str]) -> None:
        self.totals = totals
        self.failures = reported.failed
        self.notices = reported.notices
        self.kinds = kinds
        """The names of the kinds of the tasks that ran."""


def root_of(source: Path, target: Path, item: bytes = b"") -> Root:
    """The root that copies the contents of ``source`` (or its entry ``item``) into the directory ``target``. The target
    gets an old time: so it differs from the source, and counts as copied.
    """
    os.utime(target, (1, 1))

    def identity(path: Path) -> tuple[int, int]:
        status = path.stat()
        return status.st_dev, status.st_ino

    shown = bytes(source / os.fsdecode(item)), bytes(target / os.fsdecode(item))
    return Root(bytes(source), bytes(target), item, item, *shown, identity(source), identity(target))


@contextmanager
def surroundings(
    roots: Sequence[Root],
    options: Options,
    ranks: int = 1,
    rank: int = 0,
    *,
    program: ProgramOptions | None = None,
    against: bytes | None = None,
) -> Iterator[tuple[Rank, RecordingSink]]:
    """Yield one of ``ranks``, rank 0, which owns everything. ``against``: the job only reads, and compares with
    that.
    """
    opened = [
        SourceAndTargetDescriptors(*(os.open(path, os.O_RDONLY) for path in (root.source, root.target)))
        for root in roots
    ]
    reported = RecordingSink()
    digest = JobItemHasher(options.hash, options.block_size).digest_of_data if options.hash else None
    backend = create_backend(BackendSettings(options.preserve, options.umask, digest=digest))
    job = Job("test", 1, tuple(roots), options, program, copies=against is None, against=against or b"")
    with closing(mounts.MountsBelowRoots(job, opened, targets=job.copies)) as below:
        job = job._replace(mounts=mounts.agree_on_mounts(job, below, RankGroup()))
    context = Rank(job, rank, ranks, opened, backend, make_visitor, sink=reported)
    try:
        yield context, reported
    finally:
        context.close()
        for pair in opened:
            for descriptor in pair:
                os.close(descriptor)


def copy(
    *roots: Root,
    ranks: int = 1,
    before: Hook = lambda value: None,
    limit: int = 10_000,
    has_plenty: bool = False,
    listed: Path | None = None,
    **options: Any,
) -> Copied:
    """Copy ``roots``. With more than one of ``ranks`` large files are split. At most ``limit`` tasks may run.

    ``has_plenty``: the other ranks have enough work. ``listed``: the sorted list of the paths to copy.
    """
    umask = os.umask(0o077)  # as the programs do
    try:
        of_copies = CopyOptions(**{name: options.pop(name) for name in CopyOptions._fields if name in options})
        shared = Options(**{"preserve": PreservedMetadataKinds(), "sync": False, **options})
        with surroundings(roots, shared, ranks, program=of_copies) as (context, reported):
            context.all_ranks_have_work = lambda: has_plenty
            context.job = context.job._replace(listed=bytes(listed) if listed else b"")
            kinds: list[str] = []
            sums = [0] * counts.NUMBER_OF_COUNTERS
            sums[counts.FOUND] = sums[counts.UNSCANNED] = sum(1 for root in roots if not root.item)
            queues: dict[int, deque[NewTask]] = {phase: deque() for phase in range(Phase.SIGN)}
            queues[Phase.COPY].extend(_first(context, number) for number in range(len(roots)))
            run = TaskRunner(context)
            for phase, queue in queues.items():
                while queue:
                    spawn = queue.popleft()
                    value = decode_task(spawn.payload)
                    kinds.append(type(value).__name__)
                    assert len(kinds) <= limit, f"no end: {kinds[-8:]}"
                    before(value)
                    done = outcome(run, Task((1, 0, len(kinds)), phase, spawn.payload, 0))
                    for new in done.spawned:
                        assert new.phase >= phase
                        queues[new.phase].append(new)
                    sums = [have + more for have, more in zip(sums, done.counts, strict=True)]
            assert not context.shared_instance(ChunkLedger).awaited
            sums = [have + more for have, more in zip(sums, context.counters, strict=True)]
            return Copied(JobCounters(*sums), reported, kinds)
    finally:
        os.umask(umask)


def once(kind: type[Any], action: Callable[[], object]) -> Hook:
    """Return a hook that calls ``action`` before the first task of a kind."""
    done: list[Any] = []

    def before(value: Any) -> None:
        if isinstance(value, kind) and not done:
            done.append(value)
            action()

    return before


def outcome(run: TaskRunner, task: Task) -> Any:
    slices = run(task)
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return end.value


def _first(context: Rank, number: int) -> NewTask:
    root = context.job.roots[number]
    if context.job.listed:
        return NewTask(Phase.COPY, encode_task(CopyListedPaths(number)), 0, owner=0)
    source, target = (
        context.sources[number].identity_of_directory(b""),
        context.targets[number].identity_of_directory(b""),
    )
    if root.item:
        return NewTask(
            Phase.COPY, encode_task(ScanNames(Place(number, b"", source, target, False, False), root.item, 0)), 0
        )
    return NewTask(Phase.COPY, encode_task(ScanDir(number, b"", source, None)), 0)


def consistent(copied: Copied) -> JobCounters:
    """Return the totals. Check that they add up: every item that was found is copied, skipped or failed."""
    totals = copied.totals
    assert totals.found == totals.copied + totals.skipped + totals.failed, (totals, copied.failures)
    assert totals.unscanned == 0
    return totals
