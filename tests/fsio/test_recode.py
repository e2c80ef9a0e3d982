"""Number of bytes of a file in each zstd frame."""

from __future__ import annotations

import pytest

from pcopy.fsio.recode import compression_frame_size_for_file

MIB = 1 << 20


@pytest.mark.parametrize(
    ("stripe", "span"),
    [
        *((0, 4), (1, 4), (2, 4), (4, 4)),  # a frame contains one or several stripes
        *((3, 6), (5, 5), (8, 8), (33, 33), (64, 64)),  # a frame of the usual size would end within a stripe
        *((65, 4), (1024, 4)),  # no frame is that large
    ],
)
def test_frames_contain_whole_stripes(stripe: int, span: int) -> None:
    assert compression_frame_size_for_file(1 << 30, stripe * MIB) == span * MIB


def test_large_files_have_larger_frames() -> None:
    assert compression_frame_size_for_file(5 << 40, MIB) == 8 * MIB
    assert compression_frame_size_for_file(5 << 40, 3 * MIB) == 6 * MIB
    assert compression_frame_size_for_file(1 << 60, MIB) == 64 * MIB
