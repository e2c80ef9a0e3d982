"""Mount codes are the same on hosts that number their devices differently."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pcopy.fsio.mounts import LinkFollowingData, MountCodeTable

TREE = [(b"a", 1), (b"a/b", 1), (b"a/m", 2), (b"a/m/x", 2), (b"a/m/back", 1), (b"n", 3), (b"n/o", 2)]
"""Directories in the order of a scan, with the number of the file system of each."""


def walk(mounts: MountCodeTable, devices: dict[int, int]) -> dict[bytes, int]:
    codes = {b"": mounts.root_code}
    for path, number in TREE:
        codes[path] = mounts.mount_code_of_directory(path, devices[number], codes[path.rpartition(b"/")[0]])
    return codes


@given(st.permutations([11, 22, 33]), st.permutations([44, 55, 66]), st.integers(0, 1000))
def test_two_hosts_agree_on_mount_codes(here: list[int], there: list[int], base: int) -> None:
    one, other = MountCodeTable(base, here[0]), MountCodeTable(base, there[0])
    codes = walk(one, dict(enumerate(here, 1)))
    assert codes == walk(other, dict(enumerate(there, 1)))
    for path, number in TREE:
        assert one.device_of_mount_code(codes[path]) == here[number - 1]
        assert other.device_of_mount_code(codes[path]) == there[number - 1]


def test_directories_on_one_mount_share_a_code() -> None:
    codes = walk(MountCodeTable(0, 1), {1: 1, 2: 2, 3: 3})
    assert codes[b""] == codes[b"a"] == codes[b"a/b"] == 0
    assert codes[b"a/m"] == codes[b"a/m/x"]
    assert len({codes[path] for path in (b"", b"a/m", b"a/m/back", b"n", b"n/o")}) == 5


def test_mounts_below_different_roots_have_different_codes() -> None:
    codes = [MountCodeTable(base, 1).mount_code_of_directory(b"m", 2, base) for base in range(100)]
    assert len(set(codes)) == 100 and min(codes) >= 1 << 32


def test_unknown_codes_have_no_device() -> None:
    assert MountCodeTable(3, 9).device_of_mount_code(3) == 9
    assert MountCodeTable(3, 9).device_of_mount_code(4) is None


WAYS = [b"p", b"p/l", b"p/l/q", b"p/l/q/l", b"q", b"r", b"r/p", b"r/p/r"]
"""Links to the second, third, second, ... file system and back to the first, as far as they can be followed."""

LEADS_TO = dict(zip(WAYS, [2, 3, 2, 3, 2, 1, 2, 1], strict=True))


def follow(mounts: MountCodeTable, devices: dict[int, int]) -> dict[bytes, int]:
    codes = {b"": mounts.root_code}
    for path in WAYS:
        codes[path] = mounts.mount_code_of_directory(path, devices[LEADS_TO[path]], codes[path.rpartition(b"/")[0]])
    return codes


@given(st.permutations([11, 22, 33]), st.permutations([44, 55, 66]), st.booleans())
def test_two_hosts_agree_on_mount_codes_behind_followed_links(
    here: list[int], there: list[int], second_is_a_root: bool
) -> None:
    """A path that returns to a file system also returns to its code."""
    reported = []
    for devices in (here, there):
        numbered = dict(enumerate(devices, 1))
        bases = {numbered[1]: 0, **({numbered[2]: 1} if second_is_a_root else {})}
        mounts = MountCodeTable(0, numbered[1], LinkFollowingData(bases, one_host=False))
        codes = follow(mounts, numbered)
        assert all(mounts.device_of_mount_code(codes[path]) == numbered[LEADS_TO[path]] for path in WAYS)
        reported.append(codes)
    one, other = reported
    assert one == other
    assert one[b"p"] == one[b"p/l/q"] and one[b"r"] == one[b"r/p/r"] == 0
    if second_is_a_root:
        assert one[b"p"] == one[b"q"] == one[b"r/p"] == 1


def test_mount_codes_of_files_behind_followed_links() -> None:
    """On the file system of a root a file has the root's code; elsewhere it has the code of its device, on one host
    only.
    """
    bases = {7: 0, 8: 1}
    alone, together = (MountCodeTable(0, 7, LinkFollowingData(bases, one_host)) for one_host in (True, False))
    for mounts in (alone, together):
        away = mounts.mount_code_of_directory(b"away", 9, 0)
        assert mounts.mount_code_of_file(7, away, b"away/x") == 0
        assert mounts.mount_code_of_file(8, away, b"away/x") == 1
        assert mounts.device_of_mount_code(1) == 8
    one, other = alone.mount_code_of_directory(b"one", 9, 0), alone.mount_code_of_directory(b"other", 9, 0)
    assert one != other
    assert (
        alone.mount_code_of_file(9, one, b"one/x")
        == alone.mount_code_of_file(9, other, b"other/x")
        == alone.mount_code_of_file(9, 0, b"x")
    )
    assert alone.device_of_mount_code(alone.mount_code_of_file(9, 0, b"x")) == 9
    assert together.mount_code_of_file(9, 0, b"x") != together.mount_code_of_file(9, 0, b"y")
    assert together.device_of_mount_code(together.mount_code_of_file(9, 0, b"x")) == 9
