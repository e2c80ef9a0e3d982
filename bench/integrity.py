"""What digests, verification and pverify cost, beside the bare copy and beside ``cat``.

The ways take turns, in another order each round. The source is in the page cache, and on a file system of its own of
the same kind, so that the bare copy can't be a clone. The copy's sync counts.
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

BARE = "bare copy"
CAT = "cat FILE"

WAYS = {
    BARE: (),
    "--hash xxh3-128": ("--hash", "xxh3-128"),
    "--hash blake3": ("--hash", "blake3"),
    "--verify --signature": ("--verify", "--signature"),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.integrity", description=__doc__)
    datasets.add_options(parser)
    parser.set_defaults(files=100_000, large_size=4096)
    parser.add_argument("--fs", nargs="+", choices=filesystems.KINDS, default=["xfs", "tmpfs"])
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"), help="a directory on a tmpfs")
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
    times: dict[str, list[Time]] = {name: [] for name in arguments.ways}
    order = deque(arguments.ways)
    try:
        for number in range(arguments.rounds + 1):
            for name in order:
                if target.exists():
                    shutil.rmtree(target)
                subprocess.run(["sync", "-f", str(target.parent)], check=True)
                words = [str(signature) if word is None else word for word in _options(name)]
                taken = timed([*common, *words, str(source), str(target)])
                if number:  # the first round touches the memory that images take
                    times[name].append(taken)
            order.rotate(-1)
    finally:
        signature.unlink(missing_ok=True)
    return times


def _options(name: str) -> list[str | None]:
    """``None`` stands for the signature's file."""
    words: list[str | None] = list(WAYS[name])
    return [*words, None] if "--signature" in words else words


def _readings(source: Path, arguments: argparse.Namespace) -> dict[str, list[Time]]:
    file = str(next(source.iterdir()))
    signature = str(arguments.memory / "pcopy-bench-read.sig")
    pverify = [sys.executable, "-c", "import sys; from pcopy.cli.pverify import main; sys.exit(main())", "-q"]
    ranks = ["-n", str(arguments.ranks)]
    timed([*pverify, *ranks, "--create", signature, file])
    commands = {CAT: ["cat", file], f"pverify -n {arguments.ranks}": [*pverify, *ranks, signature, file]}
    times: dict[str, list[Time]] = {name: [] for name in commands}
    for _ in range(arguments.rounds):
        for name, words in commands.items():
            times[name].append(timed(words))
    Path(signature).unlink()
    return times


if __name__ == "__main__":
    sys.exit(main())
