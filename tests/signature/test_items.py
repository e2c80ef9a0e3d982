"""Digests of items: the published vectors, and random trees compared with the reference."""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pcopy.signature.algorithms import ALGORITHM_NAMES, digest_algorithm_named
from pcopy.signature.items import DirectoryHasher, special_file_digest, type_byte
from tests.signature.datasets import inner_dataset, measured, outer_dataset
from tests.support import reference_signature as reference
from tests.support.filesystems import remove
from tests.support.signatures import generated

MIB = 1 << 20
XXH3 = digest_algorithm_named("xxh3-128")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "formats" / "signature.md"

VECTORS = {
    "empty directory": ("22bbb76b211a39ba13e608bc156defed",) * 2,
    "a.txt": ("b5ecb9c9572d1977fefb3efa791cd58b",) * 2,
    "empty file": ("46c67f2acba1c47bfd40839973f03b8d",) * 2,
    "larger": ("1287100c77812c1ba0e853175fce2448", "a2cf144cd98d4b8fadc21771a3e4095d"),
    "link": ("969ae1d0cf3fafff8e6fbd8e352c228e",) * 2,
    "pipe": ("e1325e21416bcdb2929e358d27ae3ee2",) * 2,
    "b.bin": ("aa2f9a99b769b8f316da586c644d807f", "4cdb20af6cb0a7e6f7d63ad5c4fadf29"),
    "inner": ("5ac06bb226cd36481ee0eb3824a2af42", "a69d32af70152b3cba7cbf997fdb3662"),
    "outer": ("7f682f90fd0fffe8ab8ffad8c007c3c0", "b9441d2d38f02c9b17f0d6de961a0b91"),
}
"""Signatures with blocks of 4 MiB and of 64 KiB."""

BLAKE3 = (
    "d1ab607a6b9b8df2e957167ff65ab87a4d7937ff834ec7aeefe0a2e55a4daee1",
    "3e01935a04f9fba9e7f74dfd51128a41367cb070c9a1a22689fba846c80912fd",
)
"""The signatures of the outer directory with BLAKE3."""

DEVICES = (
    (stat.S_IFCHR, 1, 3, "610ee6642511a72d59cb2d0838fe33ec"),
    (stat.S_IFBLK, 7, 1, "2e4f21c0e25b9d79827125e347bf007c"),
)

NAMES = st.binary(min_size=1, max_size=6).filter(lambda name: not set(name) & {0, 47} and name not in (b".", b".."))
FILES = st.one_of(
    st.binary(max_size=50),
    st.tuples(st.binary(max_size=3), st.integers(65_530, 200_000)).map(lambda found: found[0] * (found[1] // 3)),
)
TREES = st.recursive(
    st.one_of(FILES, st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=5)),
    lambda below: st.dictionaries(NAMES, below, max_size=5),
    max_leaves=15,
)
"""Trees: bytes are files, strings are symbolic links, and mappings are directories."""


def make(tree: object, path: bytes) -> None:
    if isinstance(tree, bytes):
        Path(os.fsdecode(path)).write_bytes(tree)
    elif isinstance(tree, str):
        os.symlink(tree.encode(), path)
    else:
        assert isinstance(tree, dict)
        os.mkdir(path)
        for name, below in tree.items():
            make(below, path + b"/" + name)


@pytest.fixture
def datasets(area: Path) -> dict[str, Path]:
    (area / "nothing").mkdir()
    outer = outer_dataset(area / "outer")
    inner = inner_dataset(area / "inner")
    (area / "larger").write_bytes(generated(300_000))
    return {
        "empty directory": area / "nothing",
        "a.txt": outer / "a.txt",
        "empty file": outer / "empty",
        "b.bin": inner / "b.bin",
        "larger": area / "larger",
        "link": outer / "link",
        "pipe": outer / "pipe",
        "inner": inner,
        "outer": outer,
    }


@pytest.mark.parametrize("name", VECTORS)
def test_published_vectors_are_reproduced(datasets: dict[str, Path], name: str) -> None:
    path = os.fsencode(datasets[name])
    for block_size, expected in zip((4 * MIB, 1 << 16), VECTORS[name], strict=True):
        assert measured(path, XXH3, block_size)[0].digest.hex() == expected
        assert reference.signature(path, block_size).hex() == expected


def test_reference_with_xxhsum_reproduces_vectors(datasets: dict[str, Path]) -> None:
    if not shutil.which("xxhsum"):
        pytest.skip("there is no xxhsum here")

    def xxhsum(data: bytes) -> bytes:
        done = subprocess.run(["xxhsum", "-H2", "-"], input=data, check=True, capture_output=True)
        return bytes.fromhex(done.stdout.split()[0].decode())

    assert reference.signature(os.fsencode(datasets["outer"]), 1 << 16, xxhsum).hex() == VECTORS["outer"][1]


def test_vectors_of_blake3_are_reproduced(datasets: dict[str, Path]) -> None:
    for block_size, expected in zip((4 * MIB, 1 << 16), BLAKE3, strict=True):
        assert (
            measured(os.fsencode(datasets["outer"]), digest_algorithm_named("blake3"), block_size)[0].digest.hex()
            == expected
        )


def test_vectors_of_devices_are_reproduced() -> None:
    for mode, major, minor, expected in DEVICES:
        assert special_file_digest(XXH3, mode | 0o600, os.makedev(major, minor)).hex() == expected


def test_subtree_has_the_same_digest_inside_a_tree_and_alone(datasets: dict[str, Path]) -> None:
    inside = {entry.path: entry.digest for entry in measured(os.fsencode(datasets["outer"]), XXH3, 4 * MIB)}
    assert inside[b"sub"].hex() == VECTORS["inner"][0]
    assert inside[b"sub/b.bin"].hex() == VECTORS["b.bin"][0]


def test_documentation_page_lists_exactly_the_vectors() -> None:
    reported = re.findall(r"\b[0-9a-f]{32}\b|\b[0-9a-f]{64}\b", PAGE.read_text())
    known = {digest for both in (*VECTORS.values(), BLAKE3) for digest in both}
    assert set(reported) - {"1e" + "1" * 30} == known | {expected for *_, expected in DEVICES}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=TREES, name=st.sampled_from(ALGORITHM_NAMES), block_size=st.sampled_from([1 << 16, 1 << 17, 4 * MIB]))
