"""Signals that stop a job in order: the first one asks, a second SIGINT leaves at once.

Before the first task there is nobody to ask. What is done to a stored job then may be abandoned at any point, as by a
crash: so a signal raises ``StoppedBefore`` there.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pcopy.errors import NOT_SYNCED, STOPPED

_PREFIX = "signal "

ORDERLY = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)

SAME_PRESS = 0.05
"""Seconds within which SIGINTs are one: timeout(1) sends each signal to the process, and again to its group."""


class StoppedBefore(BaseException):
    """A signal has come before the first task of a job that is stored, or was about to be.

    Like ``KeyboardInterrupt`` it may come anywhere, and is no error that the code there knows how to handle.
    """

    status = STOPPED


class Presses:
    """Tells a second SIGINT from an echo of the first."""

    def __init__(self) -> None:
        self._first: float | None = None

    @property
    def any(self) -> bool:
        """Has there been one?"""
        return self._first is not None

    def is_second(self, now: float) -> bool:
        """A SIGINT has come at ``now`` (seconds): is it a second one?"""
        if self._first is None:
            self._first = now
            return False
        return now - self._first > SAME_PRESS


class StopSignals:
    """Remembers the first signal as the reason to stop."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._raises = False
        self._presses = Presses()

    def install(self) -> None:
        """Takes over the orderly signals, but for a SIGHUP that is ignored (nohup)."""
        for number in ORDERLY:
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Takes the signals over; in here, and for what has come before, they raise ``StoppedBefore``."""
        self.install()
        self._raises = True
        try:
            self._raise()
            yield
        finally:
            self._raises = False
        self._raise()  # where it was caught by something else

    def _raise(self) -> None:
        if self.reason is not None:
            raise StoppedBefore(f"{told_briefly(self.reason)} before anything was copied in this run")

    def ignore(self) -> None:
        """The job is over, and its status told: there is nothing left to stop, and nothing to be told otherwise."""
        for number in ORDERLY:
            signal.signal(number, signal.SIG_IGN)

    def _handle(self, number: int, _: object) -> None:
        if number == signal.SIGINT and self._presses.is_second(time.monotonic()):
            os._exit(128 + number)
        if self.reason is None:
            self.reason = f"{_PREFIX}{number}"
            if self._raises:
                self._raise()


def status_of(reason: str) -> int | None:
    """128 + signal if a signal is the reason."""
    return 128 + int(reason.removeprefix(_PREFIX)) if reason.startswith(_PREFIX) else None


def stopped_by(reason: str) -> int | None:
    """75 if a signal is the reason: there is a checkpoint to go on with."""
    return STOPPED if reason.startswith(_PREFIX) else None


def told(reason: str) -> str:
    """The reason in words, and what that means for the copy: nobody knows that after a sync that failed."""
    if reason.startswith(NOT_SYNCED):
        return told_briefly(reason)
    return f"{told_briefly(reason)}; every file that has been copied is whole"


def told_briefly(reason: str) -> str:
    """The reason in words."""
    if reason.startswith(_PREFIX):
        return f"stopped by {signal.Signals(int(reason.removeprefix(_PREFIX))).name}"
    return f"stopped early: {reason}"
