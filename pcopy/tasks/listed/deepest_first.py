"""Tasks on directories that must wait until everything in them is done, the deepest first: for removal, or for taking
access away from their owner.

Ranks report such directories to rank 0 (``TellLater``). At the end of a phase, rank 0 distributes those of the deepest
remaining level (``HandOutLevel``), and any rank processes them (``VisitLater``). There is one phase for each level. The
visitor determines what is done.
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
"""Columns of the status of each directory that are kept."""

_DEPTH = 1 << 31
"""Number that is greater than the depth of any path. It is the origin of sort keys, so that deeper directories sort
first.
"""


class LaterVisitor(Visitor, Protocol):
    """Visitor that can also process directories after their contents."""

    def later(self, directory: int, names: bytes, rows: Rows) -> Steps:
        """Process these ``names`` of an open directory; ``rows`` are their statuses when they were found."""


def tell_later(result: Result, place: Place, names: Sequence[bytes], rows: Rows) -> None:
    """Register directories of ``place`` to be processed after everything in them."""
    result.spawn(TellLater(place, pack_names(names), rows.packed(COLUMNS)), owner=0)


class TellLater(Note, code=112, doing="recording directories"):
    """Reports to rank 0 the directories ``names`` of ``place``, with the columns ``rows``."""

    place: Place
    names: bytes
    rows: bytes
    is_found_anew = True

    def run(self, rank: Rank, result: Result) -> None:
        rank.own(DeepestFirst).add(VisitLater(self.place, self.names, self.rows))


class HandOutLevel(Note, code=113, doing="distributing directories"):
    """Distributes, on rank 0, the directories of the deepest remaining level."""

    is_found_anew = True

    def run(self, rank: Rank, result: Result) -> None:
        result.spawn_each(rank.own(DeepestFirst).level(), CALL_COST, expands=False)


class VisitLater(OfPlace, code=114, doing="finishing directories of", is_note=False):
    """Processes the directories ``names`` of ``place`` after their contents; ``rows`` are the columns ``COLUMNS``.

    In a dry run of ``pchmod``, this task also processes other items, on the rank that owns their inodes.
    """

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
    """Return a descriptor of the directory ``place``. Raise ``Problem``.

    If the identity of ``place`` is unknown (``NOWHERE``), any directory at this path is accepted.
    """
    identity = None if place.source_id == NOWHERE else place.source_id
    return rank.sources[place.root].open(place.path, identity)


class DeepestFirst:
    """On rank 0: all directories that ranks have reported, sorted by depth."""

    def __init__(self, rank: Rank) -> None:
        self._sorter = ExternalSorter(rank.open_spool)
        self._number = 0
        self._rest: Iterator[KeyValue] | None = None
        self._next: KeyValue | None = None

    def add(self, task: Kind) -> None:
        """Add a task for some directories, before the first level is requested. May raise ``OSError``."""
        (place, *_) = task
        depth = place.path.count(b"/") + 1 if place.path else 0
        self._sorter.add((_DEPTH - depth).to_bytes(4, "big"), encode(task))
        self._number += 1

    @property
    def is_empty(self) -> bool:
        """True if no level remains."""
        return self._next is None if self._rest is not None else not self._number

    def level(self) -> Iterator[Kind]:
        """Return the tasks of the deepest remaining level."""
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
        """Release the temporary file."""
        self._sorter.close()
