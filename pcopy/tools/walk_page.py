"""The summary of a walk as an HTML page: one file without scripts, in the style of a job's report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pcopy import __version__
from pcopy.report.page.charts import chart_with_caption, fraction_bar, stacked_columns
from pcopy.report.page.markup import Child, Markup, html_element, path_markup
from pcopy.report.page.page import html_document
from pcopy.report.page.sections import page_section, power_of_two_text
from pcopy.report.page.tables import foldable_element, html_table
from pcopy.text import count_with_noun, printable_path
from pcopy.units import format_size

PAGE_BEGINNING = b"<!doctype html>\n<!-- pcopy walk 1 -->\n"
"""First bytes of each page, by which an older one is recognised and may be replaced."""

_MAX_COLUMN_LABELS = 12
"""Maximum number of labels below a chart. With more columns, only every second, third, ... column has a label."""

JsonValues = Mapping[str, Any]
JsonRow = Mapping[str, Any]


def walk_summary_html_page(values: JsonValues, sources: Sequence[bytes]) -> str:
    """Return the summary of a walk as an HTML page.

    Args:
        values: the values of ``--json``, with the key ``summary``.
        sources: the paths that were walked.
    """
    sums = values["summary"]
    names = [path_markup(printable_path(source)) for source in sources[:3]]
    more = count_with_noun(len(sources) - 3, "further path", "further paths") if len(sources) > 3 else None
    header = html_element(
        "header",
        html_element("p", "pwalk summary", class_="over"),
        html_element("h1", *(each for name in names for each in (name, " ")), more),
        html_element("p", f"{values['failed']:,} could not be examined: what they contain is missing here")
        if values["failed"]
        else None,
    )
    parts = (
        header,
        _summary_boxes(values),
        *_chart_sections(sums),
        *_table_sections(sums),
        _unusual_items_section(sums),
        *_lustre_report_sections(sums),
        _page_footer(),
    )
    title = "pwalk: " + ", ".join(map(printable_path, sources[:3]))
    return html_document(title, *parts, comment="pcopy walk 1")


def _summary_boxes(values: JsonValues) -> Markup:
    """Return the boxes at the top of the page: numbers of files, directories and users, total and mean size."""
    sums = values["summary"]
    types = sums["types"]
    tiles = [
        ("Files", f"{types.get('file', 0):,}", f"of {sum(types.values()):,} items"),
        (
            "Directories",
            f"{types.get('directory', 0):,}",
            count_with_noun(types.get("symlink", 0), "symbolic link", "symbolic links"),
        ),
        ("Bytes", format_size(sums["bytes"]), f"{format_size(sums['allocated'])} allocated"),
        ("Users", f"{len(sums['users']):,}", count_with_noun(len(sums["groups"]), "group", "groups")),
        ("Mean file", format_size(sums["bytes"] // max(1, types.get("file", 0))), "bytes per file"),
    ]
    boxes = [
        html_element("div", html_element("dt", name), html_element("dd", value, html_element("small", note)))
        for name, value, note in tiles
    ]
    return html_element("dl", *boxes, class_="tiles")


def _chart_sections(sums: JsonValues) -> list[Markup]:
    """Return the sections with histograms of sizes, ages, depths and numbers of entries."""
    read = {row["from_days"]: row for row in sums["read"]}
    ages = [{**row, "read": read.get(row["from_days"], {"files": 0})["files"]} for row in sums["modified"]]
    return [
        _histogram_section(
            "Sizes of files", "sizes", sums["sizes"], _size_class_label, (("files", False), ("bytes", True))
        ),
        _histogram_section(
            "Ages of files", "ages", ages, _age_class_label, (("files", False), ("bytes", True), ("read", False))
        ),
        _histogram_section("Depths", "depths", sums["depths"], lambda row: f"{row['depth']}", (("items", False),)),
        _histogram_section(
            "Entries of directories", "entries", sums["entries"], _entry_count_class_label, (("directories", False),)
        ),
    ]


_UNIT_TITLES = {
    "files": "Files",
    "bytes": "Bytes",
    "read": "Files by when they were read last",
    "items": "Items",
    "objects": "Objects",
    "directories": "Directories",
}
"""Titles of charts and columns, by the key of the number that they show."""


def _histogram_section(
    title: str,
    anchor: str,
    rows: Sequence[JsonRow],
    label_of: Callable[[JsonRow], str],
    units: Sequence[tuple[str, bool]],
) -> Markup:
    """Return a section of the page with a chart for each kind of number in ``rows``, and one table with all numbers.

    Args:
        title: title of the section.
        anchor: identifier of the section, for links.
        rows: the classes of the histogram, as objects of ``--json``.
        label_of: returns the label of a class.
        units: for each chart: the key of its number in a row, and True if that number is in bytes.
    """
    charts = []
    for unit, is_size in units:
        show = format_size if is_size else "{:,}".format
        largest = max((row[unit] for row in rows), default=0)
        scale = html_element("div", html_element("span", show(largest)), html_element("span", "0"), class_="scale")
        hints = [f"{label_of(row)}: {show(row[unit])}" for row in rows]
        drawing = stacked_columns(
            [[(float(row[unit]), "a")] for row in rows], (f"{_UNIT_TITLES[unit]}, {title.lower()}",), hints
        )
        charts.append(
            chart_with_caption(_UNIT_TITLES[unit], drawing, (), scale, _column_labels([label_of(row) for row in rows]))
        )
    shows = [(unit, format_size if is_size else "{:,}".format) for unit, is_size in units]
    listed = [(label_of(row), *(show(row[unit]) for unit, show in shows)) for row in rows]
    heads = ("", *(_UNIT_TITLES[unit] for unit, _ in units))
    return page_section(title, anchor, *charts, foldable_element("As a table", html_table(heads, listed)))


def _column_labels(texts: Sequence[str]) -> Markup:
    """Return the labels below the columns of a chart; at most ``_MAX_COLUMN_LABELS`` of ``texts`` are shown."""
    every = -(-len(texts) // _MAX_COLUMN_LABELS)
    spans = [html_element("span", text if at % every == 0 else "") for at, text in enumerate(texts)]
    return html_element("div", *spans, class_="buckets", aria_hidden="true")


def _size_class_label(row: JsonRow) -> str:
    """Return the label of a class of file sizes in a chart; ``below`` in ``row`` is its upper limit in bytes (a power
    of two).
    """
    return "empty" if row["below"] == 1 else f"< {power_of_two_text(row['below'].bit_length() - 1)}"


def _entry_count_class_label(row: JsonRow) -> str:
    """Return the label of a class of directories by number of entries in a chart; ``below`` in ``row`` is its upper
    limit.
    """
    return "empty" if row["below"] == 1 else f"< {row['below']:,}"


def _age_class_label(row: JsonRow) -> str:
    """Return the label of a class of ages in a chart, from ``from_days`` to ``to_days`` days.

    In ``row``, ``from_days`` is None for times in the future, and ``to_days`` is None for the oldest class.
    """
    if row["from_days"] is None:
        return "future"
    return f"> {row['from_days']} d" if row["to_days"] is None else f"< {row['to_days']} d"


def _table_sections(sums: JsonValues) -> list[Markup]:
    """Return the sections with tables: largest trees, users, groups, largest files, directories with most entries."""
    files = [(path_markup(row["path"]), format_size(row["bytes"])) for row in sums["largest_files"]]
    directories = [(path_markup(row["path"]), f"{row['entries']:,}") for row in sums["largest_directories"]]
    return [
        page_section(
            "Largest trees",
            "trees",
            html_element("p", _TREES_NOTE, class_="soft"),
            _largest_trees_table(sums["largest_trees"]),
        ),
        page_section("Users", "users", _owners_table(sums["users"])),
        page_section("Groups", "groups", _owners_table(sums["groups"])),
        page_section("Largest files", "files", html_table(("Path", "Bytes"), files)),
        page_section("Directories with the most entries", "directories", html_table(("Path", "Entries"), directories)),
    ]


_TREES_NOTE = "All that lies below a directory, for directories of up to three levels below what was walked."
"""The sentence above the table of the largest trees."""


def _largest_trees_table(rows: Sequence[JsonRow]) -> Markup:
    """Return the table of the largest trees."""
    largest = max((row["bytes"] for row in rows), default=0) or 1
    listed = []
    for row in rows:
        size = _size_with_bar(row["bytes"], largest)
        listed.append((path_markup(row["path"]), f"{row['items']:,}", format_size(row["allocated"]), size))
    return html_table(("Path", "Items", "Allocated", "Bytes"), listed)


def _size_with_bar(size: int, largest: int) -> Markup:
    """Return ``size`` as text, with a bar whose length shows its share of ``largest``. Both are in bytes."""
    return html_element("span", format_size(size), fraction_bar(size / largest))


def _owners_table(rows: Sequence[JsonRow]) -> Markup:
    """Return the table of the first 100 users or groups; ``rows`` are sorted by allocated bytes."""
    largest = max((row["allocated"] for row in rows), default=0) or 1
    listed: list[tuple[Child, ...]] = [
        (
            row["name"],
            f"{row['items']:,}",
            format_size(row["bytes"]),
            _size_with_bar(row["allocated"], largest),
        )
        for row in rows[:100]
    ]
    return html_table(("Name", "Items", "Bytes", "Allocated"), listed)


def _unusual_items_section(sums: JsonValues) -> Markup:
    """Return the section on unusual items, such as set-user-ID files (``NAMES_OF_UNUSUAL_ITEMS``), and on holes."""
    from pcopy.tools.walk_summary import NAMES_OF_UNUSUAL_ITEMS

    rows = [(NAMES_OF_UNUSUAL_ITEMS[key], f"{number:,}") for key, number in sums["unusual"].items()]
    return page_section(
        "Unusual", "unusual", html_table(("What", "Number"), [*rows, ("in holes", format_size(sums["hole_bytes"]))])
    )


def _lustre_report_sections(sums: JsonValues) -> list[Markup]:
    """Return the sections on each Lustre file system: the use of its OSTs, and the layouts."""
    return [
        part
        for number, file_system in enumerate(sums.get("lustre", ()))
        for part in _file_system_sections(file_system, f"lustre{number}")
    ]


def _file_system_sections(values: JsonValues, mark: str) -> list[Markup]:
    """Return the sections on one Lustre file system.

    Args:
        values: its object of ``--json``.
        mark: beginning of the identifiers of the sections, which differs for each file system.
    """
    from pcopy.tools.walk_layouts import layout_row_name

    osts = [{**row, "bytes": row["estimated_bytes"]} for row in values["osts"]]
    units = (("objects", False), ("bytes", True))
    note = "Bytes of OSTs and MDTs are an estimate from stripes and sizes; all others are sizes of files."
    kinds = (("Layout", "layouts", "layout"), ("Kind", "patterns", "pattern"),
             ("Stripes", "stripe_counts", "stripes"), ("Stripe size", "stripe_sizes", "stripe_size"),
             ("Pool", "pools", "pool"))  # fmt: skip
    tables = [
        html_table(
            (head, "Files", "Bytes"),
            [(layout_row_name(key, row[one]), f"{row['files']:,}", format_size(row["bytes"])) for row in values[key]],
        )
        for head, key, one in kinds
    ]
    on_mdt = [
        (
            "Files with data on their MDT",
            f"{values['on_mdt']['files']:,}",
            format_size(values["on_mdt"]["estimated_bytes"]),
        )
    ]
    mdts = [(layout_row_name("mdts", row["mdt"]), f"{row['directories']:,}") for row in values["mdts"]]
    return [
        _histogram_section(f"Lustre, at {values['path']}: objects and bytes by OST", f"{mark}-osts", osts,
        _ost_label, units),
        page_section(
            "Layouts on Lustre", f"{mark}-layouts", html_element("p", note, class_="soft"), *tables,
            html_table(("MDT", "Directories"), mdts) if mdts else None,
            html_table(("", "Files", "Bytes"), on_mdt) if values["on_mdt"]["files"] else None,
        ),
    ]  # fmt: skip


def _ost_label(row: JsonRow) -> str:
    """Return the label of an OST: its index, or "others" for those that are counted together."""
    return "others" if row["ost"] is None else str(row["ost"])


def _page_footer() -> Markup:
    """Return the footer of the page: version and time of creation."""
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    return html_element("footer", f"Made by pwalk {__version__} at {now}. Sizes are in powers of 1024.")
