"""The attribute ``lustre.lov`` is parsed as Lustre defines it, and invalid contents cause only an error."""

from __future__ import annotations

import random

import pytest

from pcopy.lustre.blob import (
    ALL_OSTS,
    InvalidLayoutError,
    LayoutComponent,
    ParsedLayout,
    describe_layout,
    layout_without_released_flag,
    pack_layout,
    parse_layout,
)
from tests.lustre.recorded import RECORDED
from tests.lustre.standin import RELEASED, composite, parsed, plain

MIB = 1 << 20
SAID = {
    "plain": "4 stripes of 1 MiB",
    "growing (PFL)": "to 64 MiB 1 stripe of 4 MiB, then 4 stripes of 4 MiB",
    "on the MDT": "to 1 MiB on the MDT, then 2 stripes of 4 MiB",
    "mirrored": "2 mirrors (1 stripe of 4 MiB)",
    "overstriped": "12 stripes of 64 KiB, overstriped",
    "extending itself": "to 64 MiB 1 stripe of 4 MiB, to 256 MiB 1 stripe of 64 MiB, extending itself, "
    "to 256 MiB 2 stripes of 4 MiB, then 2 stripes of 64 MiB, extending itself",
    "in a pool": "2 stripes of 4 MiB in the pool fast",
    "on OSTs that were named": "2 stripes of 4 MiB",
}
"""As ``lfs getstripe`` printed them."""


@pytest.mark.parametrize("kind", RECORDED)
def test_recorded_layouts_of_all_kinds_are_parsed(kind: str) -> None:
    blob = bytes.fromhex(RECORDED[kind])
    got, wanted = parse_layout(blob), parsed(blob)
    assert describe_layout(got) == SAID[kind]
    assert (got.is_composite, got.mirrors) == (wanted.composite, wanted.mirrors)
    for one, other in zip(got.components, wanted.components, strict=True):
        assert (one.stripes, one.stripe_size, one.pool.decode(), one.pattern) == (
            (other.count, other.size, other.pool, other.pattern)
        )
        assert (one.start, one.end, one.flags) == (other.start, other.end, other.flags)
        assert one.osts == other.osts


@pytest.mark.parametrize("kind", RECORDED)
def test_packed_layout_requests_the_same_striping(kind: str) -> None:
    """The packed layout lists no objects, which the server chooses."""
    striping = parse_layout(bytes.fromhex(RECORDED[kind]))
    written = pack_layout(striping)
    assert parse_layout(written).normalised_layout == striping.normalised_layout
    again = parsed(written)
    assert not any(component.osts for component in again.components)
    assert len(written) < len(RECORDED[kind]) // 2


def test_layout_of_a_released_file_is_requested_without_the_released_flag() -> None:
    for blob in (plain(4, MIB, pattern=1 | RELEASED), composite((2**64 - 1, plain(2, MIB, pattern=1 | RELEASED)))):
        asked = parsed(layout_without_released_flag(blob))
        assert [each.pattern for each in asked.components] == [1]
        assert (
            parse_layout(blob).normalised_layout == parse_layout(layout_without_released_flag(blob)).normalised_layout
        )


def test_requested_striping_is_packed() -> None:
    asked = parsed(pack_layout(ParsedLayout((LayoutComponent(ALL_OSTS, 65536),))))
    assert (asked.count, asked.size, asked.components[0].offset) == (0xFFFF, 65536, 0xFFFF)
    asked = parsed(pack_layout(ParsedLayout((LayoutComponent(3, 0, pool=b"fast"),))))
    assert (asked.count, asked.size, asked.pool) == (3, 0, "fast")


@pytest.mark.parametrize(
    ("blob", "why"),
    [
        (b"", "unknown type of layout"),
        (b"garbage!", "unknown type of layout"),
        (plain(4, MIB)[:20], "cut short"),
        ((0x0BD70BD0).to_bytes(4, "little") + bytes(60), "foreign"),
        (composite((2**64 - 1, plain(2, MIB)))[:60], "header of a layout of 60 bytes is invalid"),
    ],
)
def test_invalid_layout_is_rejected_with_the_reason(blob: bytes, why: str) -> None:
    with pytest.raises(InvalidLayoutError, match=why):
        parse_layout(blob)


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_are_parsed_or_rejected(seed: int) -> None:
    """Recorded layouts with a few changed bytes, or truncated."""
    of = random.Random(seed)
    kinds = [bytes.fromhex(each) for each in RECORDED.values()]
    read = 0
    for _ in range(2000):
        blob = bytearray(of.choice(kinds))
        for _ in range(of.randrange(1, 5)):
            at = of.randrange(min(len(blob), of.choice((32, len(blob)))))
            blob[at] = of.choice((0, 1, 0x7F, 0xFF, of.randrange(256)))
        if of.random() < 0.3:
            del blob[of.randrange(len(blob)) :]
        try:
            striping = parse_layout(bytes(blob))
        except InvalidLayoutError:
            continue
        read += 1
        assert describe_layout(striping) and isinstance(striping.largest_stripe_size, int)
        assert parse_layout(pack_layout(striping)).is_composite == striping.is_composite
        assert len(layout_without_released_flag(bytes(blob))) == len(blob)
    assert read > 200
