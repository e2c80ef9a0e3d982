"""Record of one rank and one epoch: the tasks spawned, the tasks done, and the counts of the latter.

The end of a task and all tasks that it spawned are in the same record, so that later either both are known or neither.
Of a task that was spawned and done within one record only the counts are kept.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, compress
from operator import add
from typing import Any

from pcopy.engine.messages import PrimitiveUnpickler, dump_primitives
from pcopy.engine.task import UNRECORDED, LabelledCounts, Task, TaskId
from pcopy.fast_named_tuple import NamedTuple

ID_BYTES = 16
"""Bytes of a packed task id: run, rank and number."""
_TASKS_PER_PICKLE = 1024
"""Number of tasks in one pickle. All tasks of a record as Python objects would take several times its size."""

_LABEL_OVERHEAD_BYTES = 512
"""Estimated bytes of memory for the sums under one label."""

_PACKED_ID = struct.Struct(">IIQ")


def pack_id(task_id: TaskId) -> bytes:
    """Return a task id packed in 16 bytes: run (4), rank (4), number (8), big-endian."""
    return _PACKED_ID.pack(*task_id)


def unpack_id(packed: bytes) -> TaskId:
    """Return the task id that ``pack_id`` packed."""
    run, rank, number = _PACKED_ID.unpack(packed)
    return run, rank, number


def counter_sums(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    """Return the element-wise sums of two tuples of counters. The shorter one is extended by zeros."""
    both = tuple(map(add, first, second))
    return (*both, *first[len(both) :], *second[len(both) :])


class RecordHead(NamedTuple):
    """First part of a record, without its tasks. Fields that are not described here are those of the record."""

    run: int
    rank: int
    size: int
    epoch: int
    phase: int
    counts: tuple[int, ...]
    done_count: int
    """Number of done tasks in the record."""
    spawned_count: int
    """Number of spawned tasks in the record."""
    cut_time: int


class FactRecord(NamedTuple):
    """Facts of one rank in one epoch."""

    run: int
    rank: int
    size: int
    """Number of ranks of the run."""
    epoch: int
    phase: int
    """Phase that had begun at the cut, or -1. Only that in rank 0's records is used."""
    counts: tuple[int, ...]
    """Sums of the counts of the tasks that became done."""
    done_ids: bytes
    """Packed ids of the tasks that became done and were not spawned in this record."""
    spawned_tasks: tuple[tuple[Any, ...], ...]
    """Spawned tasks that are not done, as plain tuples."""
    shares: tuple[LabelledCounts, ...] = ()
    """Parts of ``counts``, by label."""
    cut_time: int = 0
    """Time of the cut by the clock of the destination, in nanoseconds since 1970; 0 if unknown.

    Only that in rank 0's records is used, because rank 0 cuts first. Everything written before that time is on stable
    storage once all records of the epoch are.
    """

    def pack(self) -> bytes:
        """Return the record as a series of pickles, so that each can be read alone.

        The pickles are a ``RecordHead``, the packed ids of done tasks, the shares, and tuples of spawned tasks.
        """
        numbers = (self.run, self.rank, self.size, self.epoch, self.phase)
        head = (*numbers, self.counts, len(self.done_ids) // ID_BYTES, len(self.spawned_tasks), self.cut_time)
        some = (
            self.spawned_tasks[at : at + _TASKS_PER_PICKLE]
            for at in range(0, len(self.spawned_tasks), _TASKS_PER_PICKLE)
        )
        packed = io.BytesIO()
        for part in chain((head, self.done_ids, self.shares), some):  # joining a list would need twice the memory
            packed.write(dump_primitives(part))
        return packed.getvalue()


def read_head(payload: bytes) -> RecordHead:
    """Return the head of a packed record. Raise ``ValueError`` if there is none."""
    return _load_head(io.BytesIO(payload))


def read_facts(payload: bytes) -> tuple[RecordHead, bytes, tuple[LabelledCounts, ...], Iterator[Task]]:
    """Return the head, the packed ids of done tasks, the shares and the spawned tasks of a packed record.

    The spawned tasks are read one by one. The function and the iterator raise ``ValueError`` if ``payload`` is not a
    record.
    """
    stream = io.BytesIO(payload)
    head = _load_head(stream)
    done = _load_primitives(stream)
    if type(done) is not bytes or len(done) != head.done_count * ID_BYTES:
        raise ValueError("not the ids of tasks, or not as many as the head of the record says")
    shares = checked_shares(_load_primitives(stream))
    return head, done, shares, _spawned_tasks(stream, head.spawned_count, len(payload))


def checked_shares(value: Any) -> tuple[LabelledCounts, ...]:
    """Return ``value`` if it is a tuple of shares; raise ``ValueError`` otherwise."""
    if type(value) is not tuple:
        raise ValueError("not the shares of the counts")
    for share in value:
        if not (type(share) is tuple and len(share) == 2 and type(share[0]) is bytes and type(share[1]) is tuple):
            raise ValueError("not a share of the counts")
        if not all(is_tuple_of_ints(each) and len(each) == 2 for each in share[1]):
            raise ValueError("not a share of the counts")
    return value


def _spawned_tasks(stream: io.BytesIO, count: int, end: int) -> Iterator[Task]:
    """Yield the spawned tasks of a record. Raise ``ValueError`` if there are not ``count`` tasks before the offset
    ``end``.
    """
    while stream.tell() < end:
        some = _load_primitives(stream)
        if type(some) is not tuple:
            raise ValueError("not the tasks of a record")
        count -= len(some)
        yield from map(checked_task, some)
    if count:
        raise ValueError("not as many tasks as the head of the record says")


def checked_task(fields: Any) -> Task:
    """Return the task that was packed as the plain tuple ``fields``. Raise ``ValueError`` if it is not a task."""
    try:
        task = Task(*fields)
        run, rank, number = task.id
        is_valid = (
            type(task.id) is tuple
            and 0 <= run < 1 << 32
            and 0 <= rank < 1 << 32
            and 0 <= number < 1 << 64
            and type(task.payload) is bytes
            and type(task.phase) is type(task.cost) is type(task.owner) is int
            and type(task.may_find_work) is bool
        )
    except (TypeError, ValueError):
        is_valid = False
    if not is_valid:
        raise ValueError("not a task")
    return task


def load_value(payload: bytes) -> Any:
    """Return a value of primitives from one pickle. Raise ``ValueError`` for anything else."""
    return _load_primitives(io.BytesIO(payload))


def is_tuple_of_ints(value: Any) -> bool:
    """Return True if ``value`` is a tuple of integers."""
    return type(value) is tuple and all(type(each) is int for each in value)


def _load_primitives(stream: io.BytesIO) -> Any:
    """Return the next pickled value of primitives in ``stream``. Raise ``ValueError`` for anything else."""
    try:
        return PrimitiveUnpickler(stream).load()
    except Exception as error:  # a damaged pickle raises almost anything
        raise ValueError(f"cannot be unpickled as primitives: {error}") from error


def _load_head(stream: io.BytesIO) -> RecordHead:
    """Return the head of the record in ``stream``. Raise ``ValueError`` if there is none."""
    fields = _load_primitives(stream)
    if not (type(fields) is tuple and len(fields) == len(RecordHead._fields)):
        raise ValueError("not the head of a record")
    head = RecordHead(*fields)
    numbers = (
        head.run,
        head.rank,
        head.size,
        head.epoch,
        head.phase,
        head.done_count,
        head.spawned_count,
        head.cut_time,
    )
    if not is_tuple_of_ints(numbers) or not is_tuple_of_ints(head.counts):
        raise ValueError("a field of the head is not a number")
    return head


class FactCollector:
    """Collector of the facts of one rank between two cuts."""

    def __init__(self, run: int, rank: int, ranks: int, clock: Callable[[], int] = lambda: 0) -> None:
        """Create an empty collector for ``rank`` of ``ranks`` ranks in ``run``.

        ``clock`` returns the time by the destination's clock, in nanoseconds since 1970.
        """
        self._run, self._rank, self._ranks = run, rank, ranks
        self._clock = clock
        self._phase = -1
        self._clear()

    def _clear(self) -> None:
        """Discard all facts."""
        self._spawned: dict[TaskId, Task] = {}
        self._done = bytearray()
        self._counts: list[int] = []
        self._shares: dict[bytes, dict[int, int]] = {}
        self.memory_bytes = 0
        """Approximate bytes of memory that the facts take."""

    def add_spawned(self, task: Task) -> None:
        """Add the fact that ``task`` was spawned."""
        self._spawned[task.id] = task
        self.memory_bytes += task.memory_bytes

    def add_done(
        self,
        task_id: TaskId,
        counts: Sequence[int],
        settled: Iterable[TaskId] = (),
        shares: Iterable[LabelledCounts] = (),
    ) -> None:
        """Add the fact that a task is done, with its counts.

        The tasks in ``settled`` are done at the same moment; the task may be one of them. ``shares`` are parts of
        ``counts``.
        """
        for each in dict.fromkeys((task_id, *settled)):
            if each[2] == UNRECORDED:
                continue
            task = self._spawned.pop(each, None)
            if task is None:
                self._done += pack_id(each)
                self.memory_bytes += ID_BYTES
            else:
                self.memory_bytes -= task.memory_bytes
        self._counts += [0] * (len(counts) - len(self._counts))
        for index in compress(range(len(counts)), counts):  # nearly all are 0
            self._counts[index] += counts[index]
        for label, share in shares:
            sums = self._shares.get(label)
            if sums is None:
                sums = self._shares[label] = {}
                self.memory_bytes += len(label) + _LABEL_OVERHEAD_BYTES
            for counter, number in share:
                sums[counter] = sums.get(counter, 0) + number

    def set_phase(self, phase: int) -> None:
        """Record that ``phase`` has begun. Later records name it until the next phase begins."""
        self._phase = phase

    def take_record(self, epoch: int) -> FactRecord:
        """Return the facts gathered so far as the record of ``epoch``; discard them."""
        record = FactRecord(
            self._run,
            self._rank,
            self._ranks,
            epoch,
            self._phase,
            tuple(self._counts),
            bytes(self._done),
            tuple(tuple(task) for task in self._spawned.values()),
            tuple(self._nonzero_shares()),
            self._clock(),
        )
        self._clear()
        return record

    def _nonzero_shares(self) -> Iterator[LabelledCounts]:
        """Yield the shares of the counts, without zeros."""
        for label, sums in self._shares.items():
            if share := tuple((counter, number) for counter, number in sums.items() if number):
                yield label, share
