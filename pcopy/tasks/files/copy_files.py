"""CopyFiles copies a batch of small regular files of one directory."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from pcopy.engine.ticket import Stepwise
from pcopy.fsio.half_written import beside
from pcopy.fsio.kernel.batches import SYNC, Copied, Copy, Plan
from pcopy.fsio.kernel.columns import DEVICE, VERSION, Code, Rows, Verdicts, pack_names, unpack_names
from pcopy.fsio.layout import PLAIN, Recipe, Target
from pcopy.fsio.patience import PASSING
from pcopy.fsio.problem import MetadataProblem, Problem
from pcopy.fsio.temporary import remove
from pcopy.signature.items import FILE
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import Action
from pcopy.tasks.base.attempts import failed_or_retried
from pcopy.tasks.base.dividing import cut_names, cuts
from pcopy.tasks.base.gathered import Gathered
from pcopy.tasks.base.kind import Divisible, Steps
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import Item, Known, Place, Unnamed
from pcopy.tasks.files.deciding import plans_for
from pcopy.tasks.files.existing import inherits_acl
from pcopy.tasks.files.layouts import laid_out, layout_at
from pcopy.tasks.files.name_items import Waiting
from pcopy.tasks.files.whole_file import Settled, copy_whole
from pcopy.tasks.verify.read_items import skipped

if TYPE_CHECKING:
    from pcopy.tasks.base.storing import StoredTogether

_CREATING = frozenset(map(int, (Plan.NEW, Plan.REPLACE, Plan.TEMPORARY)))
"""Plans that create a file."""
_UNDER_ANOTHER_NAME = {int(plan) | sync for plan in (Plan.REPLACE, Plan.TEMPORARY) for sync in (0, SYNC)}
"""Plans that create a file under a temporary name."""
_SOURCE = (Code.UNREAD, Code.CHANGED)
"""Results of rows that failed on the source's side."""
_DONE = int(Code.DONE)  # a constant of the module: no attribute look-up for each file


class CopyFiles(Divisible, code=10, doing="copying files of", is_note=False):
    """Task that copies small regular files of one directory. ``rows`` are the columns of ``VERSION``, packed, as a scan
    found them.
    """

    rows: bytes
    attempt: int

    def divide(self, portions: int) -> list[CopyFiles]:
        found, at = self.found(), cuts(self.items, portions)
        rows = [found.chosen(range(each.start, each.stop)).packed() for each in at]
        parts = zip(cut_names(self.names, at), rows, strict=True)
        return [self._replace(names=names, rows=rows) for names, rows in parts]

    def found(self) -> Rows:
        """Return the columns that a scan found: one for each field of a ``Version``."""
        return Rows.unpacked(self.rows, self.items, VERSION)

    def run(self, rank: Rank, result: Result) -> Steps:
        """Copy simple files in batches by the backend, then the remaining files one by one on the slow path."""
        if rank.options.dry_run:
            from pcopy.tasks.files.foreseen import foresee_files

            yield from foresee_files(rank, result, self.place, unpack_names(self.names), self.found())
            return
        place = self.place
        rows = self.found()
        try:
            source, target = rank.open_source(place), rank.open_target(place)
            inherits = inherits_acl(rank, place, target)
            rank.learn_times(target, rank.target_device(place), result.notices)
        except Problem as problem:
            for name, size in zip(unpack_names(self.names), rows.size, strict=True):
                result.fail(place, name, problem, size)
            return
        waiting = Waiting(rank, place, self.attempt)
        with waiting.spawned(result):
            planned = yield from _planned(self, rank, source, target, rows, inherits=inherits)
            try:
                batches = _by_layout(rank, place, planned)
            except Problem as problem:
                for name, size in zip(unpack_names(self.names), rows.size, strict=True):
                    failed_or_retried(result, place, name, problem, self.attempt, size)
                return
            for batch in batches:
                slow_rows = yield from _copy(self, rank, result, batch, waiting)
                if slow_rows:
                    names = unpack_names(batch.names)
                    items = [_item(self, names, batch.rows, row) for row in slow_rows]
                    yield from _with_care(rank, result, items, waiting)


def _with_care(rank: Rank, result: Result, items: Sequence[Item], waiting: Waiting) -> Steps:
    """Copy files one by one. Files that must be on stable storage before they get their names are stored together."""
    from pcopy.tasks.base.storing import StoredTogether  # imported late: the backend copies most files

    together, waiting_steps = StoredTogether(), list[Steps]()
    try:
        for item in items:
            steps, known = _copy_one(rank, result, item, waiting, together), len(together)
            waiting_steps.append(steps)
            for step in steps:
                if len(together) > known:
                    break
                yield step
            else:
                waiting_steps.pop()
            if together.is_full:
                yield from _named(rank, together, waiting_steps)
        yield from _named(rank, together, waiting_steps)
    finally:
        for steps in waiting_steps:
            steps.close()  # removes the temporary file


