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


class YamlError(ValueError):
    """An error in the text. ``line`` is its line number, or 0 if it concerns none."""

    def __init__(self, text: str, line: int = 0) -> None:
        super().__init__(text)
        self.line = line


MAX_DEPTH = 16
"""Maximum nesting depth of lists and mappings."""

_UNQUOTED = re.compile(r"[A-Za-z0-9/][A-Za-z0-9/_.+-]*(?: [A-Za-z0-9/_.+-]+)*")
"""Strings that may be written without quotes, if they do not match ``_NUMBER_OR_WORD``."""
_NUMBER_OR_WORD = re.compile(
    r"[0-9][0-9_.e+-]*|0[xob][0-9a-f_]*|y|n|yes|no|true|false|on|off|null",  # and dates, 2026-11-21
    re.IGNORECASE,
)
_SPECIAL_START = re.compile(r"(?:^|[\s,\[{])([*&!%@`])")
"""A character that has a special meaning in YAML at the beginning of a value."""
_ASSIGNMENT = re.compile(r"\s*[\w-]+\s*=")
MAX_KEY_LENGTH = 100
"""Maximum characters of a key, because error messages can contain keys."""


def load_yaml(contents: bytes, *, is_handwritten: bool = False) -> dict[str, Value]:
    """Return the mapping in the UTF-8 text ``contents``. Raise ``YamlError`` with a message of one line.

    With ``is_handwritten`` the text was written by a person: it may be empty, and anchors and tags are refused, because
    their author would expect that they have an effect.
    """
    import yaml

    try:
        text = contents.decode()
    except UnicodeDecodeError as error:
        line = contents.count(b"\n", 0, error.start) + 1 if is_handwritten else 0
        raise YamlError("it is not UTF-8 text", line) from None
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        value = _parse_document(
            _check_events(yaml.parse(text, Loader=loader)) if is_handwritten else iter(yaml.parse(text, loader))
        )
    except yaml.MarkedYAMLError as error:
        line = 0 if error.problem_mark is None else error.problem_mark.line + 1
        where = f" in line {line}" if line and not is_handwritten else ""
        hint = _syntax_hint(text.splitlines()[max(0, line - 2) : line]) if is_handwritten else ""
        raise YamlError(f"it is not YAML: {error.problem}{where}{hint}", line) from error
    except (yaml.YAMLError, OverflowError, RecursionError) as error:
        raise YamlError(f"it is not YAML: {str(error).partition(chr(10))[0]}") from error
    if value is None and is_handwritten:
        return {}
    if not isinstance(value, dict):
        hint = _syntax_hint(text.splitlines()) if is_handwritten else ""
        raise YamlError(
            f"it is not a mapping of keys to values{hint}", getattr(value, "line", 1) if is_handwritten else 0
        )
    return value


def _syntax_hint(lines: Sequence[str]) -> str:
    """Return advice for ``lines`` that could not be parsed, for authors who do not know YAML; empty if there is
    none.
    """
    if any(_ASSIGNMENT.match(line) for line in lines):
        return "; write key: value"
    sign = next(filter(None, map(_SPECIAL_START.search, lines)), None)
    return f"; write a value that begins with {sign[1]} in quotes" if sign else ""


def _check_events(events: Iterable[Event]) -> Iterator[Event]:
    """Yield ``events`` unchanged. Raise ``YamlError`` for an anchor, an alias or a tag."""
    from yaml.events import AliasEvent

    for event in events:
        line = _line_number(event)
        if getattr(event, "anchor", None) is not None and not isinstance(event, AliasEvent):
            raise YamlError("it uses YAML's anchors (&); write a value that begins with & in quotes", line)
        if getattr(event, "tag", None) is not None:
            raise YamlError("it uses YAML's tags (!); write a value that begins with ! in quotes", line)
        if isinstance(event, AliasEvent):
            raise YamlError("it uses YAML's aliases (*); write a value that begins with * in quotes", line)
        yield event


def dump_yaml(fields: Iterable[tuple[str, str | int]], *, time_key: str = "") -> bytes:
    """Return the lines of a mapping in UTF-8.

    Numbers are written as they are, strings in double quotes if a reader could take them for another type. The value of
    the key ``time_key`` is a time (UTC), which a reader may convert.
    """
    lines = [f"{key}: {value if key == time_key else yaml_scalar(value)}\n" for key, value in fields]
    return "".join(lines).encode()


def yaml_scalar(value: str | int) -> str:
    """Return ``value`` without quotes if every YAML reader takes it for the same string or number, otherwise in
    quotes.
    """
    text = str(value)
    is_plain = isinstance(value, int) or (_UNQUOTED.fullmatch(text) and not _NUMBER_OR_WORD.fullmatch(text))
    return text if is_plain else f'"{"".join(_escape(character) for character in text)}"'


def _parse_document(events: Iterator[Event]) -> Value | None:
    """Return the value of the only document; None if there is none. Raise ``YamlError``."""
    from yaml.events import DocumentStartEvent

    value = None
    for event in events:
        if isinstance(event, DocumentStartEvent):
            if value is not None:
                raise YamlError("it holds more than one YAML document")
            value = _parse_value(next(events), events, 0)
    return value


def _parse_value(event: Event, events: Iterator[Event], depth: int) -> Value:
    """Return the value that begins with ``event``; the rest of it is taken from ``events``. Raise ``YamlError``."""
    from yaml.events import AliasEvent, MappingEndEvent, MappingStartEvent, ScalarEvent, SequenceEndEvent

    line = _line_number(event)
    if isinstance(event, ScalarEvent):
        return Scalar(event.value, line, not event.style)
    if isinstance(event, AliasEvent):
        raise YamlError("it uses YAML's aliases", line)
    if depth == MAX_DEPTH:
        raise YamlError(f"it is nested more than {MAX_DEPTH} deep", line)
    if not isinstance(event, MappingStartEvent):
        items = []
        while not isinstance(event := next(events), SequenceEndEvent):
            items.append(_parse_value(event, events, depth + 1))
        return items
    mapping: dict[str, Value] = {}
    while not isinstance(event := next(events), MappingEndEvent):
        key = _parse_value(event, events, depth + 1)
        if not isinstance(key, Scalar):
            raise YamlError("it has a key that is no string", _line_number(event))
        if len(key) > MAX_KEY_LENGTH:
            raise YamlError(f"it has a key of more than {MAX_KEY_LENGTH} characters", key.line)
        if key in mapping:
            raise YamlError(f"the key {key} comes twice", key.line)
        mapping[key] = _parse_value(next(events), events, depth + 1)
    return mapping


def _line_number(event: Event) -> int:
    """Return the line number of an event, from 1; 0 if it is unknown."""
    return 0 if event.start_mark is None else event.start_mark.line + 1


def _escape(character: str) -> str:
    """Return a character as it is written in double quotes."""
    code = ord(character)
    if character in '\\"':
        return f"\\{character}"
    if 0xD800 <= code < 0xE000:  # YAML does not allow lone surrogates: the text of the escape is written instead
        return f"\\\\u{code:04x}"
    if character.isprintable():
        return character
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
