"""The visitor of a removal by a list: what is listed goes, and nothing else.

A directory goes last, the deepest first, if nothing is in it any more; else it stays, and has failed. Unless listed
directories go whole (``whole_directories`` of the job's options): then they are removed as a PATH is.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from pcopy.fsio.identity import Identity
from pcopy.fsio.kernel.columns import Rows, unpack_names
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of
from pcopy.signature.items import DIRECTORY
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import Steps
from pcopy.tasks.base.rank import SCAN_COST, Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import NOWHERE, Place
from pcopy.tasks.listed.deepest_first import tell_later
from pcopy.tasks.remove.removal_counts import only_looks
from pcopy.tasks.remove.remove_tree import NOBODY, RemoveDir, is_within
from pcopy.tasks.remove.visitor import OTHER_DEVICE, RemoveVisitor, problem_of, remove_batch
from pcopy.walk.visitor import Found

_NEVER = "is the working directory, or one above it, which is never removed"
_ELSEWHERE = "is on another file system than most of the list: list such directories by themselves"


class _Kept:
    """A rank's one: the directories that are not removed, as (device, inode) on this host."""

    def __init__(self, rank: Rank) -> None:
        """Raises ``Problem``."""
        theirs = rank.job.roots[0].source_id[0]
        ours = status_of(rank.sources[0].open(b"", None)).st_dev
        pairs = rank.options.never_removed
        self.directories = {(ours if device == theirs else device, inode) for device, inode in pairs}


class ListedRemoval(RemoveVisitor):
    """Fills ``LaterVisitor``."""

    def __init__(self, rank: Rank, result: Result, place: Place, attempt: int) -> None:
        """Raises ``Problem`` if the directory can't be opened."""
        directory = rank.open_source(place)
        super().__init__(rank, result, place, directory, status_of(directory).st_dev)
        self._kept = rank.own(_Kept).directories

    def failed(self, name: bytes, problem: Problem) -> None:
        if problem.errno != errno.ENOENT or not self._rank.options.missing_is_fine:
            self._tally.found()
            self._fail(name, problem)

    def chosen(self, found: Found) -> Sequence[int]:
        return range(len(found))

    def directories(self, found: Found, rows: Sequence[int]) -> None:
        self._tally.found(len(rows))
        here = []
        for row in rows:
            identity = device, _ = found.rows.device[row], found.rows.inode[row]
            if device == self.device and identity not in self._kept:
                here.append(row)
            else:
                text = OTHER_DEVICE if device != self.device else _NEVER
                self._fail(found.names[row], Problem("stat", 0, text=text))
        if self._rank.options.whole_directories:
            self._whole(found, here)
        elif here:
            tell_later(self._result, self._place, [found.names[row] for row in here], found.rows.chosen(here))

    def _whole(self, found: Found, rows: Sequence[int]) -> None:
        """These directories go with all that is in them, on the mount of the root."""
        if rows and not is_within(self._rank, self._place, found.directory):
            for row in rows:
                self._fail(found.names[row], Problem("stat", 0, text=_ELSEWHERE))
            return
        mount = self._place.source_id.mount
        for row in rows:
            path = os.path.join(self._place.path, found.names[row])
            below = Place(self._place.root, path, Identity(mount, found.rows.inode[row]), NOWHERE, False, False)
            self._result.spawn(RemoveDir(below, NOBODY, self._place), SCAN_COST, expands=True)
        self._tally.unread(len(rows))

    def later(self, directory: int, names: bytes, rows: Rows) -> Steps:
        """Removes those directories that are empty by now. (A dry run takes them all to be.)"""
        gone = [*range(len(rows))]
        each = unpack_names(names)
        if not only_looks(self._rank):
            verdicts = (yield from remove_batch(self._rank, directory, names, rows)).verdicts
            problems = {row: problem for row in gone if (problem := problem_of(verdicts, row)) is not None}
            gone = [row for row in gone if row not in problems]
            for row, problem in problems.items():
                if problem.errno == errno.ENOENT:
                    self._tally.found(-1)
                else:
                    self._fail(each[row], problem)
        self._tally.gone([counts.DIRECTORIES] * len(gone))
        kinds, sizes = [DIRECTORY] * len(gone), [0] * len(gone)
        self._tally.tell(self._place, [each[row] for row in gone], kinds, sizes)
