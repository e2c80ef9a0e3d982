"""The visitor of a change: what differs from what is wanted is changed in batches, and directories are entered."""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from pcopy.engine.ticket import Stepwise
from pcopy.fsio.kernel.batches import Judged, Listed, Mend, Mended, MendPlain, Stat
from pcopy.fsio.kernel.columns import GROUP, INODE, OWNER, Code, Rows, pack_names, unpack_names
from pcopy.fsio.kernel.interface import waited
from pcopy.fsio.problem import Problem
from pcopy.signature.items import FILE, type_of
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import Action
from pcopy.tasks.base.hashing import SOCKET
from pcopy.tasks.base.kind import Steps
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import Result, Tried
from pcopy.tasks.base.selected import Selected
from pcopy.tasks.base.values import Place
from pcopy.tasks.change.change_tree import MOUNTED
from pcopy.tasks.change.intent import Differing, Intent, told, without
from pcopy.tasks.listed.deepest_first import COLUMNS, VisitLater, tell_later
from pcopy.walk.visitor import LOOKED_AT, Found

_PLAIN = b"fl"
"""What the directory itself tells enough of, as it lists it."""
MOST_INODES = 1 << 20
"""Inodes with several names that a rank remembers in a dry run. The next name of an older one counts as a new item."""
DECISIONS = 3
"""How often the change of one item is decided, if something else changes its mode or owner meanwhile."""
_REPLACED = "it has changed, or another item has taken its name, since it was found: it stays as it is"


