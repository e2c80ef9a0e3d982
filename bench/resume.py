"""Measure the time to resume a job that was stopped when most of it was done, relative to the time of a whole job.

Whole jobs and stopped ones take turns. A job is stopped by SIGTERM when its progress has reached ``--at`` percent. The
time until the stop and the time of the resume are measured separately. The progress may be up to a second old, so the
job may have done a little more when it is stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from bench import datasets, filesystems
from bench.timing import PCOPY_COMMAND, command_environment, measure_commands, text_table
from bench.turns import remove_trees

EXIT_STOPPED = 75
"""The exit status of a job that was stopped early."""


def main() -> int:
    """Run the measurements, print the table, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.resume", description=__doc__)
    parser.add_argument("--files", type=int, default=48, help="in one directory (default %(default)s)")
    parser.add_argument("--file-size", type=int, default=128, help="MiB of each (default %(default)s)")
    parser.add_argument("--at", type=float, default=95.0, help="percent (default %(default)s)")
    parser.add_argument("--fs", choices=filesystems.FILE_SYSTEM_TYPES, default="xfs")
    parser.add_argument("--hash", default="blake3", help="default: blake3, so that there is work for some seconds")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"), help="a directory on a tmpfs")
    arguments = parser.parse_args()
    filesystems.exit_on_sigterm()
    dataset = datasets.small_files(arguments.files, arguments.file_size * datasets.MIB, arguments.files)
    with ExitStack() as stack:
        size = filesystems.image_size(dataset.size, dataset.files)
        source = stack.enter_context(filesystems.mounted_file_system("tmpfs", size, arguments.memory)) / "source"
        target = stack.enter_context(filesystems.mounted_file_system(arguments.fs, size, arguments.memory)) / "copy"
        source.mkdir()
        dataset.make(source)
        print(f"{dataset.label}, tmpfs to {arguments.fs}, {arguments.ranks} ranks, --hash {arguments.hash}", flush=True)
        print(_measured_table(source, target, arguments))
    return 0


def _measured_table(source: Path, target: Path, arguments: argparse.Namespace) -> str:
    """Run all rounds of the measurement, and return a table of the times."""
    job = target.parent / "job"
    ranks = ["-n", str(arguments.ranks)]
    copy = [*PCOPY_COMMAND, "-T", *ranks, "--hash", arguments.hash, "--checkpoint", str(job), str(source), str(target)]
    rows = []
    ratios = []
    for number in range(arguments.rounds + 1):
        remove_trees(target, job)
        whole = measure_commands([*copy, "-q"]).wall
        remove_trees(target, job)
        done, begun = _run_until_percent(arguments.at, copy)
        rest = measure_commands([*PCOPY_COMMAND, "-q", *ranks, "--resume", str(job)]).wall
        if number:  # Round 0 is not counted: it allocates the memory of the images.
            ratios.append(rest / whole)
            figures = (whole, begun, done, rest)
            rows.append([f"{number}", *(f"{value:.2f}" for value in figures), f"{ratios[-1]:.1%}"])
    rows.append(["median", "", "", "", "", f"{median(ratios):.1%}"])
    return text_table(["round", "whole, s", "stopped after, s", "percent done", "resume, s", "resume / whole"], rows)


def _run_until_percent(percent: float, words: list[str]) -> tuple[float, float]:
    """Run the command ``words``, and stop it when its progress has reached ``percent``.

    Return the progress in percent at which it was stopped, and the seconds it took until then.
    """
    start = time.monotonic()
    options = ("--progress", "json", "--progress-interval", "0.1", "--checkpoint-interval", "5")
    with subprocess.Popen(
        [*words, *options], env=command_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        reached = 0.0
        for line in process.stderr:
            if line.startswith("{"):
                reached = json.loads(line)["percent"] or 0.0
                if reached >= percent:
                    os.kill(process.pid, signal.SIGTERM)
                    break
        process.communicate()
    if process.returncode != EXIT_STOPPED:
        raise SystemExit(
            f"the job ended with status {process.returncode} before it could be stopped: use more or larger files"
        )
    return reached, time.monotonic() - start


if __name__ == "__main__":
    sys.exit(main())
