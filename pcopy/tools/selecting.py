"""Messages about filters that exclude everything, mostly because a pattern does not mean what the user thinks.

Rank 0 walks the sources before a job starts, up to a short time limit. If it has not seen everything by then, the
result is known at the end of the job only.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from pcopy.errors import Refused
from pcopy.jobs.paths import source_of
from pcopy.report.screen import Telling
from pcopy.report.streams import tell
from pcopy.tasks.base.job import Options, Root, Totals
from pcopy.text import counted, shown
from pcopy.tools.summary import origins_of
from pcopy.walk.look_ahead import LookAhead
from pcopy.walk.selection import Select, Selection

_OF_PATTERNS = "the last pattern that matches decides, and nothing in an excluded directory is selected"
"""Explanation of how patterns work."""


class _Looking:
    """A selection that records whether it has excluded anything."""

    def __init__(self, options: Options) -> None:
        self._selection = Selection(options.select)
        self.left_out = False

    def takes(self, path: bytes, status: os.stat_result) -> bool:
        """Return True if the filters select the item ``path``."""
        is_selected = self._selection.takes(path, status.st_mode, status.st_size, status.st_mtime_ns)
        self.left_out |= not is_selected
        return is_selected


def refuse_nothing(roots: Sequence[Root], options: Options, ahead: LookAhead) -> None:
    """Raise ``Refused`` if it is certain that the filters exclude everything except directories. Sources that are empty
    are accepted.
    """
    if options.files_from:
        return
    looking = _Looking(options)
    for root in roots:
        if root.item:
            if looking.takes(root.item, os.lstat(source_of(root))):
                return
        elif any(
            not stat.S_ISDIR(status.st_mode)
            for _, status in ahead.items(root.source, looking.takes, one_file_system=options.one_file_system)
        ):
            return
    if ahead.is_complete and looking.left_out:
        sources = shown(roots[0].source_shown) if len(roots) == 1 else f"{len(roots)} sources"
        raise Refused(f"{sources}: the filters select nothing in it: {_reason(options.select)}")


def left_out(number: int, filters: Sequence[str], of: str = "", by: str = "filters") -> str:
    """Return a text that says how many items were excluded, or "" if none were.

    Args:
        number: the number of excluded items.
        filters: where filters are set, as in ``Telling``.
        of: text after the number of items.
        by: name of the options that exclude items.
    """
    if not number:
        return ""
    return f"{counted(number, 'item', 'items')}{of} left out by {by} ({origins_of(filters)})"


def tell_hidden(program: str, number: int, telling: Telling) -> None:
    """Write to standard error how many items filters left out of a list, if a file sets filters.

    A list has no summary, and a user who sets filters on the command line knows of them.
    """
    if number and telling.filters and not telling.quiet:
        tell(program, left_out(number, telling.filters))


def nothing_selected(totals: Totals, select: Select) -> str:
    """Return a message if the filters have excluded everything in a job that has ended, else ""."""
    if not totals.excluded or totals.found - totals.directories - totals.excluded > 0:
        return ""
    return f"the filters have selected nothing of {counted(totals.excluded, 'item', 'items')}: {_reason(select)}"


def _reason(select: Select) -> str:
    """Return an explanation why the filters may exclude everything."""
    of_files = [noun for noun, is_set in (("a size", select.by_size), ("an age", select.by_age)) if is_set]
    no_file = f"no file has such {' and such '.join(of_files)}" if of_files else ""
    if not select.patterns:
        return no_file
    return f"{_OF_PATTERNS}; or {no_file}" if no_file else _OF_PATTERNS
