"""The two sides of a comparison, 0 and 1: roots of the job, both of which are only read.

A ``Place`` has the identity of the directory on the first side as its source's, and that on the second as its target's.
"""

from __future__ import annotations

from pcopy.engine.ticket import Stepwise
from pcopy.fsio.kernel.batches import Stat, Stated
from pcopy.fsio.kernel.interface import waited
from pcopy.fsio.problem import Problem
from pcopy.signature.items import ROOT
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result, Tried
from pcopy.tasks.base.values import NOWHERE, Place

SIDES = (0, 1)


def on_side(place: Place, side: int) -> Place:
    """The same directory, as one that is read on that side."""
    return Place(side, place.path, place.target_id if side else place.source_id, NOWHERE, False, False)


def open_sides(rank: Rank, result: Result, place: Place, names: list[bytes]) -> tuple[int, int] | None:
    """The directory on both sides. None if it can't be opened: then all ``names`` in it have failed."""
    opened = []
    for side in SIDES:
        try:
            opened.append(rank.open_source(on_side(place, side)))
        except Problem as problem:
            for name in names:
                failed(result, place, side, name, problem)
            return None
    return opened[0], opened[1]


def names_of(rank: Rank, side: int, names: bytes) -> bytes:
    """What packed ``names`` are called on a side: a root that is a single item, ``.``, has its own name there."""
    return (rank.job.roots[side].item or names) if names == ROOT else names


def failed(result: Result, place: Place, side: int, name: bytes, problem: Problem, size: int = 0) -> None:
    """The item (``.``: the directory itself) could not be compared."""
    result.fail(on_side(place, side), b"" if name == ROOT else name, problem, size, retry=Tried.NEVER)


def stat_sides(rank: Rank, directories: tuple[int, int], packed: bytes, columns: int) -> Stepwise[list[Stated]]:
    """What both sides have of these names, asked for at the same time."""
    kernel = rank.kernel
    tickets = [
        kernel.submit(Stat(directories[side], names_of(rank, side, packed), columns, on_source=True)) for side in SIDES
    ]
    try:
        first = yield from waited(kernel, tickets[0])
    except BaseException:
        tickets[1].cancel()
        while not tickets[1].is_done:
            kernel.poll()
        raise
    return [first, (yield from waited(kernel, tickets[1]))]
