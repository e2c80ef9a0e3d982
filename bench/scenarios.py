"""The table of scenarios. Each one consists of a dataset, the file systems to copy between, and the ways to compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from bench import ways
from bench.ways import CP, DRM, PRM, PROCESSORS, RSYNC, Way, bare, pcopy, tool

SLOW = "slow"
"""The name of a type of file system: a directory of a tmpfs behind ``bench/latencyfs``, both for source and copy."""


class State(Enum):
    """The state before a run. The kind of measurement follows from it."""

    NOTHING = "no copy exists"
    COPIED = "a copy exists"
    REMOVED = "an existing copy is removed"
    CHANGED = "an existing copy is changed"
    READ = "the source is only read"
    PACKED = "an archive of the source exists"


Ways = Callable[[Sequence[str]], dict[str, Way]]
"""A function that returns the ways to compare, by label.

Its argument are the sets of options with which pcopy is measured.
"""


class Scenario(NamedTuple):
    """A scenario.

    Fields:

    - ``shape``: a dataset of ``bench.datasets.SHAPES``; ``slow_shape``, if not empty, replaces it on slow file systems.
    - ``kinds``: the types of file systems.
    - ``ways``: the ways to compare.
    - ``against``: the way to which the others are compared; if empty, the first one.
    - ``before``: the state before each run.
    """

    name: str
    title: str
    shape: str
    kinds: tuple[str, ...]
    ways: Ways
    against: str = "cp -a"
    before: State = State.NOTHING
    slow_shape: str = ""

    def shape_on(self, kind: str) -> str:
        """Return the name of the dataset on this type of file system."""
        return self.slow_shape if kind == SLOW and self.slow_shape else self.shape


def _pcopies(options: Sequence[str], more: str = "") -> dict[str, Way]:
    """Return the ways of pcopy with each set of options and ``more`` options."""
    return {f"pcopy {words}{more}": pcopy(f"{words}{more}") for words in options}


def _copies(options: Sequence[str]) -> dict[str, Way]:
    processes = {f"bare C, -p {PROCESSORS}": bare("-p", PROCESSORS)}
    return {"cp -a": CP, "rsync -a": RSYNC, **ways.present(), **_pcopies(options), **processes}


def _with_hard_links(options: Sequence[str]) -> dict[str, Way]:
    return {"cp -a": CP, "rsync -aH": Way(("rsync", "-aH", "SRC/", "DST")), **_pcopies(options)}


def _digests(options: Sequence[str]) -> dict[str, Way]:
    words = options[-1]
    how = ("", " --hash xxh3-128", " --hash blake3", " --verify --signature KEEP/sig")
    return {f"pcopy {words}{more}": pcopy(words + more) for more in how}


def _checkpoints(options: Sequence[str]) -> dict[str, Way]:
    words = options[-1]
    how = (" --checkpoint none", " --checkpoint KEEP/job --checkpoint-interval 5")
    return {f"pcopy {words}{more}": pcopy(words + more) for more in how}


def _again(options: Sequence[str]) -> dict[str, Way]:
    return {"rsync -a": RSYNC, **_pcopies(options, " --existing changed")}


def _removals(options: Sequence[str]) -> dict[str, Way]:
    removals = {f"prm -n {ranks}": Way((*PRM, "-q", "--yes", "-n", f"{ranks}", "DST")) for ranks in _ranks()}
    drm = {"drm": DRM} if ways.has("drm") else {}
    return {"rm -rf": Way(("rm", "-rf", "DST")), **drm, **removals}


def _ranks() -> list[int]:
    """Return the numbers of ranks for programs that are not measured with given options."""
    return sorted({1, PROCESSORS})


def _reading(options: Sequence[str]) -> dict[str, Way]:
    words = options[-1].split()
    create = Way((*tool("pverify"), "-q", *words, "--force", "--create", "KEEP/sig", "DST"), syncs=True)
    return {"cat": Way(("cat", "DST/large"), syncs=True), "pverify --create": create}


def _in_flight(options: Sequence[str], least: int = 16) -> dict[str, Way]:
    threads = {f"bare C, -t {number}": bare("-t", number) for number in (1, 16, 64) if number >= least}
    return {**_pcopies([options[-1], "-n 16"]), **threads}


def _in_flight_and_peers(options: Sequence[str]) -> dict[str, Way]:
    return {"cp -a": CP, "rsync -a": RSYNC, **_in_flight(options, least=1)}


_LOCAL = ("tmpfs", "ext4", "xfs")

COPYING = {
    scenario.name: scenario
    for scenario in (
        Scenario("huge", "One huge file", "huge", ("xfs",), _copies),
        Scenario("large", "One large file", "large", _LOCAL, _copies),
        Scenario("hundreds", "Some large files", "hundreds", ("xfs",), _copies),
        Scenario("heavy", "Files of very different sizes", "heavy", ("xfs",), _copies),
        Scenario("small", "Many small files", "small", _LOCAL, _copies),
        Scenario("start", "One small file: start-up time", "one", ("tmpfs",), _copies),
        Scenario("fdtree", "A deep tree with some files in each directory", "fdtree", ("xfs",), _copies),
        Scenario("directories", "Directories only", "directories", ("tmpfs", "xfs"), _copies),
        Scenario("links", "Hard links", "links", ("ext4",), _with_hard_links),
        Scenario("again", "A second copy without changes", "small", ("xfs",), _again, "rsync -a", State.COPIED),
        Scenario("remove", "Removing", "small", _LOCAL, _removals, "rm -rf", State.REMOVED),
        Scenario("digests", "Digests of small files", "small", ("xfs",), _digests, ""),
        Scenario("digest", "Digests of a large file", "huge", ("xfs",), _digests, ""),
        Scenario("reading", "Reading a large file", "huge", ("tmpfs",), _reading, "cat", State.COPIED),
        Scenario("checkpoints", "Checkpoints", "small", ("ext4",), _checkpoints, ""),
        Scenario("latency", "Slow operations, many directories", "20000-in-200", (SLOW,), _in_flight, ""),
        Scenario("latency-20", "Slow operations, some directories", "2000-in-20", (SLOW,), _in_flight_and_peers),
        Scenario("latency-1", "Slow operations, one directory", "2000-in-1", (SLOW,), _in_flight_and_peers),
    )
}
"""The scenarios of pcopy and prm, by name."""
