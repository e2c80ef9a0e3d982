"""Layouts of new files, for each file system that one rank writes to (``pcopy.fsio.layout``), and reports of the
layouts that were used.

Each rank counts the layouts that its files got. TellLayouts waits for the end of the phase and sends the counts to rank
0 in one note, LayoutsUsed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

from pcopy.fsio.layout import LUSTRE, Layout, Recipe, Target
from pcopy.fsio.problem import failing
from pcopy.libc import type_of_file_system
from pcopy.tasks.base.kind import Again
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import Place

Sums = Counter[str]
"""Number of files by layout."""


TELLING = 1.0
"""Seconds after which a rank reports the layouts that it has used."""
MOST_TOLD = 4096
"""Largest number of different layouts that a rank reports. The owner of a source could create any number of them."""
OTHERS = "others"
"""Name for all further layouts in the report."""


class Layouts:
    """Layouts on one rank: the file systems it writes to, and the counts of files."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.met: dict[int, Layout] = {}
        """Layout of each file system, by st_dev."""
        self.used = Sums()
        """Number of files that this rank has created with each layout (in words), as far as they were
        not reported yet.
        """
        self.of_job = Sums()
        """On rank 0: the reported numbers of all ranks."""
        self._is_told = False
        self._told_at = time.monotonic()
        self._named: set[str] = set()

    def add(self, result: Result, sums: Mapping[str, int]) -> None:
        """Add to the number of files with each layout, and have it reported."""
        for layout, number in sums.items():
            self.used[layout] += number
        if time.monotonic() > self._told_at + TELLING:  # reported before the end too: a stopped job does not get there
            self._told_at = time.monotonic()
            result.spawn(LayoutsUsed(tuple(self.told().items())), owner=0)
        elif not self._is_told:
            self._is_told = True
            result.spawn(TellLayouts(), phase=max(Phase.FINISH, result.phase), owner=self._rank.number)

    def named(self, layout: str) -> str:
        """Return the name of a layout in the report: ``OTHERS`` once there are too many different ones."""
        if layout not in self._named:
            if len(self._named) >= MOST_TOLD:
                return OTHERS
            self._named.add(layout)
        return layout

    def told(self) -> Sums:
        """Return the numbers that were not reported yet, and reset them."""
        used, self.used = self.used, Sums()
        return used

    def told_at_last(self) -> Sums:
        """Return the same as ``told``, for the task that waits for the end of the phase. If more files are created
        later, another such task is spawned.
        """
        self._is_told = False
        return self.told()

    def at(self, place: Place) -> Layout:
        """Return the layout for new files in this target directory, which was opened before. Raise ``Problem`` on
        failure.
        """
        rank = self._rank
        device = rank.target_device(place)
        layout = self.met.get(device)
        if layout is not None:
            return layout
        return self.of(
            device, rank.targets[place.root].open(rank.below_target(place.root, place.path), place.target_id)
        )

    def of(self, device: int, directory: int) -> Layout:
        """Return the layout of the file system ``device``, on which ``directory`` is an open directory. Raise
        ``Problem`` on failure.
        """
        layout = self.met.get(device)
        if layout is None:
            with failing("statfs"):
                layout = self.met[device] = make_layout(self._rank, directory)
        return layout


def make_layout(rank: Rank, directory: int) -> Layout:
    """Create the layout for the file system of an open directory. Raise ``OSError``."""
    if type_of_file_system(directory) != LUSTRE:
        return Layout()
    from pcopy.lustre.layouts import LustreLayout, Writers  # imported late: few jobs need it
    from pcopy.lustre.wish import MOST_STRIPES, wish_of

    writers = Writers(rank.hosts.number, rank.size, rank.splits)
    if not rank.job.copies:  # the number of ranks and hosts that wrote existing files is unknown
        writers = Writers(1, MOST_STRIPES, lambda size: True)
    return LustreLayout(wish_of(rank.options.stripe, rank.options.stripe_table), writers, rank.temporary_names.next)


def layout_at(rank: Rank, place: Place) -> Layout:
    """Return the layout for new files in the target directory of ``place``, as ``Layouts.at`` does."""
    return rank.own(Layouts).at(place)


def laid_out(rank: Rank, result: Result, place: Place, recipe: Recipe, target: int, files: int) -> None:
    """Count ``files`` that were created by ``recipe`` in the open directory ``target``. Raise
    ``Problem`` on failure.
    """
    layout = layout_at(rank, place)
    if files and not layout.is_plain:
        tell_layout(rank, result, layout.text_of(recipe, Target(target, place.target_id.inode)), files)


def tell_layout(rank: Rank, result: Result, layout: str, files: int = 1) -> None:
    """Count ``files`` that have got this ``layout``, which is given in words."""
    layouts = rank.own(Layouts)
    layouts.add(result, {layouts.named(layout): files})


class TellLayouts(Again, code=21, doing="reporting layouts of files"):
    """Note that sends the layouts that a rank has used to rank 0. It runs on that rank."""

    def run(self, rank: Rank, result: Result) -> None:
        if used := rank.own(Layouts).told_at_last():
            result.spawn(LayoutsUsed(tuple(used.items())), owner=0)


class LayoutsUsed(Again, code=22, doing="receiving layouts of files"):
    """Note that reports to rank 0 how many files of one rank have got each layout, in words."""

    used: tuple[tuple[str, int], ...]

    def run(self, rank: Rank, result: Result) -> None:
        rank.own(Layouts).of_job.update(dict(self.used))
