"""Checks that the roots of a recorded job are still the directories with which it began, with the same mounts in them.

The inode and the file system are compared: its type (f_type) and its id (fsid), both from statfs(2), or on XFS the
UUID. Device numbers, and ids derived from them, are not compared: the same file system may have another one after it is
mounted again, and on another host. For the target directory the time of birth is compared, too, if the file system
provides it: the inode number of a removed directory is used again.
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
"""Directories whose identity is cached while the roots of a job are checked, since many roots share one."""

_LOOK = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Seen(NamedTuple):
    """Current identity of a directory: (device, inode), (f_type, fsid or UUID), and time of birth in nanoseconds
    since 1970 (0: unknown).
    """

    identity: tuple[int, int]
    place: tuple[int, int]
    birth: int


def look_at(path: bytes) -> Seen:
    """Return the identity of the directory ``path``; raise ``OSError``.

    A symbolic link at its end is not followed. Needs no permission to read the directory.
    """
    try:
        descriptor = open_patiently(path, _LOOK)
    except PermissionError:  # O_PATH needs no permission, but XFS does not return its UUID for it.
        descriptor = open_patiently(path, _LOOK | os.O_PATH)
    with held_open(descriptor):
        status = os.fstat(descriptor)
        return Seen((status.st_dev, status.st_ino), place_of(descriptor), birth_of(descriptor))


def refuse_unwritable(roots: Sequence[Root]) -> None:
    """Raise ``Refused`` if all targets are new names in a directory in which this user cannot create any."""
    target = roots[0].target
    if not all(root.name and not os.path.lexists(target_of(root)) for root in roots):
        return
    if reason := unwritable(target):
        raise Refused(f"{shown(roots[0].target_shown)}: cannot be made, since {reason}; name another DST")


def with_places(roots: Sequence[Root]) -> tuple[JobRoot, ...]:
    """Return ``roots`` with the file systems of their directories; raise ``Refused`` if one was replaced meanwhile."""
    examine = lru_cache(maxsize=LOOKS)(_look)
    placed = []
    for root in roots:
        source, target = examine(root.source, "source"), examine(root.target, "destination")
        if source.identity[1] != root.source_id[1] or target.identity[1] != root.target_id[1]:
            path = root.source_shown if source.identity[1] != root.source_id[1] else root.target_shown
            raise Refused(f"{shown(path)}: was replaced by another directory since the job began")
        placed.append(JobRoot(*root, source_place=source.place, target_place=target.place))
    return tuple(placed)


def with_made(root: JobRoot) -> JobRoot:
    """Return ``root`` with the identity of the target directory, if that exists; otherwise unchanged."""
    if root.item or not root.name or any(root.made):
        return root
    try:
        return root._replace(made=_look_at_made(root))
    except OSError:  # It does not exist yet, or is a file that the copy will replace.
        return root


def _look_at_made(root: JobRoot) -> Made:
    """Return the identity of the target directory; raise ``OSError``."""
    current = look_at(os.path.join(root.target, root.name))
    return Made(current.identity[1], *current.place, current.birth)


def check_roots(job: JobFile) -> tuple[JobRoot, ...]:
    """Return the job's roots with current device numbers.

    Raise ``Refused`` if a directory is not the one with which the job began, with its path and the difference.
    """
    examine = lru_cache(maxsize=LOOKS)(_look)
    checked = []
    for root in job.roots:
        source, target = examine(root.source, "source"), examine(root.target, "destination")
        _compare(job, root.source, source, root.source_id, root.source_place)
        _compare(job, root.target, target, root.target_id, root.target_place)
        _check_made(job, root)
        checked.append(root._replace(source_id=source.identity, target_id=target.identity))
    return tuple(checked)


class Gone(Refused):
    """The directory that the job copied to was removed or replaced, and mounting a file system cannot bring it back."""


def check_targets(job: JobFile) -> None:
    """Check the destination as ``check_roots`` does.

    Raise ``Gone`` if no file of the job can exist there any longer, and ``Refused`` if the file system seems not to be
    mounted.
    """
    for root in job.roots:
        try:
            _compare(job, root.target, _look(root.target, "destination"), root.target_id, root.target_place)
        except Refused:
            path = shown(root.target)
            current = _place_around(root.target)
            if current and current[0] == root.target_place[0] and _agree(current[1], root.target_place[1]):
                raise Gone(f"{path}: is gone, or another directory is in its place") from None
            raise Refused(f"{path}: its file system is not mounted there, it seems; mount it") from None


def refuse_lost_mounts(job: JobFile) -> None:
    """Raise ``Refused`` if a recorded mount below the job's targets is missing."""
    for path, root in job.mounts:
        for target in {target_of(root) for root in job.roots}:
            if not lies_in(path, target):
                continue
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            try:
                with held_open(open_patiently(path, flags)) as descriptor:
                    found = root_of(descriptor)
            except OSError as error:
                raise Refused(f"{shown(path)}: cannot be entered: {error.strerror}; mount it") from None
            if not found.is_same(MountRoot(*root)):
                raise Refused(f"{shown(path)}: the file system that the job wrote to is not mounted there; mount it")


