"""Manifests: their contents match the definition, and any loss or change is detected."""

from __future__ import annotations

import os
import random
import subprocess
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pcopy.errors import RequestRefused
from pcopy.signature.algorithms import digest_algorithm_named
from pcopy.signature.manifest import (
    MAX_LINE_SIZE,
    ManifestEntry,
    ManifestReader,
    ManifestWriter,
    pack_manifest_entry,
    tree_order_key,
    unpack_manifest_entry,
)
from tests.signature.datasets import measured, outer_dataset
from tests.support import reference_signature as reference

MIB = 1 << 20
XXH3 = digest_algorithm_named("xxh3-128")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "formats" / "manifest.md"
UNHURRIED = settings(deadline=None)
FUZZ = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
NAMES = st.binary(min_size=1, max_size=4).filter(lambda name: not set(name) & {0, 47} and name not in (b".", b".."))
AWKWARD = (
    b"\\",
    b"\\n",
    b"a\\",
    b"\n",
    b"\r",
    b" ",
    b"  x ",
    b"a b",
    b"\xff",
    b"\x01",
    b"...",
    b"-",
    b"#",
    b"a",
    b"a.",
)


@pytest.fixture
def dataset(area: Path) -> Path:
    """The largest published vector, with names that need escapes or sort unusually."""
    path = outer_dataset(area / "dataset")
    for name in AWKWARD:
        make_directory = os.fsencode(path) + b"/" + name
        os.mkdir(make_directory)
        with open(make_directory + b"/" + name + b"x", "wb") as file:
            file.write(name)
    return path


@pytest.fixture
def good(area: Path, dataset: Path) -> bytes:
    return reference.manifest(os.fsencode(dataset), 1 << 16)


def signature_of(path: Path) -> bytes:
    """The digest of the root in the first entry of the manifest, after everything else was checked against it."""
    entries = list(ManifestReader(path))
    return entries[0].digest


def write(path: Path, entries: list[ManifestEntry], block_size: int = 1 << 16) -> None:
    with ManifestWriter(path, XXH3, block_size) as manifest:
        for entry in entries:
            manifest.write(entry)


def read(file: Path) -> list[ManifestEntry]:
    return list(ManifestReader(file))


def refusal(file: Path, contents: bytes) -> str:
    file.write_bytes(contents)
    with pytest.raises(RequestRefused) as refused:
        read(file)
    line = str(refused.value)
    assert line.isprintable() and str(file) in line
    return line.partition(f"{file} as a manifest: ")[2]


def test_written_manifest_matches_the_definition(area: Path, dataset: Path, good: bytes) -> None:
    entries = measured(os.fsencode(dataset), XXH3, 1 << 16)
    write(area / "manifest", entries)
    assert (area / "manifest").read_bytes() == good
    reader = ManifestReader(area / "manifest")
    assert (reader.algorithm, reader.block_size) == (XXH3, 1 << 16)
    assert list(reader) == entries == list(reader)
    assert signature_of(area / "manifest") == reference.signature(os.fsencode(dataset), 1 << 16)


def test_example_manifest_in_the_docs_is_correct(area: Path) -> None:
    example = PAGE.read_bytes().partition(b"```text\n")[2].partition(b"```\n")[0].replace(b"?", b"\xff")
    assert example == reference.manifest(os.fsencode(outer_dataset(area / "dataset")))


def test_manifest_with_blake3(area: Path, dataset: Path) -> None:
    blake3 = digest_algorithm_named("blake3")
    entries = measured(os.fsencode(dataset), blake3, 4 * MIB)
    with ManifestWriter(os.fsencode(area / "manifest"), blake3, 4 * MIB) as manifest:
        for entry in entries:
            manifest.write(entry)
    assert (area / "manifest").read_bytes().startswith(b"#pcopy-manifest 1 blake3 4194304\nd ")
    assert read(area / "manifest") == entries
    assert signature_of(area / "manifest") == reference.signature(os.fsencode(dataset), 4 * MIB, blake3.digest)


@pytest.mark.parametrize("name", ["a.txt", "empty", "link", "pipe"])
def test_single_item_is_signed(area: Path, dataset: Path, name: str) -> None:
    path = os.fsencode(dataset / name)
    write(area / "manifest", measured(path, XXH3, 1 << 16))
    contents = (area / "manifest").read_bytes()
    assert contents == reference.manifest(path, 1 << 16)
    assert contents.count(b"\n") == 2 and contents.endswith(b" .\n")
    assert signature_of(area / "manifest") == reference.signature(path)


