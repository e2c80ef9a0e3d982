"""TellFound: send found items to rank 0, as bytes to be written or as columns; FoundHeard: rank 0 acknowledges a number
of bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from pcopy.fsio.backend.columns import Rows
from pcopy.tasks.base.kind import RecreatedNote
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.report_window import SendWindow, acknowledge
from pcopy.tasks.base.result import TaskResult
from pcopy.walk.matching import Items

MAX_UNACKNOWLEDGED_BYTES = 64 << 20
"""Bytes of all ranks together that may be on their way to rank 0, not yet acknowledged."""

MIN_RANK_SHARE = 1 << 20
"""The least share of these bytes for one rank, if there are very many ranks."""

MAX_TASK_OUTPUT = 1 << 20
"""Bytes of output from which on a task ends and leaves the remaining work to other tasks."""

PackedItems = tuple[bytes, bytes, bytes, int, bytes]
"""Packed items: the common beginning of their paths, names (separated by NUL), types, mask of the
columns, and columns.
"""


class ResultSink(Protocol):
    """The methods of rank 0's sink that receive what is found."""

    def write(self, parts: Sequence[bytes]) -> str:
        """Write some bytes for each requested form. Return why the job has to stop, or an empty string."""

    def write_items(self, items: Items) -> str:
        """As ``written``, for items with their columns."""

    def mark_incomplete(self, why: str) -> None:
        """Record that the output is incomplete for the reason ``why``, so that no list is created."""

    def add_sums(self, words: bytes, layouts: bytes) -> None:
        """Add the packed sums of one rank, and its sums of layouts."""


def pack(items: Items) -> PackedItems:
    """Return the items in a packed form, for a message."""
    rows = items.rows
    columns = (0, b"") if rows is None else (rows.mask, rows.packed())
    return items.above, b"\0".join(items.names), items.kinds, *columns


def unpack(packed: PackedItems) -> Items:
    """Return the items of a packed form."""
    above, names, kinds, mask, columns = packed
    rows = Rows.unpacked(columns, len(kinds), mask) if mask else None
    return Items(-1, above, names.split(b"\0"), kinds, rows)


class FoundItemsNote(RecreatedNote, code=103, doing="reporting found items"):
    """A note for rank 0 with the items that the rank ``sender`` has found: ``parts`` of bytes, one for each form, or
    ``packed`` items.
    """

    sender: int
    parts: tuple[bytes, ...]
    packed: tuple[PackedItems, ...] = ()

    def run(self, rank: Rank, result: TaskResult) -> None:
        size = sum(map(len, self.parts)) + sum(map(_size, self.packed))
        _write_to_sink(rank, self.parts, self.packed)
        acknowledge(rank, result, self.sender, size, UnacknowledgedBytes, FoundItemsAcknowledged)


class FoundItemsAcknowledged(RecreatedNote, code=104, doing="continuing the walk"):
    """A note that acknowledges ``number`` bytes: rank 0 has processed them."""

    number: int

    def run(self, rank: Rank, result: TaskResult) -> None:
        rank.instance(UnacknowledgedBytes).unacknowledged -= self.number


class UnacknowledgedBytes(SendWindow):
    """The bytes of this rank that rank 0 has not acknowledged yet."""

    total_limit, min_share = MAX_UNACKNOWLEDGED_BYTES, MIN_RANK_SHARE


class OutputBuffer:
    """Collects the output of one task and passes it to rank 0."""

    def __init__(self, forms: int) -> None:
        self._parts: list[list[bytes]] = [[] for _ in range(forms)]
        self._items: list[PackedItems] = []
        self.size = 0

    def write(self, form: int, part: bytes) -> None:
        """Add bytes to the output in one form."""
        self._parts[form].append(part)
        self.size += len(part)

    def add(self, items: Items) -> None:
        """Add items as columns."""
        packed = pack(items)
        self._items.append(packed)
        self.size += _size(packed)

    def flush(self, rank: Rank, result: TaskResult) -> None:
        """Write the output on rank 0, or send it there."""
        if not self.size:
            return
        parts = tuple(b"".join(each) for each in self._parts)
        if rank.number == 0:
            _write_to_sink(rank, parts, self._items)
            return
        rank.instance(UnacknowledgedBytes).unacknowledged += self.size
        result.spawn(FoundItemsNote(rank.number, parts, tuple(self._items)), owner=0)


def _size(packed: PackedItems) -> int:
    return len(packed[1]) + len(packed[2]) + len(packed[4])


def _write_to_sink(rank: Rank, parts: Sequence[bytes], items: Sequence[PackedItems]) -> None:
    """Pass output to rank 0's sink; stop the job if it cannot be written."""
    hearer = cast(ResultSink, rank.sink)
    trouble = hearer.write(parts) if any(parts) else ""
    for each in items:
        trouble = hearer.write_items(unpack(each))
    if trouble:
        rank.stop(trouble)
