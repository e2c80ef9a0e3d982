"""Decision whether an item that could not be copied is tried again in the same run."""

from __future__ import annotations

from pcopy.fsio.problem import MetadataProblem, Problem
from pcopy.fsio.retries import NOTHING_DONE_ERRNOS, TOO_MANY_OPEN_FILES_ERRNOS
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.result import NamesToExamine, TaskResult
from pcopy.tasks.base.values import Place

MAX_ATTEMPTS = 2
"""Number of attempts to copy an item that changes while it is copied."""

_DESCRIPTOR_OPERATIONS = ("open", "create", "dup")
"""Operations that need a file descriptor. If another operation reports EMFILE or ENFILE, that comes from the file
system and does not pass.
"""


def is_retried(problem: Problem, attempt: int) -> bool:
    """Return True if an item that failed with ``problem`` in this ``attempt`` (counted from 0) is tried again."""
    is_transient = problem.errno in NOTHING_DONE_ERRNOS and not isinstance(
        problem, MetadataProblem
    )  # that item exists already
    if problem.errno in TOO_MANY_OPEN_FILES_ERRNOS:
        is_transient = is_transient and problem.operation in _DESCRIPTOR_OPERATIONS
    return (problem.may_retry or is_transient) and attempt + 1 < MAX_ATTEMPTS


def fail_or_retry(
    result: TaskResult,
    place: Place,
    name: bytes,
    problem: Problem,
    attempt: int,
    size: int = 0,
    *,
    in_same_phase: bool = False,
) -> None:
    """Count the item as failed, or spawn a task that examines its name again.

    Args:
        attempt: number of the attempt that failed, from 0.
        size: size in bytes.
        in_same_phase: True if the item is tried again in the same phase. Otherwise it waits for LINK, because a name
            that was not examined yet may belong to an inode with several names, which are grouped in LINK.
    """
    if is_retried(problem, attempt):
        phase = result.phase if in_same_phase else max(Phase.LINK, result.phase)
        result.examine_again(place, name, attempt + 1, phase=phase)
    else:
        result.fail(place, name, problem, size, retry=NamesToExamine(place, name, max(1, attempt)))
