"""Foresees what a job will do with a directory, before the job changes it: this is reported with ``-vv`` and ``--log``.
A dry run does nothing else.
"""

from __future__ import annotations

import os
import stat
from typing import Protocol

from pcopy.fsio.attributes import ItemMetadata
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of_open_item
from pcopy.signature.items import DIRECTORY
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import ItemAction
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, UNCREATED_TARGET_IDENTITY, Place
from pcopy.tasks.files.existing import ExistingItem, item_status_or_none


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


def foreseen_directory_action(task: ScanDirFields, rank: Rank, attributes: ItemMetadata) -> ItemAction:
    """Return the ``ItemAction`` that is reported for a directory: COPY if it will be created, REPLACE if an item that
    is no directory has its name, META if its metadata differs from ``attributes`` (those of the source), else SKIP.
    Raise ``Problem`` on failure.
    """
    if task.parent is not None and task.parent.target_id == UNCREATED_TARGET_IDENTITY:
        return ItemAction.COPY
    present = _existing_item(task, rank)
    if present is not None and not stat.S_ISDIR(present.status.st_mode):
        return ItemAction.REPLACE
    path = rank.path_below_target(task.root, task.path)
    if path and present is None:
        return ItemAction.COPY
    from pcopy.fsio.metadata_update import metadata_difference

    preserve, modify_window = rank.options.preserve, rank.copy_options.modify_window
    try:
        target = rank.targets[task.root].open(path)
        lacks = metadata_difference(target, status_of_open_item(target), attributes, preserve, modify_window)
    except Problem:  # the task that needs the directory meets the error again and reports it
        return ItemAction.META
    return ItemAction.META if lacks.is_update_needed else ItemAction.SKIP


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


def foreseen_target(task: ScanDirFields, rank: Rank, source: os.stat_result, action: ItemAction) -> Place | None:
    """Return the directory with the target that it has, or would get, in a dry run. Raise ``Problem`` on failure.

    If the job would create the target, its identity is ``UNCREATED_TARGET_IDENTITY``. Return None if an existing item
    that is no directory would be kept instead.

    Args:
        task: says which directory is scanned.
        source: status of the source directory.
        action: what would be done with the directory (``foreseen_directory_action``).
    """
    if action == ItemAction.REPLACE:
        present = _existing_item(task, rank)
        if present is not None and not present.may_be_replaced(source):
            return None
    if action in (ItemAction.COPY, ItemAction.REPLACE):
        return Place(task.root, task.path, task.source_id, UNCREATED_TARGET_IDENTITY, True, False, task.since)
    path, targets = rank.path_below_target(task.root, task.path), rank.targets[task.root]
    targets.open(path)
    return Place(task.root, task.path, task.source_id, targets.identity_of_directory(path), False, False, task.since)


def count_dry_run_directory(result: TaskResult, place: Place, action: int) -> None:
    """Count and report, in a dry run, a directory that the job would create or give its metadata. ``action`` is the
    number of the ``ItemAction``.
    """
    result.count(counts.DIRECTORIES, 1, place)
    result.item_recorder.record_item_outcome(ItemAction(action), place, b"", DIRECTORY)
