"""What all tasks of one rank share: the job, its open directories, its temporary names, and the way to tell results."""

from __future__ import annotations

import errno
import io
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import NamedTuple

from pcopy.engine.backlog import Backlog, SpoolFactory
from pcopy.engine.task import TaskId
from pcopy.errors import NOT_SYNCED, InvariantBroken
from pcopy.fsio.close import let_go
from pcopy.fsio.data import Mover
from pcopy.fsio.half_written import drop_all_stale
from pcopy.fsio.kernel import SMALL_FILE, Kernel
from pcopy.fsio.naming import Namer
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of
from pcopy.fsio.spelling import Spellings
from pcopy.fsio.stable import open_for_sync
from pcopy.fsio.storage import Storage
from pcopy.fsio.syncer import Syncer
from pcopy.fsio.temporary import TemporaryNames, had_a_name, remove_leftovers
from pcopy.signature.manifest import ROOT
from pcopy.signature.tree import ContentHasher
from pcopy.tasks import counts
from pcopy.tasks.both_sides import directories_of
from pcopy.tasks.chunks import chunk_size
from pcopy.tasks.hashing import Hashing
from pcopy.tasks.hosts import Hosts
from pcopy.tasks.job import Failure, Job
from pcopy.tasks.phases import Phase
from pcopy.tasks.read_values import ChunkRead, ReadId
from pcopy.tasks.sign_state import SignState
from pcopy.tasks.sinks import Sink
from pcopy.tasks.unfinished import UnfinishedFile, UnfinishedRead
from pcopy.tasks.values import ChunkDone, OpenFile, Place, SealDir
from pcopy.text import counted

CALL_COST = 64 << 10
"""What one file costs beside its bytes, in bytes: the time of its system calls at a middling bandwidth."""

SCAN_COST = 4 << 20
"""What an unread directory is taken to hold, in bytes."""

FILES_PER_SLICE = 8
"""Small files after each of which the rank looks up from its work."""

CLOCK_GRACE = 5 * 10**9
"""Nanoseconds that the clocks of a file server and its clients may differ."""

_FULL = (errno.ENOSPC, errno.EROFS)
_FILLING = ("write", "create", "mkdir", "mknod", "symlink", "link", "truncate", "copy_file_range", "fsync", "close")
_FULL_IN_A_ROW = 2


class RootDescriptors(NamedTuple):
    """The two directories of a root, opened before the job begins."""

    source: int
    target: int


