"""The life of a job on rank 0: a new job is recorded in a job directory, an unfinished one is resumed, a finished one
is removed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, BinaryIO

from pcopy.background import BackgroundThread
from pcopy.checkpoint.directory import check_can_make_directory
from pcopy.checkpoint.layout import OTHER_VERSION_ADVICE, has_distrusted_records, remove_current_run_file
from pcopy.engine.task import ANY_RANK, Task
from pcopy.errors import (
    EXIT_INCOMPLETE,
    EXIT_OK,
    RESOURCE_EXCEPTIONS,
    InvariantBroken,
    RequestRefused,
    path_refused,
    resource_error_text,
)
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.close import closing_descriptor
from pcopy.fsio.preserve import PreservedMetadataKinds
from pcopy.fsio.retries import open_with_retries
from pcopy.jobs.directories import (
    StoredJob,
    create_job,
    job_as_option_value,
    remove_job,
    remove_late_records,
    state_directory,
    write_and_sync_job_file,
    write_job_file,
)
from pcopy.jobs.job_file import JOB_FAILED_ITEMS, JOB_NOT_ALL_WRITTEN, JOB_RUNNING, JOB_STOPPED, JobFile
from pcopy.jobs.lock import RankLock
from pcopy.jobs.paths import destination_path, is_in_tree, source_path
from pcopy.jobs.roots import root_with_target_identity, roots_with_file_systems
from pcopy.jobs.spool import spool_errors_as_refusal, spool_factory
from pcopy.tasks.base import counts
from pcopy.tasks.base.job import CopyOptions, ItemFilters, Job, JobCounters, Mount, Options, Root
from pcopy.tasks.base.kind import TASK_FORMAT
from pcopy.tasks.base.phases import Phase
from pcopy.text import printable_path

_PHASES_RESTARTED_ON_RESUME = (Phase.COUNT, Phase.DELETE)
"""Phases that a resumed job repeats from their start: the count of extra items in the destination, and their deletion.

No recorded task lists everything that remains to be deleted, and the number of extra items may have grown beyond
``--max-delete``.
"""

FINAL_RECORD_TIMEOUT = 0.4
"""Seconds that a stopped job waits while its final state is recorded. The job can be resumed even without that record.
"""


class CheckpointSettings(NamedTuple):
    """Settings of the records of a job, from which it can be resumed. Every rank has a copy.

    Fields:
    - ``directory``: the job directory, an absolute path. Empty: nothing is recorded, and the job cannot be resumed.
    - ``nonce``: random text that identifies the job. Other hosts compare it with the nonce in the job file that they
      see, and so find out whether they share the directory with rank 0.
    - ``interval``: seconds between two records of the progress of a rank.
    - ``store``: how waiting tasks are stored (``--checkpoint-store``): ``auto``, ``pickle`` or ``lmdb``.
    - ``spool``: directory for temporary files with waiting tasks that do not fit into memory. Empty: the system's.
    - ``memory``: bytes of waiting tasks that the ranks of one host may keep in memory. 0: automatic.
    - ``resumed``: True if this run resumes an earlier one.
    - ``phase``: the number of the phase with which a resumed job continues.
    - ``counts``: the counters of the earlier runs, in the order of ``JobCounters``.
    - ``durable_at_start``: True if the job directory must be on stable storage before the first task.
    - ``deleted``: number of items that earlier runs have deleted.
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
    durable_at_start: bool = False
    deleted: int = 0


RECORDS_NOT_TRUSTED_TEXT = (
    "files could not be synced here, and this host was rebooted since, or is another one: the job begins anew"
)
"""End of a notice that begins with the path of a destination: the job does not continue from its records, but copies
everything again.

The records count files as copied that could not be synced. After a reboot, or on another host, it is unknown whether
their contents have reached stable storage.
"""


@contextmanager
def directory_errors_as_refusal(directory: bytes) -> Iterator[None]:
    """Context manager: if its block raises ``OSError``, raise ``RequestRefused`` instead, with ``directory`` in the
    message.

    The block's system calls use names relative to that directory, or descriptors, so their errors lack its path.
    """
    try:
        yield
    except OSError as error:
        raise path_refused(directory, f"cannot be written: {error.strerror}") from None


