"""Code that ``ptar -c`` and ``ptar -x`` share: the order of phases, the exit status, and the final output."""

from __future__ import annotations

from collections.abc import Iterator

from pcopy.engine.messages import Halt
from pcopy.errors import INCOMPLETE, INTERNAL, OK, STOPPED
from pcopy.launch.tool import Ended
from pcopy.tasks.base.actions import Action
from pcopy.tasks.base.itemized import Itemized
from pcopy.tasks.base.job import Sink, Totals
from pcopy.text import counted, shown
from pcopy.tools.arguments import ArchiveArguments
from pcopy.tools.director import JobDirector
from pcopy.tools.ending import LinesOfItems, SummedPreparation, told_beside_lines
from pcopy.tools.space import free_on
from pcopy.tools.summary import remarks_lines, summary_values, sums_lines
from pcopy.units import show_seconds, show_size

_COUNTED = (
    *("found", "files", "directories", "symlinks", "special", "hardlinks", "bytes", "skipped", "excluded", "failed"),
    *("changed", "vanished", "excused", "warnings"),
)
"""Counters of ``Totals`` that ``--json`` shows."""


class OfArchiveDirector(JobDirector):
    """Base class of the directors of ``ptar``.

    Failed items do not stop the job: the archive contains what could be read, and unpacking creates what it can.
    """

    def due(self, sums: Totals) -> dict[int, object]:
        """Return the phases in their order, each with a value that is true if the phase is needed."""
        raise NotImplementedError

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        due = self.due(Totals(*totals))
        return next(
            (phase_number for phase_number, is_needed in due.items() if phase_number > phase and is_needed), None
        )

    def _status(self, sums: Totals, halted: Halt | None) -> int:
        if halted is not None:
            return STOPPED
        if sums.found != sums.copied + sums.skipped + sums.failed:
            return INTERNAL
        return max(self._settle(self._rank, sums), INCOMPLETE if sums.failed or sums.unsynced else OK)


class OfArchive(SummedPreparation):
    """Base class of the jobs that create or unpack an archive."""

    program, incomplete = "ptar", "some items failed"
    done: str
    """Word for what is done to items: ``archived`` or ``unpacked``."""

    def __init__(self, arguments: ArchiveArguments) -> None:
        telling, dry_run = arguments.telling, arguments.options.dry_run
        if dry_run:
            telling = told_beside_lines(telling)
        super().__init__(arguments.ranks, arguments.in_flight, telling, dry_run=dry_run)
        self.arguments = arguments
        self.lists = dry_run and not (telling.json or telling.quiet)
        """True if a line is printed on standard output for each item that would be created."""

    def sink(self, screen: Sink) -> Sink:
        return super().sink(LinesOfItems(screen, _is_made) if self.lists else screen)

    def summary(self, ended: Ended, seconds: float, ranks: int) -> dict[str, object]:
        values = summary_values(ended.totals, _COUNTED, seconds, ranks, ended.status)
        return {**values, "archive": shown(self.job.options.archive_file), "dry_run": self.dry_run}

    def lines(self, ended: Ended, seconds: float, ranks: int) -> Iterator[str]:
        totals, ways = ended.totals, counted(ranks, "rank", "ranks")
        yield from sums_lines(totals, f"would be {self.done}" if self.dry_run else self.done, "left out")
        if self.dry_run:
            yield from self._room(totals)
            yield f"nothing was changed (--dry-run): {show_seconds(seconds)} with {ways}"
            return
        yield from remarks_lines(totals)
        rate = totals.bytes / seconds if seconds > 0 else 0.0
        yield f"{show_size(totals.bytes)} in {show_seconds(seconds)}: {show_size(rate)}/s with {ways}"

    def _room(self, totals: Totals) -> Iterator[str]:
        """Yield a line with the free space at the target, and the needed space if that is more."""
        directory, needed = self.job.roots[0].target, self.needed(totals)
        try:
            free = free_on(directory).bytes
        except OSError:
            return
        lack = f", and {show_size(needed)} are needed" if needed > free else ""
        yield f"  free on {shown(directory)}: {show_size(free)}{lack}"

    def needed(self, totals: Totals) -> int:
        """Return the number of bytes that would be created, as far as it is known."""
        return totals.bytes


def _is_made(items: Itemized) -> bool:
    """True if these items would be created."""
    return items.action in (Action.COPY, Action.REPLACE)
