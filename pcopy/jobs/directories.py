"""Job directories: functions that create, list, open and remove them.

A job directory contains all that is needed to resume a job: the file ``job`` (a description of the job), a file
``lock-RANK`` for each rank, and the records of the ranks (which tasks are done, and which remain). Rules:
- A directory with any other file is no job directory, and never becomes one.
- When a job directory is removed, only files with pcopy's names are removed, so that the user's files remain.
- Before a job directory is removed, its file ``job`` gets the state ``over``; that file is removed after the records.
  So an interrupted removal never leaves a directory that looks like an unfinished job.

The state directory (``~/.local/state/pcopy`` by default) contains one directory for each job, named like the job. A job
directory that the user names (``--checkpoint DIR``) may be anywhere.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import BinaryIO, TypeVar

from pcopy.checkpoint import directory as files
from pcopy.checkpoint.directory import CHECKPOINT_ADVICE, make_directories, opened_trusted_directory
from pcopy.checkpoint.layout import (
    CURRENT_RUN_FILE,
    JOB_FILE,
    LOCK_FILE_PATTERN,
    NFS_SILLY_PREFIX,
    OTHER_VERSION_ADVICE,
    PATH_LIST_FILE,
    check_only_job_files,
    names_of_entries,
    remove_job_files,
)
from pcopy.errors import RequestRefused, path_refused
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.durable import sync_directory, sync_directory_at
from pcopy.jobs.job_file import JOB_OVER, JobFile, JobFileVersionError, JobRoot, decode_job, decode_nonce, encode_job
from pcopy.jobs.lock import JobLockedError, RankLock, take_lock_unless_job_is_locked
from pcopy.text import printable_path, shell_quoted

_Value = TypeVar("_Value")

ABANDONED_DIRECTORY_AGE = 86400.0
"""Age in seconds from which a directory in the state directory is removed if it contains no unfinished job.

