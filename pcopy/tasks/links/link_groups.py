"""LinkGroups: copy several inodes that have several names each, in columns; ``LinkGroup`` describes what is done with
each.

The backend copies the first names in batches where this is possible.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise

from pcopy.engine.task import Task
from pcopy.engine.ticket import Stepwise
from pcopy.fsio.identity import Identity
from pcopy.fsio.kernel.batches import SYNC, Copy, Plan, Stat
from pcopy.fsio.kernel.columns import DEVICE, MODE, VERSION, Code, Rows, pack_names, unpack_names
from pcopy.fsio.kernel.decide import make_plan
from pcopy.fsio.kernel.interface import SMALL_FILE
from pcopy.fsio.problem import MetadataProblem, Problem
from pcopy.signature.items import FILE
from pcopy.tasks.base.actions import Action, How
from pcopy.tasks.base.kind import Gone, Kind, Steps
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import Item, Known, Place, pack_numbers, unpack_numbers
from pcopy.tasks.files.deciding import policy_of
from pcopy.tasks.files.existing import inherits_acl
from pcopy.tasks.files.layouts import layout_at
from pcopy.tasks.files.whole_file import Settled
from pcopy.tasks.links.link_group import LinkGroup, copy_group

MOST_NAMES = 128
"""Maximum number of names of one task, unless all of them belong to one inode."""
MOST_BYTES = 4 << 20
"""Total size in bytes from which on a task gets no further inodes."""


class LinkGroups(Kind, code=37, doing="copying and linking", is_note=False):
    """As ``LinkGroup``, for several items on their first attempt.

    Fields:

    - ``places_of``: the directories in which the names lie.
    - ``names``: all names, packed, item by item.
    - ``lying``: for each name the index of its directory in ``places_of``.
    - ``lengths``: number of names of each item.
    - ``mounts``, ``inodes``, ``sizes``: one number for each item.
    """

    places_of: tuple[Place, ...]
    names: bytes
    lying: bytes
    lengths: bytes
    mounts: bytes
    inodes: bytes
    sizes: bytes

    def about(self) -> tuple[Place, bytes]:
        return self.places_of[unpack_numbers(self.lying)[0]], self.names.partition(b"/")[0]

    def each(self) -> list[Item]:
        """Return the items."""
        places = (self.places_of[number] for number in unpack_numbers(self.lying))
        names = tuple(zip(places, unpack_names(self.names), strict=True))
        stretches = pairwise(accumulate(unpack_numbers(self.lengths), initial=0))
        columns = map(unpack_numbers, (self.mounts, self.inodes, self.sizes))
        return [
            Item(mount, inode, size, names[start:end], 0)
            for (start, end), mount, inode, size in zip(stretches, *columns, strict=True)
        ]

    @classmethod
    def packing(cls, items: list[Item]) -> LinkGroups:
        """Return one task for these items."""
        names = [each for item in items for each in item.names]
        numbers: dict[Place, int] = {}
        lying = [numbers.setdefault(place, len(numbers)) for place, _ in names]
        return cls(
            tuple(numbers),
            pack_names(name for _, name in names),
            pack_numbers(lying),
            pack_numbers([len(item.names) for item in items]),
            *(pack_numbers([*column]) for column in zip(*(item[:3] for item in items), strict=True)),
        )

    def puts_into(self) -> set[Place]:
        return set(self.places_of)

    def reduced(self, task: Task, gone: Gone) -> Iterator[Task]:
        for item in self.each():
            yield from gone.released(item, item.names)

    def gathered(self, task: Task, gone: Gone) -> Iterator[Task]:
        return self.reduced(task, gone) if task.phase == Phase.LINK else iter((task,))

    def run(self, rank: Rank, result: Result) -> Steps:
        """Copy the first names in batches, then process the items one by one. If the rank stops, the remaining items
        become new tasks.
        """
        items = self.each()
        copied = yield from _first_names(rank, result, items)
        items.sort(key=lambda item: item not in copied)
        for number, item in enumerate(items, 1):
            yield from copy_group(rank, result, item, copied.get(item))
            if rank.stop_reason is None:
                yield None
            elif item not in copied:  # end now, since a stopping rank drops a task that has yielded, with its failures
                for other in items[number:]:
                    result.copy(other)
                return


def _first_names(rank: Rank, result: Result, items: Sequence[Item]) -> Stepwise[dict[Item, Settled | Problem]]:
    """Copy the first names of small files that the backend can copy in batches; return the outcome of each, and count
    nothing.

    Files that it cannot copy are left untouched; ``copy_group`` copies them and reports errors. A ``Problem`` as
    outcome means that the file was copied without some of its metadata. Raise ``Cancelled``.
    """
    copied: dict[Item, Settled | Problem] = {}
    for place, place_items in _by_place(rank, items).items():
        try:
            source, target = rank.open_source(place), rank.open_target(place)
            inherits = inherits_acl(rank, place, target)
            rank.learn_times(target, rank.target_device(place), result.notices)
        except Problem:  # ``copy_group`` reports it for each item
            continue
        found = yield from _found(rank, place, source, place_items)
        if found is None:
            continue
        names, good, rows = found
        plans = bytes((make_plan(policy_of(rank, place)),)) * len(good)
        batch = Copy(source, names, target, plans, rows, inherits=inherits, identified=True)
        if rank.throttle.is_on:
            yield from rank.throttle.spend(sum(rows.size))
        done = yield from rank.moved(batch)  # if the target is full, the remaining files fail one by one
        for row, code in enumerate(done.verdicts.codes):
            made = Identity(place.target_id.mount, done.made[row], done.marks[row])
            if code == Code.DONE:
                known = Known(FILE, done.verdicts.bytes[row], done.digests[row], rows.version(row))
                copied[good[row]] = Settled(known, made, how=How(Action.COPY, done.verdicts.nanoseconds[row]))
                if row in done.applied:
                    result.applied(place, good[row].name, done.applied[row])
            elif code == Code.LACKS:
                problem = done.verdicts.problem(row)
                assert isinstance(problem, MetadataProblem)
                problem.made = made
                copied[good[row]] = problem
    return copied


def _by_place(rank: Rank, items: Sequence[Item]) -> dict[Place, list[Item]]:
    """Group those items whose first name lies in a new directory and can be created by the backend,
    by that directory.
    """
    places: dict[Place, list[Item]] = {}
    if rank.options.reflink == "always" or rank.options.dry_run:
        return places
    for item in items:
        place = item.place
        if place.fresh and not rank.job.roots[place.root].item and _is_plain(rank, place):
            places.setdefault(place, []).append(item)
    return {
        place: place_items
        for place, place_items in places.items()
        if make_plan(policy_of(rank, place)) & ~SYNC == Plan.NEW
    }


def _is_plain(rank: Rank, place: Place) -> bool:
    """Return True if files in this directory need no file layout (striping) of their own."""
    try:
        rank.open_target(place)
        return layout_at(rank, place).is_plain
    except Problem:  # the task of each file reports it
        return True


def _found(rank: Rank, place: Place, source: int, items: list[Item]) -> Stepwise[tuple[bytes, list[Item], Rows] | None]:
    """Stat the first names of the items in the source; return the names, items and rows of those that are unchanged
    regular files.

    Return None if there are none.
    """
    names = pack_names(item.name for item in items)
    batch = Stat(source, names, VERSION | DEVICE | MODE, follow=rank.options.dereference)
    stated = yield from rank.done(batch)
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


def groups_of(copies: Iterable[tuple[Item, int]]) -> Iterator[tuple[Kind, int, int]]:
    """Yield tasks that copy these items, given with their phases: the task, its cost, and the phase."""
    items: list[Item] = []
    names = size = at = 0
    for item, phase in copies:
        number = len(item.names)
        if item.attempt or item.failed or item.size > SMALL_FILE or number > MOST_NAMES:
            yield LinkGroup(item), item.size + number * CALL_COST, phase
            continue
        if items and (phase != at or names + number > MOST_NAMES or size >= MOST_BYTES):
            yield _task_of(items), size + names * CALL_COST, at
            items, names, size = [], 0, 0
        items.append(item)
        names, size, at = names + number, size + item.size, phase
    if items:
        yield _task_of(items), size + names * CALL_COST, at


def _task_of(items: list[Item]) -> Kind:
    return LinkGroups.packing(items) if len(items) > 1 else LinkGroup(items[0])
