"""The records that each rank writes into the job directory, so that the job can be resumed.

A record says which tasks a rank has done and which tasks these have spawned; a rank appends one at intervals. The job
file, which describes the job, is written by rank 0 only (``pcopy.jobs.lifecycle.JobDirectory``).

If the job directory lies in the state directory (the default), the job file is written before the first task, but not
synced, so that short jobs lose no time. It is synced before the first record. Every other rank waits before its first
record until it sees the job directory of its own job: if hosts do not share that directory, their records would be
lost. A directory that the user has named (``--checkpoint DIR``) is created and synced before the first task, and all
hosts check that they see it.
"""

from __future__ import annotations

import os
import time
from _thread import allocate_lock
from collections.abc import Iterator, Sequence
from contextlib import suppress

from pcopy.checkpoint.framing import RecordFileWriter
from pcopy.checkpoint.layout import mark_records_untrusted_after_reboot
from pcopy.checkpoint.record import EpochTaskRecord
from pcopy.engine.node import RankStateMachine
from pcopy.engine.task import Task
from pcopy.errors import RequestRefused, path_refused
from pcopy.fsio.close import closing_descriptor
from pcopy.fsio.problem import Problem
from pcopy.fsio.storage import UnsyncedDirectories, WrittenFileSystems
from pcopy.fsio.syncer import SyncHelperProcess, unsyncable_devices
from pcopy.jobs.directories import NoJobInDirectoryError, nonce_of_job
from pcopy.jobs.lifecycle import CheckpointSettings, JobDirectory, directory_errors_as_refusal
from pcopy.jobs.lock import RankLock, take_lock
from pcopy.libc import type_of_file_system
from pcopy.tasks.base.counts import DEFERRED_COUNTERS
from pcopy.tasks.base.job import Root

VISIBILITY_TIMEOUT = 90.0
"""Seconds within which other hosts must see the job directory that rank 0 created.

An NFS client may cache for up to 60 s that a name does not exist.
"""

_VISIBILITY_CHECK_INTERVAL = 0.1  # seconds between two checks whether the job directory is visible
_TOLERATED_MISSES = 2  # After more failed checks in a row, a job directory that was seen before counts as removed.


class RankProgressRecorder:
    """Writes the records of one rank's progress into the job directory, and holds the rank's lock of the job.

    On rank 0 of a new job it also creates the directory. Implements the protocol
    ``pcopy.checkpoint.journal.TaskRecordStore``.
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
        """Prepare to write records; nothing is created yet.

        Args:
            checkpoint: settings; ``directory`` is not empty.
            run: number of the run.
            rank: number of this rank.
            size: number of ranks.
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
        """True if the job directory already contains a note that some data could not be synced.

        Because of it, the records are not trusted after a reboot of this host.
        """
        self.lock: RankLock | None = None
        """This rank's lock; None until it is taken."""
        self._lock_mutex = allocate_lock()
        self._has_run_begun = bool(rank == 0 or checkpoint.resumed)
        """True if it is certain that rank 0 has recorded the beginning of the run."""

    def store_initial_tasks(self, phase: int, tasks: Sequence[Task]) -> None:
        """Create the job directory, and record the ``tasks`` with which the run begins in phase number ``phase``.

        Only called on rank 0 of a run that does not continue from records of an earlier run. Raise ``RequestRefused``
        if a file cannot be written.
        """
        from pcopy.checkpoint.resume import write_first_run

        assert self._job_directory is not None
        with directory_errors_as_refusal(self._checkpoint.directory):
            self._job_directory.create_durably()
            write_first_run(self._checkpoint.directory, self._size, self._counts, tasks, run=self._run, phase=phase)

    def append(self, record: EpochTaskRecord) -> None:
        """Append a record of tasks that are done and tasks that they have spawned to the file of this rank.

        Before the first record, a rank other than 0 waits until this host sees the job directory, and takes its lock.
        Rank 0 also records the identities of target directories that were created. Raise ``RequestRefused`` if the
        directory does not become visible, or a file cannot be written.
        """
        if not self._has_run_begun:
            wait_until_job_is_visible(
                self._checkpoint, VISIBILITY_TIMEOUT, b"current", was_seen=self._checkpoint.durable_at_start
            )
            self.take_lock()
            self._has_run_begun = True
        with directory_errors_as_refusal(self._checkpoint.directory):
            if unsyncable_devices and not self._is_recorded_not_durable:
                mark_records_untrusted_after_reboot(self._checkpoint.directory)
                self._is_recorded_not_durable = True
            self._writer.append(record)
        if self._job_directory is not None:
            with suppress(RequestRefused):  # Not fatal: tried again with the next record.
                self._job_directory.record_target_identities()

    def take_lock(self) -> None:
        """Take this rank's lock of the job, unless this object holds it already.

        Raise ``RequestRefused`` if another process holds the lock, or the lock file cannot be locked. May be called by
        the rank's main thread and by the thread that writes the records.
        """
        with self._lock_mutex:
            if self.lock is None:
                self.lock = take_lock(self._checkpoint.directory, self._rank)

    def remove_job(self) -> None:
        """On rank 0: remove the job directory while the job runs on, because a record could not be written."""
        if self._job_directory is not None:
            self._job_directory.remove_while_running()

    def close(self) -> None:
        """Close the file of records."""
        self._writer.close()


