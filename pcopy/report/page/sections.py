"""The sections of the report page.

Each function gets the values of the JSON report, by key, and returns a section; None if there are no data for it.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import Any

from pcopy.report.page.charts import (
    ChartCurve,
    FormatNumber,
    chart_over_time,
    chart_with_caption,
    fraction_bar,
    rates_in_bins,
    stacked_bar,
    stacked_columns,
)
from pcopy.report.page.markup import Child, Markup, html_element, joined_markup, path_markup
from pcopy.report.page.tables import definition_list, foldable_element, html_table
from pcopy.text import count_with_noun
from pcopy.units import format_running_clock, format_seconds, format_size

Values = Mapping[str, Any]
"""The values of the JSON report, or of an object in it, by key."""

MAX_RANKS = 64
"""With more ranks than this, the table shows the sums of each host instead of a row for each rank.

The JSON report contains all ranks.
"""

MAX_HOSTS = 128
"""Maximum number of hosts that a table or a list shows."""

_OUTCOME_CLASSES = {"failed": "fail", "skipped": "skip"}
"""Class in the style sheet by outcome of a file; a file with another outcome was completed, and has the class ``a``."""

_FAILURE_TITLES = ("Number", "Operation", "Reason", "For instance")
"""Column titles of the table of failures."""

_FEW_COLUMNS, _MANY_COLUMNS = 8, 24
"""With fewer than 8 columns in the size chart each column has a label, with fewer than 24 each fifth power of two."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")

_CLASS_ORDER = ("a", "skip", "fail")
"""Order of the parts of a column, from the bottom, by their classes in the style sheet."""


def page_section(title: str, name: str, *children: Child) -> Markup:
    """Return a section of the page with a title; ``name`` is the id to which links can lead."""
    return html_element(
        "section", html_element("h2", title, id=f"{name}-title"), *children, id=name, aria_labelledby=f"{name}-title"
    )


def byte_rate_text(rate: float) -> str:
    """Return bytes per second as text."""
    return f"{format_size(rate)}/s"


def item_rate_text(rate: float) -> str:
    """Return items per second as text."""
    return f"{rate:,.0f}/s" if rate >= 10 or rate == int(rate) else f"{rate:.2g}/s"


def time_format_for(end: float) -> FormatNumber:
    """Return a function that formats times since the start of a job that lasted ``end`` seconds.

    For less than a minute they are shown with as many decimals as distinguish a quarter of that time, since the axis of
    a chart has five labels; else as a clock (``1:02:03``).
    """
    if end >= 60:
        return format_running_clock
    digits = next((digits for digits in (1, 2) if end / 4 >= 10**-digits), 3)
    return lambda seconds: f"{seconds:.{digits}f} s"


def items_section(values: Values) -> Markup:
    """Return the section on items: how many were found, and how many were copied, skipped, failed or not reached."""
    totals, done = values["totals"], values["done"]
    rest = totals["found"] - totals["copied"] - totals["skipped"] - totals["failed"]
    outcomes = [
        (totals["copied"], "a", done), (totals["skipped"], "skip", "skipped"),
        (totals["failed"], "fail", "failed"), (max(0, rest), "rest", "not reached"),
    ]  # fmt: skip
    shown = [each for each in outcomes if each[0] or each[2] != "not reached"]
    sums = " + ".join(f"{number:,} {what}" for number, _, what in shown)
    keys = [
        html_element("span", html_element("i", class_=kind), f"{number:,} {what}", class_="key")
        for number, kind, what in shown
    ]
    parts = [(number, kind, f"{number:,} {what}") for number, kind, what in shown]
    kinds = [
        count_with_noun(totals["files"], "file", "files") + f" of {format_size(totals['bytes'])}",
        count_with_noun(totals["directories"], "directory", "directories"),
        count_with_noun(totals["symlinks"], "symbolic link", "symbolic links"),
        count_with_noun(totals["hardlinks"], "hard link", "hard links"),
        count_with_noun(totals["special"], "special file", "special files"),
    ]
    other_counts = [
        f"{totals['deleted']:,} deleted",
        f"{totals['excused']:,} excused (owner, group or attributes that cannot be set)",
        count_with_noun(totals["warnings"], "warning", "warnings"),
        f"{totals['changed']:,} changed meanwhile", f"{totals['vanished']:,} vanished",
        f"{count_with_noun(totals['verified'], 'item', 'items')} verified",
    ]  # fmt: skip
    return page_section(
        "Items",
        "items",
        html_element("p", f"{totals['found']:,} found = {sums}", class_="soft"),
        stacked_bar(parts, sums),
        html_element("div", *keys, class_="keys"),
        definition_list(
            ((done.capitalize(), _nonzero_counts_text(kinds)), ("Besides", _nonzero_counts_text(other_counts)))
        ),
    )


