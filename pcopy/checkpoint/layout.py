"""Layout of a job directory: names of its files, the version of their formats, and which files pcopy may remove."""

from __future__ import annotations

import os
import re
from contextlib import suppress

from pcopy.errors import RequestRefused
from pcopy.fsio.close import closed_at_end, names_in_directory
from pcopy.fsio.durable import boot_id, boot_ids_of_job, sync_directory_at
from pcopy.fsio.retries import open_with_retries
from pcopy.text import printable_path

JOB_FORMAT_VERSION = 6
"""Version of the formats of all files of a job.

It changes whenever the format of one of them changes, or a counter or option is added or removed, because counts are
identified by their position. The packed form of tasks has a version of its own, which is stored in the file ``job``.
"""

OTHER_VERSION_ADVICE = "end the job with the pcopy that began it, or discard it: pcopy --discard JOB"
"""Advice in errors about a job of another version."""

JOB_FILE = b"job"
"""Name of the file that describes the job."""
CURRENT_FILE = b"current"
"""Name of the file that names the current run."""
CONTROL_FILE, PROGRESS_FILE = b"control", b"progress"
"""Names of two files: one through which a running job is controlled, and one in which it reports its progress."""
# Patterns of names. Each is compiled when a name is first compared with it.
LOCK_PATTERN = rb"lock-(0|[1-9][0-9]{0,8})"
"""Name of the lock file of a rank."""
DELETED_PATTERN = rb"deleted-(0|[1-9][0-9]{0,8})"
"""Name of the file in which a rank records deleted items."""
RUN_PATTERN = rb"run-[0-9]+"
"""Name of the directory of a run."""
NOT_DURABLE_PATTERN = rb"not-durable-[0-9a-f-]*"
"""Name of the file that marks records as not durable; it ends with the boot id of the host that created it.

It is created before the first record of a rank whose files could not be synced.
"""
NFS_SILLY_PREFIX = b".nfs"
"""Prefix of the name that NFS gives a removed file that is still open (silly rename). NFS removes that file later."""
PATH_LIST_FILE = b"files-from"
"""Name of the list of the paths to copy, if the user gave one."""
_FIXED_NAMES = {
    PATH_LIST_FILE,
    *(name + end for name in (JOB_FILE, CURRENT_FILE, CONTROL_FILE, PROGRESS_FILE) for end in (b"", b".new")),
}
_RUN_FILE_PATTERN = rb"(base|facts)-[0-9]+(\.new)?"


def run_directory_name(run: int) -> bytes:
    """Return the name of the directory of ``run``."""
    return b"run-%d" % run


def base_file_name(rank: int) -> bytes:
    """Return the name of the base file of ``rank`` in a run's directory."""
    return b"base-%d" % rank


def facts_file_name(rank: int) -> bytes:
    """Return the name of the file of records of ``rank`` in a run's directory."""
    return b"facts-%d" % rank


def mark_not_durable(path: bytes) -> None:
    """Record in the job directory ``path`` that its records are not to be trusted once this host has been rebooted.

    Raise ``OSError``.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    os.close(open_with_retries(os.path.join(path, _not_durable_mark()), flags, 0o600))
    sync_directory_at(path)


def has_distrusted_records(path: bytes) -> bool:
    """Return True if a record in the job directory ``path`` may count files as done that a reboot has lost.

    Only the hosts on which this job runs are known not to have been rebooted. Raise ``OSError``.
    """
    these_boots = {b"not-durable-" + boot.encode() for boot in (boot_id(), *boot_ids_of_job) if boot}
    return any(name not in these_boots for name in _not_durable_marks(path))


def remove_record_reference(path: bytes) -> None:
    """Remove the reference to the records from the job directory ``path``. Raise ``OSError``."""
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(path, CURRENT_FILE))
    for name in _not_durable_marks(path):
        os.unlink(os.path.join(path, name))
    sync_directory_at(path)


def _not_durable_mark() -> bytes:
    """Return the name of the file by which this host marks the records as not durable."""
    return b"not-durable-" + boot_id().encode()


def _not_durable_marks(path: bytes) -> list[bytes]:
    """Return the names of the files in a job directory that mark records as not durable. Raise ``OSError``."""
    return [name for name in map(os.fsencode, os.listdir(path)) if re.fullmatch(NOT_DURABLE_PATTERN, name)]


def directory_names(descriptor: int) -> list[bytes]:
    """Return the names in an open directory. Raise ``OSError``."""
    return names_in_directory(descriptor)


def is_job_file_name(name: bytes) -> bool:
    """Return True if pcopy may have created the file ``name`` of a job directory, or if it is a silly-renamed file of
    NFS.
    """
    patterns = RUN_PATTERN, LOCK_PATTERN, NOT_DURABLE_PATTERN, DELETED_PATTERN
    return (
        name in _FIXED_NAMES
        or name.startswith(NFS_SILLY_PREFIX)
        or any(re.fullmatch(pattern, name) for pattern in patterns)
    )


def check_only_job_files(path: bytes, descriptor: int) -> None:
    """Raise ``RequestRefused`` if the open directory ``path`` holds a file that pcopy did not create; ``OSError`` if it
    cannot be read.
    """
    for name in directory_names(descriptor):
        if not is_job_file_name(name):
            raise RequestRefused(
                f"{printable_path(path)}: holds {printable_path(name)}, which is not a job's; name a new or an empty "
                "directory"
            )


def remove_job_files(descriptor: int) -> None:
    """Remove all files of pcopy from an open job directory, except ``job`` and rank 0's lock. Raise ``OSError``."""
    for name in directory_names(descriptor):
        if re.fullmatch(RUN_PATTERN, name):
            _remove_run_files(descriptor, name)
        elif name not in (JOB_FILE, b"lock-0") and is_job_file_name(name) and not name.startswith(NFS_SILLY_PREFIX):
            with suppress(IsADirectoryError):
                os.unlink(name, dir_fd=descriptor)


def _remove_run_files(descriptor: int, name: bytes) -> None:
    """Remove pcopy's files from the directory of a run, and the directory if it is empty then."""
    try:
        run = open_with_retries(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
    except NotADirectoryError:
        return
    with closed_at_end(run):
        for inner in directory_names(run):
            if re.fullmatch(_RUN_FILE_PATTERN, inner):
                with suppress(IsADirectoryError):
                    os.unlink(inner, dir_fd=run)
    with suppress(OSError):
        os.rmdir(name, dir_fd=descriptor)
