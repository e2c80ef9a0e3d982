"""Examination of Lustre layouts (pstripe): which layouts files have, and which files need another one."""

from __future__ import annotations

import os
from collections import Counter

from pcopy.fsio.backend.columns import unpack_names
from pcopy.fsio.layout import TargetDirectory
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import check_is_file_found_by_scan, source_item_status
from pcopy.lustre.layouts import LustreLayoutPolicy, proc_path_of_item
from pcopy.tasks.base import counts
from pcopy.tasks.base.job import StripeOptions
from pcopy.tasks.base.kind import DivisibleTask, TaskSteps
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import RetryMode, TaskResult
from pcopy.tasks.base.values import unpack_numbers
from pcopy.tasks.files.layouts import LayoutPoliciesAndCounts
from pcopy.tasks.stripe.change_layout import (
    ChangeLayout,
    count_restriped_file,
    count_unchanged_file,
    layout_change_text,
    layout_report_sums_of_file,
    lustre_layout_policy_of_directory,
)

MAX_REMEMBERED_INODES = 1 << 20
"""Largest number of inodes with several hard links that a rank remembers.

An inode is forgotten after all its names were seen. The oldest is forgotten if there are too many, since names outside
the tree are never seen.
"""


class ExaminedInodes:
    """The inodes with several hard links that this rank has examined through one of their names."""

    def __init__(self, rank: Rank) -> None:
        self._unseen_names: dict[tuple[int, int], int] = {}
        """For each such inode (device, inode number): how many of its names were not seen yet."""

    def remember_inode(self, status: os.stat_result) -> None:
        """Remember the inode of a file that was examined, if it has several hard links, so that its other names are
        recognised.
        """
        if status.st_nlink > 1:
            self._unseen_names[status.st_dev, status.st_ino] = status.st_nlink - 1
            if (
                len(self._unseen_names) > MAX_REMEMBERED_INODES
            ):  # forget the oldest: its next name counts as another file
                del self._unseen_names[next(iter(self._unseen_names))]

    def was_inode_examined_before(self, status: os.stat_result) -> bool:
        """Return True if the inode of a file was examined already, through another of its hard links. Call this once
        for each name, because the names are counted.
        """
        inode = status.st_dev, status.st_ino
        to_come = self._unseen_names.pop(inode, 0)
        if to_come > 1:
            self._unseen_names[inode] = to_come - 1
        return to_come > 0


class ExamineLayouts(DivisibleTask, code=90, doing="reading the layouts of files of", is_note=False):
    """Task that examines the layouts of the regular files ``names`` (joined by slashes) of the directory ``place``.
    ``inodes`` are the inode numbers (8 bytes each) that the scan found.
    """

    inodes: bytes

    columns = ("inodes",)

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        place = self.place
        names = unpack_names(self.names)
        try:
            directory = rank.open_source_directory(place)
            layout = lustre_layout_policy_of_directory(rank, place, directory)
        except Problem as problem:
            for name in names:
                result.count_item_as_failed(place, name, problem, retry=RetryMode.NEVER)
            return
        sums: Counter[str] = Counter()
        for name, inode in zip(names, unpack_numbers(self.inodes), strict=True):
            if rank.stop_reason is not None:
                break
            try:
                sums.update(self._examine_file_layout(rank, result, layout, directory, name, inode))
            except OSError as error:
                result.count_item_as_failed(place, name, Problem.from_error("stripe", error), retry=RetryMode.NEVER)
            yield None
        rank.shared_instance(LayoutPoliciesAndCounts).add_counts(result, sums)

    def _examine_file_layout(
        self, rank: Rank, result: TaskResult, layout: LustreLayoutPolicy, directory: int, name: bytes, inode: int
    ) -> Counter[str]:
        """Examine the layout of one file. Return what the file adds to the sums that are reported; nothing if its
        layout is to be changed, since the task that changes it adds that.

        Raise ``Problem`` if the file cannot be examined.
        """
        place, requested = self.place, rank.program_options(StripeOptions).stripe
        status = source_item_status(directory, name)
        check_is_file_found_by_scan(status, rank.source_device(place), inode)
        if rank.shared_instance(ExaminedInodes).was_inode_examined_before(status):
            count_unchanged_file(result, place, name, status.st_size)
            return Counter()
        rank.shared_instance(ExaminedInodes).remember_inode(status)
        striping = layout.striping_of(proc_path_of_item(directory, name))
        target = TargetDirectory(directory, place.source_id.inode)
        recipe = None
        if requested:
            recipe = layout.layout_recipe_for_required_change(striping, status.st_size, target)
        if recipe is not None and not rank.options.dry_run:
            result.spawn_task(ChangeLayout(place, name, inode), status.st_size + CALL_COST)
            return Counter()
        if recipe is not None:
            change = layout_change_text(striping, layout.layout_description_of_recipe(recipe, target))
            count_restriped_file(result, place, name, status.st_size, change)
        elif requested:
            count_unchanged_file(result, place, name, status.st_size)
        else:
            result.count(counts.FILES, 1, place)
            result.count(counts.BYTES, status.st_size, place)
        return layout_report_sums_of_file(rank, layout, striping, status.st_size, directory)
