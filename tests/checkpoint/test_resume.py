"""What remains of a job, against a model that keeps everything in memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcopy.checkpoint import join
from pcopy.checkpoint.base import read_initial_tasks_header
from pcopy.checkpoint.framing import RecordFileWriter
from pcopy.checkpoint.record import EpochTaskRecord, pack_task_id
from pcopy.checkpoint.resume import JobProgress, load_job_progress, write_first_run, write_next_run
from pcopy.engine.task import ANY_RANK, Task
from pcopy.errors import RequestRefused
from tests.checkpoint.histories import History, Step, bases, make_job, task
from tests.support.filesystems import scratch

COUNTS = (100, 20, 3)
open_spool: Callable[[], BinaryIO] = tempfile.TemporaryFile

STEP = st.tuples(st.integers(0, 4), st.integers(0, 9), st.integers(0, 3), st.integers(-1, 6), st.booleans())
RUN = st.tuples(
    st.integers(1, 5),
    st.lists(st.one_of(STEP, st.just("phase")), max_size=40),
    st.lists(st.integers(0, 12), min_size=5, max_size=5),
)


def played(history: History, steps: list[Step | str]) -> None:
    for step in steps:
        if isinstance(step, str):
            history.begin_phase(history.phase_at(history.epoch(0)) + 1)
        else:
            history.step(*step)


def check(job: Path, history: History, epoch: int) -> dict[tuple[int, int, int], Task]:
    expected = history.remaining(epoch)
    reported, tasks = load_job_progress(job, open_spool=open_spool)
    assert reported[:5] == (history.run, history.ranks, history.phase_at(epoch), epoch, history.totals(epoch))
    listed = list(tasks)
    assert {each.id: each for each in listed} == expected
    assert len(listed) == len(expected)
    return expected


@settings(max_examples=150, deadline=None)
@given(st.lists(RUN, min_size=1, max_size=3), st.sampled_from([200, 2000, 1 << 26]), st.integers(1, 5))
def test_progress_of_any_history_agrees_with_a_model(
    runs: list[tuple[int, list[Step | str], list[int]]], budget: int, last: int
) -> None:
    """What is told and dealt out after each of several runs, on other numbers of ranks, is what the model holds."""
    with scratch() as area, mock.patch.object(join, "JOIN_MEMORY_BYTES", budget):
        job = make_job(area)
        tasks = {each.id: each for each in (task(number) for number in range(1000, 1004))}
        reported = write_first_run(job, runs[0][0], COUNTS, tasks.values(), phase=0)
        for number, (ranks, steps, durable) in enumerate(runs, 1):
            history = History(number, ranks, tasks.values(), reported.counts, reported.phase)
            played(history, steps)
            epoch = history.write(job, durable)
            expected = check(job, history, epoch)
            size = runs[number][0] if number < len(runs) else last
            reported = write_next_run(job, size, open_spool=open_spool)
            assert reported[:5] == (number + 1, size, history.phase_at(epoch), 0, history.totals(epoch))
            assert sorted(os.listdir(job)) == ["current", f"run-{number + 1}"]
            dealt = bases(job, number + 1, size)
            tasks = {each.id: each for each in chain.from_iterable(dealt)}
            assert sum(map(len, dealt)) == len(tasks)
            assert tasks == {
                key: each if each.owner == ANY_RANK else each._replace(owner=each.owner % size)
                for key, each in expected.items()
            }
            for rank, own in enumerate(dealt):
                assert {each.owner for each in own} <= {ANY_RANK, rank}
            assert load_job_progress(job, open_spool=open_spool)[0] == reported


def test_missing_or_empty_segment_counts_as_no_records(area: Path) -> None:
    for content in (None, b""):
        job = make_job(area)
        write_first_run(job, 2, COUNTS, [task(1), task(2)], phase=1)
        history = History(1, 2, [task(1), task(2)], COUNTS, 1)
        history.step(0, 0, 2, ANY_RANK, False)
        history.cut(0)
        assert history.write(job, (1, 1)) == 0
        if content is not None:
            (job / "run-1" / "facts-1").touch(mode=0o600)
        check(job, history, 0)
        job.rename(area / f"done-{content is None}")


def test_epochs_after_a_gap_do_not_count(area: Path) -> None:
    job = make_job(area)
    write_first_run(job, 1, COUNTS, [task(1), task(2), task(3)])
    history = History(1, 1, [task(1), task(2), task(3)], COUNTS)
    for _ in range(3):
        history.step(0, 0, 0, ANY_RANK, False)
        history.cut(0)
    del history.records[0][1]
    history.write(job, (9,))
    check(job, history, 1)


@pytest.mark.parametrize("epochs", [(1, 1), (1, 2, 1), (2, 1), (0,)])
def test_epochs_out_of_order_are_refused(area: Path, epochs: tuple[int, ...]) -> None:
    job = make_job(area)
    write_first_run(job, 1, COUNTS, [task(1)])
    history = History(1, 1, [], COUNTS)
    writer = RecordFileWriter(job, 1, 0)
    for epoch in epochs:
        writer.append(history.windows[0].take_record(epoch))
    writer.close()
    with pytest.raises(
        RequestRefused, match=r"facts-0: damaged at byte \d+: the record of epoch \d follows that of epoch \d"
    ):
        load_job_progress(job, open_spool=open_spool)


@pytest.mark.parametrize(("run", "rank", "size"), [(2, 0, 1), (1, 1, 1), (1, 0, 2)])
def test_segment_of_another_rank_is_refused(area: Path, run: int, rank: int, size: int) -> None:
    job = make_job(area)
    write_first_run(job, 1, COUNTS, [task(1)])
    writer = RecordFileWriter(job, 1, 0)
    writer.append(History(1, 1, [], COUNTS).windows[0].take_record(1)._replace(run=run, rank=rank, size=size))
    writer.close()
    with pytest.raises(
        RequestRefused, match=f"facts-0: damaged at byte 0: the record is from run {run}, rank {rank} of {size}"
    ):
        load_job_progress(job, open_spool=open_spool)


@pytest.mark.parametrize("budget", [100, 1 << 20])
@pytest.mark.parametrize(
    ("spawned", "done", "wrong"),
    [
        ((77, 77), (), "spawned twice"),
        ((1,), (), "spawned twice"),
        ((77,), (77, 77), "done twice"),
        ((), (1, 1), "done twice"),
        ((77,), (78,), "done and was never spawned"),
    ],
)
def test_contradictory_facts_are_refused(
    area: Path, spawned: tuple[int, ...], done: tuple[int, ...], wrong: str, budget: int
) -> None:
    """Else what remains would be a guess, and a task could be lost in silence. Tasks 1 to 8 are in the base."""
    job = make_job(area)
    write_first_run(job, 1, COUNTS, [task(number) for number in range(1, 9)])
    writer = RecordFileWriter(job, 1, 0)
    facts = [(b"", (tuple(task(number)),)) for number in spawned] + [
        (pack_task_id((1, 0, number)), ()) for number in done
    ]
    for epoch, (ids, tasks) in enumerate(facts, 1):
        writer.append(EpochTaskRecord(1, 0, 1, epoch, 0, (1,), ids, tasks))
    writer.close()
    with (
        mock.patch.object(join, "JOIN_MEMORY_BYTES", budget),
        pytest.raises(RequestRefused, match=f"run-1: damaged: task .* of rank 0 in run 1 was {wrong}"),
    ):
        write_next_run(job, 1, open_spool=open_spool)
    assert sorted(os.listdir(job)) == ["current", "run-1"]


@pytest.mark.parametrize("size", [1, 3, 8, 9, 25, 300])
def test_tasks_are_distributed_evenly(area: Path, size: int) -> None:
    job = make_job(area)
    made = [task(number, owner=number % 40 if number % 5 == 0 else ANY_RANK) for number in range(2000)]
    write_first_run(job, size, COUNTS, made)
    dealt = bases(job, 1, size)
    assert sorted(chain.from_iterable(dealt)) == sorted(
        each if each.owner == ANY_RANK else each._replace(owner=each.owner % size) for each in made
    )
    anybodys = [sum(each.owner == ANY_RANK for each in own) for own in dealt]
    assert max(anybodys) - min(anybodys) <= join.TASKS_PER_TURN
    for rank, own in enumerate(dealt):
        assert {each.owner for each in own} <= {ANY_RANK, rank}


def test_tasks_are_readdressed_or_omitted(area: Path) -> None:
    job = make_job(area)
    write_first_run(job, 2, COUNTS, [task(number, owner=number % 2) for number in range(10)] + [task(50), task(60)])

    def address(each: Task) -> Task | None:
        if each.id[2] == 60:
            return None
        return each if each.owner == ANY_RANK else each._replace(owner=each.id[2])

    write_next_run(job, 4, address=address, open_spool=open_spool)
    dealt = bases(job, 2, 4)
    for rank, own in enumerate(dealt):
        assert sorted(each.id[2] for each in own if each.owner != ANY_RANK) == list(range(rank, 10, 4))
    assert sum(map(len, dealt)) == 11


class Mended:
    """Takes back what was counted under some labels, and puts another task in the place of all."""

    def __init__(self, *labels: bytes) -> None:
        self._labels = labels
        self.seen: list[Task] = []

    def examine_tasks(self, run: int, tasks: Iterable[Task]) -> None:
        self.seen += tasks

    def are_counts_to_be_subtracted(self, label: bytes) -> bool:
        return label in self._labels

    def replacement_tasks(self) -> Iterator[Task]:
        yield task(70)


@pytest.mark.parametrize("ranks", [1, 65])
def test_counts_are_subtracted_by_label(area: Path, ranks: int) -> None:
    """Those of all runs and ranks, and none of epochs that do not count."""
    job = make_job(area)
    write_first_run(job, 2, (100, 20), [task(1), task(2)])
    for rank, epochs in enumerate((2, 1)):
        writer = RecordFileWriter(job, 1, rank)
        for epoch in range(1, epochs + 1):
            shares = ((b"0/a", ((0, 3), (1, 1))), (b"0/b", ((0, 2),)))
            writer.append(EpochTaskRecord(1, rank, 2, epoch, 0, (5, 1), b"", (), shares))
        writer.close()
    assert write_next_run(job, ranks, open_spool=open_spool).counts == (110, 22)
    for rank in range(ranks):
        writer = RecordFileWriter(job, 2, rank)
        writer.append(
            EpochTaskRecord(2, rank, ranks, 1, 0, (0, 1) if rank else (0, 0, 4), b"", (), ((b"0/b", ((1, 1),)),)[:rank])
        )
        writer.close()
    updated = Mended(b"0/a")
    assert write_next_run(job, 2, replacement=updated, open_spool=open_spool).counts == (104, 20 + ranks - 1, 4)
    assert {each.id for each in updated.seen} == {task(1).id, task(2).id}
    assert [each.id for each in chain(*bases(job, 3, 2))] == [task(70).id]
    assert write_next_run(job, 1, replacement=Mended(b"0/a", b"0/b"), open_spool=open_spool).counts == (100, 20, 4)


def test_missing_or_started_checkpoint_directory_is_refused(area: Path) -> None:
    with pytest.raises(RequestRefused, match="nowhere: "):
        load_job_progress(area / "nowhere", open_spool=open_spool)
    job = make_job(area)
    with pytest.raises(RequestRefused, match="current: is missing"):
        load_job_progress(job, open_spool=open_spool)
    write_first_run(job, 1, COUNTS, [])
    with pytest.raises(RequestRefused, match="has begun"):
        write_first_run(job, 1, COUNTS, [])
    assert load_job_progress(job, open_spool=open_spool)[0] == JobProgress(1, 1, 0, 0, COUNTS)


def test_phase_is_read_from_records_of_rank_0_only(area: Path) -> None:
    job = make_job(area)
    write_first_run(job, 2, COUNTS, [task(1)], phase=1)
    history = History(1, 2, [task(1)], COUNTS, 1)
    history.begin_phase(2)
    history.windows[1].set_phase(9)
    for rank in range(2):
        history.cut(rank)
    history.write(job, (1, 1))
    check(job, history, 1)


def test_only_base_of_rank_0_holds_counts_and_phase(area: Path) -> None:
    job = make_job(area)
    write_first_run(job, 2, COUNTS, [], phase=3)
    assert read_initial_tasks_header(job, 1, 0) == (1, 0, 2, 3, COUNTS)
    assert read_initial_tasks_header(job, 1, 1) == (1, 1, 2, -1, ())


def test_files_of_an_earlier_attempt_are_removed(area: Path) -> None:
    job = make_job(area)
    write_first_run(job, 1, COUNTS, [task(1)])
    for stale in ("run-2", "run-0", "run-17"):
        (job / stale).mkdir()
        (job / stale / "base-0").write_bytes(b"stale")
    (job / "run-3").symlink_to(area)
    (job / "current.new").write_bytes(b"stale")
    (job / "other").write_bytes(b"not ours")
    write_next_run(job, 2, open_spool=open_spool)
    assert sorted(os.listdir(job)) == ["current", "other", "run-2"]
    assert sorted(chain.from_iterable(bases(job, 2, 2))) == [task(1)]
    assert area.is_dir()


def test_failure_to_remove_the_old_run_is_no_error(area: Path) -> None:
    job = make_job(area)
    write_first_run(job, 1, COUNTS, [task(1)])
    (job / "run-1" / "directory").mkdir()
    assert (
        write_next_run(job, 2, open_spool=open_spool)
        == load_job_progress(job, open_spool=open_spool)[0]
        == (2, 2, 0, 0, COUNTS, 0)
    )


MEMORY_PROGRAM = """
import resource, sys, tempfile
from pcopy.checkpoint.record import EpochTaskRecord, pack_task_id
from pcopy.checkpoint.base import read_initial_tasks_header
from pcopy.checkpoint import join
from pcopy.checkpoint.resume import write_first_run, write_next_run
from pcopy.checkpoint.framing import RecordFileWriter

