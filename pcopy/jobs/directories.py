"""Job directories: created, listed, opened and removed.

A job directory holds the file ``job`` (a description of the job), ``lock-RANK`` files, and the records of the ranks.
Rules:
- A directory with any other file is no job directory, and never becomes one.
- When a job directory is removed, only files with pcopy's names are removed, so that the user's files remain.
- The file ``job`` is marked as ``over`` first and removed last.

In the state directory each job has a directory with the job's name. ``--checkpoint DIR`` may be anywhere.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import BinaryIO, TypeVar

from pcopy.checkpoint import directory as files
from pcopy.checkpoint.directory import CHECKPOINT_ADVICE, make_directories, opened_directory
from pcopy.checkpoint.layout import (
    CURRENT_FILE,
    JOB_FILE,
    LOCK_PATTERN,
    NFS_SILLY_PREFIX,
    OTHER_VERSION_ADVICE,
    PATH_LIST_FILE,
    check_only_job_files,
    directory_names,
    remove_job_files,
)
from pcopy.errors import RequestRefused
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.durable import sync_directory, sync_directory_at
from pcopy.jobs.job_file import OVER, JobFile, JobRoot, OtherVersion, decode, decode_nonce, encode
from pcopy.jobs.lock import JobLocked, Lock, take_only_lock
from pcopy.text import printable_path, shell_quoted

_Value = TypeVar("_Value")

ABANDONED_AFTER = 86400.0
"""Age in seconds at which an entry of the state directory without a job counts as left by a killed process, and is
removed.
"""


class NoJob(RequestRefused):
    """The directory contains no job."""


class UnreadableJob(RequestRefused):
    """This version cannot read the job file.

    Fields:
    - ``what``: the reason, for users.
    - ``roots``: the roots of the job if they could be read all the same, else empty.
    """

    def __init__(self, what: str, way_out: str, roots: tuple[JobRoot, ...] = ()) -> None:
        super().__init__(f"{what}; {way_out}")
        self.reason = what
        self.roots = roots


class StoredJob(NamedTuple):
    """A recorded job: its file and its directory ``path`` (absolute).

    ``unsynced_directories``: directories that must be synced until the job directory is on stable storage; empty if it
    is.
    """

    path: bytes
    file: JobFile
    unsynced_directories: tuple[bytes, ...] = ()


class ListedJob(NamedTuple):
    """An entry of the state directory that is a job or resembles one.

    Fields:
    - ``path``: its absolute path.
    - ``file``: the job file; None if it cannot be used.
    - ``reason``: why it cannot be used; empty if it can.
    - ``roots``: the roots of a job that another version recorded, if they could be read.
    """

    path: bytes
    file: JobFile | None
    reason: str
    roots: tuple[JobRoot, ...] = ()


def state_directory() -> bytes:
    """Return the directory of all jobs without ``--checkpoint DIR``: ``${XDG_STATE_HOME:-~/.local/state}/pcopy``.

    As the XDG Base Directory Specification requires, a relative XDG_STATE_HOME is ignored. Without HOME the home
    directory comes from the password database. Raise ``RequestRefused`` if that has none.
    """
    state = os.environb.get(b"XDG_STATE_HOME", b"")
    if not state.startswith(b"/"):
        state = os.path.join(_home_directory(), b".local/state")
    return os.path.abspath(os.path.join(state, b"pcopy"))


def is_in_state_directory(path: bytes) -> bool:
    """True if ``path`` lies directly in the state directory, so that the job's name is enough to name it.

    False if no home directory is known.
    """
    with suppress(RequestRefused):
        return os.path.dirname(path) == state_directory()
    return False


def job_word(path: bytes) -> str:
    """Return the word that names the job in ``path`` for ``--resume`` and ``--discard``, quoted for a shell."""
    return shell_quoted(os.path.basename(path) if is_in_state_directory(path) else path)


def create_job(
    directory: bytes | None, job: JobFile, *, durable: bool = True, list_of_files: BinaryIO | None = None
) -> tuple[StoredJob, Lock]:
    """Record a new job and take its lock for rank 0; return both.

    Args:
        directory: the job directory; None: a directory with the job's name in the state directory.
        job: the contents of the job file.
        durable: return only after everything is on stable storage. Otherwise a power failure may remove the job until
            ``sync_job`` is called.
        list_of_files: the list of ``--files-from``, which is copied into the job directory.

    Raise ``RequestRefused`` if the directory contains a job or a file that is not pcopy's, or cannot be written to.
    """
    made: list[bytes] = []
    try:
        if directory is None:
            state = state_directory()
            made = make_directories(state, durable=durable)
            _remove_abandoned(state)
            directory = os.path.join(state, job.name.encode())
        path = os.path.abspath(directory)
        made = make_directories(path, durable=durable) + made
        if not is_in_state_directory(path):
            job = job._replace(above=tuple(made[1:]))
        with opened_directory(path) as descriptor:
            check_only_job_files(path, descriptor)
            lock = _lock_new(path, descriptor)
            _write_new(path, descriptor, job, lock, durable, list_of_files)
    except BaseException:
        files.remove_empty_directories(made)
        raise
    around = () if durable else tuple(dict.fromkeys(map(os.path.dirname, (path, *made))))
    return StoredJob(path, job, around), lock


def sync_job(job: StoredJob) -> StoredJob:
    """Write ``job.file`` and sync it with all directories that lead to it; raise ``RequestRefused`` if that fails.

    Return the job with nothing unsynced.
    """
    write_job_file(job)
    try:
        for path in job.unsynced_directories:
            sync_directory_at(path)
    except OSError as error:
        raise _not_recorded(job.path, error) from None
    return job._replace(unsynced_directories=())


def _remove_abandoned(state: bytes) -> None:
    """Remove from the state directory what killed processes left there: directories of jobs that were never recorded,
    or were over.

    An entry that cannot be removed remains. Raise ``RequestRefused`` if the state directory is not safely this user's.
    """
    with opened_directory(state) as descriptor:
        found = directory_names(descriptor)
    for name in sorted(found):
        path = os.path.join(state, name)
        with suppress(RequestRefused, OSError):
            if time.time() - os.lstat(path).st_mtime > ABANDONED_AFTER and not has_unfinished_job(path):
                files.remove_empty_directories([path])  # succeeds if the directory is empty
                remove_unreadable_job(path)


def _lock_new(path: bytes, descriptor: int) -> Lock:
    """Return rank 0's lock of a new job directory; raise as ``_held`` does.

    After an error no lock file remains that this call created.
    """
    was_there = b"lock-0" in directory_names(descriptor)
    try:
        return _lock_existing(path)
    except RequestRefused as refused:
        if not was_there and not isinstance(refused, JobLocked):
            _unlink_all(descriptor, b"lock-0")
        raise


def _write_new(path: bytes, descriptor: int, job: JobFile, lock: Lock, durable: bool, listed: BinaryIO | None) -> None:
    """Write the files of a new job into its open directory.

    Raise ``RequestRefused`` if there is a job already, or the files cannot be written. Then no file of the new job
    remains.
    """
    try:
        if _contains_unfinished_job(path, descriptor):
            raise RequestRefused(
                f"{printable_path(path)}: contains a job already; --resume or --discard it, or name another directory"
            )
    except BaseException:
        lock.close()
        raise
    try:
        remove_job_files(descriptor)
        if listed is not None:
            from pcopy.jobs.files_from import copy_into_job_directory as keep_list

            keep_list(listed, descriptor, durable=durable)
        _replace_job_file(path, descriptor, job, durable=durable)
    except BaseException:
        _unlink_all(descriptor, JOB_FILE, JOB_FILE + files.NEW_SUFFIX, PATH_LIST_FILE)
        lock.close()  # An open file that is removed stays on NFS under another name.
        _unlink_all(descriptor, b"lock-0")
        raise


def _unlink_all(descriptor: int, *names: bytes) -> None:
    """Remove files of an open directory; errors are ignored."""
    for name in names:
        with suppress(OSError):
            os.unlink(name, dir_fd=descriptor)


def has_unfinished_job(path: bytes) -> bool:
    """True if ``path`` contains an unfinished job.

    Raise ``RequestRefused`` if it contains a job that cannot be used, or cannot be examined.
    """
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise RequestRefused(f"{printable_path(path)}: cannot be examined: {error.strerror}") from None
    with opened_directory(path) as descriptor:
        return _contains_unfinished_job(path, descriptor)


def _contains_unfinished_job(path: bytes, descriptor: int) -> bool:
    """True if the open directory contains a job that is not over.

    Raise ``RequestRefused`` if its file cannot be read.
    """
    with suppress(NoJob):
        return _read_job_file(path, descriptor).state != OVER
    return False


def open_job(path: bytes) -> StoredJob:
    """Return the job in the directory ``path`` without taking a lock; raise ``RequestRefused`` if it cannot be read."""
    path = os.path.abspath(path)
    with opened_directory(path) as descriptor:
        return StoredJob(path, _read_job_file(path, descriptor))


def nonce_of(path: bytes) -> str:
    """Return the nonce of the job in the directory ``path``; raise ``RequestRefused`` if it cannot be read.

    The roots are not parsed: a job may have many, and that would take far longer.
    """
    with opened_directory(path) as descriptor:
        return _parse_job_file(decode_nonce, path, descriptor)


def open_unfinished(path: bytes) -> tuple[StoredJob, Lock]:
    """Return the unfinished job in ``path``, which is to be resumed, and its lock for rank 0.

    Raise ``Held`` while any rank of an earlier run is alive, and ``RequestRefused`` if the job is over or cannot be
    used.
    """
    job, lock = open_and_lock(path)
    if job.file.state == OVER:
        lock.close()
        raise RequestRefused(f"{printable_path(path)}: the job is finished, and cannot be resumed")
    return job, lock


def open_and_lock(path: bytes) -> tuple[StoredJob, Lock]:
    """Return the job in ``path``, finished or not, and its lock for rank 0; raise as ``take`` does."""
    open_job(path)  # Raises if there is no job, before a lock file is created there.
    lock = _lock_existing(path)
    try:
        return open_job(path), lock
    except NoJob:
        with suppress(OSError, RequestRefused), opened_directory(path) as descriptor:
            os.unlink(b"lock-0", dir_fd=descriptor)
            files.remove_empty_directories([path])
        lock.close()
        raise _finished_meanwhile(path) from None
    except BaseException:
        lock.close()
        raise


def _lock_existing(path: bytes) -> Lock:
    """Return rank 0's lock of a directory that existed a moment ago; raise as ``take_only_lock`` does."""
    try:
        return take_only_lock(path)
    except RequestRefused as refused:
        if isinstance(refused, JobLocked) or os.path.lexists(path):
            raise
        raise _finished_meanwhile(path) from None