class ChangeVisitor:
    """A ``Visitor`` of all kinds of items. An item counts as its kind once it is as it should be, and as mended if it
    was changed for that."""

    links_apart = False

    def __init__(self, rank: Rank, result: Result, place: Place, attempt: int) -> None:
        self._rank = rank
        self._result = result
        self._place = place
        self.device = rank.source_device(place)
        self._intent = rank.own(Intent)
        self._selected = rank.own(Selected)
        self._is_listed = bool(rank.job.listed)
        self._is_path = not (place.path or self._is_listed)
        """Are these the PATHs of the command line?"""
        self._below_path = place.path.partition(b"/")[2]
        self._items: list[tuple[Found, Sequence[int]]] = []
        self.below: list[tuple[bytes, int]] = []
        """Directories that are to be entered, with their inodes (or ``MOUNTED``)."""

    def failed(self, name: bytes, problem: Problem) -> None:
        """What has gone by itself was never there, unless somebody has named it."""
        is_named = self._is_path or self._is_listed
        if problem.errno == errno.ENOENT and not is_named:
            return
        self._result.count(counts.FOUND)
        if not is_named and self._selected.excludes_in_any_case(os.path.join(self._below_path, name)):
            self._leave(1)
        else:
            self._fail(name, problem)

    def _fail(self, name: bytes, problem: Problem, size: int = 0) -> None:
        self._result.fail(self._place, name, problem, size, retry=Tried.NEVER)

    def _leave(self, items: int) -> None:
        """So many are not selected."""
        self._result.count(counts.SKIPPED, items)
        self._result.count(counts.EXCLUDED, items)

    def chosen(self, found: Found) -> Iterable[int]:
        there = len(found) - len(found.problems)
        self._result.count(counts.FOUND, there)
        if not self._selected.anything:
            return range(len(found))
        if self._is_path:
            modes, sizes, times = found.rows.mode, found.rows.size, found.rows.times("mtime")
            takes = self._selected.takes_item
            rows = [
                row
                for row, mode in enumerate(modes)
                if stat.S_ISDIR(mode) or row in found.problems or takes(mode, sizes[row], times[row])
            ]
        else:
            rows = self._selected.rows(self._below_path, found)
        self._leave(there - sum(row not in found.problems for row in rows))
        return rows

    def directories(self, found: Found, rows: Sequence[int]) -> None:
        self._items.append((found, rows))

    small_files = large_files = nodes = linked = directories

    def settle(self) -> Steps:
        for found, rows in self._items:
            packed, columns = found.packed, found.rows
            if len(rows) < len(found):
                packed, columns = pack_names(map(found.names.__getitem__, rows)), columns.chosen(rows)
            self._result.count(counts.FOUND_BYTES, _size_of(columns))
            if any(map(stat.S_ISDIR, {*columns.mode})):
                yield from self._change_directories(found.directory, packed, columns)
            else:
                yield from self._change(found.directory, packed, columns)

    def finish(self) -> None:
        """What was handed over is as it should be, or has failed."""

    def _change_directories(self, directory: int, packed: bytes, rows: Rows) -> Steps:
        """And what is in them, if they were not listed. (There may be other items beside them.)"""
        names = unpack_names(packed)
        if not self._is_listed:
            self._enter(names, rows)
        select = self._selected.select
        stay = select.by_size or select.by_age  # which say nothing of directories
        yield from self._change(directory, packed, rows, stay=bool(stay), closes=self._closes)

    def _enter(self, names: Sequence[bytes], rows: Rows) -> None:
        for row, mode in enumerate(rows.mode):
            if stat.S_ISDIR(mode):
                self.below.append((names[row], rows.inode[row] if rows.device[row] == self.device else MOUNTED))
        self._result.count(counts.UNSCANNED, len(self.below))

    def _closes(self, rows: Rows, row: int, mode: int, uid: int) -> bool:
        return stat.S_ISDIR(rows.mode[row]) and self._intent.closes(rows.mode[row], rows.uid[row], mode, uid)

    @property
    def changes_at_once(self) -> bool:
        """May items be changed by what a listing tells of them?"""
        is_told = self._result.items.is_wanted or self._rank.options.dry_run
        return not (is_told or self._selected.anything or self._intent.acls)

    def change_plain(self, directory: int, listed: Listed) -> Stepwise[bytes]:
        """Changes files and symbolic links by the inodes that the directory tells; returns the other names.

        An item whose inode is not the one that was listed is among these names. Nothing was decided for the listed one
        but by its name and inode, so the new one is decided from its own status, as if it had been there when the
        directory was listed, and as chmod -R does. A change that was decided from the status of one item, as a set-id
        bit for the owner that it has, is never applied to another: see ``_decided_anew``.
        """
        intent, packed, others = self._intent, listed.names, list[bytes]()
        rows = Rows(0, INODE)
        rows.number, rows.inode = len(listed.kinds), listed.inodes
        if listed.kinds.translate(None, _PLAIN):
            names = unpack_names(packed)
            plain = [row for row, kind in enumerate(listed.kinds) if kind in _PLAIN]
            if not plain:
                return packed
            others = [name for name, kind in zip(names, listed.kinds, strict=True) if kind not in _PLAIN]
            packed, rows = pack_names(names[row] for row in plain), rows.chosen(plain)
        batch = MendPlain(directory, packed, rows, intent.modes, intent.uid, intent.gid)
        mended = yield from self._rank.counted(batch, self._count_plain)
        codes = mended.verdicts.codes
        if codes.count(Code.DONE) + codes.count(Code.SKIPPED) < len(rows):
            names = unpack_names(packed)
            for row, code in enumerate(codes):
                if code == Code.ANEW:
                    others.append(names[row])
                elif code not in (Code.DONE, Code.SKIPPED) and mended.verdicts.errnos[row] != errno.ENOENT:
                    self._result.count(counts.FOUND)
                    self._fail(names[row], mended.verdicts.problem(row))
        return pack_names(others)

    def _count_plain(self, mended: Mended) -> None:
        codes, seen = mended.verdicts.codes, mended.seen
        done, unchanged = codes.count(Code.DONE), codes.count(Code.SKIPPED)
        if done + unchanged < len(codes):
            seen = seen.chosen([row for row, code in enumerate(codes) if code in (Code.DONE, Code.SKIPPED)])
        self._result.count(counts.FOUND, done + unchanged)
        self._result.count(counts.FOUND_BYTES, sum(seen.size))
        self._result.count(counts.MENDED, done)
        self._count(seen)

    def later(self, directory: int, names: bytes, rows: Rows) -> Steps:
        """Change directories in which all is done, or count names of ``InodesForeseen``: fills ``LaterVisitor``."""
        if self._rank.options.dry_run and not any(map(stat.S_ISDIR, rows.mode)):
            yield from self._foresee_linked(directory, names, rows)
        else:
            yield from self._change(directory, names, rows)

    def _foresee_linked(self, directory: int, packed: bytes, before: Rows) -> Steps:
        stated = yield from self._rank.done(Stat(directory, packed, LOOKED_AT | OWNER | GROUP))
        rows, names, same = stated.rows, unpack_names(packed), list[int]()
        for row, code in enumerate(stated.verdicts.codes):
            if code == Code.DONE and rows.inode[row] == before.inode[row]:
                same.append(row)
            else:
                problem = Problem("stat", 0, text=_REPLACED) if code == Code.DONE else stated.verdicts.problem(row)
                self._not_changed(names[row], problem, 0)
        if same:
            some = pack_names(map(names.__getitem__, same))
            yield from self._change(directory, some, rows.chosen(same), is_owner=True)

    def _change(
        self,
        directory: int,
        packed: bytes,
        rows: Rows,
        *,
        stay: bool = False,
        closes: Callable[[Rows, int, int, int], bool] | None = None,
        is_owner: bool = False,
    ) -> Steps:
        """Change what differs; directories ``stay``, or wait if the change ``closes`` them.

        A dry run hands inodes with several names to their owner, which calls this with ``is_owner``.
        """
        names = unpack_names(packed)
        differing = self._intent.differing(directory, names, rows)
        for row, problem in differing.unknown.items():
            self._fail(names[row], problem, _size_of(rows.chosen([row])))
        if stay:
            differing = differing.without(row for row in differing.rows if stat.S_ISDIR(rows.mode[row]))
        waiting: list[int] = []
        if closes is not None:
            columns = zip(differing.rows, differing.wanted.mode, differing.wanted.uid, strict=True)
            waiting = [row for row, mode, uid in columns if closes(rows, row, mode, uid)]
        if waiting:
            differing = differing.without(waiting)
            tell_later(self._result, self._place, [names[row] for row in waiting], rows.chosen(waiting))
        if self._rank.options.dry_run and (linked := _linked(rows, differing)):
            if is_owner:
                foreseen = self._rank.own(InodesForeseen)
                differing = differing.without([row for row in linked if foreseen.is_further_name(rows, row)])
            else:
                self._to_owners(names, rows, linked)
                differing = differing.without(linked)
                waiting += linked
        failed = yield from self._mend(directory, packed, rows, differing)
        done = without(range(len(rows)), {*waiting, *failed, *differing.unknown})
        self._count(rows if len(done) == len(rows) else rows.chosen(done))
        if self._result.items.is_wanted:
            self._tell(names, rows, differing, {*done})

    def _to_owners(self, names: Sequence[bytes], rows: Rows, linked: Sequence[int]) -> None:
        by_owner: dict[int, list[int]] = {}
        for row in linked:
            by_owner.setdefault(rows.inode[row] % self._rank.size, []).append(row)
        for owner, some in by_owner.items():
            packed, columns = pack_names(names[row] for row in some), rows.chosen(some).packed(COLUMNS)
            self._result.spawn(VisitLater(self._place, packed, columns), len(some) * CALL_COST, owner=owner)

    def _mend(self, directory: int, packed: bytes, rows: Rows, differing: Differing) -> Stepwise[set[int]]:
        """The rows that were not changed, and should be."""
        if not differing.rows:
            return set()
        if self._rank.options.dry_run:
            self._result.count(counts.MENDED, len(differing.rows))
            return set()
        if len(differing.rows) < len(rows):
            names = unpack_names(packed)
            packed, rows = pack_names(names[row] for row in differing.rows), rows.chosen(differing.rows)
        problems = yield from self._mended(directory, packed, rows, differing.wanted)
        names = unpack_names(packed) if problems else []
        for row, problem in problems.items():
            size = rows.size[row] if rows.size and stat.S_ISREG(rows.mode[row]) else 0
            self._not_changed(names[row], problem, size)
        return {differing.rows[row] for row in problems}

    def _mended(
        self, directory: int, packed: bytes, rows: Rows, wanted: Rows, tries: int = DECISIONS
    ) -> Stepwise[dict[int, Problem]]:
        """Change all rows, and return why some were not changed.

        An item whose mode or owner is no longer what the change was decided by is looked at and decided again: another
        rank may have changed it under a further name.
        """
        batch = Mend(directory, packed, rows, wanted, self._intent.acls)
        verdicts = (yield from self._rank.counted(batch, self._count_mended)).verdicts
        if verdicts.codes.count(Code.DONE) == len(rows):
            return {}
        problems = {
            row: Problem("stat", 0, text=_REPLACED) if code == Code.ANEW else verdicts.problem(row)
            for row, code in enumerate(verdicts.codes)
            if code != Code.DONE
        }
        anew = [row for row, code in enumerate(verdicts.codes) if code == Code.ANEW]
        if anew and tries > 1:
            names = unpack_names(packed)
            some = pack_names(map(names.__getitem__, anew))
            left = yield from self._decided_anew(directory, some, rows.chosen(anew), tries - 1)
            for at, row in enumerate(anew):
                del problems[row]
                if at in left:
                    problems[row] = left[at]
        return problems

    def _decided_anew(self, directory: int, packed: bytes, before: Rows, tries: int) -> Stepwise[dict[int, Problem]]:
        """As ``_mended``, for items that are looked at once more; what is no longer the item of ``before`` stays."""
        ticket = self._rank.kernel.submit(Stat(directory, packed, before.mask, on_source=True))
        stated = yield from waited(self._rank.kernel, ticket)
        now, names, problems, same = stated.rows, unpack_names(packed), dict[int, Problem](), list[int]()
        for row, code in enumerate(stated.verdicts.codes):
            if code != Code.DONE:
                problems[row] = stated.verdicts.problem(row)
            elif now.is_item_of(row, before):
                same.append(row)
            else:
                problems[row] = Problem("stat", 0, text=_REPLACED)
        names, now = [names[row] for row in same], now.chosen(same)
        differing = self._intent.differing(directory, names, now)
        problems.update((same[row], problem) for row, problem in differing.unknown.items())
        if differing.rows:
            some, rows = pack_names(names[row] for row in differing.rows), now.chosen(differing.rows)
            left = yield from self._mended(directory, some, rows, differing.wanted, tries)
            problems.update((same[differing.rows[row]], problem) for row, problem in left.items())
        return problems

    def _count_mended(self, mended: Judged) -> None:
        self._result.count(counts.MENDED, mended.verdicts.codes.count(Code.DONE))

    def _not_changed(self, name: bytes, problem: Problem, size: int) -> None:
        if problem.errno == errno.ENOENT and not (self._is_path or self._is_listed):
            self._result.count(counts.FOUND, -1)
            self._result.count(counts.FOUND_BYTES, -size)
        else:
            self._fail(name, problem, size)

    def _count(self, rows: Rows) -> None:
        for mode, number in Counter(rows.mode).items():
            self._result.count(counts.of_kind(type_of(mode)), number)
        self._result.count(counts.BYTES, _size_of(rows))

    def _tell(self, names: Sequence[bytes], rows: Rows, differing: Differing, done: set[int]) -> None:
        wanted = differing.wanted
        changes = {
            row: told(rows, row, self._intent.bits(rows.mode[row], mode), uid, gid)
            for row, mode, uid, gid in zip(differing.rows, wanted.mode, wanted.uid, wanted.gid, strict=True)
        }
        for row in done:
            kind = type_of(rows.mode[row]) or SOCKET
            size = rows.size[row] if kind == FILE and rows.size else 0
            action = Action.META if row in changes else Action.SKIP
            self._result.items.did(action, self._place, names[row], kind, size, change=changes.get(row, ""))


class InodesForeseen:
    """The inodes with several names that a dry run has counted as changed, on the rank that owns them.

    A run changes an inode under one name; then its other names are unchanged.
    """

    def __init__(self, rank: Rank) -> None:
        self._seen: dict[tuple[int, int], None] = {}

    def is_further_name(self, rows: Rows, row: int) -> bool:
        """Return True if this was asked of another name of the inode before."""
        inode = rows.device[row], rows.inode[row]
        if inode in self._seen:
            return True
        self._seen[inode] = None
        if len(self._seen) > MOST_INODES:
            del self._seen[next(iter(self._seen))]
        return False


def _linked(rows: Rows, differing: Differing) -> list[int]:
    """Return the differing rows with several names, but for directories."""
    links = rows.links
    return [row for row in differing.rows if links[row] > 1 and not stat.S_ISDIR(rows.mode[row])] if links else []


def _size_of(rows: Rows) -> int:
    """The bytes of regular files."""
    if not rows.size:
        return 0
    if all(map(stat.S_ISREG, {*rows.mode})):
        return sum(rows.size)
    return sum(size for size, mode in zip(rows.size, rows.mode, strict=True) if stat.S_ISREG(mode))
