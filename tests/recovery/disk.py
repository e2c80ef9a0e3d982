"""A file system with several clients, each with a cache that a loss of power drops.

All that is done is a log of operations; what the disk holds is what replaying a part of the log gives. A client's
``sync`` puts its operations so far on the disk, ``fsync`` those on one item. When clients lose power, of those that
were not synced

- data are lost at random;
- names and attributes survive (``SERVER``: they were made on the server), or up to some moment (``ORDERED``: a journal
  like ext4's, in which an fsync takes along all that was before), or at random (``ANY``, stricter than any file system
  that we know: the name of a new file is on the disk once its directory was synced, and no sooner).

``calls`` describes the system calls.
"""

from __future__ import annotations

import stat
from collections.abc import Collection, Iterator
from enum import Enum
from random import Random
from typing import Any

ROOT = 1
USER = 1000
EXT4, FUSE = 0xEF53, 0x65735546
"""Types of file systems."""


class Names(Enum):
    """What a loss of power does to names and attributes that were not synced."""

    SERVER = "server"
    ORDERED = "ordered"
    ANY = "any"


class Inode:
    """An item. ``key`` is never used again; ``number`` may be, once no name of it is left. Times are in nanoseconds."""

    __slots__ = (
        "atime", "birth", "ctime", "data", "device", "gid", "key", "links", "locks", "mode", "mtime", "names", "number",
        "target", "uid", "xattrs",
    )  # fmt: skip

    def __init__(self, key: int, number: int, mode: int, now: int, target: bytes = b"", device: int = 0) -> None:
        self.key, self.number, self.mode, self.target, self.device = key, number, mode, target, device
        self.uid = self.gid = USER
        self.atime = self.mtime = self.ctime = self.birth = now
        self.data = bytearray()
        self.links = 0
        self.names: dict[bytes, Inode] = {}
        self.xattrs: dict[str, bytes] = {}
        self.locks: dict[int, bool] = {}
        """Descriptors that hold it locked, and whether alone."""

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)


class _Operation:
    __slots__ = ("arguments", "client", "is_synced", "kind", "now", "number")

    def __init__(self, number: int, kind: str, client: int, now: int, arguments: tuple[Any, ...]) -> None:
        self.number, self.kind, self.client, self.now, self.arguments = number, kind, client, now, arguments
        self.is_synced = False

    def is_about(self, key: int) -> bool:
        return self.arguments[0] == key or (self.kind == "rename" and self.arguments[2] == key)


class Tree:
    """What applying operations in their order gives. Those whose objects are lost do nothing."""

    def __init__(self) -> None:
        self.inodes: dict[int, Inode] = {}
        self.make(0, ROOT, ROOT, stat.S_IFDIR | 0o755)
        self.inodes[ROOT].links = 1

    def apply(self, operation: _Operation) -> None:
        getattr(self, operation.kind)(operation.now, *operation.arguments)

    def make(self, now: int, key: int, number: int, mode: int, target: bytes = b"", device: int = 0) -> None:
        self.inodes[key] = Inode(key, number, mode, now, target, device)

    def _directory(self, key: int, now: int) -> dict[bytes, Inode] | None:
        inode = self.inodes.get(key)
        if inode is None:
            return None
        inode.mtime = inode.ctime = now
        return inode.names

    def enter(self, now: int, directory: int, name: bytes, key: int) -> None:
        names, inode = self._directory(directory, now), self.inodes.get(key)
        if names is not None and inode is not None:
            self._put(names, name, inode, now)

    def _put(self, names: dict[bytes, Inode], name: bytes, inode: Inode, now: int) -> None:
        before = names.get(name)
        if before is not None:
            before.links -= 1
            before.ctime = now
        names[name] = inode
        inode.links += 1
        inode.ctime = now

    def leave(self, now: int, directory: int, name: bytes, key: int) -> None:
        names = self._directory(directory, now)
        if names is not None and (inode := names.get(name)) is not None and inode.key == key:
            del names[name]
            inode.links -= 1
            inode.ctime = now

    def rename(self, now: int, old: int, old_name: bytes, new: int, new_name: bytes, key: int) -> None:
        old_names, new_names = self._directory(old, now), self._directory(new, now)
        if old_names is None or new_names is None:
            return
        inode = old_names.get(old_name)
        if inode is not None and inode.key == key:
            del old_names[old_name]
            inode.links -= 1
            self._put(new_names, new_name, inode, now)

    def exchange(self, now: int, directory: int, one: bytes, other: bytes) -> None:
        names = self._directory(directory, now)
        if names is not None and one in names and other in names:
            names[one], names[other] = names[other], names[one]
            names[one].ctime = names[other].ctime = now

    def write(self, now: int, key: int, at: int, data: bytes) -> None:
        if (inode := self.inodes.get(key)) is not None:
            if len(inode.data) < at:
                inode.data += bytes(at - len(inode.data))
            inode.data[at : at + len(data)] = data
            inode.mtime = inode.ctime = now

    def resize(self, now: int, key: int, size: int) -> None:
        if (inode := self.inodes.get(key)) is not None:
            del inode.data[size:]
            inode.data += bytes(size - len(inode.data))
            inode.mtime = inode.ctime = now

    def attributes(self, now: int, key: int, values: dict[str, int]) -> None:
        if (inode := self.inodes.get(key)) is not None:
            for name, value in values.items():
                setattr(inode, name, value)
            inode.ctime = now

    def xattr(self, now: int, key: int, name: str, value: bytes | None) -> None:
        if (inode := self.inodes.get(key)) is not None:
            inode.xattrs.pop(name, None)
            if value is not None:
                inode.xattrs[name] = value
            inode.ctime = now


