"""YAML without its surprises: mappings, lists and strings, and nothing else.

The library's parser is used, and its rules for turning scalars into numbers, dates and objects are not. Aliases,
nesting without end and keys that come twice are refused: with them a short text can mean very much, or two things.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from yaml.events import Event

Value: TypeAlias = "str | list[Value] | dict[str, Value]"
DEEPEST = 16
"""Levels of lists and mappings within each other."""

_PLAIN = re.compile(r"[A-Za-z0-9/][A-Za-z0-9/_.+-]*(?: [A-Za-z0-9/_.+-]+)*")
_NUMBER_OR_WORD = re.compile(
    r"[0-9][0-9_.e+-]*|0[xob][0-9a-f_]*|y|n|yes|no|true|false|on|off|null",  # and dates, 2026-11-21
    re.IGNORECASE,
)
LONGEST_KEY = 100
"""Characters; a key may be shown in a line that tells what is wrong."""


def load(contents: bytes) -> dict[str, Value]:
    """The mapping that the UTF-8 text ``contents`` is; raises ``ValueError`` with one line if it is none."""
    import yaml

    try:
        text = contents.decode()
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        value = _document(iter(yaml.parse(text, Loader=loader)))
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f" in line {error.problem_mark.line + 1}"
        raise ValueError(f"it is not YAML: {error.problem}{line}") from error
    except (yaml.YAMLError, OverflowError, RecursionError) as error:
        raise ValueError(f"it is not YAML: {str(error).partition(chr(10))[0]}") from error
    if not isinstance(value, dict):
        raise ValueError("it is not a mapping of keys to values")
    return value


def dump(fields: Iterable[tuple[str, str | int]], *, time: str = "") -> bytes:
    """The lines of a mapping, in UTF-8: numbers as they are, strings in double quotes where a reader might take them
    for something else. What ``time`` is the key of is a time (UTC), and may be read as one."""
    lines = [f"{key}: {value if key == time else _scalar(value)}\n" for key, value in fields]
    return "".join(lines).encode()


def _scalar(value: str | int) -> str:
    """Plain if every reader of YAML takes that for this string."""
    text = str(value)
    is_plain = isinstance(value, int) or (_PLAIN.fullmatch(text) and not _NUMBER_OR_WORD.fullmatch(text))
    return text if is_plain else f'"{"".join(_escaped(character) for character in text)}"'


def _document(events: Iterator[Event]) -> Value | None:
    from yaml.events import DocumentStartEvent

    value = None
    for event in events:
        if isinstance(event, DocumentStartEvent):
            if value is not None:
                raise ValueError("it holds more than one YAML document")
            value = _value(next(events), events, 0)
    return value


def _value(event: Event, events: Iterator[Event], depth: int) -> Value:
    from yaml.events import AliasEvent, MappingEndEvent, MappingStartEvent, ScalarEvent, SequenceEndEvent

    if isinstance(event, ScalarEvent):
        return str(event.value)
    if isinstance(event, AliasEvent):
        raise ValueError("it uses YAML's aliases")
    if depth == DEEPEST:
        raise ValueError(f"it is nested more than {DEEPEST} deep")
    if not isinstance(event, MappingStartEvent):
        items = []
        while not isinstance(event := next(events), SequenceEndEvent):
            items.append(_value(event, events, depth + 1))
        return items
    mapping: dict[str, Value] = {}
    while not isinstance(event := next(events), MappingEndEvent):
        key = _value(event, events, depth + 1)
        if not isinstance(key, str):
            raise ValueError("it has a key that is no string")
        if len(key) > LONGEST_KEY:
            raise ValueError(f"it has a key of more than {LONGEST_KEY} characters")
        if key in mapping:
            raise ValueError(f"the key {key} comes twice")
        mapping[key] = _value(next(events), events, depth + 1)
    return mapping


def _escaped(character: str) -> str:
    code = ord(character)
    if character in '\\"':
        return f"\\{character}"
    if 0xD800 <= code < 0xE000:  # half a character is none in YAML: its number is shown instead
        return f"\\\\u{code:04x}"
    if character.isprintable():
        return character
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
