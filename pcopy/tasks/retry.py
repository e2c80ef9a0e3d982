"""What changed while it was copied is tried once more, after everything else; then it has failed."""

from __future__ import annotations

from pcopy.fsio.problem import Problem
from pcopy.tasks.phases import Phase
from pcopy.tasks.result import Result
from pcopy.tasks.values import Place, ScanNames

ATTEMPTS = 2


def is_tried_again(problem: Problem, attempt: int) -> bool:
    """Is an item that has met ``problem`` in this attempt (counted from 0) looked at once more?"""
    return problem.again and attempt + 1 < ATTEMPTS


def failed_or_retried(
    result: Result, place: Place, name: bytes, problem: Problem, attempt: int, size: int = 0, *, at_once: bool = False
) -> None:
    """Counts the item as failed, or spawns another look at its name.

    ``at_once``: in this phase. A name that nobody has seen yet may be one of an inode whose names meet in LINK.
    """
    if is_tried_again(problem, attempt):
        phase = result.phase if at_once else max(Phase.LINK, result.phase)
        result.spawn(ScanNames(place, name, attempt + 1), phase=phase, expands=True)
    else:
        result.fail(place, name, problem, size, retry=ScanNames(place, name, max(1, attempt)))
