"""Background threads whose start and end cannot hang the caller if memory is short.

A new thread needs memory before it runs any Python code. If the system refuses that memory, the thread ends without a
message, and ``threading.Thread.start`` would wait for ever. Here the thread that starts another one (the caller)
notices this, because a thread that ends releases its argument; and the caller waits for a limited time only. A lock
decides who owns the action. If the new thread acquires the lock first, it runs the action. If the caller acquires the
lock first, because it has given up waiting, the action is never run.

A thread that has begun can run out of memory at any operation, even at the first call of its action. So its end is
always noticed: ``error`` has the exception with which the action has ended, and a caller that waits for something else
than the end (a result in a queue, for instance) must look at it from time to time.
"""

from __future__ import annotations

import errno
import os
import time
from _thread import allocate_lock, start_new_thread
from _weakref import ref
from collections.abc import Callable, Generator

_START_TIMEOUT = 5.0
"""Seconds within which a new thread must begin to run its action; then the start counts as failed.

On a busy machine a start takes some hundredths of a second.
"""

_THREAD_COUNT_INTERVAL = 0.0005
"""Seconds between two checks in ``is_single_threaded`` whether other threads have ended."""

_START_CHECK_INTERVAL = 0.02
"""Seconds between two checks whether a started thread has ended without running its action."""

_MAX_START_ATTEMPTS = 3
"""Number of attempts to start a thread; after that ``BackgroundThread`` raises ``OSError``."""


def is_single_threaded() -> bool:
    """Return True if this process has a single thread, so that it can fork safely.

    A thread whose action has ended still exists for a moment: wait up to ``_START_TIMEOUT`` for other threads to end.
    """
    until = time.monotonic() + _START_TIMEOUT
    while len(os.listdir("/proc/self/task")) > 1:
        if time.monotonic() > until:
            return False
        time.sleep(_THREAD_COUNT_INTERVAL)
    return True


class OneShotSignal:
    """A signal between two threads of a process, which one thread sends once and another one waits for."""

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._lock.acquire()

    def wait(self, seconds: float) -> bool:
        """Wait for the signal; return True if it is sent within this number of ``seconds``."""
        return self._lock.acquire(timeout=seconds)

    def send(self) -> None:
        """Send the signal; may be called only once."""
        self._lock.release()


class DetachedThread:
    """A thread whose start is not awaited; ``has_ended`` is True as soon as it has ended, for whatever reason."""

    def __init__(self, action: Callable[[], object]) -> None:
        """Start a thread that calls ``action``. Raise ``OSError`` if the system refuses a thread.

        If memory is short, the thread may end before it calls ``action``.
        """
        # Watch the argument: a thread that ends releases it, even if the thread could run no code for lack of memory.
        # The function ``run`` cannot be watched, because CPython 3.11 never releases it if it was not called.
        argument: set[object] = set()
        self._released: list[object] = []
        self._watch = ref(argument, self._released.append)  # a C function: one in Python would need memory, too

        def run(_: object) -> None:
            action()

        try:
            start_new_thread(run, (argument,))
        except (RuntimeError, MemoryError) as error:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error

    @property
    def has_ended(self) -> bool:
        """True if the thread has ended."""
        return bool(self._released)


class BackgroundThread:
    """A thread that runs ``action`` once. If the process ends before, the thread ends with it.

    ``error`` is the exception with which the action has ended; None while it runs, and if it has returned.
    """

    def __init__(self, action: Callable[[], object]) -> None:
        """Start the thread, and return when ``action`` has begun. Raise ``OSError`` if no thread can be started.

        After an error the action is never run.
        """
        self.error: BaseException | None = None
        self._action = action
        self._end_lock = allocate_lock()
        self._end_lock.acquire()
        if not any(self._try_start_thread() for _ in range(_MAX_START_ATTEMPTS)):
            raise OSError(errno.EAGAIN, "no thread can be started")

    def join(self, patience: float | None) -> bool:
        """Wait for the end of the action; return True if it ends within ``patience`` seconds (None: no limit)."""
        has_ended = self._end_lock.acquire(timeout=-1 if patience is None else patience)
        if has_ended:
            self._end_lock.release()
        return has_ended

    def raise_error(self) -> None:
        """Raise the exception with which the action has ended, if there is one."""
        if self.error is not None:
            raise self.error

    def _try_start_thread(self) -> bool:
        """Try to start a thread that runs the action. True: it runs the action; False: no thread will ever run it."""
        claim, begun = allocate_lock(), allocate_lock()
        begun.acquire()

        def run() -> None:
            if claim.acquire(blocking=False):
                begun.release()
                try:
                    self._action()
                except BaseException as error:
                    self.error = error
                finally:
                    self._end_lock.release()

        try:
            thread = DetachedThread(run)
        except (OSError, MemoryError):  # If the thread has started nevertheless, it is ignored, or awaited by ``join``.
            return not claim.acquire(blocking=False)
        until = time.monotonic() + _START_TIMEOUT
        while not begun.acquire(timeout=_START_CHECK_INTERVAL):
            if thread.has_ended or time.monotonic() > until:
                return not claim.acquire(blocking=False)
        return True


def run_in_background(action: Callable[[], object], nap: float) -> Generator[None, None, None]:
    """Generator: run ``action`` in another thread, and yield every ``nap`` seconds until it has ended. If it has ended
    with an exception, raise that.

    So the caller can do other work meanwhile. If no thread can be started, run the action in this thread, without
    yielding.
    """
    try:
        thread = BackgroundThread(action)
    except OSError:
        action()
        return
    while not thread.join(nap):
        yield
    thread.raise_error()
