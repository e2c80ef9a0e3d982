"""Sorting of a job's tasks with bounded memory: finds the tasks that remain, and deals them out to ranks.

Spawned and done tasks are sorted by their ids, so that all facts about a task are adjacent. The remaining tasks are
sorted by the rank that gets them, so that one base is written at a time and a run of thousands of ranks needs few open
files. A task that is addressed to a rank goes to that rank modulo the number of ranks. The other tasks are dealt out in
chunks, round robin: all ranks get the same number, plus or minus a chunk, and work stealing balances the rest.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from itertools import groupby
from operator import itemgetter

from pcopy.checkpoint.record import pack_id, unpack_id
from pcopy.engine.backlog import OpenSpool
from pcopy.engine.messages import dump_primitives, load_primitives
from pcopy.engine.task import ANY_RANK, Task
from pcopy.errors import RequestRefused
from pcopy.signature.sorting import ExternalSorter

JOIN_MEMORY_BYTES = 64 << 20
"""Bytes of memory for sorting the facts."""

_DONE_MARK = b""
"""Value that marks a task as done; a spawned task has its pickle as the value."""


class RemainingTasksFinder:
    """Collector of spawned tasks and of the ids of done tasks, in any order; yields the tasks that remain, once."""

    def __init__(self, open_spool: OpenSpool, *, where: str) -> None:
        """Create an empty collection. ``where`` names the run in errors."""
        self._sorter = ExternalSorter(open_spool, JOIN_MEMORY_BYTES)
        self._where = where

    def add_spawned(self, task: Task) -> None:
        """Add a spawned task. May raise ``OSError`` from the spool, as the other methods may."""
        self._sorter.add(pack_id(task.id), dump_primitives(tuple(task)))

    def add_done(self, packed: bytes) -> None:
        """Add the packed id of a task that is done."""
        self._sorter.add(packed, _DONE_MARK)

    def remaining_tasks(self) -> Iterator[Task]:
        """Yield the tasks that were spawned and are not done, sorted by id.

        Raise ``RequestRefused`` if a task was spawned twice, done twice, or done and never spawned. Then facts are
        missing or wrong, so the remaining tasks are unknown.
        """
        for packed, facts in groupby(self._sorter.sorted(), key=itemgetter(0)):
            spawned = ended = 0
            for _, value in facts:
                if value == _DONE_MARK:
                    ended += 1
                else:
                    spawned += 1
                    task = value
            if spawned > 1:
                raise self._contradiction(packed, "spawned twice")
            if ended > 1:
                raise self._contradiction(packed, "done twice")
            if not spawned:
                raise self._contradiction(packed, "done and was never spawned")
            if not ended:
                yield Task(*load_primitives(task))

    def _contradiction(self, packed: bytes, contradiction: str) -> RequestRefused:
        """Return the error for facts that contradict each other."""
        run, rank, number = unpack_id(packed)
        return RequestRefused(f"{self._where}: damaged: task {number} of rank {rank} in run {run} was {contradiction}")

    def close(self) -> None:
        self._sorter.close()


TASKS_PER_TURN = 16
"""Number of consecutive tasks that one rank gets before the next one, so that neighbouring tasks stay together."""
SORT_MEMORY_BYTES = 4 << 20
"""Bytes of memory for sorting tasks by rank; the rest is on disk."""


def tasks_by_rank(tasks: Iterable[Task], size: int, open_spool: OpenSpool) -> Generator[Iterator[Task], None, None]:
    """Yield an iterator over the tasks of each of ``size`` ranks, in the order of ranks. Raise ``OSError``.

    Each iterator must be exhausted before the next one is requested.
    """
    dealt_count = 0
    with closing(ExternalSorter(open_spool, SORT_MEMORY_BYTES)) as sorter:
        for task in tasks:
            if task.owner == ANY_RANK:
                rank = dealt_count // TASKS_PER_TURN % size
                dealt_count += 1
            else:
                rank = task.owner % size
            sorter.add(rank.to_bytes(4, "big"), dump_primitives(tuple(task)))
        in_order = sorter.sorted()
        following = next(in_order, None)

        def own(rank: int) -> Iterator[Task]:
            """Yield the tasks of ``rank``, which come next in ``in_order``."""
            nonlocal following
            while following is not None and int.from_bytes(following[0], "big") == rank:
                task = Task(*load_primitives(following[1]))
                yield task if task.owner == ANY_RANK else task._replace(owner=rank)
                following = next(in_order, None)

        yield from map(own, range(size))
