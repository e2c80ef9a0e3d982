"""The archive that ``ptar -c`` creates. Each rank has it open under a temporary name.

The temporary name is derived from the final path of the archive and from the user, so that a later run finds the file
of an interrupted one. Each rank holds a shared lock (flock(2)) while it has the file open. Rank 0 starts only if no
other process holds a lock on the file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from _blake2 import blake2b
from collections.abc import Sequence
from contextlib import suppress

from pcopy import libc
from pcopy.errors import NO_SPACE_CODE
from pcopy.fsio.close import close_ignoring_errors, closing_descriptor
from pcopy.fsio.named_file import open_parent_directory
from pcopy.fsio.problem import Problem, errors_as_problem
from pcopy.fsio.retries import open_with_retries
from pcopy.fsio.server import looks_like_new_file
from pcopy.fsio.source import status_of_open_item
from pcopy.fsio.syncer import sync_file_if_supported
from pcopy.fsio.temporary import TEMPORARY_NAME_PREFIX
from pcopy.tasks.base.job import ArchiveOptions
from pcopy.tasks.base.rank import Rank
from pcopy.text import printable_path

_ARCHIVE_OPEN_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
"""Flags of open(2) for the archive: never through a symbolic link, and never waiting for the other end of a FIFO."""
_ZEROS = bytes(1 << 20)
NO_SPACE_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers that mean a full file system or an exhausted quota."""
_MAX_BUFFERS_PER_WRITE = 1024
"""Largest number of buffers in one call of pwritev(2) (IOV_MAX of Linux). More buffers are joined first."""


def archive_job_name(archive: bytes) -> str:
    """Return the name of the job that creates the archive with the absolute path ``archive``: a digest of this path and
    of the user's id.

    The name is part of the names of all temporary files of the job, so a later run finds those of an interrupted one.
    """
    return blake2b(b"%d %b" % (os.geteuid(), archive), digest_size=5).hexdigest()


def temporary_archive_name(job: str) -> bytes:
    """Return the file name under which the archive is written until it is complete; ``job`` is the name of the job that
    creates it.
    """
    return b"%b%b-1-0.archive" % (TEMPORARY_NAME_PREFIX, job.encode())


def unfinished_archive_files(directory: bytes, job: str) -> list[bytes]:
    """Return the paths of all files that the job called ``job`` has left in ``directory``: the unfinished archive
    first, then the files that record which parts of it were written.

    Return an empty list if there is no unfinished archive. Errors are not raised: if the directory cannot be listed,
    only the path of the archive is returned.
    """
    path = os.path.join(directory, temporary_archive_name(job))
    try:
        if not os.path.lexists(path):
            return []
        stem = TEMPORARY_NAME_PREFIX + job.encode() + b"-"
        return [path, *(os.path.join(directory, name) for name in os.listdir(directory) if name.startswith(stem))]
    except OSError:
        return [path]


def stop_job_on_archive_error(rank: Rank, action: str, problem: Problem) -> None:
    """Stop the whole job, because the archive cannot be ``action`` ("read", "made", "written" or "synced"). If the file
    system is full, the exit status says so.
    """
    archive = printable_path(rank.program_options(ArchiveOptions).archive_file)
    code = NO_SPACE_CODE if problem.errno in NO_SPACE_ERRNOS else 0
    rank.request_stop(f"{archive}: the archive cannot be {action}: {problem.operation}: {problem.strerror}", code)


