"""The place in the job directory where a rank's journal is written, so that the job can be resumed.

The job file is written by rank 0 only (``pcopy.jobs.lifecycle.KeptJob``).

In the state directory the job file is written before the first task, but not synced, so that short jobs lose no time.
At the first cut it is synced, and every other rank waits until it sees the job directory of its own job: if hosts do
not share that directory, their records would be lost. A directory that the user has named (``--checkpoint DIR``) is
created and synced before the first task, and all hosts check that they see it.
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
"""Seconds within which other hosts must see the job directory that rank 0 created.

An NFS client may cache for up to 60 s that a name does not exist.
"""

_LOOKS = 0.1  # seconds between two checks
_MISSED = 2  # failed checks in a row that are tolerated for a job directory that was seen before


class RankStore:
    """The records of one rank in the job directory. Implements ``pcopy.checkpoint.journal.Store``.

    On rank 0 of a new job it creates the directory.
    """

    def __init__(
        self,
        keeping: Keeping,
        run: int,
        rank: int,
        size: int,
        keeper: KeptJob | None = None,
        counts: Sequence[int] = (),
    ) -> None:
        """Prepare to write; nothing is created yet.

        Args:
            keeping: settings; the directory is set.
            run: number of the run.
            rank: number of this rank, of ``size``.
            keeper: rank 0's job directory; None on other ranks.
            counts: the counters of a new job before its first task.
        """
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
        """This rank's lock; None until it is taken."""
        self._taking = allocate_lock()
        self._is_begun = bool(rank == 0 or keeping.resumed)
        """True if it is certain that rank 0 has recorded the beginning of the run."""

    def begin(self, phase: int, tasks: Sequence[Task]) -> None:
        """Create the job directory and record the first ``tasks``, with which the run begins in ``phase``. Only
        called on rank 0.
        """
        from pcopy.checkpoint.resume import begin

        assert self._keeper is not None
        with naming(self._keeping.directory):
            self._keeper.create()
            begin(self._keeping.directory, self._size, self._counts, tasks, run=self._run, phase=phase)

    def append(self, record: Record) -> None:
        """Write a record; before the first one, wait until rank 0's job directory is visible on this host, and
        lock the job.
        """
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
            with suppress(Refused):  # Tried again with the next record.
                self._keeper.note_targets()

    def take_lock(self) -> None:
        """Take this rank's lock unless it is held; raise ``Refused``.

        May be called by the rank's main thread and by the journal's thread.
        """
        with self._taking:
            if self.lock is None:
                self.lock = hold(self._keeping.directory, self._rank)

    def withdraw(self) -> None:
        """Remove the job directory while the job runs on, since it cannot be recorded any longer."""
        if self._keeper is not None:
            self._keeper.give_up()

    def close(self) -> None:
        """Close the file of records."""
        self._writer.close()


def check_shared(keeping: Keeping, patience: float, name: bytes = b"job", *, seen: bool = False) -> None:
    """Raise ``Refused`` unless this host sees rank 0's job directory within ``patience`` seconds.

    Args:
        keeping: settings with the directory and the nonce of the job.
        patience: seconds to wait.
        name: the file that must be there.
        seen: the directory was visible earlier. Then the wait ends soon after it has been removed.
    """
    until = time.monotonic() + patience
    missed = 0
    while not (exists := os.path.lexists(os.path.join(keeping.directory, name))) and time.monotonic() < until:
        if os.path.lexists(os.path.join(keeping.directory, b"job")):
            seen, missed = True, 0
        else:
            missed += 1
        if seen and missed > _MISSED:
            raise Refused(f"{shown(keeping.directory)}: the job was removed by another process")
        time.sleep(_LOOKS)
    with suppress(NoJob):
        if exists and nonce_of(keeping.directory) == keeping.nonce:
            return
    raise Refused(
        f"{shown(keeping.directory)}: not a directory that all hosts share; name a shared one: --checkpoint DIR"
    )


def refuse_unsynced(roots: Sequence[Root]) -> None:
    """Raise ``Refused`` if nothing of the target's file system can be opened, so that it could be written to but
    not synced.
    """
    storage, changed = Storage(type_of_file_system, Syncer()), Changed()
    path = roots[0].target  # the same for all roots
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
    """Give ``node`` its remaining tasks of a resumed job; rank 0 also gets the counters of the earlier runs."""
    from pcopy.checkpoint.resume import read_base

    def counted() -> Iterator[Task]:
        for task in read_base(keeping.directory, run, node.rank):
            # Count deferred tasks: what deferred them may not be recorded, but their phases must be run.
            if task.phase > keeping.phase and (counter := PUT_ASIDE.get(task.phase)) is not None:
                node.counters[counter] += 1
            yield task

    node.restore(keeping.phase, counted(), () if node.rank else keeping.counts)
