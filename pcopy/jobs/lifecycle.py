"""A job on rank 0 between its command line and its end: stored for the first time, gone on with, or over."""

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
"""Phases that begin anew in a job that goes on: some of what was left to delete is told by no task, and there may be
more by now than may be deleted."""

END_PATIENCE = 0.4
"""Seconds that a job which was told to stop waits for its last words: what is on record holds without them."""


class Keeping(NamedTuple):
    """How a job is kept, so that it can be gone on with: what every rank has to know.

    ``directory`` is an absolute path, or empty: the job is not kept. ``interval`` is in seconds, ``memory`` in bytes of
    waiting work on one host (0: automatic), an empty ``spool`` stands for the default. A resumed job goes on with
    ``phase``; ``counts`` are what its earlier runs have counted, and ``deleted`` is what they have deleted.
    ``at_start``: the job is durably in its directory before the first task.
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
"""A notice about a destination. The checkpoint of the job is not used."""


@contextmanager
def naming(directory: bytes) -> Iterator[None]:
    """An error of the system is told with the directory: the calls name files relative to it, or none."""
    try:
        yield
    except OSError as error:
        raise Refused(f"{shown(directory)}: cannot be written: {error.strerror}") from None


class KeptJob:
    """Rank 0's knowledge of where a job is kept. ``keeping`` is for all ranks."""

    def __init__(self, keeping: Keeping, file: JobFile, lock: Lock | None = None) -> None:
        """``lock`` is rank 0's of a job that is stored already."""
        self.notices: list[str] = []
        self.keeping = keeping
        self.is_stored = lock is not None
        self.listed: BinaryIO | None = None
        """The job's list of files, where it is not kept yet."""
        self._job = StoredJob(keeping.directory, file)
        self._lock = lock
        self._is_given_up = False
        self.has_vanished = False
        """Was the job removed by somebody else?"""

    def withdraw(self) -> None:
        """Nothing comes of a job that was stored just now; one that was there before stays."""
        if self.is_stored and self._lock is not None and self._job.file.runs == 1:
            remove(self._job, self._lock)
            self.is_stored = False

    def give_up(self) -> None:
        """Nothing more can be recorded, and the job goes on: it is not to be resumed from what there is.

        Raises ``Refused``. May run in another thread.
        """
        if self.look() and self._lock is not None:
            self.is_stored, self._is_given_up = False, True
            remove(self._job, self._lock)

    def note(self) -> None:
        """Puts the job into its directory, as far as that can be had without waiting for storage; raises ``Refused``.

        Killed from now on, it can be gone on with.
        """
        if not self.is_stored:
            self._create(durable=False)

    def create(self) -> None:
        """Makes the job's directory unless it is there, durably; raises ``Refused``. May run in another thread."""
        if not self.is_stored:
            self._create(durable=True)
        elif self._job.unsynced:
            self._job = make_durable(self._job)

    def _create(self, *, durable: bool) -> None:
        directory = self.keeping.directory if self.keeping.at_start else None
        with naming(self.keeping.directory):
            self._job, self._lock = create(directory, self._job.file, durable=durable, listed=self.listed)
        self.is_stored = True

    def note_targets(self) -> None:
        """Puts on record which directories are copied to, as soon as they are there and synced; raises ``Refused``.

        One that is not on stable storage may be gone after a crash, and the job goes on all the same.
        """
        roots = tuple(map(with_made, self._job.file.roots))
        if roots != self._job.file.roots and self.is_stored:
            self._job = make_durable(self._with(roots=roots))

    def note_mounts(self, mounts: tuple[Mount, ...]) -> None:
        """Puts on record what is mounted below the roots."""
        if mounts != self._job.file.mounts:
            self._job = self._with(mounts=mounts)
            if self.is_stored:
                with suppress(Refused):  # these have come by themselves, and will again
                    update(self._job)

    def _with(self, **fields: Any) -> StoredJob:
        return self._job._replace(file=self._job.file._replace(**fields))

    def look(self) -> bool:
        """Is the job stored, and was it not removed by somebody else?"""
        if self.is_stored and not os.path.lexists(os.path.join(self._job.path, b"job")):
            self.is_stored, self.has_vanished = False, True
        return self.is_stored

    def end(self, status: int, totals: Totals, patience: float | None = None, *, is_durable: bool = True) -> list[str]:
        """The job is over, or waits to be gone on with; returns what is worth telling. Raises ``Refused``.

        What is left to do in the directory of a job that waits, or was given up, is left after ``patience`` seconds.
        ``is_durable``: all that the job has written is on stable storage. Otherwise a loss of power does to its files
        what a kill may do.
        """
        if self._is_given_up:
            _is_done_within(patience, partial(remove_rest, self._job))
        if not self.is_stored or self._lock is None:
            return []
        if status == OK:
            left = remove(self._job, self._lock) if self.look() else ()
            return [f"{shown(os.path.join(self.keeping.directory, name))}: left, it is not pcopy's" for name in left]
        state = (FAILED_ITEMS if totals.failed else NOT_ALL_WRITTEN) if status == INCOMPLETE else STOPPED
        killed = self._job.file.killed or not is_durable
        ended = self._with(state=state, totals=totals._asdict(), killed=killed)
        if _is_done_within(patience, lambda: self.look() and make_durable(ended)):
            self._lock.close()
        return []


