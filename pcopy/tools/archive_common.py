"""Code that ``ptar -c`` and ``ptar -x`` share: the order of phases, the exit status, and the final output."""

from __future__ import annotations

from collections.abc import Iterator

from pcopy.engine.messages import HaltMessage
from pcopy.errors import EXIT_INCOMPLETE, EXIT_INTERNAL, EXIT_OK, EXIT_STOPPED
from pcopy.launch.tool import JobResult
from pcopy.tasks.base.actions import ItemAction
from pcopy.tasks.base.item_outcomes import PackedItemOutcomes
from pcopy.tasks.base.job import JobCounters, ProgressSink
from pcopy.text import count_with_noun, printable_path
from pcopy.tools.arguments import ArchiveArguments
from pcopy.tools.director import JobDirector
from pcopy.tools.final_output import DryRunItemLinesSink, UnrecordedJob, output_options_for_dry_run
from pcopy.tools.space import free_space_of_file_system
from pcopy.tools.summary import common_json_values, deletion_and_warning_count_lines, item_counts_lines
from pcopy.units import format_seconds, format_size

_SHOWN_COUNTERS = (
    *("found", "files", "directories", "symlinks", "special", "hardlinks", "bytes", "skipped", "excluded", "failed"),
    *("changed", "vanished", "excused", "warnings"),
)
"""Names of the counters (fields of ``JobCounters``) that ``--json`` shows, in this order."""


class TarDirector(JobDirector):
    """Base class of the directors of ``ptar`` (objects on rank 0 that choose the phases and the exit status).

    Failed items do not stop the job: an archive is created of all items that could be read, and unpacking creates all
    items that it can create.
    """

    def needed_phases(self, sums: JobCounters) -> dict[int, object]:
        """Return the phases after the first one, in their order. The value of a phase is true if the phase is needed.

        A phase without work, such as that for hard links if there are none, is left out of the job.

        Args:
            sums: the counters over all ranks.
        """
        raise NotImplementedError

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        due = self.needed_phases(JobCounters(*totals))
        return next(
            (phase_number for phase_number, is_needed in due.items() if phase_number > phase and is_needed), None
        )

    def _determine_exit_status(self, sums: JobCounters, halted: HaltMessage | None) -> int:
        if halted is not None:
            return EXIT_STOPPED
        if sums.found != sums.copied + sums.skipped + sums.failed:
            return EXIT_INTERNAL
        return max(self._complete(self._rank, sums), EXIT_INCOMPLETE if sums.failed or sums.unsynced else EXIT_OK)


class TarJob(UnrecordedJob):
    """Base class of the jobs that create or unpack an archive."""

    program, incomplete_text = "ptar", "some items failed"
    item_verb: str
    """Participle for messages, which says what is done to items: ``archived`` or ``unpacked``."""

    def __init__(self, arguments: ArchiveArguments) -> None:
        output_options, dry_run = arguments.output, arguments.options.dry_run
        if dry_run:
            output_options = output_options_for_dry_run(output_options)
        super().__init__(arguments.ranks, arguments.in_flight, output_options, dry_run=dry_run)
        self.arguments = arguments
        self.prints_items = dry_run and not (output_options.json or output_options.quiet)
        """True if a line is printed on standard output for each item that would be created."""

    def job_event_sink(self, screen: ProgressSink) -> ProgressSink:
        return super().job_event_sink(
            DryRunItemLinesSink(screen, _are_items_to_be_created) if self.prints_items else screen
        )

    def json_summary(self, ended: JobResult, seconds: float, ranks: int) -> dict[str, object]:
        values = common_json_values(ended.totals, _SHOWN_COUNTERS, seconds, ranks, ended.status)
        return {**values, "archive": printable_path(self.job.options.archive_file), "dry_run": self.dry_run}

    def summary_lines(self, ended: JobResult, seconds: float, ranks: int) -> Iterator[str]:
        totals, ways = ended.totals, count_with_noun(ranks, "rank", "ranks")
        yield from item_counts_lines(
            totals, f"would be {self.item_verb}" if self.dry_run else self.item_verb, "left out"
        )
        if self.dry_run:
            yield from self._free_space_line(totals)
            yield f"nothing was changed (--dry-run): {format_seconds(seconds)} with {ways}"
            return
        yield from deletion_and_warning_count_lines(totals)
        rate = totals.bytes / seconds if seconds > 0 else 0.0
        yield f"{format_size(totals.bytes)} in {format_seconds(seconds)}: {format_size(rate)}/s with {ways}"

    def _free_space_line(self, totals: JobCounters) -> Iterator[str]:
        """Yield a line for the summary with the free space at the target, and with the needed space if that is more.

        Yield nothing if the free space is unknown.
        """
        directory, needed = self.job.roots[0].target, self.needed_bytes(totals)
        try:
            free = free_space_of_file_system(directory).bytes
        except OSError:
            return
        lack = f", and {format_size(needed)} are needed" if needed > free else ""
        yield f"  free on {printable_path(directory)}: {format_size(free)}{lack}"

    def needed_bytes(self, totals: JobCounters) -> int:
        """Return the number of bytes that would be written, for the line about free space; 0 if it is unknown."""
        return totals.bytes


def _are_items_to_be_created(items: PackedItemOutcomes) -> bool:
    """True if these items, which all have the same outcome, would be created or would replace existing ones."""
    return items.action in (ItemAction.COPY, ItemAction.REPLACE)