def lost(job: JobFile) -> list[bytes]:
    """Return the target directories that are missing, or are not those that were recorded; the user may have
    moved them.
    """
    return [os.path.join(root.target, root.name) for root in job.roots if not root.item and not is_there(root)]


def is_there(root: JobRoot) -> bool:
    """True if the target directory exists and is the recorded one, or if none was recorded and it does not exist."""
    try:
        return not root.name or _is_made(root, _look_at_made(root))
    except OSError:
        return not any(root.made)  # It may never have been created.


def _is_made(root: JobRoot, current: Made) -> bool:
    """True if the target directory is the recorded one, or if none was recorded.

    A time of birth is compared only if both are known.
    """
    recorded = root.made
    if not any(recorded):
        return True
    is_same = (current.inode, current.f_type) == (recorded.inode, recorded.f_type)
    return is_same and _agree(current.fsid, recorded.fsid) and _agree(current.birth, recorded.birth)


def _agree(one: int, other: int) -> bool:
    """True if two numbers are equal, or one of them is 0, which stands for unknown."""
    return one == other or 0 in (one, other)


def _place_around(path: bytes) -> tuple[int, int] | None:
    """Return the file system of ``path``, or of the nearest existing directory above it; None if that cannot be
    examined.
    """
    while True:
        try:
            return look_at(path).place
        except FileNotFoundError:
            path = os.path.dirname(path)
        except OSError:
            return None


def _check_made(job: JobFile, root: JobRoot) -> None:
    """Raise ``Refused`` unless the target directory is the recorded one, if one was recorded."""
    if not any(root.made):
        return
    try:
        if _is_made(root, _look_at_made(root)):
            return
        difference = "it is another one"
    except FileNotFoundError:
        difference = "it is gone"
    except OSError as error:
        difference = str(error.strerror)
    raise Refused(
        f"{shown(target_of(root))}: not the directory that job {job.name} copies to: {difference}; "
        "put that back, or discard the job (pcopy --discard) and start anew"
    )


def _compare(job: JobFile, path: bytes, current: Seen, identity: tuple[int, int], place: tuple[int, int]) -> None:
    """Raise ``Refused`` if the current identity of a root's directory differs from the recorded one."""
    differing = []
    if current.place[0] != place[0]:
        differing.append(f"the type of its file system is {current.place[0]:#x}, was {place[0]:#x}")
    if not _agree(current.place[1], place[1]):
        name = "UUID" if XFS == current.place[0] == place[0] else "fsid"
        differing.append(f"its file system ({name}) is {current.place[1]:#x}, was {place[1]:#x}")
    if current.identity[1] != identity[1]:
        differing.append(f"its inode is {current.identity[1]}, was {identity[1]}")
    if differing:
        raise Refused(
            f"{shown(path)}: not the directory that job {job.name} began with: {'; '.join(differing)}; "
            "mount what was there, or start anew"
        )


def _look(path: bytes, role: str) -> Seen:
    """Return the identity of a root's directory, called ``role`` in the message; raise ``Refused``."""
    try:
        return look_at(path)
    except OSError as error:
        raise Refused(f"{shown(path)}: the job's {role} cannot be opened: {error.strerror}") from None
