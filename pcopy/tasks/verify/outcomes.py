"""What is done with an item that was read for its digest: one of the source, or a copy that was read back."""

from __future__ import annotations

import os

from pcopy.fsio.problem import Problem
from pcopy.signature.items import DIRECTORY
from pcopy.tasks.base import counts
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Names, Result, Tried, failed_or_retried
from pcopy.tasks.base.values import COPIED_BEFORE, NOWHERE, Contents, Item, Known, Place
from pcopy.tasks.directories.finish_dir import FinishDir, directory_failed, finish_again, is_there

_SIZES = {counts.FILES: counts.BYTES, counts.SKIPPED: counts.SKIPPED_BYTES}
"""Where the sizes are counted of what is counted there."""


def was_read(rank: Rank, result: Result, place: Place, name: bytes, known: Known, counter: int) -> None:
    """The item's digest is known now; in a copy that counts as skipped, where it doesn't count already."""
    if counter < 0:
        counter = counts.SKIPPED if rank.job.copies else counts.of_kind(known.kind)
        result.count(counter, 1, place)
        result.count(counts.SKIPPED_BYTES if rank.job.copies else counts.BYTES, known.size, place)
    result.digested(place, name, known, counter, verify=rank.verifies_skipped and place.target_id != NOWHERE)


def read_failed(
    result: Result, place: Place, name: bytes, problem: Problem, attempt: int, counter: int, size: int = 0
) -> None:
    """The item's digest can't be had; one that counts already counts as failed now."""
    if counter < 0:
        failed_or_retried(result, place, name, problem, attempt, size)
    else:
        result.count(counter, -1, place)
        result.fail(place, name, problem, size, touched=True)


def verified(result: Result, copy: Contents) -> None:
    """The copy is proved, by all of its names."""
    for number, (place, _) in enumerate(copy.names):
        result.count(counts.VERIFIED, 1, place)
        result.count(counts.CONFIRMED_BYTES, 0 if number else copy.known.size, place)


def not_verified(rank: Rank, result: Result, copy: Contents, problem: Problem) -> None:
    """The copy has failed, or is copied again.

    Names of one inode are copied again as a whole: one name that came alone would be no link any more.
    """
    known, counter, group = copy.known, copy.counter, copy.group
    if known.kind == DIRECTORY:
        result.count(counts.REFUTED, 1, copy.place)
        directory_failed(result, copy.place, problem, FinishDir(copy.place, None, True, -1, again=True))
        return
    repairs = rank.repairs(result.phase) and (group is not None or is_there(rank, copy.place))
    attempt = 1 if counter == counts.SKIPPED else COPIED_BEFORE
    retry: Item | Names | Tried = Names(copy.place, copy.name, attempt)
    if group is not None:
        retry = group._replace(attempt=COPIED_BEFORE)
    for number, (place, name) in enumerate(copy.names):
        result.count(counts.REFUTED, 1, place)
        result.count(counts.HARDLINKS if number else counter, -1, place)
        if not number and counter in _SIZES:
            result.count(_SIZES[counter], -known.size, place)
        if not repairs:
            result.fail(place, name, problem, known.size, retry=retry, retry_in=Phase.REPAIR)
            retry = Tried.WITH_ANOTHER
    if not repairs:
        return
    # Storage that loses what was written is news to its owner, even where that was mended.
    text = f"{problem.operation}: {problem.strerror or os.strerror(problem.errno or 0)}; it is copied again"
    result.warn(copy.place, copy.name, text, on_source=problem.on_source)
    if isinstance(retry, Item):
        result.copy(retry, phase=Phase.REPAIR)
    else:
        result.look_again(copy.place, copy.name, attempt, phase=Phase.REPAIR)
    for place in {place for place, _ in copy.names}:
        finish_again(rank, result, place, result.phase)
