"""What would become of the further names of an inode (``--dry-run``), as ``MakeLinks`` decides it."""

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
    """The first name would be made, or stays and gets the others; names before it may have failed."""
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
    """The status of what the links would lead to, or of its source, which is the same as far as it decides."""
    place, name = item.names[0]
    there = existing(rank, place, name) if first.made != UNMADE else None
    return rank.source_status(place, name) if there is None else there.status


def _stays(rank: Rank, present: Existing, first: Settled, like: os.stat_result, name: bytes) -> bool:
    """Return True if what is ``present`` stays instead of the link ``name``; raises ``Problem`` where the item would
    fail."""
    if rank.keeps:
        source = rank.open_source(present.place)
        return not (present.may_replace(like) or present.has_other_text(like, source, name))
    is_linked = first.made != UNMADE and os.path.samestat(present.status, like)
    return is_linked or not may_relink(present, like)
