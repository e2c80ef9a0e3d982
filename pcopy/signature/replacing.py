"""Output files that appear under their name only when they are complete and on stable storage.

The contents are written to a temporary file, which is then renamed. So an existing regular file is replaced, and its
inode, which may have other hard links, is not changed. If the path is an item of another type, such as a symbolic link,
the request is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import BinaryIO, TypeAlias

from pcopy.errors import path_refused
from pcopy.fsio import durable
from pcopy.fsio.durable import Durability
from pcopy.fsio.named_file import ParentDirectory, UntrustedFileError, check_is_replaceable_file, open_parent_directory

AnyPath: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
"""Path of a file."""


@contextmanager
def replacing_output_file(
    path: AnyPath, umask: int | None = None, writer: str = "", *, unnamed: bool = False
) -> Iterator[BinaryIO]:
    """Context manager that yields a stream for the new contents of ``path``, which is replaced at the end of the block.

    On an error the temporary file is removed, and ``path`` is unchanged. Raise ``RequestRefused`` if ``path`` exists
    and is not a regular file, ``OSError`` for errors of the system.

    Args:
        path: path of the file.
        umask: the new file has mode 0666 without these bits; None: the umask of the process.
        writer: name of the job, which the temporary file is named after (``.pcopy-WRITER-…``), so that its origin is
            known if the process is killed; empty: none.
        unnamed: create the temporary file without a name (O_TMPFILE) where the file system supports that, so that
            nothing remains if the process is killed.
    """
    target = os.fsencode(path)
    mine = [writer] if writer else []
    temporary = "-".join([".pcopy", *mine, os.urandom(8).hex()]).encode()
    with ExitStack() as stack:
        directory = open_parent_directory(target)
        stack.callback(os.close, directory.descriptor)
        _check_regular_file(target, directory)
        # A directory that cannot be read cannot be synced. The next commit of its file system makes the name durable.
        synced = Durability.NAME if directory.can_sync else Durability.CONTENTS
        with temporary_umask(umask):
            replaced = durable.replacing_file(
                directory.descriptor,
                directory.name,
                temporary,
                mode=0o666,
                durability=synced,
                uses_unnamed_file=unnamed,
            )
            stream = stack.enter_context(replaced)
        yield stream
        _check_regular_file(target, directory)


@contextmanager
def temporary_umask(umask: int | None) -> Iterator[None]:
    """Context manager that sets the umask of the process within its block; None changes nothing.

    A new file then gets the mode that the user expects. (To set the mode afterwards with chmod(2) would override the
    default ACL of its directory.)
    """
    if umask is None:
        yield
        return
    before = os.umask(umask)
    try:
        yield
    finally:
        os.umask(before)


def _check_regular_file(target: bytes, directory: ParentDirectory) -> None:
    """Raise ``RequestRefused`` if ``target``, a name in the open ``directory``, exists and is not a regular file (for
    example a FIFO from which a program reads).
    """
    try:
        check_is_replaceable_file(directory.descriptor, directory.name)
    except UntrustedFileError as error:
        raise path_refused(target, error.strerror) from None
