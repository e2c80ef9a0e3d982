"""Whether the roots of a job are still the directories that it began with.

Compared are the inode and the file system: its type (f_type) and its id (fsid), both of statfs(2), or on XFS its UUID.
Device numbers are not, nor what is made of them: the same file system may have another one after it was mounted again,
and on another host. Of the directory that is copied to, the time of its birth is compared, too, where the file system
tells it: a removed one's inode is used again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from pcopy.checkpoint.job_file import JobFile, JobRoot
from pcopy.errors import Refused
from pcopy.fsio.birth import birth_of
from pcopy.fsio.file_system import XFS, place_of
from pcopy.text import shown

_LOOK = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Seen(NamedTuple):
    """What a directory is at the moment: (device, inode) and (f_type, fsid or UUID)."""

    identity: tuple[int, int]
    place: tuple[int, int]


def look_at(path: bytes) -> Seen:
    """What the directory ``path`` is, no link followed at its end; asks for no right to read it. Raises ``OSError``."""
    descriptor = _open(path)
    try:
        status = os.fstat(descriptor)
        place = place_of(descriptor)
    finally:
        os.close(descriptor)
    return Seen((status.st_dev, status.st_ino), place)


def _open(path: bytes) -> int:
    try:
        return os.open(path, _LOOK)
    except PermissionError:  # then XFS doesn't tell its UUID
        return os.open(path, _LOOK | os.O_PATH)


def with_places(root: Sequence[Any]) -> JobRoot:
    """``root``, the first eight fields of a ``JobRoot``, with its places; raises ``Refused`` if it has gone."""
    plain = JobRoot._make((*root, (0, 0), (0, 0), (0, 0, 0, 0)))
    source, target = _look(plain.source, "source"), _look(plain.target, "destination")
    for path, seen, identity in (
        (plain.source_shown, source, plain.source_id),
        (plain.target_shown, target, plain.target_id),
    ):
        if seen.identity[1] != identity[1]:
            raise Refused(f"{shown(path)}: was replaced by another directory since the job began")
    return plain._replace(source_place=source.place, target_place=target.place)


def with_made(root: JobRoot) -> JobRoot:
    """``root`` with what the directory is that is copied to, as soon as that is there."""
    if root.item or not root.name or any(root.made):
        return root
    try:
        return root._replace(made=_look_at_made(root))
    except OSError:  # not yet, or something that the copy will replace
        return root


def _look_at_made(root: JobRoot) -> tuple[int, int, int, int]:
    descriptor = _open(os.path.join(root.target, root.name))
    try:
        return os.fstat(descriptor).st_ino, *place_of(descriptor), birth_of(descriptor)
    finally:
        os.close(descriptor)


def check_roots(job: JobFile) -> tuple[JobRoot, ...]:
    """The job's roots, with the device numbers of now.

    Raises ``Refused`` if one is not what the job began with, naming its path and what differs.
    """
    return tuple(_checked(job, root) for root in job.roots)


class Gone(Refused):
    """What the job has copied to is no more: it was removed or replaced, and no mount can bring it back."""


def check_targets(job: JobFile) -> None:
    """As ``check_roots`` for the destination alone; raises ``Gone`` where nothing of the job can be there any more."""
    for root in job.roots:
        try:
            _compare(job, root.target, _look(root.target, "destination"), root.target_id, root.target_place)
        except Refused:
            path = shown(root.target)
            around = _place_around(root.target)
            if around is not None and _is_same(around, root.target_place):
                raise Gone(f"{path}: is gone, or another directory is in its place") from None
            raise Refused(f"{path}: its file system is not mounted there, it seems; mount it") from None


def lost(job: JobFile) -> list[bytes]:
    """The directories that the job copies to, and that are not there any more, or are others: moved, perhaps."""
    return [os.path.join(root.target, root.name) for root in job.roots if not root.item and not is_there(root)]


def is_there(root: JobRoot) -> bool:
    """Is the directory that is copied to there, and the one that was recorded, as far as it was?"""
    try:
        return not root.name or _is_made(root, _look_at_made(root))
    except OSError:
        return not any(root.made)  # it may never have been made


def _is_made(root: JobRoot, made: tuple[int, int, int, int]) -> bool:
    """Is ``made`` the directory that was recorded, if one was? One of the hosts may not have been told of its birth."""
    if not any(root.made):
        return True
    return made[0] == root.made[0] and _is_same(made[1:3], root.made[1:3]) and _agree(made[3], root.made[3])


def _is_same(place: tuple[int, int], other: tuple[int, int]) -> bool:
    return place[0] == other[0] and _agree(place[1], other[1])


def _agree(one: int, other: int) -> bool:
    """What is 0 was not told, and is not compared."""
    return one == other or 0 in (one, other)


def _place_around(path: bytes) -> tuple[int, int] | None:
    """The file system of ``path``, or of what is above it if that is missing."""
    while True:
        try:
            return look_at(path).place
        except FileNotFoundError:
            path = os.path.dirname(path)
        except OSError:
            return None


def _check_made(job: JobFile, root: JobRoot) -> None:
    """Raises ``Refused`` unless the directory that is copied to is the one that was recorded, if it was."""
    if not any(root.made):
        return
    path = os.path.join(root.target, root.name)
    try:
        made = _look_at_made(root)
    except FileNotFoundError:
        what = "it is gone"
    except NotADirectoryError:
        what = "it is no directory any more"
    except OSError as error:
        what = f"it cannot be opened: {error.strerror}"
    else:
        if _is_made(root, made):
            return
        what = "it is another one"
    raise Refused(
        f"{shown(path)}: not the directory that job {job.name} copies to: {what}; "
        "put that back, or give the job up (pcopy --discard) and start anew"
    )


def _checked(job: JobFile, root: JobRoot) -> JobRoot:
    source, target = _look(root.source, "source"), _look(root.target, "destination")
    _compare(job, root.source, source, root.source_id, root.source_place)
    _compare(job, root.target, target, root.target_id, root.target_place)
    _check_made(job, root)
    return root._replace(source_id=source.identity, target_id=target.identity)


def _compare(job: JobFile, path: bytes, seen: Seen, identity: tuple[int, int], place: tuple[int, int]) -> None:
    differing = []
    if seen.place[0] != place[0]:
        differing.append(f"the type of its file system is {seen.place[0]:#x}, was {place[0]:#x}")
    if not _agree(seen.place[1], place[1]):
        name = "UUID" if XFS == seen.place[0] == place[0] else "fsid"
        differing.append(f"its file system ({name}) is {seen.place[1]:#x}, was {place[1]:#x}")
    if seen.identity[1] != identity[1]:
        differing.append(f"its inode is {seen.identity[1]}, was {identity[1]}")
    if differing:
        raise Refused(
            f"{shown(path)}: not the directory that job {job.name} began with: {'; '.join(differing)}; "
            "mount what was there, or start anew"
        )


def _look(path: bytes, what: str) -> Seen:
    try:
        return look_at(path)
    except OSError as error:
        raise Refused(f"{shown(path)}: the job's {what} cannot be opened: {error.strerror}") from None
