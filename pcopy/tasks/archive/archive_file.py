"""The archive that is being made, under a temporary name, as each rank has it open."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from pcopy.fsio.problem import failing
from pcopy.fsio.temporary import PREFIX
from pcopy.tasks.base.rank import Rank

_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY

_MOST_PARTS = 1024
"""Of one write: IOV_MAX of Linux."""


class ArchiveFile:
    """Beside the final name, in the directory that is the target of all roots."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._directory = rank.descriptors[0].target
        self._name = b"%b%b-1-0.archive" % (PREFIX, rank.job.name.encode())
        self._descriptor = -1
        self._is_made = False
        self.has_written = False
        """Has this rank put anything into it?"""

    def make(self) -> None:
        """On rank 0, before any other rank opens it; raises ``Problem``."""
        with failing("create"):
            self._descriptor = os.open(self._name, _OPEN | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=self._directory)
        self._is_made = True

    @property
    def descriptor(self) -> int:
        """For reading and writing; raises ``Problem``."""
        if self._descriptor < 0:
            with failing("open"):
                self._descriptor = os.open(self._name, _OPEN, dir_fd=self._directory)
        return self._descriptor

    def write(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Raises ``Problem``."""
        view, descriptor = memoryview(data), self.descriptor
        self.has_written = True
        with failing("write"):
            while view:
                written = os.pwrite(descriptor, view, offset)
                view, offset = view[written:], offset + written

    def write_all(self, parts: Sequence[bytes | memoryview], offset: int) -> None:
        """One after the other, with one call if there are not too many; raises ``Problem``."""
        if not 1 < len(parts) <= _MOST_PARTS:
            self.write(b"".join(parts), offset)
            return
        descriptor = self.descriptor
        self.has_written = True
        with failing("write"):
            written = os.pwritev(descriptor, parts, offset)
        if written < sum(map(len, parts)):
            self.write(memoryview(b"".join(parts))[written:], offset + written)

    def end_at(self, size: int) -> None:
        """It is ``size`` bytes long: what was not written reads as zeros. Raises ``Problem``."""
        with failing("truncate"):
            os.ftruncate(self.descriptor, size)

    def sync(self) -> None:
        with failing("fsync"):
            os.fsync(self.descriptor)

    def commit(self, name: bytes, mode: int) -> os.stat_result:
        """It is whole, and called ``name`` from now on; returns its status. Raises ``Problem``."""
        with failing("chmod"):
            os.fchmod(self.descriptor, mode)
        with failing("rename"):
            os.rename(self._name, name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        self._is_made = False
        with failing("fstat"):
            return os.fstat(self.descriptor)

    def discard(self) -> None:
        """Removes what was made and has not got its name."""
        if self._is_made:
            self._is_made = False
            with suppress(OSError):
                os.unlink(self._name, dir_fd=self._directory)

    def close(self) -> None:
        if self._descriptor >= 0:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1
