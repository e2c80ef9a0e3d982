"""Detection of endless paths when symbolic links are followed: a directory may lead back to itself, or into the target.

Both would never end, so both fail. A path without a repeated directory is finite, and only symbolic links and bind
mounts can cause a repetition.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress

from pcopy.fsio.close import close_ignoring_errors
from pcopy.fsio.directories import RootDirectories
from pcopy.fsio.problem import Problem, as_problem
from pcopy.fsio.retries import open_with_retries
from pcopy.text import printable_path

_Inode = tuple[int, int]  # st_dev and number

_PARENT_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def refuse_repetition(
    sources: RootDirectories, path: bytes, status: os.stat_result, shown_as: Callable[[bytes], bytes]
) -> None:
    """Raise ``Problem`` (ELOOP) if the directory ``path``, which has this ``status``, is the same as one of its
    parents.

    Args:
        shown_as: returns the path as messages show it.
    """
    for above, identity in sources.ancestors(path):
        if (sources.mount_codes.device_of_code(identity.mount_code), identity.inode) == (status.st_dev, status.st_ino):
            text = f"a symbolic link leads back to {printable_path(shown_as(above))}"
            raise Problem("scan", errno.ELOOP, on_source=True, text=f"{text}, which contains it")


def refuse_inside_target(
    directory: int, status: os.stat_result, around: int, names: Sequence[bytes], *, checks_all_parents: bool
) -> None:
    """Raise ``Problem`` if ``directory`` is a target or, with ``checks_all_parents``, lies anywhere below one.

    All targets lie in one directory ``around`` under these ``names``, or are that directory itself (an empty name). It
    is therefore enough to check, on the way up to the root directory, through which entry of ``around`` the path leads.
    A caller that has come from a directory outside of all targets, not through a symbolic link, only needs to check one
    level.

    Args:
        directory: open descriptor of the directory; ``status`` is its status.
        around: open descriptor of the directory that contains the targets.
        names: names of the targets in it.
        checks_all_parents: check all parent directories.
    """
    with as_problem("open", on_source=True):
        is_inside = _is_inside_target(directory, status, around, names, checks_all_parents=checks_all_parents)
    if is_inside:
        raise Problem("scan", 0, on_source=True, text="a symbolic link leads into the target")


def _is_inside_target(
    directory: int, status: os.stat_result, around: int, names: Sequence[bytes], *, checks_all_parents: bool
) -> bool:
    """Return True if ``directory`` is a target or lies below one; see ``refuse_inside_target``."""
    top = _identity(around)
    below: _Inode | None = None
    at: _Inode = status.st_dev, status.st_ino
    descriptor = os.dup(directory)
    try:
        while at != below:
            if at == top:
                return b"" in names or (below is not None and _is_one_of(around, names, below))
            if below is not None and not checks_all_parents:
                return False
            entered = open_with_retries(b"..", _PARENT_FLAGS, dir_fd=descriptor)
            close_ignoring_errors(descriptor)
            descriptor = entered
            below, at = at, _identity(descriptor)
    finally:
        close_ignoring_errors(descriptor)
    return False


def _is_one_of(parent: int, names: Sequence[bytes], directory: _Inode) -> bool:
    """Return True if one of the ``names`` in ``parent`` is that directory."""
    for name in names:
        with suppress(FileNotFoundError):
            found = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if (found.st_dev, found.st_ino) == directory:
                return True
    return False


def _identity(descriptor: int) -> _Inode:
    """Return device and inode number of an open directory."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
