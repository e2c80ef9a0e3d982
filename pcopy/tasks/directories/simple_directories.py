"""Decides which directories the backend (the code in C or Python that makes system calls for many items) may scan or
give their metadata several per call, in a batch (``pcopy.fsio.backend.directory_batches``). All others are processed
one by one (the slow path).
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from pcopy.fsio.backend.batches import MAX_NAMES_IN_ROW, CopyPlan
from pcopy.fsio.backend.directory_batches import FAR_FUTURE_TIME, DirectoryBatchSettings
from pcopy.fsio.backend.plan_copies import CopyPolicy, file_copy_plan_for_unused_name
from pcopy.fsio.problem import Problem
from pcopy.tasks.base.dividing import ItemDurations
from pcopy.tasks.base.job_filters import JobFilter
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, Place
from pcopy.tasks.directories.scan_dir import MAX_NAMES_IN_SCAN, ScanNames
from pcopy.tasks.files.file_decisions import begin_of_changes_by_job, copy_policy_of_directory
from pcopy.tasks.files.layouts import target_layout_policy
from pcopy.walk.listing import NAMES_PER_BATCH


def open_target_for_batch(
    rank: Rank, place: Place, names: Sequence[bytes], *, with_subtrees: bool = False
) -> int | None:
    """Return a descriptor of the target directory of ``place`` if the backend may process its subdirectories ``names``
    in a batch; else None. ``with_subtrees`` is True if it also processes what is below them.
    """
    if not _may_process_directories_in_batch(rank, place, names, with_subtrees=with_subtrees):
        return None
    try:
        target = rank.open_target_directory(place)
        if not target_layout_policy(rank, place).uses_only_default:
            return None
    except Problem:  # the slow path meets the error again and reports it for each directory
        return None
    return None if rank.storage is not None and rank.storage.per_file_devices else target


def _may_process_directories_in_batch(rank: Rank, place: Place, names: Sequence[bytes], *, with_subtrees: bool) -> bool:
    """Return True if nothing that is known before the directories are opened, such as an option or a mount point,
    requires that the subdirectories ``names`` of ``place`` (and those below, ``with_subtrees``) are processed one by
    one.
    """
    job, options = rank.job, rank.copy_options
    if not (rank.backend.has_directory_batches and job.copies) or place.target_id == NO_DIRECTORY_IDENTITY:
        return False
    if with_subtrees and job.run > 1 and place.first_run[0] not in (0, job.run):
        return False  # the batch knows only one time since which items of the target may be the job's own
    if (
        rank.collects_signature_entries
        or options.verify
        or rank.options.dry_run
        or (rank.reports_unchanged_items and rank.shared_instance(JobFilter).has_filters)
        or options.dereference
        or options.compresses_or_decompresses_files
        or rank.options.preserve.chown != (-1, -1)
    ):
        return False
    if job.roots[place.root].item:
        return False
    sides = (
        (rank.sources[place.root].expected_mounts, place.path),
        (rank.targets[place.root].expected_mounts, rank.path_below_target(place.root, place.path)),
    )
    return not any(
        has_mount(os.path.join(path, name))
        for side, path in sides
        if side.has_any_expected_mount
        for has_mount in (side.has_expected_mount_at_or_below if with_subtrees else side.has_expected_mount_at_or_in,)
        for name in names
    )


def directory_batch_settings(rank: Rank, place: Place) -> DirectoryBatchSettings:
    """Return the settings for a batch of subdirectories of ``place``. ``place`` must be open on both sides."""
    policy = copy_policy_of_directory(rank, place)
    begun, is_resumed = begin_of_changes_by_job(rank, place), is_from_earlier_run(rank, place)
    targets = rank.targets[place.root]
    is_quick = rank.backend.runs_in_poll or rank.shared_instance(ItemDurations).is_too_quick_to_divide(
        ScanNames.code, NAMES_PER_BATCH
    )
    excluded = 0, 0
    try:
        top = targets.identity_of_directory(rank.path_below_target(place.root, b""))
        excluded = targets.mount_codes.device_of_mount_code(top.mount_code) or 0, top.inode
    except Problem:
        pass  # the target of the root does not exist yet
    return DirectoryBatchSettings(
        *rank.source_and_target_device(place),
        excluded,
        FAR_FUTURE_TIME if policy.changed_since is None else policy.changed_since,
        FAR_FUTURE_TIME if begun is None else begun,
        policy.modify_window,
        MAX_NAMES_IN_ROW + 1 if is_quick else MAX_NAMES_IN_SCAN,
        is_parent_new=place.is_new and not is_resumed,
        skips_matching_files=policy.existing == "changed" and not (policy.compares_contents or policy.writes_in_place),
        excludes_hard_links=rank.options.preserve.links,
        copies_small_files=_copies_new_files_in_batch(rank, place, policy),
        is_resumed=is_resumed,
        recognises_own_directories=is_resumed and not rank.names_late,
        returns_complete_rows=bool(rank.job.began),
        reports_changes=rank.reports_items,
        reports_all=rank.reports_unchanged_items,
        filters=rank.shared_instance(JobFilter).batch_filters(place.path),
    )


def is_from_earlier_run(rank: Rank, place: Place) -> bool:
    """Return True if an earlier run of the job may have created items in the target directory of ``place``."""
    return rank.job.run > 1 and place.first_run[0] != rank.job.run


def _copies_new_files_in_batch(rank: Rank, place: Place, policy: CopyPolicy) -> bool:
    """Return True if a batch that creates a directory may also copy the small files in it at once. ``policy`` has the
    rules for the copies.

    Other ranks cannot steal this work, because the files never become tasks. But the call ends soon while other ranks
    may be idle (``call_deadline``), and the remaining files become tasks.
    """
    are_new = (
        file_copy_plan_for_unused_name(policy) == CopyPlan.NEW
        and not rank.computes_digests
        and rank.copy_options.reflink != "always"
    )
    return are_new and rank.backend.runs_in_poll
