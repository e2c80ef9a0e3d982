"""What the preparations of all tools share that go through trees in place: their paths, and what is told at the end."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pcopy.errors import INCOMPLETE, OK, Refused
from pcopy.jobs.meant import meant
from pcopy.jobs.paths import source_of
from pcopy.jobs.spool import SET_ANOTHER, refusing, spool_in
from pcopy.launch.tool import Ended
from pcopy.tasks.base.itemized import Itemized
from pcopy.tasks.base.job import Failure, Job, Root, Sink, Totals
from pcopy.tasks.base.rank import Rank
from pcopy.text import shown
from pcopy.tools.arguments import TreeArguments
from pcopy.tools.ending import LinesOfItems, SummedPreparation, told_beside_lines
from pcopy.tools.outputs import check_told

if TYPE_CHECKING:
    from pcopy.jobs.listed import PathList


class TreePreparation(SummedPreparation):
    """A path that is not there has failed, and the others are taken all the same."""

    done: str
    """What is done to trees: ``removed``."""

    def __init__(self, tree: TreeArguments) -> None:
        telling = tree.telling
        dry_run = tree.options.dry_run
        if dry_run:
            telling = told_beside_lines(telling)
        super().__init__(tree.ranks, tree.in_flight, telling, dry_run=dry_run)
        self.tree = tree
        self._missing: list[Failure] = []
        self.list: PathList | None = None
        """What ``--from`` lists."""

    def roots(
        self, root_of: Callable[[bytes], Root], *, missing_is_fine: bool = False, once: bool = True
    ) -> tuple[Root, ...]:
        """Those of the paths, each ``once``, or as often as it is named. ``root_of`` raises ``OSError`` for what is not
        there, which is noted unless that is fine; and ``Refused``."""
        found: dict[object, Root] = {}
        for path in self.tree.paths:
            try:
                root = root_of(path)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR) or not missing_is_fine:
                    self._missing.append(_not_there(path, error))
            else:
                found.setdefault((root.source_id, root.item) if once else len(found), root)
        return tuple(found.values())

    def listed(self, check: Callable[[bytes], str] = lambda path: "", *, whole: bool = False) -> tuple[Root, ...]:
        """The directory below which all lies that ``--from`` lists; ``check`` and ``whole`` as for ``read_list``.
        Raises ``Refused``."""
        from pcopy.jobs.listed import read_list

        tree = self.tree
        within = os.path.realpath(tree.paths[0]) if tree.paths else None
        if within is not None and not os.path.isdir(within):
            raise Refused(f"{shown(tree.paths[0])}: is no directory, in which what --from lists could lie")
        spool = spool_in(b"")
        with refusing(b"", SET_ANOTHER):
            self.list = read_list(tree.listing, spool, nul=tree.nul, within=within, check=check, whole=whole)
        return () if self.list is None else (self.list.root,)

    def make_job(self, roots: tuple[Root, ...], *, copies: bool, **options: Any) -> None:
        """The job, of these ``roots``; ``options`` are fields of ``Options`` beside those that all these tools have.

        Raises ``Refused``.
        """
        check_told(self.telling, () if self.list else roots, f"is {self.done}")
        common = self.tree.options._replace(itemize=self.telling.itemizes or self.lists)
        self.job = Job(os.urandom(5).hex(), 1, roots, common._replace(**options), copies=copies)
        if self.list is not None:
            from pcopy.jobs.files_from import path_of

            told = self.job.options._replace(told=self.list.told)
            self.job = self.job._replace(listed=path_of(self.list.file), options=told)
        self.began = time.monotonic()

    @property
    def lists(self) -> bool:
        """Does standard output get a line for each item that would be changed?"""
        return self.dry_run and not (self.telling.json or self.telling.quiet)

    def is_listed(self, items: Itemized) -> bool:
        """Are these such items?"""
        return False

    def sink(self, screen: Sink) -> Sink:
        """It is told of the paths that are not there."""
        if self._missing:
            screen.failures(self._missing)
        return super().sink(LinesOfItems(screen, self.is_listed) if self.lists else screen)

    def settle(self, rank: Rank, totals: Totals) -> int:
        return INCOMPLETE if self._missing else OK

    def tell_end(self, ended: Ended, ranks: int) -> int:
        missing, totals = len(self._missing), ended.totals
        totals = totals._replace(found=totals.found + missing, failed=totals.failed + missing)
        return super().tell_end(ended._replace(totals=totals), ranks)


def topmost(roots: Sequence[Root]) -> tuple[Root, ...]:
    """Without those that lie in another, so that nothing is looked at twice, or by two ranks at once."""
    places = {source_of(root): root for root in roots}
    return tuple(root for place, root in places.items() if places.keys().isdisjoint(_above(place)))


def _above(path: bytes) -> Iterator[bytes]:
    while (parent := os.path.dirname(path)) != path:
        path = parent
        yield path


def _not_there(path: bytes, error: OSError) -> Failure:
    advice = meant(path) if error.errno == errno.ENOENT else ""
    return Failure(path, "stat", error.errno or errno.EIO, advice)
