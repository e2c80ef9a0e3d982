"""LinkGroups: several inodes with several names each, in columns. What is done with each stands in ``LinkGroup``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise

from pcopy.engine.task import Task
from pcopy.fsio.kernel.columns import pack_names, unpack_names
from pcopy.fsio.kernel.interface import SMALL_FILE
from pcopy.tasks.base.kind import Gone, Kind, Steps
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import Item, Place, pack_numbers, unpack_numbers
from pcopy.tasks.links.first_names import first_names
from pcopy.tasks.links.link_group import LinkGroup, copy_group

MOST_NAMES = 128
"""Names of one task, unless they are one inode's."""
MOST_BYTES = 4 << 20
"""Bytes with which a task gets no more inodes."""


class LinkGroups(Kind, code=37, doing="copying and linking", is_note=False):
    """As ``LinkGroup``, for several items, which are tried for the first time. Their ``names`` lie in the directories
    ``places`` with the numbers ``lying``; each item has as many of them as ``lengths`` says."""

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
        """The items."""
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
        """The task for these."""
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
        items = self.each()
        copied = yield from first_names(rank, result, items)
        for item in items:
            yield from copy_group(rank, result, item, copied.get(item))
            yield None


def groups_of(copies: Iterable[tuple[Item, int]]) -> Iterator[tuple[Kind, int, int]]:
    """Tasks for items that are to be copied, each with its phase: the task, its cost, and the phase."""
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
