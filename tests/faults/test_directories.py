"""Calls on one directory of a tree fail. No program leaves out that directory, or what is below it, with status 0."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from tests.support.command import Completed, pcopy, show
from tests.support.extent import in_turn
from tests.support.faults import require_strace

VICTIM = "d1/victim"
CALLS = {
    "getdents64": ("EIO", "EACCES"),
    "openat": ("EACCES", "ENOENT", "ESTALE"),
    "?statx,?newfstatat,?fstat": ("ENOENT", "ESTALE", "EACCES"),
}
TIMES = ("1", "2", "3", "1+", "2+")


def make_tree(top: Path) -> None:
    for directory, below in enumerate(("below", "victim", "below")):
        for path in (f"d{directory}", f"d{directory}/{below}", f"d{directory}/{below}/deep"):
            (top / path).mkdir(parents=True)
            (top / path / "file").write_text(path)
            (top / path / "other").write_text(path)


def paths_in(area: Path, top: str) -> list[str]:
    return subprocess.check_output(["find", top], cwd=area, text=True).splitlines()


def is_copied(run: Completed, area: Path) -> bool:
    command = ["diff", "-r", "tree", "copy"]
    return subprocess.run(command, cwd=area, stdout=subprocess.DEVNULL, check=False).returncode == 0


def is_listed(run: Completed, area: Path) -> bool:
    return sorted(run.stdout.decode().splitlines()) == sorted(paths_in(area, "tree"))


def is_changed(run: Completed, area: Path) -> bool:
    return all(stat.S_IMODE(os.lstat(area / path).st_mode) == 0o700 for path in paths_in(area, "tree"))


def is_archived(run: Completed, area: Path) -> bool:
    listed = subprocess.check_output(["tar", "-tf", area / "a.tar"], text=True).splitlines()
    return {line.rstrip("/") for line in listed} == set(paths_in(area / "tree", "."))


PROGRAMS: dict[str, tuple[tuple[str, ...], Callable[[Completed, Path], bool]]] = {
    "pcopy": (("--json", "-T", "tree", "copy"), is_copied),
    "pcopy again": (("--json", "-T", "tree", "copy"), is_copied),
    "psync": (("--json", "tree/", "copy/"), is_copied),
    "pwalk": (("tree",), is_listed),
    "pwalk -size": (("tree", "-size", "-99"), is_listed),
    "prm": (("--yes", "-q", "tree"), lambda run, area: not (area / "tree").exists()),
    "pchmod": (("a=,u=rwx", "tree"), is_changed),
    "ptar": (("-cf", "a.tar", "-C", "tree", "."), is_archived),
    "pverify": (("tree", "copy"), lambda run, area: False),
    "pverify --compare": (("--compare", "type,content", "tree", "copy"), lambda run, area: False),
    "pverify --create": (
        ("--create", "signature", "tree"),
        lambda run, area: pcopy("-q", "signature", "tree", program="pverify", cwd=area, ranks=1).returncode == 0,
    ),
}
"""Arguments, and whether a run with status 0 has processed everything."""
WITH_COPY = ("pcopy again", "psync", "pverify", "pverify --compare")


def prepare(name: str, area: Path) -> None:
    for left in ("tree", "copy"):
        shutil.rmtree(area / left, ignore_errors=True)
    for file in ("a.tar", "a.tar.idx", "signature"):
        (area / file).unlink(missing_ok=True)
    make_tree(area / "tree")
    if name in WITH_COPY:
        make_tree(area / "copy")
        (area / "copy" / VICTIM / "deep/other").unlink()
        (area / "tree" / VICTIM / "file").write_text("something longer")


@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize(
    ("name", "side"), [(name, side) for name in PROGRAMS for side in ("tree", *(["copy"] if name in WITH_COPY else []))]
)
def test_no_directory_is_left_out(area: Path, name: str, side: str, calls: str) -> None:
    require_strace()
    arguments, is_whole = PROGRAMS[name]
    log = area / "log"
    cases = list(product(CALLS[calls], TIMES))
    if name == "pverify --compare" and "stat" in calls:  # the relative name is the same: neither side has it any more
        cases = [(error, when) for error, when in cases if (error, when) not in (("ENOENT", "1+"), ("ENOENT", "2+"))]
    for error, when in in_turn(cases, 3, f"{name} {side} {calls}"):
        prepare(name, area)
        wrap = ["strace", "-f", "-qq", "--seccomp-bpf", "-o", str(log), "-P", str(area / side / VICTIM)]
        if calls != "getdents64":
            wrap += ["-P", os.path.basename(VICTIM)]  # its name, relative to its parent
        wrap += ["-e", f"trace={calls}", "-e", f"inject={calls}:error={error}:when={when}"]
        run = pcopy(*arguments, program=name.partition(" ")[0], cwd=area, ranks=1, wrap=wrap)
        case = f"{error} {when}: {show(run)}"
        assert run.returncode in (0, 1, 2), case
        assert run.returncode or is_whole(run, area), case
        if run.returncode != 2 and "--json" in arguments:
            numbers = json.loads(run.stdout)
            assert numbers["found"] == numbers["copied"] + numbers["skipped"] + numbers["failed"], case
