"""Tasks: units of work, described by the rank that may run them, their phase and their cost.

The engine never reads a task's ``payload``; only the tool that spawned the task understands it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pcopy.fast_named_tuple import NamedTuple

ANY_RANK = -1
"""Value of ``owner`` for a task that any rank may run, and that other ranks may steal."""

TASK_OVERHEAD_BYTES = 160
"""Estimated bytes of memory that a queued task takes in addition to its payload."""

TaskId = tuple[int, int, int]
"""Id of a task: (number of the run, rank that spawned the task, counter of that rank).

Ids are never reused and never derived from a path. The type is a plain tuple because messages and spool files hold
pickles of primitives only; a NamedTuple would be pickled with a reference to its class.
"""

UNRECORDED = 0
"""Counter in the id of a task that was spawned by a task with deferred completion (``pcopy.engine.ticket.Outcome``).

The journal records neither such a task nor its end: a resumed job runs the spawning task again, which spawns it anew.
"""

LabelledCounts = tuple[bytes, tuple[tuple[int, int], ...]]
"""Part of a task's counts, as (label, ((counter, number), ...)). The engine does not interpret the label."""


class NewTask(NamedTuple):
    """Description of a new task to which the engine has not assigned an id yet."""

    phase: int
    payload: bytes
    cost: int
    """Estimate in bytes: the bytes that the task moves, plus the equivalent in bytes of its system calls."""
    may_find_work: bool = False
    """True if the task may find more work, as a directory scan does."""
    owner: int = ANY_RANK
    """The only rank that may run the task, or ``ANY_RANK``."""


class Task(NamedTuple):
    """A task with an id. The engine does not interpret ``payload``; the other fields are those of ``NewTask``."""

    id: TaskId
    phase: int
    payload: bytes
    cost: int
    may_find_work: bool = False
    owner: int = ANY_RANK

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory that the task takes while it is queued."""
        return TASK_OVERHEAD_BYTES + len(self.payload)


def task_batches(tasks: Iterable[Task], limit: int) -> Iterator[tuple[Task, ...]]:
    """Yield ``tasks`` in their order, in batches of up to ``limit`` bytes each.

    The size of a task is the memory that it takes. A larger task makes a batch alone. Without tasks one empty batch is
    yielded.
    """
    batch: list[Task] = []
    size = 0
    for task in tasks:
        if batch and size + task.memory_bytes > limit:
            yield tuple(batch)
            batch, size = [], 0
        batch.append(task)
        size += task.memory_bytes
    yield tuple(batch)