class JobDirectory:
    """The directory in which rank 0 records a job, from its creation to its removal.

    States: not created -> created (possibly not yet on stable storage) -> durable -> finished (removed) | kept for a
    resume | abandoned (removed while the job runs on).

    Attributes:
    - ``checkpoint``: how and where the job is recorded; rank 0 sends it to all ranks.
    - ``is_created``: True if the directory exists and contains this job.
    - ``notices``: messages for the user about a job that is resumed.
    """

    def __init__(self, checkpoint: CheckpointSettings, file: JobFile, lock: RankLock | None = None) -> None:
        """Prepare to record a job, which ``file`` describes, as the settings ``checkpoint`` say; no file is created
        yet.

        ``lock`` is rank 0's lock of a job that is recorded already (a resume); None for a new job.
        """
        self.notices: list[str] = []
        self.checkpoint = checkpoint
        self.is_created = lock is not None
        self.list_of_files: BinaryIO | None = None
        """The list of ``--from`` of a new job, until it is copied into the job directory."""
        self._job = StoredJob(checkpoint.directory, file)
        self._lock = lock
        self._is_abandoned = False
        self.was_removed = False
        """True if another process has removed the job directory while the job ran."""

    def remove_if_created_by_this_run(self) -> None:
        """Remove the directory if this run created it; keep one that an earlier run created."""
        if self.is_created and self._lock is not None and self._job.file.runs == 1:
            remove_job(self._job, self._lock)
            self.is_created = False

    def remove_while_running(self) -> None:
        """Remove the job directory while the job runs on.

        Called if a record could not be written: the records are incomplete from now on, so a resume would be wrong.
        Raise ``RequestRefused`` if a file cannot be removed. May be called from any thread.
        """
        if self.exists() and self._lock is not None:
            self.is_created, self._is_abandoned = False, True
            remove_job(self._job, self._lock)

    def create_without_sync(self) -> None:
        """Create the job directory without waiting for storage, unless it exists; raise ``RequestRefused`` if that
        fails.

        If the process is killed from now on, the job can be resumed. After a power failure the directory may be
        missing.
        """
        if not self.is_created:
            self._create_job_directory(durable=False)

    def create_durably(self) -> None:
        """Create the job directory unless it exists, and return only after it is on stable storage.

        Raise ``RequestRefused`` if that fails. May be called from any thread.
        """
        if not self.is_created:
            self._create_job_directory(durable=True)
        elif self._job.unsynced_directories:
            self._job = write_and_sync_job_file(self._job)

    def _create_job_directory(self, *, durable: bool) -> None:
        """Create the job directory, write the file ``job`` into it, and take rank 0's lock.

        ``durable``: True to return only after all is on stable storage. Raise ``RequestRefused`` if that fails.
        """
        directory = self.checkpoint.directory if self.checkpoint.durable_at_start else None
        with directory_errors_as_refusal(self.checkpoint.directory):
            self._job, self._lock = create_job(
                directory, self._job.file, durable=durable, list_of_files=self.list_of_files
            )
        self.is_created = True

    def record_target_identities(self) -> None:
        """Record the identities of the target directories that exist now, so that a resume can recognise them.

        To be called once these directories are on stable storage: a recorded directory that a power failure has removed
        would prevent the resume. Raise ``RequestRefused`` if the job file cannot be written.
        """
        roots = tuple(map(root_with_target_identity, self._job.file.roots))
        if roots != self._job.file.roots and self.is_created:
            self._job = write_and_sync_job_file(self._job_with_fields(roots=roots))

    def record_mounts(self, mounts: tuple[Mount, ...]) -> None:
        """Record the mounts below sources and targets in the job file, if that exists already.

        A later run compares them with the current mounts, and so notices a file system that is missing.
        """
        if mounts != self._job.file.mounts:
            self._job = self._job_with_fields(mounts=mounts)
            if self.is_created:
                with suppress(RequestRefused):  # Mounts that appear now are automatic: the next run will see them, too.
                    write_job_file(self._job)

    def _job_with_fields(self, **fields: Any) -> StoredJob:
        """Return the stored job with ``fields`` of its job file replaced by new values; nothing is written."""
        return self._job._replace(file=self._job.file._replace(**fields))

    def exists(self) -> bool:
        """Return True if the directory was created and still contains the file ``job``.

        If another process has removed the job, ``is_created`` becomes False and ``was_removed`` True.
        """
        if self.is_created and not os.path.lexists(os.path.join(self._job.path, b"job")):
            self.is_created, self.was_removed = False, True
        return self.is_created

    def finish_job(
        self, status: int, totals: JobCounters, patience: float | None = None, *, is_durable: bool = True
    ) -> list[str]:
        """Record how the job ended, or remove its directory after success. Return notices for the user.

        Args:
            status: the exit status. With ``EXIT_OK`` the directory is removed, otherwise it is kept for a resume.
            totals: the counters, recorded for ``--jobs``.
            patience: seconds to wait for the storage while the end of the job is recorded; None: no limit. The removal
                after success has no limit.
            is_durable: True if all that the job has written is on stable storage. Otherwise the job counts as killed,
                because a power failure may leave its files incomplete, too.

        Raise ``RequestRefused`` if a file cannot be written or removed.
        """
        if self._is_abandoned:
            _run_within_timeout(patience, partial(remove_late_records, self._job))
        if not self.is_created or self._lock is None:
            return []
        if status == EXIT_OK:
            remaining = remove_job(self._job, self._lock) if self.exists() else ()
            return [
                f"{printable_path(os.path.join(self.checkpoint.directory, name))}: not removed: pcopy did not create it"
                for name in remaining
            ]
        state = (
            (JOB_FAILED_ITEMS if totals.failed else JOB_NOT_ALL_WRITTEN) if status == EXIT_INCOMPLETE else JOB_STOPPED
        )
        killed = self._job.file.killed or not is_durable
        ended = self._job_with_fields(state=state, totals=totals._asdict(), killed=killed)
        if _run_within_timeout(patience, lambda: self.exists() and write_and_sync_job_file(ended)):
            self._lock.close()
        return []


