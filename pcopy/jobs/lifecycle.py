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

from pcopy.beside import Beside
from pcopy.checkpoint.directory import check_makeable
from pcopy.checkpoint.layout import END_IT, forget_records, is_distrusted
from pcopy.engine.task import ANYBODY, Task
from pcopy.errors import HINDRANCES, INCOMPLETE, OK, InvariantBroken, Refused, hindrance
from pcopy.fsio.close import held_open
from pcopy.fsio.patience import open_patiently
from pcopy.fsio.preserve import Preserve
from pcopy.jobs.directories import (
    StoredJob,
    create,
    make_durable,
    remove,
    remove_rest,
    state_directory,
    update,
    word_of,
)
from pcopy.jobs.job_file import FAILED_ITEMS, NOT_ALL_WRITTEN, RUNNING, STOPPED, JobFile
from pcopy.jobs.lock import Lock
from pcopy.jobs.paths import filled_by, lies_in, source_of
from pcopy.jobs.roots import with_made, with_places
from pcopy.jobs.spool import refusing, spool_in
from pcopy.named import NamedTuple
from pcopy.tasks.base import counts
from pcopy.tasks.base.job import Job, Mount, Options, Root, Select, Totals
from pcopy.tasks.base.kind import FORMAT
from pcopy.tasks.base.phases import Phase
from pcopy.text import shown

_DELETION = (Phase.COUNT, Phase.DELETE)
"""Phases that a resumed job repeats from their start.

No recorded task lists everything that remains to be deleted, and the number of extra items may have grown beyond
``--max-delete``.
"""

END_PATIENCE = 0.4
"""Seconds that a stopped job waits while its final state is recorded. The job can be resumed even without that record.
"""


class Keeping(NamedTuple):
    """How and where the progress of a job is recorded, so that it can be resumed. Every rank has a copy.

    Fields:
    - ``directory``: the job directory, an absolute path. Empty: nothing is recorded, and the job cannot be resumed.
    - ``nonce``: random text that identifies the job; other hosts compare it to see that they share the directory.
    - ``interval``: seconds between two records (cuts) of a rank.
    - ``store``: ``--checkpoint-store``: ``auto``, ``pickle`` or ``lmdb``.
    - ``spool``: directory for temporary files of waiting work. Empty: the default.
    - ``memory``: bytes of waiting work that the ranks of one host may keep in memory. 0: automatic.
    - ``resumed``: True if this run resumes an earlier one.
    - ``phase``: the phase with which a resumed job continues.
    - ``counts``: the counters of the earlier runs.
    - ``at_start``: True if the job directory must be on stable storage before the first task.
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
    at_start: bool = False
    deleted: int = 0


BEGINS_ANEW = "files could not be synced here, and this host was rebooted since, or is another one: the job begins anew"
"""Notice about a destination: the records of the job are not trusted, so it starts from the beginning.

