"""Job directories: made, found, opened and removed.

A job directory holds the file ``job`` (what the job is), ``lock-RANK`` files, and what the ranks have recorded. Rules:
a directory that holds anything else is none, and never becomes one; from one that is removed only files with pcopy's
names go, so that whatever a user has put there stays; ``job`` goes last, and says before that it means
nothing any more.

In the state directory each job has a directory of its own name; ``--checkpoint DIR`` may be anywhere.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from pcopy.checkpoint import directory as files
from pcopy.checkpoint.directory import ADVICE, check_makeable, make, opened
from pcopy.checkpoint.job_file import OVER, JobFile, decode, encode
from pcopy.checkpoint.layout import RUN as _RUN
from pcopy.checkpoint.lock import NAME as LOCK_NAME
from pcopy.checkpoint.lock import Held, Lock, hold_alone
from pcopy.errors import Refused
from pcopy.text import shown

_JOB = b"job"
_FILE = re.compile(rb"(job|current)(\.new)?")
_OF_RUN = re.compile(rb"(base|facts)-[0-9]+(\.new)?")
ABANDONED = 86400.0
"""Seconds after which a directory among the jobs that holds none is what a killed process has left."""

_SILLY = b".nfs"  # what NFS makes of a removed file that is still open; it goes by itself


class NoJob(Refused):
    """There is no job in the directory."""


class Unreadable(Refused):
    """The job's file is not what this pcopy writes."""


class StoredJob(NamedTuple):
    """A job and its directory (an absolute path)."""

    path: bytes
    file: JobFile


class Listed(NamedTuple):
    """A directory among the jobs: ``file`` is None where it cannot be used, and ``trouble`` says why."""

    path: bytes
    file: JobFile | None
    trouble: str


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


def check_place(directory: bytes | None) -> None:
    """Raises ``Refused`` if no job directory can be had in ``directory`` (None: the state directory).

    Nothing is made: that a job will be able to store itself is worth knowing before its work.
    """
    check_makeable(directory or state_directory())


def create(directory: bytes | None, job: JobFile) -> tuple[StoredJob, Lock]:
    """Stores a new job in ``directory`` (None: in the state directory, by its name), and takes its lock for rank 0.

    Raises ``Refused`` if there is a job already, or anything that is not pcopy's, or if it cannot be written.
    """
    made: list[bytes] = []
    try:
        if directory is None:
            state = state_directory()
            made = make(state)
            os.close(files.open_directory(state))  # nobody else's
            _sweep(state)
            directory = os.path.join(state, job.name.encode())
        path = os.path.abspath(directory)
        made = make(path) + made
        if not is_in_state_directory(path):
            job = job._replace(above=tuple(made[1:]))
        with opened(path) as descriptor:
            _refuse_foreign(path, descriptor)
            lock = _held_anew(path, descriptor)
            _store_anew(path, descriptor, job, lock)
    except BaseException:
        files.remove_empty(made)
        raise
    return StoredJob(path, job), lock


def _sweep(state: bytes) -> None:
    """Removes what killed processes have left of jobs that were not stored yet, or were over; what can't go stays."""
    for name in sorted(map(os.fsencode, os.listdir(state))):
        path = os.path.join(state, name)
        with suppress(Refused, OSError):
            if time.time() - os.lstat(path).st_mtime > ABANDONED and not is_job(path):
                with suppress(OSError):
                    os.rmdir(path)  # if there is nothing in it any more
                remove_unreadable(path)


def _held_anew(path: bytes, descriptor: int) -> Lock:
    """Rank 0's lock; raises as ``_held`` does, and then leaves no file that it has made."""
    was_there = b"lock-0" in _names(descriptor)
    try:
        return _held(path)
    except Held:
        raise
    except Refused:
        if not was_there:
            _unlink(descriptor, b"lock-0")
        raise


def _store_anew(path: bytes, descriptor: int, job: JobFile, lock: Lock) -> None:
    """Raises ``Refused`` if there is a job already, or if none can be stored; then nothing of that is left."""
    try:
        if _JOB in _names(descriptor) and _read(path, descriptor).state != OVER:
            raise Refused(f"{shown(path)}: there is a job already; --resume or --discard it, or name another place")
    except BaseException:
        lock.close()
        raise
    try:
        _clear(descriptor)
        _write(path, descriptor, job)
    except BaseException:
        _unlink(descriptor, _JOB, _JOB + files.NEW)
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
        return _JOB in _names(descriptor) and _read(path, descriptor).state != OVER


def open_job(path: bytes) -> StoredJob:
    """The job in the directory ``path``, as it stands; raises ``Refused``."""
    path = os.path.abspath(path)
    with opened(path) as descriptor:
        return StoredJob(path, _read(path, descriptor))


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
            os.rmdir(path)
        lock.close()
        raise _over(path) from None
    except BaseException:
        lock.close()
        raise


