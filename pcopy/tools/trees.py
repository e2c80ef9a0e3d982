"""Base class of the jobs of all programs that process trees in place: their paths and their final output."""

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
    """The job, on rank 0, of a program that processes trees in place.

    A path that does not exist counts as a failed item; the other paths are processed all the same.
    """

    done: str
    """Word for what is done to trees, for example ``removed``."""

    def __init__(self, tree: TreeArguments) -> None:
        telling = tree.telling
        dry_run = tree.options.dry_run
        if dry_run:
            telling = told_beside_lines(telling)
        super().__init__(tree.ranks, tree.in_flight, telling, dry_run=dry_run)
        self.tree = tree
        self._missing: list[Failure] = []
        """Failures of paths that do not exist."""
        self.list: PathList | None = None
        """The list of ``--from``; None without that option."""

    def roots(
        self, root_of: Callable[[bytes], Root], *, missing_is_fine: bool = False, once: bool = True
    ) -> tuple[Root, ...]:
        """Return the roots of the paths of the command line.

        Args:
            root_of: returns the root of a path. It raises ``OSError`` if the path does not exist, which is recorded as
                a failure, and ``Refused``.
            missing_is_fine: True if a path that does not exist is not a failure.
            once: True if a root that is named more than once is returned once only.
        """
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
        """Read the list of ``--from``, and return the root below which all listed paths are, or nothing if the list is
        empty.

        ``check`` and ``whole`` as for ``read_list``. Raise ``Refused`` if the list cannot be used.
        """
        from pcopy.jobs.listed import read_list

        tree = self.tree
        within = os.path.realpath(tree.paths[0]) if tree.paths else None
        if within is not None and not os.path.isdir(within):
            raise Refused(
                f"{shown(tree.paths[0])}: is no directory; name the one that contains the paths that --from lists"
            )
        spool = spool_in(b"")
        with refusing(b"", SET_ANOTHER):
            self.list = read_list(tree.listing, spool, nul=tree.nul, within=within, check=check, whole=whole)
        return () if self.list is None else (self.list.root,)

    def make_job(self, roots: tuple[Root, ...], *, copies: bool, **options: Any) -> None:
        """Create the job for these roots. Raise ``Refused`` if an output file cannot be written.

        ``options`` are fields of ``Options`` other than those that are common to all these programs.
        """
        check_told(self.telling, () if self.list else roots, f"is {self.done}")
        common = self.tree.options._replace(itemize=self.telling.itemizes or self.lists)
        self.job = Job(os.urandom(5).hex(), 1, roots, common._replace(**options), copies=copies)
        if self.list is not None:
            from pcopy.jobs.files_from import path_of

            options_with_list = self.job.options._replace(told=self.list.told)
            self.job = self.job._replace(listed=path_of(self.list.file), options=options_with_list)
        self.began = time.monotonic()

    @property
    def lists(self) -> bool:
        """True if a line is printed on standard output for each item that would be changed."""
        return self.dry_run and not (self.telling.json or self.telling.quiet)

    def is_listed(self, items: Itemized) -> bool:
        """Return True if a line is printed for these items in a dry run."""
        return False

    def sink(self, screen: Sink) -> Sink:
        """Return the sink of the job, after passing the failures of paths that do not exist to ``screen``."""
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
    """Return the roots without those that are inside another one, so that no item is processed twice or by two ranks at
    the same time.
    """
    places = {source_of(root): root for root in roots}
    return tuple(root for place, root in places.items() if places.keys().isdisjoint(_above(place)))


def _above(path: bytes) -> Iterator[bytes]:
    """Yield all directories above ``path``, the nearest first."""
    while (parent := os.path.dirname(path)) != path:
        path = parent
        yield path


def _not_there(path: bytes, error: OSError) -> Failure:
    """Return the failure for a path that cannot be examined."""
    advice = meant(path) if error.errno == errno.ENOENT else ""
    return Failure(path, "stat", error.errno or errno.EIO, advice)
