"""What checkpoints cost: copies that are cut every few seconds against copies that keep nothing, in turns.

The job directory lies on the destination's file system, so that what is recorded has to be synced there too.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections import deque
from contextlib import ExitStack
from pathlib import Path

from bench import datasets, filesystems
from bench.timing import PCOPY, Time, compared, timed

NONE = "none"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.checkpoints", description=__doc__)
    datasets.add_options(parser)
    parser.set_defaults(files=300_000, large_size=4096)
    parser.add_argument("--fs", nargs="+", choices=filesystems.KINDS, default=["ext4", "xfs"])
    parser.add_argument("--interval", nargs="+", default=["5"], help="seconds between two cuts (default 5)")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"), help="a directory on a tmpfs")
    arguments = parser.parse_args()
    filesystems.end_on_sigterm()
    for kind in arguments.fs:
        for dataset in datasets.chosen(arguments):
            with ExitStack() as stack:
                size = filesystems.room_for(dataset.size, dataset.files)
                source = stack.enter_context(filesystems.mounted("tmpfs", size, arguments.memory)) / "source"
                target = stack.enter_context(filesystems.mounted(kind, size, arguments.memory)) / "copy"
                source.mkdir()
                dataset.make(source)
                print(f"\n{dataset.label}, tmpfs to {kind}, {arguments.ranks} ranks", flush=True)
                print(compared(_copies(source, target, arguments), NONE), flush=True)
    return 0


def _copies(source: Path, target: Path, arguments: argparse.Namespace) -> dict[str, list[Time]]:
    job = target.parent / "job"
    ways: dict[str, list[str]] = {NONE: ["--checkpoint", "none"]}
    for interval in arguments.interval:
        ways[f"every {interval} s"] = ["--checkpoint", str(job), "--checkpoint-interval", interval]
    times: dict[str, list[Time]] = {name: [] for name in ways}
    order = deque(ways)
    for number in range(arguments.rounds + 1):
        for name in order:
            for tree in (target, job):
                if tree.exists():
                    shutil.rmtree(tree)
            subprocess.run(["sync", "-f", str(target.parent)], check=True)
            words = [*PCOPY, "-q", "-T", "-n", str(arguments.ranks), *ways[name], str(source), str(target)]
            taken = timed(words)
            if number:  # the first round touches the memory that images take
                times[name].append(taken)
        order.rotate(-1)
    return times


if __name__ == "__main__":
    sys.exit(main())
