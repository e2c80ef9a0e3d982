"""Sorts more records than memory holds: sorted runs in temporary files, merged at the end.

Rule: runs stand in the order in which their records came, and only neighbours are merged; so records with equal keys
keep their order. Runs of one level are merged as soon as there are ``FAN_IN`` of them, each record once per level, and
all of them before there are more files than may be open.
"""

from __future__ import annotations

import errno
import heapq
import struct
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import BinaryIO, NamedTuple, TypeAlias

KeyValue: TypeAlias = tuple[bytes, bytes]

FAN_IN = 16
"""Runs that are merged into one: each record is written once for each level."""
MOST_OPEN = 64
"""Files, while runs are merged into another one."""

_LENGTHS = struct.Struct("<II")
_OVERHEAD = 160
"""Bytes of memory for a record beside its own: two byte strings, a tuple, its place in the list."""

_READ = 1 << 16
"""Bytes that are read from a run at once."""
_AT_ONCE = 4096
"""Pieces that are written with one call."""
_key = itemgetter(0)


class _Run(NamedTuple):
    level: int
    spool: BinaryIO


class ExternalSorter:
    """Records of a key and a value (each up to 4 GiB), sorted by key with some ``budget`` bytes of memory."""

    def __init__(self, open_spool: Callable[[], BinaryIO], budget: int = 16 << 20) -> None:
        """``open_spool`` opens an empty file for writing and reading, which vanishes when it is closed."""
        self._open_spool = open_spool
        self._budget = budget
        self._held: list[KeyValue] = []
        self._held_bytes = 0
        self._runs: list[_Run] = []

    def add(self, key: bytes, value: bytes) -> None:
        """One more record; may raise ``OSError`` from writing a run."""
        self._held.append((key, value))
        self._held_bytes += len(key) + len(value) + _OVERHEAD
        if self._held_bytes >= self._budget:
            self._spill()

    def sorted(self) -> Iterator[KeyValue]:
        """All records so far, by key, equal keys in the order in which they were added.

        May be asked for again, but not while an earlier one is being read. May raise ``OSError``.
        """
        self._held.sort(key=_key)
        return heapq.merge(*map(_read, self._runs), self._held, key=_key) if self._runs else iter(self._held)

    def close(self) -> None:
        self._held, self._held_bytes = [], 0
        while self._runs:
            self._runs.pop().spool.close()

    def _spill(self) -> None:
        self._held.sort(key=_key)
        self._runs.append(self._write(self._held, 0))
        self._held, self._held_bytes = [], 0
        while len(self._runs) >= FAN_IN and self._runs[-FAN_IN].level == self._runs[-1].level:
            self._merge(FAN_IN)
        if len(self._runs) >= MOST_OPEN - 1:
            self._merge(len(self._runs))

    def _merge(self, count: int) -> None:
        """Makes the last ``count`` runs one."""
        parts = self._runs[-count:]
        merged = self._write(heapq.merge(*map(_read, parts), key=_key), parts[0].level + 1)
        self._runs[-count:] = [merged]
        for part in parts:
            part.spool.close()

    def _write(self, records: Iterable[KeyValue], level: int) -> _Run:
        spool = self._open_spool()
        try:
            frames: list[bytes] = []
            for key, value in records:
                frames += (_LENGTHS.pack(len(key), len(value)), key, value)
                if len(frames) >= _AT_ONCE:
                    _write_all(spool, b"".join(frames))
                    frames.clear()
            _write_all(spool, b"".join(frames))
            spool.flush()
        except BaseException:
            spool.close()
            raise
        return _Run(level, spool)


def _write_all(spool: BinaryIO, data: bytes) -> None:
    view = memoryview(data)
    while view:  # an unbuffered file may take less than all at once
        view = view[spool.write(view) :]


def _read(run: _Run) -> Iterator[KeyValue]:
    """The records of a run; reads 64 KiB or a record at a time. Raises ``OSError`` if it has become shorter."""
    spool, buffer, at = run.spool, b"", 0
    spool.seek(0)
    while True:
        if len(buffer) - at < _LENGTHS.size:
            buffer, at = _more(spool, buffer[at:], _LENGTHS.size), 0
            if not buffer:
                return
        key_length, value_length = _LENGTHS.unpack_from(buffer, at)
        if len(buffer) - at < (length := _LENGTHS.size + key_length + value_length):
            buffer, at = _more(spool, buffer[at:], length), 0
        middle, end = at + _LENGTHS.size + key_length, at + length
        yield buffer[at + _LENGTHS.size : middle], buffer[middle:end]
        at = end


def _more(spool: BinaryIO, rest: bytes, needed: int) -> bytes:
    """``rest`` and what follows, at least ``needed`` bytes; nothing at the end of the file."""
    pieces, length = [rest], len(rest)
    while length < needed:
        piece = spool.read(max(_READ, needed - length))
        if not piece:
            break
        pieces.append(piece)
        length += len(piece)
    if 0 < length < needed:
        raise OSError(errno.EIO, "a temporary file has become shorter")
    return b"".join(pieces)
