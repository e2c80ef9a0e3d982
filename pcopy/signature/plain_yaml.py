"""A subset of YAML: mappings, lists and strings only.

The parser of the yaml library is used, but not its rules that turn scalars into numbers, dates and objects. Aliases,
unlimited nesting and duplicate keys are refused: with them a short text can expand to a huge value, or have two
meanings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from yaml.events import Event

Value: TypeAlias = "str | list[Value] | dict[str, Value]"
"""A value of this subset. All strings are ``Scalar``."""


class Scalar(str):
    """A string with its position in the text: ``line``, from 1. ``plain`` is True if it is not quoted."""

    __slots__ = ("line", "plain")
    line: int
    plain: bool

    def __new__(cls, text: str, line: int, plain: bool) -> Scalar:
        made = super().__new__(cls, text)
        made.line, made.plain = line, plain
        return made


class Flaw(ValueError):
    """An error in the text. ``line`` is its line number, or 0 if it concerns none."""

    def __init__(self, text: str, line: int = 0) -> None:
        super().__init__(text)
        self.line = line


DEEPEST = 16
"""Maximum nesting depth of lists and mappings."""

_PLAIN = re.compile(r"[A-Za-z0-9/][A-Za-z0-9/_.+-]*(?: [A-Za-z0-9/_.+-]+)*")
"""Strings that may be written without quotes, if they do not match ``_NUMBER_OR_WORD``."""
_NUMBER_OR_WORD = re.compile(
    r"[0-9][0-9_.e+-]*|0[xob][0-9a-f_]*|y|n|yes|no|true|false|on|off|null",  # and dates, 2026-11-21
    re.IGNORECASE,
)
_SIGN = re.compile(r"(?:^|[\s,\[{])([*&!%@`])")
"""A character that has a special meaning in YAML at the beginning of a value."""
_ASSIGNMENT = re.compile(r"\s*[\w-]+\s*=")
LONGEST_KEY = 100
"""Maximum characters of a key, because error messages can contain keys."""


def load(contents: bytes, *, by_hand: bool = False) -> dict[str, Value]:
    """Return the mapping in the UTF-8 text ``contents``. Raise ``Flaw`` with a message of one line.

    With ``is_handwritten`` the text was written by a person: it may be empty, and anchors and tags are refused, because
    their author would expect that they have an effect.
    """
    import yaml

    try:
        text = contents.decode()
    except UnicodeDecodeError as error:
        line = contents.count(b"\n", 0, error.start) + 1 if by_hand else 0
        raise Flaw("it is not UTF-8 text", line) from None
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        value = _document(_checked(yaml.parse(text, Loader=loader)) if by_hand else iter(yaml.parse(text, loader)))
    except yaml.MarkedYAMLError as error:
        line = 0 if error.problem_mark is None else error.problem_mark.line + 1
        where = f" in line {line}" if line and not by_hand else ""
        hint = _hint(text.splitlines()[max(0, line - 2) : line]) if by_hand else ""
        raise Flaw(f"it is not YAML: {error.problem}{where}{hint}", line) from error
    except (yaml.YAMLError, OverflowError, RecursionError) as error:
        raise Flaw(f"it is not YAML: {str(error).partition(chr(10))[0]}") from error
    if value is None and by_hand:
        return {}
    if not isinstance(value, dict):
        hint = _hint(text.splitlines()) if by_hand else ""
        raise Flaw(f"it is not a mapping of keys to values{hint}", getattr(value, "line", 1) if by_hand else 0)
    return value


def _hint(lines: Sequence[str]) -> str:
    """Return advice for ``lines`` that could not be parsed, for authors who do not know YAML; empty if there is
    none.
    """
    if any(_ASSIGNMENT.match(line) for line in lines):
        return "; write key: value"
    sign = next(filter(None, map(_SIGN.search, lines)), None)
    return f"; write a value that begins with {sign[1]} in quotes" if sign else ""


def _checked(events: Iterable[Event]) -> Iterator[Event]:
    """Yield ``events`` unchanged. Raise ``Flaw`` for an anchor, an alias or a tag."""
    from yaml.events import AliasEvent

    for event in events:
        line = _line(event)
        if getattr(event, "anchor", None) is not None and not isinstance(event, AliasEvent):
            raise Flaw("it uses YAML's anchors (&); write a value that begins with & in quotes", line)
        if getattr(event, "tag", None) is not None:
            raise Flaw("it uses YAML's tags (!); write a value that begins with ! in quotes", line)
        if isinstance(event, AliasEvent):
            raise Flaw("it uses YAML's aliases (*); write a value that begins with * in quotes", line)
        yield event


def dump(fields: Iterable[tuple[str, str | int]], *, time: str = "") -> bytes:
    """Return the lines of a mapping in UTF-8.

    Numbers are written as they are, strings in double quotes if a reader could take them for another type. The value of
    the key ``time_key`` is a time (UTC), which a reader may convert.
    """
    lines = [f"{key}: {value if key == time else scalar(value)}\n" for key, value in fields]
    return "".join(lines).encode()


def scalar(value: str | int) -> str:
    """Return ``value`` without quotes if every YAML reader takes it for the same string or number, otherwise in
    quotes.
    """
    text = str(value)
    is_plain = isinstance(value, int) or (_PLAIN.fullmatch(text) and not _NUMBER_OR_WORD.fullmatch(text))
    return text if is_plain else f'"{"".join(_escaped(character) for character in text)}"'


def _document(events: Iterator[Event]) -> Value | None:
    """Return the value of the only document; None if there is none. Raise ``Flaw``."""
    from yaml.events import DocumentStartEvent

    value = None
    for event in events:
        if isinstance(event, DocumentStartEvent):
            if value is not None:
                raise Flaw("it holds more than one YAML document")
            value = _value(next(events), events, 0)
    return value


def _value(event: Event, events: Iterator[Event], depth: int) -> Value:
    """Return the value that begins with ``event``; the rest of it is taken from ``events``. Raise ``Flaw``."""
    from yaml.events import AliasEvent, MappingEndEvent, MappingStartEvent, ScalarEvent, SequenceEndEvent

    line = _line(event)
    if isinstance(event, ScalarEvent):
        return Scalar(event.value, line, not event.style)
    if isinstance(event, AliasEvent):
        raise Flaw("it uses YAML's aliases", line)
    if depth == DEEPEST:
        raise Flaw(f"it is nested more than {DEEPEST} deep", line)
    if not isinstance(event, MappingStartEvent):
        items = []
        while not isinstance(event := next(events), SequenceEndEvent):
            items.append(_value(event, events, depth + 1))
        return items
    mapping: dict[str, Value] = {}
    while not isinstance(event := next(events), MappingEndEvent):
        key = _value(event, events, depth + 1)
        if not isinstance(key, Scalar):
            raise Flaw("it has a key that is no string", _line(event))
        if len(key) > LONGEST_KEY:
            raise Flaw(f"it has a key of more than {LONGEST_KEY} characters", key.line)
        if key in mapping:
            raise Flaw(f"the key {key} comes twice", key.line)
        mapping[key] = _value(next(events), events, depth + 1)
    return mapping


def _line(event: Event) -> int:
    """Return the line number of an event, from 1; 0 if it is unknown."""
    return 0 if event.start_mark is None else event.start_mark.line + 1


def _escaped(character: str) -> str:
    """Return a character as it is written in double quotes."""
    code = ord(character)
    if character in '\\"':
        return f"\\{character}"
    if 0xD800 <= code < 0xE000:  # YAML does not allow lone surrogates: the text of the escape is written instead
        return f"\\\\u{code:04x}"
    if character.isprintable():
        return character
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
