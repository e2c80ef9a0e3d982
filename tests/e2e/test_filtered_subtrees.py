"""Filters do not end the fast path: calls of the backend process whole subtrees, and leave out what is excluded.

rsync, find and tar say what each program selects. A filter that excludes nothing makes no further system calls.
"""

from __future__ import annotations

import json
import re
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.command import Argument, runs_in_c, show, succeed, summary
from tests.support.faults import require_strace

DIRECTORIES = 40
FILTERS: dict[str, tuple[list[str], list[str]]] = {
    "suffix": (["--exclude=*.tmp"], ["--exclude=*.tmp"]),
    "directory": (["--exclude=cache/"], ["--exclude=cache/"]),
    "top": (["--exclude=/d3"], ["--exclude=/d3"]),
    "path": (["--exclude=d4/e1/cache"], ["--exclude=/d4/e1/cache"]),
    "contents": (["--exclude=d5/**"], ["--exclude=/d5/**"]),
    "middle": (["--exclude=d6/**/[a-c]*"], ["--exclude=/d6/**/[a-c]*", "--exclude=/d6/[a-c]*"]),
    "only": (
        ["--exclude=*", "--include=*/", "--include=*.h5"],
        ["--include=*/", "--include=*.h5", "--exclude=*"],
    ),
    "larger": (["--larger-than=1000"], ["--min-size=1001"]),
    "smaller": (["--smaller-than=1000", "--exclude=e3"], ["--max-size=999", "--exclude=e3"]),
    "nothing": (["--exclude=none"], []),
}
"""Options of the programs, and those of rsync, by name."""
PATTERNS = [name for name in FILTERS if name not in ("larger", "smaller")]
"""Names of filters that consist of patterns; rsync excludes items by size from the copy, but not from a deletion."""
COMMANDS: dict[str, list[str]] = {
    "pcopy": ["{source}/", "{target}"],
    "psync": ["{source}/", "{copy}"],
    "pwalk": ["{source}"],
    "pchmod": ["o-w", "{source}"],
    "prm": ["--yes", "-q", "{copy}"],
    "pverify": ["--compare=mode", "{source}", "{copy}"],
    "ptar": ["-c", "-f", "{target}", "{source}"],
}
CALLS = "openat,statx,newfstatat,mkdirat,unlinkat,fchmodat"
CALL_BY_DESCRIPTOR = re.compile(r'\(\d+, "[^"/]')
"""Matches the calls that name items of the trees. Others, for example those of imports, begin with AT_FDCWD."""


