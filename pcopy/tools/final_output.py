"""The final output of programs that do not record jobs: errors and remarks, then the totals as a few lines or as JSON.

Programs that compare print the totals on standard error: their standard output contains the differences.
"""

from __future__ import annotations

import json
import sys
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from pcopy.errors import EXIT_INCOMPLETE, EXIT_INTERNAL, EXIT_OK, EXIT_STOPPED
from pcopy.launch.tool import JobResult, PreparedJob
from pcopy.launch.watch.signals import stop_message
from pcopy.report.screen import OutputOptions
from pcopy.report.streams import print_error
from pcopy.tasks.base.actions import CHANGING_ACTIONS, ItemAction
from pcopy.tasks.base.item_outcomes import PackedItemOutcomes
from pcopy.tasks.base.job import ForwardingProgressSink, JobCounters, ProgressSink
from pcopy.text import count_with_noun
from pcopy.tools.arguments import VerifyArguments
from pcopy.tools.filter_messages import empty_selection_text, excluded_items_text
from pcopy.tools.summary import filter_origins_json_values


class DryRunItemsSink(ForwardingProgressSink):
    """Receives outcomes on rank 0 in a dry run, and passes everything on.

    It also prints a line for each item that would be changed, and counts the items by action.
    """

    def __init__(self, sink: ProgressSink, output_options: OutputOptions) -> None:
        """Pass everything on to ``sink``. Print lines unless ``output_options`` request JSON or no output; with ``-vv``
        or ``--dry-run=all``, also for the items that would remain as they are.
        """
        super().__init__(sink)
        prints = not (output_options.json or output_options.quiet)
        self._lists_all = output_options.verbose > 1
        self._prints_unlisted_count = prints and not self._lists_all
        self._listed_actions = (
            {*CHANGING_ACTIONS, *((ItemAction.SKIP,) if self._lists_all else ())} if prints else set()
        )
        self.items_by_action: Counter[int] = Counter()

    def items(self, items: Sequence[PackedItemOutcomes]) -> None:
        """Print the items, as far as lines are to be printed, and count them."""
        for each in items:
            self.items_by_action[each.action] += len(each.kinds)
            if each.action in self._listed_actions:
                sys.stdout.write("".join(f"{item}\n" for item in each.unpacked_outcomes()))
        super().items(items)

    def unlisted_items_lines(self) -> list[str]:
        """Return a line for the summary with the number of items that would remain as they are and have no line; an
        empty list if there are none.
        """
        unlisted = self.items_by_action[ItemAction.SKIP]
        if not (unlisted and self._prints_unlisted_count):
            return []
        items = count_with_noun(unlisted, "item that is", "items that are")
        return [f"  not listed: {items} skipped (--dry-run=all lists all)"]


def output_options_for_dry_run(output_options: OutputOptions) -> OutputOptions:
    """Return ``output_options`` changed for a dry run, which prints a line for each item on standard output.

    So ``-v`` and ``-vv`` print no items. If standard output is a terminal, no progress bar is shown there.
    """
    progress = "none" if sys.stdout.isatty() and output_options.progress in ("auto", "bar") else output_options.progress
    return output_options._replace(progress=progress, hides_items=True)


