"""Compare the ways in which `large_probe.c` can copy one large file, with each other and with cp. Each run is a process
of its own, and its time includes a sync.

The source is in the page cache. The ways take turns in random order.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import median

from bench import datasets, filesystems

PROBE_ARGUMENTS = (
    "rw 512",
    "rw 512 alloc",
    "rw 512 early8",
    "rw 512 alloc early8 beside",
    "cfr 8192",
    "splice 1024",
    "map 2048",
    "two 512 size",
    "turns 512",
    "pair 1024",
    "pair 1024 alloc early8 beside",
    "direct 4096 alloc",
    "wdirect 4096 alloc",
)
"""The ways (kinds of copies) that are compared by default: the arguments of the C program that select them."""


def main() -> int:
    """Compile the program, run the comparison, print the times, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.large_probe", description=__doc__)
    parser.add_argument(
        "--fs", nargs="+", choices=filesystems.FILE_SYSTEM_TYPES, default=list(filesystems.FILE_SYSTEM_TYPES)
    )
    parser.add_argument("--size", type=int, default=1024, help="MiB (default %(default)s)")
    parser.add_argument(
        "--ways",
        nargs="+",
        default=PROBE_ARGUMENTS,
        help="arguments of the C program, each way as one word: 'rw 512 alloc'",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"), help="a directory on a tmpfs")
    arguments = parser.parse_args()
    filesystems.exit_on_sigterm()
    with tempfile.TemporaryDirectory() as place:
        probe = Path(place) / "large_probe"
        source = Path(__file__).with_suffix(".c")
        subprocess.run(["gcc", "-O2", "-pthread", "-o", probe, source], check=True)
        for kind in arguments.fs:
            dataset = datasets.large_file(arguments.size * datasets.MIB)
            room = filesystems.image_size(dataset.size, dataset.files)
            with filesystems.mounted_file_system(kind, room, arguments.memory) as base:
                dataset.make(base)
                times = _seconds_of_copies(probe, base / "large", base / "copy", arguments.ways, arguments.rounds)
            print(f"\n{dataset.label}, {kind}: seconds with the sync, median and minimum")
            for way, taken in sorted(times.items(), key=lambda item: median(item[1])):
                print(f"{way:32} {median(taken):7.3f} {min(taken):7.3f}", flush=True)
    return 0


def _seconds_of_copies(
    probe: Path, source: Path, target: Path, ways: Sequence[str], rounds: int
) -> dict[str, list[float]]:
    """Copy a file ``rounds`` times in each of ``ways``, and with cp; return the seconds by way.

    ``probe`` is the compiled C program.
    """
    commands: dict[str, list[str]] = {"cp": ["cp", "--reflink=never", str(source), str(target)]}
    for way in ways:
        name, piece, *flags = way.split()
        commands[way] = [str(probe), name, piece, str(source), str(target), *flags]
    times: dict[str, list[float]] = {way: [] for way in commands}
    random = Random(rounds)
    for _ in range(rounds):
        for way in random.sample(list(commands), len(commands)):
            target.unlink(missing_ok=True)
            subprocess.run(["sync", "-f", str(target.parent)], check=True)
            start = time.monotonic()
            subprocess.run(commands[way], check=True, stdout=subprocess.DEVNULL)
            subprocess.run(["sync", "-f", str(target)], check=True)
            times[way].append(time.monotonic() - start)
    target.unlink(missing_ok=True)
    return times


if __name__ == "__main__":
    sys.exit(main())
