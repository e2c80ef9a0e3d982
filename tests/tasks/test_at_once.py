"""What depends on whether other ranks have enough to do: small files that go into a new directory as soon as that is
made, and how many directories make a task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

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
def test_they_make_no_task_of_their_own(area: Path, options: dict[str, Any], tasks: int) -> None:
    """Unless their contents have to pass through a digest, or their names come last."""
    native.require()
    source, target = build(area)
    copied = copy(root_of(source, target), has_plenty=True, **options)
    assert consistent(copied).files == 12
    assert copied.kinds.count("CopyFiles") == tasks
    assert not differences(bytes(source), bytes(target))


def test_where_others_have_nothing_to_do_they_may_take_them(area: Path) -> None:
    native.require()
    source, target = build(area)
    copied = copy(root_of(source, target), ranks=2, has_plenty=False)
    assert copied.kinds.count("CopyFiles") == 6
    assert not differences(bytes(source), bytes(target))


@pytest.mark.parametrize(("has_plenty", "tasks"), [(True, 1), (False, 3)])
def test_directories_are_one_task_while_others_have_enough(area: Path, has_plenty: bool, tasks: int) -> None:
    native.require()
    source, target = build(area)
    copied = copy(root_of(source, target), ranks=2, has_plenty=has_plenty)
    assert copied.kinds.count("ScanDirs") == tasks
    consistent(copied)
