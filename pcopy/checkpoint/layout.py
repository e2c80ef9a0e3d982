"""Layout of a job directory: names of its files, the version of their formats, and which files pcopy may remove."""

from __future__ import annotations

import os
import re
from contextlib import suppress

from pcopy.errors import path_refused
from pcopy.fsio.close import closing_descriptor, names_in_directory
from pcopy.fsio.durable import boot_id, boot_ids_of_job, sync_directory_at
from pcopy.fsio.retries import open_with_retries
from pcopy.text import printable_path

JOB_FORMAT_VERSION = 6
"""Version of the formats of all files in a job directory. A job whose files have another version cannot be resumed.

Add 1 whenever the format of one of these files changes, or a counter or option is added or removed, because counts are
identified by their position. The packed form of tasks has a version of its own, which is stored in the file ``job``.
"""

OTHER_VERSION_ADVICE = "end the job with the pcopy that began it, or discard it: pcopy --discard JOB"
"""Advice in errors about a job whose files have another version than this pcopy reads."""

JOB_FILE = b"job"
"""Name of the file in a job directory that describes the job, such as its sources and options."""
CURRENT_RUN_FILE = b"current"
"""Name of the file in a job directory that contains the number of the job's last recorded run. If it is missing,
nothing is recorded, and the job cannot be resumed.
"""
CONTROL_FILE, PROGRESS_FILE = b"control", b"progress"
"""Names of two files in a job directory: the user's requests to the running job (``pcopy --control``), and the progress
that the job reports.
"""
# Patterns of names. Each is compiled when a name is first compared with it.
LOCK_FILE_PATTERN = rb"lock-(0|[1-9][0-9]{0,8})"
"""Pattern of the name of a lock file in a job directory. Each rank has its own, and keeps it locked while it works on
the job.
"""
DELETION_COUNT_FILE_PATTERN = rb"deleted-(0|[1-9][0-9]{0,8})"
"""Pattern of the name of the file in a job directory in which a rank records how many items it has deleted."""
RUN_DIRECTORY_PATTERN = rb"run-[0-9]+"
"""Pattern of the name of a run's directory in a job directory."""
NOT_DURABLE_FILE_PATTERN = rb"not-durable-[0-9a-f-]*"
"""Pattern of the name of the file in a job directory which says that records are lost if a host reboots; it ends with
the boot id of the host that created it.

It is created before the first record of a rank on a host where the written files cannot be synced.
"""
NFS_SILLY_PREFIX = b".nfs"
"""Prefix of the name that an NFS client gives a removed file that is still open (silly rename). The client removes that
file later.
"""
PATH_LIST_FILE = b"files-from"
"""Name of the file in a job directory with the list of the paths to copy, if the user gave one."""
_FIXED_NAMES = {
    PATH_LIST_FILE,
    *(name + end for name in (JOB_FILE, CURRENT_RUN_FILE, CONTROL_FILE, PROGRESS_FILE) for end in (b"", b".new")),
}
_RUN_FILE_PATTERN = rb"(base|facts)-[0-9]+(\.new)?"


def run_directory_name(run: int) -> bytes:
    """Return the name of the directory of ``run``."""
    return b"run-%d" % run


def initial_tasks_file_name(rank: int) -> bytes:
    """Return the name of the file with the tasks with which ``rank`` begins a run; it lies in the directory of the
    run.
    """
    return b"base-%d" % rank


def task_record_file_name(rank: int) -> bytes:
    """Return the name of the file in which ``rank`` records its spawned and done tasks; it lies in the directory of the
    run.
    """
    return b"facts-%d" % rank


