"""Sends what a walk finds to rank 0: as bytes to be written, or as status columns of the items.

``FoundItemsNote`` carries the output. With ``FoundItemsAcknowledgedNote`` rank 0 acknowledges it, so that a rank does
not send more than rank 0 can write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from pcopy.fsio.backend.columns import ItemStatusColumns
from pcopy.tasks.base.kind import NoteDiscardedOnResume
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.report_window import SendWindow, acknowledge_received_amount_when_due
from pcopy.tasks.base.result import TaskResult
from pcopy.walk.matching import DirectoryItems

MAX_UNACKNOWLEDGED_BYTES = 16 << 20
"""Bytes of output that all ranks together may have sent without an acknowledgement. Each rank gets an equal share; one
that has used its share waits.
"""

MIN_RANK_SHARE = 1 << 20
"""Least number of bytes that one rank may have sent without an acknowledgement, even if there are very many ranks."""

MAX_TASK_OUTPUT = 1 << 20
"""Bytes of output at which a task ends; it leaves its remaining work to new tasks."""

PackedItems = tuple[bytes, bytes, bytes, int, bytes]
"""Type: items in packed form. The values are: what stands before each name in the reported paths, names (separated by
NUL), type letters, mask of the status columns, and these columns.
"""


class WalkOutputSink(Protocol):
    """Protocol of the object on rank 0 that receives the whole output of a walk."""

    def write(self, parts: Sequence[bytes]) -> str:
        """Write output. ``parts`` contains the bytes for each output form that the user has requested. Return why the
        job must stop, or "" if it can continue.
        """

    def write_items(self, items: DirectoryItems) -> str:
        """Write items, with their status columns. Return why the job must stop, or "" if it can continue."""

    def mark_output_incomplete(self, why: str) -> None:
        """Record that the output is incomplete for the reason ``why``. Then no saved listing is created from it."""

    def add_sums_of_rank(self, words: bytes, layouts: bytes) -> None:
        """Add the packed sums of one rank: of items (``words``), and of Lustre layouts (``layouts``)."""


def pack_found_items(items: DirectoryItems) -> PackedItems:
    """Return ``items`` in packed form, to be sent to rank 0."""
    rows = items.rows
    columns = (0, b"") if rows is None else (rows.mask, rows.status_columns_as_bytes())
    return items.above, b"\0".join(items.names), items.kinds, *columns


def unpack_found_items(packed: PackedItems) -> DirectoryItems:
    """Return the items that ``pack_found_items`` has packed, on rank 0."""
    above, names, kinds, mask, columns = packed
    rows = ItemStatusColumns.status_columns_from_bytes(columns, len(kinds), mask) if mask else None
    return DirectoryItems(-1, above, names.split(b"\0"), kinds, rows)


class FoundItemsNote(NoteDiscardedOnResume, code=103, doing="reporting found items"):
    """Message to rank 0 with output of a walk, from the rank ``sender``: either the bytes to be written in each
    requested output form (``parts``), or items with their status columns (``packed``).
    """

    sender: int
    parts: tuple[bytes, ...]
    packed: tuple[PackedItems, ...] = ()

    def run(self, rank: Rank, result: TaskResult) -> None:
        size = sum(map(len, self.parts)) + sum(map(_byte_count_to_acknowledge, self.packed))
        _write_to_sink(rank, self.parts, self.packed)
        acknowledge_received_amount_when_due(
            rank, result, self.sender, size, UnacknowledgedBytes, FoundItemsAcknowledgedNote
        )


class FoundItemsAcknowledgedNote(NoteDiscardedOnResume, code=104, doing="continuing the walk"):
    """Message to a rank that has sent output to rank 0: rank 0 has processed ``number`` bytes of it, so the rank may
    send as many more.
    """

    number: int

    def run(self, rank: Rank, result: TaskResult) -> None:
        rank.shared_instance(UnacknowledgedBytes).unacknowledged -= self.number


class UnacknowledgedBytes(SendWindow):
    """The number of bytes of output that this rank has sent and rank 0 has not acknowledged yet. It is limited, so that
    the rank does not send more than rank 0 can write.
    """

    total_limit, min_share = MAX_UNACKNOWLEDGED_BYTES, MIN_RANK_SHARE


class OutputBuffer:
    """Collects the output of one task and passes it to rank 0. ``size`` is the number of bytes collected."""

    def __init__(self, forms: int) -> None:
        """``forms`` is the number of output forms that the user has requested."""

        self._parts: list[list[bytes]] = [[] for _ in range(forms)]
        self._items: list[PackedItems] = []
        self.size = 0

    def write(self, form: int, part: bytes) -> None:
        """Add ``part``, bytes of output in one of the requested output forms; ``form`` is the number of this form."""
        self._parts[form].append(part)
        self.size += len(part)

    def add_items(self, items: DirectoryItems) -> None:
        """Add items with their status columns, which rank 0 receives instead of formatted output."""
        packed = pack_found_items(items)
        self._items.append(packed)
        self.size += _byte_count_to_acknowledge(packed)

    def flush_to_rank_0(self, rank: Rank, result: TaskResult) -> None:
        """Pass the collected output to rank 0: write it if this is rank 0, otherwise send it. Do nothing if there is
        none.
        """
        if not self.size:
            return
        parts = tuple(b"".join(each) for each in self._parts)
        if rank.number == 0:
            _write_to_sink(rank, parts, self._items)
            return
        rank.shared_instance(UnacknowledgedBytes).unacknowledged += self.size
        result.spawn_task(FoundItemsNote(rank.number, parts, tuple(self._items)), owner=0)


def _byte_count_to_acknowledge(packed: PackedItems) -> int:
    """Return the size of ``packed`` in bytes, which rank 0 acknowledges when it has processed the items."""
    return len(packed[1]) + len(packed[2]) + len(packed[4])


def _write_to_sink(rank: Rank, parts: Sequence[bytes], items: Sequence[PackedItems]) -> None:
    """On rank 0: pass output to the object that writes it. Stop the job if that fails."""
    hearer = cast(WalkOutputSink, rank.sink)
    trouble = hearer.write(parts) if any(parts) else ""
    for each in items:
        trouble = hearer.write_items(unpack_found_items(each))
    if trouble:
        rank.request_stop(trouble)
