"""Compare ways to move the bytes of a large file: copy_file_range(2), or read and write, in pieces of several sizes.

One process copies; the source is in the page cache. The ways to copy take turns in random order. The time includes the
fsync of the copy.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from bench import datasets, filesystems
from bench.timing import RunTime, comparison_table

CopyFunction = Callable[[int, int, int, int], None]
"""Type of a function that copies ``size`` bytes from one descriptor to another, with ``piece`` bytes in each call."""


def copy_by_copy_file_range(source: int, target: int, size: int, piece: int) -> None:
    """Copy ``size`` bytes with copy_file_range(2), ``piece`` bytes in each call. ``source`` and ``target`` are
    descriptors.
    """
    at = 0
    while at < size:
        moved = os.copy_file_range(source, target, min(piece, size - at), at, at)
        if not moved:
            raise OSError("copy_file_range ended early")
        at += moved


def copy_by_read_and_write(source: int, target: int, size: int, piece: int) -> None:
    """Copy ``size`` bytes through a buffer of ``piece`` bytes, with preadv(2) and pwrite(2). ``source`` and ``target``
    are descriptors.
    """
    buffer = memoryview(bytearray(piece))
    at = 0
    while at < size:
        got = os.preadv(source, [buffer], at)
        if not got or os.pwrite(target, buffer[:got], at) != got:
            raise OSError("a read or a write ended early")
        at += got


COPY_FUNCTIONS: dict[str, CopyFunction] = {
    "copy_file_range": copy_by_copy_file_range,
    "read/write": copy_by_read_and_write,
}
"""The ways that are compared, by label."""


def main() -> int:
    """Run the comparison, print the times, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.large_file", description=__doc__)
    parser.add_argument("--fs", nargs="+", choices=filesystems.FILE_SYSTEM_TYPES, default=["ext4", "tmpfs"])
    parser.add_argument("--size", type=int, default=2048, help="MiB (default %(default)s)")
    parser.add_argument("--pieces", type=int, nargs="+", default=[128, 256, 512, 1024, 4096, 8192], help="KiB each")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"), help="a directory on a tmpfs")
    arguments = parser.parse_args()
    filesystems.exit_on_sigterm()
    for kind in arguments.fs:
        dataset = datasets.large_file(arguments.size * datasets.MIB)
        room = filesystems.image_size(dataset.size, dataset.files)
        with filesystems.mounted_file_system(kind, room, arguments.memory) as base:
            dataset.make(base)
            times = _times_of_copies(base / "large", base / "copy", arguments.pieces, arguments.rounds)
        print(f"\n{dataset.label}, {kind}\n{comparison_table(times, next(iter(times)))}", flush=True)
    return 0


def _times_of_copies(source: Path, target: Path, pieces: Sequence[int], rounds: int) -> dict[str, list[RunTime]]:
    """Copy a file ``rounds`` times in each way and with each piece size; return the times by a label of both.

    ``pieces`` are the piece sizes in KiB.
    """
    trials = [(name, piece) for name in COPY_FUNCTIONS for piece in pieces]
    times: dict[str, list[RunTime]] = {f"{name}, {piece} KiB": [] for name, piece in trials}
    random = Random(rounds)
    for _ in range(rounds):
        for name, piece in random.sample(trials, len(trials)):
            target.unlink(missing_ok=True)
            subprocess.run(["sync", "-f", str(target.parent)], check=True)
            times[f"{name}, {piece} KiB"].append(_copy(COPY_FUNCTIONS[name], source, target, piece << 10))
    return times


def _copy(way: CopyFunction, source: Path, target: Path, piece: int) -> RunTime:
    """Copy once with ``way``, with an fsync at the end, and return the time. ``piece`` is in bytes."""
    processor, start = time.process_time(), time.monotonic()
    with open(source, "rb") as reading, open(target, "xb") as writing:
        way(reading.fileno(), writing.fileno(), os.fstat(reading.fileno()).st_size, piece)
        os.fsync(writing.fileno())
    return RunTime(time.monotonic() - start, time.process_time() - processor)


if __name__ == "__main__":
    sys.exit(main())
