"""The size of chunks: a complete subtree of a digest tree, for any requested size and any file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcopy.tasks.base.distribution import CHUNKS_PER_RANK, MAX_CHUNK, MAX_CHUNKS, MIN_CHUNK, chunk_size

BLOCKS = st.integers(12, 26).map(lambda power: 1 << power)
MIB = 1 << 20


@given(st.integers(0, 1 << 50), BLOCKS, st.integers(0, 1 << 60), st.integers(1, 10_000))
def test_chunk_is_a_power_of_two_of_blocks(asked: int, block: int, known: int, ranks: int) -> None:
    chunk = chunk_size(asked, block, 0, known, ranks)
    count, rest = divmod(chunk, block)
    assert not rest and count & (count - 1) == 0
    if asked:
        assert chunk == block or asked <= chunk < 2 * asked
    else:
        assert chunk >= MIN_CHUNK and chunk <= max(block, MAX_CHUNK)


@given(BLOCKS, st.integers(0, 1 << 60), st.integers(1, 1000))
def test_more_data_or_fewer_ranks_never_make_smaller_chunks(block: int, known: int, ranks: int) -> None:
    chunk = chunk_size(0, block, 0, known, ranks)
    assert chunk_size(0, block, 0, 2 * known, ranks) >= chunk
    assert chunk_size(0, block, 0, known, ranks + 1) <= chunk


@pytest.mark.parametrize(
    ("asked", "known", "ranks", "chunk"),
    [
        (1, 0, 1, 4 * MIB),
        (4 * MIB, 0, 1, 4 * MIB),
        (5 * MIB, 0, 1, 8 * MIB),
        (0, 0, 1, 16 * MIB),
        (0, 100 * MIB * 8 * CHUNKS_PER_RANK, 8, 128 * MIB),
        (0, 1 << 60, 8, 1024 * MIB),
    ],
)
def test_chunk_sizes_of_examples(asked: int, known: int, ranks: int, chunk: int) -> None:
    assert chunk_size(asked, 4 * MIB, 0, known, ranks) == chunk


@given(st.integers(0, 1 << 30), BLOCKS, st.integers(0, 1 << 60))
def test_number_of_chunks_is_limited(asked: int, block: int, size: int) -> None:
    usual, chunk = chunk_size(asked, block, 0, size, 1), chunk_size(asked, block, size, size, 1)
    assert chunk * MAX_CHUNKS >= size
    assert chunk == usual or chunk * MAX_CHUNKS < 2 * size


@pytest.mark.parametrize(
    ("unit", "chunk"), [(0, 16 * MIB), (1 * MIB, 16 * MIB), (64 * MIB, 64 * MIB), (65 * MIB, 128 * MIB)]
)
def test_a_chunk_holds_whole_stripes(unit: int, chunk: int) -> None:
    assert chunk_size(0, 4 * MIB, 0, 0, 1, unit) == chunk
