"""The part of the summary of a walk about Lustre layouts (how files are striped over OSTs), as text and as JSON. It is
empty if no directory of the walk is on Lustre.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pcopy.text import printable_path
from pcopy.tools.walk_summary import histogram_lines
from pcopy.units import format_size
from pcopy.walk.layout_sums import LAYOUT_CLASSES, OTHERS_ROW_NAME, OTHERS_ROW_NUMBER, AllLayoutSums, LayoutSums

NAMES_OF_LAYOUT_PATTERNS = {
    "raid0": "stripes on OSTs",
    "overstriped": "several stripes on one OST (overstriped)",
    "mdt": "on the MDT",
    "composite": "components (PFL)",
    "self-extending": "components that are extended automatically",
    "mirrored": "mirrors (FLR)",
    "released": "released: their data are in an archive",
    "none yet": "no layout yet",
    "unknown": "unknown: no permission to read the file",
}
"""What the text for people calls each class of layouts. The keys are those of
``pcopy.walk.layout_sums.LAYOUT_CLASSES``.
"""
assert tuple(NAMES_OF_LAYOUT_PATTERNS) == LAYOUT_CLASSES


def layout_summary_lines(sums: AllLayoutSums | None) -> Iterator[str]:
    """Yield the lines of the summary about all Lustre file systems; nothing if ``sums`` is None."""
    for each in sums.sums_sorted_by_path if sums else ():
        yield from _lustre_file_system_lines(each)


def _lustre_file_system_lines(sums: LayoutSums) -> Iterator[str]:
    """Yield the lines of the summary about one Lustre file system: a histogram for each table of the sums."""
    yield ""
    yield f"on Lustre, at {printable_path(sums.path)}:"
    for title, table in (
        ("files by layout", "layouts"),
        ("files by kind of layout", "patterns"),
        ("files by number of stripes", "stripe_counts"),
        ("files by stripe size", "stripe_sizes"),
        ("files by pool", "pools"),
        ("objects by OST (bytes are an estimate from stripes and sizes)", "osts"),
        ("files with data on their MDT (bytes are an estimate)", "mdt"),
    ):
        rows = [(layout_row_name(table, key), number, size) for key, (number, size) in _sorted_table_rows(sums, table)]
        yield from histogram_lines(title, rows)
    yield from histogram_lines(
        "directories by MDT",
        [(layout_row_name("mdts", key), number, None) for key, (number, _) in _sorted_table_rows(sums, "mdts")],
    )


def layout_summary_json(sums: AllLayoutSums | None) -> dict[str, object]:
    """Return the values for ``--json``: a list with one object per Lustre file system, under the key ``lustre``. Return
    an empty dictionary if ``sums`` is None.
    """
    return {"lustre": [_lustre_file_system_json(each) for each in sums.sums_sorted_by_path]} if sums else {}


def _lustre_file_system_json(sums: LayoutSums) -> dict[str, object]:
    """Return the values of one Lustre file system for ``--json``: one list for each table of the sums."""

    def rows(table: str, key: str, number: str = "files", size: str = "bytes") -> list[dict[str, object]]:
        """Return ``table`` as a list of JSON objects, one per row. ``key``, ``number`` and ``size`` are the names that
        the key of the row and its two numbers get there.
        """
        found = [(each, dict(zip((number, size), row, strict=True))) for each, row in _sorted_table_rows(sums, table)]
        return [{key: None if each == OTHERS_ROW_NUMBER else each, **row} for each, row in found]

    on_mdt, estimated = sums.tables["mdt"].get(0, (0, 0))
    return {
        "path": printable_path(sums.path),
        "layouts": rows("layouts", "layout"),
        "patterns": rows("patterns", "pattern"),
        "stripe_counts": rows("stripe_counts", "stripes"),
        "stripe_sizes": rows("stripe_sizes", "stripe_size"),
        "pools": rows("pools", "pool"),
        "osts": rows("osts", "ost", "objects", "estimated_bytes"),
        "on_mdt": {"files": on_mdt, "estimated_bytes": estimated},
        "mdts": [{"mdt": mdt, "directories": number} for mdt, (number, _) in _sorted_table_rows(sums, "mdts")],
    }


def _sorted_table_rows(sums: LayoutSums, table: str) -> list[tuple[Any, list[int]]]:
    """Return the rows of ``table``, one of the tables in ``sums``, as (key, [number, bytes]).

    If the keys are words, rows with the most bytes come first; if the keys are numbers, the rows are sorted by key.
    """
    rows = sums.tables[table].items()
    if table in ("layouts", "patterns", "pools"):
        return sorted(rows, key=lambda row: (-row[1][1], -row[1][0], row[0]))
    return sorted(rows)


def layout_row_name(table: str, key: Any) -> str:
    """Return the name for people of the row ``key`` of a table of layouts, for example "OST 3" or "in no pool".

    ``table`` is the name of the table.
    """
    if key in (None, OTHERS_ROW_NUMBER):
        return OTHERS_ROW_NAME
    if key == 0 and table in ("stripe_counts", "stripe_sizes", "mdt"):
        return "on the MDT"
    return _ROW_NAME_FUNCTIONS.get(table, str)(key)


_ROW_NAME_FUNCTIONS: dict[str, Callable[[Any], str]] = {
    "patterns": lambda key: NAMES_OF_LAYOUT_PATTERNS.get(key, key),
    "pools": lambda key: key or "in no pool",
    "stripe_sizes": format_size,
    "osts": "OST {}".format,
    "mdts": "MDT {}".format,
}
"""For each table of layouts, a function that turns the key of a row into its name for people. For other tables it is
``str``.
"""
