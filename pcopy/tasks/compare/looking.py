"""Names of a directory that is open on both sides: looked at, chosen, compared, and told, in columns."""

from __future__ import annotations

import errno
import stat
from collections import Counter
from collections.abc import Sequence

from pcopy.engine.ticket import Stepwise
from pcopy.fsio.kernel.batches import Stated
from pcopy.fsio.kernel.columns import Code, Rows, unpack_names
from pcopy.fsio.kernel.interface import SMALL_FILE
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of
from pcopy.signature.items import DIRECTORY, ROOT, type_of
from pcopy.tasks.base import counts
from pcopy.tasks.base.hashing import SOCKET
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.selected import Selected
from pcopy.tasks.base.values import Place
from pcopy.tasks.compare.contents import CompareFile, compare_small
from pcopy.tasks.compare.properties import (
    ACL,
    CONTENT,
    ONLY_A,
    ONLY_B,
    SIZE,
    TYPE,
    XATTR,
    Pairs,
    columns_of,
    compare_attributes,
    differences,
)
from pcopy.tasks.compare.sides import SIDES, failed, names_of, stat_sides
from pcopy.tasks.compare.tell_differences import Differences
from pcopy.walk.visitor import Found

_DONE = bytes((Code.DONE,))


class Looking:
    """Some ``names`` of ``place``, which is open as ``directories``."""

    def __init__(self, rank: Rank, result: Result, place: Place, directories: tuple[int, int], packed: bytes) -> None:
        self._rank = rank
        self._result = result
        self._place = place
        self._directories = directories
        self._packed = packed
        self._names = unpack_names(packed)
        self._alone: list[tuple[int, int, int]] = []
        """Row, side and mode of each that one side alone has."""
        self._pairs = Pairs(directories, ([], []), (Rows(0, 0), Rows(0, 0)))
        self._named: list[bytes] = []
        """The names of the pairs."""
        self._bits = bytearray()
        self._kinds = b""
        self._problems: dict[int, Problem] = {}
        self._unread: set[int] = set()
        """Rows of which only the attributes could not be compared."""

    def look(self) -> Stepwise[None]:
        """Finds out which side has what."""
        wanted = self._rank.options.compare
        stated = yield from stat_sides(self._rank, self._directories, self._packed, columns_of(wanted))
        both: Sequence[int] = range(len(self._names))
        is_plain = not any(each.verdicts.codes.strip(_DONE) for each in stated)
        if not is_plain or (self._rank.own(Selected).anything and self._packed != ROOT):
            both = self._sort(stated)
        self._result.count(counts.FOUND, len(both))
        if len(both) == len(self._names):
            self._named, rows = self._names, (stated[0].rows, stated[1].rows)
        else:
            self._named = [self._names[row] for row in both]
            rows = stated[0].rows.chosen(both), stated[1].rows.chosen(both)
        names = [[names_of(self._rank, side, name) for name in self._named] for side in SIDES if self._packed == ROOT]
        self._pairs = Pairs(self._directories, (names[0], names[1]) if names else (self._named, self._named), rows)

    def _sort(self, stated: Sequence[Stated]) -> list[int]:
        """Rows that both sides have, and that are selected."""
        unseen: list[dict[int, Problem]] = []
        missing: list[set[int]] = []
        for each in stated:
            codes, numbers = each.verdicts.codes, each.verdicts.errnos
            others = [row for row, code in enumerate(codes) if code != Code.DONE]
            missing.append({row for row in others if numbers[row] == errno.ENOENT})
            unseen.append({row: each.verdicts.problem(row) for row in others if numbers[row] != errno.ENOENT})
        both = []
        for row in self._selected(stated, unseen, missing):
            side = next((side for side in SIDES if row in unseen[side]), None)
            if side is not None:
                self._result.count(counts.FOUND)
                failed(self._result, self._place, side, self._names[row], unseen[side][row])
            elif row in missing[0] or row in missing[1]:
                side = int(row in missing[0])
                self._alone.append((row, side, stated[side].rows.mode[row]))
            else:
                both.append(row)
        return both

    def _selected(
        self, stated: Sequence[Stated], unseen: Sequence[dict[int, Problem]], missing: Sequence[set[int]]
    ) -> list[int]:
        """Rows that filters choose on a side that has them; the others are counted."""
        rows = {row for row in range(len(self._names)) if row not in missing[0] or row not in missing[1]}
        selected = self._rank.own(Selected)
        if not selected.anything or self._packed == ROOT:
            return sorted(rows)
        chosen: set[int] = set()
        for side in SIDES:
            found = Found(self._directories[side], self._packed, stated[side].rows, unseen[side])
            there = rows - missing[side]
            chosen |= there.intersection(selected.rows(self._place.path, found)) if there else set()
        for counter in (counts.FOUND, counts.SKIPPED, counts.EXCLUDED):
            self._result.count(counter, len(rows) - len(chosen))
        return sorted(chosen)

    def compare(self) -> Stepwise[None]:
        """Finds out how the pairs differ, but for their contents."""
        wanted, pairs = self._rank.options.compare, self._pairs
        self._bits, self._problems = differences(pairs, wanted, self._rank.options.modify_window)
        if any(bits & CONTENT for bits in self._bits) and self._is_generated():
            for row, mode in enumerate(pairs.rows[0].mode):
                if stat.S_ISREG(mode):
                    self._bits[row] &= ~(SIZE | CONTENT)
        if wanted & (ACL | XATTR):
            rows = [row for row, bits in enumerate(self._bits) if not bits & TYPE and row not in self._problems]
            if rows:
                yield from compare_attributes(self._rank, pairs, self._bits, rows, wanted, self._problems)
                self._unread = self._problems.keys() & set(rows)
        modes = pairs.rows[0].mode
        kinds = {mode: (type_of(mode) or SOCKET)[0] for mode in set(modes)}
        self._kinds = bytes(map(kinds.__getitem__, modes))

    def tell(self, found: Differences) -> None:
        """What is known of items whose contents need no look; those of the others are tasks."""
        result, path = self._result, self._place.path
        result.count(counts.FOUND, len(self._alone))
        for row, side, mode in self._alone:
            kind = type_of(mode) or SOCKET
            result.count(counts.of_kind(kind))
            found.add(path, [self._names[row]], [(ONLY_A, ONLY_B)[side]], kind)
        for row, problem in self._problems.items():
            if row in self._unread and self._kinds[row] == DIRECTORY[0]:  # it counts once more when it was entered
                result.count(counts.DIRECTORIES, -1)
            failed(result, self._place, int(not problem.on_source), self._named[row], problem)
        read = self._read() if self._rank.options.compare & CONTENT else ()
        rows: Sequence[int] = range(len(self._named))
        if len(read) == len(rows):
            return
        unread = {*self._problems, *read}
        names, bits, kinds = self._named, self._bits, self._kinds
        if unread:
            rows = [row for row in rows if row not in unread]
            names, bits = [names[row] for row in rows], bytearray(bits[row] for row in rows)
            kinds = bytes(kinds[row] for row in rows)
        for (code, other), number in Counter(zip(kinds, (each & TYPE for each in bits), strict=True)).items():
            if code != DIRECTORY[0] or other:  # what is entered counts when that has been done
                result.count(counts.of_kind(bytes((code,))), number)
        found.add(path, names, bits, kinds)

    def _is_generated(self) -> bool:
        """Return True if files of either side are generated as they are read (/proc), so that their sizes say nothing;
        raises ``Problem``."""
        generated = self._rank.mover.generated
        return any(generated.is_on(each, status_of(each).st_dev) for each in self._pairs.directories)

    def _read(self) -> Sequence[int]:
        """Spawns what reads the contents of files that may hold the same; returns their rows."""
        ours, theirs = self._pairs.rows
        rows: Sequence[int] = range(len(self._named))
        if any(self._bits) or self._problems or set(map(stat.S_IFMT, set(ours.mode))) != {stat.S_IFREG}:
            rows = [row for row in rows if self._may_be_equal(row)]
        self._result.count(counts.FOUND_BYTES, 2 * sum(map(ours.size.__getitem__, rows)))
        small = rows
        if rows and max(ours.size) > SMALL_FILE:
            small = [row for row in rows if ours.size[row] <= SMALL_FILE]
            for row in {*rows}.difference(small):
                size, inodes = ours.size[row], (ours.inode[row], theirs.inode[row])
                task = CompareFile(self._place, self._named[row], self._bits[row], size, *inodes)
                self._result.spawn(task, 2 * size)
        names, bits = self._named, bytes(self._bits)
        if len(small) < len(names):
            names, bits = [names[row] for row in small], bytes(bits[row] for row in small)
            ours, theirs = ours.chosen(small), theirs.chosen(small)
        compare_small(self._result, self._place, names, bits, ours.size, (ours.inode, theirs.inode))
        return rows

    def _may_be_equal(self, row: int) -> bool:
        """Is it a regular file on both sides, and of one size?"""
        is_file = stat.S_ISREG(self._pairs.rows[0].mode[row])
        return is_file and not self._bits[row] & (TYPE | CONTENT) and row not in self._problems

    def below(self) -> list[tuple[bytes, int, int]]:
        """The directories that both sides have, also those whose attributes cannot be read: names and inodes."""
        ours, theirs = self._pairs.rows
        return [
            (self._named[row], ours.inode[row], theirs.inode[row])
            for row, kind in enumerate(self._kinds)
            if kind == DIRECTORY[0]
            and not self._bits[row] & TYPE
            and (row not in self._problems or row in self._unread)
        ]
