"""Times pcopy against cp and rsync, on file systems in memory, and pcopy's start-up.

The tools take turns. The source is in the page cache. Before each run the old copy is removed and the file system
synced; neither counts. A copy is over when it is on storage: pcopy syncs by itself, after the others ``sync -f`` is run
and counted.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from bench import datasets, filesystems
from bench.timing import PCOPY, Time, compared, timed
from bench.turns import in_turns, parser_for, remove

AGAINST = "cp -a"

_ORACLE = ("rsync", "-aHAXn", "--checksum", "--modify-window=-1", "--itemize-changes", "--delete")


class Tool(NamedTuple):
    """``words`` come before the two directories; ``contents`` is what makes the tool copy what is in the source."""

    words: tuple[str, ...]
    contents: str = ""
    syncs: bool = False

    def commands(self, source: Path, target: Path) -> list[list[str]]:
        commands = [[*self.words, f"{source}{self.contents}", str(target)]]
        if not self.syncs:
            commands.append(["sync", "-f", str(target)])
        return commands


TOOLS = {
    "pcopy -n 1": Tool((*PCOPY, "-q", "-T", "-n", "1"), syncs=True),
    "pcopy -n 2": Tool((*PCOPY, "-q", "-T", "-n", "2"), syncs=True),
    AGAINST: Tool(("cp", "-aT")),
    "rsync -a": Tool(("rsync", "-a"), contents="/"),
}


def main() -> int:
    arguments = _arguments()
    filesystems.end_on_sigterm()
    print(f"{len(os.sched_getaffinity(0))} processors")
    for kind in arguments.fs:
        for dataset in datasets.chosen(arguments):
            with ExitStack() as stack:
                size = filesystems.room_for(dataset.size, dataset.files)
                target = stack.enter_context(filesystems.mounted(kind, size, arguments.memory))
                where = target
                if arguments.source == "tmpfs" and kind != "tmpfs":
                    where = stack.enter_context(filesystems.mounted("tmpfs", size, arguments.memory))
                source = where / "source"
                source.mkdir()
                dataset.make(source)
                times = _take_turns(source, target / "copy", arguments.tools, arguments.rounds)
            between = "" if where is target else "tmpfs to "
            print(f"\n{dataset.label}, {between}{kind}\n{compared(times, AGAINST)}", flush=True)
    if arguments.start_up:
        print(f"\nstart-up\n{_start_up(arguments.start_up, arguments.memory)}")
    return 0


def _arguments() -> argparse.Namespace:
    parser = parser_for("bench.copy_peers", __doc__, ["ext4", "tmpfs"])
    parser.add_argument("--source", choices=["same", "tmpfs"], default="same", help="where the source is")
    parser.add_argument("--tools", nargs="+", choices=list(TOOLS), default=list(TOOLS))
    parser.add_argument("--start-up", type=int, default=10, metavar="RUNS", help="of the start-up; 0: none")
    arguments = parser.parse_args()
    if AGAINST not in arguments.tools:
        arguments.tools.append(AGAINST)
    return arguments


def _take_turns(source: Path, target: Path, tools: list[str], rounds: int) -> dict[str, list[Time]]:
    """The times of ``rounds`` copies by each of the tools, after one that is not timed but verified.

    That one also touches all the memory that the image will take, whose first use is slow.
    """
    ways = {name: TOOLS[name].commands(source, target) for name in tools}
    for name in tools:
        remove(target)
        timed(*ways[name])
        _verify(source, target, name)
    return in_turns(ways, rounds, lambda: remove(target))


def _verify(source: Path, target: Path, name: str) -> None:
    told = subprocess.run([*_ORACLE, f"{source}/", f"{target}/"], check=True, capture_output=True, text=True).stdout
    if told:
        raise SystemExit(f"{name}: the copy is not like its source:\n{told[:2000]}")


def _start_up(runs: int, memory: Path) -> str:
    """A table of what pcopy takes when it has next to nothing to do, and Python alone to compare."""
    with tempfile.TemporaryDirectory(prefix="pcopy-bench-", dir=memory) as name:
        base = Path(name)
        (base / "source").write_bytes(b"small")
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "pcopy --version": [*PCOPY, "--version"],
            "one small file, -n 2": [*PCOPY, "-q", "-n", "2", str(base / "source"), str(base / "copy")],
        }
        timed(commands["one small file, -n 2"])  # writes the byte code, once
        ways = {label: [words] for label, words in commands.items()}
        times = in_turns(ways, runs, lambda: (base / "copy").unlink(missing_ok=True))
    return compared(times, "python -c pass")


if __name__ == "__main__":
    sys.exit(main())
