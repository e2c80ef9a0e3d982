"""Conversion of Markdown, as far as the texts of the manual pages use it, to roff.

Supported are paragraphs, inline code (bold), emphasis (italic), links (their texts), lists, code blocks and tables.
Anything else raises ``ValueError``. A list item that begins with code or emphasis and contains a colon later becomes a
term with its explanation; so does each row of a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from markdown_it import MarkdownIt
from markdown_it.token import Token

_PARSER = MarkdownIt("commonmark").enable("table")
_FONTS = {"em": "I", "strong": "B"}
_MARKED = ("code_inline", "em_open", "strong_open", "link_open")
"""Types of tokens with which a term may begin."""


def as_typed(text: str) -> str:
    """Return text to be typed literally: hyphens become minus signs, and backslashes are escaped."""
    return text.replace("\\", "\\e").replace("-", "\\-")


def as_prose(text: str) -> str:
    """Return prose: hyphens between letters stay hyphens, and others are typed literally."""
    return re.sub(r"(?<!\w)-|-(?!\w)", r"\\-", text.replace("\\", "\\e"))


def bold(text: str) -> str:
    """Return bold text whose words are never hyphenated."""
    return "\\fB" + " ".join(f"\\%{as_typed(word)}" if word else "" for word in text.split(" ")) + "\\fR"


def italic(text: str) -> str:
    """Return italic text."""
    return f"\\fI{as_typed(text)}\\fR"


def term(tag: str, lines: Sequence[str]) -> list[str]:
    """Return the lines of a term: the ``tag`` and its explanation, both in roff."""
    return [".TP", _escaped_line(tag), *lines]


def to_roff(markdown: str, further: str = ".PP", at_once: bool = True) -> list[str]:
    """Return Markdown as lines of roff.

    Args:
        further: the macro before each paragraph.
        at_once: True if the first paragraph follows without that macro.
    """
    return _Blocks(_PARSER.parse(markdown), further, at_once).lines()


class _Blocks:
    """A converter for the tokens of some blocks of Markdown."""

    def __init__(self, tokens: Sequence[Token], further: str, at_once: bool) -> None:
        self._tokens, self._further, self._at_once = tokens, further, at_once

    def lines(self) -> list[str]:
        """Return the lines of all blocks."""
        return [line for start, end in _block_ranges(self._tokens) for line in self._piece(self._tokens[start:end])]

    def _piece(self, tokens: Sequence[Token]) -> list[str]:
        """Return the lines of one block."""
        kind = tokens[0].type
        space = [] if self._at_once else [self._further]
        self._at_once = False
        if kind == "paragraph_open":
            return [*space, *_paragraph_lines(_inline_text(tokens[1].children or []))]
        if kind in ("fence", "code_block"):
            code = [_escaped_line(as_typed(line)) for line in tokens[0].content.rstrip("\n").split("\n")]
            return [*space, ".RS 4", ".nf", *code, ".fi", ".RE"]
        if kind in ("bullet_list_open", "ordered_list_open"):
            return [*self._indented(), *_list_lines(tokens[1:-1]), *self._outdented()]
        if kind == "table_open":
            return [*self._indented(), *_table_lines(tokens), *self._outdented()]
        if kind == "html_block":
            return []
        raise ValueError(f"the manuals cannot contain {kind}: {tokens[0].map}")

    def _indented(self) -> list[str]:
        return [".RS"] if self._further == ".IP" else []

    def _outdented(self) -> list[str]:
        return [".RE"] if self._further == ".IP" else []


def _block_ranges(tokens: Sequence[Token]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of tokens that form the blocks of the outermost level."""
    start = level = 0
    for number, token in enumerate(tokens):
        level += token.nesting
        if level == 0:
            yield start, number + 1
            start = number + 1


def _list_lines(tokens: Sequence[Token]) -> list[str]:
    """Return the lines of a list's items."""
    lines: list[str] = []
    for start, end in _block_ranges(tokens):
        inside = tokens[start + 1 : end - 1]
        inline = inside[1].children or []
        place = next((n for n, token in enumerate(inline) if token.type == "text" and ": " in token.content), None)
        if inline[0].type not in _MARKED or place is None:
            lines += [".IP \\(bu 2", *_Blocks(inside, ".IP", True).lines()]
            continue
        before, _, after = inline[place].content.partition(": ")
        tag = _inline_text([*inline[:place], _text_token(before)])
        rest = _paragraph_lines(_inline_text([_text_token(after), *inline[place + 1 :]]))
        lines += term(tag, [*rest, *_Blocks(inside[3:], ".IP", False).lines()])
    return lines


def _table_lines(tokens: Sequence[Token]) -> list[str]:
    """Return the lines of a table: a term for each row, whose explanation is the rest of the columns."""
    lines: list[str] = []
    cells: list[str] = []
    in_body = False
    for number, token in enumerate(tokens):
        if token.type == "tbody_open":
            in_body = True
        elif token.type == "td_open":
            cells.append(_inline_text(tokens[number + 1].children or []))
        elif token.type == "tr_close" and in_body:
            lines += term(cells[0], _paragraph_lines("; ".join(filter(None, cells[1:]))))
            cells = []
    return lines


def _text_token(content: str) -> Token:
    """Return a token for plain text."""
    return Token("text", "", 0, content=content)


def _inline_text(tokens: Sequence[Token]) -> str:
    """Return the roff text of inline tokens."""
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
                raise ValueError(f"the manuals cannot contain {other}: {token.content}")
    # Only at the beginning of a word, \% prevents a line break; after a bracket it would permit one, with a hyphen.
    return re.sub(r"(?<!\S)([(\[])\\fB\\%", r"\\%\1\\fB", text)


def _paragraph_lines(text: str) -> list[str]:
    """Return a paragraph's lines.

    Each sentence begins a new line, as roff requires, and none can be mistaken for a macro.
    """
    return [_escaped_line(line) for line in re.sub(r"(?<=[.?!:]) (?=[A-Z\\])", "\n", text).split("\n")]


def _escaped_line(line: str) -> str:
    """Return a line that cannot be mistaken for a macro."""
    return f"\\&{line}" if line.startswith((".", "'")) else line
