"""How many bytes of a file make a frame of zstd."""

from __future__ import annotations

import pytest

from pcopy.fsio.recode import frame_size_for

MIB = 1 << 20


@pytest.mark.parametrize(
    ("stripe", "span"),
    [
        *((0, 4), (1, 4), (2, 4), (4, 4)),  # several stripes, or one, make a frame
        *((3, 6), (5, 5), (8, 8), (33, 33), (64, 64)),  # a frame of the usual size would cut them
        *((65, 4), (1024, 4)),  # no frame is that large
    ],
)
def test_no_stripe_is_cut(stripe: int, span: int) -> None:
    assert frame_size_for(1 << 30, stripe * MIB) == span * MIB


def test_large_files_have_larger_frames() -> None:
    assert frame_size_for(5 << 40, MIB) == 8 * MIB
    assert frame_size_for(5 << 40, 3 * MIB) == 6 * MIB
    assert frame_size_for(1 << 60, MIB) == 64 * MIB
