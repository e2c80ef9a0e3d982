"""Sorting of a job's tasks with bounded memory when the job is resumed: finds the tasks that remain, and deals them out
to the ranks of the new run.

The facts "task spawned" and "task done" are sorted by the ids of the tasks, so that all facts about a task are
adjacent. The remaining tasks are sorted by the rank that gets them, so that the file of one rank is written at a time
and a run of thousands of ranks needs few open files. A task that only one rank may run goes to that rank modulo the
number of ranks. The other tasks are dealt out in chunks, round robin: all ranks get the same number, plus or minus a
chunk, and work stealing balances the rest.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from itertools import groupby
from operator import itemgetter

from pcopy.checkpoint.record import pack_task_id, unpack_task_id
from pcopy.engine.backlog import OpenSpool
from pcopy.engine.messages import dump_primitives, load_primitives
from pcopy.engine.task import ANY_RANK, Task
from pcopy.errors import RequestRefused
from pcopy.signature.sorting import ExternalSorter

JOIN_MEMORY_BYTES = 64 << 20
"""Bytes of memory for sorting the facts (tasks spawned and done) by task; the rest is in temporary files."""

_DONE_VALUE = b""
"""Value that says that a task is done, in the list of (task id, value) to be sorted. For a spawned task the value is
the packed task.
"""


class RemainingTasksFinder:
    """Finds the tasks that remain when a job is resumed: collects spawned tasks and the ids of done tasks, in any
    order, then yields the tasks that were spawned and are not done. These can be read only once.
    """

    def __init__(self, open_spool: OpenSpool, *, where: str) -> None:
        """Create an empty collection.

        Args:
            open_spool: opens a temporary file for facts that do not fit into memory.
            where: path of the run's directory, for errors.
        """
        self._sorter = ExternalSorter(open_spool, JOIN_MEMORY_BYTES)
        self._where = where

    def add_spawned_task(self, task: Task) -> None:
        """Add a spawned task. May raise ``OSError`` of a temporary file, as may the other methods."""
        self._sorter.add(pack_task_id(task.id), dump_primitives(tuple(task)))

    def add_done_task_id(self, packed: bytes) -> None:
        """Add the id of a task that is done, packed by ``pack_task_id``."""
        self._sorter.add(packed, _DONE_VALUE)

    def remaining_tasks(self) -> Iterator[Task]:
        """Yield the tasks that were spawned and are not done, sorted by id.

        Raise ``RequestRefused`` if a task was spawned twice, done twice, or done and never spawned. Then records are
        missing or wrong, so the remaining tasks are unknown.
        """
        for packed, facts in groupby(self._sorter.sorted(), key=itemgetter(0)):
            spawned = ended = 0
            for _, value in facts:
                if value == _DONE_VALUE:
                    ended += 1
                else:
                    spawned += 1
                    task = value
            if spawned > 1:
                raise self._contradiction_error(packed, "spawned twice")
            if ended > 1:
                raise self._contradiction_error(packed, "done twice")
            if not spawned:
                raise self._contradiction_error(packed, "done and was never spawned")
            if not ended:
                yield Task(*load_primitives(task))

    def _contradiction_error(self, packed: bytes, contradiction: str) -> RequestRefused:
        """Return the error that refuses to resume the job because its records about one task contradict each other.
        ``packed`` is the id of the task, and ``contradiction`` completes the sentence "the task was ...".
        """
        run, rank, number = unpack_task_id(packed)
        return RequestRefused(f"{self._where}: damaged: task {number} of rank {rank} in run {run} was {contradiction}")

    def close(self) -> None:
        """Discard what was collected, and close the temporary files."""
        self._sorter.close()


TASKS_PER_TURN = 16
"""Remaining tasks are dealt out to the ranks in turn: number of consecutive tasks that one rank gets before the next
one, so that neighbouring tasks stay together.
"""
SORT_MEMORY_BYTES = 4 << 20
"""Bytes of memory for sorting tasks by rank; the rest is on disk."""


def tasks_by_rank(tasks: Iterable[Task], size: int, open_spool: OpenSpool) -> Generator[Iterator[Task], None, None]:
    """Deal out ``tasks`` to ``size`` ranks; yield one iterator for each rank, in the order of ranks, over its tasks.

    Each iterator must be exhausted before the next one is requested. Raise ``OSError`` of a temporary file.
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
