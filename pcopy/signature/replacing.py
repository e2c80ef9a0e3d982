"""A file for the user that appears under its name only when it is whole, and on stable storage.

A file of that name is replaced (``pcopy.fsio.durable``), never written through; whatever else has it, such as a link,
stays as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import BinaryIO, TypeAlias

from pcopy.errors import Refused
from pcopy.fsio import durable
from pcopy.fsio.durable import Synced
from pcopy.fsio.named_file import Directory, NotTrusted, open_directory_of, refuse_to_replace
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
    mine = [writer] if writer else []
    temporary = "-".join([".pcopy", *mine, os.urandom(8).hex()]).encode()
    with ExitStack() as stack:
        directory = open_directory_of(target)
        stack.callback(os.close, directory.descriptor)
        _refuse_what_is_no_file(target, directory)
        # The next commit of its file system makes a name durable in a directory that cannot be read.
        synced = Synced.NAME if directory.can_sync else Synced.CONTENTS
        with with_umask(umask):
            replaced = durable.replacing(
                directory.descriptor, directory.name, temporary, mode=0o666, synced=synced, unnamed=unnamed
            )
            stream = stack.enter_context(replaced)
        yield stream
        _refuse_what_is_no_file(target, directory)


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


def _refuse_what_is_no_file(target: bytes, directory: Directory) -> None:
    """Raise ``Refused`` if the name of ``target`` is there and is no regular file, such as a FIFO that is read from."""
    try:
        refuse_to_replace(directory.descriptor, directory.name)
    except NotTrusted as error:
        raise Refused(f"{shown(target)}: {error.strerror}") from None
