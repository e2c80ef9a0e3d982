"""Reading trees of any depth and with any names, without leaving traces in them.

Everything is looked up relative to a directory descriptor, because joined paths may exceed PATH_MAX, and opened with
``O_NOATIME`` if allowed, because tests compare access times. No code is shared with the program under test, because
mistakes would be shared as well.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

IGNORED_XATTRS = frozenset(
    {b"security.selinux", b"security.ima", b"security.evm", b"trusted.SGI_ACL_FILE", b"trusted.SGI_ACL_DEFAULT"}
)
"""Attributes that the operating system itself writes, so that copies may differ. The last two are XFS's other names of
ACLs.
"""


class Entry(NamedTuple):
    """One name in a tree. ``path`` is relative to the tree's root, which itself is ``b""``."""

    path: bytes
    parent: int
    name: bytes
    status: os.stat_result

    @property
    def type(self) -> int:
        return stat.S_IFMT(self.status.st_mode)

    def link_target(self) -> bytes:
        return os.fsencode(os.readlink(self.name, dir_fd=self.parent))

    def xattrs(self) -> dict[bytes, bytes]:
        """All extended attributes, of a symbolic link its own, including ACLs in the encoding of the operating
        system.
        """
        via = b"/proc/self/fd/%d/%s" % (self.parent, self.name)
        try:
            names = os.listxattr(via, follow_symlinks=False)
        except OSError:
            return {}
        found = {}
        for name in names:
            if os.fsencode(name) not in IGNORED_XATTRS:
                found[os.fsencode(name)] = os.getxattr(via, name, follow_symlinks=False)
        return found

    def open(self) -> int:
        return open_quietly(self.name, self.parent, os.O_NONBLOCK)


def open_quietly(name: bytes, parent: int | None, flags: int = 0) -> int:
    """Open for reading without changing the access time if this is allowed (to the owner and root)."""
    flags |= os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags | os.O_NOATIME, dir_fd=parent)
    except PermissionError:
        return os.open(name, flags, dir_fd=parent)


def walk(root: bytes) -> Iterator[Entry]:
    """Yield ``root`` itself and every entry below it, each directory before its contents, names in byte order.

    The descriptors of an entry are valid until the next one is requested.
    """
    above, name = os.path.split(root.rstrip(b"/") or b"/")
    parent = os.open(above or b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield from _visit(b"", parent, name or b".")
    finally:
        os.close(parent)


def _visit(path: bytes, parent: int, name: bytes) -> Iterator[Entry]:
    status = os.lstat(name, dir_fd=parent)
    yield Entry(path, parent, name, status)
    if not stat.S_ISDIR(status.st_mode):
        return
    descriptor = open_quietly(name, parent, os.O_DIRECTORY)
    try:
        for child in sorted(map(os.fsencode, os.listdir(descriptor))):
            yield from _visit(path + b"/" + child if path else child, descriptor, child)
    finally:
        os.close(descriptor)


def paths(root: bytes) -> list[bytes]:
    """The relative paths of everything below ``root``."""
    return [entry.path for entry in walk(root) if entry.path]


def temporaries(root: bytes) -> list[bytes]:
    """Return the names that begin like the program's temporary files, which a run should not leave behind."""
    return [path for path in paths(root) if path.rsplit(b"/", 1)[-1].startswith(b".pcopy-")]
