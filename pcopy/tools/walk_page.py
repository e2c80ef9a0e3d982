"""The summary of a walk as an HTML page: one file without scripts, in the style of a job's report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pcopy import __version__
from pcopy.report.page.charts import bar, columns, figure
from pcopy.report.page.markup import Child, Markup, element, path
from pcopy.report.page.page import document
from pcopy.report.page.sections import edge, section
from pcopy.report.page.tables import folded, table
from pcopy.text import counted, shown
from pcopy.units import show_size

BEGINNING = b"<!doctype html>\n<!-- pcopy walk 1 -->\n"
"""First bytes of each page, by which an older one is recognised and may be replaced."""

_MANY = 12
"""Number of columns above which only some of them are labelled."""

Values = Mapping[str, Any]
Row = Mapping[str, Any]


def page_of(values: Values, sources: Sequence[bytes]) -> str:
    """Return the HTML page.

    Args:
        values: the values of ``--json``, with the key ``summary``.
        sources: the paths that were walked.
    """
    sums = values["summary"]
    names = [path(shown(source)) for source in sources[:3]]
    more = counted(len(sources) - 3, "further path", "further paths") if len(sources) > 3 else None
    header = element(
        "header",
        element("p", "pwalk summary", class_="over"),
        element("h1", *(each for name in names for each in (name, " ")), more),
        element("p", f"{values['failed']:,} could not be examined: what they contain is missing here")
        if values["failed"]
        else None,
    )
    parts = (header, _tiles(values), *_charts(sums), *_lists(sums), _unusual(sums), *_on_lustre(sums), _foot())
    title = "pwalk: " + ", ".join(map(shown, sources[:3]))
    return document(title, *parts, comment="pcopy walk 1")


def _tiles(values: Values) -> Markup:
    """Return the boxes with the most important numbers."""
    sums = values["summary"]
    types = sums["types"]
    tiles = [
        ("Files", f"{types.get('file', 0):,}", f"of {sum(types.values()):,} items"),
        (
            "Directories",
            f"{types.get('directory', 0):,}",
            counted(types.get("symlink", 0), "symbolic link", "symbolic links"),
        ),
        ("Bytes", show_size(sums["bytes"]), f"{show_size(sums['allocated'])} allocated"),
        ("Users", f"{len(sums['users']):,}", counted(len(sums["groups"]), "group", "groups")),
        ("Mean file", show_size(sums["bytes"] // max(1, types.get("file", 0))), "bytes per file"),
    ]
    boxes = [
        element("div", element("dt", name), element("dd", value, element("small", note))) for name, value, note in tiles
    ]
    return element("dl", *boxes, class_="tiles")


def _charts(sums: Values) -> list[Markup]:
    """Return the sections with histograms."""
    read = {row["from_days"]: row for row in sums["read"]}
    ages = [{**row, "read": read.get(row["from_days"], {"files": 0})["files"]} for row in sums["modified"]]
    return [
        _histograms("Sizes of files", "sizes", sums["sizes"], _below, (("files", False), ("bytes", True))),
        _histograms("Ages of files", "ages", ages, _age, (("files", False), ("bytes", True), ("read", False))),
        _histograms("Depths", "depths", sums["depths"], lambda row: f"{row['depth']}", (("items", False),)),
        _histograms("Entries of directories", "entries", sums["entries"], _fewer, (("directories", False),)),
    ]


_CALLED = {
    "files": "Files",
    "bytes": "Bytes",
    "read": "Files by when they were read last",
    "items": "Items",
    "objects": "Objects",
    "directories": "Directories",
}
"""Titles of the units of histograms."""


def _histograms(
    title: str, mark: str, rows: Sequence[Row], called: Callable[[Row], str], units: Sequence[tuple[str, bool]]
) -> Markup:
    """Return a section with a chart for each unit, and one table.

    Args:
        title: title of the section.
        mark: its identifier in the page.
        rows: the rows of the histogram.
        called: returns the label of a row.
        units: (key of the number in a row, True if it is in bytes), one for each chart.
    """
    charts = []
    for unit, is_size in units:
        show = show_size if is_size else "{:,}".format
        largest = max((row[unit] for row in rows), default=0)
        scale = element("div", element("span", show(largest)), element("span", "0"), class_="scale")
        hints = [f"{called(row)}: {show(row[unit])}" for row in rows]
        drawing = columns([[(float(row[unit]), "a")] for row in rows], (f"{_CALLED[unit]}, {title.lower()}",), hints)
        charts.append(figure(_CALLED[unit], drawing, (), scale, _labels([called(row) for row in rows])))
    shows = [(unit, show_size if is_size else "{:,}".format) for unit, is_size in units]
    listed = [(called(row), *(show(row[unit]) for unit, show in shows)) for row in rows]
    heads = ("", *(_CALLED[unit] for unit, _ in units))
    return section(title, mark, *charts, folded("As a table", table(heads, listed)))


def _labels(texts: Sequence[str]) -> Markup:
    """Return the labels below a chart; if there are many columns, only some are labelled."""
    every = -(-len(texts) // _MANY)
    spans = [element("span", text if at % every == 0 else "") for at, text in enumerate(texts)]
    return element("div", *spans, class_="buckets", aria_hidden="true")


def _below(row: Row) -> str:
    """Return the label of a class of sizes."""
    return "empty" if row["below"] == 1 else f"< {edge(row['below'].bit_length() - 1)}"


def _fewer(row: Row) -> str:
    """Return the label of a class of numbers of entries."""
    return "empty" if row["below"] == 1 else f"< {row['below']:,}"


def _age(row: Row) -> str:
    """Return the label of a class of ages."""
    if row["from_days"] is None:
        return "future"
    return f"> {row['from_days']} d" if row["to_days"] is None else f"< {row['to_days']} d"


def _lists(sums: Values) -> list[Markup]:
    """Return the sections with the largest trees, users, groups, files and directories."""
    files = [(path(row["path"]), show_size(row["bytes"])) for row in sums["largest_files"]]
    directories = [(path(row["path"]), f"{row['entries']:,}") for row in sums["largest_directories"]]
    return [
        section("Largest trees", "trees", element("p", _TREES, class_="soft"), _trees(sums["largest_trees"])),
        section("Users", "users", _owners(sums["users"])),
        section("Groups", "groups", _owners(sums["groups"])),
        section("Largest files", "files", table(("Path", "Bytes"), files)),
        section("Directories with the most entries", "directories", table(("Path", "Entries"), directories)),
    ]


_TREES = "All that lies below a directory, for directories of up to three levels below what was walked."
"""Note on the table of the largest trees."""


def _trees(rows: Sequence[Row]) -> Markup:
    """Return the table of the largest trees."""
    largest = max((row["bytes"] for row in rows), default=0) or 1
    listed = []
    for row in rows:
        size = _with_bar(row["bytes"], largest)
        listed.append((path(row["path"]), f"{row['items']:,}", show_size(row["allocated"]), size))
    return table(("Path", "Items", "Allocated", "Bytes"), listed)


def _with_bar(size: int, largest: int) -> Markup:
    """Return a size with a bar that shows its share of ``largest``."""
    return element("span", show_size(size), bar(size / largest))


def _owners(rows: Sequence[Row]) -> Markup:
    """Return the table of users or groups."""
    largest = max((row["allocated"] for row in rows), default=0) or 1
    listed: list[tuple[Child, ...]] = [
        (
            row["name"],
            f"{row['items']:,}",
            show_size(row["bytes"]),
            _with_bar(row["allocated"], largest),
        )
        for row in rows[:100]
    ]
    return table(("Name", "Items", "Bytes", "Allocated"), listed)


def _unusual(sums: Values) -> Markup:
    """Return the section on unusual items."""
    from pcopy.tools.walk_summary import CALLED

    rows = [(CALLED[key], f"{number:,}") for key, number in sums["unusual"].items()]
    return section(
        "Unusual", "unusual", table(("What", "Number"), [*rows, ("in holes", show_size(sums["hole_bytes"]))])
    )


def _on_lustre(sums: Values) -> list[Markup]:
    """Return the sections on each Lustre file system: the use of its OSTs, and the layouts."""
    return [
        part
        for number, file_system in enumerate(sums.get("lustre", ()))
        for part in _file_system(file_system, f"lustre{number}")
    ]


def _file_system(values: Values, mark: str) -> list[Markup]:
    """Return the sections on one Lustre file system, whose values are ``values``."""
    from pcopy.tools.walk_layouts import name_of

    osts = [{**row, "bytes": row["estimated_bytes"]} for row in values["osts"]]
    units = (("objects", False), ("bytes", True))
    note = "Bytes of OSTs and MDTs are an estimate from stripes and sizes; all others are sizes of files."
    kinds = (("Layout", "layouts", "layout"), ("Kind", "patterns", "pattern"),
             ("Stripes", "stripe_counts", "stripes"), ("Stripe size", "stripe_sizes", "stripe_size"),
             ("Pool", "pools", "pool"))  # fmt: skip
    tables = [
        table(
            (head, "Files", "Bytes"),
            [(name_of(key, row[one]), f"{row['files']:,}", show_size(row["bytes"])) for row in values[key]],
        )
        for head, key, one in kinds
    ]
    on_mdt = [
        (
            "Files with data on their MDT",
            f"{values['on_mdt']['files']:,}",
            show_size(values["on_mdt"]["estimated_bytes"]),
        )
    ]
    mdts = [(name_of("mdts", row["mdt"]), f"{row['directories']:,}") for row in values["mdts"]]
    return [
        _histograms(f"Lustre, at {values['path']}: objects and bytes by OST", f"{mark}-osts", osts, _ost, units),
        section(
            "Layouts on Lustre", f"{mark}-layouts", element("p", note, class_="soft"), *tables,
            table(("MDT", "Directories"), mdts) if mdts else None,
            table(("", "Files", "Bytes"), on_mdt) if values["on_mdt"]["files"] else None,
        ),
    ]  # fmt: skip


def _ost(row: Row) -> str:
    """Return the label of an OST."""
    return "others" if row["ost"] is None else str(row["ost"])


def _foot() -> Markup:
    """Return the footer."""
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    return element("footer", f"Made by pwalk {__version__} at {now}. Sizes are in powers of 1024.")
