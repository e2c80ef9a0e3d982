"""That one job is never worked on by two runs of pcopy at once.

Every rank holds a lock (flock(2)) on a file of its own, ``lock-RANK``, as long as it lives. The kernel gives the lock
back when the process ends, however it ends, so a crash leaves a file, but no lock; what the file says (host, process,
beginning, last heartbeat) is for people. Across hosts the lock holds where the file system carries flock to its server
(NFS, and Lustre and GPFS unless mounted otherwise).

Only where a file system has no flock at all is a file believed by what it says: its process lives on this host, or its
heartbeat from another host is less than ``STALE`` seconds old. There a thread sees to that, since records may be rare.

The order of two runs: rank 0 takes its lock first and then looks at those of all other ranks. So of two that start at
once one gets no further, and a rank that has outlived the others of its run is seen.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import socket
import stat
import threading
import time
import weakref
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from pcopy.beside import Beside
from pcopy.checkpoint.directory import opened
from pcopy.errors import InvariantBroken, Refused
from pcopy.text import harmless, shown

STALE = 300.0
"""Seconds without a heartbeat after which another host's rank counts as gone, where there is no flock."""
BEAT_EVERY = 60.0
"""Seconds between two heartbeats there, whatever else is done."""
PATIENCE = 0.5
"""Seconds for which a lock is asked for again: somebody who lists locks has each for a moment."""

NAME = re.compile(rb"lock-(0|[1-9][0-9]{0,8})")
_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NO_FLOCK = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
_LONGEST = 4096
_WIDTH = 511  # always the same, so that no reader sees the end of what was there before


class Holder(NamedTuple):
    """A rank that works on a job: ``began`` and ``heartbeat`` in seconds since 1970, 0 where unknown."""

    rank: int
    host: str
    pid: int
    began: float
    heartbeat: float


class Held(Refused):
    """The job is being worked on by ``holders``."""

    def __init__(self, directory: bytes, holders: list[Holder]) -> None:
        first = holders[0]
        others = f", and {len(holders) - 1} more," if len(holders) > 1 else ""
        heard = f", heard of {max(0, time.time() - first.heartbeat):.0f} s ago" if first.heartbeat else ""
        super().__init__(
            f"{shown(directory)}: rank {first.rank} on {first.host} (process {first.pid}{heard}){others} "
            f"still work{'s' if len(holders) == 1 else ''} on this job; wait for its end, or end it first"
        )
        self.holders = holders


class Lock:
    """A rank's lock, until ``close`` or the end of the process. A forked child has it not, and takes its own."""

    def __init__(self, descriptor: int, rank: int) -> None:
        self.rank = rank
        self._descriptor = descriptor
        self._began = time.time()
        self._over = threading.Event()
        # A copy of the descriptor in a child would keep the lock when this process dies.
        itself = weakref.ref(self)

        def forget() -> None:
            if (lock := itself()) is not None:
                lock._forget()

        os.register_at_fork(after_in_child=forget)

    @property
    def held(self) -> bool:
        return self._descriptor >= 0

    def beat(self) -> None:
        """Notes that this rank lives. Raises ``OSError``, which says nothing of the lock itself."""
        if not self.held:
            raise InvariantBroken("a heartbeat without the lock")
        self._note(self._descriptor)

    def _note(self, descriptor: int) -> None:
        values = {"host": socket.gethostname(), "pid": os.getpid(), "began": self._began, "heartbeat": time.time()}
        text = json.dumps(values).encode()
        os.pwrite(descriptor, text.ljust(_WIDTH) + b"\n", 0)

    def keep_beating(self) -> None:
        """From now on a thread notes each ``BEAT_EVERY`` seconds that this rank lives, as long as the lock is held."""
        own = os.dup(self._descriptor)  # the number of one that is closed meanwhile may mean another file
        arguments = weakref.ref(self), self._over, own
        try:
            Beside(partial(_beat_on, *arguments))
        except OSError:
            os.close(own)
            raise

    def close(self) -> None:
        """Gives the lock back; may be called again."""
        if self.held:
            self._over.set()
            _blank(self._descriptor)
            self._forget()

    def _forget(self) -> None:
        if self.held:
            descriptor, self._descriptor = self._descriptor, -1
            with suppress(OSError):
                os.close(descriptor)


def _blank(descriptor: int) -> None:
    """A blank file only tells where there is no flock; it keeps its room on a full disk."""
    with suppress(OSError):
        os.pwrite(descriptor, b" " * _WIDTH, 0)


def _beat_on(itself: weakref.ref[Lock], over: threading.Event, descriptor: int) -> None:
    try:
        while not over.wait(BEAT_EVERY) and (lock := itself()) is not None:
            with suppress(OSError):
                lock._note(descriptor)
            if over.is_set():  # it was given back at the same time
                _blank(descriptor)
            del lock
    finally:
        os.close(descriptor)


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
                taken = _flock(descriptor, fcntl.LOCK_EX)
                is_free = _is_stale(_told(descriptor, rank)) if taken is None else taken
                if is_free and _is_still(directory, name, descriptor):
                    break
                if time.monotonic() > until:
                    raise Held(path, [_told(descriptor, rank)])
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
            time.sleep(0.02)
    lock = Lock(descriptor, rank)
    try:
        lock.beat()
        if taken is None:
            lock.keep_beating()
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
        for name in os.listdir(directory):
            match = NAME.fullmatch(os.fsencode(name))
            if match is None:
                continue
            try:
                descriptor = os.open(name, os.O_RDONLY | _OPEN, dir_fd=directory)
            except OSError:  # removed meanwhile, or no file of a lock
                continue
            try:
                if not _is_free(descriptor, int(match[1])):
                    found.append(_told(descriptor, int(match[1])))
            finally:
                with suppress(OSError):
                    os.close(descriptor)
    return sorted(found)


def _open(directory: int, name: bytes, path: bytes) -> int:
    try:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | _OPEN, 0o600, dir_fd=directory)
    except OSError as error:
        raise Refused(f"{shown(os.path.join(path, name))}: cannot be opened: {error.strerror}") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink > 1:
        os.close(descriptor)
        raise Refused(f"{shown(os.path.join(path, name))}: not a lock file of ours; remove it")
    return descriptor


def _is_free(descriptor: int, rank: int) -> bool:
    # Shared: two that look do not see each other. Closing the descriptor gives it back.
    taken = _flock(descriptor, fcntl.LOCK_SH)
    return _is_stale(_told(descriptor, rank)) if taken is None else taken


def _flock(descriptor: int, how: int) -> bool | None:
    """Whether the lock was free; None where there are no locks."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        if error.errno in _NO_FLOCK:
            return None
        raise Refused(f"a job directory where files cannot be locked: {error.strerror}") from None
    return True


def _is_still(directory: int, name: bytes, descriptor: int) -> bool:
    """Whether the name means the file that was locked: a job that has ended takes its files with it."""
    try:
        now = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(now, os.fstat(descriptor))


def _told(descriptor: int, rank: int) -> Holder:
    """What the file says; anybody may die before it says anything."""
    try:
        told = json.loads(os.pread(descriptor, _LONGEST, 0))
        host, pid = harmless(str(told["host"])), int(told["pid"])
        return Holder(rank, host, pid, float(told["began"]), float(told["heartbeat"]))
    except (OSError, ValueError, TypeError, KeyError):
        return Holder(rank, "an unknown host", 0, 0.0, 0.0)


def _is_stale(holder: Holder) -> bool:
    if not holder.heartbeat:
        return True
    if holder.host != socket.gethostname():
        return time.time() - holder.heartbeat > STALE
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False
