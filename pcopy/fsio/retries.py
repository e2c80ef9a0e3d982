"""Retries after transient errors.

Network file systems report transient errors while a server fails over. Also, if a file server holds a lease on a file,
a non-blocking open fails with EAGAIN until the lease is given back (open(2), O_NONBLOCK).

Calls are retried a few times with growing pauses. In general only calls that read are retried. After an error of write,
fsync, syncfs or close the copy of the file fails, because the operating system may have dropped the data.
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
"""Errors which mean that the call has done nothing, so that even calls that change something may be retried."""

TRANSIENT_ERRNOS = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, *NOTHING_DONE_ERRNOS)
"""Errors after which calls that only read are retried."""

TRANSIENT_OPEN_ERRNOS = (errno.ESTALE, *NOTHING_DONE_ERRNOS)
"""Errors of open(2) after which it is retried: nothing was opened. After ESTALE the name must be looked up again."""

RETRY_PAUSES = (0.02, 0.1, 0.5)
"""Pauses in seconds before the second, third and fourth attempt of a call that failed with a transient error."""

_SLEEP_STEP_SECONDS = 0.02
"""A longer pause is divided into steps of this many seconds, so that the rank can process messages in between."""

WAIT_ANNOUNCEMENT_DELAY = 2.0
"""Seconds after which pcopy reports that it waits for another program. A program that was started normally needs
less time.
"""

Result = TypeVar("Result")


class _DescriptorShortageCounter:
    """Counts the errors which mean that too many files are open (``TOO_MANY_OPEN_FILES_ERRNOS``)."""

    error_count = 0
    """Number of errors for lack of descriptors so far."""


descriptor_shortage = _DescriptorShortageCounter()
"""Counter of the errors of this process for lack of descriptors.

When the count grows, the rank processes fewer operations at the same time (``pcopy.launch.in_flight``).
"""


class _WaitAnnouncer:
    """Holds the function that shows the user that this process waits for another program (``set_wait_announcer``
    registers it); None before.
    """

    announce: Callable[[str], None] | None = None


def set_wait_announcer(announce: Callable[[str], None]) -> None:
    """Register ``announce``, the function that is called with a line for the user when this process waits long for
    another program.
    """
    _WaitAnnouncer.announce = announce


def announce_wait(text: str) -> None:
    """Show the line ``text`` to the user, about a program for which this process waits, by the function that
    ``set_wait_announcer`` has registered; do nothing if there is none.
    """
    if _WaitAnnouncer.announce is not None:
        _WaitAnnouncer.announce(text)


def call_with_retries(call: Callable[[], Result], transient: Sequence[int] = TRANSIENT_ERRNOS) -> Result:
    """Return the result of ``call``. Call it again, after a pause, if it fails with an errno in ``transient``; raise
    the ``OSError`` of the last attempt.
    """
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
    """Return the descriptor of the file ``name``, opened by ``os.open`` with ``flags``, ``mode`` and ``dir_fd``. Try
    again, after a pause, if that fails with an errno in ``transient``; raise the ``OSError`` of the last attempt.

    A call that may create a file (O_CREAT) is not retried after ESTALE, because the file may have been created.
    """
    if flags & os.O_CREAT:
        transient = NOTHING_DONE_ERRNOS
    return call_with_retries(lambda: os.open(name, flags, mode, dir_fd=dir_fd), transient)


def sleep_in_steps(pause: float) -> Iterator[None]:
    """Generator: sleep ``pause`` seconds in short steps, and yield after each, so that the caller can do other work in
    between.
    """
    while pause > 0:
        time.sleep(min(_SLEEP_STEP_SECONDS, pause))
        pause -= _SLEEP_STEP_SECONDS
        yield
