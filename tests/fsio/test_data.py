"""Copying bytes and holes: the copy equals its source for ``cmp``, and incomplete copies are always reported."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pcopy.fsio.contents import BYTES_PER_READ, data_extents, may_have_holes
from pcopy.fsio.data import ContentsCopier
from pcopy.fsio.memory_copy import write_all
from pcopy.fsio.problem import Problem
from tests.support.filesystems import mounted

HOLE = 1 << 20


@pytest.fixture
def files(filesystem: Path) -> Iterator[Callable[[str], int]]:
    """A function that opens files by name, for reading and writing."""
    opened: list[int] = []

    def open_file(name: str) -> int:
        opened.append(os.open(filesystem / name, os.O_RDWR | os.O_CREAT, 0o600))
        return opened[-1]

    open_file.place = filesystem  # type: ignore[attr-defined]
    yield open_file
    for descriptor in opened:
        os.close(descriptor)


def make(descriptor: int, stretches: list[tuple[int, int]], size: int) -> None:
    """Write ``size`` bytes with random data from the first to the last byte of each range."""
    os.ftruncate(descriptor, size)
    random = Random(size)
    for start, end in stretches:
        os.pwrite(descriptor, random.randbytes(end - start), start)
    os.fsync(descriptor)


def move(mover: ContentsCopier, source: int, target: int) -> int:
    status = os.fstat(source)
    devices = status.st_dev, os.fstat(target).st_dev
    return sum(mover.copy_all_contents(source, target, status, devices, extend=partial(os.ftruncate, target)))


def same(directory: Path, one: str, other: str) -> None:
    subprocess.run(["cmp", directory / one, directory / other], check=True)


LAYOUTS = {
    "empty": ([], 0),
    "one byte": ([(0, 1)], 1),
    "full": ([(0, 3 * BYTES_PER_READ + 1)], 3 * BYTES_PER_READ + 1),
    "nothing but a hole": ([], 5 * HOLE + 3),
    "hole first": ([(3 * HOLE, 4 * HOLE)], 4 * HOLE),
    "hole last": ([(0, HOLE)], 4 * HOLE + 1),
    "between": ([(0, 10), (2 * HOLE, 2 * HOLE + 5000), (6 * HOLE + 77, 7 * HOLE)], 8 * HOLE),
}


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "filled"])
@pytest.mark.parametrize("kernel", [True, False], ids=["in-kernel", "in-memory"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_copy_has_the_same_contents_and_holes(
    files: Any, layout: str, kernel: bool, sparse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernel:
        monkeypatch.setattr(os, "copy_file_range", refuse(errno.EXDEV))
        monkeypatch.setattr(fcntl, "ioctl", refuse(errno.EOPNOTSUPP))
    source, target = files("source"), files("target")
    make(source, *LAYOUTS[layout])
    assert move(ContentsCopier(sparse=sparse), source, target) == os.fstat(source).st_size
    same(files.place, "source", "target")
    os.fsync(target)
    if sparse and may_have_holes(os.fstat(source)):
        assert may_have_holes(os.fstat(target))
    elif not kernel and layout == "nothing but a hole":
        assert not may_have_holes(os.fstat(target))


def refuse(number: int) -> Callable[..., Any]:
    def call(*_: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize("layout", LAYOUTS)
def test_extents_cover_all_data(files: Any, layout: str) -> None:
    source = files("source")
    stretches, size = LAYOUTS[layout]
    make(source, stretches, size)
    for start, end in ((0, size), (size // 3, size // 2), (size, size)):
        found = list(data_extents(source, start, end))
        assert all(start <= first < after <= end for first, after in found)
        assert all(one[1] < other[0] for one, other in itertools.pairwise(found))
        for first, after in stretches:
            for byte in {max(first, start), min(after, end) - 1}:
                if first <= byte < after and start <= byte < end:
                    assert any(one <= byte < other for one, other in found)


def test_chunks_of_a_sparse_file_are_copied_in_any_order(files: Any) -> None:
    """Ranks copy ranges with arbitrary limits, in any order, into a file that has its final size already."""
    source, target = files("source"), files("target")
    stretches, size = LAYOUTS["between"]
    make(source, stretches, size)
    os.ftruncate(target, size)
    starts = list(range(0, size, 777_777))
    Random(1).shuffle(starts)
    mover, device = ContentsCopier(sparse=True), os.fstat(source).st_dev
    for start in starts:
        end = min(start + 777_777, size)
        assert (
            sum(mover.copy_byte_range(source, target, start, end, (device, device), may_have_holes=True)) == end - start
        )
    same(files.place, "source", "target")


@pytest.mark.parametrize("kernel", [True, False])
def test_source_shorter_than_its_size_is_an_error(area: Path, kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not kernel:
        monkeypatch.setattr(os, "copy_file_range", refuse(errno.EXDEV))
    (area / "source").write_bytes(bytes(BYTES_PER_READ))
    with open(area / "source", "rb") as source, open(area / "target", "wb") as target, pytest.raises(Problem) as caught:
        list(
            ContentsCopier(sparse=True).copy_byte_range(
                source.fileno(), target.fileno(), 0, 2 * BYTES_PER_READ, (0, 0), may_have_holes=False
            )
        )
    assert caught.value.changed and caught.value.on_source


def test_source_truncated_between_extents_is_reported_as_changed(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The truncation happens between SEEK_DATA and SEEK_HOLE. The file changed; it is not an unreadable one."""
    path = area / "source"
    path.write_bytes(bytes(BYTES_PER_READ))
    real = os.lseek

    def lseek(descriptor: int, offset: int, whence: int) -> int:
        found = real(descriptor, offset, whence)
        if whence == os.SEEK_DATA:
            os.truncate(path, 0)
        return found

    monkeypatch.setattr(os, "lseek", lseek)
    with open(path, "rb") as source, pytest.raises(Problem) as caught:
        list(data_extents(source.fileno(), 0, BYTES_PER_READ))
    assert caught.value.changed


