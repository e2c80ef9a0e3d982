"""WalkListed: rank 0 reads a list instead of walking; WalkPaths: paths of one are looked at.

What a saved listing tells of its items is not asked for again, if it is all that is wanted.
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
"""Lines that are looked at together."""

LONG = 0.05
"""Seconds after which the rest of the list waits for the rank's other tasks."""

_PLACE = Place(0, b"", NOWHERE, NOWHERE, False, False)


class WalkPaths(Kind, code=107, doing="looking at what is listed", is_note=False):
    """The ``paths`` (each but the last one ended by a NUL), which start in ``directory``, are looked at and told."""

    directory: bytes
    paths: bytes

    @property
    def effort(self) -> int:
        return self.paths.count(b"\0") + 1

    def about(self) -> tuple[Place, bytes]:
        return _PLACE, self.paths.partition(b"\0")[0]

    def run(self, rank: Rank, result: Result) -> Steps:
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
        telling = finder.telling
        here = -1
        if finder.opens_items:
            here = open_patiently(self.directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            finder.tell_all(result, Items(here, b"", names, kinds, Rows.of(statuses, finder.mask)), telling)
        finally:
            if here >= 0:
                let_go(here)
        telling.tell(rank, result)


class WalkListed(Kind, code=108, doing="reading the list", is_note=False):
    """The list ``file``; ``nul``: its paths end with a NUL. ``directory`` is the user's working one.

    All has to lie in the directory ``base``, unless that is empty; there the paths of a plain list start. A task reads
    some of it, and leaves the rest to the next one: what it has found is begun meanwhile.
    """

    file: bytes
    nul: bool
    directory: bytes
    base: bytes

    def about(self) -> None:
        return None

    def run(self, rank: Rank, result: Result) -> Steps:
        finder, telling, until = rank.own(Finder), rank.own(Finder).telling, time.monotonic() + LONG
        try:
            listing, reading = rank.own(_OpenList).of(self)
            while lines := list(islice(reading, AT_ONCE)):
                self._take(finder, result, telling, listing, lines)
                if telling.size > MOST_TOLD:
                    telling.tell(rank, result)
                    telling = finder.telling
                if rank.stop_reason is not None:
                    break
                if time.monotonic() > until:
                    result.spawn(self, owner=0)
                    break
                yield None
        except Refused as refused:
            rank.stop(str(refused))
            cast(Hearer, rank.sink).spoiled(str(refused))
        telling.tell(rank, result)

    def _path(self, listing: SavedListing, line: Line, top: bytes) -> bytes:
        """As it is told; raises ``Refused`` if it does not lie in the base, whose path from the root is ``top``."""
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
        self, finder: Finder, result: Result, telling: Handover, listing: SavedListing, lines: Sequence[Line]
    ) -> None:
        """What is not known of these lines is looked at by any rank."""
        top = os.path.realpath(os.path.join(self.directory, self.base)).rstrip(b"/") if self.base else b""
        paths = [path for line in lines if (path := self._path(listing, line, top))]
        known = [line.known for line in lines if line.known is not None]
        rows = _rows(known, finder.mask) if len(known) == len(paths) and not finder.opens_all else None
        looked_at = [row for row, each in enumerate(known) if each.type == S_IFDIR] if finder.opens_items else []
        if rows is None:
            looked_at = [*range(len(paths))]
        if looked_at:
            some = b"\0".join([paths[row] for row in looked_at])
            result.spawn(WalkPaths(self.directory, some), len(looked_at) * CALL_COST)
        if rows is None or len(looked_at) == len(paths):
            return
        if looked_at:
            left = sorted({*range(len(paths))}.difference(looked_at))
            paths, known, rows = [paths[row] for row in left], [known[row] for row in left], rows.chosen(left)
        kinds = bytes(KINDS.get(each.type, UNKNOWN) for each in known)
        finder.tell_all(result, Items(-1, b"", paths, kinds, rows), telling)


class _OpenList:
    """On rank 0: the list, as far as it has been read."""

    def __init__(self, rank: Rank) -> None:
        self._open: tuple[SavedListing, Iterator[Line]] | None = None

    def of(self, task: WalkListed) -> tuple[SavedListing, Iterator[Line]]:
        """Raises ``Refused``."""
        if self._open is None:
            listing = SavedListing(task.file, "--from", nul=task.nul)
            self._open = listing, iter(listing)
        return self._open

    def close(self) -> None:
        if self._open is not None:
            self._open[0].close()


def _rows(known: Sequence[Recorded], mask: int) -> Rows | None:
    """What is recorded as columns; None if something is missing."""
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
    for each in known:
        value: int | None = getattr(each, field)
        if value is not None and field == "allocated":
            value = -(-value // BLOCK)
        elif value is not None and field == "mode":
            value |= each.type
        yield value
