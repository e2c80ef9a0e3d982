"""Queue of one rank's tasks: decides which task the rank runs next, and which tasks it gives to other ranks.

- The rank runs its newest task first, which keeps the queue short. It gives away the oldest tasks, which represent the
  most work.
- Tasks addressed to this rank come before all others.
- Scanning tasks come before copying tasks until the size of the queue exceeds the scan-ahead limit. Then copying tasks
  come first, so that memory stays bounded however large the tree is.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterator

from pcopy.engine.backlog import Backlog, OpenSpool, SpoolBacklog
from pcopy.engine.limits import Limits
from pcopy.engine.task import ANY_RANK, Task

_OVERFLOW_KEY = -2
"""Key used in place of a phase for tasks of the current phase that do not fit in memory."""


ENOUGH_TO_SHARE = 2
"""Number of stealable tasks from which on an idle rank finds one here and this rank still keeps one."""


class _TaskStack:
    """Tasks in the order of their arrival, with the sum of their costs."""

    def __init__(self) -> None:
        self.tasks: deque[Task] = deque()
        self.cost = 0

    def push(self, task: Task) -> None:
        self.tasks.append(task)
        self.cost += task.cost

    def pop_newest(self) -> Task:
        """Remove and return the task that arrived last."""
        task = self.tasks.pop()
        self.cost -= task.cost
        return task

    def pop_oldest(self) -> Task:
        """Remove and return the task that arrived first."""
        task = self.tasks.popleft()
        self.cost -= task.cost
        return task


class TaskQueue:
    """Queue of one rank's tasks: those of the current phase, and in backlogs those of later phases."""

    def __init__(
        self,
        limits: Limits,
        open_spool: OpenSpool = io.BytesIO,
        open_overflow: Callable[[], Backlog] | None = None,
        is_work: Callable[[Task], bool] = lambda task: task.owner == ANY_RANK,
        is_slow_note: Callable[[Task], bool] = lambda task: False,
    ) -> None:
        """Create an empty queue.

        Args:
            open_spool: opens a file for tasks of later phases.
            open_overflow: creates the backlog for tasks of the current phase that do not fit in memory.
            is_work: True for a task that is work; all other tasks are notes.
            is_slow_note: True for a note that is dropped when the job stops, as work is.
        """
        self.is_work = is_work
        self._is_slow_note = is_slow_note
        self._limits = limits
        self._open_spool = open_spool
        self._open_overflow = open_overflow or (lambda: SpoolBacklog(open_spool))
        self._phase = -1
        self._addressed_tasks: deque[Task] = deque()
        self._scans = _TaskStack()
        self._other_work = _TaskStack()
        self._bytes_in_memory = 0
        self._backlogs: dict[int, Backlog] = {}
        self.spill_error: OSError | None = None
        """Error of the backlogs, or None. After an error nothing is read from a backlog any longer, and the job has to
        stop.
        """
        self.peak_bytes = 0
        """Maximum size in bytes of the tasks that were in memory at the same time."""
        self.keeps_dropped = False
        """True if dropped tasks are kept, so that the caller can clean up after them (see ``pop_dropped``)."""
        self._dropped: list[Task] = []
        self._dropped_backlogs: list[Backlog] = []

    def __len__(self) -> int:
        """Return the number of queued tasks of the current phase."""
        count = len(self._addressed_tasks) + len(self._scans.tasks) + len(self._other_work.tasks)
        if _OVERFLOW_KEY in self._backlogs:
            count += self._backlogs[_OVERFLOW_KEY].count
        if self._phase in self._backlogs:
            count += self._backlogs[self._phase].count
        return count

    @property
    def addressed(self) -> int:
        """Number of tasks in memory that are addressed to this rank."""
        return len(self._addressed_tasks)

    @property
    def stealable(self) -> int:
        """Number of queued tasks that any rank may run."""
        return len(self) - len(self._addressed_tasks)

    @property
    def has_enough_to_share(self) -> bool:
        """True if an idle rank would find a task here and this rank would still have another."""
        return self.stealable >= ENOUGH_TO_SHARE

    def _current_backlogs(self) -> list[Backlog]:
        """Return the backlogs that hold tasks of the current phase."""
        return [self._backlogs[key] for key in (_OVERFLOW_KEY, self._phase) if key in self._backlogs]

    def begin_phase(self, phase: int) -> None:
        """Make ``phase`` the current one, so that the tasks stored for it may run."""
        self._phase = phase

    def push(self, task: Task) -> None:
        """Add ``task``: to memory, or to a backlog if it belongs to a later phase or memory is full."""
        if task.phase != self._phase:
            if task.phase not in self._backlogs:
                self._backlogs[task.phase] = SpoolBacklog(self._open_spool)
            self._spill(self._backlogs[task.phase], task)
        elif self._bytes_in_memory > self._limits.queue_memory_bytes and task.owner == ANY_RANK:
            if _OVERFLOW_KEY not in self._backlogs:
                self._backlogs[_OVERFLOW_KEY] = self._open_overflow()
            self._spill(self._backlogs[_OVERFLOW_KEY], task)
        else:
            self._push_in_memory(task)

    def _spill(self, backlog: Backlog, task: Task) -> None:
        """Add ``task`` to ``backlog``, or only to its part in memory after an error of any backlog. Record the first
        error.
        """
        if self.spill_error is not None:
            backlog.append_in_memory(task)
            return
        try:
            backlog.append(task)
        except OSError as error:
            self.spill_error = error

    def _push_in_memory(self, task: Task) -> None:
        """Add ``task`` to the tasks in memory."""
        if task.owner != ANY_RANK:
            self._addressed_tasks.append(task)
        elif task.may_find_work:
            self._scans.push(task)
        else:
            self._other_work.push(task)
        self._bytes_in_memory += task.memory_bytes
        self.peak_bytes = max(self.peak_bytes, self._bytes_in_memory)

    def _refill(self) -> bool:
        """Load a frame of tasks of the current phase from a backlog into memory; return False if there is none."""
        key = _OVERFLOW_KEY if _OVERFLOW_KEY in self._backlogs else self._phase
        if self.spill_error is not None or key not in self._backlogs:
            return False
        for task in self._backlogs[key].pop_frame():
            self._push_in_memory(task)
        if not self._backlogs[key].count:
            self._backlogs.pop(key).close()
        return True

    def pop(self) -> Task | None:
        """Remove and return the task to run next, or None if there is none."""
        if not (self._addressed_tasks or self._scans.tasks or self._other_work.tasks) and not self._refill():
            return None
        if self._addressed_tasks:
            task = self._addressed_tasks.popleft()
        elif self._scans.tasks and (
            not self._other_work.tasks or self._queued_bytes() <= self._limits.scan_ahead_bytes
        ):
            task = self._scans.pop_newest()
        else:
            task = self._other_work.pop_newest()
        self._bytes_in_memory -= task.memory_bytes
        return task

    @property
    def is_note_next(self) -> bool:
        """True if the next task is a note.

        A task that is addressed to this rank and is work keeps its place in the order, and so do the notes behind it.
        """
        return bool(self._addressed_tasks) and not self.is_work(self._addressed_tasks[0])

    @property
    def is_addressed_next(self) -> bool:
        """True if the next task is one that only this rank may run. Loads tasks from a backlog if memory has none."""
        if not (self._addressed_tasks or self._scans.tasks or self._other_work.tasks):
            self._refill()
        return bool(self._addressed_tasks)

    def _queued_bytes(self) -> int:
        """Return the size in bytes of the queued tasks of the current phase."""
        return self._bytes_in_memory + sum(backlog.memory_bytes for backlog in self._current_backlogs())

    def pop_half(self, running: bool) -> tuple[Task, ...]:
        """Remove and return half of the tasks that other ranks may run: half by cost, the oldest first, within one
        message.

        The last task is kept unless this rank has another one under way (``running``).
        """
        if not self._scans.tasks and not self._other_work.tasks:
            self._refill()
        room = self._limits.message_bytes
        given: list[Task] = []
        for stack in (self._scans, self._other_work):
            half = stack.cost / 2
            while len(stack.tasks) > 1 and (stack.cost > half or not half):
                task = stack.tasks[0]
                if given and task.memory_bytes > room:
                    break
                room -= task.memory_bytes
                given.append(stack.pop_oldest())
        left = len(self._scans.tasks) + len(self._other_work.tasks)
        if not given and left > (0 if running else 1):
            given.append((self._other_work if self._other_work.tasks else self._scans).pop_oldest())
        self._bytes_in_memory -= sum(task.memory_bytes for task in given)
        return tuple(given)

    def pop_only_stealable(self) -> Task | None:
        """Remove and return the only queued task that other ranks may run; return None if there is none or more than
        one.
        """
        if not self._scans.tasks and not self._other_work.tasks:
            self._refill()
        if len(self._scans.tasks) + len(self._other_work.tasks) != 1 or self._current_backlogs():
            return None
        task = (self._scans if self._scans.tasks else self._other_work).pop_newest()
        self._bytes_in_memory -= task.memory_bytes
        return task

    def is_droppable(self, task: Task) -> bool:
        """Return True if a job that is being stopped drops ``task`` instead of running it."""
        return self.is_work(task) or self._is_slow_note(task)

    def put_back(self, task: Task) -> None:
        """Add ``task``, which ``pop_only_stealable`` had returned, again."""
        self._push_in_memory(task)

    def drop(self, task: Task) -> int:
        """Drop ``task``, and return the number of tasks dropped, which is 1."""
        if self.keeps_dropped or task.owner != ANY_RANK:
            self._dropped.append(task)
        return 1

    def pop_dropped(self) -> Iterator[Task]:
        """Remove and yield the dropped tasks: those addressed to a rank and, if the queue ``keeps_dropped``, all
        others.

        May raise ``OSError``.
        """
        while self._dropped:
            yield self._dropped.pop()
        while self._dropped_backlogs:
            backlog = self._dropped_backlogs.pop()
            yield from backlog.pop_all()
            backlog.close()

    def drop_all_work(self) -> int:
        """Drop all tasks except the notes in memory that belong to the current phase; return the number of dropped
        tasks.
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
        self._bytes_in_memory = sum(task.memory_bytes for task in self._addressed_tasks)
        return dropped
