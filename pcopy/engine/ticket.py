"""A task as it runs: what it hands over at its end, and the tickets that it may wait for meanwhile.

The rules of a task that waits stand in docs/design/engine.md, each with a test in ``tests/engine/test_tickets.py``.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Protocol, TypeVar

from pcopy.engine.task import Share, Spawn, TaskId
from pcopy.named import NamedTuple

Result = TypeVar("Result")


class Ticket(Protocol):
    """Something that was asked for, and is done without this thread."""

    @property
    def is_done(self) -> bool:
        """Is nothing of it under way any more? Cheap, and never waits."""

    def cancel(self) -> None:
        """Parts of it that have not begun never begin. It becomes done when all that had begun have ended."""


class Wake(Protocol):
    """Wakes a rank that sleeps when one of its tickets becomes done."""

    def fileno(self) -> int:
        """A descriptor that is readable once a ticket has become done, until ``clear``."""

    def clear(self) -> None:
        """Resets the wake; the caller looks at all tickets afterwards. Never waits."""


class Outcome(NamedTuple):
    """What a finished task hands over at once: the tasks it spawned and what it counted.

    A task whose effect is only in this rank's memory is ``held``: a journal does not hear of it, so that a resumed job
    runs it again, until another task is done that has ``settled`` it. It may spawn tasks for its own rank only.
    ``shares`` tell what of the ``counts`` was counted under which label, for whoever has to take some of it back.
    """

    spawned: Iterable[Spawn] = ()
    counts: Sequence[int] = ()
    settled: Sequence[TaskId] = ()
    held: bool = False
    shares: Sequence[Share] = ()


Stepwise = Generator[Ticket | None, None, Result]
"""What yields None when a slice of it is over, or a ticket: then it goes on once that one is done."""

Slices = Stepwise[Outcome]
"""A task as it runs.

Closing it between two slices must leave nothing half done behind.
"""
