"""What becomes of each type of item in the way of each other type, for each policy: the table of cp's rules."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from tests.support.command import pcopy, show, summary
from tests.support.oracle import changes, snapshot

THEN, NOW = 1_600_000_000 * 10**9, 1_700_000_000 * 10**9
SOURCES = ("file", "directory", "link", "fifo")
TARGETS = ("file", "empty", "full", "link", "fifo")
TYPES = {"file": stat.S_IFREG, "directory": stat.S_IFDIR, "empty": stat.S_IFDIR, "full": stat.S_IFDIR}
TYPES |= {"link": stat.S_IFLNK, "fifo": stat.S_IFIFO}
POLICIES = ("replace", "changed", "newer", "skip", "fail")

REPLACED, KEPT, FAILS, ENTERED = "replaced", "kept", "fails", "entered"


def expected(policy: str, source: str, target: str, target_is_newer: bool) -> str:
    """The contract, in other words than the program's."""
    if source == "directory" and target in ("empty", "full"):
        return ENTERED
    if policy == "skip":
        return KEPT
    if policy == "fail":
        return FAILS
    if target == "full":
        return FAILS  # only an empty directory gives way
    if policy == "newer" and source == target and target_is_newer:
        return KEPT
    return REPLACED


def make(path: Path, kind: str, text: bytes, time: int) -> None:
    if kind in ("directory", "empty", "full"):
        path.mkdir()
        if kind != "empty":
            (path / ("inner" if kind == "directory" else "precious")).write_bytes(text)
    elif kind == "file":
        path.write_bytes(text)
    elif kind == "link":
        path.symlink_to(os.fsdecode(text))
    else:
        os.mkfifo(path)
    os.utime(path, ns=(time, time), follow_symlinks=False)


CASES = [(policy, target_is_newer, "") for policy in POLICIES for target_is_newer in (False, True)]
CASES += [(policy, False, more) for policy in ("replace", "changed") for more in ("--inplace", "-L")]


@pytest.mark.parametrize(("policy", "target_is_newer", "more"), CASES)
def test_all_pairs(area: Path, policy: str, target_is_newer: bool, more: str) -> None:
    """All in one run, so that those that fail show that the others go on."""
    source, copy = area / "source", area / "copy"
    source.mkdir()
    copy.mkdir()
    (area / "outside").mkdir()
    (area / "outside/precious").write_bytes(b"outside")
    wanted: dict[str, str] = {}
    for one in SOURCES:
        if more == "-L" and one == "link":
            continue  # there would be none left of them
        for other in TARGETS:
            name = f"{one}-over-{other}"
            make(source / name, one, b"../outside/new", NOW)
            make(copy / name, other, b"../outside" if one == "directory" else b"../outside/precious", THEN)
            if target_is_newer:
                os.utime(copy / name, ns=(NOW + 10**10,) * 2, follow_symlinks=False)
            wanted[name] = expected(policy, one, other, target_is_newer)
    before = {name: snapshot(copy / name) for name in wanted}
    outside = snapshot(area / "outside")
    run = pcopy(
        "--json", "--existing", policy, *filter(None, [more]), "--errors", area / "errors", f"{source}/", copy, ranks=2
    )
    assert run.returncode == (1 if FAILS in wanted.values() else 0), show(run)
    reported = summary(run)
    failed = {json.loads(line)["path"].rpartition("/")[2] for line in (area / "errors").read_text().splitlines()}
    assert failed == {name for name, fate in wanted.items() if fate == FAILS}
    assert reported["failed"] == len(failed)
    assert reported["skipped"] == sum(fate == KEPT for fate in wanted.values())
    for name, fate in wanted.items():
        kind, _, there = name.partition("-over-")
        status = (copy / name).lstat()
        if fate in (KEPT, FAILS):
            assert changes(before[name], snapshot(copy / name)) == [], (name, fate)
            continue
        assert stat.S_IFMT(status.st_mode) == TYPES[kind], (name, fate)
        assert status.st_mtime_ns == NOW, (name, fate)
        if kind == "file":
            assert (copy / name).read_bytes() == b"../outside/new"
        elif kind == "link":
            assert os.readlink(copy / name) == "../outside/new"
        elif kind == "directory":
            assert sorted(os.listdir(copy / name)) == (["inner", "precious"] if there == "full" else ["inner"])
    assert changes(outside, snapshot(area / "outside")) == []


@pytest.mark.parametrize("policy", ["replace", "skip", "fail"])
def test_all_pairs_of_a_single_source(area: Path, policy: str) -> None:
    """The same where SRC itself is the item, and goes to the name of another."""
    for one in ("file", "link", "fifo"):
        for other in ("file", "link", "fifo") if one == "file" else ("file",):
            source, copy = area / f"{one}-{other}", area / f"{one}-over-{other}"
            make(source, one, b"new", NOW)
            make(copy, other, b"precious", THEN)
            before = snapshot(copy)
            run = pcopy("--json", "-T", "--existing", policy, source, copy, ranks=1)
            if other == "fifo":  # as DST a node is refused, since it is meant to be written into, most likely
                assert run.returncode == 2 and changes(before, snapshot(copy)) == [], show(run)
                continue
            fate = expected(policy, one, other, target_is_newer=False)
            assert run.returncode == (1 if fate == FAILS else 0), show(run)
            if fate == REPLACED:
                assert stat.S_IFMT(copy.lstat().st_mode) == TYPES[one], (one, other)
                assert copy.lstat().st_mtime_ns == NOW
            else:
                assert changes(before, snapshot(copy)) == [], (one, other, fate)
