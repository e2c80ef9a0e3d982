"""The sections of the page, each from the values of the report; a section with nothing to tell is left out."""

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
"""Rows of ranks; where there are more, hosts stand for them. The report for programs has all."""

MOST_HOSTS = 128
"""Rows of hosts."""

_KINDS = {"failed": "fail", "skipped": "skip"}
"""Classes of what has become of files; else they are done."""

_OF_KINDS = ("Number", "Operation", "Reason", "For instance")

_FEW, _MANY = 8, 24
"""Columns of sizes up to which each, or each fifth one, has a label."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")

_ORDER = ("a", "skip", "fail")


def section(title: str, name: str, *children: Child) -> Markup:
    return element(
        "section", element("h2", title, id=f"{name}-title"), *children, id=name, aria_labelledby=f"{name}-title"
    )


def show_rate(rate: float) -> str:
    return f"{show_size(rate)}/s"


def show_items(rate: float) -> str:
    return f"{rate:,.0f}/s" if rate >= 10 or rate == int(rate) else f"{rate:.2g}/s"


def clock_of(end: float) -> Show:
    """How moments of a job that took so many seconds are written."""
    return show_clock if end >= 60 else lambda seconds: f"{seconds:.1f} s"


def items(values: Values) -> Markup:
    """What was found, and what has become of it."""
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
    besides = [
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
        facts(((done.capitalize(), _listed(kinds)), ("Besides", _listed(besides)))),
    )


def _listed(parts: Sequence[str]) -> str:
    return ", ".join(part for part in parts if not part.startswith("0 "))


def over(values: Values) -> Markup | None:
    """Rates over time, and the phases below them."""
    rows = values["history"]["rows"]
    times = [row[0] for row in rows]
    settled, moved, checked, read_back = ([row[column] for row in rows] for column in (1, 2, 3, 4))
    speeds = [Series(values["done"], "a", binned(times, moved)), Series("read back", "b", binned(times, read_back))]
    counts = [Series("settled", "a", binned(times, settled)), Series("verified", "b", binned(times, checked))]
    if not speeds[0].bins:
        return None
    clock = clock_of(times[-1])
    charts = (
        over_time(speeds, show_rate, 1024, "Bytes per second", clock),
        over_time(counts, show_items, 1000, "Items per second", clock),
    )
    return section("Over time", "time", *charts, _phases(values["phases"], clock), _rates(speeds, counts, clock))


def _phases(phases: Sequence[Values], clock: Show) -> Markup | None:
    if not phases:
        return None
    whole = sum(phase["seconds"] for phase in phases) or 1.0
    parts = [
        (each["seconds"], f"p{at % 5}", f"{each['phase']}: {show_seconds(each['seconds'])}")
        for at, each in enumerate(phases)
    ]
    rows = [
        (
            joined(element("span", element("i", class_=f"p{at % 5}"), each["phase"], class_="key")),
            clock(each["began"]), show_seconds(each["seconds"]), f"{each['seconds'] / whole:.0%}",
        )
        for at, each in enumerate(phases)
    ]  # fmt: skip
    names = ", ".join(title for _, _, title in parts)
    return joined(
        element("figure", element("figcaption", element("b", "Phases")), band(parts, names), class_="chart"),
        table(("Phase", "Began at", "Took", "Share"), rows),
    )


def _rates(speeds: Sequence[Series], counts: Sequence[Series], clock: Show) -> Markup:
    rows = []
    for number, each in enumerate(speeds[0].bins):
        rates = [show_rate(curve.bins[number].rate) for curve in speeds]
        rates += [show_items(curve.bins[number].rate) for curve in counts]
        rows.append((f"{clock(each.start)} to {clock(each.end)}", *rates))
    heads = ("Time", *(f"Bytes {curve.title}" for curve in speeds), *(f"Items {curve.title}" for curve in counts))
    return folded("Rates as a table", table(heads, rows))


def sizes(values: Values) -> Markup | None:
    rows: Sequence[Values] = values["sizes"]
    if not rows:
        return None
    whats = [what for what in rows[0] if what not in ("from", "below")]
    whats.sort(key=lambda what: (_ORDER.index(_KINDS.get(what, "a")), what))
    kinds = {what: _KINDS.get(what, "a") for what in whats}
    keys = [(what, kinds[what]) for what in whats if any(row[what]["files"] for row in rows)]
    charts = []
    for unit, title in (("files", "Files"), ("bytes", "Bytes")):
        groups = [[(float(row[what][unit]), kinds[what]) for what in whats] for row in rows]
        titles = [_of_size(row, whats, unit) for row in rows]
        most = max(sum(row[what][unit] for what in whats) for row in rows)
        top = show_size(most) if unit == "bytes" else f"{most:,}"
        scale = element("div", element("span", top), element("span", "0"), class_="scale")
        drawing = columns(groups, (f"{title} by size, at most {top} in a column",), titles)
        charts.append(figure(f"{title} by size", drawing, keys, scale, _buckets(rows)))
    listed = [
        (
            _range(row),
            *(f"{row[what]['files']:,}" for what in whats),
            *(show_size(row[what]["bytes"]) for what in whats),
        )
        for row in rows
    ]
    heads = ("Size", *(f"Files {what}" for what in whats), *(f"Bytes {what}" for what in whats))
    return section("Sizes of files", "sizes", *charts, folded("Sizes as a table", table(heads, listed)))


def _of_size(row: Values, whats: Sequence[str], unit: str) -> str:
    shown = show_size if unit == "bytes" else "{:,}".format
    return f"{_range(row)}: " + ", ".join(f"{shown(row[what][unit])} {what}" for what in whats)


def _range(row: Values) -> str:
    if not row["below"] > 1:
        return "empty"
    return f"{show_size(row['from'])} to {show_size(row['below'])}"


def _buckets(rows: Sequence[Values]) -> Markup:
    """The left edges of some columns; where there are many, those of the units."""
    every = 1 if len(rows) < _FEW else 5 if len(rows) < _MANY else 10
    labels = []
    for at, row in enumerate(rows):
        power = row["below"].bit_length() - 2
        has_room = at <= len(rows) - len(rows) / 8
        labels.append(edge(power) if power >= 0 and power % every == 0 and has_room else "")
    return element("div", *(element("span", label) for label in labels), class_="buckets", aria_hidden="true")


def edge(power: int) -> str:
    """2 to the ``power``, without decimals."""
    return f"{1 << power % 10} {_UNITS[power // 10]}"


def ranks(values: Values) -> Markup | None:
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
    share = busy / seconds if seconds > 0 else 0.0
    return joined(f"{min(1.0, share):.0%}", bar(share))


def slowest(values: Values) -> Markup | None:
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
    told, failed = values["failures"], values["totals"]["failed"]
    if not told["kinds"] and not failed:
        return None
    kinds = [
        (f"{each['count']:,}", each["operation"], _reason(each), path(each["example"]["path"]))
        for each in told["kinds"]
    ]  # fmt: skip
    others = element("p", f"{told['others']:,} failures of other kinds", class_="soft") if told["others"] else None
    first = [(path(each["path"]), each["operation"], each["message"]) for each in told["first"]]
    more = sum(each["count"] for each in told["kinds"]) + told["others"] - len(first)
    rest = f" (the first {len(first)}; --errors writes all)" if more > 0 else ""
    each_one = table(("Path", "Operation", "What went wrong"), first, text=(0, 1, 2), kind="files")
    return section(
        "Failures", "failures",
        table(_OF_KINDS, kinds, text=(2, 3), kind="files kinds") if kinds else None,
        others,
        folded(f"Each failure{rest}", each_one) if first else None,
    )  # fmt: skip


def _reason(kind: Values) -> str:
    if not kind["errno"]:
        return str(kind["example"]["message"])
    return f"{kind['reason']} ({errno.errorcode.get(kind['errno'], kind['errno'])})"


def layouts(values: Values) -> Markup | None:
    told = values["summary"].get("layouts")
    if not told:
        return None
    rows = [(each["layout"], f"{each['files']:,}") for each in told]
    return section("Layouts", "layouts", table(("Layout", "Files"), rows))


def job(values: Values) -> Markup:
    """What was asked for, and where it ran."""
    told, run = values["job"], values["this_run"]
    hosts = ", ".join(
        f"{each['host']} ({counted(each['ranks'], 'rank', 'ranks')})" for each in values["hosts"][:MOST_HOSTS]
    )
    options = ", ".join(f"{name.replace('_', '-')} {_option(value)}" for name, value in told["options"].items())
    settled = f"{run['items']:,} items, {show_size(run['bytes'])}"
    signature = values["summary"].get("signature")
    sources = joined(
        *(joined(element("br") if at else None, path(each["path"])) for at, each in enumerate(told["sources"]))
    )
    pairs: list[tuple[str, Child]] = [
        ("Command", element("code", values["command"])),
        ("Sources", sources if len(told["sources"]) > 1 else None),
        ("Job", f"{told['name']}, run {told['run']}" + (f"; this run: {settled}" if told["run"] > 1 else "")),
        ("Options", options or "as by default"),
        ("Started", values["started"]),
        ("Ended", values["ended"]),
        ("Signature", element("code", signature) if signature else None),
        ("Program", f"{values['program']} {values['program_version']}, {values['kernel']}"),
        ("Hosts", hosts),
    ]
    return section("The job", "job", facts(pairs))


def _option(value: Any) -> str:
    if isinstance(value, dict):
        return "(" + ", ".join(f"{name} {_option(each)}" for name, each in value.items()) + ")"
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)
