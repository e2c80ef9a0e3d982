"""Buffers that are lent: where they begin, and that no two who hold one at the same time hold the same."""

from __future__ import annotations

import ctypes

import pytest

from pcopy.fsio.contents import BUFFER_BYTES, borrowed_buffer


def address_of(buffer: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def test_they_begin_with_a_page_and_differ() -> None:
    with borrowed_buffer() as one, borrowed_buffer() as other:
        assert len(one) == len(other) == BUFFER_BYTES
        assert address_of(one) % 4096 == address_of(other) % 4096 == 0
        assert abs(address_of(one) - address_of(other)) >= BUFFER_BYTES


def test_they_are_kept_for_the_next_also_after_an_error() -> None:
    with pytest.raises(OSError, match="5"), borrowed_buffer() as first:
        where = address_of(first)
        raise OSError(5, "of a read")
    with borrowed_buffer() as second:
        assert address_of(second) == where