def _run_within_timeout(patience: float | None, action: Callable[[], object]) -> bool:
    """Run ``action`` in a thread; return True if it ended within ``patience`` seconds (None: wait without a limit).

    If it did not end, the thread runs on, and its result is ignored. Raise ``RequestRefused`` if ``action`` failed.
    """
    try:
        try:
            thread = BackgroundThread(action)
        except OSError:  # No thread can be started: run the action in this one.
            action()
            return True
        is_over = thread.join(patience)
        thread.raise_error()
        return is_over
    except RESOURCE_EXCEPTIONS as error:
        raise RequestRefused(f"cannot record how the job ended: {resource_error_text(error)}") from error


def resume_command(directory: bytes) -> str:
    """Return the command line that resumes the job in ``directory``."""
    return f"pcopy --resume {job_as_option_value(directory)}"


def new_job_directory(job: Job, checkpoint: CheckpointSettings, asked: dict[str, Any]) -> tuple[Job, JobDirectory]:
    """Return the new ``job`` with its start time, and an object that can create its job directory.

    The start time is that of the destination's clock.

    Args:
        job: the job to record.
        checkpoint: settings; an empty ``directory`` stands for a directory with the job's name in the state directory.
        asked: the arguments of the command line by option name. A resume with other arguments is refused.

    Raise ``RequestRefused`` if the job directory could not be created later, or lies in a source or in the destination.
    """
    if checkpoint.directory:
        _refuse_job_directory_in_roots(checkpoint.directory, job.roots)
    check_can_make_directory(checkpoint.directory or state_directory())
    began = _destination_clock_time(job)
    file = JobFile(
        job.name,
        time.time(),
        roots_with_file_systems(job.roots),
        options_as_primitives(job.options) | job.copy_options._asdict(),
        asked,
        began,
        job.options.umask,
        os.geteuid(),
        os.urandom(16).hex(),
        doubted=job.doubted,
    )
    directory = checkpoint.directory or os.path.join(state_directory(), job.name.encode())
    return job._replace(began=began), JobDirectory(checkpoint._replace(directory=directory, nonce=file.nonce), file)


def _refuse_job_directory_in_roots(directory: bytes, roots: Sequence[Root]) -> None:
    """Raise ``RequestRefused`` if the job directory lies in a source or in the destination: the job would copy or
    delete its own files.
    """
    real = os.path.realpath(directory)
    for tree in (*map(source_path, roots), destination_path(roots)):
        if is_in_tree(real, tree):
            raise path_refused(
                directory,
                f"lies in {printable_path(tree)}, which is copied from or to; name another directory for the job, "
                "outside of SRC and DST (--checkpoint DIR)",
            )


def recorded_roots_and_options(job: StoredJob) -> tuple[tuple[Root, ...], Options, CopyOptions]:
    """Return the roots (sources and targets) of a recorded job, the options that it shares with other programs, and
    those of copies.

    Raise ``RequestRefused`` if another version with other options recorded the job.
    """
    fields = dict(job.file.options)
    copy_options = CopyOptions(**{name: fields.pop(name) for name in CopyOptions._fields if name in fields})
    return tuple(root.as_root for root in job.file.roots), options_from_primitives(fields), copy_options


