"""External sorting of more records than memory can hold: sorted runs in temporary files, which are merged at the end.

Rule: runs are kept in the order in which their records came, and only neighbours are merged. So records with equal keys
keep their order. Runs of one level are merged as soon as there are ``MERGE_FAN_IN`` of them, so that each record is
written once per level. Therefore few files are open: fewer than 64 for half a terabyte of records.
"""

from __future__ import annotations

import errno
import heapq
import marshal
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from operator import itemgetter
from typing import BinaryIO, TypeAlias

from pcopy.fast_named_tuple import NamedTuple

SortRecord: TypeAlias = tuple[bytes, bytes]
"""A record: key and value."""

MERGE_FAN_IN = 16
"""Number of runs that are merged into one."""

_RECORD_OVERHEAD = 160
"""Bytes of memory for a record in addition to its contents: two byte strings, a tuple, its place in the list."""

_LENGTH_SIZE = 8
"""Bytes of the length field in front of each frame. A frame is a group of records that is written by one call."""
_MAX_FRAME_RECORDS = 64
"""Maximum number of records in a frame; there are fewer if they are long."""
_FRAME_SIZE = 1 << 16
"""Target size of a frame in bytes. Each of many runs keeps the frame in memory that it has read."""
_record_key = itemgetter(0)


class _Run(NamedTuple):
    """A sorted run: its level (number of merges), and the temporary file that holds it."""

    level: int
    spool: BinaryIO


class ExternalSorter:
    """Sorts records of a key and a value (each below 2 GiB) by key, with about ``budget`` bytes of memory."""

    def __init__(self, open_spool: Callable[[], BinaryIO], budget: int = 16 << 20) -> None:
        """Create an empty sorter. ``open_spool`` opens an empty temporary file, which is removed when it is closed."""
        self._open_spool = open_spool
        self._budget = budget
        self._buffered: list[SortRecord] = []
        self._buffered_bytes = 0
        self._runs: list[_Run] = []

    def add(self, key: bytes, value: bytes) -> None:
        """Add a record. Raise ``OSError`` if a run cannot be written."""
        self._buffered.append((key, value))
        self._buffered_bytes += len(key) + len(value) + _RECORD_OVERHEAD
        if self._buffered_bytes >= self._budget:
            self._spill()

    def extend(self, records: Sequence[SortRecord]) -> None:
        """Add several records that are in memory anyway. Raise ``OSError`` as ``add`` does."""
        self._buffered += records
        self._buffered_bytes += sum(map(len, chain.from_iterable(records))) + len(records) * _RECORD_OVERHEAD
        if self._buffered_bytes >= self._budget:
            self._spill()

    def sorted(self) -> Iterator[SortRecord]:
        """Return all records so far, sorted by key; records with equal keys keep their order. Raise ``OSError``.

        It may be called again, but not while the iterator of an earlier call is being read.
        """
        self._buffered.sort(key=_record_key)
        return (
            heapq.merge(*map(_read_run, self._runs), self._buffered, key=_record_key)
            if self._runs
            else iter(self._buffered)
        )

    def close(self) -> None:
        """Discard all records and close the temporary files."""
        self._buffered, self._buffered_bytes = [], 0
        while self._runs:
            self._runs.pop().spool.close()

    def _spill(self) -> None:
        """Write the records in memory as a run, and merge runs of one level if there are ``MERGE_FAN_IN``.

        Raise ``OSError``.
        """
        self._buffered.sort(key=_record_key)
        self._runs.append(self._write_run(self._buffered, 0))
        self._buffered, self._buffered_bytes = [], 0
        while len(self._runs) >= MERGE_FAN_IN and self._runs[-MERGE_FAN_IN].level == self._runs[-1].level:
            parts = self._runs[-MERGE_FAN_IN:]
            merged = self._write_run(heapq.merge(*map(_read_run, parts), key=_record_key), parts[0].level + 1)
            self._runs[-MERGE_FAN_IN:] = [merged]
            for part in parts:
                part.spool.close()

    def _write_run(self, records: Iterable[SortRecord], level: int) -> _Run:
        """Write sorted records to a new run. Raise ``OSError``."""
        # ``number`` is the number of records in the next frame, estimated from the size of the last one.
        spool, remaining, number = self._open_spool(), iter(records), 1
        try:
            while frame := list(islice(remaining, number)):
                packed = marshal.dumps(frame)
                spool.write(len(packed).to_bytes(_LENGTH_SIZE, "big") + packed)
                number = max(1, min(_MAX_FRAME_RECORDS, number * _FRAME_SIZE // len(packed)))
            spool.flush()
        except BaseException:
            spool.close()
            raise
        return _Run(level, spool)


def _read_run(run: _Run) -> Iterator[SortRecord]:
    """Yield the records of a run. Raise ``OSError``, also if the file has become shorter."""
    run.spool.seek(0)
    while packed := run.spool.read(_LENGTH_SIZE):
        length = int.from_bytes(packed, "big")
        frame = run.spool.read(length)
        if len(packed) + len(frame) < _LENGTH_SIZE + length:
            raise OSError(errno.EIO, "a temporary file has become shorter")
        yield from marshal.loads(frame)
