"""What a program is to those who start ranks: its ranks, what rank 0 prepares, and what the user is told.

A program on the engine is one ``Tool``, in a file of ``pcopy.tools``. The code that starts, runs, watches or shows
ranks knows this class, and no program.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from pcopy.engine.messages import Halt
from pcopy.engine.phase_end import Director
from pcopy.engine.task import Task
from pcopy.errors import INCOMPLETE, INTERNAL, OK, REFUSED, STOPPED
from pcopy.jobs.lifecycle import Keeping, KeptJob
from pcopy.named import NamedTuple
from pcopy.report.gauge import Stages
from pcopy.report.screen import Telling
from pcopy.tasks.base import counts
from pcopy.tasks.base.job import Job, Sink, Totals
from pcopy.tasks.base.phases import Phase, phase_name
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.values import Place
from pcopy.walk.visitor import Visitor


class Ended(NamedTuple):
    """How a job ended, with the exact sums on rank 0, and why it ``halted``, if that was before all was done."""

    status: int
    totals: Totals
    halted: Halt | None
    layouts: tuple[tuple[str, int], ...] = ()
    """How many files have got which layout, as people read it; empty where there are no layouts."""
    gathered: bytes = b""
    """What all ranks have said of themselves (``pcopy.tasks.base.rank_sums``), if that was wanted."""
    is_durable: bool = True
    """False if the job has written more than is on record and on stable storage."""


class JobDirector(Director, Protocol):
    """What rank 0 asks between phases, and how the job ended."""

    ended: Ended


Settle = Callable[[Rank, Totals], int]
"""All items are settled: does what is left to do with them, and returns the exit status."""


class Tool:
    """A program that works on whole trees; what is its own each fills in."""

    name: str
    """It stands before each line."""
    writes: bool
    """May it write to the targets of its roots? All hosts have to see the same there."""
    unfinished: int
    """The exit status of a job that ends before all is done."""
    spool_advice: str
    """What the user can do where work that waits finds no room."""
    stages: Stages
    """How progress is measured."""
    done = "copied"
    """What has been done to an item that counts as ``Totals.copied``."""
    meanings: Mapping[int, str] = MappingProxyType(
        {
            OK: "all done",
            INCOMPLETE: "finished, but not everything is as it should be",
            REFUSED: "something could not be read",
            INTERNAL: "internal error",
            STOPPED: "stopped early",
        }
    )
    """What the exit statuses mean, for people."""
    director: Callable[[Rank, Settle, int], JobDirector]
    """Made with ``unfinished``, too."""
    durable_before: tuple[int, ...] = (int(Phase.NAME),)
    """The phases before which all that was done is on record."""

    def phase_name(self, phase: int) -> str:
        """What users are told."""
        return phase_name(phase)

    def first_counts(self, job: Job) -> list[int]:
        """The roots that are directories; what is below them is counted as it is found."""
        first = [0] * counts.COUNTERS
        first[counts.FOUND] = first[counts.UNSCANNED] = sum(1 for root in job.roots if not root.item)
        return first

    def visitor(self, rank: Rank, result: Any, place: Place, attempt: int) -> Visitor:
        """What gets the items that a task finds in a directory (``ScanDir``, ``ScanNames``)."""
        raise NotImplementedError

    def discard(self, rank: Rank, forgotten: Iterable[Task], since: int) -> None:
        """Removes what the run ``since``, or a later one, has begun and nobody will end.

        ``forgotten`` are the tasks that were dropped.
        """


class Preparation:
    """A job, ready to be run, and what its user is told; on rank 0 only.

    As it stands here, for a program that keeps no jobs.
    """

    job: Job

    def __init__(self, ranks: int, in_flight: int, telling: Telling) -> None:
        """``ranks``: how many the user wants; 0: as many as is usual. Each keeps so many operations ``in_flight``; 0:
        as many as are best."""
        self.began = time.monotonic()
        self.ranks = ranks
        self.in_flight = in_flight
        self.telling = telling
        self.kept: KeptJob | None = None
        self.words: Sequence[str] = ()
        """The command line, without the program."""
        self.values: dict[str, object] = {}
        """What ``--json`` shows, once the end was told."""
        self.places = 1
        """On how many hosts, or namespaces of one, there will be ranks; known when it is to ``begin``."""

    @property
    def keeping(self) -> Keeping:
        """What all ranks have to know of that."""
        return Keeping()

    def begin(self, ranks: int) -> None:
        """The number of ranks is known, and ``job`` is final from now on; raises ``Refused``."""

    def announce(self) -> None:
        """Tells what is about to be done."""

    def sink(self, screen: Sink) -> Sink:
        """Where the job tells what happens."""
        return screen

    def settle(self, rank: Rank, totals: Totals) -> int:
        """See ``Settle``."""
        raise NotImplementedError

    def tell_end(self, ended: Ended, ranks: int) -> int:
        """Prints how it ended; returns the exit status."""
        raise NotImplementedError

    def tell_how_to_go_on(self) -> None:
        """After a rank has failed: what the user can do."""


class Command(NamedTuple):
    """A ``tool``, and how it makes a job of the user's words; ``prepare`` raises ``Refused``."""

    tool: Tool
    prepare: Callable[[Sequence[str]], Preparation]
