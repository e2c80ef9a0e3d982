"""Threads beside a rank's work.

A new thread needs memory before it runs any code of ours. If the system refuses that, the thread ends without a word,
and ``threading.Thread.start`` waits for ever. Here the caller notices that the thread has freed its argument, and waits
for a short time only. A lock decides who owns the action: the thread, which then runs it; or the caller that has given
up waiting, and then nobody runs it.
"""

from __future__ import annotations

import errno
import os
import time
from _thread import allocate_lock, start_new_thread
from _weakref import ref
from collections.abc import Callable, Generator

_PATIENCE = 5.0
"""Seconds that a thread has to begin; on a busy machine one takes some hundredths of that."""

_BRIEF = 0.0005
"""Seconds between two looks whether threads have ended."""

_LOOK = 0.02
"""Seconds between two looks whether it has ended before."""

_TRIES = 3
"""How often a thread is asked to begin before the system is said to refuse it."""


def is_alone() -> bool:
    """Has this process one thread only? Those that end just now, as one that ``is_over``, are waited for."""
    until = time.monotonic() + _PATIENCE
    while len(os.listdir("/proc/self/task")) > 1:
        if time.monotonic() > until:
            return False
        time.sleep(_BRIEF)
    return True


class Bell:
    """It rings once, for one thread that waits for it."""

    def __init__(self) -> None:
        self._silence = allocate_lock()
        self._silence.acquire()

    def wait(self, seconds: float) -> bool:
        """Has it rung by then?"""
        return self._silence.acquire(timeout=seconds)

    def ring(self) -> None:
        self._silence.release()


class Beside:
    """A thread that runs ``action`` to its end, and keeps no process from ending."""

    def __init__(self, action: Callable[[], object]) -> None:
        """Returns when ``action`` has begun. Raises ``OSError`` where no thread is to be had; it never runs then."""
        self._action = action
        self._over = allocate_lock()
        self._over.acquire()
        if not any(self._has_begun() for _ in range(_TRIES)):
            raise OSError(errno.EAGAIN, "no thread can be started")

    def is_over(self, patience: float | None) -> bool:
        """Has it ended within ``patience`` seconds (None: however long that takes)?"""
        over = self._over.acquire(timeout=-1 if patience is None else patience)
        if over:
            self._over.release()
        return over

    def _has_begun(self) -> bool:
        claim, begun = allocate_lock(), allocate_lock()
        begun.acquire()

        def run(_: object) -> None:
            if claim.acquire(blocking=False):
                begun.release()
                try:
                    self._action()
                finally:
                    self._over.release()

        argument: set[object] = set()  # for a function that gets no frame is never freed (CPython 3.11)
        gone: list[object] = []
        watch = ref(argument, gone.append)  # nothing written in Python, which needs memory as well
        try:
            start_new_thread(run, (argument,))
        except (RuntimeError, MemoryError):
            return False
        del argument
        until = time.monotonic() + _PATIENCE
        while not begun.acquire(timeout=_LOOK):
            if gone or time.monotonic() > until:
                del watch
                return not claim.acquire(blocking=False)
        return True


def done_beside(action: Callable[[], object], nap: float) -> Generator[None, None, None]:
    """Yields until ``action``, which a thread does, is over, every ``nap`` seconds; if none is to be had, it is waited
    for."""
    try:
        thread = Beside(action)
    except OSError:
        action()
        return
    while not thread.is_over(nap):
        yield
