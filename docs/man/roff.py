"""Markdown, as the texts of the manual pages use it, to roff.

Paragraphs, code in lines (bold), emphasis (italic), links (their words), lists, blocks of code and tables; whatever
else there is raises. An item of a list that begins with code or emphasis and has a colon later is a term and what it
means; so is a row of a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from markdown_it import MarkdownIt
from markdown_it.token import Token

_PARSER = MarkdownIt("commonmark").enable("table")
_FONTS = {"em": "I", "strong": "B"}
_MARKED = ("code_inline", "em_open", "strong_open", "link_open")
"""What a term may begin with."""


def as_typed(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-")


def as_prose(text: str) -> str:
    """With hyphens between letters as such, and others as what is typed."""
    return re.sub(r"(?<!\w)-|-(?!\w)", r"\\-", text.replace("\\", "\\e"))


def bold(text: str) -> str:
    """A word of it is never divided at the end of a line."""
    return "\\fB" + " ".join(f"\\%{as_typed(word)}" if word else "" for word in text.split(" ")) + "\\fR"


def italic(text: str) -> str:
    return f"\\fI{as_typed(text)}\\fR"


def term(tag: str, lines: Sequence[str]) -> list[str]:
    """A tag in roff, and lines in roff that explain it."""
    return [".TP", _guarded(tag), *lines]


def to_roff(markdown: str, further: str = ".PP", at_once: bool = True) -> list[str]:
    """Lines; ``further`` stands before each paragraph, but for a first one that follows ``at_once``."""
    return _Blocks(_PARSER.parse(markdown), further, at_once).lines()


class _Blocks:
    def __init__(self, tokens: Sequence[Token], further: str, at_once: bool) -> None:
        self._tokens, self._further, self._at_once = tokens, further, at_once

    def lines(self) -> list[str]:
        return [line for start, end in _pieces(self._tokens) for line in self._piece(self._tokens[start:end])]

    def _piece(self, tokens: Sequence[Token]) -> list[str]:
        kind = tokens[0].type
        space = [] if self._at_once else [self._further]
        self._at_once = False
        if kind == "paragraph_open":
            return [*space, *_filled(_inline(tokens[1].children or []))]
        if kind in ("fence", "code_block"):
            code = [_guarded(as_typed(line)) for line in tokens[0].content.rstrip("\n").split("\n")]
            return [*space, ".RS 4", ".nf", *code, ".fi", ".RE"]
        if kind in ("bullet_list_open", "ordered_list_open"):
            return [*self._indented(), *_items(tokens[1:-1]), *self._outdented()]
        if kind == "table_open":
            return [*self._indented(), *_rows(tokens), *self._outdented()]
        if kind == "html_block":
            return []
        raise ValueError(f"the manuals know no {kind}: {tokens[0].map}")

    def _indented(self) -> list[str]:
        return [".RS"] if self._further == ".IP" else []

    def _outdented(self) -> list[str]:
        return [".RE"] if self._further == ".IP" else []


def _pieces(tokens: Sequence[Token]) -> Iterator[tuple[int, int]]:
    """Where each token of the outermost level begins, and where what belongs to it ends."""
    start = level = 0
    for number, token in enumerate(tokens):
        level += token.nesting
        if level == 0:
            yield start, number + 1
            start = number + 1


def _items(tokens: Sequence[Token]) -> list[str]:
    lines: list[str] = []
    for start, end in _pieces(tokens):
        inside = tokens[start + 1 : end - 1]
        inline = inside[1].children or []
        place = next((n for n, token in enumerate(inline) if token.type == "text" and ": " in token.content), None)
        if inline[0].type not in _MARKED or place is None:
            lines += [".IP \\(bu 2", *_Blocks(inside, ".IP", True).lines()]
            continue
        before, _, after = inline[place].content.partition(": ")
        tag = _inline([*inline[:place], _text(before)])
        rest = _filled(_inline([_text(after), *inline[place + 1 :]]))
        lines += term(tag, [*rest, *_Blocks(inside[3:], ".IP", False).lines()])
    return lines


def _rows(tokens: Sequence[Token]) -> list[str]:
    """A term for each row; what stands in further columns is put together."""
    lines: list[str] = []
    cells: list[str] = []
    in_body = False
    for number, token in enumerate(tokens):
        if token.type == "tbody_open":
            in_body = True
        elif token.type == "td_open":
            cells.append(_inline(tokens[number + 1].children or []))
        elif token.type == "tr_close" and in_body:
            lines += term(cells[0], _filled("; ".join(filter(None, cells[1:]))))
            cells = []
    return lines


def _text(content: str) -> Token:
    return Token("text", "", 0, content=content)


def _inline(tokens: Sequence[Token]) -> str:
    text = ""
    for token in tokens:
        match token.type:
            case "text":
                text += as_prose(token.content)
            case "code_inline":
                text += bold(token.content)
            case "em_open" | "strong_open":
                text += f"\\f{_FONTS[token.tag]}"
            case "em_close" | "strong_close":
                text += "\\fR"
            case "softbreak":
                text += "\n"
            case "link_open" | "link_close" | "html_inline":
                pass
            case other:
                raise ValueError(f"the manuals know no {other}: {token.content}")
    return text


def _filled(text: str) -> list[str]:
    """Lines that no macro can be taken for; each sentence begins one, which roff wants."""
    return [_guarded(line) for line in re.sub(r"(?<=[.?!:]) (?=[A-Z\\])", "\n", text).split("\n")]


def _guarded(line: str) -> str:
    return f"\\&{line}" if line.startswith((".", "'")) else line
