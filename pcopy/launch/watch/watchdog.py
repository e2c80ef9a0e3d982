"""A thread beside each rank's work that tells of silence, and lets a second SIGINT end a rank that hangs.

The main thread only leaves signs of life: it raises a count between slices, and remembers the task of each slice, which
costs nothing to speak of. Threads of the kernel publish what they are at. This thread sleeps; every few seconds it
compares. Where the count has stood still for long, or one row has been under way, it says since when, in which task,
and in which call. A rank that is stopped as a whole (SIGSTOP) can say nothing itself: rank 0 tells
of ranks that do not answer it.

Python runs signal handlers in the main thread, so never while that hangs. And if the kernel gives a signal to a thread
that hangs in a call, no other thread hears of it. So the main thread blocks these signals, and they come to this
thread: the interpreter's wake-up descriptor tells it of each at once. The main thread runs the handler when it goes on.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable, Sequence

from pcopy.engine.progress import SILENT_SHOWN
from pcopy.fsio.close import let_go
from pcopy.fsio.kernel.interface import Doing
from pcopy.launch.watch.signals import ORDERLY, Presses
from pcopy.launch.watch.silence import OwnSilence, Silence, Silences
from pcopy.named import NamedTuple
from pcopy.text import shown
from pcopy.units import show_clock


class Pace(NamedTuple):
    """All times in seconds."""

    look: float = 5.0
    """Between two looks."""
    hanging: float = 30.0
    """Without a sign of life, after which a rank tells of itself."""
    hanging_on_stop: float = 3.0
    """The same, and that after which rank 0 tells of others, once a signal has asked the rank to stop."""
    no_answer: float = 60.0
    """Without an answer, after which rank 0 tells of another rank, which may be unable to speak for itself."""


PACE = Pace()
_LATE = 3
"""A look that comes later than so many intervals comes after this process was stopped itself."""
_BREATH = 0.1
"""Seconds between two tries to wait, where the system refuses that."""
_JOIN = 1.0
"""Seconds that the thread has to end; only a terminal that takes nothing holds it up so long."""


class Pulse:
    """What the main thread leaves behind as it goes. ``silent`` are the ranks that have not answered rank 0 lately."""

    __slots__ = ("beats", "silent")

    def __init__(self) -> None:
        self.beats = 0
        self.silent: Sequence[int] = ()


class Voice(NamedTuple):
    """How the lines of a rank reach the user: ``say`` is called with each. ``hosts`` names each rank's host; empty: all
    are on this one. Rank 0 also takes those of others from ``notices``."""

    rank: int
    hosts: Sequence[str]
    say: Callable[[str], object]
    notices: NoticePipe | None = None

    def name(self, rank: int) -> str:
        return f"rank {rank} on {self.hosts[rank] if self.hosts else os.uname().nodename}"


class Watchdog:
    """The thread of one rank, between ``start`` and ``stop``, both called by the main thread."""

    def __init__(
        self,
        voice: Voice,
        pulse: Pulse,
        doing: Callable[[], str],
        pace: Pace | None = None,
        oldest: Callable[[], Doing | None] = lambda: None,
    ) -> None:
        """``doing`` says what the main thread is at, empty if that is nothing; ``oldest`` which row has been under way
        for longest. The other thread calls both."""
        self._voice = voice
        self._oldest = oldest
        self._pulse = pulse
        self._doing = doing
        self._pace = pace or PACE
        self._real = time.monotonic()
        self._now = 0.0
        self._own = OwnSilence(voice.rank, self._pace.hanging)
        self._others = Silences(self._pace.no_answer, SILENT_SHOWN)
        self._presses = Presses()
        self._wake, self._waker = -1, -1
        self._mask: set[int] = set()
        self._stopping = False
        self._ends = False
        self._over = allocate_lock()

    def start(self) -> None:
        """Begins to watch the calling thread; where that can't be had, the job goes on without."""
        try:
            self._wake, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
            self._over.acquire()
            # Not threading.Thread, whose start waits for the thread: with 64 ranks that shows.
            start_new_thread(self._run, ())  # with the signals that were let through before
        except (OSError, RuntimeError) as error:
            self._ends = True
            signal.set_wakeup_fd(-1)
            self._voice.say(f"rank {self._voice.rank}: nobody watches for silence: {error}")
            return
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ORDERLY)

    def stop(self) -> None:
        """Ends the thread, after a last look; waits for that only if something may be said yet."""
        if self._ends:  # it has not begun
            return
        self._ends = True
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        signal.set_wakeup_fd(-1)
        with contextlib.suppress(OSError):  # then it ends with its next look
            os.write(self._waker, b"\0")
        if self._voice.rank == 0 or self._own.are_told:
            self._over.acquire(timeout=_JOIN)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        pause = self._pace.look
        while not self._ends:
            try:
                if poll.poll(pause * 1000):
                    self._heed(os.read(self._wake, 64))
            except OSError:  # the system is short of something; it may pass
                time.sleep(_BREATH)
            self._look()
            pause = self._pace.look / 4 if self._own.are_told or self._stopping else self._pace.look
        self._over.release()

    def _heed(self, signals: bytes) -> None:
        if any(number in ORDERLY for number in signals):
            self._stopping = True
            self._own.hasten(self._pace.hanging_on_stop)
            self._others.hasten(self._pace.hanging_on_stop)
        for number in signals:
            if number == signal.SIGINT and self._presses.is_second(time.monotonic()):
                os._exit(128 + number)

    def _look(self) -> None:
        real = time.monotonic()
        self._now += min(real - self._real, _LATE * self._pace.look)
        self._real = real
        row = self._oldest()
        for own in self._own.look_at(self._pulse.beats, self._now, row and row.since):
            self._tell(own, self._whereabouts(row))
        if self._voice.rank == 0:
            for rank, text in self._voice.notices.take() if self._voice.notices else ():
                self._others.spoke(rank)
                self._voice.say(text)
            for other in self._others.look(self._pulse.silent, self._now):
                self._tell(other, None)

    def _whereabouts(self, row: Doing | None) -> str:
        """In which task the main thread hangs, if it does, and in which call; or in which one another thread does."""
        call = f"in {row.operation or 'a call'} of {shown(row.path)}" if row is not None else ""
        return ", ".join(filter(None, (self._doing() if self._own.is_main or row is None else "", call)))

    def _tell(self, silence: Silence, doing: str | None) -> None:
        """``doing``: of this rank itself, None for another one."""
        over, lasts = ("answers again after", "has not answered for")
        if doing is not None:
            over, lasts = ("goes on after", "has been silent for")
        if silence.is_over:
            story = f"{over} {show_clock(silence.seconds)}"
        else:
            outlook = "a second SIGINT leaves at once" if self._presses.any else "the job waits"
            since = time.strftime("%H:%M:%S", time.localtime(time.time() - silence.seconds))
            span = f"{show_clock(silence.seconds)} (since {since})"
            story = f"{lasts} {span}{f', {doing}' if doing else ''}; {outlook}"
        self._voice.say(f"{self._voice.name(silence.rank)} {story}")


