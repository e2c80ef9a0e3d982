"""Dry run of hard links: reports what a real run (``CreateHardLinks``) would do with the names of an inode other than
the first.
"""

from __future__ import annotations

import os

from pcopy.fsio.problem import Problem
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import HARD_LINK_TYPE_BYTE, TimedCopyAction
from pcopy.tasks.base.kind import TaskSteps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import UNCREATED_TARGET_IDENTITY, Item
from pcopy.tasks.files.existing import ExistingItem, find_existing_item
from pcopy.tasks.files.whole_file import ItemResult
from pcopy.tasks.links.make_links import may_replace_by_link, note_differences_of_link
from pcopy.tasks.verify.read_items import count_skipped_or_spawn_read


def report_dry_run_links(rank: Rank, result: TaskResult, item: Item, first: ItemResult) -> TaskSteps:
    """Count and report, in a dry run, all names of ``item`` but the first: each as a hard link, as skipped or as
    failed.

    Args:
        item: the item with its names. Names that failed before (``item.failed_names``) are reported, too.
        first: outcome of the first name: it would be created, or an existing item is kept under it. The hard links
            would lead to that copy or existing item.
    """
    for place, name, problem in item.failed_names:
        result.count_item_as_failed(place, name, Problem.from_packed_tuple(problem), item.size)
    try:
        like = _hard_linked_file_status(rank, item, first)
    except Problem as why:
        for place, name in item.links:
            result.count_item_as_failed(place, name, why)
        return
    for place, name in item.links:
        try:
            present = find_existing_item(rank, place, name)
            if present is not None and _is_existing_kept(rank, present, first, like, name):
                count_skipped_or_spawn_read(rank, result, place, name, first.known)
            else:
                if present is not None:
                    present.refuse_nonempty_directory()
                    note_differences_of_link(rank, result, place, name, like, present.status)
                result.count(counts.HARDLINKS, 1, place)
                result.item_recorder.record_item_outcome(
                    TimedCopyAction.action_given_existing_item(present).action, place, name, HARD_LINK_TYPE_BYTE
                )
        except Problem as why:
            result.count_item_as_failed(place, name, why)
        yield None


def _hard_linked_file_status(rank: Rank, item: Item, first: ItemResult) -> os.stat_result:
    """Return the status of the file to which hard links to the first name of ``item`` would lead. ``first`` is the
    outcome of that name. Raise ``Problem`` on failure.

    If a dry run has not created that file, return the status of its source: type, size and time are the same.
    """
    place, name = item.names[0]
    existing_item = find_existing_item(rank, place, name) if first.identity != UNCREATED_TARGET_IDENTITY else None
    return rank.source_item_status(place, name) if existing_item is None else existing_item.status


def _is_existing_kept(rank: Rank, present: ExistingItem, first: ItemResult, like: os.stat_result, name: bytes) -> bool:
    """Return True if the existing item ``present`` would be kept instead of the hard link ``name``. Raise ``Problem``
    if the name would fail.

    Args:
        first: outcome of the first name of the inode.
        like: status of the file to which the link would lead.
    """
    if rank.names_late:
        source = rank.open_source_directory(present.place)
        return not (present.may_be_replaced(like) or present.has_other_link_text(like, source, name))
    is_linked = first.identity != UNCREATED_TARGET_IDENTITY and os.path.samestat(present.status, like)
    return is_linked or not may_replace_by_link(present, like)
