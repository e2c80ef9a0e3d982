"""Decides whether failures for want of room stop the job: a whole file system is full, or one directory or quota is.

ENOSPC also comes from a directory whose index is full and from a project that has reached its quota (XFS), EDQUOT from
quotas of users, groups and projects. Items that are charged to others can still be made.
"""

from __future__ import annotations

import errno
import os
import struct
from contextlib import suppress
from fcntl import ioctl

from pcopy.fsio.preserve import CAP_SYS_RESOURCE, capable
from pcopy.fsio.problem import Problem
from pcopy.named import NamedTuple
from pcopy.tasks.base.values import Place
from pcopy.text import counted, shown
from pcopy.units import show_size

MOST_READ_ONLY = 2
"""Failures with EROFS in a row after which the job stops: the file system takes nothing any more."""

MOST_PLACES = 3
"""Failures for want of room in a row, each charged to another directory, project or owner, that stop the job."""

MOST_FAILURES = 1000
"""Failures for want of room in a row, wherever they are, that stop the job."""

_GET_ATTRIBUTES = 0x801C581F
"""FS_IOC_FSGETXATTR: a struct fsxattr, see ioctl_xfs_fsgetxattr(2)."""
_ATTRIBUTES = struct.Struct("=12xI12x")
"""The part of it that is read: the number of the project."""
_NEEDS_NO_DATA = frozenset(("create", "mkdir", "mknod", "symlink", "link"))


class Charged(NamedTuple):
    """The directory, or its project if it has one, and the owner to which an item that found no room was charged.

    ``directory`` is a number of a root and a path; both are empty for an item of a project.
    """

    directory: tuple[int, bytes]
    project: int
    owner: tuple[int, int]


def charged_to(place: Place, directory: int) -> Charged:
    """Return the directory or project, and the owner, to which new items in the open ``directory`` are charged."""
    group, project = os.getegid(), 0
    with suppress(OSError):
        status = os.fstat(directory)
        group = status.st_gid if status.st_mode & 0o2000 else group
        (project,) = _ATTRIBUTES.unpack(ioctl(directory, _GET_ATTRIBUTES, bytes(_ATTRIBUTES.size)))
    owner = os.geteuid(), group
    return Charged((-1, b""), project, owner) if project else Charged((place.root, place.path), 0, owner)


def what_lacks(problem: Problem, file_system: int, size: int) -> str:
    """Return what the file system of an open directory lacks for an item of ``size`` bytes, for the user.

    Empty if it lacks nothing, as far as statfs(2) shows: one of 0 blocks shows nothing.
    """
    try:
        found = os.fstatvfs(file_system)
    except OSError:
        return ""
    if problem.errno != errno.ENOSPC or not found.f_blocks:
        return ""
    free = found.f_frsize * (found.f_bfree if capable(CAP_SYS_RESOURCE) else found.f_bavail)
    needed = max(found.f_frsize, 0 if problem.operation in _NEEDS_NO_DATA else size)
    if free < needed:
        return f"{show_size(free)} are free, and the item needs {show_size(needed)}"
    return "no inode is free" if found.f_files and not found.f_favail else ""


def where(place: Charged, shown_path: bytes) -> str:
    """Return the directory or project to which an item was charged, in words."""
    if place.project:
        return f"project {place.project}"
    return f"directory {shown(os.path.dirname(shown_path))}"


def why_to_stop(in_a_row: tuple[Charged, ...], lacks: str, last: str) -> str:
    """Return why the job stops after failures for want of room ``in_a_row``, the newest last; empty if it goes on."""
    if lacks:
        return lacks
    places = len(set(in_a_row))
    if places >= MOST_PLACES:
        return f"{places} directories, projects or owners in a row found no room, though the file system has some"
    if len(in_a_row) >= MOST_FAILURES:
        return f"{counted(len(in_a_row), 'item', 'items')} in a row found no room in {last}"
    return ""
