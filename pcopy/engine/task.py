"""Tasks: units of work, each with the rank that may run it, its phase and its cost.

The engine never reads a task's ``payload``, the packed description of the work; only the program that spawned the task
understands it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pcopy.fast_named_tuple import NamedTuple

ANY_RANK = -1
"""Value of a task's ``owner`` that means: any rank may run the task, and other ranks may take it from the rank that has
it.
"""

TASK_OVERHEAD_BYTES = 160
"""Estimated bytes of memory that a queued task takes in addition to its packed description."""

TaskId = tuple[int, int, int]
"""Id of a task: (number of the run, rank that spawned the task, counter of that rank).

Ids are never reused within a job and never derived from a path. The type is a plain tuple because messages and spool
files contain only pickles of primitive values; a NamedTuple would be pickled with a reference to its class.
"""

UNRECORDED = 0
"""Number in the id of a task that is not recorded, because it was spawned by a task with deferred completion (one that
is recorded as done only together with a later task).

The journal records neither the spawning nor the end of such a task. A resumed job runs the spawning task again, which
spawns the other task again.
"""

LabelledCounts = tuple[bytes, tuple[tuple[int, int], ...]]
"""A part of the counts of a task, under a label: (label, ((index of the counter, number), ...)). If a resumed job
repeats the work with this label, it subtracts these numbers. The engine does not interpret the label.
"""


class CountsOfLabels(NamedTuple):
    """Parts of the counts of a task under many labels, as columns, which need less memory and time than one object for
    each label. Labels may be much longer than what distinguishes them, so they have one prefix.

    Fields:
        prefix: the beginning of all labels.
        labels: the rest of each label, joined by zero bytes.
        counters: indices of counters.
        columns: for each of these counters the numbers, one for each label.
    """

    prefix: bytes
    labels: bytes
    counters: tuple[int, ...]
    columns: tuple[Sequence[int], ...]

    def labelled_counts(self) -> Iterator[LabelledCounts]:
        """Yield each label with its counts, without those that are 0."""
        shares = dict[tuple[int, ...], tuple[tuple[int, int], ...]]()
        for label, *row in zip(self.labels.split(b"\0"), *self.columns, strict=True):
            key = tuple(row)
            share = shares.get(key)
            if share is None:  # most labels have one of a few shares
                share = shares[key] = tuple(each for each in zip(self.counters, row, strict=True) if each[1])
            yield self.prefix + label, share


Share = LabelledCounts | CountsOfLabels
"""Parts of counts under one label or under many."""

TaskShares = Sequence[Share]
"""Type: parts of the counts of a task, each under a label."""


def labelled_counts(shares: Iterable[Share]) -> Iterator[LabelledCounts]:
    """Yield the counts under each single label in ``shares``. A label may occur several times."""
    for share in shares:
        if isinstance(share, CountsOfLabels):
            yield from share.labelled_counts()
        else:
            yield share


class NewTask(NamedTuple):
    """Description of a task to be added to the queue. The engine gives it an id, and makes a ``Task`` of it."""

    phase: int
    payload: bytes
    cost: int
    """Estimate in bytes: the bytes that the task moves, plus the equivalent in bytes of its system calls."""
    may_find_work: bool = False
    """True if the task may find more work, as a directory scan does."""
    owner: int = ANY_RANK
    """The only rank that may run the task, or ``ANY_RANK``."""


class Task(NamedTuple):
    """A task in the queue of a rank or in a message. ``payload`` describes the work, ``cost`` estimates it in bytes,
    and ``owner`` is the only rank that may run the task (-1: any rank). ``may_find_work`` is True for a task that
    may spawn many others, as a directory scan does. The engine does not interpret ``payload``.
    """

    id: TaskId
    phase: int
    payload: bytes
    cost: int
    may_find_work: bool = False
    owner: int = ANY_RANK

    @property
    def memory_use_in_bytes(self) -> int:
        """Bytes of memory that the task takes while it is queued."""
        return TASK_OVERHEAD_BYTES + len(self.payload)


def task_batches(tasks: Iterable[Task], limit: int) -> Iterator[tuple[Task, ...]]:
    """Yield ``tasks`` in their order, in batches that take up to ``limit`` bytes of memory each.

    A task that is larger than ``limit`` is in a batch of its own. If there are no tasks, one empty batch is yielded.
    """
    batch: list[Task] = []
    size = 0
    for task in tasks:
        if batch and size + task.memory_use_in_bytes > limit:
            yield tuple(batch)
            batch, size = [], 0
        batch.append(task)
        size += task.memory_use_in_bytes
    yield tuple(batch)
