"""Code that ``ptar -c`` and ``ptar -x`` share: the order of phases, the exit status, and the final output."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TextIO

from pcopy.engine.messages import HaltMessage
from pcopy.errors import EXIT_INCOMPLETE, EXIT_INTERNAL, EXIT_OK, EXIT_STOPPED, NO_SPACE_CODE
from pcopy.launch.tool import JobResult
from pcopy.signature.items import DIRECTORY
from pcopy.tasks.base.actions import CHANGING_ACTIONS
from pcopy.tasks.base.item_outcomes import TYPE_NAMES, ItemOutcome, PackedItemOutcomes
from pcopy.tasks.base.job import ArchiveOptions, ForwardingProgressSink, JobCounters, ProgressSink
from pcopy.text import count_with_noun, printable_path, tar_quoted_name
from pcopy.tools.arguments import ArchiveArguments
from pcopy.tools.director import JobDirector
from pcopy.tools.final_output import UnrecordedJob, output_options_for_dry_run
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
        self.prints_names = output_options.verbose > 0 and not (dry_run or output_options.quiet)
        """True if the name of each member is printed (``-v``). As with tar, names go to standard output. The summary
        goes to standard error then. With ``--json`` it is the other way round.
        """
        if not dry_run:  # The names are all that -v prints. With -vv, phases and the backend are reported, too.
            output_options = output_options._replace(verbose=max(0, output_options.verbose - 1))
        if dry_run or (self.prints_names and not output_options.json):
            output_options = output_options_for_dry_run(output_options)
        super().__init__(arguments.ranks, arguments.in_flight, output_options, dry_run=dry_run)
        self.is_summary_on_stderr = self.prints_names
        self.arguments = arguments

    @property
    def is_reporting_items(self) -> bool:
        """True if rank 0 needs the outcome of each item."""
        return bool(self.output.reported_items or self.prints_items or self.prints_names)

    def job_event_sink(self, screen: ProgressSink) -> ProgressSink:
        if self.prints_names:
            screen = MemberNamesSink(screen, self, sys.stderr if self.output.json else sys.stdout)
        return super().job_event_sink(screen)

    def member_name(self, path: bytes) -> bytes:
        """Return the name of a member as tar prints it, without the slash at the end of a directory. ``path`` is the
        path of the item as it is shown in messages.
        """
        return path

    def json_summary(self, ended: JobResult, seconds: float, ranks: int) -> dict[str, object]:
        values = common_json_values(ended.totals, _SHOWN_COUNTERS, seconds, ranks, ended.status)
        return {
            **values,
            "archive": printable_path(self.job.program_options(ArchiveOptions).archive_file),
            "dry_run": self.dry_run,
        }

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


class MemberNamesSink(ForwardingProgressSink):
    """Receives outcomes on rank 0, and passes everything on. It also prints the name of each member that was archived
    or unpacked, in a line as ``tar -v`` prints it.
    """

    def __init__(self, sink: ProgressSink, job: TarJob, stream: TextIO) -> None:
        """Pass everything on to ``sink``, and print the names of the members of ``job`` on ``stream``."""
        super().__init__(sink)
        self._job = job
        self._stream = stream

    def items(self, items: Sequence[PackedItemOutcomes]) -> None:
        for each in items:
            if each.action not in CHANGING_ACTIONS:
                continue
            self._stream.write("".join(map(self._line_for_item, each.unpacked_outcomes())))
        super().items(items)

    def _line_for_item(self, item: ItemOutcome) -> str:
        name = self._job.member_name(item.path)
        if item.type == TYPE_NAMES[DIRECTORY]:
            name = name.rstrip(b"/") + b"/"
        return f"{tar_quoted_name(name, self._stream.encoding)}\n"


def advice_after_stop(reason: HaltMessage, advice: str, directory: bytes) -> str:
    """Return ``advice``, which says how to repeat a command that was stopped for ``reason``. If the file system of
    ``directory``, to which the command writes, is full, the advice to make room precedes it.
    """
    return f"{make_room_advice(directory)}, then {advice}" if reason.code == NO_SPACE_CODE else advice


def make_room_advice(directory: bytes) -> str:
    """Return what to do if there is no space left on the file system of ``directory``, or a quota is exhausted."""
    return f"make room in the file system of {printable_path(directory)}"
