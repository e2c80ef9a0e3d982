"""WalkListed: rank 0 reads a list of paths instead of walking a tree; WalkPaths: any rank stats paths of the list.

Items of a saved listing are not statted again if the listing has all that is needed.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from stat import S_IFDIR
from typing import cast

from pcopy.errors import Refused
from pcopy.fsio.close import let_go
from pcopy.fsio.kernel.columns import COLUMNS, FIRST, KINDS, LAST, Rows
from pcopy.fsio.patience import open_patiently
from pcopy.fsio.problem import Problem
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import Kind, Steps
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import Result, Tried
from pcopy.tasks.base.values import NOWHERE, Place
from pcopy.tasks.walk.finder import Finder, kind_of
from pcopy.tasks.walk.tell_found import MOST_TOLD, Handover, Hearer
from pcopy.text import shown
from pcopy.walk.forms import BLOCK, FIELDS
from pcopy.walk.matching import UNKNOWN, Items
from pcopy.walk.saved_listing import TIMES, Line, Recorded, SavedListing, from_root, without_return

AT_ONCE = 256
"""Number of lines that are processed together."""

LONG = 0.05
"""Seconds after which the rest of the list waits for the rank's other tasks."""

_PLACE = Place(0, b"", NOWHERE, NOWHERE, False, False)


class WalkPaths(Kind, code=107, doing="examining listed paths", is_note=False):
    """Stats and reports ``paths`` (separated by NUL), which are relative to ``directory``."""

    directory: bytes
    paths: bytes

    @property
    def effort(self) -> int:
        return self.paths.count(b"\0") + 1

    def about(self) -> tuple[Place, bytes]:
        return _PLACE, self.paths.partition(b"\0")[0]

    def run(self, rank: Rank, result: Result) -> Steps:
        """Stat the paths and report those that the expression matches."""
        finder = rank.own(Finder)
        names: list[bytes] = []
        statuses: list[os.stat_result] = []
        for path in self.paths.split(b"\0"):
            try:
                statuses.append(os.lstat(from_root(self.directory, path)))
                names.append(path)
            except OSError as error:
                result.count(counts.FOUND)
                result.fail(_PLACE, path, Problem.of("stat", error), retry=Tried.NEVER)
            yield None
        if not names:
            return
        kinds = bytes(kind_of(status.st_mode) for status in statuses)
        output = finder.telling
        base = -1
        if finder.opens_items:
            base = open_patiently(self.directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            finder.tell_all(result, Items(base, b"", names, kinds, Rows.of(statuses, finder.mask)), output)
        finally:
            if base >= 0:
                let_go(base)
        output.tell(rank, result)


class WalkListed(Kind, code=108, doing="reading the list", is_note=False):
    """Reads the list ``file``, whose paths end with a NUL if ``nul``. ``directory`` is the user's working directory.

    All paths must lie in the directory ``base``, unless that is empty; relative paths of a plain list start there. A
    task reads a part of the list, and leaves the rest to the next one, so that tasks which it has spawned can run
    meanwhile.
    """

    file: bytes
    nul: bool
    directory: bytes
    base: bytes

    def about(self) -> None:
        return None

    def run(self, rank: Rank, result: Result) -> Steps:
        """Read lines until ``LONG`` seconds have passed, then spawn a task for the rest."""
        finder, output, deadline = rank.own(Finder), rank.own(Finder).telling, time.monotonic() + LONG
        try:
            listing, reading = rank.own(_OpenList).of(self)
            while lines := list(islice(reading, AT_ONCE)):
                self._take(finder, result, output, listing, lines)
                if output.size > MOST_TOLD:
                    output.tell(rank, result)
                    output = finder.telling
                if rank.stop_reason is not None:
                    break
                if time.monotonic() > deadline:
                    result.spawn(self, owner=0)
                    break
                yield None
        except Refused as refused:
            rank.stop(str(refused))
            cast(Hearer, rank.sink).spoiled(str(refused))
        output.tell(rank, result)

    def _path(self, listing: SavedListing, line: Line, top: bytes) -> bytes:
        """Return the path as it is reported; raise ``Refused`` if it does not lie in ``base``, whose absolute path is
        ``top``.
        """
        path = line.path
        if listing.directory is None and not self.nul:
            path = without_return(path, os.path.join(self.directory, self.base))
        if not path:
            return b""
        if listing.directory is None:
            path = os.path.join(self.base, path)
        elif listing.directory != self.directory:
            path = from_root(listing.directory, path)
        if self.base:
            real = from_root(top, line.path) if listing.directory is None else from_root(listing.directory, line.path)
            if not (real + b"/").startswith(top + b"/"):
                raise listing.refused(line.number, f"{shown(line.path)} does not lie in {shown(self.base)}")
        return path

    def _take(
        self, finder: Finder, result: Result, output: Handover, listing: SavedListing, lines: Sequence[Line]
    ) -> None:
        """Report the items of these lines, and spawn a task for those that must be statted."""
        top = os.path.realpath(os.path.join(self.directory, self.base)).rstrip(b"/") if self.base else b""
        paths = [path for line in lines if (path := self._path(listing, line, top))]
        known = [line.known for line in lines if line.known is not None]
        rows = _rows(known, finder.mask) if len(known) == len(paths) and not finder.opens_all else None
        to_stat = [row for row, each in enumerate(known) if each.type == S_IFDIR] if finder.opens_items else []
        if rows is None:
            to_stat = [*range(len(paths))]
        if to_stat:
            packed_paths = b"\0".join([paths[row] for row in to_stat])
            result.spawn(WalkPaths(self.directory, packed_paths), len(to_stat) * CALL_COST)
        if rows is None or len(to_stat) == len(paths):
            return
        if to_stat:
            remaining = sorted({*range(len(paths))}.difference(to_stat))
            paths, known, rows = (
                [paths[row] for row in remaining],
                [known[row] for row in remaining],
                rows.chosen(remaining),
            )
        kinds = bytes(KINDS.get(each.type, UNKNOWN) for each in known)
        finder.tell_all(result, Items(-1, b"", paths, kinds, rows), output)


class _OpenList:
    """The list that rank 0 reads, and the position up to which it has been read."""

    def __init__(self, rank: Rank) -> None:
        self._open: tuple[SavedListing, Iterator[Line]] | None = None

    def of(self, task: WalkListed) -> tuple[SavedListing, Iterator[Line]]:
        """Return the open list of the task and the iterator over its lines; raise ``Refused``."""
        if self._open is None:
            listing = SavedListing(task.file, "--from", nul=task.nul)
            self._open = listing, iter(listing)
        return self._open

    def close(self) -> None:
        if self._open is not None:
            self._open[0].close()


def _rows(known: Sequence[Recorded], mask: int) -> Rows | None:
    """Return recorded items as columns; None if a needed value is missing."""
    rows = Rows(0, mask)
    rows.number = len(known)
    fields = {column: field for field, (_, column) in FIELDS.items()}
    for name, typecode, bit, _ in COLUMNS:
        if mask & bit:
            values = list(_values(known, fields[name]))
            if None in values:
                return None
            if fields[name] in TIMES:
                rows.keep_far(name, cast("list[int]", values))
                values = [min(max(cast("int", value), FIRST), LAST) for value in values]
            setattr(rows, name, array(typecode, values))
    return rows


def _values(known: Sequence[Recorded], field: str) -> Iterator[int | None]:
    """Yield one field of all recorded items, in the unit of the columns."""
    for each in known:
        value: int | None = getattr(each, field)
        if value is not None and field == "allocated":
            value = -(-value // BLOCK)
        elif value is not None and field == "mode":
            value |= each.type
        yield value
