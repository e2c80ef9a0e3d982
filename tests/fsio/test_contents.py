"""Digests cover the same bytes that ``cat`` would show, although holes are not read. A file that is too short is an
error.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pcopy.fsio.contents import (
    BUFFER_BYTES,
    BYTES_PER_READ,
    digest_contents,
    digest_file_to_end,
    drop_cached_pages,
    may_have_holes,
    read_file_in_pieces,
)
from pcopy.fsio.problem import Problem

HOLE = 1 << 20
SECTOR = 4096


class Recorder:
    """Implements ``pcopy.fsio.contents.IncrementalDigest``: keeps all bytes and counts those reported as holes."""

    def __init__(self) -> None:
        self.contents = bytearray()
        self.hole_bytes = 0
        self.longest = 0

    def update(self, data: memoryview | bytes) -> None:
        assert len(data), "nothing is no piece"
        self.contents += data
        self.longest = max(self.longest, len(data))

    def add_zero_bytes(self, count: int) -> None:
        assert count > 0
        self.contents += bytes(count)
        self.hole_bytes += count


@contextmanager
def opened(path: Path, flags: int = 0) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def make(path: Path, stretches: Sequence[tuple[int, int]], size: int) -> Path:
    """Create a file of ``size`` bytes with random data from the first to the last byte of each range."""
    with open(path, "wb") as file:
        file.truncate(size)
        for start, end in stretches:
            file.seek(start)
            file.write(Random(start + size).randbytes(end - start))
        file.flush()
        os.fsync(file.fileno())
    return path


def digested(path: Path, start: int, end: int, *, holes: bool, direct: bool = False) -> Recorder:
    recorder = Recorder()
    with opened(path, os.O_DIRECT if direct else 0) as descriptor:
        steps = list(digest_contents(descriptor, start, end, recorder, may_have_holes=holes, direct=direct))
    assert sum(steps) == end - start, "each byte is reported once"
    assert recorder.contents == path.read_bytes()[start:end]
    assert recorder.longest <= BUFFER_BYTES
    return recorder


LAYOUTS: dict[str, tuple[list[tuple[int, int]], int]] = {
    "empty": ([], 0),
    "one byte": ([(0, 1)], 1),
    "full": ([(0, 3 * BUFFER_BYTES + 1)], 3 * BUFFER_BYTES + 1),
    "nothing but a hole": ([], 5 * HOLE + 3),
    "hole first": ([(3 * HOLE, 4 * HOLE)], 4 * HOLE),
    "hole last": ([(0, HOLE)], 4 * HOLE + 1),
    "between": ([(0, 10), (2 * HOLE, 2 * HOLE + 5000), (6 * HOLE + 77, 7 * HOLE)], 8 * HOLE),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("holes", [True, False], ids=["holes", "all is read"])
def test_all_layouts_of_holes_are_digested_on_all_file_systems(filesystem: Path, layout: str, holes: bool) -> None:
    path = make(filesystem / "file", *LAYOUTS[layout])
    digested(path, 0, path.stat().st_size, holes=holes)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"])
def test_direct_reads_give_the_same_digest(on: Any, kind: str, layout: str) -> None:
    path = make(on(kind) / "file", *LAYOUTS[layout])
    size = path.stat().st_size
    for holes in (True, False):
        digested(path, 0, size, holes=holes, direct=True)
        if size > 3 * SECTOR:
            digested(path, SECTOR, size - 1, holes=holes, direct=True)


@pytest.mark.parametrize("holes", [True, False])
def test_any_range_of_a_file_is_digested(on: Any, holes: bool) -> None:
    path = make(on("ext4") / "file", *LAYOUTS["between"])
    random = Random(1)
    edges = [0, 1, 10, 4096, HOLE, 2 * HOLE, 2 * HOLE + 5000, 3 * HOLE, 6 * HOLE, 6 * HOLE + 77, 7 * HOLE, 8 * HOLE]
    for _ in range(60):
        start, end = sorted(random.choices(edges, k=2))
        digested(path, start, end, holes=holes)


def test_holes_are_not_read(on: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(on("ext4") / "file", [(0, SECTOR), (3 * HOLE, 3 * HOLE + SECTOR)], 6 * HOLE)
    assert may_have_holes(path.stat())
    read = os.preadv
    got: list[int] = []

    def counted(*arguments: Any) -> int:
        got.append(read(*arguments))
        return got[-1]

    monkeypatch.setattr(os, "preadv", counted)
    assert digested(path, 0, 6 * HOLE, holes=True).hole_bytes == 6 * HOLE - 2 * SECTOR
    assert sum(got) == 2 * SECTOR
    assert digested(path, HOLE, 2 * HOLE, holes=True).hole_bytes == HOLE
    assert sum(got) == 2 * SECTOR


@pytest.mark.parametrize("direct", [False, True], ids=["cached", "direct"])
@pytest.mark.parametrize("holes", [False, True], ids=["full", "holes"])
@pytest.mark.parametrize("on_source", [True, False], ids=["source", "target"])
@pytest.mark.parametrize("size", [0, 1, SECTOR, BYTES_PER_READ, BYTES_PER_READ + 1])
def test_truncated_file_is_an_error(on: Any, size: int, on_source: bool, holes: bool, direct: bool) -> None:
    """A source is reported as changed, a copy as damaged. The missing bytes do not count as a hole."""
    path = make(on("ext4") / "file", [(0, size)], size)
    recorder = Recorder()
    with opened(path, os.O_DIRECT if direct else 0) as descriptor, pytest.raises(Problem) as caught:
        for _ in digest_contents(
            descriptor, 0, size + 1, recorder, may_have_holes=holes, on_source=on_source, direct=direct
        ):
            pass
    assert (caught.value.changed, caught.value.on_source) == (on_source, on_source)
    assert caught.value.operation in ("read", "lseek")
    assert f"the file ends at byte {size}, earlier than its size says" in str(caught.value)
    if not on_source:
        assert caught.value.errno == errno.EIO
    assert recorder.contents == path.read_bytes()


def test_transient_read_errors_are_retried(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """During the wait empty pieces are yielded so that the caller can do other work; they do not enter the digest."""
    path = make(area / "file", [(0, 3 * BYTES_PER_READ)], 3 * BYTES_PER_READ)
    read = os.preadv
    calls = 0

    def failing(*arguments: Any) -> int:
        nonlocal calls
        calls += 1
        if calls in (2, 3, 5):
            raise OSError(errno.EIO if calls < 5 else errno.ESTALE, "")
        return read(*arguments)

    monkeypatch.setattr(os, "preadv", failing)
    with opened(path) as descriptor:
        found = [(at, bytes(piece)) for at, piece in read_file_in_pieces(descriptor, 0, 3 * BYTES_PER_READ)]
    assert calls == 6
    assert any(not piece for _, piece in found)
    assert b"".join(piece for _, piece in found) == path.read_bytes()
    at = 0
    for reported, piece in found:
        assert reported == at
        at += len(piece)


@pytest.mark.parametrize("on_source", [True, False])
@pytest.mark.parametrize(("number", "tries"), [(errno.EIO, 4), (errno.EISDIR, 1)])
def test_permanent_read_errors_are_reported(
    area: Path, monkeypatch: pytest.MonkeyPatch, number: int, tries: int, on_source: bool
) -> None:
    path = make(area / "file", [(0, 10)], 10)
    calls = 0

    def failing(*_: Any) -> int:
        nonlocal calls
        calls += 1
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "preadv", failing)
    recorder = Recorder()
    with opened(path) as descriptor, pytest.raises(Problem) as caught:
        for _ in digest_contents(
            descriptor, 0, 10, RecorderOfPieces(recorder), may_have_holes=False, on_source=on_source
        ):
            pass
    problem = caught.value
    assert (problem.operation, problem.errno, problem.on_source, problem.changed) == ("read", number, on_source, False)
    assert calls == tries
    assert not recorder.contents


class RecorderOfPieces:
    """A digest that accepts pieces, including empty ones that represent a wait."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def update(self, data: memoryview | bytes) -> None:
        if len(data):
            self._recorder.update(data)

    def add_zero_bytes(self, count: int) -> None:
        self._recorder.add_zero_bytes(count)


def test_files_of_size_zero_are_digested_to_their_end() -> None:
    recorder = Recorder()
    with opened(Path("/proc/version")) as descriptor:
        assert sum(digest_file_to_end(descriptor, recorder)) == len(recorder.contents)
    assert recorder.contents == Path("/proc/version").read_bytes()


def test_dropped_pages_are_read_from_storage(on: Any) -> None:
    if not shutil.which("fincore"):
        pytest.skip("there is no fincore here")
    path = make(on("ext4") / "file", [(0, 2 * HOLE)], 2 * HOLE)

    def cached() -> int:
        reported = subprocess.run(["fincore", "-nb", "-o", "RES", path], check=True, capture_output=True, text=True)
        return int(reported.stdout or 0)

    path.read_bytes()
    assert cached() == 2 * HOLE
    with opened(path) as descriptor:
        drop_cached_pages(descriptor)
    assert cached() == 0


def test_dropping_pages_of_a_pipe_does_nothing() -> None:
    reading, writing = os.pipe()
    drop_cached_pages(reading)
    os.close(reading)
    os.close(writing)
