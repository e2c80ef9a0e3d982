"""Looks at the names of a directory, and hands them to a visitor with what each of them is, in columns.

The walk knows no tool. The visitor decides what is done with the items (they are copied, read, removed). The kinds of
tasks that list directories and look at names ask their tool for a visitor.
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
"""The columns that a visitor gets."""


class Found:
    """Some names of one ``directory`` (open), and what each of them is: ``rows`` has the columns of ``LOOKED_AT``.

    ``packed`` are the names, joined by slashes. ``problems``: rows that could not be looked at, and why; their numbers
    mean nothing.
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
        """Each by itself, for what is not done with all of them at once."""
        if not self._names:
            self._names = unpack_names(self.packed, len(self))
        return self._names


class Visitor(Protocol):
    """Takes what one task finds in one directory. ``rows`` are never empty, and in the order of ``found``."""

    device: int | None
    """The directory's st_dev, None if it is not known."""
    links_apart: bool
    """Are inodes with several names no files and nodes, but ``linked``?"""

    def failed(self, name: bytes, problem: Problem) -> None:
        """A name could not be looked at."""

    def chosen(self, found: Found) -> Iterable[int]:
        """The rows that are visited. The others are not, and whoever does not choose one tells of it, if need be."""

    def directories(self, found: Found, rows: Sequence[int]) -> None:
        """They are not entered: what becomes of them is a task of its own."""

    def small_files(self, found: Found, rows: Sequence[int]) -> None:
        """Regular files of up to ``SMALL_FILE`` bytes."""

    def large_files(self, found: Found, rows: Sequence[int]) -> None:
        """Files that are larger, or on another file system than the directory: each is treated by itself."""

    def nodes(self, found: Found, rows: Sequence[int]) -> None:
        """Symbolic links, FIFOs, sockets and devices."""

    def linked(self, found: Found, rows: Sequence[int]) -> None:
        """Items with several names that are no directories."""

    def settle(self) -> Stepwise[None]:
        """Goes on, in slices, with what was handed over: that was all."""

    def finish(self) -> None:
        """All is settled."""


def visit(
    kernel: Kernel, directory: int, packed: bytes, visitor: Visitor, *, follow: bool, also: int = 0
) -> Stepwise[None]:
    """Looks at the names ``packed`` (joined by slashes; none is empty) in an open directory.

    ``follow`` symbolic links, or see them as such. ``also``: columns that are wanted beside ``LOOKED_AT``.
    """
    if packed:
        ticket = kernel.submit(Stat(directory, packed, LOOKED_AT | also, on_source=True, follow=follow))
        stated = yield from waited(kernel, ticket)
        hand_over(Found(directory, packed, stated.rows, _problems(directory, packed, stated, follow)), visitor)
    yield from visitor.settle()
    visitor.finish()


def _problems(directory: int, packed: bytes, stated: Stated, follow: bool) -> dict[int, Problem]:
    codes = stated.verdicts.codes
    if codes.count(Code.DONE) == len(codes):
        return {}
    names, numbers = unpack_names(packed), stated.verdicts.errnos
    unseen = [row for row, code in enumerate(codes) if code != Code.DONE]
    return {row: _unseen(directory, names[row], numbers[row], follow) for row in unseen}


def _unseen(directory: int, name: bytes, number: int, follow: bool) -> Problem:
    """Why a name has no status: it is gone, or leads nowhere, or can't be asked for."""
    gone = number == errno.ENOENT
    if gone and follow:
        try:
            os.stat(name, dir_fd=directory, follow_symlinks=False)
        except OSError:
            pass  # the name itself
        else:
            return Problem("stat", errno.ENOENT, on_source=True, text="a symbolic link that leads nowhere")
    return Problem("stat", number or errno.EIO, on_source=True, changed=gone)


def hand_over(found: Found, visitor: Visitor) -> None:
    """Tells the visitor what there is: what has failed, and of what it has chosen the rows of each sort."""
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
    """Are all of them small files, as most often? (This costs less than to sort them.)"""
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
    """The rows that are directories, linked, nodes, large files, and small ones."""
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
