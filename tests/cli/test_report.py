"""The summary and the failures, for people and for programs."""

from __future__ import annotations

import base64
import errno
import json
import time
from pathlib import Path

import pytest

from pcopy.cli import pverify
from pcopy.errors import EXIT_OK
from pcopy.launch.tool import JobResult
from pcopy.report.screen import failure_json, failure_line
from pcopy.tasks.base.job import Failure, JobCounters
from pcopy.tools.arguments import VerifyArguments
from pcopy.tools.summary import copy_json_summary, summary_lines
from pcopy.tools.verify import VerifyJob

TOTALS = JobCounters(
    found=1250, found_bytes=5 << 30, files=1200, directories=30, symlinks=5, special=1, hardlinks=4, bytes=3 << 30,
    moved=3 << 30, skipped=3, skipped_bytes=1 << 20, failed=7, failed_bytes=10, changed=2, vanished=1, excused=6,
    warnings=1,
)  # fmt: skip


def test_summary_for_people() -> None:
    assert summary_lines(TOTALS, 12.0, 4, 1) == [
        "1,250 found = 1,240 copied + 3 skipped + 7 failed",
        "  copied: 1,200 files of 3.00 GiB, 30 directories, 5 symbolic links, 4 hard links, 1 special file",
        "  skipped: 1.00 MiB",
        "  failed: 2 changed meanwhile, 1 vanished",
        "  besides: 6 excused (owner, group or attributes that cannot be set), 1 warning",
        "3.00 GiB in 12.0 s: 256 MiB/s with 4 ranks",
        "incomplete: not everything is in the destination (status 1)",
    ]


def test_summary_of_one_empty_file() -> None:
    assert summary_lines(JobCounters(found=1, files=1), 0.0, 1, 0) == [
        "1 found = 1 copied + 0 skipped + 0 failed",
        "  copied: 1 file of 0 B",
        "0 B in 0.00 s: 0 B/s with 1 rank",
    ]


@pytest.mark.parametrize(
    ("before", "moved", "now"),
    [(0, 30 << 20, "30.0 MiB"), (40 << 20, 90 << 20, "60.0 MiB"), (200 << 20, 0, "0 B")],
)
def test_resumed_run_reports_bytes_copied_by_itself(before: int, moved: int, now: str) -> None:
    """Earlier runs may have copied parts of a file that this run completes or finds damaged."""
    totals = JobCounters(found=1, files=1, bytes=100 << 20, moved=moved)
    assert f"{now} by this run in 1.00 s: {now}/s with 2 ranks" in summary_lines(totals, 1.0, 2, 0, before)


@pytest.mark.parametrize(
    ("before", "status", "expected"),
    [
        (40 << 20, 0, ["  kept: 40.0 MiB of 100 MiB, from earlier runs"]),
        (40 << 20, 1, ["  kept: 40.0 MiB of 100 MiB, from earlier runs"]),
        (40 << 20, 75, []),
        (0, 0, []),
        (None, 0, []),
    ],
)
def test_resumed_run_reports_bytes_kept_from_earlier_runs(before: int | None, status: int, expected: list[str]) -> None:
    totals = JobCounters(found=1, files=1, bytes=100 << 20, moved=100 << 20)
    assert [line for line in summary_lines(totals, 1.0, 2, status, before) if "kept" in line] == expected


def test_summary_of_a_job_that_stopped() -> None:
    lines = summary_lines(TOTALS._replace(found=1300), 1.0, 4, 75)
    assert lines[0] == "1,300 found = 1,240 copied + 3 skipped + 7 failed + 50 not reached"
    assert lines[-1] == "stopped early (status 75)"
    last = summary_lines(TOTALS, 1.0, 4, 75)[-1]
    assert last == (
        "stopped early (status 75): no item is waiting, but the job is not finished "
        "(for example, the last sync is missing)"
    )


def test_summary_for_programs() -> None:
    ended = JobResult(1, TOTALS._replace(verified=9, confirmed_bytes=5 << 20), None, (("8 stripes", 7),))
    text = json.dumps(copy_json_summary(ended, 12.00049, 4))
    assert "\n" not in text
    assert json.loads(text) == {
        "found": 1250, "copied": 1240, "files": 1200, "directories": 30, "symlinks": 5, "special": 1, "hardlinks": 4,
        "bytes": 3 << 30, "skipped": 3, "deleted": 0, "failed": 7, "changed": 2, "vanished": 1, "excused": 6,
        "layouts": [{"layout": "8 stripes", "files": 7}],
        "warnings": 1, "verified": 9, "verified_bytes": 5 << 20,
        "seconds": 12.0, "bytes_per_second": round((3 << 30) / 12.00049), "ranks": 4, "signature": None,
        "job": None, "sequential": False, "exit_status": 1, "mended": 0, "excluded": 0,
    }  # fmt: skip
    assert copy_json_summary(JobResult(0, JobCounters(), None), 0.0, 1)["bytes_per_second"] == 0


@pytest.mark.parametrize(
    ("failure", "line"),
    [
        (Failure(b"a/b", "open", errno.EACCES, ""), "pcopy: a/b: open: Permission denied (EACCES)"),
        (Failure(b"a", "open", errno.EACCES, "Permission denied"), "pcopy: a: open: Permission denied (EACCES)"),
        (
            Failure(b"a", "write", errno.ENOSPC, "on \x1b"),
            r"pcopy: a: write: No space left on device: on \x1b (ENOSPC)",
        ),
        (Failure(b"\xff\n", "read", 0, "changed\nmeanwhile"), r"pcopy: \xff\n: read: changed\nmeanwhile"),
        (Failure(b"a", "read", 9999, ""), "pcopy: a: read: Unknown error 9999 (errno 9999)"),
        (Failure(b"a", "read", 0, ""), "pcopy: a: read: failed"),
    ],
)
def test_failures_for_people(failure: Failure, line: str) -> None:
    assert failure_line(failure) == line


def test_failures_for_programs() -> None:
    text = failure_json(Failure(b"\xff\n", "open", errno.EACCES, ""))
    assert "\n" not in text
    values = json.loads(text)
    assert base64.b64decode(values.pop("path_b64")) == b"\xff\n"
    assert values == {"path": r"\xff\n", "operation": "open", "errno": errno.EACCES, "message": "Permission denied"}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["a"], "1 path given"),
        (["a", "b", "c"], "3 paths given"),
        (["--create", "sig", "a", "b"], "PATH expected, but 2 paths given"),
        (["--unknown", "a", "b"], "unknown option --unknown"),
        (["/nowhere", "/nowhere else"], "/nowhere: No such file or directory"),
        (["", "b"], "the empty string"),
    ],
)
def test_pverify_refuses_in_one_line(words: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert pverify.main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("pverify: ") and reason in err
    assert err.count("\n") == 1


def test_pverify_prints_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert pverify.main(["--version"]) == pverify.main(["-h"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("pverify ")
    assert "usage: pverify" in out
    assert err == ""


def test_comparison_of_zero_duration_has_no_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The clock of a machine may not advance during such a short job."""
    for name in ("one", "another"):
        (tmp_path / name).mkdir()
    preparation = VerifyJob(VerifyArguments((bytes(tmp_path / "one"), bytes(tmp_path / "another"))))
    monkeypatch.setattr(time, "monotonic", lambda: preparation.began)
    assert preparation.report_job_result(JobResult(EXIT_OK, JobCounters(bytes=5), None), 1) == EXIT_OK
    assert "of 5 B in A and B together in 0.00 s: 0 B/s" in capsys.readouterr().err
