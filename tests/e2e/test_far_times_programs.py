"""Times outside the range of 64 bits of nanoseconds, at both ends of it, and before 1970, in all programs."""

from __future__ import annotations

import csv
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Argument, Completed, pcopy, show
from tests.support.filesystems import scratch

LAST, FIRST = 2**63 - 1, -(2**63)
TIMES = {
    "after 2262": 11 * 10**18 + 5, "one above": LAST + 1, "last": LAST, "one below": LAST - 1, "minus": -1,
    "half": -1_500_000_000, "first": FIRST, "one before": FIRST - 1, "before 1677": -11 * 10**18 - 7,
    "year 65347": 2 * 10**21, "last second": (2**63 - 1000) * 10**9,
}  # fmt: skip
"""Nanoseconds since 1970."""


def _make_source(place: Path) -> Path:
    source = place / "source"
    for name, time in TIMES.items():
        (source / name).mkdir(parents=True)
        (source / name / "file").write_text(name)
        os.symlink("file", source / name / "link")
        os.link(source / name / "file", source / name / "other")
        for path in (source / name / "file", source / name / "link", source / name):
            os.utime(path, ns=(0, time), follow_symlinks=False)
    if (source / "after 2262/file").stat().st_mtime_ns != TIMES["after 2262"]:
        pytest.skip("no such time fits here")
    return source


def _stat_times(tree: Path) -> str:
    """Return the paths and modification times in a tree, as printed by stat(1)."""
    words = ["find", ".", "-mindepth", "1", "-exec", "stat", "-c", "%n %.9Y", "{}", "+"]
    return "\n".join(sorted(subprocess.check_output(words, cwd=tree, text=True).splitlines()))


def _run(program: str, *words: Argument, **options: Any) -> Completed:
    run = pcopy("-n", "2", *words, program=program, **options)
    assert run.returncode == 0, show(run)
    return run


def test_archive_holds_exact_times() -> None:
    with scratch() as place:
        source = _make_source(place)
        _run("ptar", "-c", "-f", "a.tar", "source", cwd=place)
        for name, unpack in (("gnu", ["tar"]), ("ours", [])):
            (place / name).mkdir()
            if unpack:
                subprocess.run(
                    [*unpack, "--warning=no-timestamp", "-xf", place / "a.tar"], cwd=place / name, check=True
                )
            else:
                _run("ptar", "-x", "-f", place / "a.tar", "-C", place / name)
            assert _stat_times(place / name / "source") == _stat_times(source), name


@pytest.mark.parametrize("program", ["pcopy", "psync"])
def test_copy_has_exact_times(program: str) -> None:
    with scratch() as place:
        source = _make_source(place)
        _run(program, f"{source}/", place / "copy")
        assert _stat_times(place / "copy") == _stat_times(source)
        assert not _run("pverify", "--compare", "type,mtime,content", source, place / "copy").stdout
        for name, time in TIMES.items():
            os.utime(place / "copy" / name / "file", ns=(0, time - 1))
        run = pcopy("--compare", "mtime", source, place / "copy", program="pverify")
        assert run.stdout.count(b"differ in mtime") == 2 * len(TIMES), show(run)
        _run("psync", f"{source}/", place / "copy")
        assert _stat_times(place / "copy") == _stat_times(source)


def test_walk_compares_exact_times() -> None:
    with scratch() as place:
        _make_source(place)
        for name in TIMES:
            words = ["source", "-newer", f"source/{name}/file"]
            wanted = subprocess.check_output(["find", *words], cwd=place).splitlines()
            assert sorted(_run("pwalk", *words, cwd=place).stdout.splitlines()) == sorted(wanted), name
        ordered = _run("pwalk", "--sort=mtime", "source", "-name", "file", cwd=place).stdout.decode().splitlines()
        assert ordered == [f"source/{name}/file" for name in sorted(TIMES, key=TIMES.__getitem__)]


def test_lists_hold_exact_times() -> None:
    with scratch() as place:
        _make_source(place)
        wanted = {f"source/{name}/file": time for name, time in TIMES.items()}
        for form in ("list.jsonl", "list.csv"):
            _run("pwalk", "-o", place / form, "--fields", "mtime_ns", "source", "-name", "file", cwd=place)
        lines = [json.loads(line) for line in (place / "list.jsonl").read_text().splitlines()[1:]]
        assert {line["path"]: line["mtime_ns"] for line in lines} == wanted
        with (place / "list.csv").open(newline="") as file:
            assert {row["path"]: int(row["mtime_ns"]) for row in csv.DictReader(file)} == wanted
        words = ["source", "-newer", "source/one above/file"]
        later = subprocess.check_output(["find", *words, "-name", "file"], cwd=place).splitlines()
        run = _run("pwalk", "--from", place / "list.jsonl", *words[1:], cwd=place)
        assert sorted(run.stdout.splitlines()) == sorted(later)


@pytest.mark.parametrize("program", ["prm", "pchmod", "pcopy"])
def test_filters_compare_exact_times(program: str) -> None:
    with scratch() as place:
        source = _make_source(place)
        wanted = {name for name, time in TIMES.items() if time > 95 * 10**17}
        words: dict[str, list[Argument]] = {
            "prm": ["-f", source],
            "pchmod": ["711", source],
            "pcopy": [f"{source}/", place / "copy"],
        }
        _run(program, "--newer-than", "2272-01-01", *words[program])
        chosen: dict[str, Callable[[str], bool]] = {
            "prm": lambda name: not (source / name / "file").exists(),
            "pchmod": lambda name: (source / name / "file").stat().st_mode & 0o777 == 0o711,
            "pcopy": lambda name: (place / "copy" / name / "file").exists(),
        }
        assert {name for name in TIMES if chosen[program](name)} == wanted
