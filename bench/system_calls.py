"""Counts pcopy's system calls per small file and holds them against the budget in the design.

The calls of one rank (``strace -f``) over a tree of small files, less those over the same tree without the files,
divided by the number of files: start-up and directories cancel out. Exits with 1 if a kind of call is over its budget.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bench import datasets
from bench.timing import PCOPY, environment, table

BUDGET = {
    "stat (scan)": 1,
    "open (source)": 1,
    "open (target)": 1,
    "fstat": 2,
    "read": 1,
    "flistxattr": 1,
    "write": 1,
    "fchown": 1,
    "fchmod": 1,
    "utimensat": 1,
    "close": 2,
}
"""Calls per file of one regular file without extended attributes."""

SLACK = 0.05
"""Calls per file that batches and messages may add."""

BY_THE_CLOCK = frozenset({"epoll_wait", "clock_nanosleep"})
"""Calls that a rank makes every few milliseconds: more per file the slower each file is, as under strace."""

_CALL = re.compile(r"^\d+ +(\w+)\((.*)")
_SAME = {"newfstatat": "stat (scan)", "statx": "stat (scan)", "pread64": "read", "pwrite64": "write"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.system_calls", description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--per-directory", type=int, default=100)
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"), help="a directory on a tmpfs")
    arguments = parser.parse_args()
    files, a_directory = arguments.files, arguments.per_directory
    with tempfile.TemporaryDirectory(prefix="pcopy-bench-", dir=arguments.memory) as name:
        base = Path(name)
        full = _count(datasets.small_files(files, 4096, a_directory), base / "full")
        bare = _count(datasets.directories_only(files, a_directory), base / "bare")
    per_file = {call: (full[call] - bare[call]) / files for call in (*BUDGET, *sorted(full.keys() - BUDGET.keys()))}
    rows = [
        [call, f"{calls:.3f}", str(BUDGET.get(call, 0)), _verdict(call, calls)]
        for call, calls in per_file.items()
        if call in BUDGET or abs(calls) >= 0.001
    ]
    total = sum(per_file.values())
    rows.append(["all", f"{total:.3f}", str(sum(BUDGET.values())), ""])
    print(f"{files:,} files, {a_directory} a directory\n{table(['calls per file', 'made', 'budget', ''], rows)}")
    return int(any(row[3] == "over" for row in rows))


def _verdict(call: str, calls: float) -> str:
    if call in BY_THE_CLOCK:
        return "by the clock"
    return "over" if calls > BUDGET.get(call, 0) + SLACK else ""


def _count(dataset: datasets.Dataset, base: Path) -> Counter[str]:
    """The system calls of a copy of ``dataset`` by one rank."""
    source = base / "source"
    source.mkdir(parents=True)
    dataset.make(source)
    trace = base / "trace"
    command = [*PCOPY, "-q", "-T", "-n", "1", str(source), str(base / "copy")]
    subprocess.run(
        ["strace", "-f", "-qq", "-s", "0", "-e", "signal=none", "-o", str(trace), *command],
        check=True,
        env=environment(),
        stdout=subprocess.DEVNULL,
    )
    with open(trace, errors="replace") as lines:
        return Counter(_kinds(lines))


def _kinds(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        match = _CALL.match(line)
        if match is not None:  # else it is the second half of a call that another thread interrupted
            yield _kind(match[1], match[2])


def _kind(name: str, rest: str) -> str:
    """What the call is to the budget; ``rest`` are its arguments and result."""
    if name in ("open", "openat", "openat2"):
        if "O_DIRECTORY" in rest:
            return "open (directory)"
        return "open (target)" if "O_CREAT" in rest else "open (source)"
    if name == "newfstatat" and "AT_EMPTY_PATH" in rest:
        return "fstat"
    return _SAME.get(name, name)


if __name__ == "__main__":
    sys.exit(main())
