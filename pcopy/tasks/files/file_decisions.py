"""Decides how regular files are copied whose names may be taken in the target, from the status of source and target,
before a file is opened.

If the status does not suffice, files are decided one by one
(``pcopy.tasks.files.existing.ExistingItem.may_be_replaced``).
"""

from __future__ import annotations

from collections.abc import Sequence

from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.backend.batches import CompareXattrsBatch, CopyPlan, StatNamesBatch, StatNamesResult
from pcopy.fsio.backend.columns import (
    CTIME_COLUMN,
    MODE_COLUMN,
    MTIME_COLUMN,
    OWNER_COLUMN,
    SIZE_COLUMN,
    ItemStatusColumns,
    OutcomeCode,
    pack_names,
    unpack_names,
)
from pcopy.fsio.backend.plan_copies import CopyPolicy, PlanCopiesBatch, file_copy_plan_for_unused_name
from pcopy.fsio.problem import Problem
from pcopy.signature.items import FILE
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import ItemAction
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import CLOCK_GRACE, HOST_CLOCK_GRACE, Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, ContentInfo, Place
from pcopy.tasks.files.existing import owner_columns_if_needed, should_update_metadata
from pcopy.tasks.verify.read_items import count_skipped_or_spawn_read

COLUMNS_FOR_DECISION = MODE_COLUMN | SIZE_COLUMN | MTIME_COLUMN | CTIME_COLUMN | OWNER_COLUMN
"""Bits of a column mask (``pcopy.fsio.backend.columns``): what must be known of an existing item to decide whether it
is replaced.
"""


def copy_policy_of_directory(rank: Rank, place: Place) -> CopyPolicy:
    """Return the rules by which the backend decides what is done with the small files of the directory ``place`` that
    have only one name: create, replace or skip them.

    - If an existing item has changed since the job began, an earlier run of this job may have created it; or it may be
      another item of this job whose name the file system treats as equal. Such a file is decided on the slow path, one
      by one in Python.
    - If another, unfinished job may have left an existing item without its contents, the contents are compared.
    - In a repair, the file replaces the existing item, unless that may be the user's.
    """
    options, preserve = rank.copy_options, rank.options.preserve
    repairs = rank.phase >= Phase.REPAIR
    touched = _begin_of_doubt(rank, place)
    if repairs:
        touched = 0 if rank.names_late else None
    return CopyPolicy(
        "replace" if repairs else options.existing,
        options.modify_window,
        compares_contents=options.checksum and not repairs,
        names_files_last=rank.names_late,
        copies_owner_and_mode=preserve.mode and preserve.ownership,
        makes_backups=bool(options.backup),
        writes_in_place=options.inplace or rank.options.sequential,
        syncs_files=rank.syncs_each_file(place),
        changed_since=touched,
        metadata_update=(preserve, options.modify_window) if should_update_metadata(rank) else None,
    )


def _begin_of_doubt(rank: Rank, place: Place) -> int | None:
    """Return the time since which this job, or another one that did not finish, may have written items of a target
    directory, by its clock, in nanoseconds since 1970. Return None if no item is in doubt.
    """
    if rank.job.doubted:
        return min(rank.job.began or rank.job.doubted, rank.job.doubted) - CLOCK_GRACE
    return begin_of_changes_by_job(rank, place)


def begin_of_changes_by_job(rank: Rank, place: Place) -> int | None:
    """Return the time since which this job may have written items of a target directory, by its clock, in nanoseconds
    since 1970. Return None if the job is not recorded: then that is not known.

    The tolerance is ``CLOCK_GRACE``. With ``--existing changed`` it is less if only this run can have written them and
    the directory is on this host: then one clock has set the times of all.
    """
    if not rank.job.began:
        return None
    may_have_one_clock = rank.copy_options.existing == "changed" and rank.job.run == 1
    has_one_clock = may_have_one_clock and rank.is_target_on_this_host(place)
    return rank.job.began - (HOST_CLOCK_GRACE if has_one_clock else CLOCK_GRACE)


