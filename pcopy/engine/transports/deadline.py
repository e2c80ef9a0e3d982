"""A time limit for C code that never returns and keeps the interpreter's lock, such as MPI_Init without its launcher.

While the lock is held no thread and no handler of Python's own runs. A handler that C calls does: it runs on the main
thread, which holds the lock already. It does nothing but write one text and leave.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from pcopy import libc


@contextmanager
def deadline(seconds: float, status: int, text: bytes) -> Iterator[None]:
    """Ends the process with ``status``, after ``text`` on standard error, unless the body ends within ``seconds``.

    Takes SIGALRM meanwhile. For the main thread.
    """

    def leave(_: int) -> None:
        try:
            os.write(2, text)
        finally:
            os._exit(status)

    with libc.handled_in_c(signal.SIGALRM, leave):
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
