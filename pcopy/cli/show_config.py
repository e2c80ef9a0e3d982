"""``--show-config``: prints the options in effect as YAML, with the origin of each (file, command line or default).

Rule: the output is a valid configuration file, with which the same options are in effect. An option at its default is
printed as a comment if no value stands for the default.
"""

from __future__ import annotations

import re
from argparse import SUPPRESS, Action
from collections.abc import Iterator, Sequence
from itertools import groupby

from pcopy.cli.config_keys import (
    COMMAND_LINE_ONLY,
    COMMAND_LINE_ONLY_BY_PROGRAM,
    ConfigFileSetting,
    ConfigurableProgram,
    config_key_of_option,
    is_value_collecting_option,
)
from pcopy.cli.configuration import CommandLineOption, effective_options
from pcopy.fast_named_tuple import NamedTuple
from pcopy.signature.plain_yaml import yaml_scalar_text
from pcopy.text import printable_path

_COMMAND_LINE = "command line"
_DEFAULT = "default"
_SIZE_UNITS = (("G", 30), ("M", 20), ("K", 10))
_NUMBER_PATTERN = re.compile(r"[0-9]+(\.[0-9]+)?")
_OPTIONS_WITHOUT_EFFECT = ("archive", "recursive")
"""Options that are accepted for compatibility and have no effect."""


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
    hidden = {"", *COMMAND_LINE_ONLY, *COMMAND_LINE_ONLY_BY_PROGRAM.get(program.name, ()), *_OPTIONS_WITHOUT_EFFECT}
    groups: dict[str, list[Action]] = {}
    for action in program.parser()._actions:
        if action.help != SUPPRESS and config_key_of_option(action) not in hidden:
            groups.setdefault(action.dest, []).append(action)
    for dest, actions in groups.items():
        occurrences = [one for setting in settings if setting.dest == dest for one in _occurrences_of_setting(setting)]
        occurrences += [_occurrence_of_option(option, actions) for option in options if option.dest == dest]
        lines += _lines_of_specified_option(actions, occurrences) if occurrences else _lines_of_default_option(actions)
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


def _occurrence_of_option(option: CommandLineOption, actions: Sequence[Action]) -> _OptionOccurrence:
    """Return the ``_OptionOccurrence`` for an option on the command line.

    Some single letters stand for an option with a value (``-u`` for ``--existing newer``); the result is then for that
    option. ``actions`` are the options that set the same attribute.
    """
    action = next(action for action in actions if config_key_of_option(action) == option.name)
    if action.nargs == 0 and isinstance(action.const, str):
        return _OptionOccurrence(config_key_of_option(_option_with_value(actions)), action.const, _COMMAND_LINE)
    return _OptionOccurrence(option.name, None if action.nargs == 0 else str(option.raw_value), _COMMAND_LINE)


def _option_with_value(actions: Sequence[Action]) -> Action:
    """Return the first of ``actions`` that takes a value; else the first one. All of them set the same attribute."""
    return next((action for action in actions if action.nargs != 0), actions[0])


def _lines_of_specified_option(actions: Sequence[Action], occurrences: Sequence[_OptionOccurrence]) -> list[str]:
    """Return the YAML lines for an option that is set by a file or the command line.

    Args:
        actions: the options that set the same attribute.
        occurrences: their occurrences in ascending precedence; unless the values are collected, the last is in effect.
    """
    action, last = _option_with_value(actions), occurrences[-1]
    if is_value_collecting_option(action):
        return _lines_of_list_option(occurrences)
    if last.value is not None:
        return [f"{last.name}: {_yaml_scalar(last.value)}  # {last.origin}"]
    text = len(occurrences) if _is_counted_option(action) else "true"
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


def _lines_of_default_option(actions: Sequence[Action]) -> list[str]:
    """Return the YAML lines for an option at its default; ``actions`` are the options that set the same attribute."""
    action = _option_with_value(actions)
    name = config_key_of_option(action)
    if is_value_collecting_option(action) and action.metavar != "LIST":
        return [f"{config_key_of_option(action)}: []  # {_DEFAULT}" for action in actions]
    if action.nargs == 0:
        return [f"{name}: {'0' if _is_counted_option(action) else 'false'}  # {_DEFAULT}"]
    text = _default_as_option_value(action)
    return [f"# {name}: not set" if text is None else f"{name}: {_yaml_scalar(text)}  # {_DEFAULT}"]


def _default_as_option_value(action: Action) -> str | None:
    """Return the text that a user would have to write as the option's value to get its default; None if no text means
    the default.
    """
    value = action.default
    if value is None or action.type is None or action.choices:
        return None if value is None else str(value)
    texts = [str(value), "auto", "none"]
    if isinstance(value, int):
        texts[:0] = [f"{value >> bits}{unit}" for unit, bits in _SIZE_UNITS if value and not value & ((1 << bits) - 1)]
    for text in texts:
        try:
            if action.type(text) == value:  # type: ignore[operator]
                return text
        except Exception:  # This text is not valid for the option; try the next.
            continue
    return None


def _is_counted_option(action: Action) -> bool:
    """Return True if an option (``action``) is counted each time it is given, as ``-v`` is."""
    return type(action).__name__ == "_CountAction"


def _yaml_scalar(text: str) -> str:
    """Return ``text`` as a YAML scalar, quoted where necessary."""
    return text if _NUMBER_PATTERN.fullmatch(text) or text == "false" else yaml_scalar_text(text)