_READ_BYTES = 64 << 10
"""Bytes that are taken from the pipe at once: as many as a pipe holds."""


class NoticePipe:
    """Made before the ranks are forked; after that each keeps its own end."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._rest = b""
        self._turn, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.write(writing, b"\0")
        let_go(writing)

    def keep(self, rank: int) -> None:
        """Gives up the end that ``rank`` does not need."""
        let_go(self._reading if rank else self._writing)

    def send(self, rank: int, text: str) -> None:
        """Leaves ``text`` (one line) for rank 0; nothing happens if nobody reads it."""
        line = b"%d %s" % (rank, text.encode("utf-8", "backslashreplace"))
        with contextlib.suppress(OSError):
            os.write(self._writing, line[: select.PIPE_BUF - 1].replace(b"\n", b" ") + b"\n")

    def claim(self) -> bool:
        """Whether this rank is the first of all to ask: what befalls all of them alike is told by one."""
        try:
            return bool(os.read(self._turn, 1))
        except OSError:  # it may be told twice, but it is told
            return True

    def take(self) -> list[tuple[int, str]]:
        """At rank 0: what has come, as (rank, text)."""
        try:
            data = os.read(self._reading, _READ_BYTES)
        except OSError:  # there is nothing, or it comes with the next look
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        pairs = (line.decode("utf-8", "replace").partition(" ") for line in lines)
        return [(int(rank), text) for rank, _, text in pairs]
