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

from pcopy.errors import RequestRefused
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.close import closed_at_end
from pcopy.fsio.identity import XFS_TYPE, birth_time, file_system_id
from pcopy.fsio.mounted import MountRoot, mount_root_of
from pcopy.fsio.retries import open_with_retries
from pcopy.jobs.job_file import JobFile, JobRoot, TargetIdentity
from pcopy.jobs.paths import is_in_tree, target_path
from pcopy.jobs.suggestions import reason_unwritable
from pcopy.tasks.base.job import Root
from pcopy.text import printable_path

CACHED_IDENTITIES = 128
"""Directories whose identity is cached while the roots of a job are checked, since many roots share one."""

_OPEN_FLAGS = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class DirectoryIdentity(NamedTuple):
    """Current identity of a directory: (device, inode), (f_type, fsid or UUID), and time of birth in nanoseconds
    since 1970 (0: unknown).
    """

    identity: tuple[int, int]
    file_system: tuple[int, int]
    birth: int


def directory_identity(path: bytes) -> DirectoryIdentity:
    """Return the identity of the directory ``path``; raise ``OSError``.

    A symbolic link at its end is not followed. Needs no permission to read the directory.
    """
    try:
        descriptor = open_with_retries(path, _OPEN_FLAGS)
    except PermissionError:  # O_PATH needs no permission, but XFS does not return its UUID for it.
        descriptor = open_with_retries(path, _OPEN_FLAGS | os.O_PATH)
    with closed_at_end(descriptor):
        status = os.fstat(descriptor)
        return DirectoryIdentity((status.st_dev, status.st_ino), file_system_id(descriptor), birth_time(descriptor))


def refuse_unwritable(roots: Sequence[Root]) -> None:
    """Raise ``RequestRefused`` if all targets are new names in a directory in which this user cannot create any."""
    target = roots[0].target
    if not all(root.name and not os.path.lexists(target_path(root)) for root in roots):
        return
    if reason := reason_unwritable(target):
        raise RequestRefused(
            f"{printable_path(roots[0].target_shown)}: cannot be made, since {reason}; name another DST"
        )


def with_file_systems(roots: Sequence[Root]) -> tuple[JobRoot, ...]:
    """Return ``roots`` with the file systems of their directories; raise ``RequestRefused`` if one was replaced
    meanwhile.
    """
    examine = lru_cache(maxsize=CACHED_IDENTITIES)(_examine_root)
    placed = []
    for root in roots:
        source, target = examine(root.source, "source"), examine(root.target, "destination")
        if source.identity[1] != root.source_id[1] or target.identity[1] != root.target_id[1]:
            path = root.source_shown if source.identity[1] != root.source_id[1] else root.target_shown
            raise RequestRefused(f"{printable_path(path)}: was replaced by another directory since the job began")
        placed.append(JobRoot(*root, source_place=source.file_system, target_place=target.file_system))
    return tuple(placed)


def with_target_identity(root: JobRoot) -> JobRoot:
    """Return ``root`` with the identity of the target directory, if that exists; otherwise unchanged."""
    if root.item or not root.name or any(root.made):
        return root
    try:
        return root._replace(made=_target_identity(root))
    except OSError:  # It does not exist yet, or is a file that the copy will replace.
        return root


def _target_identity(root: JobRoot) -> TargetIdentity:
    """Return the identity of the target directory; raise ``OSError``."""
    current = directory_identity(os.path.join(root.target, root.name))
    return TargetIdentity(current.identity[1], *current.file_system, current.birth)


def check_roots(job: JobFile) -> tuple[JobRoot, ...]:
    """Return the job's roots with current device numbers.

    Raise ``RequestRefused`` if a directory is not the one with which the job began, with its path and the difference.
    """
    examine = lru_cache(maxsize=CACHED_IDENTITIES)(_examine_root)
    checked = []
    for root in job.roots:
        source, target = examine(root.source, "source"), examine(root.target, "destination")
        _refuse_different(job, root.source, source, root.source_id, root.source_place)
        _refuse_different(job, root.target, target, root.target_id, root.target_place)
        _check_target(job, root)
        checked.append(root._replace(source_id=source.identity, target_id=target.identity))
    return tuple(checked)


class DestinationRemoved(RequestRefused):
    """The directory that the job copied to was removed or replaced, and mounting a file system cannot bring it back."""


