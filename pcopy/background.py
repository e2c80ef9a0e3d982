"""Threads that run next to a rank's work, with a safe start.

A new thread needs memory before it runs any Python code. If the system refuses that, the thread ends without a message,
and ``threading.Thread.start`` waits for ever. Here the caller notices that the thread has released its argument, and
waits for a limited time only. A lock decides who owns the action. If the thread acquires it first, the thread runs the
action. If the caller acquires it first, because it has given up waiting, the action is never run.
"""

from __future__ import annotations

import errno
import os
import time
from _thread import allocate_lock, start_new_thread
from _weakref import ref
from collections.abc import Callable, Generator

_START_TIMEOUT = 5.0
"""Maximum seconds until a thread begins; on a busy machine one takes some hundredths of a second."""

_THREAD_COUNT_INTERVAL = 0.0005
"""Seconds between two checks whether other threads have ended."""

_START_CHECK_INTERVAL = 0.02
"""Seconds between two checks whether a thread has ended before it began its action."""

_START_ATTEMPTS = 3
"""Number of attempts to start a thread before the system is considered to refuse it."""


def is_single_threaded() -> bool:
    """Return True if this process has a single thread.

    Threads that are ending now (``has_ended`` is True) are waited for.
    """
    until = time.monotonic() + _START_TIMEOUT
    while len(os.listdir("/proc/self/task")) > 1:
        if time.monotonic() > until:
            return False
        time.sleep(_THREAD_COUNT_INTERVAL)
    return True


class OneShotSignal:
    """A signal that one thread waits for, and that is given once."""

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._lock.acquire()

    def wait(self, seconds: float) -> bool:
        """Return True if the signal is given within this number of ``seconds``."""
        return self._lock.acquire(timeout=seconds)

    def send(self) -> None:
        """Give the signal."""
        self._lock.release()


class BackgroundThread:
    """A thread that runs ``action`` to its end. It does not keep the process from ending."""

    def __init__(self, action: Callable[[], object]) -> None:
        """Start the thread, and return when ``action`` has begun. Raise ``OSError`` if no thread can be started.

        After an error the action is never run.
        """
        self._action = action
        self._end_lock = allocate_lock()
        self._end_lock.acquire()
        if not any(self._start() for _ in range(_START_ATTEMPTS)):
            raise OSError(errno.EAGAIN, "no thread can be started")

    def has_ended(self, patience: float | None) -> bool:
        """Return True if the action has ended within ``patience`` seconds (None: wait without a limit)."""
        has_ended = self._end_lock.acquire(timeout=-1 if patience is None else patience)
        if has_ended:
            self._end_lock.release()
        return has_ended

    def _start(self) -> bool:
        """Start a thread; return True if it runs the action."""
        claim, begun = allocate_lock(), allocate_lock()
        begun.acquire()

        def run(_: object) -> None:
            if claim.acquire(blocking=False):
                begun.release()
                try:
                    self._action()
                finally:
                    self._end_lock.release()

        # The argument is released when the thread ends, even if it runs no code for lack of memory. The function
        # itself cannot be watched: without a frame for it, CPython 3.11 never releases it.
        argument: set[object] = set()
        released: list[object] = []
        watch = ref(argument, released.append)  # a callback written in Python would need memory, too
        try:
            start_new_thread(run, (argument,))
        except (RuntimeError, MemoryError):
            return False
        del argument
        until = time.monotonic() + _START_TIMEOUT
        while not begun.acquire(timeout=_START_CHECK_INTERVAL):
            if released or time.monotonic() > until:
                del watch
                return not claim.acquire(blocking=False)
        return True


def run_in_background(action: Callable[[], object], nap: float) -> Generator[None, None, None]:
    """Run ``action`` in another thread, and yield every ``nap`` seconds until it has ended.

    If no thread can be started, the action is run here, without yields.
    """
    try:
        thread = BackgroundThread(action)
    except OSError:
        action()
        return
    while not thread.has_ended(nap):
        yield