A killed process has left it there. A younger one may belong to a process that is creating its job now.
"""


class NoJobInDirectoryError(RequestRefused):
    """Error: the directory contains no job. ``advice`` is added to the message."""

    def __init__(self, directory: bytes, advice: str = "") -> None:
        super().__init__(f"{printable_path(directory)}: no job is in this directory{advice}", path=directory)


class UnreadableJobError(RequestRefused):
    """Error: the directory contains a job file that this version cannot use: it is damaged, or another version has
    written it.

    Attributes:
    - ``reason``: the reason, for users.
    - ``roots``: the sources and targets of the job if they could be read although the rest could not, else empty.
    """

    def __init__(self, what: str, way_out: str, path: bytes, roots: tuple[JobRoot, ...] = ()) -> None:
        super().__init__(f"{what}; {way_out}", path=path)
        self.reason = what
        self.roots = roots


class StoredJob(NamedTuple):
    """A recorded job: the absolute ``path`` of its directory, and the contents of its job ``file``.

    ``unsynced_directories``: the directories that must still be synced so that a power failure cannot remove the job
    directory; empty if it is on stable storage.
    """

    path: bytes
    file: JobFile
    unsynced_directories: tuple[bytes, ...] = ()


class ListedJob(NamedTuple):
    """A directory in the state directory that contains a job, or something that resembles one.

    Fields:
    - ``path``: the absolute path of the directory.
    - ``file``: the contents of the job file; None if this version cannot use the job.
    - ``reason``: why the job cannot be used; empty if it can.
    - ``roots``: the sources and targets of a job that another version recorded, if they could be read; else empty.
    """

    path: bytes
    file: JobFile | None
    reason: str
    roots: tuple[JobRoot, ...] = ()


def state_directory() -> bytes:
    """Return the state directory, which contains the job directories of all jobs for which the user has not named one.

    The path is ``${XDG_STATE_HOME:-~/.local/state}/pcopy``. As the XDG Base Directory Specification requires, a
    relative XDG_STATE_HOME is ignored. If HOME is not set, the home directory comes from the password database. Raise
    ``RequestRefused`` if the password database has none either.
    """
    state = os.environb.get(b"XDG_STATE_HOME", b"")
    if not state.startswith(b"/"):
        state = os.path.join(_home_directory(), b".local/state")
    return os.path.abspath(os.path.join(state, b"pcopy"))


def is_in_state_directory(path: bytes) -> bool:
    """True if the job directory ``path`` lies directly in the state directory: then users can write the job's name
    instead of a path.

    False if no home directory, and so no state directory, is known.
    """
    with suppress(RequestRefused):
        return os.path.dirname(path) == state_directory()
    return False


def job_as_option_value(path: bytes) -> str:
    """Return the word that users give to ``--resume`` and ``--discard`` for the job in ``path``, quoted for a shell.

    It is the job's name if the job lies in the state directory, else the path.
    """
    return shell_quoted(os.path.basename(path) if is_in_state_directory(path) else path)


def create_job(
    directory: bytes | None, job: JobFile, *, durable: bool = True, list_of_files: BinaryIO | None = None
) -> tuple[StoredJob, RankLock]:
    """Create a job directory with the file ``job``, and take its lock for rank 0; return the recorded job and the lock.

    Args:
        directory: the job directory; None: a directory with the job's name in the state directory.
        job: the contents of the job file.
        durable: True to return only after everything is on stable storage. If False, a power failure may remove the job
            until ``write_and_sync_job_file`` has been called.
        list_of_files: the sorted list of ``--from``, which is copied into the job directory; None: no list.

    Raise ``RequestRefused`` if the directory contains a job or a file that is not pcopy's, or cannot be written to.
    """
    made: list[bytes] = []
    try:
        if directory is None:
            state = state_directory()
            made = make_directories(state, durable=durable)
            _remove_abandoned_job_directories(state)
            directory = os.path.join(state, job.name.encode())
        path = os.path.abspath(directory)
        made = make_directories(path, durable=durable) + made
        if not is_in_state_directory(path):
            job = job._replace(above=tuple(made[1:]))
        with opened_trusted_directory(path) as descriptor:
            check_only_job_files(path, descriptor)
            lock = _lock_new_job(path, descriptor)
            _write_new_job(path, descriptor, job, lock, durable, list_of_files)
    except BaseException:
        files.remove_empty_directories(made)
        raise
    around = () if durable else tuple(dict.fromkeys(map(os.path.dirname, (path, *made))))
    return StoredJob(path, job, around), lock


def write_and_sync_job_file(job: StoredJob) -> StoredJob:
    """Write ``job.file`` to the job directory, and sync the file and the directories in ``job.unsynced_directories``.

    Afterwards a power failure cannot remove the job. Return the job with an empty ``unsynced_directories``. Raise
    ``RequestRefused`` if a write or a sync fails.
    """
    write_job_file(job)
    try:
        for path in job.unsynced_directories:
            sync_directory_at(path)
    except OSError as error:
        raise _job_not_recorded_error(job.path, error) from None
    return job._replace(unsynced_directories=())


def _remove_abandoned_job_directories(state: bytes) -> None:
    """Remove job directories that killed processes left in the state directory.

    These are directories older than ``ABANDONED_DIRECTORY_AGE`` whose job was never recorded, or had ended already. One
    that cannot be removed remains. Raise ``RequestRefused`` if another user may have created or changed the state
    directory.
    """
    with opened_trusted_directory(state) as descriptor:
        found = names_of_entries(descriptor)
    for name in sorted(found):
        path = os.path.join(state, name)
        with suppress(RequestRefused, OSError):
            if time.time() - os.lstat(path).st_mtime > ABANDONED_DIRECTORY_AGE and not has_unfinished_job(path):
                files.remove_empty_directories([path])  # has no effect on a directory that contains files
                remove_unreadable_job(path)


def _lock_new_job(path: bytes, descriptor: int) -> RankLock:
    """Take rank 0's lock of a new job directory, and return it.

    Args:
        path, descriptor: path and descriptor of the job directory.

    Raise ``JobLockedError`` if a rank of another run works there. Raise ``RequestRefused`` if the directory cannot be
    locked; the lock file is then removed again if this call created it.
    """
    was_there = b"lock-0" in names_of_entries(descriptor)
    try:
        return _lock_existing_job(path)
    except RequestRefused as refused:
        if not was_there and not isinstance(refused, JobLockedError):
            _unlink_files(descriptor, b"lock-0")
        raise


def _write_new_job(
    path: bytes, descriptor: int, job: JobFile, lock: RankLock, durable: bool, listed: BinaryIO | None
) -> None:
    """Write the files of a new job into its open directory.

    Args:
        path, descriptor: path and descriptor of the job directory.
        job: the contents of the job file.
        lock: rank 0's lock; it is released after an error.
        durable: True to return only after the files are on stable storage.
        listed: the sorted list of ``--from``; None: no list.

    Raise ``RequestRefused`` if the directory contains an unfinished job, or the files cannot be written. No file of the
    new job remains after an error.
    """
    try:
        if _contains_unfinished_job(path, descriptor):
            raise path_refused(path, "contains a job already; --resume or --discard it, or name another directory")
    except BaseException:
        lock.close()
        raise
    try:
        remove_job_files(descriptor)
        if listed is not None:
            from pcopy.jobs.sorted_list import copy_path_list_into_job_directory as keep_list

            keep_list(listed, descriptor, durable=durable)
        _replace_job_file(path, descriptor, job, durable=durable)
    except BaseException:
        _unlink_files(descriptor, JOB_FILE, JOB_FILE + files.INCOMPLETE_FILE_SUFFIX, PATH_LIST_FILE)
        lock.close()  # An open file that is removed stays on NFS under another name.
        _unlink_files(descriptor, b"lock-0")
        raise


def _unlink_files(descriptor: int, *names: bytes) -> None:
    """Remove the files ``names`` of the open directory ``descriptor``; errors are ignored."""
    for name in names:
        with suppress(OSError):
            os.unlink(name, dir_fd=descriptor)


def has_unfinished_job(path: bytes) -> bool:
    """True if the directory ``path`` exists and contains an unfinished job.

    Raise ``RequestRefused`` if the directory or its job file cannot be read.
    """
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise path_refused(path, f"cannot be examined: {error.strerror}") from None
    with opened_trusted_directory(path) as descriptor:
        return _contains_unfinished_job(path, descriptor)


def _contains_unfinished_job(path: bytes, descriptor: int) -> bool:
    """True if the open job directory contains a job file whose state is not ``over``.

    ``path`` and ``descriptor`` are those of the directory. Raise ``RequestRefused`` if the job file cannot be read.
    """
    with suppress(NoJobInDirectoryError):
        return _read_job_file(path, descriptor).state != JOB_OVER
    return False


def open_job(path: bytes) -> StoredJob:
    """Return the job in the directory ``path`` without taking a lock; raise ``RequestRefused`` if it cannot be read."""
    path = os.path.abspath(path)
    with opened_trusted_directory(path) as descriptor:
        return StoredJob(path, _read_job_file(path, descriptor))


def nonce_of_job(path: bytes) -> str:
    """Return the nonce (random text that identifies the job) of the job in the directory ``path``.

    Sources and targets are not parsed: a job may have thousands of them, and that would take far longer. Raise
    ``RequestRefused`` if the job file cannot be read.
    """
    with opened_trusted_directory(path) as descriptor:
        return _parse_job_file(decode_nonce, path, descriptor)


def open_and_lock_unfinished_job(path: bytes) -> tuple[StoredJob, RankLock]:
    """Return the unfinished job in the directory ``path``, which is to be resumed, and its lock for rank 0, which this
    function takes.

    Raise ``JobLockedError`` while any rank of an earlier run is alive, and ``RequestRefused`` if the job has ended or
    its file cannot be used.
    """
    job, lock = open_and_lock_job(path)
    if job.file.state == JOB_OVER:
        lock.close()
        raise path_refused(path, "the job is finished, and cannot be resumed")
    return job, lock


def open_and_lock_job(path: bytes) -> tuple[StoredJob, RankLock]:
    """Return the job in the directory ``path``, finished or not, and its lock for rank 0, which this function takes.

    Raise ``JobLockedError`` while any rank of an earlier run is alive, and ``RequestRefused`` if there is no job, or
    its file cannot be used.
    """
    open_job(path)  # Raises if there is no job, before a lock file is created there.
    lock = _lock_existing_job(path)
    try:
        return open_job(path), lock
    except NoJobInDirectoryError:
        with suppress(OSError, RequestRefused), opened_trusted_directory(path) as descriptor:
            os.unlink(b"lock-0", dir_fd=descriptor)
            files.remove_empty_directories([path])
        lock.close()
        raise _job_finished_meanwhile_error(path) from None
    except BaseException:
        lock.close()
        raise


def _lock_existing_job(path: bytes) -> RankLock:
    """Take rank 0's lock of the job directory ``path``, which existed a moment ago, and return it.

    Raise ``JobLockedError`` if a rank works on the job, and ``RequestRefused`` if the directory was removed in the
    meantime or cannot be locked.
    """
    try:
        return take_lock_unless_job_is_locked(path)
    except RequestRefused as refused:
        if isinstance(refused, JobLockedError) or os.path.lexists(path):
            raise
        raise _job_finished_meanwhile_error(path) from None


def _job_finished_meanwhile_error(path: bytes) -> RequestRefused:
    """Return the error for the job in ``path`` that another process finished or removed after this process had found
    it.
    """
    return path_refused(path, "the job has finished or was removed in the meantime")


def write_job_file(job: StoredJob) -> None:
    """Write ``job.file`` into the job directory, and wait until it is on stable storage; raise ``RequestRefused`` if
    that fails.
    """
    with opened_trusted_directory(job.path) as descriptor:
        _replace_job_file(job.path, descriptor, job.file)


def unfinished_jobs(state: bytes) -> list[ListedJob]:
    """Return all unfinished jobs of the state directory ``state``, newest first, followed by directories that resemble
    a job but cannot be used.

    Raise ``RequestRefused`` if another user may have created or changed the state directory.
    """
    try:
        os.lstat(state)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise path_refused(state, f"cannot be examined: {error.strerror}") from None
    with opened_trusted_directory(state) as descriptor:
        there = names_of_entries(descriptor)
    good, bad = [], []
    for name in sorted(there):
        path = os.path.join(state, name)
        try:
            job = open_job(path)
        except NoJobInDirectoryError:  # being created or removed
            continue
        except RequestRefused as refused:
            if os.path.isdir(path):
                roots = refused.roots if isinstance(refused, UnreadableJobError) else ()
                bad.append(ListedJob(path, None, str(refused), roots))
            continue
        if job.file.state != JOB_OVER:
            good.append(ListedJob(path, job.file, ""))
    good.sort(key=lambda listed: listed.file.created if listed.file else 0.0, reverse=True)
    return good + bad


def last_change_of_job(job: ListedJob) -> float:
    """Return the latest modification time of any file of the job except lock files, in seconds since 1970.

    At least the time at which the job was created.
    """
    times = [job.file.created if job.file else 0.0]
    for directory, _, found in os.walk(job.path):
        for name in found:
            if not re.fullmatch(
                LOCK_FILE_PATTERN, name
            ):  # An attempt to lock the job changes the times of a lock file.
                with suppress(OSError):
                    times.append(os.lstat(os.path.join(directory, name)).st_mtime)
    return max(times)


def remove_job(job: StoredJob, lock: RankLock) -> Sequence[bytes]:
    """Remove the files of a job, and its directory unless that contains other files; return the names of those.

    ``lock`` is rank 0's lock, which is released here. All other ranks must have released theirs. Raise
    ``RequestRefused`` if a file cannot be removed.
    """
    with opened_trusted_directory(job.path) as descriptor:
        if not job.unsynced_directories:
            with suppress(
                RequestRefused
            ):  # Optional: a full file system cannot store the state ``over``, but the removal must succeed there.
                _replace_job_file(job.path, descriptor, job.file._replace(state=JOB_OVER))
        remaining = _remove_job_files(job.path, descriptor, lock, durable=not job.unsynced_directories)
    if not os.path.lexists(job.path):
        files.remove_empty_directories(job.file.above)
    return remaining


def remove_late_records(job: StoredJob) -> None:
    """Remove records that other ranks wrote into the job directory after ``remove_job`` had listed its files.

    Errors are ignored: a directory with records but without the file ``job`` does not count as a job, so the records do
    no harm.
    """
    with suppress(RequestRefused, OSError), opened_trusted_directory(job.path) as descriptor:
        if JOB_FILE not in names_of_entries(descriptor):
            remove_job_files(descriptor)
            files.remove_empty_directories([job.path, *job.file.above])


def remove_unreadable_job(path: bytes) -> None:
    """Remove the files of a job whose job file cannot be used, and its directory.

    Raise ``RequestRefused`` if the directory contains other files, or no lock file of rank 0: then it may not be a job
    directory. Raise ``JobLockedError`` if a rank works on the job.
    """
    with opened_trusted_directory(path) as descriptor:
        check_only_job_files(path, descriptor)
        if b"lock-0" not in names_of_entries(descriptor):  # A file "job" without a lock may belong to any program.
            raise NoJobInDirectoryError(path)
        _remove_job_files(path, descriptor, take_lock_unless_job_is_locked(path))


def _remove_job_files(path: bytes, descriptor: int, lock: RankLock, *, durable: bool = True) -> Sequence[bytes]:
    """Remove the job's files from the open directory ``path``, and the directory if it is empty then.

    Args:
        descriptor: the descriptor of the directory.
        lock: rank 0's lock; it is released before its file is removed.
        durable: True to sync the directory.

    Return the names of the remaining files, which are not pcopy's. Raise ``RequestRefused`` if a file cannot be
    removed.
    """
    # Remove the job file after the records: after an interruption the directory is still recognised as a job's.
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
        raise path_refused(path, f"the job cannot be removed: {error.strerror}") from None
    remaining = [name for name in names_of_entries(descriptor) if not name.startswith(NFS_SILLY_PREFIX)]
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
    """Return the contents of the job file in the open directory ``descriptor``; ``path`` is its path, for messages.

    Raise ``NoJobInDirectoryError`` if there is none, ``RequestRefused`` if it cannot be read or belongs to another
    user.
    """
    job = _parse_job_file(decode_job, path, descriptor)
    if job.user != os.geteuid():
        where = printable_path(os.path.join(path, JOB_FILE))
        raise RequestRefused(f"{where}: a job of user {job.user}, and only that user can resume it")
    return job


def _parse_job_file(decoded: Callable[[bytes], _Value], path: bytes, descriptor: int) -> _Value:
    """Read the job file in the open directory ``path``, and return what ``decoded`` returns for its contents.

    Raise ``NoJobInDirectoryError`` if there is no job file, ``UnreadableJobError`` if ``decoded`` raises
    ``ValueError``, and ``RequestRefused`` if the file cannot be read.
    """
    where = printable_path(os.path.join(path, JOB_FILE))
    try:
        contents = files.read_trusted_file(descriptor, JOB_FILE, where=path)
        if not contents.strip(b"\0") and CURRENT_RUN_FILE not in names_of_entries(descriptor):
            # No contents, or zeros only, and no records: a power failure came before the job was on stable storage.
            raise FileNotFoundError
        return decoded(contents)
    except FileNotFoundError:
        raise NoJobInDirectoryError(path) from None
    except OSError as error:
        raise RequestRefused(f"{where}: cannot be read: {error.strerror}", path=path) from None
    except ValueError as error:
        advice = OTHER_VERSION_ADVICE if isinstance(error, JobFileVersionError) else "discard it: pcopy --discard JOB"
        roots = error.roots if isinstance(error, JobFileVersionError) else ()
        advice = advice.replace("JOB", job_as_option_value(path))
        raise UnreadableJobError(f"{where}: {error}", advice, path, roots) from None


def _replace_job_file(path: bytes, descriptor: int, job: JobFile, *, durable: bool = True) -> None:
    """Replace the job file of the open directory ``descriptor`` by one that contains ``job``.

    ``durable``: True to return only after it is on stable storage. ``path`` is the path of the directory, for messages.
    Raise ``RequestRefused`` if the file cannot be written.
    """
    try:
        files.replace_file(descriptor, JOB_FILE, encode_job(job), durable=durable)
    except OSError as error:
        raise _job_not_recorded_error(path, error) from None


def _job_not_recorded_error(path: bytes, error: OSError) -> RequestRefused:
    """Return the exception for a job whose file in the directory ``path`` cannot be written because of ``error``."""
    return path_refused(path, f"the job cannot be recorded: {error.strerror}; {CHECKPOINT_ADVICE}")
