"""What a rank does with the names of a directory: which of them are told, in what form, and which are entered."""

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
"""A PATH of the command line starts from the working directory, as for ``openat``."""

_FILE = ord("f")
_COUNTERS = {_FILE: counts.FILES, DIRECTORY: counts.DIRECTORIES, ord("l"): counts.SYMLINKS}


def columns_of(wish: WalkWish) -> int:
    """Those that ranks look up, of what the cheap tests leave; ``SIZE`` among them: sizes are counted."""
    whole = wish.prints and not is_cheap(wish.tree)
    mask = wanted(wish.tree if whole else parted(wish.tree)[1]) | wish.sort_mask
    if wish.forms or wish.columns:
        mask |= mask_of(wish.fields)
    if wish.sums:
        from pcopy.walk.sums import WalkSums

        mask |= WalkSums.MASK
    return mask


class Finder:
    """A rank's one: the job's wish, with its tests compiled."""

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
        """The columns that are wanted of what is told."""
        self.summing = rank.own(Summing) if wish.sums else None
        self.opens_all = opens(wish.tree, "xattr")
        """Does it ask items for more than their status?"""
        self.opens_items = self.opens_all or opens(wish.tree, "empty")
        """Or directories at least?"""
        self._looks = bool(self.mask) or not is_cheap(dear)
        self._selected = rank.own(Selected)
        kinds = types_of(cheap)
        is_whole = self._looks and kinds is not None and not self._selected.anything
        self._seen_at_once = (self.mask, kinds or b"") if is_whole else (0, b"")
        select = rank.options.select
        self._leaves_out_directories = select.by_age or select.by_size
        """Such filters choose files: a directory that is told would stand for all that is in it."""
        takes_all = cheap == dear == ("true",) and not (wish.prints or wish.columns or self._selected.anything)
        ends = [ENDS[name] for name in wish.forms if name in ENDS]
        are_paths = takes_all and not self._looks and self.summing is None and len(ends) == len(wish.forms)
        self._ends = ends if are_paths else []
        self._sums_all = takes_all and not wish.forms

    @property
    def telling(self) -> Handover:
        return Handover(len(self._forms))

    def above(self, place: Place) -> bytes:
        """The beginning of the paths of what is in this directory."""
        top = self._rank.job.roots[place.root].source_shown
        top = top if top.endswith(b"/") else top + b"/"
        return top + place.path + b"/" if place.path else top

    def enters(self, depth: int) -> bool:
        """Are directories of this depth entered?"""
        return self.wish.most_depth < 0 or depth < self.wish.most_depth

    def seen_at_once(self, around: Place, names: Sequence[bytes]) -> tuple[int, bytes, Tally | None, int]:
        """Which columns are wanted of what is in some directories in this one, whatever its name is; of which types
        (none: all); and, if sums are all that is wanted, what it is added to, with the size of the largest file there.
        """
        summing = self.summing
        if summing is None or not self._sums_all or depth_in(around) + 1 < self.wish.least_depth:
            return *self._seen_at_once, None, 0
        if summing.wants_layouts(around, self.path_of(around)):
            return *self._seen_at_once, None, 0
        first = self.above(around) + min(name + b"/" for name in names)
        return *self._seen_at_once, summing.sums.tally, summing.sums.least_named(first)

    def sum_all(self, result: Result, place: Place, kinds: bytes, summed: Summed) -> None:
        """All items of a directory are told, which have these types."""
        assert self.summing is not None
        self.summing.sums.add_summed(self.above(place), kinds, depth_in(place), summed)
        self._tell_counts(result, kinds)
        result.count(counts.BYTES, summed.size)
        result.count(counts.FOUND_BYTES, summed.size)

    def tells_all(self, depth: int) -> bool:
        """Are paths alone told, of all that is found in this depth? Then ``tell_all_in`` does it."""
        return bool(self._ends) and depth >= self.wish.least_depth

    def tell_all_in(self, result: Result, place: Place, names: bytes, kinds: bytes, telling: Handover) -> None:
        """Tells of all names (joined by slashes) of a directory, of these types."""
        above = self.above(place)
        for number, end in enumerate(self._ends):
            telling.write(number, above + names.replace(b"/", end + above) + end)
        self._tell_counts(result, kinds)

    def _tell_counts(self, result: Result, kinds: bytes) -> None:
        result.count(counts.FOUND, len(kinds))
        count_kinds(result, kinds)

    def tell_paths(self, result: Result, text: bytes, sums: SumsWithin, telling: Handover) -> None:
        """As ``tell_all_in``, of several directories: paths, each with a zero at its end."""
        for number, end in enumerate(self._ends):
            telling.write(number, text.replace(b"\0", end))
        told = sums.files, sums.directories, sums.links, sums.others
        result.count(counts.FOUND, sum(told))
        for counter, some in zip((*_COUNTERS.values(), counts.SPECIAL), told, strict=True):
            result.count(counter, some)

    def look(
        self,
        result: Result,
        place: Place,
        directory: int,
        packed: bytes,
        kinds: bytes,
        telling: Handover,
        seen: Rows | None = None,
    ) -> Stepwise[Sequence[int]]:
        """Looks at names of a directory (open; below 0: it is opened if need be), unless they were ``seen``, and tells
        of those that are wanted; returns the rows of the directories among them that are to be entered."""
        names = packed.split(b"/")
        depth = depth_in(place)
        items = Items(directory, self.above(place), names, kinds, seen)
        rows: Sequence[int] = range(len(names))
        if UNKNOWN in kinds:
            rows = yield from self._learn(result, place, items)
        if self._selected.anything:
            there, unseen = len(rows), len(items.unseen)
            rows = yield from self._chosen(result, place, items, rows)
            result.count(counts.EXCLUDED, there - len(rows) - (len(items.unseen) - unseen))
        inside = [row for row in rows if items.kinds[row] == DIRECTORY] if DIRECTORY in items.kinds else []
        told = yield from self.tell(result, place, items, rows, depth, telling)
        found = len(names) - len(items.unseen)
        result.count(counts.FOUND, found)
        result.count(counts.SKIPPED, found - told)
        if not inside or not self.enters(depth):
            return ()
        closed = items.pruned | items.unseen
        return [row for row in inside if row not in closed] if closed else inside

    def _learn(self, result: Result, place: Place, items: Items) -> Stepwise[Sequence[int]]:
        """What the directory does not tell of the types of some names; returns the rows that are there."""
        rows = [row for row, kind in enumerate(items.kinds) if kind == UNKNOWN]
        kinds = bytearray(items.kinds)
        seen, left = yield from self._stat(result, place, items, rows, MODE)
        for row, mode in zip(left, seen.mode, strict=True):
            kinds[row] = kind_of(mode)
        items.kinds = bytes(kinds)
        return [row for row in range(len(kinds)) if row not in items.unseen]

    def _stat(
        self, result: Result, place: Place, items: Items, rows: Sequence[int], mask: int
    ) -> Stepwise[tuple[Rows, Sequence[int]]]:
        """Looks at some of them: their columns, and which of the rows they are of. The others are ``unseen``: what has
        gone was never there, and all else has failed."""
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
        left = [rows[row] for row in done]
        items.unseen.update({*rows}.difference(left))
        self._tell_unseen(result, place, [names[row] for row in rows], stated.verdicts)
        return stated.rows.chosen(done), left

    def _tell_unseen(self, result: Result, place: Place, names: Sequence[bytes], verdicts: Verdicts) -> None:
        """``FOUND`` counts those that have failed here, and nowhere else."""
        for row, code in enumerate(verdicts.codes):
            problem = None if code == Code.DONE else verdicts.problem(row)
            if problem is not None and problem.errno != errno.ENOENT:
                result.count(counts.FOUND)
                result.fail(place, names[row], problem, retry=Tried.NEVER)

    def _chosen(self, result: Result, place: Place, items: Items, rows: Sequence[int]) -> Stepwise[Sequence[int]]:
        """What the project's filters choose."""
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
        self, result: Result, place: Place, items: Items, rows: Sequence[int], depth: int, telling: Handover
    ) -> Stepwise[int]:
        """Asks the expression; returns of how many items was told. Raises ``Problem``: the directory does not open."""
        if depth < self.wish.least_depth or not rows:
            return 0
        rows = self._cheap(items, rows)
        if self._prints_early:
            rows = sorted(items.printed)
        if not rows:
            return 0
        looked = items
        if self._looks and items.rows is None:
            seen, rows = yield from self._looked(result, place, items, rows)
            looked = items.chosen(rows, seen)
            chosen = self._dear(looked, range(len(rows)))
            items.pruned.update(rows[row] for row in looked.pruned)
        else:
            chosen = self._dear(items, rows)
        if self._prints_late:
            chosen = sorted(looked.printed)
        chosen = self._told(looked, chosen)
        if not chosen:
            return 0
        told = looked if len(chosen) == len(looked) and not self.wish.prints else looked.chosen(chosen)
        self.emit(told, depth, telling)
        if self.summing is not None:
            yield from self.summing.look_at_layouts(result, place, self.path_of(place), told)
        return self._count(result, told)

    def listed(self, place: Place, entries: int) -> None:
        """A directory was listed, and has so many entries."""
        if self.summing is not None:
            self.summing.listed(place, self.path_of(place), entries)

    def _told(self, items: Items, rows: Sequence[int]) -> Sequence[int]:
        if not self._leaves_out_directories:
            return rows
        return [row for row in rows if items.kinds[row] != DIRECTORY]

    def _looked(
        self, result: Result, place: Place, items: Items, rows: Sequence[int]
    ) -> Stepwise[tuple[Rows, Sequence[int]]]:
        if self.mask:
            return (yield from self._stat(result, place, items, rows, self.mask))
        return Rows(len(rows), 0), rows

    def tell_root(self, result: Result, items: Items, telling: Handover) -> int:
        """A PATH of the command line, which has been looked at; returns 1 if it is told. Filters never leave it out,
        but as a directory where they choose files."""
        return 0 if self.wish.least_depth > 0 else self._tell_seen(result, items, telling)

    def tell_all(self, result: Result, items: Items, telling: Handover) -> None:
        """Items of a list, of which all is known that is wanted."""
        told = self._tell_seen(result, items, telling)
        result.count(counts.FOUND, len(items))
        result.count(counts.SKIPPED, len(items) - told)

    def is_told(self, place: Place) -> bool:
        """Is this directory itself told? Asks once more, of what it is now; if that is not known any more, it was."""
        around, _, name = place.path.rpartition(b"/")
        root, names = self._rank.job.roots[place.root], [name]
        directory, above = HERE, b""
        try:
            if place.path:
                directory, above = self._rank.sources[place.root].open(around), self.above(place._replace(path=around))
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            else:
                names, status = [root.source_shown], os.lstat(root.source_shown)
        except (OSError, Problem):
            return True
        items = Items(directory, above, names, bytes((DIRECTORY,)), Rows.of([status], self.mask))
        return depth_in(place) > self.wish.least_depth and bool(self._chosen_seen(items))

    def _chosen_seen(self, items: Items) -> Sequence[int]:
        chosen = self._dear(items, self._cheap(items, range(len(items))))
        return self._told(items, sorted(items.printed) if self.wish.prints else chosen)

    def _tell_seen(self, result: Result, items: Items, telling: Handover) -> int:
        chosen = self._chosen_seen(items)
        if not chosen:
            return 0
        told = items if len(chosen) == len(items) else items.chosen(chosen)
        self.emit(told, 0, telling)
        return self._count(result, told)

    def path_of(self, place: Place) -> bytes:
        """Of a directory, as it is told."""
        top = self._rank.job.roots[place.root].source_shown
        return self.above(place)[:-1] if place.path else top

    def emit(self, told: Items, depth: int, telling: Handover) -> None:
        """These are what is wanted."""
        if self.summing is not None:
            self.summing.sums.add(told, depth)
        if self.wish.columns:
            telling.add(told)
        else:
            for number, form in enumerate(self._forms):
                telling.write(number, form(told))

    def _count(self, result: Result, told: Items) -> int:
        """What is told twice (``-print -print``) counts once."""
        number = len(told) if not self.wish.prints else len(set(told.names))
        kinds = told.kinds if number == len(told) else bytes(dict(zip(told.names, told.kinds, strict=True)).values())
        count_kinds(result, kinds)
        if told.rows is not None and told.rows.size:
            sizes = told.rows.size
            size = sum(
                sizes if told.kinds.count(b"f") == len(sizes) else compress(sizes, map(_FILE.__eq__, told.kinds))
            )
            result.count(counts.BYTES, size)
            result.count(counts.FOUND_BYTES, size)
        return number


def count_kinds(result: Result, kinds: bytes) -> None:
    """So many items of these types are told."""
    left = len(kinds)
    for kind, counter in _COUNTERS.items():
        some = kinds.count(kind)
        left -= some
        if some:
            result.count(counter, some)
    if left:
        result.count(counts.SPECIAL, left)


def depth_in(place: Place) -> int:
    """Of what is in this directory."""
    return place.path.count(b"/") + 2 if place.path else 1


def kind_of(mode: int) -> int:
    return KINDS.get(mode & 0o170000, UNKNOWN)