def test_tree_order_equals_sorted_paths_of_find(dataset: Path) -> None:
    found = subprocess.run(["find", ".", "-mindepth", "1", "-print0"], check=True, capture_output=True, cwd=dataset)
    paths = [name.removeprefix(b"./") for name in found.stdout.split(b"\0")[:-1]]
    random.Random(1).shuffle(paths)
    expected = list(reference.entries(os.fsencode(dataset)))
    assert sorted([*paths, b"."], key=tree_order_key) == expected


@UNHURRIED
@given(st.lists(st.lists(NAMES, min_size=1, max_size=4).map(b"/".join), max_size=20))
def test_tree_order_keys_sort_like_lists_of_names(paths: list[bytes]) -> None:
    assert sorted(paths, key=tree_order_key) == sorted(paths, key=lambda path: path.split(b"/"))
    assert all(tree_order_key(b".") < tree_order_key(path) for path in paths)


@UNHURRIED
@given(
    st.sampled_from([b"f", b"d", b"l", b"p", b"c", b"b"]),
    st.binary(min_size=16, max_size=32),
    st.integers(0, 2**64 - 1),
    st.one_of(st.just(b"."), st.lists(NAMES, min_size=1, max_size=4).map(b"/".join)),
)
def test_entries_survive_packing(kind: bytes, digest: bytes, size: int, path: bytes) -> None:
    entry = ManifestEntry(kind, digest, size, path)
    assert unpack_manifest_entry(*pack_manifest_entry(entry)) == entry
    assert pack_manifest_entry(entry)[0] == tree_order_key(path)


def test_truncated_manifest_is_refused(area: Path, good: bytes) -> None:
    file = area / "manifest"
    lines = good.splitlines(keepends=True)
    cuts = {sum(map(len, lines[:count])) for count in range(len(lines))} | set(range(0, len(good), 13))
    for cut in sorted(cuts):
        reason = refusal(file, good[:cut])
        assert "truncated" in reason or cut < len(lines[0])


def test_lost_repeated_or_swapped_line_is_detected(area: Path, good: bytes) -> None:
    lines = good.splitlines(keepends=True)
    for at in range(1, len(lines)):
        refusal(area / "manifest", b"".join(lines[:at] + lines[at + 1 :]))
        refusal(area / "manifest", b"".join(lines[: at + 1] + lines[at:]))
        if at > 1:
            refusal(area / "manifest", b"".join([*lines[: at - 1], lines[at], lines[at - 1], *lines[at + 1 :]]))


def without_sizes(entries: list[ManifestEntry]) -> list[ManifestEntry]:
    return [entry._replace(size=min(entry.size, 1)) for entry in entries]


@FUZZ
@given(at=st.integers(0, 1 << 20), byte=st.integers(0, 255))
def test_any_changed_byte_is_detected(area: Path, good: bytes, at: int, byte: int) -> None:
    file = area / "manifest"
    file.write_bytes(good)
    entries = read(file)
    contents = bytearray(good)
    at %= len(contents)
    assume(contents[at] != byte)
    contents[at] = byte
    file.write_bytes(contents)
    try:
        reader = ManifestReader(file)
        found = list(reader)
    except RequestRefused as refused:
        assert str(refused).isprintable()
        return
    # sizes are not part of a directory's digest, and the block size is only in the header
    assert found != entries or reader.block_size != 1 << 16
    assert without_sizes(found) == without_sizes(entries)


@FUZZ
@given(start=st.integers(0, 1 << 20), length=st.integers(0, 200), new=st.binary(max_size=80), random_only=st.booleans())
def test_damaged_manifest_raises_only_a_refusal(
    area: Path, good: bytes, start: int, length: int, new: bytes, random_only: bool
) -> None:
    start %= len(good)
    contents = new if random_only else good[:start] + new + good[start + length :]
    file = area / "manifest"
    file.write_bytes(contents)
    try:
        read(file)
    except RequestRefused as refused:
        assert str(refused).isprintable()
    else:
        assert contents.count(b"\n") == good.count(b"\n")


EMPTY_FILE = b"46c67f2acba1c47bfd40839973f03b8d"
EMPTY_DIRECTORY = b"22bbb76b211a39ba13e608bc156defed"
HEADER = b"#pcopy-manifest 1 xxh3-128 65536\n"
D = b"d " + EMPTY_DIRECTORY + b" 0 "
F = b"f " + b"5" * 32 + b" 7 "


