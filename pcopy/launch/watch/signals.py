"""Signals that stop a job in order: the first one asks, a second SIGINT leaves at once.

Rule: a signal raises nothing where it strikes, which may be anywhere, even in what cleans up. It leaves its reason, and
the rank asks for that: between slices, and before the first task where ``StopSignals`` is called. To make a stored job
ready takes long, and may be abandoned at any point, as by a crash: another thread does it, while this one waits for
whatever comes first, the end of that or a signal.
"""

from __future__ import annotations

import os
import signal
import time
from _queue import SimpleQueue
from collections.abc import Callable
from typing import TypeVar

from pcopy.beside import Beside
from pcopy.engine.messages import Halt
from pcopy.errors import STOPPED, PcopyError

_Value = TypeVar("_Value")

ORDERLY = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)

SAME_PRESS = 0.05
"""Seconds within which SIGINTs are one: timeout(1) sends each signal to the process, and again to its group."""


class StoppedBefore(PcopyError):
    """A signal has come before the first task of a job that is stored, or was about to be."""

    status = STOPPED


class Presses:
    """Tells a second SIGINT from an echo of the first."""

    def __init__(self) -> None:
        self._first: float | None = None

    @property
    def any(self) -> bool:
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
        self.reason: Halt | None = None
        self._presses = Presses()
        self._events: SimpleQueue[None] = SimpleQueue()  # a handler may put something into it at any moment

    def install(self) -> None:
        """Takes over the orderly signals, but for a SIGHUP that is ignored (nohup)."""
        for number in ORDERLY:
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)

    def heed(self) -> None:
        """Raises ``StoppedBefore`` if there is a reason to stop."""
        if self.reason is not None:
            raise StoppedBefore(f"{told(self.reason)} before anything was copied in this run")

    def unless_stopped(self, action: Callable[[], _Value]) -> _Value:
        """What ``action`` returns, or raises.

        Raises ``StoppedBefore`` as soon as there is a reason; nobody waits for ``action`` then, and it goes on until
        this process ends.
        """
        values: list[_Value] = []
        errors: list[BaseException] = []

        def run() -> None:
            signal.pthread_sigmask(signal.SIG_BLOCK, ORDERLY)  # they are for the thread that waits
            try:
                values.append(action())
            except BaseException as error:
                errors.append(error)
            self._events.put(None)

        self.heed()
        try:
            thread = Beside(run)
        except OSError:  # no thread is to be had: then there is no way but to wait
            values.append(action())
        else:
            self._events.get()  # from the thread, or from a signal
            self.heed()
            thread.is_over(None)
        self.heed()
        if errors:
            raise errors[0]
        return values[0]

    def ignore(self) -> None:
        """The job is over, and its status told: there is nothing left to stop, and nothing to be told otherwise."""
        for number in ORDERLY:
            signal.signal(number, signal.SIG_IGN)

    def _handle(self, number: int, _: object) -> None:
        if number == signal.SIGINT and self._presses.is_second(time.monotonic()):
            os._exit(128 + number)
        if self.reason is None:
            self.reason = Halt(signal.Signals(number).name, number)
            self._events.put(None)


def status_of(reason: Halt) -> int | None:
    """128 + signal if a signal is the reason."""
    return 128 + reason.code if reason.code > 0 else None


def told(reason: Halt) -> str:
    return f"stopped by {reason.text}" if reason.code > 0 else f"stopped early: {reason.text}"
