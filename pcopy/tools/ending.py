"""How a tool that keeps no jobs tells of the end: what went wrong, then the sums as a few lines, or as JSON."""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from collections.abc import Iterator

from pcopy.errors import INCOMPLETE, INTERNAL, OK, STOPPED
from pcopy.launch.tool import Ended, Preparation
from pcopy.launch.watch.signals import told
from pcopy.report.screen import Telling
from pcopy.report.streams import tell


class SummedPreparation(Preparation):
    program: str
    """It stands before each line that goes to standard error."""
    incomplete: str
    """What is told of a job of which items have failed."""
    stopped = "the same command goes on"
    """What is told of one that was stopped."""

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
        self.values = self.summary(ended, seconds, ranks)
        if self.telling.json:
            print(json.dumps(self.values), flush=True)
        elif not self.telling.quiet or ended.status != OK or self.dry_run:
            lines = [*self.lines(ended, seconds, ranks)]
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
