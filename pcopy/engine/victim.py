"""Work stealing, the victim's side: which tasks a rank gives away, and which of its tasks it divides for other ranks.

Dividing a task replaces it by its *portions*: these are recorded as spawned, and the divided task as done without
counts. Only a task that any rank may run, and that has not begun, is divided. The function ``divide`` decides whether
that is worthwhile, since it knows how long a task takes. It divides sooner if another rank is *hungry*, that is, has
requested tasks within the last ``HUNGRY_SECONDS`` seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from pcopy.engine.begun_tasks import BegunTasks
from pcopy.engine.messages import TaskRequest
from pcopy.engine.queue import TaskQueue
from pcopy.engine.steering import Duty, Steering
from pcopy.engine.task import ANY_RANK, NewTask, Task, TaskId
from pcopy.fast_named_tuple import NamedTuple

HUNGRY_SECONDS = 0.5
"""Seconds after a request for which other ranks are assumed to have no work. A thief asks the same rank only rarely."""

DivideTask = Callable[[Task, bool], Sequence[NewTask]]
"""Function (task, hungry) that returns the portions of a task, or nothing if the task is not to be divided.

Each portion belongs to the phase of the task and may run on any rank. ``hungry`` is True if another rank has requested
tasks lately.
"""


class _PendingRequest(NamedTuple):
    """A request that has not been answered."""

    source: int
    request: TaskRequest
    deadline: float
    """Time in seconds at which the request must be answered."""


class Victim:
    """The requests of other ranks for tasks, and the choice of the task that this rank begins next."""

    def __init__(
        self,
        queue: TaskQueue,
        under_way: BegunTasks,
        divide: DivideTask,
        over: Callable[[Task, Sequence[NewTask]], None],
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
        self._replace_by_portions = over
        self._steering = steering
        self._pending: list[_PendingRequest] = []
        self._hungry_until = -inf
        self._last_undivided: TaskId | None = None  # the last task that ``divide`` left undivided
        self.now = 0.0
        """Current time in seconds. The node updates it."""

    @property
    def has_thieves(self) -> bool:
        """True if another rank has requested tasks within the last ``HUNGRY_SECONDS`` seconds."""
        return self.now < self._hungry_until

    def forget_requests(self) -> None:
        """Discard the knowledge of hungry ranks, since a new phase begins."""
        self._hungry_until = -inf

    def receive_request(self, source: int, request: TaskRequest, now: float) -> None:
        """Record a request from rank ``source``. It is answered later, when there are tasks or its time is over."""
        self._hungry_until = now + HUNGRY_SECONDS
        self._pending.append(_PendingRequest(source, request, now + request.patience))

    @property
    def next_deadline(self) -> float:
        """Time in seconds at which the first pending request must be answered; infinity if there is none."""
        return min((each.deadline for each in self._pending), default=inf)

    def due_replies(self, phase: int, now: float) -> list[tuple[int, TaskRequest, tuple[Task, ...]]]:
        """Return the requests to be answered now, in order of arrival, as (source, request, tasks).

        Args:
            phase: current phase, or -1 if no tasks may be given away.
            now: time in seconds.

        A request of another phase gets no tasks. A request for which there are no tasks yet stays pending until its
        time is over.
        """
        self.now = now
        if not self._pending:
            return []
        answers, asking, self._pending = [], self._pending, []
        has_some = not self._under_way.has_untried or self._is_restricted  # tasks that can't begin here
        for each in asking:
            is_current = each.request.phase == phase
            tasks = self._tasks_to_give() if is_current and has_some else ()
            has_some = has_some and (not is_current or bool(tasks))
            self._under_way.given_count += len(tasks)
            if tasks or not is_current or now >= each.deadline:
                answers.append((each.source, each.request, tasks))
            else:
                self._pending.append(each)
        return answers

    def _tasks_to_give(self) -> tuple[Task, ...]:
        """Remove and return half of the tasks that other ranks may run. A single such task is divided first if
        possible.
        """
        task = self._queue.pop_only_stealable()
        if task is not None and (task.id == self._last_undivided or not self._try_divide(task, hungry=True)):
            self._last_undivided = task.id
            self._queue.put_back(task)
        return self._queue.pop_half(len(self._under_way) > 0 or self._is_restricted)

    @property
    def _is_restricted(self) -> bool:
        """True if other ranks may have all tasks of this rank, since this rank may not begin them."""
        return self._steering.duty is not Duty.ALL

    def can_begin_task(self) -> bool:
        """Return True if this rank may begin a task now.

        While another rank is hungry, this rank has no more tasks under way than it keeps queued for other ranks.
        """
        if not (self._under_way.has_room and len(self._queue)):
            return False
        if self._is_restricted:
            return self._queue.is_addressed_next and (self._steering.duty is Duty.ADDRESSED or self._queue.is_note_next)
        return not self.has_thieves or self._queue.addressed > 0 or self._queue.stealable > len(self._under_way)

    def pop_task(self) -> Task | None:
        """Remove and return the task to begin, or None if there is none.

        A task that takes long is divided first, and one of its portions is returned: other ranks cannot help with a
        task that has begun.
        """
        task = self._queue.pop()
        if task is not None and self._try_divide(task, hungry=self.has_thieves):
            task = self._queue.pop()
        return task

    def _try_divide(self, task: Task, *, hungry: bool) -> bool:
        """Divide ``task`` if that is allowed and worthwhile; return True if it was divided."""
        portions = self._divide(task, hungry) if task.owner == ANY_RANK else ()
        if portions:
            self._replace_by_portions(task, portions)
        return bool(portions)
