"""LinkGroup: copy one of the names of an inode; ``CreateHardLinks`` then links the other names to it."""

from __future__ import annotations

import stat
from collections.abc import Generator

from pcopy.fsio.backend.interface import MAX_SMALL_FILE_BYTES
from pcopy.fsio.problem import Problem, source_changed
from pcopy.tasks.base.kind import ItemTask, Steps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import FailedName, Item
from pcopy.tasks.files.copy_nodes import copy_node
from pcopy.tasks.files.existing import with_current_acl
from pcopy.tasks.files.split_file import SplitFile, handle_further_names
from pcopy.tasks.files.whole_file import ItemResult, copy_file, keep_if_equal
from pcopy.tasks.links.make_links import CreateHardLinks, copy_by_this_host, copy_next_name, failed_names_so_far

MAX_LINKS_IN_TASK = 64
"""Maximum number of links that the task which copies the file also creates. More links become a task for any rank."""


class CopyLinkGroup(ItemTask, code=32, doing="copying and linking", is_note=False):
    """Copies the first name of ``item`` that can be copied, and links the other names to it."""

    @property
    def uncopied_item(self) -> Item:
        return self.item

    def run(self, rank: Rank, result: TaskResult) -> Steps:
        yield from copy_group(rank, result, self.item)


def copy_group(rank: Rank, result: TaskResult, item: Item, first: ItemResult | Problem | None = None) -> Steps:
    """Copy the first name of ``item`` that can be copied and is not kept as it is; create or spawn the links to it.

    Names that fail are skipped here, one after the other: a task for each attempt would carry all the names that
    follow.

    Args:
        first: outcome of the first name if it was copied already (it is not counted yet), else None.
    """
    rest = item
    while True:
        try:
            if rest.attempt:
                rest = rest._replace(names=((with_current_acl(rank, rest.place), rest.name), *rest.links))
            item_result = yield from _copy_first_name(rest, rank, result, first)
            if item_result is None:
                result.spawn(SplitFile(rest), rest.size)
                return
            if not (item_result.is_existing_kept and rest.links):
                yield from _link_others(rank, result, rest, item_result)
                return
            failed: tuple[FailedName, ...] | None = rest.failed_names
        except Problem as problem:
            failed = failed_names_so_far(rank, result, rest, problem)
        if failed is None:
            return
        if not rest.links:
            copy_next_name(result, rest, failed)
            return
        rest, first = rest._replace(names=rest.links, failed_names=failed), None
        yield None


def _link_others(rank: Rank, result: TaskResult, item: Item, item_result: ItemResult) -> Steps:
    """Link the other names to the first one, in this task if they are few; else as ``handle_further_names``."""
    if rank.options.dry_run:
        from pcopy.tasks.links.forecast import foresee_links

        yield from foresee_links(rank, result, item, item_result)
    elif (
        item_result.unnamed is None
        and item_result.identity is not None
        and not item.failed_names
        and 0 < len(item.links) <= MAX_LINKS_IN_TASK
    ):
        yield from CreateHardLinks(item, copy_by_this_host(rank, item_result.identity, item_result.known), False).run(
            rank, result
        )
    else:
        handle_further_names(rank, result, item, item_result)


def _copy_first_name(
    item: Item, rank: Rank, result: TaskResult, first: ItemResult | Problem | None
) -> Generator[None, None, ItemResult | None]:
    """Copy the first name, unless ``first`` says that this is done, and count it; raise ``Problem``.

    Return its outcome, or None for a large file, which is copied by a task of its own.
    """
    place, name = item.names[0]
    if isinstance(first, Problem):
        raise first
    if first is not None:
        result.count_copied(place, name, first.known, is_only_name=not item.links, how=first.how)
        return first
    status = rank.source_status(place, name)
    if status.st_ino != item.inode or rank.source_device(place, item.mount) not in (None, status.st_dev):
        raise source_changed("stat", "another item has taken its name")
    if not stat.S_ISREG(status.st_mode):
        return copy_node(rank, result, item, may_get_links=True)
    if item.size <= MAX_SMALL_FILE_BYTES or rank.options.dry_run:
        return (yield from copy_file(rank, result, item, may_get_links=True))
    if rank.options.checksum:  # ``SplitFile`` compares the contents; so they are read only once
        return None
    return (yield from keep_if_equal(rank, result, item))