class UnrecordedJob(PreparedJob):
    """Base class of jobs that are not recorded for ``--resume``, and print their totals at the end (on rank 0)."""

    program: str
    """Name of the program, which begins each line on standard error."""
    incomplete_text: str
    """What the last line says about a job in which items failed, after "incomplete: "."""
    stopped_text = "repeat the command to continue"
    """What the last line says about a job that was stopped early: what the user can do."""
    excluding_options = "filters"
    """What the summary calls the options that exclude items, such as "filters"."""
    states_filters = False
    """True if ``summary_lines`` says itself how many items were left out by filters, and where the filters are set.
    If False, ``report_job_result`` adds such a line.
    """
    is_summary_on_stderr = False
    """True if the summary for people is printed on standard error, because standard output contains something else."""

    def __init__(self, ranks: int, in_flight: int, output_options: OutputOptions, *, dry_run: bool = False) -> None:
        super().__init__(ranks, in_flight, output_options)
        self.dry_run = dry_run
        """True if nothing is changed. A dry run prints its result even with ``-q``."""
        self._dry_run_sink: DryRunItemsSink | None = None
        self.remarks: list[str] = []
        """Lines that ``report_job_result`` prints on standard error before the summary."""

    def closing_lines(self) -> list[str]:
        """Return lines for the end of the summary for people."""
        return [] if self._dry_run_sink is None else self._dry_run_sink.unlisted_items_lines()

    @property
    def prints_items(self) -> bool:
        """True if a dry run prints a line on standard output for each item that would be changed."""
        return self.dry_run and not (self.output.json or self.output.quiet)

    def job_event_sink(self, screen: ProgressSink) -> ProgressSink:
        """Return the receiver of progress and outcomes, which passes them on to ``screen``, and prints the lines of a
        dry run.
        """
        if self.prints_items:
            self._dry_run_sink = DryRunItemsSink(screen, self.output)
        return super().job_event_sink(self._dry_run_sink or screen)

    @abstractmethod
    def json_summary(self, ended: JobResult, seconds: float, ranks: int) -> dict[str, object]:
        """Return the values that ``--json`` prints at the end. ``seconds`` is the wall time of the job."""

    @abstractmethod
    def summary_lines(self, ended: JobResult, seconds: float, ranks: int) -> Iterator[str]:
        """Yield the lines of the summary for people. ``seconds`` is the wall time of the job."""

    def report_job_result(self, ended: JobResult, ranks: int) -> int:
        seconds = time.monotonic() - self.began
        if ended.halt is not None:
            print_error(self.program, stop_message(ended.halt))
        for remark in self.remarks:
            print_error(self.program, remark)
        self.json_values = self.json_summary(ended, seconds, ranks) | filter_origins_json_values(
            self.output.filter_origins
        )
        if self.output.json:
            print(json.dumps(self.json_values), flush=True)
        elif not self.output.quiet or ended.status != EXIT_OK or self.dry_run:
            lines = [*self.summary_lines(ended, seconds, ranks)]
            by = self.excluding_options
            if not self.states_filters and (
                excluded := excluded_items_text(ended.totals.excluded, self.output.filter_origins, options_name=by)
            ):
                lines.append(f"  {excluded}")
            lines += self.closing_lines()
            if ended.status != EXIT_OK:
                lines.append(self._unsuccessful_outcome_line(ended.status))
            print("\n".join(lines), file=sys.stderr if self.is_summary_on_stderr else sys.stdout, flush=True)
        return ended.status

    def _unsuccessful_outcome_line(self, status: int) -> str:
        """Return the last line of the summary of a job whose exit status ``status`` is not 0."""
        outcomes = {
            EXIT_INCOMPLETE: f"incomplete: {self.incomplete_text} (status 1)",
            EXIT_INTERNAL: "internal error (status 70)",
            EXIT_STOPPED: f"stopped early (status 75): {self.stopped_text}",
        }
        return outcomes.get(status, f"ended with status {status}")


class VerifyJobBase(PreparedJob):
    """Base class of the jobs of ``pverify``, which read trees and compare them."""

    failed_text: str
    """End of the text "N of M items could not be ..." for items that failed, such as "compared"."""
    excluded_suffix = ""
    """Text after a number of items that failed, were found or were excluded by filters.

    It is needed if two trees are compared: then an item may count twice, and the text says so.
    """

    def __init__(self, arguments: VerifyArguments) -> None:
        super().__init__(arguments.ranks, arguments.in_flight, arguments.output)
        self._remarks: list[str] = []

    def _note_if_everything_excluded(self, totals: JobCounters) -> bool:
        """Return True if the filters have excluded everything; in this case also add a remark for the user that says
        so.
        """
        nothing = empty_selection_text(self.job, totals) if self.job.options.select.has_filters else ""
        if nothing:
            self._remarks.append(nothing)
        return bool(nothing)

    def report_job_result(self, ended: JobResult, ranks: int) -> int:
        elapsed = time.monotonic() - self.began
        totals = ended.totals
        if ended.halt is not None:
            self._remarks.append(stop_message(ended.halt))
        elif totals.failed:
            found = count_with_noun(totals.found, "item", "items") + self.excluded_suffix
            self._remarks.append(f"{totals.failed:,} of {found} could not be {self.failed_text}")
        for remark in self._remarks:
            print_error("pverify", remark)
        self.json_values = {"excluded": totals.excluded, **self._json_summary(ended, elapsed, ranks)}
        self.json_values |= filter_origins_json_values(self.output.filter_origins)
        if self.output.json:
            print(json.dumps(self.json_values))
        elif not self.output.quiet:
            excluded = excluded_items_text(totals.excluded, self.output.filter_origins, self.excluded_suffix)
            for line in self._summary_lines(ended, elapsed):
                is_verdict = bool(excluded) and line == "the same"
                print(f"pverify: {line}{f', but for {excluded}' if is_verdict else ''}", file=sys.stderr)
                excluded = "" if is_verdict else excluded
            if excluded:
                print(f"pverify: {excluded}", file=sys.stderr)
        sys.stdout.flush()
        return ended.status

    @abstractmethod
    def _summary_lines(self, ended: JobResult, elapsed: float) -> Iterable[str]:
        """Return the lines of the summary for people. ``elapsed`` is the wall time of the job in seconds."""

    @abstractmethod
    def _json_summary(self, ended: JobResult, elapsed: float, ranks: int) -> dict[str, object]:
        """Return the values that ``--json`` prints at the end. ``elapsed`` is the wall time of the job in seconds."""
