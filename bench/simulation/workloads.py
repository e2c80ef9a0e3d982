"""Workloads of simulated ranks: jobs of a given shape and number of tasks, determined before the start by a seed alone.

A task's payload begins with its number. The children of a task have consecutive numbers, and tasks follow in the order
of their parents, so that a job of millions of tasks is a few arrays. The true cost of a task (seconds on a rank of
normal speed) and the estimate that the engine gets (bytes, wrong by a factor) are separate. A directory that has not
been read is estimated as 4 MiB, whatever it contains.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from pcopy.engine.task import ANY_RANK, NewTask, Task
from pcopy.errors import InvariantBroken

BATCH_COST = 16 << 20
"""The estimate, in bytes, for a task of mean cost: a batch of 256 small files."""

DIRECTORY_COST = 4 << 20
"""The estimate, in bytes, for a directory that has not been read."""

MAX_BATCHES_PER_TASK = 8
"""The maximum number of batches of files that a directory spawns itself.

With more, it spawns batches of names, each of which spawns that many batches of files.
"""

# Seconds in mean costs of a task:
DIRECTORY_SHARE = 0.05  # to open a directory and to make its copy
LIST_SHARE = 0.0025  # to list the files of one batch
STAT_SHARE = 0.05  # to stat the files of one batch
NOTE_SHARE = 0.001  # to process a note

_NUMBER_BYTES = 4
_COPY, _SCAN, _NOTE = range(3)
_DIRECTORY, _BATCH = -1, -2


class WorkloadParameters(NamedTuple):
    """The parameters of a job: about ``tasks`` tasks of ``seconds`` each on average.

    Estimates are wrong by up to a factor of ``estimate_error``. Each task has ``payload_size`` bytes in the queue,
    besides its header.
    """

    tasks: int
    seconds: float
    estimate_error: float = 2.0
    payload_size: int = 100


class Workload:
    """A job. Task 0 is the root's. ``finish_task`` must be called once for each task, when it ends."""

    def __init__(self, padding: int = 0) -> None:
        self.seconds = array("d")
        """The time of each task, in seconds, on a rank of normal speed."""
        self._padding = bytes(padding)
        self._costs = array("Q")
        self._kinds = bytearray()
        self._children = array(
            "I", [1]
        )  # the first child of each task; the children end where those of the next task begin
        self._done = bytearray()
        self._notes = 0

    def add_task(self, kind: int, seconds: float, cost: float, children: int) -> None:
        """Add a task. Its estimated ``cost`` is in bytes."""
        self.seconds.append(seconds)
        self._costs.append(int(cost))
        self._kinds.append(kind)
        self._children.append(self._children[-1] + children)
        self._done.append(0)
        self._notes += kind == _NOTE

    @property
    def tasks(self) -> int:
        """The number of tasks."""
        return len(self.seconds)

    @property
    def unfinished(self) -> int:
        """The number of tasks that have not run."""
        return self._done.count(0)

    def first_tasks_of_phase(self) -> list[NewTask]:
        """Return the tasks with which the root begins."""
        return [self._spawn(0)]

    def task_seconds(self, payload: bytes) -> float:
        """Return the time of a task, in seconds on a rank of normal speed."""
        return self.seconds[int.from_bytes(payload[:_NUMBER_BYTES], "big")]

    def divide(self, task: Task, rank: int, *, hungry: bool) -> Sequence[NewTask]:
        """Return the portions into which ``rank`` divides a task (tasks for a part of its items each); an empty
        sequence if it does not divide the task.

        ``hungry``: True if ranks are waiting for work.
        """
        return ()

    def finish_task(self, payload: bytes, rank: int = 0) -> list[NewTask]:
        """Mark a task as done by ``rank``, and return the tasks that it spawns.

        Raise ``InvariantBroken`` if it has run before.
        """
        number = int.from_bytes(payload[:_NUMBER_BYTES], "big")
        if self._done[number]:
            raise InvariantBroken(f"task {number} runs again")
        self._done[number] = 1
        spawned = [self._spawn(child) for child in range(self._children[number], self._children[number + 1])]
        if self._kinds[number] == _NOTE:
            self._notes -= 1
            if not self._notes:
                spawned.append(self._spawn(self.tasks - 1))
        return spawned

    def _spawn(self, number: int) -> NewTask:
        """Return the task with a number."""
        kind = self._kinds[number]
        payload = number.to_bytes(_NUMBER_BYTES, "big") + self._padding
        return NewTask(0, payload, self._costs[number], kind == _SCAN, 0 if kind == _NOTE else ANY_RANK)