def _is_done_within(patience: float | None, action: Callable[[], object]) -> bool:
    """Does what is left to do in the job's directory, and leaves a slow storage behind after ``patience`` seconds.

    Raises ``Refused``.
    """
    troubles: list[Refused] = []

    def run() -> None:
        try:
            action()
        except Refused as refused:
            troubles.append(refused)
        except HINDRANCES as error:
            text = f"what is stored of the job may not tell how it has ended: {hindrance(error)}"
            troubles.append(Refused(text))

    try:
        is_over = Beside(run).is_over(patience)
    except OSError:  # no thread is to be had: then it is waited for
        run()
        is_over = True
    if troubles:
        raise troubles[0]
    return is_over


def resuming(directory: bytes) -> str:
    """The command that goes on with the job in ``directory``."""
    return f"pcopy --resume {word_of(directory)}"


def keep_new(job: Job, keeping: Keeping, asked: dict[str, Any]) -> tuple[Job, KeptJob]:
    """A job that begins, in ``keeping.directory`` (empty: in the state directory); nothing is stored yet.

    Raises ``Refused`` if it could not be.
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
    """The job's own files are no part of what it copies."""
    place = os.path.realpath(directory)
    for tree in (*map(source_of, roots), filled_by(roots)):
        if lies_in(place, tree):
            raise Refused(
                f"{shown(directory)}: lies in {shown(tree)}, which is copied from or to; name another directory "
                "to keep the job in, outside of it"
            )


def as_stored(job: StoredJob) -> tuple[tuple[Root, ...], Options]:
    """What the job copies, and how, as it was asked for; raises ``Refused``."""
    return tuple(root.plain for root in job.file.roots), options_from_primitives(job.file.options)


def go_on(stored: StoredJob, lock: Lock, size: int, keeping: Keeping, options: Options) -> tuple[Job, KeptJob]:
    """The next run of a stored job, on ``size`` ranks, with ``options``; raises ``Refused``.

    From here on the earlier run is gone.
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
    missing = Missing(roots, file.mounts, spool, options)
    try:
        with naming(path), refusing(keeping.spool):
            remaining = compact(
                path,
                size,
                address=address,
                mending=missing,
                open_spool=spool,
                least_counts={counts.DELETED: keeping.deleted},
            )
    except InvariantBroken as broken:  # an unknown task is another version's, though the file has not told of that
        raise Refused(f"{broken}; this pcopy reads version {FORMAT} of tasks; {END_IT}") from None
    job = job._replace(run=remaining.run, resumed=_destination_time(job))
    file = file._replace(runs=remaining.run, state=RUNNING, stored=remaining.began or file.stored)
    update(StoredJob(path, file))
    phase = min(least, remaining.phase)
    if phase in _DELETION:
        phase = int(Phase.NAME)
    keeping = keeping._replace(resumed=True, phase=phase, counts=remaining.counts, at_start=False)
    kept = KeptJob(keeping, file, lock)
    kept.notices = missing.notices
    return job, kept


def _begun_anew(stored: StoredJob, lock: Lock, job: Job, keeping: Keeping, *, is_lost: bool) -> tuple[Job, KeptJob]:
    """As ``go_on``, where no run has left a record, or none that is trusted (``is_lost``).

    This run has a number of its own, and all to do.
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
    kept = KeptJob(keeping._replace(at_start=True), file, lock)
    if is_lost:
        kept.notices = [f"{shown(filled_by(job.roots))}: {BEGINS_ANEW}"]
    return job, kept


def _deleted_in(directory: bytes) -> int:
    from pcopy.jobs.deleted import deleted_in

    with naming(directory):
        return deleted_in(directory)


def _destination_time(job: Job) -> int:
    """The destination's clock, in nanoseconds since 1970: the ctime of a file that is made there and vanishes again.

    A file that must have a name is made in the directory around the target, if that is of the same file system: so the
    target's own ctime stays as it is where there is nothing to copy.
    """
    if job.options.sequential:  # a file there may have no such name, or could not be removed
        return time.time_ns()
    target = job.roots[0].target
    flags = os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC  # not all file systems have files without a name
    with suppress(OSError), held_open(open_patiently(target, flags, 0o600)) as descriptor:
        return os.fstat(descriptor).st_ctime_ns
    for path in (os.path.join(target, b".."), target):
        with (
            suppress(OSError),
            held_open(open_patiently(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as directory,
        ):
            if os.fstat(directory).st_dev == os.stat(target).st_dev:
                return _time_of_named_file(directory, b".pcopy-%s-clock" % job.name.encode())
    return time.time_ns()  # the copy reports what cannot be written


def _time_of_named_file(directory: int, name: bytes) -> int:
    """The directory keeps its times where that is allowed: the job may be refused yet, or have nothing to do there.

    Raises ``OSError``.
    """
    before = os.fstat(directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = open_patiently(name, flags, 0o600, dir_fd=directory)
    try:
        return os.fstat(descriptor).st_ctime_ns
    finally:
        with suppress(OSError):  # nothing was written
            os.close(descriptor)
        with suppress(OSError):
            os.unlink(name, dir_fd=directory)
            os.utime(directory, ns=(before.st_atime_ns, before.st_mtime_ns))


def options_as_primitives(options: Options) -> dict[str, Any]:
    return {**options._asdict(), "preserve": options.preserve._asdict(), "select": options.select._asdict()}


def options_from_primitives(plain: Any) -> Options:
    fields = dict(plain)
    preserve, select = dict(fields.pop("preserve")), dict(fields.pop("select", ()))
    try:
        kept = Preserve(**{**preserve, "chown": tuple(preserve["chown"])})
        chosen = Select(**{**select, "patterns": tuple(select["patterns"])})
        return Options(kept, select=chosen, **fields)
    except (TypeError, KeyError):
        raise Refused(f"the job was begun by another pcopy, which has other options; {END_IT}") from None