def _finished_meanwhile(path: bytes) -> RequestRefused:
    """Return the error for a job that another process finished or removed in the meantime."""
    return RequestRefused(f"{printable_path(path)}: the job has finished or was removed in the meantime")


def write_job_file(job: StoredJob) -> None:
    """Write ``job.file`` into the job directory, and wait until it is on stable storage; raise ``RequestRefused`` if
    that fails.
    """
    with opened_directory(job.path) as descriptor:
        _replace_job_file(job.path, descriptor, job.file)


def unfinished_jobs(state: bytes) -> list[ListedJob]:
    """Return all jobs of the state directory, newest first, followed by directories that resemble a job but cannot be
    used.

    Raise ``RequestRefused`` if the state directory is not safely this user's.
    """
    try:
        os.lstat(state)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RequestRefused(f"{printable_path(state)}: cannot be examined: {error.strerror}") from None
    with opened_directory(state) as descriptor:
        there = directory_names(descriptor)
    good, bad = [], []
    for name in sorted(there):
        path = os.path.join(state, name)
        try:
            job = open_job(path)
        except NoJob:  # being created or removed
            continue
        except RequestRefused as refused:
            if os.path.isdir(path):
                roots = refused.roots if isinstance(refused, UnreadableJob) else ()
                bad.append(ListedJob(path, None, str(refused), roots))
            continue
        if job.file.state != OVER:
            good.append(ListedJob(path, job.file, ""))
    good.sort(key=lambda listed: listed.file.created if listed.file else 0.0, reverse=True)
    return good + bad


