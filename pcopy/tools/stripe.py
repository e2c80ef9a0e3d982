"""``pstripe``: report or change Lustre layouts (how files are striped over OSTs). All ranks load this module; rank 0
checks the paths and reports the result.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from pcopy.errors import path_refused
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.layout import LUSTRE_TYPE
from pcopy.fsio.retries import open_with_retries
from pcopy.jobs.source_argument import root_for_reading
from pcopy.launch.tool import JobResult, Tool
from pcopy.libc import type_of_file_system
from pcopy.lustre.layouts import stripe_count_notice
from pcopy.report.streams import print_error
from pcopy.tasks.base.job import Root, StripeOptions
from pcopy.tasks.stripe.change_layout import BYTES_KEY, FEWER_STRIPES_KEY, FILES_KEY, MORE_STRIPES_KEY, OST_KEY
from pcopy.tasks.stripe.examine_directories import LayoutVisitor
from pcopy.text import count_with_noun
from pcopy.tools.arguments import StripeArguments
from pcopy.tools.director import UnrecordedJobDirector, UnrecordedJobTool
from pcopy.tools.summary import common_json_values
from pcopy.tools.trees import TreeJob, roots_outside_other_roots
from pcopy.units import format_seconds, format_size

_SHOWN_COUNTERS = ("found", "files", "directories", "bytes", "skipped", "failed")
"""Names of the counters (fields of ``JobCounters``) that ``--json`` shows."""

_BAR_LENGTH = 40
"""Number of characters of the longest bar of the histogram."""


class StripeTool(UnrecordedJobTool):
    """The program ``pstripe``."""

    name = "pstripe"
    writes_to_targets = (
        False  # It creates only temporary names: no probe file has to show that all hosts see the same target.
    )
    done_word = "restriped"
    make_director = UnrecordedJobDirector
    initial_counts = Tool.initial_counts
    make_visitor = staticmethod(LayoutVisitor)

    def phase_name(self, phase: int) -> str:
        return "stripe"


STRIPE_TOOL = StripeTool()
"""The only instance of ``StripeTool``."""


class LayoutReport(NamedTuple):
    """The layouts that all ranks have found.

    Fields:
    - ``layouts``: number of files, and their sizes in bytes, for each layout, described for people; those with the most
      bytes first.
    - ``osts``: number of objects (stripes) on each OST, by its index.
    - ``with_too_few_stripes``: number of files with fewer stripes than ``--stripe auto`` would give them.
    - ``with_too_many_stripes``: number of files with more stripes than that.
    """

    layouts: dict[str, tuple[int, int]]
    osts: dict[int, int]
    with_too_few_stripes: int
    with_too_many_stripes: int

    @classmethod
    def from_sums(cls, sums: Mapping[str, int]) -> LayoutReport:
        """Return a report made from the sums over all ranks.

        The key of a sum is one of the prefixes FILES, BYTES and OST (of ``pcopy.tasks.stripe.change_layout``) with the
        layout or the OST, or it is FEWER or MORE.
        """
        layouts = {
            key.removeprefix(FILES_KEY): (files, sums.get(BYTES_KEY + key.removeprefix(FILES_KEY), 0))
            for key, files in sums.items()
            if key.startswith(FILES_KEY)
        }
        osts = {int(key.removeprefix(OST_KEY)): number for key, number in sums.items() if key.startswith(OST_KEY)}
        largest_first = dict(sorted(layouts.items(), key=lambda each: (-each[1][1], each[0])))
        return cls(
            largest_first, dict(sorted(osts.items())), sums.get(FEWER_STRIPES_KEY, 0), sums.get(MORE_STRIPES_KEY, 0)
        )

    def report_text_lines(self, *, with_suitability: bool) -> Iterator[str]:
        """Yield the lines of the report for people.

        Args:
            with_suitability: True to add a line with the numbers of files that have fewer or more stripes than
                ``--stripe auto`` would give them.
        """
        if self.layouts:
            yield f"{'files':>12}  {'bytes':>9}  layout"
        for text, (files, size) in self.layouts.items():
            yield f"{files:>12,}  {format_size(size):>9}  {text}"
        if self.osts:
            yield f"{'OST':>12}  {'objects':>9}"
        largest = max(self.osts.values(), default=1)
        for ost, number in self.osts.items():
            yield f"{ost:>12}  {number:>9,}  {'#' * max(1, round(_BAR_LENGTH * number / largest))}"
        if with_suitability and (self.with_too_few_stripes or self.with_too_many_stripes):
            yield (
                f"by size: {self.with_too_few_stripes:,} with too few stripes, {self.with_too_many_stripes:,} with "
                "too many (see --stripe auto)"
            )


class StripeJob(TreeJob):
    """The job of ``pstripe`` on rank 0: checks the paths, and prints the report."""

    program, item_verb = "pstripe", "examined"
    incomplete_text = "some files do not have the layout, or could not be examined"

    def __init__(self, arguments: StripeArguments) -> None:
        """Check the paths and prepare the job; nothing is modified. Raise ``RequestRefused`` if a path is not on
        Lustre.
        """
        super().__init__(arguments.tree)
        self.stripe = arguments.stripe
        roots = roots_outside_other_roots([_root_for_path(path) for path in self.tree.paths])
        self.make_job_for_roots(roots, copies=False, program=StripeOptions(arguments.stripe, arguments.stripe_table))
        if why := stripe_count_notice(arguments.stripe, roots[0].source):
            print_error("pstripe", why)

    def print_resume_advice(self) -> None:
        if self.stripe:
            print_error("pstripe", "repeat the command to continue: files that have the layout are skipped")

    def summary_lines(self, ended: JobResult, seconds: float, ranks: int) -> Iterator[str]:
        totals = ended.totals
        yield from LayoutReport.from_sums(dict(ended.layouts)).report_text_lines(
            with_suitability=self.stripe in ("", "auto")
        )
        files = f"{count_with_noun(totals.files, 'file', 'files')} of {format_size(totals.bytes)}"
        if self.stripe:
            verb = "would get" if self.dry_run else "got"
            yield f"{files} {verb} another layout, {count_with_noun(totals.skipped, 'item is', 'items are')} left alone"
        else:
            yield files
        if totals.failed:
            yield f"{totals.failed:,} failed; the table is without them"
        yield f"in {format_seconds(seconds)}"

    def json_summary(self, ended: JobResult, seconds: float, ranks: int) -> dict[str, object]:
        report = LayoutReport.from_sums(dict(ended.layouts))
        layouts = [{"layout": text, "files": files, "bytes": size} for text, (files, size) in report.layouts.items()]
        return {
            **common_json_values(ended.totals, _SHOWN_COUNTERS, seconds, ranks, ended.status),
            "layouts": layouts,
            "osts": {str(ost): number for ost, number in report.osts.items()},
            "fewer_stripes": report.with_too_few_stripes,
            "more_stripes": report.with_too_many_stripes,
            "restriped": ended.totals.files if self.stripe and not self.dry_run else 0,
            "dry_run": self.dry_run,
        }


def _root_for_path(path: bytes) -> Root:
    """Return the root for one PATH, whose symbolic links are followed. Raise ``RequestRefused`` if PATH cannot be read
    or is not on Lustre.
    """
    root = root_for_reading(path, follow=True)
    try:
        descriptor = open_with_retries(root.source, os.O_PATH | os.O_CLOEXEC)
        try:
            kind = type_of_file_system(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise path_refused(
            path, f"{error.strerror}; check its mode, and the modes of the directories above it"
        ) from None
    if kind != LUSTRE_TYPE:
        raise path_refused(path, "is not on Lustre: there are no layouts to report or to change")
    return root
