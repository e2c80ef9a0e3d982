"""How many operations a rank keeps under way: one while they do not wait, else as many as increase the throughput.

``Growth`` decides from measurements. ``InFlight`` measures, and passes the decision to the backend's threads and the
rank's tasks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from pcopy.engine.under_way import UnderWay
from pcopy.fsio.directories import affordable_threads
from pcopy.fsio.kernel.interface import Load, Pool
from pcopy.fsio.layout import LUSTRE
from pcopy.fsio.patience import shortage
from pcopy.named import NamedTuple

MOST_OF_HOST = 64
"""Operations under way, of all ranks of one host together, up to which the number grows automatically."""

WAITING = 0.5
"""Share of their time that operations must spend waiting before more threads are tried."""

LONG = 0.00005
"""Seconds that an operation must wait on average before more threads are tried. On a busy host, operations of
local file systems wait for less.
"""

GAIN = 1.1
"""Factor by which more threads must increase the operations per second."""

FIRST_PAUSE = 1.0
"""Seconds before the next attempt after more threads have brought too little."""
LONGEST_PAUSE = 60.0
"""Maximum of that pause in seconds; it doubles after each such attempt."""

WINDOW = 0.05
"""Minimum length of a measurement, in seconds of work."""

WINDOW_OPERATIONS = 20
"""Minimum length of a measurement, in operations per thread."""

SLOTS_BESIDE = 4
"""Tasks that a rank may have under way, in addition to half the number of its threads.

So the threads find enough directories to work on, even if each has few files.
"""

_MODIFYING = ("/sys/fs/lustre/mdc", "/proc/fs/lustre/mdc")
_MODIFYING_DEFAULT = 7
"""Default of Lustre clients for max_mod_rpcs_in_flight."""


class Measured(NamedTuple):
    """A measurement. Times are in seconds and mean the same as in ``Load``.

    ``delay`` is the time in which threads were ready to run and waited for a processor.
    """

    busy: float
    wall: float
    processor: float
    delay: float
    operations: int

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.operations / self.busy if self.busy > 0 else 0.0

    @property
    def at_once(self) -> float:
        """Average number of operations under way, over the time in which there was at least one."""
        return self.wall / self.busy if self.busy > 0 else 0.0

    @property
    def waiting(self) -> float:
        """Share of the operations' time in which they waited for something else than a processor."""
        return (self.wall - self.processor - self.delay) / self.wall if self.wall > 0 else 0.0


class Growth:
    """Decides how many threads there should be, from one measurement to the next.

    With ``threads`` 0 the rank itself performs the operations, one after the other.
    """

    def __init__(self, most: int) -> None:
        """Start without threads; ``most`` is their maximum."""
        self.threads = 0
        self.pause = 0.0
        """Seconds until the next measurement is needed."""
        self._most = most if most > 1 else 0
        self._before: tuple[int, float] | None = None  # number of threads and rate before the last increase
        self._doubted: tuple[int, int, float] | None = (
            None  # an increase that seems to bring too little: from, to, rate after it
        )
        self._is_new = (
            False  # The first threads were just started: a row that the rank itself began may still be under way.
        )
        self._patience = FIRST_PAUSE

    @property
    def is_settled(self) -> bool:
        """True if no further measurement is needed."""
        return self.threads >= self._most and self._before is None and self._doubted is None

    def shrink(self) -> None:
        """Halve the number of threads, and do not exceed that number again."""
        self.threads //= 2
        self._most, self._before, self._doubted, self._is_new = self.threads, None, None, False

    def look(self, measured: Measured) -> int:
        """Return the number of threads that follows from a measurement.

        The measurement must begin when the last one ended, or after the pause.
        """
        self.pause = 0.0
        if self._is_new:
            self._is_new = False
            return self.threads
        if self._before is not None:
            fewer, rate = self._before
            if measured.at_once < GAIN * max(1, fewer):
                return self.threads if _waits(measured) or not measured.wall else self._rest(fewer)
            self._before = None
            if measured.rate < GAIN * rate:
                self._doubted = fewer, self.threads, measured.rate
                self.threads = max(1, fewer)  # not 0, which would have to wait until no ticket is under way
                return self.threads
            self._patience = FIRST_PAUSE
        if self._doubted is not None:
            return self._judge_again(measured, *self._doubted)
        if not _waits(measured):
            self.pause = FIRST_PAUSE
        elif self.threads < self._most:
            self._before = self.threads, measured.rate
            self._is_new = not self.threads
            self.threads = min(max(2, 2 * self.threads), self._most)
        return self.threads

    def _judge_again(self, measured: Measured, fewer: int, more: int, rate: float) -> int:
        """Decide on a doubtful increase after a measurement with fewer threads: the work itself may have changed
        meanwhile.
        """
        if measured.at_once > GAIN * self.threads:
            return self.threads  # The additional threads have not stopped yet.
        self._doubted = None
        if rate >= GAIN * measured.rate:
            self.threads = more
            return more
        return self._rest(fewer)

    def _rest(self, fewer: int) -> int:
        """Return to ``fewer`` threads, and pause before the next attempt; the pause doubles each time."""
        self._before, self.threads, self.pause = None, fewer, self._patience
        self._patience = min(2 * self._patience, LONGEST_PAUSE)
        return fewer


