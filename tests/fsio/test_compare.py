"""Comparison of contents: equal or different, and changes during the comparison."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pcopy.fsio.existing import has_same_contents, has_same_symlink_text
from pcopy.fsio.problem import Problem
from pcopy.fsio.throttle import Throttle

PIECE = 512 << 10
DATA = os.urandom(3 * PIECE)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def compare(area: Path, between: object = None) -> bool:
    """``source`` and ``copy`` in ``area``; ``between`` is called after the first piece."""
    with opened(area / "source") as source, opened(area) as directory:
        status = os.fstat(source)
        present = os.stat(area / "copy")
        steps = has_same_contents(source, status, directory, b"copy", present, Throttle())
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return bool(end.value)
            if callable(between):
                between()
                between = None


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE])
def test_equal_and_different_contents_are_distinguished(area: Path, size: int) -> None:
    (area / "source").write_bytes(DATA[:size])
    (area / "copy").write_bytes(DATA[:size])
    assert compare(area)
    if size:
        (area / "copy").write_bytes(DATA[: size - 1] + bytes([DATA[size - 1] ^ 1]))
        assert not compare(area)
    (area / "copy").write_bytes(DATA[:size] + b"x")
    assert not compare(area)


def test_source_changed_during_comparison_is_reported(area: Path) -> None:
    for name in ("source", "copy"):
        (area / name).write_bytes(DATA)
    with pytest.raises(Problem) as caught:
        compare(area, lambda: os.utime(area / "source", ns=(0, 0)))
    assert caught.value.changed and caught.value.on_source


def test_truncated_source_is_reported(area: Path) -> None:
    for name in ("source", "copy"):
        (area / name).write_bytes(DATA)
    with pytest.raises(Problem) as caught:
        compare(area, lambda: os.truncate(area / "source", PIECE))
    assert caught.value.changed and caught.value.on_source


def test_truncated_target_differs(area: Path) -> None:
    for name in ("source", "copy"):
        (area / name).write_bytes(DATA)
    assert not compare(area, lambda: os.truncate(area / "copy", PIECE))


def test_target_replaced_since_the_stat_is_an_error(area: Path) -> None:
    for name in ("source", "copy", "other"):
        (area / name).write_bytes(DATA)
    present = os.stat(area / "copy")
    (area / "other").rename(area / "copy")
    with opened(area / "source") as source, opened(area) as directory, pytest.raises(Problem) as caught:
        list(has_same_contents(source, os.fstat(source), directory, b"copy", present, Throttle()))
    assert not caught.value.on_source


def test_file_of_reported_size_zero_is_compared_by_contents(area: Path) -> None:
    """Files in /proc have size 0 and contents."""
    (area / "copy").write_bytes(b"")
    with opened(Path("/proc/self/status")) as source, opened(area) as directory:
        steps = has_same_contents(source, os.fstat(source), directory, b"copy", os.stat(area / "copy"), Throttle())
        with pytest.raises(StopIteration) as end:
            next(steps)
    assert end.value.value is False


def test_links(area: Path) -> None:
    (area / "a").symlink_to("text")
    (area / "b").symlink_to("text")
    (area / "c").symlink_to("TEXT")
    (area / "file").write_bytes(b"")
    with opened(area) as directory:
        assert has_same_symlink_text(directory, b"a", directory, b"b")
        assert not has_same_symlink_text(directory, b"a", directory, b"c")
        with pytest.raises(Problem) as caught:
            has_same_symlink_text(directory, b"a", directory, b"absent")
        assert not caught.value.on_source
        with pytest.raises(Problem) as caught:
            has_same_symlink_text(directory, b"file", directory, b"a")
        assert caught.value.changed
