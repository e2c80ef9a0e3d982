"""What is in a job directory: names, the version of its files, and which of them are pcopy's and may be removed."""

from __future__ import annotations

import os
import re
from contextlib import suppress

from pcopy.errors import Refused
from pcopy.fsio.close import held_open, names_in
from pcopy.fsio.durable import boot_id, boots_of_job, sync_directory_at
from pcopy.fsio.patience import open_patiently
from pcopy.text import shown

VERSION = 6
"""Of all files of a job. It rises whenever one of them gets another form, or a counter or an option comes or goes:
counts are known by their places. What tasks are packed as has a version of its own, which the file ``job`` tells."""

END_IT = "end the job with the pcopy that began it, or discard it: pcopy --discard JOB"
"""What to do about a job of another version."""

JOB = b"job"
CURRENT = b"current"
CONTROL, PROGRESS = b"control", b"progress"
LOCK = rb"lock-(0|[1-9][0-9]{0,8})"
DELETED = rb"deleted-(0|[1-9][0-9]{0,8})"
RUN = rb"run-[0-9]+"
"""Patterns; each is compiled when a name is first compared with it."""
NOT_DURABLE = rb"not-durable-[0-9a-f-]*"
"""Written before the first record of a rank whose files could not be synced; ends with the host's boot id."""
SILLY = b".nfs"
"""NFS gives a removed file that is still open a name that begins so; that file goes by itself."""
FILES_FROM = b"files-from"
"""The list of the paths that are copied, if not all are."""
_FILES = {FILES_FROM, *(name + end for name in (JOB, CURRENT, CONTROL, PROGRESS) for end in (b"", b".new"))}
_OF_RUN = rb"(base|facts)-[0-9]+(\.new)?"


def run_name(run: int) -> bytes:
    return b"run-%d" % run


def base_name(rank: int) -> bytes:
    return b"base-%d" % rank


def facts_name(rank: int) -> bytes:
    return b"facts-%d" % rank


def note_not_durable(path: bytes) -> None:
    """Record in the job directory ``path`` that its records are to be distrusted once this host was rebooted.

    Raises ``OSError``.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    os.close(open_patiently(os.path.join(path, _not_durable_name()), flags, 0o600))
    sync_directory_at(path)


def is_distrusted(path: bytes) -> bool:
    """Return True if a record in the job directory ``path`` may count files as done that a reboot has lost.

    That a host has not been rebooted is known of those on which this job runs. Raises ``OSError``.
    """
    these_boots = {b"not-durable-" + boot.encode() for boot in (boot_id(), *boots_of_job) if boot}
    return any(name not in these_boots for name in _marks(path))


def forget_records(path: bytes) -> None:
    """Remove from the job directory ``path`` the reference to the records; raise ``OSError``."""
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(path, CURRENT))
    for name in _marks(path):
        os.unlink(os.path.join(path, name))
    sync_directory_at(path)


def _not_durable_name() -> bytes:
    return b"not-durable-" + boot_id().encode()


def _marks(path: bytes) -> list[bytes]:
    """Return the names of ``NOT_DURABLE`` in a job directory; raise ``OSError``."""
    return [name for name in map(os.fsencode, os.listdir(path)) if re.fullmatch(NOT_DURABLE, name)]


def names(descriptor: int) -> list[bytes]:
    """Those in an open directory; raises ``OSError``."""
    return names_in(descriptor)


def is_ours(name: bytes) -> bool:
    """May pcopy have made what is called so? (NFS may keep that under another name for a while.)"""
    patterns = RUN, LOCK, NOT_DURABLE, DELETED
    return name in _FILES or name.startswith(SILLY) or any(re.fullmatch(pattern, name) for pattern in patterns)


def refuse_foreign(path: bytes, descriptor: int) -> None:
    """Raises ``Refused`` if the open directory ``path`` holds anything else; ``OSError`` if it can't be read."""
    for name in names(descriptor):
        if not is_ours(name):
            raise Refused(f"{shown(path)}: holds {shown(name)}, which is no job's; name a new or an empty directory")


def clear(descriptor: int) -> None:
    """Removes all that is pcopy's but ``job`` and rank 0's lock. Raises ``OSError``."""
    for name in names(descriptor):
        if re.fullmatch(RUN, name):
            _clear_run(descriptor, name)
        elif name not in (JOB, b"lock-0") and is_ours(name) and not name.startswith(SILLY):
            with suppress(IsADirectoryError):
                os.unlink(name, dir_fd=descriptor)


def _clear_run(descriptor: int, name: bytes) -> None:
    try:
        run = open_patiently(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
    except NotADirectoryError:
        return
    with held_open(run):
        for inner in names(run):
            if re.fullmatch(_OF_RUN, inner):
                with suppress(IsADirectoryError):
                    os.unlink(inner, dir_fd=run)
    with suppress(OSError):
        os.rmdir(name, dir_fd=descriptor)
