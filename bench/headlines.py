"""The results of the benchmarks in short: the table of speeds in the README and on other pages, and its chart.

A *headline* is one row of the table: a task, and the times of the tools that can do it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from bench.scenarios import SLOW_FILE_SYSTEM
from bench.ways import OTHER_PROGRAMS

ScenarioResult = Mapping[str, Any]
"""The result of one scenario on one type of file system, as ``bench.__main__`` writes it to the file."""

OUR_PROGRAMS = ("pcopy", *OTHER_PROGRAMS)
MPIFILEUTILS_PROGRAMS = ("dcp", "dsync", "drm", "dwalk", "dfind", "dchmod", "dcmp", "dtar")
TABLE_HEADS = ("task", "cp, rm, tar", "rsync", "dcp, …", "pcopy, …", "result")
_TIMES = "\N{MULTIPLICATION SIGN}"
EQUAL_WITHIN = 0.05
"""Times whose ratio differs from 1 by at most this are called equal: repeated measurements differ more than that."""

HEADLINE_TASKS = (
    ("copy small files, 1 ms for each operation", "latency-20", SLOW_FILE_SYSTEM, True),
    ("compare metadata, 1 ms for each operation", "compare", SLOW_FILE_SYSTEM, True),
    ("copy many small files", "small", "xfs", True),
    ("copy again, nothing has changed", "again", "xfs", True),
    ("copy files of 4 KiB to 5 MiB", "heavy", "xfs", False),
    ("remove small files", "remove", "xfs", False),
    ("create a tar archive", "pack", "tmpfs", False),
    ("copy one large file", "large", "tmpfs", True),
    ("copy directories without files", "directories", "xfs", True),
    ("copy files with three hard links", "links", "ext4", True),
    ("copy one small file", "start", "tmpfs", True),
)
"""The tasks of the table: what is done, the name of the scenario, the type of file system, and True if the shorter
table of the README has the task, too.
"""

_CHART_WIDTH, _CHART_MIDDLE, _CHART_ROW, _CHART_SIDE, _CHART_TOP = 760, 480, 26, 190, 52
"""Sizes in the chart, in pixels: its width, the position of equal times, the height of a row, the longest bar, and the
height of the title.
"""
_CHART_STYLE = """<style>
text { fill: #24292f } .paper { fill: #ffffff } .faster { fill: #0072b2 } .slower { fill: #d55e00 }
line { stroke: #8c959f }
@media (prefers-color-scheme: dark) {
text { fill: #dce3e8 } .paper { fill: #16191d } .faster { fill: #56b4e9 } .slower { fill: #e69f00 } }
</style>"""


class Headline(NamedTuple):
    """One row of the table.

    Fields:
    - ``task``: what was done.
    - ``anchor``: the anchor of the section of ``docs/performance.md`` with all times.
    - ``usual``, ``rsync``, ``mpifileutils``: the times of cp (or rm, tar), of rsync and of the fastest way with a
      program of mpiFileUtils, in seconds; None for a tool that was not measured.
    - ``ours``: the time of pcopy or of another program of this project.
    - ``factor``: the speed relative to the reference (the usual tool, or rsync): 2 is twice as fast.
    - ``is_in_readme``: True if the shorter table of the README has this row, too.
    - ``is_faithful``: False if the copy of the program of mpiFileUtils differed from the source.
    """

    task: str
    anchor: str
    usual: float | None
    rsync: float | None
    mpifileutils: float | None
    ours: float
    factor: float
    is_in_readme: bool
    is_faithful: bool


def headlines(results: Sequence[ScenarioResult]) -> list[Headline]:
    """Return the rows of the table, the greatest factor first. Tasks without a result are left out."""
    by_key = {(result["scenario"], result["fs"]): result for result in results}
    rows = [
        _headline(task, is_in_readme, by_key[scenario, kind])
        for task, scenario, kind, is_in_readme in HEADLINE_TASKS
        if (scenario, kind) in by_key
    ]
    return sorted(rows, key=lambda row: -row.factor)


def _headline(task: str, is_in_readme: bool, result: ScenarioResult) -> Headline:
    """Return the row about ``result``."""
    times = {name: median(way["wall"]) for name, way in result["ways"].items()}
    reference = result["against"]
    mpifileutils = min(
        (name for name in times if name.split()[0] in MPIFILEUTILS_PROGRAMS), key=times.__getitem__, default=""
    )
    ours = times[_our_way(result)]
    return Headline(
        task,
        heading_anchor(result_heading(result)),
        None if reference.startswith("rsync") else times[reference],
        next((time for name, time in times.items() if name.startswith("rsync")), None),
        times.get(mpifileutils),
        ours,
        times[reference] / ours,
        is_in_readme,
        not (mpifileutils and result["ways"][mpifileutils]["differences"]),
    )


def _our_way(result: ScenarioResult) -> str:
    """Return the label of the way in which our program ran with as many ranks as processors, its default."""
    ranks = processors_of(result)
    pattern = re.compile(rf"(?:{'|'.join(OUR_PROGRAMS)}) -n {ranks}\b")
    names: Iterable[str] = result["ways"]
    return next(name for name in names if pattern.match(name))


def processors_of(result: ScenarioResult) -> int:
    """Return the number of processors of the machine on which ``result`` was measured."""
    return int(result["about"]["machine"].split()[0])


def result_heading(result: ScenarioResult) -> str:
    """Return the heading of the page's section for ``result``."""
    where = f"{result['about']['delay'] / 1000:g} ms each" if result["fs"] == SLOW_FILE_SYSTEM else result["fs"]
    return f"{result['title']}, {where}"


def heading_anchor(heading: str) -> str:
    """Return the anchor that viewers of Markdown generate from ``heading``."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def seconds_text(value: float) -> str:
    """Return ``value``, a time in seconds, as text with a suitable number of digits."""
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _factor_text(value: float) -> str:
    """Return ``value``, a factor of at least 1, as text with a suitable number of digits."""
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


def outcome_text(factor: float) -> str:
    """Return text that says how many times as fast, or how many times as long."""
    if 1 - EQUAL_WITHIN <= factor <= 1 + EQUAL_WITHIN:
        return "equal"
    return f"{_factor_text(factor)}{_TIMES} as fast" if factor > 1 else f"{_factor_text(1 / factor)}{_TIMES} as long"


def speed_table(rows: Sequence[Headline], page: str) -> str:
    """Return the table in Markdown. ``page`` is the path of ``docs/performance.md``, to which the tasks are links."""
    lines = [TABLE_HEADS, ["---", *["---:"] * (len(TABLE_HEADS) - 2), "---"]]
    for row in rows:
        mark = "" if row.is_faithful else " (the copy differs)"
        usual, rsync, mpifileutils = ("-" if time is None else _short_time(time) for time in row[2:5])
        outcome = outcome_text(row.factor)
        ours = _short_time(row.ours)
        task = f"[{row.task}]({page}#{row.anchor})"
        best = f"**{outcome}**" if outcome.endswith("fast") else outcome
        lines.append([task, usual, rsync, f"{mpifileutils}{mark}", ours, best])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _short_time(value: float) -> str:
    """Return ``value``, a time in seconds, as text with its unit and two or three significant digits."""
    return f"{value:.1f} s" if value >= 10 else f"{value:.2f} s" if value >= 0.1 else f"{value * 1000:.0f} ms"


def speed_sentences(rows: Sequence[Headline]) -> str:
    """Return two sentences: where our programs are faster and where they are slower, and by which factors.

    ``rows`` are sorted by their factors.
    """
    faster = [row for row in rows if row.factor > 1 + EQUAL_WITHIN]
    slower = [row for row in rows if row.factor < 1 - EQUAL_WITHIN]
    sentences = []
    if faster:
        span = f"{_factor_text(faster[-1].factor)} to {_factor_text(faster[0].factor)} times as fast"
        sentences.append(
            f"In {len(faster)} of these {len(rows)} tasks, pcopy and its programs were **faster** than the usual tool: "
            f"{span}, most in *{faster[0].task}*."
        )
    if slower:
        span = f"{_factor_text(1 / slower[0].factor)} to {_factor_text(1 / slower[-1].factor)} times as long"
        sentences.append(f"In {len(slower)} they were **slower**: {span}, most in *{slower[-1].task}*.")
    return "\n".join(sentences)


def copy_outcome(rows: Sequence[Headline]) -> str:
    """Return how many times as fast pcopy is in the first task of ``HEADLINE_TASKS``, which the README cites."""
    return outcome_text(next(row.factor for row in rows if row.task == HEADLINE_TASKS[0][0]))


def speed_chart(rows: Sequence[Headline]) -> str:
    """Return a bar chart (SVG) of the factors. Bars of faster tasks go to the right, those of slower ones to the left.

    The scale is logarithmic.
    """
    longest = max(abs(math.log2(row.factor)) for row in rows)
    height = _CHART_TOP + _CHART_ROW * len(rows) + 14
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_CHART_WIDTH} {height}' width='{_CHART_WIDTH}' "
        f"height='{height}' font-family='sans-serif' font-size='13'>",
        _CHART_STYLE,
        f"<rect class='paper' width='{_CHART_WIDTH}' height='{height}' rx='6'/>",
        f"<text x='{_CHART_MIDDLE - 8}' y='22' text-anchor='end'>← slower</text>",
        f"<text x='{_CHART_MIDDLE + 8}' y='22'>faster than cp, rm, tar or rsync →</text>",
        f"<line x1='{_CHART_MIDDLE}' x2='{_CHART_MIDDLE}' y1='8' y2='{height - 8}'/>",
    ]
    for number, row in enumerate(rows):
        y = _CHART_TOP + _CHART_ROW * number
        length = (_CHART_SIDE - 40) * abs(math.log2(row.factor)) / longest
        is_faster = row.factor >= 1
        x = _CHART_MIDDLE if is_faster else _CHART_MIDDLE - length
        end = f"x='{_CHART_MIDDLE + length + 5:.1f}'" if is_faster else f"x='{x - 5:.1f}' text-anchor='end'"
        amount = f"{_factor_text(max(row.factor, 1 / row.factor))}{_TIMES}"
        parts += [
            f"<text x='8' y='{y + 4}'>{escape(row.task)}</text>",
            f"<rect class='{'faster' if is_faster else 'slower'}' x='{x:.1f}' y='{y - 9}' width='{length:.1f}' "
            "height='17'/>",
            f"<text {end} y='{y + 4}' font-weight='bold'>{amount}</text>",
        ]
    return "\n".join([*parts, "</svg>", ""])


def with_generated_part(text: str, name: str, content: str) -> str:
    """Return ``text`` with ``content`` between the comments ``<!-- name -->`` and ``<!-- /name -->``."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, found_begin, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"the text has no part between {begin} and {end}")
    return f"{before}{begin}{content}{end}{after}"
