"""The archive that is being made, under a temporary name, as each rank has it open.

The name follows from the archive's path and the user: so a later run finds what an interrupted one has left. Each rank
holds a lock (flock(2)) as long as it has it open, and rank 0 begins only where nobody else holds one.
"""

from __future__ import annotations

import errno
import fcntl
import os
from _blake2 import blake2b
from collections.abc import Sequence
from contextlib import suppress

from pcopy import libc
from pcopy.errors import NO_ROOM
from pcopy.fsio.close import held_open, let_go
from pcopy.fsio.named_file import open_directory_of
from pcopy.fsio.patience import open_patiently
from pcopy.fsio.problem import Problem, failing
from pcopy.fsio.server import looks_new
from pcopy.fsio.source import status_of
from pcopy.fsio.syncer import sync_written
from pcopy.fsio.temporary import PREFIX
from pcopy.tasks.base.rank import Rank
from pcopy.text import shown

_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_ZEROS = bytes(1 << 20)
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a file system, or of a quota, that has no room."""
_MOST_PARTS = 1024
"""Of one write: IOV_MAX of Linux."""


def job_name(archive: bytes) -> str:
    """Of the job that makes ``archive``, a path from the root; it is in the names of what the job leaves."""
    return blake2b(b"%d %b" % (os.geteuid(), archive), digest_size=5).hexdigest()


def name_of(job: str) -> bytes:
    """What the archive is called that the job of this name makes."""
    return b"%b%b-1-0.archive" % (PREFIX, job.encode())


def left_by(directory: bytes, job: str) -> list[bytes]:
    """The paths of all that the job of this name has left there, the archive first; empty without that. Raises
    nothing."""
    path = os.path.join(directory, name_of(job))
    try:
        if not os.path.lexists(path):
            return []
        stem = PREFIX + job.encode() + b"-"
        return [path, *(os.path.join(directory, name) for name in os.listdir(directory) if name.startswith(stem))]
    except OSError:
        return [path]


def stop(rank: Rank, what: str, problem: Problem) -> None:
    """End the job: the archive cannot be ``what`` (read, made, written, synced)."""
    archive = shown(rank.options.archive_file)
    code = NO_ROOM if problem.errno in FULL else 0
    rank.stop(f"{archive}: the archive cannot be {what}: {problem.operation}: {problem.strerror}", code)


def is_in_use(directory: bytes, name: bytes) -> bool:
    """Does a process make this archive now, as far as that can be told? Raises ``Problem`` if something else has its
    temporary name."""
    with failing("open"):
        descriptor = open_directory_of(os.path.join(directory, name)).descriptor
    try:
        if look_for(descriptor, name) is None:
            return False
        with held_open(open_patiently(name, _OPEN, dir_fd=descriptor)) as found:
            fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except Problem:
        raise
    except OSError:  # whoever makes it finds out
        return False
    finally:
        os.close(descriptor)
    return False


def look_for(directory: int, name: bytes) -> os.stat_result | None:
    """The status of a file ``name`` that an interrupted run has left, or a running one makes; None if there is none.
    Raises ``Problem`` if something else has that name."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Problem.of("stat", error) from error
    if not _is_ours(directory, name, status):
        raise Problem("create", errno.EEXIST, text=f"something else is called {os.fsdecode(name)} there; remove it")
    return status


def _is_ours(directory: int, name: bytes, status: os.stat_result) -> bool:
    """Return True if what is called ``name`` may be an archive that this user is making. Raises ``Problem``."""
    return status.st_nlink == 1 and looks_new(directory, status, b"%b-%d" % (name, os.getpid()))


