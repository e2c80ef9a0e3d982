"""Sorts more records than memory holds: sorted runs in temporary files, merged at the end.

Rule: runs stand in the order in which their records came, and only neighbours are merged; so records with equal keys
keep their order. Runs of one level are merged as soon as there are ``FAN_IN`` of them, each record once per level. So
few files are open: fewer than 64 for half a terabyte of records.
"""

from __future__ import annotations

import errno
import heapq
import marshal
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from operator import itemgetter
from typing import BinaryIO, TypeAlias

from pcopy.named import NamedTuple

KeyValue: TypeAlias = tuple[bytes, bytes]

FAN_IN = 16
"""Runs that are merged into one: each record is written once for each level."""

_OVERHEAD = 160
"""Bytes of memory for a record beside its own: two byte strings, a tuple, its place in the list."""

_LENGTH = 8
"""Bytes of the length in front of what is written at once."""
_AT_ONCE = 64
"""Records that are written, and read, with one call; fewer if they are long."""
_FRAME = 1 << 16
"""Bytes of them, about: each of many runs holds what it has read."""
_key = itemgetter(0)


class _Run(NamedTuple):
    level: int
    spool: BinaryIO


class ExternalSorter:
    """Records of a key and a value (each below 2 GiB), sorted by key with some ``budget`` bytes of memory."""

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

    def extend(self, records: Sequence[KeyValue]) -> None:
        """As ``add``, for some that are in memory anyway."""
        self._held += records
        self._held_bytes += sum(map(len, chain.from_iterable(records))) + len(records) * _OVERHEAD
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
            parts = self._runs[-FAN_IN:]
            merged = self._write(heapq.merge(*map(_read, parts), key=_key), parts[0].level + 1)
            self._runs[-FAN_IN:] = [merged]
            for part in parts:
                part.spool.close()

    def _write(self, records: Iterable[KeyValue], level: int) -> _Run:
        spool, left, number = self._open_spool(), iter(records), 1
        try:
            while frame := list(islice(left, number)):
                packed = marshal.dumps(frame)
                spool.write(len(packed).to_bytes(_LENGTH, "big") + packed)
                number = max(1, min(_AT_ONCE, number * _FRAME // len(packed)))
            spool.flush()
        except BaseException:
            spool.close()
            raise
        return _Run(level, spool)


def _read(run: _Run) -> Iterator[KeyValue]:
    """The records of a run; raises ``OSError`` if it has become shorter."""
    run.spool.seek(0)
    while packed := run.spool.read(_LENGTH):
        length = int.from_bytes(packed, "big")
        frame = run.spool.read(length)
        if len(packed) + len(frame) < _LENGTH + length:
            raise OSError(errno.EIO, "a temporary file has become shorter")
        yield from marshal.loads(frame)
