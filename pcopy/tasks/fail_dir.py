"""FailDir: a directory may fail more than once, and counts as failed once.

It may fail when it is finished, and again when it is finished once more because something in it was copied later. Each
time the rank that it belongs to is told; the first time it moves from the copied items to the failed ones. So whoever
tells must have counted it as copied, or tells in a phase that begins after that: a count never falls below zero.
"""

from __future__ import annotations

from pcopy.engine.driver import Slices
from pcopy.fsio.problem import Problem
from pcopy.tasks import counts
from pcopy.tasks.context import Context
from pcopy.tasks.phases import Phase
from pcopy.tasks.result import Result
from pcopy.tasks.signing import owner_of
from pcopy.tasks.values import FailDir, FinishDir, Place


def directory_failed(
    context: Context, result: Result, place: Place, problem: Problem, retry: FinishDir | None = None
) -> None:
    """The directory has met ``problem``; a job that is resumed tries ``retry``. Without one it fails again then."""
    result.spawn(FailDir(place, problem.plain, retry), owner=owner_of(place.path, context.size))


def directory_failed_again(
    context: Context, result: Result, place: Place, problem: Problem, retry: FinishDir | None = None
) -> None:
    """As ``directory_failed``, where the directory may not be counted as copied yet, but is before SEAL begins."""
    phase = max(Phase.SEAL, result.phase)
    result.spawn(FailDir(place, problem.plain, retry), phase=phase, owner=owner_of(place.path, context.size))


def fail_dir(task: FailDir, context: Context, result: Result) -> Slices:
    """Counts the directory as failed, unless it does already; tells of the problem in any case."""
    problem = Problem.from_plain(task.problem)
    directory = task.place.root, task.place.path
    if directory in context.failed_directories:
        result.report(context.shown(task.place, b"", on_source=problem.on_source), problem)
    else:
        context.failed_directories.add(directory)
        result.count(counts.DIRECTORIES, -1, task.place)
        if task.retry is None:
            result.fail(task.place, b"", problem, retry=task)
        else:
            result.fail(task.place, b"", problem, retry=task.retry, retry_in=Phase.FINISH)
    return result.outcome()
    yield
