"""Where symbolic links are followed, a directory may lead back into itself, or into what is being made.

Both would have no end, so both fail. A path without a repetition is finite, and only links (and bind mounts) repeat.
"""

from __future__ import annotations

import errno
import os
import stat

from pcopy.fsio.close import let_go
from pcopy.fsio.problem import Problem
from pcopy.tasks.context import Context
from pcopy.tasks.values import NOWHERE, Place, ScanDir
from pcopy.text import shown

_Inode = tuple[int, int]  # st_dev and number

_UPWARDS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def check_followed(context: Context, task: ScanDir, source: int, status: os.stat_result) -> None:
    """Raises ``Problem`` if the directory ``source`` (a descriptor) is one of those above it, or lies in a target."""
    if task.parent is None:
        return
    sources = context.sources[task.root]
    for path, identity in sources.above(task.path):
        if (sources.mounts.device(identity.mount), identity.inode) == (status.st_dev, status.st_ino):
            above = Place(task.root, path, identity, NOWHERE, False, False)
            text = f"a symbolic link leads back to {shown(context.shown(above, b'', on_source=True))}"
            raise Problem("scan", errno.ELOOP, on_source=True, text=f"{text}, in which it lies itself")
    try:
        name = task.path.rpartition(b"/")[2]
        entry = os.stat(name, dir_fd=context.open_source(task.parent), follow_symlinks=False)
        if _lies_in_target(context, source, status, all_the_way=stat.S_ISLNK(entry.st_mode)):
            raise Problem("scan", 0, on_source=True, text="a symbolic link leads into the target")
    except OSError as error:
        raise Problem.of("open", error, on_source=True) from error


def _lies_in_target(context: Context, directory: int, status: os.stat_result, *, all_the_way: bool) -> bool:
    """Is it one of the roots' targets, or with ``all_the_way`` anywhere below one?

    All targets lie in one directory, or are that directory itself; so it is enough to know what lies in that on the way
    up. Whoever has come down from a directory that lies in none need not go all the way. Raises ``OSError``.
    """
    roots = context.job.roots
    around = _identity(context.targets[0].open(b""))
    whole = any(not root.name for root in roots)
    below: _Inode | None = None
    at: _Inode = status.st_dev, status.st_ino
    passing = -1
    try:
        while at != below:
            if at == around:
                return whole or (below is not None and _is_a_target(context, below))
            if below is not None and not all_the_way:
                return False
            entered = os.open(b"..", _UPWARDS, dir_fd=directory if passing < 0 else passing)
            if passing >= 0:
                let_go(passing)
            passing = entered
            below, at = at, _identity(passing)
    finally:
        if passing >= 0:
            let_go(passing)
    return False


def _is_a_target(context: Context, directory: _Inode) -> bool:
    """Is ``directory``, which lies where all targets lie, one of them?"""
    for number, root in enumerate(context.job.roots):
        if not root.item:
            try:
                found = os.stat(root.name, dir_fd=context.targets[number].open(b""), follow_symlinks=False)
            except FileNotFoundError:
                continue
            if (found.st_dev, found.st_ino) == directory:
                return True
    return False


def _identity(descriptor: int) -> _Inode:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
