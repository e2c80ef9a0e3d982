"""``pverify --compare``: compare two trees by chosen properties. Rank 0 prints the differences and writes the lists.

Rule: each printed line, and each path in a list, is correct even if other items could not be compared. The exit status
says that something could not be compared.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator

from pcopy.engine.messages import Halt
from pcopy.engine.task import Spawn
from pcopy.errors import DIFFERENT, INTERNAL, OK, REFUSED, Refused
from pcopy.fsio.identity import Identity
from pcopy.jobs.path_read import root_read
from pcopy.launch.tool import Ended
from pcopy.signature.algorithms import DEFAULT_ALGORITHM
from pcopy.signature.items import ROOT
from pcopy.signature.replacing import replacing
from pcopy.tasks.base.codec import encode
from pcopy.tasks.base.job import Job, Options, Totals, mount_codes
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import SCAN_COST, Rank
from pcopy.tasks.base.values import Place
from pcopy.tasks.compare.compare_trees import CompareNames
from pcopy.tasks.compare.properties import CONTENT, ONLY_A, ONLY_B, PROPERTIES, TELLS_COMMON, preserve_of
from pcopy.tasks.compare.tell_differences import Difference, KnownDifferences
from pcopy.text import counted, shown
from pcopy.tools.arguments import VerifyArguments
from pcopy.tools.director import JobDirector
from pcopy.tools.ending import ReadPreparation
from pcopy.tools.outputs import check_lists, check_outputs, umask_of_user
from pcopy.tools.summary import summary_values
from pcopy.units import show_seconds, show_size

_COUNTED = ("found", "files", "directories", "symlinks", "special", "bytes", "excluded", "failed")
"""Counters of ``Totals`` that ``--json`` shows."""

_DIFFER = (1 << len(PROPERTIES)) - 1
"""The bits of all properties."""
_ALONE = {ONLY_A: "only A", ONLY_B: "only B"}
"""Words for items that exist in one tree only."""
_CLASSES = {"common": TELLS_COMMON, "only-a": ONLY_A, "only-b": ONLY_B, "differ": _DIFFER}
"""Classes of items that ``--output`` accepts, and the bits that select them."""


def bits_of(name: str) -> int:
    """Return the bits (``pcopy.tasks.compare.properties``) that select a class of items of ``--output``."""
    return _CLASSES.get(name) or 1 << PROPERTIES.index(name.removeprefix("differ-in-"))


def _named(bits: int) -> list[str]:
    """Return the names of the properties in ``bits``."""
    return [name for at, name in enumerate(PROPERTIES) if bits >> at & 1]


class CompareDirector(JobDirector):
    """Director of ``pverify --compare``: one phase, which starts with the two roots.

    Differences are also reported if some items could not be compared.
    """

    def first_tasks(self, phase: int) -> list[Spawn]:
        first, second = (
            Identity(code, root.source_id[1])
            for root, (code, _) in zip(self._job.roots, mount_codes(self._job.roots), strict=True)
        )
        task = CompareNames(Place(0, b"", first, second, False, False), ROOT)
        return [Spawn(int(Phase.COPY), encode(task), SCAN_COST, True)]

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        return None

    def _status(self, sums: Totals, halted: Halt | None) -> int:
        status = super()._status(sums, halted)
        if halted is None and status != INTERNAL and sums.failed:
            self._settle(self._rank, sums)
        return status


class ComparePreparation(ReadPreparation):
    """The job of ``pverify --compare`` on rank 0."""

    unread = "compared: they may differ"

    def __init__(self, arguments: VerifyArguments) -> None:
        """Check the arguments and prepare the job. Raise ``Refused`` if the trees cannot be compared; nothing is
        written.
        """
        super().__init__(arguments)
        comparison = arguments.comparison
        assert comparison is not None
        self._unlisted = 0
        self._numbers: dict[int, int] = {}
        self._nul = comparison.nul
        self._wanted = comparison.wanted
        self._lists: dict[bytes, int] = {}
        for name, path in comparison.lists:
            self._lists[path] = self._lists.get(path, 0) | bits_of(name)
        roots = tuple(root_read(path, follow=True) for path in arguments.paths)
        tells_common = any(bits & TELLS_COMMON for bits in self._lists.values())
        given = arguments.options
        options = given._replace(
            preserve=preserve_of(self._wanted),
            modify_window=comparison.window,
            hash=(given.hash or DEFAULT_ALGORITHM) if self._wanted & CONTENT else "",
            block_size=given.block_size or Options().block_size,
            umask=umask_of_user(),
            compare=self._wanted | (TELLS_COMMON if tells_common else 0),
        )
        check_outputs(roots, options, self.telling, copies=False)
        check_lists([*self._lists], roots, self.telling, force=arguments.force)
        if self._lists and any(root.item for root in roots):
            item = next(root for root in roots if root.item)
            raise Refused(
                f"{shown(item.source_shown)}: is no directory, and --output lists the contents of directories: "
                "leave it out"
            )
        self.job = Job(os.urandom(5).hex(), 1, roots, options, copies=False)

    def settle(self, rank: Rank, totals: Totals) -> int:
        if self._lacks_items(totals):
            return REFUSED
        differences = rank.own(KnownDifferences)
        self._numbers = {bits: number for bits, number in differences.numbers.items() if bits}
        for difference in differences.sorted() if self._numbers else ():
            if difference.bits:
                self._tell(difference)
        troubles = [*filter(None, (self._write(path, bits, differences) for path, bits in self._lists.items()))]
        self._remarks += troubles
        if troubles:
            return REFUSED
        return DIFFERENT if self._numbers else OK

    def _tell(self, difference: Difference) -> None:
        """Print a difference, as a line or as JSON."""
        path, bits = difference.path, difference.bits
        if self.telling.json:
            values: dict[str, object] = {"difference": _ALONE.get(bits, "differ")}
            values |= {"in": _named(bits)} if bits & _DIFFER else {}
            exact = base64.b64encode(path).decode("ascii")
            print(json.dumps({**values, "path": shown(path), "path_b64": exact}))
        else:
            print(f"{_ALONE.get(bits) or 'differ in ' + ','.join(_named(bits))}: {shown(path)}")

    def _write(self, file: bytes, selected: int, differences: KnownDifferences) -> str:
        """Write the paths of all items that the bits ``selected`` select to the list ``file``. Return "", or the reason
        why it could not be written.
        """
        end, left_out = b"\0" if self._nul else b"\n", 0
        try:
            with replacing(file, self.job.options.umask, self.job.writer) as stream:
                for path, bits, is_entered in differences.sorted():
                    if not selected & (bits or TELLS_COMMON):
                        continue
                    if is_entered:
                        left_out += bool(bits)
                        continue
                    if end in path:
                        raise Refused(f"{shown(path)} has a newline in it: give -0, and pcopy and prm -0, too")
                    stream.write(path + end)
        except Refused as refused:
            return f"{shown(file)}: the list could not be written: {refused}"
        except OSError as error:
            return f"{shown(file)}: the list could not be written: {error.strerror}"
        self._unlisted = max(self._unlisted, left_out)
        return ""

    def _lines(self, ended: Ended, elapsed: float) -> Iterator[str]:
        numbers = self._sums()
        if ended.status == OK:
            yield "the same"
        elif self._numbers:
            alone = [f"{numbers[key]:,} {word}" for key, word in (("only_a", "only A"), ("only_b", "only B"))]
            each = ", ".join(f"{number:,} in {name}" for name, number in self._in_properties().items() if number)
            parts = [*alone, f"{numbers['differ']:,} differ{each and f' ({each})'}"]
            yield f"different: {', '.join(part for part in parts if not part.startswith('0 '))}"
        if self._unlisted:
            directories = counted(self._unlisted, "directory that differs is", "directories that differ are")
            yield f"{directories} in no list: pcopy --files-from would copy all that a listed directory holds"
        if ended.halted is None:
            items = counted(ended.totals.copied, "item", "items")
            read = f", {show_size(ended.totals.bytes)} read" if self._wanted & CONTENT else ""
            yield f"{items} compared by {','.join(_named(self._wanted))}{read} in {show_seconds(elapsed)}"

    def _sums(self) -> dict[str, int]:
        """Return how many items exist in one tree only, and how many differ; the keys are those of ``--json``."""
        alone = {"only_a": self._numbers.get(ONLY_A, 0), "only_b": self._numbers.get(ONLY_B, 0)}
        return {**alone, "differ": sum(number for bits, number in self._numbers.items() if bits & _DIFFER)}

    def _in_properties(self) -> dict[str, int]:
        """Return how many items differ in each of the properties that were compared."""
        return {
            name: sum(number for bits, number in self._numbers.items() if bits & _DIFFER and bits >> at & 1)
            for at, name in enumerate(PROPERTIES)
            if self._wanted >> at & 1
        }

    def _summary(self, ended: Ended, elapsed: float, ranks: int) -> dict[str, object]:
        sums = self._sums()
        return {
            "same": {OK: True, DIFFERENT: False}.get(ended.status),
            "compared": _named(self._wanted),
            "common": ended.totals.copied - sum(sums.values()),
            **sums,
            "differ_in": self._in_properties(),
            **summary_values(ended.totals, _COUNTED, elapsed, ranks, ended.status),
            "bytes_per_second": round(ended.totals.bytes / elapsed) if elapsed > 0 else 0,
        }
