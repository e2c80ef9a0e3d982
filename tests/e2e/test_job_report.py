"""``--report`` of complete runs, compared with their ``--json`` output and with the trees."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pcopy.units import format_size
from tests.support.command import Argument, Completed, pcopy, show, summary
from tests.support.held import held
from tests.support.pages import Page
from tests.support.users import is_root

SIZES = (0, 1, 2, 3, 1000, 1023, 1024, 70_000, 70_001, 5 << 20)

HOSTILE = (
    b"<script>alert(1)</script>",
    b'"><img src=x onerror=alert(2)>',
    b"'; --></style><b>",
    b"&lt;i&gt;",
    b"line\nbreak\x1b[31m",
    b"bad\xff\xfeutf8",
    "\N{RIGHT-TO-LEFT OVERRIDE}gpj.exe".encode(),
    "עברית".encode(),
)


@pytest.fixture
def source(area: Path) -> Path:
    (area / "source/sub").mkdir(parents=True)
    for number, size in enumerate(SIZES):
        (area / f"source/sub/file-{number}").write_bytes(os.urandom(size))
    os.link(area / "source/sub/file-7", area / "source/link")
    (area / "source/symlink").symlink_to("link")
    return area / "source"


def reported(area: Path, run: Completed) -> tuple[dict[str, Any], Page]:
    """Return the JSON report and the HTML report of a run; assert that both are complete."""
    values = json.loads((area / "report.json").read_text())
    assert (values["format"], values["version"], values["exit_status"]) == ("pcopy-report", 1, run.returncode), show(
        run
    )
    page = Page(area / "report.html")
    page.check_it_is_alone()
    return values, page


def reports(area: Path) -> list[Argument]:
    return ["--report", area / "report.json", "--report", area / "report.html"]


@pytest.mark.parametrize("launcher", [None, "mpi"])
def test_numbers_of_a_report_equal_those_of_json_and_of_the_tree(
    area: Path, source: Path, launcher: str | None
) -> None:
    run = pcopy("--json", *reports(area), "--verify", f"{source}/", area / "copy", ranks=3, launcher=launcher)
    assert run.returncode == 0, show(run)
    totals, (values, page) = summary(run), reported(area, run)
    assert values["summary"] == totals
    assert {name: values["totals"][name] for name in ("found", "copied", "files", "bytes", "hardlinks")} == {
        **{name: totals[name] for name in ("found", "copied", "files", "bytes", "hardlinks")}
    }
    assert (values["seconds"], values["this_run"]["bytes_per_second"]) == (
        totals["seconds"],
        totals["bytes_per_second"],
    )

    by_size = Counter(size.bit_length() for size in SIZES)
    listed = {row["below"].bit_length() - 1: row["copied"] for row in values["sizes"]}
    assert {power: each["files"] for power, each in listed.items() if each["files"]} == by_size
    for power, each in listed.items():
        assert each["bytes"] == sum(size for size in SIZES if size.bit_length() == power)

    ranks = values["ranks"]
    assert [rank["rank"] for rank in ranks] == [0, 1, 2] and {rank["host"] for rank in ranks} == {os.uname().nodename}
    assert sum(rank["items"] for rank in ranks) == totals["copied"]
    assert sum(rank["moved"] for rank in ranks) == values["totals"]["moved"] + values["totals"]["verified_bytes"]
    assert sum(rank["taken"] for rank in ranks) == sum(rank["given"] for rank in ranks)
    assert all(0 <= rank["busy"] <= rank["seconds"] <= totals["seconds"] + 5 for rank in ranks)
    assert sum(rank["tasks"] for rank in ranks) > 3

    last = dict(zip(values["history"]["columns"], values["history"]["rows"][-1], strict=True))
    assert (last["items"], last["moved"], last["checked"]) == (totals["copied"], sum(SIZES), totals["verified"])
    phases = values["phases"]
    assert phases[0]["phase"] == "copy" and "verify" in [phase["phase"] for phase in phases]
    assert sum(phase["seconds"] for phase in phases) == pytest.approx(last["seconds"], abs=0.01)

    slowest = values["slowest"]
    assert 1 <= len(slowest) <= len(SIZES) and slowest == sorted(slowest, key=lambda each: -each["seconds"])
    for each in slowest:
        assert each["bytes"] == os.stat(each["path"]).st_size

    assert page.figures["Bytes copied"] == format_size(sum(SIZES)) and page.figures["Items copied"] == "14"
    assert [row[0] for row in page.tables["ranks"][1:]] == ["0", "1", "2"]
    assert [row[2] for row in page.tables["ranks"][1:]] == [f"{rank['items']:,}" for rank in ranks]
    assert len(page.tables["slowest"]) - 1 == len(slowest)
    assert "✓ All done (status 0)" in page.text


def test_report_shows_skipped_and_failed_items(area: Path, source: Path) -> None:
    first = pcopy(f"{source}/", area / "copy")
    assert first.returncode == 0, show(first)
    (area / "copy/sub/file-9").unlink()
    run = pcopy("--json", *reports(area), "--existing", "fail", f"{source}/", area / "copy")
    totals, (values, page) = summary(run), reported(area, run)
    assert run.returncode == 1 and values["meaning"] in page.text.lower()
    (kind,) = values["failures"]["kinds"]
    assert kind["count"] == totals["failed"] == len(values["failures"]["first"]) == 11
    with_sizes = sum(row.get("failed", {"files": 0})["files"] for row in values["sizes"])
    assert with_sizes == 9  # eight files with a size, and a second name of one of them
    assert sum(row["copied"]["files"] for row in values["sizes"]) == totals["files"] == 1
    assert page.tables["failures"][1][0] == "11"
    failures = [[each["path"], each["operation"], each["message"]] for each in values["failures"]["first"]]
    assert page.tables["failures"][3:] == failures and "File exists" in failures[0][2]
    kept = pcopy("--json", *reports(area), "--existing", "changed", f"{source}/", area / "copy")
    values, _ = reported(area, kept)
    assert (
        sum(row["skipped"]["files"] for row in values["sizes"]) == summary(kept)["skipped"] - 3
    )  # a link, two directories


@pytest.mark.skipif(not is_root(), reason="makes names unreadable for somebody else")
def test_hostile_names_are_escaped_in_an_html_report(area: Path) -> None:
    source = area / "source"
    source.mkdir()
    for name in HOSTILE:
        path = os.fsencode(source) + b"/" + name.replace(b"/", b"%")
        with open(path, "wb") as file:
            file.write(b"contents")
    named = os.fsencode(area) + b"/" + HOSTILE[1] + HOSTILE[4]
    os.rename(source, named)
    copied = pcopy(*reports(area), named, area / "copy")
    values, page = reported(area, copied)
    assert len(values["slowest"]) == len(HOSTILE)
    failed = pcopy(*reports(area), "--existing", "fail", named + b"/", area / "copy")
    assert failed.returncode == 1, show(failed)
    values, page = reported(area, failed)
    assert len(values["failures"]["first"]) == len(HOSTILE)
    harmless = {"html", "head", "meta", "title", "style", "body", "main", "header", "footer", "section", "div", "span"}
    harmless |= {"h1", "h2", "p", "a", "b", "i", "small", "code", "bdi", "br", "dl", "dt", "dd", "figure", "figcaption"}
    harmless |= {
        "table",
        "caption",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "details",
        "summary",
        "svg",
        "rect",
        "line",
        "path",
    }
    assert set(page.tags) <= harmless
    assert page.tags.count("b") == page.tags.count("figcaption")  # none comes from a file name
    for part in ("<script>alert(1)<%script>", '"><img src=x onerror=alert(2)>', "&lt;i&gt;", "עברית"):
        assert part in page.text
    for shown in (r"line\nbreak\x1b[31m", r"bad\xff\xfeutf8", r"\xe2\x80\xaegpj.exe"):
        assert shown in page.text
    assert all(character.isprintable() or character in "\n" for character in page.source)


def test_reports_of_a_stopped_and_of_a_resumed_run(area: Path, source: Path) -> None:
    job = ("--checkpoint", area / "job")
    with held(area / "log", *job, *reports(area), "--verify", f"{source}/", area / "copy", ranks=2) as run:
        run.run.send_signal(signal.SIGTERM)
        stopped = run.go_on()
    assert stopped.returncode == 75, show(stopped)
    values, page = reported(area, stopped)
    assert "SIGTERM" in values["halted"] and values["halted"] in page.text
    assert len(values["ranks"]) == 2 and sum(rank["items"] for rank in values["ranks"]) == values["totals"]["copied"]
    assert values["job"]["run"] == 1

    resumed = pcopy("--resume", area / "job", "--json", *reports(area))
    assert resumed.returncode == 0, show(resumed)
    totals, (values, page) = summary(resumed), reported(area, resumed)
    assert values["job"]["run"] == 2 and "are of this run" in page.text
    assert values["totals"]["copied"] == totals["copied"] == 14
    assert values["this_run"]["items"] == sum(rank["items"] for rank in values["ranks"]) < 14
    assert values["this_run"]["bytes_per_second"] == totals["bytes_per_second"]


def test_report_of_a_job_that_lost_a_rank(area: Path, source: Path) -> None:
    with held(area / "log", *reports(area), f"{source}/", area / "copy", ranks=2) as run:
        os.kill(max(run.run.ranks()), signal.SIGKILL)
        ended = run.go_on()
    assert ended.returncode == 70, show(ended)
    values, page = reported(area, ended)
    assert (values["meaning"], values["ranks"]) == ("internal error", [])
    assert values["totals"]["found"] == 14
    assert "✕ Internal error (status 70)" in page.text


def test_reports_of_pverify_and_prm(area: Path, source: Path) -> None:
    other = area / "other"
    shutil.copytree(source, other, symlinks=True)
    (other / "sub/file-5").write_bytes(b"other")
    run = pcopy("--json", *reports(area), source, other, program="pverify")
    assert run.returncode == 1, show(run)
    values, page = reported(area, run)
    assert values["meaning"] == "different" and values["job"]["destination"] is None
    assert "Bytes read" in page.figures
    run = pcopy("--json", "--yes", *reports(area), source, program="prm")
    assert run.returncode == 0, show(run)
    values, page = reported(area, run)
    assert values["summary"] == json.loads(run.stdout) and page.figures["Items removed"] == "14"


def test_report_of_a_dry_run(area: Path, source: Path) -> None:
    run = pcopy("--dry-run", *reports(area), f"{source}/", area / "copy")
    assert run.returncode == 0, show(run)
    values, page = reported(area, run)
    assert values["dry_run"] and "nothing was changed" in page.text and not (area / "copy").exists()
    assert values["totals"]["copied"] == 14 and sum(row["copied"]["files"] for row in values["sizes"]) == 10


def test_invalid_report_paths_are_refused(area: Path, source: Path) -> None:
    copy = area / "copy"
    (area / "notes.html").write_text("<!doctype html><p>mine")

    def refused(*arguments: Argument) -> str:
        run = pcopy(*arguments, source, copy)
        assert run.returncode == 2, show(run)
        (line,) = run.stderr.decode().splitlines()
        return line

    assert "the name must end in .json or .html" in refused("--report", area / "report.txt")
    assert "is there already, and is no report" in refused("--report", area / "notes.html")
    assert "which is copied from or to" in refused("--report", source / "r.json")
    assert "the same file" in refused("--report", area / "r.json", "--report", area / "r.json")
    assert "does not exist" in refused("--report", area / "none/r.json")
    assert (area / "notes.html").read_text() == "<!doctype html><p>mine" and not copy.exists()


def test_older_report_is_replaced_and_a_write_error_is_reported(area: Path, source: Path) -> None:
    (area / "out").mkdir()
    report = area / "out/report.json"
    for _ in range(2):
        run = pcopy("--report", report, source, area / "copy", umask=0o027)
        assert run.returncode == 0, show(run)
        assert stat.S_IMODE(report.stat().st_mode) == 0o640
    with held(area / "log", "-q", "--report", report, source, area / "copy", ranks=1) as held_run:
        shutil.rmtree(area / "out")
        ended = held_run.go_on()
    assert ended.returncode == 0, show(ended)
    assert ended.stderr.decode() == f"pcopy: {report}: cannot write the report: No such file or directory\n"


def test_html_report_fits_the_width_of_a_phone(area: Path, source: Path) -> None:
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("there is no chromium")
    named = area / ("long-name-" * 20)
    source.rename(named)
    run = pcopy(*reports(area), "--verify", named, area / "copy")
    assert run.returncode == 0, show(run)
    frame = '<iframe id="page" src="report.html" width="360" height="700"></iframe>'
    script = "document.title = document.getElementById('page').contentDocument.documentElement.scrollWidth"
    (area / "outer.html").write_text(f'<body onload="{script}">{frame}')
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom"]
    command += [f"--user-data-dir={area}/profile", f"file://{area}/outer.html"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "<title>360</title>" in done.stdout.replace("<title>345</title>", "<title>360</title>"), done
