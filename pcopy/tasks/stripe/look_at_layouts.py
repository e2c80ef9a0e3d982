"""Examination of layouts: which layouts files have, and which of the files need another one."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from pcopy.engine.task import ANYBODY
from pcopy.fsio.kernel.columns import pack_names, unpack_names
from pcopy.fsio.layout import Target
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import check_found, source_status
from pcopy.lustre.layouts import LustreLayout, path_of
from pcopy.signature.items import FILE, type_of
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import Divisible, Steps
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import Result, Tried
from pcopy.tasks.base.values import Place, pack_numbers, unpack_numbers
from pcopy.tasks.copying import BATCH_FILES, Finding
from pcopy.tasks.files.layouts import Layouts
from pcopy.tasks.stripe.change_layout import ChangeLayout, layout_of, left_alone, sums_of
from pcopy.walk.visitor import Found


class LayoutVisitor(Finding):
    """Visitor that collects all regular files in batches. Other items have no layout."""

    links_apart = True

    def __init__(self, rank: Rank, result: Result, place: Place, attempt: int) -> None:
        super().__init__(rank, result, place, attempt)
        self._batches: dict[int, tuple[list[bytes], list[int]]] = {}
        """Names and inode numbers of the files to be examined, by the rank that examines them."""

    def small_files(self, found: Found, rows: Sequence[int]) -> None:
        for row in rows:
            self._add(found, row, ANYBODY)

    large_files = nodes = small_files

    def linked(self, found: Found, rows: Sequence[int]) -> None:
        """Send all names of an inode to the same rank, which examines the inode once only."""
        for row in rows:
            self._add(found, row, found.rows.inode[row] % self._rank.size)

    def _add(self, found: Found, row: int, owner: int) -> None:
        """Add the file in ``row`` to the batch of the rank ``owner``; count an item of another type as skipped."""
        if type_of(found.rows.mode[row]) != FILE:
            self._result.count(counts.SKIPPED)
            return
        names, inodes = self._batches.setdefault(owner, ([], []))
        names.append(found.names[row])
        inodes.append(found.rows.inode[row])
        self._found_bytes += found.rows.size[row]
        if len(names) >= BATCH_FILES:
            self._spawn(owner)

    def _spawn(self, owner: int) -> None:
        """Spawn the task that examines the batch of the rank ``owner``."""
        names, inodes = self._batches.pop(owner)
        task = LookAtLayouts(self._place, pack_names(names), pack_numbers(inodes))
        self._result.spawn(task, len(names) * CALL_COST, owner=owner)

    def finish(self) -> None:
        for owner in [*self._batches]:
            self._spawn(owner)
        super().finish()


MOST_INODES = 1 << 20
"""Largest number of inodes with several hard links that a rank remembers.

An inode is dropped after all its names were seen, or if there are too many. (Names outside the tree are never seen.)
"""


class InodesSeen:
    """The inodes with several hard links of which this rank has examined one name."""

    def __init__(self, rank: Rank) -> None:
        self._to_come: dict[tuple[int, int], int] = {}
        """Number of names of each inode that were not seen yet."""

    def add(self, status: os.stat_result) -> None:
        """Remember the inode of a file that was examined, if it has several hard links."""
        if status.st_nlink > 1:
            self._to_come[status.st_dev, status.st_ino] = status.st_nlink - 1
            if len(self._to_come) > MOST_INODES:  # the oldest is dropped: its next name counts as another file
                del self._to_come[next(iter(self._to_come))]

    def is_further_name(self, status: os.stat_result) -> bool:
        """Return True if the inode was examined already, by another name. Call this once for each name."""
        inode = status.st_dev, status.st_ino
        to_come = self._to_come.pop(inode, 0)
        if to_come > 1:
            self._to_come[inode] = to_come - 1
        return to_come > 0


class LookAtLayouts(Divisible, code=90, doing="reading the layouts of files of", is_note=False):
    """Task that examines the layouts of regular files, whose ``inodes`` (8 bytes each) are those that the
    scan found."""

    inodes: bytes

    columns = ("inodes",)

    def run(self, rank: Rank, result: Result) -> Steps:
        place = self.place
        names = unpack_names(self.names)
        try:
            directory = rank.open_source(place)
            layout = layout_of(rank, place, directory)
        except Problem as problem:
            for name in names:
                result.fail(place, name, problem, retry=Tried.NEVER)
            return
        sums: Counter[str] = Counter()
        for name, inode in zip(names, unpack_numbers(self.inodes), strict=True):
            if rank.stop_reason is not None:
                break
            try:
                sums.update(self._look(rank, result, layout, directory, name, inode))
            except OSError as error:
                result.fail(place, name, Problem.of("stripe", error), retry=Tried.NEVER)
            yield None
        rank.own(Layouts).add(result, sums)

    def _look(
        self, rank: Rank, result: Result, layout: LustreLayout, directory: int, name: bytes, inode: int
    ) -> Counter[str]:
        """Examine one file, and return the sums to be reported; these are empty if its layout will be changed.

        Raise ``Problem`` if it cannot be examined.
        """
        place, options = self.place, rank.options
        status = source_status(directory, name)
        check_found(status, rank.source_device(place), inode)
        if rank.own(InodesSeen).is_further_name(status):
            left_alone(result, place, status.st_size)
            return Counter()
        rank.own(InodesSeen).add(status)
        striping = layout.striping_of(path_of(directory, name))
        target = Target(directory, place.source_id.inode)
        is_fit = not options.stripe or layout.change_of(striping, status.st_size, target) is None
        if not is_fit and not options.dry_run:
            result.spawn(ChangeLayout(place, name, inode), status.st_size + CALL_COST)
            return Counter()
        if is_fit and options.stripe:
            left_alone(result, place, status.st_size)
        else:
            result.count(counts.FILES, 1, place)
            result.count(counts.BYTES, status.st_size, place)
        return sums_of(rank, layout, striping, status.st_size, directory)
