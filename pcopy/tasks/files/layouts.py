"""Layouts of new files, for each file system that one rank writes to (``pcopy.fsio.layout``), and reports of the
layouts that were used.

Each rank counts the layouts that its files got. TellLayouts waits for the end of the phase and sends the counts to rank
0 in one note, LayoutsUsed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

from pcopy.fsio.layout import LUSTRE_TYPE, LayoutPolicy, Recipe, TargetDirectory
from pcopy.fsio.problem import as_problem
from pcopy.libc import type_of_file_system
from pcopy.tasks.base.kind import RecreatedNote
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import Place

FilesByLayout = Counter[str]
"""Number of files by layout."""


REPORT_SECONDS = 1.0
"""Seconds after which a rank reports the layouts that it has used."""
MAX_REPORTED_LAYOUTS = 4096
"""Largest number of different layouts that a rank reports. The owner of a source could create any number of them."""
OTHER_LAYOUTS = "others"
"""Name for all further layouts in the report."""


class RankLayouts:
    """Layouts on one rank: the file systems it writes to, and the counts of files."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.by_device: dict[int, LayoutPolicy] = {}
        """Layout of each file system, by st_dev."""
        self.unreported = FilesByLayout()
        """Number of files that this rank has created with each layout (in words), as far as they were
        not reported yet.
        """
        self.job_totals = FilesByLayout()
        """On rank 0: the reported numbers of all ranks."""
        self._is_report_spawned = False
        self._reported_at = time.monotonic()
        self._reported_names: set[str] = set()

    def add(self, result: TaskResult, sums: Mapping[str, int]) -> None:
        """Add to the number of files with each layout, and have it reported."""
        for layout, number in sums.items():
            self.unreported[layout] += number
        if (
            time.monotonic() > self._reported_at + REPORT_SECONDS
        ):  # reported before the end too: a stopped job does not get there
            self._reported_at = time.monotonic()
            result.spawn(UsedLayouts(tuple(self.take_unreported().items())), owner=0)
        elif not self._is_report_spawned:
            self._is_report_spawned = True
            result.spawn(ReportLayouts(), phase=max(Phase.FINISH, result.phase), owner=self._rank.number)

    def reported_name(self, layout: str) -> str:
        """Return the name of a layout in the report: ``OTHERS`` once there are too many different ones."""
        if layout not in self._reported_names:
            if len(self._reported_names) >= MAX_REPORTED_LAYOUTS:
                return OTHER_LAYOUTS
            self._reported_names.add(layout)
        return layout

    def take_unreported(self) -> FilesByLayout:
        """Return the numbers that were not reported yet, and reset them."""
        used, self.unreported = self.unreported, FilesByLayout()
        return used

    def take_last_unreported(self) -> FilesByLayout:
        """Return the same as ``told``, for the task that waits for the end of the phase. If more files are created
        later, another such task is spawned.
        """
        self._is_report_spawned = False
        return self.take_unreported()

    def layout_at(self, place: Place) -> LayoutPolicy:
        """Return the layout for new files in this target directory, which was opened before. Raise ``Problem`` on
        failure.
        """
        rank = self._rank
        device = rank.target_device(place)
        layout = self.by_device.get(device)
        if layout is not None:
            return layout
        return self.layout_of_device(
            device, rank.targets[place.root].open(rank.path_below_target(place.root, place.path), place.target_id)
        )

    def layout_of_device(self, device: int, directory: int) -> LayoutPolicy:
        """Return the layout of the file system ``device``, on which ``directory`` is an open directory. Raise
        ``Problem`` on failure.
        """
        layout = self.by_device.get(device)
        if layout is None:
            with as_problem("statfs"):
                layout = self.by_device[device] = make_layout(self._rank, directory)
        return layout


def make_layout(rank: Rank, directory: int) -> LayoutPolicy:
    """Create the layout for the file system of an open directory. Raise ``OSError``."""
    if type_of_file_system(directory) != LUSTRE_TYPE:
        return LayoutPolicy()
    from pcopy.lustre.layout_request import MAX_STRIPES, parse_stripe_options
    from pcopy.lustre.layouts import LustreLayout, Writers  # imported late: few jobs need it

    writers = Writers(rank.hosts.host_count, rank.size, rank.is_split)
    if not rank.job.copies:  # the number of ranks and hosts that wrote existing files is unknown
        writers = Writers(1, MAX_STRIPES, lambda size: True)
    return LustreLayout(
        parse_stripe_options(rank.options.stripe, rank.options.stripe_table), writers, rank.temporary_names.next_name
    )


def target_layout(rank: Rank, place: Place) -> LayoutPolicy:
    """Return the layout for new files in the target directory of ``place``, as ``RankLayouts.at`` does."""
    return rank.instance(RankLayouts).layout_at(place)


def count_layout_of_recipe(
    rank: Rank, result: TaskResult, place: Place, recipe: Recipe, target: int, files: int
) -> None:
    """Count ``files`` that were created by ``recipe`` in the open directory ``target``. Raise
    ``Problem`` on failure.
    """
    layout = target_layout(rank, place)
    if files and not layout.uses_only_default:
        count_layout(
            rank, result, layout.recipe_description(recipe, TargetDirectory(target, place.target_id.inode)), files
        )


def count_layout(rank: Rank, result: TaskResult, layout: str, files: int = 1) -> None:
    """Count ``files`` that have got this ``layout``, which is given in words."""
    layouts = rank.instance(RankLayouts)
    layouts.add(result, {layouts.reported_name(layout): files})


class ReportLayouts(RecreatedNote, code=21, doing="reporting layouts of files"):
    """Note that sends the layouts that a rank has used to rank 0. It runs on that rank."""

    def run(self, rank: Rank, result: TaskResult) -> None:
        if used := rank.instance(RankLayouts).take_last_unreported():
            result.spawn(UsedLayouts(tuple(used.items())), owner=0)


class UsedLayouts(RecreatedNote, code=22, doing="receiving layouts of files"):
    """Note that reports to rank 0 how many files of one rank have got each layout, in words."""

    used: tuple[tuple[str, int], ...]

    def run(self, rank: Rank, result: TaskResult) -> None:
        rank.instance(RankLayouts).job_totals.update(dict(self.used))
