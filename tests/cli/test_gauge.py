"""Values that the gauge derives from the counters of a running job: the completed fraction, rates, and the remaining
time.
"""

from __future__ import annotations

import pytest

from pcopy.report.bar import progress_details_line
from pcopy.report.progress_gauge import ITEM_WEIGHT_IN_BYTES, ProgressGauge, percent_text, silent_ranks_text
from pcopy.tasks.base.job import JobCounters
from pcopy.tools.director import JOB_STAGES

HALF = JobCounters(found=10, found_bytes=1 << 30, files=5, bytes=1 << 29, moved=1 << 29)


def test_fraction_is_one_half_at_half_of_the_bytes() -> None:
    reading = ProgressGauge(0.0, JOB_STAGES).read(10.0, HALF)
    assert reading.fraction == 0.5
    assert reading.rate == reading.mean_rate == (1 << 29) / 10
    assert reading.remaining == pytest.approx(10.0)
    assert (reading.items_done, reading.items_found) == (5, 10)


def test_no_forecast_while_scanning() -> None:
    reading = ProgressGauge(0.0, JOB_STAGES).read(10.0, HALF._replace(unscanned=1))
    assert reading.fraction is None
    assert reading.remaining is None
    assert ProgressGauge(0.0, JOB_STAGES).read(0.0, JobCounters()).fraction is None


def test_skipped_and_failed_bytes_count_as_done() -> None:
    totals = JobCounters(found=4, found_bytes=400, files=1, bytes=100, moved=100, skipped=1, skipped_bytes=100,
    failed=1,
                    failed_bytes=100)  # fmt: skip
    reading = ProgressGauge(0.0, JOB_STAGES).read(1.0, totals)
    assert reading.bytes_done == 300
    assert reading.items_done == 3
    assert reading.failed == 1


def test_bytes_of_failed_files_never_complete_the_fraction() -> None:
    totals = JobCounters(found=2, found_bytes=200, moved=150, failed=1, failed_bytes=100)
    reading = ProgressGauge(0.0, JOB_STAGES).read(1.0, totals)
    assert reading.bytes_done == 200
    assert reading.fraction is not None
    assert reading.fraction < 1


def test_holes_and_links_count_as_done() -> None:
    reading = ProgressGauge(0.0, JOB_STAGES).read(
        1.0, JobCounters(found=2, found_bytes=200, files=1, hardlinks=1, bytes=50, moved=10)
    )
    assert reading.bytes_done == 200
    assert reading.fraction == 1


def test_bytes_done_never_decrease() -> None:
    gauge = ProgressGauge(0.0, JOB_STAGES)
    gauge.read(1.0, HALF)
    assert gauge.read(2.0, HALF._replace(moved=0, bytes=0)).bytes_done == 1 << 29


def test_current_rate_covers_only_recent_progress() -> None:
    gauge = ProgressGauge(0.0, JOB_STAGES)
    for second in range(1, 101):
        moved = 100 * second if second <= 50 else 5000
        reading = gauge.read(float(second), JobCounters(found=9, found_bytes=10**6, moved=moved))
    assert reading.rate == 0
    assert reading.mean_rate == 50
    assert reading.remaining is None


def test_small_files_count_by_number() -> None:
    reading = ProgressGauge(0.0, JOB_STAGES).read(1.0, JobCounters(found=100, found_bytes=0, files=25))
    assert reading.fraction == 0.25
    assert reading.remaining == pytest.approx(3.0)
    assert ITEM_WEIGHT_IN_BYTES > 0


@pytest.mark.parametrize(
    ("totals", "text", "figure"),
    [
        (JobCounters(found=28_574, found_bytes=616 << 20, moved=308 << 20), "0.0 % of items", "0 of 28,574 items"),
        (JobCounters(found=1000, found_bytes=616 << 20, files=999), "99.9 % of bytes", "616 MiB of 616 MiB"),
        (
            JobCounters(found=4000, found_bytes=2 << 30, files=1000, moved=1 << 30, bytes=1),
            "50.0 % of bytes",
            "1.00 GiB of 2.00 GiB",
        ),
        (JobCounters(found=40, found_bytes=0, files=10), "25.0 % of items", "10 of 40 items"),
        (JobCounters(found=40, found_bytes=40, files=40, bytes=40), "100.0 % of items", "40 of 40 items"),
    ],
)
def test_percentage_is_that_of_a_figure_in_the_line_below(totals: JobCounters, text: str, figure: str) -> None:
    if totals.files == 999:
        totals = totals._replace(moved=totals.found_bytes)
    reading = ProgressGauge(0.0, JOB_STAGES).read(1.0, totals)
    assert percent_text(reading) == text
    assert all(figure in progress_details_line(reading, (1,), width) for width in (1, 40, 60, 200))


def test_silent_ranks_are_named() -> None:
    assert silent_ranks_text([]) == ""
    assert silent_ranks_text([3, 5]) == "no answer from rank 3, 5"
    assert silent_ranks_text(range(100)) == "no answer from rank 0, 1, 2, 3, 4, 5, 6, 7 and 92 more"
