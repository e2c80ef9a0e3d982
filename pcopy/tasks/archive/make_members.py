"""Plain members of one directory are made by the kernel: what stands beside each other in the archive is read at once.

What is no plain case after all (its name is taken, it is large, the archive can't be read there) is left to whoever
takes more care.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from operator import add

from pcopy.engine.ticket import Stepwise
from pcopy.fsio.kernel.batches import FilesMade, Make
from pcopy.fsio.kernel.columns import Code, Verdicts, pack_names
from pcopy.fsio.kernel.interface import SMALL_FILE
from pcopy.fsio.problem import Problem
from pcopy.signature.items import FILE
from pcopy.tasks.archive.opened import OpenArchive
from pcopy.tasks.archive.to_unpack import PlainRows, place_of
from pcopy.tasks.base import counts
from pcopy.tasks.base.hashing import NO_VERSION
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result, Tried
from pcopy.tasks.base.values import Known

MOST_AT_ONCE = SMALL_FILE // 4
"""Bytes that are read at once, and of the largest file that is made so."""
_GAP = 64 << 10
"""Bytes between two members that are read rather than that there is another call."""
_DONE = int(Code.DONE)


class PlainLeft:
    """Rows that are not made: some want ``care``; those ``unbegun`` are left to a further task."""

    def __init__(self) -> None:
        self.care: list[int] = []
        self.unbegun: list[int] = []
        self.made = False
        """Was anything tried?"""


def make_plain(
    rank: Rank, result: Result, directory: int, path: bytes, plain: PlainRows, *, inherits: bool
) -> Stepwise[PlainLeft]:
    """Makes them in the open ``directory``, and counts them, or tells why they have failed."""
    archive, throttle, left = rank.own(OpenArchive), rank.throttle, PlainLeft()
    most = MOST_AT_ONCE if not throttle.is_on else int(min(MOST_AT_ONCE, throttle.at_once()))
    for start, end in _neighbours(plain, most):
        if left.made and (throttle.is_on or rank.kernel.works_here):  # to wait might end the task, and tell nothing
            left.unbegun += range(start, len(plain))
            break
        begin, rows = plain.places[start], plain.columns(start, end)
        length = max(map(add, plain.places[start:end], rows.size)) - begin
        if length > most:
            left.care += range(start, end)
            continue
        if throttle.is_on:
            yield from throttle.spend(sum(rows.size))
        try:
            contents = archive.read_all(begin, length)
        except Problem:  # whoever takes care tells of it, if it concerns that member
            left.care += range(start, end)
            continue
        names = plain.names[start:end]
        offsets = array("Q", [place - begin for place in plain.places[start:end]])
        made = yield from _made(rank, Make(directory, pack_names(names), rows, contents, offsets, inherits))
        left.made = True
        _tell_made(rank, result, path, names, rows.size, made)
        for row, code in enumerate(made.verdicts.codes if made.verdicts.codes.count(_DONE) < len(names) else b""):
            if code == Code.ANEW:
                left.care.append(start + row)
            elif code == Code.CANCELLED:
                left.unbegun.append(start + row)
    return left


def _neighbours(plain: PlainRows, most: int) -> Iterator[tuple[int, int]]:
    """Rows that are read together, from one on and up to another: ``most`` bytes of the archive, and no large gaps."""
    places, sizes = plain.places, plain.sizes
    start, gap = 0, _GAP
    for row in range(1, len(plain)):
        before = places[row - 1] + sizes[row - 1]
        if places[row] + sizes[row] - places[start] > most or places[row] - before > gap:
            yield start, row
            start = row
    if len(plain):
        yield start, len(plain)


def _made(rank: Rank, batch: Make) -> Stepwise[FilesMade]:
    """Without threads of the kernel in one slice, so that all is told that is done."""
    steps = rank.moved(batch)
    while rank.kernel.works_here:
        try:
            next(steps)
        except StopIteration as end:
            made: FilesMade = end.value
            return made
    return (yield from steps)


def _tell_made(
    rank: Rank, result: Result, path: bytes, names: Sequence[bytes], sizes: Sequence[int], made: FilesMade
) -> None:
    verdicts, place = made.verdicts, place_of(path)
    rows = verdicts.rows(Code.DONE)
    if rows and result.items.is_wanted:
        for row in rows:
            result.copied(place, names[row], Known(FILE, sizes[row], b"", NO_VERSION), alone=False)
    elif rows:
        rank.succeeded()
        result.count(counts.FILES, len(rows))
        result.count(counts.BYTES, sum(map(verdicts.bytes.__getitem__, rows)))
    for row, applied in made.applied.items():
        result.applied(place, names[row], applied)
    if len(rows) < len(names):
        for row in _failed(verdicts):
            problem = verdicts.problem(row)
            if verdicts.codes[row] == Code.LACKS:
                text = "it is there without that, and its mode may be narrower than in the archive"
                problem = Problem(problem.operation, problem.errno or 0, text=text)
            result.fail(place, names[row], problem, sizes[row], retry=Tried.NEVER)


def _failed(verdicts: Verdicts) -> list[int]:
    others = (_DONE, Code.ANEW, Code.CANCELLED)
    return [row for row, code in enumerate(verdicts.codes) if code not in others]
