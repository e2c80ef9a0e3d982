"""Record of one rank and one epoch (a part of a run): the tasks that were spawned, the tasks that are done, and the
counts of the done tasks.

The end of a task and all tasks that it spawned are in the same record, so that a resumed job knows of both or of
neither. Of a task that was spawned and done within one record only the counts are kept, unless the task was written to
a temporary file in between: the tasks of a record that do not fit into memory are in such a file.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress, islice
from operator import add
from typing import Any, BinaryIO

from pcopy.engine.backlog import OpenSpool
from pcopy.engine.messages import PrimitiveUnpickler, dump_primitives, length_of_common_prefix
from pcopy.engine.task import UNRECORDED, CountsOfLabels, Share, Task, TaskId, TaskShares
from pcopy.fast_named_tuple import NamedTuple

TASK_ID_BYTES = 16
"""Number of bytes of a packed task id, which consists of run, rank and number."""
_TASKS_PER_PICKLE = 1024
"""Number of spawned tasks in one pickle of a record. A reader loads one pickle at a time, because all tasks of a record
as Python objects would take several times the size of the record.
"""

SPOOL_RECORD_AT_BYTES = 8 << 20
"""Bytes of spawned tasks in memory from which on the tasks of the next record are written to a temporary file. The task
that has listed a directory of millions of names spawns the tasks for all of them, and they belong to one record.
"""

_LABEL_OVERHEAD_BYTES = 512
"""Estimated size in bytes of the object in memory that holds the sums of one label."""
_BYTES_PER_LABEL_IN_COLUMNS = 256
"""Estimated size in bytes of the counts of one label in ``CountsOfLabels``, when the record is made."""

_MIN_PREFIX_BYTES = 1024
"""Bytes of a label from which on it is packed as a prefix, without what it has in common with the one before: the
labels of a deep tree are long.
"""

_PACKED_TASK_ID = struct.Struct(">IIQ")


def pack_task_id(task_id: TaskId) -> bytes:
    """Return a task id packed in 16 bytes: run (4), rank (4), number (8), big-endian."""
    return _PACKED_TASK_ID.pack(*task_id)


def unpack_task_id(packed: bytes) -> TaskId:
    """Return the task id that ``pack_task_id`` packed."""
    run, rank, number = _PACKED_TASK_ID.unpack(packed)
    return run, rank, number


def elementwise_counter_sums(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    """Return two sequences of counters added element by element. The shorter one is extended by zeros."""
    both = tuple(map(add, first, second))
    return (*both, *first[len(both) :], *second[len(both) :])


class RecordHead(NamedTuple):
    """First part of a packed record: the numbers of an ``EpochTaskRecord`` without its tasks. A reader that needs no
    tasks reads only this part.

    ``run``, ``rank`` and ``size`` are the number of the run, the rank and the number of ranks. ``epoch`` is the part of
    the run that the record is about, ``phase`` the rank's phase at its end, and ``checkpoint_cut_time`` the time of its
    end. ``counts`` are the sums of the counts of the tasks that became done.
    """

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
    checkpoint_cut_time: int


class SpooledTasks(NamedTuple):
    """Spawned tasks that do not fit into memory: pickles in the first ``size`` bytes of the temporary file ``file``."""

    file: BinaryIO
    size: int
    number: int
    """Number of the tasks."""


class EpochTaskRecord(NamedTuple):
    """Record of what one rank did in one epoch (numbered part of the run): the tasks that were spawned and the tasks
    that became done. A job is resumed from these records.
    """

    run: int
    """Number of the run of the job."""
    rank: int
    size: int
    """Number of ranks of the run."""
    epoch: int
    phase: int
    """Phase of the rank at the end of the epoch; -1 if none had begun. Only rank 0's value is used."""
    counts: tuple[int, ...]
    """Sums of the counts of the tasks that became done in the epoch, by the index of the counter."""
    done_ids: bytes
    """Ids of the tasks that became done in the epoch and were spawned before it, packed by ``pack_task_id`` and joined.
    """
    spawned_tasks: tuple[tuple[Any, ...], ...]
    """Tasks that were spawned in the epoch and are not done, as plain tuples."""
    shares: tuple[tuple[Any, ...], ...] = ()
    """Parts of ``counts`` under labels, packed by a ``SharePacker``. If a resumed job repeats the work of a label, it
    subtracts these parts. A label may occur several times.
    """
    checkpoint_cut_time: int = 0
    """Time of the end of the epoch by the clock of the destination's file system, in nanoseconds since 1970; 0 if
    unknown.

    Only rank 0's value is used, because rank 0 ends each epoch first. Everything that was written before that time is
    on stable storage once all ranks' records of the epoch are.
    """
    spooled: SpooledTasks | None = None
    """Further tasks that were spawned in the epoch, some of which may be done; None if there are none."""

    def pickles(self) -> list[bytes]:
        """Return the record as a series of pickles, so that a reader can load one at a time. They are not joined: that
        would need twice the memory. The tasks in ``spooled`` are not included; they follow.

        The pickles are a ``RecordHead``, the packed ids of done tasks, the shares, and tuples of spawned tasks.
        """
        numbers = (self.run, self.rank, self.size, self.epoch, self.phase)
        head = (
            *numbers,
            self.counts,
            len(self.done_ids) // TASK_ID_BYTES,
            len(self.spawned_tasks) + (self.spooled.number if self.spooled else 0),
            self.checkpoint_cut_time,
        )
        parts = (dump_primitives(part) for part in (head, self.done_ids, self.shares))
        return [*parts, *_pickled_tasks(self.spawned_tasks)]