def test_partial_writes_are_continued(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda target, view, offset: real(target, bytes(view[:7]), offset))
    content = Random(2).randbytes(1000)
    with open(area / "target", "wb") as target:
        write_all(target.fileno(), content, 5)
    assert (area / "target").read_bytes() == bytes(5) + content
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    with open(area / "target", "wb") as target, pytest.raises(Problem) as caught:
        write_all(target.fileno(), b"1", 0)
    assert caught.value.errno == errno.EIO


@pytest.mark.parametrize("kernel", [True, False])
def test_full_target_is_reported(area: Path, kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last successful write is partial, the next one fails."""
    if not kernel:
        monkeypatch.setattr(os, "copy_file_range", refuse(errno.EXDEV))
    (area / "source").write_bytes(Random(3).randbytes(3 << 20))
    with (
        mounted("tmpfs", area, size=1 << 20) as full,
        open(area / "source", "rb") as source,
        open(full / "target", "wb") as target,
        pytest.raises(Problem) as caught,
    ):
        move(ContentsCopier(sparse=True), source.fileno(), target.fileno())
    assert (caught.value.operation, caught.value.errno) == ("write", errno.ENOSPC)
    assert not caught.value.on_source


@pytest.mark.parametrize("kernel", [True, False])
def test_file_size_limit_is_reported(area: Path, kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not kernel:
        monkeypatch.setattr(os, "copy_file_range", refuse(errno.EXDEV))
    (area / "source").write_bytes(Random(4).randbytes(1 << 20))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_001, before[1]))
    try:
        with (
            open(area / "source", "rb") as source,
            open(area / "target", "wb") as target,
            pytest.raises(Problem) as caught,
        ):
            move(ContentsCopier(sparse=True), source.fileno(), target.fileno())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert (caught.value.operation, caught.value.errno) == ("write", errno.EFBIG)


def test_file_that_reports_size_zero_is_read_to_its_end(area: Path) -> None:
    """As those in /proc."""
    with open("/proc/cpuinfo", "rb") as source, open(area / "target", "wb") as target:
        status = os.fstat(source.fileno())
        assert status.st_size == 0
        moved = move(ContentsCopier(sparse=True), source.fileno(), target.fileno())
    assert moved == (area / "target").stat().st_size > 0
