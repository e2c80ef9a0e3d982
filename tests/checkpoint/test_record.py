"""Records: what a window gathers, and that nothing but a record is read as one."""

from __future__ import annotations

import io
import pickle
import pickletools
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcopy.checkpoint import record as record_module
from pcopy.checkpoint.framing import read_record_frames, write_record_frame
from pcopy.checkpoint.record import (
    EpochTaskRecord,
    SharePacker,
    SpooledTasks,
    TaskRecordCollector,
    elementwise_counter_sums,
    pack_task_id,
    read_record_head,
    task_from_fields,
    unpack_shares,
    unpack_task_id,
    unpack_task_record,
)
from pcopy.engine.task import TASK_OVERHEAD_BYTES, UNRECORDED, CountsOfLabels, Share, Task, TaskId, labelled_counts
from tests.checkpoint.histories import task
from tests.support.records import read_record, unpack_ids

IDS = st.tuples(st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1))
TASKS = st.builds(
    Task,
    IDS,
    st.integers(0, 1 << 40),
    st.binary(max_size=50),
    st.integers(0, 1 << 63),
    st.booleans(),
    st.integers(-1, 9),
)
COUNTS = st.lists(st.integers(0, 1 << 70), max_size=4).map(tuple)
PATHS = st.text("ab/", max_size=9).map(str.encode)
NONZERO = st.integers(1, 9)
SHARES: st.SearchStrategy[list[Share]] = st.lists(
    st.tuples(PATHS, st.lists(st.tuples(NONZERO, NONZERO), max_size=3).map(tuple))
    | st.lists(st.tuples(PATHS, NONZERO, NONZERO), min_size=1, max_size=3).flatmap(
        lambda rows: st.builds(
            CountsOfLabels,
            PATHS,
            st.just(b"\0".join(row[0] for row in rows)),
            st.just((3, 5)),
            st.just(tuple(tuple(row[at] for row in rows) for at in (1, 2))),
        )
    ),
    max_size=6,
)
RECORDS = st.builds(
    EpochTaskRecord,
    st.integers(1, 9),
    st.integers(0, 9),
    st.integers(1, 9),
    st.integers(1, 1 << 40),
    st.integers(-1, 20),
    COUNTS,
    st.lists(IDS, max_size=6).map(lambda ids: b"".join(map(pack_task_id, ids))),
    st.lists(TASKS.map(tuple), max_size=6).map(tuple),
    SHARES.map(lambda shares: tuple(map(SharePacker().pack_share, shares))),
    spooled=st.none(),
)


@given(st.lists(IDS))
def test_ids_are_packed_in_16_bytes(ids: list[TaskId]) -> None:
    packed = [run.to_bytes(4, "big") + rank.to_bytes(4, "big") + number.to_bytes(8, "big") for run, rank, number in ids]
    assert [pack_task_id(each) for each in ids] == packed
    assert [unpack_task_id(each) for each in packed] == ids
    assert list(unpack_ids(b"".join(packed))) == ids


@given(RECORDS)
def test_record_is_read_as_it_was_packed(record: EpochTaskRecord) -> None:
    packed = b"".join(record.pickles())
    assert read_record(packed) == record
    assert read_record_head(packed) == (
        *record[:6],
        len(record.done_ids) // 16,
        len(record.spawned_tasks),
        record.checkpoint_cut_time,
    )
    assert [tuple(task_from_fields(each)) for each in record.spawned_tasks] == list(record.spawned_tasks)


def test_record_holds_primitives_only() -> None:
    packed = EpochTaskRecord(1, 0, 1, 1, -1, (1,), pack_task_id((1, 0, 1)), (tuple(task(5)),)).pickles()
    names = {opcode.name for opcode, _, _ in chain.from_iterable(map(pickletools.genops, packed))}
    assert not {name for name in names if "GLOBAL" in name or "REDUCE" in name or "OBJ" in name}


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        import os

        return os.system, ("exit 1",)


GOOD = (1, 0, 1, 1, -1, (1,), 0, 1)
ONE = (tuple(task(5)),)


