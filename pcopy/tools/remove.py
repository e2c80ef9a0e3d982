"""``prm``: remove trees. All ranks load this module; rank 0 checks the paths, asks the user, and reports the result."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

from pcopy.errors import RequestRefused, path_refused
from pcopy.launch.tool import JobResult
from pcopy.report.streams import print_error
from pcopy.tasks.base.job import DeviceInode, ItemFilters, JobCounters, RemoveOptions, Root
from pcopy.tasks.base.kind import TaskKind
from pcopy.tasks.base.values import Place
from pcopy.tasks.remove.ledger import NO_WAITER
from pcopy.tasks.remove.listed import ListedRemovalVisitor
from pcopy.tasks.remove.remove_tree import RemoveNamedItems
from pcopy.text import count_with_noun, printable_path, shell_quoted
from pcopy.tools.arguments import RemoveArguments
from pcopy.tools.director import BottomUpDirector, UnrecordedJobTool, stages_of_single_walk
from pcopy.tools.summary import common_json_values, filter_origins_text, item_counts_lines, items_per_second_line
from pcopy.tools.trees import TreeJob
from pcopy.units import format_size

if TYPE_CHECKING:
    from pcopy.jobs.sorted_list import SortedPathList

_MAX_NAMED_PATHS = 5
"""Maximum number of paths that the question to the user names; of further ones it states only the number."""

_SHOWN_COUNTERS = ("found", "files", "directories", "symlinks", "special", "bytes", "excluded", "failed")
"""Names of the counters (fields of ``JobCounters``) that ``--json`` shows under the same names. ``copied`` is shown as
``removed``.
"""


class RemoveDirector(BottomUpDirector):
    """Director of ``prm``: the object on rank 0 that chooses the phases of the job and their first tasks."""

    def task_for_item(self, place: Place, item: bytes) -> TaskKind:
        return RemoveNamedItems(place, NO_WAITER, item)


class RemoveTool(UnrecordedJobTool):
    """The program ``prm``.

    In its counters (``JobCounters``), ``copied`` counts the items that were removed. ``skipped`` counts the items that
    filters exclude, and the directories that remain because they are not empty.
    """

    name = "prm"
    writes_to_targets = False  # It creates no names: no probe file has to show that all hosts see the same target.
    stages = stages_of_single_walk("remove")
    done_word = "removed"
    make_director = RemoveDirector
    make_visitor = staticmethod(ListedRemovalVisitor)

    def phase_name(self, phase: int) -> str:
        return "remove"


REMOVE_TOOL = RemoveTool()
"""The only instance of ``RemoveTool``."""


class RemoveJob(TreeJob):
    """The job of ``prm`` on rank 0: checks the paths, asks the user, and prints the totals."""

    program, item_verb, incomplete_text = "prm", "removed", "not everything was removed"
    states_filters = True

    def __init__(self, arguments: RemoveArguments) -> None:
        """Check the paths, ask the user, and prepare the job; nothing is removed yet. Raise ``RequestRefused`` if a
        path must not be removed, or if the user does not answer yes.

        The user is not asked with ``--yes``, in a dry run, and if no path exists.
        """
        super().__init__(arguments.tree)
        never_removed = _never_removed_directories()
        missing_is_fine = arguments.may_be_missing
        self.whole_directories = arguments.whole_directories
        kept: tuple[DeviceInode, ...] = ()
        if self.tree.list_file:
            roots = self.read_path_list(_working_directory_removal_check(os.getcwdb()), whole=self.whole_directories)
            kept = tuple(never_removed)
        else:
            roots = self.existing_roots(
                lambda path: _root_for_path(path, never_removed), missing_is_fine=missing_is_fine
            )
        self.make_job_for_roots(
            roots,
            copies=True,
            program=RemoveOptions(self.whole_directories, kept, missing_is_fine, self._shows_bytes),
            one_file_system=not self.tree.list_file,
        )
        if roots and not arguments.yes and not self.dry_run:
            select = self.tree.options.select
            part = "what the filters select in " if select.has_filters else ""
            _ask_before_removal(
                lambda: (
                    _removal_description_of_roots(roots, part) + removal_extent_text(roots, select)
                    if self.path_list is None
                    else _removal_description_of_path_list(self.path_list, self.whole_directories)
                )
            )
            self.began = time.monotonic()

    @property
    def _shows_bytes(self) -> bool:
        """True if the sizes of the removed files are shown: not with ``-q``, unless another option shows them."""
        output = self.output
        return not output.quiet or output.json or bool(output.reports or output.metrics or output.log)

    def print_resume_advice(self) -> None:
        print_error("prm", "repeat the command to remove the remaining items")

    def summary_lines(self, ended: JobResult, seconds: float, ranks: int) -> Iterator[str]:
        removed = "would be removed" if self.dry_run else "removed"
        totals, select = ended.totals, self.tree.options.select
        skipped = "left" if select.has_filters else "not empty"
        yield from item_counts_lines(totals, removed, skipped, sizes=self._shows_bytes)
        if select.has_filters and totals.skipped:
            excluded = f"{totals.excluded:,} excluded by filters ({filter_origins_text(self.output.filter_origins)})"
            yield f"  left: {excluded}, {_number_of_directories_not_empty(totals):,} not empty"
        if self.path_list is not None and not self.whole_directories and self.dry_run and totals.directories:
            yield (
                f"  {count_with_noun(totals.directories, 'directory', 'directories')} among them, if nothing else is "
                "in them"
            )
        yield items_per_second_line(totals, seconds, ranks)

    def json_summary(self, ended: JobResult, seconds: float, ranks: int) -> dict[str, object]:
        totals = ended.totals
        removed = {
            "removed": totals.copied,
            "not_empty": _number_of_directories_not_empty(totals),
            "dry_run": self.dry_run,
        }
        return {**common_json_values(totals, _SHOWN_COUNTERS, seconds, ranks, ended.status), **removed}


def _number_of_directories_not_empty(totals: JobCounters) -> int:
    """Return the number of directories that remain because they are not empty: the skipped items that no filter
    excludes.
    """
    return totals.skipped - totals.excluded


def _never_removed_directories() -> dict[tuple[int, int], str]:
    """Return the directories that are never removed: the working directory, all directories above it, and ``/``.

    The key is the device and the inode number of the directory, the value what messages call it.
    """
    found: dict[tuple[int, int], str] = {}
    path, called = b".", "the working directory"
    with suppress(OSError):  # The working directory may have been removed.
        while (identity := _device_and_inode(os.stat(path))) not in found:
            found[identity] = called
            path, called = path + b"/..", "a directory above the working directory"
    found[_device_and_inode(os.stat(b"/"))] = "the root directory"
    return found


def _device_and_inode(status: os.stat_result) -> tuple[int, int]:
    """Return the device and the inode number in ``status``."""
    return status.st_dev, status.st_ino


def _root_for_path(path: bytes, never_removed: dict[tuple[int, int], str]) -> Root:
    """Return the root (source and target, here the same) for one PATH: its parent directory, and its name there.

    Raise ``RequestRefused`` if PATH must never be removed, and ``OSError`` if it does not exist.
    """
    stripped = path.rstrip(b"/")
    if not stripped:
        raise path_refused(path, "is the root directory, which is never removed")
    parent, name = os.path.split(stripped)
    if name in (b".", b".."):
        raise path_refused(path, f"{name.decode()} is never removed; name the directory")
    status = os.lstat(stripped)
    if path != stripped and not stat.S_ISDIR(status.st_mode):
        if stat.S_ISLNK(status.st_mode):
            raise path_refused(
                path, f"is a symbolic link; to remove the link, leave out the slash: {shell_quoted(stripped)}"
            )
        raise path_refused(path, f"is not a directory; to remove it, leave out the slash: {shell_quoted(stripped)}")
    directory = os.path.realpath(parent or b".")
    parent_status = os.stat(directory)
    if stat.S_ISDIR(status.st_mode):
        if called := never_removed.get(_device_and_inode(status)):
            raise path_refused(path, f"is {called}, which is never removed")
        if status.st_dev != parent_status.st_dev:
            advice = "is a mount point or a subvolume; unmount the file system or delete the subvolume"
            raise path_refused(path, f"{advice}, or name what is in the directory")
    return Root(
        directory,
        directory,
        name,
        name,
        stripped,
        stripped,
        _device_and_inode(parent_status),
        _device_and_inode(parent_status),
    )


def _working_directory_removal_check(working_directory: bytes) -> Callable[[bytes], str]:
    """Return a function that says why a listed path must not be removed.

    It gets an absolute path, and returns the reason, or "" if the path may be removed. The directory
    ``working_directory`` and all directories above it must not be removed.
    """

    def check(path: bytes) -> str:
        if path == working_directory:
            return "is the working directory, which is never removed; leave it out (find -mindepth 1)"
        is_above = working_directory.startswith(path + b"/")
        return "is a directory above the working directory, which is never removed" if is_above else ""

    return check


def _removal_description_of_roots(roots: Sequence[Root], part: str) -> str:
    """Return what is to be removed, for the question to the user.

    Args:
        roots: the roots of the paths.
        part: text before the paths, which says which part of them is removed (what filters select); "": everything.
    """
    names = ", ".join(printable_path(root.source_shown) for root in roots[:_MAX_NAMED_PATHS])
    more = f" and {len(roots) - _MAX_NAMED_PATHS:,} more" if len(roots) > _MAX_NAMED_PATHS else ""
    whole = "" if part else f", and all that is in {'it' if len(roots) == 1 else 'them'}"
    return f"{part}{names}{more}{whole}"


def removal_extent_text(roots: Sequence[Root], select: ItemFilters) -> str:
    """Return how many items of how many bytes would be removed, in parentheses, for the question to the user.

    The trees are walked until the limits of ``PreliminaryWalk`` (entries and seconds) are reached; then the text says
    "at least". If there are filters, directories are not counted: they are removed only if nothing remains in them.
    """
    from pcopy.walk.preliminary_walk import PreliminaryWalk
    from pcopy.walk.selection import ItemSelector

    selection = ItemSelector(select)

    def selects(path: bytes, status: os.stat_result) -> bool:
        return selection.selects_item_at_path(path, status.st_mode, status.st_size, status.st_mtime_ns)

    ahead, items, size = PreliminaryWalk(), 0, 0
    for root in roots:
        path = os.path.join(root.source, root.item)
        try:
            found = [(b"", os.lstat(path))]
        except OSError:  # It was removed meanwhile.
            continue
        below = ahead.selected_items(path, selects, one_file_system=True) if stat.S_ISDIR(found[0][1].st_mode) else ()
        for _, status in chain(found, below):
            items += not (select.has_filters and stat.S_ISDIR(status.st_mode))
            size += status.st_size if stat.S_ISREG(status.st_mode) else 0
    least = "" if ahead.is_complete else "at least "
    return f" ({least}{count_with_noun(items, 'item', 'items')} of {format_size(size)})"


def _removal_description_of_path_list(paths: SortedPathList, whole: bool) -> str:
    """Return what is to be removed, for the question to the user, if the paths are in a list (``--from``).

    Args:
        whole: True if listed directories are removed with everything in them.
    """
    more = ", and all that is in directories among them" if whole else ""
    return (
        f"{count_with_noun(paths.item_count, 'path', 'paths')} in {printable_path(paths.root.source_shown)} that "
        f"--from lists{more}"
    )


def _ask_before_removal(description: Callable[[], str]) -> None:
    """Ask the user on the terminal whether to remove what ``description`` returns. Raise ``RequestRefused`` unless the
    answer is yes, or if standard input is no terminal.
    """
    if sys.stdin is None or not sys.stdin.isatty():  # ``sys.stdin`` is None if the descriptor is closed.
        raise RequestRefused(
            "cannot ask for confirmation, since standard input is not a terminal; "
            "use --yes to remove without confirmation"
        )
    sys.stderr.write(f"prm: remove {description()}? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise RequestRefused("nothing was removed")