def copy_plans_for_files(
    rank: Rank, place: Place, target: int, new_names: bytes, sources: ItemStatusColumns
) -> TicketGenerator[bytearray]:
    """Return a plan (``CopyPlan``) for each file of ``sources``: create, replace, skip, refuse, or leave it to the slow
    path, which decides files one by one.

    In a directory that this job created, existing items are not examined, because usually there are none.

    Args:
        target: descriptor of the target directory.
        new_names: names of the copies, joined by slashes.
        sources: the status of each file as a scan found it.
    """
    policy = copy_policy_of_directory(rank, place)
    if place.is_new and rank.copy_options.reflink != "always":
        return bytearray((file_copy_plan_for_unused_name(policy),)) * len(sources)
    targets: StatNamesResult | None = None
    if not place.is_new:
        batch = StatNamesBatch(target, new_names, COLUMNS_FOR_DECISION | owner_columns_if_needed(rank), on_source=False)
        targets = yield from rank.execute_batch(batch)
    plans = (yield from rank.execute_batch(PlanCopiesBatch(policy, sources, targets))).plans
    if rank.copy_options.reflink == "always":  # the backend cannot clone files (reflink), the slow path can
        return bytearray(plan if plan in (CopyPlan.SKIP, CopyPlan.REFUSE) else CopyPlan.SLOW_PATH for plan in plans)
    return plans


def can_skip_files_in_scan(rank: Rank, place: Place) -> bool:
    """Return True if a scan can recognise files that stay as they are, so that no task is needed for them: the target
    directory existed before, and ``--existing`` is changed, newer or skip.
    """
    if not rank.job.copies or place.target_id == NO_DIRECTORY_IDENTITY or place.is_new:
        return False
    return copy_policy_of_directory(rank, place).existing in ("changed", "newer", "skip")


def indices_of_files_to_copy(
    rank: Rank, result: TaskResult, place: Place, packed: bytes, rows: ItemStatusColumns
) -> TicketGenerator[Sequence[int]]:
    """Return the indices of the files that must be copied; count the others as skipped.

    If the target directory cannot be opened, all indices are returned: the tasks that copy the files report the error.

    Args:
        packed: names of the files that a scan found, joined by slashes.
        rows: status of these files.
    """
    all_rows = range(len(rows))
    try:
        target = rank.open_target_directory(place)
    except Problem:  # the tasks that copy these files report the error
        return all_rows
    renames = rank.job.roots[place.root].item
    new_names = pack_names([rank.target_name(place, name) for name in unpack_names(packed)]) if renames else packed
    plans = yield from copy_plans_for_files(rank, place, target, new_names, rows)
    if should_update_metadata(rank) and (rank.options.preserve.xattr or rank.options.preserve.acl):
        yield from _plan_differing_xattrs(rank, place, target, packed, new_names, plans)
    skipped_count = plans.count(CopyPlan.SKIP)
    if not skipped_count:
        return all_rows
    if skipped_count == len(plans) and not (rank.collects_signature_entries or rank.verifies_kept_items):
        result.count(counts.SKIPPED, skipped_count, place)
        result.count(counts.SKIPPED_BYTES, sum(rows.size), place)
        if result.item_recorder.is_recording:
            result.item_recorder.record_outcome_of_files(ItemAction.SKIP, place, unpack_names(packed), rows.size)
        return ()
    names = unpack_names(packed)
    for row, plan in enumerate(plans):
        if plan == CopyPlan.SKIP:
            count_skipped_or_spawn_read(
                rank,
                result,
                place,
                names[row],
                ContentInfo(FILE, rows.size[row], b"", rows.content_version_of_row(row)),
            )
    return [row for row, plan in enumerate(plans) if plan != CopyPlan.SKIP]


def _plan_differing_xattrs(
    rank: Rank, place: Place, target: int, packed: bytes, new_names: bytes, plans: bytearray
) -> TicketGenerator[None]:
    """Find the files that would be skipped although their extended attributes differ from those of their source. Plan
    the slow path for them, which sets the attributes.

    Args:
        packed, new_names: names in the source and in the target, joined by slashes.
        plans: the plan of each file; this is changed.
    """
    rows = [row for row, plan in enumerate(plans) if plan == CopyPlan.SKIP]
    if not rows:
        return
    try:
        source = rank.open_source_directory(place)
    except Problem:  # the tasks that copy these files report the error
        return
    if len(rows) < len(plans):
        packed, new_names = (pack_names(map(unpack_names(each).__getitem__, rows)) for each in (packed, new_names))
    batch = CompareXattrsBatch(source, packed, target, new_names)
    codes = (yield from rank.execute_batch(batch)).verdicts.codes
    for row, code in zip(rows, codes, strict=True):
        if code != OutcomeCode.DONE:
            plans[row] = CopyPlan.SLOW_PATH
