"""Symbolic links, FIFOs, sockets and devices: made new, then dressed through an O_PATH descriptor.

Such things can't be opened (or must not be: opening a FIFO waits, opening a device acts), so their metadata is set
through ``/proc/self/fd/N``, which means the very item that the descriptor holds, whatever its name means by then.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

from pcopy.fsio.attributes import Applied, apply_attributes, read_attributes
from pcopy.fsio.preserve import Preserve
from pcopy.fsio.problem import Problem, changed
from pcopy.fsio.source import status_of


def handle_of(descriptor: int) -> bytes:
    """The path that stands for an O_PATH descriptor."""
    return b"/proc/self/fd/%d" % descriptor


def open_node(directory: int, name: bytes, *, on_source: bool) -> int:
    """An O_PATH descriptor of ``name`` itself; raises ``Problem``."""
    try:
        return os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError as error:
        gone = on_source and error.errno in (errno.ENOENT, errno.ESTALE)
        raise Problem("open", error.errno or errno.EIO, on_source=on_source, changed=gone) from error


def copy_node(
    source_directory: int,
    source_name: bytes,
    inode: int,
    target_directory: int,
    target_name: bytes,
    preserve: Preserve,
    umask: int,
    *,
    inherits: bool = False,
) -> Applied:
    """Makes ``target_name``, which must be free (else ``Problem`` with EEXIST), like the source; raises ``Problem``."""
    held = open_node(source_directory, source_name, on_source=True)
    try:
        status = status_of(held, on_source=True)
        if status.st_ino != inode or stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
            raise changed("open", "another item has taken its name")
        attributes = read_attributes(handle_of(held), status, preserve)
        if stat.S_ISLNK(status.st_mode):
            try:
                link = os.readlink(b"", dir_fd=held)
            except OSError as error:
                raise Problem.of("readlink", error, on_source=True) from error
            _make("symlink", lambda: os.symlink(link, target_name, dir_fd=target_directory))
        else:
            kind = stat.S_IFMT(status.st_mode) | 0o600
            device = status.st_rdev if stat.S_IFMT(status.st_mode) in (stat.S_IFBLK, stat.S_IFCHR) else 0
            _make("mknod", lambda: os.mknod(target_name, kind, device, dir_fd=target_directory))
    finally:
        os.close(held)
    made = open_node(target_directory, target_name, on_source=False)
    try:
        new = status_of(made)
        if stat.S_IFMT(new.st_mode) != stat.S_IFMT(status.st_mode) or new.st_nlink != 1:
            raise Problem("open", errno.ESTALE, text="something else was put in its place meanwhile")
        return apply_attributes(handle_of(made), attributes, preserve, umask, inherits=inherits)
    finally:
        os.close(made)


def _make(operation: str, call: Callable[[], None]) -> None:
    try:
        call()
    except OSError as error:
        raise Problem.of(operation, error) from error
