"""Stats the names of a directory, and passes the items with their statuses to a *visitor*, an object that decides what
is done with them: copy, read or remove.

This module depends on no program. The tasks that list directories and stat names get the visitor from their program. A
status is not an object: each of its fields is a column, an array with one value for each item. A *row* is the position
of an item in these columns.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.backend.batches import StatNamesBatch, StatNamesResult
from pcopy.fsio.backend.columns import LINKS_COLUMN, SCAN_COLUMNS, ItemStatusColumns, OutcomeCode, unpack_names
from pcopy.fsio.backend.interface import MAX_SMALL_FILE_BYTES, FileOperationBackend, await_ticket
from pcopy.fsio.problem import Problem

VISITOR_COLUMNS = SCAN_COLUMNS | LINKS_COLUMN
"""Bits of the fields of the status (columns) that a visitor receives for each item."""


class FoundItems:
    """Some items that a scan has found in one directory, with their statuses. A row is the position of an item.

    Fields:
    - ``directory``: open descriptor of the directory.
    - ``packed``: the names, joined by slashes.
    - ``rows``: the statuses, with the columns of ``VISITOR_COLUMNS``.
    - ``problems``: the error by row, for items that could not be statted; their values in ``rows`` are meaningless.
    - ``are_selected``: True if the filters of the user were applied, and select all of these items.
    """

    __slots__ = ("_names", "are_selected", "directory", "packed", "problems", "rows")

    def __init__(
        self,
        directory: int,
        packed: bytes,
        rows: ItemStatusColumns,
        problems: Mapping[int, Problem],
        *,
        are_selected: bool = False,
    ) -> None:
        self.directory = directory
        self.packed = packed
        self.rows = rows
        self.problems = problems
        self.are_selected = are_selected
        self._names: list[bytes] = []

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def names(self) -> list[bytes]:
        """The names as a list, in the order of the rows."""
        if not self._names:
            self._names = unpack_names(self.packed, len(self))
        return self._names


class DirectoryVisitor(Protocol):
    """Protocol: receives the items that one task finds in one directory, and processes them (copies, reads or removes
    them). In the methods, ``found`` are all items of a batch, and ``rows`` are the positions of those that are
    passed: at least one, in ascending order.
    """

    device: int | None
    """``st_dev`` of the directory; None if it is not known. Files on another file system are passed to
    ``visit_large_files``.
    """
    needs_sorted_names: bool
    """True if the names of a large directory are sorted before they are divided among tasks, so that each visitor gets
    names that follow each other in the order of their bytes.
    """
    separates_linked: bool
    """True if items with several hard links, except directories, are passed to ``visit_hard_linked_items`` instead of
    the methods for files and special files.
    """

    def visit_unstatted_item(self, name: bytes, problem: Problem) -> None:
        """Receive the name of an item that could not be statted, and the error."""

    def rows_to_visit(self, found: FoundItems) -> Iterable[int]:
        """Return the rows (positions) of the items that are to be passed to the other methods. The visitor itself
        counts and reports the items that it leaves out.
        """

    def visit_directories(self, found: FoundItems, rows: Sequence[int]) -> None:
        """Receive directories: those of the items ``found`` whose positions are ``rows``. Other tasks list what they
        contain.
        """

    def visit_small_files(self, found: FoundItems, rows: Sequence[int]) -> None:
        """Receive regular files of up to ``MAX_SMALL_FILE_BYTES`` bytes: those of the items ``found`` whose positions
        are ``rows``.
        """

    def visit_large_files(self, found: FoundItems, rows: Sequence[int]) -> None:
        """Receive regular files that are larger than ``MAX_SMALL_FILE_BYTES``, or on another file system than the
        directory (a file can be a mount point). They are those of the items ``found`` whose positions are ``rows``.
        Each of them is processed separately.
        """

    def visit_special_files(self, found: FoundItems, rows: Sequence[int]) -> None:
        """Receive symbolic links, FIFOs, sockets and devices: those of the items ``found`` whose positions are
        ``rows``.
        """

    def visit_hard_linked_items(self, found: FoundItems, rows: Sequence[int]) -> None:
        """Receive items with several hard links, except directories: those of the items ``found`` whose positions are
        ``rows``. Only called if ``separates_linked``.
        """

    def process_collected_items(self) -> TicketGenerator[None]:
        """Generator that processes the items that were received. It is called after the last one, and yields from time
        to time, so that the rank can handle messages.
        """

    def end_directory_visit(self) -> None:
        """Do the last work of the visit, such as adding counts to the result or spawning tasks. It is called after
        ``process_collected_items`` has finished.
        """


def stat_and_visit_names(
    backend: FileOperationBackend,
    directory: int,
    packed: bytes,
    visitor: DirectoryVisitor,
    *,
    follow: bool,
    extra_columns: int = 0,
) -> TicketGenerator[None]:
    """Generator: stat some names in an open directory, pass the items to the visitor, and let it process them.

    Args:
        backend: the code that performs the system calls.
        directory: open descriptor of the directory.
        packed: the names, joined by slashes; none of them is empty.
        visitor: the object that receives the items.
        follow: True to follow symbolic links.
        extra_columns: bits of columns (fields of the status) that are needed besides ``VISITOR_COLUMNS``.
    """
    if packed:
        ticket = backend.submit_batch(
            StatNamesBatch(directory, packed, VISITOR_COLUMNS | extra_columns, on_source=True, follows_links=follow)
        )
        stated = yield from await_ticket(backend, ticket)
        pass_items_to_visitor(
            FoundItems(directory, packed, stated.rows, _stat_problems(directory, packed, stated, follow)), visitor
        )
    yield from visitor.process_collected_items()
    visitor.end_directory_visit()


def _stat_problems(directory: int, packed: bytes, stated: StatNamesResult, follow: bool) -> dict[int, Problem]:
    """Return the errors of the names that could not be statted, by row (position of the name)."""
    codes = stated.verdicts.codes
    if codes.count(OutcomeCode.DONE) == len(codes):
        return {}
    names, numbers = unpack_names(packed), stated.verdicts.errnos
    unseen = [row for row, code in enumerate(codes) if code != OutcomeCode.DONE]
    return {row: _stat_problem(directory, names[row], numbers[row], follow) for row in unseen}


def _stat_problem(directory: int, name: bytes, number: int, follow: bool) -> Problem:
    """Return why the item ``name`` could not be statted: it has vanished, it is a symbolic link that leads nowhere (if
    ``follow``), or the system has reported another error (the errno ``number``).
    """
    is_missing = number == errno.ENOENT
    if is_missing and follow:
        try:
            os.stat(name, dir_fd=directory, follow_symlinks=False)
        except OSError:
            pass  # The symbolic link itself has vanished.
        else:
            return Problem("stat", errno.ENOENT, on_source=True, text="a symbolic link that leads nowhere")
    return Problem("stat", number or errno.EIO, on_source=True, changed=is_missing)


def pass_items_to_visitor(found: FoundItems, visitor: DirectoryVisitor) -> None:
    """Pass the items ``found`` to the methods of the visitor: first those that could not be statted, then those that
    the visitor has chosen, by type, size and number of links.
    """
    for row, problem in found.problems.items():
        visitor.visit_unstatted_item(found.names[row], problem)
    chosen = visitor.rows_to_visit(found)
    if _are_all_small_files(found, visitor):
        sorts: tuple[Sequence[int], ...] = ((), (), (), (), chosen if isinstance(chosen, range) else list(chosen))
    else:
        sorts = _rows_by_category(found, visitor, chosen)
    takes = (
        visitor.visit_directories,
        visitor.visit_hard_linked_items,
        visitor.visit_special_files,
        visitor.visit_large_files,
        visitor.visit_small_files,
    )
    for rows, take in zip(sorts, takes, strict=True):
        if rows:
            take(found, rows)


def _are_all_small_files(found: FoundItems, visitor: DirectoryVisitor) -> bool:
    """Return True if all items are small files on the file system of the directory. This is the most frequent case, and
    testing it is faster than sorting the items.
    """
    rows = found.rows
    return (
        not found.problems
        and set(map(stat.S_IFMT, set(rows.mode))) == {stat.S_IFREG}
        and max(rows.size) <= MAX_SMALL_FILE_BYTES
        and rows.device.count(rows.device[0]) == len(rows)
        and rows.device[0] == visitor.device
        and not (visitor.separates_linked and max(rows.links) > 1)
    )


def _rows_by_category(found: FoundItems, visitor: DirectoryVisitor, chosen: Iterable[int]) -> tuple[list[int], ...]:
    """Sort the chosen items by how a visitor receives them. Return five lists of row numbers: directories, items with
    several hard links, special files and symbolic links, large files, and small files.
    """
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
