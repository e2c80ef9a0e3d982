"""How many operations a rank keeps under way: one while they do not wait, else as many as increase the throughput.

``ThreadCountPolicy`` decides from measurements. ``OperationLimit`` measures, and passes the decision to the backend's
threads and the rank's tasks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from pcopy.engine.begun_tasks import BegunTasks
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.interface import PoolLoad, ThreadPool
from pcopy.fsio.directories import affordable_thread_count
from pcopy.fsio.layout import LUSTRE_TYPE
from pcopy.fsio.retries import descriptor_shortage

MAX_PER_HOST = 64
"""Operations under way, of all ranks of one host together, up to which the number grows automatically."""

MIN_WAITING_SHARE = 0.5
"""Share of their time that operations must spend waiting before more threads are tried."""

MIN_WAITING_TIME = 0.00005
"""Seconds that an operation must wait on average before more threads are tried. On a busy host, operations of
local file systems wait for less.
"""

MIN_GAIN = 1.1
"""Factor by which more threads must increase the operations per second."""

FIRST_PAUSE = 1.0
"""Seconds before the next attempt after more threads have brought too little."""
LONGEST_PAUSE = 60.0
"""Maximum of that pause in seconds; it doubles after each such attempt."""

MIN_MEASUREMENT = 0.05
"""Minimum length of a measurement, in seconds of work."""

MIN_OPERATIONS = 20
"""Minimum length of a measurement, in operations per thread."""

EXTRA_SLOTS = 4
"""Tasks that a rank may have under way, in addition to half the number of its threads.

So the threads find enough directories to work on, even if each has few files.
"""

_LUSTRE_CLIENT_DIRECTORIES = ("/sys/fs/lustre/mdc", "/proc/fs/lustre/mdc")
_DEFAULT_MODIFYING_REQUESTS = 7
"""Default of Lustre clients for max_mod_rpcs_in_flight."""


class Measurement(NamedTuple):
    """A measurement. Times are in seconds and mean the same as in ``PoolLoad``.

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
    def concurrency(self) -> float:
        """Average number of operations under way, over the time in which there was at least one."""
        return self.wall / self.busy if self.busy > 0 else 0.0

    @property
    def waiting_share(self) -> float:
        """Share of the operations' time in which they waited for something else than a processor."""
        return (self.wall - self.processor - self.delay) / self.wall if self.wall > 0 else 0.0


class ThreadCountPolicy:
    """Decides how many threads there should be, from one measurement to the next.

    With ``threads`` 0 the rank itself performs the operations, one after the other.
    """

    def __init__(self, most: int) -> None:
        """Start without threads; ``most`` is their maximum."""
        self.threads = 0
        self.pause = 0.0
        """Seconds until the next measurement is needed."""
        self._most = most if most > 1 else 0
        self._before_increase: tuple[int, float] | None = None  # number of threads and rate before the last increase
        self._doubtful_increase: tuple[int, int, float] | None = (
            None  # an increase that seems to bring too little: from, to, rate after it
        )
        self._just_started = (
            False  # The first threads were just started: a row that the rank itself began may still be under way.
        )
        self._next_pause = FIRST_PAUSE

    @property
    def is_final(self) -> bool:
        """True if no further measurement is needed."""
        return self.threads >= self._most and self._before_increase is None and self._doubtful_increase is None

    def shrink(self) -> None:
        """Halve the number of threads, and do not exceed that number again."""
        self.threads //= 2
        self._most, self._before_increase, self._doubtful_increase, self._just_started = self.threads, None, None, False

    def next_count(self, measured: Measurement) -> int:
        """Return the number of threads that follows from a measurement.

        The measurement must begin when the last one ended, or after the pause.
        """
        self.pause = 0.0
        if self._just_started:
            self._just_started = False
            return self.threads
        if self._before_increase is not None:
            fewer, rate = self._before_increase
            if measured.concurrency < MIN_GAIN * max(1, fewer):
                return self.threads if _is_waiting(measured) or not measured.wall else self._reduce(fewer)
            self._before_increase = None
            if measured.rate < MIN_GAIN * rate:
                self._doubtful_increase = fewer, self.threads, measured.rate
                self.threads = max(1, fewer)  # not 0, which would have to wait until no ticket is under way
                return self.threads
            self._next_pause = FIRST_PAUSE
        if self._doubtful_increase is not None:
            return self._recheck_increase(measured, *self._doubtful_increase)
        if not _is_waiting(measured):
            self.pause = FIRST_PAUSE
        elif self.threads < self._most:
            self._before_increase = self.threads, measured.rate
            self._just_started = not self.threads
            self.threads = min(max(2, 2 * self.threads), self._most)
        return self.threads

    def _recheck_increase(self, measured: Measurement, fewer: int, more: int, rate: float) -> int:
        """Decide on a doubtful increase after a measurement with fewer threads: the work itself may have changed
        meanwhile.
        """
        if measured.concurrency > MIN_GAIN * self.threads:
            return self.threads  # The additional threads have not stopped yet.
        self._doubtful_increase = None
        if rate >= MIN_GAIN * measured.rate:
            self.threads = more
            return more
        return self._reduce(fewer)

    def _reduce(self, fewer: int) -> int:
        """Return to ``fewer`` threads, and pause before the next attempt; the pause doubles each time."""
        self._before_increase, self.threads, self.pause = None, fewer, self._next_pause
        self._next_pause = min(2 * self._next_pause, LONGEST_PAUSE)
        return fewer


