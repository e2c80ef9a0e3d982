"""A file for the user that appears under its name only when it is whole, and on stable storage.

A file of that name is replaced (``pcopy.fsio.durable``), never written through; whatever else has it, such as a link,
stays as it is.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import BinaryIO, TypeAlias

from pcopy.errors import Refused
from pcopy.fsio import durable
from pcopy.fsio.durable import Synced
from pcopy.text import shown

Path: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]


@contextmanager
def replacing(path: Path, umask: int | None = None, writer: str = "", *, unnamed: bool = False) -> Iterator[BinaryIO]:
    """A stream for the new contents of ``path``, which get mode 0666 without ``umask`` (default: the process's own).

    The temporary file's name begins with ``.pcopy-WRITER-``: so it is known whose it is if the process is killed. On an
    error it is removed, and ``path`` is as before. ``unnamed`` as for ``pcopy.fsio.durable``. Raises ``Refused`` if
    ``path`` is there and is no regular file, ``OSError`` for what the system refuses.
    """
    target = os.fsencode(path)
    _refuse_what_is_no_file(target)
    directory, name = os.path.split(target)
    mine = [writer] if writer else []
    temporary = "-".join([".pcopy", *mine, os.urandom(8).hex()]).encode()
    with ExitStack() as stack:
        descriptor, synced = _opened(directory or b".")
        stack.callback(os.close, descriptor)
        with with_umask(umask):
            replaced = durable.replacing(descriptor, name, temporary, mode=0o666, synced=synced, unnamed=unnamed)
            stream = stack.enter_context(replaced)
        yield stream


def _opened(directory: bytes) -> tuple[int, Synced]:
    try:
        return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), Synced.NAME
    except PermissionError:  # it may be written to but not read; its file system's next commit makes the name durable
        return os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), Synced.CONTENTS


@contextmanager
def with_umask(umask: int | None) -> Iterator[None]:
    """A file that is made meanwhile gets the mode that the user's ``umask`` gives, whatever the process has now.

    A chmod afterwards would undo what a default ACL says. None: nothing happens.
    """
    if umask is None:
        yield
        return
    before = os.umask(umask)
    try:
        yield
    finally:
        os.umask(before)


def _refuse_what_is_no_file(target: bytes) -> None:
    try:
        mode = os.lstat(target).st_mode
    except OSError:
        return
    if stat.S_ISLNK(mode):  # as /dev/stdout is one
        raise Refused(f"{shown(target)} is a symbolic link and is not replaced; name the file itself")
    if not stat.S_ISREG(mode):
        raise Refused(f"{shown(target)} is no regular file and is not replaced by one")