def _pickled_tasks(tasks: Iterable[tuple[Any, ...]]) -> Iterator[bytes]:
    """Yield ``tasks`` as pickles of limited size."""
    remaining = iter(tasks)
    while some := tuple(islice(remaining, _TASKS_PER_PICKLE)):
        yield dump_primitives(some)


def read_record_head(payload: bytes) -> RecordHead:
    """Return the head (numbers without tasks) of the packed record that begins with ``payload``. Raise ``ValueError``
    if there is none.
    """
    return _load_record_head(io.BytesIO(payload))


def unpack_task_record(payload: bytes) -> tuple[RecordHead, bytes, Iterator[Share], Iterator[Task]]:
    """Return what the packed record ``payload`` contains: the head, the packed ids of done tasks, and iterators over
    the shares (labelled parts of the counts) and the spawned tasks.

    The tasks are unpacked in groups. The function and the iterators raise ``ValueError`` if ``payload`` is not a
    record.
    """
    stream = io.BytesIO(payload)
    head = _load_record_head(stream)
    done = _load_primitives(stream)
    if type(done) is not bytes or len(done) != head.done_count * TASK_ID_BYTES:
        raise ValueError("the ids of done tasks are invalid, or not as many as the head of the record says")
    shares = unpack_shares(_load_primitives(stream))
    return head, done, shares, _spawned_tasks(stream, head.spawned_count, len(payload))


class SharePacker:
    """Packs shares of the counts as plain tuples: a share under one label stays what it is, and of ``CountsOfLabels``
    only those counters are kept that are not 0, and only that part of the prefix which the one before does not have.
    In a deep tree, most prefixes continue the one before.
    """

    def __init__(self) -> None:
        self._prefix = b""

    def pack_share(self, share: Share) -> tuple[Any, ...]:
        """Return the share as a tuple: (label, ((index of the counter, number), ...)), or (number of bytes that its
        prefix has in common with the one before, the rest of the prefix, labels, counters, columns).
        """
        if not isinstance(share, CountsOfLabels):
            return share
        before, self._prefix = self._prefix, share.prefix
        common = length_of_common_prefix(before, share.prefix)
        nonzero = [row for row, column in enumerate(share.columns) if any(column)]
        counters, columns = (share.counters[row] for row in nonzero), (tuple(share.columns[row]) for row in nonzero)
        return common, share.prefix[common:], share.labels, tuple(counters), tuple(columns)


def unpack_shares(value: Any) -> Iterator[Share]:
    """Yield the shares of the counts that one ``SharePacker`` has packed. Raise ``ValueError`` if ``value`` does not
    consist of such tuples.
    """
    if type(value) is not tuple:
        raise ValueError("the shares of the counts are not valid")
    prefix = b""
    for fields in value:
        if not _is_packed_share(fields):
            raise ValueError("a share of the counts is not valid")
        if len(fields) == 2:
            yield fields
        else:
            prefix = prefix[: fields[0]] + fields[1]
            yield CountsOfLabels(prefix, *fields[2:])