def _is_waiting(measured: Measurement) -> bool:
    """True if operations wait so long that more threads are worth an attempt."""
    return (
        measured.waiting_share >= MIN_WAITING_SHARE
        and measured.waiting_share * measured.wall >= MIN_WAITING_TIME * measured.operations
    )


class OperationLimit:
    """Adapts the number of operations under way of one rank; called by its main thread between slices."""

    def __init__(
        self,
        pool: ThreadPool,
        under_way: BegunTasks,
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
        most = affordable_thread_count()
        self._policy = ThreadCountPolicy(0 if asked else min(MAX_PER_HOST // ranks, most))
        self._known_shortages = 0
        """Value of ``shortage.met`` when it was checked last."""
        self._clock = clock
        self._delay = delay or processor_wait_seconds
        self._due = 0.0
        self._start_of_measurement: tuple[float, float, PoolLoad] | None = (
            None  # time, delay and load at the start of the measurement
        )
        if min(asked, most) > 1:
            self._policy.threads = min(asked, most)
            self._set_threads(self._policy.threads)

    def measure_and_adapt(self) -> None:
        """Measure if that is due, and change the number of threads if necessary; halve it after a shortage of
        descriptors.
        """
        if descriptor_shortage.error_count != self._known_shortages:
            self._known_shortages = descriptor_shortage.error_count
            self._policy.shrink()
            self._set_threads(self._policy.threads)
            self._start_of_measurement = None
        now = self._clock()
        if now < self._due or self._policy.is_final:
            return
        self._due = now + MIN_MEASUREMENT
        load = self._pool.load()
        if self._start_of_measurement is None:
            self._start_of_measurement = now, self._delay(), load
            return
        began, delay, before = self._start_of_measurement
        threads = self._policy.threads
        busy, operations = load.busy - before.busy, load.operations - before.operations
        if busy < MIN_MEASUREMENT or operations < MIN_OPERATIONS * max(1, threads):
            return
        delays, wall = self._delay(), load.wall - before.wall
        part = min(
            1.0, wall / ((now - began) * max(1, threads))
        )  # share of the time in which a thread performed operations
        window = Measurement(busy, wall, load.processor - before.processor, (delays - delay) * part, operations)
        self._start_of_measurement = now, delays, load
        if self._policy.next_count(window) != threads:
            self._set_threads(self._policy.threads)
        if self._policy.pause:
            self._due, self._start_of_measurement = now + self._policy.pause, None

    def _set_threads(self, threads: int) -> None:
        """Pass the number of threads to the backend and to the rank's tasks."""
        if self._modifying is not None:
            self._pool.set_limits(self._ranks, self._modifying())
            self._modifying = None
        self._pool.request_threads(threads)
        self._under_way.set_slots(task_slots(threads))


def task_slots(threads: int) -> int:
    """Return how many tasks may be under way with this number of threads."""
    return EXTRA_SLOTS + threads // 2 if threads else 1


def _read_file(path: str) -> bytes:
    with open(path, "rb") as file:  # importing pathlib takes longer than a small copy
        return file.read()


def processor_wait_seconds() -> float:
    """Return how many seconds all threads of this process were ready to run and waited for a processor; 0 if
    unknown.
    """
    total, threads = 0, list[str]()
    with suppress(OSError):
        threads = os.listdir("/proc/self/task")
    for thread in threads:
        with suppress(OSError, ValueError, IndexError):  # The thread has ended, or the Linux kernel does not count.
            total += int(_read_file(f"/proc/self/task/{thread}/schedstat").split()[1])
    return total / 1e9


def max_modifying_rows(kinds: Iterable[int], ranks: int, places: Iterable[str] = _LUSTRE_CLIENT_DIRECTORIES) -> int:
    """Return how many rows may modify metadata at the same time; 0: any number.

    ``kinds`` are the types (f_type) of the targets' file systems, ``places`` directories of Lustre's parameters. A
    Lustre client sends a limited number of modifying requests to a metadata server at the same time. More would wait in
    the client.
    """
    if LUSTRE_TYPE not in kinds:
        return 0
    limits = []
    for place in places:
        with suppress(OSError):
            for client in os.listdir(place):
                with suppress(OSError, ValueError):
                    limits.append(int(_read_file(os.path.join(place, client, "max_mod_rpcs_in_flight"))))
    return max(1, min(limits, default=_DEFAULT_MODIFYING_REQUESTS) // ranks)
