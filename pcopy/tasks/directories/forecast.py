"""Decides whether an existing target directory has the right metadata before the job changes it. Foresees what a dry
run reports for a directory.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Protocol

from pcopy.fsio.attributes import ItemMetadata
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.nodes import call_with_descriptor_or_path
from pcopy.fsio.problem import Problem
from pcopy.fsio.server import new_file_status
from pcopy.fsio.source import status_of_open_item
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import DifferingProperty, ItemAction, pack_action
from pcopy.tasks.base.rank import Rank, is_ctime_since_earlier_run
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, UNCREATED_TARGET_IDENTITY, Place
from pcopy.tasks.directories.finish_dir import record_directory_outcome
from pcopy.tasks.files.existing import ExistingItem, item_status_or_none

if TYPE_CHECKING:
    from pcopy.fsio.metadata_update import MetadataDifference, StatusWithOwner


class ScanDirFields(Protocol):
    """Protocol: the fields of a ``ScanDir`` task, which say what directory is scanned."""

    @property
    def root(self) -> int: ...
    @property
    def path(self) -> bytes: ...
    @property
    def source_id(self) -> ItemIdentity: ...
    @property
    def parent(self) -> Place | None: ...
    @property
    def since(self) -> tuple[int, int]: ...


def existing_directory_action(
    rank: Rank, place: Place, target: int, present: StatusWithOwner, attributes: ItemMetadata
) -> tuple[ItemAction, int]:
    """Return SKIP if an existing target directory had all metadata that it shall have before this job, else META; and
    what differed, as ``DifferingProperty`` bits.

    If the directory was changed since an earlier run of this job began, its metadata before the job is unknown, because
    that run ended before it recorded the scan. Then the result is META, and nothing is known to differ.

    Args:
        place: the directory.
        target: its descriptor.
        present: its status before this run has changed anything.
        attributes: the metadata of the source.
    """
    lacks = _difference_of_directory(rank, place, target, present, attributes)
    if lacks is None:
        return ItemAction.META, 0
    if is_ctime_since_earlier_run(rank.job, place, present.st_ctime_ns):
        return ItemAction.META, 0
    if not lacks.is_update_needed:
        return ItemAction.SKIP, 0
    from pcopy.tasks.files.differences import differences_of_metadata

    return ItemAction.META, differences_of_metadata(lacks)


def _difference_of_directory(
    rank: Rank, place: Place, target: int, present: StatusWithOwner, attributes: ItemMetadata
) -> MetadataDifference | None:
    """Return how the metadata of an existing target directory differs from ``attributes``, those of the source. Return
    None if it cannot be read: the task that finishes the directory meets the error again and reports it.

    A mode or an owner that the file system cannot store does not count as different: setting it would change nothing.
    A dry run does not find this out, because it creates no file.

    Args:
        place: the directory.
        target: its descriptor.
        present: its status.
    """
    from pcopy.fsio.metadata_update import metadata_difference

    preserve, modify_window = rank.options.preserve, rank.copy_options.modify_window
    try:
        lacks = call_with_descriptor_or_path(
            target,
            lambda handle: metadata_difference(handle, present, attributes, preserve, modify_window),
        )
        if rank.options.dry_run or not (lacks.owner or lacks.mode):
            return lacks
        shown = new_file_status(target, rank.temporary_names.next_name())
    except Problem:
        return None
    return lacks._replace(
        owner=lacks.owner and not shown.has_unexpected_owner, mode=lacks.mode and not shown.has_unexpected_mode
    )


def foreseen_target(
    task: ScanDirFields, rank: Rank, source: os.stat_result, attributes: ItemMetadata
) -> tuple[Place | None, int]:
    """Return the directory with the target that it has, or would get, in a dry run; and the packed action
    (``pack_action``) that is reported for it: COPY if it would be created, REPLACE if an item that is no directory has
    its name, META if its metadata differs from that of the source, else SKIP. Raise ``Problem`` on failure.

    If the job would create the target, its identity is ``UNCREATED_TARGET_IDENTITY``. The directory is None if an
    existing item that is no directory would be kept instead.

    Args:
        task: says which directory is scanned.
        source, attributes: status and metadata of the source directory.
    """
    new = Place(task.root, task.path, task.source_id, UNCREATED_TARGET_IDENTITY, True, False, task.since)
    if task.parent is not None and task.parent.target_id == UNCREATED_TARGET_IDENTITY:
        return new, ItemAction.COPY
    present = _existing_item(task, rank)
    if present is not None and not stat.S_ISDIR(present.status.st_mode):
        action = pack_action(ItemAction.REPLACE, DifferingProperty.TYPE)
        return new if present.may_be_replaced(source) else None, action
    path, targets = rank.path_below_target(task.root, task.path), rank.targets[task.root]
    if path and present is None:
        return new, ItemAction.COPY
    target = targets.open(path)
    place = Place(task.root, task.path, task.source_id, targets.identity_of_directory(path), False, False, task.since)
    made, differences = existing_directory_action(rank, place, target, status_of_open_item(target), attributes)
    return place._replace(is_unchanged=made is ItemAction.SKIP), pack_action(made, differences)


def _existing_item(task: ScanDirFields, rank: Rank) -> ExistingItem | None:
    """Return the existing item that has the name of the target directory; None if the name is free, and always for DST
    itself. Raise ``Problem`` on failure.
    """
    path = rank.path_below_target(task.root, task.path)
    if not path:
        return None
    name = path.rpartition(b"/")[2]
    parent = rank.open_target_parent(task.parent, task.root)
    parent_place = task.parent or Place(task.root, b"", task.source_id, NO_DIRECTORY_IDENTITY, False, False)
    status = item_status_or_none(parent, name)
    return None if status is None else ExistingItem(rank, parent_place, parent, name, status)


def count_dry_run_directory(result: TaskResult, place: Place, action: int) -> None:
    """Count and report, in a dry run, a directory that the job would create, give its metadata, or leave as it is.
    ``action`` is packed (``pack_action``).
    """
    result.count(counts.directory_counter(place), 1, place)
    record_directory_outcome(result, place, action)
