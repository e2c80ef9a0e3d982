"""Decides about regular files whose names may be taken: from the status of both sides, before one is opened.

If that does not suffice, files are decided about one by one (``pcopy.tasks.files.existing.may_replace``).
"""

from __future__ import annotations

from pcopy.engine.ticket import Stepwise
from pcopy.fsio.kernel.batches import Decide, Plan, Policy, Stat, Stated
from pcopy.fsio.kernel.columns import CTIME, MODE, MTIME, OWNER, SIZE, Rows, pack_names
from pcopy.fsio.kernel.interface import waited
from pcopy.fsio.problem import Problem
from pcopy.signature.items import FILE
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import CLOCK_GRACE, Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import NOWHERE, Known, Place
from pcopy.tasks.verify.read_items import skipped

PRESENT = MODE | SIZE | MTIME | CTIME | OWNER
"""The columns of an existing item that decide."""


def policy_of(rank: Rank, place: Place) -> Policy:
    """For small files of one directory that have no other names.

    What has changed since the job began may be the job's own, or another item's whose name the file system takes for
    the same. What is repaired replaces whatever there is, unless that may be the user's.
    """
    options, preserve = rank.options, rank.options.preserve
    repairs = rank.phase >= Phase.REPAIR
    touched = rank.job.began - CLOCK_GRACE if rank.job.began else None
    if repairs:
        touched = 0 if rank.keeps else None
    return Policy(
        "replace" if repairs else options.existing,
        options.modify_window,
        contents=options.checksum and not repairs,
        keeps=rank.keeps,
        dresses=preserve.mode and preserve.ownership,
        in_place=options.inplace,
        sync=rank.syncs_items(place),
        touched=touched,
    )


def plans_for(rank: Rank, place: Place, target: int, new_names: list[bytes], sources: Rows) -> Stepwise[bytearray]:
    """A plan for each row of ``sources``, which are to be copied as ``new_names`` into the open directory ``target``.

    In a directory that this job has made nobody is asked what is there: as a rule that is nothing.
    """
    targets: Stated | None = None
    if not place.fresh:
        batch = Stat(target, pack_names(new_names), PRESENT, on_source=False)
        targets = yield from waited(rank.kernel, rank.kernel.submit(batch))
    ticket = rank.kernel.submit(Decide(policy_of(rank, place), sources, targets))
    return (yield from waited(rank.kernel, ticket)).plans


def decides_at_once(rank: Rank, place: Place) -> bool:
    """May a scan find files that stay as they are, so that nothing more need be done about them?"""
    if not rank.job.copies or place.target_id == NOWHERE or place.fresh:
        return False
    return policy_of(rank, place).existing in ("changed", "newer", "skip")


def what_stays_at_once(
    rank: Rank, result: Result, place: Place, names: list[bytes], rows: Rows
) -> Stepwise[list[bool]]:
    """Which of ``names``, of which a scan has found the ``rows``, stay as they are: those are counted as skipped."""
    try:
        target = rank.open_target(place)
    except Problem:  # which those tell that would copy them
        return [False] * len(names)
    plans = yield from plans_for(rank, place, target, [rank.new_name(place, name) for name in names], rows)
    stays = [plan == Plan.SKIP for plan in plans]
    for row, stay in enumerate(stays):
        if stay:
            skipped(rank, result, place, names[row], Known(FILE, rows.size[row], b"", rows.version(row)))
    return stays
