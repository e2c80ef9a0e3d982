"""The tasks of one rank: what it runs next, and what it gives away.

It runs the newest task, which keeps the queue short, and gives away the oldest, which stand for the most work. Tasks
addressed to this rank come first. Scanning goes before copying until what waits passes the scan-ahead budget; then
copying goes first, so that memory stays bounded however large the tree is.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterator

from pcopy.engine.backlog import Backlog, SpoolBacklog, SpoolFactory
from pcopy.engine.limits import Limits
from pcopy.engine.task import ANYBODY, Task

_OVERFLOW = -2
"""Instead of a phase: tasks of the current one that memory can't hold."""


PLENTY = 2
"""Tasks with which there is something for whoever asks, and something left."""


class _Stack:
    """Tasks in the order of their arrival, with the sum of their costs."""

    def __init__(self) -> None:
        self.tasks: deque[Task] = deque()
        self.cost = 0

    def push(self, task: Task) -> None:
        self.tasks.append(task)
        self.cost += task.cost

    def newest(self) -> Task:
        task = self.tasks.pop()
        self.cost -= task.cost
        return task

    def oldest(self) -> Task:
        task = self.tasks.popleft()
        self.cost -= task.cost
        return task


class TaskQueue:
    """Tasks of the current phase and, in backlogs, of later ones."""

    def __init__(
        self,
        limits: Limits,
        open_spool: SpoolFactory = io.BytesIO,
        open_overflow: Callable[[], Backlog] | None = None,
        is_work: Callable[[Task], bool] = lambda task: task.owner == ANYBODY,
        is_slow_note: Callable[[Task], bool] = lambda task: False,
    ) -> None:
        """``open_overflow`` makes the place for tasks of the current phase that memory can't hold.

        All tasks that are not ``is_work`` are notes. A job that stops drops work, and ``is_slow_note``.
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
        """Why tasks can't be put aside any more, once that is so: none comes back, and the job has to stop."""
        self.peak = 0
        """The most bytes that tasks have held in memory at once."""
        self.remembers = False
        """Is what is dropped kept, for whoever has to clear up after it?"""
        self._forgotten: list[Task] = []
        self._forgotten_outside: list[Backlog] = []

    def __len__(self) -> int:
        """How many tasks of the current phase wait."""
        count = len(self._notes) + len(self._scans.tasks) + len(self._works.tasks)
        if _OVERFLOW in self._backlogs:
            count += self._backlogs[_OVERFLOW].count
        if self._phase in self._backlogs:
            count += self._backlogs[self._phase].count
        return count

    @property
    def notes(self) -> int:
        """How many addressed tasks wait in memory."""
        return len(self._notes)

    @property
    def open(self) -> int:
        """How many tasks wait that any rank may run."""
        return len(self) - len(self._notes)

    @property
    def has_plenty(self) -> bool:
        """Do so many tasks wait that an idle rank would find one, and this rank still has another?"""
        return self.open >= PLENTY

    def _outside(self) -> list[Backlog]:
        """Where tasks of the current phase wait outside memory."""
        return [self._backlogs[key] for key in (_OVERFLOW, self._phase) if key in self._backlogs]

    def begin_phase(self, phase: int) -> None:
        """Makes ``phase`` the current one: what was put aside for it may run."""
        self._phase = phase

    def push(self, task: Task) -> None:
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
        if self.trouble is not None:
            backlog.keep(task)
            return
        try:
            backlog.append(task)
        except OSError as error:
            self.trouble = error

    def _hold(self, task: Task) -> None:
        if task.owner != ANYBODY:
            self._notes.append(task)
        elif task.expands:
            self._scans.push(task)
        else:
            self._works.push(task)
        self._in_core += task.footprint
        self.peak = max(self.peak, self._in_core)

    def _refill(self) -> bool:
        key = _OVERFLOW if _OVERFLOW in self._backlogs else self._phase
        if self.trouble is not None or key not in self._backlogs:
            return False
        for task in self._backlogs[key].take_frame():
            self._hold(task)
        if not self._backlogs[key].count:
            self._backlogs.pop(key).close()
        return True

    def pop(self) -> Task | None:
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
        """Does a note come next? (What is addressed and is work waits its turn, and so do notes behind it.)"""
        return bool(self._notes) and not self.is_work(self._notes[0])

    @property
    def has_addressed(self) -> bool:
        """Does something come next that only this rank may run? (What waits outside memory is fetched, if need be.)"""
        if not (self._notes or self._scans.tasks or self._works.tasks):
            self._refill()
        return bool(self._notes)

    def _waiting(self) -> int:
        return self._in_core + sum(backlog.footprint for backlog in self._outside())

    def give(self, running: bool) -> tuple[Task, ...]:
        """Half of what others may run, by cost and the oldest first, within one message.

        The last task stays unless another one of this rank is under way (``running``).
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
        """The only task that others may run, if there is one alone; it leaves the queue."""
        if not self._scans.tasks and not self._works.tasks:
            self._refill()
        if len(self._scans.tasks) + len(self._works.tasks) != 1 or self._outside():
            return None
        task = (self._scans if self._scans.tasks else self._works).newest()
        self._in_core -= task.footprint
        return task

    def may_drop(self, task: Task) -> bool:
        """Return True if a job that is to stop leaves ``task`` undone."""
        return self.is_work(task) or self._is_slow_note(task)

    def put_back(self, task: Task) -> None:
        """What ``take_lone`` has taken."""
        self._hold(task)

    def forget(self, task: Task) -> int:
        """It is dropped: returns by how many there are more of these, which is 1."""
        if self.remembers or task.owner != ANYBODY:
            self._forgotten.append(task)
        return 1

    def forgotten(self) -> Iterator[Task]:
        """What was dropped, each once: addressed tasks, and all if the queue ``remembers``; may raise ``OSError``."""
        while self._forgotten:
            yield self._forgotten.pop()
        while self._forgotten_outside:
            backlog = self._forgotten_outside.pop()
            yield from backlog.drained()
            backlog.close()

    def drop_work(self) -> int:
        """Forgets every task but notes of this phase in memory; returns how many were dropped."""
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
