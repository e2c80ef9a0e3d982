"""A thread of each rank that reports silence, and lets a second SIGINT end a rank that hangs.

The main thread only leaves signs of life: it increments a counter between slices, and stores the current task, at
almost no cost. Threads of the backend publish their current operation. The watchdog thread sleeps, and compares every
few seconds. If the counter has not changed for long, or one row has been under way for long, it reports since when, in
which task, and in which call. A rank that is stopped as a whole (SIGSTOP) can report nothing; rank 0 reports ranks that
do not answer it.

Python runs signal handlers in the main thread, so never while that thread hangs. And if the operating system delivers a
signal to a thread that hangs in a call, no other thread sees it. So the main thread blocks these signals, and they are
delivered to the watchdog thread: the interpreter's wake-up descriptor notifies it of each immediately. The main thread
runs the handler when it continues.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable, Sequence

from pcopy.engine.progress import MAX_SILENT_RANKS
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.interface import RowInProgress
from pcopy.fsio.close import close_ignoring_errors
from pcopy.launch.watch.signals import STOP_SIGNALS, SigintCounter
from pcopy.launch.watch.silence import OwnSilenceMonitor, SilenceMonitor, SilenceReport
from pcopy.text import printable_path
from pcopy.units import format_clock


class Pace(NamedTuple):
    """Intervals of the watchdog, in seconds."""

    check: float = 5.0
    """Interval between two checks."""
    own_silence: float = 30.0
    """Time without a sign of life after which a rank reports its own silence."""
    silence_after_signal: float = 3.0
    """The same once a signal has asked the rank to stop; also the time after which rank 0 reports other ranks then."""
    no_answer: float = 60.0
    """Time without an answer after which rank 0 reports another rank, which may be unable to report itself."""


DEFAULT_INTERVALS = Pace()
_LATE_CHECKS = 3
"""Number of intervals after which a late check shows that this process itself was stopped."""
_RETRY_SECONDS = 0.1
"""Seconds between two attempts to wait if the operating system refuses that."""
_JOIN_TIMEOUT = 1.0
"""Seconds that the thread has to end; only a terminal that accepts no output delays it so long."""


class Heartbeat:
    """Signs of life of the main thread. ``silent`` are the ranks that have not answered rank 0 lately."""

    __slots__ = ("beats", "silent")

    def __init__(self) -> None:
        self.beats = 0
        self.silent: Sequence[int] = ()


class RankMessages(NamedTuple):
    """How messages of a rank reach the user.

    Fields:
    - ``rank``: this rank.
    - ``hosts_of_ranks``: the host of each rank; empty: all are on this host.
    - ``print_message``: called with each message.
    - ``notices``: on rank 0, the pipe with messages of other ranks.
    """

    rank: int
    hosts_of_ranks: Sequence[str]
    print_message: Callable[[str], object]
    notices: NoticePipe | None = None

    def name(self, rank: int) -> str:
        """Return a rank and its host, for messages."""
        return f"rank {rank} on {self.hosts_of_ranks[rank] if self.hosts_of_ranks else os.uname().nodename}"


class Watchdog:
    """The watchdog thread of one rank. The main thread calls ``start`` and ``stop``."""

    def __init__(
        self,
        voice: RankMessages,
        pulse: Heartbeat,
        doing: Callable[[], str],
        pace: Pace | None = None,
        oldest: Callable[[], RowInProgress | None] = lambda: None,
    ) -> None:
        """Prepare without starting the thread.

        Args:
            voice: prints messages.
            pulse: signs of life of the main thread.
            doing: returns what the main thread is doing; empty: nothing. Called by the watchdog thread.
            pace: intervals; None: the default.
            oldest: returns the operation that has been under way for longest. Called by the watchdog thread.
        """
        self._voice = voice
        self._oldest = oldest
        self._pulse = pulse
        self._doing = doing
        self._pace = pace or DEFAULT_INTERVALS
        self._real = time.monotonic()
        self._now = 0.0
        self._own_monitor = OwnSilenceMonitor(voice.rank, self._pace.own_silence)
        self._other_monitor = SilenceMonitor(self._pace.no_answer, MAX_SILENT_RANKS)
        self._presses = SigintCounter()
        self._wake, self._waker = -1, -1
        self._mask: set[int] = set()
        self._stopping = False
        self._is_stopped = False
        self._ended = allocate_lock()

    def start(self) -> None:
        """Watch the calling thread from now on; if no thread can be started, the job runs without."""
        try:
            self._wake, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
            self._ended.acquire()
            # Not threading.Thread, whose start() waits for the new thread: with 64 ranks that takes noticeable time.
            start_new_thread(self._run, ())  # The thread inherits the signal mask from before the block below.
        except (OSError, RuntimeError) as error:
            self._is_stopped = True
            signal.set_wakeup_fd(-1)
            self._voice.print_message(f"rank {self._voice.rank}: cannot watch for silent ranks: {error}")
            return
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)

    def stop(self) -> None:
        """Stop the thread after a last check; wait for it only if it may still print a message."""
        if self._is_stopped:  # not started
            return
        self._is_stopped = True
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        signal.set_wakeup_fd(-1)
        with contextlib.suppress(OSError):  # Then it ends with its next check.
            os.write(self._waker, b"\0")
        if self._voice.rank == 0 or self._own_monitor.has_reported:
            self._ended.acquire(timeout=_JOIN_TIMEOUT)

    def _run(self) -> None:
        """Check at intervals, and when a signal arrives; runs in the thread."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        pause = self._pace.check
        while not self._is_stopped:
            try:
                if poll.poll(pause * 1000):
                    self._handle_signals(os.read(self._wake, 64))
            except OSError:  # The system lacks a resource, perhaps for a moment.
                time.sleep(_RETRY_SECONDS)
            self._check()
            pause = self._pace.check / 4 if self._own_monitor.has_reported or self._stopping else self._pace.check
        self._ended.release()

    def _handle_signals(self, signals: bytes) -> None:
        """Handle signals: report silences earlier, and exit on a second SIGINT."""
        if any(number in STOP_SIGNALS for number in signals):
            self._stopping = True
            self._own_monitor.report_earlier(self._pace.silence_after_signal)
            self._other_monitor.report_earlier(self._pace.silence_after_signal)
        for number in signals:
            if number == signal.SIGINT and self._presses.is_second(time.monotonic()):
                os._exit(128 + number)

    def _check(self) -> None:
        """Check for silences, and print messages about them; on rank 0 also those of other ranks."""
        real = time.monotonic()
        self._now += min(real - self._real, _LATE_CHECKS * self._pace.check)
        self._real = real
        oldest_row = self._oldest()
        for own in self._own_monitor.due_own_reports(self._pulse.beats, self._now, oldest_row and oldest_row.since):
            self._report(own, self._hanging_call(oldest_row))
        if self._voice.rank == 0:
            for rank, text in self._voice.notices.take() if self._voice.notices else ():
                self._other_monitor.add_own_report(rank)
                self._voice.print_message(text)
            for other in self._other_monitor.reports_due(self._pulse.silent, self._now):
                self._report(other, None)

    def _hanging_call(self, oldest_row: RowInProgress | None) -> str:
        """Return the task in which the main thread hangs, if it does, and the call in which it or a thread of the
        backend hangs.
        """
        call = (
            f"in {oldest_row.operation or 'a call'} of {printable_path(oldest_row.path)}"
            if oldest_row is not None
            else ""
        )
        return ", ".join(
            filter(None, (self._doing() if self._own_monitor.is_main_thread_silent or oldest_row is None else "", call))
        )

    def _report(self, silence: SilenceReport, doing: str | None) -> None:
        """Print a message about a silence. ``doing``: what this rank is doing; None if the silence is that of
        another rank.
        """
        over, lasts = ("answers again after", "has not answered for")
        if doing is not None:
            over, lasts = ("goes on after", "has been silent for")
        if silence.is_over:
            text = f"{over} {format_clock(silence.seconds)}"
        else:
            advice = "a second SIGINT leaves at once" if self._presses.has_any else "the job waits"
            since = time.strftime("%H:%M:%S", time.localtime(time.time() - silence.seconds))
            span = f"{format_clock(silence.seconds)} (since {since})"
            text = f"{lasts} {span}{f', {doing}' if doing else ''}; {advice}"
        self._voice.print_message(f"{self._voice.name(silence.rank)} {text}")


