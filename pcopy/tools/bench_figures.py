"""The results of ``pdbench`` in four forms: tables, advice in words, values for ``--json``, and a chart as SVG."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import exp, log
from statistics import median
from typing import Any

from pcopy.report.page.charts import rounded_axis_end
from pcopy.report.page.markup import Markup, html_element
from pcopy.tasks.bench.steps import BenchmarkTest, StepResult
from pcopy.text import count_with_noun
from pcopy.units import format_size

GOOD_ENOUGH_RATE_SHARE = 0.95
"""The share of the best rate that is good enough for advice.

The advice is the smallest effort (ranks * operations in flight) whose rate reaches this share, since more ranks that
gain less than 5 % are not worth their cost.
"""

MAX_SPREAD_FOR_ADVICE = 0.5
"""Largest typical difference between the repeats of a measurement, as a share of their rate, with which advice is
given.

Typical is the median over all measurements.
"""

BOTTLENECK_RATE_SHARE = 0.7
"""A line says that a single directory is a bottleneck if creating files in it from all ranks reaches less than this
share of the rate with a directory for each rank.
"""

_METADATA_TABLE_TITLES = ((True, "all files in one directory"), (False, "a directory for each rank"))
"""Where the files of metadata tests are. The first value is that of ``BenchmarkStep.is_shared``, the second one the
title of the table.
"""
_DATA_TABLE_TITLES = ((False, "a file for each rank"), (True, "one file for all ranks, a segment for each"))
"""Which files data tests use. The first value is that of ``BenchmarkStep.is_shared``, the second one the title of the
table.
"""
_SMALL_FILE_TREE_TESTS = (BenchmarkTest.CREATE, BenchmarkTest.STAT, BenchmarkTest.OPEN, BenchmarkTest.UNLINK)
"""The tests whose rates count for the advice about trees of small files: copying and removing such trees use these
calls.
"""


def _metadata_results(results: Sequence[StepResult], shared: bool | None = None) -> list[StepResult]:
    """Return those of ``results`` that belong to metadata tests (such as CREATE), except tests that could not do
    anything.

    ``shared``: only steps in which all ranks share a directory (True), or have one each (False); None: both.
    """
    return [
        each for each in results if not _is_data_test(each) and shared in (None, each.step.is_shared) and each.amount
    ]


def _data_results(results: Sequence[StepResult], shared: bool | None = None) -> list[StepResult]:
    """Return those of ``results`` that belong to data tests (WRITE and READ), except tests that could not do anything.

    ``shared``: only steps in which all ranks share a file (True), or have one each (False); None: both.
    """
    return [each for each in results if _is_data_test(each) and shared in (None, each.step.is_shared) and each.amount]


def _is_data_test(result: StepResult) -> bool:
    """True if the result is that of a data test (WRITE or READ), whose ``amount`` is in bytes, not in operations."""
    return BenchmarkTest(result.step.test).is_data_test


def _test_name(result: StepResult) -> str:
    """Return the name of the test of a result in lower case, as in ``--tests``."""
    return BenchmarkTest(result.step.test).name.lower()


def result_table_lines(results: Sequence[StepResult]) -> Iterator[str]:
    """Yield the lines of the tables: the rates of all tests, one line for each combination of ranks and operations in
    flight, or of ranks and block size.
    """
    for shared, title in _METADATA_TABLE_TITLES:
        chosen = _metadata_results(results, shared)
        if chosen:
            yield f"operations a second, {title} (readdir: entries a second)"
            ways = [(each.step.ranks, each.step.in_flight) for each in chosen]
            rates = {(each.step.ranks, each.step.in_flight, _test_name(each)): f"{each.rate:,.0f}" for each in chosen}
            rows = [(ranks, number, f"{number}") for ranks, number in dict.fromkeys(ways)]
            yield from _benchmark_table_lines("in flight", rows, rates)
            yield ""
    for shared, title in _DATA_TABLE_TITLES:
        data = _data_results(results, shared)
        if not data:
            continue
        path_text = "bypassing the page cache" if data[0].step.direct else "through the page cache"
        yield f"bytes a second, {title}, {path_text}; a write ends with fsync"
        ways = [(each.step.ranks, each.step.block_bytes) for each in data]
        rates = {(each.step.ranks, each.step.block_bytes, _test_name(each)): format_size(each.rate) for each in data}
        rows = [(ranks, block, format_size(block)) for ranks, block in dict.fromkeys(ways)]
        yield from _benchmark_table_lines("block", rows, rates)
        yield ""


def _benchmark_table_lines(
    second: str, rows: Sequence[tuple[int, int, str]], rates: dict[tuple[int, int, str], str]
) -> Iterator[str]:
    """Yield the lines of one table.

    Args:
        second: title of the second column; the first one is the number of ranks.
        rows: number of ranks, value of the second column, and that value as text.
        rates: the rate as text, by (number of ranks, value of the second column, name of the test). A combination that
            is missing is printed as ``-``.
    """
    names = list(dict.fromkeys(name for *_, name in rates))
    yield f"{'ranks':>6}  {second:>10}" + "".join(f"  {name:>11}" for name in names)
    for ranks, number, text in rows:
        cells = (f"  {rates.get((ranks, number, name), '-'):>11}" for name in names)
        yield f"{ranks:>6}  {text:>10}" + "".join(cells)


def least_effort_result_near_best_rate(results: Sequence[StepResult]) -> StepResult:
    """Return the result with the smallest effort (ranks * operations in flight) among those whose rate is about as good
    as the best.

    "About as good" is at least the share ``GOOD_ENOUGH_RATE_SHARE`` of the best rate. If the repeats of a measurement
    typically differ by more than that allows, it is 1 minus half their difference.
    """
    enough = min(GOOD_ENOUGH_RATE_SHARE, 1 - _typical_spread(results) / 2) * max(each.rate for each in results)
    return min(
        (each for each in results if each.rate >= enough),
        key=lambda each: (each.step.ranks * each.step.in_flight, each.step.ranks, each.step.block_bytes),
    )


def advice_lines(results: Sequence[StepResult]) -> Iterator[str]:
    """Yield sentences of advice for people.

    For each test they name the number of ranks, operations in flight and block size that is fastest, and at last the
    options ``-n`` and ``--in-flight`` that this suggests. If the repeats differ too much, the only sentence says so.
    """
    if not _are_repeats_consistent(results):
        yield (
            f"no advice: repeats of a measurement differ by {_typical_spread(results):.0%}: they were too short, or "
            "other programs use the file system; try --time 2 --files 100000 --size 1G"
        )
        return
    for test in dict.fromkeys(each.step.test for each in _metadata_results(results)):
        of_test = [each for each in _metadata_results(results) if each.step.test == test]
        best = least_effort_result_near_best_rate(of_test)
        smallest = next(each for each in of_test if each.step.is_shared == best.step.is_shared)
        where = " in one directory" if best.step.is_shared else " in directories of their own"
        if best.step.ranks == 1:  # For one rank, both layouts are the same.
            where = ""
        yield (
            f"{_TEST_VERBS[BenchmarkTest(test)]} is fastest with {_ranks_and_in_flight_text(best)}{where}: "
            f"{best.rate:,.0f}/s{_speedup_text(best, smallest)}"
        )
    yield from _bottleneck_line(results)
    overall = best_ranks_and_in_flight(results)
    if overall is not None:
        (ranks, in_flight), gain = overall
        yield f"for trees of small files: -n {ranks} --in-flight {in_flight} ({gain:.1f} times as fast as one by one)"
    for shared, test in dict.fromkeys((each.step.is_shared, each.step.test) for each in _data_results(results)):
        of_test = [each for each in _data_results(results, shared) if each.step.test == test]
        best = least_effort_result_near_best_rate(of_test)
        together = " one file together" if shared else ""
        yield (
            f"{_TEST_VERBS[BenchmarkTest(test)]}{together} is fastest with {_ranks_and_in_flight_text(best)} and "
            f"blocks of {format_size(best.step.block_bytes)}: {format_size(best.rate)}/s"
        )


def _typical_spread(results: Sequence[StepResult]) -> float:
    """Return how much the repeats of a measurement typically differ, as a share of their rate.

    It is the median, over all results, of the relative difference between the slowest and the fastest repeat.
    """
    return median(each.spread for each in results) if results else 0.0


def _are_repeats_consistent(results: Sequence[StepResult]) -> bool:
    """Return True if the repeats agree well enough for giving advice."""
    return _typical_spread(results) <= MAX_SPREAD_FOR_ADVICE


_TEST_VERBS = {
    BenchmarkTest.CREATE: "creating",
    BenchmarkTest.STAT: "reading the status of files (stat)",
    BenchmarkTest.OPEN: "opening",
    BenchmarkTest.READDIR: "reading directories",
    BenchmarkTest.RENAME: "renaming",
    BenchmarkTest.UNLINK: "removing",
    BenchmarkTest.WRITE: "writing",
    BenchmarkTest.READ: "reading",
}
"""The subject of the sentence of advice about each test: what the test does, as a verb with -ing."""


def _ranks_and_in_flight_text(result: StepResult) -> str:
    """Return the number of ranks and of operations in flight of a result, as text."""
    ranks = count_with_noun(result.step.ranks, "rank", "ranks")
    return f"{ranks} and {result.step.in_flight} in flight" if result.step.in_flight > 1 else ranks


def _speedup_text(best: StepResult, smallest: StepResult) -> str:
    """Return the end of a sentence: how many times as fast ``best`` is as ``smallest``. Return "" if ``smallest`` was
    not measured with one rank and one operation at a time, or is ``best`` itself.
    """
    one = (smallest.step.ranks, smallest.step.in_flight) == (1, 1) and smallest is not best and smallest.rate > 0
    return f", {best.rate / smallest.rate:.1f} times as fast as one by one" if one else ""


def _bottleneck_line(results: Sequence[StepResult]) -> Iterator[str]:
    """Yield a sentence if creating files in one shared directory is much slower than in separate directories."""
    made = [
        each for each in _metadata_results(results) if each.step.test == BenchmarkTest.CREATE and each.step.ranks > 1
    ]
    rates = [
        max((each.rate for each in made if each.step.is_shared == shared), default=0.0)
        for shared, _ in _METADATA_TABLE_TITLES
    ]
    if 0 < rates[0] < BOTTLENECK_RATE_SHARE * rates[1]:
        yield (
            f"one directory is a bottleneck: creating files in it reaches {rates[0] / rates[1]:.0%} "
            "of the rate of several directories"
        )


def best_ranks_and_in_flight(results: Sequence[StepResult]) -> tuple[tuple[int, int], float] | None:
    """Return the combination (ranks, operations in flight) that is fastest for a tree of small files, and its speed-up
    over the smallest combination that was measured.

    The speed-up is the geometric mean of those of the tests in ``_SMALL_FILE_TREE_TESTS``. Of all combinations that are
    about as fast as the best (``GOOD_ENOUGH_RATE_SHARE``), the one with the smallest effort is returned. Return None if
    fewer than two combinations were measured.
    """
    gains: dict[tuple[int, int], list[float]] = defaultdict(list)
    alone: dict[tuple[bool, int], float] = {}
    for each in _metadata_results(results):
        step = each.step
        if step.test in _SMALL_FILE_TREE_TESTS:
            first = alone.setdefault((step.is_shared, step.test), each.rate)
            gains[step.ranks, step.in_flight].append(log(each.rate / first))
    if len(gains) < 2:
        return None
    tests = max(map(len, gains.values()))
    means = {way: exp(sum(logs) / tests) for way, logs in gains.items() if len(logs) == tests}
    enough = GOOD_ENOUGH_RATE_SHARE * max(means.values())
    way = min((way for way, mean in means.items() if mean >= enough), key=lambda way: (way[0] * way[1], way[0]))
    return way, means[way]


def benchmark_json_values(results: Sequence[StepResult]) -> dict[str, Any]:
    """Return the results and the advice as values for ``--json``: the keys ``metadata``, ``data``, ``advice`` and
    ``best``.
    """
    metadata = [
        {
            "test": _test_name(each),
            "directories": "shared" if each.step.is_shared else "own",
            "ranks": each.step.ranks,
            "in_flight": each.step.in_flight,
            "operations": each.amount,
            "seconds": round(each.seconds, 6),
            "operations_per_second": round(each.rate, 1),
            "spread": round(each.spread, 3),
        }
        for each in results
        if not _is_data_test(each)
    ]
    data = [
        {
            "test": _test_name(each),
            "files": "shared" if each.step.is_shared else "own",
            "ranks": each.step.ranks,
            "block_size": each.step.block_bytes,
            "direct": each.step.direct,
            "bytes": each.amount,
            "seconds": round(each.seconds, 6),
            "bytes_per_second": round(each.rate),
            "spread": round(each.spread, 3),
        }
        for each in results
        if _is_data_test(each)
    ]
    overall = best_ranks_and_in_flight(results) if _are_repeats_consistent(results) else None
    chosen = None if overall is None else {"ranks": overall[0][0], "in_flight": overall[0][1]}
    return {"metadata": metadata, "data": data, "advice": list(advice_lines(results)), "best": chosen}


# The chart as SVG.

_COLOURS = ("#2f6f9f", "#d08a2e", "#5a9a5a", "#9a5a8a", "#7a7a7a")
_PICTURE_WIDTH, _CHART_WIDTH, _CHART_HEIGHT, _ROW_HEIGHT = 900, 270, 120, 190
"""Sizes in pixels: width of the picture, width of one chart, height of its columns, and height of a row of charts with
titles and legends.
"""
_FIRST_CHART_LEFT, _FIRST_CHART_TOP = 60, 70
"""Position in pixels of the first chart."""


class _BarChart:
    """The bar chart of one test: a group of columns for each number of ranks.

    A group has one column for each of ``keys``: whether all ranks share one directory or file, or the block sizes.
    """

    def __init__(self, title: str, keys: Sequence[str], unit: str, base: int) -> None:
        """Create an empty chart.

        Args:
            title: title of the chart.
            keys: names of the columns of each group, for the legend.
            unit: what the rates count, per second: "bytes", "entries" or "operations".
            base: 1024 for bytes, 1000 for other units; the end of the scale is round in this base.
        """
        self.title, self.keys, self.unit, self.base = title, keys, unit, base
        self.groups: dict[int, dict[str, float]] = defaultdict(dict)

    def add_rate(self, ranks: int, key: str, rate: float) -> None:
        """Add a rate for the column ``key`` of the group ``ranks``. A column shows the highest of its rates."""
        self.groups[ranks][key] = max(rate, self.groups[ranks].get(key, 0.0))

    def svg_elements(self, left: float, top: float) -> Iterator[Markup]:
        """Yield the SVG elements of the chart, whose upper left corner is at ``left``, ``top``."""
        highest = rounded_axis_end(max(rate for group in self.groups.values() for rate in group.values()), self.base)
        bottom = top + _CHART_HEIGHT
        yield html_element("text", f"{self.title}, {self.unit}/s", x=left, y=top - 8, font_weight="bold")
        for part in (0, 0.5, 1):
            height = bottom - part * _CHART_HEIGHT
            yield html_element("line", x1=left, x2=left + _CHART_WIDTH - 60, y1=height, y2=height, stroke="#ccc")
            text = format_size(part * highest) if self.base == 1024 else f"{part * highest:,.0f}"
            yield html_element("text", text, x=left - 4, y=height + 3, text_anchor="end", font_size=9)
        width = (_CHART_WIDTH - 60) / len(self.groups)
        column = width * 0.8 / len(self.keys)
        for number, (ranks, group) in enumerate(self.groups.items()):
            start = left + width * (number + 0.1)
            for place, key in enumerate(self.keys):
                rate = group.get(key, 0.0)
                column_height = _CHART_HEIGHT * rate / highest
                hint = html_element(
                    "title", f"{self.title}, {count_with_noun(ranks, 'rank', 'ranks')}, {key}: {self._rate_text(rate)}"
                )
                box = {"x": f"{start + place * column:.1f}", "y": f"{bottom - column_height:.1f}"}
                box |= {
                    "width": f"{column:.1f}",
                    "height": f"{column_height:.1f}",
                    "fill": _COLOURS[place % len(_COLOURS)],
                }
                yield html_element("rect", hint, **box)
            middle = start + width * 0.4
            yield html_element("text", str(ranks), x=f"{middle:.1f}", y=bottom + 13, text_anchor="middle", font_size=10)
        for place, key in enumerate(self.keys):
            at = left + place * 85
            yield html_element("rect", x=at, y=bottom + 20, width=9, height=9, fill=_COLOURS[place % len(_COLOURS)])
            yield html_element("text", key, x=at + 12, y=bottom + 28, font_size=10)

    def _rate_text(self, rate: float) -> str:
        return f"{format_size(rate)}/s" if self.base == 1024 else f"{rate:,.0f}/s"


def benchmark_svg_chart(results: Sequence[StepResult], directory: str) -> str:
    """Return an SVG picture with one chart for each test, with the rates by number of ranks.

    If a test was measured with several numbers of operations in flight, the chart shows the best rate.

    Args:
        results: the results of all steps.
        directory: path of the measured directory, for the title.
    """
    charts: dict[tuple[int, bool], _BarChart] = {}
    blocks = [format_size(block) for block in dict.fromkeys(each.step.block_bytes for each in _data_results(results))]
    for each in (*_metadata_results(results), *_data_results(results)):
        step, moves = each.step, _is_data_test(each)
        keys = blocks if moves else ["one directory", "several"]
        which = step.test, moves and step.is_shared
        chart = charts.get(which)
        if chart is None:
            unit = "bytes" if moves else "entries" if step.test == BenchmarkTest.READDIR else "operations"
            title = f"{_test_name(each)}, one file" if which[1] else _test_name(each)
            chart = charts[which] = _BarChart(title, keys, unit, 1024 if moves else 1000)
        chart.add_rate(step.ranks, format_size(step.block_bytes) if moves else keys[not step.is_shared], each.rate)
    rows = -(-len(charts) // 3)
    parts = [html_element("rect", width="100%", height="100%", fill="#fff")]
    parts.append(html_element("text", f"pdbench {directory}: rates by the number of ranks", x=20, y=26, font_size=16))
    for number, chart in enumerate(charts.values()):
        parts.extend(
            chart.svg_elements(
                _FIRST_CHART_LEFT + number % 3 * (_CHART_WIDTH + 10), _FIRST_CHART_TOP + number // 3 * _ROW_HEIGHT
            )
        )
    picture = html_element(
        "svg", *parts, xmlns="http://www.w3.org/2000/svg",
        view_box=f"0 0 {_PICTURE_WIDTH} {_FIRST_CHART_TOP + rows * _ROW_HEIGHT}",
        font_family="sans-serif", font_size=12, role="img", aria_label=f"rates measured in {directory}",
    )  # fmt: skip
    return f"{picture}\n"
