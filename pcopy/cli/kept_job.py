"""A job on rank 0 between its command line and its end: stored for the first time, gone on with, or over."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from pcopy.beside import Beside
from pcopy.checkpoint.job_file import FAILED_ITEMS, NOT_ALL_WRITTEN, RUNNING, STOPPED, JobFile
from pcopy.checkpoint.jobs import (
    StoredJob,
    check_place,
    create,
    is_in_state_directory,
    remove,
    remove_rest,
    settle,
    state_directory,
    update,
)
from pcopy.checkpoint.layout import END_IT
from pcopy.checkpoint.lock import Lock
from pcopy.checkpoint.roots import with_made, with_places
from pcopy.cli.job_options import Checkpoint, renewed
from pcopy.cli.keeping import Keeping, naming
from pcopy.cli.paths import filled_by, lies_in, source_of
from pcopy.cli.spool import refusing, spool_in
from pcopy.engine.task import Task
from pcopy.errors import HINDRANCES, INCOMPLETE, OK, Refused, hindrance
from pcopy.fsio.preserve import Preserve
from pcopy.tasks.addresses import readdress, waits_for_others
from pcopy.tasks.job import Job, Mount, Options, Root, Totals
from pcopy.tasks.phases import Phase
from pcopy.text import for_shell, shown

if TYPE_CHECKING:
    from pcopy.cli.jobs import Resumed


END_PATIENCE = 0.4
"""Seconds that a job which was told to stop waits for its last words: what is on record holds without them."""


class KeptJob:
    """Rank 0's knowledge of where a job is kept. ``keeping`` is for all ranks."""

    def __init__(
        self,
        keeping: Keeping,
        file: JobFile,
        directory: bytes | None,
        lock: Lock | None = None,
        notices: Sequence[str] = (),
    ) -> None:
        """``directory`` is None for one that is to be made below the state directory. ``notices`` are for the user."""
        self.notices = tuple(notices)
        self.keeping = keeping
        self._file = file
        self._directory = directory
        self._stored = StoredJob(keeping.directory, file) if lock is not None else None
        self._lock = lock
        self._given_up: StoredJob | None = None
        self.has_vanished = False
        """Was the job removed by somebody else?"""

    def withdraw(self) -> None:
        """Nothing comes of a job that was stored just now; one that was there before stays."""
        if self._stored is not None and self._lock is not None and self._file.runs == 1:
            remove(self._stored, self._lock)
            self._stored = self._lock = None

    def give_up(self) -> None:
        """Nothing more can be recorded, and the job goes on: it is not to be resumed from what there is.

        Raises ``Refused``. May run in another thread.
        """
        stored, lock = self._stored, self._lock
        self._stored = self._lock = None
        if stored is not None and lock is not None:
            self._given_up = stored
            remove(stored, lock)

    def note(self) -> None:
        """Puts the job into its directory, as far as that can be had without waiting for storage; raises ``Refused``.

        Killed from now on, it can be gone on with.
        """
        if self._stored is None:
            with naming(self.keeping.directory):
                self._stored, self._lock = create(self._directory, self._file, durable=False)
            self._file = self._stored.file

    def create(self) -> tuple[StoredJob, Lock]:
        """Makes the job's directory unless it is there, durably; raises ``Refused``. May run in another thread."""
        if self._stored is None or self._lock is None:
            self._stored, self._lock = create(self._directory, self._file)
            self._file = self._stored.file
        elif self._stored.unsynced:
            self._stored = settle(self._stored)
        return self._stored, self._lock

    def note_targets(self) -> None:
        """Puts on record which directories are copied to, as soon as they are there and synced; raises ``Refused``.

        One that is not on stable storage may be gone after a crash, and the job goes on all the same.
        """
        roots = tuple(map(with_made, self._file.roots))
        if roots != self._file.roots and self._stored is not None:
            file = self._file._replace(roots=roots)
            self._stored = settle(self._stored._replace(file=file))
            self._file = file

    def note_mounts(self, mounts: tuple[Mount, ...]) -> None:
        """Puts on record what is mounted below the roots."""
        if mounts != self._file.mounts:
            self._file = self._file._replace(mounts=mounts)
            if self._stored is not None:
                self._stored = self._stored._replace(file=self._file)
                with suppress(Refused):  # these have come by themselves, and will again
                    update(self._stored)

    @property
    def is_stored(self) -> bool:
        return self._stored is not None

    @property
    def command(self) -> str:
        """What goes on with the job."""
        return resuming(self.keeping.directory)

    def look(self) -> bool:
        """Is the job stored, and was it not removed by somebody else?"""
        if self._stored is not None and not os.path.lexists(os.path.join(self._stored.path, b"job")):
            self._stored, self.has_vanished = None, True
        return self._stored is not None

    def end(self, status: int, totals: Totals, patience: float | None = None) -> list[str]:
        """The job is over, or waits to be gone on with; returns what is worth telling. Raises ``Refused``.

        What is left to do in the directory of a job that waits, or was given up, is left after ``patience`` seconds.
        """
        if self._given_up is not None:
            _InTime(partial(remove_rest, self._given_up)).is_done(patience)
        if self._stored is None or self._lock is None:
            return []
        if status == OK:
            left = remove(self._stored, self._lock) if self.look() else ()
            return [f"{shown(os.path.join(self.keeping.directory, name))}: left, it is not pcopy's" for name in left]
        state = (FAILED_ITEMS if totals.failed else NOT_ALL_WRITTEN) if status == INCOMPLETE else STOPPED
        ended = self._stored._replace(file=self._file._replace(state=state, totals=totals._asdict()))
        if _InTime(partial(self._store_end, ended)).is_done(patience):
            self._lock.close()
        return []

    def _store_end(self, job: StoredJob) -> None:
        if self.look():
            settle(job)