def _nonzero_counts_text(parts: Sequence[str]) -> str:
    """Return the texts ``parts``, each of which begins with a number, joined with commas, without those of number 0."""
    return ", ".join(part for part in parts if not part.startswith("0 "))


def rates_section(values: Values) -> Markup | None:
    """Return the section on rates over time and phases; None if there is no data."""
    rows = values["history"]["rows"]
    times = [row[0] for row in rows]
    completed, moved, checked, read_back = ([row[column] for row in rows] for column in (1, 2, 3, 4))
    speeds = [
        ChartCurve(values["done"], "a", rates_in_bins(times, moved)),
        ChartCurve("read back", "b", rates_in_bins(times, read_back)),
    ]
    counts = [
        ChartCurve("settled", "a", rates_in_bins(times, completed)),
        ChartCurve("verified", "b", rates_in_bins(times, checked)),
    ]
    if not speeds[0].bins:
        return None
    clock = time_format_for(times[-1])
    charts = (
        chart_over_time(speeds, byte_rate_text, 1024, "Bytes per second", clock),
        chart_over_time(counts, item_rate_text, 1000, "Items per second", clock),
    )
    return page_section(
        "Over time", "time", *charts, _phase_chart(values["phases"], clock), _rate_table(speeds, counts, clock)
    )


def _phase_chart(phases: Sequence[Values], clock: FormatNumber) -> Markup | None:
    """Return the chart and table of phases; None if there are none."""
    if not phases:
        return None
    whole = sum(phase["seconds"] for phase in phases) or 1.0
    parts = [
        (each["seconds"], f"p{index % 5}", f"{each['phase']}: {format_seconds(each['seconds'])}")
        for index, each in enumerate(phases)
    ]
    rows = [
        (
            joined_markup(html_element("span", html_element("i", class_=f"p{index % 5}"), each["phase"], class_="key")),
            clock(each["began"]), format_seconds(each["seconds"]), f"{each['seconds'] / whole:.0%}",
        )
        for index, each in enumerate(phases)
    ]  # fmt: skip
    names = ", ".join(title for _, _, title in parts)
    return joined_markup(
        html_element(
            "figure", html_element("figcaption", html_element("b", "Phases")), stacked_bar(parts, names), class_="chart"
        ),
        html_table(("Phase", "Began at", "Took", "Share"), rows),
    )


def _rate_table(speeds: Sequence[ChartCurve], counts: Sequence[ChartCurve], clock: FormatNumber) -> Markup:
    """Return a table of the rates, which the reader can unfold.

    Args:
        speeds: rates in bytes per second.
        counts: rates in items per second, in the same intervals.
        clock: returns a time as text.
    """
    rows = []
    for number, each in enumerate(speeds[0].bins):
        rates = [byte_rate_text(curve.bins[number].rate) for curve in speeds]
        rates += [item_rate_text(curve.bins[number].rate) for curve in counts]
        rows.append((f"{clock(each.start)} to {clock(each.end)}", *rates))
    heads = ("Time", *(f"Bytes {curve.title}" for curve in speeds), *(f"Items {curve.title}" for curve in counts))
    return foldable_element("Rates as a table", html_table(heads, rows))


def sizes_section(values: Values) -> Markup | None:
    """Return the section on file sizes; None if there is no data."""
    rows: Sequence[Values] = values["sizes"]
    if not rows:
        return None
    outcomes = [outcome for outcome in rows[0] if outcome not in ("from", "below")]
    outcomes.sort(key=lambda outcome: (_CLASS_ORDER.index(_OUTCOME_CLASSES.get(outcome, "a")), outcome))
    kinds = {outcome: _OUTCOME_CLASSES.get(outcome, "a") for outcome in outcomes}
    keys = [(outcome, kinds[outcome]) for outcome in outcomes if any(row[outcome]["files"] for row in rows)]
    charts = []
    for unit, title in (("files", "Files"), ("bytes", "Bytes")):
        groups = [[(float(row[outcome][unit]), kinds[outcome]) for outcome in outcomes] for row in rows]
        titles = [_size_column_tooltip(row, outcomes, unit) for row in rows]
        most = max(sum(row[outcome][unit] for outcome in outcomes) for row in rows)
        top = format_size(most) if unit == "bytes" else f"{most:,}"
        scale = html_element("div", html_element("span", top), html_element("span", "0"), class_="scale")
        drawing = stacked_columns(groups, (f"{title} by size, at most {top} in a column",), titles)
        charts.append(chart_with_caption(f"{title} by size", drawing, keys, scale, _size_labels(rows)))
    listed = [
        (
            _size_range(row),
            *(f"{row[outcome]['files']:,}" for outcome in outcomes),
            *(format_size(row[outcome]["bytes"]) for outcome in outcomes),
        )
        for row in rows
    ]
    heads = ("Size", *(f"Files {outcome}" for outcome in outcomes), *(f"Bytes {outcome}" for outcome in outcomes))
    return page_section(
        "Sizes of files", "sizes", *charts, foldable_element("Sizes as a table", html_table(heads, listed))
    )


