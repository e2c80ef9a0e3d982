"""The table of scenarios. A scenario consists of a dataset, the types of file systems to copy between, and the ways
(the commands) whose times are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from bench import ways
from bench.ways import CP, DRM_COMMAND, PRM_COMMAND, PROCESSORS, RSYNC, Way, bare_way, pcopy_way, program_command

SLOW_FILE_SYSTEM = "slow"
"""The name for a slow type of file system: source and copy are on a tmpfs, and commands access both through
``bench/latencyfs``, which delays each operation.
"""


class InitialState(Enum):
    """What exists before a run. It determines what the run does: create a copy, update one, read it, or remove it."""

    NOTHING = "no copy exists"
    COPIED = "a copy exists"
    REMOVED = "an existing copy is removed"
    CHANGED = "an existing copy is changed"
    READ = "the source is only read"
    PACKED = "an archive of the source exists"


WaysFunction = Callable[[Sequence[str]], dict[str, Way]]
"""Type of a function that returns the ways (commands whose times are compared), by label.

Its argument are the sets of options with which pcopy is measured.
"""


class BenchmarkScenario(NamedTuple):
    """A measurement of the table of scenarios: what is copied, on which file systems, by which commands.

    Fields:

    - ``shape``: a dataset of ``bench.datasets.DATASETS_BY_NAME``; ``slow_shape``, if not empty, replaces it on slow
      file systems.
    - ``kinds``: the types of file systems.
    - ``ways``: the ways (commands) to compare.
    - ``reference_way``: the way to which the others are compared; if empty, the first one.
    - ``initial_state``: the state before each run.
    """

    name: str
    title: str
    shape: str
    kinds: tuple[str, ...]
    ways: WaysFunction
    reference_way: str = "cp -a"
    initial_state: InitialState = InitialState.NOTHING
    slow_shape: str = ""

    def shape_on(self, kind: str) -> str:
        """Return the name of the dataset that is used on the type ``kind`` of file system."""
        return self.slow_shape if kind == SLOW_FILE_SYSTEM and self.slow_shape else self.shape


def _pcopy_ways(options: Sequence[str], more: str = "") -> dict[str, Way]:
    """Return a way (a command to measure) for each set of ``options`` of pcopy, by label; ``more`` options are added to
    all.
    """
    return {f"pcopy {words}{more}": pcopy_way(f"{words}{more}") for words in options}


def _copy_ways(options: Sequence[str]) -> dict[str, Way]:
    processes = {f"bare C, -p {PROCESSORS}": bare_way("-p", PROCESSORS)}
    return {
        "cp -a": CP,
        "rsync -a": RSYNC,
        **ways.available_parallel_copy_commands(),
        **_pcopy_ways(options),
        **processes,
    }


def _hard_link_ways(options: Sequence[str]) -> dict[str, Way]:
    rsync = Way(("rsync", "-aH", "SRC/", "DST"))
    return {"cp -a": CP, "rsync -aH": rsync, **ways.available_mpifileutils("dcp"), **_pcopy_ways(options)}


def _digest_ways(options: Sequence[str]) -> dict[str, Way]:
    words = options[-1]
    how = ("", " --hash xxh3-128", " --hash blake3", " --verify --signature KEEP/sig")
    return {f"pcopy {words}{more}": pcopy_way(words + more) for more in how}


def _checkpoint_ways(options: Sequence[str]) -> dict[str, Way]:
    words = options[-1]
    how = (" --checkpoint none", " --checkpoint KEEP/job --checkpoint-interval 5")
    return {f"pcopy {words}{more}": pcopy_way(words + more) for more in how}


def _unchanged_copy_ways(options: Sequence[str]) -> dict[str, Way]:
    return {
        "rsync -a": RSYNC,
        **ways.available_mpifileutils("dsync"),
        **_pcopy_ways(options, " --existing changed"),
    }


def _removal_ways(options: Sequence[str]) -> dict[str, Way]:
    removals = {
        f"prm -n {ranks}": Way((*PRM_COMMAND, "-q", "--yes", "-n", f"{ranks}", "DST")) for ranks in _rank_counts()
    }
    drm = {"drm": DRM_COMMAND} if ways.is_available("drm") else {}
    return {"rm -rf": Way(("rm", "-rf", "DST")), **drm, **removals}


def _rank_counts() -> list[int]:
    """Return the numbers of ranks with which programs are measured, unless the user of the benchmark gives options for
    them.
    """
    return sorted({1, PROCESSORS})


def _reading_ways(options: Sequence[str]) -> dict[str, Way]:
    words = options[-1].split()
    create = Way((*program_command("pverify"), "-q", *words, "--force", "--create", "KEEP/sig", "DST"), syncs=True)
    return {"cat": Way(("cat", "DST/large"), syncs=True), "pverify --create": create}


def _in_flight_ways(options: Sequence[str], least: int = 16) -> dict[str, Way]:
    threads = {f"bare C, -t {number}": bare_way("-t", number) for number in (1, 16, 64) if number >= least}
    return {**_pcopy_ways([options[-1], "-n 16"]), **threads}


def _in_flight_and_peer_ways(options: Sequence[str]) -> dict[str, Way]:
    peers = {**ways.available_mpifileutils("dcp"), **ways.available_mpifileutils("dcp -n 16")}
    return {"cp -a": CP, "rsync -a": RSYNC, **peers, **_in_flight_ways(options, least=1)}


_LOCAL_TYPES = ("tmpfs", "ext4", "xfs")

COPY_SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        BenchmarkScenario("huge", "One huge file", "huge", ("xfs",), _copy_ways),
        BenchmarkScenario("large", "One large file", "large", _LOCAL_TYPES, _copy_ways),
        BenchmarkScenario("hundreds", "Some large files", "hundreds", ("xfs",), _copy_ways),
        BenchmarkScenario("heavy", "Files of very different sizes", "heavy", ("xfs",), _copy_ways),
        BenchmarkScenario("small", "Many small files", "small", _LOCAL_TYPES, _copy_ways),
        BenchmarkScenario("start", "One small file: start-up time", "one", ("tmpfs",), _copy_ways),
        BenchmarkScenario("fdtree", "A deep tree with some files in each directory", "fdtree", ("xfs",), _copy_ways),
        BenchmarkScenario("directories", "Directories only", "directories", ("tmpfs", "xfs"), _copy_ways),
        BenchmarkScenario("links", "Hard links", "links", ("ext4",), _hard_link_ways),
        BenchmarkScenario(
            "again",
            "A second copy without changes",
            "small",
            ("xfs",),
            _unchanged_copy_ways,
            "rsync -a",
            InitialState.COPIED,
        ),
        BenchmarkScenario("remove", "Removing", "small", _LOCAL_TYPES, _removal_ways, "rm -rf", InitialState.REMOVED),
        BenchmarkScenario("digests", "Digests of small files", "small", ("xfs",), _digest_ways, ""),
        BenchmarkScenario("digest", "Digests of a large file", "huge", ("xfs",), _digest_ways, ""),
        BenchmarkScenario(
            "reading", "Reading a large file", "huge", ("tmpfs",), _reading_ways, "cat", InitialState.COPIED
        ),
        BenchmarkScenario("checkpoints", "Checkpoints", "small", ("ext4",), _checkpoint_ways, ""),
        BenchmarkScenario(
            "latency", "Slow operations, many directories", "20000-in-200", (SLOW_FILE_SYSTEM,), _in_flight_ways, ""
        ),
        BenchmarkScenario(
            "latency-20",
            "Slow operations, some directories",
            "2000-in-20",
            (SLOW_FILE_SYSTEM,),
            _in_flight_and_peer_ways,
        ),
        BenchmarkScenario(
            "latency-1", "Slow operations, one directory", "2000-in-1", (SLOW_FILE_SYSTEM,), _in_flight_and_peer_ways
        ),
    )
}
"""The scenarios of pcopy and prm, by name."""
