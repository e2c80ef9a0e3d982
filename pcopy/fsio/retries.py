"""Retries after transient errors.

Network file systems report such errors while a server fails over. Also, a file server's lease on a file makes a
non-blocking open fail with EAGAIN until the lease is given back (open(2), O_NONBLOCK).

Calls are retried a few times with growing pauses. Mostly only calls that read are retried. An error of write, fsync,
syncfs or close is final for that copy, because the kernel may have dropped the data.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

TOO_MANY_OPEN_FILES_ERRNOS = (errno.EMFILE, errno.ENFILE)
"""Errors that mean that this process, or the host, has too many open files."""

NOTHING_DONE_ERRNOS = (errno.EINTR, errno.EAGAIN, *TOO_MANY_OPEN_FILES_ERRNOS)
"""Errors after which nothing was done, so that calls that change something may be retried, too."""

TRANSIENT_ERRNOS = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, *NOTHING_DONE_ERRNOS)
"""Errors after which calls that only read are retried."""

TRANSIENT_OPEN_ERRNOS = (errno.ESTALE, *NOTHING_DONE_ERRNOS)
"""Errors of open(2) after which it is retried: nothing was opened. After ESTALE the name must be looked up again."""

RETRY_PAUSES = (0.02, 0.1, 0.5)
"""Seconds before the second, third and fourth attempt."""

_SLEEP_STEP = 0.02
"""Seconds of a longer pause after which a task lets its rank answer messages."""

ANNOUNCED_WAIT = 2.0
"""Seconds after which a wait for another program is announced. A program that was started at all begins sooner."""

Result = TypeVar("Result")


class _DescriptorShortage:
    """Counts the errors of ``TOO_MANY_OPEN_FILES_ERRNOS``."""

    error_count = 0
    """Number of such errors so far."""


descriptor_shortage = _DescriptorShortage()
"""The counter of this process.

After such an error its rank keeps fewer operations under way (``pcopy.launch.in_flight``).
"""


class _Announcer:
    """Holds the function of ``set_wait_announcer``."""

    announce: Callable[[str], None] | None = None


def set_wait_announcer(announce: Callable[[str], None]) -> None:
    """Register the function that gets a line for the user when this process waits long for another program."""
    _Announcer.announce = announce


def announce_wait(text: str) -> None:
    """Pass ``text`` to the function that ``set_wait_announcer`` registered, if there is one."""
    if _Announcer.announce is not None:
        _Announcer.announce(text)


def with_retries(call: Callable[[], Result], transient: Sequence[int] = TRANSIENT_ERRNOS) -> Result:
    """Return the result of ``call``, which is retried after errors in ``transient``. Raise the last ``OSError``."""
    for pause in RETRY_PAUSES:
        try:
            return call()
        except OSError as error:
            if error.errno not in transient:
                raise
            descriptor_shortage.error_count += error.errno in TOO_MANY_OPEN_FILES_ERRNOS
            time.sleep(pause)
    return call()


def open_with_retries(
    name: str | bytes,
    flags: int,
    mode: int = 0o777,
    *,
    dir_fd: int | None = None,
    transient: Sequence[int] = TRANSIENT_OPEN_ERRNOS,
) -> int:
    """Call ``os.open``, and retry it after errors in ``transient``. Raise the last ``OSError``.

    A call that may create a file (O_CREAT) is not retried after ESTALE, because the file may have been created.
    """
    if flags & os.O_CREAT:
        transient = NOTHING_DONE_ERRNOS
    return with_retries(lambda: os.open(name, flags, mode, dir_fd=dir_fd), transient)


def sleep_in_steps(pause: float) -> Iterator[None]:
    """Sleep ``pause`` seconds in short steps, and yield after each, so that the caller can do other work in between."""
    while pause > 0:
        time.sleep(min(_SLEEP_STEP, pause))
        pause -= _SLEEP_STEP
        yield
