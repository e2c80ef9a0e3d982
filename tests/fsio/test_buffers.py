"""Lent buffers are aligned to pages, and two borrowers at the same time never get the same one."""

from __future__ import annotations

import ctypes

import pytest

from pcopy.fsio.contents import BUFFER_BYTES, borrowed_buffer


def address_of(buffer: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def test_buffers_are_page_aligned_and_distinct() -> None:
    with borrowed_buffer() as one, borrowed_buffer() as other:
        assert len(one) == len(other) == BUFFER_BYTES
        assert address_of(one) % 4096 == address_of(other) % 4096 == 0
        assert abs(address_of(one) - address_of(other)) >= BUFFER_BYTES


def test_buffers_are_reused_even_after_an_error() -> None:
    with pytest.raises(OSError, match="5"), borrowed_buffer() as first:
        where = address_of(first)
        raise OSError(5, "of a read")
    with borrowed_buffer() as second:
        assert address_of(second) == where
