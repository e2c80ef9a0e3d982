"""``pcopy --dry-run``: the same scan and decisions as those of a copy, without creating anything.

A line for each item is printed on standard output as soon as its outcome is decided; the totals follow at the end. The
job is not recorded, no signature is computed, and no copy is read back.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence

from pcopy.errors import INCOMPLETE
from pcopy.launch.tool import Ended
from pcopy.launch.watch.signals import told
from pcopy.tasks.base.actions import Action
from pcopy.tasks.base.itemized import WORDS, Itemized
from pcopy.tasks.base.job import InFront, Options, Root, Sink
from pcopy.text import counted, shown
from pcopy.tools.arguments import CopyArguments
from pcopy.tools.copy import CopyPreparation
from pcopy.tools.selecting import left_out
from pcopy.tools.space import NoRoom, Room, free_on
from pcopy.tools.summary import filter_values, summary_of, sums_lines
from pcopy.units import show_seconds, show_size
from pcopy.walk.look_ahead import LookAhead

_SMALLEST, _STEP = 4 << 10, 16
"""Limits in bytes of the histogram of file sizes: the first class ends at 4 KiB, each further one at 16 times that of
the class before it.
"""


class Sizes:
    """Histogram of file sizes: number of files and bytes in each class."""

    def __init__(self) -> None:
        self._files: Counter[int] = Counter()
        self._bytes: Counter[int] = Counter()

    def add(self, size: int) -> None:
        """Count a file of ``size`` bytes."""
        end = _SMALLEST if size else 0
        while end < size:
            end *= _STEP
        self._files[end] += 1
        self._bytes[end] += size

    def rows(self) -> list[tuple[int, int, int]]:
        """Return (largest size, number of files, bytes) for each class that contains files."""
        return [(end, self._files[end], self._bytes[end]) for end in sorted(self._files)]

    def lines(self) -> list[str]:
        """Return the lines of the histogram."""
        rows = self.rows()
        title = {end: f"up to {show_size(end)}" if end else "empty" for end, _, _ in rows}
        return [f"    {title[end]}: {counted(files, 'file', 'files')}, {show_size(size)}" for end, files, size in rows]


class Foreseen(InFront):
    """Sink that prints the expected outcome of each item, and counts the items by action."""

    def __init__(self, sink: Sink, *, prints: bool) -> None:
        super().__init__(sink)
        self._prints = prints
        self.items_by_action: Counter[int] = Counter()
        self.sizes = Sizes()

    def items(self, items: Sequence[Itemized]) -> None:
        """Print and count the items."""
        for each in items:
            self.items_by_action[each.action] += len(each.kinds)
            is_made = each.action in (Action.COPY, Action.REPLACE)
            lines = []
            for item in each.each():
                lines.append(f"{item.action} {shown(item.path)}\n")
                if is_made and item.type == "file":
                    self.sizes.add(item.bytes)
            if self._prints and each.action != Action.FAIL:
                sys.stdout.write("".join(lines))
        super().items(items)


class DryRunPreparation(CopyPreparation):
    """The job of ``pcopy --dry-run`` on rank 0."""

    _is_enough: bool | None = None
    """True if the copy would have enough free space, False if not; None if that is unknown or not checked."""
    _lacking = ""
    """Reason why the copy would be refused, or ""."""

    def __init__(self, words: Sequence[str], arguments: CopyArguments) -> None:
        telling = arguments.telling._replace(verbose=min(arguments.telling.verbose, 1))
        if sys.stdout.isatty() and telling.progress in ("auto", "bar"):
            telling = telling._replace(progress="none")  # The progress bar and the lines would overwrite each other.
        keeping = arguments.keeping._replace(directory=b"", at_start=False)
        super().__init__(words, arguments._replace(telling=telling, is_kept=False, keeping=keeping))
        options = self.job.options._replace(
            signature=b"", manifest=b"", verify=False, repair=False, hash="", sync=False, fsync=False, itemize=True
        )
        self.job = self.job._replace(options=options)
        self._foreseen: Foreseen | None = None

    def _fits(self, roots: Sequence[Root], options: Options, ahead: LookAhead) -> bool:
        try:
            self._is_enough = super()._fits(roots, options, ahead) or None
        except NoRoom as lacking:
            self._is_enough, self._lacking = False, lacking.why
        return True

    def sink(self, screen: Sink) -> Sink:
        prints = not (self.telling.json or self.telling.quiet)
        self._foreseen = Foreseen(super().sink(screen), prints=prints)
        return self._foreseen

    def tell_end(self, ended: Ended, ranks: int) -> int:
        seconds = time.monotonic() - self.began
        if ended.halted is not None:
            self._tell(told(ended.halted))
        for remark in self._remarks:
            self._tell(remark)
        self.values = summary_of(ended, seconds, ranks, sequential=self.job.options.sequential)
        self.values |= {"bytes_per_second": 0} | self._values()
        self.values |= filter_values(self.telling.filters)
        if self.telling.json:
            print(json.dumps(self.values), flush=True)
        elif not self.telling.quiet or ended.status:
            print("\n".join(self._lines(ended, seconds, ranks)), flush=True)
        return ended.status

    def _values(self) -> dict[str, object]:
        """Return the values of ``--json`` that only a dry run has."""
        assert self._foreseen is not None
        free = self._free()
        rows = self._foreseen.sizes.rows()
        return {
            "dry_run": True,
            "actions": {WORDS[action]: self._foreseen.items_by_action[action] for action in Action},
            "sizes": [{"up_to": end, "files": files, "bytes": size} for end, files, size in rows],
            "free_bytes": free and free.bytes,
            "free_inodes": None if free is None or free.inodes < 0 else free.inodes,
            "fits": self._is_enough,
        }

    def _lines(self, ended: Ended, seconds: float, ranks: int) -> list[str]:
        """Return the lines of the summary."""
        assert self._foreseen is not None
        totals, by_action = ended.totals, self._foreseen.items_by_action
        lines = sums_lines(totals, "would be copied", "would be skipped")
        if totals.skipped_bytes:
            lines.append(f"  would be skipped: {show_size(totals.skipped_bytes)}")
        if excluded := left_out(totals.excluded, self.telling.filters):
            lines.append(f"  {excluded}")
        actions = [f"{by_action[action]:,} {WORDS[action]}" for action in Action if by_action[action]]
        lines.append(f"  {', '.join(actions) or 'nothing'}")
        if rows := self._foreseen.sizes.lines():
            lines += ["  sizes of the files to be copied:", *rows]
        if (free := self._free()) is not None:
            inodes = f"{free.inodes:,} inodes" if free.inodes >= 0 else "no limit of inodes"
            lines.append(f"  free on {shown(self.job.roots[0].target)}: {show_size(free.bytes)}, {inodes}")
        if self._lacking:
            lines.append(f"  {self._lacking}: the copy would be refused without --force")
        elif free is not None and totals.bytes > free.bytes and not self._is_enough:
            lines.append("  which is too little, unless files have holes or replace others: the copy would stop early")
        lines.append(f"nothing was changed (--dry-run): {show_seconds(seconds)} with {counted(ranks, 'rank', 'ranks')}")
        if ended.status == INCOMPLETE:
            lines.append("incomplete: some items would fail, or could not be looked at (status 1)")
        return lines

    def _free(self) -> Room | None:
        """Return the free space at the destination; None if it is unknown."""
        try:
            return free_on(self.job.roots[0].target)
        except OSError:
            return None
