"""A page as a browser sees it: its elements, references, and text."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

_EMPTY = {"meta", "br", "hr", "col"}


class Page(HTMLParser):
    """A parsed page. Parsing fails if elements are not nested correctly."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text("utf-8")
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        """Tag, name and value."""
        self.texts: list[str] = []
        self.style = ""
        self.tables: dict[str, list[list[str]]] = {}
        """Rows of cells, by the id of the section; the first row has the headings."""
        self.figures: dict[str, str] = {}
        """The headline figures by name."""
        self._open: list[str] = []
        self._section = ""
        self._term = ""
        self.feed(self.source)
        self.close()
        assert not self._open, self._open

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += ((tag, name, value or "") for name, value in attrs)
        if tag == "section":
            self._section = dict(attrs).get("id") or ""
        if tag == "tr":
            self.tables.setdefault(self._section, []).append([])
        if tag in ("td", "th"):
            self.tables[self._section][-1].append("")
        if tag not in _EMPTY:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open.pop() == tag, f"</{tag}> closes {self._open}"

    def handle_data(self, data: str) -> None:
        if "style" in self._open:
            self.style += data
            return
        self.texts.append(data)
        if {"td", "th"} & set(self._open):
            self.tables[self._section][-1][-1] += data
        if self._open[-1:] == ["dt"]:
            self._term = data
        if self._open[-1:] == ["dd"] and not self._section:
            self.figures[self._term] = data

    def check_it_is_alone(self) -> None:
        """Check that it fetches nothing, runs nothing, and that its policy would not allow it."""
        assert not {"script", "img", "link", "iframe", "object", "embed", "base", "form"} & set(self.tags)
        for tag, name, value in self.attributes:
            assert not name.startswith("on") and name != "style", (tag, name)
            if name in ("href", "src", "xlink:href", "action", "data"):
                assert value.startswith("#"), (tag, value)
        assert "url(" not in self.style and "@import" not in self.style and "http" not in self.style
        (policy,) = [value for _, name, value in self.attributes if name == "content" and "default-src" in value]
        digest = b64encode(sha256(self.style.encode()).digest()).decode()
        assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}'"), policy
        targets = {value for _, name, value in self.attributes if name == "id"}
        assert {value[1:] for _, name, value in self.attributes if name == "href"} <= targets
        assert re.match(r'<!doctype html>\n<!-- pcopy-report \d+ -->\n<html lang="en">', self.source)
