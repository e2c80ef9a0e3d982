"""Virtual time, in which the threads of a job take turns, until they have ended or the world is ended.

A ``Strand`` is a real thread that runs real code of pcopy: a rank, or the thread beside a rank that writes its journal.
One strand at a time runs, and all else stands still, so that a seed decides everything. A strand goes on until it
waits for something, sleeps, or has made some system calls (``World.call``); each costs a little of its time.

A strand has a start, in which it reads and makes what a rank needs before its first task, and then its work. The calls
of a start take time and chance of their own, and the work begins when and as it would after any other start: so a
change of what pcopy does at first gives no other course to the jobs that a seed stands for.

When the world ends, each strand is woken once more and gets ``Ended``, and so does each system call that it makes on
its way out: what a program does while it is being killed has no effect.
"""

from __future__ import annotations

import heapq
import threading
import traceback
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

NEVER = float("inf")
MOST_EVENTS = 60_000
LONGEST_START = 100.0
"""Seconds after which all strands have begun to work."""

UNEVEN = 0.002
"""Seconds at most between two that begin at once."""


class Ended(BaseException):
    """The world has ended; no code of pcopy knows what to do about that."""


class Chance(NamedTuple):
    """What decides about one run, by streams that do not depend on one another: of its starts, and of its work."""

    key: str

    def stream(self, name: str) -> Random:
        """One more, for whatever has a name."""
        return Random(f"{self.key}, {name}")


class Strand:
    """One thread of the job, on the host ``client``; made by ``World.spawn``."""

    def __init__(self, world: World, name: str, client: int, action: Callable[[], object]) -> None:
        self.name = name
        self.client = client
        self.is_over = False
        self.has_begun = False
        """True once it has started."""
        self.waits = 0
        """The number of its wait: what would end an earlier one comes too late."""
        self.over = Signal(world)
        self.world = world
        self._action = action
        self._turn, self._back = threading.Lock(), threading.Lock()
        self._turn.acquire()
        self._back.acquire()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        self._turn.acquire()
        _local.strand = self
        try:
            if not self.world.is_over:
                self._action()
        except Ended:
            pass
        except BaseException:
            self.world.troubles.append(f"{self.name}: {traceback.format_exc()}")
        finally:
            self._action = _nothing  # what it holds goes now, and not in the midst of another world
            self.is_over = True
            self.world.living -= 1
            if not self.world.is_over:
                self.over.set()
            _local.strand = None
            self._back.release()

    def resume(self) -> None:
        """Lets it run until it waits, or has ended; called by the world's own thread."""
        if not self.is_over:
            self._turn.release()
            self._back.acquire()

    def leave(self) -> None:
        """Its turn is over; returns with its next one. Raises ``Ended``."""
        self._back.release()
        self._turn.acquire()
        if self.world.is_over:
            raise Ended


