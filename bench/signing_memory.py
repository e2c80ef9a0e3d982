"""Measure the memory for signatures and manifests, in all ranks together, with very many entries.

An entry is a file of the tree. The files are empty, so that only the memory per entry is measured. Memory is the sum of
the proportional set sizes (Pss) of all processes of a run, sampled at intervals. The first measurement has half of the
entries. The column "more" is the additional memory of a measurement with all entries. It is meaningful from a million
entries on: with fewer, the ranks have not yet used up the memory that they may use for sorting.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from bench import datasets, filesystems
from bench.timing import PCOPY_COMMAND, PVERIFY_COMMAND, command_environment, text_table
from bench.turns import remove_trees

MIB = 1 << 20
SAMPLE_INTERVAL = 0.05
"""Seconds between two samples."""


def main() -> int:
    """Run the measurements, print the table, and return the exit status: 1 if ``--most`` is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m bench.signing_memory", description=__doc__)
    parser.add_argument("--entries", type=int, default=2_000_000, help="files (default %(default)s)")
    parser.add_argument("--per-directory", type=int, default=100, help="of them in a directory (default %(default)s)")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument(
        "--ways", nargs="+", choices=["pcopy", "pverify"], default=["pverify"], help="pcopy copies, too"
    )
    parser.add_argument("--most", type=float, help="MB in all; with more the status is 1")
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"), help="a directory on a tmpfs")
    arguments = parser.parse_args()
    filesystems.exit_on_sigterm()
    half = datasets.small_files(arguments.entries // 2, 0, arguments.per_directory)
    with ExitStack() as stack:
        place = stack.enter_context(filesystems.mounted_file_system("tmpfs", 0, arguments.memory))
        entries, samples = [], dict[str, list[tuple[int, float]]]()
        for name in ("one", "other"):
            (place / "tree" / name).mkdir(parents=True)
            half.make(place / "tree" / name)
            entries.append(sum(1 + len(files) for _, _, files in os.walk(place / "tree")))
            for way in arguments.ways:
                samples.setdefault(way, []).append(_peak_memory(place, way, arguments.ranks))
    print(f"{entries[0]:,} and {entries[1]:,} entries, {arguments.per_directory} a directory, {arguments.ranks} ranks")
    rows = []
    for way, ((least, _), (most, seconds)) in samples.items():
        more = (most - least) / (entries[1] - entries[0])
        rows.append([way, f"{least / 1e6:.0f}", f"{most / 1e6:.0f}", f"{more:.1f}", f"{seconds:.1f}"])
    print(text_table(["", "MB, half", "MB, all", "bytes more an entry", "s"], rows))
    peak = max(most for runs in samples.values() for most, _ in runs)
    return 1 if arguments.most and peak > arguments.most * 1e6 else 0


def _peak_memory(place: Path, way: str, ranks: int) -> tuple[int, float]:
    """Run a command, and return the largest memory of all its processes together, in bytes, and its duration in
    seconds.

    Args:
        place: the directory that contains the tree, and in which the outputs are written.
        way: the program: pcopy (copy and sign) or pverify (sign).
        ranks: number of ranks.
    """
    outputs = ["--manifest", str(place / "manifest")]
    if way == "pcopy":
        words = [*PCOPY_COMMAND, "-T", "--checkpoint", "none", "--signature", str(place / "sig"), *outputs]
        words += [str(place / "tree"), str(place / "copy")]
    else:
        words = [*PVERIFY_COMMAND, "--force", "--create", str(place / "sig"), *outputs, str(place / "tree")]
    start, most = time.monotonic(), 0
    command = [*words, "-q", "-n", str(ranks)]
    spools = {"TMPDIR": str(place)}
    with subprocess.Popen(
        command, env={**command_environment(), **spools}, stdout=subprocess.DEVNULL, start_new_session=True
    ) as run:
        while run.poll() is None:
            most = max(most, sum(map(_proportional_share, _processes_of_session(run.pid))))
            time.sleep(SAMPLE_INTERVAL)
    if run.returncode:
        raise SystemExit(f"{way} ended with status {run.returncode}")
    seconds = time.monotonic() - start
    remove_trees(place / "copy")
    return most, seconds


def _processes_of_session(leader: int) -> list[int]:
    """Return the processes of the session whose leader is the process ``leader``. Those that end meanwhile are left
    out.
    """
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if os.getsid(int(name)) == leader:
                found.append(int(name))
    return found


def _proportional_share(pid: int) -> int:
    """Return the memory of the process ``pid`` in bytes (Pss): memory that n processes share counts by 1/n.

    0 if the process has ended.
    """
    with suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Pss:")) << 10
    return 0


if __name__ == "__main__":
    sys.exit(main())