@pytest.mark.parametrize(
    ("contents", "reason"),
    [
        (b"", "line 1: it does not begin with #pcopy-manifest and a version"),
        (b"#pcopy-manifest\n", "line 1: it does not begin"),
        (b"format: pcopy-signature\n", "line 1: it does not begin"),
        (
            b"#pcopy-manifest 2 xxh3-128 65536\n",
            "line 1: it has version 2 of the format, but this pcopy knows version 1: use",
        ),
        (b"#pcopy-manifest 0 xxh3-128 65536\n", "line 1: there is no such version"),
        (b"#pcopy-manifest 1\n", "line 1: an algorithm and a block size"),
        (b"#pcopy-manifest 1 xxh3-128 65536 \n", "line 1: an algorithm and a block size"),
        (b"#pcopy-manifest 1 md5 65536\n", "line 1: its algorithm is none of xxh3-128, blake3"),
        (b"#pcopy-manifest 1 \xff 65536\n", "line 1: its algorithm is none of"),
        (b"#pcopy-manifest 1 xxh3-128 65537\n", "line 1: its block size must be a power of two"),
        (b"#pcopy-manifest 1 xxh3-128 32768\n", "line 1: its block size must be a power of two"),
        (b"#pcopy-manifest 1 xxh3-128 0065536\n", "line 1: its block size must be a power of two"),
        (HEADER[:-1], "line 1 has no end: the manifest is truncated"),
        (HEADER[:-1] + b"\r\n", "line 1: its block size"),
        (HEADER, "line 1: no entry follows: the manifest is truncated"),
        (HEADER + b"\n", "line 2: the line does not consist of"),
        (HEADER + D, "line 2 has no end: the manifest is truncated"),
        (HEADER + D + b"x\n", "line 2: the first entry is not the root, '.'"),
        (HEADER + D + b"./\n", "line 2: the first entry is not the root, '.'"),
        (HEADER + D + b".\n" + D + b".\n", "line 3: its path is not that of an item below the root"),
        (HEADER + D + b".\n" + D + b"\n", "line 3: its path is not"),
        (HEADER + D + b".\n" + D + b"..\n", "line 3: its path is not"),
        (HEADER + D + b".\n" + D + b"/a\n", "line 3: its path is not"),
        (HEADER + D + b".\n" + D + b"a/\n", "line 3: its path is not"),
        (HEADER + D + b".\n" + D + b"a\n" + D + b"a/.\n", "line 4: its path is not"),
        (HEADER + D + b".\n" + F + b"a/b\n", "line 3: the directory of a/b is not listed"),
        (HEADER + D + b".\n" + F + b"a\n" + F + b"a/b\n", "(line 2) does not match"),
        (HEADER + F + b".\n" + F + b"a\n", "line 3: the directory of a is not listed"),
        (HEADER + D + b".\n" + F + b"b\n" + F + b"a\n", "line 4: a is out of order, or listed twice: names"),
        (HEADER + D + b".\n" + F + b"b\n" + F + b"b\n", "line 4: b is out of order, or listed twice: names"),
        (HEADER + D + b".\n" + F + b"a\n", "line 3: the digest of . (line 2) does not match its entries: the manifest"),
        (HEADER + b"s" + D[1:] + b".\n", "line 2: its type is none of"),
        (HEADER + D.upper() + b".\n", "line 2: its type is none of"),
        (HEADER + D[:2] + D[2:].upper() + b".\n", "line 2: its digest does not consist of 32 lower-case"),
        (HEADER + D[:2] + D[3:] + b".\n", "line 2: its digest does not consist of 32 lower-case"),
        (HEADER + D[:2] + b"  " + D[4:] + b".\n", "line 2: its digest does not consist of 32 lower-case"),
        (HEADER + F.replace(b" 7 ", b" 07 ") + b".\n", "line 2: its size is not a whole number"),
        (HEADER + F.replace(b" 7 ", b" -7 ") + b".\n", "line 2: its size is not a whole number"),
        (HEADER + F.replace(b" 7 ", b" +7 ") + b".\n", "line 2: its size is not a whole number"),
        (HEADER + F.replace(b" 7 ", b" 1_7 ") + b".\n", "line 2: its size is not a whole number"),
        (HEADER + F.replace(b" 7 ", b" 18446744073709551616 ") + b".\n", "line 2: its size is not a whole number"),
        (HEADER + F.replace(b" 7 ", b" 0 ") + b".\n", "line 2: its digest does not fit its type and size"),
        (HEADER + b"f " + EMPTY_FILE + b" 7 .\n", "line 2: its digest does not fit its type and size"),
        (HEADER + b"p " + EMPTY_FILE + b" 0 .\n", "line 2: its digest does not fit its type and size"),
        (
            HEADER + D.replace(b" 0 ", b" 7 ") + b".\n",
            "line 2: its size must be 0, because the item is not a regular file",
        ),
        (HEADER + D + b".\n" + F + b"a\\b\n", "line 3: its path holds a backslash"),
        (HEADER + D + b".\n" + F + b"a\\\n", "line 3: its path holds a backslash"),
        (HEADER + D + b".\n" + F + b"a\\\\\\\n", "line 3: its path holds a backslash"),
        (HEADER + D + b".\r\n", "line 2: its path holds a carriage return or a NUL"),
        (HEADER + D + b".\n" + F + b"a\0b\n", "line 3: its path holds a carriage return or a NUL"),
        (HEADER + D + b".\n" + F + b"x" * MAX_LINE_SIZE + b"\n", "line 3 has more than 1048576 bytes"),
        (b"#" * (MAX_LINE_SIZE + 1), "line 1 has more than 1048576 bytes"),
    ],
)
def test_error_in_a_manifest_names_its_line(area: Path, contents: bytes, reason: str) -> None:
    assert reason in refusal(area / "manifest", contents)