def tree_workload(shape: WorkloadParameters, random: Random) -> Workload:
    """Return a tree of directories and batches of files, both with heavy-tailed distributions.

    Most directories contain one or two directories and batches, a few contain thousands. Most batches cost a third of
    the mean, a few twenty times the mean.
    """

    def draw(room: int, waiting: int) -> tuple[int, int]:
        below = min(room, max(int(_pareto(random, 1.5, 1000.0)) - 1, 0 if waiting else 1))
        return below, min(_max_batches(room - below), int(_pareto(random, 1.2, 5000.0)))

    return _workload_of_tree(shape, random, draw)


def flat_workload(shape: WorkloadParameters, random: Random) -> Workload:
    """Return one directory with all files. One rank lists it; until then, the other ranks have no work."""
    return _workload_of_tree(shape, random, lambda room, _: (0, _max_batches(room)))


def large_file_workload(shape: WorkloadParameters, random: Random) -> Workload:
    """Return one large file with as many chunks as there are to be tasks.

    Each chunk spawns a note for rank 0, and the last note spawns the final task. Notes and the final task are added to
    the number of tasks.
    """
    job = Workload(max(0, shape.payload_size - _NUMBER_BYTES))
    chunks = max(1, shape.tasks - 1)
    job.add_task(_COPY, shape.seconds, DIRECTORY_COST, chunks)
    for _ in range(chunks):
        seconds = shape.seconds * random.uniform(0.8, 1.2)
        job.add_task(_COPY, seconds, BATCH_COST, 1)
    for _ in range(chunks):
        job.add_task(_NOTE, shape.seconds * NOTE_SHARE, 0, 0)
    job.add_task(_COPY, shape.seconds, DIRECTORY_COST, 0)
    return job


SHAPES: dict[str, Callable[[WorkloadParameters, Random], Workload]] = {
    "tree": tree_workload,
    "flat": flat_workload,
    "file": large_file_workload,
}
"""The functions that create a workload, by the name of its shape."""


def _workload_of_tree(
    shape: WorkloadParameters, random: Random, draw: Callable[[int, int], tuple[int, int]]
) -> Workload:
    """Return a tree that is created breadth first.

    ``draw`` returns how many directories and batches the next directory contains. Its arguments are the number of tasks
    that may still be added, and the number of other directories whose contents are not determined yet.
    """
    tasks = array("i", [_DIRECTORY])  # _DIRECTORY, _BATCH (of files), or a batch of names that spawns that many batches
    shares = array("d")  # seconds in mean costs
    children = array("I")
    directories, owed = 1, 0  # not described yet; batches of files that batches of names will spawn
    while (number := len(shares)) < len(tasks):
        what, before = tasks[number], len(tasks)
        if what == _BATCH:
            shares.append(_pareto(random, 1.5, 60.0) / 3)
        elif what == _DIRECTORY:
            room = max(0, shape.tasks - before - owed)
            directories -= 1
            below, batches = draw(room, directories)
            directories += below
            tasks.extend([_DIRECTORY] * below)
            if batches > MAX_BATCHES_PER_TASK:
                shares.append(DIRECTORY_SHARE + LIST_SHARE * batches)
                tasks.extend([MAX_BATCHES_PER_TASK] * (batches // MAX_BATCHES_PER_TASK))
                tasks.extend([rest] if (rest := batches % MAX_BATCHES_PER_TASK) else [])
                owed += batches
            else:
                shares.append(DIRECTORY_SHARE + STAT_SHARE * batches)
                tasks.extend([_BATCH] * batches)
        else:
            shares.append(STAT_SHARE * what)
            tasks.extend([_BATCH] * what)
            owed -= what
        children.append(len(tasks) - before)
    return _scaled_workload(shape, random, tasks, shares, children)


def _max_batches(room: int) -> int:
    """Return the maximum number of batches for ``room`` tasks, including the batches of names that spawn them."""
    return room if room <= MAX_BATCHES_PER_TASK else (room - 1) * MAX_BATCHES_PER_TASK // (MAX_BATCHES_PER_TASK + 1)


def _scaled_workload(
    shape: WorkloadParameters, random: Random, tasks: array[int], shares: array[float], children: array[int]
) -> Workload:
    """Return a job with these tasks. Their times are multiplied by a factor, so that their mean is exactly that of the
    parameters.
    """
    job = Workload(max(0, shape.payload_size - _NUMBER_BYTES))
    scale = shape.seconds * len(tasks) / sum(shares)
    for what, share, count in zip(tasks, shares, children, strict=True):
        if what == _BATCH:
            cost = BATCH_COST * share * shape.estimate_error ** random.uniform(-1.0, 1.0)
        else:
            cost = DIRECTORY_COST if what == _DIRECTORY else BATCH_COST * what
        job.add_task(_COPY if what == _BATCH else _SCAN, share * scale, cost, count)
    return job


def _pareto(random: Random, exponent: float, most: float) -> float:
    """Return a heavy-tailed variate from 1 to ``most``."""
    return float(min(most, (1.0 - random.random()) ** (-1.0 / exponent)))
