"""The keys that a configuration file may have, and their conversion to words of a command line.

Rules:

- A file sets how work is done, never which work is done. Options that name a job or a destination, and options that
  stand for the user's consent, can be given only on the command line.
- Keys are the names of options. Their values pass through the parser of the command line, so that both have the same
  rules.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from pcopy.errors import RequestRefused
from pcopy.fast_named_tuple import NamedTuple
from pcopy.jobs.suggestions import most_similar_word
from pcopy.signature.plain_yaml import Scalar, Value
from pcopy.text import printable_path, printable_text

if TYPE_CHECKING:
    from argparse import Action, ArgumentParser

    from pcopy.cli.mistakes import OptionAdvice

PROGRAMS = ("pcopy", "psync", "pverify", "prm", "pstripe", "ptar", "pbcast", "pdbench", "pwalk", "pchmod")
"""The programs. A configuration file may have one mapping of keys for each of them."""

COMMAND_LINE_ONLY = frozenset(
    (
        *("help", "version", "config", "show-config", "insecure-links", "resume", "jobs", "discard", "control"),
        *("dry-run", "yes", "force", "delete", "delete-all", "mirror", "signature", "create", "files-from"),
        *("from0", "compare", "output", "null", "compress", "decompress", "from"),
    )
)
"""Options that no configuration file can set, for any program."""

COMMAND_LINE_ONLY_BY_PROGRAM: Mapping[str, Collection[str]] = {
    "pchmod": {"mode", "reference", "owner", "group", "acl-from"},
    "pdbench": {"svg"},
    "pwalk": {"page", "summary", "json-lines", "print0"},
    "pcopy": {"manifest"},
    "psync": {"manifest"},
    "pverify": {"manifest"},
    "pstripe": {"stripe"},
    "ptar": {"extract", "list", "file", "directory", "strip-components", "sparse-limit", "gzip", "zstd"},
}
"""Further options, by program, that no configuration file can set.

