"""Queue of one rank's tasks that have not begun: decides which task the rank runs next, and which tasks it gives to
other ranks.

- The rank runs its newest task first, which keeps the queue short. It gives away the oldest tasks, which represent the
  most work.
- Tasks addressed to this rank (no other rank may run them) come before all others, in the order of their arrival.
- Tasks that may find more work (scanning) come before all other work (copying) until the size of the queue exceeds the
  scan-ahead limit. Then the other work comes first, so that memory stays bounded however large the tree is.

When memory is full, tasks that any rank may run are stored in a *backlog*, a queue on disk. The same is done with tasks
of later phases. *Work* is all tasks except *notes*, which are short tasks that bring data to one rank; a job that is
being stopped drops its work but still runs most notes.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterator

from pcopy.engine.backlog import OpenSpool, SpoolFileBacklog, TaskBacklog
from pcopy.engine.limits import EngineLimits
from pcopy.engine.task import ANY_RANK, Task

_OVERFLOW_BACKLOG_KEY = -2
"""Key in the dictionary of backlogs (queues on disk) for the tasks of the current phase that do not fit in memory. The
other keys are the numbers of later phases.
"""


MIN_TASKS_TO_SHARE = 2
"""A rank has enough tasks to share if at least this number of queued tasks may run on any rank: it can give one to an
idle rank and keep one.
"""


class _TaskStack:
    """Tasks in the order of their arrival. ``cost`` is the sum of their estimated costs (in bytes)."""

    def __init__(self) -> None:
        self.tasks: deque[Task] = deque()
        self.cost = 0

    def push_task(self, task: Task) -> None:
        self.tasks.append(task)
        self.cost += task.cost

    def pop_newest(self) -> Task:
        """Remove and return the task that arrived last."""
        task = self.tasks.pop()
        self.cost -= task.cost
        return task

    def pop_oldest_task(self) -> Task:
        """Remove and return the task that arrived first."""
        task = self.tasks.popleft()
        self.cost -= task.cost
        return task


class TaskQueue:
    """Queue of one rank's tasks that have not begun. Tasks of the current phase are in memory or, if memory is full, in
    a backlog (a queue on disk); tasks of each later phase are in a backlog of their own.
    """

    def __init__(
        self,
        limits: EngineLimits,
        open_spool: OpenSpool = io.BytesIO,
        open_overflow: Callable[[], TaskBacklog] | None = None,
        is_work: Callable[[Task], bool] = lambda task: task.owner == ANY_RANK,
        is_slow_note: Callable[[Task], bool] = lambda task: False,
    ) -> None:
        """Create an empty queue.

        Args:
            limits: how many bytes of tasks may be in memory and in one message.
            open_spool: opens a temporary file, for a backlog of tasks of a later phase.
            open_overflow: creates the backlog for tasks of the current phase that do not fit in memory; None: one with
                a file of ``open_spool``.
            is_work: returns True for a task that is work; all other tasks are notes.
            is_slow_note: returns True for a note that may take long, so that a stopping job drops it, as it drops work.
        """
        self.is_work = is_work
        self._is_slow_note = is_slow_note
        self._limits = limits
        self._open_spool = open_spool
        self._open_overflow = open_overflow or (lambda: SpoolFileBacklog(open_spool))
        self._phase = -1
        self._addressed_tasks: deque[Task] = deque()
        self._scans = _TaskStack()
        self._other_work = _TaskStack()
        self._bytes_in_memory = 0
        self._backlogs: dict[int, TaskBacklog] = {}
        self.spill_error: OSError | None = None
        """First error when a backlog (a queue on disk) was written or read, or None. After an error the queue reads
        nothing from any backlog, and the job has to stop.
        """
        self.peak_bytes = 0
        """Maximum size in bytes of the tasks that were in memory at the same time."""
        self.keeps_dropped = False
        """True if all dropped tasks are kept for ``pop_dropped``, so that the caller can remove the temporary files
        that they would have completed. If False, only dropped tasks that were addressed to a rank are kept.
        """
        self._dropped: list[Task] = []
        self._dropped_backlogs: list[TaskBacklog] = []

    def __len__(self) -> int:
        """Return the number of queued tasks of the current phase."""
        count = len(self._addressed_tasks) + len(self._scans.tasks) + len(self._other_work.tasks)
        if _OVERFLOW_BACKLOG_KEY in self._backlogs:
            count += self._backlogs[_OVERFLOW_BACKLOG_KEY].count
        if self._phase in self._backlogs:
            count += self._backlogs[self._phase].count
        return count

    @property
    def addressed_task_count(self) -> int:
        """Number of queued tasks that only this rank may run."""
        return len(self._addressed_tasks)

    @property
    def stealable_count(self) -> int:
        """Number of queued tasks that any rank may run."""
        return len(self) - len(self._addressed_tasks)

    @property
    def has_enough_to_share(self) -> bool:
        """True if this rank could give a task to an idle rank and would still have another one."""
        return self.stealable_count >= MIN_TASKS_TO_SHARE

    def _current_backlogs(self) -> list[TaskBacklog]:
        """Return the backlogs (queues on disk) with tasks of the current phase. There are up to two: one filled in
        earlier phases, and one for tasks that did not fit in memory.
        """
        return [self._backlogs[key] for key in (_OVERFLOW_BACKLOG_KEY, self._phase) if key in self._backlogs]

    def begin_phase(self, phase: int) -> None:
        """Make ``phase`` the current one, so that ``pop`` also returns the tasks of this phase that were queued
        earlier.
        """
        self._phase = phase

    def push_task(self, task: Task) -> None:
        """Add ``task`` to the queue: on disk if it belongs to a later phase, or if memory is full and any rank may run
        the task; otherwise in memory.
        """
        if task.phase != self._phase:
            if task.phase not in self._backlogs:
                self._backlogs[task.phase] = SpoolFileBacklog(self._open_spool)
            self._add_to_backlog(self._backlogs[task.phase], task)
        elif self._bytes_in_memory > self._limits.queue_memory_bytes and task.owner == ANY_RANK:
            if _OVERFLOW_BACKLOG_KEY not in self._backlogs:
                self._backlogs[_OVERFLOW_BACKLOG_KEY] = self._open_overflow()
            self._add_to_backlog(self._backlogs[_OVERFLOW_BACKLOG_KEY], task)
        else:
            self._push_in_memory(task)

    def _add_to_backlog(self, backlog: TaskBacklog, task: Task) -> None:
        """Add ``task`` to ``backlog``, a queue on disk. An error is not raised but stored in ``spill_error``. After an
        error of any backlog nothing is written, and the task is only added to the part of ``backlog`` that is in
        memory.
        """
        if self.spill_error is not None:
            backlog.append_in_memory(task)
            return
        try:
            backlog.append(task)
        except OSError as error:
            self.spill_error = error

    def _push_in_memory(self, task: Task) -> None:
        """Add ``task``, which belongs to the current phase, to the tasks in memory."""
        if task.owner != ANY_RANK:
            self._addressed_tasks.append(task)
        elif task.may_find_work:
            self._scans.push_task(task)
        else:
            self._other_work.push_task(task)
        self._bytes_in_memory += task.memory_use_in_bytes
        self.peak_bytes = max(self.peak_bytes, self._bytes_in_memory)

    def _load_from_backlog(self) -> bool:
        """Read a frame (up to 128 tasks) of the current phase from a backlog on disk into memory; return False if no
        such tasks are on disk, or after an error of a backlog.
        """
        key = _OVERFLOW_BACKLOG_KEY if _OVERFLOW_BACKLOG_KEY in self._backlogs else self._phase
        if self.spill_error is not None or key not in self._backlogs:
            return False
        for task in self._backlogs[key].pop_frame():
            self._push_in_memory(task)
        if not self._backlogs[key].count:
            self._backlogs.pop(key).close()
        return True

    def _load_stealable_tasks(self) -> None:
        """Read tasks of the current phase from disk if memory has none that any rank may run. Do nothing if memory has
        many that only this rank may run: those on disk may be like them, and other ranks ask again and again.
        """
        if not (self._scans.tasks or self._other_work.tasks) and self._bytes_in_memory < self._limits.message_bytes:
            self._load_from_backlog()

    def pop(self) -> Task | None:
        """Remove and return the task to run next, or None if there is none."""
        if not (self._addressed_tasks or self._scans.tasks or self._other_work.tasks) and not self._load_from_backlog():
            return None
        if self._addressed_tasks:
            task = self._addressed_tasks.popleft()
        elif self._scans.tasks and (
            not self._other_work.tasks or self._queued_bytes() <= self._limits.scan_ahead_bytes
        ):
            task = self._scans.pop_newest()
        else:
            task = self._other_work.pop_newest()
        self._bytes_in_memory -= task.memory_use_in_bytes
        return task

    @property
    def is_next_task_note(self) -> bool:
        """True if the task to run next is a note (a short task that brings data to this rank).

        Notes do not overtake other tasks addressed to this rank: if such a task is work and comes before a note, this
        is False.
        """
        return bool(self._addressed_tasks) and not self.is_work(self._addressed_tasks[0])

    @property
    def is_next_task_addressed(self) -> bool:
        """True if the task to run next is one that only this rank may run. Reading this loads tasks from disk if memory
        has none.
        """
        if not (self._addressed_tasks or self._scans.tasks or self._other_work.tasks):
            self._load_from_backlog()
        return bool(self._addressed_tasks)

    def _queued_bytes(self) -> int:
        """Return the size in bytes of the queued tasks of the current phase."""
        return self._bytes_in_memory + sum(backlog.memory_bytes for backlog in self._current_backlogs())

    def pop_half_of_stealable_tasks(self, running: bool) -> tuple[Task, ...]:
        """Remove and return tasks to give to another rank: about half of those that any rank may run, by cost, the
        oldest first, at most as many as fit into one message.

        If there is only one such task, it is returned only if this rank has another task under way (``running``).
        """
        self._load_stealable_tasks()
        room = self._limits.message_bytes
        given: list[Task] = []
        for stack in (self._scans, self._other_work):
            half = stack.cost / 2
            while len(stack.tasks) > 1 and (stack.cost > half or not half):
                task = stack.tasks[0]
                if given and task.memory_use_in_bytes > room:
                    break
                room -= task.memory_use_in_bytes
                given.append(stack.pop_oldest_task())
        left = len(self._scans.tasks) + len(self._other_work.tasks)
        if not given and left > (0 if running else 1):
            given.append((self._other_work if self._other_work.tasks else self._scans).pop_oldest_task())
        self._bytes_in_memory -= sum(task.memory_use_in_bytes for task in given)
        return tuple(given)

    def pop_only_stealable(self) -> Task | None:
        """Remove and return the task that any rank may run, if exactly one is queued, so that the caller can divide it;
        otherwise return None.
        """
        self._load_stealable_tasks()
        if len(self._scans.tasks) + len(self._other_work.tasks) != 1 or self._current_backlogs():
            return None
        task = (self._scans if self._scans.tasks else self._other_work).pop_newest()
        self._bytes_in_memory -= task.memory_use_in_bytes
        return task

    def is_droppable(self, task: Task) -> bool:
        """Return True if a job that is being stopped drops ``task`` instead of running it. It still runs notes (short
        tasks that bring data to this rank), but not those that may take long.
        """
        return self.is_work(task) or self._is_slow_note(task)

    def put_back(self, task: Task) -> None:
        """Add ``task`` to the queue again, which the caller has removed with ``pop_only_stealable`` and could not
        divide.
        """
        self._push_in_memory(task)

    def drop_one_task(self, task: Task) -> int:
        """Drop ``task``, which has begun or was not queued yet, because the job is being stopped. It is kept for
        ``pop_dropped`` if that may return it. Return the number of dropped tasks, which is 1.
        """
        if self.keeps_dropped or task.owner != ANY_RANK:
            self._dropped.append(task)
        return 1

    def pop_dropped(self) -> Iterator[Task]:
        """Remove and yield the dropped tasks: those that were addressed to a rank and, if ``keeps_dropped`` is True,
        also all others.

        May raise ``OSError`` when it reads a backlog.
        """
        while self._dropped:
            yield self._dropped.pop()
        while self._dropped_backlogs:
            backlog = self._dropped_backlogs.pop()
            yield from backlog.pop_all()
            backlog.close()

    def drop_all_work(self) -> int:
        """Drop all tasks of the queue, because the job is being stopped; return their number. Only notes of the current
        phase (short tasks that bring data to this rank) stay, except those that may take long.
        """
        addressed = [task for task in self._addressed_tasks if self.is_droppable(task)]
        self._addressed_tasks = deque(task for task in self._addressed_tasks if not self.is_droppable(task))
        self._dropped += addressed
        dropped: int = len(self._scans.tasks) + len(self._other_work.tasks) + len(addressed)
        dropped += sum(backlog.count for backlog in self._backlogs.values())
        if self.keeps_dropped:
            self._dropped += (*self._scans.tasks, *self._other_work.tasks)
            self._dropped_backlogs += self._backlogs.values()
        else:
            for backlog in self._backlogs.values():
                backlog.close()
        self._backlogs.clear()
        self._scans, self._other_work = _TaskStack(), _TaskStack()
        self._bytes_in_memory = sum(task.memory_use_in_bytes for task in self._addressed_tasks)
        return dropped
