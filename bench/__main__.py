"""Compare pcopy with other programs that copy, and with the bare system calls: ``python -m bench``.

A *way* is a command whose time is measured; it copies, removes, lists ... a tree. The ways take turns, in another order
in each round; the source is in the page cache. Before the rounds, each way runs once untimed, and its copy is checked:
rsync must find no difference from the source. The measured time ends when the copy is on storage: after commands that
do not sync, ``sync -f`` is run and timed, too. The file systems are in memory. Mounting them requires root.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from bench import filesystems, ways
from bench.datasets import DATASETS_BY_NAME, Dataset
from bench.latency import SlowMount, can_mount, mounted_slow
from bench.scenarios import SLOW_FILE_SYSTEM, BenchmarkScenario, InitialState
from bench.suite import SCENARIOS
from bench.system_calls import SECONDS_UNTIL_ITEMS_ARE_OLD
from bench.timing import CHECKOUT_DIRECTORY, RunTime, comparison_table, measure_commands
from bench.turns import measure_in_turns, remove_trees
from bench.ways import PROCESSORS, Way

TINY_SCALE = 0.002
"""The factor for the sizes of the datasets with ``--scale tiny``; with 1, a dataset has some GiB."""

CACHE_EXPIRY_MARGIN_SECONDS = 0.2
"""Seconds to wait, beyond the timeout of cached names and attributes, until Linux has certainly dropped them."""

NAME_OF_EXISTING_COPY = "there"
"""The name of the copy that exists before the runs, in scenarios that start with one."""

_STATES_WITH_COPY = (InitialState.NOTHING, InitialState.COPIED, InitialState.PACKED)
"""States before a run (``InitialState``) in which the run creates a copy, which must be equal to its source."""

_COMPARE_COMMAND = ("rsync", "-aHAXn", "--checksum", "--modify-window=-1", "--itemize-changes", "--delete")
"""The command that compares a copy with its source."""


class MeasurementDirectories(NamedTuple):
    """The directories of a measurement.

    Fields:
    - ``source``: the path of the dataset, as commands get it.
    - ``copies``: the directory in which copies are created, as commands get it.
    - ``backing``: paths of the same two directories. They do not lead through the slow file system, if there is one.
    - ``mounts``: the mounts of the slow file system.
    """

    source: Path
    copies: Path
    backing: tuple[Path, Path]
    mounts: tuple[SlowMount, ...] = ()


def main() -> int:
    """Measure the scenarios that the command line selects, print the results, and return the exit status."""
    arguments = _command_line_parser().parse_args()
    filesystems.exit_on_sigterm()
    if arguments.peers is not None:
        ways.compare_only(arguments.peers)
    missing = ways.missing_parallel_copy_programs()
    print(f"{PROCESSORS} processors; not installed: {', '.join(missing) or 'none'}", flush=True)
    options = arguments.pcopy or [f"-n {ranks}" for ranks in sorted({1, PROCESSORS})]
    about = {**_measurement_conditions(arguments), "absent": missing}
    for name in arguments.only or SCENARIOS:
        scenario = SCENARIOS[name]
        for kind in [kind for kind in scenario.kinds if not arguments.fs or kind in arguments.fs]:
            if kind == SLOW_FILE_SYSTEM and not can_mount():
                print(f"\n{scenario.title}: left out, it takes root, gcc, pkg-config and libfuse3-dev", flush=True)
                continue
            result = _measure_scenario(scenario, kind, options, arguments)
            if arguments.json:
                _store_result(arguments.json, {**result, "about": about})
    return 0


def _store_result(file: Path, result: dict[str, object]) -> None:
    """Write ``result`` to the JSON ``file``. It replaces an older result of the same scenario and file system."""
    results: list[dict[str, object]] = json.loads(file.read_text()) if file.exists() else []
    positions = {(each["scenario"], each["fs"]): at for at, each in enumerate(results)}
    at = positions.get((result["scenario"], result["fs"]), len(results))
    results[at : at + 1] = [result]
    file.write_text("[\n" + ",\n".join(map(json.dumps, results)) + "\n]\n")


def _command_line_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)}")
    parser.add_argument(
        "--fs", nargs="+", choices=[*filesystems.FILE_SYSTEM_TYPES, SLOW_FILE_SYSTEM], help="only on these"
    )
    scale = "size of the datasets, or tiny (default 1: some GiB of memory)"
    parser.add_argument(
        "--scale", type=lambda text: TINY_SCALE if text == "tiny" else float(text), default=1.0, help=scale
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pcopy", action="append", metavar="OPTIONS", help="of pcopy, e.g. '-n 4'; may be given again")
    peers = "other programs to compare with, if they are installed (default: all that are)"
    parser.add_argument("--peers", nargs="*", metavar="PROGRAM", help=peers)
    parser.add_argument("--delay", type=int, default=1000, help="of slow operations, microseconds (default 1000)")
    timeouts = "seconds for which Linux caches names and attributes of a slow file system (default 1)"
    parser.add_argument("--timeouts", type=float, default=1, help=timeouts)
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"), help="a directory on a tmpfs")
    parser.add_argument("--json", type=Path, help="add all times to this file, for python -m bench.page")
    return parser


def _measurement_conditions(arguments: argparse.Namespace) -> dict[str, object]:
    """Return how the measurement was made, for the JSON file: command, date, commit, machine, load and parameters."""
    cpu = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    words = [word for at, word in enumerate(sys.argv[1:]) if not {word, sys.argv[at]} & {"--json", "--memory"}]
    command = ["git", "-C", str(CHECKOUT_DIRECTORY), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()
    return {
        "command": shlex.join(["python", "-m", "bench", *words]),
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit,
        "machine": f"{PROCESSORS} processors ({cpu[1] if cpu else platform.machine()}), "
        f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') >> 30} GiB of memory",
        "load": round(os.getloadavg()[0], 1),
        "system": f"Linux {platform.release()}, Python {platform.python_version()}",
        "scale": arguments.scale,
        "rounds": arguments.rounds,
        "delay": arguments.delay,
    }


def _measure_scenario(
    scenario: BenchmarkScenario, kind: str, options: Sequence[str], arguments: argparse.Namespace
) -> dict[str, object]:
    """Measure one scenario on file systems of the type ``kind``, print the times, and return them for the JSON file.

    Args:
        scenario: the scenario.
        options: sets of options with which pcopy is measured.
        arguments: the parsed command line of the benchmark.
    """
    dataset = DATASETS_BY_NAME[scenario.shape_on(kind)](arguments.scale)
    compare = scenario.ways(options)
    against = scenario.reference_way or next(iter(compare))
    with _prepared_directories(kind, dataset, arguments) as places:
        if scenario.initial_state is InitialState.COPIED:
            _make_copy(*places.backing)
            time.sleep(SECONDS_UNTIL_ITEMS_ARE_OLD)
        runs = {name: _WayRuns(scenario, way, places, arguments) for name, way in compare.items()}
        for run in runs.values():
            run.run_and_check()
        done: dict[str, Callable[[], RunTime]] = {name: run.run_once for name, run in runs.items()}
        times = measure_in_turns(done, arguments.rounds)
    where = f"operations of {arguments.delay} microseconds" if kind == SLOW_FILE_SYSTEM else kind
    print(f"\n{scenario.title}: {dataset.label}, {where}\n{comparison_table(times, against)}", flush=True)
    for name, run in runs.items():
        if run.differences:
            print(
                f"{name}: the copy differs from its source in {run.differences} items, as {run.example!r}", flush=True
            )
    return {
        "scenario": scenario.name,
        "title": scenario.title,
        "dataset": dataset.label,
        "files": dataset.files,
        "bytes": dataset.size,
        "fs": kind,
        "before": scenario.initial_state.value,
        "against": against,
        "ways": {name: run.result(times[name]) for name, run in runs.items()},
    }


def _set_old_times(tree: Path) -> None:
    """Set all modification times to an old one.

    rsync treats times within one second as equal, and so would copy nothing of a tree that has just been created.
    """
    subprocess.run(["find", tree, "-exec", "touch", "-h", "-d", "2020-02-02 02:02:02.123456789", "{}", "+"], check=True)


def _make_copy(source: Path, base: Path, name: str = NAME_OF_EXISTING_COPY) -> None:
    """Copy ``source`` to ``base / name`` with cp, and sync the file system."""
    subprocess.run(["cp", "-aT", source, base / name], check=True)
    remove_trees(base / "nothing")


@contextmanager
def _prepared_directories(
    kind: str, dataset: Dataset, arguments: argparse.Namespace
) -> Iterator[MeasurementDirectories]:
    """Context manager: create the dataset, and yield the directories of the measurement; remove all at the end.

    Source and copies are on two file systems of the type ``kind``, so that no copy is a clone; with tmpfs, in two
    directories. ``arguments`` is the parsed command line of the benchmark.
    """
    with ExitStack() as stack:
        size = filesystems.image_size(dataset.size, dataset.files + dataset.directories)
        real = "tmpfs" if kind == SLOW_FILE_SYSTEM else kind
        bases = [stack.enter_context(filesystems.mounted_file_system(real, size, arguments.memory)) for _ in range(2)]
        for name, base in zip(("source", "copies"), bases, strict=True):
            (base / name).mkdir()
        source, base = bases[0] / "source", bases[1] / "copies"
        dataset.make(source)
        _set_old_times(source)
        if kind != SLOW_FILE_SYSTEM:
            yield MeasurementDirectories(source, base, (source, base))
            return
        seconds = arguments.timeouts
        mounts = [
            stack.enter_context(mounted_slow(below, entry_timeout=seconds, attribute_timeout=seconds))
            for below in (source, base)
        ]
        yield MeasurementDirectories(mounts[0].path, mounts[1].path, (source, base), tuple(mounts))


class _WayRuns:
    """Runs one way (a command whose time is measured) repeatedly.

    Each copy has its own name, and is removed before the next run, outside of the timed period.
    """

    def __init__(
        self, scenario: BenchmarkScenario, way: Way, places: MeasurementDirectories, arguments: argparse.Namespace
    ) -> None:
        self._initial_state = scenario.initial_state
        self._way = way
        self._places = places
        self._number = 0
        self._removed: Path | None = None
        self._delay = arguments.delay
        self._cache_timeout = arguments.timeouts + CACHE_EXPIRY_MARGIN_SECONDS
        self.operations: list[int] = []
        self.most_at_once: list[int] = []
        self.differences = 0
        self.example = ""

    def run_and_check(self) -> None:
        """Run the way once and check the copy.

        Raise ``SystemExit`` if the copy differs from the source. For ways that need not be faithful (some other
        programs), differences are only counted.
        """
        copy = self._run()[1]
        if self._initial_state is InitialState.REMOVED and os.path.lexists(copy):
            raise SystemExit(f"{self._way.displayed()}: not everything was removed")
        if self._initial_state in _STATES_WITH_COPY:
            words = [*_COMPARE_COMMAND, f"{self._places.backing[0]}/", f"{copy}/"]
            lines = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
            if lines and self._way.must_be_faithful:
                raise SystemExit(f"{self._way.displayed()}: the copy differs from its source:\n{lines[:20]}")
            self.differences, self.example = len(lines), lines[0] if lines else ""
        self._remove_copy(copy)

    def run_once(self) -> RunTime:
        """Run the way once and return its time. On slow file systems, also count the operations of this run."""
        mounts = self._places.mounts
        if mounts:
            time.sleep(self._cache_timeout)
        for mount in mounts:
            mount.set_delays(all=self._delay)
        before = self._operation_counts()
        taken, copy = self._run()
        self.operations.append((self._operation_counts() - before).total())
        self.most_at_once.append(max((mount.max_concurrent_operations() for mount in mounts), default=0))
        self._remove_copy(copy)
        return taken

    def result(self, times: list[RunTime]) -> dict[str, object]:
        """Return the results of this way for the JSON file."""
        result: dict[str, object] = {
            "command": self._way.displayed(),
            "wall": [round(each.wall, 4) for each in times],
            "processor": [round(each.processor, 4) for each in times],
            "differences": self.differences,
        }
        if self._places.mounts:
            result |= {"operations": self.operations, "most at once": self.most_at_once}
        return result

    def _run(self) -> tuple[RunTime, Path]:
        """Prepare what must exist before a run of this scenario, and run the way once.

        Return the time, and the path of the copy (not through the slow file system, if there is one).
        """
        source, base = self._places.backing
        (base / "keep").mkdir(exist_ok=True)
        self._number += 1
        name = NAME_OF_EXISTING_COPY if self._initial_state is InitialState.COPIED else f"copy{id(self)}-{self._number}"
        if self._initial_state in (InitialState.REMOVED, InitialState.CHANGED):
            _make_copy(source, base, name)
        if self._initial_state is InitialState.PACKED:
            (base / name).mkdir()
            subprocess.run(["tar", "--format=pax", "-cf", base / "keep" / "tar", "-C", source, "."], check=True)
        return measure_commands(*self._way.commands(self._places.source, self._places.copies / name)), base / name

    def _operation_counts(self) -> Counter[str]:
        """Return the number of operations of each type on all slow file systems since their mounts."""
        return sum((mount.operation_counts() for mount in self._places.mounts), Counter())

    def _remove_copy(self, copy: Path) -> None:
        """Remove the copy of a run, and the files that the run put next to it; keep the copy if all runs share it."""
        remove_trees(copy.with_name("keep"), *([] if self._initial_state is InitialState.COPIED else [copy]))


if __name__ == "__main__":
    sys.exit(main())
