"""``pstripe`` as a tool, which each rank knows; on rank 0: what is looked at or changed, and what is told of it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from pcopy.errors import INCOMPLETE, INTERNAL, OK, STOPPED, Refused
from pcopy.fsio.layout import LUSTRE
from pcopy.jobs.paths import root_read, source_of
from pcopy.jobs.spool import SET_ANOTHER
from pcopy.launch.tool import Ended, Preparation, Tool
from pcopy.launch.watch.signals import told
from pcopy.libc import type_of_file_system
from pcopy.lustre.layouts import told_of_count
from pcopy.named import NamedTuple
from pcopy.report.streams import tell
from pcopy.tasks.base.job import Job, Options, Root, Totals
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.stripe.change_layout import BYTES, FEWER, FILES, MORE, OST
from pcopy.tasks.stripe.look_at_layouts import LayoutVisitor
from pcopy.text import counted, shown
from pcopy.tools.arguments import StripeArguments
from pcopy.tools.director import STAGES, RepeatableDirector
from pcopy.tools.outputs import check_told
from pcopy.tools.summary import summary_values
from pcopy.units import show_seconds, show_size

_COUNTED = ("found", "files", "directories", "bytes", "skipped", "failed")
"""Counters that ``--json`` shows, by their names in ``Totals``."""

_OUTCOMES = {
    INCOMPLETE: "incomplete: not all files have the layout, or could be looked at (status 1)",
    INTERNAL: "internal error (status 70)",
    STOPPED: "stopped early (status 75): the same command goes on",
}

_BAR = 40
"""Characters of the longest bar of the histogram."""


class Stripe(Tool):
    name = "pstripe"
    writes = False  # no names are made that stay
    unfinished = STOPPED
    spool_advice = SET_ANOTHER
    stages = STAGES
    done = "restriped"
    durable_before: tuple[int, ...] = ()
    director = RepeatableDirector
    visitor = staticmethod(LayoutVisitor)

    def phase_name(self, phase: int) -> str:
        return "stripe"


STRIPE = Stripe()


class Report(NamedTuple):
    """What was found: files and bytes by layout, objects by OST, and files whose number of stripes does not suit them:
    ``fewer`` than ``--stripe auto`` would give them, or ``more``."""

    layouts: dict[str, tuple[int, int]]
    osts: dict[int, int]
    fewer: int
    more: int

    @classmethod
    def of(cls, sums: Mapping[str, int]) -> Report:
        """From the sums of ``pcopy.tasks.stripe.change_layout``."""
        layouts = {
            key.removeprefix(FILES): (files, sums.get(BYTES + key.removeprefix(FILES), 0))
            for key, files in sums.items()
            if key.startswith(FILES)
        }
        osts = {int(key.removeprefix(OST)): number for key, number in sums.items() if key.startswith(OST)}
        largest_first = dict(sorted(layouts.items(), key=lambda each: (-each[1][1], each[0])))
        return cls(largest_first, dict(sorted(osts.items())), sums.get(FEWER, 0), sums.get(MORE, 0))

    def lines(self, *, suits: bool) -> Iterator[str]:
        """For people. ``suits``: also which do not suit their size."""
        if self.layouts:
            yield f"{'files':>12}  {'bytes':>9}  layout"
        for text, (files, size) in self.layouts.items():
            yield f"{files:>12,}  {show_size(size):>9}  {text}"
        if self.osts:
            yield f"{'OST':>12}  {'objects':>9}"
        most = max(self.osts.values(), default=1)
        for ost, number in self.osts.items():
            yield f"{ost:>12}  {number:>9,}  {'#' * max(1, round(_BAR * number / most))}"
        if suits and (self.fewer or self.more):
            yield f"by size: {self.fewer:,} with too few stripes, {self.more:,} with too many (see --stripe auto)"


class StripePreparation(Preparation):
    def __init__(self, arguments: StripeArguments) -> None:
        """Raises ``Refused``; nothing is touched."""
        super().__init__(arguments.ranks, arguments.in_flight, arguments.telling)
        self.arguments = arguments
        roots = _topmost([_root(path) for path in arguments.paths])
        check_told(self.telling, roots, "is looked at")
        options = Options(
            max_errors=arguments.max_errors,
            termination=arguments.termination,
            sync=False,
            dry_run=arguments.dry_run,
            stripe=arguments.stripe,
            stripe_table=arguments.stripe_table,
            select=arguments.select,
        )
        self.job = Job(os.urandom(5).hex(), 1, roots, options, copies=False)
        self.began = time.monotonic()
        if why := told_of_count(arguments.stripe, roots[0].source):
            tell("pstripe", why)

    def settle(self, rank: Rank, totals: Totals) -> int:
        return OK

    def tell_how_to_go_on(self) -> None:
        if self.arguments.stripe:
            tell("pstripe", "the same command goes on: files that have the layout are left alone")

    def tell_end(self, ended: Ended, ranks: int) -> int:
        seconds = time.monotonic() - self.began
        report = Report.of(dict(ended.layouts))
        if ended.halted is not None:
            tell("pstripe", told(ended.halted))
        self.values = self._summary(ended, report, seconds, ranks)
        if self.telling.json:
            print(json.dumps(self.values), flush=True)
        elif not self.telling.quiet or ended.status != OK:
            suits = self.arguments.stripe in ("", "auto")
            print("\n".join((*report.lines(suits=suits), *self._lines(ended, seconds))), flush=True)
        sys.stdout.flush()
        return ended.status

    def _lines(self, ended: Ended, seconds: float) -> Iterator[str]:
        totals = ended.totals
        if self.arguments.stripe:
            done = "would get" if self.arguments.dry_run else "got"
            files = f"{counted(totals.files, 'file', 'files')} of {show_size(totals.bytes)}"
            left = counted(totals.skipped, "item is", "items are")
            yield f"{files} {done} another layout, {left} left alone"
        else:
            yield f"{counted(totals.files, 'file', 'files')} of {show_size(totals.bytes)}"
        if totals.failed:
            yield f"{totals.failed:,} failed; the table is without them"
        yield f"in {show_seconds(seconds)}"
        if ended.status != OK:
            yield _OUTCOMES.get(ended.status, f"ended with status {ended.status}")

    def _summary(self, ended: Ended, report: Report, seconds: float, ranks: int) -> dict[str, object]:
        layouts = [{"layout": text, "files": files, "bytes": size} for text, (files, size) in report.layouts.items()]
        return {
            **summary_values(ended.totals, _COUNTED, seconds, ranks, ended.status),
            "layouts": layouts,
            "osts": {str(ost): number for ost, number in report.osts.items()},
            "fewer_stripes": report.fewer,
            "more_stripes": report.more,
            "restriped": ended.totals.files if self.arguments.stripe and not self.arguments.dry_run else 0,
            "dry_run": self.arguments.dry_run,
        }


def _topmost(roots: Sequence[Root]) -> tuple[Root, ...]:
    """Without those that lie in another, so that nothing is looked at twice, or by two ranks at once."""
    places = {source_of(root): root for root in roots}
    return tuple(root for place, root in places.items() if places.keys().isdisjoint(_above(place)))


def _above(path: bytes) -> Iterator[bytes]:
    while (parent := os.path.dirname(path)) != path:
        path = parent
        yield path


def _root(path: bytes) -> Root:
    """Raises ``Refused``, also for what is not on Lustre."""
    root = root_read(path, follow=True)
    try:
        descriptor = os.open(root.source, os.O_PATH | os.O_CLOEXEC)
        try:
            kind = type_of_file_system(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise Refused(f"{shown(path)}: {error.strerror}; check its mode, and those above it") from None
    if kind != LUSTRE:
        raise Refused(f"{shown(path)}: is not on Lustre: there are no layouts to report or to change")
    return root