def _waits(measured: Measured) -> bool:
    """True if operations wait so long that more threads are worth an attempt."""
    return measured.waiting >= WAITING and measured.waiting * measured.wall >= LONG * measured.operations


class InFlight:
    """Adapts the number of operations under way of one rank; called by its main thread between slices."""

    def __init__(
        self,
        pool: Pool,
        under_way: UnderWay,
        asked: int,
        ranks: int,
        modifying: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = time.monotonic,
        delay: Callable[[], float] | None = None,
    ) -> None:
        """Start with the number of operations that was asked for.

        Args:
            pool: the backend's threads.
            under_way: the slots for the rank's tasks.
            asked: a fixed number of operations; 0: automatic.
            ranks: number of ranks on this host, which share the maximum.
            modifying: called once threads are used; returns how many rows may modify metadata at the same time (0: any
                number).
            clock: returns seconds.
            delay: returns for how many seconds all threads together have waited for a processor.
        """
        self._pool = pool
        self._ranks = ranks
        self._modifying: Callable[[], int] | None = modifying
        self._under_way = under_way
        most = affordable_threads()
        self._growth = Growth(0 if asked else min(MOST_OF_HOST // ranks, most))
        self._short = 0
        """Value of ``shortage.met`` when it was checked last."""
        self._clock = clock
        self._delay = delay or run_queue_delay
        self._due = 0.0
        self._before: tuple[float, float, Load] | None = None  # time, delay and load at the start of the measurement
        if min(asked, most) > 1:
            self._growth.threads = min(asked, most)
            self._tell(self._growth.threads)

    def look(self) -> None:
        """Measure if that is due, and change the number of threads if necessary; halve it after a shortage of
        descriptors.
        """
        if shortage.met != self._short:
            self._short = shortage.met
            self._growth.shrink()
            self._tell(self._growth.threads)
            self._before = None
        now = self._clock()
        if now < self._due or self._growth.is_settled:
            return
        self._due = now + WINDOW
        load = self._pool.load()
        if self._before is None:
            self._before = now, self._delay(), load
            return
        began, delay, before = self._before
        threads = self._growth.threads
        busy, operations = load.busy - before.busy, load.operations - before.operations
        if busy < WINDOW or operations < WINDOW_OPERATIONS * max(1, threads):
            return
        delays, wall = self._delay(), load.wall - before.wall
        part = min(
            1.0, wall / ((now - began) * max(1, threads))
        )  # share of the time in which a thread performed operations
        window = Measured(busy, wall, load.processor - before.processor, (delays - delay) * part, operations)
        self._before = now, delays, load
        if self._growth.look(window) != threads:
            self._tell(self._growth.threads)
        if self._growth.pause:
            self._due, self._before = now + self._growth.pause, None

    def _tell(self, threads: int) -> None:
        """Pass the number of threads to the backend and to the rank's tasks."""
        if self._modifying is not None:
            self._pool.limit(self._ranks, self._modifying())
            self._modifying = None
        self._pool.want(threads)
        self._under_way.allow(slots_for(threads))


def slots_for(threads: int) -> int:
    """Return how many tasks may be under way with this number of threads."""
    return SLOTS_BESIDE + threads // 2 if threads else 1


def _read(path: str) -> bytes:
    with open(path, "rb") as file:  # importing pathlib takes longer than a small copy
        return file.read()


def run_queue_delay() -> float:
    """Return how many seconds all threads of this process were ready to run and waited for a processor; 0 if
    unknown.
    """
    total, threads = 0, list[str]()
    with suppress(OSError):
        threads = os.listdir("/proc/self/task")
    for thread in threads:
        with suppress(OSError, ValueError, IndexError):  # The thread has ended, or the Linux kernel does not count.
            total += int(_read(f"/proc/self/task/{thread}/schedstat").split()[1])
    return total / 1e9


def modifying_at_once(kinds: Iterable[int], ranks: int, places: Iterable[str] = _MODIFYING) -> int:
    """Return how many rows may modify metadata at the same time; 0: any number.

    ``kinds`` are the types (f_type) of the targets' file systems, ``places`` directories of Lustre's parameters. A
    Lustre client sends a limited number of modifying requests to a metadata server at the same time. More would wait in
    the client.
    """
    if LUSTRE not in kinds:
        return 0
    limits = []
    for place in places:
        with suppress(OSError):
            for client in os.listdir(place):
                with suppress(OSError, ValueError):
                    limits.append(int(_read(os.path.join(place, client, "max_mod_rpcs_in_flight"))))
    return max(1, min(limits, default=_MODIFYING_DEFAULT) // ranks)
