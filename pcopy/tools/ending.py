"""The final output of programs that do not record jobs: errors and remarks, then the totals as a few lines or as JSON.

Programs that compare print the totals on standard error: their standard output contains the differences.
"""

from __future__ import annotations

import json
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence

from pcopy.errors import INCOMPLETE, INTERNAL, OK, STOPPED
from pcopy.launch.tool import Ended, Preparation
from pcopy.launch.watch.signals import told
from pcopy.report.screen import Telling
from pcopy.report.streams import tell
from pcopy.tasks.base.itemized import Itemized
from pcopy.tasks.base.job import InFront, Sink, Totals
from pcopy.text import counted
from pcopy.tools.arguments import VerifyArguments
from pcopy.tools.selecting import left_out, nothing_selected
from pcopy.tools.summary import filter_values


class LinesOfItems(InFront):
    """Sink that prints a line for each item that would be created or changed."""

    def __init__(self, sink: Sink, is_listed: Callable[[Itemized], bool]) -> None:
        """Create a sink that passes everything on to ``sink``. ``is_listed`` returns True for items that are to be
        printed.
        """
        super().__init__(sink)
        self._is_listed = is_listed

    def items(self, items: Sequence[Itemized]) -> None:
        for each in filter(self._is_listed, items):
            sys.stdout.write("".join(f"{item}\n" for item in each.each()))
        super().items(items)


def told_beside_lines(telling: Telling) -> Telling:
    """Return ``telling`` changed for a dry run, which prints a line for each item.

    Items are not printed a second time by ``-vv``, and there is no progress bar on the same terminal.
    """
    progress = "none" if sys.stdout.isatty() and telling.progress in ("auto", "bar") else telling.progress
    return telling._replace(verbose=min(telling.verbose, 1), progress=progress)


class SummedPreparation(Preparation):
    """Base class of jobs that print their totals at the end and are not recorded."""

    program: str
    """Name of the program, which begins each line on standard error."""
    incomplete: str
    """Text for a job in which items failed."""
    stopped = "repeat the command to continue"
    """Text for a job that was stopped early: what the user can do."""
    leaves_out = "filters"
    """Name for the options that exclude items, for the summary."""
    names_filters = False
    """True if ``lines`` states how many items filters left out, and where these are set."""

    def __init__(self, ranks: int, in_flight: int, telling: Telling, *, dry_run: bool = False) -> None:
        super().__init__(ranks, in_flight, telling)
        self.dry_run = dry_run
        """True if nothing is changed. A dry run prints its result even with ``-q``."""
        self.remarks: list[str] = []
        """Further lines for standard error."""

    @abstractmethod
    def summary(self, ended: Ended, seconds: float, ranks: int) -> dict[str, object]:
        """Return the values of ``--json``."""

    @abstractmethod
    def lines(self, ended: Ended, seconds: float, ranks: int) -> Iterator[str]:
        """Yield the lines of the summary for people."""

    def tell_end(self, ended: Ended, ranks: int) -> int:
        seconds = time.monotonic() - self.began
        if ended.halted is not None:
            tell(self.program, told(ended.halted))
        for remark in self.remarks:
            tell(self.program, remark)
        self.values = self.summary(ended, seconds, ranks) | filter_values(self.telling.filters)
        if self.telling.json:
            print(json.dumps(self.values), flush=True)
        elif not self.telling.quiet or ended.status != OK or self.dry_run:
            lines = [*self.lines(ended, seconds, ranks)]
            by = self.leaves_out
            if not self.names_filters and (excluded := left_out(ended.totals.excluded, self.telling.filters, by=by)):
                lines.append(f"  {excluded}")
            if ended.status != OK:
                lines.append(self._outcome(ended.status))
            print("\n".join(lines), flush=True)
        return ended.status

    def _outcome(self, status: int) -> str:
        """Return the last line of the summary of a job that did not end with status 0."""
        outcomes = {
            INCOMPLETE: f"incomplete: {self.incomplete} (status 1)",
            INTERNAL: "internal error (status 70)",
            STOPPED: f"stopped early (status 75): {self.stopped}",
        }
        return outcomes.get(status, f"ended with status {status}")


class ReadPreparation(Preparation):
    """Base class of the jobs of ``pverify``, which read trees and compare them."""

    unread: str
    """Text after "N of M items could not be", for items that failed."""
    counted_of = ""
    """Text after the number of items that filters excluded, used if an item may count twice."""

    def __init__(self, arguments: VerifyArguments) -> None:
        super().__init__(arguments.ranks, arguments.in_flight, arguments.telling)
        self._remarks: list[str] = []

    def _lacks_items(self, totals: Totals) -> bool:
        """Return True, and add a remark, if the filters exclude everything."""
        select = self.job.options.select
        nothing = nothing_selected(totals, select) if select.anything else ""
        if nothing:
            self._remarks.append(nothing)
        return bool(nothing)

    def tell_end(self, ended: Ended, ranks: int) -> int:
        elapsed = time.monotonic() - self.began
        totals = ended.totals
        if ended.halted is not None:
            self._remarks.append(told(ended.halted))
        elif totals.failed:
            found = counted(totals.found, "item", "items")
            self._remarks.append(f"{totals.failed:,} of {found} could not be {self.unread}")
        for remark in self._remarks:
            tell("pverify", remark)
        self.values = {"excluded": totals.excluded, **self._summary(ended, elapsed, ranks)}
        self.values |= filter_values(self.telling.filters)
        if self.telling.json:
            print(json.dumps(self.values))
        elif not self.telling.quiet:
            excluded = left_out(totals.excluded, self.telling.filters, self.counted_of)
            for line in self._lines(ended, elapsed):
                is_verdict = bool(excluded) and line == "the same"
                print(f"pverify: {line}{f', but for {excluded}' if is_verdict else ''}", file=sys.stderr)
                excluded = "" if is_verdict else excluded
            if excluded:
                print(f"pverify: {excluded}", file=sys.stderr)
        sys.stdout.flush()
        return ended.status

    @abstractmethod
    def _lines(self, ended: Ended, elapsed: float) -> Iterable[str]:
        """Return the lines of the summary for people."""

    @abstractmethod
    def _summary(self, ended: Ended, elapsed: float, ranks: int) -> dict[str, object]:
        """Return the values of ``--json``."""
