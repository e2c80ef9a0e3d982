"""Each item found in a directory reaches the visitor once, in the column of its type, and no other code decides on
it.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path

import pytest

from pcopy.fsio.backend.choose import create_backend
from pcopy.fsio.backend.interface import BackendSettings
from pcopy.fsio.preserve import PreservedMetadataKinds
from pcopy.fsio.problem import Problem
from pcopy.walk import visitor
from pcopy.walk.visitor import FoundItems, stat_and_visit_names


class RecordingVisitor:
    """The visitor of a program: implements ``pcopy.walk.visitor.DirectoryVisitor``."""

    def __init__(self, directory: Path, *, separates_linked: bool, but: bytes = b"") -> None:
        self.device: int | None = directory.stat().st_dev
        self.separates_linked = separates_linked
        self.needs_sorted_names = False
        self.found: dict[str, list[bytes]] = {}
        self._but = but
        self.finished = 0
        self.processed = 0

    def _note(self, sort: str, found: FoundItems, rows: Sequence[int]) -> None:
        assert rows
        self.found.setdefault(sort, []).extend(found.names[row] for row in rows)

    def visit_unstatted_item(self, name: bytes, problem: Problem) -> None:
        assert problem.changed
        self.found.setdefault("failed", []).append(name)

    def rows_to_visit(self, found: FoundItems) -> Iterable[int]:
        return [row for row, name in enumerate(found.names) if name != self._but]

    def visit_directories(self, found: FoundItems, rows: Sequence[int]) -> None:
        self._note("directories", found, rows)

    def visit_small_files(self, found: FoundItems, rows: Sequence[int]) -> None:
        self._note("small", found, rows)
        assert all(found.rows.size[row] <= 3 for row in rows)

    def visit_large_files(self, found: FoundItems, rows: Sequence[int]) -> None:
        self._note("large", found, rows)

    def visit_special_files(self, found: FoundItems, rows: Sequence[int]) -> None:
        self._note("nodes", found, rows)

    def visit_hard_linked_items(self, found: FoundItems, rows: Sequence[int]) -> None:
        self._note("linked", found, rows)

    def process_collected_items(self) -> Generator[None, None, None]:
        self.processed += 1
        yield from ()

    def end_directory_visit(self) -> None:
        self.finished += 1


@pytest.fixture
def tree(area: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(visitor, "MAX_SMALL_FILE_BYTES", 3)
    (area / "below").mkdir()
    (area / "small").write_bytes(b"123")
    (area / "large").write_bytes(b"1234")
    (area / "link").symlink_to("large")
    (area / "twice").write_bytes(b"1")
    os.link(area / "twice", area / "again")
    os.mkfifo(area / "fifo")
    return area


NAMES = (b"below", b"gone", b"small", b"large", b"link", b"again", b"twice", b"fifo")


def visited(tree: Path, recorder: RecordingVisitor, *, follow: bool = False) -> dict[str, list[bytes]]:
    descriptor = os.open(tree, os.O_RDONLY)
    backend = create_backend(BackendSettings(PreservedMetadataKinds(), 0o022))
    try:
        for _ in stat_and_visit_names(backend, descriptor, b"/".join(NAMES), recorder, follow=follow):
            pass
    finally:
        backend.close()
        os.close(descriptor)
    assert (recorder.finished, recorder.processed) == (1, 1)
    return recorder.found


def test_each_type_of_item_is_passed_separately(tree: Path) -> None:
    assert visited(tree, RecordingVisitor(tree, separates_linked=True)) == {
        "directories": [b"below"],
        "failed": [b"gone"],
        "small": [b"small"],
        "large": [b"large"],
        "nodes": [b"link", b"fifo"],
        "linked": [b"again", b"twice"],
    }


def test_names_of_one_inode_are_files_unless_separated(tree: Path) -> None:
    found = visited(tree, RecordingVisitor(tree, separates_linked=False))
    assert found["small"] == [b"small", b"again", b"twice"]
    assert "linked" not in found


def test_followed_links_count_as_their_targets(tree: Path) -> None:
    found = visited(tree, RecordingVisitor(tree, separates_linked=False), follow=True)
    assert (found["large"], found["nodes"]) == ([b"large", b"link"], [b"fifo"])


def test_file_of_another_file_system_is_not_passed_as_small(tree: Path) -> None:
    recorder = RecordingVisitor(tree, separates_linked=True)
    recorder.device = None
    found = visited(tree, recorder)
    assert found["large"] == [b"small", b"large"]
    assert "small" not in found


def test_excluded_item_is_not_visited(tree: Path) -> None:
    found = visited(tree, RecordingVisitor(tree, separates_linked=True, but=b"below"))
    assert "directories" not in found
    assert found["small"] == [b"small"]
