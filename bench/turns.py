"""Ways of copying one dataset that take turns, so that whatever else the machine does meets all of them alike.

What the benchmarks of this kind share: their options, and file systems in memory for the source and its copies.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench import datasets, filesystems
from bench.timing import Time, timed

Commands = Sequence[Sequence[str]]
"""Run one after the other, and timed together."""


def parser_for(module: str, description: str | None, kinds: Sequence[str]) -> argparse.ArgumentParser:
    """With the options of all these benchmarks; ``kinds`` of file systems are the default."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    datasets.add_options(parser)
    parser.add_argument("--fs", nargs="+", choices=filesystems.KINDS, default=list(kinds))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"), help="a directory on a tmpfs")
    return parser


def in_turns(ways: Mapping[str, Commands], rounds: int, prepare: Callable[[], None]) -> dict[str, list[Time]]:
    """The times of ``rounds`` runs of each way, in another order each round; ``prepare`` comes before each run."""
    times: dict[str, list[Time]] = {name: [] for name in ways}
    order = deque(ways)
    for _ in range(rounds):
        for name in order:
            prepare()
            times[name].append(timed(*ways[name]))
        order.rotate(-1)
    return times


def remove(*trees: Path) -> None:
    """Removes what is there of ``trees``, which lie on one file system, and syncs that."""
    for tree in trees:
        if tree.exists():
            shutil.rmtree(tree)
    subprocess.run(["sync", "-f", str(trees[0].parent)], check=True)
