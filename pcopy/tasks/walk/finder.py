"""Decides which items of a directory are reported, in which form, and which sub-directories are entered.

An expression of tests (as of find(1)) selects the items. A *cheap* test needs only the name and the type of an item,
which a directory listing contains; an *expensive* one needs its status.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from itertools import compress

from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.backend.batches import ALL_LEVELS, ItemCounts, StatNamesBatch
from pcopy.fsio.backend.columns import (
    MODE_COLUMN,
    MTIME_COLUMN,
    SIZE_COLUMN,
    TYPE_LETTERS,
    BatchOutcomeColumns,
    ItemStatusColumns,
    OutcomeCode,
    pack_names,
)
from pcopy.fsio.backend.interface import ColumnSums, await_ticket
from pcopy.fsio.backend.walk_batches import SUMMED_KINDS, EnteredDirectories
from pcopy.fsio.problem import Problem
from pcopy.tasks.base import counts
from pcopy.tasks.base.job import WalkOptions
from pcopy.tasks.base.job_filters import JobFilter
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import RetryMode, TaskResult
from pcopy.tasks.base.values import Place
from pcopy.tasks.walk.report_found import OutputBuffer
from pcopy.tasks.walk.sum_up import WalkSumsOfRank
from pcopy.walk.matching import (
    DIRECTORY,
    UNKNOWN,
    DirectoryItems,
    compile_item_test,
    contains_test,
    needed_status_columns,
    needs_no_stat,
    split_by_stat_cost,
    types_if_only_types_tested,
)
from pcopy.walk.output_formats import PATH_TERMINATORS, columns_of_fields, item_formatter_named
from pcopy.walk.walk_request import WalkRequest

WORKING_DIRECTORY = -100
"""Value in place of a directory descriptor (``AT_FDCWD``): paths are relative to the working directory, as PATHs of the
command line are.
"""

BatchListingRequest = tuple[int, bytes, ColumnSums | None, bytes]
"""Type: what the backend must determine of items when it lists several directories. The values are:

