"""A subset of YAML: mappings, lists and strings only.

The parser of the yaml library is used, but not its rules that convert scalars into numbers, dates and objects. Aliases
and deep nesting are refused, because a short text can expand to a huge value with them. Duplicate keys are refused,
because such a text has two meanings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from yaml.events import Event

YamlValue: TypeAlias = "str | list[YamlValue] | dict[str, YamlValue]"
"""A value of the subset of YAML that this module reads and writes. All strings that the parser returns are
``YamlString``.
"""


class YamlString(str):
    """A string in a YAML text that was parsed. ``line`` is the number of its line, from 1; ``plain`` is True if it is
    not quoted.
    """

    __slots__ = ("line", "plain")
    line: int
    plain: bool

    def __new__(cls, text: str, line: int, plain: bool) -> YamlString:
        made = super().__new__(cls, text)
        made.line, made.plain = line, plain
        return made


class YamlError(ValueError):
    """Error in a YAML text. ``line`` is the number of its line, from 1, or 0 if it concerns no single line."""

    def __init__(self, text: str, line: int = 0) -> None:
        super().__init__(text)
        self.line = line


MAX_YAML_DEPTH = 16
"""Maximum nesting depth of lists and mappings; a text with more is refused."""

_UNQUOTED_STRING_PATTERN = re.compile(r"[A-Za-z0-9/][A-Za-z0-9/_.+-]*(?: [A-Za-z0-9/_.+-]+)*")
"""Matches strings that may be written without quotes, unless ``_NUMBER_OR_WORD`` matches them, too."""
_NUMBER_OR_WORD = re.compile(
    r"[0-9][0-9_.e+-]*|0[xob][0-9a-f_]*|y|n|yes|no|true|false|on|off|null",  # and dates, 2026-11-21
    re.IGNORECASE,
)
_SPECIAL_START = re.compile(r"(?:^|[\s,\[{])([*&!%@`])")
"""Matches a character that has a special meaning in YAML at the beginning of a value."""
_ASSIGNMENT = re.compile(r"\s*[\w-]+\s*=")
MAX_KEY_LENGTH = 100
"""Maximum number of characters of a key; a longer key is refused, because error messages contain keys."""


def load_yaml(contents: bytes, *, is_handwritten: bool = False) -> dict[str, YamlValue]:
    """Return the mapping in the UTF-8 text ``contents``. Raise ``YamlError`` with a message of one line.

    ``is_handwritten``: a person has written the text. Then the text may be empty, and anchors and tags are refused,
    because their author would expect that they have an effect.
    """
    import yaml

    try:
        text = contents.decode()
    except UnicodeDecodeError as error:
        line = contents.count(b"\n", 0, error.start) + 1 if is_handwritten else 0
        raise YamlError("it is not UTF-8 text", line) from None
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        value = _parse_yaml_document(
            _checked_yaml_events(yaml.parse(text, Loader=loader)) if is_handwritten else iter(yaml.parse(text, loader))
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
    """Return advice for a person who has written ``lines``, a YAML text that could not be parsed. It is the end of an
    error message, or an empty string.
    """
    if any(_ASSIGNMENT.match(line) for line in lines):
        return "; write key: value"
    sign = next(filter(None, map(_SPECIAL_START.search, lines)), None)
    return f"; write quotes around a value that begins with {sign[1]}" if sign else ""


def _checked_yaml_events(events: Iterable[Event]) -> Iterator[Event]:
    """Generator: yield ``events``, the output of the YAML parser, unchanged. Raise ``YamlError`` for an anchor, an
    alias or a tag.
    """
    from yaml.events import AliasEvent

    for event in events:
        line = _line_of_event(event)
        if getattr(event, "anchor", None) is not None and not isinstance(event, AliasEvent):
            raise YamlError("it uses YAML's anchors (&); write quotes around a value that begins with &", line)
        if getattr(event, "tag", None) is not None:
            raise YamlError("it uses YAML's tags (!); write quotes around a value that begins with !", line)
        if isinstance(event, AliasEvent):
            raise YamlError("it uses YAML's aliases (*); write quotes around a value that begins with *", line)
        yield event


def dump_yaml(fields: Iterable[tuple[str, str | int]], *, time_key: str = "") -> bytes:
    """Return a mapping as YAML text in UTF-8, one line for each key. ``fields`` are its keys and values.

    Strings are written in double quotes if a YAML reader could take them for another type. The value of the key
    ``time_key`` is a time (UTC); it is written without quotes, so that a reader may convert it.
    """
    lines = [f"{key}: {value if key == time_key else yaml_scalar_text(value)}\n" for key, value in fields]
    return "".join(lines).encode()


def yaml_scalar_text(value: str | int) -> str:
    """Return ``value`` as it is written in YAML: without quotes if every YAML reader takes it for the same string or
    number, otherwise in double quotes.
    """
    text = str(value)
    is_plain = isinstance(value, int) or (
        _UNQUOTED_STRING_PATTERN.fullmatch(text) and not _NUMBER_OR_WORD.fullmatch(text)
    )
    return text if is_plain else f'"{"".join(_escaped_yaml_character(character) for character in text)}"'


def _parse_yaml_document(events: Iterator[Event]) -> YamlValue | None:
    """Return the value of the only YAML document in ``events``, the output of the YAML parser; None if there is no
    document. Raise ``YamlError`` for a second one.
    """
    from yaml.events import DocumentStartEvent

    value = None
    for event in events:
        if isinstance(event, DocumentStartEvent):
            if value is not None:
                raise YamlError("it holds more than one YAML document")
            value = _parse_yaml_value(next(events), events, 0)
    return value


def _parse_yaml_value(event: Event, events: Iterator[Event], depth: int) -> YamlValue:
    """Return the YAML value that begins with ``event``, an output of the YAML parser. The other events of the value are
    taken from ``events``. Raise ``YamlError`` if it is none of the values that are allowed here.

    ``depth`` is the number of lists and mappings around the value.
    """
    from yaml.events import AliasEvent, MappingEndEvent, MappingStartEvent, ScalarEvent, SequenceEndEvent

    line = _line_of_event(event)
    if isinstance(event, ScalarEvent):
        return YamlString(event.value, line, not event.style)
    if isinstance(event, AliasEvent):
        raise YamlError("it uses YAML's aliases", line)
    if depth == MAX_YAML_DEPTH:
        raise YamlError(f"it is nested more than {MAX_YAML_DEPTH} levels deep, which is the limit", line)
    if not isinstance(event, MappingStartEvent):
        items = []
        while not isinstance(event := next(events), SequenceEndEvent):
            items.append(_parse_yaml_value(event, events, depth + 1))
        return items
    mapping: dict[str, YamlValue] = {}
    while not isinstance(event := next(events), MappingEndEvent):
        key = _parse_yaml_value(event, events, depth + 1)
        if not isinstance(key, YamlString):
            raise YamlError("it has a key that is no string", _line_of_event(event))
        if len(key) > MAX_KEY_LENGTH:
            raise YamlError(f"it has a key of more than {MAX_KEY_LENGTH} characters", key.line)
        if key in mapping:
            raise YamlError(f"the key {key} comes twice", key.line)
        mapping[key] = _parse_yaml_value(next(events), events, depth + 1)
    return mapping


def _line_of_event(event: Event) -> int:
    """Return the line number, from 1, at which an event of the YAML parser begins; 0 if it is unknown."""
    return 0 if event.start_mark is None else event.start_mark.line + 1


def _escaped_yaml_character(character: str) -> str:
    """Return a character in the form in which YAML text within double quotes contains it: itself, or an escape
    sequence.
    """
    code = ord(character)
    if character in '\\"':
        return f"\\{character}"
    if 0xD800 <= code < 0xE000:  # YAML does not allow lone surrogates: the text of the escape is written instead
        return f"\\\\u{code:04x}"
    if character.isprintable():
        return character
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
