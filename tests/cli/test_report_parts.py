"""Parts of a report: samples in bounded memory, curves, sums of many ranks, and markup."""

from __future__ import annotations

import itertools
import json
import re
from array import array
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from random import Random

import pytest

from pcopy.report.history import MAX_FAILURE_KINDS, MAX_STORED_FAILURES, FailureSummary, JobHistory
from pcopy.report.metrics import is_beginning_of_metrics_file
from pcopy.report.page.charts import (
    MAX_BINS,
    ChartCurve,
    RateInterval,
    chart_over_time,
    rates_in_bins,
    rounded_axis_end,
)
from pcopy.report.page.markup import Markup, html_element, joined_markup
from pcopy.report.page.sections import time_format_for
from pcopy.report.recorder import JobEnd, RunDescription
from pcopy.report.report import JobReportRecorder, is_beginning_of_report_file, readable_json_text
from pcopy.tasks.base.actions import HARD_LINK_TYPE_BYTE, ItemAction
from pcopy.tasks.base.item_outcomes import PackedItemOutcomes
from pcopy.tasks.base.job import CopyOptions, Failure, Job, JobCounters, Options, Root
from pcopy.tasks.base.rank_sums import MAX_SLOWEST_FILES, RankWorkStatistics, ReportSums
from pcopy.tools.director import JOB_STAGES


@pytest.mark.parametrize(
    ("seconds", "labels"),
    [
        (0.02, ["0.000 s", "0.005 s", "0.010 s", "0.015 s", "0.020 s"]),
        (0.1, ["0.00 s", "0.03 s", "0.05 s", "0.08 s", "0.10 s"]),
        (0.4, ["0.0 s", "0.1 s", "0.2 s", "0.3 s", "0.4 s"]),
        (8.0, ["0.0 s", "2.0 s", "4.0 s", "6.0 s", "8.0 s"]),
        (3600.0, ["0:00", "15:00", "30:00", "45:00", "1:00:00"]),
    ],
)
def test_labels_of_the_time_axis_differ(seconds: float, labels: list[str]) -> None:
    clock = time_format_for(seconds)
    page = chart_over_time(
        [ChartCurve("copied", "a", [RateInterval(0.0, seconds, 1.0)])], lambda rate: f"{rate}/s", 1000, "Items", clock
    )
    assert re.findall(r"<span>([\d.:]+(?: s)?)</span>", str(page).partition('class="axis"')[2]) == labels


@pytest.mark.parametrize(("samples", "most"), [(3, 10), (10, 10), (1000, 10), (1000, 11), (5000, 600)])
def test_number_of_samples_is_bounded_and_totals_are_kept(samples: int, most: int) -> None:
    random = Random(1)
    before = JobCounters(found=5, files=5, moved=1000)
    history, now, moved = JobHistory(100.0, before, most), 100.0, 1000
    for number in range(samples):
        now += random.choice((0.001, 0.5, 0.5, 2.0))
        moved += random.randrange(1000)
        history.add_sample(
            now, "copy" if number < samples / 2 else "verify", JobCounters(files=5 + number, moved=moved)
        )
        assert history.samples[-1].moved == moved - 1000
    rows = history.samples
    assert len(rows) <= most and (samples < most or len(rows) > most / 3)
    assert (rows[0].items, rows[0].moved) == (0, 0)
    assert (rows[-1].seconds, rows[-1].items, rows[-1].moved) == (round(now - 100, 3), samples - 1, moved - 1000)
    assert all(one.seconds <= other.seconds and one.moved <= other.moved for one, other in itertools.pairwise(rows))
    phases = history.phases()
    assert [phase.phase for phase in phases] == ["copy", "verify"]
    assert sum(phase.seconds for phase in phases) == pytest.approx(now - 100, abs=0.01)


