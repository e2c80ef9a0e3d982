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
from pcopy.fsio.backend.columns import SIZE
from pcopy.jobs.paths import absolute_path
from pcopy.jobs.suggestions import suggestion_for
from pcopy.launch.tool import JobResult
from pcopy.launch.watch.signals import stop_message
from pcopy.report.streams import print_error
from pcopy.tasks.base.codec import encode
from pcopy.tasks.base.job import Root, Sink
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import SCAN_COST
from pcopy.tasks.walk.finder import columns_to_stat
from pcopy.tasks.walk.sum_up import SendSums
from pcopy.tasks.walk.walk_dirs import WalkRoot
from pcopy.tasks.walk.walk_listed import ReadPathList
from pcopy.text import printable_path
from pcopy.tools.arguments import WalkArguments
from pcopy.tools.director import UnrecordedJobDirector, UnrecordedTool, single_stage
from pcopy.tools.summary import common_json_values, counts_lines
from pcopy.tools.trees import TreeJob
from pcopy.tools.walk_outputs import ListsSink, ListTarget, check_replaceable, list_target
from pcopy.units import format_seconds
from pcopy.walk.output_formats import LS_FIELDS
from pcopy.walk.sorting import sort_columns
from pcopy.walk.sums import WalkSums
from pcopy.walk.walk_request import WalkRequest

if TYPE_CHECKING:
    from pcopy.report.output_file import OutputFile

_COUNTED = ("found", "files", "directories", "symlinks", "special", "bytes", "skipped", "excluded", "failed")
"""Counters of ``Totals`` that ``--json`` shows."""


class WalkDirector(UnrecordedJobDirector):
    """Director of ``pwalk``: one phase that walks the paths and, with ``--summary``, a second one that collects the
    sums of all ranks.
    """

    def first_tasks(self, phase: int) -> Iterable[NewTask]:
        """Return the tasks that start the walk, or those by which each rank sends its sums to rank 0."""
        if phase == Phase.COPY:
            return super().first_tasks(phase)
        payload = encode(SendSums())
        return [NewTask(phase, payload, 0, owner=rank) for rank in range(self._rank.size)]

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        sums = WalkRequest(*self._job.options.walk).sums
        return int(Phase.FINISH) if sums and phase == Phase.COPY else None

    def _root_task(self, number: int) -> NewTask:
        wish = WalkRequest(*self._job.options.walk)
        if wish.listed:
            task = ReadPathList(wish.listed, wish.listed_nul, wish.directory, wish.base)
            return NewTask(int(Phase.COPY), encode(task), SCAN_COST, True, 0)
        return NewTask(int(Phase.COPY), encode(WalkRoot(number)), SCAN_COST, True, 0)


class WalkTool(UnrecordedTool):
    """The program ``pwalk``.

    In its counters, ``copied`` counts the items that are listed, and ``skipped`` those that are not.
    """

    name = "pwalk"
    writes_to_targets = False
    stages = single_stage("walk")
    done_word = "listed"
    make_director = WalkDirector

    def phase_name(self, phase: int) -> str:
        return "walk"


WALK_TOOL = WalkTool()
"""The only instance of ``WalkTool``."""


