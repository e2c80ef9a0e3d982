"""Unfinished jobs as ``--jobs`` lists them, in a table or as JSON."""

from __future__ import annotations

import base64
import json
import os
import time
from pathlib import Path

import pytest

from pcopy.checkpoint.framing import RecordFileWriter
from pcopy.checkpoint.record import EpochTaskRecord
from pcopy.checkpoint.resume import write_first_run
from pcopy.errors import RequestRefused
from pcopy.jobs import job_choice as jobs
from pcopy.jobs.directories import create_job, write_job_file
from pcopy.jobs.job_file import JOB_FAILED_ITEMS, JOB_OVER, JOB_STOPPED
from tests.checkpoint.made import HOLD, child, job_of, root_of, some_root
from tests.cli.stored import BEGUN, made, without_spaces


def columns(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_listing_without_jobs(area: Path, state: Path) -> None:
    assert jobs.job_list_lines(False) == [f"no unfinished jobs in {state}"]
    assert jobs.job_list_lines(True) == []
    assert not os.listdir(area), "listing makes nothing"


def test_unreadable_state_directory_is_an_error(area: Path, state: Path) -> None:
    (area / "state").touch()
    for as_json in (False, True):
        with pytest.raises(RequestRefused, match=f"{state}: cannot be examined: Not a directory"):
            jobs.job_list_lines(as_json)


def test_listed_paths_are_absolute(area: Path, state: Path) -> None:
    """The user who lists jobs may be in another directory than the one who started them."""
    for name in ("source", "target"):
        (area / name).mkdir()
    root = root_of(area / "source", area / "target")._replace(source_shown=b"source", target_shown=b"../target/")
    for name, file in (("all", root), ("one", root._replace(item=b"file", name=b"copy"))):
        _, lock = create_job(None, job_of(file, name=name))
        lock.close()
    ways = [(f"{area}/source", f"{area}/target"), (f"{area}/source/file", f"{area}/target/copy")]
    table = jobs.job_list_lines(False)
    for source, target in ways:
        assert f"  {source} -> {target}" in table
    reported = [json.loads(line) for line in jobs.job_list_lines(True)]
    assert sorted((*job["sources"], job["destination"]) for job in reported) == ways


def test_table_lists_each_job(area: Path, state: Path) -> None:
    way = f"{area}/source -> {area}/target"
    totals = {"files": 1200, "directories": 34, "found": 5000, "bytes": 3 << 30, "unknown": 7}
    made(area, "aaa", totals=totals)
    made(area, "bbb", created=BEGUN + 60, state=JOB_STOPPED, totals={})
    made(area, "ccc", created=BEGUN + 120, state=JOB_FAILED_ITEMS, totals={"found": 1, "failed": 1})
    write_job_file(made(area, "over")._replace(file=job_of(some_root(), state=JOB_OVER)))
    with child(HOLD, bytes(state / "aaa"), "0", "1"):
        reported = jobs.job_list_lines(False)
    host = os.uname().nodename
    assert reported == [
        "JOB  BEGUN             STATE         COPIED",
        "ccc  2023-11-14 22:15  failed items  0 of 1, 0 B",
        f"  {way}",
        "bbb  2023-11-14 22:14  stopped       -",
        f"  {way}",
        "aaa  2023-11-14 22:13  running       1,234 of 5,000, 3.00 GiB",
        f"  {way}",
        f"  2 ranks on {host}",
    ]
    assert columns(jobs.job_list_lines(False)[-2])[2] == "interrupted"


def test_long_paths_are_listed_in_full(area: Path, state: Path) -> None:
    """Users may copy and paste them."""
    root = some_root()._replace(source=b"/" + 250 * b"s", target=b"/t" + 250 * b"\xff", item=b"", name=b"n")
    create_job(None, job_of(root))[1].close()
    escaped = 250 * r"\xff"
    assert jobs.job_list_lines(False)[2] == f"  /{250 * 's'} -> /t{escaped}/n"


def test_interrupted_job_is_listed_with_its_recorded_totals(area: Path, state: Path) -> None:
    """Records common to all ranks count. An incomplete record, and one after a missing epoch, do not."""
    job = made(area, "aaa", totals={"files": 1, "found": 1})
    write_first_run(job.path, 2, [10], [])
    counts: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
    counts |= {0: [(1, (20, 5, 0, 3, 1)), (2, (30, 6, 0, 4))], 1: [(1, (40, 7, 0, 5)), (3, (1000, 1000, 0, 1000))]}
    for rank, records in counts.items():
        writer = RecordFileWriter(job.path, 1, rank)
        for epoch, count in records:
            writer.append(EpochTaskRecord(1, rank, 2, epoch, 0, count, b"", ()))
        writer.close()
    with open(state / "aaa" / "run-1" / "facts-1", "ab") as file:
        file.write(bytes(7))
    before = {path for path in (state / "aaa").rglob("*") if path.is_file()}
    for torn in (bytes(20), b"\xff" * 40, b""):
        with open(state / "aaa" / "run-1" / "facts-1", "ab") as file:
            file.write(torn)
        (reported,) = map(json.loads, jobs.job_list_lines(True))
        assert (reported["found"], reported["copied"], reported["state"]) == (70, 9, "interrupted")
    assert jobs.job_list_lines(False)[1].endswith("  9 of 70, 0 B")
    assert {path.name for path in (state / "aaa").rglob("*") if path.is_file()} == {path.name for path in before}
    (state / "aaa" / "run-1" / "base-0").unlink()
    assert jobs.job_list_lines(False)[1].endswith("  1 of 1, 0 B"), "what the run before it left"


def test_stopped_job_is_listed_with_its_totals(area: Path, state: Path) -> None:
    job = made(area, "aaa", state=JOB_STOPPED, totals={"files": 4, "found": 5})
    write_first_run(job.path, 1, [10], [])
    assert jobs.job_list_lines(False)[1].endswith("  4 of 5, 0 B")


def test_names_cannot_forge_a_line(area: Path, state: Path) -> None:
    _, lock = create_job(None, job_of(some_root()))
    lock.close()
    reported = jobs.job_list_lines(False)
    assert len(reported) == 3
    assert reported[2] == "  /s\\xff\\n/item -> /t\\\\/näme"
    assert all(line.isprintable() for line in reported)


def test_several_sources_are_shown_as_a_number(area: Path, state: Path) -> None:
    _, lock = create_job(None, job_of(some_root(), some_root()._replace(name=b"b")))
    lock.close()
    assert jobs.job_list_lines(False)[2] == "  2 sources -> /t\\\\"


def test_unusable_job_is_listed_with_the_reason(area: Path, state: Path) -> None:
    made(area, "bad")
    (state / "bad" / "job").write_text("x")
    trouble = f"{state}/bad/job: not a job of pcopy's; discard it: pcopy --discard bad"
    assert without_spaces(jobs.job_list_lines(False)) == without_spaces([f"cannot be used: {trouble}"])
    (reported,) = map(json.loads, jobs.job_list_lines(True))
    assert (reported["job"], reported["state"]) == ("bad", None)
    made(area, "good")
    assert jobs.job_list_lines(False)[1].startswith("good ")


def test_json_listing_has_one_line_per_job(area: Path, state: Path) -> None:
    made(area, "aaa", totals={"files": 3, "found": 5, "failed": 1, "bytes": 7}, runs=2)
    with child(HOLD, bytes(state / "aaa"), "4") as process:
        (reported,) = map(json.loads, jobs.job_list_lines(True))
    locked = reported.pop("locked")
    assert [(holder["rank"], holder["host"], holder["pid"]) for holder in locked] == [
        (4, os.uname().nodename, process.pid)
    ]
    path = str(state / "aaa")
    assert reported.pop("directory_b64") == base64.b64encode(path.encode()).decode()
    assert reported == {
        "job": "aaa", "directory": path, "begun": BEGUN, "sources": [f"{area}/source"],
        "destination": f"{area}/target", "state": "running", "runs": 2, "found": 5, "copied": 3, "skipped": 0,
        "failed": 1, "bytes": 7, "progress": None,
    }  # fmt: skip


def test_status_file_of_a_running_job_is_shown(area: Path, state: Path) -> None:
    """In the format of docs/formats/control.md. The file of another run, and an invalid file, are ignored."""
    made(area, "aaa", runs=2)
    reported = {
        "time": time.time() - 61, "phase": "copy", "found": 5000, "copied": 1234, "skipped": 0, "failed": 2,
        "bytes": 3 << 30, "percent": 45.2, "bytes_per_second": 5 << 20, "eta": 61.2, "run": 2, "ranks": 8,
        "bwlimit": 10 << 20, "oplimit": 3000, "active": 2, "paused": True, "control": "",
    }  # fmt: skip
    file = state / "aaa" / "progress"
    with child(HOLD, bytes(state / "aaa"), "0"):
        for contents in (json.dumps({**reported, "run": 1}), "{", "[]", json.dumps({"run": 2})):
            file.write_text(contents)
            assert columns(jobs.job_list_lines(False)[1])[2:] == ["running", "7 of 9, 1.00 TiB"]
            assert "progress" in json.loads(jobs.job_list_lines(True)[0])
        reported["time"] = time.time() - 61  # the steps before may take a second on a busy machine
        file.write_text(json.dumps(reported))
        _, row, _, line = jobs.job_list_lines(False)
        assert columns(row)[2:] == ["paused", "1,234 of 5,000, 3.00 GiB"]
        assert line == (
            f"  8 ranks on {os.uname().nodename}: 45.2 %, 5.00 MiB/s, 1:01 left, 2 failed, 10.0 MiB/s at most, "
            "3,000 operations/s at most, 2 of 8 ranks active, paused, not heard of for 1:01"
        )
        assert json.loads(jobs.job_list_lines(True)[0])["progress"] == reported
    assert columns(jobs.job_list_lines(False)[1])[2] == "interrupted"
