"""The content tree: its root matches the definition, in whatever pieces the contents are passed."""

from __future__ import annotations

import tracemalloc
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcopy.signature.algorithms import ALGORITHM_NAMES, digest_algorithm_named
from pcopy.signature.tree import ContentHasher, content_root_digest, content_root_digest_of_chunks
from tests.support import reference_signature as reference

XXH3 = digest_algorithm_named("xxh3-128")
UNHURRIED = settings(deadline=None)
BLOCK_SIZES = st.sampled_from([1, 2, 4, 8, 64])
PIECES = st.lists(st.one_of(st.binary(max_size=40), st.integers(0, 300)), max_size=12)
"""Pieces of contents: bytes, or the length of a hole."""


def joined(pieces: list[bytes | int]) -> bytes:
    return b"".join(piece if isinstance(piece, bytes) else bytes(piece) for piece in pieces)


def feed(hasher: ContentHasher, piece: bytes | int) -> None:
    if isinstance(piece, bytes):
        hasher.update(piece)
    else:
        hasher.add_zero_bytes(piece)


@UNHURRIED
@given(BLOCK_SIZES, PIECES, st.sampled_from(ALGORITHM_NAMES))
def test_data_and_holes_give_the_root_of_their_contents(block_size: int, pieces: list[bytes | int], name: str) -> None:
    found = digest_algorithm_named(name)
    hasher = ContentHasher(found, block_size)
    for piece in pieces:
        feed(hasher, piece)
    data = joined(pieces)
    assert hasher.size == len(data)
    assert hasher.root() == reference.content_root(data, block_size, found.digest)
    assert content_root_digest(found, block_size, data) == hasher.root()


@UNHURRIED
@given(BLOCK_SIZES, PIECES)
def test_root_is_available_at_any_time(block_size: int, pieces: list[bytes | int]) -> None:
    hasher = ContentHasher(XXH3, block_size)
    for done, piece in enumerate(pieces, start=1):
        feed(hasher, piece)
        assert hasher.root() == reference.content_root(joined(pieces[:done]), block_size)


@pytest.mark.parametrize("count", range(70))
def test_root_is_correct_for_all_small_numbers_of_blocks(count: int) -> None:
    for length in (4 * count, 4 * count + 3):
        data = bytes(range(256))[:length] * 2
        assert content_root_digest(XXH3, 4, data) == reference.content_root(data, 4)
        hole = ContentHasher(XXH3, 4)
        hole.add_zero_bytes(length)
        assert hole.root() == reference.content_root(bytes(length), 4)


@UNHURRIED
@given(st.binary(max_size=600), st.sampled_from([1, 4, 16]), st.integers(0, 5))
def test_chunks_give_the_root_of_the_whole(data: bytes, block_size: int, power: int) -> None:
    chunk = block_size << power
    parts = [content_root_digest(XXH3, block_size, data[at : at + chunk]) for at in range(0, len(data), chunk)]
    assert content_root_digest_of_chunks(XXH3, parts) == reference.content_root(data, block_size)


