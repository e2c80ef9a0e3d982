"""Whether an item that could not be copied is tried once more, by the same run."""

from __future__ import annotations

from pcopy.fsio.patience import INTERRUPTED, NO_DESCRIPTORS
from pcopy.fsio.problem import MetadataProblem, Problem
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.result import Names, Result
from pcopy.tasks.base.values import Place

ATTEMPTS = 2
"""How often an item that changed while it was copied is tried."""

_OPENING = ("open", "create", "dup")
"""Operations that need a descriptor; others report a lack of them only where a file system invents it."""


def is_tried_again(problem: Problem, attempt: int) -> bool:
    """Is an item that has met ``problem`` in this attempt (counted from 0) looked at once more?"""
    passes = problem.errno in INTERRUPTED and not isinstance(problem, MetadataProblem)  # else it is there
    if problem.errno in NO_DESCRIPTORS:
        passes = passes and problem.operation in _OPENING
    return (problem.again or passes) and attempt + 1 < ATTEMPTS


def failed_or_retried(
    result: Result, place: Place, name: bytes, problem: Problem, attempt: int, size: int = 0, *, at_once: bool = False
) -> None:
    """Counts the item as failed, or has its name looked at once more.

    ``at_once``: in this phase. A name that nobody has seen yet may be one of an inode whose names meet in LINK.
    """
    if is_tried_again(problem, attempt):
        phase = result.phase if at_once else max(Phase.LINK, result.phase)
        result.look_again(place, name, attempt + 1, phase=phase)
    else:
        result.fail(place, name, problem, size, retry=Names(place, name, max(1, attempt)))