After a reboot, or on another host, nothing shows whether the unsynced files reached storage.
"""


@contextmanager
def naming(directory: bytes) -> Iterator[None]:
    """Turn an ``OSError`` of the block into ``Refused`` with the path ``directory``.

    The system calls use names relative to that directory, or only descriptors, so their errors do not contain its path.
    """
    try:
        yield
    except OSError as error:
        raise Refused(f"{shown(directory)}: cannot be written: {error.strerror}") from None


class KeptJob:
    """The directory in which rank 0 records a job, from its creation to its removal.

    States: not created -> created (possibly not yet on stable storage) -> durable -> finished (removed) | kept for a
    resume | abandoned.

    ``keeping`` has the settings that all ranks need.
    """

    def __init__(self, keeping: Keeping, file: JobFile, lock: Lock | None = None) -> None:
        """Describe the job ``file``; nothing is created yet.

        ``lock`` is rank 0's lock of a job that is recorded already; None for a new job.
        """
        self.notices: list[str] = []
        self.keeping = keeping
        self.is_stored = lock is not None
        self.listed: BinaryIO | None = None
        """The list of ``--files-from`` of a new job, until it is copied into the job directory."""
        self._job = StoredJob(keeping.directory, file)
        self._lock = lock
        self._is_given_up = False
        self.has_vanished = False
        """True if another process has removed the job directory while the job ran."""

    def withdraw(self) -> None:
        """Remove the directory if this run created it; keep one that an earlier run created."""
        if self.is_stored and self._lock is not None and self._job.file.runs == 1:
            remove(self._job, self._lock)
            self.is_stored = False

    def give_up(self) -> None:
        """Remove the records while the job runs on: they can no longer be completed, so a resume would be wrong.

        Raise ``Refused`` if they cannot be removed. May be called from any thread.
        """
        if self.look() and self._lock is not None:
            self.is_stored, self._is_given_up = False, True
            remove(self._job, self._lock)

    def note(self) -> None:
        """Create the job directory without waiting for storage, unless it exists; raise ``Refused`` if that fails.

        If the process is killed from now on, the job can be resumed. After a power failure the directory may be
        missing.
        """
        if not self.is_stored:
            self._create(durable=False)

    def create(self) -> None:
        """Create the job directory unless it exists, and return only after it is on stable storage.

        Raise ``Refused`` if that fails. May be called from any thread.
        """
        if not self.is_stored:
            self._create(durable=True)
        elif self._job.unsynced:
            self._job = make_durable(self._job)

    def _create(self, *, durable: bool) -> None:
        """Create the job directory, write the file ``job`` into it and take rank 0's lock."""
        directory = self.keeping.directory if self.keeping.at_start else None
        with naming(self.keeping.directory):
            self._job, self._lock = create(directory, self._job.file, durable=durable, listed=self.listed)
        self.is_stored = True

    def note_targets(self) -> None:
        """Record the inodes of the target directories once they exist and are synced; raise ``Refused`` if that fails.

        Targets that are not on stable storage are not recorded: after a crash they may be missing, and the job must
        still resume.
        """
        roots = tuple(map(with_made, self._job.file.roots))
        if roots != self._job.file.roots and self.is_stored:
            self._job = make_durable(self._with(roots=roots))

    def note_mounts(self, mounts: tuple[Mount, ...]) -> None:
        """Record the mounts below the roots in the job file, if that exists already."""
        if mounts != self._job.file.mounts:
            self._job = self._with(mounts=mounts)
            if self.is_stored:
                with suppress(Refused):  # these mounts are automatic, and the next run will see them again
                    update(self._job)

    def _with(self, **fields: Any) -> StoredJob:
        """Return the stored job with these fields of its file replaced; nothing is written."""
        return self._job._replace(file=self._job.file._replace(**fields))

    def look(self) -> bool:
        """Return True if the directory was created and nobody has removed it since."""
        if self.is_stored and not os.path.lexists(os.path.join(self._job.path, b"job")):
            self.is_stored, self.has_vanished = False, True
        return self.is_stored

    def end(self, status: int, totals: Totals, patience: float | None = None, *, is_durable: bool = True) -> list[str]:
        """Record how the job ended, or remove its directory after success. Return notices for the user. Raise
        ``Refused`` if that fails.

        Args:
            status: the exit status. With ``OK`` the directory is removed, otherwise it is kept for a resume.
            totals: the counters, recorded for ``--jobs``.
            patience: seconds after which unfinished work in the directory of a stopped or abandoned job is not waited
                for any longer; None: no limit.
            is_durable: True if all that the job has written is on stable storage. Otherwise a power failure may damage
                its files as a kill may.
        """
        if self._is_given_up:
            _is_done_within(patience, partial(remove_rest, self._job))
        if not self.is_stored or self._lock is None:
            return []
        if status == OK:
            remaining = remove(self._job, self._lock) if self.look() else ()
            return [
                f"{shown(os.path.join(self.keeping.directory, name))}: not removed: pcopy did not create it"
                for name in remaining
            ]
        state = (FAILED_ITEMS if totals.failed else NOT_ALL_WRITTEN) if status == INCOMPLETE else STOPPED
        killed = self._job.file.killed or not is_durable
        ended = self._with(state=state, totals=totals._asdict(), killed=killed)
        if _is_done_within(patience, lambda: self.look() and make_durable(ended)):
            self._lock.close()
        return []


def _is_done_within(patience: float | None, action: Callable[[], object]) -> bool:
    """Run ``action`` in a thread; return True if it ended within ``patience`` seconds (None: wait without a limit).

    A thread on slow storage is not waited for any longer than that. Raise ``Refused`` if ``action`` failed.
    """
    errors: list[Refused] = []

    def run() -> None:
        try:
            action()
        except Refused as refused:
            errors.append(refused)
        except HINDRANCES as error:
            reason = f"cannot record how the job ended: {hindrance(error)}"
            errors.append(Refused(reason))

    try:
        is_over = Beside(run).is_over(patience)
    except OSError:  # No thread can be started: run the action in this one.
        run()
        is_over = True
    if errors:
        raise errors[0]
    return is_over


