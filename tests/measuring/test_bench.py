"""``python -m bench`` runs commands, checks the copies, and records its measurements; the page is created from the
records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import page, ways
from bench.datasets import DATASETS_BY_NAME
from bench.latency import can_mount, compiled_c_program
from tests.support.oracle import differences

ROOT = Path(__file__).resolve().parents[2]
BARE = ROOT / "bench" / "bare.c"


def run(area: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a tiny benchmark; programs in ``area/bin`` have precedence."""
    path = f"{area / 'bin'}:{os.environ['PATH']}"
    command = [sys.executable, "-m", "bench", "--scale", "tiny", "--rounds", "2", "--pcopy=-n 2", *words]
    command += ["--peers", "xcp"]
    environment = {**os.environ, "PATH": path, "XDG_STATE_HOME": str(area / "state")}
    command += ["--memory", str(area), "--json", str(area / "report.json")]
    return subprocess.run(command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True)


def put(area: Path, name: str, line: str) -> None:
    """Create a program that is found instead of the real one of that name."""
    (area / "bin").mkdir(exist_ok=True)
    (area / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
    (area / "bin" / name).chmod(0o755)


def test_benchmark_records_times_of_all_commands(area: Path) -> None:
    for name in {*ways.PARALLEL_COPY_COMMANDS, "drm", *(name.partition(" ")[0] for name in ways.MPIFILEUTILS_COMMANDS)}:
        put(area, name, "exit 97")  # programs other than the requested peers must not run
    put(area, "xcp", 'while [ $# -gt 2 ]; do shift; done; exec cp -rT "$1" "$2"')
    done = run(area, "--only", "small", "remove", "--fs", "tmpfs")
    assert done.returncode == 0, done.stderr
    small, removed = json.loads((area / "report.json").read_text())
    assert {"cp -a", "rsync -a", "xcp", "pcopy -n 2"} <= small["ways"].keys()
    assert (small["fs"], small["files"], small["bytes"]) == ("tmpfs", 200, 200 * 4096)
    assert {len(way[time]) for way in small["ways"].values() for time in ("wall", "processor")} == {2}
    assert small["ways"]["cp -a"]["command"] == "cp -aT SRC DST && sync -f DST"
    assert small["ways"]["xcp"]["differences"] > 0, "it does not preserve times"
    assert [name for name, way in small["ways"].items() if way["differences"]] == ["xcp"]
    assert {"rm -rf", "prm -n 1"} <= removed["ways"].keys()
    assert "xcp" not in small["about"]["absent"]
    assert {"drm", "rclone", "dwalk"} <= set(small["about"]["absent"])
    assert not {"drm", "rclone"} & (small["ways"].keys() | removed["ways"].keys())
    assert "not installed: " in done.stdout
    assert os.listdir(area / "state") == ["pcopy"] or not (area / "state").exists()
    assert {name for name in os.listdir(area) if name.startswith("pcopy-bench")} == set()


def test_benchmark_on_a_slow_file_system_records_operation_counts(area: Path) -> None:
    if not can_mount():
        pytest.skip("it takes root and libfuse3-dev")
    done = run(area, "--only", "latency-1", "--delay", "100", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    (reported,) = json.loads((area / "report.json").read_text())
    assert reported["files"] == 100
    for way in reported["ways"].values():
        assert min(way["operations"]) > 10 * reported["files"]
    assert reported["ways"]["bare C, -t 1"]["most at once"] == [1]
    assert min(reported["ways"]["bare C, -t 16"]["most at once"]) > 1


def test_benchmark_stops_if_a_copy_differs_from_its_source(area: Path) -> None:
    put(area, "cp", 'mkdir "$3"')
    done = run(area, "--only", "small", "--fs", "tmpfs")
    assert done.returncode == 1
    assert "cp -aT SRC DST && sync -f DST: the copy differs from its source" in done.stderr


@pytest.mark.parametrize("how", [("-p", "2"), ("-t", "16")])
def test_bare_c_program_makes_a_complete_copy(how: tuple[str, str], area: Path) -> None:
    source = area / "source"
    for shape in ("heavy", "fdtree"):
        (source / shape).mkdir(parents=True)
        DATASETS_BY_NAME[shape](0.002).make(source / shape)
    (source / "link").symlink_to("nowhere")
    (source / "fdtree" / "d1").chmod(0o2750)
    (source / "fdtree" / "f0000000").chmod(0o4711)
    subprocess.run([compiled_c_program(BARE, "-lpthread"), *how, source, area / "copy"], check=True)
    assert differences(source, area / "copy") == []


def test_bare_c_program_stops_at_an_unsupported_item(area: Path) -> None:
    (area / "source").mkdir()
    (area / "source" / "file").touch()
    os.setxattr(area / "source" / "file", "user.x", b"1")
    command: list[str | Path] = [compiled_c_program(BARE, "-lpthread"), "-p", "2", area / "source", area / "copy"]
    done = subprocess.run(command, check=False, capture_output=True, timeout=60)
    assert done.returncode == 1
    assert b"extended attributes of /file" in done.stderr


def test_performance_page_matches_the_recorded_results() -> None:
    results = json.loads((page.DOCS / "performance.json").read_text())
    assert (page.DOCS / "performance.md").read_text() == page.performance_page(results), (
        "python -m bench.page writes it again"
    )
    assert (page.DOCS / "performance.svg").read_text() == page.performance_chart(results)
    assert len(results) > 10
