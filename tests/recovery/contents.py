"""The system calls that are about the contents of files, and Python's own files."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Sequence
from typing import Any

from tests.recovery.disk import FUSE
from tests.recovery.lookup import Lookup, Open, Path, refusal


class Contents(Lookup):
    """Reads, writes and syncs."""

    def read(self, descriptor: int, length: int) -> bytes:
        opened = self._of(descriptor)
        data = self.pread(descriptor, length, opened.offset)
        opened.offset += len(data)
        return data

    def pread(self, descriptor: int, length: int, at: int) -> bytes:
        self._begin()
        opened = self._of(descriptor)
        if opened.flags & os.O_WRONLY:
            raise refusal(errno.EBADF)
        if opened.inode.is_directory:
            raise refusal(errno.EISDIR)
        return bytes(opened.inode.data[at : at + length])

    def preadv(self, descriptor: int, buffers: Sequence[memoryview], at: int) -> int:
        (buffer,) = buffers
        data = self.pread(descriptor, len(buffer), at)
        buffer[: len(data)] = data
        return len(data)

    def write(self, descriptor: int, data: bytes) -> int:
        opened = self._of(descriptor)
        put = self.pwrite(descriptor, data, opened.offset)
        opened.offset += put
        return put

    def pwrite(self, descriptor: int, data: bytes | memoryview, at: int) -> int:
        client, opened = self._begin(), self._writing(descriptor)
        if opened is None:
            raise refusal(errno.EBADF)
        self.disk.do("write", client, opened.inode.key, at, bytes(data))
        return len(data)

    def _writing(self, descriptor: int) -> Open | None:
        opened = self._of(descriptor)
        return opened if opened.flags & (os.O_WRONLY | os.O_RDWR) else None

    def copy_file_range(self, source: int, target: int, length: int, at: int, to: int) -> int:
        data = self.pread(source, length, at)
        return self.pwrite(target, data, to) if data else 0

    def lseek(self, descriptor: int, at: int, whence: int) -> int:
        self._begin()
        opened = self._of(descriptor)
        size = len(opened.inode.data)
        if whence in (os.SEEK_DATA, os.SEEK_HOLE):
            if at >= size:
                raise refusal(errno.ENXIO)
            return at if whence == os.SEEK_DATA else size
        base = {os.SEEK_SET: 0, os.SEEK_CUR: opened.offset, os.SEEK_END: size}[whence]
        opened.offset, opened.listing = base + at, None
        return opened.offset

    def ftruncate(self, descriptor: int, size: int) -> None:
        client, opened = self._begin(), self._writing(descriptor)
        if opened is None:
            raise refusal(errno.EINVAL)
        self.disk.do("resize", client, opened.inode.key, size)

    def posix_fadvise(self, descriptor: int, start: int, length: int, advice: int) -> None:
        self._begin()
        self._of(descriptor)

    def fsync(self, descriptor: int) -> None:
        client, inode, mark = self._begin(), self._of(descriptor).inode, self.disk.mark
        self.world.sleep(self._syncing())
        self.disk.fsync(client, inode, mark)

    def syncfs(self, descriptor: int) -> None:
        """On FUSE the call succeeds, and syncs nothing."""
        client, mark = self._begin(), self.disk.mark
        self._of(descriptor)
        self.world.sleep(self._syncing())
        if self.disk.type != FUSE:
            self.disk.sync(client, mark)

    def file(self, file: Path, mode: str = "r", buffering: int = -1, **options: Any) -> Any:
        """``open``, of binary files."""
        if (isinstance(file, str | bytes) and os.fsencode(file).startswith(b"/proc/")) or "b" not in mode:
            text = os.fsencode(file) if isinstance(file, str | bytes) else b""
            if text == b"/proc/self/mountinfo":
                return io.BytesIO(b"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n")
            if text.startswith(b"/proc/self/fdinfo/"):
                return io.BytesIO(b"mnt_id:\t1\n")
            raise refusal(errno.ENOENT, file)
        raw = _File(self, file if isinstance(file, int) else self.open(file, os.O_RDONLY | os.O_CLOEXEC))
        if buffering == 0:
            return raw
        return io.BufferedReader(raw) if "r" in mode else io.BufferedWriter(raw)


class _File(io.RawIOBase):
    """A descriptor, which is closed with it."""

    def __init__(self, calls: Contents, descriptor: int) -> None:
        super().__init__()
        self._calls, self._descriptor = calls, descriptor

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def readinto(self, buffer: Any) -> int:
        data = self._calls.read(self._descriptor, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def write(self, data: Any) -> int:
        return self._calls.write(self._descriptor, bytes(data))

    def seek(self, at: int, whence: int = 0) -> int:
        return self._calls.lseek(self._descriptor, at, whence)

    def tell(self) -> int:
        return self._calls.lseek(self._descriptor, 0, os.SEEK_CUR)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._calls.close(self._descriptor)
