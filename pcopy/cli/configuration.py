"""The configuration: options that files set, and that are in effect unless the command line sets others.

Rules:

- Options are read from ``/etc/pcopy.yaml``, the user's file, the file of ``--config``, and the command line, in this
  order. A later value of an option replaces an earlier one.
- Patterns (``--exclude`` and others) are collected instead: those of the command line follow those of files, and the
  last pattern that matches a path decides.
- An option on the command line is never refused because of a file's setting: a setting that contradicts it is ignored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pcopy.cli.argument_types import Option
from pcopy.cli.config_files import read_config_file
from pcopy.cli.config_keys import (
    ConfigFileSetting,
    ConfigKeyConverter,
    ConfigurableProgram,
    words_in_batches,
)
from pcopy.cli.programs import PROGRAMS
from pcopy.errors import RequestRefused
from pcopy.fast_named_tuple import NamedTuple
from pcopy.launch.launcher import identify_launcher, is_started_by_launcher
from pcopy.report.streams import print_error
from pcopy.signature.plain_yaml import YamlString
from pcopy.text import printable_path

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


ORIGIN_TEXT_OF_COMMAND_LINE = "the command line"
"""Text in messages that says where an option was set, if no file sets it (else ``FILE:LINE``)."""


class CommandLineOption(NamedTuple):
    """An option on the command line.

    Fields:

    - ``name``: its first long name, without dashes; its attribute (``dest``) if it has only single-letter names.
    - ``dest``: the attribute of argparse's namespace that it sets.
    - ``raw_value``: its value as the user wrote it: a text, a list of texts, or None.
    - ``word``: the option as the user wrote it, such as ``-T``.
    """

    name: str
    dest: str
    raw_value: Any
    word: str

    def is_among_options(self, options: Collection[str]) -> bool:
        """Return True if this option is among ``options``: names such as ``verify``, or names with a value
        (``hash=none``).
        """
        return self.name in options or f"{self.name}={self.raw_value}" in options


def command_line_options(words: Sequence[str], parser: ArgumentParser) -> list[CommandLineOption]:
    """Return the options in ``words`` (those of a command line), in their order.

    ``parser`` is modified, and must not be used afterwards.
    """
    import argparse

    found: list[CommandLineOption] = []

    class Recorder(argparse.Action):
        def __call__(self, _parser: Any, _values: Any, raw: Any, word: Any = None) -> None:
            found.append(CommandLineOption(self.metavar[0], self.metavar[1], raw, word))  # type: ignore[index]

    # Replace the actions by recorders, which keep the order of the options: a namespace has no order.
    for option, action in list(parser._option_string_actions.items()):
        about = (next((word[2:] for word in action.option_strings if word[:2] == "--"), action.dest), action.dest)
        recorder = Recorder([option], action.dest, action.nargs, metavar=about)
        recorder.const = action.const
        parser._option_string_actions[option] = recorder
    # Remove the defaults: argparse would call a recorder for the default of an option that is not given.
    for action in parser._actions:
        action.default = argparse.SUPPRESS
    parser.parse_known_args(words)
    return found


class OptionRules:
    """What the table of a program's ``options`` says about settings of files: which add up, which exclude others, and
    which have an effect only together with another option.

    - ``conflicts``: pairs of an option (its name, or its name with a value, as in ``hash=none``) and the options that
      contradict it.
    - ``collected``: options whose values add up: the values from all files, and then those of the command line, are
      used. For all other options the last value replaces earlier ones.
    - ``filters``: options that select items. ``output_files``: options that name a file to be written.
    """

    def __init__(self, options: Iterable[Option]) -> None:
        options = list(options)
        self.conflicts = [conflict for option in options for conflict in option.conflicts]
        self._required = {option.key: option.requires.split() for option in options if option.requires}
        self.filters = {option.key for option in options if option.is_filter}
        self.collected = {option.key for option in options if option.is_filter and option.collects_values}
        self.output_files = {option.key for option in options if option.group == "output" and option.value == "FILE"}

    def are_conflicting(self, setting: ConfigFileSetting, other: ConfigFileSetting | CommandLineOption) -> bool:
        """Return True if ``setting`` and ``other`` are options that exclude each other."""
        if setting.name == other.name:
            return False
        return any(
            (setting.is_among_options((one,)) and other.is_among_options(rest))
            or (setting.is_among_options(rest) and other.is_among_options((one,)))
            for one, rest in self.conflicts
        )

    def has_required(self, setting: ConfigFileSetting, others: Iterable[ConfigFileSetting | CommandLineOption]) -> bool:
        """Return False if the setting needs another option that is not among ``others``.

        On a command line without any of these, the option is refused. In a configuration file, which is meant for many
        commands, it is ignored.
        """
        needed = self._required.get(setting.name)
        return not needed or any(other.is_among_options(needed) for other in others)

    def merged(
        self, lower: Sequence[ConfigFileSetting], higher: Sequence[ConfigFileSetting]
    ) -> list[ConfigFileSetting]:
        """Return the settings of two sources (such as files) together; those of ``higher`` take precedence.

        The result contains all settings of ``higher``. A setting of ``lower`` is left out if ``higher`` sets the same
        option, or one that excludes it.
        """
        names = {setting.name for setting in higher}
        dests = {setting.dest for setting in higher if setting.words and setting.name not in self.collected}
        kept = [
            setting
            for setting in lower
            if setting.name not in names
            and setting.dest not in dests
            and not any(self.are_conflicting(setting, one) for one in higher)
        ]
        return [*kept, *higher]


class Configuration:
    """The options that configuration files set for one program.

    ``files`` are the paths of the files, in ascending precedence. Raise ``RequestRefused``, with file, line and key, if
    a file is not valid.
    """

    def __init__(self, program: ConfigurableProgram, files: Sequence[bytes]) -> None:
        self.files = files
        self._rules = OptionRules(program.options)
        self.settings: list[ConfigFileSetting] = []
        keys = ConfigKeyConverter(program)
        for path in files:
            own, others = [], []
            for key, value in read_config_file(path).items():
                assert isinstance(key, YamlString)
                place = f"{printable_path(path)}:{key.line}"
                if key not in PROGRAMS:
                    others += keys.settings_for_key(key, value, place)
                elif not isinstance(value, dict):
                    raise RequestRefused(f"{place}: {key}: is not a mapping of keys to values")
                elif key == program.name:
                    own += keys.settings_in_mapping(path, value)
            self.settings = self._rules.merged(self.settings, self._rules.merged(others, own))

    def settings_in_effect(
        self, given: Sequence[CommandLineOption], only_dests: Collection[str] | None = None
    ) -> list[ConfigFileSetting]:
        """Return the settings in files that take effect although the command line has the options ``given``.

        ``only_dests``: the attributes (``dest``) that files may set for this command line; None: all.
        """
        by_hand = {option.dest for option in given if option.name not in self._rules.collected}
        found = [
            setting
            for setting in self.settings
            if setting.dest not in by_hand
            and (only_dests is None or setting.dest in only_dests)
            and not any(self._rules.are_conflicting(setting, option) for option in given)
        ]
        return [setting for setting in found if self._rules.has_required(setting, [*found, *given])]


class EffectiveOptions(NamedTuple):
    """The options in effect.

    Fields:

    - ``given``: the options on the command line.
    - ``settings``: the settings of files that are in effect.
    - ``ignored_settings``: the settings of files that have no effect, although the command line does not set the same
      option: they contradict another option, or need one that is not given.
    """

    given: list[CommandLineOption]
    settings: list[ConfigFileSetting]
    ignored_settings: list[ConfigFileSetting]


def effective_options(program: ConfigurableProgram, words: Sequence[str], files: Sequence[bytes]) -> EffectiveOptions:
    """Return the options in effect for the command line ``words`` and the configuration ``files``.

    Raise ``RequestRefused`` if a file is not valid.
    """
    options = command_line_options(words, program.parser())
    only = program.options_settable_by_files({option.dest for option in options})
    configuration = Configuration(program, files)
    settings = configuration.settings_in_effect(options, only)
    if (
        is_started_by_launcher(os.environ) and not identify_launcher(os.environ).is_single_task_step
    ):  # Under mpiexec or srun the number of ranks is given, so ignore a setting of it.
        settings = [setting for setting in settings if setting.name != "ranks"]
    given_dests = {option.dest for option in options}
    idle = [one for one in configuration.settings if one not in settings and one.dest not in given_dests]
    return EffectiveOptions(options, settings, idle)


def parse_with_config_files(
    program: ConfigurableProgram, words: Sequence[str], files: Sequence[bytes], make: Callable[[Namespace], Any]
) -> Any:
    """Parse ``words`` together with the settings of ``files``; return the result of ``make`` for the parsed values.

    Raise ``RequestRefused`` if a file is not valid, or if ``make`` refuses the values. If a setting of a file is the
    cause, the message also names file and line.
    """
    from argparse import Namespace

    counting = effective_options(program, words, files)
    settings = counting.settings
    # Files first, the command line last: for most options the last value replaces the others.
    rules = OptionRules(program.options)
    with _errors_with_setting_origins(settings, rules):
        parser, values = program.parser(), Namespace()
        for some in (*words_in_batches(command_words_of_settings(settings)), words):
            values, _ = parser.parse_known_args(some, values)
        if settings and values.verbose and not values.quiet:
            listed = ", ".join(f"{setting.name} ({setting.origin})" for setting in settings)
            print_error(program.name, f"options set by configuration files: {listed}")
        values.filter_origins = _origins_of_filter_options(counting, rules)
        return make(values)


def _origins_of_filter_options(effective: EffectiveOptions, rules: OptionRules) -> tuple[str, ...]:
    """Return where the filters (such as ``--exclude``) are set: ``FILE:LINE``, or "the command line". Empty if no file
    sets any.
    """
    origins = [setting.origin for setting in effective.settings if setting.name in rules.filters and setting.words]
    if origins and any(option.name in rules.filters for option in effective.given):
        origins.append(ORIGIN_TEXT_OF_COMMAND_LINE)
    return tuple(origins)


@contextmanager
def _errors_with_setting_origins(settings: Sequence[ConfigFileSetting], rules: OptionRules) -> Iterator[None]:
    """Context manager: if its block raises ``RequestRefused``, append to the message which file and line set the
    option.

    Only those of ``settings`` are appended that the message is about. The user would otherwise not know where an option
    comes from that is not on the command line.
    """
    try:
        yield
    except RequestRefused as refused:
        text = str(refused)
        about = [setting for setting in settings if _is_message_about_setting(text, setting, rules)]
        if not about:
            raise
        where = "".join(f" ({setting.name}: {setting.origin})" for setting in about)
        raise RequestRefused(f"{text}{where}", refused.status) from None


def command_words_of_settings(settings: Iterable[ConfigFileSetting]) -> list[str]:
    """Return the words of a command line that have the same effect as ``settings``, which files contain."""
    return [word for setting in settings for word in setting.words]


def _is_message_about_setting(text: str, setting: ConfigFileSetting, rules: OptionRules) -> bool:
    """Return True if the error message ``text`` is about ``setting``.

    That is so if it contains the name of the option, or begins with the option's value, a path. A message that filters
    select nothing is about all filters.
    """
    if re.search(rf"--{re.escape(setting.name)}(?![\w-])", text):
        return True
    if setting.name in rules.filters:
        return "the filters select nothing" in text
    paths = [one for one in _text_values_of_setting(setting) if "/" in one or setting.name in rules.output_files]
    return any(re.match(rf"{re.escape(printable_path(os.fsencode(path)))}[: ]", text) for path in paths)


def _text_values_of_setting(setting: ConfigFileSetting) -> list[str]:
    """Return those values of a setting that are texts; a setting may have a list of values."""
    values = setting.value if isinstance(setting.value, list) else [setting.value]
    return [value for value in values if isinstance(value, str)]