def _named(rank: Rank, together: StoredTogether, waiting_steps: list[Steps]) -> Steps:
    """Store the files that wait for stable storage, and run their generators until they have their names."""
    yield from together.store(rank)
    while waiting_steps:
        yield from waiting_steps[0]
        del waiting_steps[0]
        yield None


def _copy_one(rank: Rank, result: Result, item: Item, waiting: Waiting, together: StoredTogether) -> Steps:
    """Copy one file, and count it as failed or have it retried if that fails."""
    try:
        settled = yield from copy_whole(rank, result, item, linked=False, together=together)
        if settled.unnamed is not None:
            waiting.add(result, item, settled)
    except Problem as problem:
        failed_or_retried(result, item.place, item.name, problem, item.attempt, item.size)


def _planned(task: CopyFiles, rank: Rank, source: int, target: int, rows: Rows, *, inherits: bool) -> Stepwise[Copy]:
    """Return the batch that copies the files, with a plan for each."""
    place = task.place
    renames = rank.job.roots[place.root].item
    new_names = pack_names([rank.new_name(place, name) for name in unpack_names(task.names)]) if renames else task.names
    rows.mask |= DEVICE
    rows.device = array("Q", [rank.source_device(place) or 0]) * len(rows)
    plans = yield from plans_for(rank, place, target, new_names, rows)
    if rank.throttle.is_on:
        plans = yield from _paid_for(rank, plans, rows)
    temporaries = []
    if not _UNDER_ANOTHER_NAME.isdisjoint(plans):
        temporaries = [rank.temporary_names.next() if plan in _UNDER_ANOTHER_NAME else b"" for plan in plans]
    renamed = new_names if renames else b""
    return Copy(source, task.names, target, plans, rows, renamed, pack_names(temporaries), inherits=inherits)


def _paid_for(rank: Rank, plans: bytes | bytearray, rows: Rows) -> Stepwise[bytearray]:
    """Yield until the rate limit permits to copy these files; return their plans.

    A file that is too large to be moved at once under the limit is planned for the slow path, which moves it in pieces.
    """
    most = rank.throttle.at_once()
    is_copied = [plan & ~SYNC in _CREATING for plan in plans]
    sizes = [size if copied and size <= most else 0 for copied, size in zip(is_copied, rows.size, strict=True)]
    yield from rank.throttle.spend(sum(sizes))
    return bytearray(
        Plan.CARE if copied and size > most else plan
        for copied, size, plan in zip(is_copied, rows.size, plans, strict=True)
    )


def _by_layout(rank: Rank, place: Place, batch: Copy) -> list[Copy]:
    """Split the batch into batches whose files are created with the same layout. Raise ``Problem`` on failure."""
    layout = layout_at(rank, place)
    if layout.is_plain:
        return [batch]
    creating = [row for row, plan in enumerate(batch.plans) if plan & ~SYNC in _CREATING]
    if not creating:
        return [batch]
    names, sizes = unpack_names(batch.names), batch.rows.size
    found = layout.of_small_files(
        batch.directory,
        [names[row] for row in creating],
        [sizes[row] for row in creating],
        Target(batch.target, place.target_id.inode),
        follow=rank.options.dereference,
    )
    if len(found) == 1 and found[0][0] is PLAIN:
        return [batch]
    other_rows = [row for row, plan in enumerate(batch.plans) if plan & ~SYNC not in _CREATING]
    parts = [(recipe, [creating[row] for row in rows]) for recipe, rows in found]
    if other_rows:
        parts.append((PLAIN, other_rows))
    return [_part(batch, rows, recipe) for recipe, rows in parts]


def _part(batch: Copy, rows: list[int], recipe: Recipe) -> Copy:
    """Return the batch of these rows, created by ``recipe``."""

    def chosen(packed: bytes) -> bytes:
        names = unpack_names(packed) if packed else []
        return pack_names([names[row] for row in rows]) if names else b""

    return Copy(
        batch.directory,
        chosen(batch.names),
        batch.target,
        bytes(batch.plans[row] for row in rows),
        batch.rows.chosen(rows),
        chosen(batch.new_names),
        chosen(batch.temporaries),
        inherits=batch.inherits,
        recipe=recipe,
    )


def _copy(task: CopyFiles, rank: Rank, result: Result, batch: Copy, waiting: Waiting) -> Stepwise[list[int]]:
    """Copy the simple files of a batch by the backend. Return the rows that remain for the slow path."""
    place = task.place
    if rank.keeps:
        waiting.expect(unpack_names(batch.temporaries))
    done = yield from rank.moved(batch)
    codes = done.verdicts.codes
    if _DONE in codes:
        rank.succeeded()
        _tell_copied(place, rank, result, batch, done, waiting)
        with_other_layout = [each for row, each in done.applied.items() if each.layout and codes[row] == _DONE]
        for applied in with_other_layout:
            recipe = PLAIN
            if batch.recipe.attribute is not None and applied.fewer:
                recipe = Recipe(attribute=(batch.recipe.attribute[0], applied.fewer))
            laid_out(rank, result, place, recipe, batch.target, 1)
        laid_out(rank, result, place, batch.recipe, batch.target, codes.count(_DONE) - len(with_other_layout))
    if codes.count(_DONE) == len(codes) and not done.applied:
        return []
    return _tell_others(task, rank, result, batch, done, waiting)


