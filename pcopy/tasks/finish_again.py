"""What is put into a finished directory anew changes its times: it is to be finished once more."""

from __future__ import annotations

from pcopy.fsio.attributes import read_attributes
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of
from pcopy.tasks.context import Context
from pcopy.tasks.entering import let_us_into
from pcopy.tasks.fail_dir import directory_failed
from pcopy.tasks.phases import Phase
from pcopy.tasks.result import Result
from pcopy.tasks.values import NOWHERE, FinishDir, Place


def finish_again(context: Context, result: Result, place: Place, phase: int) -> None:
    """The directory ``place`` may be written in ``phase``, and gets its metadata again after it.

    One that is gone has failed already.
    """
    if place.target_id == NOWHERE or context.job.roots[place.root].item or not is_there(context, place):
        return
    try:
        let_us_into(context, place)
        source = context.open_source(place)
        attributes = read_attributes(source, status_of(source, on_source=True), context.options.preserve)
    except Problem as problem:
        directory_failed(context, result, place, problem)
    else:
        finish = Phase.REPAIR_FINISH if phase >= Phase.VERIFY else max(Phase.FINISH, phase)
        result.spawn(FinishDir(place, attributes, False, -1, again=True), phase=finish)


def is_there(context: Context, place: Place) -> bool:
    """Is the target directory still the one that was copied to?"""
    try:
        context.open_target(place)
    except Problem:
        return False
    return True
