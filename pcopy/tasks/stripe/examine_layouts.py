"""Examination of layouts: which layouts files have, and which of the files need another one."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from pcopy.engine.task import ANY_RANK
from pcopy.fsio.backend.columns import pack_names, unpack_names
from pcopy.fsio.layout import TargetDirectory
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import check_is_found_file, source_status
from pcopy.lustre.layouts import LustreLayout, proc_path
from pcopy.signature.items import FILE, type_byte
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import DivisibleTask, Steps
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import RetryMode, TaskResult
from pcopy.tasks.base.values import Place, pack_numbers, unpack_numbers
from pcopy.tasks.copying import MAX_BATCH_FILES, ItemVisitor
from pcopy.tasks.files.layouts import RankLayouts
from pcopy.tasks.stripe.change_layout import ChangeLayout, count_unchanged, layout_sums, lustre_layout
from pcopy.walk.visitor import FoundItems


class LayoutVisitor(ItemVisitor):
    """Visitor that collects all regular files in batches. Other items have no layout."""

    separates_linked = True

    def __init__(self, rank: Rank, result: TaskResult, place: Place, attempt: int) -> None:
        super().__init__(rank, result, place, attempt)
        self._batches: dict[int, tuple[list[bytes], list[int]]] = {}
        """Names and inode numbers of the files to be examined, by the rank that examines them."""

    def visit_small_files(self, found: FoundItems, rows: Sequence[int]) -> None:
        for row in rows:
            self._add_file(found, row, ANY_RANK)

    visit_large_files = visit_special_files = visit_small_files

    def visit_linked(self, found: FoundItems, rows: Sequence[int]) -> None:
        """Send all names of an inode to the same rank, which examines the inode once only."""
        for row in rows:
            self._add_file(found, row, found.rows.inode[row] % self._rank.size)

    def _add_file(self, found: FoundItems, row: int, owner: int) -> None:
        """Add the file in ``row`` to the batch of the rank ``owner``; count an item of another type as skipped."""
        if type_byte(found.rows.mode[row]) != FILE:
            self._result.count(counts.SKIPPED)
            return
        names, inodes = self._batches.setdefault(owner, ([], []))
        names.append(found.names[row])
        inodes.append(found.rows.inode[row])
        self._found_bytes += found.rows.size[row]
        if len(names) >= MAX_BATCH_FILES:
            self._spawn_batch(owner)

    def _spawn_batch(self, owner: int) -> None:
        """Spawn the task that examines the batch of the rank ``owner``."""
        names, inodes = self._batches.pop(owner)
        task = ExamineLayouts(self._place, pack_names(names), pack_numbers(inodes))
        self._result.spawn(task, len(names) * CALL_COST, owner=owner)

    def end_visit(self) -> None:
        for owner in [*self._batches]:
            self._spawn_batch(owner)
        super().end_visit()


MOST_INODES = 1 << 20
"""Largest number of inodes with several hard links that a rank remembers.

An inode is dropped after all its names were seen, or if there are too many. (Names outside the tree are never seen.)
"""


class InodesSeen:
    """The inodes with several hard links of which this rank has examined one name."""

    def __init__(self, rank: Rank) -> None:
        self._unseen_names: dict[tuple[int, int], int] = {}
        """Number of names of each inode that were not seen yet."""

    def remember(self, status: os.stat_result) -> None:
        """Remember the inode of a file that was examined, if it has several hard links."""
        if status.st_nlink > 1:
            self._unseen_names[status.st_dev, status.st_ino] = status.st_nlink - 1
            if len(self._unseen_names) > MOST_INODES:  # the oldest is dropped: its next name counts as another file
                del self._unseen_names[next(iter(self._unseen_names))]

    def is_further_name(self, status: os.stat_result) -> bool:
        """Return True if the inode was examined already, by another name. Call this once for each name."""
        inode = status.st_dev, status.st_ino
        to_come = self._unseen_names.pop(inode, 0)
        if to_come > 1:
            self._unseen_names[inode] = to_come - 1
        return to_come > 0


class ExamineLayouts(DivisibleTask, code=90, doing="reading the layouts of files of", is_note=False):
    """Task that examines the layouts of regular files, whose ``inodes`` (8 bytes each) are those that the
    scan found."""

    inodes: bytes

    columns = ("inodes",)

    def run(self, rank: Rank, result: TaskResult) -> Steps:
        place = self.place
        names = unpack_names(self.names)
        try:
            directory = rank.open_source(place)
            layout = lustre_layout(rank, place, directory)
        except Problem as problem:
            for name in names:
                result.fail(place, name, problem, retry=RetryMode.NEVER)
            return
        sums: Counter[str] = Counter()
        for name, inode in zip(names, unpack_numbers(self.inodes), strict=True):
            if rank.stop_reason is not None:
                break
            try:
                sums.update(self._examine(rank, result, layout, directory, name, inode))
            except OSError as error:
                result.fail(place, name, Problem.from_error("stripe", error), retry=RetryMode.NEVER)
            yield None
        rank.instance(RankLayouts).add(result, sums)

    def _examine(
        self, rank: Rank, result: TaskResult, layout: LustreLayout, directory: int, name: bytes, inode: int
    ) -> Counter[str]:
        """Examine one file, and return the sums to be reported; these are empty if its layout will be changed.

        Raise ``Problem`` if it cannot be examined.
        """
        place, options = self.place, rank.options
        status = source_status(directory, name)
        check_is_found_file(status, rank.source_device(place), inode)
        if rank.instance(InodesSeen).is_further_name(status):
            count_unchanged(result, place, status.st_size)
            return Counter()
        rank.instance(InodesSeen).remember(status)
        striping = layout.striping_of(proc_path(directory, name))
        target = TargetDirectory(directory, place.source_id.inode)
        is_fit = not options.stripe or layout.required_change(striping, status.st_size, target) is None
        if not is_fit and not options.dry_run:
            result.spawn(ChangeLayout(place, name, inode), status.st_size + CALL_COST)
            return Counter()
        if is_fit and options.stripe:
            count_unchanged(result, place, status.st_size)
        else:
            result.count(counts.FILES, 1, place)
            result.count(counts.BYTES, status.st_size, place)
        return layout_sums(rank, layout, striping, status.st_size, directory)
