"""The two sides of a comparison, 0 and 1. Both are roots of the job that are only read.

A ``Place`` has the identity of the directory on the first side in ``source_id``, and the one on the second side in
``target_id``.
"""

from __future__ import annotations

from collections.abc import Sequence

from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.backend.batches import StatNamesBatch, StatNamesResult
from pcopy.fsio.backend.interface import await_ticket
from pcopy.fsio.problem import Problem
from pcopy.signature.items import ROOT_PATH
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import RetryMode, TaskResult
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, Place

SIDES = (0, 1)
"""The numbers of the two sides."""


def directory_place_on_side(place: Place, side: int) -> Place:
    """Return the position (``Place``) of a directory on one side. ``place`` stands for both sides; the result has the
    form of a source directory, by which it can be opened.
    """
    return Place(side, place.path, place.target_id if side else place.source_id, NO_DIRECTORY_IDENTITY, False, False)


def open_on_both_sides(rank: Rank, result: TaskResult, place: Place, names: Sequence[bytes]) -> tuple[int, int] | None:
    """Open the directory on both sides and return the descriptors. If that fails, report all ``names`` in it as failed
    and return None.
    """
    opened = []
    for side in SIDES:
        try:
            opened.append(rank.open_source_directory(directory_place_on_side(place, side)))
        except Problem as problem:
            for name in names:
                report_uncompared_item(result, place, side, name, problem)
            return None
    return opened[0], opened[1]


def names_on_side(rank: Rank, side: int, names: bytes) -> bytes:
    """Return the names that the items ``names`` (joined by slashes) have on one side. They are the same on both sides,
    unless two single items are compared instead of directories (``names`` is ``.`` then): each has its own name.
    """
    return (rank.job.roots[side].item or names) if names == ROOT_PATH else names


def report_uncompared_item(
    result: TaskResult, place: Place, side: int, name: bytes, problem: Problem, size: int = 0
) -> None:
    """Report the item ``name`` of directory ``place`` as failed, because ``problem`` on one side has prevented its
    comparison. The name ``.`` means the directory itself. ``size`` is its size in bytes, if it is a file.
    """
    result.count_item_as_failed(
        directory_place_on_side(place, side), b"" if name == ROOT_PATH else name, problem, size, retry=RetryMode.NEVER
    )


def stat_on_both_sides(
    rank: Rank, directories: tuple[int, int], packed: bytes, columns: int
) -> TicketGenerator[list[StatNamesResult]]:
    """Stat the names ``packed`` (joined by slashes) on both sides at the same time; ``directories`` are the descriptors
    of the directory. Return the results of both sides. ``columns`` is the mask of the status columns that are needed.
    """
    backend = rank.backend
    tickets = [
        backend.submit_batch(
            StatNamesBatch(directories[side], names_on_side(rank, side, packed), columns, on_source=True)
        )
        for side in SIDES
    ]
    try:
        first = yield from await_ticket(backend, tickets[0])
    except BaseException:
        tickets[1].cancel()
        while not tickets[1].is_done:
            backend.poll()
        raise
    return [first, (yield from await_ticket(backend, tickets[1]))]
