"""Decides how many operations (system calls on one item) a rank keeps in progress at the same time: one while the
operations hardly wait for storage, otherwise as many threads as increase the throughput.

``ThreadCountPolicy`` decides from measurements. ``ThreadCountController`` measures, and sets the number of the threads
that perform operations (the backend's pool) and of the tasks that the rank may have begun.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from pcopy.engine.begun_tasks import BegunTasks
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.interface import ThreadPool, ThreadPoolLoad
from pcopy.fsio.directories import affordable_thread_count
from pcopy.fsio.layout import LUSTRE_TYPE
from pcopy.fsio.retries import descriptor_shortage

MAX_THREADS_PER_HOST = 64
"""Maximum number of threads that perform operations, for all ranks of one host together, if the user does not give a
number.
"""

MIN_WAITING_SHARE = 0.5
"""More threads are tried only if operations (system calls on files) spend at least this fraction of their time
waiting.
"""

MIN_WAITING_TIME = 0.00005
"""More threads are tried only if an operation (a system call on a file) waits for at least this number of seconds on
average. Operations on local file systems wait for less time, even on a busy host.
"""

MIN_THROUGHPUT_GAIN = 1.1
"""Factor by which an increase of the number of threads must increase the operations per second; otherwise it is
undone.
"""

FIRST_PAUSE_BEFORE_RETRY = 1.0
"""Seconds to wait after an increase of the number of threads that did not increase the throughput enough, before the
next attempt.
"""
LONGEST_PAUSE_BEFORE_RETRY = 60.0
"""Maximum seconds to wait before more threads are tried again. The wait doubles, from ``FIRST_PAUSE_BEFORE_RETRY``,
with each attempt that did not increase the throughput enough.
"""

MIN_MEASUREMENT_SECONDS = 0.05
"""Minimum length of a measurement of the throughput, in seconds in which at least one operation was in progress."""

MIN_OPERATIONS_PER_THREAD = 20
"""Minimum length of a measurement of the throughput, in operations per thread."""

EXTRA_TASK_SLOTS = 4
"""A rank may have begun, and not ended, this number of tasks plus half the number of its threads.

With several tasks the threads have enough directories to work on, even if each has few files.
"""

_LUSTRE_CLIENT_DIRECTORIES = ("/sys/fs/lustre/mdc", "/proc/fs/lustre/mdc")
"""Directories in which a Lustre client has one directory of parameters for each metadata server."""
_DEFAULT_MODIFYING_REQUESTS = 7
"""How many requests that modify metadata a Lustre client sends to a server at the same time, if the configured number
(max_mod_rpcs_in_flight) cannot be read.
"""


class ThroughputMeasurement(NamedTuple):
    """What the threads of a rank did in one period: operations (system calls on files), and how long these ran and
    waited.

    Fields:
    - ``busy``: seconds in which operations were in progress, that is, a batch of them was unfinished.
    - ``wall``: sum of the seconds that the threads spent on operations.
    - ``processor``: sum of the seconds of processor time that the threads used for operations.
    - ``delay``: sum of the seconds in which threads were ready to run and waited for a processor.
    - ``operations``: approximate number of system calls.
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
        """Average number of operations in progress, over the time in which there was at least one."""
        return self.wall / self.busy if self.busy > 0 else 0.0

    @property
    def waiting_time_fraction(self) -> float:
        """Fraction of the operations' time in which they waited for something else than a processor, such as
        storage.
        """
        return (self.wall - self.processor - self.delay) / self.wall if self.wall > 0 else 0.0


