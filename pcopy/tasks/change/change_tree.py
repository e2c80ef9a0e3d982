"""ChangeNames and ChangeTree: what is in a tree gets other modes, owners or ACLs.

A directory that gets permissions gets them before anybody enters it, one that loses its owner's way in loses that when
all below it is done (``pcopy.tasks.listed.deepest_first``).
"""

from __future__ import annotations

from typing import Protocol

from pcopy.engine.ticket import Stepwise
from pcopy.fsio.kernel.batches import Listed
from pcopy.fsio.kernel.columns import GROUP, OWNER, Verdicts, unpack_names
from pcopy.fsio.problem import Problem
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import Divisible, OfPlace, Steps
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import Result, Tried
from pcopy.tasks.base.values import NOWHERE, Place, unpack_numbers
from pcopy.tasks.listed.deepest_first import open_listed
from pcopy.walk.listing import NAMES_AT_ONCE, Listing, NamesSpool, begin_list, spread, unpack_listed
from pcopy.walk.visitor import Visitor, visit


class ChangeNames(Divisible, code=115, doing="changing", is_note=False):
    """Changes ``names`` of a directory, and all that is below them. ``kinds`` and ``inodes`` as in ``Listed``, or
    empty."""

    kinds: bytes = b""
    inodes: bytes = b""
    columns = ("kinds", "inodes")
    least_items = 16
    is_found_anew = True

    def run(self, rank: Rank, result: Result) -> Steps:
        try:
            directory = open_listed(rank, self.place)
        except Problem as problem:
            for name in unpack_names(self.names):
                result.fail(self.place, name, problem, retry=Tried.WHEN_FOUND)
            return
        listed = Listed(Verdicts(1), self.names, 0, self.kinds, unpack_numbers(self.inodes))
        yield from _change(rank, result, self.place, directory, listed)


class ChangeTree(OfPlace, code=116, doing="changing", is_note=False):
    """Changes what is in the directory ``place``, which has been counted, and changed itself, as far as it could be.

    With the ``source_id`` NOWHERE something is mounted there, and is entered. If it cannot be read, it counts once
    more: as what is in it, which nobody has seen.
    """

    is_found_anew = True
    effort = 0

    def run(self, rank: Rank, result: Result) -> Steps:
        place = self.place
        try:
            if place.source_id == NOWHERE:
                place = place._replace(source_id=rank.sources[place.root].identity(place.path))
            directory = open_listed(rank, place)
            listing = yield from begin_list(rank.kernel, directory, detailed=True)
            if not listing.is_large:
                yield from rank.throttle.spend(operations=2 * listing.number)
                yield from _change(rank, result, place, directory, listing.listed)
            else:
                yield from self._spread(rank, result, place, listing)
        except Problem as problem:
            if not problem.changed:
                result.fail(place, b"", problem, retry=Tried.WHEN_FOUND)
        result.count(counts.UNSCANNED, -1)

    def _spread(self, rank: Rank, result: Result, place: Place, listing: Listing) -> Steps:
        spool = NamesSpool(rank.open_spool)
        try:
            yield from spread(listing, spool)
        finally:
            tasks = (ChangeNames(place, *each) for each in map(unpack_listed, spool))
            result.spawn_each(tasks, NAMES_AT_ONCE * CALL_COST, expands=True)


def _change(rank: Rank, result: Result, place: Place, directory: int, listed: Listed) -> Steps:
    """What is plain is changed at once."""
    visitor: Changer = rank.visitor(rank, result, place, 0)  # type: ignore[assignment]
    names = listed.names
    if listed.kinds and visitor.changes_at_once:
        names = yield from visitor.change_plain(directory, listed)
    yield from visit(rank.kernel, directory, names, visitor, follow=False, also=OWNER | GROUP)


class Changer(Visitor, Protocol):
    """The visitor, as far as it matters here (which imports this)."""

    @property
    def changes_at_once(self) -> bool: ...

    def change_plain(self, directory: int, listed: Listed) -> Stepwise[bytes]: ...
