"""Packed names of a very large directory, which wait in a file rather than in memory until the directory is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from pcopy.engine.backlog import SpoolFactory

IN_MEMORY = 512
"""Batches that are held before the spool is opened: about a million names."""


class NamesSpool:
    """Byte strings in the order in which they came, to be read once."""

    def __init__(self, open_spool: SpoolFactory) -> None:
        self._open_spool = open_spool
        self._held: list[bytes] = []
        self._spool: BinaryIO | None = None

    def append(self, packed: bytes) -> None:
        if self._spool is None and len(self._held) >= IN_MEMORY:
            self._spool = self._open_spool()
        if self._spool is None:
            self._held.append(packed)
        else:
            self._spool.write(len(packed).to_bytes(8, "big") + packed)

    def __iter__(self) -> Iterator[bytes]:
        yield from self._held
        if self._spool is not None:
            self._spool.seek(0)
            with self._spool:
                while head := self._spool.read(8):
                    yield self._spool.read(int.from_bytes(head, "big"))
