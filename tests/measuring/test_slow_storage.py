"""Each tool detects that storage has latency, and starts many operations concurrently."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.latency import SlowMount, can_mount, mounted_slow
from pcopy.fsio.backend.choose import backend_name
from tests.support.command import pcopy
from tests.support.oracle import differences

pytestmark = [
    pytest.mark.skipif(not can_mount(), reason="it takes root and libfuse3-dev"),
    pytest.mark.skipif(backend_name() != "c", reason="there is no C backend here"),
]

DIRECTORIES, FILES = 24, 40
LATENCY = 3000
"""Microseconds that each operation takes."""

CACHE_SECONDS = 0.2
"""Seconds for which the kernel caches names and attributes."""


@pytest.fixture
def tree(area: Path) -> Path:
    tree = area / "tree"
    for directory in range(DIRECTORIES):
        (tree / f"{directory}").mkdir(parents=True)
        for file in range(FILES):
            (tree / f"{directory}/{file}").write_text(f"{directory} {file}")
    return tree


@pytest.fixture
def storage(tree: Path) -> Iterator[SlowMount]:
    with mounted_slow(tree.parent, entry_timeout=CACHE_SECONDS, attribute_timeout=CACHE_SECONDS) as mounted:
        time.sleep(2 * CACHE_SECONDS)
        mounted.set_delays(all=LATENCY)
        yield mounted


@pytest.mark.parametrize(
    ("program", "words", "least"),
    [
        ("pwalk", ("--progress", "none", "TREE", "-size", "+1k"), 16),
        ("pwalk", ("--progress", "none", "--summary", "TREE"), 16),
        ("pchmod", ("-q", "g+w", "TREE"), 16),
        ("prm", ("-q", "--yes", "TREE"), 6),  # removals in one directory are sequential
    ],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_tree_is_traversed_with_many_concurrent_operations(
    storage: SlowMount, program: str, words: tuple[str, ...], least: int, ranks: int
) -> None:
    there = [storage.path / "tree" if word == "TREE" else word for word in words]
    pcopy(*there, program=program, ranks=ranks).check_returncode()
    assert storage.max_concurrent_operations() >= least


def test_small_directories_are_listed_concurrently(storage: SlowMount, tree: Path) -> None:
    """Threads list directories of few names, each with the statuses of its items."""
    for directory in range(400):
        (tree / f"small/{directory}").mkdir(parents=True)
        (tree / f"small/{directory}/file").touch()
    run = pcopy("-q", storage.path / "tree/small", "-size", "-1", program="pwalk", ranks=1)
    run.check_returncode()
    assert len(run.stdout.splitlines()) == 400
    assert storage.max_concurrent_operations() >= 16


def test_many_directories_are_copied_concurrently(storage: SlowMount, tree: Path) -> None:
    pcopy("-q", tree, storage.path / "copy", ranks=1).check_returncode()
    assert storage.max_concurrent_operations() >= 16
    storage.set_delays(all=0)
    assert differences(tree, storage.backing / "copy") == []
