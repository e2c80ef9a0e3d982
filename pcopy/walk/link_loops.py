"""Where symbolic links are followed, a directory may lead back into itself, or into what is being made.

Both would have no end, so both fail. A path without a repetition is finite, and only links (and bind mounts) repeat.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress

from pcopy.fsio.close import let_go
from pcopy.fsio.directories import Directories
from pcopy.fsio.patience import open_patiently
from pcopy.fsio.problem import Problem, failing
from pcopy.text import shown

_Inode = tuple[int, int]  # st_dev and number

_UPWARDS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def check_repetition(
    sources: Directories, path: bytes, status: os.stat_result, shown_as: Callable[[bytes], bytes]
) -> None:
    """Raises ``Problem`` if the directory ``path``, which has this ``status``, is one of those above it.

    ``shown_as`` tells what a path is called in messages.
    """
    for above, identity in sources.above(path):
        if (sources.mounts.device(identity.mount), identity.inode) == (status.st_dev, status.st_ino):
            text = f"a symbolic link leads back to {shown(shown_as(above))}"
            raise Problem("scan", errno.ELOOP, on_source=True, text=f"{text}, in which it lies itself")


def check_outside(
    directory: int, status: os.stat_result, around: int, names: Sequence[bytes], *, all_the_way: bool
) -> None:
    """Raises ``Problem`` if ``directory`` is a target, or with ``all_the_way`` anywhere below one.

    All targets lie in one directory ``around`` them, by these ``names``, or are that directory itself (an empty name);
    so it is enough to know what lies in that on the way up. Whoever has come down from a directory that lies in none
    need not go all the way. Directories are open descriptors.
    """
    with failing("open", on_source=True):
        is_inside = _lies_in(directory, status, around, names, all_the_way=all_the_way)
    if is_inside:
        raise Problem("scan", 0, on_source=True, text="a symbolic link leads into the target")


def _lies_in(directory: int, status: os.stat_result, around: int, names: Sequence[bytes], *, all_the_way: bool) -> bool:
    top = _identity(around)
    below: _Inode | None = None
    at: _Inode = status.st_dev, status.st_ino
    passing = os.dup(directory)
    try:
        while at != below:
            if at == top:
                return b"" in names or (below is not None and _is_one_of(around, names, below))
            if below is not None and not all_the_way:
                return False
            entered = open_patiently(b"..", _UPWARDS, dir_fd=passing)
            let_go(passing)
            passing = entered
            below, at = at, _identity(passing)
    finally:
        let_go(passing)
    return False


def _is_one_of(around: int, names: Sequence[bytes], directory: _Inode) -> bool:
    for name in names:
        with suppress(FileNotFoundError):
            found = os.stat(name, dir_fd=around, follow_symlinks=False)
            if (found.st_dev, found.st_ino) == directory:
                return True
    return False


def _identity(descriptor: int) -> _Inode:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
