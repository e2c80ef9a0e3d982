"""The scenarios of the programs other than pcopy: each is compared with the programs that it replaces."""

from __future__ import annotations

from collections.abc import Sequence

from bench.scenarios import COPYING, SLOW, Scenario, State, Ways
from bench.ways import PROCESSORS, Way, of_suite, tool

_RANKS = sorted({1, PROCESSORS})
_TREES = ("tmpfs", "ext4", SLOW)
_MODE = "u+rwX,go-rwx"


def _ours(name: str, words: str, *, syncs: bool = True, ranks: Sequence[int] = _RANKS) -> dict[str, Way]:
    """Return the ways of one of this project's programs, for each number of ranks."""
    return {
        f"{name} -n {number}": Way((*tool(name), "-n", f"{number}", *words.split()), syncs=syncs) for number in ranks
    }


def _reads(*words: str) -> Way:
    """Return the way of a command that writes nothing, so that no sync is necessary."""
    return Way(words, syncs=True)


def _names(_: Sequence[str]) -> dict[str, Way]:
    return {"find": _reads("find", "SRC"), **of_suite("dwalk"), **_ours("pwalk", "--progress none SRC")}


def _sizes(_: Sequence[str]) -> dict[str, Way]:
    find = _reads("find", "SRC", "-size", "+1k")
    return {"find": find, **of_suite("dfind"), **_ours("pwalk", "--progress none SRC -size +1k")}


def _summary(_: Sequence[str]) -> dict[str, Way]:
    return {"du": _reads("du", "-s", "SRC"), **of_suite("dwalk"), **_ours("pwalk", "--progress none --summary SRC")}


def _modes(_: Sequence[str]) -> dict[str, Way]:
    chmod = _reads("chmod", "-R", _MODE, "DST")
    return {"chmod -R": chmod, **of_suite("dchmod"), **_ours("pchmod", f"-q {_MODE} DST")}


def _owners(_: Sequence[str]) -> dict[str, Way]:
    return {"chown -R": _reads("chown", "-R", "1000:1000", "DST"), **_ours("pchmod", "-q --owner 1000:1000 DST")}


def _comparing(_: Sequence[str]) -> dict[str, Way]:
    rsync = _reads("rsync", "-aHAXn", "--delete", "--itemize-changes", "SRC/", "DST")
    ours = _ours("pverify", "-q --compare type,size,mtime,mode,owner,acl,xattr SRC DST")
    return {"rsync -n": rsync, **of_suite("dcmp -l"), **ours}


def _contents(_: Sequence[str]) -> dict[str, Way]:
    diff = _reads("diff", "-rq", "SRC", "DST")
    return {"diff -rq": diff, **of_suite("dcmp"), **_ours("pverify", "-q --compare content SRC DST")}


def _packing(_: Sequence[str]) -> dict[str, Way]:
    tar = Way(("tar", "--format=pax", "--xattrs", "--acls", "-cf", "KEEP/tar", "-C", "SRC", "."))
    return {"tar -c": tar, **of_suite("dtar -c"), **_ours("ptar", "-q -c -f KEEP/tar -C SRC .", syncs=False)}


def _unpacking(_: Sequence[str]) -> dict[str, Way]:
    tar = Way(("tar", "--xattrs", "--acls", "-xpf", "KEEP/tar", "-C", "DST"))
    return {"tar -x": tar, **of_suite("dtar -x"), **_ours("ptar", "-q -x -f KEEP/tar -C DST", syncs=False)}


def _of_many(name: str, title: str, kinds: tuple[str, ...], compare: Ways, against: str, before: State) -> Scenario:
    """Return a scenario with very many items that are only examined or changed, so that a program's start hardly
    counts.
    """
    return Scenario(name, title, "many", kinds, compare, against, before, slow_shape="small")


SUITE = {
    scenario.name: scenario
    for scenario in (
        _of_many("walk", "Walking: names", _TREES, _names, "find", State.READ),
        _of_many("walk-sizes", "Walking: files larger than 1 KiB", _TREES, _sizes, "find", State.READ),
        _of_many("summary", "Walking: totals", _TREES, _summary, "du", State.READ),
        _of_many("chmod", "Changing modes", _TREES, _modes, "chmod -R", State.CHANGED),
        _of_many("chown", "Changing owners", _TREES, _owners, "chown -R", State.CHANGED),
        Scenario("compare", "Comparing metadata", "small", _TREES, _comparing, "rsync -n", State.COPIED),
        Scenario("contents", "Comparing contents", "small", _TREES, _contents, "diff -rq", State.COPIED),
        Scenario("pack", "Creating an archive", "small", ("tmpfs", "ext4"), _packing, "tar -c", State.READ),
        Scenario("unpack", "Extracting an archive", "small", ("tmpfs", "ext4"), _unpacking, "tar -x", State.PACKED),
        Scenario("pack-large", "Archiving a large file", "large", ("ext4",), _packing, "tar -c", State.READ),
    )
}
"""The scenarios of the other programs, by name."""

SCENARIOS = COPYING | SUITE
"""All scenarios, by name."""