- the mask of the status columns to return,
- the type letters of the items that need these columns (empty: all items),
- the ``ColumnSums`` to which the backend adds the items if the walk reports nothing but sums, else None,
- the path of the parent of the directories, ending with a slash.
"""

_FILTER_COLUMNS = MODE_COLUMN | SIZE_COLUMN | MTIME_COLUMN
"""Columns that filters by age or size need."""

_FILE = ord("f")
_COUNTERS_OF_TYPES = {_FILE: counts.FILES, DIRECTORY: counts.DIRECTORIES, ord("l"): counts.SYMLINKS}
"""Counter of each type letter; all other types are counted as special."""


def columns_to_stat(request: WalkRequest) -> int:
    """Return which status columns (as a mask) must be read of the items that the cheap tests select. A test is cheap if
    it needs only the name and type of an item, which a directory listing contains. The sizes are always among the
    columns if they are counted.

    Args:
        request: what the user wants from the walk.
    """
    whole = request.prints and not needs_no_stat(request.tree)
    mask = needed_status_columns(request.tree if whole else split_by_stat_cost(request.tree)[1]) | request.sort_mask
    if request.forms or request.columns:
        mask |= columns_of_fields(request.fields)
    if request.sums:
        from pcopy.walk.sums import WalkSums

        mask |= WalkSums.NEEDED_COLUMNS
    return mask


class FoundItemReporter:
    """Decides for each item of a walk whether it is reported, and writes it in the requested output formats. The tests
    of the find expression (such as ``-name``) are compiled when the object is created. One object per rank.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.request = wish = WalkRequest(*rank.program_options(WalkOptions).walk)
        whole = wish.prints and not needs_no_stat(wish.tree)
        cheap, dear = (("true",), wish.tree) if whole else split_by_stat_cost(wish.tree)
        self._cheap, self._expensive = compile_item_test(cheap), compile_item_test(dear)
        self._prints_early = wish.prints and not whole
        self._prints_late = whole
        self._forms = [item_formatter_named(name, wish.fields) for name in wish.forms]
        self.mask = columns_to_stat(wish)
        """Mask of the status columns that are needed of an item that passes the cheap tests (those of name and type); 0
        if no item need be statted.
        """
        self.summing = rank.shared_instance(WalkSumsOfRank) if wish.sums else None
        self.needs_more_than_status = contains_test(wish.tree, "xattr")
        """True if a test needs more than the status of an item: its extended attributes (``xattr``)."""
        self.opens_directories = self.needs_more_than_status or contains_test(wish.tree, "empty")
        """True if a test needs more than the status of directories (``-empty`` reads them, ``xattr`` reads
        attributes).
        """
        self._needs_status = bool(self.mask) or not needs_no_stat(dear)
        self._selected = rank.shared_instance(JobFilter)
        select = rank.options.select
        self._excludes_directories = select.has_age_limit or select.has_size_limit
        """True if filters by age or size apply. They select files only, so directories are not reported: a program that
        reads the output would take a reported directory for all of its contents.
        """
        if self._excludes_directories:
            self.mask |= _FILTER_COLUMNS
        kinds = types_if_only_types_tested(cheap)
        self.needs_name_tests_first = self._needs_status and kinds is None and not self._excludes_directories
        """True if names decide of which items the status is needed."""
        self._batch_columns = (0, b"") if self.needs_name_tests_first else (self.mask, kinds or b"")
        if self._excludes_directories:
            self._batch_columns = (self.mask, b"")
        counts_all_entries = self._selected.has_filters and self.summing is not None
        self._decides_on_directories = counts_all_entries or contains_test(wish.tree, "prune")
        takes_all = cheap == dear == ("true",) and not (wish.prints or wish.columns or self._selected.has_filters)
        ends = [PATH_TERMINATORS[name] for name in wish.forms if name in PATH_TERMINATORS]
        are_paths = takes_all and not self._needs_status and self.summing is None and len(ends) == len(wish.forms)
        self._path_terminators = ends if are_paths else []
        self.sums_everything = takes_all and bool(wish.sums) and not wish.forms
        """True if the sums of all items are reported, and nothing else."""

    @property
    def new_output_buffer(self) -> OutputBuffer:
        """A new, empty buffer for the output of one task."""
        return OutputBuffer(len(self._forms))

    def path_prefix(self, place: Place) -> bytes:
        """Return what stands before the names of the items of directory ``place`` when they are reported: its path,
        ending with a slash.
        """
        top = self._rank.job.roots[place.root].source_shown
        top = top if top.endswith(b"/") else top + b"/"
        return top + place.path + b"/" if place.path else top

    def enters_directories_at_depth(self, depth: int) -> bool:
        """Return True if directories at this depth are entered (``-maxdepth``). A PATH has the depth 0."""
        return self.request.most_depth < 0 or depth < self.request.most_depth

    def levels_below(self, depth: int) -> int:
        """Return how many levels of directories may be entered below directories at this depth (``-maxdepth``)."""
        most = self.request.most_depth
        return ALL_LEVELS if most < 0 else max(0, most - depth - 1)

    def levels_listed_at_once(self, depth: int) -> int:
        """Return how many levels of directories the backend may enter below directories at this depth by itself: none
        if ``-prune`` decides which ones are entered, if their items are not deep enough to be reported (``-mindepth``),
        or if sums include the number of items that filters exclude in each directory.
        """
        return 0 if self._decides_on_directories or depth + 1 < self.request.least_depth else self.levels_below(depth)

    def evaluates_several_directories(self, kinds: bytes) -> bool:
        """Return True if items of several directories may be tested and reported together: their sums are not needed,
        and their types are known (``kinds``).
        """
        return self.summing is None and not self.needs_name_tests_first and UNKNOWN not in kinds

    def batch_listing_request(self, parent: Place) -> BatchListingRequest:
        """Return what the backend must determine of the items in sub-directories of ``parent`` and below when it lists
        these.
        """
        return *self._batch_columns, self._sums_of_subtrees(parent), self.path_prefix(parent)

    def _sums_of_subtrees(self, parent: Place) -> ColumnSums | None:
        """Return the sums to which the backend adds the items in sub-directories of ``parent`` and below, if the walk
        reports nothing but sums; otherwise None.
        """
        summing = self.summing
        if summing is None or not self.sums_everything or depth_of_contents(parent) + 1 < self.request.least_depth:
            return None
        return None if summing.needs_layouts(parent, self.reported_path(parent)) else summing.sums.backend_sums

    def add_summed_directories(self, result: TaskResult, parent: Place, entered: EnteredDirectories) -> None:
        """Count all items of directories below ``parent`` that the backend has added to its sums as reported, and add
        the sums of these directories to those of this rank.
        """
        assert self.summing is not None
        self.summing.sums.add_summed_directories(self.path_prefix(parent), depth_of_contents(parent) + 1, entered)
        totals, size = list(map(sum, entered.kinds)), sum(entered.sizes)
        result.count(counts.FOUND, sum(totals))
        for kind, number in zip(SUMMED_KINDS, totals, strict=True):
            result.count(_COUNTERS_OF_TYPES.get(kind, counts.SPECIAL), number)
        result.count(counts.BYTES, size)
        result.count(counts.FOUND_BYTES, size)

    def are_all_paths_reported(self, depth: int) -> bool:
        """Return True if every item at this depth is reported, and nothing of it but its path. ``report_all_paths``
        then does so without looking at single items.
        """
        return bool(self._path_terminators) and depth >= self.request.least_depth

    def report_all_paths(
        self, result: TaskResult, place: Place, names: bytes, kinds: bytes, output: OutputBuffer
    ) -> None:
        """Write the paths of all items ``names`` (joined by slashes) of the directory ``place`` to ``output``, and
        count the items; ``kinds`` are their type letters.
        """
        above = self.path_prefix(place)
        for number, end in enumerate(self._path_terminators):
            output.write(number, above + names.replace(b"/", end + above) + end)
        self._count_reported_items(result, kinds)

    def _count_reported_items(self, result: TaskResult, kinds: bytes) -> None:
        """Count items as found and as reported. ``kinds`` are their type letters."""
        result.count(counts.FOUND, len(kinds))
        count_reported_items_by_type(result, kinds)

    def report_paths_written_by_backend(
        self, result: TaskResult, text: bytes, sums: ItemCounts, output: OutputBuffer
    ) -> None:
        """Report the paths of all items of several directories. The backend has written the paths to ``text``, each
        ending with a NUL; ``sums`` are the numbers of items by type.
        """
        for number, end in enumerate(self._path_terminators):
            output.write(number, text.replace(b"\0", end))
        numbers = sums.files, sums.directories, sums.links, sums.other_items
        result.count(counts.FOUND, sum(numbers))
        for counter, number_of_kind in zip((*_COUNTERS_OF_TYPES.values(), counts.SPECIAL), numbers, strict=True):
            result.count(counter, number_of_kind)

    def rows_passing_name_tests(self, items: DirectoryItems) -> Sequence[int]:
        """Return the rows of those ``items``, of any directories, of which the status may be needed: those that fulfil
        the cheap tests.
        """
        rows = self._cheap(items, range(len(items)))
        return sorted(items.printed) if self._prints_early else rows

    def count_items_as_skipped(self, result: TaskResult, number: int) -> None:
        """Count items as found that the find expression does not select."""
        result.count(counts.FOUND, number)
        result.count(counts.SKIPPED, number)

    def report_items_passing_tests(
        self, result: TaskResult, place: Place, items: DirectoryItems, depth: int, output: OutputBuffer
    ) -> TicketGenerator[Sequence[int]]:
        """Test items in the directory ``place``, and report those that the find expression selects. Return the rows of
        the sub-directories that must be entered.

        Items of several directories below ``place``, whose names are relative to ``place``, can be tested together if
        their statuses are known as far as they are needed (``evaluates_several_directories``).

        Args:
            depth: their depth in the tree. If they have several depths, all of them are deep enough to be reported, and
                this is the smallest one.
            output: receives what is reported.
        """
        rows: Sequence[int] = range(len(items))
        if UNKNOWN in items.kinds:
            rows = yield from self._stat_unknown_types(result, place, items)
        # The backend has left out the items that patterns exclude, except for sums.
        are_selected = items.directory < 0 and self.summing is None
        if self._selected.tests_status or (self._selected.has_filters and not are_selected):
            selected_before, unseen = len(rows), len(items.unstatted)
            rows = yield from self._rows_not_excluded(result, place, items, rows)
            result.count(counts.EXCLUDED, selected_before - len(rows) - (len(items.unstatted) - unseen))
        inside = [row for row in rows if items.kinds[row] == DIRECTORY] if DIRECTORY in items.kinds else []
        reported = yield from self.report_matches(result, place, items, rows, depth, output)
        found = len(items) - len(items.unstatted)
        result.count(counts.FOUND, found)
        result.count(counts.SKIPPED, found - reported)
        if not inside or not self.enters_directories_at_depth(depth):
            return ()
        closed = items.pruned | items.unstatted
        return [row for row in inside if row not in closed] if closed else inside

    def _stat_unknown_types(
        self, result: TaskResult, place: Place, items: DirectoryItems
    ) -> TicketGenerator[Sequence[int]]:
        """Stat those of ``items`` of which the directory listing does not state the type, and store the types in
        ``items``. Return the rows of all items that exist.
        """
        rows = [row for row, kind in enumerate(items.kinds) if kind == UNKNOWN]
        kinds = bytearray(items.kinds)
        seen, rows_left = yield from self._stat_rows(result, place, items, rows, MODE_COLUMN)
        for row, mode in zip(rows_left, seen.mode, strict=True):
            kinds[row] = type_letter(mode)
        items.kinds = bytes(kinds)
        return [row for row in range(len(kinds)) if row not in items.unstatted]

    def _stat_rows(
        self, result: TaskResult, place: Place, items: DirectoryItems, rows: Sequence[int], mask: int
    ) -> TicketGenerator[tuple[ItemStatusColumns, Sequence[int]]]:
        """Stat the items in ``rows``. Return two values: the status columns ``mask`` of those that could be statted,
        and their rows.

        The other rows are added to ``items.unstatted``. They count as failed, except vanished items that are no
        directories: these are ignored.
        """
        names = items.names
        if items.directory < 0:
            items.directory = self._rank.open_source_directory(place)
        packed = pack_names(names) if len(rows) == len(names) else pack_names([names[row] for row in rows])
        backend = self._rank.backend
        stated = yield from await_ticket(backend, backend.submit_batch(StatNamesBatch(items.directory, packed, mask)))
        codes = stated.verdicts.codes
        if codes.count(OutcomeCode.DONE) == len(codes):
            return stated.rows, rows
        done = stated.verdicts.rows_with_code(OutcomeCode.DONE)
        remaining = [rows[row] for row in done]
        items.unstatted.update({*rows}.difference(remaining))
        self._report_items_without_status(result, place, items, rows, stated.verdicts)
        return stated.rows.columns_of_selected_rows(done), remaining

    def _report_items_without_status(
        self,
        result: TaskResult,
        place: Place,
        items: DirectoryItems,
        rows: Sequence[int],
        verdicts: BatchOutcomeColumns,
    ) -> None:
        """Report those of ``items`` in ``rows`` that could not be statted as failed; ``verdicts`` are the results of
        the stat. They are counted as found here, and nowhere else. Vanished items are ignored, except directories:
        items below these may be missed.
        """
        for index, (row, code) in enumerate(zip(rows, verdicts.codes, strict=True)):
            problem = None if code == OutcomeCode.DONE else verdicts.problem(index)
            if problem is not None and (problem.errno != errno.ENOENT or items.kinds[row] == DIRECTORY):
                result.count(counts.FOUND)
                result.count_item_as_failed(place, items.names[row], problem, retry=RetryMode.NEVER)

    def _rows_not_excluded(
        self, result: TaskResult, place: Place, items: DirectoryItems, rows: Sequence[int]
    ) -> TicketGenerator[Sequence[int]]:
        """Return those of ``rows`` that the filters (``--exclude`` and others) do not exclude."""
        selected, path = self._selected, place.path
        above = path + b"/" if path else b""
        if not (selected.select.has_age_limit or selected.select.has_size_limit):
            return [
                row
                for row in rows
                if not selected.excludes_path(
                    above + items.names[row] + (b"/" if items.kinds[row] == DIRECTORY else b"")
                )
            ]
        if items.rows is not None:
            seen = items.rows if len(rows) == len(items) else items.rows.columns_of_selected_rows(rows)
        else:
            seen, rows = yield from self._stat_rows(result, place, items, rows, _FILTER_COLUMNS)
        columns = zip(rows, seen.mode, seen.size, seen.exact_times_in_column("mtime"), strict=True)
        return [row for row, *status in columns if selected.selects_item_at_path(above + items.names[row], *status)]

    def report_matches(
        self,
        result: TaskResult,
        place: Place,
        items: DirectoryItems,
        rows: Sequence[int],
        depth: int,
        output: OutputBuffer,
    ) -> TicketGenerator[int]:
        """Test the items in ``rows`` with the find expression, and write those that it selects to ``output``. Return
        how many were reported. ``depth`` is their depth in the tree (a PATH has 0).

        Raise ``Problem`` if the directory must be opened and cannot be.
        """
        if depth < self.request.least_depth or not rows:
            return 0
        rows = self._cheap(items, rows)
        if self._prints_early:
            rows = sorted(items.printed)
        if not rows:
            return 0
        statted = items
        if self._needs_status and items.rows is None:
            seen, rows = yield from self._stat_rows_if_needed(result, place, items, rows)
            statted = items.items_in_rows(rows, seen)
            chosen = self._expensive(statted, range(len(rows)))
            items.pruned.update(rows[row] for row in statted.pruned)
        else:
            chosen = self._expensive(items, rows)
        if self._prints_late:
            chosen = sorted(statted.printed)
        chosen = self._reported_rows(statted, chosen)
        if not chosen:
            return 0
        reported = statted if len(chosen) == len(statted) and not self.request.prints else statted.items_in_rows(chosen)
        self.write_items(reported, depth, output)
        if self.summing is not None:
            yield from self.summing.add_layouts(result, place, self.reported_path(place), reported)
        return self._count_items_by_type(result, reported)

    def record_listed_directory(self, place: Place, entries: int) -> None:
        """Add a directory that was listed, with this number of entries, to the sums (``--summary``)."""
        if self.summing is not None:
            self.summing.record_listed_directory(place, self.reported_path(place), entries)

    def _reported_rows(self, items: DirectoryItems, rows: Sequence[int]) -> Sequence[int]:
        """Return those of ``rows`` that are reported: all, but without directories if filters by age or size apply."""
        if not self._excludes_directories:
            return rows
        return [row for row in rows if items.kinds[row] != DIRECTORY]

    def _stat_rows_if_needed(
        self, result: TaskResult, place: Place, items: DirectoryItems, rows: Sequence[int]
    ) -> TicketGenerator[tuple[ItemStatusColumns, Sequence[int]]]:
        """Stat the items in ``rows`` if anything of their status is needed. Return two values: the status columns, and
        the rows of the items that could be statted.
        """
        if self.mask:
            return (yield from self._stat_rows(result, place, items, rows, self.mask))
        return ItemStatusColumns(len(rows), 0), rows

    def report_command_line_path(self, result: TaskResult, items: DirectoryItems, output: OutputBuffer) -> int:
        """Report a PATH of the command line, if the find expression selects it. It is the only one of ``items``, and
        was statted before. Return 1 if it was reported, else 0.

        Filters do not exclude a PATH, except a directory if they select by age or size.
        """
        return 0 if self.request.least_depth > 0 else self._report_items_with_status(result, items, output)

    def report_listed_items(self, result: TaskResult, items: DirectoryItems, output: OutputBuffer) -> None:
        """Count items of a list (``--from``) as found, and report those that the find expression selects. Everything
        that the tests need is known already.
        """
        number = self._report_items_with_status(result, items, output)
        result.count(counts.FOUND, len(items))
        result.count(counts.SKIPPED, len(items) - number)

    def is_directory_reported(self, place: Place) -> bool:
        """Return True if the walk has reported the directory ``place`` itself, and not only skipped it. (If the
        directory then cannot be listed, its count must be corrected.) To find that out, it is tested again, with its
        present status. If it cannot be statted any more, return True.
        """
        parent, _, name = place.path.rpartition(b"/")
        root, names = self._rank.job.roots[place.root], [name]
        directory, above = WORKING_DIRECTORY, b""
        try:
            if place.path:
                directory, above = (
                    self._rank.sources[place.root].open(parent),
                    self.path_prefix(place._replace(path=parent)),
                )
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            else:
                names, status = [root.source_shown], os.lstat(root.source_shown)
        except (OSError, Problem):
            return True
        items = DirectoryItems(
            directory, above, names, bytes((DIRECTORY,)), ItemStatusColumns.from_statuses([status], self.mask)
        )
        return depth_of_contents(place) > self.request.least_depth and bool(self._matching_rows(items))

    def _matching_rows(self, items: DirectoryItems) -> Sequence[int]:
        """Return the rows of the statted ``items`` that are to be reported."""
        chosen = self._expensive(items, self._cheap(items, range(len(items))))
        return self._reported_rows(items, sorted(items.printed) if self.request.prints else chosen)

    def _report_items_with_status(self, result: TaskResult, items: DirectoryItems, output: OutputBuffer) -> int:
        """Report those of ``items`` that the find expression selects; all were statted before. Return how many were
        reported.
        """
        chosen = self._matching_rows(items)
        if not chosen:
            return 0
        reported = items if len(chosen) == len(items) else items.items_in_rows(chosen)
        self.write_items(reported, 0, output)
        return self._count_items_by_type(result, reported)

    def reported_path(self, place: Place) -> bytes:
        """Return the path of the directory ``place`` as it is reported, without a slash at its end."""
        top = self._rank.job.roots[place.root].source_shown
        return self.path_prefix(place)[:-1] if place.path else top

    def write_items(self, reported: DirectoryItems, depth: int, output: OutputBuffer) -> None:
        """Write the items ``reported`` to ``output`` in every requested form, and add them to the sums (``--summary``).
        ``depth`` is their depth in the tree (a PATH has 0).
        """
        if self.summing is not None:
            self.summing.sums.add(reported, depth)
        if self.request.columns:
            output.add_items(reported)
        else:
            for number, form in enumerate(self._forms):
                output.write(number, form(reported))

    def _count_items_by_type(self, result: TaskResult, reported: DirectoryItems) -> int:
        """Count the reported items by type, and return their number. An item that the find expression reports twice
        (``-print -print``) counts once.
        """
        number = len(reported) if not self.request.prints else len(set(reported.names))
        kinds = (
            reported.kinds
            if number == len(reported)
            else bytes(dict(zip(reported.names, reported.kinds, strict=True)).values())
        )
        count_reported_items_by_type(result, kinds)
        if reported.rows is not None and reported.rows.size:
            sizes = reported.rows.size
            size = sum(
                sizes
                if reported.kinds.count(b"f") == len(sizes)
                else compress(sizes, map(_FILE.__eq__, reported.kinds))
            )
            result.count(counts.BYTES, size)
            result.count(counts.FOUND_BYTES, size)
        return number


def count_reported_items_by_type(result: TaskResult, kinds: bytes) -> None:
    """Count reported items by type. ``kinds`` are their type letters."""
    remaining = len(kinds)
    for kind, counter in _COUNTERS_OF_TYPES.items():
        number = kinds.count(kind)
        remaining -= number
        if number:
            result.count(counter, number)
    if remaining:
        result.count(counts.SPECIAL, remaining)


def depth_of_contents(place: Place) -> int:
    """Return the depth of the items in the directory ``place``. A PATH of the command line has the depth 0, so items in
    it have the depth 1.
    """
    return place.path.count(b"/") + 2 if place.path else 1


def type_letter(mode: int) -> int:
    """Return the letter for a file type in ``mode``, as find(1) -type uses it; ``UNKNOWN`` for no valid type."""
    return TYPE_LETTERS.get(mode & 0o170000, UNKNOWN)