def resuming(directory: bytes) -> str:
    """Return the command line that resumes the job in ``directory``."""
    return f"pcopy --resume {word_of(directory)}"


def keep_new(job: Job, keeping: Keeping, asked: dict[str, Any]) -> tuple[Job, KeptJob]:
    """Return a new job with the start time of its destination, and its directory, which is not created yet.

    Args:
        job: the job to record.
        keeping: settings; an empty ``directory`` stands for one in the state directory.
        asked: the values of the command line, to be compared with those of a later run.

    Raise ``Refused`` if the job directory could not be created, or lies in a source or in the destination.
    """
    if keeping.directory:
        _refuse_inside(keeping.directory, job.roots)
    check_makeable(keeping.directory or state_directory())
    began = _destination_time(job)
    file = JobFile(
        job.name,
        time.time(),
        with_places(job.roots),
        options_as_primitives(job.options),
        asked,
        began,
        job.options.umask,
        os.geteuid(),
        os.urandom(16).hex(),
        doubted=job.doubted,
    )
    directory = keeping.directory or os.path.join(state_directory(), job.name.encode())
    return job._replace(began=began), KeptJob(keeping._replace(directory=directory, nonce=file.nonce), file)


def _refuse_inside(directory: bytes, roots: Sequence[Root]) -> None:
    """Raise ``Refused`` if the job directory lies in a source or in the destination: the job would copy or delete its
    own files.
    """
    real = os.path.realpath(directory)
    for tree in (*map(source_of, roots), filled_by(roots)):
        if lies_in(real, tree):
            raise Refused(
                f"{shown(directory)}: lies in {shown(tree)}, which is copied from or to; name another directory "
                "for the job, outside of it (--checkpoint DIR)"
            )


def as_stored(job: StoredJob) -> tuple[tuple[Root, ...], Options]:
    """Return the roots and the options of a recorded job; raise ``Refused`` if they cannot be read."""
    return tuple(root.plain for root in job.file.roots), options_from_primitives(job.file.options)


def go_on(stored: StoredJob, lock: Lock, size: int, keeping: Keeping, options: Options) -> tuple[Job, KeptJob]:
    """Prepare the next run of a recorded job and record that it has begun; return the job and its directory.

    Args:
        stored: the job as it is recorded.
        lock: rank 0's lock of it.
        size: number of ranks of the new run. Recorded tasks and notes are dealt out to them.
        keeping: settings of the new run.
        options: options of the new run.

    The records of the earlier runs are replaced by those of the new run. Raise ``Refused`` if that fails.
    """
    from pcopy.checkpoint.resume import compact, has_begun
    from pcopy.jobs.gone_directories import Missing
    from pcopy.tasks.base.codec import decode
    from pcopy.tasks.base.kind import Kind

    path, file = stored.path, stored.file
    roots, _ = as_stored(stored)
    options = options._replace(umask=file.umask)
    job = Job(file.name, file.runs + 1, roots, options, began=file.t0, mounts=file.mounts, doubted=file.doubted)
    job = job._replace(cut_short=file.may_have_cut_short)
    keeping = keeping._replace(directory=path, nonce=file.nonce, deleted=_deleted_in(path))
    least = int(Phase.REPAIR_VERIFY)

    def address(task: Task) -> Task | None:
        # Return the task for one of ``size`` ranks, or None if it is dropped. ``least`` is the earliest phase of all.
        nonlocal least
        if task.phase in _DELETION and decode(task.payload).is_found_anew:
            return None
        if task.owner == ANYBODY:
            least = min(least, task.phase)
            return task
        value: Kind = decode(task.payload)
        new = value.readdress(task, size)
        if new is not None and not value.waits_for_others:
            least = min(least, new.phase)
        return new

    with naming(path):
        is_lost = is_distrusted(path)
    if is_lost or not has_begun(path):
        return _begun_anew(stored, lock, job, keeping, is_lost=is_lost)
    spool = spool_in(keeping.spool)
    removed_directories = Missing(roots, file.mounts, spool, options)
    try:
        with naming(path), refusing(keeping.spool):
            remaining = compact(
                path,
                size,
                address=address,
                mending=removed_directories,
                open_spool=spool,
                least_counts={counts.DELETED: keeping.deleted},
            )
    except InvariantBroken as broken:
        # An unknown task was recorded by another version, though the version in the job file is the same.
        raise Refused(f"{broken}; this pcopy reads version {FORMAT} of tasks; {END_IT}") from None
    job = job._replace(run=remaining.run, resumed=_destination_time(job))
    file = file._replace(runs=remaining.run, state=RUNNING, stored=remaining.began or file.stored)
    update(StoredJob(path, file))
    phase = min(least, remaining.phase)
    if phase in _DELETION:
        phase = int(Phase.NAME)
    keeping = keeping._replace(resumed=True, phase=phase, counts=remaining.counts, at_start=False)
    job_directory = KeptJob(keeping, file, lock)
    job_directory.notices = removed_directories.notices
    return job, job_directory


