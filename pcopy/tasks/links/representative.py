"""What is done with the further names of an item when its first one is copied, or can't be.

The first name represents the others: they become links to its copy. If it can't be copied, it is left behind, and the
next name takes its place. Names that are left behind have failed. They are told when the others are copied or linked.
"""

from __future__ import annotations

from pcopy.fsio.identity import Identity
from pcopy.fsio.problem import MetadataProblem, Problem
from pcopy.fsio.source import Version
from pcopy.tasks.base.hashing import kind_of
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import Result, Tried, failed_or_retried, is_tried_again
from pcopy.tasks.base.values import Copy, FailedName, Item, Known
from pcopy.tasks.files.existing import status_there
from pcopy.tasks.links.make_links import MakeLinks


def copy_here(rank: Rank, made: Identity, known: Known) -> Copy:
    """What this host has just written, or found."""
    return Copy(made, known, 0, bytes((rank.hosts.here,)))


def representative_failed(rank: Rank, result: Result, item: Item, problem: Problem) -> None:
    """The first name has failed, or waits to be tried again; the next takes its place."""
    left = left_behind(rank, result, item, problem)
    if left is not None:
        pass_on(result, item, left)


def left_behind(rank: Rank, result: Result, item: Item, problem: Problem) -> tuple[FailedName, ...] | None:
    """The names that have failed, if the next one takes the first one's place, else None.

    An inode that changes is tried again with all of its names: one that came later alone would be no link any more.
    """
    made = problem.made if isinstance(problem, MetadataProblem) and not rank.keeps else None  # else it has no name
    there = status_there(rank, *item.names[0]) if made is not None else None
    if made is not None and there is not None:  # though not with all of its metadata
        known = Known(kind_of(there), item.size, b"", Version(item.inode, item.size, 0, 0))  # it has no digest
        after_representative(rank, result, item, copy_here(rank, made, known), shortcoming=problem)
        return None
    is_again = is_tried_again(problem, item.attempt)
    if is_again and item.links and _still_named(rank, item):
        again = item._replace(attempt=item.attempt + 1)
        result.copy(again, phase=max(Phase.LINK, result.phase))
        return None
    if is_again or not (item.failed or item.links):
        failed_or_retried(result, item.place, item.name, problem, item.attempt, item.size)
        return item.failed
    return (*item.failed, (item.place, item.name, problem.plain))


def pass_on(result: Result, item: Item, failed: tuple[FailedName, ...]) -> None:
    """The next name takes the first one's place; if there is none, all that have ``failed`` are told of."""
    if item.links:
        result.copy(item._replace(names=item.links, failed=failed))
    elif failed:
        touched = not all(result.is_untouched(place, Problem.from_plain(problem)) for place, _, problem in failed)
        all_failed(result, item, failed, touched=touched)


def all_failed(result: Result, item: Item, failed: tuple[FailedName, ...], *, touched: bool) -> None:
    """A resumed job tries them together, so that they become links of each other."""
    names = tuple((place, name) for place, name, _ in failed)
    together = item._replace(names=names, attempt=max(1, item.attempt), failed=())
    retry = Tried.BY_NAME if len(names) == 1 else together
    result.fail_together(failed, item.size, retry, touched=touched)


def _still_named(rank: Rank, item: Item) -> bool:
    try:
        return rank.source_status(item.place, item.name).st_ino == item.inode
    except Problem:
        return False


def after_representative(
    rank: Rank, result: Result, item: Item, copy: Copy, *, shortcoming: Problem | None = None
) -> None:
    """The first name is there, but for the metadata that had the ``shortcoming``; spawns the making of the others."""
    if shortcoming is not None and not (item.links or item.failed):
        result.fail(item.place, item.name, shortcoming, item.size)
        return
    first = item.names[0]
    failed = () if shortcoming is None else ((*first, shortcoming.plain), *item.failed)
    if item.links or failed:
        links = MakeLinks(item._replace(failed=failed), copy, False)
        result.spawn(links, len(item.names) * CALL_COST)
    if failed:
        return
    alone = item._replace(names=(first,), failed=())
    if not item.links and (item.failed or _has_more_names(rank, item)):
        result.inode_copied(alone, copy)
    for place, name, problem in item.failed:
        retry = MakeLinks(alone._replace(names=(first, (place, name))), copy, True)
        result.fail(place, name, Problem.from_plain(problem), item.size, retry=retry)


def _has_more_names(rank: Rank, item: Item) -> bool:
    if not (rank.job.began and rank.options.preserve.links):
        return False
    try:
        return rank.source_status(item.place, item.name).st_nlink > 1
    except Problem:
        return False
