"""The keys that a configuration file may have, and their conversion to words of a command line.

Rules:

- A file sets how work is done, never which work is done. Options that name a job or a destination, and options by which
  the user permits a dangerous operation, can be given only on the command line.
- A key is the name of an option. Its value is checked by the parser of the command line, so that the same values are
  valid in both.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from pcopy.cli.argument_types import DIRECTORY_PLACEHOLDERS, Option
from pcopy.cli.programs import PROGRAMS, load_program
from pcopy.errors import RequestRefused
from pcopy.fast_named_tuple import NamedTuple
from pcopy.jobs.suggestions import most_similar_word
from pcopy.signature.plain_yaml import YamlString, YamlValue
from pcopy.text import printable_path, printable_text

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from pcopy.cli.mistakes import UnknownOptionAdvice


_YAML_TRUE_WORDS, _YAML_FALSE_WORDS = ("true", "True", "TRUE"), ("false", "False", "FALSE")
_YAML_NULL_WORDS = ("", "~", "null", "Null", "NULL")
"""The spellings of null in YAML; the tuples ``_YAML_TRUE_WORDS`` and ``_YAML_FALSE_WORDS`` contain those of true and
false.
"""
_PATH_PLACEHOLDERS = ("FILE", *DIRECTORY_PLACEHOLDERS)
_WORDS_PER_PARSER_CALL = 250
"""Maximum number of words that argparse parses in one call (see ``words_in_batches``)."""


class ConfigurableProgram(Protocol):
    """Protocol: what the configuration needs of a program (``pcopy.cli.program.ProgramCommandLine``): its name, parser
    and options.
    """

    option_advice: UnknownOptionAdvice

    @property
    def name(self) -> str: ...

    @property
    def options(self) -> Sequence[Option]: ...

    def parser(self) -> ArgumentParser: ...

    def options_settable_by_files(self, given: Collection[str]) -> Collection[str] | None: ...


class ConfigFileSetting(NamedTuple):
    """An option that a configuration file sets.

    Fields:

    - ``name``: the name of the option, without dashes.
    - ``dest``: the attribute of argparse's namespace that the option sets; several options may set the same one.
    - ``words``: the words that set the option on a command line. Empty for a flag that is set to false.
    - ``value``: the value in the file.
    - ``origin``: the file and the line, as ``FILE:LINE``.
    """

    name: str
    dest: str
    words: tuple[str, ...]
    value: YamlValue
    origin: str

    def is_among_options(self, options: Collection[str]) -> bool:
        """Return True if this option is among ``options``: names such as ``verify``, or names with a value
        (``hash=none``).

        False for a flag that the file sets to false, because it then has no effect.
        """
        return bool(self.words) and (self.name in options or f"{self.name}={self.value}" in options)


def words_in_batches(words: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield ``words`` in groups of limited size, each of which is parsed by a call of argparse.

    argparse compares each option on a command line with all others: thousands in one call would take minutes.
    """
    return (words[at : at + _WORDS_PER_PARSER_CALL] for at in range(0, len(words), _WORDS_PER_PARSER_CALL))


