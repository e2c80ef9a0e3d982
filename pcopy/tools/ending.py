"""How tools that keep no jobs tell of the end: what went wrong, then the sums as a few lines, or as JSON.

Of what is compared the lines go to standard error: standard output has what differs.
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
    """Prints a line for each item that would be made or changed."""

    def __init__(self, sink: Sink, is_listed: Callable[[Itemized], bool]) -> None:
        super().__init__(sink)
        self._is_listed = is_listed

    def items(self, items: Sequence[Itemized]) -> None:
        for each in filter(self._is_listed, items):
            sys.stdout.write("".join(f"{item}\n" for item in each.each()))
        super().items(items)


def told_beside_lines(telling: Telling) -> Telling:
    """Of a dry run, whose lines on standard output would go through a bar, and be there twice."""
    progress = "none" if sys.stdout.isatty() and telling.progress in ("auto", "bar") else telling.progress
    return telling._replace(verbose=min(telling.verbose, 1), progress=progress)


class SummedPreparation(Preparation):
    program: str
    """It stands before each line that goes to standard error."""
    incomplete: str
    """What is told of a job of which items have failed."""
    stopped = "the same command goes on"
    """What is told of one that was stopped."""
    leaves_out = "filters"
    """The options that leave out items, as the summary names them."""
    names_filters = False
    """True if ``lines`` states how many items filters left out, and where these are set."""

    def __init__(self, ranks: int, in_flight: int, telling: Telling, *, dry_run: bool = False) -> None:
        super().__init__(ranks, in_flight, telling)
        self.dry_run = dry_run
        """Is nothing done but telling? Then nothing keeps it quiet."""
        self.remarks: list[str] = []
        """What is told besides."""

    @abstractmethod
    def summary(self, ended: Ended, seconds: float, ranks: int) -> dict[str, object]:
        """What ``--json`` shows."""

    @abstractmethod
    def lines(self, ended: Ended, seconds: float, ranks: int) -> Iterator[str]:
        """What people are shown."""

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
            if not self.names_filters and (hidden := left_out(ended.totals.excluded, self.telling.filters, by=by)):
                lines.append(f"  {hidden}")
            if ended.status != OK:
                lines.append(self._outcome(ended.status))
            print("\n".join(lines), flush=True)
        return ended.status

    def _outcome(self, status: int) -> str:
        outcomes = {
            INCOMPLETE: f"incomplete: {self.incomplete} (status 1)",
            INTERNAL: "internal error (status 70)",
            STOPPED: f"stopped early (status 75): {self.stopped}",
        }
        return outcomes.get(status, f"ended with status {status}")


class ReadPreparation(Preparation):
    """Of two things that are read and compared: what is told at the end."""

    unread: str
    """What follows the number of items that failed."""
    counted_of = ""
    """What follows the number of items that filters left out, if an item may count twice."""

    def __init__(self, arguments: VerifyArguments) -> None:
        super().__init__(arguments.ranks, arguments.in_flight, arguments.telling)
        self._remarks: list[str] = []

    def _lacks_items(self, totals: Totals) -> bool:
        """Have the filters left nothing? That is told."""
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
            hidden = left_out(totals.excluded, self.telling.filters, self.counted_of)
            for line in self._lines(ended, elapsed):
                is_verdict = bool(hidden) and line == "the same"
                print(f"pverify: {line}{f', but for {hidden}' if is_verdict else ''}", file=sys.stderr)
                hidden = "" if is_verdict else hidden
            if hidden:
                print(f"pverify: {hidden}", file=sys.stderr)
        sys.stdout.flush()
        return ended.status

    @abstractmethod
    def _lines(self, ended: Ended, elapsed: float) -> Iterable[str]:
        """What people are shown."""

    @abstractmethod
    def _summary(self, ended: Ended, elapsed: float, ranks: int) -> dict[str, object]:
        """What ``--json`` shows."""
