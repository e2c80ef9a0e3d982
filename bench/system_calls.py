"""Count pcopy's system calls per small file and compare them with the budgets in the design.

The calls of a run with one rank are counted by ``strace -f``: once for a tree of small files, and once for the same
tree without the files. The difference is divided by the number of files, so that calls for the start and for
directories do not count. Three kinds of runs are measured: a first copy, a second one that changes nothing, and one
that replaces everything. The exit status is 1 if a type of call exceeds its budget.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench import datasets
from bench.timing import PCOPY_COMMAND, command_environment, text_table

SOURCE_CALLS = {"open (source)": 1, "read": 1, "flistxattr": 1, "fstat": 1, "close": 1}
"""Calls per file of the C backend for the source."""
TARGET_CALLS = {"open (target)": 1, "write": 1, "fchmod": 1, "utimensat": 1, "close": 1}
"""Calls per file of the C backend for the target.

Source and new files have the same owner, so that no chown is necessary.
"""


class MeasuredRun(NamedTuple):
    """A run of pcopy whose system calls are counted: with ``options``, over an existing copy.

    ``budget``: the permitted number of calls for one regular file without extended attributes, by type.
    """

    name: str
    options: tuple[str, ...]
    budget: Counter[str]


MEASURED_RUNS = (
    MeasuredRun("a first copy", (), Counter({"stat": 1}) + Counter(SOURCE_CALLS) + Counter(TARGET_CALLS)),
    MeasuredRun(
        "nothing changed (--existing changed)", ("--existing", "changed"), Counter({"stat": 2, "llistxattr": 2})
    ),
    MeasuredRun("nothing newer (--existing newer)", ("--existing", "newer"), Counter({"stat": 2})),
    MeasuredRun(
        "all replaced (--existing replace)",
        ("--existing", "replace"),
        Counter({"stat": 3, "fstat": 1, "rename": 1}) + Counter(SOURCE_CALLS) + Counter(TARGET_CALLS),
    ),
)
"""The runs that are measured, with their budgets.

With ``changed``, unchanged files get missing attributes, so the attribute names of both sides are listed. A file that
is replaced is examined before the rename and after it, to check that the name refers to the new file.
"""

SECONDS_UNTIL_ITEMS_ARE_OLD = 6
"""Seconds after which pcopy recognises the items that a run has created as those of an earlier run."""

PERMITTED_EXCESS = 0.05
"""Maximum number of calls per file, beyond the budget, that is accepted: batches and messages add a few calls."""

CALLS_PER_BATCH = Counter({"fstat": 6})
"""Additional calls of a batch for each directory of files: both directories are opened again and their status is
read.
"""

PERIODIC_CALLS = frozenset({"epoll_wait", "clock_gettime", "clock_nanosleep", "read (wake)"})
"""Calls that a rank makes every few milliseconds, whatever it does.

The more time a file takes, as under strace, the more of them there are for each file.
"""

_CALL_PATTERN = re.compile(r"^\d+ +(\w+)\((.*)")
_CALL_TYPE_ALIASES = {
    "newfstatat": "stat",
    "statx": "stat",
    "renameat": "rename",
    "renameat2": "rename",
    "pread64": "read",
    "pwrite64": "write",
}
"""System calls that are counted as if they were another one."""


def main() -> int:
    """Count the calls of all runs, print the tables, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.system_calls", description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--per-directory", type=int, default=100)
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"), help="a directory on a tmpfs")
    arguments = parser.parse_args()
    files, a_directory = arguments.files, arguments.per_directory
    over = False
    with tempfile.TemporaryDirectory(prefix="pcopy-bench-", dir=arguments.memory) as name:
        base = Path(name)
        for kind, dataset in (
            ("full", datasets.small_files(files, 4096, a_directory)),
            ("bare", datasets.directories_only(files, a_directory)),
        ):
            (base / kind / "source").mkdir(parents=True)
            dataset.make(base / kind / "source")
        for run in MEASURED_RUNS:
            bare, full = _calls_of_run(run, base / "bare"), _calls_of_run(run, base / "full")
            print(f"{run.name}: {files:,} files, {a_directory} a directory")
            calls = Counter({call: full[call] - bare[call] for call in full | bare})
            over |= _print_table_of_run(
                run, calls, files, {call: number / a_directory for call, number in CALLS_PER_BATCH.items()}
            )
            time.sleep(SECONDS_UNTIL_ITEMS_ARE_OLD)
    return int(over)


def _print_table_of_run(run: MeasuredRun, calls: Counter[str], files: int, added: dict[str, float]) -> bool:
    """Print the table of one run. Return True if a type of call exceeds its budget.

    Args:
        calls: the counted calls by type.
        files: the number of files.
        added: calls per file that are added by batches, by type; they are accepted beyond the budget.
    """
    per_file = {call: calls[call] / files for call in (*run.budget, *sorted(calls.keys() - run.budget.keys()))}
    most = {call: run.budget[call] + max(PERMITTED_EXCESS, added.get(call, 0)) for call in per_file}
    rows = [
        [call, f"{made:.3f}", str(run.budget[call]), _verdict_text(call, made, most[call])]
        for call, made in per_file.items()
        if call in run.budget or abs(made) >= 0.001
    ]
    rows.append(["all", f"{sum(per_file.values()):.3f}", str(run.budget.total()), ""])
    print(f"{text_table(['calls per file', 'made', 'budget', ''], rows)}\n")
    return any(row[3] == "over" for row in rows)


def _verdict_text(call: str, made: float, most: float) -> str:
    """Return the text of the last column: "over" if the number of calls exceeds ``most``."""
    if call in PERIODIC_CALLS:
        return "by the clock"
    return "over" if made > most else ""


def _calls_of_run(run: MeasuredRun, base: Path) -> Counter[str]:
    """Return the number of system calls of one run with one rank, by type.

    ``base`` contains the dataset, and the existing copy.
    """
    trace = base / "trace"
    command = [
        *PCOPY_COMMAND,
        "-q",
        "-T",
        "-n",
        "1",
        "--in-flight",
        "1",
        *run.options,
        str(base / "source"),
        str(base / "copy"),
    ]
    subprocess.run(
        ["strace", "-f", "-qq", "-s", "0", "-e", "signal=none", "-o", str(trace), *command],
        check=True,
        env=command_environment(),
        stdout=subprocess.DEVNULL,
    )
    with open(trace, errors="replace") as lines:
        return Counter(_call_types(lines))


def _call_types(lines: Iterator[str]) -> Iterator[str]:
    """Yield the type of each call in the lines of a trace."""
    for line in lines:
        match = _CALL_PATTERN.match(line)
        if match is not None:  # else it is the second half of a call that another thread interrupted
            yield _call_type(match[1], match[2])


def _call_type(name: str, rest: str) -> str:
    """Return the type under which a system call is counted. ``rest`` is the part of its line after ``name``: arguments
    and result.
    """
    if name in ("open", "openat", "openat2"):
        if "O_DIRECTORY" in rest:
            return "open (directory)"
        return "open (target)" if "O_CREAT" in rest else "open (source)"
    if name == "newfstatat" and "AT_EMPTY_PATH" in rest:
        return "fstat"
    if name == "read" and "EAGAIN" in rest:
        return "read (wake)"  # of the descriptor by which the C backend wakes Python; a file never returns EAGAIN
    return _CALL_TYPE_ALIASES.get(name, name)


if __name__ == "__main__":
    sys.exit(main())