def _held(path: bytes) -> Lock:
    """Rank 0's lock in a directory that was there just now; raises as ``hold_alone`` does."""
    try:
        return hold_alone(path)
    except Held:
        raise
    except Refused:
        if os.path.lexists(path):
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
        names = _names(descriptor)
    good, bad = [], []
    for name in sorted(names):
        path = os.path.join(state, name)
        try:
            job = open_job(path)
        except NoJob:  # none yet, or no more
            continue
        except Refused as refused:
            if os.path.isdir(path):
                bad.append(Listed(path, None, str(refused)))
            continue
        if job.file.state != OVER:
            good.append(Listed(path, job.file, ""))
    good.sort(key=lambda listed: listed.file.created if listed.file else 0.0, reverse=True)
    return good + bad


def remove(job: StoredJob, lock: Lock) -> Sequence[bytes]:
    """Removes all of the job that is pcopy's, and its directory if nothing else is in it.

    ``lock`` is rank 0's and is given back; all other ranks have given back theirs. Returns the names that have been
    left; raises ``Refused`` if something cannot be removed.
    """
    with opened(job.path) as descriptor:
        with suppress(Refused):  # a full disk must not keep what fills it
            _write(job.path, descriptor, job.file._replace(state=OVER))
        left = _remove(job.path, descriptor, lock)
    if not os.path.lexists(job.path):
        files.remove_empty(job.file.above)
    return left


def remove_rest(job: StoredJob) -> None:
    """Removes what other ranks have written while the job was removed. Whatever cannot be removed stays: it is none."""
    with suppress(Refused, OSError), opened(job.path) as descriptor:
        if _JOB not in _names(descriptor):
            _clear(descriptor)
            os.rmdir(job.path)
            files.remove_empty(job.file.above)


def remove_unreadable(path: bytes) -> None:
    """As ``remove``, where nobody can read what the job was; raises ``Refused`` unless it was certainly one."""
    with opened(path) as descriptor:
        _refuse_foreign(path, descriptor)
        if b"lock-0" not in _names(descriptor):  # a file called "job" alone may be anybody's
            raise NoJob(f"{shown(path)}: no job is in this directory")
        _remove(path, descriptor, hold_alone(path))


def _remove(path: bytes, descriptor: int, lock: Lock) -> Sequence[bytes]:
    try:
        _clear(descriptor)
        with suppress(FileNotFoundError):
            os.unlink(_JOB, dir_fd=descriptor)
        lock.close()  # an open file would keep its place on NFS
        with suppress(FileNotFoundError):
            os.unlink(b"lock-%d" % lock.rank, dir_fd=descriptor)
        files.sync(descriptor)
    except OSError as error:
        raise Refused(f"{shown(path)}: the job cannot be removed: {error.strerror}") from None
    left = [name for name in _names(descriptor) if not name.startswith(_SILLY)]
    if not left:
        with suppress(OSError):  # it may be in a directory that is not ours, or on NFS not quite empty yet
            os.rmdir(path)
    return left


def _home() -> bytes:
    home = os.environb.get(b"HOME", b"")
    if home.startswith(b"/"):
        return home
    import pwd

    try:
        home = os.fsencode(pwd.getpwuid(os.geteuid()).pw_dir)
    except KeyError:
        home = b""
    if not home.startswith(b"/"):
        raise Refused(f"no home directory is known to keep jobs in; {ADVICE}")
    return home


def _names(descriptor: int) -> list[bytes]:
    return [os.fsencode(name) for name in os.listdir(descriptor)]


def _is_ours(name: bytes) -> bool:
    return any(pattern.fullmatch(name) for pattern in (_FILE, _RUN, LOCK_NAME)) or name.startswith(_SILLY)


def _refuse_foreign(path: bytes, descriptor: int) -> None:
    for name in _names(descriptor):
        if not _is_ours(name):
            raise Refused(f"{shown(path)}: holds {shown(name)}, which is no job's; name a new or an empty directory")


def _read(path: bytes, descriptor: int) -> JobFile:
    where = shown(os.path.join(path, _JOB))
    try:
        job = decode(files.read(descriptor, _JOB, where=path))
    except FileNotFoundError:
        raise NoJob(f"{shown(path)}: no job is in this directory") from None
    except OSError as error:
        raise Refused(f"{where}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise Unreadable(f"{where}: {error}") from None
    if job.user != os.geteuid():
        raise Refused(f"{where}: a job of user {job.user}, who alone can go on with it")
    return job


def _write(path: bytes, descriptor: int, job: JobFile) -> None:
    try:
        files.replace(descriptor, _JOB, encode(job))
    except OSError as error:
        raise Refused(f"{shown(path)}: the job cannot be stored: {error.strerror}; {ADVICE}") from None


def _clear(descriptor: int) -> None:
    """Removes all that is pcopy's but ``job`` and rank 0's lock. Raises ``OSError``."""
    for name in _names(descriptor):
        if _RUN.fullmatch(name):
            _clear_run(descriptor, name)
        elif name not in (_JOB, b"lock-0") and _is_ours(name) and not name.startswith(_SILLY):
            with suppress(IsADirectoryError):
                os.unlink(name, dir_fd=descriptor)


def _clear_run(descriptor: int, name: bytes) -> None:
    try:
        run = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
    except NotADirectoryError:
        return
    try:
        for inner in _names(run):
            if _OF_RUN.fullmatch(inner):
                with suppress(IsADirectoryError):
                    os.unlink(inner, dir_fd=run)
    finally:
        os.close(run)
    with suppress(OSError):
        os.rmdir(name, dir_fd=descriptor)
