"""Decision whether an item that could not be copied is tried again in the same run."""

from __future__ import annotations

from pcopy.fsio.patience import INTERRUPTED, NO_DESCRIPTORS
from pcopy.fsio.problem import MetadataProblem, Problem
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.result import Names, Result
from pcopy.tasks.base.values import Place

ATTEMPTS = 2
"""Number of attempts to copy an item that changes while it is copied."""

_OPENING = ("open", "create", "dup")
"""Operations that need a file descriptor. If another operation reports EMFILE or ENFILE, that comes from the file
system and does not pass.
"""


def is_tried_again(problem: Problem, attempt: int) -> bool:
    """Return True if an item that failed with ``problem`` in this ``attempt`` (counted from 0) is tried again."""
    is_transient = problem.errno in INTERRUPTED and not isinstance(problem, MetadataProblem)  # that item exists already
    if problem.errno in NO_DESCRIPTORS:
        is_transient = is_transient and problem.operation in _OPENING
    return (problem.again or is_transient) and attempt + 1 < ATTEMPTS


def failed_or_retried(
    result: Result, place: Place, name: bytes, problem: Problem, attempt: int, size: int = 0, *, at_once: bool = False
) -> None:
    """Count the item as failed, or spawn a task that examines its name again.

    Args:
        attempt: number of the attempt that failed, from 0.
        size: size in bytes.
        at_once: True if the item is tried again in the same phase. Otherwise it waits for LINK, because a name that was
            not examined yet may belong to an inode with several names, which are grouped in LINK.
    """
    if is_tried_again(problem, attempt):
        phase = result.phase if at_once else max(Phase.LINK, result.phase)
        result.look_again(place, name, attempt + 1, phase=phase)
    else:
        result.fail(place, name, problem, size, retry=Names(place, name, max(1, attempt)))
