"""Filters select the same items as git and find do; items that are not selected count as skipped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Argument, Completed, pcopy, pverify, show, start, succeed, summary
from tests.support.files import write

PATTERNS = [".snapshot", "*.o", "!/top.o", "/only/here/", "!kept/", "*~"]


@pytest.fixture
def source(area: Path) -> Path:
    """Several hundred files, few in most directories and many in one."""
    root = area / "source"
    for directory in ("", "a", "a/b", "a/.snapshot/d", "only/here", "a/only/here", "kept", "many"):
        for number in range(300 if directory == "many" else 4):
            for end in (".o", ".c", "~"):
                write(root / directory / f"{number}{end}", b"x" * number)
    write(root / "top.o", b"top")
    write(root / "large", bytes(5 << 20))
    (root / "a/link").symlink_to("nowhere")
    os.mkfifo(root / "fifo.o")
    os.link(root / "0.c", root / "a/second.c")
    os.link(root / "1.c", root / "a/second.o")
    for path in root.rglob("*"):
        when = time.time() - (30 if path.name.startswith(("2", "large")) else 1) * 86400
        os.utime(path, (when, when), follow_symlinks=False)
    return root


def options(patterns: Sequence[str]) -> list[str]:
    return [f"--include={each[1:]}" if each[0] == "!" else f"--exclude={each}" for each in patterns]


def selected_by_git(source: Path, patterns: Sequence[str]) -> Path:
    """Return a copy without the files that git ignores; git handles neither empty directories nor FIFOs."""
    expected = source.parent / "expected"
    shutil.copytree(source, expected, symlinks=True, ignore=lambda *_: ["fifo.o"])
    subprocess.run(["git", "init", "-q", expected], check=True)
    (expected.parent / "patterns").write_text("\n".join(patterns))
    kept = {*run_git(expected, f"--exclude-from={expected.parent / 'patterns'}")}
    for path in set(run_git(expected)) - kept:
        (expected / path).unlink()
    shutil.rmtree(expected / ".git")
    return expected


def run_git(tree: Path, *options: str) -> list[str]:
    command: list[str | Path] = ["git", "-C", tree, "ls-files", "-z", "--others", *options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")[:-1]


def files(tree: Path) -> set[str]:
    return {str(path.relative_to(tree)) for path in tree.rglob("*") if not path.is_dir() or path.is_symlink()}


@pytest.mark.parametrize("ranks", [1, 3])
def test_patterns_select_files_that_git_does_not_ignore(area: Path, source: Path, ranks: int) -> None:
    copy = area / "copy"
    reported = summary(succeed("--json", *options(PATTERNS), f"{source}/", copy, ranks=ranks))
    assert files(copy) == files(selected_by_git(source, PATTERNS)) and len(files(copy)) > 300
    assert not (copy / "only/here").exists() and (copy / "a/only/here").is_dir() and not (copy / "a/.snapshot").exists()
    assert all((copy / name).read_bytes() == (source / name).read_bytes() for name in files(copy) - {"a/link"})
    assert (copy / "0.c").stat().st_ino == (copy / "a/second.c").stat().st_ino
    directories = sum(path.is_dir() for path in copy.rglob("*")) + 1
    assert (reported["directories"], reported["found"]) == (
        directories,
        reported["skipped"] + len(files(copy)) + directories,
    )
    assert reported["failed"] == 0
    again = summary(succeed("--json", "--existing=changed", *options(PATTERNS), f"{source}/", copy, ranks=ranks))
    assert (again["files"], again["found"]) == (0, reported["found"])


@pytest.mark.parametrize(
    ("option", "find"),
    [
        ("--newer-than=7d", ["-newermt", "7 days ago"]),
        ("--older-than=7d", ["!", "-newermt", "7 days ago"]),
        (
            f"--newer-than={time.strftime('%Y-%m-%d', time.localtime(time.time() - 20 * 86400))}",
            ["-newermt", "20 days ago"],
        ),
        ("--larger-than=1M", ["!", "(", "-type", "f", "!", "-size", "+1048576c", ")"]),
        ("--smaller-than=2", ["!", "(", "-type", "f", "!", "-size", "-2c", ")"]),
    ],
)
def test_age_and_size_filters_select_files_as_find_does(area: Path, source: Path, option: str, find: list[str]) -> None:
    succeed(option, f"{source}/", area / "copy", ranks=2)
    command: list[str | Path] = ["find", source, "!", "-type", "d", *find, "-printf", "%P\\0"]
    expected = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")[:-1]
    assert files(area / "copy") == {*expected} != files(source)
    assert {path.name for path in (area / "copy").rglob("*") if path.is_dir()} > {"many", "here", ".snapshot"}


def test_signature_and_manifest_cover_only_selected_items(area: Path, source: Path) -> None:
    """Signature and manifest of a selection equal those of a tree with only the selected items."""
    copy, filters = area / "copy", options(PATTERNS)
    run = succeed(
        "--verify", "--signature", area / "sig", "--manifest", area / "manifest", *filters, f"{source}/", copy
    )
    assert b"DST holds more" not in run.stderr
    assert pverify(area / "sig", copy).returncode == 0
    assert pverify(*filters, area / "sig", source).returncode == 0
    assert pverify(area / "sig", source).returncode == 1
    assert pverify("--manifest", area / "manifest", copy).returncode == 0
    assert pverify(*filters, "--manifest", area / "manifest", source).returncode == 0
    assert pverify(*filters, source, copy).returncode == 0
    assert pverify("--create", area / "all", "--manifest", area / "all.manifest", source).returncode == 0
    assert pverify(*filters, "--manifest", area / "all.manifest", copy).returncode == 0
    write(copy / "many/7.c", b"7654321")
    differing = pverify(*filters, "--manifest", area / "all.manifest", copy)
    assert (differing.returncode, differing.stdout) == (1, b"changed many/7.c\n")
    write(copy / "many/stray.c", b"")
    write(source / "many/stray.o", b"")
    write(copy / "many/stray.o", b"")
    again = succeed("--existing=changed", "--signature", area / "sig2", *filters, f"{source}/", copy)
    assert b"DST holds more" in again.stderr


def test_excluded_directories_are_not_opened(area: Path) -> None:
    write(area / "source/file", b"")
    for name in ("closed", "shut"):
        (area / "source" / name).mkdir()
    trace = area / "trace"
    wrap = ["strace", "-f", "-qq", "-o", trace, "-e", "trace=openat,openat2"]
    succeed("--exclude=closed", "--exclude=shut/", f"{area}/source/", area / "copy", ranks=1, wrap=wrap, real=True)
    assert "closed" not in trace.read_text() and "shut" not in trace.read_text() and "file" in trace.read_text()


def prm(*arguments: Any, **more: Any) -> Completed:
    return pcopy(*arguments, program="prm", **more)


def test_prm_removes_selected_items(area: Path, source: Path) -> None:
    expected = files(source) - files(selected_by_git(source, PATTERNS))
    reported = summary_of_prm(prm("--yes", "--json", *options(PATTERNS), source, ranks=2))
    assert files(source) == expected
    assert reported["removed"] > 300


def summary_of_prm(run: Completed) -> dict[str, Any]:
    assert run.returncode == 0, show(run)
    reported: dict[str, Any] = json.loads(run.stdout)
    assert reported["found"] == reported["removed"] + reported["not_empty"] + reported["excluded"]
    return reported


@pytest.mark.parametrize("ranks", [1, 3])
def test_prm_dry_run_lists_items_that_prm_removes(area: Path, ranks: int) -> None:
    """Items that filters exclude and directories that are not empty because of them are reported separately."""
    for path in ("p/a/x.o", "p/a/b/y", "p/keep/in", "p/f", "q"):
        write(area / path, b"12")
    filters = ("--exclude", "*.o", "--exclude", "keep/", "p", "q")
    reported = summary_of_prm(prm("--dry-run", "--json", *filters, cwd=area, ranks=ranks))
    assert (reported["removed"], reported["not_empty"], reported["excluded"]) == (4, 2, 2)
    before = {os.fsencode(path.relative_to(area)) for path in area.rglob("*")}
    dry = prm("--dry-run", "-vv", *filters, cwd=area, ranks=ranks)
    assert {os.fsencode(path.relative_to(area)) for path in area.rglob("*")} == before
    quiet = prm("--dry-run", "-q", *filters, cwd=area, ranks=ranks)
    assert b"delete" not in quiet.stdout and b"8 found = 4 would be removed + 4 left" in quiet.stdout, show(quiet)
    run = prm("--yes", "-vv", "--log", "log", *filters, cwd=area, ranks=ranks)
    gone = before - {os.fsencode(path.relative_to(area)) for path in area.rglob("*")}
    assert gone == {b"p/a/b/y", b"p/a/b", b"p/f", b"q"}, show(run)
    for text in (dry.stdout, run.stderr):
        deletions = [line for line in text.splitlines() if line.startswith(b"delete ")]
        assert sorted(deletions) == sorted(b"delete " + path for path in gone)
    assert (
        b"  left: 2 excluded by filters (on the command line), 2 not empty" in run.stdout
        and b"delete" not in dry.stderr
    ), show(run)
    logged = [json.loads(line) for line in (area / "log").read_text().splitlines()]
    left = {b"p", b"p/a", b"p/a/x.o", b"p/keep"}
    actions = [*(("delete", path) for path in gone), *(("skip", path) for path in left)]
    assert sorted((item["action"], os.fsencode(item["path"])) for item in logged) == sorted(actions)
    skips = [line for line in dry.stdout.splitlines() if line.startswith(b"skip ")]
    assert sorted(skips) == sorted(b"skip " + path for path in left)


def test_prm_leaves_directories_younger_than_the_filter(area: Path) -> None:
    tree, old = area / "tree", time.time() - 30 * 86400
    for path in ("old/deep/old", "young/old", "young/young"):
        write(tree / path / "file", b"")
    for each in (tree, *tree.rglob("*")):
        is_old = each.name != "young" and "young/young" not in str(each)
        os.utime(each, (old, old) if is_old else None)
    assert prm("--yes", "--older-than=7d", tree, ranks=2).returncode == 0
    assert sorted(str(path.relative_to(tree)) for path in tree.rglob("*")) == [
        "young",
        "young/young",
        "young/young/file",
    ]


def test_prm_by_size_removes_files_only(area: Path, source: Path) -> None:
    run = prm("--yes", "--larger-than=1M", source, ranks=2)
    assert run.returncode == 0, show(run)
    assert "large" not in files(source) and {"a/link", "fifo.o", "top.o"} < files(source)


def test_resumed_job_uses_the_filters_of_its_start(area: Path, source: Path) -> None:
    """The age is relative to the start of the job, and a changed pattern is refused."""
    copy, filters = area / "copy", [*options(PATTERNS), "--newer-than=7d"]
    command: list[Any] = ["--checkpoint", area / "job", *filters, f"{source}/", copy]
    process = start(*command, ranks=2)
    while not copy.exists() and process.poll() is None:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    refused = pcopy(*command[:2], "--exclude=a", *command[2:])
    assert refused.returncode == 2 and b"different: --exclude and --include" in refused.stderr, show(refused)
    succeed(*command, ranks=3)
    expected = selected_by_git(source, PATTERNS)
    assert files(copy) == {name for name in files(expected) if not Path(name).name.startswith("2") and name != "large"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--exclude="], b"--exclude: "),
        (["--exclude=- *.o"], b"rsync's form: write --exclude with what follows the blank"),
        (["--include=!x"], b"begins with !"),
        (["--exclude-from=/nowhere"], b"/nowhere: cannot be read: No such file"),
        (["--newer-than=yesterday"], b"yesterday: neither an age"),
        (["--smaller-than=big"], b"big: not a size"),
    ],
)
def test_invalid_filters_are_refused(area: Path, arguments: list[str], words: bytes) -> None:
    write(area / "source/file", b"")
    run = pcopy(*arguments, area / "source", area / "copy")
    assert run.returncode == 2 and words in run.stderr and run.stderr.count(b"\n") == 1
    assert not (area / "copy").exists()


@pytest.mark.parametrize(
    ("order", "status"),
    [
        (["--include=*/", "--include=*.c", "--exclude=*"], 2),  # rsync's order
        (["--exclude=*", "--include=/many/*.c"], 2),  # no directory is entered
        (["--larger-than=1G"], 0),  # filters by size apply to regular files only
        (["--newer-than=1s", "--exclude=link", "--exclude=fifo.o"], 2),
        (["--exclude=*", "--include=*/", "--include=*.c"], 0),
    ],
)
def test_filters_that_select_nothing_are_refused(area: Path, source: Path, order: list[str], status: int) -> None:
    run = pcopy(*order, f"{source}/", area / "copy", ranks=2)
    assert run.returncode == status, show(run)
    assert (area / "copy").exists() == (status == 0)
    proof = pverify(*order, source, source)
    assert proof.returncode == status, show(proof)
    if status:
        assert b"the filters select nothing in it" in run.stderr and run.stderr.count(b"\n") == 1
        assert b"the filters have selected nothing of" in proof.stderr


def paths_in(tree: Path) -> set[str]:
    return {*subprocess.check_output(["find", "."], cwd=tree, text=True).splitlines()}


DIRECTORIES = ("a", "a/b", "c")


@pytest.mark.parametrize(
    ("files", "pattern", "status"),
    [
        ((), "c", 0),
        ((), "b", 0),
        (("c/file",), "c", 0),
        ((), "*", 2),
        (("file",), "*", 2),
        (("a/file",), "file", 2),
    ],
)
@pytest.mark.parametrize("program", ["pcopy", "psync", "pverify", "pverify --create", "pverify --compare"])
def test_selected_directories_are_a_selection_if_only_directories_are_excluded(
    area: Path, program: str, files: Sequence[str], pattern: str, status: int
) -> None:
    """As for rsync, which refuses nothing."""
    source, copy = area / "source", area / "copy"
    for path in DIRECTORIES:
        (source / path).mkdir(parents=True)
    for path in files:
        write(source / path, b"")
    subprocess.run(["rsync", "-a", f"--exclude={pattern}", f"{source}/", area / "expected"], check=True)
    words: tuple[Argument, ...] = (f"{source}/", f"{copy}/")
    if program == "pverify --create":
        words = ("--create", area / "signature", source)
    elif program.startswith("pverify"):
        words = (*(("--compare", "type") if "--compare" in program else ()), source, area / "expected")
    run = pcopy(f"--exclude={pattern}", *words, program=program.partition(" ")[0])
    assert run.returncode == status, show(run)
    assert (b"nothing" in run.stderr) == bool(status), show(run)
    if not status and "pverify" not in program:
        assert paths_in(copy) == paths_in(area / "expected")


def test_empty_source_with_filters_is_copied(area: Path) -> None:
    (area / "source/deep").mkdir(parents=True)
    succeed("--exclude=*.o", f"{area}/source/", area / "copy")
    assert (area / "copy/deep").is_dir()


def test_empty_selection_that_only_the_job_finds_is_reported_at_the_end(area: Path) -> None:
    """The walk before the job has a limit, and cannot always find that the filters select nothing."""
    write(area / "source/file.c", b"")
    unready = start_with_zero_budget(area)
    assert unready.returncode == 2 and b"have selected nothing of 1 item" in unready.stderr, show(unready)
    assert not [*(area / "copy").iterdir()] and b"--resume" not in unready.stderr


def start_with_zero_budget(area: Path) -> Completed:
    program = (
        "import sys, pcopy.walk.preliminary_walk as walk\n"
        "walk.PreliminaryWalk.__init__.__defaults__ = (0, *walk.PreliminaryWalk.__init__.__defaults__[1:])\n"
        "from pcopy.cli.script import pcopy; sys.argv[0] = 'pcopy'; pcopy()"
    )
    command = [sys.executable, "-c", program, "--exclude=*.c", f"{area}/source/", str(area / "copy")]
    environment = {**os.environ, "XDG_STATE_HOME": str(area / "state")}
    return subprocess.run(command, capture_output=True, env=environment, check=False)
