"""``pwalk``: walk trees and list or summarise their items. All ranks load this module; rank 0 checks the paths, writes
the lists, and reports the result.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pcopy.engine.task import NewTask
from pcopy.errors import EXIT_INCOMPLETE, EXIT_OK, RequestRefused
from pcopy.fsio.backend.columns import SIZE_COLUMN
from pcopy.jobs.paths import absolute_path
from pcopy.jobs.suggestions import suggestion_for_missing_path
from pcopy.launch.tool import JobResult
from pcopy.launch.watch.signals import stop_message
from pcopy.report.streams import print_error
from pcopy.tasks.base.codec import encode_task
from pcopy.tasks.base.job import ProgressSink, Root, WalkOptions
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import SCAN_COST
from pcopy.tasks.walk.finder import columns_to_stat
from pcopy.tasks.walk.sum_up import WalkSumsRequestNote
from pcopy.tasks.walk.walk_dirs import WalkCommandLinePath
from pcopy.tasks.walk.walk_listed import ReadPathList
from pcopy.text import printable_path
from pcopy.tools.arguments import WalkArguments
from pcopy.tools.director import UnrecordedJobDirector, UnrecordedJobTool, stages_of_single_walk
from pcopy.tools.summary import common_json_values, item_counts_lines
from pcopy.tools.trees import TreeJob
from pcopy.tools.walk_outputs import ItemListsSink, OutputListTarget, check_list_can_be_written, list_target_for_file
from pcopy.units import format_seconds
from pcopy.walk.output_formats import LS_FIELDS
from pcopy.walk.sorting import column_bit_for_sort_order
from pcopy.walk.sums import WalkSums
from pcopy.walk.walk_request import WalkRequest

if TYPE_CHECKING:
    from pcopy.report.output_file import OutputFile

_SHOWN_COUNTERS = ("found", "files", "directories", "symlinks", "special", "bytes", "skipped", "excluded", "failed")
"""Names of the counters (fields of ``JobCounters``) that ``--json`` shows."""


class WalkDirector(UnrecordedJobDirector):
    """Director of ``pwalk`` (the object on rank 0 that chooses phases and first tasks). The first phase walks the
    paths. With ``--summary``, the ranks send their sums to rank 0 in a second one.
    """

    def first_tasks_of_phase(self, phase: int) -> Iterable[NewTask]:
        """Return the tasks with which the phase ``phase`` begins.

        In the first phase they start the walk. In the second phase there is one task per rank, which sends the sums of
        that rank to rank 0.
        """
        if phase == Phase.COPY:
            return super().first_tasks_of_phase(phase)
        payload = encode_task(WalkSumsRequestNote())
        return [NewTask(phase, payload, 0, owner=rank) for rank in range(self._rank.size)]

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        sums = WalkRequest(*self._job.program_options(WalkOptions).walk).sums
        return int(Phase.FINISH) if sums and phase == Phase.COPY else None

    def _root_walk_task(self, number: int) -> NewTask:
        wish = WalkRequest(*self._job.program_options(WalkOptions).walk)
        if wish.list_file:
            task = ReadPathList(wish.list_file, wish.nul_separated, wish.directory, wish.base)
            return NewTask(int(Phase.COPY), encode_task(task), SCAN_COST, True, 0)
        return NewTask(int(Phase.COPY), encode_task(WalkCommandLinePath(number)), SCAN_COST, True, 0)


class WalkTool(UnrecordedJobTool):
    """The program ``pwalk``.

    In its counters (``JobCounters``), ``copied`` counts the items that fulfil the expression and are listed or summed,
    and ``skipped`` those that do not fulfil it.
    """

    name = "pwalk"
    writes_to_targets = False
    stages = stages_of_single_walk("walk")
    done_word = "listed"
    make_director = WalkDirector

    def phase_name(self, phase: int) -> str:
        return "walk"


WALK_TOOL = WalkTool()
"""The only instance of ``WalkTool``."""


class WalkJob(TreeJob):
    """The job of ``pwalk`` on rank 0: checks the arguments, receives the lists, and prints the totals."""

    program, item_verb, incomplete_text = "pwalk", "walked", "not all items could be examined"
    stopped_text = "nothing was written"

    def __init__(self, arguments: WalkArguments) -> None:
        """Check the arguments and prepare the job; nothing is modified. Raise ``RequestRefused`` if the job must not
        start.
        """
        self.targets = _output_list_targets(arguments)
        """The lists to be written."""
        self.prints_list = any(not target.path for target in self.targets)
        """True if a list is written to standard output."""
        tree = arguments.tree
        if (
            self.prints_list and tree.output.progress == "auto"
        ):  # Progress lines would appear between those of the list.
            tree = tree._replace(output=tree.output._replace(progress="none"))
        super().__init__(tree)
        for target in self.targets:
            if target.path:
                check_list_can_be_written(target, force=arguments.force)
        self._page = _open_html_page(arguments)
        self._sort = arguments.sort
        expression = arguments.expression
        self.wish = WalkRequest(
            expression.tree,
            expression.prints,
            expression.least_depth,
            expression.most_depth,
            expression.same_device,
            forms=tuple(target.format for target in self.targets if target.format != "parquet"),
            fields=_listed_fields(arguments, self.targets),
            columns=bool(arguments.sort) or any(target.format == "parquet" for target in self.targets),
            sort_mask=column_bit_for_sort_order(arguments.sort) if arguments.sort else 0,
            sums=arguments.summary,
            now=arguments.now_ns,
        )
        if arguments.tree.list_file:
            self._prepare_job_for_path_list(arguments)
        else:
            self.make_job_for_roots(
                self.existing_roots(_root_for_path, unique=False), copies=False, program=WalkOptions(tuple(self.wish))
            )
        self._outputs: ItemListsSink | None = None

    def _prepare_job_for_path_list(self, arguments: WalkArguments) -> None:
        """Prepare the job for the list of ``--from``. Raise ``RequestRefused`` if the list cannot be used.

        The only root of the job is ``/``, since listed paths can be anywhere. Its path for messages is empty, so that
        items are displayed by the paths in the list.
        """
        from pcopy.jobs.sorted_list import existing_base_directory
        from pcopy.walk.path_list import STANDARD_INPUT, check_list_not_cut_off

        if arguments.tree.list_file != STANDARD_INPUT:
            check_list_not_cut_off(
                arguments.tree.list_file, nul=arguments.tree.nul_separated, advice_for=suggestion_for_missing_path
            )
        paths = arguments.tree.paths
        self.wish = self.wish._replace(
            list_file=arguments.tree.list_file,
            nul_separated=arguments.tree.nul_separated,
            directory=os.getcwdb(),
            base=existing_base_directory(paths[0]).shown if paths else b"",
        )
        self.make_job_for_roots((), copies=False, program=WalkOptions(tuple(self.wish)))
        top = os.stat(b"/")
        identity = top.st_dev, top.st_ino
        self.job = self.job._replace(roots=(Root(b"/", b"/", b"", b"", b"", b"", identity, identity),))

    @property
    def prints_items(self) -> bool:
        return False

    def job_event_sink(self, screen: ProgressSink) -> ProgressSink:
        if self._missing_paths:
            screen.receive_failures(self._missing_paths)
        self._outputs = ItemListsSink(
            screen, self.targets, self.wish.fields, self._sort, self.output.umask, f"pwalk-{self.job.temporary_name_id}"
        )
        if self.wish.sums:
            self._outputs.sums = WalkSums(self.wish.now)
        return self._outputs

    def print_resume_advice(self) -> None:
        """Remove the incomplete lists. Called after a rank has failed; there is no advice to print."""
        if self._outputs is not None:
            self._outputs.abandon_incomplete_lists()

    def report_job_result(self, ended: JobResult, ranks: int) -> int:
        """Complete the lists, or remove them if the job ended early or a list could not be written. Print the summary,
        unless a list was printed on standard output, and return the exit status.
        """
        outputs = self._outputs
        assert outputs is not None
        if not outputs.error and ended.halt is None and ended.status in (EXIT_OK, EXIT_INCOMPLETE):
            outputs.complete_lists()
        else:
            outputs.abandon_incomplete_lists()
        if outputs.error:
            if not outputs.is_output_closed:
                print_error(self.program, outputs.error)
            return outputs.status
        if not self.prints_list:
            return super().report_job_result(ended._replace(status=self._write_html_page(ended, ranks)), ranks)
        if ended.halt is not None:
            print_error(self.program, stop_message(ended.halt))
        if ended.totals.excluded:
            from pcopy.tools.filter_messages import print_excluded_item_count

            print_excluded_item_count(self.program, ended.totals.excluded, self.output)
        return ended.status

    def _write_html_page(self, ended: JobResult, ranks: int) -> int:
        """Write the HTML page of ``--page``, if that option was given and the job did not end early. Return the exit
        status: that of the job, or 1 if the page could not be written.
        """
        from pcopy.tools.walk_page import walk_summary_html_page

        if self._page is None or ended.halt is not None:
            return ended.status
        values = self.json_summary(ended, 0.0, ranks)
        sources = [self.wish.list_file] if self.wish.list_file else self.tree.paths
        try:
            self._page.replace(
                walk_summary_html_page(values, sources).encode(errors="backslashreplace"), durable_contents=True
            )
        except OSError as error:
            print_error(self.program, f"{printable_path(self._page.path)}: cannot be written: {error.strerror}")
            if ended.status == EXIT_OK:
                self.incomplete_text = "the page was not written"
            return EXIT_INCOMPLETE
        return ended.status

    @property
    def _reads_sizes(self) -> bool:
        """True if the walk must read the sizes of items. If the output consists of paths alone, sizes are not needed,
        and the walk saves a stat(2) per item.
        """
        return bool(columns_to_stat(self.wish) & SIZE_COLUMN)

    def summary_lines(self, ended: JobResult, seconds: float, ranks: int) -> Iterator[str]:
        totals = ended.totals
        if self._outputs is not None and self._outputs.sums is not None and ended.halt is None:
            from pcopy.tools.walk_layouts import layout_summary_lines
            from pcopy.tools.walk_summary import walk_summary_lines

            yield from walk_summary_lines(self._outputs.sums)
            yield from layout_summary_lines(self._outputs.layouts)
            yield ""
        yield from item_counts_lines(totals, "listed", "left out", sizes=self._reads_sizes)
        rate = totals.found / seconds if seconds > 0 else 0.0
        yield f"{format_seconds(seconds)}: {rate:,.0f} items/s"

    def json_summary(self, ended: JobResult, seconds: float, ranks: int) -> dict[str, object]:
        values = common_json_values(ended.totals, _SHOWN_COUNTERS, seconds, ranks, ended.status)
        if not self._reads_sizes:
            values["bytes"] = None
        if self._outputs is not None and self._outputs.sums is not None and ended.halt is None:
            from pcopy.tools.walk_layouts import layout_summary_json
            from pcopy.tools.walk_summary import walk_summary_json

            summary = {**walk_summary_json(self._outputs.sums), **layout_summary_json(self._outputs.layouts)}
            values = {**values, "summary": summary}
        return values


def _output_list_targets(arguments: WalkArguments) -> list[OutputListTarget]:
    """Return the lists to be written: one for each ``--output``, and one on standard output, if need be. Raise
    ``RequestRefused`` if a file is named twice, or its format is unknown.
    """
    nul = arguments.nul_separated
    targets = [list_target_for_file(path, nul=nul) for path in arguments.outputs]
    paths = [target.path for target in targets]
    if duplicate := next((path for path in paths if paths.count(path) > 1), None):
        raise RequestRefused(f"--output {os.fsdecode(duplicate)}: is given twice")
    if arguments.json_lines:
        return [*targets, OutputListTarget("jsonl")]
    if targets or arguments.summary:
        return targets
    if arguments.ls:
        return [OutputListTarget("ls")]
    return [OutputListTarget("nul" if nul else "shown" if sys.stdout.isatty() else "lines")]


def _open_html_page(arguments: WalkArguments) -> OutputFile | None:
    """Return the output file of ``--page``, which replaces an older page when the job has ended. Return None without
    that option. Raise ``RequestRefused`` if the file cannot be written.
    """
    if not arguments.page:
        return None
    from pcopy.report.output_file import OutputFile
    from pcopy.tools.walk_page import PAGE_BEGINNING

    check_list_can_be_written(
        OutputListTarget("page", arguments.page), force=arguments.force, known_beginning=PAGE_BEGINNING
    )
    return OutputFile(arguments.page, arguments.tree.output.umask)


def _listed_fields(arguments: WalkArguments, targets: Sequence[OutputListTarget]) -> tuple[str, ...]:
    """Return the names of the fields of each item, besides path and type, that the lists contain; none for lists of
    paths.
    """
    forms = {target.format for target in targets}
    if "ls" in forms:
        return LS_FIELDS
    return arguments.fields if forms.intersection(("jsonl", "csv", "parquet")) else ()


def _root_for_path(path: bytes) -> Root:
    """Return the root (source and target, here the same) for one PATH. A symbolic link is not followed unless PATH ends
    with a slash. Raise ``OSError`` if PATH does not exist.
    """
    status = os.lstat(path)
    if stat.S_ISDIR(status.st_mode):
        identity = status.st_dev, status.st_ino
        real = os.path.realpath(path)
        return Root(real, real, b"", b"", path, path, identity, identity)
    directory, name = os.path.split(absolute_path(path))
    parent_status = os.stat(directory)
    identity = parent_status.st_dev, parent_status.st_ino
    return Root(directory, directory, name, name, path, path, identity, identity)
