"""Stats the names of a directory, and passes them to a visitor with their statuses, in columns.

This module knows no tool. The visitor decides what is done with the items (copy, read, remove). The tasks that list
directories and stat names ask their tool for a visitor.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.backend.batches import StatNames, StatResult
from pcopy.fsio.backend.columns import LINKS, SCAN_COLUMNS, RowCode, Rows, unpack_names
from pcopy.fsio.backend.interface import MAX_SMALL_FILE_BYTES, Backend, await_ticket
from pcopy.fsio.problem import Problem

VISITOR_COLUMNS = SCAN_COLUMNS | LINKS
"""The columns that a visitor receives."""


class FoundItems:
    """Some names of one open ``directory``, with their statuses: ``rows`` has the columns of ``VISITOR_COLUMNS``.

    ``packed`` are the names, joined by slashes. ``problems`` maps rows that could not be statted to the reason; the
    values of such rows are meaningless.
    """

    __slots__ = ("_names", "directory", "packed", "problems", "rows")

    def __init__(self, directory: int, packed: bytes, rows: Rows, problems: Mapping[int, Problem]) -> None:
        self.directory = directory
        self.packed = packed
        self.rows = rows
        self.problems = problems
        self._names: list[bytes] = []

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def names(self) -> list[bytes]:
        """The names as a list."""
        if not self._names:
            self._names = unpack_names(self.packed, len(self))
        return self._names


class Visitor(Protocol):
    """Receives the items that one task finds in one directory. ``rows`` are never empty, and in the
    order of ``found``.
    """

    device: int | None
    """The directory's st_dev; None if it is not known."""
    separates_linked: bool
    """True if items with several names are passed to ``linked`` instead of the methods for files and nodes."""

    def visit_failed(self, name: bytes, problem: Problem) -> None:
        """Receive a name that could not be statted."""

    def rows_to_visit(self, found: FoundItems) -> Iterable[int]:
        """Return the rows to visit. The visitor itself counts and reports the others, where that is needed."""

    def visit_directories(self, found: FoundItems, rows: Sequence[int]) -> None:
        """Receive directories. They are not entered here: that is done by other tasks."""

    def visit_small_files(self, found: FoundItems, rows: Sequence[int]) -> None:
        """Receive regular files of up to ``MAX_SMALL_FILE_BYTES`` bytes."""

    def visit_large_files(self, found: FoundItems, rows: Sequence[int]) -> None:
        """Receive files that are larger, or on another file system than the directory; each is processed separately."""

    def visit_special_files(self, found: FoundItems, rows: Sequence[int]) -> None:
        """Receive symbolic links, FIFOs, sockets and devices."""

    def visit_linked(self, found: FoundItems, rows: Sequence[int]) -> None:
        """Receive items with several names, other than directories."""

    def process_visited(self) -> TicketGenerator[None]:
        """Process the received items, in slices. No further items follow."""

    def end_visit(self) -> None:
        """End the visit, after ``settle`` is complete."""


def stat_and_visit(
    backend: Backend, directory: int, packed: bytes, visitor: Visitor, *, follow: bool, extra_columns: int = 0
) -> TicketGenerator[None]:
    """Stat the names ``packed`` (joined by slashes; none is empty) in an open directory, and pass them to the visitor.

    Args:
        follow: True to follow symbolic links.
        extra_columns: columns that are needed besides ``VISITOR_COLUMNS``.
    """
    if packed:
        ticket = backend.submit(
            StatNames(directory, packed, VISITOR_COLUMNS | extra_columns, on_source=True, follows_links=follow)
        )
        stated = yield from await_ticket(backend, ticket)
        pass_to_visitor(
            FoundItems(directory, packed, stated.rows, _stat_problems(directory, packed, stated, follow)), visitor
        )
    yield from visitor.process_visited()
    visitor.end_visit()


def _stat_problems(directory: int, packed: bytes, stated: StatResult, follow: bool) -> dict[int, Problem]:
    """Return the reasons of the names that could not be statted, by row."""
    codes = stated.verdicts.codes
    if codes.count(RowCode.DONE) == len(codes):
        return {}
    names, numbers = unpack_names(packed), stated.verdicts.errnos
    unseen = [row for row, code in enumerate(codes) if code != RowCode.DONE]
    return {row: _stat_problem(directory, names[row], numbers[row], follow) for row in unseen}


def _stat_problem(directory: int, name: bytes, number: int, follow: bool) -> Problem:
    """Return why a name could not be statted: it vanished, is a dangling symbolic link, or the
    system reports an error.
    """
    is_missing = number == errno.ENOENT
    if is_missing and follow:
        try:
            os.stat(name, dir_fd=directory, follow_symlinks=False)
        except OSError:
            pass  # the name itself no longer exists
        else:
            return Problem("stat", errno.ENOENT, on_source=True, text="a symbolic link that leads nowhere")
    return Problem("stat", number or errno.EIO, on_source=True, changed=is_missing)


def pass_to_visitor(found: FoundItems, visitor: Visitor) -> None:
    """Pass the items to the visitor: those that have failed, and the chosen rows by their sort."""
    for row, problem in found.problems.items():
        visitor.visit_failed(found.names[row], problem)
    chosen = visitor.rows_to_visit(found)
    if _are_all_small_files(found, visitor):
        sorts: tuple[Sequence[int], ...] = ((), (), (), (), chosen if isinstance(chosen, range) else list(chosen))
    else:
        sorts = _rows_by_sort(found, visitor, chosen)
    takes = (
        visitor.visit_directories,
        visitor.visit_linked,
        visitor.visit_special_files,
        visitor.visit_large_files,
        visitor.visit_small_files,
    )
    for rows, take in zip(sorts, takes, strict=True):
        if rows:
            take(found, rows)


def _are_all_small_files(found: FoundItems, visitor: Visitor) -> bool:
    """Return True if all items are small files, the most frequent case. (This is faster than sorting them.)"""
    rows = found.rows
    return (
        not found.problems
        and set(map(stat.S_IFMT, set(rows.mode))) == {stat.S_IFREG}
        and max(rows.size) <= MAX_SMALL_FILE_BYTES
        and rows.device.count(rows.device[0]) == len(rows)
        and rows.device[0] == visitor.device
        and not (visitor.separates_linked and max(rows.links) > 1)
    )


def _rows_by_sort(found: FoundItems, visitor: Visitor, chosen: Iterable[int]) -> tuple[list[int], ...]:
    """Return the chosen rows of directories, linked items, nodes, large files and small files."""
    modes, links, sizes, devices = found.rows.mode, found.rows.links, found.rows.size, found.rows.device
    links_apart, device = visitor.separates_linked, visitor.device
    sorts: tuple[list[int], ...] = ([], [], [], [], [])
    directories, linked, nodes, large, small = sorts
    for row in chosen:
        kind = stat.S_IFMT(modes[row])
        if row in found.problems:
            continue
        if kind == stat.S_IFDIR:
            directories.append(row)
        elif links_apart and links[row] > 1:
            linked.append(row)
        elif kind != stat.S_IFREG:
            nodes.append(row)
        elif sizes[row] > MAX_SMALL_FILE_BYTES or devices[row] != device:
            large.append(row)
        else:
            small.append(row)
    return sorts
