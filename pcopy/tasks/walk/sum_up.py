"""What a rank sums up for ``--summary``; TellSums: each rank tells it when all is walked; SumsHeard: rank 0 hears it.

Layouts are asked for where a directory is on Lustre, and nowhere else.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from pcopy.engine.ticket import Stepwise
from pcopy.fsio.layout import LUSTRE
from pcopy.fsio.problem import Problem, failing
from pcopy.libc import type_of_file_system
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import Again
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result, Tried
from pcopy.tasks.base.values import Place
from pcopy.walk.forms import BLOCK
from pcopy.walk.matching import Items
from pcopy.walk.walk_wish import WalkWish

if TYPE_CHECKING:
    from pcopy.tasks.walk.tell_found import Hearer
    from pcopy.walk.layout_sums import AllLayoutSums, LayoutSums

AT_ONCE = 32
"""Files that are asked for before others have their turn."""

_FILE = ord("f")
_NO_FAILURES = (errno.EACCES, errno.EPERM, errno.ENOENT)
"""Only who may read a file may ask for its layout, while the walk reads none; and a file may have gone meanwhile."""


class Summing:
    """A rank's."""

    def __init__(self, rank: Rank) -> None:
        from pcopy.walk.sums import WalkSums

        self._rank = rank
        self._are_lustre: dict[int, bool] = {}
        """By mount code."""
        self.sums = WalkSums(WalkWish(*rank.options.walk).now, rank.kernel)
        self.layouts: AllLayoutSums | None = None
        """Made where the first file system is Lustre."""

    def words(self) -> tuple[bytes, bytes]:
        """Of the sums, and of the layouts, for ``merge``."""
        return self.sums.words(), b"" if self.layouts is None else self.layouts.words()

    def listed(self, place: Place, path: bytes, entries: int) -> None:
        """A directory was listed, and has so many entries."""
        self.sums.add_directory(path, entries)
        sums = self._layouts_at(place, path)
        if sums is None:
            return
        from pcopy.lustre.llapi import server_of

        try:
            mdt = server_of(self._rank.open_source(place))
        except Problem:  # it was listed, and has gone
            return
        if mdt >= 0:
            sums.add_directory(mdt)

    def wants_layouts(self, place: Place, path: bytes) -> bool:
        """Of the files in a directory; also if it can't be told."""
        return self._layouts_at(place, path) is not None or place.source_id.mount not in self._are_lustre

    def look_at_layouts(self, result: Result, place: Place, above: bytes, items: Items) -> Stepwise[None]:
        """Sums up the files among items of one directory, which is called ``above``. What can't be asked for has
        failed, though the item is told."""
        if _FILE not in items.kinds:
            return
        sums = self._layouts_at(place, above)
        if sums is not None:
            rows = items.seen
            columns = zip(items.kinds, items.names, rows.size, rows.blocks, strict=True)
            yield from self._ask(result, place, sums, [row[1:] for row in columns if row[0] == _FILE])

    def look_at_layout(self, result: Result, place: Place, name: bytes, items: Items) -> Stepwise[None]:
        """The same of a PATH that is a file: ``name`` in the directory ``place``."""
        sums = self._layouts_at(place, items.names[0]) if items.kinds[0] == _FILE else None
        if sums is not None:
            yield from self._ask(result, place, sums, [(name, items.seen.size[0], items.seen.blocks[0])])

    def _layouts_at(self, place: Place, path: bytes) -> LayoutSums | None:
        """Of the file system of a directory; None if that is not Lustre, or the directory has gone."""
        mount = place.source_id.mount
        is_lustre = self._are_lustre.get(mount)
        if is_lustre is None:
            try:
                with failing("statfs"):
                    is_lustre = type_of_file_system(self._rank.open_source(place)) == LUSTRE
            except Problem:  # the next directory tells
                return None
            self._are_lustre[mount] = is_lustre
        if not is_lustre:
            return None
        if self.layouts is None:
            from pcopy.walk.layout_sums import AllLayoutSums

            self.layouts = AllLayoutSums()
        return self.layouts.at(mount, path)

    def _ask(
        self, result: Result, place: Place, sums: LayoutSums, files: Sequence[tuple[bytes, int, int]]
    ) -> Stepwise[None]:
        """Of names, sizes and blocks. To ask costs no request to a server, after the file was looked at."""
        from pcopy.lustre.blob import BadLayout, parse
        from pcopy.lustre.inherited import read_layout
        from pcopy.lustre.layouts import path_of

        for start in range(0, len(files), AT_ONCE):
            some = files[start : start + AT_ONCE]
            yield from self._rank.throttle.spend(operations=len(some))
            yield None
            for name, size, blocks in some:
                try:
                    blob = read_layout(path_of(self._rank.open_source(place), name), follow=False)
                    sums.add(parse(blob) if blob else None, size, BLOCK * blocks)
                except BadLayout:
                    sums.add_unknown(size)
                except OSError as error:
                    sums.add_unknown(size)
                    if error.errno not in _NO_FAILURES:
                        result.count(counts.FOUND)
                        result.fail(place, name, Problem.of("getstripe", error), retry=Tried.NEVER)


class TellSums(Again, code=105, doing="summing up"):
    """On each rank, once."""

    def run(self, rank: Rank, result: Result) -> None:
        result.spawn(SumsHeard(*rank.own(Summing).words()), owner=0)


class SumsHeard(Again, code=106, doing="summing up"):
    """What one rank has found: ``words`` of ``pcopy.walk.sums``, and of ``pcopy.walk.layout_sums``."""

    words: bytes
    layouts: bytes

    def run(self, rank: Rank, result: Result) -> None:
        cast("Hearer", rank.sink).summed(self.words, self.layouts)
