"""Job directories: made, found, opened and removed.

A job directory holds the file ``job`` (what the job is), ``lock-RANK`` files, and what the ranks have recorded. Rules:
a directory with any other file is no job directory, and never becomes one. When a job directory is removed, only files
with pcopy's names go, so that files of the user stay. ``job`` goes last; before that it is marked as ``over``.

In the state directory each job has a directory of its own name; ``--checkpoint DIR`` may be anywhere.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import BinaryIO, TypeVar

from pcopy.checkpoint import directory as files
from pcopy.checkpoint.directory import ADVICE, make, opened
from pcopy.checkpoint.layout import CURRENT, END_IT, FILES_FROM, JOB, LOCK, SILLY, clear, names, refuse_foreign
from pcopy.errors import Refused
from pcopy.fsio.durable import sync_directory, sync_directory_at
from pcopy.jobs.job_file import OVER, JobFile, JobRoot, OtherVersion, decode, encode, nonce_in
from pcopy.jobs.lock import Held, Lock, hold_alone
from pcopy.named import NamedTuple
from pcopy.text import for_shell, shown

_Value = TypeVar("_Value")

ABANDONED = 86400.0
"""Seconds after which a directory among the jobs that holds none is what a killed process has left."""


class NoJob(Refused):
    """There is no job in the directory."""


class Unreadable(Refused):
    """The job's file is not what this pcopy writes: ``what`` it is, in words; with its ``roots`` if they are known."""

    def __init__(self, what: str, way_out: str, roots: tuple[JobRoot, ...] = ()) -> None:
        super().__init__(f"{what}; {way_out}")
        self.what = what
        self.roots = roots


class StoredJob(NamedTuple):
    """A job and its directory (an absolute path).

    ``unsynced``: the directories that a job which is not on stable storage yet was put into; empty for all others.
    """

    path: bytes
    file: JobFile
    unsynced: tuple[bytes, ...] = ()


class Listed(NamedTuple):
    """A directory among the jobs: ``file`` is None where it cannot be used, and ``trouble`` says why.

    ``roots`` are those of a job of another version, as far as they are known.
    """

    path: bytes
    file: JobFile | None
    trouble: str
    roots: tuple[JobRoot, ...] = ()


def state_directory() -> bytes:
    """Where jobs are kept unless the user says otherwise: ``${XDG_STATE_HOME:-~/.local/state}/pcopy``.

    As the XDG Base Directory Specification wants it, a path that is not absolute is ignored. Without HOME the user's
    home is asked of the system; raises ``Refused`` if that knows none.
    """
    state = os.environb.get(b"XDG_STATE_HOME", b"")
    if not state.startswith(b"/"):
        state = os.path.join(_home(), b".local/state")
    return os.path.abspath(os.path.join(state, b"pcopy"))


def is_in_state_directory(path: bytes) -> bool:
    """Is this the place of a job that goes by its name? Nothing is where no home is known."""
    with suppress(Refused):
        return os.path.dirname(path) == state_directory()
    return False


def word_of(path: bytes) -> str:
    """What ``--resume`` and ``--discard`` call the job in ``path``, for a shell."""
    return for_shell(os.path.basename(path) if is_in_state_directory(path) else path)


def create(
    directory: bytes | None, job: JobFile, *, durable: bool = True, listed: BinaryIO | None = None
) -> tuple[StoredJob, Lock]:
    """Stores a new job in ``directory`` (None: in the state directory, by its name), and takes its lock for rank 0.

    ``listed``: its list of files. One that need not be ``durable`` waits for no storage, and may be gone after a power
    cut, until ``make_durable``.
    Raises ``Refused`` if there is a job already, or anything that is not pcopy's, or if it cannot be written.
    """
    made: list[bytes] = []
    try:
        if directory is None:
            state = state_directory()
            made = make(state, durable=durable)
            _sweep(state)
            directory = os.path.join(state, job.name.encode())
        path = os.path.abspath(directory)
        made = make(path, durable=durable) + made
        if not is_in_state_directory(path):
            job = job._replace(above=tuple(made[1:]))
        with opened(path) as descriptor:
            refuse_foreign(path, descriptor)
            lock = _held_anew(path, descriptor)
            _store_anew(path, descriptor, job, lock, durable, listed)
    except BaseException:
        files.remove_empty(made)
        raise
    around = () if durable else tuple(dict.fromkeys(map(os.path.dirname, (path, *made))))
    return StoredJob(path, job, around), lock


def make_durable(job: StoredJob) -> StoredJob:
    """Stores ``job.file`` in place of what is stored, and all that leads to it, durably; raises ``Refused``."""
    update(job)
    try:
        for path in job.unsynced:
            sync_directory_at(path)
    except OSError as error:
        raise _not_stored(job.path, error) from None
    return job._replace(unsynced=())