def wait_until_job_is_visible(
    checkpoint: CheckpointSettings, patience: float, name: bytes = b"job", *, was_seen: bool = False
) -> None:
    """Wait until this host sees the job directory that rank 0 created; raise ``RequestRefused`` after ``patience``
    seconds.

    Args:
        checkpoint: settings with the directory and the nonce of the job. The nonce in the job file must be the same:
            otherwise it is a directory of the same name on another file system.
        name: the file in the directory that must be visible.
        was_seen: True if this host has seen the directory before. If it is missing now, it was removed, and the wait
            ends after a few checks.
    """
    until = time.monotonic() + patience
    missed = 0
    while not (exists := os.path.lexists(os.path.join(checkpoint.directory, name))) and time.monotonic() < until:
        if os.path.lexists(os.path.join(checkpoint.directory, b"job")):
            was_seen, missed = True, 0
        else:
            missed += 1
        if was_seen and missed > _TOLERATED_MISSES:
            raise path_refused(checkpoint.directory, "the job was removed by another process")
        time.sleep(_VISIBILITY_CHECK_INTERVAL)
    with suppress(NoJobInDirectoryError):
        if exists and nonce_of_job(checkpoint.directory) == checkpoint.nonce:
            return
    raise path_refused(
        checkpoint.directory, "not a directory that all hosts share; name a shared one: --checkpoint DIR"
    )


def refuse_unsyncable_targets(roots: Sequence[Root]) -> None:
    """Raise ``RequestRefused`` if a target's file system can be written to, but could not be synced at the end of the
    job.

    A sync needs a descriptor of a file or directory on the file system, and this user may not open any there.
    """
    storage, changed = WrittenFileSystems(type_of_file_system, SyncHelperProcess()), UnsyncedDirectories()
    path = roots[0].target  # the same for all roots
    try:
        with closing_descriptor(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as directory:
            status = os.fstat(directory)
            storage.register_file_system(directory, status.st_dev, status.st_ino, changed)
    except (OSError, Problem) as error:
        raise path_refused(path, f"cannot be opened to be synced: {error.strerror}") from None
    finally:
        storage.close()
        changed.close()


def restore_tasks_of_rank(node: RankStateMachine, checkpoint: CheckpointSettings, run: int) -> None:
    """Load the tasks of a resumed job that remain for one rank from the job directory into ``node``, the rank's engine.

    Rank 0 also gets the counters of the earlier runs. ``run`` is the number of the new run.
    """
    from pcopy.checkpoint.resume import read_initial_tasks

    def counted() -> Iterator[Task]:
        for task in read_initial_tasks(checkpoint.directory, run, node.rank):
            # A phase is run only if a counter says that tasks wait for it. The task that increased the counter may not
            # be recorded, so count the waiting tasks here.
            if task.phase > checkpoint.phase and (counter := DEFERRED_COUNTERS.get(task.phase)) is not None:
                node.counters[counter] += 1
            yield task

    node.restore_tasks(checkpoint.phase, counted(), () if node.rank else checkpoint.counts)