def test_endless_line_is_not_read_into_memory(area: Path) -> None:
    with (area / "manifest").open("wb") as file:
        file.write(HEADER + D + b".\n")
        file.truncate(64 * MIB)
    tracemalloc.start()
    with pytest.raises(RequestRefused, match="line 3 has more than 1048576 bytes"):
        list(ManifestReader(area / "manifest"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * MIB


def test_refusal_names_the_damaged_directory(area: Path, good: bytes) -> None:
    lines = good.splitlines(keepends=True)
    (at,) = (number for number, line in enumerate(lines) if line.endswith(b" sub/b.bin\n"))
    (directory,) = (number for number, line in enumerate(lines, start=1) if line.endswith(b" sub\n"))
    del lines[at]
    assert refusal(area / "manifest", b"".join(lines)).endswith(
        f"the digest of sub (line {directory}) does not match its entries: the manifest is damaged or truncated"
    )


def test_unreadable_file_is_refused(area: Path) -> None:
    for path, reason in ((area, "Is a directory"), (area / "no\nfile", "No such file")):
        with pytest.raises(RequestRefused, match=reason) as refused:
            ManifestReader(path)
        assert str(refused.value).isprintable()


def test_manifest_that_vanishes_or_changes_during_reading_is_refused(area: Path, good: bytes) -> None:
    file = area / "manifest"
    file.write_bytes(good)
    reader = ManifestReader(file)
    file.write_bytes(good.replace(b" 65536\n", b" 131072\n", 1))
    with pytest.raises(RequestRefused, match="another manifest"):
        list(reader)
    file.unlink()
    with pytest.raises(RequestRefused, match="No such file"):
        list(reader)


def test_manifest_writer_requires_tree_order(area: Path) -> None:
    def entry(path: bytes) -> ManifestEntry:
        return ManifestEntry(b"d", bytes(16), 0, path)

    with ManifestWriter(area / "manifest", XXH3, 1 << 16) as manifest:
        with pytest.raises(ValueError, match="out of order"):
            manifest.write(entry(b"a"))
        manifest.write(entry(b"."))
        manifest.write(entry(b"a"))
        manifest.write(entry(b"a/b"))
        for path in (b".", b"a", b"a/a", b"a/b", b"Z"):
            with pytest.raises(ValueError, match="out of order"):
                manifest.write(entry(path))
        with pytest.raises(RequestRefused, match="cannot hold a path of"):
            manifest.write(entry(b"b" * MAX_LINE_SIZE))


def test_failed_write_removes_temporary_file_and_keeps_old_manifest(area: Path) -> None:
    (area / "manifest").write_text("old")
    with pytest.raises(KeyboardInterrupt), ManifestWriter(area / "manifest", XXH3, 1 << 16) as manifest:
        manifest.write(ManifestEntry(b"d", bytes(16), 0, b"."))
        assert len(os.listdir(area)) == 2
        raise KeyboardInterrupt
    assert os.listdir(area) == ["manifest"] and (area / "manifest").read_text() == "old"


def test_memory_for_deep_trees_grows_with_depth_only(area: Path) -> None:
    digest = reference.xxh3_128(b"\x03")
    depth, entries = 2000, []
    for level in range(depth, -1, -1):
        entries.append(ManifestEntry(b"d", digest, 0, b"/".join([b"d"] * level) or b"."))
        digest = reference.xxh3_128(b"\x03d\0\0\0\x01d" + digest)
    write(area / "manifest", entries[::-1])
    assert sum(1 for _ in ManifestReader(area / "manifest")) == depth + 1
    assert signature_of(area / "manifest") == entries[-1].digest
