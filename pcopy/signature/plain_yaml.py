"""YAML without its surprises: mappings, lists and strings, and nothing else.

The library's parser is used, and its rules for turning scalars into numbers, dates and objects are not. Aliases,
nesting without end and keys that come twice are refused: with them a short text can mean very much, or two things.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from yaml.events import Event

Value: TypeAlias = "str | list[Value] | dict[str, Value]"


class Scalar(str):
    """A string of the text, and where it stands: in ``line``, from 1; ``plain`` if there are no quotes around it."""

    __slots__ = ("line", "plain")
    line: int
    plain: bool

    def __new__(cls, text: str, line: int, plain: bool) -> Scalar:
        made = super().__new__(cls, text)
        made.line, made.plain = line, plain
        return made


class Flaw(ValueError):
    """What is wrong with a text, and in which ``line``; 0: in none of them."""

    def __init__(self, text: str, line: int = 0) -> None:
        super().__init__(text)
        self.line = line


DEEPEST = 16
"""Levels of lists and mappings within each other."""

_PLAIN = re.compile(r"[A-Za-z0-9/][A-Za-z0-9/_.+-]*(?: [A-Za-z0-9/_.+-]+)*")
_NUMBER_OR_WORD = re.compile(
    r"[0-9][0-9_.e+-]*|0[xob][0-9a-f_]*|y|n|yes|no|true|false|on|off|null",  # and dates, 2026-11-21
    re.IGNORECASE,
)
_SIGN = re.compile(r"(?:^|[\s,\[{])([*&!%@`])")
_ASSIGNMENT = re.compile(r"\s*[\w-]+\s*=")
LONGEST_KEY = 100
"""Characters; a key may be shown in a line that tells what is wrong."""


def load(contents: bytes, *, by_hand: bool = False) -> dict[str, Value]:
    """The mapping that the UTF-8 text ``contents`` is; raises ``Flaw`` with one line if it is none.

    All strings are ``Scalar``. What was written ``by_hand`` may be empty; anchors and tags are refused there, since
    who writes them expects that they have an effect.
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
    """What somebody may not know who wrote ``lines``, which were not understood."""
    if any(_ASSIGNMENT.match(line) for line in lines):
        return "; write key: value"
    sign = next(filter(None, map(_SIGN.search, lines)), None)
    return f"; what begins with {sign[1]} has to stand in quotes" if sign else ""


def _checked(events: Iterable[Event]) -> Iterator[Event]:
    """``events``; raises ``Flaw`` for an anchor, an alias and a tag."""
    from yaml.events import AliasEvent

    for event in events:
        line = _line(event)
        if getattr(event, "anchor", None) is not None and not isinstance(event, AliasEvent):
            raise Flaw("it uses YAML's anchors (&); for a value that begins so write quotes", line)
        if getattr(event, "tag", None) is not None:
            raise Flaw("it uses YAML's tags (!); for a value that begins so write quotes", line)
        if isinstance(event, AliasEvent):
            raise Flaw("it uses YAML's aliases (*); for a value that begins so write quotes", line)
        yield event


def dump(fields: Iterable[tuple[str, str | int]], *, time: str = "") -> bytes:
    """The lines of a mapping, in UTF-8: numbers as they are, strings in double quotes where a reader might take them
    for something else. What ``time`` is the key of is a time (UTC), and may be read as one."""
    lines = [f"{key}: {value if key == time else scalar(value)}\n" for key, value in fields]
    return "".join(lines).encode()


def scalar(value: str | int) -> str:
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
                raise Flaw("it holds more than one YAML document")
            value = _value(next(events), events, 0)
    return value


def _value(event: Event, events: Iterator[Event], depth: int) -> Value:
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
    return 0 if event.start_mark is None else event.start_mark.line + 1


def _escaped(character: str) -> str:
    code = ord(character)
    if character in '\\"':
        return f"\\{character}"
    if 0xD800 <= code < 0xE000:  # half a character is none in YAML: its number is shown instead
        return f"\\\\u{code:04x}"
    if character.isprintable():
        return character
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
