"""Charts of the report page, as SVG.

A browser stretches the SVG to the available width. Labels would be distorted by that, so they are HTML next to the SVG.
The exact values are titles of SVG elements, which browsers show under the pointer without a script. Each chart also has
a table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from pcopy.fast_named_tuple import NamedTuple
from pcopy.report.page.markup import Markup, html_element, joined_markup

MAX_BINS = 96
"""Maximum number of columns of a chart over time: with this number a column is about 3 pixels wide on a phone, 10 on a
desktop.
"""

_WIDTH, _HEIGHT = 1000, 100
"""Size of a chart in SVG coordinates, before it is stretched."""

_MIN_VISIBLE = 0.8
"""Least height of a column in SVG coordinates, and least width of a part of a bar in percent; smaller ones are enlarged
to it, so that they can be seen.
"""

_SCALE_STEPS = (1, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 40, 50, 60, 80, 100, 150, 200, 300, 400, 500, 600, 800)
"""Numbers, before the unit (such as KiB), at which a vertical axis may end."""

FormatNumber = Callable[[float], str]
"""Returns a number as text."""


class RateInterval(NamedTuple):
    """The mean ``rate`` per second in the interval from ``start`` to ``end``, in seconds since the run began."""

    start: float
    end: float
    rate: float


class ChartCurve(NamedTuple):
    """A curve of a chart: its title, its class in the style sheet (``kind``), and its rates."""

    title: str
    kind: str
    bins: Sequence[RateInterval]


def rates_in_bins(times: Sequence[float], sums: Sequence[float], most: int = MAX_BINS) -> list[RateInterval]:
    """Return the mean rates in at most ``most`` equal intervals, from cumulative ``sums`` at ``times`` (in seconds).

    The sums at the ends of an interval are interpolated. Without equal intervals, two samples that are a millisecond
    apart would produce a false peak. Empty if there is only one sample.
    """
    start, end = times[0], times[-1]
    number = min(most, len(times) - 1)
    if number < 1 or end <= start:
        return []
    width = (end - start) / number
    edges = [start + width * each for each in range(number)] + [end]
    sums_at_edges = _interpolated_sums(times, sums, edges)
    return [
        RateInterval(edges[each], edges[each + 1], max(0.0, (sums_at_edges[each + 1] - sums_at_edges[each]) / width))
        for each in range(number)
    ]


def _interpolated_sums(times: Sequence[float], sums: Sequence[float], edges: Sequence[float]) -> list[float]:
    """Return the cumulative sums at the times ``edges``, interpolated linearly from the ``sums`` at ``times``.

    Both ``times`` and ``edges`` must be sorted.
    """
    values, after = [], 1
    for edge in edges:
        while after < len(times) - 1 and times[after] < edge:
            after += 1
        span = times[after] - times[after - 1]
        share = (edge - times[after - 1]) / span if span > 0 else 1.0
        values.append(sums[after - 1] + min(1.0, max(0.0, share)) * (sums[after] - sums[after - 1]))
    return values


def rounded_axis_end(most: float, base: int) -> float:
    """Return the end of a vertical axis: a round number that is ``most`` or a little more.

    ``base``: the factor between two units: 1024 for bytes, else 1000.
    """
    unit = 1.0
    while most > _SCALE_STEPS[-1] * unit * (1.28 if base == 1024 else 1.25) - 1e-9:
        unit *= base
    return next((step * unit for step in _SCALE_STEPS if step * unit >= most), unit * base)


def chart_over_time(
    series: Sequence[ChartCurve], show: FormatNumber, base: int, title: str, clock: FormatNumber
) -> Markup:
    """Return a chart with curves of the same unit and the same intervals; empty if all rates are 0.

    Args:
        series: the curves.
        show: returns a rate as text.
        base: 1024 for bytes, else 1000.
        title: title of the chart.
        clock: returns a time as text.
    """
    most = max((each.rate for curve in series for each in curve.bins), default=0.0)
    if most <= 0:
        return joined_markup()
    top = rounded_axis_end(most, base)
    end = series[0].bins[-1].end
    curves = [_curve(curve, top, end) for curve in series if any(each.rate for each in curve.bins)]
    drawing = html_element(
        "svg",
        _grid_lines(),
        *curves,
        *_tooltip_rectangles(series, end, show, clock),
        view_box=f"0 0 {_WIDTH} {_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"{title} over time, at most {show(most)}",
    )
    shown = [curve for curve in series if any(each.rate for each in curve.bins)]
    return chart_with_caption(
        title,
        drawing,
        [(each.title, each.kind) for each in shown],
        _vertical_axis_labels(top, show),
        _time_labels(end, clock),
    )


def chart_with_caption(
    title: str, drawing: Markup, keys: Sequence[tuple[str, str]], labels: Markup | None, axis: Markup | None
) -> Markup:
    """Return a chart with its caption and labels.

    Args:
        title: the caption.
        drawing: the SVG.
        keys: names and classes (in the style sheet) of its colours; they are shown if there are several.
        labels: labels of the vertical axis; None: none.
        axis: labels of the horizontal axis; None: none.
    """
    legend = [
        html_element("span", html_element("i", class_=kind), name, class_="key") for name, kind in keys if len(keys) > 1
    ]
    caption = html_element("figcaption", html_element("b", title), *legend)
    return html_element("figure", caption, html_element("div", labels, drawing, class_="plot"), axis, class_="chart")


def _vertical_axis_labels(top: float, show: FormatNumber) -> Markup:
    """Return the labels of the vertical axis (``top``, its half, and 0), without superfluous zeros."""
    shown = (re.sub(r"(\.\d*?)0+(?= |/|$)", r"\1", show(each)).replace(". ", " ") for each in (top, top / 2))
    return html_element("div", *(html_element("span", text) for text in (*shown, "0")), class_="scale")


def _time_labels(end: float, clock: FormatNumber) -> Markup:
    """Return five labels of the time axis, from 0 to ``end`` seconds."""
    return html_element("div", *(html_element("span", clock(end * each / 4)) for each in range(5)), class_="axis")


def _grid_lines() -> Markup:
    """Return the horizontal lines at 0, at half of the height and at the top of a chart."""
    lines = [
        html_element("line", x1=0, x2=_WIDTH, y1=height, y2=height, class_="grid")
        for height in (0, _HEIGHT // 2, _HEIGHT)
    ]
    return joined_markup(*lines)


def _curve(curve: ChartCurve, top: float, end: float) -> Markup:
    """Return a curve as steps, one for each interval.

    Where the rate is 0, no line is drawn, because it would hide another curve. ``top``: the rate at the top of the
    chart; ``end``: the time at its right edge, in seconds.
    """
    path, is_drawn = [], False
    for each in curve.bins:
        if each.rate and not is_drawn:
            path.append(f"M{_coordinate(_WIDTH * each.start / end)} {_HEIGHT}")
        if each.rate:
            path.append(f"V{_coordinate(_HEIGHT - _HEIGHT * each.rate / top)}H{_coordinate(_WIDTH * each.end / end)}")
        elif is_drawn:
            path.append(f"V{_HEIGHT}")
        is_drawn = each.rate > 0
    steps = "".join(path) + (f"V{_HEIGHT}" if is_drawn else "")
    return joined_markup(
        html_element("path", d=steps, class_=f"area {curve.kind}"),
        html_element("path", d=steps, class_=f"line {curve.kind}"),
    )


def _tooltip_rectangles(
    series: Sequence[ChartCurve], end: float, show: FormatNumber, clock: FormatNumber
) -> list[Markup]:
    """Return an invisible rectangle for each interval, whose title shows the interval and the rates of all curves."""
    hints = []
    for number, each in enumerate(series[0].bins):
        rates = [f"{curve.title} {show(curve.bins[number].rate)}" for curve in series]
        text = f"{clock(each.start)} to {clock(each.end)}: {', '.join(rates)}"
        left, width = _WIDTH * each.start / end, _WIDTH * (each.end - each.start) / end
        hints.append(
            html_element("rect", html_element("title", text), class_="hint", **_rectangle_attributes(left, width))
        )
    return hints


def stacked_columns(
    groups: Sequence[Sequence[tuple[float, str]]], kinds: Sequence[str], titles: Sequence[str]
) -> Markup:
    """Return a chart of stacked columns.

    Args:
        groups: for each column the parts of which it consists: pairs of a value and a class in the style sheet.
        kinds: the first one is a description of the chart for screen readers.
        titles: for each column the text that is shown under the pointer.
    """
    most = max((sum(value for value, _ in group) for group in groups), default=0) or 1
    width = _WIDTH / max(1, len(groups))
    drawn: list[Markup] = []
    for number, (group, title) in enumerate(zip(groups, titles, strict=True)):
        foot = float(_HEIGHT)
        for value, kind in _visible_parts(group, most * _MIN_VISIBLE / _HEIGHT):
            height = _HEIGHT * value / most
            foot -= height
            box = _rectangle_attributes(width * (number + 0.1), width * 0.8, max(0.0, foot), height)
            drawn.append(html_element("rect", class_=kind, **box))
        drawn.append(
            html_element(
                "rect", html_element("title", title), class_="hint", **_rectangle_attributes(width * number, width)
            )
        )
    return html_element(
        "svg", _grid_lines(), *drawn, view_box=f"0 0 {_WIDTH} {_HEIGHT}", preserveAspectRatio="none", role="img",
        aria_label=kinds[0],
    )  # fmt: skip


def _visible_parts(group: Sequence[tuple[float, str]], least: float) -> list[tuple[float, str]]:
    """Return the parts of a column that are drawn, without those of 0.

    A column that would be lower than ``least`` becomes a single part of that height, with the class of its largest one.
    """
    whole, most = sum(value for value, _ in group), max(group, default=(0.0, ""))
    return [(least, most[1])] if 0 < whole < least else [each for each in group if each[0]]


def stacked_bar(parts: Sequence[tuple[float, str, str]], label: str) -> Markup:
    """Return a horizontal bar that shows the parts of a whole.

    Args:
        parts: value, class in the style sheet, and text under the pointer, of each part.
        label: a description of the bar for screen readers.
    """
    whole = sum(value for value, _, _ in parts) or 1.0
    widths = [max(_MIN_VISIBLE / _HEIGHT, value / whole) if value else 0.0 for value, _, _ in parts]
    drawn, left = [], 0.0
    for share, (_, kind, title) in zip(widths, parts, strict=True):
        width = _WIDTH * share / (sum(widths) or 1.0)
        if share:
            drawn.append(
                html_element("rect", html_element("title", title), class_=kind, **_rectangle_attributes(left, width))
            )
        left += width
    return html_element(
        "svg", *drawn, view_box=f"0 0 {_WIDTH} {_HEIGHT}", preserveAspectRatio="none", role="img", class_="band",
        aria_label=label,
    )  # fmt: skip


def fraction_bar(share: float) -> Markup:
    """Return a short bar, filled to ``share`` (0 to 1), for a cell of a table that also shows the number."""
    percent = f"{max(0.0, min(1.0, share)) * 100:.1f}%"
    return html_element(
        "svg",
        html_element("rect", width="100%", height="100%", class_="rest"),
        html_element("rect", width=percent, height="100%", class_="a"),
        class_="bar",
        aria_hidden="true",
    )


def _rectangle_attributes(left: float, width: float, top: float = 0.0, height: float = _HEIGHT) -> dict[str, str]:
    """Return the SVG attributes of a rectangle; by default it is as high as the chart."""
    return {"x": _coordinate(left), "y": _coordinate(top), "width": _coordinate(width), "height": _coordinate(height)}


def _coordinate(value: float) -> str:
    """Return a coordinate as text with at most one decimal, so that the page remains small."""
    return f"{value:.1f}".removesuffix(".0")