def _size_column_tooltip(row: Values, outcomes: Sequence[str], unit: str) -> str:
    """Return the text under the pointer for one column of the size chart.

    Args:
        row: the counts of the files in one range of sizes.
        outcomes: the outcomes of files that occur.
        unit: ``files`` or ``bytes``: what the column shows.
    """
    shown = format_size if unit == "bytes" else "{:,}".format
    return f"{_size_range(row)}: " + ", ".join(f"{shown(row[outcome][unit])} {outcome}" for outcome in outcomes)


def _size_range(row: Values) -> str:
    """Return the range of sizes that ``row`` counts, as text."""
    if not row["below"] > 1:
        return "empty"
    return f"{format_size(row['from'])} to {format_size(row['below'])}"


def _size_labels(rows: Sequence[Values]) -> Markup:
    """Return the labels below the columns of the size chart: the least size of each column.

    With many columns only some have a label.
    """
    every = 1 if len(rows) < _FEW_COLUMNS else 5 if len(rows) < _MANY_COLUMNS else 10
    labels = []
    for index, row in enumerate(rows):
        power = row["below"].bit_length() - 2
        has_room = index <= len(rows) - len(rows) / 8
        labels.append(power_of_two_text(power) if power >= 0 and power % every == 0 and has_room else "")
    return html_element("div", *(html_element("span", label) for label in labels), class_="buckets", aria_hidden="true")


def power_of_two_text(power: int) -> str:
    """Return 2 to the ``power`` bytes as text with a unit, without decimals, such as ``64 KiB``."""
    return f"{1 << power % 10} {_UNITS[power // 10]}"


def ranks_section(values: Values) -> Markup | None:
    """Return the section on the work of each rank, or of each host if there are many ranks; None without data."""
    works: Sequence[Values] = values["ranks"]
    if not works:
        return None
    hosts = len(values["hosts"])
    intro = f"{count_with_noun(len(works), 'rank', 'ranks')} on {count_with_noun(hosts, 'host', 'hosts')}"
    if len(works) > MAX_RANKS:
        return page_section(
            "Ranks", "ranks", html_element("p", f"{intro}; their sums by host", class_="soft"), _host_table(works)
        )
    heads = ("Rank", "Host", "Items", "Bytes", "Tasks", "Taken", "Given", "Busy")
    rows = [
        (
            str(work["rank"]), work["host"], f"{work['items']:,}", format_size(work["moved"]), f"{work['tasks']:,}",
            f"{work['taken']:,}", f"{work['given']:,}", _busy_share(work["busy"], work["seconds"]),
        )
        for work in works
    ]  # fmt: skip
    note = "Taken and given: tasks that moved from one rank to another, because that had nothing to do."
    return page_section(
        "Ranks", "ranks", html_element("p", intro, class_="soft"), html_table(heads, rows, text=(0, 1),
        hidden_if_narrow=(1, 4)),
        html_element("p", note, class_="over"),
    )  # fmt: skip


def _host_table(works: Sequence[Values]) -> Markup:
    """Return a table with the sums of the ranks of each host."""
    sums: dict[str, dict[str, float]] = {}
    for work in works:
        host = sums.setdefault(
            work["host"], dict.fromkeys(("ranks", "items", "moved", "taken", "given", "busy", "seconds"), 0)
        )
        for key in host:
            host[key] += 1 if key == "ranks" else work[key]
    rows = [
        (
            host, f"{each['ranks']:,}", f"{each['items']:,}", format_size(each["moved"]), f"{each['taken']:,}",
            f"{each['given']:,}", _busy_share(each["busy"], each["seconds"]),
        )
        for host, each in [*sums.items()][:MAX_HOSTS]
    ]  # fmt: skip
    more = len(sums) - MAX_HOSTS
    note = html_element("p", f"and {more:,} hosts more", class_="soft") if more > 0 else None
    return joined_markup(
        html_table(("Host", "Ranks", "Items", "Bytes", "Taken", "Given", "Busy"), rows, hidden_if_narrow=(4, 5)), note
    )


