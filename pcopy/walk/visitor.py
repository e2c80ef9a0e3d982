"""Looks at the names of a directory, slice by slice, and hands names and status to a visitor, in columns.

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
from pcopy.fsio.kernel.columns import UNKNOWN
from pcopy.fsio.kernel.interface import SMALL_FILE
from pcopy.fsio.patience import PASSING, patiently
from pcopy.fsio.problem import Problem

NAMES_PER_SLICE = 32
"""Names after each of which the rank looks up from its work."""


class Found:
    """Some names of one ``directory`` (open), and what each of them is. Every column has one number for each name.

    ``status`` is all that stat(2) told of a row, for what is decided at once. ``problems``: rows that could not be
    looked at, and why; their numbers mean nothing.
    """

    __slots__ = ("device", "directory", "inode", "links", "mode", "names", "problems", "size", "status")

    def __init__(
        self, directory: int, names: Sequence[bytes], status: Sequence[os.stat_result], problems: Mapping[int, Problem]
    ) -> None:
        self.directory = directory
        self.names = names
        self.status = status
        self.problems = problems
        # A status is a tuple, too: all columns at once.
        self.mode, self.inode, self.device, self.links, _, _, self.size, *_ = zip(*status, strict=True)


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

    def settle(self, *, last: bool) -> Stepwise[None]:
        """Goes on, in slices, with what was handed over; the ``last`` time all names have been."""

    def finish(self) -> None:
        """All is settled."""


def visit(directory: int, names: Sequence[bytes], visitor: Visitor, *, follow: bool) -> Stepwise[None]:
    """Looks at ``names`` in an open directory, in their order; ``follow`` symbolic links, or see them as such."""
    for start in range(0, len(names), NAMES_PER_SLICE):
        yield None
        hand_over(look_at(directory, names[start : start + NAMES_PER_SLICE], follow=follow), visitor)
        yield from visitor.settle(last=start + NAMES_PER_SLICE >= len(names))
    visitor.finish()


def look_at(directory: int, names: Sequence[bytes], *, follow: bool) -> Found:
    """The status of each of ``names`` in a source: an error that may pass is waited for."""
    look = os.stat
    statuses: list[os.stat_result] = []
    problems: dict[int, Problem] = {}
    for name in names:
        try:
            status = look(name, dir_fd=directory, follow_symlinks=follow)
        except OSError as first:
            try:
                status = _look_again(directory, name, first, follow)
            except OSError as error:
                problems[len(statuses)] = _unseen(directory, name, error, follow)
                status = UNKNOWN
        statuses.append(status)
    return Found(directory, names, statuses, problems)


def _look_again(directory: int, name: bytes, first: OSError, follow: bool) -> os.stat_result:
    """The status of a name whose stat failed with an error that may pass; raises ``OSError``."""
    if first.errno not in PASSING:
        raise first
    return patiently(lambda: os.stat(name, dir_fd=directory, follow_symlinks=follow))


def _unseen(directory: int, name: bytes, error: OSError, follow: bool) -> Problem:
    """Why a name has no status: it is gone, or leads nowhere, or can't be asked for."""
    gone = error.errno == errno.ENOENT
    if gone and follow:
        try:
            os.stat(name, dir_fd=directory, follow_symlinks=False)
        except OSError:
            pass  # the name itself
        else:
            return Problem("stat", errno.ENOENT, on_source=True, text="a symbolic link that leads nowhere")
    return Problem("stat", error.errno or errno.EIO, on_source=True, changed=gone)


def hand_over(found: Found, visitor: Visitor) -> None:
    """Tells the visitor what there is: what has failed, and of what it has chosen the rows of each sort."""
    for row, problem in found.problems.items():
        visitor.failed(found.names[row], problem)
    chosen = visitor.chosen(found)
    sorts = ([], [], [], [], list(chosen)) if _are_small(found, visitor) else _sorted(found, visitor, chosen)
    takes = visitor.directories, visitor.linked, visitor.nodes, visitor.large_files, visitor.small_files
    for rows, take in zip(sorts, takes, strict=True):
        if rows:
            take(found, rows)


def _are_small(found: Found, visitor: Visitor) -> bool:
    """Are all of them small files, as most often? (This costs less than to sort them.)"""
    return (
        not found.problems
        and set(map(stat.S_IFMT, found.mode)) == {stat.S_IFREG}
        and max(found.size) <= SMALL_FILE
        and set(found.device) == {visitor.device}
        and not (visitor.links_apart and max(found.links) > 1)
    )


def _sorted(found: Found, visitor: Visitor, chosen: Iterable[int]) -> tuple[list[int], ...]:
    """The rows that are directories, linked, nodes, large files, and small ones."""
    modes, links, sizes, devices = found.mode, found.links, found.size, found.device
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