def _begun_anew(stored: StoredJob, lock: Lock, job: Job, keeping: Keeping, *, is_lost: bool) -> tuple[Job, KeptJob]:
    """Prepare the next run of a job without usable records: it starts from the beginning, as a run with a new number.

    ``is_lost``: there are records, but they are not trusted, and are removed. Otherwise no run has left a record. Other
    arguments and the result are those of ``go_on``.
    """
    path, file = stored.path, stored.file
    if is_lost:
        file = file._replace(killed=True, doubted=min(file.doubted or file.t0, file.t0))
        job = job._replace(doubted=file.doubted, cut_short=file.may_have_cut_short)
    file = file._replace(runs=job.run, state=RUNNING)
    update(StoredJob(path, file))
    if is_lost:
        with naming(path):
            forget_records(path)
    job_directory = KeptJob(keeping._replace(at_start=True), file, lock)
    if is_lost:
        job_directory.notices = [f"{shown(filled_by(job.roots))}: {BEGINS_ANEW}"]
    return job, job_directory


def _deleted_in(directory: bytes) -> int:
    """Return the number of items that earlier runs of the job in ``directory`` have deleted."""
    from pcopy.jobs.deleted import deleted_in

    with naming(directory):
        return deleted_in(directory)


def _destination_time(job: Job) -> int:
    """Return the time of the destination's clock, in nanoseconds since 1970: the ctime of a probe file that is created
    there.

    The file has no name (O_TMPFILE) if the file system supports that. A file with a name is created in the parent of
    the target, if that is on the same file system, so that the target's own ctime does not change if nothing is copied.
    """
    if job.options.sequential:  # Such a destination may refuse the name of the probe, or its removal.
        return time.time_ns()
    target = job.roots[0].target
    flags = os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC  # not supported by all file systems
    with suppress(OSError), held_open(open_patiently(target, flags, 0o600)) as descriptor:
        return os.fstat(descriptor).st_ctime_ns
    for path in (os.path.join(target, b".."), target):
        with (
            suppress(OSError),
            held_open(open_patiently(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as directory,
        ):
            if os.fstat(directory).st_dev == os.stat(target).st_dev:
                return _time_of_named_file(directory, b".pcopy-%s-clock" % job.name.encode())
    return time.time_ns()  # The copy itself reports a destination that cannot be written to.


def _time_of_named_file(directory: int, name: bytes) -> int:
    """Create and remove the file ``name``, and return its ctime in nanoseconds; raise ``OSError`` if it cannot be
    created.

    The times of ``directory`` are restored if that is permitted: the job may still be refused, or have nothing to
    change there.
    """
    before = os.fstat(directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = open_patiently(name, flags, 0o600, dir_fd=directory)
    try:
        return os.fstat(descriptor).st_ctime_ns
    finally:
        with suppress(OSError):  # The file is empty: no data can be lost.
            os.close(descriptor)
        with suppress(OSError):
            os.unlink(name, dir_fd=directory)
            os.utime(directory, ns=(before.st_atime_ns, before.st_mtime_ns))


def options_as_primitives(options: Options) -> dict[str, Any]:
    """Return the options as dictionaries of primitive values, as the job file and messages between ranks hold them."""
    return {**options._asdict(), "preserve": options.preserve._asdict(), "select": options.select._asdict()}


def options_from_primitives(plain: Any) -> Options:
    """Return the options from the dictionaries of ``options_as_primitives``.

    Raise ``Refused`` if their names are not those of this version.
    """
    fields = dict(plain)
    preserve, select = dict(fields.pop("preserve")), dict(fields.pop("select", ()))
    try:
        preserved = Preserve(**{**preserve, "chown": tuple(preserve["chown"])})
        selected = Select(**{**select, "patterns": tuple(select["patterns"])})
        return Options(preserved, select=selected, **fields)
    except (TypeError, KeyError):
        raise Refused(f"the job was started by another version of pcopy, which has other options; {END_IT}") from None
