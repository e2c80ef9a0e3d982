"""``CopyHardLinkGroup`` copies an inode with several names: it copies one of the names, and ``CreateHardLinks`` creates
the others as hard links to that copy.
"""

from __future__ import annotations

import stat
from collections.abc import Generator

from pcopy.fsio.backend.interface import MAX_SMALL_FILE_BYTES
from pcopy.fsio.problem import Problem, source_changed_problem
from pcopy.tasks.base.kind import ItemTask, TaskSteps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import FailedName, Item
from pcopy.tasks.files.copy_nodes import copy_special_file
from pcopy.tasks.files.existing import place_with_current_acl
from pcopy.tasks.files.split_file import SplitFile, spawn_tasks_for_other_hard_links
from pcopy.tasks.files.whole_file import ItemResult, copy_file, keep_existing_if_equal
from pcopy.tasks.links.make_links import (
    CreateHardLinks,
    copy_made_by_this_host,
    copy_next_name,
    retry_or_collect_failed_names,
)

MAX_LINKS_IN_TASK = 64
"""Maximum number of hard links that the task which copies the file also creates. If there are more, they become a task
that any rank may run.
"""


class CopyHardLinkGroup(ItemTask, code=32, doing="copying and linking", is_note=False):
    """Task that copies an inode with several names (hard links): it copies the first name of ``item`` that can be
    copied, and creates the other names as hard links to the copy.
    """

    @property
    def uncopied_item(self) -> Item:
        return self.item

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        yield from copy_hard_link_group(rank, result, self.item)


def copy_hard_link_group(
    rank: Rank,
    result: TaskResult,
    item: Item,
    first: ItemResult | Problem | None = None,
    *,
    links_at_once: bool = True,
) -> TaskSteps:
    """Copy the first name of ``item`` that can be copied and under which no existing item is kept. Then create the
    other names as hard links to the copy, or spawn a task that does so.

    If a name fails, this function goes on to the next one itself: a task for each attempt would contain all the names
    that follow.

    Args:
        first: outcome of the first name if it was copied already but not counted; a ``Problem`` if the copy exists but
            not all of its metadata could be set; else None.
        links_at_once: True if few other names are created within this task, False if any rank should create them.
    """
    rest = item
    while True:
        try:
            if rest.attempt:
                rest = rest._replace(names=((place_with_current_acl(rank, rest.place), rest.name), *rest.links))
            item_result = yield from _copy_first_name(rest, rank, result, first)
            if item_result is None:
                result.spawn_task(SplitFile(rest), rest.size)
                return
            if not (item_result.is_existing_kept and rest.links):
                yield from _link_other_names(rank, result, rest, item_result, links_at_once=links_at_once)
                return
            failed: tuple[FailedName, ...] | None = rest.failed_names
        except Problem as problem:
            failed = retry_or_collect_failed_names(rank, result, rest, problem)
        if failed is None:
            return
        if not rest.links:
            copy_next_name(result, rest, failed)
            return
        rest, first = rest._replace(names=rest.links, failed_names=failed), None
        yield None


def _link_other_names(
    rank: Rank, result: TaskResult, item: Item, item_result: ItemResult, *, links_at_once: bool
) -> TaskSteps:
    """Create all names of ``item`` but the first as hard links to the copy of the first one: within this task if they
    are few and ``links_at_once`` is set, else by a task of their own. ``item_result`` is the outcome of the first name.
    A dry run only reports them.
    """
    if rank.options.dry_run:
        from pcopy.tasks.links.forecast import report_dry_run_links

        yield from report_dry_run_links(rank, result, item, item_result)
    elif (
        links_at_once
        and item_result.unnamed is None
        and item_result.identity is not None
        and not item.failed_names
        and 0 < len(item.links) <= MAX_LINKS_IN_TASK
    ):
        yield from CreateHardLinks(
            item, copy_made_by_this_host(rank, item_result.identity, item_result.known), False
        ).run(rank, result)
    else:
        spawn_tasks_for_other_hard_links(rank, result, item, item_result)


def _copy_first_name(
    item: Item, rank: Rank, result: TaskResult, first: ItemResult | Problem | None
) -> Generator[None, None, ItemResult | None]:
    """Copy the first name of ``item`` and count it. Raise ``Problem`` if it fails. ``first`` is its outcome if it was
    copied already: then it is only counted, or raised if it is a ``Problem``.

    Return the outcome, or None for a large file, which a task of its own copies (``SplitFile``).
    """
    place, name = item.names[0]
    if isinstance(first, Problem):
        raise first
    if first is not None:
        result.count_copied_item(place, name, first.known, is_only_name=not item.links, how=first.how)
        return first
    status = rank.source_item_status(place, name)
    if status.st_ino != item.inode or rank.source_device(place, item.mount) not in (None, status.st_dev):
        raise source_changed_problem("stat", "another item has taken its name since the scan")
    if not stat.S_ISREG(status.st_mode):
        return copy_special_file(rank, result, item, may_get_links=True)
    if item.size <= MAX_SMALL_FILE_BYTES or rank.options.dry_run:
        return (yield from copy_file(rank, result, item, may_get_links=True))
    if (
        rank.copy_options.checksum
    ):  # ``SplitFile`` compares the contents; if that were done here, they would be read twice
        return None
    return (yield from keep_existing_if_equal(rank, result, item))
