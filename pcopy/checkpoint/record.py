"""What one rank learned in one epoch: tasks spawned, tasks done, and what the done ones counted.

Rule: a task's end and all tasks that it spawned are in the same record, so that later both are known, or neither. A
task that was spawned and done within one record leaves its counts only.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, compress
from operator import add
from typing import Any

from pcopy.engine.messages import PrimitiveUnpickler, dump_primitives
from pcopy.engine.task import UNTOLD, Share, Task, TaskId
from pcopy.named import NamedTuple

ID_BYTES = 16
"""Bytes of a packed id: run, rank, number."""
_TOGETHER = 1024
"""Tasks in one pickle. All tasks of a record as objects would take several times its size."""

_SHARE = 512
"""Bytes of memory for the sums under one label."""

_ID = struct.Struct(">IIQ")


def pack_id(task_id: TaskId) -> bytes:
    """A task id in 16 bytes: run (4), rank (4), number (8), big-endian."""
    return _ID.pack(*task_id)


def unpack_id(packed: bytes) -> TaskId:
    run, rank, number = _ID.unpack(packed)
    return run, rank, number


def added(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    """Counters, added one by one; where one has fewer, the rest of it counts as zeros."""
    both = tuple(map(add, first, second))
    return (*both, *first[len(both) :], *second[len(both) :])


class Head(NamedTuple):
    """What a record says without its tasks. ``done`` and ``spawned`` are numbers of tasks, ``began`` as in
    ``Record``."""

    run: int
    rank: int
    size: int
    epoch: int
    phase: int
    counts: tuple[int, ...]
    done: int
    spawned: int
    began: int


class Record(NamedTuple):
    """The facts of one rank in one epoch.

    ``size`` is the number of the run's ranks. ``phase`` is the one that had begun at the cut, or -1; only what rank 0
    says of it counts. ``counts`` are sums over the tasks that became done. ``done`` holds the ids, packed, of those
    that were not spawned in this very record; ``spawned`` holds tasks as plain tuples. ``shares``: what of the counts
    was counted under which label. ``began`` is the time of the cut by the destination's clock, in nanoseconds since
    1970: what was written before is on stable storage once all records of the epoch are (0: not known). Only rank 0's
    counts, which cuts first.
    """

    run: int
    rank: int
    size: int
    epoch: int
    phase: int
    counts: tuple[int, ...]
    done: bytes
    spawned: tuple[tuple[Any, ...], ...]
    shares: tuple[Share, ...] = ()
    began: int = 0

    def pack(self) -> bytes:
        """Several pickles, so that each can be read alone: a ``Head``, ids done, shares, tuples of tasks spawned."""
        numbers = (self.run, self.rank, self.size, self.epoch, self.phase)
        head = (*numbers, self.counts, len(self.done) // ID_BYTES, len(self.spawned), self.began)
        some = (self.spawned[at : at + _TOGETHER] for at in range(0, len(self.spawned), _TOGETHER))
        packed = io.BytesIO()
        for part in chain((head, self.done, self.shares), some):  # a list of them to be joined would hold all twice
            packed.write(dump_primitives(part))
        return packed.getvalue()


def read_head(payload: bytes) -> Head:
    """The first part of a packed record; raises ``ValueError`` if it is none."""
    return _head(io.BytesIO(payload))


def read_facts(payload: bytes) -> tuple[Head, bytes, tuple[Share, ...], Iterator[Task]]:
    """A packed record whose tasks are read one after another; it, and they, raise ``ValueError`` if it is none."""
    stream = io.BytesIO(payload)
    head = _head(stream)
    done = _load(stream)
    if type(done) is not bytes or len(done) != head.done * ID_BYTES:
        raise ValueError("no ids of tasks, or another number of them than the record says")
    shares = as_shares(_load(stream))
    return head, done, shares, _read_spawned(stream, head.spawned, len(payload))


def as_shares(value: Any) -> tuple[Share, ...]:
    """Raises ``ValueError`` for anything else."""
    if type(value) is not tuple:
        raise ValueError("no shares where a record has them")
    for share in value:
        if not (type(share) is tuple and len(share) == 2 and type(share[0]) is bytes and type(share[1]) is tuple):
            raise ValueError("something that is no share of the counts")
        if not all(is_counts(each) and len(each) == 2 for each in share[1]):
            raise ValueError("something that is no share of the counts")
    return value


def _read_spawned(stream: io.BytesIO, count: int, end: int) -> Iterator[Task]:
    while stream.tell() < end:
        some = _load(stream)
        if type(some) is not tuple:
            raise ValueError("no tasks where a record has them")
        count -= len(some)
        yield from map(as_task, some)
    if count:
        raise ValueError("another number of tasks than the record says")


def as_task(fields: Any) -> Task:
    """The task that was written as a plain tuple; raises ``ValueError`` for anything else."""
    try:
        task = Task(*fields)
        run, rank, number = task.id
        well = (
            type(task.id) is tuple
            and 0 <= run < 1 << 32
            and 0 <= rank < 1 << 32
            and 0 <= number < 1 << 64
            and type(task.payload) is bytes
            and type(task.phase) is type(task.cost) is type(task.owner) is int
            and type(task.expands) is bool
        )
    except (TypeError, ValueError):
        well = False
    if not well:
        raise ValueError("something that is no task")
    return task


def load_value(payload: bytes) -> Any:
    """A value of primitives from one pickle; raises ``ValueError`` for anything else."""
    return _load(io.BytesIO(payload))


def is_counts(value: Any) -> bool:
    return type(value) is tuple and all(type(each) is int for each in value)


def _load(stream: io.BytesIO) -> Any:
    try:
        return PrimitiveUnpickler(stream).load()
    except Exception as error:  # a damaged pickle raises almost anything
        raise ValueError(f"no record of primitives: {error}") from error


def _head(stream: io.BytesIO) -> Head:
    fields = _load(stream)
    if not (type(fields) is tuple and len(fields) == len(Head._fields)):
        raise ValueError("no record of a rank's facts")
    head = Head(*fields)
    numbers = (head.run, head.rank, head.size, head.epoch, head.phase, head.done, head.spawned, head.began)
    if not is_counts(numbers) or not is_counts(head.counts):
        raise ValueError("no numbers where a record has them")
    return head


class Window:
    """Gathers the facts of one rank between two cuts."""

    def __init__(self, run: int, rank: int, ranks: int, clock: Callable[[], int] = lambda: 0) -> None:
        """``clock`` returns the time of the destination, in nanoseconds since 1970."""
        self._run, self._rank, self._ranks = run, rank, ranks
        self._clock = clock
        self._phase = -1
        self._empty()

    def _empty(self) -> None:
        self._spawned: dict[TaskId, Task] = {}
        self._done = bytearray()
        self._counts: list[int] = []
        self._shares: dict[bytes, dict[int, int]] = {}
        self.size = 0
        """About how many bytes of memory the facts hold."""

    def spawned(self, task: Task) -> None:
        self._spawned[task.id] = task
        self.size += task.footprint

    def done(
        self, task_id: TaskId, counts: Sequence[int], settled: Iterable[TaskId] = (), shares: Iterable[Share] = ()
    ) -> None:
        """A task has ended here, and with it, at the same moment, the tasks in ``settled`` (it may be one of them)."""
        for each in dict.fromkeys((task_id, *settled)):
            if each[2] == UNTOLD:
                continue
            task = self._spawned.pop(each, None)
            if task is None:
                self._done += pack_id(each)
                self.size += ID_BYTES
            else:
                self.size -= task.footprint
        self._counts += [0] * (len(counts) - len(self._counts))
        for index in compress(range(len(counts)), counts):  # nearly all are 0
            self._counts[index] += counts[index]
        for label, share in shares:
            sums = self._shares.get(label)
            if sums is None:
                sums = self._shares[label] = {}
                self.size += len(label) + _SHARE
            for counter, number in share:
                sums[counter] = sums.get(counter, 0) + number

    def begun(self, phase: int) -> None:
        """``phase`` has begun; later records say so, until the next one has."""
        self._phase = phase

    def capture(self, epoch: int) -> Record:
        """The facts so far, as those of ``epoch``; the window is empty afterwards."""
        record = Record(
            self._run,
            self._rank,
            self._ranks,
            epoch,
            self._phase,
            tuple(self._counts),
            bytes(self._done),
            tuple(tuple(task) for task in self._spawned.values()),
            tuple(self._packed_shares()),
            self._clock(),
        )
        self._empty()
        return record

    def _packed_shares(self) -> Iterator[Share]:
        for label, sums in self._shares.items():
            if share := tuple((counter, number) for counter, number in sums.items() if number):
                yield label, share
