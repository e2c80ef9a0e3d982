"""Sums for ``--summary``: each rank computes its own; TellSums sends them at the end of the walk, SumsHeard receives
them on rank 0.

File layouts are read only in directories on Lustre.
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
"""Number of files whose layouts are read before other tasks run."""

_FILE = ord("f")
_NO_FAILURES = (errno.EACCES, errno.EPERM, errno.ENOENT)
"""Errors of reading a layout that are ignored: it requires read permission, which a walk does not need otherwise; and a
file may have vanished.
"""


class Summing:
    """The sums of one rank."""

    def __init__(self, rank: Rank) -> None:
        from pcopy.walk.sums import WalkSums

        self._rank = rank
        self._are_lustre: dict[int, bool] = {}
        """Whether a file system is Lustre, by mount code."""
        self.sums = WalkSums(WalkWish(*rank.options.walk).now, rank.kernel)
        self.layouts: AllLayoutSums | None = None
        """Sums of layouts, created when the first Lustre file system is found."""

    def words(self) -> tuple[bytes, bytes]:
        """Return the packed sums, and the packed sums of layouts, for ``merge``."""
        return self.sums.words(), b"" if self.layouts is None else self.layouts.words()

    def listed(self, place: Place, path: bytes, entries: int) -> None:
        """Record that a directory with this many entries was listed."""
        self.sums.add_directory(path, entries)
        sums = self._layouts_at(place, path)
        if sums is None:
            return
        from pcopy.lustre.llapi import server_of

        try:
            mdt = server_of(self._rank.open_source(place))
        except Problem:  # it was listed and has vanished since
            return
        if mdt >= 0:
            sums.add_directory(mdt)

    def wants_layouts(self, place: Place, path: bytes) -> bool:
        """Return True if the layouts of files in the directory are needed, or that cannot be determined."""
        return self._layouts_at(place, path) is not None or place.source_id.mount not in self._are_lustre

    def look_at_layouts(self, result: Result, place: Place, above: bytes, items: Items) -> Stepwise[None]:
        """Add the layouts of the files among ``items`` of one directory, whose path is ``above``.

        A file whose layout cannot be read has failed, although the item is reported.
        """
        if _FILE not in items.kinds:
            return
        sums = self._layouts_at(place, above)
        if sums is not None:
            rows = items.seen
            columns = zip(items.kinds, items.names, rows.size, rows.blocks, strict=True)
            yield from self._ask(result, place, sums, [row[1:] for row in columns if row[0] == _FILE])

    def look_at_layout(self, result: Result, place: Place, name: bytes, items: Items) -> Stepwise[None]:
        """As ``look_at_layouts``, for a PATH that is a file: ``name`` in the directory ``place``."""
        sums = self._layouts_at(place, items.names[0]) if items.kinds[0] == _FILE else None
        if sums is not None:
            yield from self._ask(result, place, sums, [(name, items.seen.size[0], items.seen.blocks[0])])

    def _layouts_at(self, place: Place, path: bytes) -> LayoutSums | None:
        """Return the sums for the file system of a directory; None if it is not Lustre, or the
        directory has vanished.
        """
        mount = place.source_id.mount
        is_lustre = self._are_lustre.get(mount)
        if is_lustre is None:
            try:
                with failing("statfs"):
                    is_lustre = type_of_file_system(self._rank.open_source(place)) == LUSTRE
            except Problem:  # undetermined: the next directory of this file system is tried
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
        """Read and add the layouts of files, given as name, size and blocks. This needs no request to a server, as the
        files were just statted.
        """
        from pcopy.lustre.blob import BadLayout, parse
        from pcopy.lustre.inherited import read_layout
        from pcopy.lustre.layouts import path_of

        for start in range(0, len(files), AT_ONCE):
            batch = files[start : start + AT_ONCE]
            yield from self._rank.throttle.spend(operations=len(batch))
            yield None
            for name, size, blocks in batch:
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
    """A note for each rank, once: send the sums to rank 0."""

    def run(self, rank: Rank, result: Result) -> None:
        result.spawn(SumsHeard(*rank.own(Summing).words()), owner=0)


class SumsHeard(Again, code=106, doing="summing up"):
    """A note for rank 0 with the sums of one rank: packed ``words`` of ``pcopy.walk.sums``, and of
    ``pcopy.walk.layout_sums``.
    """

    words: bytes
    layouts: bytes

    def run(self, rank: Rank, result: Result) -> None:
        cast("Hearer", rank.sink).summed(self.words, self.layouts)
