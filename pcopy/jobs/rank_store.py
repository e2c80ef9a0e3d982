"""How a rank's part of a job is kept, so that the job can be gone on with: the place of its journal.

The job's file and its end are rank 0's (``pcopy.jobs.lifecycle.KeptJob``).

In the state directory the job's file is written before the first task, but nobody waits for storage: short jobs lose no
time. At the first cut it becomes durable, and every other rank waits until it sees its own job there: if hosts do not
share the job directory, their records would be lost. A directory that the user has named is made durably, and all hosts
look at it, before the first task.
"""

from __future__ import annotations

import os
import time
from _thread import allocate_lock
from collections.abc import Iterator, Sequence
from contextlib import suppress

from pcopy.checkpoint.framing import SegmentWriter
from pcopy.checkpoint.layout import note_not_durable
from pcopy.checkpoint.record import Record
from pcopy.engine.node import Node
from pcopy.engine.task import Task
from pcopy.errors import Refused
from pcopy.fsio.close import held_open
from pcopy.fsio.problem import Problem
from pcopy.fsio.storage import Changed, Storage
from pcopy.fsio.syncer import Syncer, unsyncable
from pcopy.jobs.directories import NoJob, nonce_of
from pcopy.jobs.lifecycle import Keeping, KeptJob, naming
from pcopy.jobs.lock import Lock, hold
from pcopy.libc import type_of_file_system
from pcopy.tasks.base.counts import PUT_ASIDE
from pcopy.tasks.base.job import Root
from pcopy.text import shown

APPEARS_WITHIN = 90.0
"""Seconds in which a job directory that rank 0 has made has to be seen by the others.

NFS believes for up to 60 s that a name is missing.
"""

_LOOKS = 0.1  # seconds between two looks
_MISSED = 2  # looks after which a job that was there is gone


class RankStore:
    """Fills ``pcopy.checkpoint.journal.Store``; on rank 0 of a new job with what makes the directory."""

    def __init__(
        self,
        keeping: Keeping,
        run: int,
        rank: int,
        size: int,
        keeper: KeptJob | None = None,
        counts: Sequence[int] = (),
    ) -> None:
        """``keeper`` is rank 0's; ``counts`` are what a new job has counted before its first task."""
        self._counts = tuple(counts)
        self._keeping = keeping
        self._run = run
        self._rank = rank
        self._size = size
        self._keeper = keeper
        self._writer = SegmentWriter(keeping.directory, run, rank)
        self._is_marked = False
        """True if it is recorded that the records of this rank are not durable."""
        self.lock: Lock | None = None
        self._taking = allocate_lock()
        self._is_begun = bool(rank == 0 or keeping.resumed)
        """Is it certain that rank 0 has begun the run on storage?"""

    def begin(self, phase: int, tasks: Sequence[Task]) -> None:
        from pcopy.checkpoint.resume import begin

        assert self._keeper is not None
        with naming(self._keeping.directory):
            self._keeper.create()
            begin(self._keeping.directory, self._size, self._counts, tasks, run=self._run, phase=phase)

    def append(self, record: Record) -> None:
        if not self._is_begun:
            check_shared(self._keeping, APPEARS_WITHIN, b"current", seen=self._keeping.at_start)
            self.take_lock()
            self._is_begun = True
        with naming(self._keeping.directory):
            if unsyncable and not self._is_marked:
                note_not_durable(self._keeping.directory)
                self._is_marked = True
            self._writer.append(record)
        if self._keeper is not None:
            with suppress(Refused):  # the next record may have room for it
                self._keeper.note_targets()

    def take_lock(self) -> None:
        """Unless it is held; by the rank's own thread or the journal's. Raises ``Refused``."""
        with self._taking:
            if self.lock is None:
                self.lock = hold(self._keeping.directory, self._rank)

    def withdraw(self) -> None:
        if self._keeper is not None:
            self._keeper.give_up()

    def close(self) -> None:
        self._writer.close()


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
        if is_there and nonce_of(keeping.directory) == keeping.nonce:
            return
    raise Refused(f"{shown(keeping.directory)}: not a directory that all hosts share; name one: --checkpoint DIR")


def refuse_unsynced(roots: Sequence[Root]) -> None:
    """Raises ``Refused`` if a target may be written and nothing of its file system be opened, by which to sync it."""
    storage, changed = Storage(type_of_file_system, Syncer()), Changed()
    path = roots[0].target  # of all roots
    try:
        with held_open(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as directory:
            status = os.fstat(directory)
            storage.add(directory, status.st_dev, status.st_ino, changed)
    except (OSError, Problem) as error:
        raise Refused(f"{shown(path)}: cannot be opened to be synced: {error.strerror}") from None
    finally:
        storage.close()
        changed.close()


def restore_rank(node: Node, keeping: Keeping, run: int) -> None:
    """Gives ``node`` what remains for it; rank 0 also has what has been counted."""
    from pcopy.checkpoint.resume import read_base

    def counted() -> Iterator[Task]:
        """What put these tasks aside may not be on record: their phases must come all the same."""
        for task in read_base(keeping.directory, run, node.rank):
            if task.phase > keeping.phase and (counter := PUT_ASIDE.get(task.phase)) is not None:
                node.counters[counter] += 1
            yield task

    node.restore(keeping.phase, counted(), () if node.rank else keeping.counts)
