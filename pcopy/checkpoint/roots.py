"""Whether the roots of a job are still the directories that it began with.

Compared are the inode and the file system: its type (f_type) and its id (fsid), both of statfs(2). Device numbers are
not: the same file system may have another one after it was mounted again, and on another host.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from pcopy.checkpoint.job_file import JobFile, JobRoot
from pcopy.errors import Refused
from pcopy.text import shown

_STATFS_BYTES = 256  # more than struct statfs has anywhere


class Seen(NamedTuple):
    """What a directory is at the moment: (device, inode) and (f_type, fsid)."""

    identity: tuple[int, int]
    place: tuple[int, int]


def look_at(path: bytes) -> Seen:
    """What the directory ``path`` is, no link followed at its end; asks for no right to read it. Raises ``OSError``."""
    descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        place = (type_of_file_system(descriptor), os.fstatvfs(descriptor).f_fsid)
    finally:
        os.close(descriptor)
    return Seen((status.st_dev, status.st_ino), place)


def with_places(root: Sequence[Any]) -> JobRoot:
    """``root``, the first eight fields of a ``JobRoot``, with its places; raises ``Refused`` if it has gone."""
    plain = JobRoot._make((*root, (0, 0), (0, 0)))
    source, target = _look(plain.source), _look(plain.target)
    for path, seen, identity in (
        (plain.source_shown, source, plain.source_id),
        (plain.target_shown, target, plain.target_id),
    ):
        if seen.identity[1] != identity[1]:
            raise Refused(f"{shown(path)}: was replaced by another directory since the job began")
    return plain._replace(source_place=source.place, target_place=target.place)


def check_roots(job: JobFile) -> tuple[JobRoot, ...]:
    """The job's roots, with the device numbers of now.

    Raises ``Refused`` if one is not what the job began with, naming its path and what differs.
    """
    return tuple(_checked(job, root) for root in job.roots)


def _checked(job: JobFile, root: JobRoot) -> JobRoot:
    source, target = _look(root.source), _look(root.target)
    _compare(job, root.source, source, root.source_id, root.source_place)
    _compare(job, root.target, target, root.target_id, root.target_place)
    return root._replace(source_id=source.identity, target_id=target.identity)


def _compare(job: JobFile, path: bytes, seen: Seen, identity: tuple[int, int], place: tuple[int, int]) -> None:
    differing = []
    for what, now, then in (
        ("the type of its file system", hex(seen.place[0]), hex(place[0])),
        ("its file system (fsid)", hex(seen.place[1]), hex(place[1])),
        ("its inode", seen.identity[1], identity[1]),
    ):
        if now != then:
            differing.append(f"{what} is {now}, was {then}")
    if differing:
        raise Refused(
            f"{shown(path)}: not the directory that job {job.name} began with: {'; '.join(differing)}; "
            "mount what was there, or start anew"
        )


def _look(path: bytes) -> Seen:
    try:
        return look_at(path)
    except OSError as error:
        raise Refused(f"{shown(path)}: the job's directory cannot be opened: {error.strerror}") from None


def type_of_file_system(descriptor: int) -> int:
    """Its f_type; raises ``OSError``."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    while libc.fstatfs(ctypes.c_int(descriptor), buffer):
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))
    # f_type is the first field: a long, but on s390 an unsigned int.
    width = 4 if os.uname().machine.startswith("s390") else ctypes.sizeof(ctypes.c_long)
    return int.from_bytes(buffer.raw[:width], sys.byteorder)
