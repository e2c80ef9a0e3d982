"""Fast extraction: the backend creates the simple members of one directory in batches, from data in memory.

A *simple* member is a regular file whose headers state only name, mode, owner, mtime and size. Members that stand next
to one another in the archive are read with one call. What the backend cannot create (the name exists, the file is
large, that part of the archive cannot be read) is left to the slow path, ``pcopy.tasks.archive.extracting``.
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
"""Bytes that are read in one call, and the size of the largest file that is created in this way."""
_GAP = 64 << 10
"""Largest gap between two members, in bytes, that is read along with them instead of making another call."""
_DONE = int(Code.DONE)


class PlainLeft:
    """Rows of simple members that were not created.

    Attributes:
      care: rows that the slow path must handle.
      unbegun: rows that were not tried, and are left to another task.
    """

    def __init__(self) -> None:
        self.care: list[int] = []
        self.unbegun: list[int] = []
        self.made = False
        """True if the backend was asked to create any member."""


def make_plain(
    rank: Rank, result: Result, directory: int, path: bytes, plain: PlainRows, *, inherits: bool
) -> Stepwise[PlainLeft]:
    """Create simple members in the open ``directory``, whose path is ``path``; count them, and report failures.

    Return the rows that were not created.

    Args:
      inherits: True if new files may inherit an ACL from the directory.
    """
    archive, throttle, remaining = rank.own(OpenArchive), rank.throttle, PlainLeft()
    most = MOST_AT_ONCE if not throttle.is_on else int(min(MOST_AT_ONCE, throttle.at_once()))
    for start, end in _neighbours(plain, most):
        if remaining.made and (throttle.is_on or rank.kernel.works_here):
            # Waiting ends the slice. If the job stops then, what was created would not be counted.
            remaining.unbegun += range(start, len(plain))
            break
        begin, rows = plain.places[start], plain.columns(start, end)
        length = max(map(add, plain.places[start:end], rows.size)) - begin
        if length > most:
            remaining.care += range(start, end)
            continue
        if throttle.is_on:
            yield from throttle.spend(sum(rows.size))
        try:
            contents = archive.read_all(begin, length)
        except Problem:  # the slow path reads the members one by one, and reports the error
            remaining.care += range(start, end)
            continue
        names = plain.names[start:end]
        offsets = array("Q", [place - begin for place in plain.places[start:end]])
        made = yield from _made(rank, Make(directory, pack_names(names), rows, contents, offsets, inherits))
        remaining.made = True
        _tell_made(rank, result, path, names, rows.size, made)
        for row, code in enumerate(made.verdicts.codes if made.verdicts.codes.count(_DONE) < len(names) else b""):
            if code == Code.ANEW:
                remaining.care.append(start + row)
            elif code == Code.CANCELLED:
                remaining.unbegun.append(start + row)
    return remaining


def _neighbours(plain: PlainRows, most: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows that are read with one call, as first row and end.

    Such a range spans at most ``most`` bytes of the archive, and has no gap above ``_GAP``.
    """
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
    """Run a batch, and return its result.

    If the backend has no threads, it runs in one slice, so that everything that was created is counted even if the job
    stops.
    """
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
    """Count the created files of a batch, and report those that failed."""
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
                text = "it was extracted without this metadata; its mode may be narrower than in the archive"
                problem = Problem(problem.operation, problem.errno or 0, text=text)
            result.fail(place, names[row], problem, sizes[row], retry=Tried.NEVER)


def _failed(verdicts: Verdicts) -> list[int]:
    """Return the rows that have failed."""
    others = (_DONE, Code.ANEW, Code.CANCELLED)
    return [row for row, code in enumerate(verdicts.codes) if code not in others]