@pytest.mark.parametrize(
    "parts",
    [
        (),
        (GOOD,),
        (GOOD, b""),
        (GOOD[:-1], b"", ONE),
        ((*GOOD, 1), b"", ONE),
        (list(GOOD), b"", ONE),
        ((*GOOD[:5], [1], 0, 1), b"", ONE),
        ((*GOOD[:5], (1.5,), 0, 1), b"", ONE),
        ((1, 0, 1, "1", -1, (1,), 0, 1), b"", ONE),
        ((*GOOD[:6], None, 1), b"", ONE),
        (GOOD, b"", [*ONE]),
        (GOOD, b"", (7,)),
        (GOOD, "", ONE),
        (GOOD, (), ONE),
        (GOOD, b"x" * 16, ONE),
        (GOOD, b"x", ONE),
        (GOOD, b"", ()),
        (GOOD, b"", ONE, ONE),
        (GOOD, b"", ONE, 1),
        (Evil(), b"", ONE),
        (GOOD, Evil(), ONE),
        (GOOD, b"", Evil()),
        (GOOD, b"", (Evil(),)),
        7,
    ],
)
def test_invalid_record_is_refused(parts: Any) -> None:
    packed = b"".join(pickle.dumps(part, 5) for part in parts) if isinstance(parts, tuple) else pickle.dumps(parts)
    with pytest.raises(ValueError, match=r"not |number|cannot be unpickled"):
        read_record(packed)


@pytest.mark.parametrize(
    "fields",
    [
        (),
        7,
        None,
        ((1, 0, 1), 0, b"", 1, False, -1, 0),
        ((1, 0), 0, b"", 1, False, -1),
        ([1, 0, 1], 0, b"", 1, False, -1),
        ((1, 0, -1), 0, b"", 1, False, -1),
        ((1, 0, 1 << 64), 0, b"", 1, False, -1),
        ((1, 1 << 32, 1), 0, b"", 1, False, -1),
        ((1 << 32, 0, 1), 0, b"", 1, False, -1),
        (("1", 0, 1), 0, b"", 1, False, -1),
        ((1, 0, 1), "0", b"", 1, False, -1),
        ((1, 0, 1), 0, "", 1, False, -1),
        ((1, 0, 1), 0, b"", 1.5, False, -1),
        ((1, 0, 1), 0, b"", 1, 0, -1),
        ((1, 0, 1), 0, b"", 1, False, None),
    ],
)
def test_invalid_task_is_refused(fields: Any) -> None:
    with pytest.raises(ValueError, match="not a task"):
        task_from_fields(fields)


def test_record_of_many_tasks_consists_of_several_pickles() -> None:
    """More than one pickle holds."""
    spawned = tuple(tuple(task(number)) for number in range(1, 2500))
    record = EpochTaskRecord(1, 0, 1, 1, -1, (1,), b"", spawned)
    packed = b"".join(record.pickles())
    assert read_record(packed) == record
    assert packed.count(b"\x80\x05\x95") == 5


@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from("sdnc"), st.integers(0, 5), st.integers(0, 3)), max_size=40))
def test_collected_facts_agree_with_a_model(actions: list[tuple[str, int, int]]) -> None:
    """Against a model: spawn a task, end one or more, begin a phase, cut."""
    window = TaskRecordCollector(3, 2, 8)
    waiting: list[Task] = [task(number, run=2) for number in range(1, 5)]
    spawned: dict[TaskId, Task] = {}
    done: list[TaskId] = []
    counts: tuple[int, ...] = ()
    phase, number, epoch = -1, 0, 0
    for action, which, more in actions:
        if action == "s":
            number += 1
            made = task(number, rank=2, run=3, owner=which % 3 - 1, payload=bytes(which + 1))
            waiting.append(made)
            spawned[made.id] = made
            window.add_spawned_task(made)
        elif action == "d" and waiting:
            first = waiting.pop(which % len(waiting))
            others = [waiting.pop() for _ in range(min(more, len(waiting)))]
            window.add_done_task(first.id, (which, more), [each.id for each in others])
            counts = tuple(map(sum, zip(counts or (0, 0), (which, more), strict=True)))
            for each in (first, *others):
                if spawned.pop(each.id, None) is None:
                    done.append(each.id)
        elif action == "n":
            phase = which
            window.set_phase(which)
        elif action == "c":
            epoch += 1
            record = window.take_record(epoch)
            assert record[:6] == (3, 2, 8, epoch, phase, counts)
            assert sorted(unpack_ids(record.done_ids)) == sorted(done)
            assert record.spawned_tasks == tuple(tuple(each) for each in spawned.values())
            assert all(type(each) is tuple for each in record.spawned_tasks)
            assert read_record(b"".join(record.pickles())) == record
            spawned, done, counts = {}, [], ()
        assert window.memory_bytes == sum(
            TASK_OVERHEAD_BYTES + len(each.payload) for each in spawned.values()
        ) + 16 * len(done)


