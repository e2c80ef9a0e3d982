"""LinkGroup: copy one of the names of an inode; ``MakeLinks`` then links the other names to it."""

from __future__ import annotations

import stat
from collections.abc import Generator

from pcopy.fsio.kernel.interface import SMALL_FILE
from pcopy.fsio.problem import Problem, changed
from pcopy.tasks.base.kind import OfItem, Steps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import FailedName, Item
from pcopy.tasks.files.copy_nodes import copy_one_node
from pcopy.tasks.files.existing import looked_at_again
from pcopy.tasks.files.split_file import SplitFile, after_settled
from pcopy.tasks.files.whole_file import Settled, copy_whole, what_stays
from pcopy.tasks.links.make_links import MakeLinks, copy_here, left_behind, pass_on

AT_ONCE = 64
"""Maximum number of links that the task which copies the file also creates. More links become a task for any rank."""


class LinkGroup(OfItem, code=32, doing="copying and linking", is_note=False):
    """Copies the first name of ``item`` that can be copied, and links the other names to it."""

    @property
    def unmade(self) -> Item:
        return self.item

    def run(self, rank: Rank, result: Result) -> Steps:
        yield from copy_group(rank, result, self.item)


def copy_group(rank: Rank, result: Result, item: Item, first: Settled | Problem | None = None) -> Steps:
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
                rest = rest._replace(names=((looked_at_again(rank, rest.place), rest.name), *rest.links))
            settled = yield from _copied(rest, rank, result, first)
            if settled is None:
                result.spawn(SplitFile(rest), rest.size)
                return
            if not (settled.is_kept and rest.links):
                yield from _link_others(rank, result, rest, settled)
                return
            failed: tuple[FailedName, ...] | None = rest.failed
        except Problem as problem:
            failed = left_behind(rank, result, rest, problem)
        if failed is None:
            return
        if not rest.links:
            pass_on(result, rest, failed)
            return
        rest, first = rest._replace(names=rest.links, failed=failed), None
        yield None


def _link_others(rank: Rank, result: Result, item: Item, settled: Settled) -> Steps:
    """Link the other names to the first one, in this task if they are few; else as ``after_settled``."""
    if rank.options.dry_run:
        from pcopy.tasks.links.foreseen import foresee_links

        yield from foresee_links(rank, result, item, settled)
    elif settled.unnamed is None and settled.made is not None and not item.failed and 0 < len(item.links) <= AT_ONCE:
        yield from MakeLinks(item, copy_here(rank, settled.made, settled.known), False).run(rank, result)
    else:
        after_settled(rank, result, item, settled)


def _copied(
    item: Item, rank: Rank, result: Result, first: Settled | Problem | None
) -> Generator[None, None, Settled | None]:
    """Copy the first name, unless ``first`` says that this is done, and count it; raise ``Problem``.

    Return its outcome, or None for a large file, which is copied by a task of its own.
    """
    place, name = item.names[0]
    if isinstance(first, Problem):
        raise first
    if first is not None:
        result.copied(place, name, first.known, alone=not item.links, how=first.how)
        return first
    status = rank.source_status(place, name)
    if status.st_ino != item.inode or rank.source_device(place, item.mount) not in (None, status.st_dev):
        raise changed("stat", "another item has taken its name")
    if not stat.S_ISREG(status.st_mode):
        return copy_one_node(rank, result, item, linked=True)
    if item.size <= SMALL_FILE or rank.options.dry_run:
        return (yield from copy_whole(rank, result, item, linked=True))
    if rank.options.checksum:  # ``SplitFile`` compares the contents; so they are read only once
        return None
    return (yield from what_stays(rank, result, item))
