"""Progress of the verification as JSON lines: it starts low and never decreases within a phase."""

from __future__ import annotations

import json
import os
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import pcopy, pverify, show
from tests.support.faults import READS, require_strace

FILES = 4
SIZE = 8 << 20
PROGRESS = ("--progress", "json", "--progress-interval", "0.05")


def slow_reads(log: Path, *paths: Path) -> list[str]:
    """Return a command prefix that slows down reads of ``paths``; files being copied have temporary names."""
    require_strace()
    calls = ",".join("?" + call for call in READS)
    line = ["strace", "-f", "-qq", "-o", str(log), "-e", f"trace={calls}", "-e", f"inject={calls}:delay_enter=100000"]
    return [*line, *(word for path in paths for word in ("-P", str(path)))]


def lines_of(stderr: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stderr.splitlines() if line.startswith(b"{")]


def check_growing(lines: list[dict[str, Any]], done: str, whole: str) -> None:
    """Check that the progress starts below 100 % and grows, and that ``done`` never exceeds ``whole``."""
    shares = [line["percent"] for line in lines if line["percent"] is not None]
    assert shares, lines
    assert shares[0] < 100
    assert shares == sorted(shares)
    assert len(set(shares)) > 1, lines
    assert all(line[done] <= line[whole] for line in lines)
    assert all(one["handled_bytes"] <= other["handled_bytes"] for one, other in pairwise(lines))
    assert lines[0]["handled_bytes"] < lines[-1]["handled_bytes"]


@pytest.fixture
def source(area: Path) -> Path:
    tree = area / "source"
    (tree / "small").mkdir(parents=True)
    for number in range(50):
        (tree / "small" / str(number)).write_bytes(b"%d" % number)
    for number in range(FILES):
        (tree / str(number)).write_bytes(os.urandom(SIZE))
    return tree


@pytest.mark.parametrize("ranks", [1, 2])
def test_progress_of_a_verified_copy_grows(area: Path, source: Path, ranks: int) -> None:
    copy = area / "copy"
    wrap = slow_reads(area / "log", *(copy / str(number) for number in range(FILES)))
    run = pcopy("--verify", "--signature", area / "sig", *PROGRESS, source, copy, ranks=ranks, wrap=wrap)
    assert run.returncode == 0, show(run)
    lines = lines_of(run.stderr)
    phases = [phase for phase, _ in groupby(lines, lambda line: line["phase"])]
    assert len(phases) == len(set(phases)), phases
    verify = [line for line in lines if line["phase"] == "verify"]
    check_growing(verify, "verified", "to_verify")
    items = FILES + 50 + 2
    assert {(line["to_verify"], line["to_verify_bytes"]) for line in verify} == {
        (items, FILES * SIZE + sum(len(str(number)) for number in range(50)))
    }
    assert verify[0]["verified"] < items
    assert all(line["percent"] is None for line in lines if line["phase"] == "sign")


def test_progress_of_pverify_grows(area: Path, source: Path) -> None:
    """pverify counts read bytes as a copy counts copied bytes."""
    wrap = slow_reads(area / "log", *(source / str(number) for number in range(FILES)))
    run = pverify("--create", area / "sig", *PROGRESS, source, ranks=2, wrap=wrap)
    assert run.returncode == 0, show(run)
    lines = lines_of(run.stderr)
    assert {line["phase"] for line in lines} <= {"read", "sign"}
    read = [line for line in lines if line["phase"] == "read"]
    check_growing(read, "copied", "found")
    assert lines[-1]["moved"] <= lines[-1]["found_bytes"]
