"""State of a file that is recoded in parts, on the rank that has split it."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from pcopy.engine.task import TaskId
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.problem import Problem
from pcopy.fsio.seekable_zstd import SeekTable

PackedTable = tuple[bytes, bytes, bytes]
"""The columns of a ``SeekTable``, packed."""


class Division(NamedTuple):
    """Division of a file into parts.

    Fields:
      bounds: the limits of the parts, packed; bytes of a source that is compressed, or frames of one that is
          decompressed.
      table: the seek table of a source that is decompressed; empty columns otherwise.
      span: bytes of the source that a frame holds.
      temporary_size: bytes of the temporary file.
    """

    bounds: bytes
    table: PackedTable
    span: int
    temporary_size: int

    @property
    def part_count(self) -> int:
        """The number of parts."""
        return len(self.bounds) // 8 - 1

    def part_range(self, number: int) -> tuple[int, int]:
        """Return start and end of the part ``number``."""
        start, end = array("Q", self.bounds[8 * number : 8 * number + 16])
        return start, end

    def frame_table(self, start: int, end: int) -> PackedTable:
        """Return the rows of the table for the frames from ``start`` up to ``end``."""
        at, contents_at, checksums = self.table
        return at[8 * start : 8 * end + 8], contents_at[8 * start : 8 * end + 8], checksums[8 * start : 8 * end]


def packed_table(table: SeekTable) -> PackedTable:
    """Return the columns of a seek table, packed."""
    return table.offsets.tobytes(), table.content_offsets.tobytes(), array("Q", table.checksums).tobytes()


def unpacked_table(packed: PackedTable) -> SeekTable:
    """Return the seek table of which ``packed`` was made."""
    return SeekTable(*(array("Q", column) for column in packed))


class PartProgress:
    """The parts of one file, and how far they are.

    A part is handed out, then compressed and held in the memory of a rank, then written. A part that is decompressed is
    written directly.
    """

    def __init__(self, parts: int, most: int, deferred: TaskId) -> None:
        """Initialise ``parts`` parts, of which the first ``most`` are handed out already.

        Args:
          most: the largest number of parts under way at a time.
          deferred: the id of the task ``RecodeOpened``, which is completed with the file.
        """
        self.deferred_note = deferred
        """The deferred note that is recorded as done when the file is finished."""
        self.frames: list[bytes | None] = [None] * parts
        """For each part, packed: the bytes of each frame in the file and in the source; None until they are known."""
        self.roots = [b""] * parts
        self.problem: Problem | None = None
        """The first error of any part."""
        self._max_under_way = most
        self._next = self._under_way = min(most, parts)
        self._holders: dict[int, int] = {}
        self._placed = self._offset = 0

    @property
    def is_finished(self) -> bool:
        """True if no part is under way any longer."""
        return not self._under_way

    def part_compressed(self, number: int, frames: bytes, root: bytes, holder: int) -> None:
        """Record that the part ``number`` is compressed, and that the rank ``holder`` has it in memory."""
        self.frames[number], self.roots[number], self._holders[number] = frames, root, holder

    def part_ended(self) -> None:
        """Record that a part was written, or will not be written."""
        self._under_way -= 1

    def parts_to_write(self) -> Iterator[tuple[int, int, int]]:
        """Yield the parts whose offset is known by now: number, rank that holds it, and offset in the file.

        After an error the offset is -1: the rank discards the part.
        """
        if self.problem is not None:
            for number, holder in self._holders.items():
                yield number, holder, -1
            self._holders.clear()
        while self._placed in self._holders:
            yield self._placed, self._holders.pop(self._placed), self._offset
            frames = self.frames[self._placed]
            assert frames is not None
            self._offset += sum(array("Q", frames)[::2])
            self._placed += 1

    def parts_to_hand_out(self) -> Iterator[int]:
        """Yield the numbers of the next parts, which count as under way from now on."""
        while self.problem is None and self._under_way < self._max_under_way and self._next < len(self.frames):
            yield self._next
            self._next += 1
            self._under_way += 1
