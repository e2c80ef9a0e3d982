"""How many operations a rank keeps under way: one as long as they do not wait, else as many as make it faster.

``Growth`` decides, from measurements alone. ``InFlight`` measures, and tells the kernel and the rank's tasks.
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
"""Operations under way that the ranks of one host grow to; each has its part."""

WAITING = 0.5
"""The part of their time that operations must wait before there are more of them."""

LONG = 0.00005
"""Seconds that an operation must wait on the average: what local file systems wait for on a busy host is shorter."""

GAIN = 1.1
"""How many times as many operations a second a step must bring."""

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
"""Seconds for which a rank is content after a step that has brought too little; twice as many each time."""

WINDOW = 0.05
"""Seconds of work that are measured at least."""

WINDOW_OPERATIONS = 20
"""Operations of each thread that are measured at least."""

SLOTS_BESIDE = 4
"""Tasks that a rank may have under way, and half as many more as it has threads: so that these find enough directories,
even if each has few files."""

_MODIFYING = ("/sys/fs/lustre/mdc", "/proc/fs/lustre/mdc")
_MODIFYING_DEFAULT = 7  # of Lustre's clients


class Measured(NamedTuple):
    """What was measured: seconds as in ``Load``, and ``delay``, for which threads could run and got no processor."""

    busy: float
    wall: float
    processor: float
    delay: float
    operations: int

    @property
    def rate(self) -> float:
        """Operations a second."""
        return self.operations / self.busy if self.busy > 0 else 0.0

    @property
    def at_once(self) -> float:
        """How many operations were under way, on the average, while there were any."""
        return self.wall / self.busy if self.busy > 0 else 0.0

    @property
    def waiting(self) -> float:
        """The part of the time of operations in which they waited."""
        return (self.wall - self.processor - self.delay) / self.wall if self.wall > 0 else 0.0


class Growth:
    """From window to window: how many threads there shall be. 0: the rank itself does the operations, one by one."""

    def __init__(self, most: int) -> None:
        self.threads = 0
        self.pause = 0.0
        """Seconds until the next window is of any interest."""
        self._most = most if most > 1 else 0
        self._before: tuple[int, float] | None = None  # threads and rate, before the last step
        self._doubted: tuple[int, int, float] | None = None  # a step that seems to bring too little: from, to, the rate
        self._is_new = False  # a row that the rank itself has begun is still under way when the first threads begin
        self._patience = FIRST_PAUSE

    @property
    def is_settled(self) -> bool:
        """Is there nothing more to find out?"""
        return self.threads >= self._most and self._before is None and self._doubted is None

    def shrink(self) -> None:
        """From now on there are half as many at most."""
        self.threads //= 2
        self._most, self._before, self._doubted, self._is_new = self.threads, None, None, False

    def look(self, window: Measured) -> int:
        """What follows from a window that began when the last one ended, or after the pause."""
        self.pause = 0.0
        if self._is_new:
            self._is_new = False
            return self.threads
        if self._before is not None:
            fewer, rate = self._before
            if window.at_once < GAIN * max(1, fewer):
                return self.threads if _waits(window) or not window.wall else self._rest(fewer)
            self._before = None
            if window.rate < GAIN * rate:
                self._doubted = fewer, self.threads, window.rate
                self.threads = max(1, fewer)  # to none it would go when no ticket is under way, which may take long
                return self.threads
            self._patience = FIRST_PAUSE
        if self._doubted is not None:
            return self._judge_again(window, *self._doubted)
        if not _waits(window):
            self.pause = FIRST_PAUSE
        elif self.threads < self._most:
            self._before = self.threads, window.rate
            self._is_new = not self.threads
            self.threads = min(max(2, 2 * self.threads), self._most)
        return self.threads

    def _judge_again(self, window: Measured, fewer: int, more: int, rate: float) -> int:
        """With fewer threads once more: it may be that the work is another one than before the step."""
        if window.at_once > GAIN * self.threads:
            return self.threads  # the others do not rest yet
        self._doubted = None
        if rate >= GAIN * window.rate:
            self.threads = more
            return more
        return self._rest(fewer)

    def _rest(self, fewer: int) -> int:
        """The last step is taken back."""
        self._before, self.threads, self.pause = None, fewer, self._patience
        self._patience = min(2 * self._patience, LONGEST_PAUSE)
        return fewer


def _waits(window: Measured) -> bool:
    """Do operations wait so long that more of them are worth a try?"""
    return window.waiting >= WAITING and window.waiting * window.wall >= LONG * window.operations


class InFlight:
    """Looked at between slices, by the main thread of a rank."""

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
        """``asked``: so many operations, whatever they gain; 0: as ``Growth`` finds. So many ``ranks`` share the host.
        ``modifying`` is asked, once there are threads, how many rows may change something at a time (0: any number);
        ``delay`` for that of all threads so far, in seconds."""
        self._pool = pool
        self._ranks = ranks
        self._modifying: Callable[[], int] | None = modifying
        self._under_way = under_way
        most = affordable_threads()
        self._growth = Growth(0 if asked else min(MOST_OF_HOST // ranks, most))
        self._short = 0
        """The value of ``shortage.met`` at the last look."""
        self._clock = clock
        self._delay = delay or run_queue_delay
        self._due = 0.0
        self._before: tuple[float, float, Load] | None = None  # the time and the delay then
        if min(asked, most) > 1:
            self._growth.threads = min(asked, most)
            self._tell(self._growth.threads)

    def look(self) -> None:
        """Measures, if it is time for that, and grows, if that follows; shrinks where descriptors have run out."""
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
        part = min(1.0, wall / ((now - began) * max(1, threads)))  # of its time in which a thread did operations
        window = Measured(busy, wall, load.processor - before.processor, (delays - delay) * part, operations)
        self._before = now, delays, load
        if self._growth.look(window) != threads:
            self._tell(self._growth.threads)
        if self._growth.pause:
            self._due, self._before = now + self._growth.pause, None

    def _tell(self, threads: int) -> None:
        if self._modifying is not None:
            self._pool.limit(self._ranks, self._modifying())
            self._modifying = None
        self._pool.want(threads)
        self._under_way.allow(slots_for(threads))


def slots_for(threads: int) -> int:
    """Tasks that may be under way with so many threads."""
    return SLOTS_BESIDE + threads // 2 if threads else 1


def _read(path: str) -> bytes:
    with open(path, "rb") as file:  # pathlib takes longer to load than many a copy
        return file.read()


def run_queue_delay() -> float:
    """For how long all threads of this process could run and got no processor, in seconds; 0 where nobody tells."""
    total, threads = 0, list[str]()
    with suppress(OSError):
        threads = os.listdir("/proc/self/task")
    for thread in threads:
        with suppress(OSError, ValueError, IndexError):  # it has ended, or the kernel does not count
            total += int(_read(f"/proc/self/task/{thread}/schedstat").split()[1])
    return total / 1e9


def modifying_at_once(kinds: Iterable[int], ranks: int, places: Iterable[str] = _MODIFYING) -> int:
    """Rows that may change anything at a time, on targets of these ``kinds`` (f_type); 0: any number.

    A client of Lustre sends only so many requests of that sort to a metadata server at a time; more would wait in it.
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
