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

_PATIENCE = 5.0
"""Maximum seconds until a thread begins; on a busy machine one takes some hundredths of a second."""

_BRIEF = 0.0005
"""Seconds between two checks whether other threads have ended."""

_LOOK = 0.02
"""Seconds between two checks whether a thread has ended before it began its action."""

_TRIES = 3
"""Number of attempts to start a thread before the system is considered to refuse it."""


def is_alone() -> bool:
    """Return True if this process has a single thread.

    Threads that are ending now (``has_ended`` is True) are waited for.
    """
    until = time.monotonic() + _PATIENCE
    while len(os.listdir("/proc/self/task")) > 1:
        if time.monotonic() > until:
            return False
        time.sleep(_BRIEF)
    return True


class Bell:
    """A signal that one thread waits for, and that is given once."""

    def __init__(self) -> None:
        self._silence = allocate_lock()
        self._silence.acquire()

    def wait(self, seconds: float) -> bool:
        """Return True if the signal is given within this number of ``seconds``."""
        return self._silence.acquire(timeout=seconds)

    def ring(self) -> None:
        """Give the signal."""
        self._silence.release()


class Beside:
    """A thread that runs ``action`` to its end. It does not keep the process from ending."""

    def __init__(self, action: Callable[[], object]) -> None:
        """Start the thread, and return when ``action`` has begun. Raise ``OSError`` if no thread can be started.

        After an error the action is never run.
        """
        self._action = action
        self._over = allocate_lock()
        self._over.acquire()
        if not any(self._has_begun() for _ in range(_TRIES)):
            raise OSError(errno.EAGAIN, "no thread can be started")

    def is_over(self, patience: float | None) -> bool:
        """Return True if the action has ended within ``patience`` seconds (None: wait without a limit)."""
        has_ended = self._over.acquire(timeout=-1 if patience is None else patience)
        if has_ended:
            self._over.release()
        return has_ended

    def _has_begun(self) -> bool:
        """Start a thread; return True if it runs the action."""
        claim, begun = allocate_lock(), allocate_lock()
        begun.acquire()

        def run(_: object) -> None:
            if claim.acquire(blocking=False):
                begun.release()
                try:
                    self._action()
                finally:
                    self._over.release()

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
        until = time.monotonic() + _PATIENCE
        while not begun.acquire(timeout=_LOOK):
            if released or time.monotonic() > until:
                del watch
                return not claim.acquire(blocking=False)
        return True


def done_beside(action: Callable[[], object], nap: float) -> Generator[None, None, None]:
    """Run ``action`` in another thread, and yield every ``nap`` seconds until it has ended.

    If no thread can be started, the action is run here, without yields.
    """
    try:
        thread = Beside(action)
    except OSError:
        action()
        return
    while not thread.is_over(nap):
        yield
