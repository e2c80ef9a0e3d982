"""``prm`` and ``pchmod`` that are stopped count all changed items, also those of discarded tasks."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.latency import SlowMount, can_mount, mounted_slow
from tests.support import native
from tests.support.command import Argument
from tests.support.processes import background, wait_until

pytestmark = pytest.mark.skipif(not can_mount(), reason="it takes root and libfuse3-dev")

DIRECTORIES, FILES = 12, 90
ENOUGH = 150
LATENCY = 2000
"""Latency of each operation in microseconds."""


@pytest.fixture(params=["files", "nested"])
def tree(request: pytest.FixtureRequest, area: Path) -> Path:
    """Return directories with files only, or also with symbolic links and subdirectories."""
    tree = area / "below/tree"
    for directory in range(DIRECTORIES):
        place = tree / f"{directory}"
        place.mkdir(parents=True)
        for file in range(FILES):
            if request.param == "nested" and file % 9 == 0:
                (place / f"{file}").mkdir()
                (place / f"{file}/file").touch()
            elif request.param == "nested" and file % 9 == 1:
                (place / f"{file}").symlink_to("nowhere")
            else:
                (place / f"{file}").touch()
    return tree


@pytest.fixture
def storage(tree: Path) -> Iterator[SlowMount]:
    with mounted_slow(tree.parent, entry_timeout=1, attribute_timeout=1) as mounted:
        mounted.set_delays(all=LATENCY)
        yield mounted


WAYS = pytest.mark.parametrize(
    ("backend", "ranks", "words"),
    [
        ("c", 1, ("--in-flight", "1")),
        ("c", 1, ("--in-flight", "8")),
        ("c", 2, ()),
        ("python", 1, ()),
        ("python", 2, ()),
    ],
)


def report_of_stopped_run(program: str, *words: Argument, backend: str, ranks: int, done: Any) -> dict[str, Any]:
    """Stop a run once ``done()`` reaches ``ENOUGH``. Return its report."""
    if backend == "c":
        native.require()
    with background("--json", *words, program=program, ranks=ranks, env={"PCOPY_BACKEND": backend}) as run:
        assert wait_until(lambda: done() >= ENOUGH)
        run.process.send_signal(signal.SIGTERM)
        output, errors = run.process.communicate(timeout=60)
        assert run.process.returncode == 75, errors
        reported: dict[str, Any] = json.loads(output)
        return reported


def count_items(tree: Path) -> int:
    """Count all items. Items may vanish meanwhile."""
    return sum(len(directories) + len(files) for _, directories, files in os.walk(tree)) + tree.exists()


@WAYS
def test_stopped_prm_counts_all_removed_items(
    storage: SlowMount, tree: Path, backend: str, ranks: int, words: tuple[str, ...]
) -> None:
    before = count_items(tree)
    reported = report_of_stopped_run(
        "prm", "--yes", *words, storage.path / "tree", backend=backend, ranks=ranks,
        done=lambda: before - count_items(tree),
    )  # fmt: skip
    left = count_items(tree)
    assert ENOUGH <= reported["removed"] == before - left < before
    assert sum(reported[each] for each in ("files", "directories", "symlinks", "special")) == reported["removed"]
    assert reported["failed"] == 0


@WAYS
def test_stopped_pchmod_counts_all_changed_items(
    storage: SlowMount, tree: Path, backend: str, ranks: int, words: tuple[str, ...]
) -> None:
    def changed() -> int:
        modes = (path.lstat().st_mode for path in (tree, *tree.rglob("*")))
        return sum(not mode & stat.S_IROTH for mode in modes)

    assert changed() == 0
    reported = report_of_stopped_run(
        "pchmod", "o-r", *words, storage.path / "tree", backend=backend, ranks=ranks, done=changed
    )
    assert ENOUGH <= reported["changed"] == changed() < count_items(tree)
    assert reported["failed"] == 0
