"""A unit of work as the engine sees it: who may run it, when, and its cost. Only the tool understands ``payload``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pcopy.named import NamedTuple

ANYBODY = -1
"""The owner of a task that any rank may run (and steal)."""

HEADER_BYTES = 160
"""What a queued task costs in memory beside its payload."""

TaskId = tuple[int, int, int]
"""Never reused, never derived from a path: the run, the rank that spawned the task, and that rank's counter.

A plain tuple, since the wire and the spool hold primitives only (a named one is pickled by its class).
"""

UNTOLD = 0
"""The number in the id of a task that a held one has spawned (``pcopy.engine.ticket.Outcome``): a journal is told
neither of it nor of its end, since the held task spawns it again in a resumed job."""

Share = tuple[bytes, tuple[tuple[int, int], ...]]
"""What was counted under a label, which the engine does not read: (counter, number) each."""


class Spawn(NamedTuple):
    """A task that its maker has described and the engine has not yet numbered.

    ``cost`` is an estimate in bytes (what is moved, plus a share for each call); ``expands`` marks tasks that find
    more work; ``owner`` is the only rank that may run it, or ``ANYBODY``.
    """

    phase: int
    payload: bytes
    cost: int
    expands: bool = False
    owner: int = ANYBODY


class Task(NamedTuple):
    """A numbered task. ``payload`` is opaque to the engine."""

    id: TaskId
    phase: int
    payload: bytes
    cost: int
    expands: bool = False
    owner: int = ANYBODY

    @property
    def footprint(self) -> int:
        """Bytes of memory that the task holds while it is queued."""
        return HEADER_BYTES + len(self.payload)


def batches(tasks: Iterable[Task], limit: int) -> Iterator[tuple[Task, ...]]:
    """``tasks`` in their order, in batches of up to ``limit`` bytes; a larger task makes a batch alone."""
    batch: list[Task] = []
    size = 0
    for task in tasks:
        if batch and size + task.footprint > limit:
            yield tuple(batch)
            batch, size = [], 0
        batch.append(task)
        size += task.footprint
    yield tuple(batch)