def prepare_resume(
    stored: StoredJob, lock: RankLock, ranks: int, checkpoint: CheckpointSettings, options: Options
) -> tuple[Job, JobDirectory]:
    """Prepare the next run of a recorded job and record that it has begun; return the job and its directory.

    Args:
        stored: the job as it is recorded.
        lock: rank 0's lock of the job.
        ranks: number of ranks of the new run, among which the recorded tasks are distributed.
        checkpoint: settings of the new run.
        options: options of the new run that copies share with other programs; those of copies are as recorded.

    The records of the earlier runs are replaced by those of the new run. Raise ``RequestRefused`` if that fails.
    """
    from pcopy.checkpoint.resume import is_run_recorded, write_next_run
    from pcopy.jobs.missing_directories import MissingDirectoryRepair
    from pcopy.tasks.base.codec import decode_task
    from pcopy.tasks.base.kind import TaskKind

    path, file = stored.path, stored.file
    roots, _, copy_options = recorded_roots_and_options(stored)
    options = options._replace(umask=file.umask)
    job = Job(file.name, file.runs + 1, roots, options, copy_options, began=file.t0, mounts=file.mounts)
    job = job._replace(doubted=file.doubted, cut_short=file.may_have_incomplete_files)
    checkpoint = checkpoint._replace(directory=path, nonce=file.nonce, deleted=_items_deleted_by_earlier_runs(path))
    least = int(Phase.REPAIR_VERIFY)

    def address(task: Task) -> Task | None:
        # Return the task for the new number of ranks, or None if the resumed job does not need it. ``least`` becomes
        # the earliest phase of these tasks.
        nonlocal least
        if task.phase in _PHASES_RESTARTED_ON_RESUME and decode_task(task.payload).is_respawned_on_resume:
            return None
        if task.owner == ANY_RANK:
            least = min(least, task.phase)
            return task
        value: TaskKind = decode_task(task.payload)
        new = value.with_reassigned_owner(task, ranks)
        if new is not None and not value.depends_on_other_tasks:
            least = min(least, new.phase)
        return new

    with directory_errors_as_refusal(path):
        is_lost = has_distrusted_records(path)
    if is_lost or not is_run_recorded(path):
        return _prepare_restart_from_beginning(stored, lock, job, checkpoint, is_untrusted=is_lost)
    spool = spool_factory(checkpoint.spool)
    removed_directories = MissingDirectoryRepair(job, spool)
    try:
        with directory_errors_as_refusal(path), spool_errors_as_refusal(checkpoint.spool):
            remaining = write_next_run(
                path,
                ranks,
                address=address,
                replacement=removed_directories,
                open_spool=spool,
                least_counts={counts.DELETED: checkpoint.deleted},
            )
    except InvariantBroken as broken:
        # An unknown task: another version recorded it, although the job file contains the version of this one.
        raise RequestRefused(
            f"{broken}; this pcopy reads version {TASK_FORMAT} of tasks; {OTHER_VERSION_ADVICE}"
        ) from None
    job = job._replace(run=remaining.run, resumed=_destination_clock_time(job))
    file = file._replace(runs=remaining.run, state=JOB_RUNNING, stored=remaining.checkpoint_cut_time or file.stored)
    write_job_file(StoredJob(path, file))
    phase = min(least, remaining.phase)
    if phase in _PHASES_RESTARTED_ON_RESUME:
        phase = int(Phase.NAME)
    checkpoint = checkpoint._replace(resumed=True, phase=phase, counts=remaining.counts, durable_at_start=False)
    job_directory = JobDirectory(checkpoint, file, lock)
    job_directory.notices = removed_directories.notices
    return job, job_directory


