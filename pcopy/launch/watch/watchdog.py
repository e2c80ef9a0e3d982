"""A thread of each rank that reports if the rank makes no progress, and lets a second SIGINT end a rank that hangs.

The main thread only leaves signs of life: it increments a counter every few milliseconds, and stores the current task,
at almost no cost. Threads of the backend publish their current operation. The watchdog thread sleeps, and compares
every few seconds. If the counter has not changed for long, or one operation has been in progress for long, the thread
prints since when, in which task, and in which call. A rank that is stopped as a whole (SIGSTOP) can print nothing;
rank 0 reports ranks that do not answer its queries.

Python runs signal handlers in the main thread, so never while that thread hangs in a call. And if the operating system
delivers a signal to a thread that hangs, no other thread learns of it. So the main thread blocks the signals that stop
a job, and the operating system delivers them to the watchdog thread, which the interpreter's wake-up descriptor
(``signal.set_wakeup_fd``) notifies immediately. The main thread runs the handler when it continues.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from _thread import allocate_lock
from collections.abc import Callable, Sequence

from pcopy.background import DetachedThread
from pcopy.engine.progress import MAX_SILENT_RANKS
from pcopy.errors import resource_error_text
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.interface import RowInProgress
from pcopy.fsio.close import close_ignoring_errors
from pcopy.launch.watch.signals import STOP_SIGNALS, SigintRepetitionFilter
from pcopy.launch.watch.silence import OwnRankSilenceMonitor, RankSilenceMonitor, SilenceReport
from pcopy.text import printable_path
from pcopy.units import format_running_clock


class WatchdogIntervals(NamedTuple):
    """Intervals of the watchdog (the thread that reports ranks without a sign of life), in seconds."""

    check: float = 5.0
    """Interval between two checks whether ranks give signs of life."""
    own_silence: float = 30.0
    """Time without progress after which a rank reports that itself."""
    silence_after_signal: float = 3.0
    """Time without a sign of life after which a rank is reported once a signal has asked the job to stop, instead of
    ``own_silence`` and ``no_answer``.
    """
    no_answer: float = 60.0
    """Time after which rank 0 reports another rank that does not answer its queries, and may be unable to report that
    itself.
    """


DEFAULT_INTERVALS = WatchdogIntervals()
_MAX_COUNTED_INTERVALS = 3
"""The time between two checks counts as silence of a rank only up to this number of regular intervals. If a check is
later, this process itself was stopped for the rest of the time.
"""
_RETRY_SECONDS = 0.1
"""Seconds between two attempts to call poll(2) if it fails."""
_JOIN_TIMEOUT = 1.0
"""Maximum seconds for which the rank waits until the watchdog thread has ended. The thread needs that long only if its
output blocks.
"""


class MainThreadHeartbeat:
    """Signs of life that the main thread leaves for the watchdog thread: ``beats`` is a counter that it increments, and
    ``silent`` (on rank 0) are the ranks that have not answered the last query of rank 0.
    """

    __slots__ = ("beats", "silent")

    def __init__(self) -> None:
        self.beats = 0
        self.silent: Sequence[int] = ()


class SilenceMessagePrinter(NamedTuple):
    """How the watchdog of a rank prints messages about ranks that give no sign of life.

    Fields:
    - ``rank``: this rank.
    - ``hosts_of_ranks``: the host of each rank; empty if all ranks are on this host.
    - ``print_message``: called with each message; prints it or sends it to rank 0.
    - ``notices``: the pipe through which forked ranks send messages to rank 0; None under a launcher.
    """

    rank: int
    hosts_of_ranks: Sequence[str]
    print_message: Callable[[str], object]
    notices: NoticePipe | None = None

    def name(self, rank: int) -> str:
        """Return the number and the host of a rank as text, for messages."""
        return f"rank {rank} on {self.hosts_of_ranks[rank] if self.hosts_of_ranks else os.uname().nodename}"


class RankWatchdog:
    """The watchdog of one rank: a thread that reports if the rank makes no progress, and on rank 0 if other ranks do
    not answer. The main thread calls ``start`` and ``stop``.
    """

    def __init__(
        self,
        messages: SilenceMessagePrinter,
        heartbeat: MainThreadHeartbeat,
        doing: Callable[[], str],
        pace: WatchdogIntervals | None = None,
        oldest: Callable[[], RowInProgress | None] = lambda: None,
    ) -> None:
        """Create the object without starting the thread.

        Args:
            messages: prints messages.
            heartbeat: signs of life of the main thread.
            doing: returns what the main thread is doing; empty: nothing. Called by the watchdog thread.
            pace: intervals; None: ``DEFAULT_INTERVALS``.
            oldest: returns the operation that has been in progress for longest; None if there is none. Called by the
                watchdog thread.
        """
        self._voice = messages
        self._oldest = oldest
        self._pulse = heartbeat
        self._doing = doing
        self._pace = pace or DEFAULT_INTERVALS
        self._real = time.monotonic()
        self._now = 0.0
        self._own_monitor = OwnRankSilenceMonitor(messages.rank, self._pace.own_silence)
        self._other_monitor = RankSilenceMonitor(self._pace.no_answer, MAX_SILENT_RANKS)
        self._presses = SigintRepetitionFilter()
        self.end_process: Callable[[int], object] = lambda number: os._exit(128 + number)
        """Ends the process because of a signal, whose number is the argument."""
        self._wake, self._waker = -1, -1
        self._mask: set[int] = set()
        self._stopping = False
        self._is_stopped = False
        self._ended = allocate_lock()
        self._thread: DetachedThread | None = None

    def start(self) -> None:
        """Watch the calling thread from now on. If the watchdog thread cannot be started, print a message; the job runs
        without it.
        """
        try:
            self._wake, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
            self._ended.acquire()
            # The start is not awaited: with 64 ranks that takes noticeable time. The thread inherits the signal mask
            # from before the block below.
            self._thread = DetachedThread(self._watch_until_stopped)
        except (OSError, MemoryError) as error:
            self._continue_without_thread(error)
            return
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)

    def check_thread(self) -> None:
        """If the thread has ended for lack of memory, let the main thread receive signals again, and print a message.

        The main thread calls this every few milliseconds.
        """
        if not self._is_stopped and self._thread is not None and self._thread.has_ended:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            self._continue_without_thread(MemoryError())

    def _continue_without_thread(self, error: OSError | MemoryError) -> None:
        """Print that ranks are not watched because of ``error``, and let signals work as without a watchdog."""
        self._is_stopped = True
        signal.set_wakeup_fd(-1)
        reason = resource_error_text(error)
        self._voice.print_message(f"rank {self._voice.rank}: cannot watch for silent ranks: {reason}")

    def stop(self) -> None:
        """Stop the thread after a last check. Wait until it has ended only if it may still print a message."""
        if self._is_stopped:  # not started
            return
        self._is_stopped = True
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        signal.set_wakeup_fd(-1)
        with contextlib.suppress(OSError):  # If the thread cannot be woken, it ends after its next regular check.
            os.write(self._waker, b"\0")
        if self._voice.rank == 0 or self._own_monitor.has_reported_silence:
            self._ended.acquire(timeout=_JOIN_TIMEOUT)

    def _watch_until_stopped(self) -> None:
        """Body of the thread: check at intervals, and when a signal arrives, until ``stop`` is called."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        pause = self._pace.check
        try:
            while not self._is_stopped:
                try:
                    if poll.poll(pause * 1000):
                        self._handle_signals(os.read(self._wake, 64))
                    self._check_signs_of_life()
                except (OSError, MemoryError):  # The system lacks a resource, perhaps for a moment.
                    time.sleep(_RETRY_SECONDS)
                is_urgent = self._own_monitor.has_reported_silence or self._stopping
                pause = self._pace.check / 4 if is_urgent else self._pace.check
        finally:
            self._ended.release()

    def _handle_signals(self, signals: bytes) -> None:
        """Handle signals that ask the job to stop: from now on report earlier that ranks give no sign of life. On a
        second SIGINT exit the process. The bytes of ``signals`` are the numbers of the signals.
        """
        if any(number in STOP_SIGNALS for number in signals):
            self._stopping = True
            self._own_monitor.shorten_time_to_report_silence(self._pace.silence_after_signal)
            self._other_monitor.shorten_time_to_report_silence(self._pace.silence_after_signal)
        for number in signals:
            if number == signal.SIGINT and self._presses.register_sigint(time.monotonic()):
                self.end_process(number)

    def _check_signs_of_life(self) -> None:
        """Check whether this rank makes progress and, on rank 0, whether other ranks answer; print the reports that are
        due.
        """
        real = time.monotonic()
        self._now += min(real - self._real, _MAX_COUNTED_INTERVALS * self._pace.check)
        self._real = real
        oldest_row = self._oldest()
        for own in self._own_monitor.own_silence_reports_to_print(
            self._pulse.beats, self._now, oldest_row and oldest_row.since
        ):
            self._print_silence_report(own, self._hanging_call(oldest_row))
        if self._voice.rank == 0:
            for rank, text in self._voice.notices.take_messages() if self._voice.notices else ():
                self._other_monitor.register_report_sent_by_rank(rank)
                self._voice.print_message(text)
            for other in self._other_monitor.silence_reports_to_print(self._pulse.silent, self._now):
                self._print_silence_report(other, None)

    def _hanging_call(self, oldest_row: RowInProgress | None) -> str:
        """Return a text that says where this rank hangs: in which task, if the main thread does, and in which system
        call (``oldest_row``, the operation that has been in progress for longest; None: there is none).
        """
        call = (
            f"in {oldest_row.operation or 'a call'} of {printable_path(oldest_row.path)}"
            if oldest_row is not None
            else ""
        )
        return ", ".join(
            filter(None, (self._doing() if self._own_monitor.is_main_thread_silent or oldest_row is None else "", call))
        )

    def _print_silence_report(self, silence: SilenceReport, doing: str | None) -> None:
        """Print a message that a rank gives no sign of life, or gives one again. ``doing`` is what this rank is doing
        (may be empty); None if ``silence`` is that of another rank.
        """
        over, lasts = ("answers again after", "has not answered for")
        if doing is not None:
            over, lasts = ("goes on after", "has been silent for")
        if silence.is_over:
            text = f"{over} {format_running_clock(silence.seconds)}"
        else:
            advice = "a second SIGINT leaves at once" if self._presses.has_received_sigint else "the job waits"
            since = time.strftime("%H:%M:%S", time.localtime(time.time() - silence.seconds))
            span = f"{format_running_clock(silence.seconds)} (since {since})"
            text = f"{lasts} {span}{f', {doing}' if doing else ''}; {advice}"
        self._voice.print_message(f"{self._voice.name(silence.rank)} {text}")