SPOOLED_AT = 40 * (TASK_OVERHEAD_BYTES + 100)


def record_of_spawned_tasks(area: Path, window: TaskRecordCollector, number: int) -> tuple[EpochTaskRecord, int]:
    """Spawn tasks, end every third one at once and every fifth one at the end; return what the file of the record
    contains, and how many tasks were in memory.
    """
    most = 0
    for each in range(1, number + 1):
        window.add_spawned_task(task(each, rank=2, run=3, payload=b"%100d" % each))
        most = max(most, len(window._spawned))
        if each % 3 == 0:
            window.add_done_task((3, 2, each), (1,))
    for each in range(5, number + 1, 5):
        if each % 3:
            window.add_done_task((3, 2, each), (1,))
    record = window.take_record(1)
    with open(area / "facts", "wb", buffering=0) as file:
        write_record_frame(file, *record.pickles(), spooled=record.spooled)
    (area / "facts").chmod(0o600)
    (frame,) = read_record_frames(area / "facts")
    return read_record(frame.payload), most


@pytest.mark.parametrize("number", [10, 39, 40, 41, 5000])
def test_tasks_of_a_record_beyond_its_memory_are_in_a_file(
    area: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(record_module, "SPOOL_RECORD_AT_BYTES", SPOOLED_AT)
    opened: list[BinaryIO] = []

    def open_spool() -> BinaryIO:
        opened.append(io.BytesIO())
        return opened[-1]

    window = TaskRecordCollector(3, 2, 8, open_spool=open_spool)
    record, most = record_of_spawned_tasks(area, window, number)
    done = {*unpack_ids(record.done_ids)}
    remaining = {each[0] for each in record.spawned_tasks if each[0] not in done}
    assert remaining == {(3, 2, each) for each in range(1, number + 1) if each % 3 and each % 5}
    assert len({each[0] for each in record.spawned_tasks}) == len(record.spawned_tasks)
    assert done <= {each[0] for each in record.spawned_tasks}
    assert most <= 40 and len(opened) == (number > 60)
    assert window.take_record(2).spooled is None


class FullSpool(io.BytesIO):
    """A file on a full file system: it takes the first group of tasks, and half of the second."""

    failures = 0

    def write(self, data: Any) -> int:
        if self.tell():
            self.failures += 1
            super().write(bytes(data)[: len(data) // 2])
            raise OSError(28, "No space left on device")
        return super().write(data)


def test_tasks_that_cannot_be_spooled_are_recorded_from_memory(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_module, "SPOOL_RECORD_AT_BYTES", SPOOLED_AT)
    spool = FullSpool()
    window = TaskRecordCollector(3, 2, 8, open_spool=lambda: spool)
    record, most = record_of_spawned_tasks(area, window, 500)
    done = {*unpack_ids(record.done_ids)}
    assert {each[0] for each in record.spawned_tasks if each[0] not in done} == {
        (3, 2, each) for each in range(1, 501) if each % 3 and each % 5
    }
    assert most > 40 and spool.failures == 1


def test_spool_that_lacks_tasks_is_not_recorded() -> None:
    with pytest.raises(OSError, match="incomplete"):
        write_record_frame(io.BytesIO(), b"head", spooled=SpooledTasks(io.BytesIO(b"tasks"), len(b"tasks") + 1, 1))


def test_repeated_id_is_recorded_once_and_unrecorded_task_leaves_counts_only() -> None:
    """One that settles itself is done once; one that was given no number to tell of leaves its counts only."""
    window = TaskRecordCollector(3, 2, 8)
    window.add_done_task((2, 0, 5), (1,), [(2, 0, 5), (2, 0, 6)])
    window.add_done_task((2, 0, UNRECORDED), (10,))
    record = window.take_record(1)
    assert list(unpack_ids(record.done_ids)) == [(2, 0, 5), (2, 0, 6)]
    assert record.counts == (11,)


def test_columns_of_labels_are_recorded_as_columns() -> None:
    """The same labels occur in two tasks, once in columns and once one by one; counters of 0 are left out, and so is
    what a prefix has in common with the one before.
    """
    window = TaskRecordCollector(3, 2, 8)
    columns = CountsOfLabels(b"0/up/", b"a\0b\0b/c", (4, 6, 7), (bytes((1, 0, 2)), (0, 0, 0), [5, 0, -2]))
    window.add_done_task((2, 0, 5), (), (), [(b"0/up/b", ((7, 3),)), columns])
    others = [CountsOfLabels(prefix, b"c", (7,), ([2],)) for prefix in (b"0/up/b/", b"0/up/", b"0/us/", b"0/us/d/")]
    window.add_done_task((2, 0, 6), (), (), [*others, (b"0/", ((4, 1), (7, 0)))])
    assert window.memory_bytes > 3 * len("0/up/")
    record = window.take_record(1)
    assert record.shares == (
        (0, b"0/up/", b"a\0b\0b/c", (4, 7), ((1, 0, 2), (5, 0, -2))),
        (5, b"b/", b"c", (7,), ((2,),)),
        (5, b"", b"c", (7,), ((2,),)),
        (3, b"s/", b"c", (7,), ((2,),)),
        (5, b"d/", b"c", (7,), ((2,),)),
        (b"0/up/b", ((7, 3),)),
        (b"0/", ((4, 1),)),
    )
    assert sorted(labelled_counts(unpack_task_record(b"".join(record.pickles()))[2])) == [
        (b"0/", ((4, 1),)),
        (b"0/up/a", ((4, 1), (7, 5))),
        (b"0/up/b", ()),
        (b"0/up/b", ((7, 3),)),
        (b"0/up/b/c", ((4, 2), (7, -2))),
        (b"0/up/b/c", ((7, 2),)),
        (b"0/up/c", ((7, 2),)),
        (b"0/us/c", ((7, 2),)),
        (b"0/us/d/c", ((7, 2),)),
    ]
    assert window.take_record(2).shares == () and window.memory_bytes == 0
    window.add_done_task((2, 0, 7), (), (), others[:1])
    assert window.take_record(3).shares == ((0, b"0/up/b/", b"c", (7,), ((2,),)),)


def test_long_labels_are_recorded_without_what_they_have_in_common() -> None:
    """Each directory of a chain is counted by a task of its own, on the way down and on the way up."""
    window = TaskRecordCollector(3, 2, 8)
    down = [(b"0" + b"/directory" * depth, ((4, 1), (7, 2))) for depth in range(2000)]
    shares = [*down, *reversed(down)]
    for share in shares:
        window.add_done_task((2, 0, UNRECORDED), (), (), [share])
    whole = sum(len(label) for label, _ in shares)
    assert window.memory_bytes < whole // 20
    packed = b"".join(window.take_record(1).pickles())
    assert len(packed) < whole // 20
    summed = Counter[tuple[bytes, int]]()
    for label, counts in labelled_counts(unpack_task_record(packed)[2]):
        summed.update({(label, counter): number for counter, number in counts})
    assert summed == {(label, counter): 2 * number for label, counts in down for counter, number in counts}


@given(SHARES)
def test_shares_are_unpacked_as_they_were_packed(shares: list[Share]) -> None:
    assert list(unpack_shares(tuple(map(SharePacker().pack_share, shares)))) == shares


@pytest.mark.parametrize(
    "share",
    [
        (0, b"0/", b"a\0b", (4,), ((1,),)),
        (0, b"0/", b"a", (4, 5), ((1,),)),
        (0, b"0/", b"a", (4,), ((1,), (2,))),
        (0, b"0/", b"a", (4,), ((b"1",),)),
        (0, b"0/", b"a", (4,), [(1,)]),
        (0, b"0/", "a", (4,), ((1,),)),
        (0, "0/", b"a", (4,), ((1,),)),
        (b"", b"0/", b"a", (4,), ((1,),)),
        (0, b"0/", b"a", [4], ((1,),)),
        (b"0/", b"a", (4,)),
        (b"0/", ((4,),)),
        ("0/", ((4, 1),)),
        [b"0/", ((4, 1),)],
    ],
)
def test_invalid_share_of_counts_is_refused(share: Any) -> None:
    packed = b"".join(EpochTaskRecord(1, 0, 1, 1, -1, (1,), b"", ()).pickles()[:2]) + pickle.dumps((share,), 5)
    with pytest.raises(ValueError, match="not valid"):
        read_record(packed)


def test_counters_of_different_lengths_are_added() -> None:
    assert elementwise_counter_sums((), ()) == ()
    assert elementwise_counter_sums((1, 2), ()) == elementwise_counter_sums((), (1, 2)) == (1, 2)
    assert elementwise_counter_sums((1, 2, 3), (10, 20)) == (11, 22, 3)
