"""The sections of the report page, each from the values of the report; a section without contents is omitted."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import Any

from pcopy.report.page.charts import Series, Show, band, bar, binned, columns, figure, over_time
from pcopy.report.page.markup import Child, Markup, element, joined, path
from pcopy.report.page.tables import facts, folded, table
from pcopy.text import counted
from pcopy.units import show_clock, show_seconds, show_size

Values = Mapping[str, Any]

MOST_RANKS = 64
"""Maximum number of rows in the table of ranks; with more ranks it shows sums by host. The JSON report has all
ranks.
"""

MOST_HOSTS = 128
"""Maximum number of rows in the table of hosts."""

_KINDS = {"failed": "fail", "skipped": "skip"}
"""Classes in the style sheet of outcomes of files; any other outcome has the class of completed files."""

_OF_KINDS = ("Number", "Operation", "Reason", "For instance")
"""Column titles of the table of failures."""

_FEW, _MANY = 8, 24
"""Numbers of columns in the size chart up to which each one, or each fifth one, has a label."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")

_ORDER = ("a", "skip", "fail")


def section(title: str, name: str, *children: Child) -> Markup:
    """Return a section with a title; ``name`` is its id."""
    return element(
        "section", element("h2", title, id=f"{name}-title"), *children, id=name, aria_labelledby=f"{name}-title"
    )


def show_rate(rate: float) -> str:
    """Return bytes per second as text."""
    return f"{show_size(rate)}/s"


def show_items(rate: float) -> str:
    """Return items per second as text."""
    return f"{rate:,.0f}/s" if rate >= 10 or rate == int(rate) else f"{rate:.2g}/s"


def clock_of(end: float) -> Show:
    """Return a function that shows times of a job that lasted ``end`` seconds."""
    return show_clock if end >= 60 else lambda seconds: f"{seconds:.1f} s"


def items(values: Values) -> Markup:
    """Return the section on items: how many were found, and their outcomes."""
    totals, done = values["totals"], values["done"]
    rest = totals["found"] - totals["copied"] - totals["skipped"] - totals["failed"]
    outcomes = [
        (totals["copied"], "a", done), (totals["skipped"], "skip", "skipped"),
        (totals["failed"], "fail", "failed"), (max(0, rest), "rest", "not reached"),
    ]  # fmt: skip
    shown = [each for each in outcomes if each[0] or each[2] != "not reached"]
    sums = " + ".join(f"{number:,} {what}" for number, _, what in shown)
    keys = [
        element("span", element("i", class_=kind), f"{number:,} {what}", class_="key") for number, kind, what in shown
    ]
    parts = [(number, kind, f"{number:,} {what}") for number, kind, what in shown]
    kinds = [
        counted(totals["files"], "file", "files") + f" of {show_size(totals['bytes'])}",
        counted(totals["directories"], "directory", "directories"),
        counted(totals["symlinks"], "symbolic link", "symbolic links"),
        counted(totals["hardlinks"], "hard link", "hard links"),
        counted(totals["special"], "special file", "special files"),
    ]
    other_counts = [
        f"{totals['deleted']:,} deleted", f"{totals['excused']:,} excused",
        counted(totals["warnings"], "warning", "warnings"),
        f"{totals['changed']:,} changed meanwhile", f"{totals['vanished']:,} vanished",
        f"{counted(totals['verified'], 'item', 'items')} verified",
    ]  # fmt: skip
    return section(
        "Items",
        "items",
        element("p", f"{totals['found']:,} found = {sums}", class_="soft"),
        band(parts, sums),
        element("div", *keys, class_="keys"),
        facts(((done.capitalize(), _listed(kinds)), ("Besides", _listed(other_counts)))),
    )


def _listed(parts: Sequence[str]) -> str:
    """Return texts separated by commas, without those that begin with 0."""
    return ", ".join(part for part in parts if not part.startswith("0 "))


def over(values: Values) -> Markup | None:
    """Return the section on rates over time and phases; None if there is no data."""
    rows = values["history"]["rows"]
    times = [row[0] for row in rows]
    completed, moved, checked, read_back = ([row[column] for row in rows] for column in (1, 2, 3, 4))
    speeds = [Series(values["done"], "a", binned(times, moved)), Series("read back", "b", binned(times, read_back))]
    counts = [Series("settled", "a", binned(times, completed)), Series("verified", "b", binned(times, checked))]
    if not speeds[0].bins:
        return None
    clock = clock_of(times[-1])
    charts = (
        over_time(speeds, show_rate, 1024, "Bytes per second", clock),
        over_time(counts, show_items, 1000, "Items per second", clock),
    )
    return section("Over time", "time", *charts, _phases(values["phases"], clock), _rates(speeds, counts, clock))


