"""Errors that may pass: network file systems report them while a server fails over, and a file server's lease on a file
makes opening it without waiting fail with EAGAIN until the lease is given back (open(2), O_NONBLOCK).

Only what reads is tried again, a few times with growing pauses. An error of write, fsync, syncfs or close is final for
that copy, because the kernel may have dropped the data.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

PASSING = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN)

PAUSES = (0.02, 0.1, 0.5)
"""Seconds before the second, third and fourth try."""

_NAP = 0.02

Result = TypeVar("Result")


def patiently(call: Callable[[], Result]) -> Result:
    """The result of ``call``, tried again after errors that may pass; raises the last ``OSError``."""
    for pause in PAUSES:
        try:
            return call()
        except OSError as error:
            if error.errno not in PASSING:
                raise
            time.sleep(pause)
    return call()


def naps(pause: float) -> Iterator[None]:
    """Sleeps ``pause`` seconds in short naps, with an occasion to do something else after each."""
    while pause > 0:
        time.sleep(min(_NAP, pause))
        pause -= _NAP
        yield
