"""Curves over the number of ranks as a small SVG, generated without a library. Panels are side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

from docs.drawn import DARK_STYLE

WIDTH, HEIGHT = 360, 260
"""The size of one panel, in user units."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 30, 40
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_FONT = "font-family='sans-serif' font-size='11'"


class Panel(NamedTuple):
    """One panel: the ``curves`` by name, each a list of points (ranks, value), and the values of grid lines
    (``marks``).

    The first and last mark are the ends of the axis. Its scale is logarithmic with ``logarithmic``.
    """

    title: str
    curves: Mapping[str, Sequence[tuple[float, float]]]
    marks: Sequence[float]
    logarithmic: bool = False


def draw(panels: Sequence[Panel]) -> str:
    """Return the text of the SVG, which ends in a newline."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.curves))
    colours = {name: _COLOURS[index % len(_COLOURS)] for index, name in enumerate(names)}
    width, height = WIDTH * len(panels), HEIGHT + 24
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}'>",
        DARK_STYLE,
    ]
    for index, panel in enumerate(panels):
        parts.append(f"<g transform='translate({index * WIDTH},0)' {_FONT}>")
        parts += _panel(panel, colours)
        parts.append("</g>")
    for index, name in enumerate(names):
        x = _LEFT + 110 * index
        parts.append(f"<path d='M{x} {HEIGHT + 8}h20' stroke='{colours[name]}' stroke-width='2'/>")
        parts.append(f"<text x='{x + 25}' y='{HEIGHT + 12}' {_FONT}>{escape(name)}</text>")
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, colours: Mapping[str, str]) -> list[str]:
    """Return the elements of a panel."""
    ranks = sorted({x for curve in panel.curves.values() for x, _ in curve})
    least, most = math.log2(ranks[0]), math.log2(max(ranks[-1], ranks[0] * 2))
    bottom, top = _scaled(panel, panel.marks[0]), _scaled(panel, panel.marks[-1])

    def across(x: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * (math.log2(x) - least) / (most - least)

    def up(y: float) -> float:
        inside = min(max(y, panel.marks[0]), panel.marks[-1])
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * (_scaled(panel, inside) - bottom) / (top - bottom)

    parts = [f"<text x='{WIDTH / 2:.0f}' y='16' text-anchor='middle'>{escape(panel.title)}</text>"]
    for mark in panel.marks:
        parts.append(f"<path d='M{_LEFT} {up(mark):.1f}H{WIDTH - _RIGHT}' stroke='#ddd'/>")
        parts.append(f"<text x='{_LEFT - 5}' y='{up(mark) + 4:.1f}' text-anchor='end'>{mark:g}</text>")
    for x in ranks:
        parts.append(f"<path d='M{across(x):.1f} {HEIGHT - _BOTTOM}v4' stroke='black'/>")
        parts.append(f"<text x='{across(x):.1f}' y='{HEIGHT - _BOTTOM + 16}' text-anchor='middle'>{x:g}</text>")
    parts.append(f"<text x='{WIDTH / 2:.0f}' y='{HEIGHT - 8}' text-anchor='middle'>ranks</text>")
    for name, curve in panel.curves.items():
        points = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in sorted(curve))
        parts.append(f"<polyline points='{points}' fill='none' stroke='{colours[name]}' stroke-width='2'/>")
        parts += [f"<circle cx='{across(x):.1f}' cy='{up(y):.1f}' r='3' fill='{colours[name]}'/>" for x, y in curve]
    return parts


def _scaled(panel: Panel, value: float) -> float:
    """Return the position of a value on the panel's axis, in the units of its scale."""
    return math.log10(value) if panel.logarithmic else value
