"""Decisions that depend on whether other ranks have enough work: whether small files are copied as soon as their new
directory exists, and how many directories form a task.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pcopy.tasks.base import sibling_directories
from tests.support import native
from tests.support.oracle import differences
from tests.tasks.one_rank import consistent, copy, root_of


def build(area: Path) -> tuple[Path, Path]:
    source, target = area / "source", area / "target"
    for number in range(6):
        inner = source / str(number)
        inner.mkdir(parents=True)
        for name in ("one", "two"):
            (inner / name).write_text(f"{number} {name}")
    target.mkdir()
    return source, target


@pytest.mark.parametrize(("options", "tasks"), [({}, 0), ({"hash": "xxh3-128"}, 6), ({"existing": "skip"}, 6)])
def test_small_files_of_a_new_directory_make_no_separate_task(area: Path, options: dict[str, Any], tasks: int) -> None:
    """Except if their contents have to be digested, or they are named last."""
    native.require()
    source, target = build(area)
    copied = copy(root_of(source, target), has_plenty=True, **options)
    assert consistent(copied).files == 12
    assert copied.kinds.count("CopyFiles") == tasks
    assert not differences(bytes(source), bytes(target))


@pytest.mark.parametrize(("seconds", "tasks"), [(0.0, 6), (60.0, 0)])
def test_idle_ranks_may_take_small_files_that_remain_after_the_time_of_a_call(
    area: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, tasks: int
) -> None:
    native.require()
    monkeypatch.setattr(sibling_directories, "MAX_SECONDS_WHILE_IDLE", seconds)
    source, target = build(area)
    copied = copy(root_of(source, target), ranks=2, has_plenty=False)
    assert copied.kinds.count("CopyFiles") == tasks
    assert not differences(bytes(source), bytes(target))


@pytest.mark.parametrize(("has_plenty", "tasks"), [(True, 1), (False, 3)])
def test_directories_form_one_task_while_all_ranks_are_busy(area: Path, has_plenty: bool, tasks: int) -> None:
    native.require()
    source, target = build(area)
    copied = copy(root_of(source, target), ranks=2, has_plenty=has_plenty)
    assert copied.kinds.count("ScanDirs") == tasks
    consistent(copied)
