"""Seekable zstd files: the zstd program reads files written here, and files written by it are read here.

Truncated, damaged or inconsistent files are never accepted as contents.
"""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
import xxhash

from pcopy.fsio.problem import Problem
from pcopy.fsio.seekable_zstd import (
    MAX_FRAME_SIZE,
    SeekTable,
    ZstdFrame,
    compress_frame,
    packed_seek_table,
    read_decompressed_pieces,
    read_frame,
)

SPAN = 100_000
SKIPPED = struct.pack("<II", 0x184D2A53, 7) + b"skipped"
"""A skippable frame."""


def contents(size: int) -> bytes:
    """Contents of which half is compressible."""
    random = Random(size)
    return b"".join(random.randbytes(500) + b"again " * 100 for _ in range(size // 1100 + 1))[:size]


def seekable(data: bytes, span: int = SPAN) -> tuple[bytes, list[ZstdFrame]]:
    parts = [data[at : at + span] for at in range(0, len(data), span)] or [b""]
    packed = [compress_frame(part, 3) for part in parts]
    frames = [ZstdFrame(len(one), len(part)) for one, part in zip(packed, parts, strict=True)]
    return b"".join(packed) + packed_seek_table(frames), frames


def by_zstd(data: bytes, *options: str) -> bytes:
    return subprocess.run(["zstd", "-c", *options], input=data, check=True, capture_output=True).stdout


@contextmanager
def opened(path: Path, data: bytes) -> Iterator[tuple[int, int]]:
    """A file with these contents, as its descriptor and size."""
    path.write_bytes(data)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor, len(data)
    finally:
        os.close(descriptor)


def read_back(path: Path, data: bytes) -> bytes:
    with opened(path, data) as file:
        return b"".join(read_decompressed_pieces(*file))


def table_of(path: Path, data: bytes) -> SeekTable | None:
    with opened(path, data) as file:
        return SeekTable.read(*file)


def own_table(
    frames: list[tuple[int, ...]], *, flags: int = 0, count: int | None = None, magic: int = 0x184D2A5E
) -> bytes:
    """A seek table built from the documentation of the format, without code of pcopy."""
    entries = b"".join(struct.pack(f"<{len(frame)}I", *frame) for frame in frames)
    end = struct.pack("<IBI", len(frames) if count is None else count, flags, 0x8F92EAB1)
    return struct.pack("<II", magic, len(entries) + len(end)) + entries + end


@pytest.mark.parametrize("size", [0, 1, SPAN, SPAN + 1, 7 * SPAN + 123])
def test_zstd_reads_written_files(tmp_path: Path, size: int) -> None:
    data, path = contents(size), tmp_path / "file.zst"
    path.write_bytes(seekable(data)[0])
    assert subprocess.run(["zstd", "-dc", path], check=True, capture_output=True).stdout == data
    subprocess.run(["zstd", "-qt", path], check=True)
    listed = subprocess.run(["zstd", "-lv", path], check=True, capture_output=True, text=True).stdout
    frames = max(1, -(-size // SPAN))
    assert f"# Zstandard Frames: {frames}\n" in listed, listed
    assert "# Skippable Frames: 1\n" in listed, listed
    assert "Check: XXH64" in listed, listed
    assert f"({size} B)" in listed, listed


def read_at(descriptor: int, table: SeekTable, offset: int, length: int) -> bytes:
    """Return ``length`` bytes of the contents from ``offset``, or fewer at the end."""
    joined = []
    for number in table.frames_for_range(offset, length):
        begin = table.content_offsets[number]
        frame = read_frame(descriptor, table, number)
        joined.append(frame[max(offset - begin, 0) : offset + length - begin])
    return b"".join(joined)


def test_any_range_is_read_from_the_frames_that_contain_it(tmp_path: Path) -> None:
    data = contents(5 * SPAN + 17)
    packed, frames = seekable(data)
    with opened(tmp_path / "file", packed) as (descriptor, size):
        table = SeekTable.read(descriptor, size)
        assert table is not None
        assert (table.frame_count, table.content_size, table) == (6, len(data), SeekTable.from_frame_sizes(frames))
        random = Random(1)
        stretches = [(random.randrange(len(data) + 10), random.randrange(3 * SPAN)) for _ in range(50)]
        for offset, length in [*stretches, (0, len(data)), (SPAN, SPAN), (SPAN - 1, 2), (len(data), 5), (3, 0)]:
            assert read_at(descriptor, table, offset, length) == data[offset : offset + length]
        assert list(table.frames_for_range(SPAN, SPAN)) == [1]
        assert list(table.frames_for_range(SPAN - 1, 2)) == [0, 1]


def test_files_written_by_zstd_are_read_as_streams(tmp_path: Path) -> None:
    data = contents(3_000_000)
    for options in ([], ["-T2", "-B500000"], ["--no-check"], ["-1", "--long=24"], ["-5", "--no-content-size"]):
        assert read_back(tmp_path / "file", by_zstd(data, *options)) == data, options
    zeros = by_zstd(bytes(50 << 20))
    joined = by_zstd(data) + SKIPPED + zeros + by_zstd(b"") + SKIPPED
    assert read_back(tmp_path / "file", joined) == data + bytes(50 << 20)
    assert table_of(tmp_path / "file", joined) is None
    assert read_back(tmp_path / "file", seekable(data)[0]) == data


@pytest.mark.parametrize("data", [seekable(contents(700), 300)[0], by_zstd(contents(700)), by_zstd(bytes(300_000))])
def test_truncated_file_is_rejected(tmp_path: Path, data: bytes) -> None:
    """At any position except the end of a frame."""
    begin = data.rfind(struct.pack("<I", 0x184D2A5E))
    for length in range(len(data)):
        if begin < 0 or length not in whole_frames(data[:begin]):
            with pytest.raises(Problem, match=r"zstd|empty"):
                read_back(tmp_path / "file", data[:length])


def whole_frames(data: bytes) -> set[int]:
    """Return the offsets at which frames end."""
    magic = struct.pack("<I", 0xFD2FB528)
    return {at for at in range(1, len(data)) if data[at : at + 4] == magic} | {len(data)}


def test_flipped_bit_is_detected(tmp_path: Path) -> None:
    data = contents(600)
    packed, frames = seekable(data, 400)
    for at in range(sum(frame.compressed_size for frame in frames)):
        flipped = bytearray(packed)
        flipped[at] ^= 1 << at % 8
        damaged = bytes(flipped)
        try:
            assert read_back(tmp_path / "file", damaged) == data, at  # a bit without meaning
        except Problem as problem:
            assert "zstd" in str(problem)
        with opened(tmp_path / "file", damaged) as (descriptor, size):
            table = SeekTable.read(descriptor, size)
            assert table is not None
            try:
                assert read_at(descriptor, table, 0, len(data)) == data, at
            except Problem as problem:
                assert "zstd" in str(problem)


def test_seek_table_that_does_not_fit_is_ignored(tmp_path: Path) -> None:
    frame = compress_frame(b"x" * 1000, 3)
    entry, path = (len(frame), 1000), tmp_path / "file"
    assert table_of(path, frame + own_table([entry])) is not None
    for text, table in {
        "sizes that do not add up": own_table([(len(frame) - 1, 1000)]),
        "more frames than bytes": own_table([entry], count=1 << 21),
        "more frames than any table": own_table([entry], count=0xFFFFFFFF),
        "fewer frames": own_table([entry, (0, 0)], count=1),
        "an empty frame in the file": own_table([entry, (0, 0)]),
        "a bit that has to be 0": own_table([entry], flags=4),
        "checksums that are not there": own_table([entry], flags=0x80),
        "another magic number": own_table([entry], magic=0x184D2A5D),
        "a frame that is too large": own_table([(len(frame), MAX_FRAME_SIZE + 1)]),
        "no end": own_table([entry])[:-1],
    }.items():
        assert table_of(path, frame + table) is None, text
        assert table_of(path, table) is None, text
    for data in (b"", b"x", b"x" * 17, frame):
        assert table_of(path, data) is None
    assert table_of(path, own_table([])) == SeekTable.from_frame_sizes([])


def test_wrong_frame_size_in_the_seek_table_is_detected(tmp_path: Path) -> None:
    one, other = compress_frame(b"x" * 1000, 3), compress_frame(b"y" * 1000, 3)
    unsized = by_zstd(bytes(1 << 20), "--no-content-size")
    cases = {
        one + own_table([(len(one), 999)]): "as many bytes",
        one + own_table([(len(one), 1001)]): "as many bytes",
        unsized + own_table([(len(unsized), 1000)]): "zstd",
        one + other + own_table([(len(one) + len(other), 1000)]): "unused data",
        one + other + own_table([(len(one) - 1, 1000), (len(other) + 1, 1000)]): "zstd",
    }
    for data, text in cases.items():
        with opened(tmp_path / "file", data) as (descriptor, size):
            table = SeekTable.read(descriptor, size)
            assert table is not None
            with pytest.raises(Problem, match=text):
                read_frame(descriptor, table, 0)


def test_checksums_of_the_seek_table_are_verified(tmp_path: Path) -> None:
    data = contents(1000)
    frame = by_zstd(data, "--no-check")
    checksum = xxhash.xxh64_intdigest(data) & 0xFFFFFFFF
    for reported in (checksum, checksum ^ 1):
        with opened(tmp_path / "file", frame + own_table([(len(frame), 1000, reported)], flags=0x80)) as (
            descriptor,
            size,
        ):
            table = SeekTable.read(descriptor, size)
            assert table is not None
            if reported == checksum:
                assert read_frame(descriptor, table, 0) == data
            else:
                with pytest.raises(Problem, match="checksum"):
                    read_frame(descriptor, table, 0)


def test_stream_with_huge_window_is_refused(tmp_path: Path) -> None:
    """``zstd -d`` refuses it by default, too."""
    window = struct.pack("<IBB", 0xFD2FB528, 0, (31 - 10) << 3)
    with pytest.raises(Problem, match=r"memory|zstd"):
        read_back(tmp_path / "file", window + bytes([1, 0, 0]))


@pytest.mark.parametrize("kind", ["blocks", "skippable frames", "frames"])
def test_empty_blocks_and_frames_are_read_in_large_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The reader can do other work between the pieces."""
    window = struct.pack("<IBB", 0xFD2FB528, 0, 0x58)
    data = {
        "blocks": window + bytes(3 * 200_000) + b"\1\0\0",
        "skippable frames": struct.pack("<II", 0x184D2A53, 0) * 75_000,
        "frames": (window + b"\1\0\0") * 70_000,
    }[kind]
    reads, real = [], os.pread

    def pread(descriptor: int, length: int, at: int) -> bytes:
        reads.append(at)
        return real(descriptor, length, at)

    with opened(tmp_path / "file", data) as file:
        assert subprocess.run(["zstd", "-dc", tmp_path / "file"], check=True, capture_output=True).stdout == b""
        monkeypatch.setattr(os, "pread", pread)
        pieces = list(read_decompressed_pieces(*file))
    assert b"".join(pieces) == b""
    assert len(pieces) >= 2
    assert len(reads) < 10
    with pytest.raises(Problem, match="cut short"):
        read_back(tmp_path / "cut", data[:-1])


def test_seek_table_with_impossible_frame_size_is_ignored(tmp_path: Path) -> None:
    """A frame of that size is never loaded into memory."""
    path, begin = tmp_path / "file", 1 << 31
    table = own_table([(begin, 1000)])
    with open(path, "wb") as file:
        file.seek(begin)
        file.write(table)
        file.flush()
        with open(path, "rb") as reading:
            assert SeekTable.read(reading.fileno(), begin + len(table)) is None
