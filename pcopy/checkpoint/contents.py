"""What is in a job directory: what of it is pcopy's, and may be removed."""

from __future__ import annotations

import os
import re
from contextlib import suppress

from pcopy.checkpoint.layout import RUN
from pcopy.checkpoint.lock import NAME as LOCK_NAME
from pcopy.errors import Refused
from pcopy.text import shown

JOB = b"job"
SILLY = b".nfs"
"""What NFS makes of a removed file that is still open begins with it, and goes by itself."""
_FILE = re.compile(rb"(job|current)(\.new)?")
_OF_RUN = re.compile(rb"(base|facts)-[0-9]+(\.new)?")


def names(descriptor: int) -> list[bytes]:
    """Those in an open directory; raises ``OSError``."""
    return [os.fsencode(name) for name in os.listdir(descriptor)]


def is_ours(name: bytes) -> bool:
    """May pcopy have made what is called so? (NFS may keep that under another name for a while.)"""
    return any(pattern.fullmatch(name) for pattern in (_FILE, RUN, LOCK_NAME)) or name.startswith(SILLY)


def refuse_foreign(path: bytes, descriptor: int) -> None:
    """Raises ``Refused`` if the open directory ``path`` holds anything else; ``OSError`` if it can't be read."""
    for name in names(descriptor):
        if not is_ours(name):
            raise Refused(f"{shown(path)}: holds {shown(name)}, which is no job's; name a new or an empty directory")


def clear(descriptor: int) -> None:
    """Removes all that is pcopy's but ``job`` and rank 0's lock. Raises ``OSError``."""
    for name in names(descriptor):
        if RUN.fullmatch(name):
            _clear_run(descriptor, name)
        elif name not in (JOB, b"lock-0") and is_ours(name) and not name.startswith(SILLY):
            with suppress(IsADirectoryError):
                os.unlink(name, dir_fd=descriptor)


def _clear_run(descriptor: int, name: bytes) -> None:
    try:
        run = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
    except NotADirectoryError:
        return
    try:
        for inner in names(run):
            if _OF_RUN.fullmatch(inner):
                with suppress(IsADirectoryError):
                    os.unlink(inner, dir_fd=run)
    finally:
        os.close(run)
    with suppress(OSError):
        os.rmdir(name, dir_fd=descriptor)
