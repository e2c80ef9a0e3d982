"""The visitor of a removal: files, links and nodes go at once, in batches; directories are told to whoever looks."""

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

_REPLACED = "another item has taken its name since it was found: it stays"
OTHER_DEVICE = "another file system is mounted here, or it is a subvolume: it stays"


def remove_batch(
    rank: Rank, directory: int, packed: bytes, rows: Rows, count: Callable[[Removed], None] = lambda removed: None
) -> Stepwise[Removed]:
    """``count`` is told of what is removed, whatever happens to the task."""
    batch = Remove(directory, packed, rows, rank.deleted() if rank.options.delete else None)
    if len(rows) == 1 and rank.kernel.works_here:  # a directory, as a rule: a batch would take longer than the call
        alone = Removing(batch)
        alone.run(0, 1)
        count(alone.result)
        return alone.result
    return (yield from rank.counted(batch, count))


def problem_of(verdicts: Verdicts, row: int) -> Problem | None:
    """Why that row was not removed; None if it was."""
    code = verdicts.codes[row]
    if code == Code.DONE:
        return None
    return Problem("unlink", 0, text=_REPLACED) if code == Code.ANEW else verdicts.problem(row)


_PLAIN = {ord("f"): counts.FILES, ord("l"): counts.SYMLINKS}
"""What the directory itself tells enough of, and what is counted."""


_SIZED = (stat.S_IFREG, stat.S_IFDIR)
"""What a size says something about, and what is entered for that."""


class RemoveVisitor:
    """A ``Visitor``: removes all but directories; those are ``below``. ``left``: something stays."""

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
        """Are these the PATHs of prm's command line?"""
        self._below_path = place.path if rank.options.delete else place.path.partition(b"/")[2]
        """The directory's path below the root of a copy, or below such a PATH."""
        self.below: list[Place] = []
        self.staying: set[Place] = set()
        """Those among them of which only the contents may go."""
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
        """So many are not selected."""
        self.left = True
        self._tally.excluded(items)

    def _fail(self, name: bytes, problem: Problem, size: int = 0) -> None:
        self.left = True
        if problem.errno == errno.EBUSY and self._rank.options.delete and self._is_mount(name):
            self._result.warn(self._place, name, OTHER_DEVICE)
            return
        self._tally.failed(self._place, name, problem, size)

    def chosen(self, found: Found) -> Iterable[int]:
        if not self.selected.anything:
            return range(len(found))
        rows = [
            *filter(partial(self._is_chosen, found, {*self.selected.rows(self._below_path, found)}), range(len(found)))
        ]
        others = len(found) - len(found.problems) - sum(row not in found.problems for row in rows)
        if others:
            self._tally.found(others)
            self._leave(others)
        return rows

    def _is_chosen(self, found: Found, selected: set[int], row: int) -> bool:
        """A directory that is a PATH itself is; by its size only a file."""
        mode = found.rows.mode[row]
        if stat.S_ISDIR(mode) and self._is_path:
            return True
        return row in selected and not (self.selected.select.by_size and stat.S_IFMT(mode) not in _SIZED)

    def directories(self, found: Found, rows: Sequence[int]) -> None:
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
        """What a copy job would delete stays without a failure: that is what users are promised."""
        if self._rank.options.delete:
            self.left = True
            self._result.warn(self._place, name, OTHER_DEVICE)
        else:
            self._fail(name, problem)

    def _is_mount(self, name: bytes) -> bool:
        """Is something mounted at a file?"""
        flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
        with suppress(OSError), held_open(open_patiently(name, flags, dir_fd=self._directory)) as there:
            return mount_number(there) != mount_number(self._directory)
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
        """Removes files and symbolic links by the inodes that the directory tells; returns the other names.

        So does one that has another inode: something is mounted there, or another item has taken its name.
        """
        kinds, names = listed.kinds, listed.names
        plain = [row for row, kind in enumerate(kinds) if kind in _PLAIN]
        if not plain:
            return names
        rows, others = Rows(len(kinds), INODE), b""
        rows.inode = listed.inodes
        if len(plain) < len(kinds):
            each = unpack_names(names)
            others = pack_names(name for name, kind in zip(each, kinds, strict=True) if kind not in _PLAIN)
            names, rows = pack_names(map(each.__getitem__, plain)), rows.chosen(plain)
            kinds = bytes(map(kinds.__getitem__, plain))
        verdicts = (
            yield from remove_batch(self._rank, self._directory, names, rows, partial(self._count_plain, kinds))
        ).verdicts
        if verdicts.codes.count(Code.DONE) == len(rows):
            return others
        each, left = unpack_names(names), [others] if others else []
        for row, code in enumerate(verdicts.codes):
            if code == Code.ANEW:
                left.append(each[row])
            elif code != Code.DONE:
                self.failed(each[row], verdicts.problem(row))
        return pack_names(left)

    def _count_plain(self, kinds: bytes, removed: Removed) -> None:
        done, sizes = removed.verdicts.rows(Code.DONE), removed.seen.size
        size = sum(map(sizes.__getitem__, done))
        self._tally.found(len(done), size)
        self._tally.gone(map(_PLAIN.__getitem__, map(kinds.__getitem__, done)), size)

    def _remove(self, packed: bytes, rows: Rows) -> Steps:
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
            names, told = unpack_names(packed), [row for row in range(len(rows)) if row not in problems]
            told_sizes = [sizes[row] for row in told]
            self._tally.tell(self._place, [names[row] for row in told], [kinds[row] for row in told], told_sizes)

    def _remove_kept(self, names: list[bytes], rows: Rows) -> Stepwise[dict[int, Problem]]:
        """One by one, what is kept elsewhere (``--backup``); what went wrong, by rows."""
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
                elif (deleted := self._rank.deleted()) is not None:  # it was renamed
                    deleted[1] += 1
            except Problem as problem:
                problems[row] = problem
            yield None
        return problems

    def finish(self) -> None:
        """What was handed over has gone."""
