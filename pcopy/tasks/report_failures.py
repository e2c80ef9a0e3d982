"""ReportFailures: rank 0 hears of what failed anywhere.

For a journal the notes are held to the end: what they tell of is left to do. When a job is resumed, each failed item of
its earlier runs counts as failed no longer and is tried again.
"""

from __future__ import annotations

from typing import Any

from pcopy.engine.driver import Slices
from pcopy.engine.task import ANYBODY
from pcopy.tasks import counts
from pcopy.tasks.codec import decode
from pcopy.tasks.context import CALL_COST, Context
from pcopy.tasks.finish_again import finish_again
from pcopy.tasks.job import Failure
from pcopy.tasks.result import Result
from pcopy.tasks.signing import owner_of
from pcopy.tasks.values import (
    NOWHERE,
    CopyAnew,
    FailDir,
    LinkGroup,
    LinkNote,
    MakeLinks,
    Place,
    ReportFailures,
    ScanDir,
    ScanNames,
    pack_names,
)


def report_failures(task: ReportFailures, context: Context, result: Result) -> Slices:
    """Passes them on to where the job tells of them."""
    if result.id[0] < context.job.run:
        _try_again(task, context, result)
    else:
        if task.failures:
            result.hold()
        unknown = [text for name, text in task.unknown if name not in context.unknown_told]
        context.unknown_told.update(name for name, _ in task.unknown)
        result.count(counts.WARNINGS, len(unknown))
        context.tell([Failure(*failure) for failure in task.failures], [*task.notices, *unknown])
    return result.outcome()
    yield


def _try_again(task: ReportFailures, context: Context, result: Result) -> None:
    """Names of one directory are tried together, so that they fail together if they do: in one note, not in many."""
    names: dict[tuple[Place, int, int], list[bytes]] = {}
    for failed in task.retries:
        for counter, number in failed.counted:
            result.count(counter, -number, failed.place)
        if not failed.task:
            continue
        retry, phase = decode(failed.task), max(failed.phase, result.phase)
        if failed.untouched:
            retry = _begun_now(retry, (context.job.run, context.job.resumed))
        if isinstance(retry, ScanNames):
            names.setdefault((retry.place, retry.attempt, phase), []).append(retry.names)
        else:
            _spawn(context, result, retry, phase)
    for (place, attempt, phase), each in names.items():
        _spawn(context, result, ScanNames(place, pack_names(each), attempt), phase, len(each) * CALL_COST)


def _spawn(context: Context, result: Result, retry: Any, phase: int, cost: int = 0) -> None:
    owner = ANYBODY
    if isinstance(retry, ScanDir):
        result.count(counts.UNSCANNED, 1, Place(retry.root, retry.path, retry.source_id, NOWHERE, False, False))
    elif isinstance(retry, FailDir):  # which takes it from the copied ones
        result.count(counts.DIRECTORIES, 1, retry.place)
        owner = owner_of(retry.place.path, context.size)
    elif isinstance(retry, LinkNote):
        owner = retry.bucket % context.size
    result.spawn(retry, cost, phase=phase, expands=phase == 0, owner=owner)
    for place in _places(retry):
        finish_again(context, result, place, phase)


def _places(retry: Any) -> set[Place]:
    """The directories that a retry puts something into."""
    if isinstance(retry, ScanDir):
        return {retry.parent} if retry.parent else set()
    if isinstance(retry, ScanNames | LinkNote):
        return {retry.place}
    if isinstance(retry, MakeLinks | CopyAnew):
        retry = retry.group
    return {place for place, _ in retry.names} if isinstance(retry, LinkGroup) else set()


def _begun_now(retry: Any, since: tuple[int, int]) -> Any:
    """The ``retry`` of what no earlier run has made anything of."""
    if isinstance(retry, ScanNames):
        return retry._replace(place=retry.place._replace(since=since))
    if isinstance(retry, MakeLinks):
        return retry._replace(group=_begun_now(retry.group, since))
    if isinstance(retry, LinkGroup):
        return retry._replace(names=tuple((place._replace(since=since), name) for place, name in retry.names))
    return retry._replace(since=since) if isinstance(retry, ScanDir) else retry