class _InTime:
    """What is left to do in the job's directory at the end; a slow storage may be left behind."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self._trouble: Refused | None = None
        self._thread: Beside | None = None
        try:
            self._thread = Beside(self._run)
        except OSError:  # no thread is to be had: then it is waited for
            self._run()

    def _run(self) -> None:
        try:
            self._action()
        except Refused as refused:
            self._trouble = refused
        except HINDRANCES as error:
            self._trouble = Refused(f"what is stored of the job may not tell how it has ended: {hindrance(error)}")

    def is_done(self, patience: float | None) -> bool:
        """Is it done within ``patience`` seconds? Raises ``Refused``."""
        is_over = self._thread is None or self._thread.is_over(patience)
        if self._trouble is not None:
            raise self._trouble
        return is_over


def resuming(directory: bytes) -> str:
    """The command that goes on with the job in ``directory``."""
    word = os.path.basename(directory) if is_in_state_directory(directory) else directory
    return f"pcopy --resume {for_shell(word)}"


def as_it_stands(resumed: Resumed, checkpoint: Checkpoint) -> KeptJob:
    """A stored job of which the next run has not begun."""
    job = resumed.job
    keeping = unkept(checkpoint)._replace(directory=job.path, nonce=job.file.nonce)
    return KeptJob(keeping, job.file, job.path, resumed.lock)


def unkept(checkpoint: Checkpoint) -> Keeping:
    """What the user wants of queues and cuts, for a job without a directory."""
    return Keeping(
        interval=checkpoint.interval, store=checkpoint.store, spool=checkpoint.spool, memory=checkpoint.memory
    )


def keep_new(job: Job, checkpoint: Checkpoint, asked: dict[str, Any]) -> tuple[Job, KeptJob]:
    """A job that begins; nothing is stored yet. Raises ``Refused`` if it could not be."""
    if checkpoint.directory is not None:
        _refuse_inside(checkpoint.directory, job.roots)
    check_place(checkpoint.directory)
    began = _destination_time(job)
    file = JobFile(
        job.name,
        time.time(),
        tuple(with_places(tuple(root)) for root in job.roots),
        _options_as_primitives(job.options),
        asked,
        began,
        job.options.umask,
        os.geteuid(),
        os.urandom(16).hex(),
    )
    directory = checkpoint.directory or os.path.join(state_directory(), job.name.encode())
    at_start = checkpoint.directory is not None
    keeping = unkept(checkpoint)._replace(directory=directory, nonce=file.nonce, at_start=at_start)
    return job._replace(began=began), KeptJob(keeping, file, checkpoint.directory)


def _refuse_inside(directory: bytes, roots: Sequence[Root]) -> None:
    """The job's own files are no part of what it copies."""
    place = os.path.realpath(directory)
    for tree in (*map(source_of, roots), filled_by(roots)):
        if lies_in(place, tree):
            raise Refused(
                f"{shown(directory)}: lies in {shown(tree)}, which is copied from or to; name another directory "
                "to keep the job in, outside of it"
            )


