"""Comparison of some names of a directory that is open on both sides: stat, filter, compare and report, as columns with
one row per name.
"""

from __future__ import annotations

import errno
import stat
from collections import Counter
from collections.abc import Sequence

from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.backend.batches import StatNamesResult
from pcopy.fsio.backend.columns import ItemStatusColumns, OutcomeCode, unpack_names
from pcopy.fsio.backend.interface import MAX_SMALL_FILE_BYTES
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of_open_item
from pcopy.signature.items import DIRECTORY, ROOT_PATH, type_byte
from pcopy.tasks.base import counts
from pcopy.tasks.base.hashing import SOCKET_TYPE_BYTE
from pcopy.tasks.base.job import CompareOptions
from pcopy.tasks.base.job_filters import JobFilter
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import Place
from pcopy.tasks.compare.contents import CompareLargeFile, spawn_small_file_comparisons
from pcopy.tasks.compare.properties import (
    ACL,
    CONTENT,
    ONLY_A,
    ONLY_B,
    SIZE,
    TYPE,
    XATTR,
    ItemPairs,
    compare_attributes,
    status_columns_to_compare,
    status_differences,
)
from pcopy.tasks.compare.report_differences import DifferenceReporter
from pcopy.tasks.compare.sides import SIDES, names_on_side, report_uncompared_item, stat_on_both_sides
from pcopy.walk.visitor import FoundItems

_DONE = bytes((OutcomeCode.DONE,))


