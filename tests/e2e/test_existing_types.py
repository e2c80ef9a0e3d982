"""The outcome for each pair of source type and target type under each policy, by the rules of cp."""

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
    """Return the documented outcome, stated independently of the program."""
    if source == "directory" and target in ("empty", "full"):
        return ENTERED
    if policy == "skip":
        return KEPT
    if policy == "fail":
        return FAILS
    if target == "full":
        return FAILS  # only an empty directory is replaced
    if policy == "newer" and source == target and target_is_newer:
        return KEPT
    return REPLACED


def make_item(path: Path, kind: str, text: bytes, time: int) -> None:
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
def test_policy_decides_for_every_pair_of_types(area: Path, policy: str, target_is_newer: bool, more: str) -> None:
    """All pairs are in one run, which shows that a failed item does not stop the others."""
    source, copy = area / "source", area / "copy"
    source.mkdir()
    copy.mkdir()
    (area / "outside").mkdir()
    (area / "outside/precious").write_bytes(b"outside")
    wanted: dict[str, str] = {}
    for one in SOURCES:
        if more == "-L" and one == "link":
            continue  # with -L no symbolic link remains
        for other in TARGETS:
            name = f"{one}-over-{other}"
            make_item(source / name, one, b"../outside/new", NOW)
            make_item(copy / name, other, b"../outside" if one == "directory" else b"../outside/precious", THEN)
            if target_is_newer:
                os.utime(copy / name, ns=(NOW + 10**10,) * 2, follow_symlinks=False)
            wanted[name] = expected(policy, one, other, target_is_newer)
    os.utime(copy, (1, 1))  # else whether it has the time of the source depends on the resolution of the clock
    before = {name: snapshot(copy / name) for name in wanted}
    outside = snapshot(area / "outside")
    run = pcopy(
        "--json", "--existing", policy, *filter(None, [more]), "--errors", area / "errors", f"{source}/", copy, ranks=2
    )
    assert run.returncode == (1 if FAILS in wanted.values() else 0), show(run)
    reported = summary(run)
    failed = {json.loads(line)["path"].rpartition("/")[2] for line in (area / "errors").read_text().splitlines()}
    assert failed == {name for name, outcome in wanted.items() if outcome == FAILS}
    assert reported["failed"] == len(failed)
    assert reported["skipped"] == sum(outcome == KEPT for outcome in wanted.values())
    for name, outcome in wanted.items():
        kind, _, there = name.partition("-over-")
        status = (copy / name).lstat()
        if outcome in (KEPT, FAILS):
            assert changes(before[name], snapshot(copy / name)) == [], (name, outcome)
            continue
        assert stat.S_IFMT(status.st_mode) == TYPES[kind], (name, outcome)
        assert status.st_mtime_ns == NOW, (name, outcome)
        if kind == "file":
            assert (copy / name).read_bytes() == b"../outside/new"
        elif kind == "link":
            assert os.readlink(copy / name) == "../outside/new"
        elif kind == "directory":
            assert sorted(os.listdir(copy / name)) == (["inner", "precious"] if there == "full" else ["inner"])
    assert changes(outside, snapshot(area / "outside")) == []


@pytest.mark.parametrize("policy", ["replace", "skip", "fail"])
def test_policy_decides_for_every_pair_of_types_of_a_single_source(area: Path, policy: str) -> None:
    """SRC itself is the item, and DST is an existing item."""
    for one in ("file", "link", "fifo"):
        for other in ("file", "link", "fifo") if one == "file" else ("file",):
            source, copy = area / f"{one}-{other}", area / f"{one}-over-{other}"
            make_item(source, one, b"new", NOW)
            make_item(copy, other, b"precious", THEN)
            before = snapshot(copy)
            run = pcopy("--json", "-T", "--existing", policy, source, copy, ranks=1)
            if other == "fifo":  # a FIFO as DST is refused, since the user most likely wants to write into it
                assert run.returncode == 2 and changes(before, snapshot(copy)) == [], show(run)
                continue
            outcome = expected(policy, one, other, target_is_newer=False)
            assert run.returncode == (1 if outcome == FAILS else 0), show(run)
            if outcome == REPLACED:
                assert stat.S_IFMT(copy.lstat().st_mode) == TYPES[one], (one, other)
                assert copy.lstat().st_mtime_ns == NOW
            else:
                assert changes(before, snapshot(copy)) == [], (one, other, outcome)
