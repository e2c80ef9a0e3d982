"""What checkpoints cost: copies that are cut every few seconds against copies that keep nothing, in turns.

The job directory lies on the destination's file system, so that what is recorded has to be synced there too.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path

from bench import datasets, filesystems
from bench.timing import PCOPY, Time, compared
from bench.turns import in_turns, parser_for, remove

NONE = "none"


def main() -> int:
    parser = parser_for("bench.checkpoints", __doc__, ["ext4", "xfs"])
    parser.set_defaults(files=300_000, large_size=4096)
    parser.add_argument("--interval", nargs="+", default=["5"], help="seconds between two cuts (default 5)")
    parser.add_argument("--ranks", type=int, default=2)
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
    options = {NONE: ["--checkpoint", "none"]}
    for interval in arguments.interval:
        options[f"every {interval} s"] = ["--checkpoint", str(job), "--checkpoint-interval", interval]
    common = [*PCOPY, "-q", "-T", "-n", str(arguments.ranks)]
    ways = {name: [[*common, *words, str(source), str(target)]] for name, words in options.items()}
    in_turns(ways, 1, lambda: remove(target, job))  # touches the memory that images take
    return in_turns(ways, arguments.rounds, lambda: remove(target, job))


if __name__ == "__main__":
    sys.exit(main())
