"""A file that appears under its name only when it is whole, and on stable storage.

Rule: write beside the target, fsync, rename, fsync the directory (rename(2) alone may leave an empty file after a power
loss). A file of that name is replaced, never written through; whatever else has it, such as a link, stays as it is.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, TypeAlias

from pcopy.errors import Refused
from pcopy.text import shown

Path: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
_BUFFER = 1 << 18


@contextmanager
def replacing(path: Path, umask: int | None = None, writer: str = "") -> Iterator[BinaryIO]:
    """A stream for the new contents of ``path``, which get mode 0666 without ``umask`` (default: the process's own).

    The temporary file's name begins with ``.pcopy-WRITER-``: so it is known whose it is if the process is killed. On an
    error it is removed, and ``path`` is as before. Raises ``Refused`` if ``path`` is there and is no regular file,
    ``OSError`` for what the system refuses.
    """
    target = os.fsencode(path)
    _refuse_what_is_no_file(target)
    directory = os.path.dirname(target) or b"."
    mine = [writer] if writer else []
    temporary = os.path.join(directory, "-".join([".pcopy", *mine, os.urandom(8).hex()]).encode())
    with with_umask(umask):
        opened = open(temporary, "xb", buffering=_BUFFER)  # noqa: SIM115 (closed below)
    with opened as stream:
        try:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            os.rename(temporary, target)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            with suppress(OSError):
                stream.close()  # it may fail again to write what it holds, and must not hide the first error
            raise
    _sync_directory(directory)


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


def _sync_directory(directory: bytes) -> None:
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        return  # it may be written to but not read; its file system's next commit makes the name durable
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # some file systems sync no directories
            raise
    finally:
        os.close(descriptor)
