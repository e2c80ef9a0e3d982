"""Decides whether failures for lack of space stop the job. They do if the whole file system is full, but not if only
one directory or quota is.

ENOSPC is also returned for a directory whose index is full and for a project that has reached its quota (XFS), and
EDQUOT for quotas of users, groups and projects. Items that are charged to another directory or quota can still be
created then.
"""

from __future__ import annotations

import errno
import os
import struct
from contextlib import suppress
from fcntl import ioctl

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.preserve import CAP_SYS_RESOURCE, has_capability
from pcopy.fsio.problem import Problem
from pcopy.tasks.base.values import Place
from pcopy.text import count_with_noun, printable_path
from pcopy.units import format_size

MAX_READ_ONLY_FAILURES = 2
"""Number of consecutive EROFS failures of one rank that stop the job: the file system has become read-only."""

MAX_DISTINCT_SHORTAGES = 3
"""Number of different directories, projects or owners at which consecutive failures for lack of space stop the job:
probably the whole file system is full, though statfs(2) does not show it.
"""

MAX_SHORTAGES = 1000
"""Number of consecutive failures for lack of space of one rank that stop the job, even if all are in one directory."""

_FS_IOC_FSGETXATTR = 0x801C581F
"""Number of the ioctl(2) FS_IOC_FSGETXATTR, which returns a struct fsxattr; see ioctl_xfs_fsgetxattr(2)."""
_FSXATTR = struct.Struct("=12xI12x")
"""Layout of struct fsxattr; only the project number is read."""
_OPERATIONS_WITHOUT_DATA = frozenset(("create", "mkdir", "mknod", "symlink", "link"))
"""Operations that need an inode or a directory entry, but no room for contents."""


class ChargedQuota(NamedTuple):
    """What an item is charged to: a directory or project, and an owner.

    Fields:
        directory: index of the root and path of the directory; (-1, b"") for an item that is charged to a project.
        project: number of the project; 0 for none.
        owner: user and group.
    """

    directory: tuple[int, bytes]
    project: int
    owner: tuple[int, int]


def charged_quota_of_new_items(place: Place, directory: int) -> ChargedQuota:
    """Return the directory or project, and the owner, to whose quota new items in the directory ``place`` are charged.
    ``directory`` is its descriptor; if it is -1, the project is not known and counts as none.
    """
    group, project = os.getegid(), 0
    with suppress(OSError):
        status = os.fstat(directory)
        group = status.st_gid if status.st_mode & 0o2000 else group
        (project,) = _FSXATTR.unpack(ioctl(directory, _FS_IOC_FSGETXATTR, bytes(_FSXATTR.size)))
    owner = os.geteuid(), group
    return ChargedQuota((-1, b""), project, owner) if project else ChargedQuota((place.root, place.path), 0, owner)


def file_system_shortage(problem: Problem, file_system: int, size: int) -> tuple[str, str]:
    """Return two texts: what the file system lacks for an item of ``size`` bytes, empty if statfs(2) shows no shortage,
    and how much is free.

    The second one states what statfs(2) shows now, when the failed item has released its space. The file system may
    have been full before.

    Args:
        problem: the error of the item.
        file_system: descriptor of any directory on the file system.
    """
    if problem.errno == errno.EDQUOT:
        return "", "a quota is used up"
    with suppress(OSError):
        found = os.fstatvfs(file_system)
        if found.f_blocks:
            free = found.f_frsize * (found.f_bfree if has_capability(CAP_SYS_RESOURCE) else found.f_bavail)
            needed = max(found.f_frsize, 0 if problem.operation in _OPERATIONS_WITHOUT_DATA else size)
            if free < needed:
                return f"{format_size(free)} are free, and the item needs {format_size(needed)}", ""
            lacks = "no inode is free" if found.f_files and not found.f_favail else ""
            return lacks, f"{format_size(free)} are free in the file system now"
    return "", "the free space of the file system is not known"


def charge_description(charge: ChargedQuota, shown_path: bytes) -> str:
    """Return the project or directory to which an item was charged, in words. ``shown_path`` is the path of the item as
    the user sees it.
    """
    if charge.project:
        return f"project {charge.project}"
    return f"directory {printable_path(os.path.dirname(shown_path))}"


def reason_to_stop(in_a_row: tuple[ChargedQuota, ...], lacks: str, last: str) -> str:
    """Return the reason to stop the job after these consecutive failures for lack of space; empty if the job continues.

    Args:
        in_a_row: what each failed item was charged to, the newest last.
        lacks: what the whole file system lacks, in words, or empty.
        last: the directory or project of the last failure, in words.
    """
    if lacks:
        return lacks
    places = len(set(in_a_row))
    if places >= MAX_DISTINCT_SHORTAGES:
        return f"{places} directories, projects or owners in a row had no room for items"
    if len(in_a_row) >= MAX_SHORTAGES:
        return f"{count_with_noun(len(in_a_row), 'item', 'items')} in a row failed because there is no room in {last}"
    return ""