def _phases(phases: Sequence[Values], clock: Show) -> Markup | None:
    """Return the chart and table of phases; None if there are none."""
    if not phases:
        return None
    whole = sum(phase["seconds"] for phase in phases) or 1.0
    parts = [
        (each["seconds"], f"p{index % 5}", f"{each['phase']}: {show_seconds(each['seconds'])}")
        for index, each in enumerate(phases)
    ]
    rows = [
        (
            joined(element("span", element("i", class_=f"p{index % 5}"), each["phase"], class_="key")),
            clock(each["began"]), show_seconds(each["seconds"]), f"{each['seconds'] / whole:.0%}",
        )
        for index, each in enumerate(phases)
    ]  # fmt: skip
    names = ", ".join(title for _, _, title in parts)
    return joined(
        element("figure", element("figcaption", element("b", "Phases")), band(parts, names), class_="chart"),
        table(("Phase", "Began at", "Took", "Share"), rows),
    )


def _rates(speeds: Sequence[Series], counts: Sequence[Series], clock: Show) -> Markup:
    """Return the rates as a table that can be unfolded."""
    rows = []
    for number, each in enumerate(speeds[0].bins):
        rates = [show_rate(curve.bins[number].rate) for curve in speeds]
        rates += [show_items(curve.bins[number].rate) for curve in counts]
        rows.append((f"{clock(each.start)} to {clock(each.end)}", *rates))
    heads = ("Time", *(f"Bytes {curve.title}" for curve in speeds), *(f"Items {curve.title}" for curve in counts))
    return folded("Rates as a table", table(heads, rows))


def sizes(values: Values) -> Markup | None:
    """Return the section on file sizes; None if there is no data."""
    rows: Sequence[Values] = values["sizes"]
    if not rows:
        return None
    outcomes = [outcome for outcome in rows[0] if outcome not in ("from", "below")]
    outcomes.sort(key=lambda outcome: (_ORDER.index(_KINDS.get(outcome, "a")), outcome))
    kinds = {outcome: _KINDS.get(outcome, "a") for outcome in outcomes}
    keys = [(outcome, kinds[outcome]) for outcome in outcomes if any(row[outcome]["files"] for row in rows)]
    charts = []
    for unit, title in (("files", "Files"), ("bytes", "Bytes")):
        groups = [[(float(row[outcome][unit]), kinds[outcome]) for outcome in outcomes] for row in rows]
        titles = [_of_size(row, outcomes, unit) for row in rows]
        most = max(sum(row[outcome][unit] for outcome in outcomes) for row in rows)
        top = show_size(most) if unit == "bytes" else f"{most:,}"
        scale = element("div", element("span", top), element("span", "0"), class_="scale")
        drawing = columns(groups, (f"{title} by size, at most {top} in a column",), titles)
        charts.append(figure(f"{title} by size", drawing, keys, scale, _buckets(rows)))
    listed = [
        (
            _range(row),
            *(f"{row[outcome]['files']:,}" for outcome in outcomes),
            *(show_size(row[outcome]["bytes"]) for outcome in outcomes),
        )
        for row in rows
    ]
    heads = ("Size", *(f"Files {outcome}" for outcome in outcomes), *(f"Bytes {outcome}" for outcome in outcomes))
    return section("Sizes of files", "sizes", *charts, folded("Sizes as a table", table(heads, listed)))


def _of_size(row: Values, outcomes: Sequence[str], unit: str) -> str:
    """Return the hint for one column of the size chart."""
    shown = show_size if unit == "bytes" else "{:,}".format
    return f"{_range(row)}: " + ", ".join(f"{shown(row[outcome][unit])} {outcome}" for outcome in outcomes)


def _range(row: Values) -> str:
    """Return the range of sizes of a row."""
    if not row["below"] > 1:
        return "empty"
    return f"{show_size(row['from'])} to {show_size(row['below'])}"


def _buckets(rows: Sequence[Values]) -> Markup:
    """Return labels for the left edges of columns; with many columns only some have one."""
    every = 1 if len(rows) < _FEW else 5 if len(rows) < _MANY else 10
    labels = []
    for index, row in enumerate(rows):
        power = row["below"].bit_length() - 2
        has_room = index <= len(rows) - len(rows) / 8
        labels.append(edge(power) if power >= 0 and power % every == 0 and has_room else "")
    return element("div", *(element("span", label) for label in labels), class_="buckets", aria_hidden="true")


def edge(power: int) -> str:
    """Return 2 to the ``power`` as bytes with a unit, without decimals."""
    return f"{1 << power % 10} {_UNITS[power // 10]}"


def ranks(values: Values) -> Markup | None:
    """Return the section on ranks; None if there is no data."""
    works: Sequence[Values] = values["ranks"]
    if not works:
        return None
    hosts = len(values["hosts"])
    intro = f"{counted(len(works), 'rank', 'ranks')} on {counted(hosts, 'host', 'hosts')}"
    if len(works) > MOST_RANKS:
        return section("Ranks", "ranks", element("p", f"{intro}; their sums by host", class_="soft"), _by_host(works))
    heads = ("Rank", "Host", "Items", "Bytes", "Tasks", "Taken", "Given", "Busy")
    rows = [
        (
            str(work["rank"]), work["host"], f"{work['items']:,}", show_size(work["moved"]), f"{work['tasks']:,}",
            f"{work['taken']:,}", f"{work['given']:,}", _busy(work["busy"], work["seconds"]),
        )
        for work in works
    ]  # fmt: skip
    note = "Taken and given: tasks that moved from one rank to another, because that had nothing to do."
    return section(
        "Ranks", "ranks", element("p", intro, class_="soft"), table(heads, rows, text=(0, 1), less=(1, 4)),
        element("p", note, class_="over"),
    )  # fmt: skip