def _is_packed_share(fields: Any) -> bool:
    """Return True if ``SharePacker`` may have packed ``fields``."""
    if type(fields) is not tuple or len(fields) not in (2, 5):
        return False
    if len(fields) == 2:
        label, counts = fields
        is_valid = type(counts) is tuple and all(is_tuple_of_ints(each) and len(each) == 2 for each in counts)
        return type(label) is bytes and is_valid
    common, prefix, labels, counters, columns = fields
    if not (type(common) is int and type(prefix) is type(labels) is bytes and is_tuple_of_ints(counters)):
        return False
    return (
        type(columns) is tuple
        and len(columns) == len(counters)
        and all(is_tuple_of_ints(each) and len(each) == labels.count(b"\0") + 1 for each in columns)
    )


def _spawned_tasks(stream: io.BytesIO, count: int, end: int) -> Iterator[Task]:
    """Yield the spawned tasks of a record, unpacked from ``stream`` in groups. Raise ``ValueError`` if there are not
    ``count`` tasks before the offset ``end``.
    """
    while stream.tell() < end:
        some = _load_primitives(stream)
        if type(some) is not tuple:
            raise ValueError("the tasks of the record are not valid")
        count -= len(some)
        yield from map(task_from_fields, some)
    if count:
        raise ValueError("the record does not contain as many tasks as its head says")


def task_from_fields(fields: Any) -> Task:
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


def unpickle_primitives(payload: bytes) -> Any:
    """Return the value whose pickle is ``payload``. Raise ``ValueError`` if it is no pickle, or contains anything else
    than numbers, strings, bytes, None and containers of them.
    """
    return _load_primitives(io.BytesIO(payload))


def is_tuple_of_ints(value: Any) -> bool:
    """Return True if ``value`` is a tuple of integers."""
    return type(value) is tuple and all(type(each) is int for each in value)


def _load_primitives(stream: io.BytesIO) -> Any:
    """Return the value in the next pickle of ``stream``. Raise ``ValueError`` if it is no pickle, or contains anything
    else than numbers, strings, bytes, None and containers of them.
    """
    try:
        return PrimitiveUnpickler(stream).load()
    except Exception as error:  # a damaged pickle raises almost anything
        raise ValueError(f"the record cannot be unpickled: {error}") from error


def _load_record_head(stream: io.BytesIO) -> RecordHead:
    """Return the head (numbers without tasks) of the packed record in ``stream``. Raise ``ValueError`` if there is
    none.
    """
    fields = _load_primitives(stream)
    if not (type(fields) is tuple and len(fields) == len(RecordHead._fields)):
        raise ValueError("the record does not begin with a valid head")
    head = RecordHead(*fields)
    numbers = (
        head.run,
        head.rank,
        head.size,
        head.epoch,
        head.phase,
        head.done_count,
        head.spawned_count,
        head.checkpoint_cut_time,
    )
    if not is_tuple_of_ints(numbers) or not is_tuple_of_ints(head.counts):
        raise ValueError("a field of the head is not a number")
    return head