def _sweep(state: bytes) -> None:
    """Removes what killed processes have left of jobs that were not stored yet, or were over; what can't go stays.

    Raises ``Refused`` if the directory is not safely ours.
    """
    with opened(state) as descriptor:
        found = names(descriptor)
    for name in sorted(found):
        path = os.path.join(state, name)
        with suppress(Refused, OSError):
            if time.time() - os.lstat(path).st_mtime > ABANDONED and not is_job(path):
                files.remove_empty([path])  # if there is nothing in it any more
                remove_unreadable(path)


def _held_anew(path: bytes, descriptor: int) -> Lock:
    """Rank 0's lock; raises as ``_held`` does, and then leaves no file that it has made."""
    was_there = b"lock-0" in names(descriptor)
    try:
        return _held(path)
    except Refused as refused:
        if not was_there and not isinstance(refused, Held):
            _unlink(descriptor, b"lock-0")
        raise


def _store_anew(path: bytes, descriptor: int, job: JobFile, lock: Lock, durable: bool, listed: BinaryIO | None) -> None:
    """Raises ``Refused`` if there is a job already, or if none can be stored; then nothing of that is left."""
    try:
        if _holds_job(path, descriptor):
            raise Refused(f"{shown(path)}: there is a job already; --resume or --discard it, or name another place")
    except BaseException:
        lock.close()
        raise
    try:
        clear(descriptor)
        if listed is not None:
            from pcopy.jobs.files_from import keep as keep_list

            keep_list(listed, descriptor, durable=durable)
        _write(path, descriptor, job, durable=durable)
    except BaseException:
        _unlink(descriptor, JOB, JOB + files.NEW, FILES_FROM)
        lock.close()  # an open file would keep its place on NFS
        _unlink(descriptor, b"lock-0")
        raise


def _unlink(descriptor: int, *names: bytes) -> None:
    for name in names:
        with suppress(OSError):
            os.unlink(name, dir_fd=descriptor)


def is_job(path: bytes) -> bool:
    """Whether there is an unfinished job in ``path``; raises ``Refused`` if there is something that cannot be used."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise Refused(f"{shown(path)}: cannot be looked at: {error.strerror}") from None
    with opened(path) as descriptor:
        return _holds_job(path, descriptor)


def _holds_job(path: bytes, descriptor: int) -> bool:
    with suppress(NoJob):
        return _read(path, descriptor).state != OVER
    return False


def open_job(path: bytes) -> StoredJob:
    """The job in the directory ``path``, as it stands; raises ``Refused``."""
    path = os.path.abspath(path)
    with opened(path) as descriptor:
        return StoredJob(path, _read(path, descriptor))


def nonce_of(path: bytes) -> str:
    """Return the nonce of the job in the directory ``path``; raise ``Refused``.

    The roots of the job, of which there may be many, are not decoded.
    """
    with opened(path) as descriptor:
        return _read_as(nonce_in, path, descriptor)


def take(path: bytes) -> tuple[StoredJob, Lock]:
    """The unfinished job in ``path``, to be gone on with, and its lock for rank 0.

    Raises ``Held`` while any rank of an earlier run works on it, ``Refused`` for whatever else is in the way.
    """
    job, lock = hold_job(path)
    if job.file.state == OVER:
        lock.close()
        raise Refused(f"{shown(path)}: this job is over; there is nothing to go on with")
    return job, lock


def hold_job(path: bytes) -> tuple[StoredJob, Lock]:
    """The job in ``path`` as it stands, and its lock for rank 0; raises as ``take`` does."""
    open_job(path)  # where there is none, no lock file is left
    lock = _held(path)
    try:
        return open_job(path), lock
    except NoJob:
        with suppress(OSError, Refused), opened(path) as descriptor:
            os.unlink(b"lock-0", dir_fd=descriptor)
            files.remove_empty([path])
        lock.close()
        raise _over(path) from None
    except BaseException:
        lock.close()
        raise


def _held(path: bytes) -> Lock:
    """Rank 0's lock in a directory that was there just now; raises as ``hold_alone`` does."""
    try:
        return hold_alone(path)
    except Refused as refused:
        if isinstance(refused, Held) or os.path.lexists(path):
            raise
        raise _over(path) from None


def _over(path: bytes) -> Refused:
    return Refused(f"{shown(path)}: the job is over meanwhile")


def update(job: StoredJob) -> None:
    """Stores ``job.file`` in place of what is stored, durably; raises ``Refused``."""
    with opened(job.path) as descriptor:
        _write(job.path, descriptor, job.file)


def unfinished(state: bytes) -> list[Listed]:
    """All jobs in the state directory, newest first, then what looks like one and cannot be used.

    Raises ``Refused`` if the directory is not safely ours.
    """
    try:
        os.lstat(state)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Refused(f"{shown(state)}: cannot be looked at: {error.strerror}") from None
    with opened(state) as descriptor:
        there = names(descriptor)
    good, bad = [], []
    for name in sorted(there):
        path = os.path.join(state, name)
        try:
            job = open_job(path)
        except NoJob:  # none yet, or no more
            continue
        except Refused as refused:
            if os.path.isdir(path):
                roots = refused.roots if isinstance(refused, Unreadable) else ()
                bad.append(Listed(path, None, str(refused), roots))
            continue
        if job.file.state != OVER:
            good.append(Listed(path, job.file, ""))
    good.sort(key=lambda listed: listed.file.created if listed.file else 0.0, reverse=True)
    return good + bad


