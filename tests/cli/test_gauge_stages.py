"""The gauge after the copy: the verification, the repair and the signature, each as a separate stage."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from pcopy.report.bar import open_progress_screen, render_bar
from pcopy.report.progress_gauge import (
    ProgressGauge,
    ProgressSnapshot,
    bytes_done_text,
    items_done_text,
    mean_rate_text,
    percent_text,
    rate_text,
)
from pcopy.report.screen import OutputOptions, ProgressLinesScreen
from pcopy.tasks.base.job import JobCounters
from pcopy.tasks.base.phases import Phase
from pcopy.tools.copy import COPY_TOOL
from pcopy.tools.director import JOB_STAGES
from pcopy.tools.verify import VERIFY_TOOL

COPIED = JobCounters(found=10, found_bytes=1 << 30, files=10, bytes=1 << 30, moved=1 << 30, to_verify=10,
                to_verify_bytes=1 << 30)  # fmt: skip
HALF = COPIED._replace(verified=5, verified_bytes=1 << 29)
PROVED = COPIED._replace(verified=10, verified_bytes=1 << 30)


def verifying(*steps: tuple[float, JobCounters], phase: str = "verify") -> ProgressSnapshot:
    """Return the last reading of a phase that began at 100 s, after a copy."""
    gauge = ProgressGauge(0.0, JOB_STAGES)
    gauge.read(99.0, COPIED)
    gauge.enter_phase(100.0, phase, steps[0][1])
    return [gauge.read(now, totals) for now, totals in steps][-1]


def test_verification_starts_at_zero() -> None:
    reading = verifying((100.0, COPIED))
    assert reading.fraction == 0
    assert (reading.items_done, reading.items_found, reading.bytes_done) == (0, 10, 0)
    assert reading.rate == reading.mean_rate == 0
    assert percent_text(reading) == "0.0 % of bytes"


def test_verification_has_its_own_rates_and_remaining_time() -> None:
    reading = verifying((100.0, COPIED), (110.0, HALF))
    assert reading.fraction == 0.5
    assert reading.rate == reading.mean_rate == (1 << 29) / 10
    assert reading.item_rate == reading.mean_item_rate == 0.5
    assert reading.remaining == pytest.approx(10.0)
    assert reading.elapsed == 110.0


def test_verification_is_complete_when_every_item_is_checked() -> None:
    almost = PROVED._replace(verified=9)
    fraction = verifying((100.0, COPIED), (110.0, almost)).fraction
    assert fraction is not None
    assert fraction < 1
    assert verifying((100.0, COPIED), (110.0, PROVED)).fraction == 1
    refuted = almost._replace(refuted=1, files=9, failed=1, verified_bytes=1 << 28)
    reading = verifying((100.0, COPIED), (110.0, refuted))
    assert reading.fraction == 1
    assert reading.failed == 1


def test_damaged_items_do_not_decrease_progress() -> None:
    """The items either fail or are copied again."""
    wrong = HALF._replace(verified=4, refuted=1, files=9, bytes=(1 << 30) - 100)
    for later in (wrong, wrong._replace(failed=1, failed_bytes=100)):
        reading = verifying((100.0, COPIED), (110.0, HALF), (111.0, later))
        assert reading.fraction == 0.5
        assert reading.bytes_done == 1 << 29


def test_nothing_to_verify_has_no_fraction() -> None:
    reading = verifying((100.0, JobCounters(found=3, failed=3)))
    assert reading.fraction is None
    assert percent_text(reading) == ""


def test_repair_counts_items_in_place() -> None:
    """Its size is unknown. Bytes that were copied twice count once."""
    wrong = PROVED._replace(verified=8, refuted=2, files=8, bytes=1 << 29, moved=1 << 30)
    reading = verifying((100.0, wrong), (105.0, wrong._replace(moved=(1 << 30) + 5000)), phase="repair")
    assert percent_text(reading) == ""
    assert reading.remaining is None
    assert items_done_text(reading) == "8 of 10 items"
    assert bytes_done_text(reading) == "512 MiB of 1.00 GiB"
    assert reading.rate == 1000


def test_repaired_items_are_verified_again() -> None:
    again = PROVED._replace(verified=9, refuted=1, to_verify=11, to_verify_bytes=(1 << 30) + 100)
    reading = verifying((100.0, again), phase="reverify")
    assert reading.fraction is not None
    assert reading.fraction < 1
    assert verifying((100.0, again._replace(verified=10)), phase="reverify").fraction == 1


def test_sign_phase_shows_no_progress() -> None:
    reading = verifying((100.0, PROVED), (110.0, PROVED), phase="sign")
    assert (percent_text(reading), rate_text(reading), mean_rate_text(reading)) == ("", "", "")
    assert items_done_text(reading) == "10 items"
    assert bytes_done_text(reading) == "1.00 GiB"


def test_phases_of_a_copy_form_one_stage() -> None:
    gauge = ProgressGauge(0.0, JOB_STAGES)
    for second, phase in enumerate(("copy", "link", "finish", "seal", "sync"), 1):
        gauge.enter_phase(float(second), phase, COPIED)
        reading = gauge.read(float(second), COPIED._replace(moved=100 * second))
    assert reading.mean_rate == 100
    assert reading.fraction == 1


def test_phase_names() -> None:
    names = ["copy", "link", "store", "name", "count", "delete", "again", "finish", "seal", "sync"]
    names += ["verify", *["repair"] * 4, "reverify", "sign"]
    assert [COPY_TOOL.phase_name(phase) for phase in range(Phase.LEVEL)] == names
    assert COPY_TOOL.phase_name(Phase.LEVEL + 7) == "sign"
    assert [VERIFY_TOOL.phase_name(phase) for phase in (Phase.COPY, Phase.LINK, Phase.LEVEL)] == [
        "read",
        "read",
        "sign",
    ]


# The same on all screens


def shown_by(phase: str, totals: JobCounters, progress: str) -> str:
    """Return the output 10 s after the phase began at 100 s; check that nothing is printed at its start."""
    now = 0.0
    stream = io.StringIO()
    screen = open_progress_screen(
        COPY_TOOL.name, COPY_TOOL.stages, OutputOptions(progress=progress, interval=105.0), stream, lambda: now
    )
    now = 100.0
    screen.receive_progress(phase, COPIED, ())
    assert stream.getvalue() == ""
    now = 110.0
    screen.receive_progress(phase, totals, ())
    return stream.getvalue()


def bar(phase: str, totals: JobCounters, width: int) -> list[str]:
    stream = io.StringIO()
    reading = verifying((100.0, COPIED), (110.0, totals), phase=phase)
    Console(file=stream, width=width, no_color=True).print(render_bar(phase, reading, (), width))
    return stream.getvalue().splitlines()


def test_plain_lines_of_each_stage() -> None:
    assert shown_by("verify", HALF, "plain") == (
        "pcopy: 1:50 verify: 50.0 % of bytes, 5 of 10 items, 512 MiB of 1.00 GiB, "
        "51.2 MiB/s (mean 51.2 MiB/s), 0:10 left\n"
    )
    assert shown_by("repair", HALF, "plain") == (
        "pcopy: 1:50 repair: 10 of 10 items, 1.00 GiB of 1.00 GiB, 0 B/s (mean 0 B/s)\n"
    )
    assert shown_by("sign", PROVED._replace(failed=1), "plain") == "pcopy: 1:50 sign: 11 items, 1.00 GiB, 1 failed\n"


def test_json_lines_of_each_stage() -> None:
    half: dict[str, Any] = json.loads(shown_by("verify", HALF, "json"))
    expected = {
        "phase": "verify", "to_verify": 10, "to_verify_bytes": 1 << 30, "verified": 5, "verified_bytes": 1 << 29,
        "handled_bytes": 1 << 29, "percent": 50.0, "bytes_per_second": round((1 << 29) / 10),
        "mean_bytes_per_second": round((1 << 29) / 10), "items_per_second": 0.5, "eta": 10.0, "elapsed": 110.0,
    }  # fmt: skip
    assert {key: half[key] for key in expected} == expected
    signing = json.loads(shown_by("sign", PROVED, "json"))
    assert (signing["percent"], signing["eta"], signing["bytes_per_second"]) == (None, None, 0)


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_bar_of_each_stage_fits_the_width(width: int) -> None:
    for phase, totals in (("verify", HALF), ("repair", HALF), ("sign", PROVED)):
        first, second = bar(phase, totals, width)
        assert first.startswith(phase)
        assert len(first) <= width
        assert len(second) <= width
        assert ("%" in first) == (phase == "verify")


def test_bar_at_full_width() -> None:
    first, second = bar("verify", HALF, 100)
    assert first.endswith("50.0 % of bytes 0:10 left")
    assert second == "512 MiB of 1.00 GiB, 5 of 10 items, 51.2 MiB/s, mean 51.2 MiB/s, 1:50"
    first, second = bar("sign", PROVED, 100)
    assert set(first.removeprefix("sign ")) == {"━", " "}
    assert second == "1.00 GiB, 10 items, 1:50"


def test_line_does_not_include_the_previous_stage() -> None:
    """The stage begins with its first report, not with the first line that is due."""
    now = 0.0
    stream = io.StringIO()
    screen = ProgressLinesScreen(COPY_TOOL.name, COPY_TOOL.stages, stream, 10.0, lambda: now)
    screen.receive_progress("copy", COPIED, ())
    now = 8.0
    screen.receive_progress("verify", COPIED, ())
    now = 10.0
    screen.receive_progress("verify", HALF, ())
    assert "256 MiB/s (mean 256 MiB/s), 0:02 left" in stream.getvalue()