class DirectoryItemsComparison:
    """Comparison of the items ``packed`` (names joined by slashes) of one directory, ``place``, on both sides.
    ``directories`` are the open descriptors of the directory on the first and the second side. The methods are called
    in their order.
    """

    def __init__(
        self, rank: Rank, result: TaskResult, place: Place, directories: tuple[int, int], packed: bytes
    ) -> None:
        self._rank = rank
        self._result = result
        self._place = place
        self._directories = directories
        self._packed = packed
        self._names = unpack_names(packed)
        self._one_sided: list[tuple[int, int, int]] = []
        """Items that only one side has: row, side that has it, and mode."""
        self._pairs = ItemPairs(directories, ([], []), (ItemStatusColumns(0, 0), ItemStatusColumns(0, 0)))
        """The items that both sides have."""
        self._pair_names: list[bytes] = []
        """Names of the items that both sides have."""
        self._bits = bytearray()
        """In which properties the items of each pair differ (the bits of ``pcopy.tasks.compare.properties``)."""
        self._kinds = b""
        self._problems: dict[int, Problem] = {}
        self._attribute_failures: set[int] = set()
        """Rows of pairs whose extended attributes could not be read, while everything else was compared."""

    def stat_names_on_both_sides(self) -> TicketGenerator[None]:
        """Stat all names on both sides, apply the filters, and pair the items that both sides have."""
        wanted = self._rank.program_options(CompareOptions).compare
        stated = yield from stat_on_both_sides(
            self._rank, self._directories, self._packed, status_columns_to_compare(wanted)
        )
        both: Sequence[int] = range(len(self._names))
        is_simple = not any(each.verdicts.codes.strip(_DONE) for each in stated)
        if not is_simple or (self._rank.shared_instance(JobFilter).has_filters and self._packed != ROOT_PATH):
            both = self._rows_on_both(stated)
        self._result.count(counts.FOUND, len(both))
        if len(both) == len(self._names):
            self._pair_names, rows = self._names, (stated[0].rows, stated[1].rows)
        else:
            self._pair_names = [self._names[row] for row in both]
            rows = stated[0].rows.columns_of_selected_rows(both), stated[1].rows.columns_of_selected_rows(both)
        names = [
            [names_on_side(self._rank, side, name) for name in self._pair_names]
            for side in SIDES
            if self._packed == ROOT_PATH
        ]
        self._pairs = ItemPairs(
            self._directories, (names[0], names[1]) if names else (self._pair_names, self._pair_names), rows
        )

    def _rows_on_both(self, stated: Sequence[StatNamesResult]) -> list[int]:
        """Return the rows of the names that filters select and both sides have. Record the items that only one side
        has, and report those that could not be statted. ``stated`` are the statuses on both sides.
        """
        unreadable: list[dict[int, Problem]] = []
        missing: list[set[int]] = []
        for stated_side in stated:
            codes, numbers = stated_side.verdicts.codes, stated_side.verdicts.errnos
            not_statted = [row for row, code in enumerate(codes) if code != OutcomeCode.DONE]
            missing.append({row for row in not_statted if numbers[row] == errno.ENOENT})
            unreadable.append(
                {row: stated_side.verdicts.problem(row) for row in not_statted if numbers[row] != errno.ENOENT}
            )
        both = []
        for row in self._selected_rows(stated, unreadable, missing):
            side = next((side for side in SIDES if row in unreadable[side]), None)
            if side is not None:
                self._result.count(counts.FOUND)
                report_uncompared_item(self._result, self._place, side, self._names[row], unreadable[side][row])
            elif row in missing[0] or row in missing[1]:
                side = int(row in missing[0])
                self._one_sided.append((row, side, stated[side].rows.mode[row]))
            else:
                both.append(row)
        return both

    def _selected_rows(
        self, stated: Sequence[StatNamesResult], unseen: Sequence[dict[int, Problem]], missing: Sequence[set[int]]
    ) -> list[int]:
        """Return the rows of the names that filters select: a name is selected if the item of either side is. Count the
        others as excluded.

        Args:
            stated: the statuses on both sides.
            unseen: for each side the errors of items that could not be statted, by row.
            missing: for each side the rows of the names that it does not have.
        """
        rows = {row for row in range(len(self._names)) if row not in missing[0] or row not in missing[1]}
        selected = self._rank.shared_instance(JobFilter)
        if not selected.has_filters or self._packed == ROOT_PATH:
            return sorted(rows)
        chosen: set[int] = set()
        for side in SIDES:
            found = FoundItems(self._directories[side], self._packed, stated[side].rows, unseen[side])
            on_side = rows - missing[side]
            chosen |= on_side.intersection(selected.selected_rows(self._place.path, found)) if on_side else set()
        self._result.count_excluded_items(len(rows) - len(chosen))
        return sorted(chosen)

    def compare_pairs(self) -> TicketGenerator[None]:
        """Compare the items that both sides have in everything but their contents."""
        options, pairs = self._rank.program_options(CompareOptions), self._pairs
        wanted = options.compare
        self._bits, self._problems = status_differences(pairs, wanted, options.modify_window)
        if any(bits & CONTENT for bits in self._bits) and self._has_generated_contents():
            for row, mode in enumerate(pairs.rows[0].mode):
                if stat.S_ISREG(mode):
                    self._bits[row] &= ~(SIZE | CONTENT)
        if wanted & (ACL | XATTR):
            rows = [row for row, bits in enumerate(self._bits) if not bits & TYPE and row not in self._problems]
            if rows:
                yield from compare_attributes(self._rank, pairs, self._bits, rows, wanted, self._problems)
                self._attribute_failures = self._problems.keys() & set(rows)
        modes = pairs.rows[0].mode
        kinds = {mode: (type_byte(mode) or SOCKET_TYPE_BYTE)[0] for mode in set(modes)}
        self._kinds = bytes(map(kinds.__getitem__, modes))

    def report_results(self, found: DifferenceReporter) -> None:
        """Pass all items whose result is known now to ``found``, which collects the differences. Spawn tasks that
        compare contents for the others.
        """
        result, path = self._result, self._place.path
        result.count(counts.FOUND, len(self._one_sided))
        for row, side, mode in self._one_sided:
            kind = type_byte(mode) or SOCKET_TYPE_BYTE
            result.count(counts.copied_counter(kind))
            found.add_item_differences(path, [self._names[row]], [(ONLY_A, ONLY_B)[side]], kind)
        for row, problem in self._problems.items():
            # The directory counts as failed here. It would count a second time when its contents have been compared:
            # subtract that now.
            if row in self._attribute_failures and self._kinds[row] == DIRECTORY[0]:
                result.count(counts.DIRECTORIES, -1)
            report_uncompared_item(result, self._place, int(not problem.on_source), self._pair_names[row], problem)
        read = self._spawn_content_comparisons() if self._rank.program_options(CompareOptions).compare & CONTENT else ()
        rows: Sequence[int] = range(len(self._pair_names))
        if len(read) == len(rows):
            return
        unread = {*self._problems, *read}
        names, bits, kinds = self._pair_names, self._bits, self._kinds
        if unread:
            rows = [row for row in rows if row not in unread]
            names, bits = [names[row] for row in rows], bytearray(bits[row] for row in rows)
            kinds = bytes(kinds[row] for row in rows)
        for (code, other), number in Counter(zip(kinds, (each & TYPE for each in bits), strict=True)).items():
            if code != DIRECTORY[0] or other:  # directories to enter are counted when their contents have been compared
                result.count(counts.copied_counter(bytes((code,))), number)
        found.add_item_differences(path, names, bits, kinds)

    def _has_generated_contents(self) -> bool:
        """Return True if the system generates the contents of files on reading (as in /proc) on either side, so that
        their sizes are meaningless. Raise ``Problem`` if that cannot be determined.
        """
        generated = self._rank.mover.generated_file_systems
        return any(
            generated.is_on_pseudo_file_system(each, status_of_open_item(each).st_dev)
            for each in self._pairs.directories
        )

    def _spawn_content_comparisons(self) -> Sequence[int]:
        """Spawn tasks that compare the contents of those files that may be equal so far. Return the rows of these
        files.
        """
        first, second = self._pairs.rows
        rows: Sequence[int] = range(len(self._pair_names))
        if any(self._bits) or self._problems or set(map(stat.S_IFMT, set(first.mode))) != {stat.S_IFREG}:
            rows = [row for row in rows if self._may_be_equal(row)]
        self._result.count(counts.FOUND_BYTES, 2 * sum(map(first.size.__getitem__, rows)))
        small = rows
        if rows and max(first.size) > MAX_SMALL_FILE_BYTES:
            small = [row for row in rows if first.size[row] <= MAX_SMALL_FILE_BYTES]
            for row in {*rows}.difference(small):
                size, inodes = first.size[row], (first.inode[row], second.inode[row])
                task = CompareLargeFile(self._place, self._pair_names[row], self._bits[row], size, *inodes)
                self._result.spawn_task(task, 2 * size)
        names, bits = self._pair_names, bytes(self._bits)
        if len(small) < len(names):
            names, bits = [names[row] for row in small], bytes(bits[row] for row in small)
            first, second = first.columns_of_selected_rows(small), second.columns_of_selected_rows(small)
        spawn_small_file_comparisons(self._result, self._place, names, bits, first.size, (first.inode, second.inode))
        return rows

    def _may_be_equal(self, row: int) -> bool:
        """Return True if the item is a regular file on both sides whose contents must be compared: neither its size nor
        an error has decided the result already.
        """
        is_file = stat.S_ISREG(self._pairs.rows[0].mode[row])
        return is_file and not self._bits[row] & (TYPE | CONTENT) and row not in self._problems

    def common_subdirectories(self) -> list[tuple[bytes, int, int]]:
        """Return each directory that both sides have: its name, and its inode number on each side. Directories whose
        attributes could not be read are included.
        """
        first, second = self._pairs.rows
        return [
            (self._pair_names[row], first.inode[row], second.inode[row])
            for row, kind in enumerate(self._kinds)
            if kind == DIRECTORY[0]
            and not self._bits[row] & TYPE
            and (row not in self._problems or row in self._attribute_failures)
        ]