class ThreadCountPolicy:
    """Decides from measurements of the throughput how many threads of a rank perform operations (system calls on
    files). Uses no clock and no threads itself.

    While ``threads`` is 0, the rank's main thread performs the operations, one after the other.
    """

    def __init__(self, most: int) -> None:
        """Start without threads; ``most`` is the maximum number of threads."""
        self.threads = 0
        """Number of threads according to the last decision."""
        self.pause = 0.0
        """Seconds to wait before the next measurement of the throughput."""
        self._most = most if most > 1 else 0
        self._before_increase: tuple[int, float] | None = None  # number of threads and rate before the last increase
        self._doubtful_increase: tuple[int, int, float] | None = (
            None  # an increase that seems not to help: number of threads before, number after, rate after
        )
        self._just_started = (
            False  # The first threads were just started: an operation of the main thread may still be in progress.
        )
        self._next_pause = FIRST_PAUSE_BEFORE_RETRY

    @property
    def is_thread_count_final(self) -> bool:
        """True if the number of threads will not change any more, so that no measurement is needed: the maximum is
        reached and no increase is being examined.
        """
        return self.threads >= self._most and self._before_increase is None and self._doubtful_increase is None

    def halve_thread_limit(self) -> None:
        """Halve the number of threads, and let the new number be the maximum from now on. Called when the process lacks
        file descriptors.
        """
        self.threads //= 2
        self._most, self._before_increase, self._doubtful_increase, self._just_started = self.threads, None, None, False

    def next_thread_count(self, measured: ThroughputMeasurement) -> int:
        """Return the number of threads to use from now on, after the throughput was measured; set ``pause``.

        ``measured`` must begin when the last measurement ended, or after the pause.
        """
        self.pause = 0.0
        if self._just_started:
            self._just_started = False
            return self.threads
        if self._before_increase is not None:
            fewer, rate = self._before_increase
            if measured.concurrency < MIN_THROUGHPUT_GAIN * max(1, fewer):
                return (
                    self.threads
                    if _are_operations_waiting(measured) or not measured.wall
                    else self._reduce_threads(fewer)
                )
            self._before_increase = None
            if measured.rate < MIN_THROUGHPUT_GAIN * rate:
                self._doubtful_increase = fewer, self.threads, measured.rate
                # Not 0, because the main thread could perform operations only after those of all threads have ended.
                self.threads = max(1, fewer)
                return self.threads
            self._next_pause = FIRST_PAUSE_BEFORE_RETRY
        if self._doubtful_increase is not None:
            return self._recheck_increase(measured, *self._doubtful_increase)
        if not _are_operations_waiting(measured):
            self.pause = FIRST_PAUSE_BEFORE_RETRY
        elif self.threads < self._most:
            self._before_increase = self.threads, measured.rate
            self._just_started = not self.threads
            self.threads = min(max(2, 2 * self.threads), self._most)
        return self.threads

    def _recheck_increase(self, measured: ThroughputMeasurement, fewer: int, more: int, rate: float) -> int:
        """Decide again whether to use ``more`` threads. They seemed not to help, so ``fewer`` threads were measured in
        between (``measured``); return the number of threads.

        If the fewer threads are as slow now, the work itself has become slower, and the increase is repeated. ``rate``
        is the number of operations per second with ``more`` threads.
        """
        if measured.concurrency > MIN_THROUGHPUT_GAIN * self.threads:
            return self.threads  # The additional threads have not stopped yet.
        self._doubtful_increase = None
        if rate >= MIN_THROUGHPUT_GAIN * measured.rate:
            self.threads = more
            return more
        return self._reduce_threads(fewer)

    def _reduce_threads(self, fewer: int) -> int:
        """Reduce the threads to ``fewer``, and pause before the next attempt with more; the pause doubles each time.
        Return ``fewer``.
        """
        self._before_increase, self.threads, self.pause = None, fewer, self._next_pause
        self._next_pause = min(2 * self._next_pause, LONGEST_PAUSE_BEFORE_RETRY)
        return fewer


def _are_operations_waiting(measured: ThroughputMeasurement) -> bool:
    """Return True if the measured operations spend so much time waiting (for storage) that more threads may increase
    the throughput.
    """
    return (
        measured.waiting_time_fraction >= MIN_WAITING_SHARE
        and measured.waiting_time_fraction * measured.wall >= MIN_WAITING_TIME * measured.operations
    )


