"""What the rank that has split a file knows of its parts: which are handed out, and where compressed ones go."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from pcopy.engine.task import TaskId
from pcopy.fsio.problem import Problem
from pcopy.fsio.seekable_zstd import SeekTable
from pcopy.named import NamedTuple

Packed = tuple[bytes, bytes, bytes]
"""Columns of a ``SeekTable``."""


class Division(NamedTuple):
    """How a file is divided: part ``number`` is what lies between two ``bounds``, which are packed: bytes of the source
    that is compressed, or frames of the ``table`` of one that is decompressed.

    ``span``: bytes of a frame. ``room``: bytes of the temporary file.
    """

    bounds: bytes
    table: Packed
    span: int
    room: int

    @property
    def parts(self) -> int:
        return len(self.bounds) // 8 - 1

    def of(self, number: int) -> tuple[int, int]:
        """Where a part begins, and where it ends."""
        start, end = array("Q", self.bounds[8 * number : 8 * number + 16])
        return start, end

    def frames(self, start: int, end: int) -> Packed:
        """The part of the table that tells of these frames."""
        at, contents_at, checksums = self.table
        return at[8 * start : 8 * end + 8], contents_at[8 * start : 8 * end + 8], checksums[8 * start : 8 * end]


def packed_table(table: SeekTable) -> Packed:
    return table.at.tobytes(), table.contents_at.tobytes(), array("Q", table.checksums).tobytes()


def unpacked_table(packed: Packed) -> SeekTable:
    return SeekTable(*(array("Q", column) for column in packed))


class Parts:
    """Those of one file. ``most`` are under way at a time, which are handed out at the beginning."""

    def __init__(self, parts: int, most: int, held: TaskId) -> None:
        self.held = held
        """The note that is held until all is over."""
        self.frames: list[bytes | None] = [None] * parts
        """Packed: the bytes of each frame in the file and in the source, once they are known."""
        self.roots = [b""] * parts
        self.problem: Problem | None = None
        """The first that any part has met."""
        self._most = most
        self._next = self._under_way = min(most, parts)
        self._holders: dict[int, int] = {}
        self._placed = self._offset = 0

    @property
    def is_over(self) -> bool:
        return not self._under_way

    def compressed(self, number: int, frames: bytes, root: bytes, holder: int) -> None:
        """A part is compressed, and the rank ``holder`` keeps it."""
        self.frames[number], self.roots[number], self._holders[number] = frames, root, holder

    def ended(self) -> None:
        """A part is written, or will not be."""
        self._under_way -= 1

    def to_write(self) -> Iterator[tuple[int, int, int]]:
        """Of each part of which it is known by now: its number, who keeps it, and at which byte it goes; -1: nowhere
        any more."""
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

    def to_hand_out(self) -> Iterator[int]:
        """The numbers of the parts that are under way from now on."""
        while self.problem is None and self._under_way < self._most and self._next < len(self.frames):
            yield self._next
            self._next += 1
            self._under_way += 1