def test_random_trees_match_the_reference(area: Path, tree: object, name: str, block_size: int) -> None:
    path = os.fsencode(area / "tree")
    make(tree, path)
    found = digest_algorithm_named(name)
    try:
        expected = reference.entries(path, block_size, found.digest)
        assert {entry.path: (entry.kind, entry.digest, entry.size) for entry in measured(path, found, block_size)} == (
            expected
        )
    finally:
        if isinstance(tree, dict):
            remove(Path(os.fsdecode(path)))
        else:
            os.unlink(path)


def test_special_files_match_the_reference(area: Path) -> None:
    os.mkfifo(area / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.fspath(area / "socket"))
    try:
        os.mknod(area / "null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        os.mknod(area / "loop", stat.S_IFBLK | 0o600, os.makedev(4095, 1_048_575))
    except PermissionError:
        pytest.skip("devices are for root")
    found = measured(os.fsencode(area), XXH3, 4 * MIB)
    assert [(entry.kind, entry.path) for entry in found] == [
        (b"d", b"."),
        (b"b", b"loop"),
        (b"c", b"null"),
        (b"p", b"pipe"),
    ]
    assert {entry.path: (entry.kind, entry.digest, entry.size) for entry in found} == reference.entries(
        os.fsencode(area)
    )


def test_special_digest_rejects_other_types() -> None:
    for mode in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK, stat.S_IFSOCK):
        with pytest.raises(ValueError, match="neither"):
            special_file_digest(XXH3, mode | 0o644, 0)
    assert type_byte(stat.S_IFSOCK | 0o777) == b""


def test_directory_hasher_rejects_unordered_children() -> None:
    digest = bytes(16)
    hasher = DirectoryHasher(XXH3)
    hasher.add_child(b"f", b"b", digest)
    for name in (b"b", b"a", b"", b"B"):
        with pytest.raises(ValueError, match=r"is listed after b'b': names must be unique and sorted by bytes"):
            hasher.add_child(b"f", name, digest)
    with pytest.raises(ValueError, match="type"):
        hasher.add_child(b"s", b"c", digest)
    with pytest.raises(ValueError, match="digest"):
        hasher.add_child(b"f", b"c", digest + b"x")
    hasher.add_child(b"d", b"\xff", digest)
    child = b"\x00\x00\x00\x01"
    expected = b"\x03f" + child + b"b" + digest + b"d" + child + b"\xff" + digest
    assert hasher.digest() == reference.xxh3_128(expected)


def test_adding_many_children_equals_adding_each() -> None:
    one, other, digest = DirectoryHasher(XXH3), DirectoryHasher(XXH3), b"d" * 16
    for kind, name in ((b"f", b"a"), (b"d", b"b" * 255), (b"l", b"c" * 70_000), (b"p", b"d")):
        one.add_child(kind, name, digest)
    assert other.add_all_children(b"", [], []) == b""
    hashed = other.add_all_children(b"fd", [b"a", b"b" * 255], [digest] * 2)
    assert hashed == b"f\0\0\0\1a" + digest + b"d\0\0\0\xff" + b"b" * 255 + digest
    for kinds, names, digests, wrong in (
        (b"f", [b"a"], [digest], "order"),
        (b"ff", [b"d", b"c"], [digest] * 2, "order"),
        (b"ff", [b"c", b"c"], [digest] * 2, "order"),
        (b"fsf", [b"c", b"d", b"e"], [digest] * 3, "types"),
        (b"ff", [b"c", b"d"], [digest, digest + b"x"], "size"),
        (b"f", [b"c", b"d"], [digest] * 2, "longer"),
    ):
        with pytest.raises(ValueError, match=wrong):
            other.add_all_children(kinds, names, digests)
    other.add_all_children(b"lp", [b"c" * 70_000, b"d"], [digest] * 2)
    assert one.digest() == other.digest()