class WalkJob(TreeJob):
    """The job of ``pwalk`` on rank 0."""

    program, item_verb, incomplete_text = "pwalk", "walked", "not all items could be examined"
    stopped_text = "nothing was written"

    def __init__(self, arguments: WalkArguments) -> None:
        """Check the arguments and prepare the job.

        Raise ``RequestRefused`` if it must not start; nothing is modified.
        """
        self.targets = _list_targets(arguments)
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
                check_replaceable(target, force=arguments.force)
        self._page = _open_page(arguments)
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
            sort_mask=sort_columns(arguments.sort) if arguments.sort else 0,
            sums=arguments.summary,
            now=arguments.now_ns,
        )
        if arguments.tree.list_file:
            self._prepare_from_list(arguments)
        else:
            self.make_job(self.existing_roots(_root_for_path, unique=False), copies=False, walk=tuple(self.wish))
        self._outputs: ListsSink | None = None

    def _prepare_from_list(self, arguments: WalkArguments) -> None:
        """Prepare the job for the list of ``--from``. Raise ``RequestRefused`` if it cannot be used.

        The job has one root, ``/`` without a name for display: listed items are displayed by the paths in the list.
        """
        from pcopy.walk.saved_listing import STANDARD_INPUT, check_not_cut_off

        if arguments.tree.list_file != STANDARD_INPUT:
            check_not_cut_off(
                arguments.tree.list_file, "--from", nul=arguments.tree.nul_separated, advice_for=suggestion_for
            )
        base = arguments.base
        if base and not os.path.isdir(base):
            raise RequestRefused(
                f"{printable_path(base)}: is no directory; name the one that contains the paths that --from lists"
            )
        self.wish = self.wish._replace(
            listed=arguments.tree.list_file, listed_nul=arguments.tree.nul_separated, directory=os.getcwdb(), base=base
        )
        self.make_job((), copies=False, walk=tuple(self.wish))
        top = os.stat(b"/")
        identity = top.st_dev, top.st_ino
        self.job = self.job._replace(roots=(Root(b"/", b"/", b"", b"", b"", b"", identity, identity),))

    @property
    def prints_items(self) -> bool:
        return False

    def sink(self, screen: Sink) -> Sink:
        if self._missing_paths:
            screen.failures(self._missing_paths)
        self._outputs = ListsSink(
            screen, self.targets, self.wish.fields, self._sort, self.output.umask, f"pwalk-{self.job.temporary_name_id}"
        )
        if self.wish.sums:
            self._outputs.sums = WalkSums(self.wish.now)
        return self._outputs

    def print_resume_advice(self) -> None:
        """Remove the incomplete lists, after a rank has failed."""
        if self._outputs is not None:
            self._outputs.abandon()

    def report_end(self, ended: JobResult, ranks: int) -> int:
        """Complete the lists, or remove them if they are incomplete. Print the summary and return the exit status."""
        outputs = self._outputs
        assert outputs is not None
        if not outputs.error and ended.halt is None and ended.status in (EXIT_OK, EXIT_INCOMPLETE):
            outputs.finish()
        else:
            outputs.abandon()
        if outputs.error:
            if not outputs.is_output_closed:
                print_error(self.program, outputs.error)
            return outputs.status
        if not self.prints_list:
            return super().report_end(ended._replace(status=self._write_page(ended, ranks)), ranks)
        if ended.halt is not None:
            print_error(self.program, stop_message(ended.halt))
        if ended.totals.excluded:
            from pcopy.tools.filter_messages import print_excluded

            print_excluded(self.program, ended.totals.excluded, self.output)
        return ended.status

    def _write_page(self, ended: JobResult, ranks: int) -> int:
        """Write the page of ``--page``, if asked for. Return the exit status."""
        from pcopy.tools.walk_page import walk_page

        if self._page is None or ended.halt is not None:
            return ended.status
        values = self.json_summary(ended, 0.0, ranks)
        sources = [self.wish.listed] if self.wish.listed else self.tree.paths
        try:
            self._page.replace(walk_page(values, sources).encode(errors="backslashreplace"), durable_contents=True)
        except OSError as error:
            print_error(self.program, f"{printable_path(self._page.path)}: cannot be written: {error.strerror}")
            if ended.status == EXIT_OK:
                self.incomplete_text = "the page was not written"
            return EXIT_INCOMPLETE
        return ended.status

    @property
    def _reads_sizes(self) -> bool:
        """True if the walk reads the sizes of items. A list of names alone does not need their status."""
        return bool(columns_to_stat(self.wish) & SIZE)

    def summary_lines(self, ended: JobResult, seconds: float, ranks: int) -> Iterator[str]:
        totals = ended.totals
        if self._outputs is not None and self._outputs.sums is not None and ended.halt is None:
            from pcopy.tools.walk_layouts import layouts_lines
            from pcopy.tools.walk_summary import walk_summary_lines

            yield from walk_summary_lines(self._outputs.sums)
            yield from layouts_lines(self._outputs.layouts)
            yield ""
        yield from counts_lines(totals, "listed", "left out", sizes=self._reads_sizes)
        rate = totals.found / seconds if seconds > 0 else 0.0
        yield f"{format_seconds(seconds)}: {rate:,.0f} items/s"

    def json_summary(self, ended: JobResult, seconds: float, ranks: int) -> dict[str, object]:
        values = common_json_values(ended.totals, _COUNTED, seconds, ranks, ended.status)
        if not self._reads_sizes:
            values["bytes"] = None
        if self._outputs is not None and self._outputs.sums is not None and ended.halt is None:
            from pcopy.tools.walk_layouts import layouts_json
            from pcopy.tools.walk_summary import walk_summary_json

            summary = {**walk_summary_json(self._outputs.sums), **layouts_json(self._outputs.layouts)}
            values = {**values, "summary": summary}
        return values


def _list_targets(arguments: WalkArguments) -> list[ListTarget]:
    """Return the lists to be written. Raise ``RequestRefused`` if one cannot be written."""
    nul = arguments.nul_separated
    targets = [list_target(path, nul=nul) for path in arguments.outputs]
    paths = [target.path for target in targets]
    if duplicate := next((path for path in paths if paths.count(path) > 1), None):
        raise RequestRefused(f"--output {os.fsdecode(duplicate)}: is given twice")
    if arguments.json_lines:
        return [*targets, ListTarget("jsonl")]
    if targets or arguments.summary:
        return targets
    if arguments.ls:
        return [ListTarget("ls")]
    return [ListTarget("nul" if nul else "shown" if sys.stdout.isatty() else "lines")]


def _open_page(arguments: WalkArguments) -> OutputFile | None:
    """Return the open file of ``--page``, which replaces an older one at the end; None without that option. Raise
    ``RequestRefused`` if it cannot be written.
    """
    if not arguments.page:
        return None
    from pcopy.report.output_file import OutputFile
    from pcopy.tools.walk_page import BEGINNING

    check_replaceable(ListTarget("page", arguments.page), force=arguments.force, known_beginning=BEGINNING)
    return OutputFile(arguments.page, arguments.tree.output.umask)


def _listed_fields(arguments: WalkArguments, targets: Sequence[ListTarget]) -> tuple[str, ...]:
    """Return the fields of each listed item that the lists contain."""
    forms = {target.format for target in targets}
    if "ls" in forms:
        return LS_FIELDS
    return arguments.fields if forms.intersection(("jsonl", "csv", "parquet")) else ()


def _root_for_path(path: bytes) -> Root:
    """Return the root for one PATH. A symbolic link is not followed unless a slash follows its name. Raise ``OSError``
    if it does not exist.
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
