"""The layouts of what one rank makes, by file system (``pcopy.fsio.layout``), and how rank 0 hears what was used.

Each rank sums them up, and tells them in one note: TellLayouts waits for that, and LayoutsUsed is the note.
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


TELLING = 1.0
"""Seconds after which a rank tells what it has used."""
MOST_TOLD = 4096
"""Different layouts that a rank tells of: a hostile owner may have any number of them."""
OTHERS = "others"
"""What all further ones are called."""


class Layouts:
    """A rank's."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.met: dict[int, Layout] = {}
        """By st_dev."""
        self.used = Sums()
        """How many files this rank has made with which layout, as people read it."""
        self.of_job = Sums()
        """On rank 0: those of all ranks, as far as they were told."""
        self._is_told = False
        self._told_at = time.monotonic()
        self._named: set[str] = set()

    def add(self, result: Result, sums: Mapping[str, int]) -> None:
        """Adds to what this rank has ``used``, which it is going to tell."""
        for what, number in sums.items():
            self.used[what] += number
        if time.monotonic() > self._told_at + TELLING:  # a job that is stopped gets no further
            self._told_at = time.monotonic()
            result.spawn(LayoutsUsed(tuple(self.told().items())), owner=0)
        elif not self._is_told:
            self._is_told = True
            result.spawn(TellLayouts(), phase=max(Phase.FINISH, result.phase), owner=self._rank.number)

    def named(self, layout: str) -> str:
        """A layout as it is told: ``OTHERS``, once there are too many different ones."""
        if layout not in self._named:
            if len(self._named) >= MOST_TOLD:
                return OTHERS
            self._named.add(layout)
        return layout

    def told(self) -> Sums:
        """What was ``used`` and not told yet."""
        used, self.used = self.used, Sums()
        return used

    def told_at_last(self) -> Sums:
        """The same, by the task that waits for the end; the next one is spawned when there is something new."""
        self._is_told = False
        return self.told()

    def at(self, place: Place) -> Layout:
        """Of what is made in this target directory, which has been opened; raises ``Problem``."""
        rank = self._rank
        device = rank.target_device(place)
        layout = self.met.get(device)
        if layout is not None:
            return layout
        return self.of(
            device, rank.targets[place.root].open(rank.below_target(place.root, place.path), place.target_id)
        )

    def of(self, device: int, directory: int) -> Layout:
        """Of the file system ``device``, on which a directory is open; raises ``Problem``."""
        layout = self.met.get(device)
        if layout is None:
            with failing("statfs"):
                layout = self.met[device] = make_layout(self._rank, directory)
        return layout


def make_layout(rank: Rank, directory: int) -> Layout:
    """Of the file system of an open directory; raises ``OSError``."""
    if type_of_file_system(directory) != LUSTRE:
        return Layout()
    from pcopy.lustre.layouts import LustreLayout, Writers  # few jobs need it
    from pcopy.lustre.wish import MOST_STRIPES, wish_of

    writers = Writers(rank.hosts.number, rank.size, rank.splits)
    if not rank.job.copies:  # what others have written, and with how many ranks, nobody knows
        writers = Writers(1, MOST_STRIPES, lambda size: True)
    return LustreLayout(wish_of(rank.options.stripe, rank.options.stripe_table), writers, rank.temporary_names.next)


def layout_at(rank: Rank, place: Place) -> Layout:
    """As ``Layouts.at``."""
    return rank.own(Layouts).at(place)


def laid_out(rank: Rank, result: Result, place: Place, recipe: Recipe, target: int, files: int) -> None:
    """So many files were made in a target directory, which is open, by this recipe. Raises ``Problem``."""
    layout = layout_at(rank, place)
    if files and not layout.is_plain:
        tell_layout(rank, result, layout.text_of(recipe, Target(target, place.target_id.inode)), files)


def tell_layout(rank: Rank, result: Result, layout: str, files: int = 1) -> None:
    """So many files have got this ``layout``, in words."""
    layouts = rank.own(Layouts)
    layouts.add(result, {layouts.named(layout): files})


class TellLayouts(Again, code=21, doing="telling which layouts files have got"):
    """On the rank that has made them."""

    def run(self, rank: Rank, result: Result) -> None:
        if used := rank.own(Layouts).told_at_last():
            result.spawn(LayoutsUsed(tuple(used.items())), owner=0)


class LayoutsUsed(Again, code=22, doing="hearing which layouts files have got"):
    """How many files have got which layout on one rank, as people read it."""

    used: tuple[tuple[str, int], ...]

    def run(self, rank: Rank, result: Result) -> None:
        rank.own(Layouts).of_job.update(dict(self.used))