With ``--stripe``, for example, pstripe changes files; without it, it only reports.
"""

PATTERN_OPTIONS = frozenset(("exclude", "include", "exclude-from"))
"""Options whose values are collected from all files and the command line, in order, instead of replacing each other."""

_TRUE, _FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")
_NULL_VALUES = ("", "~", "null", "Null", "NULL")
_WORDS_PER_CALL = 250
"""The number of words that are parsed in one call."""
_PATH_METAVARS = ("FILE", "DIR")
"""Metavariables of the options whose values are paths."""


class ConfigurableProgram(Protocol):
    """The interface that the configuration needs of a program (``pcopy.cli.program.Program``)."""

    option_advice: OptionAdvice

    @property
    def name(self) -> str: ...

    def parser(self) -> ArgumentParser: ...

    def options_settable_by_files(self, given: Collection[str]) -> Collection[str] | None: ...


class FileSetting(NamedTuple):
    """An option that a configuration file sets.

    Fields:

    - ``name``: the name of the option, without dashes.
    - ``dest``: the option's attribute in the namespace of argparse.
    - ``words``: the same on a command line. It is empty for a flag that is set to false.
    - ``value``: the value in the file.
    - ``origin``: the file's name and the line.
    """

    name: str
    dest: str
    words: tuple[str, ...]
    value: Value
    origin: str

    def is_one_of(self, options: Collection[str]) -> bool:
        """Return True if it is one of ``options``, each of which is a name, or a name and a value (``name=value``)."""
        return bool(self.words) and (self.name in options or f"{self.name}={self.value}" in options)


def in_batches(words: Sequence[str]) -> Iterator[Sequence[str]]:
    """Return ``words`` in groups of limited size, for argparse.

    argparse compares each option with all others on the command line: thousands in one call take minutes.
    """
    return (words[at : at + _WORDS_PER_CALL] for at in range(0, len(words), _WORDS_PER_CALL))


def option_key(action: Action) -> str:
    """Return the key of an option: its first long name without dashes; empty if it has only single-letter names."""
    return next((option[2:] for option in action.option_strings if option.startswith("--")), "")


def long_names(action: Action) -> list[str]:
    """Return all long names of an option, without dashes."""
    return [option[2:] for option in action.option_strings if option.startswith("--")]


class ConfigKeys:
    """The keys that a file may have, and their conversion to settings for one program."""

    def __init__(self, program: ConfigurableProgram) -> None:
        self._program = program
        self._parser = program.parser()
        self._actions = _actions_by_key(self._parser)

    def settings_in_mapping(self, path: bytes, mapping: Mapping[str, Value]) -> list[FileSetting]:
        """Return the settings from the mapping for this program alone in the file ``path``."""
        found = []
        for key, value in mapping.items():
            assert isinstance(key, Scalar)
            found += self.settings_for_key(key, value, f"{printable_path(path)}:{key.line}", is_program_mapping=True)
        return found

    def settings_for_key(
        self, key: str, value: Value, place: str, *, is_program_mapping: bool = False
    ) -> list[FileSetting]:
        """Return the setting for ``key`` as a list of one; an empty list if the key is meant for other programs.

        Args:
            place: the file's name and the line.
            is_program_mapping: True if the key stands in the mapping for this program alone.

        Raise ``RequestRefused`` if no program has the key, if no file may set it, or if its value is not valid.
        """
        program = self._program.name
        action = self._actions.get(key)
        if action is None or key in COMMAND_LINE_ONLY_BY_PROGRAM.get(program, ()):
            if not is_program_mapping and key in _keys_of_other_programs(program):
                return []
            raise RequestRefused(f"{place}: {self._unknown_key_message(key, is_program_mapping)}")
        if key in COMMAND_LINE_ONLY:
            raise RequestRefused(f"{place}: {_command_line_only_message(key)}")
        name = option_key(action)
        siblings = [option_key(one) for one in self._parser._actions if one.dest == action.dest]
        words: list[str] = []
        try:
            words = _command_line_words(action, name, value, siblings)
            for some in in_batches(words):
                self._parser.parse_known_args(some)
        except (RequestRefused, ValueError) as error:
            hint = "" if is_program_mapping else _other_program_hint(words, name, program)
            raise RequestRefused(f"{place}: {key}: {_stripped_message(str(error))}{hint}") from None
        return [FileSetting(name, action.dest, tuple(words), value, place)]

    def _unknown_key_message(self, key: str, is_own: bool) -> str:
        """Return the message for a key that cannot be set: the reason and, if possible, the key that was meant."""
        program, option = self._program.name, f"--{key}"
        unknown = self._program.option_advice
        if key in COMMAND_LINE_ONLY or key in COMMAND_LINE_ONLY_BY_PROGRAM.get(program, ()):
            return _command_line_only_message(key)
        if option in unknown.by_option:
            return f"{key}: {unknown.by_option[option]}"
        keys = [*self._actions, *(() if is_own else (*_keys_of_other_programs(program), *PROGRAMS))]
        near = most_similar_word(key.lstrip("-").replace("_", "-"), sorted(set(keys) - COMMAND_LINE_ONLY))
        hint = f"the nearest is {near}" if near else f"see {program} --show-config"
        return f"{printable_path(os.fsencode(key))}: there is no such key; {hint}"


def _actions_by_key(parser: ArgumentParser) -> dict[str, Action]:
    """Return the options of ``parser`` by their long names."""
    return {name: action for action in parser._actions for name in long_names(action)}


def _keys_of_other_programs(program: str) -> dict[str, tuple[str, ArgumentParser]]:
    """Return the keys that files may set for programs other than ``program``.

    The value is one program that has the key, and its parser.
    """
    from importlib import import_module

    keys: dict[str, tuple[str, ArgumentParser]] = {}
    for other in PROGRAMS:
        if other != program:
            parser = getattr(import_module(f"pcopy.cli.{other}"), other.upper()).parser()
            may = (set(_actions_by_key(parser)) - COMMAND_LINE_ONLY).difference(
                COMMAND_LINE_ONLY_BY_PROGRAM.get(other, ())
            )
            keys = {**dict.fromkeys(may, (other, parser)), **keys}
    return keys


def _command_line_only_message(key: str) -> str:
    """Return the message for an option that no file can set."""
    return f"{key}: cannot be set by a file; write --{key} on the command line"


def _other_program_hint(words: Sequence[str], name: str, program: str) -> str:
    """Return advice if a value that is invalid for ``program`` is valid for another one; else an empty text."""
    other, parser = _keys_of_other_programs(program).get(name, ("", None))
    if parser is None or not words:
        return ""
    try:
        parser.parse_known_args(words)
    except RequestRefused:
        return ""
    return f"; {other} accepts it: put it below {other}: if it is meant for that program"


def _stripped_message(text: str) -> str:
    """Return a parser's message without the option's name in front and the reference to ``--help`` at the end."""
    text = re.sub(r"^(-\w/)*--[\w-]+(/-[\w-]+)*: ", "", text)
    return printable_text(re.sub(r"; see \w+ --help$", "", text))


def _command_line_words(action: Action, name: str, value: Value, siblings: Sequence[str]) -> list[str]:
    """Return the words of a command line that correspond to ``value`` in a file.

    Raise ``ValueError`` if the value is not valid. ``siblings`` are the options that add to the same list. An item of
    the list may be a mapping with the name of a sibling: this preserves the order of, for example, ``--exclude`` and
    ``--include``.
    """
    if isinstance(value, Scalar) and value.plain and value in _NULL_VALUES:
        raise ValueError("has no value: write one, or leave the line out")
    if action.nargs == 0 or (has_optional_value(action) and value in (*_TRUE, *_FALSE)):
        return _flag_words(action, name, value)
    if action.metavar == "TABLE" and isinstance(value, dict):
        return [f"--{name}={','.join(f'{size}={_require_text(count)}' for size, count in value.items())}"]
    if not isinstance(value, list):
        return [f"--{name}={_checked_path(action, _require_text(value))}"]
    if not is_appended(action):
        raise ValueError("takes one value, and no list")
    if not value and action.metavar == "LIST":
        raise ValueError(f"an empty list; for none of them write no-{name.removeprefix('no-')}: all")
    words = []
    for item in value:
        option, text = name, item
        if isinstance(item, dict) and len(item) == 1:
            ((option, text),) = item.items()
            if option not in siblings:
                raise ValueError(
                    f"{printable_path(os.fsencode(option))}: only {', '.join(siblings)} may stand in the list"
                )
        words.append(f"--{option}={_checked_path(action, _require_text(text))}")
    return words


def _flag_words(action: Action, name: str, value: Value) -> list[str]:
    """Return the words for an option without a value, or with an optional one, that is set to a boolean or a count.

    Raise ``ValueError`` if ``value`` is neither.
    """
    if action.const is not None and action.const is not True and action.nargs == 0:
        raise ValueError(f"write {action.dest}: {action.const}")
    is_plain = isinstance(value, Scalar) and value.plain
    if is_plain and value in _FALSE:
        return []
    if is_plain and value in _TRUE:
        return [f"--{name}={action.const}" if has_optional_value(action) else f"--{name}"]
    if not _is_counted(action):
        raise ValueError(f"write true or false{_found_instead(value)}")
    if not (is_plain and isinstance(value, str) and value in ("0", "1", "2")):
        raise ValueError(f"write 0, 1 or 2{_found_instead(value)}")
    return [f"--{name}"] * int(value)


def has_optional_value(action: Action) -> bool:
    """Return True if the value of the option may be omitted, and the option is not set by default."""
    return action.nargs == "?" and action.default is None and action.choices is not None


def _is_counted(action: Action) -> bool:
    """Return True if the option is counted each time it is given, as ``-v`` is."""
    return type(action).__name__ == "_CountAction"


def is_appended(action: Action) -> bool:
    """Return True if the option may be given several times and collects its values."""
    return type(action).__name__ == "_AppendAction"


def _found_instead(value: Value) -> str:
    """Return the end of a message that says which value was found instead of the expected one."""
    if isinstance(value, Scalar) and not value.plain and value in (*_TRUE, *_FALSE, "0", "1", "2"):
        return ", without quotes"
    return f", not {printable_path(os.fsencode(value))}" if isinstance(value, str) else ", and nothing else"


def _require_text(value: Value) -> str:
    """Return ``value`` as text. Raise ``ValueError`` if it is a list or a mapping."""
    if not isinstance(value, str):
        raise ValueError("takes a single value, neither a mapping nor a nested list")
    return value


def _checked_path(action: Action, text: str) -> str:
    """Return ``text``, the value of an option.

    Raise ``ValueError`` if it is a path that begins with ``~``, or ``-``.
    """
    if action.metavar in _PATH_METAVARS and text.startswith("~"):
        raise ValueError(f"{printable_path(os.fsencode(text))}: only a shell knows what ~ is; write the path in full")
    if action.metavar in _PATH_METAVARS and text == "-":
        raise ValueError("-: name a file; standard streams are for the command line")
    return text
