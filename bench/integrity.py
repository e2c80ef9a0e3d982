"""What digests, verification and pverify cost, beside the bare copy and beside ``cat``.

The ways take turns, in another order each round. The source is in the page cache, and on a file system of its own of
the same kind, so that the bare copy can't be a clone. The copy's sync counts.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path

from bench import datasets, filesystems
from bench.timing import PCOPY, PVERIFY, Time, compared, timed
from bench.turns import in_turns, parser_for, remove

BARE = "bare copy"
CAT = "cat FILE"

WAYS = {
    BARE: (),
    "--hash xxh3-128": ("--hash", "xxh3-128"),
    "--hash blake3": ("--hash", "blake3"),
    "--verify --signature": ("--verify", "--signature"),
}


def main() -> int:
    parser = parser_for("bench.integrity", __doc__, ["xfs", "tmpfs"])
    parser.set_defaults(files=100_000, large_size=4096)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--ranks", type=int, default=2)
    arguments = parser.parse_args()
    filesystems.end_on_sigterm()
    for kind in arguments.fs:
        for dataset in datasets.chosen(arguments):
            with ExitStack() as stack:
                size = filesystems.room_for(dataset.size, dataset.files)
                source = stack.enter_context(filesystems.mounted(kind, size, arguments.memory)) / "source"
                target = stack.enter_context(filesystems.mounted(kind, size, arguments.memory)) / "copy"
                source.mkdir()
                dataset.make(source)
                print(f"\n{dataset.label}, {kind} to {kind}, {arguments.ranks} ranks", flush=True)
                print(compared(_copies(source, target, arguments), BARE), flush=True)
                if dataset.files == 1:
                    print(f"\nreading it\n{compared(_readings(source, arguments), CAT)}", flush=True)
    return 0


def _copies(source: Path, target: Path, arguments: argparse.Namespace) -> dict[str, list[Time]]:
    signature = arguments.memory / "pcopy-bench.sig"
    common = (*PCOPY, "-q", "-T", "-n", str(arguments.ranks))
    ways = {}
    for name in arguments.ways:
        words = [*WAYS[name], str(signature)] if "--signature" in WAYS[name] else WAYS[name]
        ways[name] = [[*common, *words, str(source), str(target)]]
    try:
        in_turns(ways, 1, lambda: remove(target))  # touches the memory that images take
        return in_turns(ways, arguments.rounds, lambda: remove(target))
    finally:
        signature.unlink(missing_ok=True)


def _readings(source: Path, arguments: argparse.Namespace) -> dict[str, list[Time]]:
    file = str(next(source.iterdir()))
    signature = str(arguments.memory / "pcopy-bench-read.sig")
    pverify = [*PVERIFY, "-q"]
    ranks = ["-n", str(arguments.ranks)]
    timed([*pverify, *ranks, "--force", "--create", signature, file])
    ways = {CAT: [["cat", file]], f"pverify -n {arguments.ranks}": [[*pverify, *ranks, signature, file]]}
    times = in_turns(ways, arguments.rounds, lambda: None)
    Path(signature).unlink()
    return times


if __name__ == "__main__":
    sys.exit(main())
