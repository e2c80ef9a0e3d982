"""Selection of items of a tree by name, age and size.

Patterns are those of gitignore, without files of that name in the tree. They are matched against paths below the root,
in bytes as git does, and the last one that matches decides. An excluded directory is not entered, so nothing below it
can be included again. Ages and sizes do not apply to directories.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from pcopy.fast_named_tuple import NamedTuple
from pcopy.walk.visitor import FoundItems


class Select(NamedTuple):
    """The filters of the user, in primitive values. Sizes are in bytes, times in nanoseconds since 1970; None: no
    limit.

    ``patterns`` are lines as ``pcopy.walk.patterns`` reads them. ``newer_than`` and ``older_than`` keep the words of
    the options, so that the command lines of two runs can be compared: an age denotes another time each day.
    """

    patterns: tuple[bytes, ...] = ()
    newer_than: str = ""
    older_than: str = ""
    larger_than: int | None = None
    smaller_than: int | None = None
    after: int | None = None
    before: int | None = None

    @property
    def by_age(self) -> bool:
        """True if a filter by age applies."""
        return self.after is not None or self.before is not None

    @property
    def by_size(self) -> bool:
        """True if a filter by size applies."""
        return self.larger_than is not None or self.smaller_than is not None

    @property
    def has_filters(self) -> bool:
        """True if there is any filter."""
        return bool(self.patterns) or self.by_age or self.by_size


class Selection:
    """Evaluates the filters of ``select``. Paths are below the root; that of a directory ends in a slash."""

    def __init__(self, select: Select) -> None:
        self.select = select
        self.has_filters = select.has_filters
        self._groups = _compiled(select.patterns) if select.patterns else ()
        """Groups of patterns, each with True if it excludes; the last ones first."""
        self._after, self._before = select.after, select.before
        self._larger, self._smaller = select.larger_than, select.smaller_than
        self._tests_status = select.by_age or select.by_size

    def excludes(self, path: bytes) -> bool:
        """Return True if the patterns exclude the path."""
        return next((excludes for excludes, pattern in self._groups if pattern.search(path)), False)

    def excludes_as_any_type(self, path: bytes) -> bool:
        """Return True if the patterns exclude the path, whether it is a directory or not."""
        return self.excludes(path) and self.excludes(path + b"/")

    def excludes_below(self, path: bytes) -> bool:
        """Return True if the patterns exclude the path, or a directory above it."""
        if not self._groups:
            return False
        parts = path.rstrip(b"/").split(b"/")
        above = (b"/".join(parts[:depth]) + b"/" for depth in range(1, len(parts)))
        return any(map(self.excludes, above)) or self.excludes(path)

    def selects_directory(self, path: bytes) -> bool:
        """Return True if the patterns do not exclude the directory."""
        return not self.excludes(path + b"/")

    def selects(self, path: bytes, mode: int, size: int, mtime: int) -> bool:
        """Return True if the filters select the item."""
        if stat.S_ISDIR(mode):
            return self.selects_directory(path)
        return not self.excludes(path) and self.selects_status(mode, size, mtime)

    def selects_status(self, mode: int, size: int, mtime: int) -> bool:
        """Return True if the filters by age and size select an item that is no directory."""
        if not self._tests_status:
            return True
        return self.is_of_age(mtime) and (not stat.S_ISREG(mode) or self.is_of_size(size))

    def may_remove_directory(self, mtime: int) -> bool:
        """Return True if the filters allow to remove an emptied directory that was last changed at ``mtime``: an age
        applies to it, a size never does.
        """
        return not self.select.by_size and self.is_of_age(mtime)

    def is_of_age(self, mtime: int) -> bool:
        """Return True if the mtime is within the limits."""
        return not (
            (self._after is not None and mtime <= self._after) or (self._before is not None and mtime >= self._before)
        )

    def is_of_size(self, size: int) -> bool:
        """Return True if the size is within the limits."""
        return not (
            (self._larger is not None and size <= self._larger) or (self._smaller is not None and size >= self._smaller)
        )

    def selected_rows(self, directory: bytes, found: FoundItems) -> list[int]:
        """Return the rows of the items in ``directory`` that are selected, and of items that could not be statted
        unless their names exclude them.
        """
        above = directory + b"/" if directory else b""
        columns = zip(found.names, found.rows.mode, found.rows.size, found.rows.exact_times("mtime"), strict=True)
        return [
            row
            for row, (name, mode, size, mtime) in enumerate(columns)
            if (
                self.selects(above + name, mode, size, mtime)
                if row not in found.problems
                else not self.excludes_as_any_type(above + name)
            )
        ]


def _compiled(patterns: Sequence[bytes]) -> Sequence[tuple[bool, re.Pattern[bytes]]]:
    """Return the patterns as groups: True if the group excludes, and one regular expression for all of its patterns."""
    from pcopy.walk.patterns import translate

    rules = [translate(pattern) for pattern in reversed(patterns)]
    return [
        (excludes, re.compile(b"|".join(b"(?:%b)" % regex for regex, _ in group), re.DOTALL))
        for excludes, group in groupby(rules, itemgetter(1))
    ]