class ConfigKeyConverter:
    """Checks the keys and values of configuration files, and converts them to settings for one program."""

    def __init__(self, program: ConfigurableProgram) -> None:
        self._program = program
        self._parser = program.parser()
        self._options = {name: option for option in program.options for name in option.long_names}

    def settings_in_mapping(self, path: bytes, mapping: Mapping[str, YamlValue]) -> list[ConfigFileSetting]:
        """Return the settings in ``mapping``, the part of a configuration file that is meant for this program alone.

        ``path`` is the path of the file, for messages. Raise ``RequestRefused`` if a key or a value is not valid for
        the program.
        """
        found = []
        for key, value in mapping.items():
            assert isinstance(key, YamlString)
            found += self.settings_for_key(key, value, f"{printable_path(path)}:{key.line}", is_program_mapping=True)
        return found

    def settings_for_key(
        self, key: str, value: YamlValue, place: str, *, is_program_mapping: bool = False
    ) -> list[ConfigFileSetting]:
        """Return the setting for ``key: value`` in a file, as a list of one; an empty list if the key is meant for
        other programs.

        Args:
            place: the file and the line, as ``FILE:LINE``.
            is_program_mapping: True if the key is in the part of the file for this program alone. Then an error is
                raised if the program does not have the key.

        Raise ``RequestRefused`` if no program has the key, if no file may set it, or if its value is not valid.
        """
        program = self._program.name
        option = self._options.get(key)
        if option is None or not option.in_files:
            if not is_program_mapping and key in _programs_by_key(program):
                return []
            raise RequestRefused(f"{place}: {self._unknown_key_message(key, is_program_mapping)}")
        name = option.key
        siblings = [one.key for one in self._program.options if one.attribute == option.attribute]
        words: list[str] = []
        try:
            words = _command_words_of_option(option, value, siblings)
            for some in words_in_batches(words):
                self._parser.parse_known_args(some)
        except (RequestRefused, ValueError) as error:
            hint = "" if is_program_mapping else _hint_for_other_program(words, name, program)
            raise RequestRefused(f"{place}: {key}: {_message_without_option_and_help(str(error))}{hint}") from None
        return [ConfigFileSetting(name, option.attribute, tuple(words), value, place)]

    def _unknown_key_message(self, key: str, is_own: bool) -> str:
        """Return the message for a key in a file that this program does not accept: the reason and, if possible, the
        key that was meant.

        ``is_own``: True if the key is in the part of the file for this program alone.
        """
        program, option = self._program.name, f"--{key}"
        unknown = self._program.option_advice
        if key in self._options:
            return f"{key}: cannot be set by a file; write --{key} on the command line"
        if (owner := _programs_by_unsettable_key().get(key)) is not None:
            return f"{key}: cannot be set by a file; write --{key} on the command line of {owner}"
        if option in unknown.by_option:
            return f"{key}: {unknown.by_option[option]}"
        mine = [name for name, own in self._options.items() if own.in_files]
        keys = [*mine, *(() if is_own else (*_programs_by_key(program), *PROGRAMS))]
        near = most_similar_word(key.lstrip("-").replace("_", "-"), sorted(set(keys)))
        hint = f"the nearest is {near}" if near else f"see {program} --show-config"
        return f"{printable_path(os.fsencode(key))}: there is no such key; {hint}"


def _programs_by_key(without: str) -> dict[str, str]:
    """Return the keys that files may set for programs other than ``without``, each with one program that has it."""
    found: dict[str, str] = {}
    for program in PROGRAMS:
        if program != without:
            for option in load_program(program).options:
                for name in option.long_names if option.in_files else ():
                    found.setdefault(name, program)
    return found


def _programs_by_unsettable_key() -> dict[str, str]:
    """Return the names of options that files may set for no program, each with a program that has it."""
    found: dict[str, str] = {}
    settable: set[str] = set()
    for program in PROGRAMS:
        for option in load_program(program).options:
            settable.update(option.long_names if option.in_files else ())
            for name in option.long_names:
                found.setdefault(name, program)
    return {name: program for name, program in found.items() if name not in settable}


def _hint_for_other_program(words: Sequence[str], name: str, program: str) -> str:
    """Return advice if a value that is invalid for ``program`` is valid for another program; else an empty text.

    A key at the top of a file is valid for all programs; the advice is to write it in the part for the other program.

    Args:
        words: the option with its value, as words of a command line.
        name: the name of the option, without dashes.
    """
    other = _programs_by_key(program).get(name)
    if other is None or not words:
        return ""
    try:
        load_program(other).parser().parse_known_args(words)
    except RequestRefused:
        return ""
    return f"; {other} accepts it: put it below {other}: if it is meant for that program"


def _message_without_option_and_help(text: str) -> str:
    """Return ``text``, an error message of a parser, without the option's name at its start and the reference to
    ``--help`` at its end.
    """
    text = re.sub(r"^(-\w/)*--[\w-]+(/-[\w-]+)*: ", "", text)
    return printable_text(re.sub(r"; see \w+ --help$", "", text))