_READ_BYTES = 64 << 10
"""Maximum bytes that are read at once from the pipe for messages of forked ranks: the capacity of a pipe."""


class NoticePipe:
    """A pipe through which forked ranks send messages to rank 0. It is created before the ranks are forked; then each
    rank closes the end that it does not use.
    """

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._rest = b""
        self._turn, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.write(writing, b"\0")
        close_ignoring_errors(writing)

    def close_unused_pipe_end(self, rank: int) -> None:
        """In the process of ``rank``: keep the end of the pipe that this rank uses (rank 0 reads, all others write),
        and close the other end.
        """
        close_ignoring_errors(self._reading if rank else self._writing)

    def send(self, rank: int, text: str) -> None:
        """Send ``text`` as one line from ``rank`` to rank 0. A line that is too long for one atomic write is truncated;
        errors, such as a full or closed pipe, are ignored.
        """
        line = b"%d %s" % (rank, text.encode("utf-8", "backslashreplace"))
        with contextlib.suppress(OSError):
            os.write(self._writing, line[: select.PIPE_BUF - 1].replace(b"\n", b" ") + b"\n")

    def claim_right_to_report(self) -> bool:
        """Return True on the first rank that calls this, and False on all others, so that only one rank reports an
        event that concerns all of them.
        """
        try:
            return bool(os.read(self._turn, 1))
        except OSError:  # Rather report it twice than not at all.
            return True

    def take_messages(self) -> list[tuple[int, str]]:
        """On rank 0: return the messages that other ranks have sent since the last call, as (rank, text)."""
        try:
            data = os.read(self._reading, _READ_BYTES)
        except OSError:  # Nothing has arrived, or it is read at the next check.
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        pairs = (line.decode("utf-8", "replace").partition(" ") for line in lines)
        return [(int(rank), text) for rank, _, text in pairs]