def last_change_of(job: ListedJob) -> float:
    """Return when the records of the job changed last, in seconds since 1970."""
    times = [job.file.created if job.file else 0.0]
    for directory, _, found in os.walk(job.path):
        for name in found:
            if not re.fullmatch(LOCK_PATTERN, name):  # An attempt to lock the job changes the times of a lock file.
                with suppress(OSError):
                    times.append(os.lstat(os.path.join(directory, name)).st_mtime)
    return max(times)


def remove_job(job: StoredJob, lock: Lock) -> Sequence[bytes]:
    """Remove the job's files, and its directory if that is empty then; return the names of files that are not pcopy's.

    ``lock`` is rank 0's and is released. All other ranks must have released theirs. Raise ``RequestRefused`` if a file
    cannot be removed.
    """
    with opened_directory(job.path) as descriptor:
        if not job.unsynced_directories:
            with suppress(
                RequestRefused
            ):  # The mark is optional: on a full file system it cannot be written, and the removal must succeed.
                _replace_job_file(job.path, descriptor, job.file._replace(state=OVER))
        remaining = _remove_files(job.path, descriptor, lock, durable=not job.unsynced_directories)
    if not os.path.lexists(job.path):
        files.remove_empty_directories(job.file.above)
    return remaining


def remove_late_records(job: StoredJob) -> None:
    """Remove records that other ranks wrote while the job was removed; errors are ignored.

    Records without the file ``job`` are no job, so they may remain.
    """
    with suppress(RequestRefused, OSError), opened_directory(job.path) as descriptor:
        if JOB_FILE not in directory_names(descriptor):
            remove_job_files(descriptor)
            files.remove_empty_directories([job.path, *job.file.above])