def _command_words_of_option(option: Option, value: YamlValue, siblings: Sequence[str]) -> list[str]:
    """Return the words of a command line that set an option to the ``value`` in a file.

    Args:
        option: the option.
        value: the value in the file.
        siblings: the names of the options that add to the same list as ``option``. An item of a list may be a mapping
            with the name of a sibling as its key: so a file can contain, for example, ``--exclude`` and ``--include``
            in any order.

    Raise ``ValueError`` if the value is not valid.
    """
    if isinstance(value, YamlString) and value.plain and value in _YAML_NULL_WORDS:
        raise ValueError("has no value: write one, or leave the line out")
    name = option.key
    if option.takes_no_value or (option.is_value_after_equals and value in (*_YAML_TRUE_WORDS, *_YAML_FALSE_WORDS)):
        return _command_words_of_flag(option, value)
    if option.value == "TABLE" and isinstance(value, dict):
        return [f"--{name}={','.join(f'{size}={_require_text(count)}' for size, count in value.items())}"]
    if not isinstance(value, list):
        return [f"--{name}={_checked_path_value(option, _require_text(value))}"]
    if not option.collects_values:
        raise ValueError("takes one value, and no list")
    if not value and option.value == "LIST":
        raise ValueError(f"the list is empty; to select none, write the line 'no-{name.removeprefix('no-')}: all'")
    words = []
    for item in value:
        word, text = name, item
        if isinstance(item, dict) and len(item) == 1:
            ((word, text),) = item.items()
            if word not in siblings:
                raise ValueError(
                    f"{printable_path(os.fsencode(word))}: only {', '.join(siblings)} may stand in the list"
                )
        words.append(f"--{word}={_checked_path_value(option, _require_text(text))}")
    return words


def _command_words_of_flag(option: Option, value: YamlValue) -> list[str]:
    """Return the words of a command line for an option that takes no value, or whose value may be omitted.

    In a file its ``value`` is true or false, or for an option that is counted (``-v``) also 0, 1 or 2. Raise
    ``ValueError`` for any other value.
    """
    if option.const is not None and option.takes_no_value:
        raise ValueError(f"write {option.attribute}: {option.const}")
    name = option.key
    is_plain = isinstance(value, YamlString) and value.plain
    if is_plain and value in _YAML_FALSE_WORDS:
        return []
    if is_plain and value in _YAML_TRUE_WORDS:
        return [f"--{name}={option.const}" if option.is_value_after_equals else f"--{name}"]
    if option.action != "count":
        raise ValueError(f"write true or false{_found_value_message_end(value)}")
    if not (is_plain and isinstance(value, str) and value in ("0", "1", "2")):
        raise ValueError(f"write 0, 1 or 2{_found_value_message_end(value)}")
    return [f"--{name}"] * int(value)


def _found_value_message_end(value: YamlValue) -> str:
    """Return the end of an error message: that ``value`` was found in the file instead of a valid value."""
    if (
        isinstance(value, YamlString)
        and not value.plain
        and value in (*_YAML_TRUE_WORDS, *_YAML_FALSE_WORDS, "0", "1", "2")
    ):
        return ", without quotes"
    return f", not {printable_path(os.fsencode(value))}" if isinstance(value, str) else ", and nothing else"


def _require_text(value: YamlValue) -> str:
    """Return ``value`` as text. Raise ``ValueError`` if it is a list or a mapping."""
    if not isinstance(value, str):
        raise ValueError("takes a single value, neither a mapping nor a nested list")
    return value


def _checked_path_value(option: Option, text: str) -> str:
    """Return ``text``, the value that a file gives to ``option``, unchanged after a check.

    Raise ``ValueError`` if the value is a path and begins with ``~`` (only a shell expands that), or is ``-``.
    """
    if option.value in _PATH_PLACEHOLDERS and text.startswith("~"):
        raise ValueError(f"{printable_path(os.fsencode(text))}: only a shell expands ~; write the path in full")
    if option.value in _PATH_PLACEHOLDERS and text == "-":
        raise ValueError("-: name a file; standard streams can only be named on the command line")
    return text
