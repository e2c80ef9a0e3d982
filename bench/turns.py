"""Runs of several ways that take turns, so that other load on the machine affects all of them equally."""

from __future__ import annotations

import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.timing import RunTime


def times_in_turns(
    ways: Mapping[str, Callable[[], RunTime]], rounds: int, prepare: Callable[[], None] = lambda: None
) -> dict[str, list[RunTime]]:
    """Return the times of ``rounds`` runs of each way, in another order each round.

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
    """Remove those of ``trees`` that exist, which are on one file system, and sync that file system."""
    for tree in trees:
        if tree.exists():
            shutil.rmtree(tree)
    subprocess.run(["sync", "-f", str(trees[0].parent)], check=True)