def mark_records_untrusted_after_reboot(path: bytes) -> None:
    """Create a file in the job directory ``path`` which says that its records are not to be trusted once this host has
    been rebooted. Used if this host cannot bring the copied files to stable storage.

    Raise ``OSError``.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    os.close(open_with_retries(os.path.join(path, _untrusted_records_marker_name()), flags, 0o600))
    sync_directory_at(path)


def has_distrusted_records(path: bytes) -> bool:
    """Return True if a record in the job directory ``path`` may count files as done whose data were lost when a host
    was rebooted.

    Files created by ``mark_records_untrusted_after_reboot`` show this. Such a file is harmless only if it is from a
    host on which this run has ranks, and that host has not been rebooted since. Raise ``OSError``.
    """
    these_boots = {b"not-durable-" + boot.encode() for boot in (boot_id(), *boot_ids_of_job) if boot}
    return any(name not in these_boots for name in _untrusted_records_marker_names(path))


def remove_current_run_file(path: bytes) -> None:
    """Remove from the job directory ``path`` the file that names the current run, so that the job counts as not
    recorded and cannot be resumed. Also remove the files created by ``mark_records_untrusted_after_reboot``. Raise
    ``OSError``.
    """
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(path, CURRENT_RUN_FILE))
    for name in _untrusted_records_marker_names(path):
        os.unlink(os.path.join(path, name))
    sync_directory_at(path)


def _untrusted_records_marker_name() -> bytes:
    """Return the name of the file by which this host says that its records are not to be trusted after a reboot."""
    return b"not-durable-" + boot_id().encode()


def _untrusted_records_marker_names(path: bytes) -> list[bytes]:
    """Return the names of the files in the job directory ``path`` by which hosts say that their records are not to be
    trusted after a reboot. Raise ``OSError``.
    """
    return [name for name in map(os.fsencode, os.listdir(path)) if re.fullmatch(NOT_DURABLE_FILE_PATTERN, name)]


def names_of_entries(descriptor: int) -> list[bytes]:
    """Return the names of all entries of the open directory ``descriptor``. Raise ``OSError``."""
    return names_in_directory(descriptor)


def is_job_file_name(name: bytes) -> bool:
    """Return True if ``name`` is one that pcopy gives to files and directories in a job directory, or that NFS gives to
    a removed file which is still open (``NFS_SILLY_PREFIX``).
    """
    patterns = RUN_DIRECTORY_PATTERN, LOCK_FILE_PATTERN, NOT_DURABLE_FILE_PATTERN, DELETION_COUNT_FILE_PATTERN
    return (
        name in _FIXED_NAMES
        or name.startswith(NFS_SILLY_PREFIX)
        or any(re.fullmatch(pattern, name) for pattern in patterns)
    )


def check_only_job_files(path: bytes, descriptor: int) -> None:
    """Raise ``RequestRefused`` if the open directory ``descriptor`` contains a file that pcopy did not create, so that
    it must not be used as a job directory. ``path`` is its path, for the error. Raise ``OSError`` if it cannot be
    read.
    """
    for name in names_of_entries(descriptor):
        if not is_job_file_name(name):
            raise path_refused(
                path, f"contains {printable_path(name)}, which pcopy did not create; name a new or an empty directory"
            )


def remove_job_files(descriptor: int) -> None:
    """Remove all files of pcopy from the open job directory ``descriptor``, except ``job`` and the lock file of rank 0,
    which other processes look for. Files that pcopy has not created stay. Raise ``OSError``.
    """
    for name in names_of_entries(descriptor):
        if re.fullmatch(RUN_DIRECTORY_PATTERN, name):
            _remove_run_files(descriptor, name)
        elif name not in (JOB_FILE, b"lock-0") and is_job_file_name(name) and not name.startswith(NFS_SILLY_PREFIX):
            with suppress(IsADirectoryError):
                os.unlink(name, dir_fd=descriptor)


def _remove_run_files(descriptor: int, name: bytes) -> None:
    """Remove pcopy's files from the directory ``name`` of a run, which lies in the open job directory ``descriptor``;
    then remove the directory if it is empty. Raise ``OSError``.
    """
    try:
        run = open_with_retries(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
    except NotADirectoryError:
        return
    with closing_descriptor(run):
        for inner in names_of_entries(run):
            if re.fullmatch(_RUN_FILE_PATTERN, inner):
                with suppress(IsADirectoryError):
                    os.unlink(inner, dir_fd=run)
    with suppress(OSError):
        os.rmdir(name, dir_fd=descriptor)
