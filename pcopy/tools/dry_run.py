"""``pcopy --dry-run``: the same scan and decisions as in a copy, without creating anything.

A line for each item that would be changed is printed on standard output as soon as it is decided what a copy would do
with the item. The totals follow at the end. The job is not recorded, no signature is computed, and nothing is verified.
"""

from __future__ import annotations

import json
import time
from array import array
from collections import Counter
from collections.abc import Sequence

from pcopy.errors import EXIT_INCOMPLETE
from pcopy.launch.tool import JobResult
from pcopy.launch.watch.signals import stop_message
from pcopy.report.screen import OutputOptions
from pcopy.signature.items import FILE
from pcopy.tasks.base.actions import ItemAction
from pcopy.tasks.base.item_outcomes import ACTION_WORDS, PackedItemOutcomes
from pcopy.tasks.base.job import REPORT_ALL_ITEMS, Job, ProgressSink
from pcopy.text import count_with_noun, printable_path
from pcopy.tools.arguments import CopyArguments
from pcopy.tools.copy import CopyJob
from pcopy.tools.filter_messages import excluded_items_text
from pcopy.tools.final_output import DryRunItemsSink, output_options_for_dry_run
from pcopy.tools.space import FreeSpace, InsufficientSpace, free_space_of_file_system
from pcopy.tools.summary import copy_json_summary, filter_origins_json_values, item_counts_lines
from pcopy.units import format_seconds, format_size
from pcopy.walk.preliminary_walk import PreliminaryWalk

_FIRST_SIZE_LIMIT, _SIZE_LIMIT_FACTOR = 4 << 10, 16
"""Limits of the classes in the histogram of file sizes: the first class ends at ``_FIRST_SIZE_LIMIT`` bytes (4 KiB),
and each further class at ``_SIZE_LIMIT_FACTOR`` times the end of the class before it. Empty files have a class of their
own.
"""


class SizeHistogram:
    """Histogram of file sizes: number of files and bytes in each class."""

    def __init__(self) -> None:
        self._files: Counter[int] = Counter()
        self._bytes: Counter[int] = Counter()

    def add_file(self, size: int) -> None:
        """Count a file of ``size`` bytes."""
        end = _FIRST_SIZE_LIMIT if size else 0
        while end < size:
            end *= _SIZE_LIMIT_FACTOR
        self._files[end] += 1
        self._bytes[end] += size

    def rows(self) -> list[tuple[int, int, int]]:
        """Return (largest size of the class in bytes, number of files, their total size in bytes) for each class that
        contains files, the smallest first.
        """
        return [(end, self._files[end], self._bytes[end]) for end in sorted(self._files)]

    def histogram_text_lines(self) -> list[str]:
        """Return the lines of the histogram for people, one for each class."""
        rows = self.rows()
        title = {end: f"up to {format_size(end)}" if end else "empty" for end, _, _ in rows}
        return [
            f"    {title[end]}: {count_with_noun(files, 'file', 'files')}, {format_size(size)}"
            for end, files, size in rows
        ]


class DryRunCopySink(DryRunItemsSink):
    """Receives outcomes on rank 0 in a dry run of a copy. It also counts the files that would be copied, by size."""

    def __init__(self, sink: ProgressSink, output_options: OutputOptions) -> None:
        super().__init__(sink, output_options)
        self.sizes = SizeHistogram()

    def items(self, items: Sequence[PackedItemOutcomes]) -> None:
        for each in items:
            if each.action in (ItemAction.COPY, ItemAction.REPLACE):
                for kind, size in zip(each.kinds, array("Q", each.sizes), strict=True):
                    if kind == FILE[0]:
                        self.sizes.add_file(size)
        super().items(items)


