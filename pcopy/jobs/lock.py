"""Locks: two runs of pcopy never work on the same job at the same time.

Every rank holds a lock (flock(2)) on a file of its own in the job directory, ``lock-RANK``, while it is alive. The
operating system releases the lock when the process ends, however it ends. So a crash leaves a file, but no lock. The
contents of the file (host, process, start time) are for messages only. Between hosts the lock works if the file system
sends flock to its server: NFS does, and so do Lustre and GPFS unless mounted otherwise. A directory in which files
cannot be locked is refused.

Order: rank 0 takes its own lock first, and then checks that no other rank of an earlier run holds one. So if two runs
start at the same time, one of them fails, and no run starts while a single rank of an earlier run is still alive.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
import time
from _weakref import ref

from pcopy.checkpoint.directory import CHECKPOINT_ADVICE, opened_trusted_directory
from pcopy.checkpoint.layout import LOCK_FILE_PATTERN
from pcopy.errors import RequestRefused, path_refused
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.close import close_ignoring_errors, closing_descriptor, names_in_directory
from pcopy.fsio.retries import open_with_retries
from pcopy.text import printable_path, printable_text

LOCK_RETRY_SECONDS = 0.5
"""Seconds for which the attempt to take a lock is repeated, if another process holds it.

That process may only have called ``lock_holders``, which takes each lock for a moment.
"""

_OPEN_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_LOCK_FILE_READ_LIMIT = 4096
"""Maximum number of bytes that are read from a lock file; what pcopy writes there is far shorter."""
_MOVE_JOB_ADVICE = "copy that directory (cp -a) to a file system that has locks, and name the copy: --resume DIR"
"""Advice for an existing job whose directory lies on a file system without locks."""


class LockHolder(NamedTuple):
    """A rank that works on a job.

    Fields:
    - ``rank``: its number.
    - ``host``: the name of its host.
    - ``pid``: its process ID on that host; 0 if unknown.
    - ``began``: when it took its lock, in seconds since 1970; 0 if unknown.
    """

    rank: int
    host: str
    pid: int
    began: float


class JobLockedError(RequestRefused):
    """Error: the job cannot be used now, because the ranks ``holders`` (at least one) still work on it."""

    def __init__(self, directory: bytes, holders: list[LockHolder]) -> None:
        first = holders[0]
        others = f", and {len(holders) - 1} more," if len(holders) > 1 else ""
        super().__init__(
            f"{printable_path(directory)}: rank {first.rank} on {first.host} (process {first.pid}){others} "
            f"still work{'s' if len(holders) == 1 else ''} on this job; wait for its end, or end it first",
            path=directory,
        )


class RankLock:
    """A lock of a rank, held until ``close`` or the end of the process. A forked child does not inherit it."""

    def __init__(self, descriptor: int, rank: int) -> None:
        self.rank = rank
        self.descriptor = descriptor
        """Descriptor of the locked file; -1 once the lock is released."""
        # A forked child closes its copy of the descriptor: otherwise the lock would outlive this process.
        itself = ref(self)

        def forget() -> None:
            if (lock := itself()) is not None:
                lock.close()

        os.register_at_fork(after_in_child=forget)

    def close(self) -> None:
        """Release the lock; has no effect if it is released already."""
        if self.descriptor >= 0:
            descriptor, self.descriptor = self.descriptor, -1
            close_ignoring_errors(descriptor)


def take_lock(path: bytes, rank: int) -> RankLock:
    """Take the lock of ``rank`` on the job directory ``path``.

    Raise ``JobLockedError`` if another process has the lock. Raise ``RequestRefused`` if the lock file cannot be
    locked, or if another user may have created or changed the directory or the lock file.
    """
    name = b"lock-%d" % rank
    with opened_trusted_directory(path) as directory:
        until = time.monotonic() + LOCK_RETRY_SECONDS
        while True:
            descriptor = _open_lock_file(directory, name, path)
            try:
                # The file may have been removed between open and flock: then a lock on it protects nothing.
                if _try_lock(descriptor, fcntl.LOCK_EX, path) and _is_name_of_locked_file(directory, name, descriptor):
                    break
                if time.monotonic() > until:
                    raise JobLockedError(path, [_read_lock_holder(descriptor, rank)])
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
            time.sleep(0.02)
    lock = RankLock(descriptor, rank)
    values = {"host": os.uname().nodename, "pid": os.getpid(), "began": time.time()}
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(values).encode() + b"\n")
    except OSError as error:
        lock.close()
        raise path_refused(path, f"cannot be written: {error.strerror}") from None
    return lock


def take_lock_unless_job_is_locked(path: bytes) -> RankLock:
    """Take rank 0's lock on the job directory ``path``, unless another rank of an earlier run still holds its own.

    Raise ``JobLockedError`` if any rank holds a lock, and ``RequestRefused`` if the directory cannot be used or locked.
    """
    lock = take_lock(path, 0)
    if others := [holder for holder in lock_holders(path) if holder.rank]:
        lock.close()
        raise JobLockedError(path, others)
    return lock


def lock_holders(path: bytes) -> list[LockHolder]:
    """Return the ranks that work on the job in ``path``, sorted by rank; a lock of this process counts, too.

    Raise ``RequestRefused`` if the directory cannot be read or locked.
    """
    found = []
    with opened_trusted_directory(path) as directory:
        for name in names_in_directory(directory):
            match = re.fullmatch(LOCK_FILE_PATTERN, name)
            if match is None:
                continue
            try:
                descriptor = open_with_retries(name, os.O_RDONLY | _OPEN_FLAGS, dir_fd=directory)
            except OSError:  # removed meanwhile, or not a lock file
                continue
            with closing_descriptor(descriptor):
                # A shared lock: processes that list locks do not see each other. Closing releases it.
                if not _try_lock(descriptor, fcntl.LOCK_SH, path):
                    found.append(_read_lock_holder(descriptor, int(match[1])))
    return sorted(found)


def _open_lock_file(directory: int, name: bytes, path: bytes) -> int:
    """Open or create the lock file ``name``, and return its descriptor.

    ``path`` is the path of the open ``directory``. Raise ``RequestRefused`` if the file is not a regular file of this
    user with a single hard link.
    """
    try:
        descriptor = open_with_retries(name, os.O_RDWR | os.O_CREAT | _OPEN_FLAGS, 0o600, dir_fd=directory)
    except OSError as error:
        raise path_refused(os.path.join(path, name), f"cannot be opened: {error.strerror}") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink > 1:
        os.close(descriptor)
        raise path_refused(os.path.join(path, name), "not a lock file of this user; remove it")
    return descriptor


def _try_lock(descriptor: int, how: int, path: bytes) -> bool:
    """Try to lock the open file ``descriptor`` without waiting; return True if that succeeded, False if another process
    has the lock.

    Args:
        how: LOCK_EX (exclusive) or LOCK_SH (shared), as for flock(2).
        path: the job directory.

    Raise ``RequestRefused`` if the file system of ``path`` does not support locks.
    """
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        is_job = os.path.lexists(os.path.join(path, b"job"))
        advice = _MOVE_JOB_ADVICE if is_job else CHECKPOINT_ADVICE
        raise path_refused(path, f"files in it cannot be locked: {error.strerror}; {advice}") from None
    return True


def _is_name_of_locked_file(directory: int, name: bytes, descriptor: int) -> bool:
    """True if the entry ``name`` of the open ``directory`` is still the locked file ``descriptor``.

    False if that file was removed, as a job does when it ends.
    """
    try:
        now = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(now, os.fstat(descriptor))


def _read_lock_holder(descriptor: int, rank: int) -> LockHolder:
    """Return the holder of the lock of ``rank``, from the contents of the lock file.

    The contents may be missing, if the process died or has not written them yet: then host and process are unknown.
    """
    try:
        contents = json.loads(os.pread(descriptor, _LOCK_FILE_READ_LIMIT, 0))
        host, pid = printable_text(str(contents["host"])), int(contents["pid"])
        return LockHolder(rank, host, pid, float(contents["began"]))
    except (OSError, ValueError, TypeError, KeyError):
        return LockHolder(rank, "an unknown host", 0, 0.0)


def lock_holders_if_any(path: bytes) -> list[LockHolder]:
    """Return the ranks that work on the job in ``path``, sorted by rank.

    Empty if there are none, or if the job directory cannot be read, as when the job has just ended.
    """
    try:
        return lock_holders(path)
    except RequestRefused:
        return []