def _busy_share(busy: float, seconds: float) -> Markup:
    """Return the share of time in which a rank was busy, as a number and a bar.

    Args:
        busy: seconds in which the rank was busy.
        seconds: seconds that the rank ran.
    """
    share = busy / seconds if seconds > 0 else 0.0
    return joined_markup(f"{min(1.0, share):.0%}", fraction_bar(share))


def slowest_section(values: Values) -> Markup | None:
    """Return the section on the slowest files; None if there are none."""
    if not values["slowest"]:
        return None
    rows = [
        (
            path_markup(each["path"]),
            format_seconds(each["seconds"]),
            format_size(each["bytes"]),
            byte_rate_text(each["bytes_per_second"]),
        )
        for each in values["slowest"]
    ]
    return page_section(
        "Slowest files", "slowest", html_table(("File", "Took", "Size", "Rate"), rows, style_class="files")
    )


def failures_section(values: Values) -> Markup | None:
    """Return the section on failures: their numbers by kind, and the first ones; None if there are none."""
    failure_values, failed = values["failures"], values["totals"]["failed"]
    if not failure_values["kinds"] and not failed:
        return None
    kinds = [
        (f"{each['count']:,}", each["operation"], _failure_reason(each), path_markup(each["example"]["path"]))
        for each in failure_values["kinds"]
    ]  # fmt: skip
    others = (
        html_element("p", f"{failure_values['others']:,} failures of other kinds", class_="soft")
        if failure_values["others"]
        else None
    )
    first = [(path_markup(each["path"]), each["operation"], each["message"]) for each in failure_values["first"]]
    more = sum(each["count"] for each in failure_values["kinds"]) + failure_values["others"] - len(first)
    rest = f" (the first {len(first)}; --errors writes all)" if more > 0 else ""
    each_one = html_table(("Path", "Operation", "What went wrong"), first, text=(0, 1, 2), style_class="files")
    return page_section(
        "Failures", "failures",
        html_table(_FAILURE_TITLES, kinds, text=(2, 3), style_class="files kinds") if kinds else None,
        others,
        foldable_element(f"Each failure{rest}", each_one) if first else None,
    )  # fmt: skip


def _failure_reason(kind: Values) -> str:
    """Return the reason of a kind of failure: the text and name of its errno, or the message if it has none."""
    if not kind["errno"]:
        return str(kind["example"]["message"])
    return f"{kind['reason']} ({errno.errorcode.get(kind['errno'], kind['errno'])})"


def layouts_section(values: Values) -> Markup | None:
    """Return the section on the Lustre layouts (striping) of files; None without data."""
    counts = values["summary"].get("layouts")
    if not counts:
        return None
    rows = [(each["layout"], f"{each['files']:,}") for each in counts]
    return page_section("Layouts", "layouts", html_table(("Layout", "Files"), rows))


def job_section(values: Values) -> Markup:
    """Return the section on the job: command line, options, times, and hosts."""
    job_values, run = values["job"], values["this_run"]
    hosts = ", ".join(
        f"{each['host']} ({count_with_noun(each['ranks'], 'rank', 'ranks')})" for each in values["hosts"][:MAX_HOSTS]
    )
    options = ", ".join(
        f"{name.replace('_', '-')} {_option_text(value)}" for name, value in job_values["options"].items()
    )
    sums = f"{run['items']:,} items, {format_size(run['bytes'])}"
    signature = values["summary"].get("signature")
    sources = joined_markup(
        *(
            joined_markup(html_element("br") if index else None, path_markup(each["path"]))
            for index, each in enumerate(job_values["sources"])
        )
    )
    pairs: list[tuple[str, Child]] = [
        ("Command", html_element("code", values["command"])),
        ("Sources", sources if len(job_values["sources"]) > 1 else None),
        (
            "Job",
            f"{job_values['name']}, run {job_values['run']}" + (f"; this run: {sums}" if job_values["run"] > 1 else ""),
        ),
        ("Options", options or "as by default"),
        ("Started", values["started"]),
        ("Ended", values["ended"]),
        ("Signature", html_element("code", signature) if signature else None),
        ("Program", f"{values['program']} {values['program_version']}, {values['kernel']}"),
        ("Hosts", hosts),
    ]
    return page_section("The job", "job", definition_list(pairs))


def _option_text(value: Any) -> str:
    """Return the value of an option as text; a group of options is put in parentheses."""
    if isinstance(value, dict):
        return "(" + ", ".join(f"{name} {_option_text(each)}" for name, each in value.items()) + ")"
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)
