"""Where paths lead in the file system of ``disk``, and what is open; the start of ``calls``.

Descriptors are numbers that no file of this process has, and which no two worlds share: what is closed late, of a world
that has ended, closes nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

from tests.recovery.disk import USER, Disk, Inode
from tests.recovery.world import World

FIRST_DESCRIPTOR = 1 << 28
DESCRIPTORS = b"/proc/self/fd/"
_O_TMPFILE = os.O_TMPFILE & ~os.O_DIRECTORY
_MOST_LINKS = 8
_numbers = count(FIRST_DESCRIPTOR)

Path = str | bytes | int


def refusal(number: int, path: object = None) -> OSError:
    """The error with which a call fails."""
    return OSError(number, os.strerror(number), path)


class Open:
    """An open file description."""

    __slots__ = ("flags", "inode", "listing", "offset")

    def __init__(self, inode: Inode, flags: int) -> None:
        self.inode, self.flags, self.offset = inode, flags, 0
        self.listing: list[tuple[int, int, bytes]] | None = None
        """The entries of a directory that were not read yet; None before the first ones are read."""

    @property
    def is_path(self) -> bool:
        return bool(self.flags & os.O_PATH)


class Wake:
    """A descriptor of eventfd(2). ``on_set`` is called when it becomes readable."""

    def __init__(self) -> None:
        self.is_set = False
        self.on_set: Callable[[], object] = _nothing


def _nothing() -> None:
    pass


class Found(NamedTuple):
    """Where a path leads: the directory, the name in it, and what has it, if anything."""

    directory: Inode
    name: bytes
    inode: Inode | None


class Lookup:
    """``world`` gives each call its time, and may end it; ``syncing`` is how many seconds a sync takes at most."""

    def __init__(self, disk: Disk, world: World, syncing: Callable[[], float]) -> None:
        self.disk, self.world = disk, world
        self._syncing = syncing
        self._first = next(_numbers)
        self._open: dict[int, Open] = {}
        self.wakes: dict[int, Wake] = {}

    # Common.

    def _begin(self) -> int:
        """Returns the client that makes the call."""
        self.world.call()
        self.disk.now = int(self.world.now * 1e9)
        return self.world.strand.client

    def _of(self, descriptor: int, *, path: bool = False) -> Open:
        opened = self._open.get(descriptor)
        if opened is None or (opened.is_path and not path):
            raise refusal(errno.EBADF)
        return opened

    def _find(self, path: Path, dir_fd: int | None = None, *, follow: bool = True, depth: int = 0) -> Found:
        if isinstance(path, int):
            inode = self._of(path).inode
            return Found(inode, b"", inode)
        whole = os.fsencode(path)
        if whole.startswith(DESCRIPTORS):
            number, _, rest = whole[len(DESCRIPTORS) :].partition(b"/")
            if int(number) not in self._open:
                raise refusal(errno.ENOENT, path)
            return self._find(rest, int(number), follow=follow)
        if not whole and dir_fd is not None:
            inode = self._of(dir_fd, path=True).inode
            return Found(inode, b"", inode)
        if not whole or depth > _MOST_LINKS:
            raise refusal(errno.ELOOP if whole else errno.ENOENT, path)
        at = self.disk.root if whole.startswith(b"/") or dir_fd is None else self._of(dir_fd, path=True).inode
        parts = [part for part in whole.split(b"/") if part not in (b"", b".")]
        above, last = at, b""
        for index, name in enumerate(parts):
            is_last = index == len(parts) - 1
            self._search(at, path)
            found = at.names.get(name) if name != b".." else self._above(at)
            if found is not None and stat.S_ISLNK(found.mode) and (follow or not is_last):
                way = found.target if found.target.startswith(b"/") else self._path_of(at) + b"/" + found.target
                rest = b"/".join((way, *parts[index + 1 :]))
                return self._find(rest, follow=follow, depth=depth + 1)
            if is_last:
                return Found(at, name, found)
            if found is None:
                raise refusal(errno.ENOENT, path)
            above, last, at = at, name, found
        return Found(above, last, at)

    def _search(self, directory: Inode, path: Path) -> None:
        if not directory.is_directory:
            raise refusal(errno.ENOTDIR, path)
        self._may(directory, 1, path)

    def _may(self, inode: Inode, wanted: int, path: Path) -> None:
        bits = inode.mode >> 6 if inode.uid == USER else inode.mode
        if wanted & ~bits:
            raise refusal(errno.EACCES, path)

    def _above(self, directory: Inode) -> Inode:
        for _, inode in self.disk.items():
            if directory in inode.names.values():
                return inode
        return directory

    def _path_of(self, inode: Inode) -> bytes:
        return next((path for path, each in self.disk.items() if each is inode), b"/(deleted)")

    def _there(self, path: Path, dir_fd: int | None = None, *, follow: bool = True) -> Inode:
        found = self._find(path, dir_fd, follow=follow)
        if found.inode is None:
            raise refusal(errno.ENOENT, path)
        return found.inode

    def _owned(self, path: Path, dir_fd: int | None = None, *, follow: bool = True) -> Inode:
        inode = self._there(path, dir_fd, follow=follow)
        if inode.uid != USER:
            raise refusal(errno.EPERM, path)
        return inode

    def _changing(self, path: Path, dir_fd: int | None) -> Found:
        """A name that is to be made, given or taken away."""
        found = self._find(path, dir_fd, follow=False)
        if found.inode is None:
            self._may(found.directory, 3, path)
        return found

    def _leaving(self, path: Path, dir_fd: int | None) -> tuple[Inode, bytes, Inode]:
        """A name that is to be taken away: its directory, the name, and what has it."""
        directory, name, inode = self._find(path, dir_fd, follow=False)
        if inode is None:
            raise refusal(errno.ENOENT, path)
        self._may(directory, 3, path)
        return directory, name, inode

    def _new(self, path: Path, dir_fd: int | None, mode: int, target: bytes = b"", device: int = 0) -> Inode:
        client = self._begin()
        found = self._changing(path, dir_fd)
        if found.inode is not None:
            raise refusal(errno.EEXIST, path)
        inode = self.disk.make(client, mode, target, device)
        self.disk.do("enter", client, found.directory.key, found.name, inode.key)
        return inode

    # Descriptors.

    def open(self, path: Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        client = self._begin()
        if flags & _O_TMPFILE:
            directory = self._there(path, dir_fd)
            self._may(directory, 3, path)
            return self._opened(self.disk.make(client, stat.S_IFREG | mode & 0o7777), flags)
        found = self._find(path, dir_fd, follow=not flags & os.O_NOFOLLOW and not flags & os.O_EXCL)
        inode = found.inode
        if inode is not None and flags & os.O_CREAT and flags & os.O_EXCL:
            raise refusal(errno.EEXIST, path)
        if inode is None:
            if not flags & os.O_CREAT:
                raise refusal(errno.ENOENT, path)
            self._may(found.directory, 3, path)
            inode = self.disk.make(client, stat.S_IFREG | mode & 0o7777)
            self.disk.do("enter", client, found.directory.key, found.name, inode.key)
            return self._opened(inode, flags)
        if flags & os.O_DIRECTORY and not inode.is_directory:
            raise refusal(errno.ENOTDIR, path)
        if not flags & os.O_PATH:
            if stat.S_ISLNK(inode.mode):
                raise refusal(errno.ELOOP, path)
            writes = flags & (os.O_WRONLY | os.O_RDWR)
            if writes and inode.is_directory:
                raise refusal(errno.EISDIR, path)
            self._may(inode, (2 if writes else 0) | (0 if flags & os.O_WRONLY else 4), path)
            if flags & os.O_NOATIME and inode.uid != USER:
                raise refusal(errno.EPERM, path)
        return self._opened(inode, flags)

    def _opened(self, inode: Inode, flags: int) -> int:
        descriptor = next(_numbers)
        self._open[descriptor] = Open(inode, flags)
        return descriptor

    def dup(self, descriptor: int) -> int:
        self._begin()
        copy = next(_numbers)
        self._open[copy] = self._of(descriptor, path=True)
        return copy

    def eventfd(self, value: int, flags: int) -> int:
        descriptor = next(_numbers)
        self.wakes[descriptor] = Wake()
        return descriptor

    def eventfd_write(self, descriptor: int, value: int) -> None:
        wake = self.wakes[descriptor]
        wake.is_set = True
        wake.on_set()

    def eventfd_read(self, descriptor: int) -> int:
        wake = self.wakes[descriptor]
        if not wake.is_set:
            raise refusal(errno.EWOULDBLOCK)
        wake.is_set = False
        return 1

    def close(self, descriptor: int) -> None:
        if FIRST_DESCRIPTOR <= descriptor < self._first:
            return  # of an earlier world
        if self.wakes.pop(descriptor, None) is not None:
            return
        if not self.world.is_over:
            self._begin()
        if (opened := self._open.pop(descriptor, None)) is None:
            raise refusal(errno.EBADF)
        opened.inode.locks.pop(descriptor, None)

    def flock(self, file: Any, how: int) -> None:
        self._begin()
        descriptor = file if isinstance(file, int) else file.fileno()
        locks = self._of(descriptor).inode.locks
        alone = bool(how & fcntl.LOCK_EX)
        if not how & fcntl.LOCK_UN and any(alone or other for by, other in locks.items() if by != descriptor):
            raise refusal(errno.EWOULDBLOCK)
        locks.pop(descriptor, None)
        if not how & fcntl.LOCK_UN:
            locks[descriptor] = alone
