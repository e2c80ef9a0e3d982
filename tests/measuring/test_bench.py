"""``python -m bench`` runs commands, checks the copies, and records its measurements; the page is created from the
records."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from bench import headlines, page, ways
from bench.datasets import DATASETS_BY_NAME
from bench.latency import can_mount, compiled_c_program
from bench.suite import SCENARIOS
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


def test_performance_pages_match_the_recorded_results() -> None:
    results = json.loads((page.DOCS / "performance.json").read_text())
    generated = page.generated_files(results)
    names = {str(path.relative_to(ROOT)) for path in generated}
    assert {"README.md", "docs/performance.md", "docs/performance.svg", "docs/speed.svg"} <= names
    for path, text in generated.items():
        assert path.read_text() == text, f"{path.name}: python -m bench.page writes it again"
    assert len(results) > 10


SECTION = re.compile(r"^### (.*)\n\n.*\n\n\| seconds .* / (.*?) \|.*\n.*---.*\n((?:\|.*\n)+)", re.MULTILINE)


def sections_of_performance_page() -> dict[str, tuple[str, dict[str, float]]]:
    """Return, by the anchor of each section, the way to which the others are compared, and the medians of all ways."""
    text = (page.DOCS / "performance.md").read_text()
    sections = {}
    for heading, reference, table in SECTION.findall(text):
        medians = {cells[1].strip(): float(cells[2]) for cells in (row.split("|") for row in table.splitlines())}
        sections[re.sub("[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")] = reference.split(" |")[0], medians
    return sections


def seconds(cell: str) -> float | None:
    """Return the time in a cell of a table in seconds; None if there is none."""
    if cell == "-":
        return None
    value, unit = cell.removesuffix(" (the copy differs)").split()
    return float(value) / {"s": 1, "ms": 1000}[unit]


@pytest.mark.parametrize("name", ["README.md", "docs/comparison.md", "docs/performance.md"])
def test_table_of_speeds_has_the_medians_of_the_sections_that_it_links_to(name: str) -> None:
    sections = sections_of_performance_page()
    rows = re.findall(
        r"^\| \[(?:copy|compare|remove|create) .*?\]\((\S+)#(\S+)\) \| (.*) \|$", (ROOT / name).read_text(), re.M
    )
    assert len(rows) > 7
    outcomes = []
    for target, anchor, cells in rows:
        assert ((ROOT / name).parent / target).resolve() == page.DOCS / "performance.md"
        reference, medians = sections[anchor]
        *times, outcome = (cell.strip(" *") for cell in cells.split(" | "))
        usual, rsync, mpifileutils, ours = map(seconds, times)
        assert ours is not None
        shown = [time for time in (usual, rsync, mpifileutils, ours) if time is not None]
        assert all(any(abs(time - median) <= 0.006 + median / 100 for median in medians.values()) for time in shown)
        factor = medians[reference] / next(
            median for way, median in medians.items() if abs(median - ours) <= 0.006 and re.match("p[a-z]+ -n 2", way)
        )
        outcomes.append(factor)
        amount, _, word = outcome.partition("\N{MULTIPLICATION SIGN} as ")
        if word:
            assert word == ("fast" if factor > 1 else "long")
            assert float(amount) == pytest.approx(
                factor if factor > 1 else 1 / factor, rel=0.03 + 0.0005 / medians[reference]
            )
        else:
            assert outcome == "equal"
            assert factor == pytest.approx(1, abs=0.06)
    assert outcomes == sorted(outcomes, reverse=True)
    assert outcomes[0] > 1 > outcomes[-1]


@pytest.mark.parametrize(("differences", "cell"), [(0, "2.50 s"), (3, "2.50 s (the copy differs)")])
def test_table_of_speeds_shows_a_measured_dcp(differences: int, cell: str) -> None:
    (result,) = (
        each
        for each in json.loads((page.DOCS / "performance.json").read_text())
        if (each["scenario"], each["fs"]) == ("small", "xfs")
    )
    dcp = {**result["ways"]["cp -a"], "wall": [2.5, 2.4, 9.0], "differences": differences}
    rows = headlines.headlines([{**result, "ways": {**result["ways"], "dcp": dcp}}])
    (line,) = headlines.speed_table(rows, "performance.md").splitlines()[2:]
    assert line.split(" | ")[3] == cell


def test_table_of_speeds_shows_the_fastest_way_of_mpifileutils() -> None:
    (result,) = (
        each
        for each in json.loads((page.DOCS / "performance.json").read_text())
        if (each["scenario"], each["fs"]) == ("latency-20", "slow")
    )
    few, many = (statistics.median(result["ways"][name]["wall"]) for name in ("dcp", "dcp -n 16"))
    assert many < few
    (line,) = headlines.speed_table(headlines.headlines([result]), "performance.md").splitlines()[2:]
    assert seconds(line.split(" | ")[3]) == pytest.approx(many, abs=0.06)


def test_all_rows_of_the_readme_measure_a_program_of_mpifileutils(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "is_available", lambda program: program.startswith("d"))
    found = {}
    for task, scenario, _, is_in_readme in headlines.HEADLINE_TASKS:
        if is_in_readme:
            words = [word for way in SCENARIOS[scenario].ways(["-n 2"]).values() for word in way.words]
            found[task] = {"dcp", "dsync", "dcmp"} & {*words}
    assert {task for task, programs in found.items() if len(programs) != 1} == set()
    assert found["copy again, nothing has changed"] == {"dsync"}
    assert found["compare metadata, 1 ms for each operation"] == {"dcmp"}


def test_sentences_count_faster_and_slower_tasks() -> None:
    """They are about the rows of the table, so that a new measurement changes both."""
    text = (page.DOCS / "performance.md").read_text()
    first = text.partition("\n\n")[2].partition("\n\n")[0]
    results = re.findall(
        r"^\| \[.* \| (?:\*\*)?([\d.]+)\N{MULTIPLICATION SIGN} as (fast|long)(?:\*\*)? \|$", text, re.MULTILINE
    )
    for number, word in (
        (sum(word == "fast" for _, word in results), "faster"),
        (sum(word == "long" for _, word in results), "slower"),
    ):
        assert re.search(rf"In {number} .*\*\*{word}\*\*", first), word
    assert f"to {results[0][0]} times as fast" in first
    assert f"to {results[-1][0]} times as long" in first
