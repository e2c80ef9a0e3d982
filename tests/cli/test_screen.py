"""Progress and failures while a job runs, with a clock controlled by the tests."""

from __future__ import annotations

import errno
import io
import json
import re
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pcopy.errors import RequestRefused
from pcopy.report.bar import ProgressBarScreen, open_progress_screen, progress_details_line, render_bar
from pcopy.report.lines_file import JsonLinesFile
from pcopy.report.progress_gauge import ProgressGauge
from pcopy.report.screen import MAX_FAILURES_SHOWN, OutputOptions, ProgressLinesScreen, ProgressScreen
from pcopy.tasks.base.job import Failure, JobCounters
from pcopy.tools.copy import COPY_TOOL
from pcopy.tools.director import JOB_STAGES


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0
        self.job_request = 0

    def __call__(self) -> float:
        self.job_request += 1
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Broken(io.StringIO):
    """A terminal that was closed."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(errno.EPIPE, "gone")


HALF = JobCounters(found=10, found_bytes=1 << 30, files=5, bytes=1 << 29, moved=1 << 29)
DONE = JobCounters(found=10, found_bytes=1 << 30, files=10, bytes=1 << 30, moved=1 << 30)


def failed(count: int, first: int = 0) -> list[Failure]:
    return [Failure(b"item %d" % number, "open", errno.EACCES, "") for number in range(first, first + count)]


# Lines


def test_one_line_is_printed_each_interval() -> None:
    clock, stream = Clock(), io.StringIO()
    screen = ProgressLinesScreen(COPY_TOOL.name, COPY_TOOL.stages, stream, 10.0, clock)
    for _ in range(1000):
        screen.receive_progress("copying", HALF, ())
    assert stream.getvalue() == ""
    clock.now += 10
    for _ in range(1000):
        screen.receive_progress("copying", HALF, ())
    assert stream.getvalue() == (
        "pcopy: 0:10 copying: 50.0 % of bytes, 5 of 10 items, 512 MiB of 1.00 GiB, "
        "51.2 MiB/s (mean 51.2 MiB/s), 0:10 left\n"
    )
    clock.now += 10
    screen.receive_progress("copying", HALF._replace(unscanned=3, failed=1), (2,))
    assert stream.getvalue().splitlines()[1] == (
        "pcopy: 0:20 copying: scanning, 6 of 10 items, 512 MiB of 1.00 GiB, 25.6 MiB/s (mean 25.6 MiB/s), 1 failed, "
        "no answer from rank 2"
    )


def test_quiet_shows_errors_and_notices_only() -> None:
    clock, stream = Clock(), io.StringIO()
    screen = open_progress_screen(COPY_TOOL.name, COPY_TOOL.stages, OutputOptions(quiet=True), stream, clock)
    clock.now += 1000
    screen.receive_progress("copying", HALF, ())
    assert stream.getvalue() == ""
    screen.receive_failures(failed(1))
    screen.receive_notice("slow\nserver")
    assert stream.getvalue() == "pcopy: item 0: open: Permission denied (EACCES)\npcopy: slow\\nserver\n"


# Lines for programs

SCHEMA = Path(__file__).parents[2] / "docs/formats/progress.md"
TOTALS = JobCounters(found=10, found_bytes=1 << 30, files=4, directories=1, bytes=1 << 29, moved=1 << 29)


def json_lines(totals: JobCounters, silent: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    clock, stream = Clock(), io.StringIO()
    screen = open_progress_screen(COPY_TOOL.name, COPY_TOOL.stages, OutputOptions(progress="json"), stream, clock)
    for _ in range(2):
        clock.now += 0.99
        screen.receive_progress("copy", totals, silent)
        clock.now += 0.02
        for _ in range(100):
            screen.receive_progress("copy", totals, silent)
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_one_json_object_is_printed_each_second() -> None:
    first, second = json_lines(TOTALS, (2, 7))
    expected = {
        "elapsed": 1.01, "phase": "copy", "found": 10, "copied": 5, "skipped": 0, "failed": 0, "unscanned": 0,
        "bytes": 1 << 29, "moved": 1 << 29, "found_bytes": 1 << 30, "handled_bytes": 1 << 29, "percent": 50.0,
        "bytes_per_second": round((1 << 29) / 1.01), "mean_bytes_per_second": round((1 << 29) / 1.01),
        "items_per_second": 5.0, "mean_items_per_second": 5.0, "eta": 1.0, "silent": [2, 7],
    }  # fmt: skip
    assert {key: first[key] for key in expected} == expected
    assert abs(first["time"] - time.time()) < 60
    assert second["mean_items_per_second"] == 2.5


def test_unknown_values_are_null() -> None:
    first, _ = json_lines(TOTALS._replace(unscanned=1))
    assert first["percent"] is None
    assert first["eta"] is None


def test_json_schema_is_documented() -> None:
    text = SCHEMA.read_text()
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    documented = [key for row in rows for key in re.findall(r"`(\w+)`", row)]
    first, _ = json_lines(TOTALS)
    assert sorted(documented) == sorted(first)
    example = json.loads(text.split("```json\n")[1].split("```")[0])
    assert list(example) == list(first)


# Failures


@pytest.mark.parametrize("batch", [1, 7, 100, 250])
def test_the_first_failures_are_shown(batch: int) -> None:
    stream = io.StringIO()
    screen = ProgressScreen(COPY_TOOL.name, COPY_TOOL.stages, stream, 1.0, Clock())
    for first in range(0, 250, batch):
        screen.receive_failures(failed(min(batch, 250 - first), first))
    lines = stream.getvalue().splitlines()
    assert len(lines) == MAX_FAILURES_SHOWN + 1
    assert lines[0].startswith("pcopy: item 0: ")
    assert lines[-2].startswith("pcopy: item 99: ")
    assert lines[-1] == "pcopy: further failures are not shown: --errors FILE lists all of them"


def test_note_on_hidden_failures_is_not_printed_if_all_are_shown() -> None:
    stream = io.StringIO()
    screen = ProgressScreen(COPY_TOOL.name, COPY_TOOL.stages, stream, 1.0, Clock())
    screen.receive_failures(failed(MAX_FAILURES_SHOWN))
    screen.receive_failures([])
    assert len(stream.getvalue().splitlines()) == MAX_FAILURES_SHOWN


def test_errors_file_contains_all_failures(tmp_path: Path) -> None:
    path = tmp_path / "errors.jsonl"
    old = '{"path": "old"}\n'
    path.write_text(old)
    stream = io.StringIO()
    telling = OutputOptions(errors=bytes(path), quiet=True)
    with closing(open_progress_screen(COPY_TOOL.name, COPY_TOOL.stages, telling, stream, Clock())) as screen:
        assert path.read_text() == old
        screen.truncate_output_files()
        assert path.read_text() == ""
        screen.receive_failures(failed(150))
        assert len(path.read_text().splitlines()) == 150
        screen.receive_failures(failed(1, 150))
    assert [json.loads(line)["path"] for line in path.read_text().splitlines()] == [f"item {n}" for n in range(151)]
    assert stream.getvalue().endswith(f"pcopy: further failures are not shown: all are listed in {path}\n")
    screen.close()


def test_uncreatable_errors_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestRefused, match="no/file: cannot write the errors file: No such file or directory"):
        open_progress_screen(
            COPY_TOOL.name, COPY_TOOL.stages, OutputOptions(errors=bytes(tmp_path / "no/file")), io.StringIO()
        )


def test_write_error_of_the_errors_file_is_reported_once() -> None:
    stream = io.StringIO()
    screen = ProgressScreen(
        COPY_TOOL.name, COPY_TOOL.stages, stream, 1.0, Clock(), [JsonLinesFile(b"/dev/full", "errors")]
    )
    screen.truncate_output_files()
    screen.receive_failures(failed(1))
    screen.receive_failures(failed(1, 1))
    screen.close()
    assert stream.getvalue().splitlines() == [
        "pcopy: item 0: open: Permission denied (EACCES)",
        "pcopy: /dev/full: cannot write the errors file: No space left on device; the file is not complete",
        "pcopy: item 1: open: Permission denied (EACCES)",
    ]


@pytest.mark.parametrize("kind", [ProgressLinesScreen, ProgressBarScreen])
def test_closed_terminal_does_not_end_the_job(kind: type[ProgressLinesScreen] | type[ProgressBarScreen]) -> None:
    clock = Clock()
    screen = kind(COPY_TOOL.name, COPY_TOOL.stages, Broken(), 1.0, clock)
    for _ in range(3):
        clock.now += 1
        screen.receive_progress("copying", HALF, ())
        screen.receive_failures(failed(1))
        screen.receive_notice("something")
    screen.close()


# The bar


def drawn(width: int, totals: JobCounters, silent: tuple[int, ...] = (), **options: bool) -> list[str]:
    stream = io.StringIO()
    console = Console(file=stream, width=width, no_color=True, **options)  # type: ignore[arg-type]
    console.print(render_bar("copying", ProgressGauge(0.0, JOB_STAGES).read(10.0, totals), silent, width))
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("width", [1, 5, 10, 20, 30, 40, 60, 80, 120, 300])
@pytest.mark.parametrize("unscanned", [0, 1])
def test_bar_has_two_lines_at_every_width(width: int, unscanned: int) -> None:
    lines = drawn(width, HALF._replace(unscanned=unscanned, failed=1234), (1, 2))
    assert len(lines) == 2
    assert all(len(line) <= width for line in lines)


def test_bar_at_full_width() -> None:
    first, second = drawn(100, HALF)
    assert first.startswith("copying ━━━")
    assert first.endswith("50.0 % of bytes 0:10 left")
    assert second == "512 MiB of 1.00 GiB, 5 of 10 items, 51.2 MiB/s, mean 51.2 MiB/s, 0:10"
    assert drawn(100, HALF._replace(unscanned=1))[0].endswith("scanning")
    assert "100.0 % of bytes" in drawn(100, DONE)[0]


@pytest.mark.parametrize("totals", [HALF, DONE, HALF._replace(unscanned=1)])
def test_bar_is_not_red_which_would_look_like_an_error(totals: JobCounters) -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=100, force_terminal=True, color_system="truecolor", _environ={})
    console.print(render_bar("copying", ProgressGauge(0.0, JOB_STAGES).read(10.0, totals), (), 100))
    colours = re.findall(r"\x1b\[([\d;]+)m", stream.getvalue())
    assert {"36", "32"} & {*colours} or "38;2;0;128;128" in colours, colours
    assert not any(re.match(r"(1;)?(31|91|38;2;2\d\d;\d{1,2};)", colour) for colour in colours), colours


def test_least_important_details_are_omitted_first() -> None:
    reading = ProgressGauge(0.0, JOB_STAGES).read(10.0, HALF._replace(failed=1))
    lengths = [len(progress_details_line(reading, (4,), width)) for width in range(120)]
    assert all(length <= width for width, length in enumerate(lengths) if width >= 29)
    assert progress_details_line(reading, (4,), 30) == "1 failed, 512 MiB of 1.00 GiB"
    assert "rank 4" in progress_details_line(reading, (4,), 75)


def test_the_bar_is_drawn_below_failures_and_cleared() -> None:
    clock, stream = Clock(), io.StringIO()
    console = Console(file=stream, width=80, force_terminal=True, color_system=None, _environ={"TERM": "xterm"})
    screen = ProgressBarScreen(COPY_TOOL.name, COPY_TOOL.stages, stream, 0.5, clock)
    screen.console = console
    screen.receive_failures(failed(1))
    screen.receive_progress("copying", HALF, ())
    assert stream.getvalue() == "pcopy: item 0: open: Permission denied (EACCES)\n"
    clock.now += 0.5
    screen.receive_progress("copying", HALF, ())
    text = stream.getvalue()
    assert "50.0 % of bytes" in text
    for _ in range(100):
        screen.receive_progress("copying", DONE, ())
    assert stream.getvalue() == text
    screen.receive_failures([Failure(b"long" * 50, "open", errno.EACCES, "")])
    assert f"pcopy: {'long' * 50}: open: Permission denied (EACCES)\n" in stream.getvalue()
    assert "\x1b[?25l" not in text  # the cursor is never hidden
    assert text.rindex("\x1b[?7h") > text.rindex("\x1b[?7l")
    screen.close()
    text = stream.getvalue()
    screen.close()
    assert stream.getvalue() == text and text.endswith("\x1b[1A\r\r\x1b[J")


@pytest.mark.parametrize(
    ("telling", "lines"),
    [
        (
            OutputOptions(verbose=1, progress="none"),
            ["pcopy: phase copying: 2 of 3 items done so far", "pcopy: phase finishing: 2 of 3 items done so far"],
        ),
        (OutputOptions(verbose=1, quiet=True), []),
        (OutputOptions(progress="none"), []),
        (OutputOptions(progress="none", interval=0.5), []),
    ],
)
def test_verbose_output_reports_each_phase_once(telling: OutputOptions, lines: list[str]) -> None:
    clock, stream = Clock(), io.StringIO()
    screen = open_progress_screen(COPY_TOOL.name, COPY_TOOL.stages, telling, stream, clock)
    for phase in ("copying", "copying", "finishing"):
        clock.now += 100
        screen.receive_progress(phase, JobCounters(found=3, files=1, skipped=1), ())
    assert stream.getvalue().splitlines() == lines


# The choice


def test_screen_type_follows_options_and_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")

    def kind(stream: io.StringIO, **values: Any) -> type[ProgressScreen]:
        return type(open_progress_screen(COPY_TOOL.name, COPY_TOOL.stages, OutputOptions(**values), stream))

    assert kind(io.StringIO()) is ProgressLinesScreen
    assert kind(Terminal()) is ProgressBarScreen
    assert kind(Terminal(), progress="plain") is ProgressLinesScreen
    assert kind(Terminal(), progress="none") is ProgressScreen
    assert kind(Terminal(), quiet=True) is ProgressScreen
    assert kind(io.StringIO(), progress="bar") is ProgressLinesScreen
    monkeypatch.setenv("TERM", "dumb")
    assert kind(Terminal(), progress="bar") is ProgressLinesScreen


def test_rich_is_imported_with_the_first_drawing_only() -> None:
    program = """
import io, os, sys
os.environ["TERM"] = "xterm"
from pcopy.report.screen import OutputOptions
from pcopy.report.bar import open_progress_screen
from pcopy.tools.copy import COPY_TOOL
from pcopy.tasks.base.job import Failure, JobCounters
class Terminal(io.StringIO):
    isatty = lambda self: True
now = 0.0
stream = Terminal()
screen = open_progress_screen(COPY_TOOL.name, COPY_TOOL.stages, OutputOptions(), stream, lambda: now)
screen.receive_progress("copying", JobCounters(found=1), ())
screen.receive_failures([Failure(b"a", "open", 13, "")])
assert "rich" not in sys.modules
now = 1.0
screen.receive_progress("copying", JobCounters(found=1), ())
assert "rich" in sys.modules
assert "copying" in stream.getvalue()
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])
