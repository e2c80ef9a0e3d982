"""Sorting on disk: the same order as in memory, with few open files and bounded memory."""

from __future__ import annotations

import io
import os
import random
import tempfile
import tracemalloc
from typing import BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcopy.signature.sorting import MERGE_FAN_IN, ExternalSorter

UNHURRIED = settings(deadline=None)
RECORDS = st.lists(st.tuples(st.binary(max_size=3), st.binary(max_size=6)), max_size=120)


class Spools:
    """Opens spools and counts how many are open, and the maximum."""

    def __init__(self) -> None:
        self.made: list[BinaryIO] = []
        self.most = 0

    def __call__(self) -> BinaryIO:
        self.made.append(io.BytesIO())
        self.most = max(self.most, self.open)
        return self.made[-1]

    @property
    def open(self) -> int:
        return sum(not spool.closed for spool in self.made)


def by_key(records: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return sorted(records, key=lambda record: record[0])


@UNHURRIED
@given(RECORDS, st.sampled_from([1, 200, 500, 3000, 1 << 20]))
def test_records_are_sorted_and_equal_keys_keep_their_order(records: list[tuple[bytes, bytes]], budget: int) -> None:
    spools = Spools()
    sorter = ExternalSorter(spools, budget)
    for record in records:
        sorter.add(*record)
    assert list(sorter.sorted()) == by_key(records) == list(sorter.sorted())
    sorter.close()
    assert spools.open == 0
    assert list(sorter.sorted()) == []


@UNHURRIED
@given(RECORDS, RECORDS)
def test_more_may_be_added_after_sorting(first: list[tuple[bytes, bytes]], second: list[tuple[bytes, bytes]]) -> None:
    sorter = ExternalSorter(Spools(), 800)
    for record in first:
        sorter.add(*record)
    assert list(sorter.sorted()) == by_key(first)
    for record in second:
        sorter.add(*record)
    assert by_key(list(sorter.sorted())) == by_key(first + second)


def test_number_of_open_files_is_bounded() -> None:
    spools = Spools()
    sorter = ExternalSorter(spools, 1)
    keys = [number.to_bytes(4, "big") for number in range(5000)]
    random.Random(7).shuffle(keys)
    for key in keys:
        sorter.add(key, key)
    assert len(spools.made) > 5000
    assert 2 < spools.most < 4 * MERGE_FAN_IN, "there are four levels"
    assert [key for key, _ in sorter.sorted()] == sorted(keys)


def test_equal_keys_keep_their_order_through_all_merges() -> None:
    sorter = ExternalSorter(Spools(), 1)
    records = [(b"%d" % (number % 3), number.to_bytes(4, "big")) for number in range(1500)]
    for record in records:
        sorter.add(*record)
    assert list(sorter.sorted()) == by_key(records)


@pytest.mark.parametrize(("number", "size"), [(30_000, 40), (1500, 20_000)])
def test_sorter_memory_is_bounded(number: int, size: int) -> None:
    """During a merge many runs are open, each with some records in memory, however long these are."""
    budget = 1 << 20
    # the spools are files, because the memory of spools in memory would be counted
    sorter = ExternalSorter(tempfile.TemporaryFile, budget)
    tracemalloc.start()
    for each in range(number):
        sorter.add(each.to_bytes(8, "little"), bytes(size))
    last, count = b"", 0
    for key, _ in sorter.sorted():
        assert key > last or not count
        last, count = key, count + 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    sorter.close()
    assert count == number
    assert peak < 3 * budget


def test_long_records_are_sorted() -> None:
    sorter = ExternalSorter(tempfile.TemporaryFile, 1 << 18)
    records = [(bytes([number]) * 70_000, os.urandom(200_000)) for number in (5, 3, 200, 0, 7)]
    records += [(b"", b""), (b"\x05", b"")]
    for record in records:
        sorter.add(*record)
    assert list(sorter.sorted()) == by_key(records)
    sorter.close()


def test_truncated_spool_is_an_error() -> None:
    spools = Spools()
    sorter = ExternalSorter(spools, 1)
    sorter.add(b"key", b"value")
    for size in (12, 5):
        spools.made[0].truncate(size)
        with pytest.raises(OSError, match="shorter"):
            list(sorter.sorted())


def test_full_disk_is_an_error_and_closes_open_spools() -> None:
    class Full(io.BytesIO):
        def write(self, data: object, /) -> int:
            raise OSError(28, "No space left on device")

    made = Full()
    sorter = ExternalSorter(lambda: made, 1)
    with pytest.raises(OSError, match="No space"):
        sorter.add(b"key", b"value")
    assert made.closed
