"""ScanNames: looks at names of one directory, and hands their items to the tool's visitor."""

from __future__ import annotations

import os
from collections.abc import Iterator

from pcopy.engine.task import Task
from pcopy.fsio.kernel.columns import unpack_names
from pcopy.fsio.problem import Problem
from pcopy.tasks.base import counts
from pcopy.tasks.base.kind import Gone, Left, OfPlace, Steps
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import NOWHERE, Place
from pcopy.tasks.files.existing import looked_at_again
from pcopy.walk.visitor import visit


class ScanNames(OfPlace, code=2, doing="scanning", is_note=False):
    """Stats ``names`` (joined by slashes) of a directory; ``attempt`` counts from 0, or is ``COPIED_BEFORE``."""

    names: bytes
    attempt: int

    def tell(self, task: Task, gone: Gone) -> None:
        if task.phase == Phase.COPY:
            gone.scans()

    def gathered(self, task: Task, gone: Gone) -> Iterator[Task]:
        yield task._replace(phase=int(Phase.COPY)) if task.phase == Phase.LINK else task

    def run(self, rank: Rank, result: Result) -> Steps:
        """A part of a large directory, or names that are tried again (and were found before)."""
        names = unpack_names(self.names)
        place = self.place
        try:
            source = rank.open_source(place)
            # No scan has looked at the directory that an item goes to.
            if (self.attempt or rank.job.roots[place.root].item) and place.target_id != NOWHERE:
                place = looked_at_again(rank, place)
        except Problem as problem:
            for name in names:
                result.fail(self.place, name, problem)
            if not self.attempt:
                result.count(counts.FOUND, len(names))
            return
        visitor = rank.visitor(rank, result, place, self.attempt)
        yield from visit(source, names, visitor, follow=rank.options.dereference)

    def leftovers(self, *, first: bool) -> Iterator[Left]:
        """A name may be that of a directory."""
        yield from super().leftovers(first=first)
        for name in unpack_names(self.names):
            yield Left(self.place.root, os.path.join(self.place.path, name), True)

    def begun_now(self, since: tuple[int, int]) -> ScanNames:
        return self._replace(place=self.place._replace(since=since))

    def puts_into(self) -> set[Place]:
        return {self.place}
