"""``--metrics`` files of complete runs, read by the parser of Prometheus."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import time
from pathlib import Path

import pytest

from tests.support.command import Argument, pcopy, pverify, show, succeed, summary
from tests.support.files import noise
from tests.support.held import held
from tests.support.metrics import Read

_AS_JSON = {
    "found": "found_items",
    "copied": "copied_items_total",
    "skipped": "skipped_items_total",
    "failed": "failed_items_total",
    "deleted": "deleted_items_total",
    "excused": "excused_items_total",
    "warnings": "warnings_total",
    "verified": "verified_items_total",
    "bytes": "bytes_total",
    "exit_status": "last_exit_status",
    "ranks": "ranks",
}


@pytest.fixture
def source(area: Path) -> Path:
    (area / "source/sub").mkdir(parents=True)
    (area / "source/one").write_bytes(os.urandom(70_000))
    (area / "source/sub/two").write_bytes(noise(5 << 20))
    (area / "source/sub/link").symlink_to("two")
    return area / "source"


@pytest.fixture
def prom(area: Path) -> Path:
    (area / "node").mkdir()
    return area / "node/nightly.prom"


@pytest.mark.parametrize("launcher", [None, "mpi"])
def test_metrics_equal_the_json_summary(area: Path, source: Path, prom: Path, launcher: str | None) -> None:
    before = time.time()
    run = pcopy(
        *("--json", "-q", "--verify", "--existing", "skip", "--metrics", prom, f"{source}/", area / "copy"),
        ranks=2,
        launcher=launcher,
    )
    assert run.returncode == 0, show(run)
    read, reported = Read(prom), summary(run)
    assert read.of("pcopy", **_AS_JSON) == {name: reported[name] for name in _AS_JSON}
    assert read["pcopy_found_items"] == 5 and read["pcopy_bytes_total"] == 70_000 + (5 << 20)
    assert read["pcopy_running"] == 0 and read.get("pcopy_phase_info") is None
    started, finished = read["pcopy_started_timestamp_seconds"], read["pcopy_finished_timestamp_seconds"]
    assert before - 1 <= started <= finished == read["pcopy_last_success_timestamp_seconds"] <= time.time() + 1
    assert {labels["file"] for labels in read.labels.values()} == {"nightly"}
    assert os.listdir(prom.parent) == [prom.name]


def test_names_and_types_of_metrics_follow_prometheus_conventions(area: Path, source: Path, prom: Path) -> None:
    succeed("--metrics", prom, source, area / "copy")
    read = Read(prom)
    totals = {name for name in read.values if name.endswith("_total")}
    assert {f"{name}_total" for name, kind in read.kinds.items() if kind == "counter"} == totals
    assert set(read.kinds.values()) == {"counter", "gauge"}
    assert all(text.endswith(".") for text in read.helps.values())


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_mode_of_the_metrics_file_follows_the_umask(area: Path, source: Path, prom: Path, umask: int) -> None:
    succeed("--metrics", prom, source, area / "copy", umask=umask)
    assert stat.S_IMODE(prom.stat().st_mode) == 0o644 & ~umask


def test_metrics_of_a_running_job_hold_the_result_of_the_last_one(area: Path, source: Path, prom: Path) -> None:
    succeed("--metrics", prom, f"{source}/", area / "copy")
    succeeded = Read(prom)["pcopy_last_success_timestamp_seconds"]
    failed = pcopy("--metrics", prom, "--existing", "fail", f"{source}/", area / "copy")
    assert failed.returncode == 1, show(failed)
    assert Read(prom)["pcopy_failed_items_total"] == 3  # two files and a link
    with held(area / "log", "--metrics", prom, f"{source}/", area / "copy", ranks=1) as run:
        read = Read(prom)
        assert read["pcopy_running"] == 1
        assert read["pcopy_last_exit_status"] == 1
        assert read["pcopy_last_success_timestamp_seconds"] == succeeded
        assert read["pcopy_started_timestamp_seconds"] > read["pcopy_finished_timestamp_seconds"] > succeeded
        ended = run.go_on()
    assert ended.returncode == 0, show(ended)
    read = Read(prom)
    assert (read["pcopy_running"], read["pcopy_last_exit_status"]) == (0, 0)
    assert read["pcopy_last_success_timestamp_seconds"] > succeeded


def test_metrics_of_a_resumed_job_are_the_sums_of_all_its_runs(area: Path, source: Path, prom: Path) -> None:
    job = ("--checkpoint", area / "job")
    with held(area / "log", *job, "--verify", "--metrics", prom, f"{source}/", area / "copy", ranks=1) as run:
        run.run.send_signal(signal.SIGTERM)
        stopped = run.go_on()
    assert stopped.returncode == 75, show(stopped)
    assert Read(prom)["pcopy_last_exit_status"] == 75
    resumed = pcopy("--resume", area / "job", "--json", "--metrics", prom)
    assert resumed.returncode == 0, show(resumed)
    read, reported = Read(prom), summary(resumed)
    assert read["pcopy_runs"] == 2
    assert read.of("pcopy", **_AS_JSON) == {name: reported[name] for name in _AS_JSON}
    assert read["pcopy_copied_items_total"] == 5


def test_write_error_of_metrics_is_reported_once_and_the_job_succeeds(area: Path, source: Path, prom: Path) -> None:
    with held(area / "log", "-q", "--metrics", prom, source, area / "copy", ranks=1) as run:
        shutil.rmtree(prom.parent)
        ended = run.go_on()
    assert ended.returncode == 0, show(ended)
    lines = ended.stderr.decode().splitlines()
    assert [line for line in lines if "metrics" in line] == lines and len(lines) == 1, lines
    assert f"pcopy: {prom}: cannot write the metrics: No such file or directory" in lines[0]


def test_hostile_names_are_escaped_in_labels(area: Path, prom: Path) -> None:
    source = os.fsencode(area) + b'/a"b\\c\nd\xff'
    os.mkdir(source)
    hostile = prom.with_name('x"y\\z\n{}.prom')
    succeed("--metrics", hostile, source + b"/", area / "copy")
    labels = Read(hostile).labels["pcopy_job_info"]
    assert labels["source"] == f'{area}/a"b\\\\c\\nd\\xff/'
    assert labels["file"] == 'x"y\\\\z\\n{}'


def test_pverify_pchmod_and_prm_write_metrics(area: Path, source: Path, prom: Path) -> None:
    read = pverify("--json", "--create", area / "signature", "--metrics", prom, source)
    assert read.returncode == 0, show(read)
    metrics = Read(prom)
    assert metrics["pverify_read_items_total"] == 5 and metrics["pverify_last_exit_status"] == 0
    changed = pcopy("--json", "--metrics", prom, "u+rw", source, program="pchmod")
    assert changed.returncode == 0, show(changed)
    metrics = Read(prom)
    assert metrics["pchmod_as_it_should_be_items_total"] == 5 and metrics["pchmod_last_exit_status"] == 0
    removed = pcopy("--json", "--yes", "--metrics", prom, source, program="prm")
    assert removed.returncode == 0, show(removed)
    metrics = Read(prom)
    assert metrics["prm_removed_items_total"] == json.loads(removed.stdout)["removed"] == 5
    assert metrics.labels["prm_job_info"]["destination"] == ""


def test_documentation_lists_all_series(area: Path, source: Path, prom: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/formats/metrics.md").read_text()
    listed = page.partition("## Series")[2].partition("## Alerts")[0]
    rows = re.findall(r"^\| (`.*?`) \| (gauge|counter) \|", listed, re.MULTILINE)
    reported = {name.replace("DONE", "copied"): kind for names, kind in rows for name in re.findall("`(.*?)`", names)}
    with held(area / "log", "--verify", "--metrics", prom, source, area / "copy", ranks=1) as run:
        running = Read(prom)
        run.go_on()
    ended = Read(prom)
    kinds = {**running.kinds, **ended.kinds}
    found = {name: kinds[name.removesuffix("_total")] for name in {**running.values, **ended.values}}
    seen_later = {"phase_info", "progress_ratio", "remaining_seconds"}  # only longer jobs have them
    assert {name.removeprefix("pcopy_"): kind for name, kind in found.items()}.items() <= reported.items()
    assert reported.keys() - {name.removeprefix("pcopy_") for name in found} <= seen_later


def _refusal(name: str, *arguments: Argument, program: str = "pcopy") -> str:
    run = pcopy(*arguments, program=program)
    assert run.returncode == 2, show(run)
    (line,) = run.stderr.decode().splitlines()
    assert name in line, line
    return line


def test_invalid_metrics_paths_are_refused(area: Path, source: Path, prom: Path) -> None:
    copy = area / "copy"
    (area / "notes").write_text("mine")
    (area / "link").symlink_to(area / "notes")
    assert "which is copied from or to" in _refusal("source/m", "--metrics", source / "m", source, copy)
    copy.mkdir()
    assert "which is copied from or to" in _refusal("copy/m", "--metrics", copy / "m", f"{source}/", copy)
    assert "is there already" in _refusal("notes", "--metrics", area / "notes", source, copy)
    assert "symbolic link" in _refusal("link", "--metrics", area / "link", source, copy)
    assert "does not exist" in _refusal("none/m", "--metrics", area / "none/m", source, copy)
    assert "the same file" in _refusal("prom", "--metrics", prom, "--errors", prom, source, copy)
    assert "empty string" in _refusal("--metrics", "--metrics", "", source, copy)
    assert "--dry-run does nothing" in _refusal("--metrics", "--metrics", prom, "--dry-run", source, copy)
    assert "is a directory" in _refusal("node", "--metrics", f"{prom.parent}/", source, copy)
    assert "is removed" in _refusal("source/m", "--yes", "--metrics", source / "m", source, program="prm")
    assert "which is read" in _refusal("source/m", "--metrics", source / "m", source, copy, program="pverify")
    assert (area / "notes").read_text() == "mine" and not list(copy.iterdir()) and not prom.exists()
