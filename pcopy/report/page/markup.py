"""HTML and SVG with all text escaped, except markup that this module has created.

Text from a file system comes from ``pcopy.text.printable_path`` with control characters escaped. ``<bdi>`` isolates
names in a script that is written from right to left.
"""

from __future__ import annotations

from html import escape


class Markup(str):
    """Text that is markup, and is not escaped."""

    __slots__ = ()


Child = str | int | Markup | None
"""Contents of an element: text or markup; None stands for nothing."""

_VOID_ELEMENTS = frozenset(("meta", "br", "hr", "col"))
"""Elements without an end tag."""


def element(tag: str, *children: Child, **attributes: str | int | float | None) -> Markup:
    """Return an element with children and attributes.

    In names of attributes ``class_`` stands for ``class``, ``view_box`` for ``viewBox``, and any other ``_`` for a
    hyphen. An attribute whose value is None is omitted.
    """
    words = [tag]
    for key, value in attributes.items():
        if value is not None:
            name = "viewBox" if key == "view_box" else key.rstrip("_").replace("_", "-")
            words.append(f'{name}="{escape(str(value))}"')
    start = f"<{' '.join(words)}>"
    return Markup(start if tag in _VOID_ELEMENTS else f"{start}{joined(*children)}</{tag}>")


def joined(*children: Child) -> Markup:
    """Return children one after the other, as markup."""
    return Markup("".join(_escaped(child) for child in children))


def _escaped(child: Child) -> str:
    """Return a child as markup."""
    if child is None:
        return ""
    return child if isinstance(child, Markup) else escape(str(child))


def path_markup(text: str) -> Markup:
    """Return a path as markup; it must be escaped by ``shown`` already."""
    return element("bdi", text, class_="path")