def _by_host(works: Sequence[Values]) -> Markup:
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
            host, f"{each['ranks']:,}", f"{each['items']:,}", show_size(each["moved"]), f"{each['taken']:,}",
            f"{each['given']:,}", _busy(each["busy"], each["seconds"]),
        )
        for host, each in [*sums.items()][:MOST_HOSTS]
    ]  # fmt: skip
    more = len(sums) - MOST_HOSTS
    note = element("p", f"and {more:,} hosts more", class_="soft") if more > 0 else None
    return joined(table(("Host", "Ranks", "Items", "Bytes", "Taken", "Given", "Busy"), rows, less=(4, 5)), note)


def _busy(busy: float, seconds: float) -> Markup:
    """Return the share of time in which a rank was busy, with a bar."""
    share = busy / seconds if seconds > 0 else 0.0
    return joined(f"{min(1.0, share):.0%}", bar(share))


def slowest(values: Values) -> Markup | None:
    """Return the section on the slowest files; None if there are none."""
    if not values["slowest"]:
        return None
    rows = [
        (
            path(each["path"]),
            show_seconds(each["seconds"]),
            show_size(each["bytes"]),
            show_rate(each["bytes_per_second"]),
        )
        for each in values["slowest"]
    ]
    return section("Slowest files", "slowest", table(("File", "Took", "Size", "Rate"), rows, kind="files"))


def failures(values: Values) -> Markup | None:
    """Return the section on failures; None if there are none."""
    failure_values, failed = values["failures"], values["totals"]["failed"]
    if not failure_values["kinds"] and not failed:
        return None
    kinds = [
        (f"{each['count']:,}", each["operation"], _reason(each), path(each["example"]["path"]))
        for each in failure_values["kinds"]
    ]  # fmt: skip
    others = (
        element("p", f"{failure_values['others']:,} failures of other kinds", class_="soft")
        if failure_values["others"]
        else None
    )
    first = [(path(each["path"]), each["operation"], each["message"]) for each in failure_values["first"]]
    more = sum(each["count"] for each in failure_values["kinds"]) + failure_values["others"] - len(first)
    rest = f" (the first {len(first)}; --errors writes all)" if more > 0 else ""
    each_one = table(("Path", "Operation", "What went wrong"), first, text=(0, 1, 2), kind="files")
    return section(
        "Failures", "failures",
        table(_OF_KINDS, kinds, text=(2, 3), kind="files kinds") if kinds else None,
        others,
        folded(f"Each failure{rest}", each_one) if first else None,
    )  # fmt: skip


def _reason(kind: Values) -> str:
    """Return the reason of a kind of failure."""
    if not kind["errno"]:
        return str(kind["example"]["message"])
    return f"{kind['reason']} ({errno.errorcode.get(kind['errno'], kind['errno'])})"


def layouts(values: Values) -> Markup | None:
    """Return the section on Lustre layouts; None if there are none."""
    counts = values["summary"].get("layouts")
    if not counts:
        return None
    rows = [(each["layout"], f"{each['files']:,}") for each in counts]
    return section("Layouts", "layouts", table(("Layout", "Files"), rows))


def job(values: Values) -> Markup:
    """Return the section on the job: what was asked for, and where it ran."""
    job_values, run = values["job"], values["this_run"]
    hosts = ", ".join(
        f"{each['host']} ({counted(each['ranks'], 'rank', 'ranks')})" for each in values["hosts"][:MOST_HOSTS]
    )
    options = ", ".join(f"{name.replace('_', '-')} {_option(value)}" for name, value in job_values["options"].items())
    sums = f"{run['items']:,} items, {show_size(run['bytes'])}"
    signature = values["summary"].get("signature")
    sources = joined(
        *(
            joined(element("br") if index else None, path(each["path"]))
            for index, each in enumerate(job_values["sources"])
        )
    )
    pairs: list[tuple[str, Child]] = [
        ("Command", element("code", values["command"])),
        ("Sources", sources if len(job_values["sources"]) > 1 else None),
        (
            "Job",
            f"{job_values['name']}, run {job_values['run']}" + (f"; this run: {sums}" if job_values["run"] > 1 else ""),
        ),
        ("Options", options or "as by default"),
        ("Started", values["started"]),
        ("Ended", values["ended"]),
        ("Signature", element("code", signature) if signature else None),
        ("Program", f"{values['program']} {values['program_version']}, {values['kernel']}"),
        ("Hosts", hosts),
    ]
    return section("The job", "job", facts(pairs))


def _option(value: Any) -> str:
    """Return the value of an option as text."""
    if isinstance(value, dict):
        return "(" + ", ".join(f"{name} {_option(each)}" for name, each in value.items()) + ")"
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)