class Signal:
    """What strands wait for."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: list[tuple[Strand, int]] = []

    def wait(self, timeout: float = NEVER) -> None:
        """Until ``set``, or some seconds have passed."""
        strand = self._world.strand
        self._waiting.append((strand, strand.waits + 1))
        self._world.sleep(timeout)

    def set(self) -> None:
        """All that wait go on."""
        waiting, self._waiting = self._waiting, []
        for strand, number in waiting:
            self._world.wake(strand, number)


class World:
    """The clock (``now``, in seconds), and whose turn it is."""

    def __init__(self, chance: Chance, now: float, *, grain: int, cost: float) -> None:
        """A strand makes up to ``grain`` system calls in one go, each of which takes up to ``cost`` seconds."""
        self.chance = chance
        self.now = now
        self.begins = now + LONGEST_START
        """When those work that have made a start by then."""
        self.is_over = False
        self.events = 0
        self.count = self.starting = 0
        """The system calls so far, of the work and of starts."""
        self.calls: Any = None
        """Those that its strands make (``tests.recovery.calls``)."""
        self.on_event: Callable[[], None] = _nothing
        self.on_call: Callable[[], None] = _nothing
        self.at_end: list[Callable[[], object]] = []
        """Called when all strands have ended."""
        self.conditions: dict[int, Signal] = {}
        """What threads of C wait for, by address."""
        self.threads: list[Strand] = []
        """The threads of C."""
        self.noise = chance.stream("noise")
        """What the system's own source of chance gives."""
        self._at_work, self._at_start = chance.stream("work"), chance.stream("start")
        self._grain, self._cost = grain, cost
        self._left = 1
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._scheduled = 0
        self._strands: list[Strand] = []
        self.living = 0
        """Strands that are not over."""
        self.troubles: list[str] = []
        """What has ended some."""

    @property
    def strand(self) -> Strand:
        """The one that runs."""
        strand = current()
        assert strand is not None
        return strand

    @property
    def random(self) -> Random:
        """The stream of what goes on."""
        return self._stream(current())

    def _stream(self, strand: Strand | None) -> Random:
        return self._at_start if strand is not None and not strand.has_begun else self._at_work

    def spawn(self, name: str, client: int, action: Callable[[], object]) -> Strand:
        """A new thread, which makes its start at once."""
        strand = self._made(name, client, action)
        self.later(0.0, strand.resume)
        return strand

    def spawn_beside(self, action: Callable[[], object]) -> Strand:
        """A new thread that has no start of its own: it works at once, or with the strand that makes it."""
        above = self.strand
        strand = self._made(f"beside {above.name}", above.client, action)
        strand.has_begun = True
        self.later(0.0 if above.has_begun else self._until(strand), lambda: self._go_on(strand, 0))
        return strand

    def _made(self, name: str, client: int, action: Callable[[], object]) -> Strand:
        strand = Strand(self, name, client, action)
        self._strands.append(strand)
        self.living += 1
        return strand

    def begin(self) -> None:
        """The start of this strand is over; it goes on with its work."""
        strand = self.strand
        strand.has_begun = True
        self.sleep(self._until(strand))

    def _until(self, strand: Strand) -> float:
        """Seconds to its work."""
        assert self.now < self.begins, f"the start of {strand.name} takes more than {LONGEST_START} s"
        return self.begins + UNEVEN * self.chance.stream(f"begin {strand.name}").random() - self.now

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self._scheduled += 1
        heapq.heappush(self._events, (self.now + seconds, self._scheduled, call))

    def play(self) -> str:
        """Until all strands have ended, or the world has; returns what went wrong."""
        while self.living and not self.is_over:
            if not self._events:
                return self._stop(f"they wait for ever: {[each.name for each in self._strands if not each.is_over]}")
            at, _, call = heapq.heappop(self._events)
            self.now = max(self.now, at)
            self.events += self.now >= self.begins
            if self.events > MOST_EVENTS:
                return self._stop(f"it never ends: {[each.name for each in self._strands if not each.is_over]}")
            self.on_event()
            if not self.is_over:
                call()
            if self.troubles:
                break
        return self._stop("")

    def _stop(self, trouble: str) -> str:
        self.is_over = True
        for strand in self._strands:
            while not strand.is_over:
                strand.resume()
        while self.at_end:
            self.at_end.pop()()
        return trouble or next(iter(self.troubles), "")

    def end(self) -> None:
        """Everything ends now; raises ``Ended`` in a strand."""
        self.is_over = True
        if current() is not None:
            raise Ended

    # What strands do.

    def sleep(self, seconds: float) -> None:
        """Others have their turns until some seconds have passed, or something wakes this strand."""
        if self.is_over:
            raise Ended
        strand = self.strand
        strand.waits += 1
        if seconds < NEVER:
            number = strand.waits
            self.later(max(0.0, seconds), lambda: self._go_on(strand, number))
        strand.leave()

    def wake(self, strand: Strand, number: int) -> None:
        if strand.waits == number:
            self.later(0.0, lambda: self._go_on(strand, number))

    def _go_on(self, strand: Strand, number: int) -> None:
        if strand.waits == number:
            strand.waits += 1
            self._left = self._stream(strand).randint(1, self._grain)
            strand.resume()

    def call(self) -> None:
        """A system call begins. Raises ``Ended``."""
        if self.is_over:
            raise Ended
        strand = self.strand
        random = self._stream(strand)
        if strand.has_begun:
            self.count += 1
        else:
            self.starting += 1
        self.on_call()
        self.now += random.random() * self._cost
        self._left -= 1
        if self._left <= 0:
            self._left = random.randint(1, self._grain)
            if self._events and self._events[0][0] <= self.now:
                self.sleep(0.0)


class Queue:
    """In the place of ``queue.SimpleQueue``."""

    def __init__(self, world: World) -> None:
        self._items: deque[Any] = deque()
        self._filled = Signal(world)

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._filled.set()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return the next item. A limit of the time only serves to notice the end of a thread, which does not occur."""
        while not self._items:
            self._filled.wait()
        return self._items.popleft()


class BackgroundThread:
    """In the place of ``pcopy.background.BackgroundThread``."""

    def __init__(self, world: World, action: Callable[[], object]) -> None:
        self.error: BaseException | None = None
        self._strand = world.spawn_beside(action)
        self._world = world

    def join(self, patience: float | None) -> bool:
        end = self._world.now + (NEVER if patience is None else patience)
        while not self._strand.is_over and self._world.now < end:
            self._strand.over.wait(end - self._world.now)
        return self._strand.is_over

    def raise_error(self) -> None:
        """Memory is never short in the simulation, and an exception of any action ends it."""


class Mutex:
    """In the place of ``_thread.allocate_lock``, for those who wait as long as it takes."""

    def __init__(self, world: World) -> None:
        self._is_held = False
        self._freed = Signal(world)

    def __enter__(self) -> None:
        while self._is_held:
            self._freed.wait()
        self._is_held = True

    def __exit__(self, *_: object) -> None:
        self._is_held = False
        self._freed.set()


class OneShotSignal:
    """In the place of ``pcopy.background.OneShotSignal``."""

    def __init__(self, world: World) -> None:
        self._has_rung = False
        self._rings = Signal(world)

    def wait(self, seconds: float) -> bool:
        if not self._has_rung:
            self._rings.wait(seconds)
        return self._has_rung

    def send(self) -> None:
        self._has_rung = True
        self._rings.set()


def current() -> Strand | None:
    """The strand that this thread is, if it is one."""
    return getattr(_local, "strand", None)


def _nothing() -> None:
    pass


_local = threading.local()
