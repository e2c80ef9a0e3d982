"""Work stealing, the victim's side: which tasks a rank gives away, and which of its tasks it divides for other ranks.

Dividing a task replaces it by its *portions*: these are recorded as spawned, and the divided task as done without
counts. Only a task that any rank may run, and that has not begun, is divided. The function ``divide`` decides whether
that is worthwhile, since it knows how long a task takes. It divides sooner if another rank is *hungry*, that is, has
requested tasks within the last ``HUNGRY`` seconds.
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
"""Seconds after a request for which other ranks are assumed to have no work. A thief asks the same rank only rarely."""

Divide = Callable[[Task, bool], Sequence[Spawn]]
"""Function (task, hungry) that returns the portions of a task, or nothing if the task is not to be divided.

Each portion belongs to the phase of the task and may run on any rank. ``hungry`` is True if another rank has requested
tasks lately.
"""


class _Asking(NamedTuple):
    """A request that has not been answered."""

    source: int
    request: Request
    until: float
    """Time in seconds at which the request must be answered."""


class Victim:
    """The requests of other ranks for tasks, and the choice of the task that this rank begins next."""

    def __init__(
        self,
        queue: TaskQueue,
        under_way: UnderWay,
        divide: Divide,
        over: Callable[[Task, Sequence[Spawn]], None],
        steering: Steering,
    ) -> None:
        """Create the victim's side of one rank.

        Args:
            queue: tasks of this rank.
            under_way: tasks that this rank has begun.
            divide: returns the portions of a task.
            over: called with each divided task and its portions; adds the portions to the queue.
            steering: tells which tasks this rank may begin.
        """
        self._queue = queue
        self._under_way = under_way
        self._divide = divide
        self._over = over
        self._steering = steering
        self._asking: list[_Asking] = []
        self._hungry_until = -inf
        self._whole: TaskId | None = None  # the last task that ``divide`` left undivided
        self.now = 0.0
        """Current time in seconds. The node updates it."""

    @property
    def is_hungry(self) -> bool:
        """True if another rank has requested tasks within the last ``HUNGRY`` seconds."""
        return self.now < self._hungry_until

    def start_afresh(self) -> None:
        """Discard the knowledge of hungry ranks, since a new phase begins."""
        self._hungry_until = -inf

    def asked(self, source: int, request: Request, now: float) -> None:
        """Record a request from rank ``source``. It is answered later, when there are tasks or its time is over."""
        self._hungry_until = now + HUNGRY
        self._asking.append(_Asking(source, request, now + request.patience))

    @property
    def wake_at(self) -> float:
        """Time in seconds at which the first pending request must be answered; infinity if there is none."""
        return min((each.until for each in self._asking), default=inf)

    def answers(self, phase: int, now: float) -> list[tuple[int, Request, tuple[Task, ...]]]:
        """Return the requests to be answered now, in order of arrival, as (source, request, tasks).

        Args:
            phase: current phase, or -1 if no tasks may be given away.
            now: time in seconds.

        A request of another phase gets no tasks. A request for which there are no tasks yet stays pending until its
        time is over.
        """
        self.now = now
        if not self._asking:
            return []
        answers, asking, self._asking = [], self._asking, []
        has_some = not self._under_way.is_untouched or self._rests  # tasks that can't begin here
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
        """Remove and return half of the tasks that other ranks may run. A single such task is divided first if
        possible.
        """
        task = self._queue.take_lone()
        if task is not None and (task.id == self._whole or not self._is_divided(task, hungry=True)):
            self._whole = task.id
            self._queue.put_back(task)
        return self._queue.give(len(self._under_way) > 0 or self._rests)

    @property
    def _rests(self) -> bool:
        """True if other ranks may have all tasks of this rank, since this rank may not begin them."""
        return self._steering.duty is not Duty.ALL

    def may_begin(self) -> bool:
        """Return True if this rank may begin a task now.

        While another rank is hungry, this rank has no more tasks under way than it keeps queued for other ranks.
        """
        if not (self._under_way.has_room and len(self._queue)):
            return False
        if self._rests:
            return self._queue.has_addressed and (self._steering.duty is Duty.ADDRESSED or self._queue.has_note)
        return not self.is_hungry or self._queue.notes > 0 or self._queue.open > len(self._under_way)

    def take(self) -> Task | None:
        """Remove and return the task to begin, or None if there is none.

        A task that takes long is divided first, and one of its portions is returned: other ranks cannot help with a
        task that has begun.
        """
        task = self._queue.pop()
        if task is not None and self._is_divided(task, hungry=self.is_hungry):
            task = self._queue.pop()
        return task

    def _is_divided(self, task: Task, *, hungry: bool) -> bool:
        """Divide ``task`` if that is allowed and worthwhile; return True if it was divided."""
        portions = self._divide(task, hungry) if task.owner == ANYBODY else ()
        if portions:
            self._over(task, portions)
        return bool(portions)