_READ_BYTES = 64 << 10
"""Bytes that are read from the pipe in one call: the capacity of a pipe."""


class NoticePipe:
    """A pipe for messages to rank 0. It is created before the ranks are forked; then each rank keeps its own end."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._rest = b""
        self._turn, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.write(writing, b"\0")
        close_ignoring_errors(writing)

    def keep_end_of(self, rank: int) -> None:
        """Close the end that ``rank`` does not need."""
        close_ignoring_errors(self._reading if rank else self._writing)

    def send(self, rank: int, text: str) -> None:
        """Send ``text`` (one line) to rank 0; errors, such as a closed pipe, are ignored."""
        line = b"%d %s" % (rank, text.encode("utf-8", "backslashreplace"))
        with contextlib.suppress(OSError):
            os.write(self._writing, line[: select.PIPE_BUF - 1].replace(b"\n", b" ") + b"\n")

    def claim_first(self) -> bool:
        """Return True on the first rank that calls this, so that one rank reports an event that concerns all of
        them.
        """
        try:
            return bool(os.read(self._turn, 1))
        except OSError:  # Rather report it twice than not at all.
            return True

    def take(self) -> list[tuple[int, str]]:
        """Return the messages that have arrived, as (rank, text); on rank 0."""
        try:
            data = os.read(self._reading, _READ_BYTES)
        except OSError:  # Nothing has arrived, or it is read at the next check.
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        pairs = (line.decode("utf-8", "replace").partition(" ") for line in lines)
        return [(int(rank), text) for rank, _, text in pairs]
