"""The system calls that pcopy makes, on the file system of ``disk``, for an ordinary user.

They are called as those of ``os`` are, and raise what those raise; ``test_calls`` compares them with the kernel's.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from tests.recovery.contents import Contents
from tests.recovery.disk import USER, Inode
from tests.recovery.lookup import DESCRIPTORS, Path, refusal

DEVICE = os.makedev(8, 1)
ENTRIES_AT_ONCE = 5
"""The number of entries that one call of getdents64(2) returns at most."""


class Calls(Contents):
    """All calls by name, and the information that they return about items."""

    def ioctl(self, file: Any, request: int, argument: Any = 0) -> int:
        self._begin()
        raise refusal(errno.EOPNOTSUPP)

    # Status.

    def stat(self, path: Path, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
        self._begin()
        return _status(self._there(path, dir_fd, follow=follow_symlinks))

    def lstat(self, path: Path, *, dir_fd: int | None = None) -> os.stat_result:
        return self.stat(path, dir_fd=dir_fd, follow_symlinks=False)

    def fstat(self, descriptor: int) -> os.stat_result:
        self._begin()
        return _status(self._of(descriptor, path=True).inode)

    def full_status(
        self, path: Path, *, dir_fd: int | None = None, follow_symlinks: bool = True
    ) -> tuple[os.stat_result, int]:
        """statx(2): return the status, and the time of birth in nanoseconds."""
        self._begin()
        inode = self._there(path, dir_fd, follow=follow_symlinks)
        return _status(inode), inode.birth

    def access(
        self,
        path: Path,
        mode: int,
        *,
        dir_fd: int | None = None,
        effective_ids: bool = False,
        follow_symlinks: bool = True,
    ) -> bool:
        self._begin()
        try:
            self._may(self._there(path, dir_fd), mode, path)
        except OSError:
            return False
        return True

    def statvfs(self, path: Path) -> Any:
        self._begin()
        room = {"f_blocks": 1 << 31, "f_bfree": 1 << 30, "f_bavail": 1 << 30, "f_files": 0, "f_ffree": 0, "f_favail": 0}
        room["f_blocks"] -= 1  # less is used than is free
        return SimpleNamespace(f_fsid=0x1234, f_frsize=4096, f_bsize=4096, f_flag=0, **room)

    def mark_of(self, descriptor: int, *, created_by_job: bool) -> bytes:
        self._begin()
        return b"H\1\0\0\0%08d" % self._of(descriptor, path=True).inode.key

    def birth_of(self, directory: int, name: bytes = b"") -> int:
        self._begin()
        return self._there(name, directory, follow=False).birth

    def type_of_file_system(self, descriptor: int) -> int:
        self._begin()
        self._of(descriptor, path=True)
        return self.disk.type

    # Names.

    def mkdir(self, path: Path, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        self._new(path, dir_fd, stat.S_IFDIR | mode & 0o7777)

    def mknod(self, path: Path, mode: int = 0o600, device: int = 0, *, dir_fd: int | None = None) -> None:
        self._new(path, dir_fd, mode, device=device)

    def symlink(self, target: bytes, path: Path, *, dir_fd: int | None = None) -> None:
        self._new(path, dir_fd, stat.S_IFLNK | 0o777, os.fsencode(target))

    def link(
        self,
        old: Path,
        new: Path,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        client = self._begin()
        inode, found = self._there(old, src_dir_fd, follow=follow_symlinks), self._changing(new, dst_dir_fd)
        if found.inode is not None:
            raise refusal(errno.EEXIST, new)
        if inode.is_directory:
            raise refusal(errno.EPERM, old)
        if not inode.links:
            raise refusal(errno.ENOENT, old)
        self.disk.do("enter", client, found.directory.key, found.name, inode.key)

    def unlink(self, path: Path, *, dir_fd: int | None = None) -> None:
        client, (directory, name, inode) = self._begin(), self._leaving(path, dir_fd)
        if inode.is_directory:
            raise refusal(errno.EISDIR, path)
        self.disk.do("leave", client, directory.key, name, inode.key)

    def rmdir(self, path: Path, *, dir_fd: int | None = None) -> None:
        client, (directory, name, inode) = self._begin(), self._leaving(path, dir_fd)
        if not inode.is_directory:
            raise refusal(errno.ENOTDIR, path)
        if inode.names:
            raise refusal(errno.ENOTEMPTY, path)
        self.disk.do("leave", client, directory.key, name, inode.key)

    def rename(self, old: Path, new: Path, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        self._rename(old, src_dir_fd, new, dst_dir_fd, replaces=True)

    def _rename(self, old: Path, old_fd: int | None, new: Path, new_fd: int | None, *, replaces: bool) -> None:
        client, before = self._begin(), self._find(old, old_fd, follow=False)
        after = self._find(new, new_fd, follow=False)
        if before.inode is None:
            raise refusal(errno.ENOENT, old)
        if after.inode is not None and not replaces:
            raise refusal(errno.EEXIST, new)
        if before.inode.is_directory and self._holds(before.inode, after.directory):
            raise refusal(errno.EINVAL, new)
        if after.inode is not None and after.inode.is_directory and self._holds(after.inode, before.directory):
            raise refusal(errno.ENOTEMPTY, new)
        if after.inode is before.inode:
            return
        self._may(before.directory, 3, old)
        self._may(after.directory, 3, new)
        if after.inode is not None and after.inode.is_directory != before.inode.is_directory:
            raise refusal(errno.EISDIR if after.inode.is_directory else errno.ENOTDIR, new)
        if before.inode.is_directory and before.directory is not after.directory:
            self._may(before.inode, 2, old)
        if after.inode is not None and after.inode.names:
            raise refusal(errno.ENOTEMPTY, new)
        self.disk.do(
            "rename", client, before.directory.key, before.name, after.directory.key, after.name, before.inode.key
        )

    def _holds(self, directory: Inode, inode: Inode) -> bool:
        return directory is inode or self._path_of(inode).startswith(self._path_of(directory) + b"/")

    def give_name(self, flag: int, directory: int, temporary: bytes, name: bytes) -> bool:
        """renameat2(2) in one directory with RENAME_NOREPLACE (1) or RENAME_EXCHANGE (2): of files."""
        if flag == 1:
            self._rename(temporary, directory, name, directory, replaces=False)
            return True
        client, old = self._begin(), self._find(temporary, directory, follow=False)
        new = self._find(name, directory, follow=False)
        if old.inode is None or new.inode is None:
            raise refusal(errno.ENOENT)
        self._may(old.directory, 3, temporary)
        if old.directory is not new.directory:
            raise refusal(errno.EXDEV)  # nobody asks for that
        self.disk.do("exchange", client, old.directory.key, old.name, new.name)
        return True

    def readlink(self, path: Path, *, dir_fd: int | None = None) -> bytes | str:
        self._begin()
        if isinstance(path, bytes) and path.startswith(DESCRIPTORS):
            return self._path_of(self._there(path))
        inode = self._there(path, dir_fd, follow=False)
        if not stat.S_ISLNK(inode.mode):
            raise refusal(errno.EINVAL, path)
        return inode.target if isinstance(path, bytes) else os.fsdecode(inode.target)

    def listdir(self, path: Path = ".") -> list[Any]:
        return [entry.name for entry in self._listed(path)]

    def scandir(self, path: Path = ".") -> _Listing:
        return _Listing(self._listed(path))

    def _listed(self, path: Path) -> Iterator[_Entry]:
        self._begin()
        inode = self._of(path, path=True).inode if isinstance(path, int) else self._there(path)
        if not inode.is_directory:
            raise refusal(errno.ENOTDIR, path)
        if isinstance(path, int):
            self._of(path)
        else:
            self._may(inode, 4, path)
        names = list(inode.names.items())
        self.world.random.shuffle(names)
        is_bytes = isinstance(path, bytes)
        where = path if isinstance(path, str | bytes) else ""
        for name, below in names:
            shown: Any = name if is_bytes else os.fsdecode(name)
            yield _Entry(self, below, shown, os.path.join(where, shown))

    def entries(self, descriptor: int) -> list[tuple[int, int, bytes]]:
        """getdents64(2): return some entries as (inode number, mode, name); an empty list at the end."""
        self._begin()
        opened = self._of(descriptor)
        if not opened.inode.is_directory:
            raise refusal(errno.ENOTDIR)
        if opened.listing is None:
            found = [(each.number, each.mode, name) for name, each in opened.inode.names.items()]
            self.world.random.shuffle(found)
            here = opened.inode.number, opened.inode.mode
            opened.listing = [(*here, b"."), (*here, b".."), *found]
        entries, opened.listing = opened.listing[:ENTRIES_AT_ONCE], opened.listing[ENTRIES_AT_ONCE:]
        return entries

    # Attributes.

    def _change(self, inode: Inode, client: int, **values: int) -> None:
        self.disk.do("attributes", client, inode.key, values)

    def chmod(self, path: Path, mode: int, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> None:
        client, inode = self._begin(), self._owned(path, dir_fd, follow=follow_symlinks)
        if stat.S_ISLNK(inode.mode):
            raise refusal(errno.EOPNOTSUPP, path)
        self._change(inode, client, mode=stat.S_IFMT(inode.mode) | mode & 0o7777)

    def chown(self, path: Path, uid: int, gid: int, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> None:
        client, inode = self._begin(), self._there(path, dir_fd, follow=follow_symlinks)
        if inode.uid != USER or uid not in (-1, inode.uid) or gid not in (-1, inode.gid, USER):
            raise refusal(errno.EPERM, path)
        self._change(inode, client)

    def utime(
        self, path: Path, *, ns: tuple[int, int], dir_fd: int | None = None, follow_symlinks: bool = True
    ) -> None:
        client, inode = self._begin(), self._owned(path, dir_fd, follow=follow_symlinks)
        self._change(inode, client, atime=ns[0], mtime=ns[1])

    def listxattr(self, path: Path, *, follow_symlinks: bool = True) -> list[str]:
        self._begin()
        return list(self._there(path, follow=follow_symlinks).xattrs)

    def getxattr(self, path: Path, name: str | bytes, *, follow_symlinks: bool = True) -> bytes:
        self._begin()
        inode = self._there(path, follow=follow_symlinks)
        if os.fsdecode(name).startswith("user."):
            self._may(inode, 4, path)
        value = inode.xattrs.get(os.fsdecode(name))
        if value is None:
            raise refusal(errno.ENODATA)
        return value

    def setxattr(self, path: Path, name: str | bytes, value: bytes, *, follow_symlinks: bool = True) -> None:
        client, inode = self._begin(), self._owned(path, follow=follow_symlinks)
        self.disk.do("xattr", client, inode.key, os.fsdecode(name), bytes(value))

    def removexattr(self, path: Path, name: str | bytes, *, follow_symlinks: bool = True) -> None:
        self.getxattr(path, name, follow_symlinks=follow_symlinks)
        client, inode = self._begin(), self._owned(path, follow=follow_symlinks)
        self.disk.do("xattr", client, inode.key, os.fsdecode(name), None)


class _Entry:
    """As ``os.DirEntry``."""

    def __init__(self, calls: Calls, inode: Inode, name: str | bytes, path: str | bytes) -> None:
        self._calls, self._inode, self.name, self.path = calls, inode, name, path

    def inode(self) -> int:
        return self._inode.number

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return stat.S_ISREG(self._inode.mode)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._inode.is_directory

    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self._inode.mode)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return _status(self._inode)


class _Listing:
    def __init__(self, entries: Iterator[_Entry]) -> None:
        self._entries = iter([*entries])

    def __iter__(self) -> Iterator[_Entry]:
        return self._entries

    def __next__(self) -> _Entry:
        return next(self._entries)

    def __enter__(self) -> _Listing:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        pass


def _status(inode: Inode) -> os.stat_result:
    times = inode.atime, inode.mtime, inode.ctime
    size = len(inode.target) if stat.S_ISLNK(inode.mode) else len(inode.data)
    blocks = -(-size // 512)
    links = 2 if inode.is_directory else inode.links
    seconds = [moment // 10**9 for moment in times]
    plain = (inode.mode, inode.number, DEVICE, links, inode.uid, inode.gid, size, *seconds)
    return os.stat_result((*plain, *(moment / 1e9 for moment in times), *times, 4096, blocks, inode.device)[:19])
