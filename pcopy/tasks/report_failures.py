"""ReportFailures: rank 0 hears of what failed anywhere.

For a journal the notes are held to the end: what they tell of is left to do. When a job is resumed, each failed item of
its earlier runs counts as failed no longer and is tried again.
"""

from __future__ import annotations

from typing import Any

from pcopy.engine.driver import Slices
from pcopy.tasks import counts
from pcopy.tasks.codec import decode
from pcopy.tasks.context import Context
from pcopy.tasks.finish_again import finish_again
from pcopy.tasks.job import Failure
from pcopy.tasks.result import Result
from pcopy.tasks.values import LinkGroup, MakeLinks, Place, ReportFailures, ScanDir, ScanNames


def report_failures(task: ReportFailures, context: Context, result: Result) -> Slices:
    """Passes them on to where the job tells of them."""
    if result.id[0] < context.job.run:
        _try_again(task, context, result)
    else:
        if task.failures:
            result.hold()
        context.tell([Failure(*failure) for failure in task.failures], task.notices)
    return result.outcome()
    yield


def _try_again(task: ReportFailures, context: Context, result: Result) -> None:
    again: set[tuple[Place, int]] = set()
    for packed, first, counted in task.retries:
        for counter, number in counted:  # nothing for what was no item's failure, or can't be tried again
            result.count(counter, -number)
        if not packed:
            continue
        retry = decode(packed)
        phase = max(first, result.phase)
        result.spawn(retry, phase=phase, expands=phase == 0)
        if isinstance(retry, ScanDir):
            result.count(counts.UNSCANNED)
        again.update((place, phase) for place in _places(retry))
    for place, phase in again:
        finish_again(context, result, place, phase)


def _places(retry: Any) -> list[Place]:
    """The directories that a retry puts something into."""
    if isinstance(retry, ScanNames):
        return [retry.place]
    if isinstance(retry, MakeLinks):
        retry = retry.group
    return [place for place, _ in retry.names] if isinstance(retry, LinkGroup) else []
