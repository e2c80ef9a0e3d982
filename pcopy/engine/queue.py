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

from pcopy.engine.backlog import Backlog, SpoolBacklog, SpoolFactory
from pcopy.engine.limits import Limits
from pcopy.engine.task import ANYBODY, Task

_OVERFLOW = -2
"""Key used in place of a phase for tasks of the current phase that do not fit in memory."""


PLENTY = 2
"""Number of stealable tasks from which on an idle rank finds one here and this rank still keeps one."""


class _Stack:
    """Tasks in the order of their arrival, with the sum of their costs."""

    def __init__(self) -> None:
        self.tasks: deque[Task] = deque()
        self.cost = 0

    def push(self, task: Task) -> None:
        self.tasks.append(task)
        self.cost += task.cost

    def newest(self) -> Task:
        """Remove and return the task that arrived last."""
        task = self.tasks.pop()
        self.cost -= task.cost
        return task

    def oldest(self) -> Task:
        """Remove and return the task that arrived first."""
        task = self.tasks.popleft()
        self.cost -= task.cost
        return task


class TaskQueue:
    """Queue of one rank's tasks: those of the current phase, and in backlogs those of later phases."""

    def __init__(
        self,
        limits: Limits,
        open_spool: SpoolFactory = io.BytesIO,
        open_overflow: Callable[[], Backlog] | None = None,
        is_work: Callable[[Task], bool] = lambda task: task.owner == ANYBODY,
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
        self._notes: deque[Task] = deque()
        self._scans = _Stack()
        self._works = _Stack()
        self._in_core = 0
        self._backlogs: dict[int, Backlog] = {}
        self.trouble: OSError | None = None
        """Error of the backlogs, or None. After an error nothing is read from a backlog any longer, and the job has to
        stop.
        """
        self.peak = 0
        """Maximum size in bytes of the tasks that were in memory at the same time."""
        self.remembers = False
        """True if dropped tasks are kept, so that the caller can clean up after them (see ``forgotten``)."""
        self._forgotten: list[Task] = []
        self._forgotten_outside: list[Backlog] = []

    def __len__(self) -> int:
        """Return the number of queued tasks of the current phase."""
        count = len(self._notes) + len(self._scans.tasks) + len(self._works.tasks)
        if _OVERFLOW in self._backlogs:
            count += self._backlogs[_OVERFLOW].count
        if self._phase in self._backlogs:
            count += self._backlogs[self._phase].count
        return count

    @property
    def notes(self) -> int:
        """Number of tasks in memory that are addressed to this rank."""
        return len(self._notes)

    @property
    def open(self) -> int:
        """Number of queued tasks that any rank may run."""
        return len(self) - len(self._notes)

    @property
    def has_plenty(self) -> bool:
        """True if an idle rank would find a task here and this rank would still have another."""
        return self.open >= PLENTY

    def _outside(self) -> list[Backlog]:
        """Return the backlogs that hold tasks of the current phase."""
        return [self._backlogs[key] for key in (_OVERFLOW, self._phase) if key in self._backlogs]

    def begin_phase(self, phase: int) -> None:
        """Make ``phase`` the current one, so that the tasks stored for it may run."""
        self._phase = phase

    def push(self, task: Task) -> None:
        """Add ``task``: to memory, or to a backlog if it belongs to a later phase or memory is full."""
        if task.phase != self._phase:
            if task.phase not in self._backlogs:
                self._backlogs[task.phase] = SpoolBacklog(self._open_spool)
            self._put_aside(self._backlogs[task.phase], task)
        elif self._in_core > self._limits.in_core and task.owner == ANYBODY:
            if _OVERFLOW not in self._backlogs:
                self._backlogs[_OVERFLOW] = self._open_overflow()
            self._put_aside(self._backlogs[_OVERFLOW], task)
        else:
            self._hold(task)

    def _put_aside(self, backlog: Backlog, task: Task) -> None:
        """Add ``task`` to ``backlog``, or only to its part in memory after an error of any backlog. Record the first
        error.
        """
        if self.trouble is not None:
            backlog.keep(task)
            return
        try:
            backlog.append(task)
        except OSError as error:
            self.trouble = error

    def _hold(self, task: Task) -> None:
        """Add ``task`` to the tasks in memory."""
        if task.owner != ANYBODY:
            self._notes.append(task)
        elif task.expands:
            self._scans.push(task)
        else:
            self._works.push(task)
        self._in_core += task.footprint
        self.peak = max(self.peak, self._in_core)

    def _refill(self) -> bool:
        """Load a frame of tasks of the current phase from a backlog into memory; return False if there is none."""
        key = _OVERFLOW if _OVERFLOW in self._backlogs else self._phase
        if self.trouble is not None or key not in self._backlogs:
            return False
        for task in self._backlogs[key].take_frame():
            self._hold(task)
        if not self._backlogs[key].count:
            self._backlogs.pop(key).close()
        return True

    def pop(self) -> Task | None:
        """Remove and return the task to run next, or None if there is none."""
        if not (self._notes or self._scans.tasks or self._works.tasks) and not self._refill():
            return None
        if self._notes:
            task = self._notes.popleft()
        elif self._scans.tasks and (not self._works.tasks or self._waiting() <= self._limits.scan_ahead):
            task = self._scans.newest()
        else:
            task = self._works.newest()
        self._in_core -= task.footprint
        return task

    @property
    def has_note(self) -> bool:
        """True if the next task is a note.

        A task that is addressed to this rank and is work keeps its place in the order, and so do the notes behind it.
        """
        return bool(self._notes) and not self.is_work(self._notes[0])

    @property
    def has_addressed(self) -> bool:
        """True if the next task is one that only this rank may run. Loads tasks from a backlog if memory has none."""
        if not (self._notes or self._scans.tasks or self._works.tasks):
            self._refill()
        return bool(self._notes)

    def _waiting(self) -> int:
        """Return the size in bytes of the queued tasks of the current phase."""
        return self._in_core + sum(backlog.footprint for backlog in self._outside())

    def give(self, running: bool) -> tuple[Task, ...]:
        """Remove and return half of the tasks that other ranks may run: half by cost, the oldest first, within one
        message.

        The last task is kept unless this rank has another one under way (``running``).
        """
        if not self._scans.tasks and not self._works.tasks:
            self._refill()
        room = self._limits.message_bytes
        given: list[Task] = []
        for stack in (self._scans, self._works):
            half = stack.cost / 2
            while len(stack.tasks) > 1 and (stack.cost > half or not half):
                task = stack.tasks[0]
                if given and task.footprint > room:
                    break
                room -= task.footprint
                given.append(stack.oldest())
        left = len(self._scans.tasks) + len(self._works.tasks)
        if not given and left > (0 if running else 1):
            given.append((self._works if self._works.tasks else self._scans).oldest())
        self._in_core -= sum(task.footprint for task in given)
        return tuple(given)

    def take_lone(self) -> Task | None:
        """Remove and return the only queued task that other ranks may run; return None if there is none or more than
        one.
        """
        if not self._scans.tasks and not self._works.tasks:
            self._refill()
        if len(self._scans.tasks) + len(self._works.tasks) != 1 or self._outside():
            return None
        task = (self._scans if self._scans.tasks else self._works).newest()
        self._in_core -= task.footprint
        return task

    def may_drop(self, task: Task) -> bool:
        """Return True if a job that is being stopped drops ``task`` instead of running it."""
        return self.is_work(task) or self._is_slow_note(task)

    def put_back(self, task: Task) -> None:
        """Add ``task``, which ``take_lone`` had returned, again."""
        self._hold(task)

    def forget(self, task: Task) -> int:
        """Drop ``task``, and return the number of tasks dropped, which is 1."""
        if self.remembers or task.owner != ANYBODY:
            self._forgotten.append(task)
        return 1

    def forgotten(self) -> Iterator[Task]:
        """Remove and yield the dropped tasks: those addressed to a rank and, if the queue ``remembers``, all others.

        May raise ``OSError``.
        """
        while self._forgotten:
            yield self._forgotten.pop()
        while self._forgotten_outside:
            backlog = self._forgotten_outside.pop()
            yield from backlog.drained()
            backlog.close()

    def drop_work(self) -> int:
        """Drop all tasks except the notes in memory that belong to the current phase; return the number of dropped
        tasks.
        """
        addressed = [task for task in self._notes if self.may_drop(task)]
        self._notes = deque(task for task in self._notes if not self.may_drop(task))
        self._forgotten += addressed
        dropped: int = len(self._scans.tasks) + len(self._works.tasks) + len(addressed)
        dropped += sum(backlog.count for backlog in self._backlogs.values())
        if self.remembers:
            self._forgotten += (*self._scans.tasks, *self._works.tasks)
            self._forgotten_outside += self._backlogs.values()
        else:
            for backlog in self._backlogs.values():
                backlog.close()
        self._backlogs.clear()
        self._scans, self._works = _Stack(), _Stack()
        self._in_core = sum(task.footprint for task in self._notes)
        return dropped
