"""The archive that ``ptar -c`` creates, as each rank has it open under a temporary name.

The temporary name is derived from the final path of the archive and from the user, so that a later run finds the file
of an interrupted one. Each rank holds a shared lock (flock(2)) while it has the file open. Rank 0 starts only if no
other process holds a lock.
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
"""Error numbers of a file system that is full, or of an exhausted quota."""
_MOST_PARTS = 1024
"""Largest number of buffers in one call of pwritev(2): IOV_MAX of Linux."""


def job_name(archive: bytes) -> str:
    """Return the name of the job that creates ``archive``, which is an absolute path.

    The name is part of the names of all temporary files of the job.
    """
    return blake2b(b"%d %b" % (os.geteuid(), archive), digest_size=5).hexdigest()


def name_of(job: str) -> bytes:
    """Return the temporary file name of the archive that the job called ``job`` creates."""
    return b"%b%b-1-0.archive" % (PREFIX, job.encode())


def left_by(directory: bytes, job: str) -> list[bytes]:
    """Return the paths of all files that the job called ``job`` has left in ``directory``, with the archive first.

    Return an empty list if there is no unfinished archive. Errors are not raised: if the directory cannot be listed,
    only the path of the archive is returned.
    """
    path = os.path.join(directory, name_of(job))
    try:
        if not os.path.lexists(path):
            return []
        stem = PREFIX + job.encode() + b"-"
        return [path, *(os.path.join(directory, name) for name in os.listdir(directory) if name.startswith(stem))]
    except OSError:
        return [path]


def stop(rank: Rank, action: str, problem: Problem) -> None:
    """Stop the whole job, because the archive cannot be ``action`` ("read", "made", "written" or "synced")."""
    archive = shown(rank.options.archive_file)
    code = NO_ROOM if problem.errno in FULL else 0
    rank.stop(f"{archive}: the archive cannot be {action}: {problem.operation}: {problem.strerror}", code)


def is_in_use(directory: bytes, name: bytes) -> bool:
    """Return True if another process is known to be creating this archive at the moment.

    Return False if that cannot be determined. Raise ``Problem`` if an item that is no unfinished archive has its
    temporary name.
    """
    with failing("open"):
        descriptor = open_directory_of(os.path.join(directory, name)).descriptor
    try:
        if look_for(descriptor, name) is None:
            return False
        with held_open(open_patiently(name, _OPEN, dir_fd=descriptor)) as locked:
            fcntl.flock(locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except Problem:
        raise
    except OSError:  # creating the archive meets the same error, and reports it
        return False
    finally:
        os.close(descriptor)
    return False


def look_for(directory: int, name: bytes) -> os.stat_result | None:
    """Return the status of the unfinished archive ``name``; None if there is none.

    The file may belong to an interrupted run or to one that is still running. Raise ``Problem`` if another item has
    that name.
    """
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Problem.of("stat", error) from error
    if not _is_ours(directory, name, status):
        raise Problem(
            "create", errno.EEXIST, text=f"another item has the temporary name {os.fsdecode(name)}; remove it"
        )
    return status


def _is_ours(directory: int, name: bytes, status: os.stat_result) -> bool:
    """Return True if the item ``name`` with this ``status`` can be an unfinished archive of this user.

    It must have one hard link and look like a file that this user has just created. Raise ``Problem`` if that cannot be
    checked.
    """
    return status.st_nlink == 1 and looks_new(directory, status, b"%b-%d" % (name, os.getpid()))


class ArchiveFile:
    """The unfinished archive, which each rank has open for reading and writing.

    It lies in the directory of the final name, which is the target directory of all roots. Rank 0 creates it
    (``make``); other ranks open it when they first use it.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._directory = rank.descriptors[0].target
        self._name = name_of(rank.job.name)
        self._descriptor = -1
        self.is_made = False
        """True on rank 0 from the creation of the file until it has its final name or is removed."""
        self.has_written = False
        """True if this rank has written to the file."""
        self.has_replaced = False
        """True if an unfinished archive of an interrupted run was removed and a new one created."""

    def make(self, *, go_on: bool) -> bool:
        """Create the file on rank 0, or open the one of an interrupted run, before any other rank opens it.

        An unfinished archive of an interrupted run is kept if ``go_on`` is true, and removed otherwise. Return True if
        there was such a file. Raise ``Problem`` if the file cannot be created or locked, also if another process is
        creating the same archive.
        """
        while True:
            existed = look_for(self._directory, self._name) is not None
            try:
                flags = _OPEN if existed else _OPEN | os.O_CREAT | os.O_EXCL
                self._descriptor = open_patiently(self._name, flags, 0o600, dir_fd=self._directory)
            except (FileExistsError, FileNotFoundError):  # another process has created or removed it meanwhile
                continue
            except OSError as error:
                raise Problem.of("create", error) from error
            if not _lock(self._descriptor, fcntl.LOCK_EX) and existed:
                text = f"cannot check whether {os.fsdecode(self._name)} is in use, because files cannot be locked there"
                raise Problem("flock", 0, text=text + ": remove it if no other ptar runs")
            # The name may have been given to another file between open and lock.
            status = look_for(self._directory, self._name)
            if status is not None and status.st_ino == os.fstat(self._descriptor).st_ino:
                if go_on or not existed:
                    break
                with failing("unlink"):
                    os.unlink(self._name, dir_fd=self._directory)
                self.has_replaced = True
            self.close()
        _lock(self._descriptor, fcntl.LOCK_SH)
        self.is_made = True
        return existed

    @property
    def descriptor(self) -> int:
        """The descriptor of the file, open for reading and writing.

        Raise ``Problem`` if the file cannot be opened, or if another file has taken its name.
        """
        if self._descriptor < 0:
            with failing("open"):
                opened = open_patiently(self._name, _OPEN, dir_fd=self._directory)
            try:
                if not _is_ours(self._directory, self._name, status_of(opened)):
                    raise Problem("open", errno.ESTALE, text="the unfinished archive was replaced by another file")
            except BaseException:
                let_go(opened)
                raise
            self._descriptor = opened
            _lock(self._descriptor, fcntl.LOCK_SH)
        return self._descriptor

    def write(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write ``data`` at the byte ``offset``. Raise ``Problem`` if that fails."""
        view, descriptor = memoryview(data), self.descriptor
        self.has_written = True
        with failing("write"):
            while view:
                written = os.pwrite(descriptor, view, offset)
                view, offset = view[written:], offset + written

    def write_all(self, parts: Sequence[bytes | memoryview], offset: int) -> None:
        """Write ``parts`` one behind the other, from the byte ``offset`` on, with one system call if possible.

        Raise ``Problem`` if that fails.
        """
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
        """The size of the file in bytes. Raise ``Problem`` if it cannot be determined."""
        with failing("fstat"):
            return os.fstat(self.descriptor).st_size

    def end_at(self, size: int) -> None:
        """Truncate or extend the file to ``size`` bytes. Bytes that were not written read as zeros.

        Raise ``Problem`` if that fails.
        """
        with failing("truncate"):
            os.ftruncate(self.descriptor, size)

    def clear(self, offset: int, size: int) -> None:
        """Make ``size`` bytes from ``offset`` on read as zeros, so that data of an interrupted run do not remain there.

        Punch a hole, or write zeros if the file system does not support that. Raise ``Problem`` if that fails.
        """
        self.has_written = True
        try:
            libc.punch(self.descriptor, offset, size)
        except OSError:  # not every file system makes holes
            for at in range(offset, offset + size, len(_ZEROS)):
                self.write(_ZEROS[: offset + size - at], at)

    def sync(self) -> None:
        """Bring the data that this rank has written to stable storage. Raise ``Problem`` if that fails."""
        with failing("fsync"):
            sync_written(self.descriptor)

    def commit(self, name: bytes, mode: int) -> tuple[os.stat_result, Problem | None]:
        """Set the permission bits ``mode`` of the complete archive and rename it to its final ``name``.

        Return its status and the ``Problem`` of chmod(2), if the mode could not be set: the archive then keeps the mode
        0600. Raise ``Problem`` if the rename fails.
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
        """Remove the file, if this rank has created it and it does not have its final name yet."""
        if self.is_made:
            self.is_made = False
            with suppress(OSError):
                os.unlink(self._name, dir_fd=self._directory)

    def close(self) -> None:
        """Close the descriptor, which also releases the lock."""
        if self._descriptor >= 0:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1


def _lock(descriptor: int, operation: int) -> bool:
    """Lock the file with flock(2) without waiting; ``operation`` is LOCK_SH or LOCK_EX.

    Return False if the file system does not support locks. Raise ``Problem`` if another process holds the lock.
    """
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Problem("flock", 0, text="another ptar makes this archive now") from None
    except OSError:
        return False
    return True
