"""The place in the job directory where a rank's journal is written, so that the job can be resumed.

The job file is written by rank 0 only (``pcopy.jobs.lifecycle.JobDirectory``).

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

from pcopy.checkpoint.framing import RecordFileWriter
from pcopy.checkpoint.layout import mark_not_durable
from pcopy.checkpoint.record import FactRecord
from pcopy.engine.node import RankNode
from pcopy.engine.task import Task
from pcopy.errors import RequestRefused
from pcopy.fsio.close import closed_at_end
from pcopy.fsio.problem import Problem
from pcopy.fsio.storage import UnsyncedDirectories, WrittenFileSystems
from pcopy.fsio.syncer import SyncProcess, unsyncable_devices
from pcopy.jobs.directories import NoJob, nonce_of
from pcopy.jobs.lifecycle import CheckpointSettings, JobDirectory, refusing_os_errors
from pcopy.jobs.lock import Lock, take_lock
from pcopy.libc import type_of_file_system
from pcopy.tasks.base.counts import DEFERRED_COUNTERS
from pcopy.tasks.base.job import Root
from pcopy.text import printable_path

VISIBLE_WITHIN = 90.0
"""Seconds within which other hosts must see the job directory that rank 0 created.

An NFS client may cache for up to 60 s that a name does not exist.
"""

_CHECK_INTERVAL = 0.1  # seconds between two checks
_TOLERATED_MISSES = 2  # failed checks in a row that are tolerated for a job directory that was seen before


class RankRecords:
    """The records of one rank in the job directory. Implements ``pcopy.checkpoint.journal.RecordStore``.

    On rank 0 of a new job it creates the directory.
    """

    def __init__(
        self,
        checkpoint: CheckpointSettings,
        run: int,
        rank: int,
        size: int,
        job_directory: JobDirectory | None = None,
        counts: Sequence[int] = (),
    ) -> None:
        """Prepare to write; nothing is created yet.

        Args:
            checkpoint: settings; the directory is set.
            run: number of the run.
            rank: number of this rank, of ``size``.
            job_directory: rank 0's job directory; None on other ranks.
            counts: the counters of a new job before its first task.
        """
        self._counts = tuple(counts)
        self._checkpoint = checkpoint
        self._run = run
        self._rank = rank
        self._size = size
        self._job_directory = job_directory
        self._writer = RecordFileWriter(checkpoint.directory, run, rank)
        self._is_recorded_not_durable = False
        """True if it is recorded that the records of this rank are not durable."""
        self.lock: Lock | None = None
        """This rank's lock; None until it is taken."""
        self._lock_mutex = allocate_lock()
        self._has_run_begun = bool(rank == 0 or checkpoint.resumed)
        """True if it is certain that rank 0 has recorded the beginning of the run."""

    def store_base(self, phase: int, tasks: Sequence[Task]) -> None:
        """Create the job directory and record the first ``tasks``, with which the run begins in ``phase``. Only
        called on rank 0.
        """
        from pcopy.checkpoint.resume import write_first_run

        assert self._job_directory is not None
        with refusing_os_errors(self._checkpoint.directory):
            self._job_directory.create_durably()
            write_first_run(self._checkpoint.directory, self._size, self._counts, tasks, run=self._run, phase=phase)

    def append(self, record: FactRecord) -> None:
        """Write a record; before the first one, wait until rank 0's job directory is visible on this host, and
        lock the job.
        """
        if not self._has_run_begun:
            check_job_visible(self._checkpoint, VISIBLE_WITHIN, b"current", was_seen=self._checkpoint.durable_at_start)
            self.take_lock()
            self._has_run_begun = True
        with refusing_os_errors(self._checkpoint.directory):
            if unsyncable_devices and not self._is_recorded_not_durable:
                mark_not_durable(self._checkpoint.directory)
                self._is_recorded_not_durable = True
            self._writer.append(record)
        if self._job_directory is not None:
            with suppress(RequestRefused):  # Tried again with the next record.
                self._job_directory.record_targets()

    def take_lock(self) -> None:
        """Take this rank's lock unless it is held; raise ``RequestRefused``.

        May be called by the rank's main thread and by the journal's thread.
        """
        with self._lock_mutex:
            if self.lock is None:
                self.lock = take_lock(self._checkpoint.directory, self._rank)

    def remove_job(self) -> None:
        """Remove the job directory while the job runs on, since it cannot be recorded any longer."""
        if self._job_directory is not None:
            self._job_directory.abandon()

    def close(self) -> None:
        """Close the file of records."""
        self._writer.close()


def check_job_visible(
    checkpoint: CheckpointSettings, patience: float, name: bytes = b"job", *, was_seen: bool = False
) -> None:
    """Raise ``RequestRefused`` unless this host sees rank 0's job directory within ``patience`` seconds.

    Args:
        checkpoint: settings with the directory and the nonce of the job.
        patience: seconds to wait.
        name: the file that must be there.
        was_seen: the directory was visible earlier. Then the wait ends soon after it has been removed.
    """
    until = time.monotonic() + patience
    missed = 0
    while not (exists := os.path.lexists(os.path.join(checkpoint.directory, name))) and time.monotonic() < until:
        if os.path.lexists(os.path.join(checkpoint.directory, b"job")):
            was_seen, missed = True, 0
        else:
            missed += 1
        if was_seen and missed > _TOLERATED_MISSES:
            raise RequestRefused(f"{printable_path(checkpoint.directory)}: the job was removed by another process")
        time.sleep(_CHECK_INTERVAL)
    with suppress(NoJob):
        if exists and nonce_of(checkpoint.directory) == checkpoint.nonce:
            return
    raise RequestRefused(
        f"{printable_path(checkpoint.directory)}: not a directory that all hosts share; name a shared one: "
        "--checkpoint DIR"
    )


def refuse_unsyncable(roots: Sequence[Root]) -> None:
    """Raise ``RequestRefused`` if nothing of the target's file system can be opened, so that it could be written to but
    not synced.
    """
    storage, changed = WrittenFileSystems(type_of_file_system, SyncProcess()), UnsyncedDirectories()
    path = roots[0].target  # the same for all roots
    try:
        with closed_at_end(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as directory:
            status = os.fstat(directory)
            storage.register(directory, status.st_dev, status.st_ino, changed)
    except (OSError, Problem) as error:
        raise RequestRefused(f"{printable_path(path)}: cannot be opened to be synced: {error.strerror}") from None
    finally:
        storage.close()
        changed.close()


def restore_rank(node: RankNode, checkpoint: CheckpointSettings, run: int) -> None:
    """Give ``node`` its remaining tasks of a resumed job; rank 0 also gets the counters of the earlier runs."""
    from pcopy.checkpoint.resume import read_base

    def counted() -> Iterator[Task]:
        for task in read_base(checkpoint.directory, run, node.rank):
            # Count deferred tasks: what deferred them may not be recorded, but their phases must be run.
            if task.phase > checkpoint.phase and (counter := DEFERRED_COUNTERS.get(task.phase)) is not None:
                node.counters[counter] += 1
            yield task

    node.restore_tasks(checkpoint.phase, counted(), () if node.rank else checkpoint.counts)