def test_samples_stay_evenly_spread() -> None:
    history = JobHistory(0.0, JobCounters(), 100)
    for number in range(1, 20_001):
        history.add_sample(number * 0.5, "copy", JobCounters(moved=number))
    gaps = [other.seconds - one.seconds for one, other in itertools.pairwise(history.samples[1:-1])]
    assert max(gaps) <= 2.1 * min(gaps)


def test_number_of_failure_kinds_is_bounded() -> None:
    sums = FailureSummary()
    for number in range(MAX_FAILURE_KINDS + 50):
        sums.add_failures([Failure(b"path-%d" % number, f"setxattr user.{number:04}", 95, "")] * 2)
    sums.add_failures([Failure(b"other", "setxattr user.0007", 95, "")])
    kinds = sums.failure_kinds()
    assert len(kinds) == MAX_FAILURE_KINDS and sums.uncategorised == 100 and len(sums.first) == MAX_STORED_FAILURES
    assert (kinds[0].operation, kinds[0].failures, kinds[0].example.path) == ("setxattr user.0007", 3, b"path-7")
    assert sum(kind.failures for kind in kinds) + sums.uncategorised == 2 * (MAX_FAILURE_KINDS + 50) + 1


@pytest.mark.parametrize("number", [2, 3, 50, 1000])
def test_curve_accounts_for_the_whole_sum(number: int) -> None:
    random = Random(number)
    times = [0.0, *itertools.accumulate(random.choice((0.0005, 0.5, 3.0)) for _ in range(number - 1))]
    sums = [0, *itertools.accumulate(random.randrange(10**9) for _ in range(number - 1))]
    bins = rates_in_bins(times, sums)
    assert 1 <= len(bins) <= MAX_BINS
    assert sum(each.rate * (each.end - each.start) for each in bins) == pytest.approx(sums[-1])
    assert (bins[0].start, bins[-1].end) == (0.0, times[-1])


def test_curve_without_duration_is_empty() -> None:
    assert rates_in_bins([0.0], [5]) == [] and rates_in_bins([1.0, 1.0], [0, 5]) == []


@pytest.mark.parametrize("base", [1000, 1024])
def test_scale_ends_slightly_above_the_maximum(base: int) -> None:
    for power in range(150):
        most = 1.2**power
        assert most <= rounded_axis_end(most, base) <= 1.7 * most, most


def of_rank(rank: int, random: Random) -> tuple[ReportSums, list[tuple[int, int, bytes]], list[tuple[int, int]]]:
    """Return a rank with random results, the files that it has timed, and (action, size) of all its files."""
    sums, timed, sized = ReportSums(), [], []
    sums.ranks.append(RankWorkStatistics(rank, rank + 1, 10 * rank, 3, 0.5, 1.0, rank, 0))
    for action, number in itertools.product(ItemAction, range(5)):
        sizes = [random.choice((0, 1, random.randrange(1 << 40))) for _ in range(random.randrange(8))]
        times = [random.randrange(1, 10**9) if action == ItemAction.COPY else 0 for _ in sizes]
        names = [b"file-%d-%d-%d" % (rank, number, each) for each in range(len(sizes))]
        directory = b"d%d" % action
        if sizes:
            columns = array("Q", sizes).tobytes(), array("Q", times).tobytes()
            sums.add([PackedItemOutcomes(int(action), directory, b"/".join(names), b"f" * len(names), *columns)])
        timed += [
            (took, size, directory + b"/" + name) for took, size, name in zip(times, sizes, names, strict=True) if took
        ]
        sized += [(int(action), size) for size in sizes]
    return sums, timed, sized


