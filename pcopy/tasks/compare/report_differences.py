"""Sends to rank 0 the items that differ or that only one side has; rank 0 sorts them by path.

Only such items are sent, and a limited number at a time (``pcopy.tasks.report_items``). If there are very many, rank 0
stores them in a temporary file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pcopy.fast_named_tuple import NamedTuple
from pcopy.signature.items import DIRECTORY
from pcopy.signature.sorting import ExternalSorter
from pcopy.tasks.base.item_outcomes import MAX_ITEMS_PER_MESSAGE
from pcopy.tasks.base.job import CompareOptions
from pcopy.tasks.base.kind import NoteDiscardedOnResume
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.compare.properties import ONLY_A, ONLY_B, REPORTS_EQUAL, TYPE
from pcopy.tasks.report_items import ItemSendWindow, acknowledge_reported_items

DifferenceBatch = tuple[int, bytes, bytes, bytes]
"""Type: items of one directory that differ in the same properties. The values are: the bits of these properties, the
path of the directory below the top, names joined by slashes, and type bytes.
"""


class ItemDifference(NamedTuple):
    """One item that differs between the two sides: its path relative to the top directory, and the bits of the
    properties in which it differs (``pcopy.tasks.compare.properties``).

    ``is_entered`` is True for a directory that both sides have, so that its contents were compared.
    """

    path: bytes
    bits: int
    is_entered: bool


class ItemDifferencesNote(NoteDiscardedOnResume, code=127, doing="reporting differences"):
    """Message to rank 0 with differences that the rank ``sender`` has found."""

    sender: int
    batches: tuple[DifferenceBatch, ...]

    def run(self, rank: Rank, result: TaskResult) -> None:
        known = rank.shared_instance(CollectedDifferences)
        for batch in self.batches:
            known.add_difference_batch(batch)
        acknowledge_reported_items(rank, result, self.sender, sum(len(kinds) for *_, kinds in self.batches))


class CollectedDifferences:
    """All differences that ranks have reported, collected on rank 0."""

    def __init__(self, rank: Rank) -> None:
        self._sorter = ExternalSorter(rank.open_spool)
        self.numbers: Counter[int] = Counter()
        """For each combination of bits (properties that differ): the number of items that differ in exactly these."""

    def add_difference_batch(self, batch: DifferenceBatch) -> None:
        """Add the items in ``batch``, all of one directory, which a rank has reported."""
        bits, path, names, kinds = batch
        above = path.replace(b"/", b"\0") + b"\0" if path else b""
        for name, kind in zip(names.split(b"/"), kinds, strict=True):
            self._sorter.add(above + name, bits.to_bytes(2, "big") + bytes((kind,)))
        self.numbers[bits] += len(kinds)

    def sorted(self) -> Iterator[ItemDifference]:
        """Yield the differences in the order of a walk (each directory before its contents)."""
        for key, value in self._sorter.sorted():
            bits = int.from_bytes(value[:2], "big")
            is_entered = value[2:] == DIRECTORY and not bits & (TYPE | ONLY_A | ONLY_B)
            yield ItemDifference(key.replace(b"\0", b"/"), bits, is_entered)

    def close(self) -> None:
        """Release the temporary file."""
        self._sorter.close()


class DifferenceReporter:
    """Collects the differences that one task finds, and sends them to rank 0 when the task is done."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._reports_equal = bool(rank.program_options(CompareOptions).compare & REPORTS_EQUAL)
        self._found: dict[tuple[int, bytes], tuple[list[bytes], bytearray]] = {}

    def add_item_differences(self, path: bytes, names: Sequence[bytes], bits: Sequence[int], kinds: bytes) -> None:
        """Add the items ``names`` of the directory ``path``. ``bits`` say in which properties each one differs (0: in
        none), ``kinds`` are their type bytes.
        """
        if not (self._reports_equal or any(bits)):
            return
        for name, each, kind in zip(names, bits, kinds, strict=True):
            if each or self._reports_equal:
                found = self._found.setdefault((each, path), ([], bytearray()))
                found[0].append(name)
                found[1].append(kind)

    def send(self, result: TaskResult) -> None:
        """Send the differences to rank 0, in messages of a limited size."""
        rank, number = self._rank, 0
        pending: list[DifferenceBatch] = []
        for batch in self._difference_batches():
            if rank.number == 0:
                rank.shared_instance(CollectedDifferences).add_difference_batch(batch)
                continue
            pending.append(batch)
            number += len(batch[-1])
            rank.shared_instance(ItemSendWindow).unacknowledged += len(batch[-1])
            if number >= MAX_ITEMS_PER_MESSAGE:
                result.spawn_task(ItemDifferencesNote(rank.number, tuple(pending)), owner=0)
                pending, number = [], 0
        if pending:
            result.spawn_task(ItemDifferencesNote(rank.number, tuple(pending)), owner=0)

    def _difference_batches(self) -> Iterator[DifferenceBatch]:
        """Yield the differences as batches of at most ``MAX_ITEMS_PER_MESSAGE`` items."""
        for (bits, path), (names, kinds) in self._found.items():
            for start in range(0, len(names), MAX_ITEMS_PER_MESSAGE):
                part = slice(start, start + MAX_ITEMS_PER_MESSAGE)
                yield bits, path, b"/".join(names[part]), bytes(kinds[part])