def last_worked_on(job: Listed) -> float:
    """When something was recorded of the job for the last time, in seconds since 1970."""
    times = [job.file.created if job.file else 0.0]
    for directory, _, found in os.walk(job.path):
        for name in found:
            if not re.fullmatch(LOCK, name):  # whoever asks for it in vain touches it
                with suppress(OSError):
                    times.append(os.lstat(os.path.join(directory, name)).st_mtime)
    return max(times)


def remove(job: StoredJob, lock: Lock) -> Sequence[bytes]:
    """Removes all of the job that is pcopy's, and its directory if nothing else is in it.

    ``lock`` is rank 0's and is given back; all other ranks have given back theirs. Returns the names that have been
    left; raises ``Refused`` if something cannot be removed.
    """
    with opened(job.path) as descriptor:
        if not job.unsynced:
            with suppress(Refused):  # a full disk must not keep what fills it
                _write(job.path, descriptor, job.file._replace(state=OVER))
        left = _remove(job.path, descriptor, lock, durable=not job.unsynced)
    if not os.path.lexists(job.path):
        files.remove_empty(job.file.above)
    return left


def remove_rest(job: StoredJob) -> None:
    """Removes what other ranks have written while the job was removed. Whatever cannot be removed stays: it is none."""
    with suppress(Refused, OSError), opened(job.path) as descriptor:
        if JOB not in names(descriptor):
            clear(descriptor)
            files.remove_empty([job.path, *job.file.above])


def remove_unreadable(path: bytes) -> None:
    """As ``remove``, where nobody can read what the job was; raises ``Refused`` unless it was certainly one."""
    with opened(path) as descriptor:
        refuse_foreign(path, descriptor)
        if b"lock-0" not in names(descriptor):  # a file called "job" alone may be anybody's
            raise NoJob(f"{shown(path)}: no job is in this directory")
        _remove(path, descriptor, hold_alone(path))


def _remove(path: bytes, descriptor: int, lock: Lock, *, durable: bool = True) -> Sequence[bytes]:
    try:
        clear(descriptor)
        with suppress(FileNotFoundError):
            os.unlink(JOB, dir_fd=descriptor)
        lock.close()  # an open file would keep its place on NFS
        with suppress(FileNotFoundError):
            os.unlink(b"lock-%d" % lock.rank, dir_fd=descriptor)
        if durable:
            sync_directory(descriptor)
    except OSError as error:
        raise Refused(f"{shown(path)}: the job cannot be removed: {error.strerror}") from None
    left = [name for name in names(descriptor) if not name.startswith(SILLY)]
    if not left:
        files.remove_empty([path])  # it may be in a directory that is not ours, or on NFS not quite empty yet
    return left


def _home() -> bytes:
    home = os.environb.get(b"HOME", b"")
    if not home.startswith(b"/"):
        import pwd

        with suppress(KeyError):
            home = os.fsencode(pwd.getpwuid(os.geteuid()).pw_dir)
    if not home.startswith(b"/"):
        raise Refused(f"no home directory is known to keep jobs in; {ADVICE}")
    return home


def _read(path: bytes, descriptor: int) -> JobFile:
    job = _read_as(decode, path, descriptor)
    if job.user != os.geteuid():
        where = shown(os.path.join(path, JOB))
        raise Refused(f"{where}: a job of user {job.user}, who alone can go on with it")
    return job


def _read_as(decoded: Callable[[bytes], _Value], path: bytes, descriptor: int) -> _Value:
    where = shown(os.path.join(path, JOB))
    try:
        contents = files.read(descriptor, JOB, where=path)
        if not contents.strip(b"\0") and CURRENT not in names(descriptor):
            raise FileNotFoundError  # what a power cut has left of a job that was not on stable storage yet
        return decoded(contents)
    except FileNotFoundError:
        raise NoJob(f"{shown(path)}: no job is in this directory") from None
    except OSError as error:
        raise Refused(f"{where}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        ways_out = END_IT if isinstance(error, OtherVersion) else "discard it: pcopy --discard JOB"
        roots = error.roots if isinstance(error, OtherVersion) else ()
        raise Unreadable(f"{where}: {error}", ways_out.replace("JOB", word_of(path)), roots) from None


def _write(path: bytes, descriptor: int, job: JobFile, *, durable: bool = True) -> None:
    try:
        files.replace(descriptor, JOB, encode(job), durable=durable)
    except OSError as error:
        raise _not_stored(path, error) from None


def _not_stored(path: bytes, error: OSError) -> Refused:
    return Refused(f"{shown(path)}: the job cannot be stored: {error.strerror}; {ADVICE}")
