"""Decision about regular files whose names may be taken, from the status of source and target, before a file is opened.

If that does not suffice, files are decided one by one (``pcopy.tasks.files.existing.may_replace``).
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
"""Columns of an existing item that the decision needs."""


def policy_of(rank: Rank, place: Place) -> Policy:
    """Return the policy for small files of one directory that have no other names.

    - An item that changed since the job began may be the job's own, or it may be another item of the job whose name the
      file system treats as equal.
    - An item that an unfinished job may have left without its contents is compared.
    - A file that is repaired replaces the existing item, unless that may be the user's.
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
    """Return a plan for each row of ``sources``.

    In a directory that this job created, existing items are not examined, because usually there are none.

    Args:
        target: the open target directory.
        new_names: names of the copies, joined by slashes.
        sources: the status of each file as a scan found it.
    """
    policy = policy_of(rank, place)
    if place.fresh and rank.options.reflink != "always":
        return bytearray((make_plan(policy),)) * len(sources)
    targets: Stated | None = None
    if not place.fresh:
        batch = Stat(target, new_names, PRESENT | owners(rank), on_source=False)
        targets = yield from rank.done(batch)
    plans = (yield from rank.done(Decide(policy, sources, targets))).plans
    if rank.options.reflink == "always":  # the backend cannot clone files
        return bytearray(plan if plan in (Plan.SKIP, Plan.REFUSE) else Plan.CARE for plan in plans)
    return plans


def decides_at_once(rank: Rank, place: Place) -> bool:
    """Return True if a scan can recognise files that stay as they are, so that no task is needed for them."""
    if not rank.job.copies or place.target_id == NOWHERE or place.fresh:
        return False
    return policy_of(rank, place).existing in ("changed", "newer", "skip")


def what_goes(rank: Rank, result: Result, place: Place, packed: bytes, rows: Rows) -> Stepwise[Sequence[int]]:
    """Return the numbers of the rows that must be copied; count the others as skipped.

    If the target directory cannot be opened, all rows are returned: the tasks that copy them report the error.

    Args:
        packed: names of the files that a scan found, joined by slashes.
        rows: their status.
    """
    all_rows = range(len(rows))
    try:
        target = rank.open_target(place)
    except Problem:  # the tasks that copy these files report the error
        return all_rows
    renames = rank.job.roots[place.root].item
    new_names = pack_names([rank.new_name(place, name) for name in unpack_names(packed)]) if renames else packed
    plans = yield from plans_for(rank, place, target, new_names, rows)
    if mends(rank) and (rank.options.preserve.xattr or rank.options.preserve.acl):
        yield from _compare(rank, place, target, packed, new_names, plans)
    skipped_count = plans.count(Plan.SKIP)
    if not skipped_count:
        return all_rows
    if skipped_count == len(plans) and not (rank.signs or rank.verifies_skipped):
        result.count(counts.SKIPPED, skipped_count, place)
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
    """Change the plan of files that would be skipped, but whose extended attributes differ from their source's, to the
    slow path.
    """
    rows = [row for row, plan in enumerate(plans) if plan == Plan.SKIP]
    if not rows:
        return
    try:
        source = rank.open_source(place)
    except Problem:  # the tasks that copy these files report the error
        return
    if len(rows) < len(plans):
        packed, new_names = (pack_names(map(unpack_names(each).__getitem__, rows)) for each in (packed, new_names))
    batch = Compare(source, packed, target, new_names)
    codes = (yield from rank.done(batch)).verdicts.codes
    for row, code in zip(rows, codes, strict=True):
        if code != Code.DONE:
            plans[row] = Plan.CARE