class DryRunJob(CopyJob):
    """The job of ``pcopy --dry-run`` on rank 0."""

    _is_sufficient: bool | None = None
    """True if the destination has enough free space for the copy, False if not; None if that is unknown or was not
    checked.
    """
    _space_problem = ""
    """Why a copy would be refused for lack of free space; "" if it would not be."""

    def __init__(self, words: Sequence[str], arguments: CopyArguments) -> None:
        output_options = output_options_for_dry_run(arguments.output)
        keeping = arguments.checkpoint._replace(directory=b"", durable_at_start=False)
        super().__init__(words, arguments._replace(output=output_options, is_recorded=False, checkpoint=keeping))
        options = self.job.options._replace(signature=b"", manifest=b"", hash="", sync=False, itemize=REPORT_ALL_ITEMS)
        copy_options = self.job.copy_options._replace(verify=False, repair=False, fsync=False)
        self.job = self.job._replace(options=options, program=copy_options)
        self._dry_run_sink: DryRunCopySink | None = None

    def _is_space_sufficient(self, job: Job, ahead: PreliminaryWalk) -> bool:
        """Record whether the space is sufficient, for the report of the dry run. Return True to continue."""
        try:
            self._is_sufficient = super()._is_space_sufficient(job, ahead) or None
        except InsufficientSpace as lacking:
            self._is_sufficient, self._space_problem = False, lacking.reason
        return True

    def job_event_sink(self, screen: ProgressSink) -> ProgressSink:
        self._dry_run_sink = DryRunCopySink(super().job_event_sink(screen), self.output)
        return self._dry_run_sink

    def report_job_result(self, ended: JobResult, ranks: int) -> int:
        seconds = time.monotonic() - self.began
        if ended.halt is not None:
            self._print_message(stop_message(ended.halt))
        for remark in self._remarks:
            self._print_message(remark)
        self.json_values = copy_json_summary(ended, seconds, ranks, sequential=self.job.options.sequential)
        self.json_values |= {"bytes_per_second": 0} | self._dry_run_values()
        self.json_values |= filter_origins_json_values(self.output.filter_origins)
        if self.output.json:
            print(json.dumps(self.json_values), flush=True)
        elif not self.output.quiet or ended.status:
            print("\n".join(self._summary_lines(ended, seconds, ranks)), flush=True)
        elif forecast := self._space_forecast(ended, self._free_space_at_destination()):
            self._print_message(f"{printable_path(self.job.roots[0].target)}: {forecast}")
        return ended.status

    def _space_forecast(self, ended: JobResult, free: FreeSpace | None) -> str:
        """Return what would happen to a copy for lack of ``free`` space; "" if nothing, or if that is unknown."""
        if self._space_problem:
            return f"{self._space_problem}: the copy would be refused without --force"
        if free is None or ended.totals.bytes <= free.bytes or self._is_sufficient:
            return ""
        sizes = f"{format_size(ended.totals.bytes)} would be copied and {format_size(free.bytes)} are free"
        return f"{sizes}: the copy would stop early, unless files have holes or replace others"

    def _dry_run_values(self) -> dict[str, object]:
        """Return the values of ``--json`` that only a dry run has, such as the histogram of file sizes."""
        assert self._dry_run_sink is not None
        free = self._free_space_at_destination()
        rows = self._dry_run_sink.sizes.rows()
        return {
            "dry_run": True,
            "actions": {ACTION_WORDS[action]: self._dry_run_sink.items_by_action[action] for action in ItemAction},
            "sizes": [{"up_to": end, "files": files, "bytes": size} for end, files, size in rows],
            "free_bytes": free and free.bytes,
            "free_inodes": None if free is None or free.inodes < 0 else free.inodes,
            "fits": self._is_sufficient,
        }

    def _summary_lines(self, ended: JobResult, seconds: float, ranks: int) -> list[str]:
        """Return the lines of the summary."""
        assert self._dry_run_sink is not None
        totals, by_action = ended.totals, self._dry_run_sink.items_by_action
        lines = item_counts_lines(totals, "would be copied", "would be skipped")
        if totals.skipped_bytes:
            lines.append(f"  would be skipped: {format_size(totals.skipped_bytes)}")
        if excluded := excluded_items_text(totals.excluded, self.output.filter_origins):
            lines.append(f"  {excluded}")
        actions = [f"{by_action[action]:,} {ACTION_WORDS[action]}" for action in ItemAction if by_action[action]]
        lines.append(f"  {', '.join(actions) or 'nothing'}")
        lines += self._dry_run_sink.unlisted_items_lines()
        if rows := self._dry_run_sink.sizes.histogram_text_lines():
            lines += ["  sizes of the files to be copied:", *rows]
        free = self._free_space_at_destination()
        if free is not None:
            inodes = f"{free.inodes:,} inodes" if free.inodes >= 0 else "no limit of inodes"
            lines.append(f"  free on {printable_path(self.job.roots[0].target)}: {format_size(free.bytes)}, {inodes}")
        if forecast := self._space_forecast(ended, free):
            lines.append(f"  {forecast}")
        lines.append(
            f"nothing was changed (--dry-run): {format_seconds(seconds)} with {count_with_noun(ranks, 'rank', 'ranks')}"
        )
        if ended.status == EXIT_INCOMPLETE:
            lines.append("incomplete: some items would fail, or could not be looked at (status 1)")
        return lines

    def _free_space_at_destination(self) -> FreeSpace | None:
        """Return the free space, in bytes and inodes, at the destination; None if it is unknown."""
        try:
            return free_space_of_file_system(self.job.roots[0].target)
        except OSError:
            return None
