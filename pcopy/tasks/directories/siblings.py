"""What tasks have in common that are about several directories beside each other, which travel in columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Self

from pcopy.engine.task import Task
from pcopy.tasks.base.codec import encode
from pcopy.tasks.base.dividing import cuts
from pcopy.tasks.base.kind import Gone, Kind, Left, OfPlace
from pcopy.tasks.base.values import Place


class OfSiblings(OfPlace):
    """It is about the directories ``names`` (joined by slashes) that lie beside each other in ``place``."""

    names: bytes

    def chosen(self, rows: Sequence[int]) -> Self:
        """The same, of some of them."""
        raise NotImplementedError

    def each(self) -> Iterable[Kind]:
        """The same, one by one."""
        raise NotImplementedError

    @property
    def items(self) -> int:
        return self.names.count(b"/") + 1

    def divide(self, portions: int) -> list[Self]:
        return [self.chosen(range(cut.start, cut.stop)) for cut in cuts(self.items, portions)]

    def places(self) -> Iterator[Place]:
        return chain.from_iterable(one.places() for one in self.each())

    def leftovers(self, *, first: bool) -> Iterator[Left]:
        return chain.from_iterable(one.leftovers(first=first) for one in self.each())

    def reduced(self, task: Task, gone: Gone) -> Iterator[Task]:
        left = [row for row, one in enumerate(self.each()) if not any(map(gone.has, one.places()))]
        if left:
            yield task._replace(payload=encode(self.chosen(left)))
