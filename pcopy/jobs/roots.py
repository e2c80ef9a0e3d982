"""Checks that the source and target directories of a recorded job (its roots) are still those with which it began.

Three values are compared: the inode number, the type of the file system (f_type) and its id (fsid; on XFS the UUID).
f_type and fsid are from statfs(2). Device numbers, and ids derived from them, are not compared: a file system may have
another device number after it is mounted again, and on another host. For a directory that the job created the time of
birth is compared, too, if the file system provides it, because the inode number of a removed directory is used again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache

from pcopy.errors import RequestRefused, path_refused, unwritable_directory_code
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.close import closing_descriptor
from pcopy.fsio.identity import XFS_TYPE, birth_time, file_system_id
from pcopy.fsio.mounted import MountRootIdentity, mount_root_of
from pcopy.fsio.retries import open_with_retries
from pcopy.jobs.job_file import JobFile, JobRoot, TargetIdentity
from pcopy.jobs.paths import is_in_tree, target_path
from pcopy.jobs.suggestions import reason_directory_is_unwritable
from pcopy.tasks.base.job import Root
from pcopy.text import printable_path

MAX_CACHED_IDENTITIES = 128
"""Number of directories whose identity is cached during a check: a job may have thousands of sources in few
directories.
"""

_OPEN_FLAGS = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class DirectoryIdentity(NamedTuple):
    """Current identity of a directory.

    Fields:
    - ``identity``: (device, inode).
    - ``file_system``: (f_type, fsid), on XFS (f_type, UUID as a number); 0 stands for unknown.
    - ``birth``: time of birth in nanoseconds since 1970; 0 if unknown.
    """

    identity: tuple[int, int]
    file_system: tuple[int, int]
    birth: int


def directory_identity(path: bytes) -> DirectoryIdentity:
    """Return the current identity of the directory ``path``, for which no permission to read it is needed.

    Raise ``OSError`` if it cannot be opened or its last component is a symbolic link.
    """
    try:
        descriptor = open_with_retries(path, _OPEN_FLAGS)
    except PermissionError:  # O_PATH needs no permission, but through such a descriptor XFS does not return its UUID.
        descriptor = open_with_retries(path, _OPEN_FLAGS | os.O_PATH)
    with closing_descriptor(descriptor):
        status = os.fstat(descriptor)
        return DirectoryIdentity((status.st_dev, status.st_ino), file_system_id(descriptor), birth_time(descriptor))


def refuse_unwritable_targets(roots: Sequence[Root]) -> None:
    """Raise ``RequestRefused`` if all targets are new names in a directory in which this user cannot create files."""
    target = roots[0].target
    if not all(root.name and not os.path.lexists(target_path(root)) for root in roots):
        return
    if reason := reason_directory_is_unwritable(target):
        raise path_refused(
            roots[0].target_shown,
            f"cannot be created, since {reason}; name another DST",
            code=unwritable_directory_code(target),
        )


def roots_with_file_systems(roots: Sequence[Root]) -> tuple[JobRoot, ...]:
    """Return ``roots`` together with the file systems of their source and target directories, as the job file records
    them.

    Raise ``RequestRefused`` if a directory cannot be opened, or was replaced since ``roots`` were resolved.
    """
    examine = lru_cache(maxsize=MAX_CACHED_IDENTITIES)(_identity_of_source_or_target)
    placed = []
    for root in roots:
        source, target = examine(root.source, "source"), examine(root.target, "destination")
        if source.identity[1] != root.source_id[1] or target.identity[1] != root.target_id[1]:
            path = root.source_shown if source.identity[1] != root.source_id[1] else root.target_shown
            raise path_refused(path, "was replaced by another directory since the job began")
        placed.append(JobRoot(*root, source_place=source.file_system, target_place=target.file_system))
    return tuple(placed)


def root_with_target_identity(root: JobRoot) -> JobRoot:
    """Return ``root`` with the current identity of the directory to which its source is copied in the field ``made``.

    ``root`` is returned unchanged if that directory does not exist yet, if its identity is known already, or if no
    directory is created for the source.
    """
    if root.item or not root.name or any(root.made):
        return root
    try:
        return root._replace(made=_target_identity(root))
    except OSError:  # It does not exist yet, or is a file that the copy will replace.
        return root


def _target_identity(root: JobRoot) -> TargetIdentity:
    """Return the current identity of the directory to which ``root`` copies; raise ``OSError`` if there is none."""
    current = directory_identity(os.path.join(root.target, root.name))
    return TargetIdentity(current.identity[1], *current.file_system, current.birth)


def checked_roots_of_job(job: JobFile) -> tuple[JobRoot, ...]:
    """Check that the sources and targets of a job are still those with which it began; return them with their current
    device numbers.

    Raise ``RequestRefused``, with the path and the difference, if a directory is another one.
    """
    examine = lru_cache(maxsize=MAX_CACHED_IDENTITIES)(_identity_of_source_or_target)
    checked = []
    for root in job.roots:
        source, target = examine(root.source, "source"), examine(root.target, "destination")
        _refuse_different_directory(job, root.source, source, root.source_id, root.source_place)
        _refuse_different_directory(job, root.target, target, root.target_id, root.target_place)
        _check_recorded_target(job, root)
        checked.append(root._replace(source_id=source.identity, target_id=target.identity))
    return tuple(checked)


class DestinationRemovedError(RequestRefused):
    """Error: the directory that the job copied to was removed or replaced, and mounting a file system cannot bring it
    back.
    """


def check_target_directories(job: JobFile) -> None:
    """Check that the target directories of the job are those with which it began.

    Raise ``DestinationRemovedError`` if a target directory is missing, or was replaced by another one, although its
    file system is mounted: then no file of the job can exist there. Raise ``RequestRefused`` if its file system seems
    not to be mounted.
    """
    for root in job.roots:
        try:
            _refuse_different_directory(
                job,
                root.target,
                _identity_of_source_or_target(root.target, "destination"),
                root.target_id,
                root.target_place,
            )
        except RequestRefused:
            path = printable_path(root.target)
            current = _nearest_file_system(root.target)
            if (
                current
                and current[0] == root.target_place[0]
                and _are_equal_or_unknown(current[1], root.target_place[1])
            ):
                raise DestinationRemovedError(f"{path}: is gone, or another directory is in its place") from None
            raise RequestRefused(f"{path}: its file system does not seem to be mounted; mount it") from None


def refuse_missing_mounts(job: JobFile) -> None:
    """Raise ``RequestRefused`` if a file system that the job found below its targets is not mounted there now."""
    for path, root in job.mounts:
        for target in {target_path(root) for root in job.roots}:
            if not is_in_tree(path, target):
                continue
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            try:
                with closing_descriptor(open_with_retries(path, flags)) as descriptor:
                    found = mount_root_of(descriptor)
            except OSError as error:
                raise path_refused(path, f"cannot be entered: {error.strerror}; mount it") from None
            if not found.may_be_same_mount(MountRootIdentity(*root)):
                raise path_refused(path, "the file system that the job wrote to is not mounted there; mount it")


def missing_or_replaced_targets(job: JobFile) -> list[bytes]:
    """Return the paths of directories that the job created, and that are missing now or have been replaced.

    The user may have moved the original ones, with temporary files of the job in them.
    """
    return [
        os.path.join(root.target, root.name) for root in job.roots if not root.item and not is_target_as_recorded(root)
    ]


def is_target_as_recorded(root: JobRoot) -> bool:
    """True if the directory to which ``root`` copies is the one that the job file records.

    Also True if no directory was recorded: then the job may or may not have created it. False if one was recorded and
    is missing now.
    """
    try:
        return not root.name or _is_recorded_target(root, _target_identity(root))
    except OSError:
        return not any(root.made)  # It may never have been created.


def _is_recorded_target(root: JobRoot, current: TargetIdentity) -> bool:
    """True if the target directory of ``root``, whose current identity is ``current``, is the recorded one, or if none
    was recorded.

    fsid and time of birth are compared only if both values are known.
    """
    recorded = root.made
    if not any(recorded):
        return True
    is_same = (current.inode, current.f_type) == (recorded.inode, recorded.f_type)
    return (
        is_same
        and _are_equal_or_unknown(current.fsid, recorded.fsid)
        and _are_equal_or_unknown(current.birth, recorded.birth)
    )


def _are_equal_or_unknown(one: int, other: int) -> bool:
    """Return True if ``one`` and ``other`` are equal, or if one of them is 0, which stands for unknown."""
    return one == other or 0 in (one, other)


def _nearest_file_system(path: bytes) -> tuple[int, int] | None:
    """Return the file system of ``path``, or of the nearest existing directory above it, as (f_type, fsid) of
    statfs(2).

    None if that directory cannot be opened.
    """
    while True:
        try:
            return directory_identity(path).file_system
        except FileNotFoundError:
            path = os.path.dirname(path)
        except OSError:
            return None


def _check_recorded_target(job: JobFile, root: JobRoot) -> None:
    """Raise ``RequestRefused`` if ``root`` has a recorded target directory, but that is missing now or another
    directory has its path.
    """
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
    raise path_refused(
        target_path(root),
        f"not the directory that job {job.name} copies to: {difference}; put the original directory back, or discard "
        "the job (pcopy --discard) and start a new one",
    )


def _refuse_different_directory(
    job: JobFile, path: bytes, current: DirectoryIdentity, identity: tuple[int, int], place: tuple[int, int]
) -> None:
    """Raise ``RequestRefused`` if a source or target directory is another one than when the job began.

    Args:
        job: the job, for the message.
        path: the directory.
        current: its current identity.
        identity: its recorded (device, inode); the device is not compared.
        place: its recorded (f_type, fsid); an fsid of 0 (unknown) equals any other.
    """
    differing = []
    if current.file_system[0] != place[0]:
        differing.append(f"the type of its file system is {current.file_system[0]:#x}, was {place[0]:#x}")
    if not _are_equal_or_unknown(current.file_system[1], place[1]):
        name = "UUID" if XFS_TYPE == current.file_system[0] == place[0] else "fsid"
        differing.append(f"its file system ({name}) is {current.file_system[1]:#x}, was {place[1]:#x}")
    if current.identity[1] != identity[1]:
        differing.append(f"its inode is {current.identity[1]}, was {identity[1]}")
    if differing:
        raise path_refused(
            path,
            f"not the directory that job {job.name} began with: {'; '.join(differing)}; mount what was there, or "
            "start a new job",
        )


def _identity_of_source_or_target(path: bytes, role: str) -> DirectoryIdentity:
    """Return the identity of the directory ``path``.

    Raise ``RequestRefused`` if it cannot be opened; the message calls it the job's ``role`` (source or destination).
    """
    try:
        return directory_identity(path)
    except OSError as error:
        raise path_refused(path, f"the job's {role} cannot be opened: {error.strerror}") from None
