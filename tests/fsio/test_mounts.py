"""Mount codes: the same on hosts that number their devices differently."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pcopy.fsio.mounts import Mounts

TREE = [(b"a", 1), (b"a/b", 1), (b"a/m", 2), (b"a/m/x", 2), (b"a/m/back", 1), (b"n", 3), (b"n/o", 2)]
"""Directories in the order of a scan, and the file systems that they lie on."""


def walk(mounts: Mounts, devices: dict[int, int]) -> dict[bytes, int]:
    codes = {b"": mounts.base}
    for path, number in TREE:
        codes[path] = mounts.code(path, devices[number], codes[path.rpartition(b"/")[0]])
    return codes


@given(st.permutations([11, 22, 33]), st.permutations([44, 55, 66]), st.integers(0, 1000))
def test_two_hosts_agree(here: list[int], there: list[int], base: int) -> None:
    one, other = Mounts(base, here[0]), Mounts(base, there[0])
    codes = walk(one, dict(enumerate(here, 1)))
    assert codes == walk(other, dict(enumerate(there, 1)))
    for path, number in TREE:
        assert one.device(codes[path]) == here[number - 1]
        assert other.device(codes[path]) == there[number - 1]


def test_what_lies_on_one_mount_has_one_code() -> None:
    codes = walk(Mounts(0, 1), {1: 1, 2: 2, 3: 3})
    assert codes[b""] == codes[b"a"] == codes[b"a/b"] == 0
    assert codes[b"a/m"] == codes[b"a/m/x"]
    assert len({codes[path] for path in (b"", b"a/m", b"a/m/back", b"n", b"n/o")}) == 5


def test_roots_never_share_codes_of_mounts_below_them() -> None:
    codes = [Mounts(base, 1).code(b"m", 2, base) for base in range(100)]
    assert len(set(codes)) == 100 and min(codes) >= 1 << 32


def test_unknown_codes_have_no_device() -> None:
    assert Mounts(3, 9).device(3) == 9
    assert Mounts(3, 9).device(4) is None
