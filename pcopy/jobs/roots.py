"""Are the roots of a job still the directories that it began with, and are the same mounts in them?

The inode and the file system are compared: its type (f_type) and its id (fsid), both of statfs(2), or on XFS its UUID.
Device numbers, and ids that are made of them, are not: the same file system may have another one after it was mounted
again, and on another host. If the file system tells the time of birth, it is compared for the directory that is copied
to, too: the inode of a removed directory is used again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache

from pcopy.errors import Refused
from pcopy.fsio.close import held_open
from pcopy.fsio.identity import XFS, birth_of, place_of
from pcopy.fsio.mounted import MountRoot, root_of
from pcopy.fsio.patience import open_patiently
from pcopy.jobs.job_file import JobFile, JobRoot, Made
from pcopy.jobs.meant import unwritable
from pcopy.jobs.paths import lies_in, target_of
from pcopy.named import NamedTuple
from pcopy.tasks.base.job import Root
from pcopy.text import shown

LOOKS = 128
"""Directories whose identity is remembered while the roots of a job are gone through: many roots share one."""

_LOOK = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Seen(NamedTuple):
    """What a directory is at the moment: (device, inode), (f_type, fsid or UUID), and its birth in ns (0: untold)."""

    identity: tuple[int, int]
    place: tuple[int, int]
    birth: int


def look_at(path: bytes) -> Seen:
    """What the directory ``path`` is, no link followed at its end; asks for no right to read it. Raises ``OSError``."""
    try:
        descriptor = open_patiently(path, _LOOK)
    except PermissionError:  # then XFS doesn't tell its UUID
        descriptor = open_patiently(path, _LOOK | os.O_PATH)
    with held_open(descriptor):
        status = os.fstat(descriptor)
        return Seen((status.st_dev, status.st_ino), place_of(descriptor), birth_of(descriptor))


def refuse_unwritable(roots: Sequence[Root]) -> None:
    """Raises ``Refused`` if all targets would be new names in a directory in which this user can make none."""
    target = roots[0].target
    if not all(root.name and not os.path.lexists(target_of(root)) for root in roots):
        return
    if why := unwritable(target):
        raise Refused(f"{shown(roots[0].target_shown)}: cannot be made, since {why}; name another DST")


def with_places(roots: Sequence[Root]) -> tuple[JobRoot, ...]:
    """``roots`` with their places; raises ``Refused`` if one has gone."""
    look = lru_cache(maxsize=LOOKS)(_look)
    placed = []
    for root in roots:
        source, target = look(root.source, "source"), look(root.target, "destination")
        if source.identity[1] != root.source_id[1] or target.identity[1] != root.target_id[1]:
            path = root.source_shown if source.identity[1] != root.source_id[1] else root.target_shown
            raise Refused(f"{shown(path)}: was replaced by another directory since the job began")
        placed.append(JobRoot(*root, source_place=source.place, target_place=target.place))
    return tuple(placed)


def with_made(root: JobRoot) -> JobRoot:
    """``root`` with what the directory is that is copied to, as soon as that is there."""
    if root.item or not root.name or any(root.made):
        return root
    try:
        return root._replace(made=_look_at_made(root))
    except OSError:  # not yet, or something that the copy will replace
        return root


def _look_at_made(root: JobRoot) -> Made:
    seen = look_at(os.path.join(root.target, root.name))
    return Made(seen.identity[1], *seen.place, seen.birth)


def check_roots(job: JobFile) -> tuple[JobRoot, ...]:
    """The job's roots, with the device numbers of now.

    Raises ``Refused`` if one is not what the job began with, naming its path and what differs.
    """
    look = lru_cache(maxsize=LOOKS)(_look)
    checked = []
    for root in job.roots:
        source, target = look(root.source, "source"), look(root.target, "destination")
        _compare(job, root.source, source, root.source_id, root.source_place)
        _compare(job, root.target, target, root.target_id, root.target_place)
        _check_made(job, root)
        checked.append(root._replace(source_id=source.identity, target_id=target.identity))
    return tuple(checked)


class Gone(Refused):
    """The directory that the job has copied to was removed or replaced, and no mount can bring it back."""


def check_targets(job: JobFile) -> None:
    """As ``check_roots`` for the destination alone; raises ``Gone`` where nothing of the job can be there any more."""
    for root in job.roots:
        try:
            _compare(job, root.target, _look(root.target, "destination"), root.target_id, root.target_place)
        except Refused:
            path = shown(root.target)
            around = _place_around(root.target)
            if around and around[0] == root.target_place[0] and _agree(around[1], root.target_place[1]):
                raise Gone(f"{path}: is gone, or another directory is in its place") from None
            raise Refused(f"{path}: its file system is not mounted there, it seems; mount it") from None


def refuse_lost_mounts(job: JobFile) -> None:
    """Raises ``Refused`` if what was mounted below the job's targets is not there."""
    for path, root in job.mounts:
        for target in {target_of(root) for root in job.roots}:
            if not lies_in(path, target):
                continue
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            try:
                with held_open(open_patiently(path, flags)) as held:
                    found = root_of(held)
            except OSError as error:
                raise Refused(f"{shown(path)}: cannot be entered: {error.strerror}; mount it") from None
            if not found.is_same(MountRoot(*root)):
                raise Refused(f"{shown(path)}: what the job wrote to is not mounted there; mount it")


def lost(job: JobFile) -> list[bytes]:
    """The directories that the job copies to, and that are not there any more, or are others: moved, perhaps."""
    return [os.path.join(root.target, root.name) for root in job.roots if not root.item and not is_there(root)]


def is_there(root: JobRoot) -> bool:
    """Is the directory that is copied to there, and the one that was recorded, as far as it was?"""
    try:
        return not root.name or _is_made(root, _look_at_made(root))
    except OSError:
        return not any(root.made)  # it may never have been made


def _is_made(root: JobRoot, now: Made) -> bool:
    """Is it the directory that was recorded, if one was? One of the hosts may not have been told of its birth."""
    then = root.made
    if not any(then):
        return True
    is_same = (now.inode, now.f_type) == (then.inode, then.f_type)
    return is_same and _agree(now.fsid, then.fsid) and _agree(now.birth, then.birth)


def _agree(one: int, other: int) -> bool:
    """A number that is 0 was not told, and is not compared."""
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
    try:
        if _is_made(root, _look_at_made(root)):
            return
        what = "it is another one"
    except FileNotFoundError:
        what = "it is gone"
    except OSError as error:
        what = str(error.strerror)
    raise Refused(
        f"{shown(target_of(root))}: not the directory that job {job.name} copies to: {what}; "
        "put that back, or discard the job (pcopy --discard) and start anew"
    )


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
