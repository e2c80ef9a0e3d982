"""Selection of items of a tree by name, age and size.

Patterns have the syntax of gitignore; files named ``.gitignore`` in the tree have no effect. Patterns are matched
against paths below the root, in bytes as git does, and the last pattern that matches decides. An excluded directory is
not entered, so nothing below it can be included again. Limits of age and size do not apply to directories.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from pcopy.fast_named_tuple import NamedTuple
from pcopy.walk.visitor import FoundItems


class ItemFilters(NamedTuple):
    """The filters by which the user selects items, by name, age and size.

    Fields:
    - ``patterns``: patterns in the syntax of gitignore, in their order; a ``!`` at the beginning includes.
    - ``newer_than``, ``older_than``: the arguments of these options as text. They are kept to compare the command lines
      of two runs, since an age denotes another time each day.
    - ``larger_than``, ``smaller_than``: limits of the size of files in bytes; None: no limit.
    - ``after``, ``before``: limits of the mtime in nanoseconds since 1970; None: no limit.
    """

    patterns: tuple[bytes, ...] = ()
    newer_than: str = ""
    older_than: str = ""
    larger_than: int | None = None
    smaller_than: int | None = None
    after: int | None = None
    before: int | None = None

    @property
    def has_age_limit(self) -> bool:
        """True if the user has set a limit of the mtime."""
        return self.after is not None or self.before is not None

    @property
    def has_size_limit(self) -> bool:
        """True if the user has set a limit of the size."""
        return self.larger_than is not None or self.smaller_than is not None

    @property
    def has_filters(self) -> bool:
        """True if the user has given any pattern or limit."""
        return bool(self.patterns) or self.has_age_limit or self.has_size_limit


class ItemSelector:
    """Decides which items the filters of the user (``select``: patterns, limits of mtime and size) select. Paths are
    relative to the root of the tree. In ``excludes_path`` and ``excludes_path_or_ancestor``, the path of a directory
    ends with a slash.
    """

    def __init__(self, select: ItemFilters) -> None:
        self.select = select
        self.has_filters = select.has_filters
        self._groups = _compiled_patterns(select.patterns) if select.patterns else ()
        self._after, self._before = select.after, select.before
        self._larger, self._smaller = select.larger_than, select.smaller_than
        self.tests_status = select.has_age_limit or select.has_size_limit
        """True if there are limits of mtime or size."""

    def excludes_path(self, path: bytes) -> bool:
        """Return True if the user's patterns exclude the path; one of a directory ends with a slash. Directories above
        it are not considered.
        """
        return self._excludes_beginning(path, len(path))

    def _excludes_beginning(self, path: bytes, end: int) -> bool:
        """Return True if the user's patterns exclude the first ``end`` bytes of ``path``, which are the path of a
        directory above it or ``path`` itself.
        """
        name_begin = max(0, path.rfind(b"/", 0, end - 1))
        for group in self._groups:
            if group.regex.match(path, 0 if group.matches_paths else name_begin, end):
                return group.excludes
        return False

    def excludes_as_any_type(self, path: bytes) -> bool:
        """Return True if the user's patterns exclude ``path`` (without a slash at its end) both as a file and as a
        directory. Used if the type is unknown.
        """
        return self.excludes_path(path) and self.excludes_path(path + b"/")

    def excludes_path_or_ancestor(self, path: bytes) -> bool:
        """Return True if the user's patterns exclude the path, or a directory above it; the path of a directory ends
        with a slash.
        """
        if not self._groups:
            return False
        return any(self._excludes_beginning(path, found.end()) for found in re.finditer(rb"/|\Z", path))

    def selects_directory(self, path: bytes) -> bool:
        """Return True if the user's patterns do not exclude the directory ``path`` (without a slash at its end)."""
        return not self.excludes_path(path + b"/")

    def selects_item_at_path(self, path: bytes, mode: int, size: int, mtime: int) -> bool:
        """Return True if the user's filters select an item with this path (without a slash at its end), mode, size and
        mtime (in nanoseconds since 1970).
        """
        if stat.S_ISDIR(mode):
            return self.selects_directory(path)
        return not self.excludes_path(path) and self.is_status_within_limits(mode, size, mtime)

    def is_status_within_limits(self, mode: int, size: int, mtime: int) -> bool:
        """Return True if an item that is no directory is within the user's limits of mtime and size. The limits of the
        size apply to regular files only.
        """
        if not self.tests_status:
            return True
        return self.is_mtime_within_limits(mtime) and (not stat.S_ISREG(mode) or self.is_size_within_limits(size))

    def may_remove_directory(self, mtime: int) -> bool:
        """Return True if a directory that the job has emptied may be removed: its mtime before it was emptied is within
        the user's limits, and there is no limit of the size, which only files can fulfil.
        """
        return not self.select.has_size_limit and self.is_mtime_within_limits(mtime)

    def is_mtime_within_limits(self, mtime: int) -> bool:
        """Return True if ``mtime``, in nanoseconds since 1970, is within the user's limits."""
        return not (
            (self._after is not None and mtime <= self._after) or (self._before is not None and mtime >= self._before)
        )

    def is_size_within_limits(self, size: int) -> bool:
        """Return True if ``size`` in bytes is within the user's limits."""
        return not (
            (self._larger is not None and size <= self._larger) or (self._smaller is not None and size >= self._smaller)
        )

    def selected_rows(self, directory: bytes, found: FoundItems) -> list[int]:
        """Return which items of a directory the user's filters select, as row numbers. An item that could not be
        statted is selected, too, unless the patterns exclude its name, so that the error is reported.

        Args:
            directory: path of the directory below the root; empty: the root itself.
            found: its items with their statuses.
        """
        above = directory + b"/" if directory else b""
        columns = zip(
            found.names, found.rows.mode, found.rows.size, found.rows.exact_times_in_column("mtime"), strict=True
        )
        return [
            row
            for row, (name, mode, size, mtime) in enumerate(columns)
            if (
                self.selects_item_at_path(above + name, mode, size, mtime)
                if row not in found.problems
                else not self.excludes_as_any_type(above + name)
            )
        ]


class _PatternGroup(NamedTuple):
    """Successive patterns of the user, as one regular expression.

    Fields:
        excludes: True if all of them exclude, False if all of them include.
        matches_paths: True if they are compared with whole paths; False if with the last name of a path, and the slash
            before it.
        regex: matches what one of the patterns matches.
    """

    excludes: bool
    matches_paths: bool
    regex: re.Pattern[bytes]


def _compiled_patterns(patterns: Sequence[bytes]) -> list[_PatternGroup]:
    """Return the user's patterns in groups, the last group first, since the last pattern that matches decides.

    Patterns for names have groups of their own: to search a long path for names would take time at each of its bytes.
    """
    from pcopy.walk.patterns import NAME_BEGIN, translate_gitignore_pattern

    groups, rules = list[_PatternGroup](), map(translate_gitignore_pattern, reversed(patterns))
    for excludes, found in groupby(rules, itemgetter(1)):
        regexes = [b"(?:%b)" % regex for regex, _ in found]
        for matches_paths in (False, True):
            chosen = [regex for regex in regexes if regex.startswith(b"(?:" + NAME_BEGIN) != matches_paths]
            if chosen:
                groups.append(_PatternGroup(excludes, matches_paths, re.compile(b"|".join(chosen), re.DOTALL)))
    return groups
