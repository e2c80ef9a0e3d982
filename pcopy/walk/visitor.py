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

from pcopy.engine.ticket import Stepwise
from pcopy.fsio.kernel.batches import Stat, Stated
from pcopy.fsio.kernel.columns import FOUND, LINKS, Code, Rows, unpack_names
from pcopy.fsio.kernel.interface import SMALL_FILE, Kernel, waited
from pcopy.fsio.problem import Problem

LOOKED_AT = FOUND | LINKS
"""The columns that a visitor receives."""


class Found:
    """Some names of one open ``directory``, with their statuses: ``rows`` has the columns of ``LOOKED_AT``.

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
    links_apart: bool
    """True if items with several names are passed to ``linked`` instead of the methods for files and nodes."""

    def failed(self, name: bytes, problem: Problem) -> None:
        """Receive a name that could not be statted."""

    def chosen(self, found: Found) -> Iterable[int]:
        """Return the rows to visit. The visitor itself counts and reports the others, where that is needed."""

    def directories(self, found: Found, rows: Sequence[int]) -> None:
        """Receive directories. They are not entered here: that is done by other tasks."""

    def small_files(self, found: Found, rows: Sequence[int]) -> None:
        """Receive regular files of up to ``SMALL_FILE`` bytes."""

    def large_files(self, found: Found, rows: Sequence[int]) -> None:
        """Receive files that are larger, or on another file system than the directory; each is processed separately."""

    def nodes(self, found: Found, rows: Sequence[int]) -> None:
        """Receive symbolic links, FIFOs, sockets and devices."""

    def linked(self, found: Found, rows: Sequence[int]) -> None:
        """Receive items with several names, other than directories."""

    def settle(self) -> Stepwise[None]:
        """Process the received items, in slices. No further items follow."""

    def finish(self) -> None:
        """End the visit, after ``settle`` is complete."""


def visit(
    kernel: Kernel, directory: int, packed: bytes, visitor: Visitor, *, follow: bool, also: int = 0
) -> Stepwise[None]:
    """Stat the names ``packed`` (joined by slashes; none is empty) in an open directory, and pass them to the visitor.

    Args:
        follow: True to follow symbolic links.
        also: columns that are needed besides ``LOOKED_AT``.
    """
    if packed:
        ticket = kernel.submit(Stat(directory, packed, LOOKED_AT | also, on_source=True, follow=follow))
        stated = yield from waited(kernel, ticket)
        hand_over(Found(directory, packed, stated.rows, _problems(directory, packed, stated, follow)), visitor)
    yield from visitor.settle()
    visitor.finish()


def _problems(directory: int, packed: bytes, stated: Stated, follow: bool) -> dict[int, Problem]:
    """Return the reasons of the names that could not be statted, by row."""
    codes = stated.verdicts.codes
    if codes.count(Code.DONE) == len(codes):
        return {}
    names, numbers = unpack_names(packed), stated.verdicts.errnos
    unseen = [row for row, code in enumerate(codes) if code != Code.DONE]
    return {row: _unseen(directory, names[row], numbers[row], follow) for row in unseen}


def _unseen(directory: int, name: bytes, number: int, follow: bool) -> Problem:
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


def hand_over(found: Found, visitor: Visitor) -> None:
    """Pass the items to the visitor: those that have failed, and the chosen rows by their sort."""
    for row, problem in found.problems.items():
        visitor.failed(found.names[row], problem)
    chosen = visitor.chosen(found)
    if _are_small(found, visitor):
        sorts: tuple[Sequence[int], ...] = ((), (), (), (), chosen if isinstance(chosen, range) else list(chosen))
    else:
        sorts = _sorted(found, visitor, chosen)
    takes = visitor.directories, visitor.linked, visitor.nodes, visitor.large_files, visitor.small_files
    for rows, take in zip(sorts, takes, strict=True):
        if rows:
            take(found, rows)


def _are_small(found: Found, visitor: Visitor) -> bool:
    """Return True if all items are small files, the most frequent case. (This is faster than sorting them.)"""
    rows = found.rows
    return (
        not found.problems
        and set(map(stat.S_IFMT, set(rows.mode))) == {stat.S_IFREG}
        and max(rows.size) <= SMALL_FILE
        and rows.device.count(rows.device[0]) == len(rows)
        and rows.device[0] == visitor.device
        and not (visitor.links_apart and max(rows.links) > 1)
    )


def _sorted(found: Found, visitor: Visitor, chosen: Iterable[int]) -> tuple[list[int], ...]:
    """Return the chosen rows of directories, linked items, nodes, large files and small files."""
    modes, links, sizes, devices = found.rows.mode, found.rows.links, found.rows.size, found.rows.device
    links_apart, device = visitor.links_apart, visitor.device
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
        elif sizes[row] > SMALL_FILE or devices[row] != device:
            large.append(row)
        else:
            small.append(row)
    return sorts
