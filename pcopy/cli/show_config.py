"""``--show-config``: prints the options in effect as YAML, with the origin of each (file, command line or default).

Rule: the output is a valid configuration file, with which the same options are in effect. An option at its default is
printed as a comment if no value stands for the default.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from pcopy.cli.argument_types import Option
from pcopy.cli.config_keys import (
    ConfigFileSetting,
    ConfigurableProgram,
)
from pcopy.cli.configuration import CommandLineOption, effective_options
from pcopy.fast_named_tuple import NamedTuple
from pcopy.signature.plain_yaml import yaml_scalar_text
from pcopy.text import printable_path

_COMMAND_LINE = "command line"
_DEFAULT = "default"
_SIZE_UNITS = (("G", 30), ("M", 20), ("K", 10))
_NUMBER_PATTERN = re.compile(r"[0-9]+(\.[0-9]+)?")


class _OptionOccurrence(NamedTuple):
    """One place where an option is set: in a file or on the command line. An option may be set in several places.

    Fields:

    - ``name``: the name of the option, without dashes.
    - ``value``: its value; None if it takes none.
    - ``origin``: where it is set: ``FILE:LINE``, or "command line".
    """

    name: str
    value: str | None
    origin: str


def effective_config_text(
    program: ConfigurableProgram, words: Sequence[str], files: Sequence[bytes], defaults: Sequence[bytes]
) -> str:
    """Return the output of ``--show-config``: the options in effect for the command line ``words`` and the
    configuration ``files``, as YAML.

    ``defaults`` are the default configuration files; a comment says whether each was read. Raise ``RequestRefused`` if
    a configuration file is not valid.
    """
    options, settings, idle = effective_options(program, words, files)
    lines = [f"# {printable_path(path)}: {'read' if path in files else 'not there'}" for path in defaults]
    groups: dict[str, list[Option]] = {}
    for row in program.options:
        if row.in_files and row.is_listed:
            groups.setdefault(row.attribute, []).append(row)
    for dest, rows in groups.items():
        occurrences = [one for setting in settings if setting.dest == dest for one in _occurrences_of_setting(setting)]
        occurrences += [_occurrence_of_option(option, rows) for option in options if option.dest == dest]
        lines += _lines_of_specified_option(rows, occurrences) if occurrences else _lines_of_default_option(rows)
    lines += [f"# {setting.name}: has no effect with the other options  # {setting.origin}" for setting in idle]
    return "\n".join(lines)


def _occurrences_of_setting(setting: ConfigFileSetting) -> Iterator[_OptionOccurrence]:
    """Yield an ``_OptionOccurrence`` for each value that ``setting``, of a file, gives to its option; one if the option
    takes no value.
    """
    if not setting.words and isinstance(setting.value, str):  # A flag that is set to false has no words.
        yield _OptionOccurrence(setting.name, setting.value, setting.origin)
    for word in setting.words:
        name, equals, value = word[2:].partition("=")
        yield _OptionOccurrence(name, value if equals else None, setting.origin)


def _occurrence_of_option(option: CommandLineOption, rows: Sequence[Option]) -> _OptionOccurrence:
    """Return the ``_OptionOccurrence`` for an option on the command line.

    Some single letters stand for an option with a value (``-u`` for ``--existing newer``); the result is then for that
    option. ``rows`` are the options that set the same attribute.
    """
    row = next(row for row in rows if row.key == option.name)
    if row.takes_no_value and isinstance(row.const, str):
        return _OptionOccurrence(_option_with_value(rows).key, row.const, _COMMAND_LINE)
    return _OptionOccurrence(option.name, None if row.takes_no_value else str(option.raw_value), _COMMAND_LINE)


def _option_with_value(rows: Sequence[Option]) -> Option:
    """Return the first of ``rows`` that takes a value; else the first one. All of them set the same attribute."""
    return next((row for row in rows if row.value), rows[0])


def _lines_of_specified_option(rows: Sequence[Option], occurrences: Sequence[_OptionOccurrence]) -> list[str]:
    """Return the YAML lines for an option that is set by a file or the command line.

    Args:
        rows: the options that set the same attribute.
        occurrences: their occurrences in ascending precedence; unless the values are collected, the last is in effect.
    """
    option, last = _option_with_value(rows), occurrences[-1]
    if option.collects_values:
        return _lines_of_list_option(occurrences)
    if last.value is not None:
        return [f"{last.name}: {_yaml_scalar(last.value)}  # {last.origin}"]
    text = len(occurrences) if option.action == "count" else "true"
    return [f"{last.name}: {text}  # {last.origin}"]


def _lines_of_list_option(occurrences: Sequence[_OptionOccurrence]) -> list[str]:
    """Return the YAML lines for options that add to the same list, such as ``--exclude`` and ``--include``.

    Each name becomes a key of its own if that preserves the order of all values. Otherwise all values are in the list
    of one key, and a value of another option is a mapping with the name of that option.
    """
    runs = [(name, list(occurrence)) for name, occurrence in groupby(occurrences, lambda occurrence: occurrence.name)]
    if len({name for name, _ in runs}) < len(runs):
        runs = [(occurrences[0].name, list(occurrences))]
    lines = []
    for name, run in runs:
        lines.append(f"{name}:")
        for occurrence in run:
            other = "" if occurrence.name == name else f"{occurrence.name}: "
            lines.append(f"  - {other}{_yaml_scalar(occurrence.value or '')}  # {occurrence.origin}")
    return lines


def _lines_of_default_option(rows: Sequence[Option]) -> list[str]:
    """Return the YAML lines for an option at its default; ``rows`` are the options that set the same attribute."""
    option = _option_with_value(rows)
    name = option.key
    if option.collects_values and option.value != "LIST":
        return [f"{row.key}: []  # {_DEFAULT}" for row in rows]
    if option.takes_no_value:
        return [f"{name}: {'0' if option.action == 'count' else 'false'}  # {_DEFAULT}"]
    text = _default_as_option_value(option)
    return [f"# {name}: not set" if text is None else f"{name}: {_yaml_scalar(text)}  # {_DEFAULT}"]


def _default_as_option_value(option: Option) -> str | None:
    """Return the text that a user would have to write as the option's value to get its default; None if no text means
    the default.
    """
    value = option.default
    if value is None or option.parse is None or option.choices:
        return None if value is None else str(value)
    texts = [str(value), "auto", "none"]
    if isinstance(value, int):
        texts[:0] = [f"{value >> bits}{unit}" for unit, bits in _SIZE_UNITS if value and not value & ((1 << bits) - 1)]
    for text in texts:
        try:
            if option.parse(text) == value:
                return text
        except Exception:  # This text is not valid for the option; try the next.
            continue
    return None


def _yaml_scalar(text: str) -> str:
    """Return ``text`` as a YAML scalar, quoted where necessary."""
    return text if _NUMBER_PATTERN.fullmatch(text) or text == "false" else yaml_scalar_text(text)
