"""Failures of an earlier run are retried together, and each directory is finished only once more."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pcopy.engine.driver import TaskOutcome
from pcopy.engine.task import NewTask, Task
from pcopy.fsio.backend.columns import unpack_names
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.problem import Problem
from pcopy.tasks.base import counts
from pcopy.tasks.base.codec import decode_task, encode_task
from pcopy.tasks.base.job import CopyOptions, JobCounters, Options
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import CLOCK_GRACE, Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import Place
from pcopy.tasks.directories.finish_dir import DirectoryFailedNote, FailedDirectories, FinishDir
from pcopy.tasks.directories.scan_dir import ScanNames
from pcopy.tasks.report_failures import ReportFailures
from pcopy.tasks.runner import TaskRunner, make_task_outcome
from tests.tasks.one_rank import root_of, surroundings

BEGAN = 1_000_000_000 * 10**9
RESUMED = BEGAN + 3600 * 10**9
IN_THE_WAY = Problem("create", errno.EEXIST)
UNREADABLE = Problem("open", errno.EACCES, on_source=True)
NOT_WRITTEN = Problem("write", errno.ENOSPC)


@pytest.fixture
def context(area: Path) -> Iterator[Rank]:
    for name in ("source", "target"):
        (area / name).mkdir()
    roots, program = [root_of(area / "source", area / "target")], CopyOptions(existing="skip")
    with surroundings(roots, Options(sync=False), program=program) as (made, _):
        made.job = made.job._replace(began=BEGAN)
        yield made


def here(context: Rank) -> Place:
    return Place(
        0,
        b"",
        context.sources[0].identity_of_directory(b""),
        context.targets[0].identity_of_directory(b""),
        False,
        False,
    )


def run(context: Rank, task: Task) -> TaskOutcome:
    slices = TaskRunner(context)(task)
    while True:
        try:
            next(slices)
        except StopIteration as end:
            outcome: TaskOutcome = end.value
            return outcome


def note(context: Rank, names: list[bytes], problem: Problem, phase: int = Phase.COPY) -> NewTask:
    result = TaskResult(context, phase, (context.job.run, 0, 1))
    for name in names:
        result.count_item_as_failed(here(context), name, problem)
    (spawned,) = make_task_outcome(result, context).spawned
    assert isinstance(decode_task(spawned.payload), ReportFailures)
    return spawned


def tried_again(context: Rank, spawned: NewTask, later: int = 1) -> list[Any]:
    """Return the tasks of the next run for a note of this run; with ``later``, of a subsequent one."""
    earlier = context.job.run
    context.job = context.job._replace(run=earlier + later, resumed=RESUMED + earlier)
    outcome = run(context, Task((earlier, 0, 2), *spawned))
    context.job = context.job._replace(run=earlier, resumed=0)
    return [decode_task(each.payload) for each in outcome.spawned]


def test_failed_names_of_one_directory_are_retried_together(context: Rank) -> None:
    names = [b"%d" % number for number in range(300)]
    scan, finish = tried_again(context, note(context, names, NOT_WRITTEN))
    assert (type(scan), type(finish)) == (ScanNames, FinishDir)
    assert unpack_names(scan.names) == names
    assert [type(task) for task in tried_again(context, note(context, [b"more"], NOT_WRITTEN))] == [ScanNames]


@pytest.mark.parametrize(
    ("problem", "inplace", "run_number", "began_now"),
    [
        (IN_THE_WAY, False, 1, True),
        (IN_THE_WAY, True, 2, True),
        (UNREADABLE, False, 1, True),
        (UNREADABLE, True, 1, False),  # it may have been opened for writing in place by then
        (UNREADABLE, False, 2, False),  # the previous run may have created it and was killed
        (NOT_WRITTEN, False, 1, False),
    ],
)
def test_item_not_created_yet_is_not_the_jobs_own(
    context: Rank, problem: Problem, inplace: bool, run_number: int, began_now: bool
) -> None:
    context.copy_options = context.copy_options._replace(inplace=inplace)
    context.job = context.job._replace(run=run_number, program=context.copy_options)
    (scan, _) = tried_again(context, note(context, [b"name"], problem))
    since = (run_number + 1, RESUMED + run_number) if began_now else (0, 0)
    assert scan == ScanNames(here(context)._replace(first_run=since), b"name", 1)


def test_item_possibly_created_by_a_run_between_can_be_the_jobs_own(context: Rank) -> None:
    """That run tried the item and was killed before this was recorded, so the note still exists in the run after it."""
    (scan, _) = tried_again(context, note(context, [b"name"], UNREADABLE), later=2)
    assert scan == ScanNames(here(context), b"name", 1)


def test_item_created_by_a_later_run_is_the_jobs_own() -> None:
    """An item that run 2 tried first is not the job's own in run 2; in run 3 it is, unless it is older than run 2."""

    class Job:
        run, began = 1, BEGAN

    class Surroundings:
        job = Job()

    def is_ours(run: int, since: tuple[int, int], changed: int) -> bool:
        Surroundings.job.run = run
        place = Place(0, b"", ItemIdentity(0, 1), ItemIdentity(0, 2), False, False, since)
        status = os.stat_result([0] * 10 + [0, 0, changed // 10**9] + [0, 0, changed])
        assert status.st_ctime_ns == changed
        surroundings: Any = Surroundings()
        return Rank.may_be_from_earlier_run(surroundings, place, status)

    before, after = RESUMED - 2 * CLOCK_GRACE, RESUMED + 1
    assert [is_ours(run, (0, 0), before) for run in (1, 2, 3)] == [False, True, True]
    assert [is_ours(run, (2, RESUMED), after) for run in (2, 3)] == [False, True]
    assert [is_ours(run, (2, RESUMED), before) for run in (2, 3)] == [False, False]
    assert not is_ours(2, (0, 0), BEGAN - 2 * CLOCK_GRACE)


def test_a_directory_that_stays_failed_is_counted_once_in_the_next_run(context: Rank) -> None:
    """It fails there again, before anything else can fail it, so that it is recorded as failed already."""
    failing = DirectoryFailedNote(here(context), UNREADABLE.problem_as_tuple, None)
    totals: list[int] = [0] * len(JobCounters._fields)
    totals[counts.DIRECTORIES] = 1
    outcome = run(context, Task((1, 0, 1), Phase.FINISH, encode_task(failing), 0, False, 0))
    (spawned,) = outcome.spawned
    for _ in range(2):
        context.shared_instance(FailedDirectories).clear()  # as in a new process
        totals = [one + other for one, other in zip(totals, outcome.counts, strict=True)]
        assert (totals[counts.DIRECTORIES], totals[counts.FAILED]) == (0, 1)
        context.job = context.job._replace(run=2)
        again = run(context, Task((1, 0, 2), *spawned))
        totals = [one + other for one, other in zip(totals, again.counts, strict=True)]
        assert (totals[counts.DIRECTORIES], totals[counts.FAILED]) == (1, 0)
        (retry,) = again.spawned
        assert decode_task(retry.payload) == failing
        outcome = run(context, Task((2, 0, 1), *retry))
        second = run(context, Task((2, 0, 2), Phase.SEAL, retry.payload, 0, False, 0))
        assert not any(second.counts)
        (spawned,) = outcome.spawned
