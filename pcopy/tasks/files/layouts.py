"""Lustre layouts (striping) of new files: the layout policy of each file system that one rank writes to
(``pcopy.fsio.layout``), and a report of the layouts that files have got.

Each rank counts the files by layout. ``ReportLayoutCounts`` waits for the end of the phase and sends the counts to rank
0 in one note, ``UsedLayoutsNote``. In a long phase they are also sent from time to time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

from pcopy.fsio.layout import LUSTRE_TYPE, LayoutPolicy, LayoutRecipe, TargetDirectory
from pcopy.fsio.problem import errors_as_problem
from pcopy.libc import type_of_file_system
from pcopy.tasks.base.job import StripeOptions
from pcopy.tasks.base.kind import NoteDiscardedOnResume
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import Place

FilesByLayout = Counter[str]
"""Number of files, by the description of their layout in words."""


LAYOUT_REPORT_SECONDS = 1.0
"""Seconds after which a rank sends its counts of layouts again. A job that is stopped does not reach the end of the
phase.
"""
MAX_REPORTED_LAYOUTS = 4096
"""Largest number of different layouts that a rank reports. Layouts may be copied from the source, whose owner could
create any number of them.
"""
OTHER_LAYOUTS = "others"
"""Name under which files are counted whose layout is not among the first ``MAX_REPORTED_LAYOUTS`` different ones."""


class LayoutPoliciesAndCounts:
    """The rules of one rank for the Lustre layout (striping) of new files, by file system; and the numbers of files
    that it has created with each layout.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.by_device: dict[int, LayoutPolicy] = {}
        """Layout policy of each file system, by st_dev."""
        self.unreported = FilesByLayout()
        """Number of files that this rank has created, by layout, since it last sent these numbers to rank 0."""
        self.job_totals = FilesByLayout()
        """On rank 0: number of files of all ranks, by layout, as far as the ranks have sent them."""
        self._is_report_spawned = False
        self._reported_at = time.monotonic()
        self._reported_names: set[str] = set()

    def add_counts(self, result: TaskResult, sums: Mapping[str, int]) -> None:
        """Add ``sums`` (number of files by layout) to the numbers of this rank, and spawn a note that sends these to
        rank 0: at once if that was long ago, else at the end of the phase.
        """
        for layout, number in sums.items():
            self.unreported[layout] += number
        if (
            time.monotonic() > self._reported_at + LAYOUT_REPORT_SECONDS
        ):  # a job that is stopped does not reach the report at the end of the phase
            self._reported_at = time.monotonic()
            result.spawn_task(UsedLayoutsNote(tuple(self.take_unreported_counts().items())), owner=0)
        elif not self._is_report_spawned:
            self._is_report_spawned = True
            result.spawn_task(ReportLayoutCounts(), phase=max(Phase.FINISH, result.phase), owner=self._rank.number)

    def reported_layout_name(self, layout: str) -> str:
        """Return the name under which ``layout`` is counted: itself, or ``OTHER_LAYOUTS`` once there are too many
        different ones.
        """
        if layout not in self._reported_names:
            if len(self._reported_names) >= MAX_REPORTED_LAYOUTS:
                return OTHER_LAYOUTS
            self._reported_names.add(layout)
        return layout

    def take_unreported_counts(self) -> FilesByLayout:
        """Return the numbers of files by layout that were not sent to rank 0 yet, and set them to 0."""
        used, self.unreported = self.unreported, FilesByLayout()
        return used

    def take_last_unreported_counts(self) -> FilesByLayout:
        """Return the numbers of files by layout that were not sent to rank 0 yet, and set them to 0.
        ``ReportLayoutCounts`` calls this at the end of the phase. If files are created after that, another
        ``ReportLayoutCounts`` is spawned.
        """
        self._is_report_spawned = False
        return self.take_unreported_counts()

    def layout_policy_at(self, place: Place) -> LayoutPolicy:
        """Return the layout policy for new files in the target directory of ``place``. Raise ``Problem`` on failure."""
        rank = self._rank
        device = rank.target_device(place)
        layout = self.by_device.get(device)
        if layout is not None:
            return layout
        return self.layout_policy_of_device(
            device, rank.targets[place.root].open(rank.path_below_target(place.root, place.path), place.target_id)
        )

    def layout_policy_of_device(self, device: int, directory: int) -> LayoutPolicy:
        """Return the layout policy of the file system ``device``; ``directory`` is a descriptor of any directory on it.
        Raise ``Problem`` on failure.
        """
        layout = self.by_device.get(device)
        if layout is None:
            with errors_as_problem("statfs"):
                layout = self.by_device[device] = make_layout_policy(self._rank, directory)
        return layout


