"""Measure how much longer a short job takes because its progress is recorded, so that it could be resumed.

Copies by this checkout and by an older one take turns, so that the two can be compared. The jobs are recorded on the
destination's file system. Each is measured twice: once while another program writes to this file system all the time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from bench import datasets, filesystems
from bench.timing import CHECKOUT_DIRECTORY, PCOPY_COMMAND, comparison_table, measure_commands
from bench.turns import measure_in_turns, remove_trees

OLDER_LABEL = "before"
"""The label of the older checkout's copies in the table."""
_WRITER_PROGRAM = """
import os, sys
while True:
    with open(sys.argv[1], "wb") as file:
        for _ in range(64):
            file.write(bytes(1 << 20))
        os.fsync(file.fileno())
"""
"""The program that writes to a file and syncs it, again and again."""


def main() -> int:
    """Run the comparison, print the times, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.early_ends", description=__doc__)
    parser.add_argument("before", type=Path, help="the older checkout")
    parser.add_argument("--files", type=int, default=20_000, help="files per second of a copy (default %(default)s)")
    parser.add_argument("--fs", nargs="+", choices=filesystems.FILE_SYSTEM_TYPES, default=["ext4"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"), help="a directory on a tmpfs")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, nargs="+", default=[1, 6], help="approximate time of each copy")
    arguments = parser.parse_args()
    filesystems.exit_on_sigterm()
    checkouts = {OLDER_LABEL: arguments.before.resolve(), "now": CHECKOUT_DIRECTORY}
    for kind in arguments.fs:
        for seconds in arguments.seconds:
            dataset = datasets.small_files(int(arguments.files * seconds), 4096, 100)
            with ExitStack() as stack:
                size = filesystems.image_size(dataset.size, dataset.files)
                source = (
                    stack.enter_context(filesystems.mounted_file_system("tmpfs", size, arguments.memory)) / "source"
                )
                point = stack.enter_context(filesystems.mounted_file_system(kind, size, arguments.memory))
                source.mkdir()
                (point / "state").mkdir()
                dataset.make(source)
                words = [*PCOPY_COMMAND, "-q", "-n", str(arguments.ranks), str(source), str(point / "copy")]
                ways = {
                    name: partial(
                        measure_commands, ["env", f"PYTHONPATH={path}", f"XDG_STATE_HOME={point / 'state'}", *words]
                    )
                    for name, path in checkouts.items()
                }
                clean = partial(remove_trees, point / "copy")
                for writes in (False, True):
                    with running_writer(point / "other") if writes else ExitStack():
                        print(f"\n{dataset.label}, tmpfs to {kind}, another writer: {writes}", flush=True)
                        measure_in_turns(ways, 1, clean)
                        times = measure_in_turns(ways, arguments.rounds, clean)
                        print(comparison_table(times, OLDER_LABEL), flush=True)
    return 0


@contextmanager
def running_writer(path: Path) -> Iterator[None]:
    """Context manager: run another process that writes to ``path`` and syncs it every 64 MiB; end it with the block."""
    process = subprocess.Popen([sys.executable, "-c", _WRITER_PROGRAM, os.fspath(path)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
