"""The scenarios of ``prm``, ``pverify``, ``pwalk``, ``pchmod`` and ``ptar``. Each program is compared with the programs
that it replaces, such as rm or find.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.scenarios import COPY_SCENARIOS, SLOW_FILE_SYSTEM, BenchmarkScenario, InitialState, WaysFunction
from bench.ways import PROCESSORS, Way, available_mpifileutils, program_command

_RANKS = sorted({1, PROCESSORS})
_TREES = ("tmpfs", "ext4", SLOW_FILE_SYSTEM)
_MODE = "u+rwX,go-rwx"


def _ways_of_program(name: str, words: str, *, syncs: bool = True, ranks: Sequence[int] = _RANKS) -> dict[str, Way]:
    """Return the ways (commands to measure) that run one of this project's programs, one for each number of ranks.

    Args:
        name: the program.
        words: its arguments, with placeholders for paths.
        syncs: True if the result is on storage when the program ends.
        ranks: the numbers of ranks.
    """
    return {
        f"{name} -n {number}": Way((*program_command(name), "-n", f"{number}", *words.split()), syncs=syncs)
        for number in ranks
    }


def _way_without_sync(*words: str) -> Way:
    """Return the way (a command to measure) for a command that writes nothing, so that no sync is necessary."""
    return Way(words, syncs=True)


def _walk_ways(_: Sequence[str]) -> dict[str, Way]:
    return {
        "find": _way_without_sync("find", "SRC"),
        **available_mpifileutils("dwalk"),
        **_ways_of_program("pwalk", "--progress none SRC"),
    }


def _size_filter_ways(_: Sequence[str]) -> dict[str, Way]:
    find = _way_without_sync("find", "SRC", "-size", "+1k")
    return {
        "find": find,
        **available_mpifileutils("dfind"),
        **_ways_of_program("pwalk", "--progress none SRC -size +1k"),
    }


def _summary_ways(_: Sequence[str]) -> dict[str, Way]:
    return {
        "du": _way_without_sync("du", "-s", "SRC"),
        **available_mpifileutils("dwalk"),
        **_ways_of_program("pwalk", "--progress none --summary SRC"),
    }


def _mode_ways(_: Sequence[str]) -> dict[str, Way]:
    chmod = _way_without_sync("chmod", "-R", _MODE, "DST")
    return {"chmod -R": chmod, **available_mpifileutils("dchmod"), **_ways_of_program("pchmod", f"-q {_MODE} DST")}


def _owner_ways(_: Sequence[str]) -> dict[str, Way]:
    return {
        "chown -R": _way_without_sync("chown", "-R", "1000:1000", "DST"),
        **_ways_of_program("pchmod", "-q --owner 1000:1000 DST"),
    }


def _metadata_comparison_ways(_: Sequence[str]) -> dict[str, Way]:
    rsync = _way_without_sync("rsync", "-aHAXn", "--delete", "--itemize-changes", "SRC/", "DST")
    ours = _ways_of_program("pverify", "-q --compare type,size,mtime,mode,owner,acl,xattr SRC DST")
    return {"rsync -n": rsync, **available_mpifileutils("dcmp -l"), **ours}


def _content_comparison_ways(_: Sequence[str]) -> dict[str, Way]:
    diff = _way_without_sync("diff", "-rq", "SRC", "DST")
    return {
        "diff -rq": diff,
        **available_mpifileutils("dcmp"),
        **_ways_of_program("pverify", "-q --compare content SRC DST"),
    }


def _archive_ways(_: Sequence[str]) -> dict[str, Way]:
    tar = Way(("tar", "--format=pax", "--xattrs", "--acls", "-cf", "KEEP/tar", "-C", "SRC", "."))
    return {
        "tar -c": tar,
        **available_mpifileutils("dtar -c"),
        **_ways_of_program("ptar", "-q -c -f KEEP/tar -C SRC .", syncs=False),
    }


def _unpack_ways(_: Sequence[str]) -> dict[str, Way]:
    tar = Way(("tar", "--xattrs", "--acls", "-xpf", "KEEP/tar", "-C", "DST"))
    return {
        "tar -x": tar,
        **available_mpifileutils("dtar -x"),
        **_ways_of_program("ptar", "-q -x -f KEEP/tar -C DST", syncs=False),
    }


def _many_items_scenario(
    name: str, title: str, kinds: tuple[str, ...], compare: WaysFunction, against: str, before: InitialState
) -> BenchmarkScenario:
    """Return a scenario with very many items that are only examined or changed, so that the time of a program's start
    hardly counts.

    Args:
        name, title: its name for the command line, and its title on the page.
        kinds: the types of file systems.
        compare: returns the ways (commands) to compare.
        against: the label of the way to which the others are compared.
        before: what exists before each run.
    """
    return BenchmarkScenario(name, title, "many", kinds, compare, against, before, slow_shape="small")


TOOL_SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        _many_items_scenario("walk", "Walking: names", _TREES, _walk_ways, "find", InitialState.READ),
        _many_items_scenario(
            "walk-sizes", "Walking: files larger than 1 KiB", _TREES, _size_filter_ways, "find", InitialState.READ
        ),
        _many_items_scenario("summary", "Walking: totals", _TREES, _summary_ways, "du", InitialState.READ),
        _many_items_scenario("chmod", "Changing modes", _TREES, _mode_ways, "chmod -R", InitialState.CHANGED),
        _many_items_scenario("chown", "Changing owners", _TREES, _owner_ways, "chown -R", InitialState.CHANGED),
        BenchmarkScenario(
            "compare", "Comparing metadata", "small", _TREES, _metadata_comparison_ways, "rsync -n", InitialState.COPIED
        ),
        BenchmarkScenario(
            "contents", "Comparing contents", "small", _TREES, _content_comparison_ways, "diff -rq", InitialState.COPIED
        ),
        BenchmarkScenario(
            "pack", "Creating an archive", "small", ("tmpfs", "ext4"), _archive_ways, "tar -c", InitialState.READ
        ),
        BenchmarkScenario(
            "unpack", "Extracting an archive", "small", ("tmpfs", "ext4"), _unpack_ways, "tar -x", InitialState.PACKED
        ),
        BenchmarkScenario(
            "pack-large", "Archiving a large file", "large", ("ext4",), _archive_ways, "tar -c", InitialState.READ
        ),
    )
}
"""The scenarios of the other programs, by name."""

SCENARIOS = COPY_SCENARIOS | TOOL_SCENARIOS
"""All scenarios, by name."""
