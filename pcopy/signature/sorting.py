"""External sorting of more records than memory can hold: sorted sequences of records (runs) in temporary files, which
are merged at the end.

Rule: runs are kept in the order in which their records were added, and only neighbours are merged. So records with
equal keys keep their order. The level of a run is the number of merges that its records have passed. Runs of one level
are merged as soon as there are ``MERGE_FAN_IN`` of them, so that each record is written once per level and few files
are open: fewer than 64 for half a terabyte of records.
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
"""Number of runs of one level that are merged into one run of the next level."""

_RECORD_OVERHEAD = 160
"""Bytes of memory for a record in addition to its contents: two byte strings, a tuple, its place in the list."""

_LENGTH_SIZE = 8
"""Bytes of the length field in front of each frame (a group of records that is written to a temporary file by one
call).
"""
_MAX_FRAME_RECORDS = 64
"""Maximum number of records in a frame; there are fewer if they are long."""
_FRAME_SIZE = 1 << 16
"""Target size of a frame in bytes. It is small, because while runs are merged, one frame of each is in memory."""
_record_key = itemgetter(0)


class _SortedRun(NamedTuple):
    """A sorted sequence of records in the temporary file ``spool``. ``level`` is the number of merges that its records
    have passed.
    """

    level: int
    spool: BinaryIO


class ExternalSorter:
    """Sorts records by key, with about ``budget`` bytes of memory; the others are in temporary files. A record is a
    pair of a key and a value, each below 2 GiB.
    """

    def __init__(self, open_spool: Callable[[], BinaryIO], budget: int = 16 << 20) -> None:
        """Create an empty sorter, which uses about ``budget`` bytes of memory. ``open_spool`` opens an empty temporary
        file, which is removed when it is closed.
        """
        self._open_spool = open_spool
        self._budget = budget
        self._buffered: list[SortRecord] = []
        self._buffered_bytes = 0
        self._runs: list[_SortedRun] = []

    def add(self, key: bytes, value: bytes) -> None:
        """Add a record. Raise ``OSError`` if a temporary file cannot be written."""
        self._buffered.append((key, value))
        self._buffered_bytes += len(key) + len(value) + _RECORD_OVERHEAD
        if self._buffered_bytes >= self._budget:
            self._spill_to_file()

    def extend(self, records: Sequence[SortRecord]) -> None:
        """Add several records, which must fit into memory together. Raise ``OSError`` if a temporary file cannot be
        written.
        """
        self._buffered += records
        self._buffered_bytes += sum(map(len, chain.from_iterable(records))) + len(records) * _RECORD_OVERHEAD
        if self._buffered_bytes >= self._budget:
            self._spill_to_file()

    def sorted(self) -> Iterator[SortRecord]:
        """Return an iterator over all records so far, sorted by key; records with equal keys keep their order. The
        iterator raises ``OSError`` if a temporary file cannot be read.

        The method may be called again, but not while the iterator of an earlier call is in use.
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

    def _spill_to_file(self) -> None:
        """Write the records in memory, sorted, to a temporary file: such a file is a run of level 0. While there are
        ``MERGE_FAN_IN`` runs of one level, merge them into a run of the next level.

        Raise ``OSError`` if a temporary file cannot be read or written.
        """
        self._buffered.sort(key=_record_key)
        self._runs.append(self._write_sorted_run(self._buffered, 0))
        self._buffered, self._buffered_bytes = [], 0
        while len(self._runs) >= MERGE_FAN_IN and self._runs[-MERGE_FAN_IN].level == self._runs[-1].level:
            parts = self._runs[-MERGE_FAN_IN:]
            merged = self._write_sorted_run(heapq.merge(*map(_read_run, parts), key=_record_key), parts[0].level + 1)
            self._runs[-MERGE_FAN_IN:] = [merged]
            for part in parts:
                part.spool.close()

    def _write_sorted_run(self, records: Iterable[SortRecord], level: int) -> _SortedRun:
        """Write ``records``, which are sorted, to a new temporary file; return it as a run (sorted sequence) of this
        ``level``. Raise ``OSError`` if it cannot be written.
        """
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
        return _SortedRun(level, spool)


def _read_run(run: _SortedRun) -> Iterator[SortRecord]:
    """Generator: yield the records of the run (sorted sequence in a temporary file) ``run``. Raise ``OSError`` if its
    file cannot be read, or has become shorter.
    """
    run.spool.seek(0)
    while packed := run.spool.read(_LENGTH_SIZE):
        length = int.from_bytes(packed, "big")
        frame = run.spool.read(length)
        if len(packed) + len(frame) < _LENGTH_SIZE + length:
            raise OSError(errno.EIO, "a temporary file is shorter than the data that were written to it")
        yield from marshal.loads(frame)