def _prepare_restart_from_beginning(
    stored: StoredJob, lock: RankLock, job: Job, checkpoint: CheckpointSettings, *, is_untrusted: bool
) -> tuple[Job, JobDirectory]:
    """Prepare to run a job again from the beginning, because it has no usable records; return the job and its
    directory.

    The run has a new number.

    Args:
        stored: the job as it is recorded.
        lock: rank 0's lock of the job.
        job, checkpoint: the job and the settings of the new run.
        is_untrusted: True if there are records, but they are not trusted (see ``RECORDS_NOT_TRUSTED_TEXT``); they are
            removed. False if no run has left a record.

    Raise ``RequestRefused`` if a file cannot be written or removed.
    """
    path, file = stored.path, stored.file
    if is_untrusted:
        file = file._replace(killed=True, doubted=min(file.doubted or file.t0, file.t0))
        job = job._replace(doubted=file.doubted, cut_short=file.may_have_incomplete_files)
    file = file._replace(runs=job.run, state=JOB_RUNNING)
    write_job_file(StoredJob(path, file))
    if is_untrusted:
        with directory_errors_as_refusal(path):
            remove_current_run_file(path)
    job_directory = JobDirectory(checkpoint._replace(durable_at_start=True), file, lock)
    if is_untrusted:
        job_directory.notices = [f"{printable_path(destination_path(job.roots))}: {RECORDS_NOT_TRUSTED_TEXT}"]
    return job, job_directory


def _items_deleted_by_earlier_runs(directory: bytes) -> int:
    """Return the number of items that earlier runs of the job in ``directory`` have deleted.

    Raise ``RequestRefused`` if the files with the numbers cannot be read.
    """
    from pcopy.jobs.deletion_count import number_of_deleted_items

    with directory_errors_as_refusal(directory):
        return number_of_deleted_items(directory)


def _destination_clock_time(job: Job) -> int:
    """Return the current time by the destination's clock, in nanoseconds since 1970.

    The clock of a file server may differ from that of this host, so the time is the ctime of a probe file that is
    created in the destination. The file has no name (O_TMPFILE) if the file system supports that. Otherwise it is
    created in the parent of the target directory, if that is on the same file system: then the ctime of the target
    directory remains unchanged if nothing is copied. If no file can be created, the time of this host is returned.
    """
    if job.options.sequential:  # Such a destination may refuse the name of the probe, or its removal.
        return time.time_ns()
    target = job.roots[0].target
    flags = os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC  # not supported by all file systems
    with suppress(OSError), closing_descriptor(open_with_retries(target, flags, 0o600)) as descriptor:
        return os.fstat(descriptor).st_ctime_ns
    for path in (os.path.join(target, b".."), target):
        with (
            suppress(OSError),
            closing_descriptor(open_with_retries(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as directory,
        ):
            if os.fstat(directory).st_dev == os.stat(target).st_dev:
                return _ctime_of_test_file(directory, b".pcopy-%s-clock" % job.name.encode())
    return time.time_ns()  # No error here: the copy itself reports a destination that cannot be written to.


def _ctime_of_test_file(directory: int, name: bytes) -> int:
    """Create and remove the file ``name``, and return its ctime in nanoseconds; raise ``OSError`` if it cannot be
    created.

    The times of ``directory`` are restored if that is permitted, because the job may still be refused, or may have
    nothing to change there.
    """
    before = os.fstat(directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = open_with_retries(name, flags, 0o600, dir_fd=directory)
    except FileExistsError:  # An earlier run of this job was killed, or its host stopped, before the file was removed.
        os.unlink(name, dir_fd=directory)
        descriptor = open_with_retries(name, flags, 0o600, dir_fd=directory)
    try:
        return os.fstat(descriptor).st_ctime_ns
    finally:
        with suppress(OSError):  # The file is empty: no data can be lost.
            os.close(descriptor)
        with suppress(OSError):
            os.unlink(name, dir_fd=directory)
            os.utime(directory, ns=(before.st_atime_ns, before.st_mtime_ns))


def options_as_primitives(options: Options) -> dict[str, Any]:
    """Return the options as dictionaries of primitive values, as messages between ranks contain them."""
    return {**options._asdict(), "preserve": options.preserve._asdict(), "select": options.select._asdict()}


def options_from_primitives(primitives: Any) -> Options:
    """Return the options of a job from dictionaries of primitive values, as ``options_as_primitives`` returns them.

    Raise ``RequestRefused`` if their names are not those of this version.
    """
    fields = dict(primitives)
    preserve, select = dict(fields.pop("preserve")), dict(fields.pop("select", ()))
    try:
        preserved = PreservedMetadataKinds(**{**preserve, "chown": tuple(preserve["chown"])})
        selected = ItemFilters(**{**select, "patterns": tuple(select["patterns"])})
        return Options(preserved, select=selected, **fields)
    except (TypeError, KeyError):
        raise RequestRefused(
            f"the job was started by another version of pcopy, which has other options; {OTHER_VERSION_ADVICE}"
        ) from None
