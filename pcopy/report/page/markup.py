"""HTML and SVG that cannot be broken out of: text is escaped unless this module has made it.

What a file system says is text like any other. It comes escaped from ``pcopy.text.shown``, so that it holds no control
characters; a name in a script that is written from right to left is kept to itself by ``<bdi>``.
"""

from __future__ import annotations

from html import escape


class Markup(str):
    """What is markup already."""

    __slots__ = ()


Child = str | int | Markup | None
"""Text or markup; None is nothing."""

_EMPTY = frozenset(("meta", "br", "hr", "col"))
"""Elements without an end tag."""


def element(tag: str, *children: Child, **attributes: str | int | float | None) -> Markup:
    """``class_`` stands for ``class``, ``view_box`` for ``viewBox``, other ``_`` for hyphens; None is left out."""
    words = [tag]
    for key, value in attributes.items():
        if value is not None:
            name = "viewBox" if key == "view_box" else key.rstrip("_").replace("_", "-")
            words.append(f'{name}="{escape(str(value))}"')
    start = f"<{' '.join(words)}>"
    return Markup(start if tag in _EMPTY else f"{start}{joined(*children)}</{tag}>")


def joined(*children: Child) -> Markup:
    return Markup("".join(_escaped(child) for child in children))


def _escaped(child: Child) -> str:
    if child is None:
        return ""
    return child if isinstance(child, Markup) else escape(str(child))


def path(text: str) -> Markup:
    """A path as it is shown."""
    return element("bdi", text, class_="path")
