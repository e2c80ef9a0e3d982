"""A model of a file system with several clients, each with a cache that a loss of power drops.

All that is done is a log of operations; what the disk holds is what replaying a part of the log gives. A client's
``sync`` puts its operations so far on the disk. When clients lose power, of those that were not synced

- data are lost at random;
- names and attributes survive (``SERVER``: they were made on the server), or up to some moment (``ORDERED``: a journal
  like ext4's), or at random (``ANY``, stricter than any file system that we know).
"""

from __future__ import annotations

import errno
from collections.abc import Collection
from enum import Enum
from random import Random
from typing import Any, NamedTuple

ROOT = 1


class Names(Enum):
    """What a loss of power does to names and attributes that were not synced."""

    SERVER = "server"
    ORDERED = "ordered"
    ANY = "any"


class Problem(Exception):
    """An operation failed with the error ``code``."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(f"{errno.errorcode[code]}: {what}")


class Inode:
    """A file, or with ``names`` a directory. ``blocks`` are what was written at which block."""

    __slots__ = ("blocks", "ctime", "mode", "mtime", "names", "size")

    def __init__(self, *, directory: bool, now: float) -> None:
        self.mode = 0o700 if directory else 0o600
        self.mtime = self.ctime = now
        self.size = 0
        self.blocks: dict[int, int] = {}
        self.names: dict[str, int] | None = {} if directory else None


class Operation(NamedTuple):
    """``kind`` is the name of a method of ``_Tree``; clients are numbers."""

    kind: str
    client: int
    now: float
    arguments: tuple[Any, ...]


class _Tree:
    """What applying operations in their order gives. Those whose objects are lost do nothing."""

    def __init__(self) -> None:
        self.inodes: dict[int, Inode] = {ROOT: Inode(directory=True, now=0.0)}

    def apply(self, operation: Operation) -> None:
        getattr(self, operation.kind)(operation.now, *operation.arguments)

    def _names(self, directory: int, now: float) -> dict[str, int] | None:
        inode = self.inodes.get(directory)
        if inode is None or inode.names is None:
            return None
        inode.mtime = inode.ctime = now
        return inode.names

    def mkdir(self, now: float, directory: int, name: str, number: int) -> None:
        self._make(now, directory, name, number, is_directory=True)

    def create(self, now: float, directory: int, name: str, number: int) -> None:
        self._make(now, directory, name, number, is_directory=False)

    def _make(self, now: float, directory: int, name: str, number: int, *, is_directory: bool) -> None:
        names = self._names(directory, now)
        if names is not None:
            names[name] = number
            self.inodes[number] = Inode(directory=is_directory, now=now)

    def write(self, now: float, number: int, block: int, data: int) -> None:
        inode = self.inodes.get(number)
        if inode is not None:
            inode.blocks[block] = data
            inode.mtime = inode.ctime = now

    def resize(self, now: float, number: int, size: int) -> None:
        inode = self.inodes.get(number)
        if inode is not None:
            inode.size = size
            inode.mtime = inode.ctime = now

    def attributes(self, now: float, number: int, mode: int, mtime: float | None) -> None:
        inode = self.inodes.get(number)
        if inode is not None:
            inode.mode, inode.ctime = mode, now
            if mtime is not None:
                inode.mtime = mtime

    def link(self, now: float, directory: int, name: str, number: int) -> None:
        names = self._names(directory, now)
        if names is not None and number in self.inodes:
            names[name] = number

    def unlink(self, now: float, directory: int, name: str, number: int) -> None:
        names = self._names(directory, now)
        if names is not None and names.get(name) == number:
            del names[name]

    def rename(self, now: float, directory: int, old: str, new: str, number: int) -> None:
        names = self._names(directory, now)
        if names is not None and names.get(old) == number:
            del names[old]
            names[new] = number


class Files:
    """The file system. Methods that name a ``client`` raise ``Problem`` as the system call would."""

    def __init__(self, names: Names) -> None:
        self.now = 0.0
        self.names = names
        self._tree = _Tree()
        self._log: list[Operation] = []
        self._synced: list[bool] = []
        self._last = ROOT

    # Looking.

    def inode(self, number: int) -> Inode:
        inode = self._tree.inodes.get(number)
        if inode is None:
            raise Problem(errno.ESTALE, f"inode {number}")
        return inode

    def list(self, directory: int) -> dict[str, int]:
        names = self.inode(directory).names
        if names is None:
            raise Problem(errno.ENOTDIR, f"inode {directory}")
        return names

    def look(self, directory: int, name: str) -> int | None:
        return self.list(directory).get(name)

    def walk(self, path: tuple[str, ...]) -> int:
        """The directory that ``path`` leads to."""
        at = ROOT
        for name in path:
            found = self.look(at, name)
            if found is None:
                raise Problem(errno.ENOENT, "/".join(path))
            at = found
        return at

    # Changing.

    def _do(self, kind: str, client: int, *arguments: Any) -> None:
        operation = Operation(kind, client, self.now, arguments)
        self._log.append(operation)
        self._synced.append(False)
        self._tree.apply(operation)

    def _enter(self, directory: int, name: str) -> None:
        """What each change of a name asks for; the user is an ordinary one."""
        self.list(directory)
        if not self.inode(directory).mode & 0o200:
            raise Problem(errno.EACCES, name)

    def _new(self, kind: str, client: int, directory: int, name: str) -> int:
        self._enter(directory, name)
        if self.look(directory, name) is not None:
            raise Problem(errno.EEXIST, name)
        self._last += 1
        self._do(kind, client, directory, name, self._last)
        return self._last

    def mkdir(self, client: int, directory: int, name: str) -> int:
        return self._new("mkdir", client, directory, name)

    def create(self, client: int, directory: int, name: str) -> int:
        return self._new("create", client, directory, name)

    def link(self, client: int, directory: int, name: str, number: int) -> None:
        self._enter(directory, name)
        if self.look(directory, name) is not None:
            raise Problem(errno.EEXIST, name)
        self.inode(number)
        self._do("link", client, directory, name, number)

    def unlink(self, client: int, directory: int, name: str) -> None:
        self._enter(directory, name)
        number = self.look(directory, name)
        if number is None:
            raise Problem(errno.ENOENT, name)
        self._do("unlink", client, directory, name, number)

    def rename(self, client: int, directory: int, old: str, new: str) -> None:
        self._enter(directory, new)
        number = self.look(directory, old)
        if number is None:
            raise Problem(errno.ENOENT, old)
        self._do("rename", client, directory, old, new, number)

    def write(self, client: int, number: int, block: int, data: int) -> None:
        self.inode(number)
        self._do("write", client, number, block, data)

    def resize(self, client: int, number: int, size: int) -> None:
        self.inode(number)
        self._do("resize", client, number, size)

    def attributes(self, client: int, number: int, mode: int, mtime: float | None = None) -> None:
        self.inode(number)
        self._do("attributes", client, number, mode, mtime)

    # What is on the disk.

    @property
    def mark(self) -> int:
        """This moment, for ``sync``."""
        return len(self._log)

    def sync(self, client: int, mark: int) -> None:
        """What ``client`` did before ``mark`` is on the disk."""
        for at in range(mark):
            if self._log[at].client == client:
                self._synced[at] = True

    def settle_names(self) -> None:
        """Names and attributes are on the disk, or at least not in a client: other clients are about to see them."""
        for at, operation in enumerate(self._log):
            if operation.kind != "write":
                self._synced[at] = True

    def lose_power(self, clients: Collection[int], random: Random) -> None:
        """The caches of ``clients`` are gone."""
        share = random.choice((0.0, 0.5, 0.9))
        until = {client: random.randrange(len(self._log) + 1) for client in sorted(clients)}
        kept = []
        for at, operation in enumerate(self._log):
            if not self._synced[at] and operation.client in clients:
                if operation.kind == "write" or self.names is Names.ANY:
                    survives = random.random() < share
                else:
                    survives = self.names is Names.SERVER or at < until[operation.client]
                if not survives:
                    continue
            kept.append((operation, self._synced[at] or operation.client in clients))
        self._log = [operation for operation, _ in kept]
        self._synced = [synced for _, synced in kept]
        self._tree = _Tree()
        for operation in self._log:
            self._tree.apply(operation)