class Context:
    """One rank's surroundings."""

    def __init__(
        self,
        job: Job,
        rank: int,
        size: int,
        descriptors: Sequence[RootDescriptors],
        kernel: Kernel,
        *,
        sink: Sink | None = None,
        leaders: Sequence[int] = (0,),
        hosts: Sequence[str] = (),
        open_spool: SpoolFactory = io.BytesIO,
    ) -> None:
        self.job = job
        self.options = job.options
        self.rank = rank
        self.size = size
        self.kernel = kernel
        self.mover = Mover(sparse=job.options.preserve.sparse)
        self.sink = sink
        self.counters = [0] * counts.COUNTERS
        self.totals: Callable[[], tuple[int, ...]] = lambda: tuple(self.counters)
        self.begun_with = self.totals
        self.leaders = leaders
        self.open_spool = open_spool
        one_host = len(leaders) == 1
        self.sources, self.targets = directories_of(job, descriptors, one_host=one_host)
        self.temporary_names = TemporaryNames(job.name, job.run, rank)
        self.unfinished: dict[bytes, UnfinishedFile] = {}
        self.early_chunks: dict[bytes, list[tuple[ChunkDone, TaskId]]] = {}
        self.sealed: list[tuple[TaskId, SealDir]] = []
        self.failed_directories: set[tuple[int, bytes]] = set()
        """Root and path of those that belong to this rank and count as failed."""
        self.finished_again: set[tuple[int, bytes, int]] = set()
        """Root and path of those that this rank has finished again, and the phase."""
        self.links: dict[int, Backlog] = {}
        self.unknown: set[str] = set()
        """The attributes of which this rank has told rank 0 that a file system doesn't know them."""
        self.unknown_told: set[str] = set()
        """Those of which rank 0 has told the user."""
        self.spellings = Spellings()
        self.namer = Namer()
        self.began = time.monotonic()
        self.syncer = Syncer()
        self.synced = _opened_for_sync(descriptors)
        """By st_dev, a descriptor of each file system that is to be synced in the end."""
        self.root_devices = {os.fstat(root.target).st_dev: number for number, root in enumerate(descriptors)}
        """By st_dev, a root whose target is there."""
        self.hosts = Hosts(hosts, rank)
        self.keeps = job.copies and job.options.keeps
        """Is what is copied named at last, and without replacing anything unasked?"""
        self.phase = int(Phase.COPY)
        """That of the task that runs now."""
        self._hashing = Hashing(self.options.hash, self.options.block_size) if self.options.hash else None
        self.signs = self.options.signs or not job.copies
        self.verifies_skipped = self.options.verify and self.options.existing == "changed"
        self.reads: dict[ReadId, UnfinishedRead] = {}
        self.early_reads: dict[ReadId, list[tuple[ChunkRead, TaskId]]] = {}
        self._next_read = count(1)
        self.sign = SignState(
            self._hashing.algorithm if self._hashing else None,
            open_spool,
            lines=bool(self.options.manifest),
            compares=not job.copies and (len(job.roots) > 1 or bool(job.against)),
            against=job.against,
        )
        self.storage: Storage | None = None
        """What a journal has synced before it records that something was written."""
        self.stop_reason: str | None = None
        self._reported = 0
        self._full = 0

    def begin(self, phase: int) -> None:
        """A task of ``phase`` runs now. What is verified is looked up anew: a directory that is open may have moved."""
        if phase != self.phase and phase in (Phase.VERIFY, Phase.REPAIR_VERIFY):
            for directories in self.targets:
                directories.close()
        self.phase = phase

    def attach(
        self, counters: list[int], totals: Callable[[], tuple[int, ...]], begun_with: Callable[[], tuple[int, ...]]
    ) -> None:
        """From now on what moves is counted in ``counters``; ``totals`` are the sums of all ranks, as last heard, and
        ``begun_with`` those with which the phase has begun."""
        self.counters = counters
        self.totals = totals
        self.begun_with = begun_with

    @property
    def digests(self) -> bool:
        """Are digests wanted?"""
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

    def repairs(self, phase: int) -> bool:
        """Is what was found wrong in this phase copied again?"""
        return self.options.repair and phase < Phase.REPAIR

    def chunk(self, size: int) -> int:
        """Bytes of the chunks of a file of ``size``, from what is known of the whole job by now."""
        known = max(self.totals()[counts.FOUND_BYTES], self.counters[counts.FOUND_BYTES], size)
        return chunk_size(self.options.chunk_size, self.options.block_size, size, known, self.size)

    def splits(self, size: int) -> bool:
        """Is a file of that size worth splitting? One of less than one and a half chunks is not."""
        return self.size > 1 and size > SMALL_FILE and 2 * size >= 3 * self.chunk(size)

    def next_read(self) -> ReadId:
        """For a file that is read in chunks, which this rank owns."""
        return self.job.run, self.rank, next(self._next_read)

    def entry(self, place: Place, name: bytes) -> tuple[int, bytes, bytes]:
        """An item's side, directory and name in its dataset; the name of a directory itself is empty.

        Several sources are a directory of their basenames; a single item is a dataset without a directory.
        """
        root = self.job.roots[place.root]
        if not self.job.copies or len(self.job.roots) == 1:
            return (0 if self.job.copies else place.root), place.path, ROOT if root.item else name
        return (
            0,
            b"/".join(part for part in (b"" if root.item else root.name, place.path) if part),
            (self.new_name(place, name)),
        )

    def open_source(self, place: Place) -> int:
        """The source directory of ``place``; raises ``Problem``."""
        return self.sources[place.root].open(place.path, place.source_id)

    def open_target(self, place: Place) -> int:
        """The target directory of ``place``; raises ``Problem``."""
        target = self.targets[place.root].open(self.below_target(place.root, place.path), place.target_id)
        if self.storage is not None:
            self.storage.add(target, self.target_device(place))
        return target

    def open_above(self, place: Place | None, root: int) -> int:
        """The target directory ``place``, or that of a root for what the root is copied to; raises ``Problem``."""
        if place is not None:
            return self.open_target(place)
        targets = self.targets[root]
        target = targets.open(b"")
        if self.storage is not None:
            self.storage.add(target, status_of(target).st_dev)
        return target

    def open_for_sync(self, place: Place) -> int:
        """A descriptor of the target directory's file system, which is kept for its sync; raises ``Problem``."""
        device = self.targets[place.root].mounts.device(place.target_id[0])
        if device is None or device not in self.synced:
            directory = self.open_target(place)
            device = self.target_device(place)
            try:
                self.synced[device] = open_for_sync(directory)
            except OSError as error:
                raise Problem.of("open", error) from error
        return self.synced[device]

    def syncs_items(self, place: Place) -> bool:
        """Is each file in this target directory synced before it is closed? (``pcopy.fsio.storage``)"""
        if self.keeps and self.phase >= Phase.NAME:
            return True  # it gets its name before the next sync
        storage = self.storage
        return storage is not None and storage.syncs_items and storage.syncs_items_on(self.target_device(place))

    def sync_directories(self) -> None:
        """A task is done: so are the names that it has made, where they are synced one by one."""
        if self.storage is not None and self.storage.syncs_items:
            try:
                self.storage.sync_directories()
            except Problem as problem:  # which the storage remembers
                self.stop(f"{NOT_SYNCED}: {problem.strerror}")

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
            made = targets.identity(self.below_target(root, b""))
        except Problem:
            return False  # it isn't there yet
        return (targets.mounts.device(made.mount), made.inode) == (status.st_dev, status.st_ino)

    def below_target(self, root: int, path: bytes) -> bytes:
        """The path below the target's descriptor of what has ``path`` below the source's."""
        name = self.job.roots[root].name if not self.job.roots[root].item else b""
        return b"/".join(part for part in (name, path) if part)

    def new_name(self, place: Place, name: bytes) -> bytes:
        """What ``name`` is called in the target: the same, unless the root is one file and got another name."""
        root = self.job.roots[place.root]
        return root.name if root.item else name

    def written_as(self, file: OpenFile) -> bytes:
        """The name under which a split file is being filled."""
        return self.new_name(file.split.place, file.split.name) if file.over else file.temporary

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

    def remove_leftovers(self, target: int) -> Problem | None:
        """Removes what earlier runs of this job left in a target directory that is whole now; raises ``Problem``.

        Returns what there is to say of an item that may be the user's, and stays.
        """
        others = remove_leftovers(target, self.job.name, self.job.run) if self.job.run > 1 else []
        if self.job.run > 1 and self.options.inplace:
            drop_all_stale(target, self.job.name)
        return Problem("rename", 0, text=had_a_name(others)) if others else None

    def is_touched(self, status: os.stat_result) -> bool:
        """Was this item made or changed since the job began, as far as clocks agree?"""
        return status.st_ctime_ns >= self.job.began - CLOCK_GRACE

    def is_ours(self, place: Place, status: os.stat_result) -> bool:
        """Is this item of the target directory ``place`` one that an earlier run made, or has touched at least?"""
        return is_since(self.job, place, status.st_ctime_ns)

    def succeeded(self) -> None:
        """Something was written: the destination is not full."""
        self._full = 0

    def failed(self, problem: Problem) -> None:
        """Stops the job if the destination is full: one file after another would fail."""
        if problem.errno in _FULL and problem.operation in _FILLING and not problem.on_source:
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
            self.stop(f"{counted(self._reported, 'item', 'items')} failed (--max-errors {self.options.max_errors})")

    def close(self) -> None:
        """Gives back the directories."""
        self.sign.close()
        for directories in (*self.sources, *self.targets):
            directories.close()
        while self.synced:
            let_go(self.synced.popitem()[1])


def is_since(job: Job, place: Place, moment: int) -> bool:
    """Is this ``moment`` after the time at which an earlier run may have begun to make what is in ``place``?"""
    run, began = place.since if place.since[0] else (1, job.began)
    return job.run > run and moment >= began - CLOCK_GRACE


def _opened_for_sync(descriptors: Sequence[RootDescriptors]) -> dict[int, int]:
    """By st_dev; without those that can only be searched, below which another directory may serve."""
    opened: dict[int, int] = {}
    for root in descriptors:
        device = os.fstat(root.target).st_dev
        if device not in opened:
            with suppress(OSError):
                opened[device] = open_for_sync(root.target)
    return opened