job, tasks, per_record, budget = sys.argv[1], *map(int, sys.argv[2:])
write_first_run(job, 2, (0,), [])
writers = [RecordFileWriter(job, 1, rank) for rank in range(2)]
epoch = 0
for start in range(0, tasks, per_record):
    epoch += 1
    numbers = range(start, start + per_record)
    spawned = tuple(((1, 0, n), 0, b"%0100d" % n, 1, False, -1) for n in numbers)
    writers[0].append(EpochTaskRecord(1, 0, 2, epoch, 0, (1,), b"", spawned))
    done = b"".join(pack_task_id((1, 0, n)) for n in numbers if n % 10 == 0)
    writers[1].append(EpochTaskRecord(1, 1, 2, epoch, -1, (1,), done, ()))
    del spawned, done
def peak():
    return int([line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")][0])
open("/proc/self/clear_refs", "w").write("5")
before = peak()
join.JOIN_MEMORY_BYTES = budget
write_next_run(job, 3, open_spool=tempfile.TemporaryFile)
print(peak() - before)
"""


def test_memory_of_a_resume_is_bounded(area: Path) -> None:
    """300,000 tasks: 12 MiB above what the process had for their records; 80 MiB, were the ids held at once."""
    job = make_job(area)
    command = [sys.executable, "-c", MEMORY_PROGRAM, str(job), "300000", "2000", str(1 << 20)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(done.stdout) < 12 << 10
    assert sum(1 for own in bases(job, 2, 3) for _ in own) == 270000