class Disk:
    """The file system as its clients see it, and what of it is on storage. ``now`` is in nanoseconds."""

    def __init__(self, names: Names, kind: int = EXT4) -> None:
        """``kind``: the type of the file system, as of statfs(2)."""
        self.now = 0
        self.type = kind
        self.names = names
        self.mark = 0
        """This moment, for ``sync``."""
        self._tree = Tree()
        self._log: list[_Operation] = []
        self._loose: list[_Operation] = []
        self._last_key = self._last_number = ROOT

    def inode(self, key: int) -> Inode | None:
        return self._tree.inodes.get(key)

    @property
    def root(self) -> Inode:
        return self._tree.inodes[ROOT]

    def do(self, kind: str, client: int, *arguments: Any) -> None:
        """An operation of ``Tree``, by its name."""
        self.mark += 1
        operation = _Operation(self.mark, kind, client, self.now, arguments)
        self._log.append(operation)
        self._loose.append(operation)
        self._tree.apply(operation)

    def make(self, client: int, mode: int, target: bytes = b"", device: int = 0) -> Inode:
        """An item without a name. An inode without names harms nobody: its making is never lost."""
        self._last_key += 1
        self._last_number += 1
        self.do("make", client, self._last_key, self._last_number, mode, target, device)
        self._loose.pop().is_synced = True
        return self._tree.inodes[self._last_key]

    # What is on the disk.

    def sync(self, client: int, mark: int) -> None:
        """What ``client`` did before ``mark`` is on the disk."""
        for operation in self._loose:
            if operation.client == client and operation.number <= mark:
                operation.is_synced = True
        self._tidy()

    def fsync(self, client: int, inode: Inode, mark: int) -> None:
        """So is what it did to one item: contents and attributes of a file, names and attributes of a directory."""
        for operation in self._loose:
            is_earlier = operation.client == client and operation.number <= mark
            if is_earlier and (
                operation.is_about(inode.key) or (self.names is Names.ORDERED and operation.kind != "write")
            ):
                operation.is_synced = True
        self._tidy()

    def _tidy(self) -> None:
        self._loose = [operation for operation in self._loose if not operation.is_synced]

    def settle_names(self) -> None:
        """Names and attributes are on the disk, or at least not in a client: other clients are about to see them."""
        for operation in self._loose:
            operation.is_synced = operation.is_synced or operation.kind != "write"
        self._tidy()

    def forget_locks(self) -> None:
        """Whoever held one has died."""
        for inode in self._tree.inodes.values():
            inode.locks.clear()

    def lose_power(self, clients: Collection[int], random: Random) -> None:
        """The caches of ``clients`` are gone."""
        share = random.choice((0.0, 0.5, 0.9))
        until = {client: random.randrange(len(self._log) + 1) for client in sorted(clients)}
        kept = []
        for at, operation in enumerate(self._log):
            if not operation.is_synced and operation.client in clients:
                if operation.kind == "write" or self.names is Names.ANY:
                    survives = random.random() < share
                else:
                    survives = self.names is Names.SERVER or at < until[operation.client]
                if not survives:
                    continue
                operation.is_synced = True
            kept.append(operation)
        self._log = kept
        self._tidy()
        self._tree = Tree()
        for operation in kept:
            self._tree.apply(operation)
        reached = {inode.number for _, inode in self.items()}
        self._last_number = max(reached, default=ROOT)  # what is lost has had a number that others get now

    def items(self) -> Iterator[tuple[bytes, Inode]]:
        """All that has a name, by its path from the root."""
        waiting = [(b"", self.root)]
        while waiting:
            path, inode = waiting.pop()
            yield path, inode
            waiting += [(path + b"/" + name, below) for name, below in inode.names.items()]
