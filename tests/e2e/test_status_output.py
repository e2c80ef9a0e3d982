"""Output and exit status of a run."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from tests.support.command import pcopy, show, succeed, summary
from tests.support.oracle import changes, snapshot
from tests.support.walk import walk

KEYS = (
    "files", "directories", "symlinks", "special", "hardlinks", "bytes", "skipped", "deleted", "failed", "changed",
    "vanished", "excused", "warnings", "seconds", "bytes_per_second", "sequential", "ranks", "signature", "job",
    "exit_status", "found", "copied",
)  # fmt: skip


@pytest.fixture
def source(area: Path) -> Path:
    """Return a tree with items of several types."""
    path = area / "source"
    (path / "sub").mkdir(parents=True)
    for name in ("one", "two", "sub/three"):
        (path / name).write_bytes(name.encode())
    os.link(path / "one", path / "sub/one-again")
    os.link(path / "one", path / "sub/one-more")
    (path / "link").symlink_to("one")
    os.mkfifo(path / "fifo")
    return path


@pytest.mark.parametrize(("ranks", "launcher"), [(1, None), (2, None), (8, None), (3, "mpi")])
def test_json_summary_has_all_keys_and_counts(area: Path, source: Path, ranks: int, launcher: str | None) -> None:
    reported = summary(succeed("--json", source, area / "copy", ranks=ranks, launcher=launcher))
    assert set(KEYS) <= reported.keys()
    expected = {
        "files": 3, "directories": 2, "symlinks": 1, "special": 1, "hardlinks": 2, "bytes": 15, "skipped": 0,
        "deleted": 0, "failed": 0, "changed": 0, "vanished": 0, "excused": 0, "ranks": ranks, "exit_status": 0,
        "found": 9, "copied": 9,
    }  # fmt: skip
    assert {key: reported[key] for key in expected} == expected
    assert 0 < reported["seconds"] < 60
    assert reported["bytes_per_second"] >= 0


def test_summary_is_printed_by_one_rank(area: Path, source: Path) -> None:
    run = succeed(source, area / "copy", ranks=3, launcher="mpi")
    one = succeed(source, area / "copy-2", ranks=1)
    assert len(run.stdout.splitlines()) == len(one.stdout.splitlines()) > 0, show(run)


def test_first_line_names_the_resolved_target(area: Path, source: Path) -> None:
    (area / "into").mkdir()
    run = succeed(source, area / "into")
    first = (run.stderr or run.stdout).splitlines()[0]
    assert os.fsencode(area / "into/source") in first, show(run)


def test_quiet_hides_progress_but_not_errors(area: Path, source: Path) -> None:
    loud = succeed("--progress", "plain", source, area / "copy")
    quiet = succeed("-q", source, area / "copy-2")
    assert len(quiet.stderr) <= len(loud.stderr)
    run = pcopy("-q", "--existing", "fail", f"{source}/", area / "copy")
    assert run.returncode == 1, show(run)
    assert b"one" in run.stderr, show(run)


def test_verbose_prints_no_less(area: Path, source: Path) -> None:
    plain = succeed("--progress", "none", source, area / "copy")
    run = succeed("-v", "--progress", "none", source, area / "copy-2")
    assert len(run.stderr) >= len(plain.stderr), show(run)


@pytest.mark.parametrize("kind", ["plain", "none", "auto"])
def test_progress_without_a_terminal_has_no_control_characters(area: Path, source: Path, kind: str) -> None:
    run = succeed("--progress", kind, source, area / "copy")
    assert b"\x1b" not in run.stderr and b"\r" not in run.stderr, show(run)


def test_standard_output_is_only_the_json_summary(area: Path, source: Path) -> None:
    for options in (["-v"], ["--progress", "plain"], ["-q"]):
        summary(succeed("--json", *options, f"{source}/", area / "copy"))


@pytest.mark.alone
def test_version_is_printed_quickly(area: Path) -> None:
    begun = time.monotonic()
    run = succeed("--version")
    assert re.match(rb"pcopy \d+\.\d+.* \(backend (c|python)\)$", run.stdout), show(run)
    assert run.stderr == b""
    # Four times the limit for an idle machine: other programs may be running.
    assert time.monotonic() - begun < 0.6


PAGE = (b"SRC", b"DST", b"--ranks", b"--dry-run", b"--existing", b"--resume", b"pcopy --help", b"man pcopy")


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("-h", PAGE),
        ("--help", (b"SRC", b"DST", b"--preserve", b"--existing", b"--json", b"--errors", b"--max-errors")),
    ],
)
def test_help_lists_the_main_options(option: str, words: tuple[bytes, ...]) -> None:
    run = succeed(option)
    for word in words:
        assert word in run.stdout, show(run)
    assert (b"--max-errors" in run.stdout) == (option == "--help")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], ""),
        (["only-one"], ""),
        (["--no-such-option", "a", "b"], "--no-such-option"),
        (["-n", "0", "a", "b"], "0"),
        (["-n", "-3", "a", "b"], "-3"),
        (["-n", "many", "a", "b"], "many"),
        (["--chunk-size", "huge", "a", "b"], "huge"),
        (["--chunk-size", "-1", "a", "b"], "-1"),
        (["--max-errors", "some", "a", "b"], "some"),
        (["--progress", "loud", "a", "b"], "loud"),
    ],
)
def test_usage_errors_name_the_problem(area: Path, arguments: list[str], named: str) -> None:
    (area / "a").write_bytes(b"x")
    run = pcopy(*arguments, cwd=area)
    assert run.returncode == 2, show(run)
    assert named.encode() in run.stderr and run.stderr, show(run)
    assert b"Traceback" not in run.stderr, show(run)
    assert sorted(os.listdir(area)) == ["a"]


def test_option_for_ranks_under_a_launcher_is_refused(area: Path, source: Path) -> None:
    run = pcopy("-n", "2", source, area / "copy", ranks=2, launcher="mpi")
    assert run.returncode == 2, show(run)
    assert not (area / "copy").exists()


@pytest.mark.parametrize(
    ("size", "valid"), [("16M", True), ("16MiB", True), ("16MB", True), ("16777216", True), ("16Q", False)]
)
def test_sizes_with_units_are_parsed(area: Path, source: Path, size: str, valid: bool) -> None:
    run = pcopy("--chunk-size", size, source, area / "copy")
    assert run.returncode == (0 if valid else 2), show(run)


@pytest.mark.parametrize(("ranks", "launcher"), [(2, None), (2, "mpi")])
def test_source_and_its_access_times_are_not_modified(on_strict_atime: Path, ranks: int, launcher: str | None) -> None:
    """The file system updates access times at each read."""
    source = on_strict_atime / "source"
    for number in range(50):
        path = source / f"{number % 5}/{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * number * 1000)
    (source / "large").write_bytes(b"x" * (20 << 20))
    (source / "link").symlink_to("large")
    os.mkfifo(source / "fifo")
    for entry in list(walk(os.fsencode(source))):
        os.utime(os.fsencode(source) + b"/" + entry.path, ns=(1_000_000_007, 2_000_000_009), follow_symlinks=False)
    before = snapshot(source)
    succeed(source, on_strict_atime / "copy", ranks=ranks, launcher=launcher)
    assert changes(before, snapshot(source)) == []


@pytest.mark.alone
def test_small_job_is_quick(area: Path) -> None:
    """Starting ranks, detecting the end and terminating must not dominate the work."""
    (area / "file").write_bytes(b"x")
    best = 10.0
    for number in range(5):
        begun = time.monotonic()
        succeed(area / "file", area / f"copy-{number}", ranks=2)
        best = min(best, time.monotonic() - begun)
    # It takes 0.3 s on an idle machine; slow and busy machines get more.
    assert best < 1.0
