"""Runs of several commands that take turns, so that other load on the machine affects all of them equally."""

from __future__ import annotations

import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.timing import RunTime


def measure_in_turns(
    ways: Mapping[str, Callable[[], RunTime]], rounds: int, prepare: Callable[[], None] = lambda: None
) -> dict[str, list[RunTime]]:
    """Run all ways (by label) in turns, in another order each round; return the times of each.

    ``prepare`` is called before each run.
    """
    times: dict[str, list[RunTime]] = {name: [] for name in ways}
    order = deque(ways)
    for _ in range(rounds):
        for name in order:
            prepare()
            times[name].append(ways[name]())
        order.rotate(-1)
    return times


def remove_trees(*trees: Path) -> None:
    """Remove those of ``trees`` that exist, and sync their file system. All of them must be on the same one."""
    for tree in trees:
        if tree.exists():
            shutil.rmtree(tree)
    subprocess.run(["sync", "-f", str(trees[0].parent)], check=True)
