"""Functions that build HTML and SVG. All text is escaped, except markup that these functions have created.

Paths must have been converted by ``pcopy.text.printable_path``, which escapes control characters. They are put into
``<bdi>`` elements: so names in a script that is written from right to left do not change the order of the text around
them.
"""

from __future__ import annotations

from html import escape


class Markup(str):
    """Text that is HTML or SVG, and must not be escaped again."""

    __slots__ = ()


Child = str | int | Markup | None
"""One part of the contents of an element: text, which is escaped, or markup; None stands for nothing."""

_VOID_ELEMENTS = frozenset(("meta", "br", "hr", "col"))
"""Elements of HTML that have neither contents nor an end tag."""


def html_element(tag: str, *children: Child, **attributes: str | int | float | None) -> Markup:
    """Return an element with the given contents (``children``) and attributes.

    In names of attributes ``class_`` stands for ``class``, ``view_box`` for ``viewBox``, and any other ``_`` for a
    hyphen. An attribute whose value is None is omitted.
    """
    words = [tag]
    for key, value in attributes.items():
        if value is not None:
            name = "viewBox" if key == "view_box" else key.rstrip("_").replace("_", "-")
            words.append(f'{name}="{escape(str(value))}"')
    start = f"<{' '.join(words)}>"
    return Markup(start if tag in _VOID_ELEMENTS else f"{start}{joined_markup(*children)}</{tag}>")


def joined_markup(*children: Child) -> Markup:
    """Return the markup of all ``children``, one after the other."""
    return Markup("".join(_escaped_markup(child) for child in children))


def _escaped_markup(child: Child) -> str:
    """Return the markup of ``child``: text is escaped, and None is empty."""
    if child is None:
        return ""
    return child if isinstance(child, Markup) else escape(str(child))


def path_markup(text: str) -> Markup:
    """Return a path as markup; ``text`` is the result of ``printable_path``."""
    return html_element("bdi", text, class_="path")
