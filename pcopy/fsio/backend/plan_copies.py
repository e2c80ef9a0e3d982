"""The batch ``PlanCopiesBatch``: decides how small files are to be copied, from the status of source and target,
without opening anything.

The decision for a file is its plan (``CopyPlan``). Files for which the status is not sufficient get the plan
``SLOW_PATH``: a task examines and copies them one by one.
"""

from __future__ import annotations

import errno
import os
import stat

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.batches import SYNC_FILE_FLAG, CopyPlan, FileOperationBatch, LightDataclass, StatNamesResult
from pcopy.fsio.backend.columns import EARLIEST_TIME, LATEST_TIME, ItemStatusColumns, ItemStatusRow, OutcomeCode
from pcopy.fsio.backend.interface import MAX_SMALL_FILE_BYTES
from pcopy.fsio.existing import ExistingItemDecision, can_compare_contents, decision_for_existing_item
from pcopy.fsio.preserve import PreservedMetadataKinds


class PlanCopiesResult(LightDataclass):
    """The result of ``PlanCopiesBatch``: a ``CopyPlan`` for each file, perhaps with ``SYNC_FILE_FLAG``."""

    plans: bytearray


class CopyPolicy(NamedTuple):
    """The rules by which it is decided how a file is copied (its ``CopyPlan``).

    Fields:
        existing: the value of ``--existing``: ``replace``, ``changed``, ``newer``, ``skip`` or ``fail``.
        modify_window: seconds by which modification times may differ and still count as equal.
        compares_contents: True if contents are compared (``--checksum``).
        names_files_last: True if files are copied under temporary names and get their final names at the end, so that
            an item that has the name by then is replaced only if ``--existing`` permits that.
        copies_owner_and_mode: True if copies get the owner and mode of their sources.
        writes_in_place: True if existing files are overwritten (``--inplace``).
        syncs_files: True if each file is synced by itself, because syncfs(2) is not sufficient.
        changed_since: items in the target that have changed since this time (nanoseconds since 1970) may have been
            created by this job; None if there are none.
        metadata_update: the metadata to preserve, and ``modify_window``, if an item that is not replaced gets those
            metadata of its source that differ; otherwise None.
        makes_backups: True if a backup is made of each item before it is replaced (``--backup``).
    """

    existing: str = "replace"
    modify_window: int = 0
    compares_contents: bool = False
    names_files_last: bool = False
    copies_owner_and_mode: bool = True
    writes_in_place: bool = False
    syncs_files: bool = False
    changed_since: int | None = None
    metadata_update: tuple[PreservedMetadataKinds, int] | None = None
    makes_backups: bool = False


class PlanCopiesBatch(FileOperationBatch[PlanCopiesResult]):
    """Plan the copies of regular files: decide for each file whether and how it is copied.

    Fields:
        policy: the rules.
        sources: status of the source files as a scan found it (``SCAN_COLUMNS``, as far as they exist).
        targets: the result of ``StatNamesBatch`` for the names in the target (``SCAN_COLUMNS`` and ``OWNER_COLUMN``);
            None if the target certainly has none of these names.
    """

    policy: CopyPolicy
    sources: ItemStatusColumns
    targets: StatNamesResult | None = None

    @property
    def directory_descriptors(self) -> tuple[int, ...]:
        return ()


def file_copy_plans(policy: CopyPolicy, sources: ItemStatusColumns, targets: StatNamesResult | None) -> bytearray:
    """Return a ``CopyPlan``, perhaps with ``SYNC_FILE_FLAG``, for each file.

    Args:
        policy: the rules.
        sources: status of the source files.
        targets: status of the same names in the target; None if none of them exists.
    """
    plans = bytearray((file_copy_plan_for_unused_name(policy),)) * len(sources)
    slow_rows = _slow_path_rows(sources)
    for row in slow_rows:
        plans[row] = CopyPlan.SLOW_PATH
    if targets is None:
        return plans
    user, done, present = os.geteuid(), OutcomeCode.DONE, targets.rows
    for row, code in enumerate(targets.verdicts.codes):
        if row in slow_rows:
            continue
        if code == done:
            lacks_metadata = present.uid[row] == user and stat.S_IMODE(present.mode[row]) == 0o600
            plans[row] = _file_copy_plan_for_existing_name(
                policy, sources.status(row), present.status(row), lacks_metadata=lacks_metadata
            )
            if plans[row] == CopyPlan.SKIP and policy.metadata_update is not None and not sources.uid:
                plans[row] = CopyPlan.SLOW_PATH  # the owner of the source is unknown: compare it there
        elif targets.verdicts.errnos[row] != errno.ENOENT:
            plans[row] = CopyPlan.SLOW_PATH  # the slow path reports the error
    return plans