def _tell_others(task: CopyFiles, rank: Rank, result: Result, batch: Copy, done: Copied, waiting: Waiting) -> list[int]:
    """Count skipped and failed files, and spawn a task for those that were not begun. Return the rows that remain for
    the slow path.
    """
    place, verdicts = task.place, done.verdicts
    names = unpack_names(batch.names)
    slow_rows, not_begun = [], []
    for row, code in enumerate(verdicts.codes):
        if code == _DONE:
            continue
        if code == Code.SKIPPED:
            skipped(rank, result, place, names[row], Known(FILE, batch.rows.size[row], b"", batch.rows.version(row)))
        elif code in (Code.CARE, Code.ANEW) or (code in _SOURCE and verdicts.errnos[row] in PASSING):
            slow_rows.append(row)
        elif code == Code.CANCELLED:
            not_begun.append(row)
        elif code == Code.LACKS and rank.keeps:  # a file with wrong metadata, and a message, is better than none
            made = Unnamed(unpack_names(batch.temporaries)[row], done.made[row], done.marks[row])
            known = Known(FILE, verdicts.bytes[row], done.digests[row], batch.rows.version(row))
            problem = verdicts.problem(row)
            assert isinstance(problem, MetadataProblem)
            waiting.add(result, _item(task, names, batch.rows, row), Settled(known, None, made, problem))
        else:
            failed_or_retried(result, place, names[row], verdicts.problem(row), task.attempt, batch.rows.size[row])
    for row, applied in done.applied.items():
        result.applied(place, names[row], applied)
    if not_begun:
        not_begun += slow_rows
        rows = batch.rows.chosen(not_begun).packed(VERSION)
        part = task._replace(names=pack_names(names[row] for row in not_begun), rows=rows)
        result.spawn(part, sum(batch.rows.size[row] for row in not_begun) + len(not_begun) * CALL_COST)
        return []
    return slow_rows


def _tell_copied(place: Place, rank: Rank, result: Result, batch: Copy, done: Copied, waiting: Waiting) -> None:
    """Count the copied files, or collect them until they are named, and record their digests."""
    verdicts = done.verdicts
    rows = verdicts.rows(Code.DONE)
    names = unpack_names(batch.names) if _needs_names(rank) else []
    if rank.options.inplace and rank.job.run > 1:
        new_names = unpack_names(batch.new_names) if batch.new_names else names
        for row in rows:
            # The file that an earlier run overwrote in place was replaced, so its mark is removed. If that fails,
            # FINISH removes it.
            with suppress(Problem):
                remove(batch.target, beside(new_names[row]))
    if rank.keeps:
        temporaries = unpack_names(batch.temporaries)
        for row in rows:
            made = Unnamed(temporaries[row], done.made[row], done.marks[row])
            known = verdicts.bytes[row], done.digests[row]
            waiting.add_file(names[row], made, batch.rows.version(row), *known, verdicts.nanoseconds[row])
        return
    if result.items.is_wanted:
        _itemize(place, result, batch, verdicts)
    result.count(counts.FILES, len(rows))
    is_all = len(rows) == len(batch.rows)
    result.count(counts.BYTES, verdicts.moved if is_all else sum(map(verdicts.bytes.__getitem__, rows)))
    if rank.signs or rank.options.verify:
        digested = Gathered()
        columns = batch.rows, verdicts.bytes, done.digests.data, counts.FILES
        if len(rows) == len(names):
            digested.add_rows(batch.names, *columns)
        else:
            digested.add_chosen(rows, names, *columns)
        result.digested_files(place, digested)


def _needs_names(rank: Rank) -> bool:
    """Return True if names of the copied files are needed after the batch."""
    options = rank.options
    return rank.keeps or options.inplace or rank.signs or options.verify or options.itemize or rank.gathers


def _itemize(place: Place, result: Result, batch: Copy, verdicts: Verdicts) -> None:
    """Record the outcome of each file that was created or replaced."""
    names, codes, plans = unpack_names(batch.names), verdicts.codes, batch.plans
    for action, plan in ((Action.COPY, Plan.NEW), (Action.REPLACE, Plan.REPLACE)):
        rows = [row for row, code in enumerate(codes) if code == _DONE and plans[row] & ~SYNC == plan]
        columns = (array("Q", map(column.__getitem__, rows)) for column in (verdicts.bytes, verdicts.nanoseconds))
        result.items.did_files(action, place, [names[row] for row in rows], *columns)


def _item(task: CopyFiles, names: list[bytes], rows: Rows, row: int) -> Item:
    """Return one of the files as an item."""
    place = task.place
    return Item(place.source_id.mount, rows.inode[row], rows.size[row], ((place, names[row]),), task.attempt)
