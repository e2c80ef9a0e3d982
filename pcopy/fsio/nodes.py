"""Symbolic links, FIFOs, sockets and devices: made new, then dressed through an O_PATH descriptor.

Such items can't be opened (or must not be: opening a FIFO waits, opening a device acts). So their metadata is set
through ``/proc/self/fd/N``: that is the item that the descriptor was opened on, even if its name leads elsewhere now.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from pcopy.fsio.attributes import Attributes, Handle, read_attributes
from pcopy.fsio.close import held_open, let_go
from pcopy.fsio.patience import NO_DESCRIPTORS, PASSING, STALE, open_patiently, patiently
from pcopy.fsio.preserve import Preserve
from pcopy.fsio.problem import REPLACED, MetadataProblem, Problem, changed, failing
from pcopy.fsio.source import status_of
from pcopy.fsio.temporary import PREFIX
from pcopy.named import NamedTuple

T = TypeVar("T")


class Node(NamedTuple):
    """One of a source: its status and metadata, and the text of a symbolic link."""

    status: os.stat_result
    attributes: Attributes
    link: bytes


def handle_of(descriptor: int) -> bytes:
    """The path that stands for an O_PATH descriptor."""
    return b"/proc/self/fd/%d" % descriptor


def with_handle(directory: int, call: Callable[[Handle], T]) -> T:
    """Return what ``call`` returns for an open directory; raises ``Problem``.

    One that is open for searching only (O_PATH) has no descriptor that takes metadata: its path stands for it.
    """
    try:
        return call(directory)
    except Problem as problem:
        if problem.errno != errno.EBADF:
            raise
        return call(handle_of(directory))


def open_node(directory: int, name: bytes, *, on_source: bool, follow: bool = False) -> int:
    """An O_PATH descriptor of ``name`` itself, or with ``follow`` of what it leads to; raises ``Problem``."""
    try:
        flags = os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
        return open_patiently(name, flags, dir_fd=directory, passing=PASSING if on_source else STALE)
    except OSError as error:
        gone = on_source and error.errno in (errno.ENOENT, errno.ESTALE)
        raise Problem("open", error.errno or errno.EIO, on_source=on_source, changed=gone) from error


def read_node(directory: int, name: bytes, inode: int, preserve: Preserve, *, follow: bool = False) -> Node:
    """The node ``name`` of a source, which was found with that ``inode``; raises ``Problem``."""
    link = b""
    with held_open(open_node(directory, name, on_source=True, follow=follow)) as held:
        status = status_of(held, on_source=True)
        if status.st_ino != inode or stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
            raise changed("open", "another item has taken its name")
        attributes = read_attributes(handle_of(held), status, preserve)
        if stat.S_ISLNK(status.st_mode):
            with failing("readlink", on_source=True):
                link = patiently(lambda: os.readlink(b"", dir_fd=held))
    return Node(status, attributes, link)


def make_node(directory: int, name: bytes, node: Node) -> tuple[int, os.stat_result]:
    """Makes ``name``, which must be free (else ``Problem`` with EEXIST), of the kind of ``node``, for its owner only.

    Returns an O_PATH descriptor of what was made, and its status; raises ``Problem``, and ``MetadataProblem`` where the
    node was made and cannot be opened.
    """
    mode = node.status.st_mode
    operation = "symlink" if stat.S_ISLNK(mode) else "mknod"
    with failing(operation):
        if stat.S_ISLNK(mode):
            os.symlink(node.link, name, dir_fd=directory)
        else:
            device = node.status.st_rdev if stat.S_ISBLK(mode) or stat.S_ISCHR(mode) else 0
            os.mknod(name, stat.S_IFMT(mode) | 0o600, device, dir_fd=directory)
    try:
        made = open_node(directory, name, on_source=False)
    except Problem as problem:
        if problem.errno in NO_DESCRIPTORS:  # a second attempt at the item would meet the node of this one
            raise MetadataProblem(problem.operation, problem.errno) from problem
        raise
    try:
        new = status_of(made)
        if not _is_new(new, node.status, directory):
            raise Problem("open", errno.ESTALE, text=REPLACED)
    except BaseException:
        let_go(made)
        raise
    return made, new


def _is_new(made: os.stat_result, source: os.stat_result, directory: int) -> bool:
    """Is it what we have made? Whoever owns the directory may have moved another node there, a finished one perhaps:
    it would get the owner and mode that are meant for this one.

    Some servers show other owners and modes (CIFS, NFS with root_squash). There it must look as a new file does.
    """
    if stat.S_IFMT(made.st_mode) != stat.S_IFMT(source.st_mode) or made.st_nlink != 1:
        return False
    if stat.S_ISLNK(made.st_mode):
        return True  # nobody gains anything by a symbolic link's owner, and a server may have made it somebody else's
    is_device = stat.S_ISBLK(made.st_mode) or stat.S_ISCHR(made.st_mode)
    if is_device and made.st_rdev != source.st_rdev:
        return False
    if made.st_uid == os.geteuid() and not stat.S_IMODE(made.st_mode) & ~0o600:
        return True
    from pcopy.fsio.server import shown_of_new_file  # few servers need it

    shown = shown_of_new_file(directory, b"%b%d-%d" % (PREFIX, os.getpid(), time.monotonic_ns()))
    return made.st_uid == shown.uid and not stat.S_IMODE(made.st_mode) & ~shown.mode


def keep_access_time(held: int, before: os.stat_result) -> None:
    """Undoes what reading a symbolic link of the target's has done to its access time, which no flag prevents."""
    with suppress(OSError):  # somebody else's, or on a file system that may not be written
        if os.fstat(held).st_atime_ns != before.st_atime_ns:
            os.utime(handle_of(held), ns=(before.st_atime_ns, before.st_mtime_ns))
