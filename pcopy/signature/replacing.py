"""Output files that appear under their name only when they are complete and on stable storage.

An existing regular file is replaced (``pcopy.fsio.durable``), and never written through. An existing item of another
type, such as a symbolic link, is left unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import BinaryIO, TypeAlias

from pcopy.errors import RequestRefused
from pcopy.fsio import durable
from pcopy.fsio.durable import Durability
from pcopy.fsio.named_file import ParentDirectory, UntrustedFile, check_replaceable, open_directory_of
from pcopy.text import printable_path

AnyPath: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]


@contextmanager
def output_file(
    path: AnyPath, umask: int | None = None, writer: str = "", *, unnamed: bool = False
) -> Iterator[BinaryIO]:
    """Yield a stream for the new contents of ``path``, which is replaced at the end of the block.

    On an error the temporary file is removed, and ``path`` is unchanged. Raise ``RequestRefused`` if ``path`` exists
    and is not a regular file, ``OSError`` for errors of the system.

    Args:
        path: path of the file.
        umask: the new file has mode 0666 less this; None stands for the umask of the process.
        writer: name for the temporary file, ``.pcopy-WRITER-…``, so that its origin is known if the process is killed.
        unnamed: as for ``pcopy.fsio.durable``.
    """
    target = os.fsencode(path)
    mine = [writer] if writer else []
    temporary = "-".join([".pcopy", *mine, os.urandom(8).hex()]).encode()
    with ExitStack() as stack:
        directory = open_directory_of(target)
        stack.callback(os.close, directory.descriptor)
        _check_regular_file(target, directory)
        # The next commit of its file system makes a name durable in a directory that cannot be read.
        synced = Durability.NAME if directory.can_sync else Durability.CONTENTS
        with temporary_umask(umask):
            replaced = durable.replaced_file(
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
    """Set the umask of the process within the block, so that new files get the mode that the user expects.

    A chmod afterwards would override the default ACL of a directory. With None nothing is changed.
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
    """Raise ``RequestRefused`` if ``target`` exists and is not a regular file, such as a FIFO from which a program
    reads.
    """
    try:
        check_replaceable(directory.descriptor, directory.name)
    except UntrustedFile as error:
        raise RequestRefused(f"{printable_path(target)}: {error.strerror}") from None
