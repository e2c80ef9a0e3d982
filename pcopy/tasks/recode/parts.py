"""Which parts of a large file were recoded (compressed or decompressed) already, on the rank that has split
the file.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from pcopy.engine.task import TaskId
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.problem import Problem
from pcopy.fsio.seekable_zstd import SeekTable

PackedTable = tuple[bytes, bytes, bytes]
"""The columns of a ``SeekTable``, packed: offsets of frames in the file, offsets of their contents, and checksums."""


class FileDivision(NamedTuple):
    """How a file is divided into parts that are compressed or decompressed separately.

    Fields:
      bounds: packed numbers: the start of each part, then the end of the last part. For compression they are offsets
          in bytes in the source, for decompression numbers of frames.
      table: for decompression, the seek table of the source; for compression, empty columns.
      span: bytes of the source in each frame, for compression.
      temporary_size: bytes that the temporary file has until the file is finished.
    """

    bounds: bytes
    table: PackedTable
    span: int
    temporary_size: int

    @property
    def part_count(self) -> int:
        """The number of parts into which the file is divided."""
        return len(self.bounds) // 8 - 1

    def part_range(self, number: int) -> tuple[int, int]:
        """Return start and end of the part ``number``: offsets in bytes for compression, numbers of frames for
        decompression.
        """
        start, end = array("Q", self.bounds[8 * number : 8 * number + 16])
        return start, end

    def frame_table(self, start: int, end: int) -> PackedTable:
        """Return that part of the source's seek table which describes the frames from ``start`` up to ``end``."""
        at, contents_at, checksums = self.table
        return at[8 * start : 8 * end + 8], contents_at[8 * start : 8 * end + 8], checksums[8 * start : 8 * end]


def packed_table_columns(table: SeekTable) -> PackedTable:
    """Return the columns of a seek table, packed."""
    return table.offsets.tobytes(), table.content_offsets.tobytes(), array("Q", table.checksums).tobytes()


def seek_table_from_columns(packed: PackedTable) -> SeekTable:
    """Return the seek table whose columns are ``packed``."""
    return SeekTable(*(array("Q", column) for column in packed))


class RecodedPartsProgress:
    """The parts of one file that is recoded (compressed or decompressed), and how far each of them is.

    A part that is compressed has these states: waiting, under way on a rank, compressed and in the memory of that rank,
    written. A part that is decompressed is written as soon as it is decompressed.
    """

    def __init__(self, parts: int, most: int, deferred: TaskId) -> None:
        """Initialise the state of a file with ``parts`` parts. The first ones are under way already, up to the limit
        ``most``.

        Args:
            most: the largest number of parts under way at a time.
            deferred: the id of the task ``RecodingStartedNote``, which counts as done only when the file is finished.
        """
        self.deferred_note = deferred
        """The id of the task that is recorded as done when the file is finished."""
        self.frames: list[bytes | None] = [None] * parts
        """For each part: the bytes of each frame in the new file and in the source, packed; None until they
        are known.
        """
        self.roots = [b""] * parts
        self.problem: Problem | None = None
        """The first error of any part; None if there was none."""
        self._max_under_way = most
        self._next = self._under_way = min(most, parts)
        self._holders: dict[int, int] = {}
        self._placed = self._offset = 0

    @property
    def is_finished(self) -> bool:
        """True if no part is under way: the file is complete, or has failed."""
        return not self._under_way

    def record_part_compressed(self, number: int, frames: bytes, root: bytes, holder: int) -> None:
        """Record that the part ``number`` is compressed, and in the memory of the rank ``holder``. ``frames`` are the
        bytes of each of its frames in the new file and in the source, packed; ``root`` is the digest of its contents.
        """
        self.frames[number], self.roots[number], self._holders[number] = frames, root, holder

    def record_part_ended(self) -> None:
        """Record that a part is no longer under way: it was written, has failed or was discarded."""
        self._under_way -= 1

    def parts_to_write(self) -> Iterator[tuple[int, int, int]]:
        """Generator: yield the parts that are compressed and whose offset is known by now. For each: number, rank that
        has it in memory, and offset in the file.

        After an error the offset is -1, which means that the rank must discard the part.
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
        """Yield the numbers of the parts for which tasks must be spawned now. These count as under way from now on."""
        while self.problem is None and self._under_way < self._max_under_way and self._next < len(self.frames):
            yield self._next
            self._next += 1
            self._under_way += 1
