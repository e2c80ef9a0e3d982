"""Change of the Lustre layout of a single file (pstripe): how its contents are striped over OSTs.

Each rank sums up what is to be reported about layouts. The keys of these sums are read by ``pcopy.tools.stripe``.
"""

from __future__ import annotations

import errno
from collections import Counter
from contextlib import closing

from pcopy.fsio.layout import LayoutRecipe, TargetDirectory, fewer_stripes_message
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of_open_item
from pcopy.lustre.blob import ParsedLayout, describe_layout, pack_layout
from pcopy.lustre.layouts import LustreLayoutPolicy
from pcopy.lustre.restripe import CopyAndVerifyTools, change_file_layout
from pcopy.signature.algorithms import DEFAULT_ALGORITHM
from pcopy.signature.items import FILE
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import ItemAction
from pcopy.tasks.base.hashing import JobItemHasher
from pcopy.tasks.base.kind import TaskKind, TaskSteps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import RetryMode, TaskResult
from pcopy.tasks.base.values import Place
from pcopy.tasks.files.layouts import LayoutPoliciesAndCounts

FILES_KEY, BYTES_KEY, OST_KEY, FEWER_STRIPES_KEY, MORE_STRIPES_KEY = "files ", "bytes ", "ost ", "fewer", "more"
"""Keys of the sums about layouts. ``FILES`` and ``BYTES``, followed by a layout: the number of files with this layout,
and of their bytes. ``OST_KEY``, followed by a number: stripes on that OST. ``FEWER_STRIPES_KEY``, ``MORE_STRIPES_KEY``:
files with fewer or more stripes than suit their size.
"""


class ChangeLayout(TaskKind, code=91, doing="changing the layout of a file of", is_note=False):
    """Task that changes the Lustre layout of the regular file ``name`` in ``place``. ``inode`` is the inode number that
    the scan found.

    If the job stops, the task has either changed the file and counted it, or done neither.
    """

    place: Place
    name: bytes
    inode: int

    def subject(self) -> tuple[Place, bytes]:
        return self.place, self.name

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        try:
            yield from self._change_layout(rank, result)
        except OSError as error:
            result.count_item_as_failed(
                self.place, self.name, Problem.from_error("stripe", error), retry=RetryMode.NEVER
            )

    def _change_layout(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Change the layout of the file, by copying its data to a new file that has the wanted layout; report the
        result. Yield while data are copied. Raise ``Problem`` if the file cannot be changed.
        """
        place, name = self.place, self.name
        directory = rank.open_source_directory(place)
        layout = lustre_layout_policy_of_directory(rank, place, directory)
        target = TargetDirectory(directory, place.source_id.inode)
        recipe: LayoutRecipe | None = None
        before: ParsedLayout | None = None
        striping: ParsedLayout | None = None
        size = 0

        def choose_recipe(file: int, size: int) -> LayoutRecipe | None:
            """Return how to create the new file so that it gets the wanted layout; None if the file has that layout
            already.
            """
            nonlocal before, recipe
            before = layout.striping_of(file)
            recipe = layout.layout_recipe_for_required_change(before, size, target)
            return recipe

        def read_result(file: int) -> None:
            """Store the layout and size of the file after the change, for the report."""
            nonlocal striping, size
            striping, size = layout.striping_of(file), status_of_open_item(file, on_source=True).st_size

        instruments = CopyAndVerifyTools(rank.mover, rank.shared_instance(RestripeHashing).new_hasher)
        with closing(change_file_layout(directory, name, self.inode, choose_recipe, read_result, instruments)) as steps:
            for moved in steps:
                rank.counters[counts.MOVED] += moved or 0
                yield None
        if (
            recipe is not None
            and striping is not None
            and recipe.attribute
            and (why := recipe.deviation(pack_layout(striping)))
        ):
            result.warn_of_unwanted_layout(place, name, fewer_stripes_message(why))
        is_as_before = (
            before is not None and striping is not None and before.normalised_layout == striping.normalised_layout
        )
        if recipe is None or is_as_before:
            # The layout is the wanted one already (another process has set it), or there are too few OSTs for it.
            count_unchanged_file(result, place, name, size)
        else:
            rank.record_write_success()
            count_restriped_file(result, place, name, size, layout_change_text(before, layout_text(striping)))
        rank.shared_instance(LayoutPoliciesAndCounts).add_counts(
            result, layout_report_sums_of_file(rank, layout, striping, size, directory)
        )


class RestripeHashing(JobItemHasher):
    """The hash algorithm and block size for comparing the file's contents before and after they are copied to the new
    layout.
    """

    def __init__(self, rank: Rank) -> None:
        super().__init__(DEFAULT_ALGORITHM, rank.options.block_size)


def lustre_layout_policy_of_directory(rank: Rank, place: Place, directory: int) -> LustreLayoutPolicy:
    """Return the object that reads and chooses layouts for the file system of the open source ``directory``, which is
    ``place``. Raise ``Problem`` if the directory is not on Lustre.
    """
    layout = rank.shared_instance(LayoutPoliciesAndCounts).layout_policy_of_device(
        rank.source_device(place) or 0, directory
    )
    if not isinstance(layout, LustreLayoutPolicy):
        raise Problem(
            "stripe",
            errno.ENOTSUP,
            on_source=True,
            text="the directory is not on Lustre: only Lustre files have layouts",
        )
    return layout


def count_unchanged_file(result: TaskResult, place: Place, name: bytes, size: int) -> None:
    """Count and report a file of ``size`` bytes as skipped, because its layout is not changed."""
    result.count(counts.SKIPPED, 1, place)
    result.count(counts.SKIPPED_BYTES, size, place)
    result.item_recorder.record_item_outcome(ItemAction.SKIP, place, name, FILE, size)


def count_restriped_file(result: TaskResult, place: Place, name: bytes, size: int, change: str) -> None:
    """Count and report a file of ``size`` bytes that got another layout, or would get it. ``change`` says which."""
    result.count(counts.FILES, 1, place)
    result.count(counts.BYTES, size, place)
    result.item_recorder.record_item_outcome(ItemAction.META, place, name, FILE, size, change=change)


def layout_text(striping: ParsedLayout | None) -> str:
    """Return the layout ``striping`` in words, without what differs from file to file; None: no layout yet."""
    return "none yet" if striping is None else describe_layout(striping.normalised_layout)


def layout_change_text(before: ParsedLayout | None, after: str) -> str:
    """Return, for the report of a file, from which layout to which one (``after``, in words) it is changed."""
    text = f"layout {layout_text(before)} -> {after}"
    return text.encode("ascii", "backslashreplace").decode("ascii").replace("\n", "\\n")


def layout_report_sums_of_file(
    rank: Rank, layout: LustreLayoutPolicy, striping: ParsedLayout | None, size: int, directory: int
) -> Counter[str]:
    """Return what one file adds to the sums that are reported about layouts: key and number.

    Args:
        striping: the layout of the file, or None if it has none yet.
        size: its size in bytes.
        directory: its open directory.
    """
    text = rank.shared_instance(LayoutPoliciesAndCounts).reported_layout_name(layout_text(striping))
    sums = Counter({FILES_KEY + text: 1, BYTES_KEY + text: size})
    if striping is None:
        return sums
    sums.update(f"{OST_KEY}{ost}" for component in striping.components for ost in component.osts)
    one = striping.single_component
    if one is not None:
        suits = layout.suitable_stripe_count(size, directory)
        if one.stripes != suits:
            sums[FEWER_STRIPES_KEY if one.stripes < suits else MORE_STRIPES_KEY] += 1
    return sums
