"""Messages about filters that exclude everything. Mostly the reason is a pattern that does not mean what the user
thinks.

Before a job starts, rank 0 walks the sources up to a short time limit. If it has seen everything by then and nothing is
selected, the job is refused. If it has not seen everything, the message follows at the end of the job.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Sequence

from pcopy.errors import RequestRefused
from pcopy.jobs.paths import source_path
from pcopy.report.screen import OutputOptions
from pcopy.report.streams import print_error
from pcopy.tasks.base.job import Job, JobCounters, Options
from pcopy.text import count_with_noun, printable_path
from pcopy.tools.summary import filter_origins_text
from pcopy.walk.preliminary_walk import PreliminaryWalk
from pcopy.walk.selection import ItemFilters, ItemSelector

_PATTERN_RULE = "the last pattern that matches decides, and nothing in an excluded directory is selected"
"""The rule of patterns that users overlook most, for messages."""


class _SelectionCounter:
    """The filters of a job, which count what they select and exclude, separately directories (``True``) and others."""

    def __init__(self, options: Options) -> None:
        self._filters = ItemSelector(options.select)
        self._concerns_files = options.select.has_age_limit or options.select.has_size_limit
        self.selected, self.excluded = Counter[bool](), Counter[bool]()

    def selects_item_at_path(self, path: bytes, status: os.stat_result) -> bool:
        """Return True if the filters select the item ``path`` (below its root) with this status."""
        is_selected = self._filters.selects_item_at_path(path, status.st_mode, status.st_size, status.st_mtime_ns)
        (self.selected if is_selected else self.excluded)[stat.S_ISDIR(status.st_mode)] += 1
        return is_selected

    @property
    def is_empty(self) -> bool:
        """True if something was excluded, and no item was selected that is no directory. Directories are a selection if
        only other directories were excluded, and no filter concerns the age or size of files.
        """
        has_selected = self.selected[False] or (self.selected[True] and not self._concerns_files)
        return bool(self.excluded[False] and not self.selected[False]) or bool(self.excluded[True] and not has_selected)


def is_selection_empty(job: Job, ahead: PreliminaryWalk, *, if_unknown: bool) -> bool:
    """Return True if the filters exclude everything except directories; ``if_unknown`` if the walk ``ahead``, which
    ends at a limit of entries and seconds, has not examined all sources, and for ``--from``.

    Sources of which only directories are excluded are not empty, as for rsync, if others are selected.
    """
    if job.copy_options.list_file:
        return if_unknown
    options, counter = job.options, _SelectionCounter(job.options)
    for root in job.roots:
        if root.item:
            counter.selects_item_at_path(root.item, os.lstat(source_path(root)))
        else:
            for _ in ahead.selected_items(
                root.source, counter.selects_item_at_path, one_file_system=options.one_file_system
            ):
                if counter.selected[False]:
                    return False
    return counter.is_empty if ahead.is_complete else if_unknown


def refuse_empty_selection(job: Job, ahead: PreliminaryWalk) -> None:
    """Raise ``RequestRefused`` if it is certain that the filters of a job that has not begun exclude everything
    (``is_selection_empty``).
    """
    if is_selection_empty(job, ahead, if_unknown=False):
        roots, options = job.roots, job.options
        sources = printable_path(roots[0].source_shown) if len(roots) == 1 else f"{len(roots)} sources"
        them = "it" if len(roots) == 1 else "them"
        raise RequestRefused(
            f"{sources}: the filters select nothing in {them}: {_empty_selection_reason(options.select)}"
        )


def excluded_items_text(number: int, filters: Sequence[str], suffix: str = "", options_name: str = "filters") -> str:
    """Return a text that says how many items were excluded, or "" if none were.

    Args:
        number: the number of excluded items.
        filters: where filters are set: file and line of each, as in ``OutputOptions.filter_origins``.
        suffix: text after the number of items, such as " of A and B together".
        options_name: what the message calls the options that exclude items.
    """
    if not number:
        return ""
    items = count_with_noun(number, "item", "items")
    return f"{items}{suffix} left out by {options_name} ({filter_origins_text(filters)})"


def print_excluded_item_count(program: str, number: int, output_options: OutputOptions) -> None:
    """Print to standard error how many items filters have left out of a list, if a configuration file sets a filter.

    Such a filter would be easy to overlook, because a list has no summary that states it. If all filters are on the
    command line, the user knows of them, and nothing is printed.

    Args:
        program: name of the program, which begins the line.
        number: number of items left out.
        output_options: the output options, which say where the filters are set.
    """
    if number and output_options.filter_origins and not output_options.quiet:
        print_error(program, excluded_items_text(number, output_options.filter_origins))


def empty_selection_text(job: Job, totals: JobCounters) -> str:
    """Return a message if the filters of a job that has ended have selected nothing (``is_selection_empty``), or ""."""
    if not totals.excluded or totals.found - totals.directories - totals.excluded > 0:
        return ""
    if totals.directories > len(job.roots) and not is_selection_empty(job, PreliminaryWalk(), if_unknown=True):
        return ""
    return (
        f"the filters have selected nothing of {count_with_noun(totals.excluded, 'item', 'items')}: "
        f"{_empty_selection_reason(job.options.select)}"
    )


def _empty_selection_reason(select: ItemFilters) -> str:
    """Return the end of a message: why the filters may exclude everything."""
    of_files = [
        noun for noun, is_set in (("a size", select.has_size_limit), ("an age", select.has_age_limit)) if is_set
    ]
    no_file = f"no file has such {' and such '.join(of_files)}" if of_files else ""
    if not select.patterns:
        return no_file
    return f"{_PATTERN_RULE}; or {no_file}" if no_file else _PATTERN_RULE