def fill(top: Path) -> Path:
    """Create directories of which each has files of all kinds of names, links, and directories that are excluded."""
    for outer in range(DIRECTORIES // 4):
        for inner in range(4):
            for directory in (top / f"d{outer}/e{inner}", top / f"d{outer}/e{inner}/cache"):
                directory.mkdir(parents=True)
                for number, end in enumerate(("tmp", "h5", "c")):
                    (directory / f"f{number}.{end}").write_bytes(b"x" * (number * 700 + outer))
        (top / f"d{outer}/e0/link.tmp").symlink_to("nowhere")
        (top / f"d{outer}/e1/old.cache").mkdir()
        (top / f"d{outer}/e2/old").touch()
        (top / f"d{outer}/a").mkdir()
        (top / f"d{outer}/a/cache").touch()
    return top


def selected(source: Path, to: Path, words: Sequence[str]) -> Path:
    """Have rsync copy what filters select."""
    subprocess.run(["rsync", "-a", *words, f"{source}/", to], check=True)
    return to


def paths(top: Path) -> set[str]:
    return {str(path.relative_to(top)) for path in top.rglob("*")}


def number_of_excluded_items(source: Path, expected: set[str]) -> int:
    """Return the number of items that are not selected in directories that are: no other directory is read."""
    return sum(str(Path(path).parent) in expected | {"."} for path in paths(source) - expected)


def properties(path: Path) -> tuple[int, int, int, bytes]:
    status = path.lstat()
    contents = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
    return status.st_mode, status.st_uid, status.st_mtime_ns, contents


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", FILTERS)
def test_copies_have_what_rsync_selects(area: Path, name: str, ranks: int) -> None:
    source, copy = fill(area / "source"), area / "copy"
    options, words = FILTERS[name]
    expected = selected(source, area / "expected", words)
    run = succeed("--json", *options, f"{source}/", copy, ranks=ranks)
    assert paths(copy) == paths(expected), show(run)
    assert all(properties(copy / path) == properties(source / path) for path in paths(copy)), show(run)
    reported = summary(run)
    assert reported["copied"] == len(paths(expected)) + 1, show(run)
    excluded = number_of_excluded_items(source, paths(expected))
    assert [reported[key] for key in ("found", "skipped", "excluded")] == [
        reported["copied"] + excluded, excluded, excluded
    ], show(run)  # fmt: skip
    again = succeed("--json", *options, f"{source}/", copy, program="psync", ranks=ranks)
    assert [summary(again)[key] for key in ("found", "excluded", "copied", "deleted")] == [
        reported["found"], reported["excluded"], 0, 0
    ], show(again)  # fmt: skip


@pytest.mark.parametrize("name", PATTERNS)
def test_excluded_items_of_the_target_are_not_deleted(area: Path, name: str) -> None:
    """rsync deletes the same, and protects the same. Extra items are at each depth, also below excluded directories."""
    source, copy = fill(area / "source"), fill(area / "copy")
    for directory in [copy, *(path for path in copy.rglob("*") if path.is_dir())]:
        for extra in ("extra.tmp", "extra.h5"):
            (directory / extra).touch()
        if directory.name != "cache":
            (directory / "more/cache").mkdir(parents=True)
    options, words = FILTERS[name]
    expected = area / "expected"
    subprocess.run(["cp", "-a", copy, expected], check=True)
    subprocess.run(["rsync", "-a", "--delete", *words, f"{source}/", expected], check=True)
    run = succeed("--json", *options, f"{source}/", copy, program="psync", ranks=2)
    assert paths(copy) == paths(expected), show(run)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", FILTERS)
def test_other_programs_select_what_rsync_selects(area: Path, name: str, ranks: int) -> None:
    """The directories that only limits of size concern are left out, because programs treat them differently."""
    source, copy = fill(area / "source"), area / "copy"
    options, words = FILTERS[name]
    expected = paths(selected(source, area / "expected", words))
    by_size = name not in PATTERNS

    def chosen(found: set[str]) -> set[str]:
        return {each for each in found if not (by_size and (source / each).is_dir())}

    subprocess.run(["cp", "-a", source, copy], check=True)
    run = succeed(*options, source, program="pwalk", ranks=ranks)
    listed = {str(Path(line).relative_to(source)) for line in run.stdout.decode().splitlines()}
    assert chosen(listed - {"."}) == chosen(expected), show(run)

    archive = area / "archive.tar"
    run = succeed("-c", *options, "-f", archive, "-C", area, "source", program="ptar", ranks=ranks)
    with tarfile.open(archive) as tar:
        members = {member.name.partition("/")[2] for member in tar}
    assert chosen(members - {""}) == chosen(expected), show(run)

    subprocess.run(["chmod", "-R", "o-w", copy], check=True)
    excluded = number_of_excluded_items(source, expected)
    run = succeed("--json", *options, "o+w", copy, program="pchmod", ranks=ranks)
    assert json.loads(run.stdout)["excluded"] == excluded, show(run)
    command: list[Argument] = ["find", copy, "-mindepth", "1", "!", "-type", "l", "-perm", "-o=w", "-printf", r"%P\n"]
    changed = set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines())
    assert changed == {each for each in chosen(expected) if not (source / each).is_symlink()}, show(run)

    run = succeed("--json", "--compare=mode", *options, source, source, program="pverify", ranks=ranks)
    compared = json.loads(run.stdout.splitlines()[-1])
    assert (compared["same"], compared["excluded"]) == (True, excluded), show(run)

    run = succeed("--yes", "--json", *options, copy, program="prm", ranks=ranks)
    assert by_size or json.loads(run.stdout)["excluded"] == excluded, show(run)
    files = {each for each in expected if not (source / each).is_dir() or (source / each).is_symlink()}
    assert {each for each in paths(source) - paths(copy) if (source / each).is_file()} == {
        each for each in files if not (source / each).is_symlink()
    }, show(run)
    assert copy.exists() == (expected != paths(source)), show(run)


@pytest.mark.parametrize("program", ["pcopy", "psync", "pchmod", "prm", "ptar"])
def test_log_has_each_excluded_item(area: Path, program: str) -> None:
    source, copy = fill(area / "source"), area / "copy"
    subprocess.run(["cp", "-a", source, copy], check=True)
    words = [word.format(source=source, copy=copy, target=area / "target") for word in COMMANDS[program]]
    run = succeed("--log", area / "log", "--exclude=*.tmp", *words, program=program, ranks=2)
    lines = map(json.loads, (area / "log").read_text().splitlines())
    skipped = sorted(Path(line["path"]).name for line in lines if line["action"] == "skip")
    expected = sorted(path.name for path in source.rglob("*.tmp"))
    assert [name for name in skipped if name.endswith(".tmp")] == expected, show(run)


@pytest.mark.parametrize("program", COMMANDS)
def test_a_filter_that_excludes_nothing_makes_no_further_calls(area: Path, program: str) -> None:
    """The calls end after some time, so that a slow run makes more of them. Therefore a failure is repeated."""
    if not runs_in_c():
        pytest.skip("only the C backend leaves them out")
    require_strace()

    def count_calls(options: Sequence[str]) -> int:
        here = area / "here"
        source, copy = fill(here / "source"), here / "copy"
        if program in ("psync", "prm", "pverify"):
            subprocess.run(["cp", "-a", source, copy], check=True)
        words = [word.format(source=source, copy=copy, target=here / "target") for word in COMMANDS[program]]
        wrap = ["strace", "-f", "-qq", "-o", here / "calls", "-e", f"trace={CALLS}"]
        succeed(*options, *words, program=program, ranks=1, wrap=wrap)
        number = len(CALL_BY_DESCRIPTOR.findall((here / "calls").read_text()))
        shutil.rmtree(here)
        return number

    for _ in range(4):
        calls = count_calls([]), count_calls(["--exclude=none"])
        if calls[1] <= calls[0] + DIRECTORIES // 2:
            return
    raise AssertionError(calls)
