"""Decides about regular files whose names may be taken: from the status of both sides, before one is opened.

If that does not suffice, files are decided about one by one (``pcopy.tasks.files.existing.may_replace``).
"""

from __future__ import annotations

from collections.abc import Sequence

from pcopy.engine.ticket import Stepwise
from pcopy.fsio.kernel.batches import Compare, Plan, Stat, Stated
from pcopy.fsio.kernel.columns import CTIME, MODE, MTIME, OWNER, SIZE, Code, Rows, pack_names, unpack_names
from pcopy.fsio.kernel.decide import Decide, Policy, make_plan
from pcopy.fsio.problem import Problem
from pcopy.signature.items import FILE
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import Action
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import CLOCK_GRACE, Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import NOWHERE, Known, Place
from pcopy.tasks.files.existing import mends, owners
from pcopy.tasks.verify.read_items import skipped

PRESENT = MODE | SIZE | MTIME | CTIME | OWNER
"""The columns of an existing item that decide."""


def policy_of(rank: Rank, place: Place) -> Policy:
    """For small files of one directory that have no other names.

    What has changed since the job began may be the job's own, or another item's whose name the file system takes for
    the same. What an unfinished job may have left without its contents is compared. What is repaired replaces whatever
    there is, unless that may be the user's.
    """
    options, preserve = rank.options, rank.options.preserve
    repairs = rank.phase >= Phase.REPAIR
    since = [moment for moment in (rank.job.began, rank.job.doubted) if moment]
    touched = min(since) - CLOCK_GRACE if since else None
    if repairs:
        touched = 0 if rank.keeps else None
    return Policy(
        "replace" if repairs else options.existing,
        options.modify_window,
        contents=options.checksum and not repairs,
        keeps=rank.keeps,
        dresses=preserve.mode and preserve.ownership,
        backs_up=bool(options.backup),
        in_place=options.inplace or options.sequential,
        sync=rank.syncs_items(place),
        touched=touched,
        mends=(preserve, options.modify_window) if mends(rank) else None,
    )


def plans_for(rank: Rank, place: Place, target: int, new_names: bytes, sources: Rows) -> Stepwise[bytearray]:
    """A plan for each row of ``sources``, which are to be copied as ``new_names`` (joined by slashes) into the open
    directory ``target``.

    In a directory that this job has made nobody is asked what is there: as a rule that is nothing.
    """
    policy = policy_of(rank, place)
    if place.fresh and rank.options.reflink != "always":
        return bytearray((make_plan(policy),)) * len(sources)
    targets: Stated | None = None
    if not place.fresh:
        batch = Stat(target, new_names, PRESENT | owners(rank), on_source=False)
        targets = yield from rank.done(batch)
    plans = (yield from rank.done(Decide(policy, sources, targets))).plans
    if rank.options.reflink == "always":  # the kernel clones nothing
        return bytearray(plan if plan in (Plan.SKIP, Plan.REFUSE) else Plan.CARE for plan in plans)
    return plans


def decides_at_once(rank: Rank, place: Place) -> bool:
    """May a scan find files that stay as they are, so that nothing more need be done about them?"""
    if not rank.job.copies or place.target_id == NOWHERE or place.fresh:
        return False
    return policy_of(rank, place).existing in ("changed", "newer", "skip")


def what_goes(rank: Rank, result: Result, place: Place, packed: bytes, rows: Rows) -> Stepwise[Sequence[int]]:
    """Which rows of the names ``packed``, which a scan has found, have to be copied. Those that stay as they are count
    as skipped."""
    everything = range(len(rows))
    try:
        target = rank.open_target(place)
    except Problem:  # which those tell that would copy them
        return everything
    renames = rank.job.roots[place.root].item
    new_names = pack_names([rank.new_name(place, name) for name in unpack_names(packed)]) if renames else packed
    plans = yield from plans_for(rank, place, target, new_names, rows)
    if mends(rank) and (rank.options.preserve.xattr or rank.options.preserve.acl):
        yield from _compare(rank, place, target, packed, new_names, plans)
    staying = plans.count(Plan.SKIP)
    if not staying:
        return everything
    if staying == len(plans) and not (rank.signs or rank.verifies_skipped):
        result.count(counts.SKIPPED, staying, place)
        result.count(counts.SKIPPED_BYTES, sum(rows.size), place)
        if result.items.is_wanted:
            result.items.did_files(Action.SKIP, place, unpack_names(packed), rows.size)
        return ()
    names = unpack_names(packed)
    for row, plan in enumerate(plans):
        if plan == Plan.SKIP:
            skipped(rank, result, place, names[row], Known(FILE, rows.size[row], b"", rows.version(row)))
    return [row for row, plan in enumerate(plans) if plan != Plan.SKIP]


def _compare(
    rank: Rank, place: Place, target: int, packed: bytes, new_names: bytes, plans: bytearray
) -> Stepwise[None]:
    """Those that would stay have other extended attributes than their source: they want care."""
    rows = [row for row, plan in enumerate(plans) if plan == Plan.SKIP]
    if not rows:
        return
    try:
        source = rank.open_source(place)
    except Problem:  # which those tell that would copy them
        return
    if len(rows) < len(plans):
        packed, new_names = (pack_names(map(unpack_names(each).__getitem__, rows)) for each in (packed, new_names))
    batch = Compare(source, packed, target, new_names)
    codes = (yield from rank.done(batch)).verdicts.codes
    for row, code in zip(rows, codes, strict=True):
        if code != Code.DONE:
            plans[row] = Plan.CARE
