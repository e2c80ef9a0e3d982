"""``pstripe``: report or change Lustre layouts. All ranks load this module; rank 0 checks the paths and reports the
result.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from pcopy.errors import Refused
from pcopy.fsio.layout import LUSTRE
from pcopy.fsio.patience import open_patiently
from pcopy.jobs.path_read import root_read
from pcopy.launch.tool import Ended, Tool
from pcopy.libc import type_of_file_system
from pcopy.lustre.layouts import told_of_count
from pcopy.named import NamedTuple
from pcopy.report.streams import tell
from pcopy.tasks.base.job import Root
from pcopy.tasks.stripe.change_layout import BYTES, FEWER, FILES, MORE, OST
from pcopy.tasks.stripe.look_at_layouts import LayoutVisitor
from pcopy.text import counted, shown
from pcopy.tools.arguments import StripeArguments
from pcopy.tools.director import RepeatableDirector, RepeatableTool
from pcopy.tools.summary import summary_values
from pcopy.tools.trees import TreePreparation, topmost
from pcopy.units import show_seconds, show_size

_COUNTED = ("found", "files", "directories", "bytes", "skipped", "failed")
"""Counters of ``Totals`` that ``--json`` shows."""

_BAR = 40
"""Number of characters of the longest bar of the histogram."""


class Stripe(RepeatableTool):
    """The program ``pstripe``."""

    name = "pstripe"
    writes = False  # It creates only temporary names: no probe file has to show that all hosts see the same target.
    done = "restriped"
    director = RepeatableDirector
    first_counts = Tool.first_counts
    visitor = staticmethod(LayoutVisitor)

    def phase_name(self, phase: int) -> str:
        return "stripe"


STRIPE = Stripe()
"""The only instance of ``Stripe``."""


class Report(NamedTuple):
    """The layouts that were found.

    Fields:
    - ``layouts``: number and bytes of the files of each layout.
    - ``osts``: number of objects on each OST.
    - ``fewer``: number of files with fewer stripes than ``--stripe auto`` would give them.
    - ``more``: number of files with more stripes than that.
    """

    layouts: dict[str, tuple[int, int]]
    osts: dict[int, int]
    fewer: int
    more: int

    @classmethod
    def of(cls, sums: Mapping[str, int]) -> Report:
        """Create a report from the sums of ``pcopy.tasks.stripe.change_layout``, by key."""
        layouts = {
            key.removeprefix(FILES): (files, sums.get(BYTES + key.removeprefix(FILES), 0))
            for key, files in sums.items()
            if key.startswith(FILES)
        }
        osts = {int(key.removeprefix(OST)): number for key, number in sums.items() if key.startswith(OST)}
        largest_first = dict(sorted(layouts.items(), key=lambda each: (-each[1][1], each[0])))
        return cls(largest_first, dict(sorted(osts.items())), sums.get(FEWER, 0), sums.get(MORE, 0))

    def lines(self, *, suits: bool) -> Iterator[str]:
        """Yield the lines of the report for people. ``suits``: also report files whose number of stripes does not suit
        their size.
        """
        if self.layouts:
            yield f"{'files':>12}  {'bytes':>9}  layout"
        for text, (files, size) in self.layouts.items():
            yield f"{files:>12,}  {show_size(size):>9}  {text}"
        if self.osts:
            yield f"{'OST':>12}  {'objects':>9}"
        largest = max(self.osts.values(), default=1)
        for ost, number in self.osts.items():
            yield f"{ost:>12}  {number:>9,}  {'#' * max(1, round(_BAR * number / largest))}"
        if suits and (self.fewer or self.more):
            yield f"by size: {self.fewer:,} with too few stripes, {self.more:,} with too many (see --stripe auto)"


class StripePreparation(TreePreparation):
    """The job of ``pstripe`` on rank 0."""

    program, done = "pstripe", "examined"
    incomplete = "some files do not have the layout, or could not be examined"

    def __init__(self, arguments: StripeArguments) -> None:
        """Check the paths and prepare the job. Raise ``Refused`` if one is not on Lustre; nothing is modified."""
        super().__init__(arguments.tree)
        self.stripe = arguments.stripe
        roots = topmost([_root(path) for path in self.tree.paths])
        self.make_job(roots, copies=False, stripe=arguments.stripe, stripe_table=arguments.stripe_table)
        if why := told_of_count(arguments.stripe, roots[0].source):
            tell("pstripe", why)

    @property
    def lists(self) -> bool:
        return False

    def tell_how_to_go_on(self) -> None:
        if self.stripe:
            tell("pstripe", "repeat the command to continue: files that have the layout are skipped")

    def lines(self, ended: Ended, seconds: float, ranks: int) -> Iterator[str]:
        totals = ended.totals
        yield from Report.of(dict(ended.layouts)).lines(suits=self.stripe in ("", "auto"))
        files = f"{counted(totals.files, 'file', 'files')} of {show_size(totals.bytes)}"
        if self.stripe:
            verb = "would get" if self.dry_run else "got"
            yield f"{files} {verb} another layout, {counted(totals.skipped, 'item is', 'items are')} left alone"
        else:
            yield files
        if totals.failed:
            yield f"{totals.failed:,} failed; the table is without them"
        yield f"in {show_seconds(seconds)}"

    def summary(self, ended: Ended, seconds: float, ranks: int) -> dict[str, object]:
        report = Report.of(dict(ended.layouts))
        layouts = [{"layout": text, "files": files, "bytes": size} for text, (files, size) in report.layouts.items()]
        return {
            **summary_values(ended.totals, _COUNTED, seconds, ranks, ended.status),
            "layouts": layouts,
            "osts": {str(ost): number for ost, number in report.osts.items()},
            "fewer_stripes": report.fewer,
            "more_stripes": report.more,
            "restriped": ended.totals.files if self.stripe and not self.dry_run else 0,
            "dry_run": self.dry_run,
        }


def _root(path: bytes) -> Root:
    """Return the root for one PATH. Raise ``Refused`` if it cannot be read or is not on Lustre."""
    root = root_read(path, follow=True)
    try:
        descriptor = open_patiently(root.source, os.O_PATH | os.O_CLOEXEC)
        try:
            kind = type_of_file_system(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise Refused(f"{shown(path)}: {error.strerror}; check its mode, and those above it") from None
    if kind != LUSTRE:
        raise Refused(f"{shown(path)}: is not on Lustre: there are no layouts to report or to change")
    return root
