"""What ``pdbench`` tells of what was measured: tables, advice in words, values for programs, and a picture."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import exp, log
from statistics import median
from typing import Any

from pcopy.report.page.charts import scale
from pcopy.report.page.markup import Markup, element
from pcopy.tasks.bench.steps import Taken, Test
from pcopy.text import counted
from pcopy.units import show_size

ENOUGH = 0.95
"""Fewer ranks, and fewer operations in flight, are advised if they reach this part of the best rate."""

UNSURE = 0.5
"""If repeats of a measurement differ by more than this part of its rate, as a rule, nothing is advised."""

WALL = 0.7
"""If one directory reaches less than this part of what directories of their own do, that is told."""

_LAYOUTS = ((True, "all files in one directory"), (False, "a directory for each rank"))
_FILES = ((False, "a file for each rank"), (True, "one file for all ranks, a segment for each"))
_OVERALL = (Test.CREATE, Test.STAT, Test.OPEN, Test.UNLINK)
"""What copying or removing a tree of small files consists of."""


def _files(taken: Sequence[Taken], shared: bool | None = None) -> list[Taken]:
    return [each for each in taken if not _moves(each) and shared in (None, each.step.shared) and each.number]


def _data(taken: Sequence[Taken], shared: bool | None = None) -> list[Taken]:
    return [each for each in taken if _moves(each) and shared in (None, each.step.shared) and each.number]


def _moves(taken: Taken) -> bool:
    return Test(taken.step.test).moves


def _name(taken: Taken) -> str:
    return Test(taken.step.test).name.lower()


def tables(taken: Sequence[Taken]) -> Iterator[str]:
    """Rates, a line for each way to work."""
    for shared, title in _LAYOUTS:
        some = _files(taken, shared)
        if some:
            yield f"operations a second, {title} (readdir: entries a second)"
            ways = [(each.step.ranks, each.step.in_flight) for each in some]
            rates = {(each.step.ranks, each.step.in_flight, _name(each)): f"{each.rate:,.0f}" for each in some}
            rows = [(ranks, number, f"{number}") for ranks, number in dict.fromkeys(ways)]
            yield from _table("in flight", rows, rates)
            yield ""
    for shared, title in _FILES:
        data = _data(taken, shared)
        if not data:
            continue
        how = "past the page cache" if data[0].step.direct else "through the page cache"
        yield f"bytes a second, {title}, {how}; a write ends with fsync"
        ways = [(each.step.ranks, each.step.block) for each in data]
        rates = {(each.step.ranks, each.step.block, _name(each)): show_size(each.rate) for each in data}
        rows = [(ranks, block, show_size(block)) for ranks, block in dict.fromkeys(ways)]
        yield from _table("block", rows, rates)
        yield ""


def _table(second: str, rows: Sequence[tuple[int, int, str]], rates: dict[tuple[int, int, str], str]) -> Iterator[str]:
    """A row: ranks, and the ``second`` thing, also as it is shown; ``rates`` by both and the name of a test."""
    names = list(dict.fromkeys(name for *_, name in rates))
    yield f"{'ranks':>6}  {second:>10}" + "".join(f"  {name:>11}" for name in names)
    for ranks, number, text in rows:
        cells = (f"  {rates.get((ranks, number, name), '-'):>11}" for name in names)
        yield f"{ranks:>6}  {text:>10}" + "".join(cells)


def fastest(taken: Sequence[Taken]) -> Taken:
    """The one that takes least to be as fast as the best, or nearly so: what differs less than repeats do is chance."""
    enough = min(ENOUGH, 1 - _spread(taken) / 2) * max(each.rate for each in taken)
    return min(
        (each for each in taken if each.rate >= enough),
        key=lambda each: (each.step.ranks * each.step.in_flight, each.step.ranks, each.step.block),
    )


def advice(taken: Sequence[Taken]) -> Iterator[str]:
    """In plain words: with how much each is fastest, and what that means for the options of pcopy."""
    if not _is_sure(taken):
        yield (
            f"no advice: repeats of a measurement differ by {_spread(taken):.0%}: they were too short, or others work "
            "here; try --time 2 --files 100000 --size 1G"
        )
        return
    for test in dict.fromkeys(each.step.test for each in _files(taken)):
        of_test = [each for each in _files(taken) if each.step.test == test]
        best = fastest(of_test)
        least = next(each for each in of_test if each.step.shared == best.step.shared)
        where = " in one directory" if best.step.shared else " in directories of their own"
        if best.step.ranks == 1:  # for which both are the same
            where = ""
        yield f"{_DOING[Test(test)]} is fastest with {_way(best)}{where}: {best.rate:,.0f}/s{_times(best, least)}"
    yield from _wall(taken)
    overall = best_way(taken)
    if overall is not None:
        (ranks, in_flight), gain = overall
        yield f"for trees of small files: -n {ranks} --in-flight {in_flight} ({gain:.1f} times as fast as one by one)"
    for shared, test in dict.fromkeys((each.step.shared, each.step.test) for each in _data(taken)):
        of_test = [each for each in _data(taken, shared) if each.step.test == test]
        best = fastest(of_test)
        together = " one file together" if shared else ""
        yield (
            f"{_DOING[Test(test)]}{together} is fastest with {_way(best)} and blocks of "
            f"{show_size(best.step.block)}: {show_size(best.rate)}/s"
        )


def _spread(taken: Sequence[Taken]) -> float:
    """By which part of the rate repeats of a measurement differ, as a rule."""
    return median(each.spread for each in taken) if taken else 0.0


def _is_sure(taken: Sequence[Taken]) -> bool:
    return _spread(taken) <= UNSURE


_DOING = {
    Test.CREATE: "creating",
    Test.STAT: "looking at files (stat)",
    Test.OPEN: "opening",
    Test.READDIR: "reading directories",
    Test.RENAME: "renaming",
    Test.UNLINK: "removing",
    Test.WRITE: "writing",
    Test.READ: "reading",
}


def _way(taken: Taken) -> str:
    ranks = counted(taken.step.ranks, "rank", "ranks")
    return f"{ranks} and {taken.step.in_flight} in flight" if taken.step.in_flight > 1 else ranks


def _times(best: Taken, least: Taken) -> str:
    one = (least.step.ranks, least.step.in_flight) == (1, 1) and least is not best and least.rate > 0
    return f", {best.rate / least.rate:.1f} times as fast as one by one" if one else ""


def _wall(taken: Sequence[Taken]) -> Iterator[str]:
    """Does one directory hold back several who make files in it?"""
    made = [each for each in _files(taken) if each.step.test == Test.CREATE and each.step.ranks > 1]
    rates = [max((each.rate for each in made if each.step.shared == shared), default=0.0) for shared, _ in _LAYOUTS]
    if 0 < rates[0] < WALL * rates[1]:
        yield f"one directory is a wall: creating in it reaches {rates[0] / rates[1]:.0%} of what several take"


def best_way(taken: Sequence[Taken]) -> tuple[tuple[int, int], float] | None:
    """Ranks and operations in flight with which all operations together are fastest, and how many times as fast as one
    by one; None if too little was measured."""
    gains: dict[tuple[int, int], list[float]] = defaultdict(list)
    alone: dict[tuple[bool, int], float] = {}
    for each in _files(taken):
        step = each.step
        if step.test in _OVERALL:
            first = alone.setdefault((step.shared, step.test), each.rate)
            gains[step.ranks, step.in_flight].append(log(each.rate / first))
    if len(gains) < 2:
        return None
    most = max(map(len, gains.values()))
    means = {way: exp(sum(logs) / most) for way, logs in gains.items() if len(logs) == most}
    enough = ENOUGH * max(means.values())
    way = min((way for way, mean in means.items() if mean >= enough), key=lambda way: (way[0] * way[1], way[0]))
    return way, means[way]


def values_of(taken: Sequence[Taken]) -> dict[str, Any]:
    """For programs."""
    metadata = [
        {
            "test": _name(each),
            "directories": "shared" if each.step.shared else "own",
            "ranks": each.step.ranks,
            "in_flight": each.step.in_flight,
            "operations": each.number,
            "seconds": round(each.seconds, 6),
            "operations_per_second": round(each.rate, 1),
            "spread": round(each.spread, 3),
        }
        for each in taken
        if not _moves(each)
    ]
    data = [
        {
            "test": _name(each),
            "files": "shared" if each.step.shared else "own",
            "ranks": each.step.ranks,
            "block_size": each.step.block,
            "direct": each.step.direct,
            "bytes": each.number,
            "seconds": round(each.seconds, 6),
            "bytes_per_second": round(each.rate),
            "spread": round(each.spread, 3),
        }
        for each in taken
        if _moves(each)
    ]
    overall = best_way(taken) if _is_sure(taken) else None
    chosen = None if overall is None else {"ranks": overall[0][0], "in_flight": overall[0][1]}
    return {"metadata": metadata, "data": data, "advice": list(advice(taken)), "best": chosen}


# The picture.

_COLOURS = ("#2f6f9f", "#d08a2e", "#5a9a5a", "#9a5a8a", "#7a7a7a")
_WIDTH, _PANEL, _HEIGHT, _ROW = 900, 270, 120, 190
"""Of the picture, of one chart in it, of its columns, and of a row of charts with what is written around them."""
_LEFT, _TOP = 60, 70


class _Chart:
    """One test: a group of columns for each number of ranks, and in it one for each of ``keys``."""

    def __init__(self, title: str, keys: Sequence[str], unit: str, base: int) -> None:
        self.title, self.keys, self.unit, self.base = title, keys, unit, base
        self.groups: dict[int, dict[str, float]] = defaultdict(dict)

    def add(self, ranks: int, key: str, rate: float) -> None:
        self.groups[ranks][key] = max(rate, self.groups[ranks].get(key, 0.0))

    def drawn(self, left: float, top: float) -> Iterator[Markup]:
        most = scale(max(rate for group in self.groups.values() for rate in group.values()), self.base)
        foot = top + _HEIGHT
        yield element("text", f"{self.title}, {self.unit}/s", x=left, y=top - 8, font_weight="bold")
        for part in (0, 0.5, 1):
            height = foot - part * _HEIGHT
            yield element("line", x1=left, x2=left + _PANEL - 60, y1=height, y2=height, stroke="#ccc")
            text = show_size(part * most) if self.base == 1024 else f"{part * most:,.0f}"
            yield element("text", text, x=left - 4, y=height + 3, text_anchor="end", font_size=9)
        width = (_PANEL - 60) / len(self.groups)
        column = width * 0.8 / len(self.keys)
        for number, (ranks, group) in enumerate(self.groups.items()):
            start = left + width * (number + 0.1)
            for place, key in enumerate(self.keys):
                rate = group.get(key, 0.0)
                high = _HEIGHT * rate / most
                told = element("title", f"{self.title}, {counted(ranks, 'rank', 'ranks')}, {key}: {self._shown(rate)}")
                box = {"x": f"{start + place * column:.1f}", "y": f"{foot - high:.1f}"}
                box |= {"width": f"{column:.1f}", "height": f"{high:.1f}", "fill": _COLOURS[place % len(_COLOURS)]}
                yield element("rect", told, **box)
            middle = start + width * 0.4
            yield element("text", str(ranks), x=f"{middle:.1f}", y=foot + 13, text_anchor="middle", font_size=10)
        for place, key in enumerate(self.keys):
            at = left + place * 85
            yield element("rect", x=at, y=foot + 20, width=9, height=9, fill=_COLOURS[place % len(_COLOURS)])
            yield element("text", key, x=at + 12, y=foot + 28, font_size=10)

    def _shown(self, rate: float) -> str:
        return f"{show_size(rate)}/s" if self.base == 1024 else f"{rate:,.0f}/s"


def drawing(taken: Sequence[Taken], where: str) -> str:
    """An SVG with a chart for each test, over the number of ranks; of several operations in flight, the best."""
    charts: dict[tuple[int, bool], _Chart] = {}
    blocks = [show_size(block) for block in dict.fromkeys(each.step.block for each in _data(taken))]
    for each in (*_files(taken), *_data(taken)):
        step, moves = each.step, _moves(each)
        keys = blocks if moves else ["one directory", "several"]
        which = step.test, moves and step.shared
        chart = charts.get(which)
        if chart is None:
            unit = "bytes" if moves else "entries" if step.test == Test.READDIR else "operations"
            title = f"{_name(each)}, one file" if which[1] else _name(each)
            chart = charts[which] = _Chart(title, keys, unit, 1024 if moves else 1000)
        chart.add(step.ranks, show_size(step.block) if moves else keys[not step.shared], each.rate)
    rows = -(-len(charts) // 3)
    parts = [element("rect", width="100%", height="100%", fill="#fff")]
    parts.append(element("text", f"pdbench {where}: rates by the number of ranks", x=20, y=26, font_size=16))
    for number, chart in enumerate(charts.values()):
        parts.extend(chart.drawn(_LEFT + number % 3 * (_PANEL + 10), _TOP + number // 3 * _ROW))
    picture = element(
        "svg", *parts, xmlns="http://www.w3.org/2000/svg", view_box=f"0 0 {_WIDTH} {_TOP + rows * _ROW}",
        font_family="sans-serif", font_size=12, role="img", aria_label=f"rates measured in {where}",
    )  # fmt: skip
    return f"{picture}\n"