class ArchiveFile:
    """Beside the final name, in the directory that is the target of all roots."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._directory = rank.descriptors[0].target
        self._name = name_of(rank.job.name)
        self._descriptor = -1
        self.is_made = False
        self.has_written = False
        """Has this rank put anything into it?"""
        self.has_replaced = False
        """Has a new one taken the place of what an interrupted run had left?"""

    def make(self, *, go_on: bool) -> bool:
        """On rank 0, before any other rank opens it. Raises ``Problem``, also if another process makes it now.

        Is there one that an interrupted run has left? If we ``go_on`` with it, that is returned; else a new one takes
        its place."""
        while True:
            is_left = look_for(self._directory, self._name) is not None
            try:
                flags = _OPEN if is_left else _OPEN | os.O_CREAT | os.O_EXCL
                self._descriptor = open_patiently(self._name, flags, 0o600, dir_fd=self._directory)
            except (FileExistsError, FileNotFoundError):  # another process was quicker
                continue
            except OSError as error:
                raise Problem.of("create", error) from error
            if not _lock(self._descriptor, fcntl.LOCK_EX) and is_left:
                text = (
                    f"nobody can tell whether {os.fsdecode(self._name)} is in use, since files cannot be locked there"
                )
                raise Problem("flock", 0, text=text + ": remove it if no other ptar runs")
            status = look_for(self._directory, self._name)
            if status is not None and status.st_ino == os.fstat(self._descriptor).st_ino:
                if go_on or not is_left:
                    break
                with failing("unlink"):
                    os.unlink(self._name, dir_fd=self._directory)
                self.has_replaced = True
            self.close()
        _lock(self._descriptor, fcntl.LOCK_SH)
        self.is_made = True
        return is_left

    @property
    def descriptor(self) -> int:
        """For reading and writing; raises ``Problem``, also if another user's file has taken the name."""
        if self._descriptor < 0:
            with failing("open"):
                opened = open_patiently(self._name, _OPEN, dir_fd=self._directory)
            try:
                if not _is_ours(self._directory, self._name, status_of(opened)):
                    raise Problem("open", errno.ESTALE, text="the archive that is being made was replaced meanwhile")
            except BaseException:
                let_go(opened)
                raise
            self._descriptor = opened
            _lock(self._descriptor, fcntl.LOCK_SH)
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

    @property
    def size(self) -> int:
        """In bytes. Raises ``Problem``."""
        with failing("fstat"):
            return os.fstat(self.descriptor).st_size

    def end_at(self, size: int) -> None:
        """It is ``size`` bytes long: what was not written reads as zeros. Raises ``Problem``."""
        with failing("truncate"):
            os.ftruncate(self.descriptor, size)

    def clear(self, offset: int, size: int) -> None:
        """What an interrupted run has written there reads as zeros. Raises ``Problem``."""
        self.has_written = True
        try:
            libc.punch(self.descriptor, offset, size)
        except OSError:  # not every file system makes holes
            for at in range(offset, offset + size, len(_ZEROS)):
                self.write(_ZEROS[: offset + size - at], at)

    def sync(self) -> None:
        with failing("fsync"):
            sync_written(self.descriptor)

    def commit(self, name: bytes, mode: int) -> tuple[os.stat_result, Problem | None]:
        """It is whole, and called ``name`` from now on. Raises ``Problem``.

        Return its status, and why it does not have its ``mode``, but one for its owner alone.
        """
        unset = None
        try:
            os.fchmod(self.descriptor, mode)
        except OSError as error:
            unset = Problem.of("chmod", error)
        with failing("rename"):
            os.rename(self._name, name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        self.is_made = False
        with failing("fstat"):
            return os.fstat(self.descriptor), unset

    def discard(self) -> None:
        """Removes what was made and has not got its name."""
        if self.is_made:
            self.is_made = False
            with suppress(OSError):
                os.unlink(self._name, dir_fd=self._directory)

    def close(self) -> None:
        if self._descriptor >= 0:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1


def _lock(descriptor: int, how: int) -> bool:
    """Raises ``Problem`` if another process has it; False where files cannot be locked."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Problem("flock", 0, text="another ptar makes this archive now") from None
    except OSError:
        return False
    return True
