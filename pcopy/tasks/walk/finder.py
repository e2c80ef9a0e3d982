"""Decides which names of a directory are reported, in which form, and which sub-directories are entered."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from itertools import compress

from pcopy.engine.ticket import Stepwise
from pcopy.fsio.kernel.batches import Stat
from pcopy.fsio.kernel.columns import KINDS, MODE, MTIME, SIZE, Code, Rows, Verdicts, pack_names
from pcopy.fsio.kernel.directory_batches import Summed, SumsWithin
from pcopy.fsio.kernel.interface import Tally, waited
from pcopy.fsio.problem import Problem
from pcopy.tasks.base import counts
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result, Tried
from pcopy.tasks.base.selected import Selected
from pcopy.tasks.base.values import Place
from pcopy.tasks.walk.sum_up import Summing
from pcopy.tasks.walk.tell_found import Handover
from pcopy.walk.forms import ENDS, form_of, mask_of
from pcopy.walk.matching import DIRECTORY, UNKNOWN, Items, compiled, is_cheap, opens, parted, types_of, wanted
from pcopy.walk.walk_wish import WalkWish

HERE = -100
"""Value in place of a directory descriptor: paths start from the working directory (``AT_FDCWD``), as PATHs of the
command line do.
"""

_FILE = ord("f")
_COUNTERS = {_FILE: counts.FILES, DIRECTORY: counts.DIRECTORIES, ord("l"): counts.SYMLINKS}


def columns_of(wish: WalkWish) -> int:
    """Return the mask of the columns that ranks must stat for items that pass the cheap tests. It includes ``SIZE``,
    since sizes are counted.
    """
    whole = wish.prints and not is_cheap(wish.tree)
    mask = wanted(wish.tree if whole else parted(wish.tree)[1]) | wish.sort_mask
    if wish.forms or wish.columns:
        mask |= mask_of(wish.fields)
    if wish.sums:
        from pcopy.walk.sums import WalkSums

        mask |= WalkSums.MASK
    return mask


class Finder:
    """The walk's request with its tests compiled; one object per rank."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.wish = wish = WalkWish(*rank.options.walk)
        whole = wish.prints and not is_cheap(wish.tree)
        cheap, dear = (("true",), wish.tree) if whole else parted(wish.tree)
        self._cheap, self._dear = compiled(cheap), compiled(dear)
        self._prints_early = wish.prints and not whole
        self._prints_late = whole
        self._forms = [form_of(name, wish.fields) for name in wish.forms]
        self.mask = columns_of(wish)
        """The columns that are needed of the reported items."""
        self.summing = rank.own(Summing) if wish.sums else None
        self.opens_all = opens(wish.tree, "xattr")
        """True if a test needs more than the status of an item (extended attributes)."""
        self.opens_items = self.opens_all or opens(wish.tree, "empty")
        """True if that holds for directories at least (``-empty``)."""
        self._looks = bool(self.mask) or not is_cheap(dear)
        self._selected = rank.own(Selected)
        kinds = types_of(cheap)
        is_whole = self._looks and kinds is not None and not self._selected.anything
        self._seen_at_once = (self.mask, kinds or b"") if is_whole else (0, b"")
        select = rank.options.select
        self._leaves_out_directories = select.by_age or select.by_size
        """True if filters by age or size apply: they select files, and a reported directory would stand for all its
        contents.
        """
        takes_all = cheap == dear == ("true",) and not (wish.prints or wish.columns or self._selected.anything)
        ends = [ENDS[name] for name in wish.forms if name in ENDS]
        are_paths = takes_all and not self._looks and self.summing is None and len(ends) == len(wish.forms)
        self._ends = ends if are_paths else []
        self._sums_all = takes_all and not wish.forms

    @property
    def telling(self) -> Handover:
        """A new, empty ``Handover``."""
        return Handover(len(self._forms))

    def above(self, place: Place) -> bytes:
        """Return the beginning of the paths of items in this directory, ending with a slash."""
        top = self._rank.job.roots[place.root].source_shown
        top = top if top.endswith(b"/") else top + b"/"
        return top + place.path + b"/" if place.path else top

    def enters(self, depth: int) -> bool:
        """Return True if directories at this depth are entered."""
        return self.wish.most_depth < 0 or depth < self.wish.most_depth

    def seen_at_once(self, parent: Place, names: Sequence[bytes]) -> tuple[int, bytes, Tally | None, int]:
        """Return what the backend must determine for items in some sub-directories of ``parent``, whatever their names
        are.

        The result is a tuple of

        - the mask of the columns,
        - the types of items that need them (empty: all),
        - the ``Tally`` to which the backend adds the items, if only sums are wanted, else None,
        - the size from which on a file may be one of the largest there.
        """
        summing = self.summing
        if summing is None or not self._sums_all or depth_in(parent) + 1 < self.wish.least_depth:
            return *self._seen_at_once, None, 0
        if summing.wants_layouts(parent, self.path_of(parent)):
            return *self._seen_at_once, None, 0
        first = self.above(parent) + min(name + b"/" for name in names)
        return *self._seen_at_once, summing.sums.tally, summing.sums.least_named(first)

    def sum_all(self, result: Result, place: Place, kinds: bytes, summed: Summed) -> None:
        """Count and report all items of a directory, whose sums the backend has computed; ``kinds`` are their types."""
        assert self.summing is not None
        self.summing.sums.add_summed(self.above(place), kinds, depth_in(place), summed)
        self._tell_counts(result, kinds)
        result.count(counts.BYTES, summed.size)
        result.count(counts.FOUND_BYTES, summed.size)

    def tells_all(self, depth: int) -> bool:
        """Return True if only paths are reported, of all items at this depth; ``tell_all_in`` then reports them."""
        return bool(self._ends) and depth >= self.wish.least_depth

    def tell_all_in(self, result: Result, place: Place, names: bytes, kinds: bytes, output: Handover) -> None:
        """Report all names (joined by slashes) of a directory; ``kinds`` are their types."""
        above = self.above(place)
        for number, end in enumerate(self._ends):
            output.write(number, above + names.replace(b"/", end + above) + end)
        self._tell_counts(result, kinds)

    def _tell_counts(self, result: Result, kinds: bytes) -> None:
        """Count items of these types as found and reported."""
        result.count(counts.FOUND, len(kinds))
        count_kinds(result, kinds)

    def tell_paths(self, result: Result, text: bytes, sums: SumsWithin, output: Handover) -> None:
        """As ``tell_all_in``, for several directories whose paths the backend has written, each ending with a NUL."""
        for number, end in enumerate(self._ends):
            output.write(number, text.replace(b"\0", end))
        numbers = sums.files, sums.directories, sums.links, sums.others
        result.count(counts.FOUND, sum(numbers))
        for counter, number_of_kind in zip((*_COUNTERS.values(), counts.SPECIAL), numbers, strict=True):
            result.count(counter, number_of_kind)

    def look(
        self,
        result: Result,
        place: Place,
        directory: int,
        packed: bytes,
        kinds: bytes,
        output: Handover,
        seen: Rows | None = None,
    ) -> Stepwise[Sequence[int]]:
        """Test names of a directory and report those that are wanted; return the rows of the directories to be entered.

        Args:
            directory: descriptor of the directory; a negative one is opened if it is needed.
            packed: the names, joined by slashes.
            kinds: their types.
            seen: their statuses, if they were statted already.
        """
        names = packed.split(b"/")
        depth = depth_in(place)
        items = Items(directory, self.above(place), names, kinds, seen)
        rows: Sequence[int] = range(len(names))
        if UNKNOWN in kinds:
            rows = yield from self._learn(result, place, items)
        if self._selected.anything:
            selected_before, unseen = len(rows), len(items.unseen)
            rows = yield from self._chosen(result, place, items, rows)
            result.count(counts.EXCLUDED, selected_before - len(rows) - (len(items.unseen) - unseen))
        inside = [row for row in rows if items.kinds[row] == DIRECTORY] if DIRECTORY in items.kinds else []
        reported = yield from self.tell(result, place, items, rows, depth, output)
        found = len(names) - len(items.unseen)
        result.count(counts.FOUND, found)
        result.count(counts.SKIPPED, found - reported)
        if not inside or not self.enters(depth):
            return ()
        closed = items.pruned | items.unseen
        return [row for row in inside if row not in closed] if closed else inside

    def _learn(self, result: Result, place: Place, items: Items) -> Stepwise[Sequence[int]]:
        """Stat the names whose type the listing does not give; return the rows of the items that exist."""
        rows = [row for row, kind in enumerate(items.kinds) if kind == UNKNOWN]
        kinds = bytearray(items.kinds)
        seen, rows_left = yield from self._stat(result, place, items, rows, MODE)
        for row, mode in zip(rows_left, seen.mode, strict=True):
            kinds[row] = kind_of(mode)
        items.kinds = bytes(kinds)
        return [row for row in range(len(kinds)) if row not in items.unseen]

    def _stat(
        self, result: Result, place: Place, items: Items, rows: Sequence[int], mask: int
    ) -> Stepwise[tuple[Rows, Sequence[int]]]:
        """Stat some items; return their columns, and the rows that these belong to.

        The other rows become ``unseen``: vanished items are ignored, all others have failed.
        """
        names = items.names
        if items.directory < 0:
            items.directory = self._rank.open_source(place)
        packed = pack_names(names) if len(rows) == len(names) else pack_names([names[row] for row in rows])
        kernel = self._rank.kernel
        stated = yield from waited(kernel, kernel.submit(Stat(items.directory, packed, mask)))
        codes = stated.verdicts.codes
        if codes.count(Code.DONE) == len(codes):
            return stated.rows, rows
        done = stated.verdicts.rows(Code.DONE)
        remaining = [rows[row] for row in done]
        items.unseen.update({*rows}.difference(remaining))
        self._tell_unseen(result, place, [names[row] for row in rows], stated.verdicts)
        return stated.rows.chosen(done), remaining

    def _tell_unseen(self, result: Result, place: Place, names: Sequence[bytes], verdicts: Verdicts) -> None:
        """Report names that could not be statted; this alone counts them as found. Vanished items are ignored."""
        for row, code in enumerate(verdicts.codes):
            problem = None if code == Code.DONE else verdicts.problem(row)
            if problem is not None and problem.errno != errno.ENOENT:
                result.count(counts.FOUND)
                result.fail(place, names[row], problem, retry=Tried.NEVER)

    def _chosen(self, result: Result, place: Place, items: Items, rows: Sequence[int]) -> Stepwise[Sequence[int]]:
        """Return the rows that the filters (``--exclude`` and others) select."""
        selected, path = self._selected, place.path
        above = path + b"/" if path else b""
        if not (selected.select.by_age or selected.select.by_size):
            return [
                row
                for row in rows
                if not selected.excludes(above + items.names[row] + (b"/" if items.kinds[row] == DIRECTORY else b""))
            ]
        seen, rows = yield from self._stat(result, place, items, rows, MODE | SIZE | MTIME)
        columns = zip(rows, seen.mode, seen.size, seen.times("mtime"), strict=True)
        return [row for row, *status in columns if selected.takes(above + items.names[row], *status)]

    def tell(
        self, result: Result, place: Place, items: Items, rows: Sequence[int], depth: int, output: Handover
    ) -> Stepwise[int]:
        """Evaluate the expression and report the items that fulfil it; return how many these are.

        Raise ``Problem`` if the directory cannot be opened.
        """
        if depth < self.wish.least_depth or not rows:
            return 0
        rows = self._cheap(items, rows)
        if self._prints_early:
            rows = sorted(items.printed)
        if not rows:
            return 0
        statted = items
        if self._looks and items.rows is None:
            seen, rows = yield from self._looked(result, place, items, rows)
            statted = items.chosen(rows, seen)
            chosen = self._dear(statted, range(len(rows)))
            items.pruned.update(rows[row] for row in statted.pruned)
        else:
            chosen = self._dear(items, rows)
        if self._prints_late:
            chosen = sorted(statted.printed)
        chosen = self._told(statted, chosen)
        if not chosen:
            return 0
        reported = statted if len(chosen) == len(statted) and not self.wish.prints else statted.chosen(chosen)
        self.emit(reported, depth, output)
        if self.summing is not None:
            yield from self.summing.look_at_layouts(result, place, self.path_of(place), reported)
        return self._count(result, reported)

    def listed(self, place: Place, entries: int) -> None:
        """Record that a directory with this many entries was listed."""
        if self.summing is not None:
            self.summing.listed(place, self.path_of(place), entries)

    def _told(self, items: Items, rows: Sequence[int]) -> Sequence[int]:
        """Return the rows that are reported: without directories if filters by age or size apply."""
        if not self._leaves_out_directories:
            return rows
        return [row for row in rows if items.kinds[row] != DIRECTORY]

    def _looked(
        self, result: Result, place: Place, items: Items, rows: Sequence[int]
    ) -> Stepwise[tuple[Rows, Sequence[int]]]:
        """Stat the rows if any column is needed; return the columns, and the rows that these belong to."""
        if self.mask:
            return (yield from self._stat(result, place, items, rows, self.mask))
        return Rows(len(rows), 0), rows

    def tell_root(self, result: Result, items: Items, output: Handover) -> int:
        """Report a PATH of the command line, which has been statted; return 1 if it is reported, else 0.

        Filters do not exclude it, unless it is a directory and they select files only.
        """
        return 0 if self.wish.least_depth > 0 else self._tell_seen(result, items, output)

    def tell_all(self, result: Result, items: Items, output: Handover) -> None:
        """Report items of a list about which everything that is needed is known."""
        number = self._tell_seen(result, items, output)
        result.count(counts.FOUND, len(items))
        result.count(counts.SKIPPED, len(items) - number)

    def is_told(self, place: Place) -> bool:
        """Return True if this directory itself is reported. It is tested again, by its current status; if it cannot be
        statted any more, True.
        """
        parent, _, name = place.path.rpartition(b"/")
        root, names = self._rank.job.roots[place.root], [name]
        directory, above = HERE, b""
        try:
            if place.path:
                directory, above = self._rank.sources[place.root].open(parent), self.above(place._replace(path=parent))
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            else:
                names, status = [root.source_shown], os.lstat(root.source_shown)
        except (OSError, Problem):
            return True
        items = Items(directory, above, names, bytes((DIRECTORY,)), Rows.of([status], self.mask))
        return depth_in(place) > self.wish.least_depth and bool(self._chosen_seen(items))

    def _chosen_seen(self, items: Items) -> Sequence[int]:
        """Return the rows of statted items that are reported."""
        chosen = self._dear(items, self._cheap(items, range(len(items))))
        return self._told(items, sorted(items.printed) if self.wish.prints else chosen)

    def _tell_seen(self, result: Result, items: Items, output: Handover) -> int:
        """Report statted items that fulfil the expression; return how many these are."""
        chosen = self._chosen_seen(items)
        if not chosen:
            return 0
        reported = items if len(chosen) == len(items) else items.chosen(chosen)
        self.emit(reported, 0, output)
        return self._count(result, reported)

    def path_of(self, place: Place) -> bytes:
        """Return the path of a directory as it is reported."""
        top = self._rank.job.roots[place.root].source_shown
        return self.above(place)[:-1] if place.path else top

    def emit(self, reported: Items, depth: int, output: Handover) -> None:
        """Write these items in all forms that were requested, and add them to the sums."""
        if self.summing is not None:
            self.summing.sums.add(reported, depth)
        if self.wish.columns:
            output.add(reported)
        else:
            for number, form in enumerate(self._forms):
                output.write(number, form(reported))

    def _count(self, result: Result, reported: Items) -> int:
        """Count the reported items and return their number; an item reported twice (``-print -print``) counts once."""
        number = len(reported) if not self.wish.prints else len(set(reported.names))
        kinds = (
            reported.kinds
            if number == len(reported)
            else bytes(dict(zip(reported.names, reported.kinds, strict=True)).values())
        )
        count_kinds(result, kinds)
        if reported.rows is not None and reported.rows.size:
            sizes = reported.rows.size
            size = sum(
                sizes
                if reported.kinds.count(b"f") == len(sizes)
                else compress(sizes, map(_FILE.__eq__, reported.kinds))
            )
            result.count(counts.BYTES, size)
            result.count(counts.FOUND_BYTES, size)
        return number


def count_kinds(result: Result, kinds: bytes) -> None:
    """Count reported items of these types."""
    remaining = len(kinds)
    for kind, counter in _COUNTERS.items():
        number = kinds.count(kind)
        remaining -= number
        if number:
            result.count(counter, number)
    if remaining:
        result.count(counts.SPECIAL, remaining)


def depth_in(place: Place) -> int:
    """Return the depth of the items in this directory; a PATH of the command line has depth 0."""
    return place.path.count(b"/") + 2 if place.path else 1


def kind_of(mode: int) -> int:
    return KINDS.get(mode & 0o170000, UNKNOWN)
