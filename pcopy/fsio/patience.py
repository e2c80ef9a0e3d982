"""Errors that may pass: network file systems report them while a server fails over, and a file server's lease on a file
makes opening it without waiting fail with EAGAIN until the lease is given back (open(2), O_NONBLOCK).

Mostly only what reads is tried again, a few times with growing pauses. An error of write, fsync, syncfs or close is
final for that copy, because the kernel may have dropped the data.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
"""This process, or the host, may open no more files until others are closed."""

INTERRUPTED = (errno.EINTR, errno.EAGAIN, *NO_DESCRIPTORS)
"""Nothing was done: what changes something may be tried again, too."""

PASSING = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, *INTERRUPTED)

STALE = (errno.ESTALE, *INTERRUPTED)
"""Nothing was opened: a server has forgotten what the name led to, and expects that it is looked up once more."""

PAUSES = (0.02, 0.1, 0.5)
"""Seconds before the second, third and fourth try."""

_NAP = 0.02
"""Seconds of a longer pause after which a task lets its rank answer messages."""

LONG_WAIT = 2.0
"""Seconds after which a wait for another program is announced: it starts in less, if it was started at all."""

Result = TypeVar("Result")


class _Shortage:
    met = 0
    """How often an error of ``NO_DESCRIPTORS`` was met."""


shortage = _Shortage()
"""Of this process. Its rank keeps fewer operations under way once it has met one (``pcopy.launch.in_flight``)."""


class _Announcer:
    announce: Callable[[str], None] | None = None


def announce_waits(announce: Callable[[str], None]) -> None:
    """Have ``announce`` called with a line for the user when this process waits for another program for long."""
    _Announcer.announce = announce


def announce_wait(text: str) -> None:
    """Pass ``text`` to the function of ``announce_waits``, if there is one."""
    if _Announcer.announce is not None:
        _Announcer.announce(text)


def patiently(call: Callable[[], Result], passing: Sequence[int] = PASSING) -> Result:
    """The result of ``call``, tried again after errors that are ``passing``; raises the last ``OSError``."""
    for pause in PAUSES:
        try:
            return call()
        except OSError as error:
            if error.errno not in passing:
                raise
            shortage.met += error.errno in NO_DESCRIPTORS
            time.sleep(pause)
    return call()


def open_patiently(
    name: str | bytes, flags: int, mode: int = 0o777, *, dir_fd: int | None = None, passing: Sequence[int] = STALE
) -> int:
    """As ``os.open``, tried again after errors that are ``passing``, each time with the same arguments.

    What may make a file is not tried again after ESTALE: the file may have been made.
    """
    if flags & os.O_CREAT:
        passing = INTERRUPTED
    return patiently(lambda: os.open(name, flags, mode, dir_fd=dir_fd), passing)


def naps(pause: float) -> Iterator[None]:
    """Sleeps ``pause`` seconds in short naps, with an occasion to do something else after each."""
    while pause > 0:
        time.sleep(min(_NAP, pause))
        pause -= _NAP
        yield
