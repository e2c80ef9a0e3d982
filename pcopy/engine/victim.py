"""Work stealing, the victim's side: what a rank gives, and which of its tasks it divides for others.

A task that is divided is over as if it had run, done nothing and spawned its portions, which stand in its place. Only
a task that is open to all and not begun is divided. Whoever hands ``divide`` in knows how long a task takes, and
whether it is worth dividing: sooner if somebody is hungry, which is who has asked lately.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from pcopy.engine.messages import Request
from pcopy.engine.queue import TaskQueue
from pcopy.engine.steering import Duty, Steering
from pcopy.engine.task import ANYBODY, Spawn, Task, TaskId
from pcopy.engine.under_way import UnderWay
from pcopy.named import NamedTuple

HUNGRY = 0.5
"""Seconds after a request for which it is taken that others have nothing to do: a thief asks a rank but seldom."""

Divide = Callable[[Task, bool], Sequence[Spawn]]
"""The portions of a task, each of its phase and open to all; none if it is not to be divided. Is somebody hungry?"""


class _Asking(NamedTuple):
    """A rank that waits for tasks ``until`` then, in seconds."""

    source: int
    request: Request
    until: float


class Victim:
    """``now``, in seconds, is kept up to date by the node."""

    def __init__(
        self,
        queue: TaskQueue,
        under_way: UnderWay,
        divide: Divide,
        over: Callable[[Task, Sequence[Spawn]], None],
        steering: Steering,
    ) -> None:
        """``over`` is told of each task that is divided, and of its portions, which it puts into the queue."""
        self._queue = queue
        self._under_way = under_way
        self._divide = divide
        self._over = over
        self._steering = steering
        self._asking: list[_Asking] = []
        self._hungry_until = -inf
        self._whole: TaskId | None = None  # the last task that was not to be divided
        self.now = 0.0

    @property
    def is_hungry(self) -> bool:
        """Has somebody asked lately?"""
        return self.now < self._hungry_until

    def start_afresh(self) -> None:
        """A phase begins: who was hungry is no more."""
        self._hungry_until = -inf

    def asked(self, source: int, request: Request, now: float) -> None:
        """Rank ``source`` has nothing to do; it is told by one of the next ``answers``."""
        self._hungry_until = now + HUNGRY
        self._asking.append(_Asking(source, request, now + request.patience))

    @property
    def wake_at(self) -> float:
        """When somebody loses patience, who has asked."""
        return min((each.until for each in self._asking), default=inf)

    def answers(self, phase: int, now: float) -> list[tuple[int, Request, tuple[Task, ...]]]:
        """Who is to be answered, in their order, and with which tasks; ``phase`` is -1 if there can't be any.

        Who asks in another phase gets none, and whoever else gets none yet may wait.
        """
        self.now = now
        if not self._asking:
            return []
        answers, asking, self._asking = [], self._asking, []
        has_some = not self._under_way.is_untouched or self._rests  # what can't begin here need not run a slice
        for each in asking:
            is_current = each.request.phase == phase
            tasks = self._give() if is_current and has_some else ()
            has_some = has_some and (not is_current or bool(tasks))
            self._under_way.given += len(tasks)
            if tasks or not is_current or now >= each.until:
                answers.append((each.source, each.request, tasks))
            else:
                self._asking.append(each)
        return answers

    def _give(self) -> tuple[Task, ...]:
        """Half of what others could run. If that is one task, it is divided, if it can be."""
        task = self._queue.take_lone()
        if task is not None and (task.id == self._whole or not self._is_divided(task, hungry=True)):
            self._whole = task.id
            self._queue.put_back(task)
        return self._queue.give(len(self._under_way) > 0 or self._rests)

    @property
    def _rests(self) -> bool:
        """May others have all that this rank has?"""
        return self._steering.duty is not Duty.ALL

    def may_begin(self) -> bool:
        """Is something to be begun? While somebody is hungry, no more than stays for others."""
        if not (self._under_way.has_room and len(self._queue)):
            return False
        if self._rests:
            return self._queue.has_addressed and (self._steering.duty is Duty.ADDRESSED or self._queue.has_note)
        return not self.is_hungry or self._queue.notes > 0 or self._queue.open > len(self._under_way)

    def take(self) -> Task | None:
        """What is to be begun; a portion of it, if it takes long: nobody else can help once it has been begun."""
        task = self._queue.pop()
        if task is not None and self._is_divided(task, hungry=self.is_hungry):
            task = self._queue.pop()
        return task

    def _is_divided(self, task: Task, *, hungry: bool) -> bool:
        portions = self._divide(task, hungry) if task.owner == ANYBODY else ()
        if portions:
            self._over(task, portions)
        return bool(portions)