def make_layout_policy(rank: Rank, directory: int) -> LayoutPolicy:
    """Create the layout policy for the file system of the open ``directory``. Raise ``OSError`` if statfs(2) fails."""
    if type_of_file_system(directory) != LUSTRE_TYPE:
        return LayoutPolicy()
    from pcopy.lustre.layout_request import MAX_STRIPES, parse_stripe_options
    from pcopy.lustre.layouts import LustreLayoutPolicy, WritingProcesses  # only here: few jobs need the modules

    writers = WritingProcesses(rank.hosts.host_count, rank.size, rank.is_processed_in_chunks)
    if not rank.job.copies:  # the number of ranks and hosts that wrote existing files is unknown
        writers = WritingProcesses(1, MAX_STRIPES, lambda size: True)
    program = rank.job.program
    requested = program if isinstance(program, StripeOptions) else rank.copy_options
    return LustreLayoutPolicy(
        parse_stripe_options(requested.stripe, requested.stripe_table), writers, rank.temporary_names.next_name
    )


def target_layout_policy(rank: Rank, place: Place) -> LayoutPolicy:
    """Return the layout policy for new files in the target directory of ``place``. Raise ``Problem`` on failure."""
    return rank.shared_instance(LayoutPoliciesAndCounts).layout_policy_at(place)


def count_files_created_by_recipe(
    rank: Rank, result: TaskResult, place: Place, recipe: LayoutRecipe, target: int, files: int
) -> None:
    """Count ``files`` new files in the target directory of ``place`` under the layout that they got. ``recipe`` is the
    way in which they were created, and ``target`` a descriptor of the directory. Raise ``Problem`` on failure.
    """
    layout = target_layout_policy(rank, place)
    if files and not layout.uses_only_default:
        count_files_with_layout(
            rank,
            result,
            layout.layout_description_of_recipe(recipe, TargetDirectory(target, place.target_id.inode)),
            files,
        )


def count_files_with_layout(rank: Rank, result: TaskResult, layout: str, files: int = 1) -> None:
    """Count ``files`` new files as files with this ``layout``, a description in words. The counts are shown at the end
    of the job.
    """
    layouts = rank.shared_instance(LayoutPoliciesAndCounts)
    layouts.add_counts(result, {layouts.reported_layout_name(layout): files})


class ReportLayoutCounts(NoteDiscardedOnResume, code=21, doing="reporting layouts of files"):
    """Note (message in the form of a short task) that a rank spawns for itself. It runs at the end of the phase and
    sends rank 0 the numbers of files by layout that this rank has not sent yet.
    """

    def run(self, rank: Rank, result: TaskResult) -> None:
        if used := rank.shared_instance(LayoutPoliciesAndCounts).take_last_unreported_counts():
            result.spawn_task(UsedLayoutsNote(tuple(used.items())), owner=0)


class UsedLayoutsNote(NoteDiscardedOnResume, code=22, doing="receiving layouts of files"):
    """Note (message in the form of a short task) that informs rank 0 how many files of one rank have got each Lustre
    layout. ``used`` has pairs (layout in words, number).
    """

    used: tuple[tuple[str, int], ...]

    def run(self, rank: Rank, result: TaskResult) -> None:
        rank.shared_instance(LayoutPoliciesAndCounts).job_totals.update(dict(self.used))
