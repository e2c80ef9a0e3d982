"""Draws ``docs/performance.md`` and its picture from the times in ``docs/performance.json``."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any
from xml.sax.saxutils import escape

from bench.scenarios import SLOW
from bench.suite import SCENARIOS
from bench.timing import CHECKOUT

DOCS = CHECKOUT / "docs"

Result = Mapping[str, Any]
"""As in the file: ``bench.__main__`` writes it."""

_HEAD = """# Performance

Drawn by `python -m bench.page` from `docs/performance.json`. `python -m bench --json docs/performance.json` measures
anew, and adds to that file.

- Each way was timed in as many rounds as its measurement had. The ways took turns, in another order each round. Each
  copy was new, and the one before it had been removed.
- Source and copy are on two file systems of the same kind, in memory: ext4 and XFS in images on a tmpfs. The source is
  in the page cache. So these numbers tell of processors and calls, not of disks.
- Seconds are by the clock; *processor* is user and system time of all processes. A copy is over when it is on storage:
  after commands that do not sync, `sync -f` is run and counted.
- Before the rounds each command ran once, and `rsync -aHAXn --checksum --delete` compared its copy with the source. If
  a copy by pcopy, cp, rsync or the C program differs, the benchmark ends; of other programs it is told.
- *bare C* is `bench/bare.c`: the system calls for each file (two more than pcopy makes), and nothing else.
- *Slow operations* are on `bench/latencyfs`: each operation of the file system takes some time, whatever it is, and any
  number may be under way. Only changes of one directory wait for each other. *Operations* is how many there were, *at
  once* how many were under way at most on one of the two file systems.
- *Load* is the load average when the measurement began: what others do on the machine makes all times longer and less
  certain. With a small `--scale` the start of a program is most of its time.
"""

_TOLD = ("command", "date", "commit", "rounds", "machine", "load", "system", "not installed")
_COLOURS = {"pcopy": "#0072b2", "prm": "#0072b2", "bare": "#999999"}
_OTHERS = "#d55e00"
_ROW, _LEFT, _BAR, _WIDTH = 16, 230, 420, 740


def page(results: Sequence[Result]) -> str:
    """The page's text."""
    abouts = list({json.dumps(result["about"]): result["about"] for result in _in_order(results)}.values())
    rows = [[f"{number}", *_told(about)] for number, about in enumerate(abouts, 1)]
    parts = [_HEAD, _table(["measurement", *_TOLD], rows)]
    parts.append("\n![Seconds of each way, by scenario](performance.svg)\n")
    for result in _in_order(results):
        parts.append(_section(result, abouts.index(result["about"]) + 1))
    commands = {name: way["command"] for result in _in_order(results) for name, way in result["ways"].items()}
    rows = [[name, f"`{command}`"] for name, command in commands.items()]
    return "\n".join([*parts, "## Commands\n", _table(["way", "command"], rows)]) + "\n"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (heads, ["---"] * len(heads), *rows))


def _told(about: Mapping[str, Any]) -> list[str]:
    told = {**about, "command": f"`{about['command']}`", "not installed": ", ".join(about["absent"])}
    return [str(told[key]) for key in _TOLD]


def picture(results: Sequence[Result]) -> str:
    """The SVG's text: a group of bars for each result, as long as its median takes."""
    parts = []
    y = 0
    for result in _in_order(results):
        y += 2 * _ROW
        parts.append(f"<text x='4' y='{y}' font-weight='bold'>{escape(_heading(result))}</text>")
        walls = {name: median(way["wall"]) for name, way in result["ways"].items()}
        for name, wall in walls.items():
            y += _ROW
            length = _BAR * wall / max(walls.values())
            colour = _COLOURS.get(name.split()[0], _OTHERS)
            parts.append(f"<text x='{_LEFT - 6}' y='{y}' text-anchor='end'>{escape(_short(name))}</text>")
            parts.append(f"<rect x='{_LEFT}' y='{y - 11}' width='{length:.1f}' height='13' fill='{colour}'/>")
            parts.append(f"<text x='{_LEFT + length + 5:.1f}' y='{y}'>{_seconds(wall)} s</text>")
    height = y + _ROW
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {height}' width='{_WIDTH}' height='{height}'"
    return "\n".join(
        [
            f"{head} font-family='sans-serif' font-size='11'>",
            f"<rect width='{_WIDTH}' height='{height}' fill='white'/>",
            *parts,
            "</svg>",
            "",
        ]
    )


def _in_order(results: Sequence[Result]) -> list[Result]:
    """As the scenarios are; of one scenario as its file systems are."""
    names = list(SCENARIOS)
    known = [result for result in results if result["scenario"] in SCENARIOS]
    return sorted(
        known,
        key=lambda each: (names.index(each["scenario"]), SCENARIOS[each["scenario"]].kinds.index(each["fs"])),
    )


def _heading(result: Result) -> str:
    where = f"{result['about']['delay'] / 1000:g} ms each" if result["fs"] == SLOW else result["fs"]
    return f"{result['title']}, {where}"


def _section(result: Result, measurement: int) -> str:
    base = median(result["ways"][result["against"]]["wall"])
    slow = result["fs"] == SLOW
    heads = ["seconds", "median", "least", "most", "processor", f"/ {result['against']}"]
    rows = []
    for name, way in result["ways"].items():
        wall = median(way["wall"])
        times = [_seconds(value) for value in (wall, min(way["wall"]), max(way["wall"]), median(way["processor"]))]
        more = [f"{median(way['operations']):,.0f}", f"{median(way['most at once']):.0f}"] if slow else []
        rows.append([name, *times, f"{wall / base:.2f}", *more])
    what = f"{result['dataset'][0].upper()}{result['dataset'][1:]}; {result['before']}. Measurement {measurement}."
    told = [f"## {_heading(result)}\n\n{what}\n", _table([*heads, *(["operations", "at once"] if slow else [])], rows)]
    unlike = [name for name, way in result["ways"].items() if way["differences"]]
    if unlike:
        told.append(f"\nCopies that differ from the source: {', '.join(unlike)}.")
    return "\n".join(told) + "\n"


def _seconds(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _short(name: str, most: int = 38) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def main() -> int:
    results = json.loads((DOCS / "performance.json").read_text())
    (DOCS / "performance.md").write_text(page(results))
    (DOCS / "performance.svg").write_text(picture(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
