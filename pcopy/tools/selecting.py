"""What is told if filters leave nothing: most often a pattern means something else than its user thinks.

Rank 0 looks into the sources before a job begins, as far as that takes no time. What it has not seen by then is known
at the end.
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

_OF_PATTERNS = "of the patterns the last one that matches decides, and what is in an excluded directory is never taken"


class _Looking:
    """A selection that remembers whether it has left out anything."""

    def __init__(self, options: Options) -> None:
        self._selection = Selection(options.select)
        self.left_out = False

    def takes(self, path: bytes, status: os.stat_result) -> bool:
        taken = self._selection.takes(path, status.st_mode, status.st_size, status.st_mtime_ns)
        self.left_out |= not taken
        return taken


def refuse_nothing(roots: Sequence[Root], options: Options, ahead: LookAhead) -> None:
    """Raises ``Refused`` if it is certain that filters leave nothing but directories; a source may be empty."""
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
    """Return how many items (``of`` whatever they are of) were left out, ``by`` which options, and where these are set.

    Return "" if none were. ``filters`` as in ``Telling``.
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
    """What is told of a job with filters that is over, if they have left nothing; else nothing."""
    if not totals.excluded or totals.found - totals.directories - totals.excluded > 0:
        return ""
    return f"the filters have selected nothing of {counted(totals.excluded, 'item', 'items')}: {_reason(select)}"


def _reason(select: Select) -> str:
    """Why filters may leave nothing."""
    of_files = [what for what, asked in (("a size", select.by_size), ("an age", select.by_age)) if asked]
    no_file = f"no file has such {' and such '.join(of_files)}" if of_files else ""
    if not select.patterns:
        return no_file
    return f"{_OF_PATTERNS}; or {no_file}" if no_file else _OF_PATTERNS
