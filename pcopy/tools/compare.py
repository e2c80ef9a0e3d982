"""``pverify --compare``: two trees by chosen properties. On rank 0: what is told at the end, and the lists.

Rule: a line, and a path in a list, is true also where something else could not be compared; the status tells of that.
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
"""Counters that ``--json`` shows, by their names in ``Totals``."""

_DIFFER = (1 << len(PROPERTIES)) - 1
_ALONE = {ONLY_A: "only A", ONLY_B: "only B"}
_CLASSES = {"common": TELLS_COMMON, "only-a": ONLY_A, "only-b": ONLY_B, "differ": _DIFFER}


def bits_of(name: str) -> int:
    """What a class of ``--output`` takes, as bits of ``pcopy.tasks.compare.properties``."""
    return _CLASSES.get(name) or 1 << PROPERTIES.index(name.removeprefix("differ-in-"))


def _named(bits: int) -> list[str]:
    return [name for at, name in enumerate(PROPERTIES) if bits >> at & 1]


class CompareDirector(JobDirector):
    """One phase, which begins with the two roots. What differs is told also if not everything could be compared."""

    def first_tasks(self, phase: int) -> list[Spawn]:
        one, other = (
            Identity(code, root.source_id[1])
            for root, (code, _) in zip(self._job.roots, mount_codes(self._job.roots), strict=True)
        )
        task = CompareNames(Place(0, b"", one, other, False, False), ROOT)
        return [Spawn(int(Phase.COPY), encode(task), SCAN_COST, True)]

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        return None

    def _status(self, sums: Totals, halted: Halt | None) -> int:
        status = super()._status(sums, halted)
        if halted is None and status != INTERNAL and sums.failed:
            self._settle(self._rank, sums)
        return status


class ComparePreparation(ReadPreparation):
    unread = "compared: nothing is said of these"

    def __init__(self, arguments: VerifyArguments) -> None:
        """Raises ``Refused``; nothing is written."""
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
        asked = arguments.options
        options = asked._replace(
            preserve=preserve_of(self._wanted),
            modify_window=comparison.window,
            hash=(asked.hash or DEFAULT_ALGORITHM) if self._wanted & CONTENT else "",
            block_size=asked.block_size or Options().block_size,
            umask=umask_of_user(),
            compare=self._wanted | (TELLS_COMMON if tells_common else 0),
        )
        check_outputs(roots, options, self.telling, copies=False)
        check_lists([*self._lists], roots, self.telling, force=arguments.force)
        if self._lists and any(root.item for root in roots):
            item = next(root for root in roots if root.item)
            raise Refused(
                f"{shown(item.source_shown)}: is no directory, and --output lists what directories hold: leave it out"
            )
        self.job = Job(os.urandom(5).hex(), 1, roots, options, copies=False)

    def settle(self, rank: Rank, totals: Totals) -> int:
        if self._lacks_items(totals):
            return REFUSED
        known = rank.own(KnownDifferences)
        self._numbers = {bits: number for bits, number in known.numbers.items() if bits}
        for difference in known.sorted() if self._numbers else ():
            if difference.bits:
                self._tell(difference)
        troubles = [*filter(None, (self._write(path, bits, known) for path, bits in self._lists.items()))]
        self._remarks += troubles
        if troubles:
            return REFUSED
        return DIFFERENT if self._numbers else OK

    def _tell(self, difference: Difference) -> None:
        path, bits = difference.path, difference.bits
        if self.telling.json:
            told: dict[str, object] = {"difference": _ALONE.get(bits, "differ")}
            told |= {"in": _named(bits)} if bits & _DIFFER else {}
            exact = base64.b64encode(path).decode("ascii")
            print(json.dumps({**told, "path": shown(path), "path_b64": exact}))
        else:
            print(f"{_ALONE.get(bits) or 'differ in ' + ','.join(_named(bits))}: {shown(path)}")

    def _write(self, file: bytes, wanted: int, known: KnownDifferences) -> str:
        """The list of what is of these classes; returns why it could not be written, if so."""
        end, left_out = b"\0" if self._nul else b"\n", 0
        try:
            with replacing(file, self.job.options.umask, self.job.writer) as stream:
                for path, bits, is_entered in known.sorted():
                    if not wanted & (bits or TELLS_COMMON):
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
        alone = {"only_a": self._numbers.get(ONLY_A, 0), "only_b": self._numbers.get(ONLY_B, 0)}
        return {**alone, "differ": sum(number for bits, number in self._numbers.items() if bits & _DIFFER)}

    def _in_properties(self) -> dict[str, int]:
        """How many items differ in each of the properties that were compared."""
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
