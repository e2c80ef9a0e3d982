"""TellDifferences: report to rank 0 items that differ or that only one side has; rank 0 sorts them by path.

Only such items travel, and a limited number at a time (``pcopy.tasks.tell_items``). Rank 0 spills to a temporary file
if there are very many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pcopy.named import NamedTuple
from pcopy.signature.items import DIRECTORY
from pcopy.signature.sorting import ExternalSorter
from pcopy.tasks.base.itemized import ITEMS_AT_ONCE
from pcopy.tasks.base.kind import Again
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.compare.properties import ONLY_A, ONLY_B, TELLS_COMMON, TYPE
from pcopy.tasks.tell_items import UnheardItems, acknowledge

Told = tuple[int, bytes, bytes, bytes]
"""Items of one directory that differ alike: the bits, the directory's path below the root, names joined by slashes, and
type bytes.
"""


class Difference(NamedTuple):
    """One item by its path below the root, with the bits of ``pcopy.tasks.compare.properties``.

    ``is_entered`` is True for a directory that both sides have.
    """

    path: bytes
    bits: int
    is_entered: bool


class TellDifferences(Again, code=127, doing="reporting differences"):
    """A note for rank 0 with the differences that the rank ``teller`` has found."""

    teller: int
    found: tuple[Told, ...]

    def run(self, rank: Rank, result: Result) -> None:
        known = rank.own(KnownDifferences)
        for batch in self.found:
            known.take(batch)
        acknowledge(rank, result, self.teller, sum(len(kinds) for *_, kinds in self.found))


class KnownDifferences:
    """All differences that rank 0 has received."""

    def __init__(self, rank: Rank) -> None:
        self._found = ExternalSorter(rank.open_spool)
        self.numbers: Counter[int] = Counter()
        """Number of items for each value of the bits."""

    def take(self, batch: Told) -> None:
        """Add the items that a rank has reported."""
        bits, path, names, kinds = batch
        above = path.replace(b"/", b"\0") + b"\0" if path else b""
        for name, kind in zip(names.split(b"/"), kinds, strict=True):
            self._found.add(above + name, bits.to_bytes(2, "big") + bytes((kind,)))
        self.numbers[bits] += len(kinds)

    def sorted(self) -> Iterator[Difference]:
        """Yield the differences in the order of a walk."""
        for key, value in self._found.sorted():
            bits = int.from_bytes(value[:2], "big")
            is_entered = value[2:] == DIRECTORY and not bits & (TYPE | ONLY_A | ONLY_B)
            yield Difference(key.replace(b"\0", b"/"), bits, is_entered)

    def close(self) -> None:
        self._found.close()


class Differences:
    """Collects the differences that one task finds, and reports them when the task is done."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._tells_common = bool(rank.options.compare & TELLS_COMMON)
        self._found: dict[tuple[int, bytes], tuple[list[bytes], bytearray]] = {}

    def add(self, path: bytes, names: Sequence[bytes], bits: Sequence[int], kinds: bytes) -> None:
        """Add items of the directory ``path``, with their type bytes; ``bits`` is 0 for items without a difference."""
        if not (self._tells_common or any(bits)):
            return
        for name, each, kind in zip(names, bits, kinds, strict=True):
            if each or self._tells_common:
                found = self._found.setdefault((each, path), ([], bytearray()))
                found[0].append(name)
                found[1].append(kind)

    def tell(self, result: Result) -> None:
        """Report the differences to rank 0, as notes of a limited size."""
        rank, number = self._rank, 0
        pending: list[Told] = []
        for batch in self._packed():
            if rank.number == 0:
                rank.own(KnownDifferences).take(batch)
                continue
            pending.append(batch)
            number += len(batch[-1])
            rank.own(UnheardItems).amount += len(batch[-1])
            if number >= ITEMS_AT_ONCE:
                result.spawn(TellDifferences(rank.number, tuple(pending)), owner=0)
                pending, number = [], 0
        if pending:
            result.spawn(TellDifferences(rank.number, tuple(pending)), owner=0)

    def _packed(self) -> Iterator[Told]:
        for (bits, path), (names, kinds) in self._found.items():
            for start in range(0, len(names), ITEMS_AT_ONCE):
                part = slice(start, start + ITEMS_AT_ONCE)
                yield bits, path, b"/".join(names[part]), bytes(kinds[part])
