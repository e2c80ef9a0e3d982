"""TellFound: rank 0 hears what other ranks have found, as bytes to be written or as columns; FoundHeard: it has heard
so many bytes of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from pcopy.fsio.kernel.columns import Rows
from pcopy.tasks.base.kind import Again
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.unheard import Unheard, acknowledge
from pcopy.walk.matching import Items

MOST_UNHEARD = 64 << 20
"""Bytes of all ranks together that are on their way to rank 0."""

LEAST_SHARE = 1 << 20
"""Of a rank, where there are very many."""

MOST_TOLD = 1 << 20
"""Bytes with which a task tells what it has, and leaves the rest to others."""

Packed = tuple[bytes, bytes, bytes, int, bytes]
"""Items: the beginning of their paths, names (each ended by a NUL), types, and columns with their mask."""


class Hearer(Protocol):
    """What rank 0 has as its sink."""

    def written(self, parts: Sequence[bytes]) -> str:
        """Some bytes for each form that was asked for. Returns why the job has to stop, or nothing."""

    def listed(self, items: Items) -> str:
        """As ``written``, of items with their columns."""

    def spoiled(self, why: str) -> None:
        """What is found cannot be whole: no list appears."""

    def summed(self, words: bytes, layouts: bytes) -> None:
        """What one rank has found, summed up, and the layouts that it has met."""


def pack(items: Items) -> Packed:
    rows = items.rows
    columns = (0, b"") if rows is None else (rows.mask, rows.packed())
    return items.above, b"\0".join(items.names), items.kinds, *columns


def unpacked(packed: Packed) -> Items:
    above, names, kinds, mask, columns = packed
    rows = Rows.unpacked(columns, len(kinds), mask) if mask else None
    return Items(-1, above, names.split(b"\0"), kinds, rows)


class TellFound(Again, code=103, doing="telling what was found"):
    """Tells rank 0 what the rank ``teller`` has found: ``parts`` of bytes, one for each form, or items, ``packed``."""

    teller: int
    parts: tuple[bytes, ...]
    packed: tuple[Packed, ...] = ()

    def run(self, rank: Rank, result: Result) -> None:
        size = sum(map(len, self.parts)) + sum(map(_size, self.packed))
        _hear(rank, self.parts, self.packed)
        acknowledge(rank, result, self.teller, size, UnheardBytes, FoundHeard)


class FoundHeard(Again, code=104, doing="going on"):
    """Rank 0 has so many more bytes of this rank's behind it."""

    number: int

    def run(self, rank: Rank, result: Result) -> None:
        rank.own(UnheardBytes).amount -= self.number


class UnheardBytes(Unheard):
    most, least = MOST_UNHEARD, LEAST_SHARE


class Handover:
    """Gathers what one task finds, and hands it on."""

    def __init__(self, forms: int) -> None:
        self._parts: list[list[bytes]] = [[] for _ in range(forms)]
        self._items: list[Packed] = []
        self.size = 0

    def write(self, form: int, part: bytes) -> None:
        self._parts[form].append(part)
        self.size += len(part)

    def add(self, items: Items) -> None:
        packed = pack(items)
        self._items.append(packed)
        self.size += _size(packed)

    def tell(self, rank: Rank, result: Result) -> None:
        """Rank 0 writes it at once; others send it."""
        if not self.size:
            return
        parts = tuple(b"".join(each) for each in self._parts)
        if rank.number == 0:
            _hear(rank, parts, self._items)
            return
        rank.own(UnheardBytes).amount += self.size
        result.spawn(TellFound(rank.number, parts, tuple(self._items)), owner=0)


def _size(packed: Packed) -> int:
    return len(packed[1]) + len(packed[2]) + len(packed[4])


def _hear(rank: Rank, parts: Sequence[bytes], items: Sequence[Packed]) -> None:
    hearer = cast(Hearer, rank.sink)
    trouble = hearer.written(parts) if any(parts) else ""
    for each in items:
        trouble = hearer.listed(unpacked(each))
    if trouble:
        rank.stop(trouble)
