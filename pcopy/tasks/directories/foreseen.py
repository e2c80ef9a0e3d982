"""Foresees what a job will do with a directory before it changes it: reported with ``-vv`` and ``--log``; a dry run
does nothing else.
"""

from __future__ import annotations

import os
import stat
from typing import Protocol

from pcopy.fsio.attributes import Attributes
from pcopy.fsio.identity import Identity
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of
from pcopy.signature.items import DIRECTORY
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import Action
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import NOWHERE, UNMADE, Place
from pcopy.tasks.files.existing import Existing, look


class Scan(Protocol):
    """The fields of ``ScanDir`` that this module needs."""

    @property
    def root(self) -> int: ...
    @property
    def path(self) -> bytes: ...
    @property
    def source_id(self) -> Identity: ...
    @property
    def parent(self) -> Place | None: ...
    @property
    def since(self) -> tuple[int, int]: ...


def action_of(task: Scan, rank: Rank, attributes: Attributes) -> Action:
    """Return the ``Action`` to report for a directory whose source has these ``attributes``; raise ``Problem``."""
    if task.parent is not None and task.parent.target_id == UNMADE:
        return Action.COPY
    present = _present(task, rank)
    if present is not None and not stat.S_ISDIR(present.status.st_mode):
        return Action.REPLACE
    path = rank.below_target(task.root, task.path)
    if path and present is None:
        return Action.COPY
    from pcopy.fsio.mending import lacking

    options = rank.options
    try:
        target = rank.targets[task.root].open(path)
        lacks = lacking(target, status_of(target), attributes, options.preserve, options.modify_window)
    except Problem:  # the task that needs the directory meets it again and reports it
        return Action.META
    return Action.META if lacks.is_needed else Action.SKIP


def _present(task: Scan, rank: Rank) -> Existing | None:
    """Return the existing item with the name of the target directory, or None; always None for DST itself. Raise
    ``Problem``.
    """
    path = rank.below_target(task.root, task.path)
    if not path:
        return None
    name = path.rpartition(b"/")[2]
    parent = rank.open_above(task.parent, task.root)
    parent_place = task.parent or Place(task.root, b"", task.source_id, NOWHERE, False, False)
    status = look(parent, name)
    return None if status is None else Existing(rank, parent_place, parent, name, status)


def target_of(task: Scan, rank: Rank, source: os.stat_result, action: Action) -> Place | None:
    """Return the target ``Place`` of a directory in a dry run; raise ``Problem``.

    The place is the existing directory, or one with the identity ``UNMADE`` if the job would create it. Return None if
    another existing item would be kept instead.
    """
    if action == Action.REPLACE:
        present = _present(task, rank)
        if present is not None and not present.may_replace(source):
            return None
    if action in (Action.COPY, Action.REPLACE):
        return Place(task.root, task.path, task.source_id, UNMADE, True, False, task.since)
    path, targets = rank.below_target(task.root, task.path), rank.targets[task.root]
    targets.open(path)
    return Place(task.root, task.path, task.source_id, targets.identity(path), False, False, task.since)


def foresee_finish(result: Result, place: Place, action: int) -> None:
    """Count and report, in a dry run, that the job would finish the directory."""
    result.count(counts.DIRECTORIES, 1, place)
    result.items.did(Action(action), place, b"", DIRECTORY)
