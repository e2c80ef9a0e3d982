"""The visitor of a removal: removes files, links and special files in batches; collects directories for the caller."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from pcopy.engine.ticket import Stepwise
from pcopy.fsio.close import held_open
from pcopy.fsio.identity import Identity
from pcopy.fsio.kernel.batches import Listed, Remove, Removed
from pcopy.fsio.kernel.columns import INODE, Code, Rows, Verdicts, pack_names, unpack_names
from pcopy.fsio.kernel.item_rows import Removing
from pcopy.fsio.mounted import mount_number
from pcopy.fsio.patience import open_patiently
from pcopy.fsio.problem import Problem
from pcopy.signature.items import FILE, type_of
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import Steps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.selected import Selected
from pcopy.tasks.base.values import NOWHERE, Place
from pcopy.tasks.files.existing import look
from pcopy.tasks.remove.removal_counts import RemovalCounts, only_looks
from pcopy.walk.visitor import Found

_REPLACED = "another item has taken its name since it was found: not removed"
OTHER_DEVICE = "another file system is mounted here, or it is a subvolume: not removed"


def remove_batch(
    rank: Rank, directory: int, packed: bytes, rows: Rows, count: Callable[[Removed], None] = lambda removed: None
) -> Stepwise[Removed]:
    """Remove the items of a batch and return the result; ``count`` receives the result even if the task is dropped
    meanwhile.

    Args:
        directory: descriptor of the directory.
        packed: names of the items.
        rows: status of each item as it was found.
    """
    batch = Remove(directory, packed, rows, rank.deleted() if rank.options.delete else None)
    # A single row is usually a directory: submitting a batch would take longer than the system call.
    if len(rows) == 1 and rank.kernel.works_here:
        alone = Removing(batch)
        alone.run(0, 1)
        count(alone.result)
        return alone.result
    return (yield from rank.counted(batch, count))


def problem_of(verdicts: Verdicts, row: int) -> Problem | None:
    """Return why the item of that row was not removed; None if it was."""
    code = verdicts.codes[row]
    if code == Code.DONE:
        return None
    return Problem("unlink", 0, text=_REPLACED) if code == Code.ANEW else verdicts.problem(row)


_PLAIN = {ord("f"): counts.FILES, ord("l"): counts.SYMLINKS}
"""Kinds of items that are removed without a stat(2), as the listing says enough about them; with their counters."""


_SIZED = (stat.S_IFREG, stat.S_IFDIR)
"""File types to which a size filter applies: regular files, and directories, which are entered."""


class RemoveVisitor:
    """A ``Visitor`` that removes all items but directories, which it collects in ``below``. ``left`` is True if any
    item is not removed.
    """

    links_apart = False

    def __init__(self, rank: Rank, result: Result, place: Place, directory: int, device: int) -> None:
        self._rank = rank
        self._result = result
        self._place = place
        self._directory = directory
        self._tally = RemovalCounts(rank, result)
        self.device: int | None = device
        self.selected = rank.own(Selected)
        self._is_path = not (rank.options.delete or place.path)
        """True if the names are the PATHs of prm's command line."""
        self._below_path = place.path if rank.options.delete else place.path.partition(b"/")[2]
        """Path of the directory below the root of a copy, or below the PATH of prm."""
        self.below: list[Place] = []
        self.staying: set[Place] = set()
        """The directories of ``below`` of which only the contents may be removed."""
        self.left = False
        self._items: list[tuple[Found, Sequence[int]]] = []

    def failed(self, name: bytes, problem: Problem) -> None:
        if problem.errno == errno.ENOENT:
            return
        self._tally.found()
        if not self._is_path and self.selected.excludes_in_any_case(os.path.join(self._below_path, name)):
            self._leave(1)
        else:
            self._fail(name, problem)

    def _leave(self, items: int) -> None:
        """Count this many items as not selected."""
        self.left = True
        self._tally.excluded(items)

    def _fail(self, name: bytes, problem: Problem, size: int = 0) -> None:
        self.left = True
        if problem.errno == errno.EBUSY and self._rank.options.delete and self._is_mount(name):
            self._result.warn(self._place, name, OTHER_DEVICE)
            return
        self._tally.failed(self._place, name, problem, size)

    def chosen(self, found: Found) -> Iterable[int]:
        """Return the rows to remove; count all others as excluded by the filters."""
        if not self.selected.anything:
            return range(len(found))
        rows = [
            *filter(partial(self._is_chosen, found, {*self.selected.rows(self._below_path, found)}), range(len(found)))
        ]
        excluded = len(found) - len(found.problems) - sum(row not in found.problems for row in rows)
        if excluded:
            self._tally.found(excluded)
            self._leave(excluded)
        return rows

    def _is_chosen(self, found: Found, selected: set[int], row: int) -> bool:
        """Return True if the item of that row is selected. A directory that is a PATH always is; size filters select
        regular files only.
        """
        mode = found.rows.mode[row]
        if stat.S_ISDIR(mode) and self._is_path:
            return True
        return row in selected and not (self.selected.select.by_size and stat.S_IFMT(mode) not in _SIZED)

    def directories(self, found: Found, rows: Sequence[int]) -> None:
        """Collect directories to remove later, except mount points, which are reported."""
        self._tally.found(len(rows))
        for row in rows:
            name = found.names[row]
            if found.rows.device[row] != self.device:
                self._mounted(name, Problem("stat", 0, text=OTHER_DEVICE))
                continue
            path = os.path.join(self._place.path, name)
            identity = Identity(self._place.source_id.mount, found.rows.inode[row])
            below = Place(self._place.root, path, identity, NOWHERE, False, False)
            self.below.append(below)
            if not self.selected.may_remove_directory(found.rows.time("mtime", row)):
                self.staying.add(below)

    def _mounted(self, name: bytes, problem: Problem) -> None:
        """Record that ``name`` is a mount point: a warning in a copy job (as documented), a failure in prm."""
        if self._rank.options.delete:
            self.left = True
            self._result.warn(self._place, name, OTHER_DEVICE)
        else:
            self._fail(name, problem)

    def _is_mount(self, name: bytes) -> bool:
        """Return True if something is mounted on the file ``name``."""
        flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
        with suppress(OSError), held_open(open_patiently(name, flags, dir_fd=self._directory)) as file:
            return mount_number(file) != mount_number(self._directory)
        return False

    def small_files(self, found: Found, rows: Sequence[int]) -> None:
        self._items.append((found, rows))

    large_files = nodes = linked = small_files

    def settle(self) -> Steps:
        for found, rows in self._items:
            if len(rows) == len(found):
                yield from self._remove(found.packed, found.rows)
            else:
                yield from self._remove(pack_names(map(found.names.__getitem__, rows)), found.rows.chosen(rows))

    def remove_plain(self, listed: Listed) -> Stepwise[bytes]:
        """Remove files and symbolic links by the inode numbers in the listing; return the other names, packed.

        A name with another inode number than the listing says is returned, too: it is a mount point, or was replaced.
        """
        kinds, names = listed.kinds, listed.names
        direct = [row for row, kind in enumerate(kinds) if kind in _PLAIN]
        if not direct:
            return names
        rows, other_names = Rows(len(kinds), INODE), b""
        rows.inode = listed.inodes
        if len(direct) < len(kinds):
            each = unpack_names(names)
            other_names = pack_names(name for name, kind in zip(each, kinds, strict=True) if kind not in _PLAIN)
            names, rows = pack_names(map(each.__getitem__, direct)), rows.chosen(direct)
            kinds = bytes(map(kinds.__getitem__, direct))
        verdicts = (
            yield from remove_batch(self._rank, self._directory, names, rows, partial(self._count_plain, kinds))
        ).verdicts
        if verdicts.codes.count(Code.DONE) == len(rows):
            return other_names
        each, remaining = unpack_names(names), [other_names] if other_names else []
        for row, code in enumerate(verdicts.codes):
            if code == Code.ANEW:
                remaining.append(each[row])
            elif code != Code.DONE:
                self.failed(each[row], verdicts.problem(row))
        return pack_names(remaining)

    def _count_plain(self, kinds: bytes, removed: Removed) -> None:
        done, sizes = removed.verdicts.rows(Code.DONE), removed.seen.size
        size = sum(map(sizes.__getitem__, done))
        self._tally.found(len(done), size)
        self._tally.gone(map(_PLAIN.__getitem__, map(kinds.__getitem__, done)), size)

    def _remove(self, packed: bytes, rows: Rows) -> Steps:
        """Remove the items ``packed``, which were found as ``rows`` says; count and report each."""
        kinds = [type_of(mode) for mode in rows.mode]
        sizes = [size if kind == FILE else 0 for kind, size in zip(kinds, rows.size, strict=True)]
        self._tally.found(len(rows), sum(sizes))
        problems: dict[int, Problem] = {}

        def gone(done: Sequence[int]) -> None:
            self._tally.gone((counts.of_kind(kinds[row]) for row in done), sum(map(sizes.__getitem__, done)))

        if only_looks(self._rank):
            gone(range(len(rows)))
        elif self._rank.options.backup:
            problems = yield from self._remove_kept(unpack_names(packed), rows)
            gone([row for row in range(len(rows)) if row not in problems])
        else:
            verdicts = (
                yield from remove_batch(
                    self._rank, self._directory, packed, rows, lambda removed: gone(removed.verdicts.rows(Code.DONE))
                )
            ).verdicts
            problems = {row: problem for row in range(len(rows)) if (problem := problem_of(verdicts, row)) is not None}
        for row, problem in problems.items():
            if problem.errno == errno.ENOENT:
                self._tally.found(-1, -sizes[row])
            else:
                self._fail(unpack_names(packed)[row], problem, sizes[row])
        if self._result.items.is_wanted:
            names, removed_rows = unpack_names(packed), [row for row in range(len(rows)) if row not in problems]
            told_sizes = [sizes[row] for row in removed_rows]
            self._tally.tell(
                self._place, [names[row] for row in removed_rows], [kinds[row] for row in removed_rows], told_sizes
            )

    def _remove_kept(self, names: list[bytes], rows: Rows) -> Stepwise[dict[int, Problem]]:
        """Remove items one by one, after moving them to the ``--backup`` directory; return the problems by row."""
        from pcopy.tasks.files.backup import Backup

        problems: dict[int, Problem] = {}
        for row, name in enumerate(names):
            try:
                status = look(self._directory, name)
                if status is None:
                    raise Problem("stat", errno.ENOENT)
                if not rows.is_item(row, status):
                    raise Problem("unlink", 0, text=_REPLACED)
                if not self._rank.own(Backup).keep(self._place, self._directory, name, status):
                    verdicts = (yield from remove_batch(self._rank, self._directory, name, rows.chosen([row]))).verdicts
                    problem = problem_of(verdicts, 0)
                    if problem is not None:
                        raise problem
                elif (deleted := self._rank.deleted()) is not None:  # renamed into the backup: counts as deleted
                    deleted[1] += 1
            except Problem as problem:
                problems[row] = problem
            yield None
        return problems

    def finish(self) -> None:
        """Do nothing: all items have been removed by ``settle``."""