class ThreadCountController:
    """Adapts the number of threads that perform the operations (system calls on files) of one rank, and the number of
    tasks that the rank may have begun. The rank's main thread calls it often.
    """

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
        """Start with a fixed number of threads, or with none if the number is automatic.

        Args:
            pool: the threads that perform operations.
            under_way: the tasks that the rank has begun; their maximum number follows the number of threads.
            asked: a fixed number of threads; 0: automatic.
            ranks: number of ranks on this host, which share the maximum number of threads.
            modifying: called when threads are first used; returns how many operations of this rank may modify metadata
                at the same time (0: any number).
            clock: returns the time in seconds.
            delay: returns the sum of the seconds in which this process's threads have waited for a processor.
        """
        self._pool = pool
        self._ranks = ranks
        self._modifying: Callable[[], int] | None = modifying
        self._under_way = under_way
        most = affordable_thread_count()
        self._policy = ThreadCountPolicy(0 if asked else min(MAX_THREADS_PER_HOST // ranks, most))
        self._known_shortages = 0
        """How often system calls had failed for lack of file descriptors when this was checked last."""
        self._clock = clock
        self._delay = delay or processor_wait_seconds
        self._due = 0.0
        self._start_of_measurement: tuple[float, float, ThreadPoolLoad] | None = (
            None  # time, delay and load at the start of the measurement
        )
        if min(asked, most) > 1:
            self._policy.threads = min(asked, most)
            self._set_threads(self._policy.threads)

    def measure_and_adapt_thread_count(self) -> None:
        """Measure the throughput if that is due, and change the number of threads if that promises more. Halve the
        number if a system call has failed for lack of file descriptors since the last call.
        """
        if descriptor_shortage.error_count != self._known_shortages:
            self._known_shortages = descriptor_shortage.error_count
            self._policy.halve_thread_limit()
            self._set_threads(self._policy.threads)
            self._start_of_measurement = None
        now = self._clock()
        if now < self._due or self._policy.is_thread_count_final:
            return
        self._due = now + MIN_MEASUREMENT_SECONDS
        load = self._pool.thread_pool_load()
        if self._start_of_measurement is None:
            self._start_of_measurement = now, self._delay(), load
            return
        began, delay, before = self._start_of_measurement
        threads = self._policy.threads
        busy, operations = load.busy - before.busy, load.operations - before.operations
        if busy < MIN_MEASUREMENT_SECONDS or operations < MIN_OPERATIONS_PER_THREAD * max(1, threads):
            return
        delays, wall = self._delay(), load.wall - before.wall
        part = min(
            1.0, wall / ((now - began) * max(1, threads))
        )  # share of the time in which a thread performed operations
        window = ThroughputMeasurement(
            busy, wall, load.processor - before.processor, (delays - delay) * part, operations
        )
        self._start_of_measurement = now, delays, load
        if self._policy.next_thread_count(window) != threads:
            self._set_threads(self._policy.threads)
        if self._policy.pause:
            self._due, self._start_of_measurement = now + self._policy.pause, None

    def _set_threads(self, threads: int) -> None:
        """Set the number of threads of the pool, and the number of tasks that the rank may have begun."""
        if self._modifying is not None:
            self._pool.set_concurrency_limits(self._ranks, self._modifying())
            self._modifying = None
        self._pool.request_threads(threads)
        self._under_way.set_max_begun_tasks(task_slots_for_threads(threads))


def task_slots_for_threads(threads: int) -> int:
    """Return how many tasks a rank may have begun and not ended, if it has this number of threads."""
    return EXTRA_TASK_SLOTS + threads // 2 if threads else 1


def _read_file(path: str) -> bytes:
    with open(path, "rb") as file:  # importing pathlib takes longer than a small copy
        return file.read()


def processor_wait_seconds() -> float:
    """Return the sum of the seconds in which the threads of this process were ready to run and waited for a processor;
    0 if it is unknown.
    """
    total, threads = 0, list[str]()
    with suppress(OSError):
        threads = os.listdir("/proc/self/task")
    for thread in threads:
        with suppress(OSError, ValueError, IndexError):  # The thread has ended, or the Linux kernel does not count.
            total += int(_read_file(f"/proc/self/task/{thread}/schedstat").split()[1])
    return total / 1e9


def max_modifying_operations(
    kinds: Iterable[int], ranks: int, places: Iterable[str] = _LUSTRE_CLIENT_DIRECTORIES
) -> int:
    """Return how many operations of one rank should modify metadata (create, remove, chmod, ...) at the same time; 0:
    any number.

    A Lustre client sends a limited number of modifying requests to a metadata server at the same time. Further
    operations would only wait in the client.

    Args:
        kinds: types (f_type of statfs(2)) of the file systems that are written to.
        ranks: number of ranks on this host, which share the limit.
        places: directories with the parameters of the Lustre client.
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
