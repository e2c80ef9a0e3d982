"""Work stealing, the victim's side: which tasks a rank gives away, and which of its tasks it divides for other ranks.

A rank requests tasks from a *victim*. Dividing a task replaces the task by its *portions*, tasks that each do a part of
the work: the journal records the portions as spawned, and the divided task as done without counts. Only a task that any
rank may run, and that has not begun, is divided. The function ``divide``, which knows how long a task takes, decides
whether that is worthwhile. It divides shorter tasks, too, if another rank is *hungry*, that is, has requested tasks
within the last ``HUNGRY_SECONDS`` seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from pcopy.engine.begun_tasks import BegunTasks
from pcopy.engine.messages import TaskRequest
from pcopy.engine.queue import TaskQueue
from pcopy.engine.steering import RankSteering, RankTaskRestriction
from pcopy.engine.task import ANY_RANK, NewTask, Task, TaskId
from pcopy.fast_named_tuple import NamedTuple

HUNGRY_SECONDS = 0.5
"""Seconds for which another rank counts as hungry (without work) after a request for tasks. It is longer than the time
between two requests of an idle rank, because that rank sends each one to another rank.
"""

DivideTask = Callable[[Task, bool], Sequence[NewTask]]
"""Function (task, hungry) that returns the portions of a task: tasks that each do a part of its work and that other
ranks can run. It returns nothing if the task is not to be divided.

Each portion belongs to the phase of the task and may run on any rank. ``hungry`` is True if another rank has requested
tasks within the last ``HUNGRY_SECONDS`` seconds; then shorter tasks are divided, too.
"""


class _PendingTaskRequest(NamedTuple):
    """An unanswered request for tasks, which the rank ``source`` has sent to this rank."""

    source: int
    request: TaskRequest
    deadline: float
    """Time in seconds at which the request must be answered."""


class WorkStealingVictim:
    """Answers the requests of other ranks for this rank's tasks (work stealing), and chooses the task that this rank
    begins next.
    """

    def __init__(
        self,
        queue: TaskQueue,
        under_way: BegunTasks,
        divide: DivideTask,
        replace_by_portions: Callable[[Task, Sequence[NewTask]], None],
        steering: RankSteering,
    ) -> None:
        """Create the object that gives tasks of one rank to other ranks.

        Args:
            queue: the tasks of this rank that have not begun.
            under_way: the tasks that this rank has begun and not ended.
            divide: returns the portions of a task (tasks that each do a part of its work), or nothing if the task is
                not to be divided.
            replace_by_portions: called with each divided task and its portions; records them and adds the portions to
                the queue.
            steering: says which tasks this rank may begin (``steering.allowed_tasks``).
        """
        self._queue = queue
        self._under_way = under_way
        self._divide = divide
        self._replace_by_portions = replace_by_portions
        self._steering = steering
        self._pending: list[_PendingTaskRequest] = []
        self._hungry_until = -inf
        self._last_undivided: TaskId | None = None  # the last task that ``divide`` left undivided
        self.now = 0.0
        """Current time in seconds. The node updates it."""

    @property
    def are_other_ranks_without_work(self) -> bool:
        """True if another rank is without work: it has requested tasks from this rank within the last
        ``HUNGRY_SECONDS`` seconds.
        """
        return self.now < self._hungry_until

    def forget_ranks_without_work(self) -> None:
        """Assume that no other rank is without work, since a new phase begins. Requests that have not been answered
        will still be answered.
        """
        self._hungry_until = -inf

    def receive_task_request(self, source: int, request: TaskRequest, now: float) -> None:
        """Record a request from rank ``source``. ``task_requests_to_answer_now`` answers it when there are tasks to
        give or the time ``request.patience`` is over.
        """
        self._hungry_until = now + HUNGRY_SECONDS
        self._pending.append(_PendingTaskRequest(source, request, now + request.patience))

    @property
    def next_reply_deadline(self) -> float:
        """Time in seconds at which the first unanswered request of another rank must be answered; infinity if there is
        none.
        """
        return min((each.deadline for each in self._pending), default=inf)

    def task_requests_to_answer_now(self, phase: int, now: float) -> list[tuple[int, TaskRequest, tuple[Task, ...]]]:
        """Remove and return the requests of other ranks that are to be answered now, in order of arrival, with the
        tasks to give: (source, request, tasks).

        A request of another phase is answered without tasks at once. A request of this phase for which there are no
        tasks yet stays pending until its time is over; then it is answered without tasks, too.

        Args:
            phase: current phase, or -1 if no tasks may be given away.
            now: time in seconds.
        """
        self.now = now
        if not self._pending:
            return []
        answers, asking, self._pending = [], self._pending, []
        # A rank that may not begin tasks gives away even those that it has just received.
        has_some = not self._under_way.has_untried_received_tasks or self._is_restricted_to_own_tasks
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
        """Remove and return half of the tasks that any rank may run, to give them to another rank; return an empty
        tuple if there are too few.

        If there is only one such task, it is divided first if possible.
        """
        task = self._queue.pop_only_stealable()
        if task is not None and (task.id == self._last_undivided or not self._try_to_divide_task(task, hungry=True)):
            self._last_undivided = task.id
            self._queue.put_back(task)
        return self._queue.pop_half_of_stealable_tasks(len(self._under_way) > 0 or self._is_restricted_to_own_tasks)

    @property
    def _is_restricted_to_own_tasks(self) -> bool:
        """True if this rank may not begin the tasks that any rank may run, so that other ranks may have all of them."""
        return self._steering.allowed_tasks is not RankTaskRestriction.ALL

    def can_begin_task(self) -> bool:
        """Return True if this rank may begin a task now.

        While another rank is without work, this rank begins one more task only if it has more tasks to give away than
        it has begun and not ended.
        """
        if not (self._under_way.has_room and len(self._queue)):
            return False
        if self._is_restricted_to_own_tasks:
            return self._queue.is_next_task_addressed and (
                self._steering.allowed_tasks is RankTaskRestriction.ADDRESSED or self._queue.is_next_task_note
            )
        return (
            not self.are_other_ranks_without_work
            or self._queue.addressed_task_count > 0
            or self._queue.stealable_count > len(self._under_way)
        )

    def pop_task(self) -> Task | None:
        """Remove and return the task to begin, or None if there is none.

        A task that takes long is divided first, and one of its portions is returned: other ranks cannot help with a
        task that has begun.
        """
        task = self._queue.pop()
        if task is not None and self._try_to_divide_task(task, hungry=self.are_other_ranks_without_work):
            task = self._queue.pop()
        return task

    def _try_to_divide_task(self, task: Task, *, hungry: bool) -> bool:
        """Replace ``task`` by portions (tasks that each do a part of its work), if that is allowed and worthwhile;
        return True if it was replaced. Shorter tasks are divided, too, if another rank has no work (``hungry``).
        """
        portions = self._divide(task, hungry) if task.owner == ANY_RANK else ()
        if portions:
            self._replace_by_portions(task, portions)
        return bool(portions)
