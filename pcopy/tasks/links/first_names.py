"""The first names of inodes with several names: the kernel copies the plain ones, many at a time."""

from __future__ import annotations

import stat
from collections.abc import Sequence

from pcopy.engine.ticket import Stepwise
from pcopy.fsio.identity import Identity
from pcopy.fsio.kernel.batches import SYNC, Copy, Plan, Stat
from pcopy.fsio.kernel.columns import DEVICE, MODE, VERSION, Code, Rows, pack_names
from pcopy.fsio.kernel.decide import make_plan
from pcopy.fsio.kernel.interface import waited
from pcopy.fsio.problem import MetadataProblem, Problem
from pcopy.signature.items import FILE
from pcopy.tasks.base import counts
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import Item, Known, Place
from pcopy.tasks.files.deciding import policy_of
from pcopy.tasks.files.existing import inherits_acl
from pcopy.tasks.files.whole_file import Settled


def first_names(rank: Rank, result: Result, items: Sequence[Item]) -> Stepwise[dict[Item, Settled | Problem]]:
    """Copies those small files of which this can be done without care; tells what became of these, and counts nothing.

    With the others nothing is done, which finds out why. A ``Problem`` is what the metadata of a copy lack. Raises
    ``Cancelled``.
    """
    copied: dict[Item, Settled | Problem] = {}
    for place, those in _by_place(rank, items).items():
        try:
            source, target = rank.open_source(place), rank.open_target(place)
            inherits = inherits_acl(rank, place, target)
        except Problem:  # which each of them tells by itself
            continue
        found = yield from _found(rank, place, source, those)
        if found is None:
            continue
        names, good, rows = found
        plans = bytes((make_plan(policy_of(rank, place)),)) * len(good)
        recipe = rank.layout.of_small_files(source)
        batch = Copy(source, names, target, plans, rows, inherits=inherits, recipe=recipe, identified=True)
        done = yield from waited(rank.kernel, rank.kernel.submit(batch))
        rank.counters[counts.MOVED] += done.verdicts.moved
        for row, code in enumerate(done.verdicts.codes):
            made = Identity(place.target_id.mount, done.made[row], done.marks[row])
            if code == Code.DONE:
                known = Known(FILE, done.verdicts.bytes[row], done.digests[row], rows.version(row))
                copied[good[row]] = Settled(known, made)
                if row in done.applied:
                    result.applied(place, good[row].name, done.applied[row])
            elif code == Code.LACKS:
                problem = done.verdicts.problem(row)
                assert isinstance(problem, MetadataProblem)
                problem.made = made
                copied[good[row]] = problem
    return copied


def _by_place(rank: Rank, items: Sequence[Item]) -> dict[Place, list[Item]]:
    """By the directory of the first name, where nothing can have that name, and the kernel may make it."""
    places: dict[Place, list[Item]] = {}
    if rank.options.reflink == "always":
        return places
    for item in items:
        place = item.place
        if place.fresh and not rank.job.roots[place.root].item:
            places.setdefault(place, []).append(item)
    return {place: those for place, those in places.items() if make_plan(policy_of(rank, place)) & ~SYNC == Plan.NEW}


def _found(rank: Rank, place: Place, source: int, items: list[Item]) -> Stepwise[tuple[bytes, list[Item], Rows] | None]:
    """The items that are what was found, with their names and what they are now; None if there are none."""
    names = pack_names(item.name for item in items)
    batch = Stat(source, names, VERSION | DEVICE | MODE, follow=rank.options.dereference)
    stated = yield from waited(rank.kernel, rank.kernel.submit(batch))
    codes, rows = stated.verdicts.codes, stated.rows
    good = [
        row
        for row, item in enumerate(items)
        if codes[row] == Code.DONE
        and stat.S_ISREG(rows.mode[row])
        and rows.inode[row] == item.inode
        and rank.source_device(place, item.mount) in (None, rows.device[row])
    ]
    if not good:
        return None
    return pack_names(items[row].name for row in good), [items[row] for row in good], rows.chosen(good)
