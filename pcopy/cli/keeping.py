"""How a job is kept, so that it can be gone on with: on rank 0 the job's file and its end, on each rank its journal.

In the state directory the job's file is there before the first task, but not waited for: short jobs pay nothing. At the
first cut it becomes durable, and every other rank waits until it sees there the very job that it works on: a job
directory that hosts do not share would lose what they record. A directory that the user has named is made durably, and
looked at by all hosts, before the first task.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple, Protocol

from pcopy.checkpoint.jobs import NoJob, StoredJob, open_job
from pcopy.checkpoint.journal import FactJournal
from pcopy.checkpoint.lock import Lock, hold
from pcopy.checkpoint.record import Record, Window
from pcopy.checkpoint.segments import SegmentWriter
from pcopy.engine.node import Node
from pcopy.engine.restore import restore
from pcopy.engine.task import Task
from pcopy.errors import Refused
from pcopy.fsio.file_system import type_of_file_system
from pcopy.fsio.problem import Problem
from pcopy.fsio.storage import Storage
from pcopy.fsio.syncer import Syncer
from pcopy.tasks.counts import PUT_ASIDE
from pcopy.tasks.job import Root
from pcopy.text import shown

APPEARS_WITHIN = 90.0
"""Seconds in which a job directory that rank 0 has made has to be seen by the others.

NFS believes for up to 60 s that a name is missing.
"""

_LOOKS = 0.1  # seconds between two looks
_MISSED = 2  # looks after which a job that was there is gone


class Keeping(NamedTuple):
    """What every rank has to know. ``directory`` is an absolute path, or empty: the job is not kept.

    ``interval`` is in seconds, ``memory`` in bytes of waiting work on one host (0: automatic). A resumed job goes on
    with ``phase``; ``counts`` are what its earlier runs have counted. ``at_start``: the job is durably in its directory
    before the first task.
    """

    directory: bytes = b""
    nonce: str = ""
    interval: float = 60.0
    store: str = "auto"
    spool: bytes = b""
    memory: int = 0
    resumed: bool = False
    phase: int = 0
    counts: tuple[int, ...] = ()
    at_start: bool = False


class Keeper(Protocol):
    """What rank 0 has for its store."""

    def note(self) -> None:
        """Makes the job's directory, unless that is there, without waiting for storage; raises ``Refused``."""

    def create(self) -> tuple[StoredJob, Lock]:
        """Makes the job's directory, unless that is there, durable; raises ``Refused``."""

    def give_up(self) -> None:
        """Removes the job's directory, if it is there; raises ``Refused``."""

    def note_targets(self) -> None:
        """Puts on record which directories are copied to, as soon as they are there; raises ``Refused``."""


class RankStore:
    """Fills ``pcopy.checkpoint.journal.Store``; on rank 0 of a new job with what makes the directory."""

    def __init__(
        self,
        keeping: Keeping,
        run: int,
        rank: int,
        size: int,
        keeper: Keeper | None = None,
        counts: Sequence[int] = (),
    ) -> None:
        """``keeper`` is rank 0's; ``counts`` are what a new job has counted before its first task."""
        self._counts = tuple(counts)
        self._keeping = keeping
        self._run = run
        self._rank = rank
        self._size = size
        self._keeper = keeper
        self._writer: SegmentWriter | None = None
        self.lock: Lock | None = None
        self.job: StoredJob | None = None

    def begin(self, phase: int, tasks: Sequence[Task]) -> None:
        from pcopy.checkpoint.resume import begin

        assert self._keeper is not None
        with naming(self._keeping.directory):
            self.job, self.lock = self._keeper.create()
            begin(self._keeping.directory, self._size, self._counts, tasks, run=self._run, phase=phase)

    def append(self, record: Record) -> None:
        if self._writer is None:
            if self._rank:  # rank 0 holds its lock since it has made the directory, or found it
                if not self._keeping.resumed:
                    self._wait_for_job()
                self.take_lock()
            self._writer = SegmentWriter(self._keeping.directory, self._run, self._rank)
        with naming(self._keeping.directory):
            self._writer.append(record)
        if self._keeper is not None:
            with suppress(Refused):  # the next record may have room for it
                self._keeper.note_targets()
        if self.lock is not None:
            with suppress(OSError):  # which says nothing of the record
                self.lock.beat()

    def take_lock(self) -> None:
        """Raises ``Refused``."""
        if self.lock is None:
            self.lock = hold(self._keeping.directory, self._rank)

    def _wait_for_job(self) -> None:
        check_shared(self._keeping, APPEARS_WITHIN, b"current", seen=self._keeping.at_start)

    def withdraw(self) -> None:
        if self._keeper is not None:
            self._keeper.give_up()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def check_shared(keeping: Keeping, patience: float, name: bytes = b"job", *, seen: bool = False) -> None:
    """Raises ``Refused`` unless rank 0's job, with the file ``name``, is in its directory in ``patience`` seconds.

    ``seen``: the job was there when all hosts looked. Nobody waits for one that was there and is not any more.
    """
    until = time.monotonic() + patience
    missed = 0
    while not (is_there := os.path.lexists(os.path.join(keeping.directory, name))) and time.monotonic() < until:
        if os.path.lexists(os.path.join(keeping.directory, b"job")):
            seen, missed = True, 0
        else:
            missed += 1
        if seen and missed > _MISSED:
            raise Refused(f"{shown(keeping.directory)}: the job is gone: somebody has removed it")
        time.sleep(_LOOKS)
    with suppress(NoJob):
        if is_there and open_job(keeping.directory).file.nonce == keeping.nonce:
            return
    raise Refused(f"{shown(keeping.directory)}: not a directory that all hosts share; name one: --checkpoint DIR")


@contextmanager
def naming(directory: bytes) -> Iterator[None]:
    """What the system refuses is told with the directory: the calls name files relative to it, or none."""
    try:
        yield
    except OSError as error:
        raise Refused(f"{shown(directory)}: cannot be written: {error.strerror}") from None


def refuse_unsynced(roots: Sequence[Root]) -> None:
    """Raises ``Refused`` if a target may be written and nothing of its file system be opened, by which to sync it."""
    storage = Storage(type_of_file_system, Syncer())
    for path in {root.target for root in roots}:
        try:
            directory = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                storage.add(directory, os.fstat(directory).st_dev)
            finally:
                os.close(directory)
        except (OSError, Problem) as error:
            raise Refused(f"{shown(path)}: cannot be opened to be synced: {error.strerror}") from None
        finally:
            storage.close()


def open_journal(
    keeping: Keeping, run: int, rank: int, size: int, storage: Storage, keeper: Keeper | None, counts: Sequence[int]
) -> tuple[FactJournal, RankStore]:
    """This rank's journal; that of a resumed job holds its lock from the beginning. Raises ``Refused``."""
    store = RankStore(keeping, run, rank, size, keeper, counts)
    if keeping.resumed and rank:
        store.take_lock()
    return FactJournal(Window(run, rank, size), store, storage.sync), store


def restore_rank(node: Node, keeping: Keeping, run: int) -> None:
    """Gives ``node`` what remains for it; rank 0 also has what has been counted."""
    from pcopy.checkpoint.resume import read_base

    def counted() -> Iterator[Task]:
        """What put these tasks aside may not be on record: their phases must come all the same."""
        for task in read_base(keeping.directory, run, node.rank):
            if task.phase > keeping.phase and (counter := PUT_ASIDE.get(task.phase)) is not None:
                node.counters[counter] += 1
            yield task

    restore(node, keeping.phase, counted(), () if node.rank else keeping.counts)
