"""Dry run of files (``--dry-run``): what would be done with each file is decided and reported as in a copy, but nothing
is created.

Small files are decided by their status and are not opened. All others go through the code that copies them
(``whole_file``, ``copy_nodes``), up to the point at which it would create something.
"""

from __future__ import annotations

import errno
from array import array
from collections.abc import Sequence

from pcopy.fsio.backend.batches import SYNC_FILE_FLAG, CopyPlan
from pcopy.fsio.backend.columns import DEVICE_COLUMN, ItemStatusColumns, pack_names
from pcopy.fsio.problem import Problem
from pcopy.signature.items import FILE
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import ItemAction
from pcopy.tasks.base.attempts import fail_or_retry
from pcopy.tasks.base.kind import TaskSteps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import UNCREATED_TARGET_IDENTITY, ContentInfo, Item, Place
from pcopy.tasks.files.existing import find_existing_item
from pcopy.tasks.files.file_decisions import copy_plans_for_files
from pcopy.tasks.files.whole_file import copy_file
from pcopy.tasks.verify.read_items import count_skipped_or_spawn_read

_CREATING_PLANS = frozenset(map(int, (CopyPlan.NEW, CopyPlan.TEMPORARY, CopyPlan.REPLACE)))
"""Plans (``CopyPlan``) with which a real run creates a new file."""


def report_dry_run_files(
    rank: Rank, result: TaskResult, place: Place, names: list[bytes], rows: ItemStatusColumns
) -> TaskSteps:
    """Report what would be done with small files of one directory.

    Args:
        names: names as a scan found them.
        rows: status of these files.
    """
    if place.target_id == UNCREATED_TARGET_IDENTITY:
        _report_dry_run_copies(rank, result, place, names, rows.size, ItemAction.COPY)
        return
    rows.mask |= DEVICE_COLUMN
    rows.device = array("Q", [rank.source_device(place) or 0]) * len(rows)
    try:
        target = rank.open_target_directory(place)
    except Problem as problem:
        for name, size in zip(names, rows.size, strict=True):
            result.count_item_as_failed(place, name, problem, size)
        return
    new_names = pack_names(rank.target_name(place, name) for name in names)
    plans = yield from copy_plans_for_files(rank, place, target, new_names, rows)
    made: dict[ItemAction, list[int]] = {ItemAction.COPY: [], ItemAction.REPLACE: []}
    for row, plan in enumerate(plans):
        name, size = names[row], rows.size[row]
        try:
            if plan & ~SYNC_FILE_FLAG in _CREATING_PLANS:
                made[_planned_action(rank, place, name, plan & ~SYNC_FILE_FLAG)].append(row)
            elif plan == CopyPlan.SKIP:
                count_skipped_or_spawn_read(
                    rank, result, place, name, ContentInfo(FILE, size, b"", rows.content_version_of_row(row))
                )
            elif plan == CopyPlan.REFUSE:
                raise Problem("create", errno.EEXIST)
            else:
                item = Item(place.source_id.mount_code, rows.inode[row], size, ((place, name),), result.attempt)
                yield from copy_file(rank, result, item, may_get_links=False)
        except Problem as problem:
            fail_or_retry(result, place, name, problem, result.attempt, size)
    for action, chosen in made.items():
        sizes = array("Q", map(rows.size.__getitem__, chosen))
        _report_dry_run_copies(rank, result, place, [names[row] for row in chosen], sizes, action)


def _planned_action(rank: Rank, place: Place, name: bytes, plan: int) -> ItemAction:
    """Return the action that is reported for a file with this ``plan`` (``CopyPlan``): COPY if its name is free, else
    REPLACE. Raise ``Problem`` on failure.
    """
    if plan == CopyPlan.TEMPORARY:
        return ItemAction.COPY if find_existing_item(rank, place, name) is None else ItemAction.REPLACE
    return ItemAction.COPY if plan == CopyPlan.NEW else ItemAction.REPLACE


def _report_dry_run_copies(
    rank: Rank, result: TaskResult, place: Place, names: list[bytes], sizes: Sequence[int], action: ItemAction
) -> None:
    """Count and report files that would be copied. ``sizes`` are in bytes; ``action`` is COPY or REPLACE."""
    if action is ItemAction.REPLACE:
        from pcopy.tasks.files.differences import note_differences_of_names

        note_differences_of_names(rank, result, place, names)
    result.count(counts.FILES, len(names))
    result.count(counts.BYTES, sum(sizes))
    result.item_recorder.record_outcome_of_files(action, place, names, array("Q", sizes))
