"""Directories with which something is done when all that is in them is done, the deepest first: they are removed, or
closed to their owner.

Ranks tell rank 0 of them (TellLater). When a phase is over, rank 0 hands out those of the deepest level that is left
(HandOutLevel), any rank does them (VisitLater), and so on, a phase for each level. What is done the visitor knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from pcopy.fsio.kernel.columns import GROUP, INODE, MODE, OWNER, Rows, pack_names
from pcopy.fsio.problem import Problem
from pcopy.signature.sorting import ExternalSorter, KeyValue
from pcopy.tasks.base.codec import decode, encode
from pcopy.tasks.base.kind import Kind, Note, OfPlace, Steps
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import Result, Tried
from pcopy.tasks.base.values import NOWHERE, Place
from pcopy.walk.visitor import Visitor

COLUMNS = MODE | INODE | OWNER | GROUP
"""What is kept of each directory."""

_DEPTH = 1 << 31
"""More than the depth of any path: keys of 4 bytes count down from it."""


class LaterVisitor(Visitor, Protocol):
    """A visitor that knows what is done with directories at last."""

    def later(self, directory: int, names: bytes, rows: Rows) -> Steps:
        """Does it with those ``names`` of an open directory, which were found with these ``rows``."""


def tell_later(result: Result, place: Place, names: Sequence[bytes], rows: Rows) -> None:
    """Something is to be done with these directories of ``place`` when all in them is done."""
    result.spawn(TellLater(place, pack_names(names), rows.packed(COLUMNS)), owner=0)


class TellLater(Note, code=112, doing="noting directories"):
    """Tells rank 0 of the directories ``names`` in ``place``, with the columns ``rows``."""

    place: Place
    names: bytes
    rows: bytes
    is_found_anew = True

    def run(self, rank: Rank, result: Result) -> None:
        rank.own(DeepestFirst).add(VisitLater(self.place, self.names, self.rows))


class HandOutLevel(Note, code=113, doing="handing out directories"):
    """Rank 0 hands out those of the deepest level that is left."""

    is_found_anew = True

    def run(self, rank: Rank, result: Result) -> None:
        result.spawn_each(rank.own(DeepestFirst).level(), CALL_COST, expands=False)


class VisitLater(OfPlace, code=114, doing="finishing directories of", is_note=False):
    """Does what is to be done at last with the directories ``names`` of ``place``; ``rows`` are ``COLUMNS``. (A dry run
    of pchmod has other items done by the rank that owns their inodes.)"""

    names: bytes
    rows: bytes
    is_found_anew = True

    def run(self, rank: Rank, result: Result) -> Steps:
        number = self.names.count(b"/") + 1
        try:
            directory = open_listed(rank, self.place)
        except Problem as problem:
            for name in self.names.split(b"/"):
                result.fail(self.place, name, problem, retry=Tried.NEVER)
            return
        visitor: LaterVisitor = rank.visitor(rank, result, self.place, 0)  # type: ignore[assignment]
        yield from visitor.later(directory, self.names, Rows.unpacked(self.rows, number, COLUMNS))


def open_listed(rank: Rank, place: Place) -> int:
    """The directory of a place that may be NOWHERE: then it is whatever is there. Raises ``Problem``."""
    known = None if place.source_id == NOWHERE else place.source_id
    return rank.sources[place.root].open(place.path, known)


class DeepestFirst:
    """On rank 0: all that ranks have told of."""

    def __init__(self, rank: Rank) -> None:
        self._sorter = ExternalSorter(rank.open_spool)
        self._number = 0
        self._rest: Iterator[KeyValue] | None = None
        self._next: KeyValue | None = None

    def add(self, task: Kind) -> None:
        """Before the first level is asked for; may raise ``OSError``."""
        (place, *_) = task
        depth = place.path.count(b"/") + 1 if place.path else 0
        self._sorter.add((_DEPTH - depth).to_bytes(4, "big"), encode(task))
        self._number += 1

    @property
    def is_empty(self) -> bool:
        return self._next is None if self._rest is not None else not self._number

    def level(self) -> Iterator[Kind]:
        """The tasks of the deepest level."""
        if self._rest is None:
            self._rest = self._sorter.sorted()
            self._next = next(self._rest, None)
        return self._level(self._rest)

    def _level(self, rest: Iterator[KeyValue]) -> Iterator[Kind]:
        depth = self._next[0] if self._next else b""
        while self._next is not None and self._next[0] == depth:
            task, self._next = self._next[1], next(rest, None)
            yield decode(task)

    def close(self) -> None:
        self._sorter.close()
