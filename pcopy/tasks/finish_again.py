"""What is put into a finished directory anew changes its times: it is to be finished once more."""

from __future__ import annotations

from contextlib import suppress

from pcopy.fsio.preserve import CAP_DAC_OVERRIDE, capable
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of
from pcopy.tasks.context import Context
from pcopy.tasks.entering import let_us_into
from pcopy.tasks.phases import Phase
from pcopy.tasks.result import Result
from pcopy.tasks.values import NOWHERE, FinishDir, Place


def finish_again(context: Context, result: Result, place: Place, phase: int) -> None:
    """The directory ``place`` may be written in ``phase``, and gets its metadata again after it, once.

    One that is gone has failed already.
    """
    finish = Phase.REPAIR_FINISH if phase >= Phase.VERIFY else max(Phase.FINISH, phase)
    known = place.root, place.path, int(finish)
    if place.target_id == NOWHERE or context.job.roots[place.root].item or known in context.finished_again:
        return
    try:
        present = status_of(context.open_target(place))
    except Problem:
        return
    context.finished_again.add(known)
    stays = present.st_mode & 0o700 == 0o700 or capable(CAP_DAC_OVERRIDE)
    with suppress(Problem):  # what can't be put into it tells why
        let_us_into(context, place)
    was = present.st_mtime_ns if stays else None
    result.spawn(FinishDir(place, None, False, -1, again=True, was=was), phase=finish)


def is_there(context: Context, place: Place) -> bool:
    """Is the target directory still the one that was copied to?"""
    try:
        context.open_target(place)
    except Problem:
        return False
    return True