@pytest.mark.parametrize("edge", [-1, 0, 1])
@pytest.mark.parametrize("block_size", [1 << 16, 1 << 18, 4 << 20])
def test_root_is_correct_for_usual_block_sizes(block_size: int, edge: int) -> None:
    data = bytes(range(251)) * ((3 * block_size + edge) // 251 + 1)
    for length in (block_size + edge, 3 * block_size + edge):
        hasher = ContentHasher(XXH3, block_size)
        for at in range(0, length, 524_288):
            hasher.update(memoryview(data)[at : min(at + 524_288, length)])
        assert hasher.root() == content_root_digest(XXH3, block_size, data[:length])
        assert hasher.root() == reference.content_root(data[:length], block_size)


def test_root_is_correct_for_holes_between_data() -> None:
    for before, hole in ((1, 5 << 20), (100_000, 1 << 16), (65_536, 300_000), (65_535, 3), (0, 200_001)):
        hasher = ContentHasher(XXH3, 1 << 16)
        hasher.update(b"x" * before)
        hasher.add_zero_bytes(hole)
        hasher.update(b"end")
        assert hasher.root() == reference.content_root(b"x" * before + bytes(hole) + b"end", 1 << 16)


def test_zeros_before_data_are_not_digested_for_each_block() -> None:
    taken = 0

    class Counting:
        def __init__(self) -> None:
            self.hasher = XXH3.new_hasher()

        def update(self, data: Any, /) -> None:
            nonlocal taken
            taken += len(data)
            self.hasher.update(data)

        def digest(self) -> bytes:
            return self.hasher.digest()

        def copy(self) -> Counting:
            copied = Counting()
            copied.hasher = self.hasher.copy()
            return copied

    block = 4 << 20
    hasher, reference = ContentHasher(XXH3._replace(new_hasher=Counting), block), ContentHasher(XXH3, block)
    for _ in range(50):  # each is a hole that extends almost to the end of its block
        hasher.add_zero_bytes(block - 4096)
        hasher.update(b"x" * 4096)
        reference.update(bytes(block - 4096))
        reference.update(b"x" * 4096)
    assert hasher.root() == reference.root()
    assert taken < 3 * block


def test_huge_holes_cost_few_digests_and_no_memory() -> None:
    digests = 0

    def counted(data: object) -> bytes:
        nonlocal digests
        digests += 1
        return XXH3.digest(data)  # type: ignore[arg-type]  # the argument is data that the hasher passes on

    counting = XXH3._replace(digest=counted)
    ContentHasher(counting, 1 << 16).add_zero_bytes(1 << 16)  # the trees of zeros are computed once
    digests = 0
    tracemalloc.start()
    hasher = ContentHasher(counting, 1 << 16)
    hasher.update(b"head")
    hasher.add_zero_bytes(10 << 40)
    hasher.update(b"tail")
    root = hasher.root()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert digests < 100
    assert peak < 1 << 16
    assert hasher.size == (10 << 40) + 8

    # the same from the definition, with the roots of subtrees of zeros computed by doubling
    block = 1 << 16
    zeros = [reference.xxh3_128(bytes(block))]
    while len(zeros) < 30:
        zeros.append(reference.xxh3_128(b"\x01" + zeros[-1] * 2))

    def root_of_blocks(first: int, count: int) -> bytes:
        last = (10 << 40) // block
        if first > 0 and first + count <= last and not count & (count - 1):
            return zeros[count.bit_length() - 1]
        if count == 1:
            edge = b"head" + bytes(block - 4) if first == 0 else bytes(4) + b"tail"
            return reference.xxh3_128(edge)
        half = 1 << ((count - 1).bit_length() - 1)
        return reference.xxh3_128(b"\x01" + root_of_blocks(first, half) + root_of_blocks(first + half, count - half))

    assert root == root_of_blocks(0, (10 << 40) // block + 1)


def test_file_that_is_one_hole_of_the_largest_size_has_a_root() -> None:
    hasher = ContentHasher(XXH3, 1 << 16)
    hasher.add_zero_bytes((1 << 63) - 1)
    assert hasher.size == (1 << 63) - 1
    assert len(hasher.root()) == 16


def test_hasher_accepts_any_buffer_and_keeps_none() -> None:
    data = bytearray(range(100))
    hasher = ContentHasher(XXH3, 8)
    hasher.update(memoryview(data))
    hasher.update(array("I", [1, 2, 3]))
    hasher.update(memoryview(bytes(6)).cast("B", (2, 3)))
    hasher.update(memoryview(b""))
    data.clear()  # raises BufferError while a view exists
    whole = bytes(range(100)) + array("I", [1, 2, 3]).tobytes() + bytes(6)
    assert hasher.root() == reference.content_root(whole, 8)


@pytest.mark.parametrize("block_size", [0, -4, 3, 65_535, 65_537])
def test_block_size_must_be_a_power_of_two(block_size: int) -> None:
    with pytest.raises(ValueError, match="no power of two"):
        ContentHasher(XXH3, block_size)


def test_hole_of_negative_length_is_rejected() -> None:
    with pytest.raises(ValueError, match="-1"):
        ContentHasher(XXH3, 4).add_zero_bytes(-1)
