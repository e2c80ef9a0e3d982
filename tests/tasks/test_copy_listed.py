"""Copying a list of paths (``--files-from``), where each task takes one path."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pcopy.fsio.problem import Problem
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.directories import copy_listed
from pcopy.tasks.directories.copy_listed import ListedPaths
from pcopy.tasks.directories.scan_dir import ScanDir
from tests.support.files import write
from tests.tasks.one_rank import consistent, copy, root_of

NAMES = ("a", "m/1", "m/2", "m/3", "z/4")


@pytest.fixture
def area(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(copy_listed, "LIST_SLICE_SECONDS", -1.0)
    for name in NAMES:
        write(tmp_path / "source" / name, name.encode())
    (tmp_path / "target").mkdir()
    return tmp_path


def listed(area: Path, *paths: str) -> Path:
    (area / "list").write_bytes(b"".join(path.encode() + b"\0" for path in paths))
    return area / "list"


def test_listed_paths_are_copied_once(area: Path) -> None:
    copied = copy(root_of(area / "source", area / "target"), listed=listed(area, *NAMES))
    totals = consistent(copied)
    assert (totals.files, totals.directories) == (5, 3)
    assert copied.kinds.count("CopyListedPaths") == len(NAMES)


def test_excluded_mount_point_is_counted_once(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a mount point with ``--one-file-system``."""
    monkeypatch.setattr(ScanDir, "is_excluded_mount_point", lambda scan, rank: scan.path == b"m")
    totals = consistent(copy(root_of(area / "source", area / "target"), listed=listed(area, *NAMES)))
    assert (totals.files, totals.directories, totals.skipped) == (2, 3, 3)
    assert not [*(area / "target/m").iterdir()]


def test_unreadable_src_fails_with_all_listed_paths(area: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise Problem("listxattr", errno.EIO, on_source=True)

    monkeypatch.setattr(ScanDir, "open_source_and_create_target", fail)
    totals = copy(root_of(area / "source", area / "target"), listed=listed(area, *NAMES)).totals
    assert (totals.found, totals.failed, totals.copied) == (6, 6, 0)


def test_list_containing_src_scans_it_once(area: Path) -> None:
    totals = consistent(copy(root_of(area / "source", area / "target"), listed=listed(area, "", *NAMES)))
    assert (totals.files, totals.directories) == (5, 3)


def test_paths_processed_before_a_read_error_of_the_list_are_not_repeated(
    area: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_listed, "LIST_SLICE_SECONDS", 60.0)
    read, stop = ListedPaths.paths_between, Rank.request_stop
    broken = [OSError(5, "Input/output error")]

    def break_once(self: ListedPaths, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        for number, each in enumerate(read(self, start, end)):
            if number == 3 and broken:
                raise broken.pop()
            yield each

    def go_on(self: Rank, *reported: Any) -> None:
        """Continue as the next run does."""
        stop(self, *reported)
        self.stop_reason = None

    monkeypatch.setattr(ListedPaths, "paths_between", break_once)
    monkeypatch.setattr(Rank, "request_stop", go_on)
    totals = consistent(copy(root_of(area / "source", area / "target"), listed=listed(area, *NAMES)))
    assert not broken
    assert (totals.found, totals.files, totals.directories) == (8, 5, 3)
