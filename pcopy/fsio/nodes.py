"""Symbolic links, FIFOs, sockets and devices: made new, then dressed through an O_PATH descriptor.

Such things can't be opened (or must not be: opening a FIFO waits, opening a device acts), so their metadata is set
through ``/proc/self/fd/N``, which means the very item that the descriptor holds, whatever its name means by then.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from pcopy.fsio.attributes import Applied, apply_attributes, read_attributes
from pcopy.fsio.close import let_go
from pcopy.fsio.identity import mark_of
from pcopy.fsio.patience import patiently
from pcopy.fsio.preserve import Preserve
from pcopy.fsio.problem import MetadataProblem, Problem, changed
from pcopy.fsio.source import status_of
from pcopy.fsio.temporary import REPLACED


class MadeNode(NamedTuple):
    """A node that was made: its status when it was new, its source's, the text of a symbolic link, its mark where that
    is wanted (``pcopy.fsio.identity``), what became of its metadata, and what is wrong with that."""

    status: os.stat_result
    source: os.stat_result
    link: bytes
    mark: bytes
    applied: Applied = Applied()
    shortcoming: MetadataProblem | None = None


def handle_of(descriptor: int) -> bytes:
    """The path that stands for an O_PATH descriptor."""
    return b"/proc/self/fd/%d" % descriptor


def open_node(directory: int, name: bytes, *, on_source: bool, follow: bool = False) -> int:
    """An O_PATH descriptor of ``name`` itself, or with ``follow`` of what it leads to; raises ``Problem``."""
    try:
        flags = os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
        if on_source:
            return patiently(lambda: os.open(name, flags, dir_fd=directory))
        return os.open(name, flags, dir_fd=directory)
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
    kept: os.stat_result | None = None,
    follow: bool = False,
    marked: bool = False,
) -> MadeNode:
    """Makes ``target_name``, which must be free (else ``Problem`` with EEXIST), like the source; raises ``Problem``.

    ``kept`` is the status of an item of the same kind that it is to replace: what is not preserved is taken from that.
    """
    link = b""
    held = open_node(source_directory, source_name, on_source=True, follow=follow)
    try:
        status = status_of(held, on_source=True)
        if status.st_ino != inode or stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
            raise changed("open", "another item has taken its name")
        attributes = read_attributes(handle_of(held), status, preserve)
        if stat.S_ISLNK(status.st_mode):
            try:
                link = patiently(lambda: os.readlink(b"", dir_fd=held))
            except OSError as error:
                raise Problem.of("readlink", error, on_source=True) from error
            _make("symlink", lambda: os.symlink(link, target_name, dir_fd=target_directory))
        else:
            kind = stat.S_IFMT(status.st_mode) | 0o600
            device = status.st_rdev if stat.S_IFMT(status.st_mode) in (stat.S_IFBLK, stat.S_IFCHR) else 0
            _make("mknod", lambda: os.mknod(target_name, kind, device, dir_fd=target_directory))
    finally:
        let_go(held)
    made = open_node(target_directory, target_name, on_source=False)
    try:
        new = status_of(made)
        if not _is_new(new, status):
            raise Problem("open", errno.ESTALE, text=REPLACED)
        mark = mark_of(made, made=True) if marked else b""
        try:
            applied = apply_attributes(handle_of(made), attributes, preserve, umask, kept=kept, inherits=inherits)
        except MetadataProblem as problem:
            return MadeNode(new, status, link, mark, shortcoming=problem)
        return MadeNode(new, status, link, mark, applied)
    finally:
        let_go(made)


def _is_new(made: os.stat_result, source: os.stat_result) -> bool:
    """Is it what we have made? Whoever owns the directory may have moved another node there, a finished one perhaps:
    it would get the owner and mode that are meant for this one."""
    if stat.S_IFMT(made.st_mode) != stat.S_IFMT(source.st_mode) or made.st_nlink != 1:
        return False
    if stat.S_ISLNK(made.st_mode):
        return True  # nobody gains anything by a symbolic link's owner, and a server may have made it somebody else's
    is_device = stat.S_ISBLK(made.st_mode) or stat.S_ISCHR(made.st_mode)
    if is_device and made.st_rdev != source.st_rdev:
        return False
    return made.st_uid == os.geteuid() and not stat.S_IMODE(made.st_mode) & ~0o600


def _make(operation: str, call: Callable[[], None]) -> None:
    try:
        call()
    except OSError as error:
        raise Problem.of(operation, error) from error


def keep_access_time(held: int, before: os.stat_result) -> None:
    """Undoes what reading a symbolic link of the target's has done to its access time, which no flag prevents."""
    with suppress(OSError):  # somebody else's, or on a file system that may not be written
        if os.fstat(held).st_atime_ns != before.st_atime_ns:
            os.utime(handle_of(held), ns=(before.st_atime_ns, before.st_mtime_ns))
