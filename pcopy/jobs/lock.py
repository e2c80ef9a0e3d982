"""Locks: two runs of pcopy never work on one job at once.

Every rank holds a lock (flock(2)) on a file of its own, ``lock-RANK``, as long as it lives. The kernel gives the lock
back when the process ends, however it ends, so a crash leaves a file, but no lock; what the file says (host, process,
beginning) is for people. Across hosts the lock holds where the file system carries flock to its server
(NFS, and Lustre and GPFS unless mounted otherwise). A directory where files cannot be locked is refused.

The order of two runs: rank 0 takes its lock first and then looks at those of all other ranks. So if two
start at once, one gets no further. And a rank that has outlived the others of its run is noticed.
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

from pcopy.checkpoint.directory import ADVICE, opened
from pcopy.checkpoint.layout import LOCK
from pcopy.errors import Refused
from pcopy.fsio.close import held_open, let_go, names_in
from pcopy.fsio.patience import open_patiently
from pcopy.named import NamedTuple
from pcopy.text import harmless, shown

PATIENCE = 0.5
"""Seconds for which a lock is asked for again: somebody who lists locks has each for a moment."""

_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_LONGEST = 4096
"""Bytes of a lock's text that are read."""
_MOVE = "copy that directory (cp -a) to a file system that has locks, and name the copy: --resume DIR"
"""What to do about a job that is there already."""


class Holder(NamedTuple):
    """A rank that works on a job: ``began`` in seconds since 1970, 0 where unknown."""

    rank: int
    host: str
    pid: int
    began: float


class Held(Refused):
    """The job is being worked on."""

    def __init__(self, directory: bytes, holders: list[Holder]) -> None:
        first = holders[0]
        others = f", and {len(holders) - 1} more," if len(holders) > 1 else ""
        super().__init__(
            f"{shown(directory)}: rank {first.rank} on {first.host} (process {first.pid}){others} "
            f"still work{'s' if len(holders) == 1 else ''} on this job; wait for its end, or end it first"
        )


class Lock:
    """A rank's lock, until ``close`` or the end of the process. A forked child has it not, and takes its own."""

    def __init__(self, descriptor: int, rank: int) -> None:
        self.rank = rank
        self.descriptor = descriptor
        """-1 once it has been given back."""
        # A copy of the descriptor in a child would keep the lock when this process dies.
        itself = ref(self)

        def forget() -> None:
            if (lock := itself()) is not None:
                lock.close()

        os.register_at_fork(after_in_child=forget)

    def close(self) -> None:
        """Gives the lock back; may be called again."""
        if self.descriptor >= 0:
            descriptor, self.descriptor = self.descriptor, -1
            let_go(descriptor)


def hold(path: bytes, rank: int) -> Lock:
    """Takes the lock of ``rank`` on the job directory ``path``.

    Raises ``Held`` if another process has it, ``Refused`` if the directory or the file is not safely ours.
    """
    name = b"lock-%d" % rank
    with opened(path) as directory:
        until = time.monotonic() + PATIENCE
        while True:
            descriptor = _open(directory, name, path)
            try:
                if _flock(descriptor, fcntl.LOCK_EX, path) and _is_still(directory, name, descriptor):
                    break
                if time.monotonic() > until:
                    raise Held(path, [_told(descriptor, rank)])
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
            time.sleep(0.02)
    lock = Lock(descriptor, rank)
    values = {"host": os.uname().nodename, "pid": os.getpid(), "began": time.time()}
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(values).encode() + b"\n")
    except OSError as error:
        lock.close()
        raise Refused(f"{shown(path)}: cannot be written: {error.strerror}") from None
    return lock


def hold_alone(path: bytes) -> Lock:
    """Takes rank 0's lock, and makes sure that no other rank of an earlier run has one. Raises as ``hold`` does."""
    lock = hold(path, 0)
    if others := [holder for holder in holders(path) if holder.rank]:
        lock.close()
        raise Held(path, others)
    return lock


def holders(path: bytes) -> list[Holder]:
    """The ranks that work on the job in ``path``, this process's included, by rank; raises ``Refused``."""
    found = []
    with opened(path) as directory:
        for name in names_in(directory):
            match = re.fullmatch(LOCK, name)
            if match is None:
                continue
            try:
                descriptor = open_patiently(name, os.O_RDONLY | _OPEN, dir_fd=directory)
            except OSError:  # removed meanwhile, or no file of a lock
                continue
            with held_open(descriptor):
                # Shared: two that look do not see each other. Closing the descriptor gives it back.
                if not _flock(descriptor, fcntl.LOCK_SH, path):
                    found.append(_told(descriptor, int(match[1])))
    return sorted(found)


def _open(directory: int, name: bytes, path: bytes) -> int:
    try:
        descriptor = open_patiently(name, os.O_RDWR | os.O_CREAT | _OPEN, 0o600, dir_fd=directory)
    except OSError as error:
        raise Refused(f"{shown(os.path.join(path, name))}: cannot be opened: {error.strerror}") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink > 1:
        os.close(descriptor)
        raise Refused(f"{shown(os.path.join(path, name))}: not a lock file of ours; remove it")
    return descriptor


def _flock(descriptor: int, how: int, path: bytes) -> bool:
    """Was the lock free? Raises ``Refused`` where files in ``path`` cannot be locked."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        is_job = os.path.lexists(os.path.join(path, b"job"))
        advice = _MOVE if is_job else ADVICE
        raise Refused(f"{shown(path)}: files in it cannot be locked: {error.strerror}; {advice}") from None
    return True


def _is_still(directory: int, name: bytes, descriptor: int) -> bool:
    """Whether the name means the file that was locked: a job that has ended takes its files with it."""
    try:
        now = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(now, os.fstat(descriptor))


def _told(descriptor: int, rank: int) -> Holder:
    """The text of the file; a process may die before it has written any."""
    try:
        told = json.loads(os.pread(descriptor, _LONGEST, 0))
        host, pid = harmless(str(told["host"])), int(told["pid"])
        return Holder(rank, host, pid, float(told["began"]))
    except (OSError, ValueError, TypeError, KeyError):
        return Holder(rank, "an unknown host", 0, 0.0)


def locks(path: bytes) -> list[Holder]:
    """As ``holders``; none if the job has ended in this moment."""
    try:
        return holders(path)
    except Refused:
        return []
