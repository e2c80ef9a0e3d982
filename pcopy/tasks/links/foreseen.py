"""Foresees, in a dry run, what ``MakeLinks`` would do with the further names of an inode."""

from __future__ import annotations

import os

from pcopy.fsio.problem import Problem
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import HARD_LINK, How
from pcopy.tasks.base.kind import Steps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import UNMADE, Item
from pcopy.tasks.files.existing import Existing, existing
from pcopy.tasks.files.whole_file import Settled
from pcopy.tasks.links.make_links import may_relink
from pcopy.tasks.verify.read_items import skipped


def foresee_links(rank: Rank, result: Result, item: Item, first: Settled) -> Steps:
    """Count and report the further names of ``item`` as links or as skipped; report the names that failed before.

    Args:
        first: outcome of the first name, which would be created, or is an existing item that gets the links.
    """
    for place, name, problem in item.failed:
        result.fail(place, name, Problem.from_plain(problem), item.size)
    try:
        like = _like(rank, item, first)
    except Problem as why:
        for place, name in item.links:
            result.fail(place, name, why)
        return
    for place, name in item.links:
        try:
            present = existing(rank, place, name)
            if present is not None and _stays(rank, present, first, like, name):
                skipped(rank, result, place, name, first.known)
            else:
                if present is not None:
                    present.refuse_full()
                result.count(counts.HARDLINKS, 1, place)
                result.items.did(How.over(present).action, place, name, HARD_LINK)
        except Problem as why:
            result.fail(place, name, why)
        yield None


def _like(rank: Rank, item: Item, first: Settled) -> os.stat_result:
    """Return the status of the file to which the links would lead; raise ``Problem``.

    If it does not exist yet, return the status of its source, which has the same values as far as they matter here.
    """
    place, name = item.names[0]
    existing_item = existing(rank, place, name) if first.made != UNMADE else None
    return rank.source_status(place, name) if existing_item is None else existing_item.status


def _stays(rank: Rank, present: Existing, first: Settled, like: os.stat_result, name: bytes) -> bool:
    """Return True if the existing item would be kept instead of the link ``name``; raise ``Problem`` if the item would
    fail.

    Args:
        present: the existing item.
        like: status of the file to which the link would lead.
    """
    if rank.keeps:
        source = rank.open_source(present.place)
        return not (present.may_replace(like) or present.has_other_text(like, source, name))
    is_linked = first.made != UNMADE and os.path.samestat(present.status, like)
    return is_linked or not may_relink(present, like)
