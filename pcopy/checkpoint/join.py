"""Tasks of a whole job, sorted with a bounded part of them in memory: what remains, and which rank gets what.

Tasks spawned and tasks done are sorted by the id of the task, so that what is told of one comes together. What remains
is sorted by the rank that gets it, so that one base is written at a time: a run of thousands has few files open. A task
that only one rank may run goes to that rank, modulo the number of ranks. The others go round in chunks: each rank gets
as many as any other, give or take a chunk, and work stealing evens out the rest.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from itertools import groupby
from operator import itemgetter

from pcopy.checkpoint.record import pack_id, unpack_id
from pcopy.engine.backlog import SpoolFactory
from pcopy.engine.messages import dump_primitives, load_primitives
from pcopy.engine.task import ANYBODY, Task
from pcopy.errors import Refused
from pcopy.signature.sorting import ExternalSorter

BUDGET = 64 << 20
"""Bytes of memory for what is sorted."""

_DONE = b""
"""Stands for the end of a task, beside what a spawned one is packed as."""


class Join:
    """Takes tasks that were spawned and ids of those done, in any order; then gives the tasks that remain, once."""

    def __init__(self, open_spool: SpoolFactory, *, where: str) -> None:
        """``where`` names the run in errors."""
        self._sorter = ExternalSorter(open_spool, BUDGET)
        self._where = where

    def spawned(self, task: Task) -> None:
        """May raise ``OSError`` from the spool, as ``done`` and ``remaining`` may."""
        self._sorter.add(pack_id(task.id), dump_primitives(tuple(task)))

    def done(self, packed: bytes) -> None:
        self._sorter.add(packed, _DONE)

    def remaining(self) -> Iterator[Task]:
        """What was spawned and not done, by id.

        Raises ``Refused`` if a task was spawned twice, or done twice, or done and never spawned: then facts are missing
        or are no facts, and what remains cannot be told.
        """
        for packed, told in groupby(self._sorter.sorted(), key=itemgetter(0)):
            spawned = ended = 0
            for _, value in told:
                if value == _DONE:
                    ended += 1
                else:
                    spawned += 1
                    task = value
            if spawned > 1:
                raise self._wrong(packed, "spawned twice")
            if ended > 1:
                raise self._wrong(packed, "done twice")
            if not spawned:
                raise self._wrong(packed, "done and was never spawned")
            if not ended:
                yield Task(*load_primitives(task))

    def _wrong(self, packed: bytes, what: str) -> Refused:
        run, rank, number = unpack_id(packed)
        return Refused(f"{self._where}: damaged: task {number} of rank {rank} in run {run} was {what}")

    def close(self) -> None:
        self._sorter.close()


CHUNK = 16
"""Tasks that one rank gets before it is the next one's turn: neighbours among tasks stay together."""
SORT_BUDGET = 4 << 20
"""Bytes of memory in which tasks are sorted; the rest is on disk."""


def dealt(tasks: Iterable[Task], size: int, open_spool: SpoolFactory) -> Generator[Iterator[Task], None, None]:
    """The tasks of each of ``size`` ranks, in the order of ranks; each is read to its end before the next one is asked
    for. Raises ``OSError``."""
    given = 0
    with closing(ExternalSorter(open_spool, SORT_BUDGET)) as sorter:
        for task in tasks:
            if task.owner == ANYBODY:
                rank = given // CHUNK % size
                given += 1
            else:
                rank = task.owner % size
            sorter.add(rank.to_bytes(4, "big"), dump_primitives(tuple(task)))
        in_order = sorter.sorted()
        following = next(in_order, None)

        def own(rank: int) -> Iterator[Task]:
            nonlocal following
            while following is not None and int.from_bytes(following[0], "big") == rank:
                task = Task(*load_primitives(following[1]))
                yield task if task.owner == ANYBODY else task._replace(owner=rank)
                following = next(in_order, None)

        yield from map(own, range(size))