def file_copy_plan_for_unused_name(policy: CopyPolicy) -> int:
    """Return the ``CopyPlan`` of a small file whose name does not exist in the target, by the rules ``policy``; perhaps
    with ``SYNC_FILE_FLAG``.
    """
    return (CopyPlan.TEMPORARY if policy.names_files_last else CopyPlan.NEW) | (
        SYNC_FILE_FLAG if policy.syncs_files else 0
    )


def _slow_path_rows(sources: ItemStatusColumns) -> set[int]:
    """Return the indices of the rows of ``sources`` whose files a batch cannot copy, because they are not small regular
    files.
    """
    slow_rows: set[int] = set()
    if sources.size and max(sources.size) > MAX_SMALL_FILE_BYTES:
        slow_rows.update(row for row, size in enumerate(sources.size) if size > MAX_SMALL_FILE_BYTES)
    slow_rows.update(row for row, mode in enumerate(sources.mode) if not stat.S_ISREG(mode))
    return slow_rows


def _file_copy_plan_for_existing_name(
    policy: CopyPolicy, source: ItemStatusRow, present: ItemStatusRow, *, lacks_metadata: bool
) -> int:
    """Return the ``CopyPlan`` of a file whose name exists in the target, perhaps with ``SYNC_FILE_FLAG``.

    Args:
        policy: the rules.
        source: status of the source.
        present: status of the existing item in the target.
        lacks_metadata: True if the existing item has the owner and mode of a new file that has not got its metadata
            yet. It may be half written then. With ``--inplace`` any existing file may be half written.
    """
    is_far = not (
        EARLIEST_TIME < source.st_mtime_ns < LATEST_TIME and EARLIEST_TIME < present.st_mtime_ns < LATEST_TIME
    )
    if is_far or (policy.changed_since is not None and present.st_ctime_ns >= policy.changed_since):
        # An earlier run may have created the existing item and left it half written, or this run may have created it as
        # the copy of another name that the file system treats as equal.
        return CopyPlan.SLOW_PATH
    decision = decision_for_existing_item(
        policy.existing, policy.modify_window, source, present, contents=policy.compares_contents
    )
    if decision is ExistingItemDecision.REPLACE:
        return _file_copy_plan_for_replacement(policy, source, present)
    if stat.S_ISREG(present.st_mode) and (policy.writes_in_place or lacks_metadata):
        return CopyPlan.SLOW_PATH
    if decision is ExistingItemDecision.FAIL:
        return CopyPlan.REFUSE
    return (
        CopyPlan.SLOW_PATH
        if policy.compares_contents or not _has_required_metadata(policy, source, present)
        else CopyPlan.SKIP
    )


def _has_required_metadata(policy: CopyPolicy, source: ItemStatusRow, present: ItemStatusRow) -> bool:
    """Return True if owner, mode and time of ``present``, the existing item, need not be updated from ``source``: they
    are equal as far as needed, or the user has not requested that.
    """
    if policy.metadata_update is None:
        return True
    from pcopy.fsio.metadata_update import has_metadata_of_source  # imported here because few jobs need it

    return has_metadata_of_source(source, present, *policy.metadata_update)


def _file_copy_plan_for_replacement(policy: CopyPolicy, source: ItemStatusRow, present: ItemStatusRow) -> int:
    """Return the ``CopyPlan`` of the file ``source``, which replaces the existing item ``present``; perhaps with
    ``SYNC_FILE_FLAG``.
    """
    if (
        policy.writes_in_place
        or policy.makes_backups
        or not policy.copies_owner_and_mode
        or stat.S_ISDIR(present.st_mode)
    ):
        return CopyPlan.SLOW_PATH
    if policy.metadata_update is not None and can_compare_contents(source, present):
        return CopyPlan.SLOW_PATH  # the slow path compares contents: perhaps only the time differs
    return (CopyPlan.TEMPORARY if policy.names_files_last else CopyPlan.REPLACE) | (
        SYNC_FILE_FLAG if policy.syncs_files else 0
    )
