"""The visitor of a removal by a list (prm --from): removes the listed items and nothing else.

Directories are removed last, the deepest first, and only if they are empty by then; a directory that is not empty has
failed. With the option ``whole_directories`` listed directories are removed with all their contents, as PATHs of the
command line are.
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
    """The directories that are never removed, one object per rank, as (device, inode) on this host."""

    def __init__(self, rank: Rank) -> None:
        """Determine them from the options; raise ``Problem``."""
        recorded_device = rank.job.roots[0].source_id[0]
        device_here = status_of(rank.sources[0].open(b"", None)).st_dev
        pairs = rank.options.never_removed
        self.directories = {(device_here if device == recorded_device else device, inode) for device, inode in pairs}


class ListedRemoval(RemoveVisitor):
    """Removes listed items of one directory; implements ``LaterVisitor``."""

    def __init__(self, rank: Rank, result: Result, place: Place, attempt: int) -> None:
        """Open the directory; raise ``Problem`` if it cannot be opened."""
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
        """Have directories removed later, when their contents are complete; report those that are never removed."""
        self._tally.found(len(rows))
        accepted = []
        for row in rows:
            identity = device, _ = found.rows.device[row], found.rows.inode[row]
            if device == self.device and identity not in self._kept:
                accepted.append(row)
            else:
                text = OTHER_DEVICE if device != self.device else _NEVER
                self._fail(found.names[row], Problem("stat", 0, text=text))
        if self._rank.options.whole_directories:
            self._whole(found, accepted)
        elif accepted:
            tell_later(self._result, self._place, [found.names[row] for row in accepted], found.rows.chosen(accepted))

    def _whole(self, found: Found, rows: Sequence[int]) -> None:
        """Spawn tasks that remove these directories with their contents, as far as they lie on the
        mount of the root.
        """
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
        """Remove those directories that are empty by now. A dry run assumes that all of them are."""
        removed = [*range(len(rows))]
        all_names = unpack_names(names)
        if not only_looks(self._rank):
            verdicts = (yield from remove_batch(self._rank, directory, names, rows)).verdicts
            problems = {row: problem for row in removed if (problem := problem_of(verdicts, row)) is not None}
            removed = [row for row in removed if row not in problems]
            for row, problem in problems.items():
                if problem.errno == errno.ENOENT:
                    self._tally.found(-1)
                else:
                    self._fail(all_names[row], problem)
        self._tally.gone([counts.DIRECTORIES] * len(removed))
        kinds, sizes = [DIRECTORY] * len(removed), [0] * len(removed)
        self._tally.tell(self._place, [all_names[row] for row in removed], kinds, sizes)