def as_stored(resumed: Resumed) -> tuple[tuple[Root, ...], Options]:
    """What the job copies, and how, as it was asked for; raises ``Refused``."""
    return tuple(Root(*root[:8]) for root in resumed.roots), _options_from_primitives(resumed.job.file.options)


def go_on(
    resumed: Resumed, size: int, checkpoint: Checkpoint, options: Options, given: frozenset[str]
) -> tuple[Job, KeptJob]:
    """The next run of a stored job, on ``size`` ranks; raises ``Refused``. From here on the earlier run is gone."""
    from pcopy.checkpoint.resume import compact, has_begun
    from pcopy.cli.missing import Missing

    file = resumed.job.file
    roots, stored = as_stored(resumed)
    options = renewed(stored, options, given)._replace(umask=file.umask)
    least = int(Phase.REPAIR_VERIFY)

    def address(task: Task) -> Task | None:
        nonlocal least
        new = readdress(task, size)
        if new is not None and not waits_for_others(new):
            least = min(least, new.phase)
        return new

    if not has_begun(resumed.job.path):
        job = Job(file.name, file.runs + 1, roots, options, began=file.t0, mounts=file.mounts)
        return _begin_again(resumed, job, checkpoint)
    spool, links = spool_in(checkpoint.spool), options.preserve.links
    missing = Missing(roots, file.mounts, spool, keeps=options.keeps, links=links)
    with naming(resumed.job.path), refusing(checkpoint.spool):
        remaining = compact(
            resumed.job.path, size, address=address, mending=missing, open_spool=spool_in(checkpoint.spool)
        )
    job = Job(file.name, remaining.run, roots, options, began=file.t0, mounts=file.mounts)
    job = job._replace(resumed=_destination_time(job))
    file = file._replace(runs=remaining.run, state=RUNNING)
    update(StoredJob(resumed.job.path, file))
    phase = min(least, remaining.phase)
    keeping = unkept(checkpoint)._replace(
        directory=resumed.job.path, nonce=file.nonce, resumed=True, phase=phase, counts=remaining.counts
    )
    return job, KeptJob(keeping, file, resumed.job.path, resumed.lock, missing.notices)


def _begin_again(resumed: Resumed, job: Job, checkpoint: Checkpoint) -> tuple[Job, KeptJob]:
    """The next run of a job of which no run has left a record: it has the number of none of them, and all to do."""
    file, path = resumed.job.file._replace(runs=job.run, state=RUNNING), resumed.job.path
    update(StoredJob(path, file))
    keeping = unkept(checkpoint)._replace(directory=path, nonce=file.nonce, at_start=True)
    return job, KeptJob(keeping, file, path, resumed.lock)


def _destination_time(job: Job) -> int:
    """The destination's clock, in nanoseconds since 1970: the ctime of a file that is made there and vanishes again."""
    target = job.roots[0].target
    with suppress(OSError):  # not all file systems have files without a name
        descriptor = os.open(target, os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
        try:
            return os.fstat(descriptor).st_ctime_ns
        finally:
            os.close(descriptor)
    return _time_of_named_file(target, os.path.join(target, b".pcopy-%s-clock" % job.name.encode()))


def _time_of_named_file(target: bytes, name: bytes) -> int:
    """The directory keeps its times where that is allowed: the job may be refused yet, or have nothing to do there."""
    try:
        before = os.stat(target)
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return time.time_ns()  # what can't be written will be told of by the copy
    try:
        return os.fstat(descriptor).st_ctime_ns
    finally:
        os.close(descriptor)
        with suppress(OSError):
            os.unlink(name)
            os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))


def _options_as_primitives(options: Options) -> dict[str, Any]:
    return {**options._asdict(), "preserve": options.preserve._asdict()}


def _options_from_primitives(plain: Any) -> Options:
    fields = dict(plain)
    preserve = dict(fields.pop("preserve"))
    try:
        return Options(Preserve(**{**preserve, "chown": tuple(preserve["chown"])}), **fields)
    except (TypeError, KeyError):
        raise Refused(f"the job was begun by another pcopy, which has other options; {END_IT}") from None