def check_targets(job: JobFile) -> None:
    """Check the destination as ``check_roots`` does.

    Raise ``Gone`` if no file of the job can exist there any longer, and ``RequestRefused`` if the file system seems not
    to be mounted.
    """
    for root in job.roots:
        try:
            _refuse_different(
                job, root.target, _examine_root(root.target, "destination"), root.target_id, root.target_place
            )
        except RequestRefused:
            path = printable_path(root.target)
            current = _nearest_file_system(root.target)
            if current and current[0] == root.target_place[0] and _equal_or_unknown(current[1], root.target_place[1]):
                raise DestinationRemoved(f"{path}: is gone, or another directory is in its place") from None
            raise RequestRefused(f"{path}: its file system is not mounted there, it seems; mount it") from None


def refuse_missing_mounts(job: JobFile) -> None:
    """Raise ``RequestRefused`` if a recorded mount below the job's targets is missing."""
    for path, root in job.mounts:
        for target in {target_path(root) for root in job.roots}:
            if not is_in_tree(path, target):
                continue
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            try:
                with closed_at_end(open_with_retries(path, flags)) as descriptor:
                    found = mount_root_of(descriptor)
            except OSError as error:
                raise RequestRefused(f"{printable_path(path)}: cannot be entered: {error.strerror}; mount it") from None
            if not found.may_be_same(MountRoot(*root)):
                raise RequestRefused(
                    f"{printable_path(path)}: the file system that the job wrote to is not mounted there; mount it"
                )


def missing_targets(job: JobFile) -> list[bytes]:
    """Return the target directories that are missing, or are not those that were recorded; the user may have
    moved them.
    """
    return [
        os.path.join(root.target, root.name) for root in job.roots if not root.item and not is_target_as_recorded(root)
    ]


def is_target_as_recorded(root: JobRoot) -> bool:
    """True if the target directory exists and is the recorded one, or if none was recorded and it does not exist."""
    try:
        return not root.name or _is_recorded_target(root, _target_identity(root))
    except OSError:
        return not any(root.made)  # It may never have been created.


def _is_recorded_target(root: JobRoot, current: TargetIdentity) -> bool:
    """True if the target directory is the recorded one, or if none was recorded.

    A time of birth is compared only if both are known.
    """
    recorded = root.made
    if not any(recorded):
        return True
    is_same = (current.inode, current.f_type) == (recorded.inode, recorded.f_type)
    return (
        is_same and _equal_or_unknown(current.fsid, recorded.fsid) and _equal_or_unknown(current.birth, recorded.birth)
    )


def _equal_or_unknown(one: int, other: int) -> bool:
    """True if two numbers are equal, or one of them is 0, which stands for unknown."""
    return one == other or 0 in (one, other)


def _nearest_file_system(path: bytes) -> tuple[int, int] | None:
    """Return the file system of ``path``, or of the nearest existing directory above it; None if that cannot be
    examined.
    """
    while True:
        try:
            return directory_identity(path).file_system
        except FileNotFoundError:
            path = os.path.dirname(path)
        except OSError:
            return None


def _check_target(job: JobFile, root: JobRoot) -> None:
    """Raise ``RequestRefused`` unless the target directory is the recorded one, if one was recorded."""
    if not any(root.made):
        return
    try:
        if _is_recorded_target(root, _target_identity(root)):
            return
        difference = "it is another one"
    except FileNotFoundError:
        difference = "it is gone"
    except OSError as error:
        difference = str(error.strerror)
    raise RequestRefused(
        f"{printable_path(target_path(root))}: not the directory that job {job.name} copies to: {difference}; "
        "put that back, or discard the job (pcopy --discard) and start anew"
    )


def _refuse_different(
    job: JobFile, path: bytes, current: DirectoryIdentity, identity: tuple[int, int], place: tuple[int, int]
) -> None:
    """Raise ``RequestRefused`` if the current identity of a root's directory differs from the recorded one."""
    differing = []
    if current.file_system[0] != place[0]:
        differing.append(f"the type of its file system is {current.file_system[0]:#x}, was {place[0]:#x}")
    if not _equal_or_unknown(current.file_system[1], place[1]):
        name = "UUID" if XFS_TYPE == current.file_system[0] == place[0] else "fsid"
        differing.append(f"its file system ({name}) is {current.file_system[1]:#x}, was {place[1]:#x}")
    if current.identity[1] != identity[1]:
        differing.append(f"its inode is {current.identity[1]}, was {identity[1]}")
    if differing:
        raise RequestRefused(
            f"{printable_path(path)}: not the directory that job {job.name} began with: {'; '.join(differing)}; "
            "mount what was there, or start anew"
        )


def _examine_root(path: bytes, role: str) -> DirectoryIdentity:
    """Return the identity of a root's directory, called ``role`` in the message; raise ``RequestRefused``."""
    try:
        return directory_identity(path)
    except OSError as error:
        raise RequestRefused(f"{printable_path(path)}: the job's {role} cannot be opened: {error.strerror}") from None