def remove_unreadable_job(path: bytes) -> None:
    """Remove a job directory whose job file cannot be read, as ``remove`` does.

    Raise ``RequestRefused`` if the directory might not be a job directory.
    """
    with opened_directory(path) as descriptor:
        check_only_job_files(path, descriptor)
        if b"lock-0" not in directory_names(descriptor):  # A file called "job" alone may belong to any program.
            raise NoJob(f"{printable_path(path)}: no job is in this directory")
        _remove_files(path, descriptor, take_only_lock(path))


def _remove_files(path: bytes, descriptor: int, lock: Lock, *, durable: bool = True) -> Sequence[bytes]:
    """Remove the job's files from the open directory ``path``, and the directory if it is empty then.

    Release ``lock``. Return the names of the remaining files. Raise ``RequestRefused`` if a file cannot be removed.
    """
    # The job file goes after the records: if this is interrupted, the directory is still recognised as a job.
    try:
        remove_job_files(descriptor)
        with suppress(FileNotFoundError):
            os.unlink(JOB_FILE, dir_fd=descriptor)
        lock.close()  # An open file that is removed stays on NFS under another name.
        with suppress(FileNotFoundError):
            os.unlink(b"lock-%d" % lock.rank, dir_fd=descriptor)
        if durable:
            sync_directory(descriptor)
    except OSError as error:
        raise RequestRefused(f"{printable_path(path)}: the job cannot be removed: {error.strerror}") from None
    remaining = [name for name in directory_names(descriptor) if not name.startswith(NFS_SILLY_PREFIX)]
    if not remaining:
        files.remove_empty_directories(
            [path]
        )  # Fails silently in another user's directory, or if NFS still lists removed files.
    return remaining


def _home_directory() -> bytes:
    """Return the user's home directory; raise ``RequestRefused`` if none is known."""
    home = os.environb.get(b"HOME", b"")
    if not home.startswith(b"/"):
        import pwd

        with suppress(KeyError):
            home = os.fsencode(pwd.getpwuid(os.geteuid()).pw_dir)
    if not home.startswith(b"/"):
        raise RequestRefused(f"no home directory is known in which jobs can be recorded; {CHECKPOINT_ADVICE}")
    return home


def _read_job_file(path: bytes, descriptor: int) -> JobFile:
    """Return the job file of an open directory.

    Raise ``NoJob`` if there is none, ``RequestRefused`` if it cannot be read or belongs to another user.
    """
    job = _parse_job_file(decode, path, descriptor)
    if job.user != os.geteuid():
        where = printable_path(os.path.join(path, JOB_FILE))
        raise RequestRefused(f"{where}: a job of user {job.user}, and only that user can resume it")
    return job


def _parse_job_file(decoded: Callable[[bytes], _Value], path: bytes, descriptor: int) -> _Value:
    """Return the contents of a job file as ``decoded`` parses them.

    Raise ``NoJob`` if there is none, ``UnreadableJob`` if ``decoded`` raises ``ValueError``, ``RequestRefused`` for
    errors of the system.
    """
    where = printable_path(os.path.join(path, JOB_FILE))
    try:
        contents = files.read_file(descriptor, JOB_FILE, where=path)
        if not contents.strip(b"\0") and CURRENT_FILE not in directory_names(descriptor):
            raise FileNotFoundError  # A power failure left an empty file: the job was not on stable storage yet.
        return decoded(contents)
    except FileNotFoundError:
        raise NoJob(f"{printable_path(path)}: no job is in this directory") from None
    except OSError as error:
        raise RequestRefused(f"{where}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        advice = OTHER_VERSION_ADVICE if isinstance(error, OtherVersion) else "discard it: pcopy --discard JOB"
        roots = error.roots if isinstance(error, OtherVersion) else ()
        raise UnreadableJob(f"{where}: {error}", advice.replace("JOB", job_word(path)), roots) from None


def _replace_job_file(path: bytes, descriptor: int, job: JobFile, *, durable: bool = True) -> None:
    """Replace the job file of an open directory; raise ``RequestRefused`` if that fails."""
    try:
        files.replace_file(descriptor, JOB_FILE, encode(job), durable=durable)
    except OSError as error:
        raise _not_recorded(path, error) from None


def _not_recorded(path: bytes, error: OSError) -> RequestRefused:
    """Return the error for a job file that cannot be written."""
    return RequestRefused(f"{printable_path(path)}: the job cannot be recorded: {error.strerror}; {CHECKPOINT_ADVICE}")
