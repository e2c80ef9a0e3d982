"""HTML tables, lists of names and values, and parts that the reader can unfold, for the report page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pcopy.report.page.markup import Child, Markup, html_element


def html_table(
    titles: Sequence[str], rows: Iterable[Sequence[Child]], *, text: Sequence[int] = (0,),
    hidden_if_narrow: Sequence[int] = (),
    caption: str = "", style_class: str | None = None,
) -> Markup:  # fmt: skip
    """Return a table.

    Args:
        titles: titles of the columns.
        rows: cells of each row.
        text: numbers (from 0) of the columns that contain words instead of numbers, and may be wrapped.
        hidden_if_narrow: numbers of the columns that are hidden on a narrow screen.
        caption: caption of the table; empty: none.
        style_class: its class in the style sheet.
    """

    def classes(column: int) -> str | None:
        words = [name for name, among in (("text", text), ("less", hidden_if_narrow)) if column in among]
        return " ".join(words) or None

    head = html_element(
        "tr", *(html_element("th", name, scope="col", class_=classes(column)) for column, name in enumerate(titles))
    )
    body = [
        html_element("tr", *(html_element("td", cell, class_=classes(column)) for column, cell in enumerate(row)))
        for row in rows
    ]
    title = html_element("caption", caption) if caption else None
    return html_element(
        "div",
        html_element("table", title, html_element("thead", head), html_element("tbody", *body), class_=style_class),
        class_="wide",
    )


def foldable_element(summary: str, *inside: Child, is_open: bool = False) -> Markup:
    """Return an element with the title ``summary`` whose contents are hidden until the reader unfolds it.

    ``is_open``: True to show the contents from the beginning.
    """
    return html_element("details", html_element("summary", summary), *inside, open="" if is_open else None)


def definition_list(pairs: Iterable[tuple[str, Child]]) -> Markup:
    """Return a list of names with their values; a name whose value is None or empty is omitted."""
    rows = [
        joined for name, value in pairs if value for joined in (html_element("dt", name), html_element("dd", value))
    ]
    return html_element("dl", *rows, class_="facts")
