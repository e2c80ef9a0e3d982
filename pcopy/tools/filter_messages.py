"""Messages about filters that exclude everything, mostly because a pattern does not mean what the user thinks.

Rank 0 walks the sources before a job starts, up to a short time limit. If it has not seen everything by then, the
result is known at the end of the job only.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from pcopy.errors import RequestRefused
from pcopy.jobs.paths import source_path
from pcopy.report.screen import OutputOptions
from pcopy.report.streams import print_error
from pcopy.tasks.base.job import Options, Root, Totals
from pcopy.text import count_with_noun, printable_path
from pcopy.tools.summary import origins_of
from pcopy.walk.preliminary_walk import PreliminaryWalk
from pcopy.walk.selection import Select, Selection

_PATTERN_RULE = "the last pattern that matches decides, and nothing in an excluded directory is selected"
"""Explanation of how patterns work."""


class _RecordingSelection:
    """A selection that records whether it has excluded anything."""

    def __init__(self, options: Options) -> None:
        self._filters = Selection(options.select)
        self.has_excluded = False

    def selects(self, path: bytes, status: os.stat_result) -> bool:
        """Return True if the filters select the item ``path``."""
        is_selected = self._filters.selects(path, status.st_mode, status.st_size, status.st_mtime_ns)
        self.has_excluded |= not is_selected
        return is_selected


def refuse_empty_selection(roots: Sequence[Root], options: Options, ahead: PreliminaryWalk) -> None:
    """Raise ``RequestRefused`` if it is certain that the filters exclude everything except directories. Sources that
    are empty are accepted.
    """
    if options.files_from:
        return
    looking = _RecordingSelection(options)
    for root in roots:
        if root.item:
            if looking.selects(root.item, os.lstat(source_path(root))):
                return
        elif any(
            not stat.S_ISDIR(status.st_mode)
            for _, status in ahead.selected_items(root.source, looking.selects, one_file_system=options.one_file_system)
        ):
            return
    if ahead.is_complete and looking.has_excluded:
        sources = printable_path(roots[0].source_shown) if len(roots) == 1 else f"{len(roots)} sources"
        raise RequestRefused(f"{sources}: the filters select nothing in it: {_empty_selection_reason(options.select)}")


def excluded_text(number: int, filters: Sequence[str], suffix: str = "", options_name: str = "filters") -> str:
    """Return a text that says how many items were excluded, or "" if none were.

    Args:
        number: the number of excluded items.
        filters: where filters are set, as in ``OutputOptions``.
        suffix: text after the number of items.
        options_name: name of the options that exclude items.
    """
    if not number:
        return ""
    return f"{count_with_noun(number, 'item', 'items')}{suffix} left out by {options_name} ({origins_of(filters)})"


def print_excluded(program: str, number: int, output_options: OutputOptions) -> None:
    """Write to standard error how many items filters left out of a list, if a file sets filters.

    A list has no summary, and a user who sets filters on the command line knows of them.
    """
    if number and output_options.filter_origins and not output_options.quiet:
        print_error(program, excluded_text(number, output_options.filter_origins))


def empty_selection_text(totals: Totals, select: Select) -> str:
    """Return a message if the filters have excluded everything in a job that has ended, else ""."""
    if not totals.excluded or totals.found - totals.directories - totals.excluded > 0:
        return ""
    return (
        f"the filters have selected nothing of {count_with_noun(totals.excluded, 'item', 'items')}: "
        f"{_empty_selection_reason(select)}"
    )


def _empty_selection_reason(select: Select) -> str:
    """Return an explanation why the filters may exclude everything."""
    of_files = [noun for noun, is_set in (("a size", select.by_size), ("an age", select.by_age)) if is_set]
    no_file = f"no file has such {' and such '.join(of_files)}" if of_files else ""
    if not select.patterns:
        return no_file
    return f"{_PATTERN_RULE}; or {no_file}" if no_file else _PATTERN_RULE