@pytest.mark.parametrize("fan_out", [1, 2, 7])
def test_merged_rank_reports_do_not_depend_on_the_order(fan_out: int) -> None:
    random = Random(fan_out)
    made = [of_rank(rank, random) for rank in range(23)]

    def words(rank: int) -> bytes:
        sums = made[rank][0]
        for child in range(fan_out * rank + 1, min(fan_out * rank + fan_out, len(made) - 1) + 1):
            sums.merge(words(child))
        return sums.sums_as_bytes()

    heard = ReportSums.from_packed_bytes(words(0))
    assert [work.rank for work in sorted(heard.ranks)] == list(range(23))
    timed = sorted((each for _, some, _ in made for each in some), reverse=True)
    assert [tuple(each) for each in heard.slowest_files] == timed[:MAX_SLOWEST_FILES]
    outcomes = {"copied": (0, 1), "skipped": (2, 4), "failed": (5,)}
    for what, actions in outcomes.items():
        sizes = [size for _, _, some in made for action, size in some if action in actions]
        for power in range(65):
            there = [size for size in sizes if (0 if size == 0 else len(f"{size:b}")) == power]
            assert (heard.sizes[what].files[power], heard.sizes[what].bytes[power]) == (len(there), sum(there))


def test_hard_links_and_special_files_have_no_size() -> None:
    sums = ReportSums()
    numbers = array("Q", [0, 0, 0, 7, 9]).tobytes()
    kinds = b"d" + HARD_LINK_TYPE_BYTE + b"l" + b"f" + b"\0"
    sums.add(
        [PackedItemOutcomes(int(ItemAction.COPY), b"d", b"a/b/c/d/e", kinds, numbers, array("Q", [9] * 5).tobytes())]
    )
    assert sum(sums.sizes["copied"].files) == 2 and sum(sums.sizes["copied"].bytes) == 16
    assert [each.path for each in sums.slowest_files] == [b"d/d"]


class _Reader(HTMLParser):
    def __init__(self, markup: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("text", ["<b>\"&'", "</p><script>", "&lt;", '" onload="x', "<!-- -->", "]]>"])
def test_text_is_escaped_everywhere(text: str) -> None:
    read = _Reader(html_element("p", text, title=text, class_=None, data_x=1))
    assert read.found == [("p", {"title": text, "data-x": "1"})] and read.text == text
    assert joined_markup(Markup("<b>"), None, text, 7).startswith("<b>&") or "<" not in text[:1]


ROOTS = (Root(b"/s", b"/d", b"", b"", b"s", b"d", (1, 1), (1, 2)),)


def test_report_lists_options_that_differ_from_defaults(tmp_path: Path) -> None:
    options = Options(umask=0o27, signature=b"/a\xff")
    options = options._replace(preserve=options.preserve._replace(acl=False, chown=(5, -1)))
    file = tmp_path / "r.json"
    report = JobReportRecorder([bytes(file)], 0o022, lambda: 0.0, lambda: 1.5e9)
    words = ["a b", "$HOME", "--existing=changed"]
    report.begin_recording(
        RunDescription(
            "pcopy",
            "copied",
            True,
            JOB_STAGES,
            Job("0a", 1, ROOTS, options, CopyOptions(existing="changed")),
            ["h"],
            "backend c",
            1.5e9,
            command_line=words,
        ),
        print,
    )
    report.end(JobEnd(75, JobCounters(found=3), "stopped by SIGTERM"))
    values = json.loads(file.read_text())
    assert [*values["job"]["options"]] == ["preserve", "existing", "signature"]
    assert values["job"]["options"] == {
        "existing": "changed",
        "signature": r"/a\xff",
        "preserve": {"acl": False, "chown": [5, -1]},
    }
    assert values["command"] == "pcopy 'a b' '$HOME' --existing=changed"
    assert (values["started"], values["halted"]) == ("2017-07-14T02:40:00Z", "stopped by SIGTERM")
    assert values["meaning"] == "ended with status 75" and values["ranks"] == values["sizes"] == []
    assert is_beginning_of_report_file(file.read_bytes()[:100]) and not is_beginning_of_metrics_file(
        file.read_bytes()[:100]
    )


@pytest.mark.parametrize(
    "text", ["", "{}", '{"format": "pcopy-report"}', "<!doctype html>\n<html>", readable_json_text({"a": 1})]
)
def test_other_files_are_not_recognized_as_reports(text: str) -> None:
    assert not is_beginning_of_report_file(text.encode())
