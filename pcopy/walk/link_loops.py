"""Detection of endless paths if symbolic links are followed while copying: a link may lead back to a directory that
contains it, or into the target.

In both cases the copy would never end, so such a directory fails. All other paths are finite, since no directory occurs
twice in them. Only symbolic links and bind mounts can cause a repetition.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress

from pcopy.fsio.close import close_ignoring_errors
from pcopy.fsio.directories import DirectoriesBelowRoot
from pcopy.fsio.problem import Problem, errors_as_problem
from pcopy.fsio.retries import open_with_retries
from pcopy.text import printable_path

_DeviceAndInode = tuple[int, int]  # st_dev and number

_PARENT_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def refuse_link_to_ancestor(
    sources: DirectoriesBelowRoot, path: bytes, status: os.stat_result, shown_as: Callable[[bytes], bytes]
) -> None:
    """Raise ``Problem`` (ELOOP) if the directory ``path`` is the same as one of the directories above it, because a
    symbolic link in the path leads back. A copy that followed it would never end.

    Args:
        sources: the root of the source, with the identities of the directories above ``path``.
        path: path below the root.
        status: status of the directory.
        shown_as: gets a path below the root, and returns it as messages show it.
    """
    for above, identity in sources.ancestors(path):
        if (sources.mount_codes.device_of_mount_code(identity.mount_code), identity.inode) == (
            status.st_dev,
            status.st_ino,
        ):
            text = f"a symbolic link leads back to {printable_path(shown_as(above))}"
            raise Problem("scan", errno.ELOOP, on_source=True, text=f"{text}, which contains it")


def refuse_directory_inside_target(
    directory: int, status: os.stat_result, around: int, names: Sequence[bytes], *, checks_all_parents: bool
) -> None:
    """Raise ``Problem`` if the source directory ``directory`` is a target of the copy or, with ``checks_all_parents``,
    lies anywhere below one, because a symbolic link leads there. Such a copy would never end.

    All targets are entries of one directory ``around``, or are that directory itself (an empty name). So the parents of
    ``directory`` are opened one after the other up to ``/``. If one of them is ``around``, the directory below it in
    this path is compared with the targets. If the parent of ``directory`` is known to be outside of all targets, and no
    symbolic link was followed, one level is enough.

    Args:
        directory: open descriptor of the directory.
        status: status of the directory.
        around: open descriptor of the directory that contains the targets.
        names: names of the targets in ``around``.
        checks_all_parents: True to check all parents, False to check one level.
    """
    with errors_as_problem("open", on_source=True):
        is_inside = _is_inside_target(directory, status, around, names, checks_all_parents=checks_all_parents)
    if is_inside:
        raise Problem("scan", 0, on_source=True, text="a symbolic link leads into the target")


def _is_inside_target(
    directory: int, status: os.stat_result, around: int, names: Sequence[bytes], *, checks_all_parents: bool
) -> bool:
    """Return True if ``directory`` is a target of the copy or lies below one. The targets are the entries ``names`` of
    the open directory ``around``; an empty name means ``around`` itself. If ``checks_all_parents`` is False, only
    the parent of ``directory`` is checked.
    """
    top = _device_and_inode(around)
    below: _DeviceAndInode | None = None
    at: _DeviceAndInode = status.st_dev, status.st_ino
    descriptor = os.dup(directory)
    try:
        while at != below:
            if at == top:
                return b"" in names or (below is not None and _is_directory_among_entries(around, names, below))
            if below is not None and not checks_all_parents:
                return False
            entered = open_with_retries(b"..", _PARENT_FLAGS, dir_fd=descriptor)
            close_ignoring_errors(descriptor)
            descriptor = entered
            below, at = at, _device_and_inode(descriptor)
    finally:
        close_ignoring_errors(descriptor)
    return False


def _is_directory_among_entries(parent: int, names: Sequence[bytes], directory: _DeviceAndInode) -> bool:
    """Return True if one of the entries ``names`` of the open directory ``parent`` is ``directory``, given by device
    and inode number.
    """
    for name in names:
        with suppress(FileNotFoundError):
            found = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if (found.st_dev, found.st_ino) == directory:
                return True
    return False


def _device_and_inode(descriptor: int) -> _DeviceAndInode:
    """Return device and inode number of an open directory."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