def is_archive_in_use(directory: bytes, name: bytes) -> bool:
    """Return True if another process is writing the unfinished archive ``name`` in the open ``directory`` at the
    moment, that is, if it holds a lock on this file.

    Return False if that cannot be determined. Raise ``Problem`` if the item of that name is no unfinished archive.
    """
    with errors_as_problem("open"):
        descriptor = open_parent_directory(os.path.join(directory, name)).descriptor
    try:
        if unfinished_archive_status(descriptor, name) is None:
            return False
        with closing_descriptor(open_with_retries(name, _ARCHIVE_OPEN_FLAGS, dir_fd=descriptor)) as locked:
            fcntl.flock(locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except Problem:
        raise
    except OSError:  # ``ArchiveFile.create`` meets the same error, and reports it
        return False
    finally:
        os.close(descriptor)
    return False


def unfinished_archive_status(directory: int, name: bytes) -> os.stat_result | None:
    """Return the status of the unfinished archive ``name`` in the open ``directory``; None if there is none.

    The file may belong to an interrupted run or to one that is still running. Raise ``Problem`` if an item of another
    kind has that name.
    """
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Problem.from_error("stat", error) from error
    if not _may_be_own_archive(directory, name, status) and not _may_be_complete_archive(status):
        raise Problem(
            "create", errno.EEXIST, text=f"another item has the temporary name {os.fsdecode(name)}; remove it"
        )
    return status


def _may_be_own_archive(directory: int, name: bytes, status: os.stat_result) -> bool:
    """Return True if the item ``name`` with this ``status`` can be an unfinished archive of this user.

    It must have one hard link and look like a file that this user has just created. Raise ``Problem`` if that cannot be
    checked.
    """
    return status.st_nlink == 1 and looks_like_new_file(directory, status, b"%b-%d" % (name, os.getpid()))


def _may_be_complete_archive(status: os.stat_result) -> bool:
    """Return True if an item with this ``status`` can be an archive of this user to which an interrupted run has given
    its final mode (``ArchiveFile.commit``), but not its final name.
    """
    mode = stat.S_IMODE(status.st_mode)
    is_own_file = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink == 1
    return is_own_file and mode & ~0o066 == 0o600


class ArchiveFile:
    """The unfinished archive, which each rank has open for reading and writing.

    The file has a temporary name in the directory in which the archive appears when it is complete. Rank 0 creates it
    (``create``); other ranks open it when they first use it.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._directory = rank.descriptors[0].target
        self._name = temporary_archive_name(rank.job.name)
        self._descriptor = -1
        self.is_temporary = False
        """True on rank 0 from the creation of the file until it has its final name or is removed."""
        self.has_written = False
        """True if this rank has written to the file."""
        self.has_replaced_unfinished = False
        """True if an unfinished archive of an interrupted run was removed and a new one created."""

    def create(self, *, resume: bool) -> bool:
        """Create the file on rank 0, or open the one of an interrupted run, before any other rank opens it.

        An unfinished archive of an interrupted run is kept if ``resume`` is true, and removed otherwise. Return True if
        the file existed already, so that its contents remain. Raise ``Problem`` if the file cannot be created or
        locked; one reason is that another process is creating the same archive.
        """
        while True:
            existed = unfinished_archive_status(self._directory, self._name) is not None
            try:
                flags = _ARCHIVE_OPEN_FLAGS if existed else _ARCHIVE_OPEN_FLAGS | os.O_CREAT | os.O_EXCL
                self._descriptor = open_with_retries(self._name, flags, 0o600, dir_fd=self._directory)
            except (FileExistsError, FileNotFoundError):  # another process has created or removed the file meanwhile
                continue
            except OSError as error:
                raise Problem.from_error("create", error) from error
            if not _try_lock(self._descriptor, fcntl.LOCK_EX) and existed:
                text = f"cannot check whether {os.fsdecode(self._name)} is in use, because files cannot be locked there"
                raise Problem("flock", 0, text=text + ": remove it if no other ptar runs")
            # Between open and lock, another file may have taken the name: check that the locked file still has it.
            status = unfinished_archive_status(self._directory, self._name)
            if status is not None and status.st_ino == os.fstat(self._descriptor).st_ino:
                if existed and resume and not _may_be_own_archive(self._directory, self._name, status):
                    with errors_as_problem("chmod"):
                        os.fchmod(self._descriptor, 0o600)  # the interrupted run had set the final mode
                if not existed or resume:
                    break
                with errors_as_problem("unlink"):
                    os.unlink(self._name, dir_fd=self._directory)
                self.has_replaced_unfinished = True
            self.close()
        _try_lock(self._descriptor, fcntl.LOCK_SH)
        self.is_temporary = True
        return existed

    @property
    def descriptor(self) -> int:
        """The descriptor of the file, open for reading and writing.

        Raise ``Problem`` if the file cannot be opened, or if another file has taken its name.
        """
        if self._descriptor < 0:
            with errors_as_problem("open"):
                opened = open_with_retries(self._name, _ARCHIVE_OPEN_FLAGS, dir_fd=self._directory)
            try:
                if not _may_be_own_archive(self._directory, self._name, status_of_open_item(opened)):
                    raise Problem("open", errno.ESTALE, text="the unfinished archive was replaced by another file")
            except BaseException:
                close_ignoring_errors(opened)
                raise
            self._descriptor = opened
            _try_lock(self._descriptor, fcntl.LOCK_SH)
        return self._descriptor

    def write(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write ``data`` at the offset ``offset`` (in bytes). Raise ``Problem`` if that fails."""
        view, descriptor = memoryview(data), self.descriptor
        self.has_written = True
        with errors_as_problem("write"):
            while view:
                written = os.pwrite(descriptor, view, offset)
                view, offset = view[written:], offset + written

    def write_parts(self, parts: Sequence[bytes | memoryview], offset: int) -> None:
        """Write ``parts`` one after the other, from the offset ``offset`` (in bytes) on, with one system call if
        possible.

        Raise ``Problem`` if that fails.
        """
        if not 1 < len(parts) <= _MAX_BUFFERS_PER_WRITE:
            self.write(b"".join(parts), offset)
            return
        descriptor = self.descriptor
        self.has_written = True
        with errors_as_problem("write"):
            written = os.pwritev(descriptor, parts, offset)
        if written < sum(map(len, parts)):
            self.write(memoryview(b"".join(parts))[written:], offset + written)

    @property
    def size(self) -> int:
        """The size of the file in bytes. Raise ``Problem`` if it cannot be determined."""
        with errors_as_problem("fstat"):
            return os.fstat(self.descriptor).st_size

    def truncate_or_extend(self, size: int) -> None:
        """Truncate or extend the file to ``size`` bytes. Bytes that were not written read as zeros.

        Raise ``Problem`` if that fails.
        """
        with errors_as_problem("truncate"):
            os.ftruncate(self.descriptor, size)

    def clear_range(self, offset: int, size: int) -> None:
        """Make ``size`` bytes from ``offset`` on read as zeros, so that nothing that an interrupted run has written
        remains there.

        Punch a hole, or write zeros if the file system does not support holes. Raise ``Problem`` if that fails.
        """
        self.has_written = True
        try:
            libc.punch_hole(self.descriptor, offset, size)
        except OSError:  # the file system does not support holes
            for at in range(offset, offset + size, len(_ZEROS)):
                self.write(_ZEROS[: offset + size - at], at)

    def sync(self) -> None:
        """Bring the data that this rank has written to the archive to stable storage. Raise ``Problem`` if that
        fails.
        """
        with errors_as_problem("fsync"):
            sync_file_if_supported(self.descriptor)

    def commit(self, name: bytes, mode: int) -> tuple[os.stat_result, Problem | None]:
        """Set the permission bits ``mode`` of the complete archive and rename it to its final ``name``.

        Return two values: the status of the archive; the ``Problem`` of chmod(2) if the mode could not be set (the
        archive then keeps the mode 0600), else None. Raise ``Problem`` if the rename fails.
        """
        unset = None
        try:
            os.fchmod(self.descriptor, mode)
        except OSError as error:
            unset = Problem.from_error("chmod", error)
        with errors_as_problem("rename"):
            os.rename(self._name, name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        self.is_temporary = False
        with errors_as_problem("fstat"):
            return os.fstat(self.descriptor), unset

    def remove_unfinished_archive(self) -> None:
        """Remove the file, if this rank has created it and it does not have its final name yet. Errors are ignored."""
        if self.is_temporary:
            self.is_temporary = False
            with suppress(OSError):
                os.unlink(self._name, dir_fd=self._directory)

    def close(self) -> None:
        """Close the descriptor, which also releases the lock."""
        if self._descriptor >= 0:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1


def _try_lock(descriptor: int, operation: int) -> bool:
    """Lock the file with flock(2) without waiting; ``operation`` is LOCK_SH or LOCK_EX.

    Return False if the file system does not support locks. Raise ``Problem`` if another process holds the lock.
    """
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Problem(
            "flock", 0, text="another ptar is creating this archive at the moment: wait until it has ended"
        ) from None
    except OSError:
        return False
    return True
