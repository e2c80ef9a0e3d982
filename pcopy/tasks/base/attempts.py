"""Decides whether an item that could not be copied is tried again in the same run."""

from __future__ import annotations

from pcopy.fsio.problem import MetadataProblem, Problem
from pcopy.fsio.retries import NOTHING_DONE_ERRNOS, TOO_MANY_OPEN_FILES_ERRNOS
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.result import NamesToExamine, TaskResult
from pcopy.tasks.base.values import Place

MAX_ATTEMPTS = 2
"""Number of attempts to copy an item in one run, before it counts as failed. The second attempt is made only if the
item changed during the first, or if the error may be transient.
"""

_DESCRIPTOR_OPERATIONS = ("open", "create", "dup")
"""Operations that need a new file descriptor. If another operation reports EMFILE or ENFILE, the error comes from the
file system, and another attempt would not help.
"""


def is_retried(problem: Problem, attempt: int) -> bool:
    """Return True if an item that failed with ``problem`` is tried again in this run: it changed while it was copied,
    or the error may be transient. ``attempt`` is the number of the attempt that failed, from 0; after the last attempt
    return False.
    """
    is_transient = problem.errno in NOTHING_DONE_ERRNOS and not isinstance(
        problem, MetadataProblem
    )  # only metadata failed: the item exists already
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
    """Count the item as failed, or spawn a task that looks up its name again and copies what it finds.

    Args:
        result: the result of the task in which the item failed.
        place, name: directory and name of the item.
        problem: the error.
        attempt: number of the attempt that failed, from 0.
        size: size in bytes.
        in_same_phase: True if the item is tried again in the same phase. Otherwise this waits for the phase LINK: a
            name that was not examined yet may belong to an inode with several names, and these are brought together in
            LINK.
    """
    if is_retried(problem, attempt):
        phase = result.phase if in_same_phase else max(Phase.LINK, result.phase)
        result.examine_names_again(place, name, attempt + 1, phase=phase)
    else:
        result.count_item_as_failed(place, name, problem, size, retry=NamesToExamine(place, name, max(1, attempt)))
