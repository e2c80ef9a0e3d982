"""Deals tasks out to the ranks of a run that begins, into the base of each.

A task that only one rank may run goes to that rank, modulo the number of ranks. The others go round in chunks: each
rank gets as many as any other, give or take a chunk, and work stealing evens out the rest.

Ranks form groups, so that a run of thousands has few files open: tasks are put aside by group, then each group's bases
are written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from pcopy.checkpoint.base import BaseWriter
from pcopy.checkpoint.join import drained
from pcopy.engine.backlog import Backlog, SpoolFactory
from pcopy.engine.task import ANYBODY, Task

CHUNK = 16
GROUP = 64
"""Ranks whose bases are written at once."""

MakeBase: TypeAlias = Callable[[int], BaseWriter]
"""Begins the base of a rank."""


class _Group:
    """Neighbouring ranks, whose bases are being written."""

    def __init__(self, make: MakeBase, first: int, width: int) -> None:
        self._first = first
        self._dealt = 0
        self._bases: list[BaseWriter] = []
        try:
            for rank in range(first, first + width):
                self._bases.append(make(rank))
        except BaseException:
            self.close()
            raise

    def add(self, task: Task) -> None:
        if task.owner == ANYBODY:
            at = self._dealt // CHUNK % len(self._bases)
            self._dealt += 1
        else:
            at = task.owner - self._first
        self._bases[at].add(task)

    def finish(self) -> None:
        for base in self._bases:
            base.finish()

    def close(self) -> None:
        for base in self._bases:
            base.close()


class Deal:
    """The bases of ``size`` ranks. All methods raise ``OSError``."""

    def __init__(self, open_spool: SpoolFactory, make: MakeBase, size: int) -> None:
        self._make, self._size = make, size
        self._dealt = 0
        self._only = _Group(make, 0, size) if size <= GROUP else None
        self._aside = [] if self._only else [Backlog(open_spool) for _ in range(0, size, GROUP)]

    def add(self, task: Task) -> None:
        if task.owner == ANYBODY:
            rank = self._dealt // CHUNK % self._size
            self._dealt += 1
        else:
            rank = task.owner % self._size
            task = task._replace(owner=rank)
        if self._only:
            self._only.add(task)
        else:
            self._aside[rank // GROUP].append(task)

    def finish(self) -> None:
        """Completes all bases and makes them durable; their names are not yet."""
        if self._only:
            self._only.finish()
        for number, aside in enumerate(self._aside):
            first = number * GROUP
            group = _Group(self._make, first, min(GROUP, self._size - first))
            try:
                for task in drained(aside):
                    group.add(task)
                group.finish()
            finally:
                group.close()

    def close(self) -> None:
        """Gives up what is not finished."""
        if self._only:
            self._only.close()
        for aside in self._aside:
            aside.close()
