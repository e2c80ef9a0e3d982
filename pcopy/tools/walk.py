"""``pwalk``: walk trees and list or summarise their items. All ranks load this module; rank 0 checks the paths, writes
the lists, and reports the result.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pcopy.engine.task import Spawn
from pcopy.errors import INCOMPLETE, OK, Refused
from pcopy.fsio.kernel.columns import SIZE
from pcopy.jobs.meant import meant
from pcopy.jobs.paths import absolute
from pcopy.launch.tool import Ended
from pcopy.launch.watch.signals import told
from pcopy.report.streams import tell
from pcopy.tasks.base.codec import encode
from pcopy.tasks.base.job import Root, Sink
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import SCAN_COST
from pcopy.tasks.walk.finder import columns_of
from pcopy.tasks.walk.sum_up import TellSums
from pcopy.tasks.walk.walk_dirs import WalkRoot
from pcopy.tasks.walk.walk_listed import WalkListed
from pcopy.text import shown
from pcopy.tools.arguments import WalkArguments
from pcopy.tools.director import RepeatableDirector, RepeatableTool, one_stage
from pcopy.tools.summary import summary_values, sums_lines
from pcopy.tools.trees import TreePreparation
from pcopy.tools.walk_outputs import ListTarget, Outputs, check_file, target_of
from pcopy.units import show_seconds
from pcopy.walk.forms import LS_FIELDS
from pcopy.walk.sorting import mask_of
from pcopy.walk.sums import WalkSums
from pcopy.walk.walk_wish import WalkWish

if TYPE_CHECKING:
    from pcopy.report.output_file import OutputFile

_COUNTED = ("found", "files", "directories", "symlinks", "special", "bytes", "skipped", "excluded", "failed")
"""Counters of ``Totals`` that ``--json`` shows."""


class WalkDirector(RepeatableDirector):
    """Director of ``pwalk``: one phase that walks the paths and, with ``--summary``, a second one that collects the
    sums of all ranks.
    """

    def first_tasks(self, phase: int) -> Iterable[Spawn]:
        """Return the tasks that start the walk, or those by which each rank sends its sums to rank 0."""
        if phase == Phase.COPY:
            return super().first_tasks(phase)
        payload = encode(TellSums())
        return [Spawn(phase, payload, 0, owner=rank) for rank in range(self._rank.size)]

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        sums = WalkWish(*self._job.options.walk).sums
        return int(Phase.FINISH) if sums and phase == Phase.COPY else None

    def _root_task(self, number: int) -> Spawn:
        wish = WalkWish(*self._job.options.walk)
        if wish.listed:
            task = WalkListed(wish.listed, wish.listed_nul, wish.directory, wish.base)
            return Spawn(int(Phase.COPY), encode(task), SCAN_COST, True, 0)
        return Spawn(int(Phase.COPY), encode(WalkRoot(number)), SCAN_COST, True, 0)


class Walk(RepeatableTool):
    """The program ``pwalk``.

    In its counters, ``copied`` counts the items that are listed, and ``skipped`` those that are not.
    """

    name = "pwalk"
    writes = False
    stages = one_stage("walk")
    done = "listed"
    director = WalkDirector

    def phase_name(self, phase: int) -> str:
        return "walk"


WALK = Walk()
"""The only instance of ``Walk``."""


class WalkPreparation(TreePreparation):
    """The job of ``pwalk`` on rank 0."""

    program, done, incomplete = "pwalk", "walked", "not all items could be examined"
    stopped = "nothing was written"

    def __init__(self, arguments: WalkArguments) -> None:
        """Check the arguments and prepare the job. Raise ``Refused`` if it must not start; nothing is modified."""
        self.targets = _targets(arguments)
        """The lists to be written."""
        self.prints = any(not target.path for target in self.targets)
        """True if a list is written to standard output."""
        tree = arguments.tree
        if self.prints and tree.telling.progress == "auto":  # Progress lines would appear between those of the list.
            tree = tree._replace(telling=tree.telling._replace(progress="none"))
        super().__init__(tree)
        for target in self.targets:
            if target.path:
                check_file(target, force=arguments.force)
        self._page = _opened_page(arguments)
        self._sort = arguments.sort
        expression = arguments.expression
        self.wish = WalkWish(
            expression.tree,
            expression.prints,
            expression.least_depth,
            expression.most_depth,
            expression.same_device,
            forms=tuple(target.form for target in self.targets if target.form != "parquet"),
            fields=_fields(arguments, self.targets),
            columns=bool(arguments.sort) or any(target.form == "parquet" for target in self.targets),
            sort_mask=mask_of(arguments.sort) if arguments.sort else 0,
            sums=arguments.summary,
            now=arguments.now,
        )
        if arguments.tree.listing:
            self._take_list(arguments)
        else:
            self.make_job(self.roots(_root, once=False), copies=False, walk=tuple(self.wish))
        self._outputs: Outputs | None = None

    def _take_list(self, arguments: WalkArguments) -> None:
        """Prepare the job for the list of ``--from``. Raise ``Refused`` if it cannot be used.

        The job has one root, ``/`` without a name for display: listed items are displayed by the paths in the list.
        """
        from pcopy.walk.saved_listing import STANDARD_INPUT, check_whole

        if arguments.tree.listing != STANDARD_INPUT:
            check_whole(arguments.tree.listing, "--from", nul=arguments.tree.nul, meant=meant)
        base = arguments.base
        if base and not os.path.isdir(base):
            raise Refused(f"{shown(base)}: is no directory; name the one that contains the paths that --from lists")
        self.wish = self.wish._replace(
            listed=arguments.tree.listing, listed_nul=arguments.tree.nul, directory=os.getcwdb(), base=base
        )
        self.make_job((), copies=False, walk=tuple(self.wish))
        top = os.stat(b"/")
        identity = top.st_dev, top.st_ino
        self.job = self.job._replace(roots=(Root(b"/", b"/", b"", b"", b"", b"", identity, identity),))

    @property
    def lists(self) -> bool:
        return False

    def sink(self, screen: Sink) -> Sink:
        if self._missing:
            screen.failures(self._missing)
        self._outputs = Outputs(
            screen, self.targets, self.wish.fields, self._sort, self.telling.umask, f"pwalk-{self.job.writer}"
        )
        if self.wish.sums:
            self._outputs.sums = WalkSums(self.wish.now)
        return self._outputs

    def tell_how_to_go_on(self) -> None:
        """Remove the incomplete lists, after a rank has failed."""
        if self._outputs is not None:
            self._outputs.abandon()

    def tell_end(self, ended: Ended, ranks: int) -> int:
        """Complete the lists, or remove them if they are incomplete. Print the summary and return the exit status."""
        outputs = self._outputs
        assert outputs is not None
        if not outputs.trouble and ended.halted is None and ended.status in (OK, INCOMPLETE):
            outputs.finish()
        else:
            outputs.abandon()
        if outputs.trouble:
            if not outputs.is_closed:
                tell(self.program, outputs.trouble)
            return outputs.status
        if not self.prints:
            return super().tell_end(ended._replace(status=self._write_page(ended, ranks)), ranks)
        if ended.halted is not None:
            tell(self.program, told(ended.halted))
        if ended.totals.excluded:
            from pcopy.tools.selecting import tell_hidden

            tell_hidden(self.program, ended.totals.excluded, self.telling)
        return ended.status

    def _write_page(self, ended: Ended, ranks: int) -> int:
        """Write the page of ``--page``, if asked for. Return the exit status."""
        from pcopy.tools.walk_page import page_of

        if self._page is None or ended.halted is not None:
            return ended.status
        values = self.summary(ended, 0.0, ranks)
        sources = [self.wish.listed] if self.wish.listed else self.tree.paths
        try:
            self._page.replace(page_of(values, sources).encode(errors="backslashreplace"), durable_contents=True)
        except OSError as error:
            tell(self.program, f"{shown(self._page.path)}: cannot be written: {error.strerror}")
            if ended.status == OK:
                self.incomplete = "the page was not written"
            return INCOMPLETE
        return ended.status

    @property
    def _knows_sizes(self) -> bool:
        """True if the walk reads the sizes of items. A list of names alone does not need their status."""
        return bool(columns_of(self.wish) & SIZE)

    def lines(self, ended: Ended, seconds: float, ranks: int) -> Iterator[str]:
        totals = ended.totals
        if self._outputs is not None and self._outputs.sums is not None and ended.halted is None:
            from pcopy.tools.walk_layouts import layouts_lines
            from pcopy.tools.walk_summary import summary_lines

            yield from summary_lines(self._outputs.sums)
            yield from layouts_lines(self._outputs.layouts)
            yield ""
        yield from sums_lines(totals, "listed", "left out", sizes=self._knows_sizes)
        rate = totals.found / seconds if seconds > 0 else 0.0
        yield f"{show_seconds(seconds)}: {rate:,.0f} items/s"

    def summary(self, ended: Ended, seconds: float, ranks: int) -> dict[str, object]:
        values = summary_values(ended.totals, _COUNTED, seconds, ranks, ended.status)
        if not self._knows_sizes:
            values["bytes"] = None
        if self._outputs is not None and self._outputs.sums is not None and ended.halted is None:
            from pcopy.tools.walk_layouts import layouts_of
            from pcopy.tools.walk_summary import summary_of

            summary = {**summary_of(self._outputs.sums), **layouts_of(self._outputs.layouts)}
            values = {**values, "summary": summary}
        return values


def _targets(arguments: WalkArguments) -> list[ListTarget]:
    """Return the lists to be written. Raise ``Refused`` if one cannot be written."""
    nul = arguments.nul
    targets = [target_of(path, nul=nul) for path in arguments.outputs]
    paths = [target.path for target in targets]
    if duplicate := next((path for path in paths if paths.count(path) > 1), None):
        raise Refused(f"--output {os.fsdecode(duplicate)}: is given twice")
    if arguments.json_lines:
        return [*targets, ListTarget("jsonl")]
    if targets or arguments.summary:
        return targets
    if arguments.ls:
        return [ListTarget("ls")]
    return [ListTarget("nul" if nul else "shown" if sys.stdout.isatty() else "lines")]


def _opened_page(arguments: WalkArguments) -> OutputFile | None:
    """Return the open file of ``--page``, which replaces an older one at the end; None without that option. Raise
    ``Refused`` if it cannot be written.
    """
    if not arguments.page:
        return None
    from pcopy.report.output_file import OutputFile
    from pcopy.tools.walk_page import BEGINNING

    check_file(ListTarget("page", arguments.page), force=arguments.force, begins=BEGINNING)
    return OutputFile(arguments.page, arguments.tree.telling.umask)


def _fields(arguments: WalkArguments, targets: Sequence[ListTarget]) -> tuple[str, ...]:
    """Return the fields of each listed item that the lists contain."""
    forms = {target.form for target in targets}
    if "ls" in forms:
        return LS_FIELDS
    return arguments.fields if forms.intersection(("jsonl", "csv", "parquet")) else ()


def _root(path: bytes) -> Root:
    """Return the root for one PATH. A symbolic link is not followed unless a slash follows its name. Raise ``OSError``
    if it does not exist.
    """
    status = os.lstat(path)
    if stat.S_ISDIR(status.st_mode):
        identity = status.st_dev, status.st_ino
        real = os.path.realpath(path)
        return Root(real, real, b"", b"", path, path, identity, identity)
    directory, name = os.path.split(absolute(path))
    parent_status = os.stat(directory)
    identity = parent_status.st_dev, parent_status.st_ino
    return Root(directory, directory, name, name, path, path, identity, identity)
