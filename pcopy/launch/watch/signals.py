"""Signals that stop a job in order: the first one asks the job to stop, a second SIGINT exits immediately.

Rule: a signal handler raises no exception, since it may interrupt any code, even cleanup. It stores the reason, and the
rank checks every few milliseconds whether there is one; before the first task it does so when it calls
``StopSignalHandler``. The preparation of a recorded job may take long, and may be abandoned at any point, as in a
crash. So another thread prepares the job, while the main thread waits for that thread or for a signal, whichever comes
first.
"""

from __future__ import annotations

import os
import signal
import time
from _queue import Empty, SimpleQueue
from _thread import allocate_lock
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn, TypeVar

from pcopy.background import BackgroundThread
from pcopy.engine.messages import HaltMessage
from pcopy.errors import EXIT_STOPPED, PcopyError

_Value = TypeVar("_Value")

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Signals that stop a job in order: no new work begins, and the job ends as soon as its running operations have
ended.
"""

REPEATED_SIGINT_INTERVAL = 0.05
"""Two SIGINTs within this number of seconds count as one: timeout(1) sends each signal to the process, and again to its
group.
"""

_THREAD_CHECK_INTERVAL = 0.5
"""Seconds between two checks whether a thread has ended without an event, for lack of memory."""

LAST_MESSAGE_TIMEOUT = 0.5
"""After a second SIGINT: maximum seconds in which the last message must be printed. The terminal may be stopped
(Ctrl-S), or the file system of the job directory may hang; then the process ends without the message.
"""


class StoppedBeforeStart(PcopyError):
    """Raised if a signal asks a job to stop before its first task has begun."""

    status = EXIT_STOPPED


class SigintRepetitionFilter:
    """Distinguishes a second SIGINT, which must end the process at once, from a repetition of the first one
    within ``REPEATED_SIGINT_INTERVAL``.
    """

    def __init__(self) -> None:
        self._first: float | None = None

    @property
    def has_received_sigint(self) -> bool:
        """True if a SIGINT has arrived."""
        return self._first is not None

    def register_sigint(self, now: float) -> bool:
        """Register a SIGINT at ``now`` (seconds); return True if it is not the first one and no repetition of that."""
        if self._first is None:
            self._first = now
            return False
        return now - self._first > REPEATED_SIGINT_INTERVAL


class StopSignalHandler:
    """Signals by which the user stops a job (SIGINT, SIGTERM, SIGHUP, SIGUSR1): installs handlers, and stores the first
    signal as the reason to stop.
    """

    def __init__(self) -> None:
        self.reason: HaltMessage | None = None
        """The reason to stop; None until a signal arrives."""
        self.last_message: Callable[[], str] | None = None
        """Returns what to print on standard error when a second SIGINT ends the process; None: nothing is printed."""
        self._presses = SigintRepetitionFilter()
        self._is_ending = allocate_lock()
        self._events: SimpleQueue[None] = (
            SimpleQueue()
        )  # reentrant: a signal handler may put an item into it at any moment

    def install_handlers(self) -> None:
        """Install handlers for the signals that stop a job (``STOP_SIGNALS``), except for SIGHUP if the process ignores
        it (nohup).
        """
        for number in STOP_SIGNALS:
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle_stop_signal)

    def raise_if_stopped(self) -> None:
        """Raise ``StoppedBeforeStart`` if a signal has arrived."""
        if self.reason is not None:
            raise StoppedBeforeStart(f"{stop_message(self.reason)} before anything was copied in this run")

    def run_unless_stopped(self, action: Callable[[], _Value]) -> _Value:
        """Run ``action`` in a thread and wait for it; return its result, or raise its exception.

        Raise ``StoppedBeforeStart`` as soon as a signal arrives, without waiting for ``action``, which may continue
        until this process ends.
        """
        values: list[_Value] = []
        events = self._events = SimpleQueue()  # without events of earlier calls

        def run() -> None:
            signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # The main thread handles them.
            try:
                values.append(action())
            finally:
                events.put(None)

        self.raise_if_stopped()
        try:
            thread = BackgroundThread(run)
        except OSError:  # No thread can be started: run the action in this one.
            values.append(action())
        else:
            while not thread.join(0) and not self._is_event_in(_THREAD_CHECK_INTERVAL):
                pass
            self.raise_if_stopped()
            thread.join(None)
            self.raise_if_stopped()
            thread.raise_error()
        self.raise_if_stopped()
        return values[0]

    def _is_event_in(self, seconds: float) -> bool:
        """Wait up to this number of ``seconds`` for the end of a thread or a signal; return True if there is one."""
        try:
            self._events.get(timeout=seconds)
        except Empty:
            return False
        return True

    def ignore_stop_signals(self) -> None:
        """Ignore ``STOP_SIGNALS`` from now on: the job is over and its result was printed, so the exit status must not
        change any more.
        """
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def end_process(self, number: int) -> NoReturn:
        """End the process at once because of the signal ``number``, after printing ``last_message``.

        Another thread prints it, because the interrupted code of this one may be printing, too. Two threads may call
        this method at the same time: the first one ends the process.
        """
        if not self._is_ending.acquire(blocking=False):
            time.sleep(2 * LAST_MESSAGE_TIMEOUT)
        message, self.last_message = self.last_message, None

        def print_message() -> None:
            with suppress(Exception):  # The process must end in any case.
                os.write(2, message().encode(errors="backslashreplace") if message else b"")

        try:
            with suppress(OSError):  # No thread can be started: print nothing.
                BackgroundThread(print_message).join(LAST_MESSAGE_TIMEOUT)
        finally:
            os._exit(128 + number)

    def _handle_stop_signal(self, number: int, _: object) -> None:
        if number == signal.SIGINT and self._presses.register_sigint(time.monotonic()):
            self.end_process(number)
        if self.reason is None:
            self.reason = HaltMessage(signal.Signals(number).name, number)
            self._events.put(None)


def exit_status_after_stop(reason: HaltMessage) -> int | None:
    """Return the exit status of a job that was stopped for ``reason``: 128 + signal number if the reason is a signal;
    None for any other reason, because the program then chooses the status.
    """
    return 128 + reason.code if reason.code > 0 else None


def stop_message(reason: HaltMessage) -> str:
    """Return why the job was stopped, as part of a message: "stopped by SIGTERM", or "stopped early: " and the
    reason.
    """
    return f"stopped by {reason.text}" if reason.code > 0 else f"stopped early: {reason.text}"