class TaskRecordCollector:
    """Collects what one rank will record at the next cut: the tasks that were spawned or became done since the last
    cut. Tasks that do not fit into memory are in a temporary file.
    """

    def __init__(
        self,
        run: int,
        rank: int,
        ranks: int,
        clock: Callable[[], int] = lambda: 0,
        open_spool: OpenSpool = io.BytesIO,
    ) -> None:
        """Create an empty collector for ``rank``, one of ``ranks`` ranks, in the run with the number ``run``.

        ``clock`` returns the time by the destination's clock, in nanoseconds since 1970. ``open_spool`` opens a
        temporary file for tasks that do not fit into memory.
        """
        self._run, self._rank, self._ranks = run, rank, ranks
        self._clock = clock
        self._open_spool = open_spool
        self._phase = -1
        self._clear()

    def _clear(self) -> None:
        """Discard everything that was collected."""
        self._spawned: dict[TaskId, Task] = {}
        self._done = bytearray()
        self._counts: list[int] = []
        self._shares: dict[bytes, tuple[tuple[int, int], ...]] = {}
        self._tables: list[tuple[Any, ...]] = []
        self._packer = SharePacker()
        self.memory_bytes = 0
        """Approximate bytes of memory that the collected tasks and counts would take if all were in memory."""
        self._spawned_bytes = 0
        self._spooled: SpooledTasks | None = None
        self._has_spool_failed = False

    def add_spawned_task(self, task: Task) -> None:
        """Add ``task`` to the spawned tasks of the next record."""
        self._spawned[task.id] = task
        self.memory_bytes += task.memory_use_in_bytes
        self._spawned_bytes += task.memory_use_in_bytes
        if self._spawned_bytes >= SPOOL_RECORD_AT_BYTES and not self._has_spool_failed:
            self._spool_spawned_tasks()

    def _spool_spawned_tasks(self) -> None:
        """Move the spawned tasks from memory to the temporary file. If that fails, they stay in memory, and so do all
        others until the next record.
        """
        try:
            file, size, number = self._spooled or SpooledTasks(self._open_spool(), 0, 0)
            file.seek(size)
            for pickled in _pickled_tasks(map(tuple, self._spawned.values())):
                file.write(pickled)
            self._spooled = SpooledTasks(file, file.tell(), number + len(self._spawned))
        except OSError:
            self._has_spool_failed = True
            return
        self._spawned, self._spawned_bytes = {}, 0

    def add_done_task(
        self,
        task_id: TaskId,
        counts: Sequence[int],
        completed: Iterable[TaskId] = (),
        shares: TaskShares = (),
    ) -> None:
        """Add a done task and its counts to the next record. If the task was spawned since the last cut, the record
        contains only its counts.

        Args:
            task_id: id of the task.
            counts: number to add to each counter, by the counter's index.
            completed: ids of tasks with deferred completion that count as done at the same moment; ``task_id`` may be
                one of them.
            shares: parts of ``counts``, each under a label.
        """
        for done in dict.fromkeys((task_id, *completed)):
            if done[2] == UNRECORDED:
                continue
            task = self._spawned.pop(done, None)
            if task is None:
                self._done += pack_task_id(done)
                self.memory_bytes += TASK_ID_BYTES
            else:
                self.memory_bytes -= task.memory_use_in_bytes
                self._spawned_bytes -= task.memory_use_in_bytes
        self._counts += [0] * (len(counts) - len(self._counts))
        for index in compress(range(len(counts)), counts):  # nearly all are 0
            self._counts[index] += counts[index]
        for each in shares:
            if isinstance(each, CountsOfLabels):
                self._add_table(each)
            elif len(each[0]) < _MIN_PREFIX_BYTES or not each[1]:
                self._add_share(*each)
            else:
                counters, numbers = zip(*each[1], strict=True)
                self._add_table(CountsOfLabels(each[0], b"", counters, tuple((number,) for number in numbers)))

    def _add_table(self, share: CountsOfLabels) -> None:
        """Add counts under many labels, or under one long label, which is their prefix."""
        packed = self._packer.pack_share(share)
        self._tables.append(packed)
        self.memory_bytes += len(packed[1]) + len(share.labels)
        self.memory_bytes += len(share.columns[0]) * _BYTES_PER_LABEL_IN_COLUMNS

    def _add_share(self, label: bytes, share: tuple[tuple[int, int], ...]) -> None:
        """Add counts under a label."""
        before = self._shares.get(label)
        if before is None:
            self._shares[label] = share
            self.memory_bytes += len(label) + _LABEL_OVERHEAD_BYTES
            return
        sums = dict(before)
        for counter, number in share:
            sums[counter] = sums.get(counter, 0) + number
        self._shares[label] = tuple(sums.items())

    def set_phase(self, phase: int) -> None:
        """Set the number of the phase that is written into the records from now on."""
        self._phase = phase

    def take_record(self, epoch: int) -> EpochTaskRecord:
        """Return what was collected so far as the record of ``epoch`` (numbered part of the run); begin to collect
        anew.
        """
        record = EpochTaskRecord(
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
            self._spooled,
        )
        self._clear()
        return record

    def _nonzero_shares(self) -> Iterator[tuple[Any, ...]]:
        """Yield the shares of the next record, packed, without counters that are 0."""
        yield from self._tables
        for label, sums in self._shares.items():
            if share := tuple((counter, number) for counter, number in sums if number):
                yield label, share
