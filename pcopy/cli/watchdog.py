"""A thread beside each rank's work that tells of silence, and lets a second SIGINT end a rank that hangs.

The main thread only leaves signs of life: it raises a count between slices and remembers its task, which costs nothing
to speak of. This thread sleeps; every few seconds it compares. Where the count has stood still for long it says since
when, in which system call on which path, and in which task. A rank that is stopped as a whole (SIGSTOP) can say nothing
itself: rank 0 tells of ranks that do not answer it.

Python runs signal handlers in the main thread, that is never while that hangs. And a signal that the kernel gives to a
thread which hangs in it goes no further. So the main thread blocks these signals: they come to this thread, which the
interpreter's wake-up descriptor tells of each at once; the main thread runs the handler when it gets on.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from _thread import allocate_lock, get_native_id, start_new_thread
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from pcopy.cli.kernel_view import current_call
from pcopy.cli.notes import Notes
from pcopy.cli.signals import ORDERLY, Presses
from pcopy.cli.silence import HANGING, HANGING_ON_STOP, NO_ANSWER, OthersSilence, OwnSilence, Silence
from pcopy.cli.streams import tell
from pcopy.cli.units import show_clock
from pcopy.engine.progress import SILENT_SHOWN
from pcopy.engine.task import Task
from pcopy.text import shown


class Pace(NamedTuple):
    """All times in seconds: between two looks, and those of ``pcopy.cli.silence``."""

    look: float = 5.0
    hanging: float = HANGING
    hanging_on_stop: float = HANGING_ON_STOP
    no_answer: float = NO_ANSWER


PACE = Pace()
_LATE = 3
"""A look that comes later than so many intervals comes after this process was stopped itself."""
_BREATH = 0.1
"""Seconds between two tries to wait, where the system refuses that."""
_JOIN = 1.0
"""Seconds that the thread has to end; only a terminal that takes nothing holds it up so long."""


class Pulse:
    """What the main thread leaves behind as it goes. ``silent`` are the ranks that have not answered rank 0 lately."""

    __slots__ = ("beats", "silent", "task")

    def __init__(self) -> None:
        self.beats = 0
        self.task: Task | None = None
        self.silent: Sequence[int] = ()


class Speaker(Protocol):
    """Takes lines for the user."""

    def notice(self, text: str) -> None: ...


class Watchdog:
    """The thread of one rank, between ``start`` and ``stop``, both called by the main thread."""

    def __init__(
        self,
        rank: int,
        hosts: Sequence[str],
        pulse: Pulse,
        describe: Callable[[Task], str],
        *,
        speaker: Speaker | None,
        notes: Notes | None,
        program: str = "pcopy",
        pace: Pace | None = None,
    ) -> None:
        """``hosts`` names each rank's host; empty: all are on this one. ``describe`` is called by the thread.

        With a ``speaker`` (at rank 0) lines go there, else to ``notes``, else to standard error, after ``program``.
        """
        self._rank = rank
        self._hosts = hosts
        self._pulse = pulse
        self._describe = describe
        self._speaker = speaker
        self._notes = notes
        self._program = program
        self._pace = pace or PACE
        self._watched = get_native_id()
        self._real = time.monotonic()
        self._now = 0.0
        self._own = OwnSilence(rank, 0.0, self._pace.hanging)
        self._others = OthersSilence(self._pace.no_answer, SILENT_SHOWN)
        self._presses = Presses()
        self._wake, self._waker = -1, -1
        self._before = -1
        self._mask: set[int] = set()
        self._stopping = False
        self._ends = False
        self._over = allocate_lock()

    def start(self) -> None:
        """Begins to watch the calling thread; where that can't be had, the job goes on without."""
        try:
            self._wake, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            with contextlib.suppress(ValueError):  # not the main thread
                self._before = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
            self._over.acquire()
            # Not threading.Thread, whose start waits for the thread: with 64 ranks that shows.
            start_new_thread(self._run, ())  # with the signals that were let through before
        except (OSError, RuntimeError) as error:
            self._ends = True
            with contextlib.suppress(ValueError, OSError):
                signal.set_wakeup_fd(self._before)
            self._say(f"rank {self._rank}: nobody watches for silence: {error}")
            return
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ORDERLY)

    def stop(self) -> None:
        """Ends the thread, after a last look; waits for that only if something may be said yet."""
        if self._ends:  # it has not begun
            return
        self._ends = True
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        with contextlib.suppress(ValueError):
            signal.set_wakeup_fd(self._before)
        with contextlib.suppress(OSError):  # then it ends with its next look
            os.write(self._waker, b"\0")
        if self._speaker is not None or self._own.is_told:
            self._over.acquire(timeout=_JOIN)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        notes = self._notes if self._speaker is not None else None
        if notes is not None:
            poll.register(notes.fileno(), select.POLLIN)
        pause = self._pace.look
        while not self._ends:
            try:
                for descriptor, events in poll.poll(pause * 1000):
                    if descriptor == self._wake:
                        self._heed(os.read(self._wake, 64))
                    elif events & select.POLLIN and notes is not None:
                        self._pass_on(notes)
                    else:  # all other ranks have ended
                        poll.unregister(descriptor)
            except OSError:  # the system is short of something; it may pass
                time.sleep(_BREATH)
            self._look()
            pause = self._pace.look / 4 if self._own.is_told or self._stopping else self._pace.look
        if notes is not None:
            self._pass_on(notes)
        self._over.release()

    def _heed(self, signals: bytes) -> None:
        if any(number in ORDERLY for number in signals):
            self._stopping = True
            self._own.hasten(self._pace.hanging_on_stop)
            self._others.hasten(self._pace.hanging_on_stop)
        for number in signals:
            if number == signal.SIGINT and self._presses.is_second(time.monotonic()):
                os._exit(128 + number)

    def _pass_on(self, notes: Notes) -> None:
        for rank, text in notes.take():
            self._others.spoke(rank)
            self._say(text)

    def _look(self) -> None:
        real = time.monotonic()
        self._now += min(real - self._real, _LATE * self._pace.look)
        self._real = real
        own = self._own.look(self._pulse.beats, self._now)
        if own is not None:
            self._say(f"{self._name(own)} {self._own_story(own)}")
        if self._speaker is not None:
            for other in self._others.look(self._pulse.silent, self._now):
                self._say(f"{self._name(other)} {self._story_of(other)}")

    def _own_story(self, silence: Silence) -> str:
        if silence.is_over:
            return f"goes on after {show_clock(silence.seconds)}"
        task = self._pulse.task
        doing = f", {self._describe(task)}" if task is not None else ""
        return f"has been silent for {_span(silence)}: {_call(self._watched)}{doing}; {self._outlook()}"

    def _story_of(self, other: Silence) -> str:
        if other.is_over:
            return f"answers again after {show_clock(other.seconds)}"
        return f"has not answered for {_span(other)}; {self._outlook()}"

    def _outlook(self) -> str:
        return "a second SIGINT leaves at once" if self._presses.any else "the job waits"

    def _name(self, silence: Silence) -> str:
        host = self._hosts[silence.rank] if self._hosts else socket.gethostname()
        return f"rank {silence.rank} on {host}"

    def _say(self, text: str) -> None:
        if self._speaker is not None:
            self._speaker.notice(text)
        elif self._notes is not None:
            self._notes.send(self._rank, text)
        else:
            tell(self._program, text)


def _span(silence: Silence) -> str:
    since = time.strftime("%H:%M:%S", time.localtime(time.time() - silence.seconds))
    return f"{show_clock(silence.seconds)} (since {since})"


def _call(thread: int) -> str:
    call = current_call(thread)
    if call is None:
        return "in a system call or computing"
    name, paths = call
    if not name:
        return "in no system call"
    return f"in {name} of {' and '.join(map(shown, paths))}" if paths else f"in {name}"
