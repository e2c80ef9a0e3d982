"""The configuration: options from files, which are in effect unless the command line sets them.

Rules:

- A later source replaces the value of an earlier one: ``/etc/pcopy.yaml``, the user's file, the file of ``--config``,
  the command line.
- Patterns are collected instead: those of the command line follow those of files, and the last pattern that matches
  decides.
- An option on the command line is never refused because of a file's setting: a setting that contradicts it is ignored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pcopy.cli.config_files import read
from pcopy.cli.config_keys import PATTERNS, PROGRAMS, Configurable, Keys, Setting, batched, name_of
from pcopy.errors import Refused
from pcopy.launch.launcher import identify, is_launched
from pcopy.named import NamedTuple
from pcopy.report.streams import tell
from pcopy.signature.plain_yaml import Scalar
from pcopy.text import shown

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


AGAINST: tuple[tuple[Collection[str], Collection[str]], ...] = (
    (("no-sync",), ("verify", "repair")),
    (("hash=none",), ("verify", "repair", "signature", "manifest")),
    (("dry-run",), ("metrics",)),
    (("list",), ("errors", "log", "metrics", "report")),
    (("inplace",), ("backup",)),
    (("inplace=sequential",), ("update", "existing=newer", "existing=skip", "existing=fail")),
    (
        ("compress", "decompress"),
        (
            *("verify", "repair", "checksum", "inplace", "direct", "drop-cache", "stripe-affinity", "group-lock"),
            *("update", "existing=newer", "existing=skip", "existing=fail", "reflink=always"),
        ),
    ),
    (("existing", "update", "checksum", "mirror"), ("existing", "update", "checksum", "mirror")),
)
"""Pairs of groups of options that exclude each other.

The option from the later source is in effect; the other one is ignored.
"""

_NEEDS = {"stripe-table": ("stripe=auto",), "max-delete": ("delete", "mirror")}
"""Options that a file may set for all commands, but that are in effect only together with one of the listed others."""

COMMAND_LINE = "the command line"
"""The origin of options that are not set by a file."""
_FILTERS = PATTERNS | {"newer-than", "older-than", "larger-than", "smaller-than"}
_OUTPUTS = frozenset(("errors", "log", "metrics", "report"))


class Written(NamedTuple):
    """An option on the command line: its first long ``name``, and its ``raw`` value (text, list of texts, or None)."""

    name: str
    dest: str
    raw: Any

    def says(self, options: Collection[str]) -> bool:
        """Return True if it is one of ``options``, each of which is a name, or a name and a value (``name=value``)."""
        return self.name in options or f"{self.name}={self.raw}" in options


def given(words: Sequence[str], parser: ArgumentParser) -> list[Written]:
    """Return the options in ``words``, in order. ``parser`` is modified and cannot be used afterwards."""
    import argparse

    found: list[Written] = []

    class Recorder(argparse.Action):
        def __call__(self, _parser: Any, _values: Any, raw: Any, _option: Any = None) -> None:
            found.append(Written(self.metavar[0], self.metavar[1], raw))  # type: ignore[index]

    # Recorders in place of the actions keep the order of the options, which a namespace does not have.
    for option, action in list(parser._option_string_actions.items()):
        about = (name_of(action) or action.dest, action.dest)
        recorder = Recorder([option], action.dest, action.nargs, metavar=about)
        recorder.const = action.const
        parser._option_string_actions[option] = recorder
    # Without defaults, nothing is recorded for options that are not given.
    for action in parser._actions:
        action.default = argparse.SUPPRESS
    parser.parse_known_args(words)
    return found


class Configuration:
    """The options that ``files`` set for one program.

    Raise ``Refused``, naming the file, the line and the key, if a file is not valid.
    """

    def __init__(self, program: Configurable, files: Sequence[bytes]) -> None:
        self.files = files
        self.settings: list[Setting] = []
        keys = Keys(program)
        for path in files:
            own, others = [], []
            for key, value in read(path).items():
                assert isinstance(key, Scalar)
                place = f"{shown(path)}:{key.line}"
                if key not in PROGRAMS:
                    others += keys.settings(key, value, place)
                elif not isinstance(value, dict):
                    raise Refused(f"{place}: {key}: is not a mapping of keys to values")
                elif key == program.name:
                    own += keys.own(path, value)
            self.settings = _over(self.settings, _over(others, own))

    def beside(self, said: Sequence[Written], only: Collection[str] | None = None) -> list[Setting]:
        """Return the settings that are in effect together with the options of the command line ``said``.

        ``only``: if not None, the attributes (``dest``) to which the settings are limited.
        """
        by_hand = {option.dest for option in said if option.name not in PATTERNS}
        found = [
            setting
            for setting in self.settings
            if setting.dest not in by_hand
            and (only is None or setting.dest in only)
            and not any(_contradicts(setting, option) for option in said)
        ]
        return [setting for setting in found if _is_of_use(setting, [*found, *said])]


class Effective(NamedTuple):
    """The options in effect.

    Fields:

    - ``given``: the options on the command line.
    - ``settings``: the settings of files that are in effect.
    - ``idle``: the settings of files that are not in effect although no other value has replaced them.
    """

    given: list[Written]
    settings: list[Setting]
    idle: list[Setting]


def effective(program: Configurable, words: Sequence[str], files: Sequence[bytes]) -> Effective:
    """Return the options in effect for the command line ``words`` and the configuration ``files``.

    Raise ``Refused`` if a file is not valid.
    """
    options = given(words, program.parser())
    only = program.configurable({option.dest for option in options})
    configuration = Configuration(program, files)
    settings = configuration.beside(options, only)
    if is_launched(os.environ) and not identify(os.environ).is_plain:  # the launcher decides how many ranks there are
        settings = [setting for setting in settings if setting.name != "ranks"]
    given_dests = {option.dest for option in options}
    idle = [one for one in configuration.settings if one not in settings and one.dest not in given_dests]
    return Effective(options, settings, idle)


def made_with_files(
    program: Configurable, words: Sequence[str], files: Sequence[bytes], make: Callable[[Namespace], Any]
) -> Any:
    """Parse ``words`` together with the settings of ``files``, and return the result of ``make`` for the parsed values.

    Raise ``Refused``, as ``effective`` and ``make`` do.
    """
    from argparse import Namespace

    counting = effective(program, words, files)
    settings = counting.settings
    # Files first, the command line last: for most options the last value replaces the others.
    with _explaining(settings):
        parser, values = program.parser(), Namespace()
        for some in (*batched(words_of(settings)), words):
            values, _ = parser.parse_known_args(some, values)
        if settings and values.verbose and not values.quiet:
            listed = ", ".join(f"{setting.name} ({setting.origin})" for setting in settings)
            tell(program.name, f"set by files: {listed}")
        values.filter_origins = _filter_origins(counting)
        return make(values)


def _filter_origins(counting: Effective) -> tuple[str, ...]:
    """Return the origins of all filters (file and line, or the command line). It is empty if no file sets filters."""
    origins = [setting.origin for setting in counting.settings if setting.name in _FILTERS and setting.words]
    if origins and any(option.name in _FILTERS for option in counting.given):
        origins.append(COMMAND_LINE)
    return tuple(origins)


@contextmanager
def _explaining(settings: Sequence[Setting]) -> Iterator[None]:
    """Add the origin of a setting to the message of a ``Refused`` that is raised within, if the message concerns it."""
    try:
        yield
    except Refused as refused:
        text = str(refused)
        about = [setting for setting in settings if _is_about(text, setting)]
        if not about:
            raise
        where = "".join(f" ({setting.name}: {setting.origin})" for setting in about)
        raise Refused(f"{text}{where}", refused.status) from None


def words_of(settings: Iterable[Setting]) -> list[str]:
    """Return the words of a command line that have the same meaning as ``settings``."""
    return [word for setting in settings for word in setting.words]


def _is_about(text: str, setting: Setting) -> bool:
    """Return True if an error message concerns ``setting``: it names the option, its filters, or its path."""
    if re.search(rf"--{re.escape(setting.name)}(?![\w-])", text):
        return True
    if setting.name in _FILTERS:
        return "the filters select nothing" in text
    paths = [one for one in _values(setting) if "/" in one or setting.name in _OUTPUTS]
    return any(re.match(rf"{re.escape(shown(os.fsencode(path)))}[: ]", text) for path in paths)


def _values(setting: Setting) -> list[str]:
    """Return the values of a setting that are texts."""
    values = setting.value if isinstance(setting.value, list) else [setting.value]
    return [value for value in values if isinstance(value, str)]


def _over(lower: Sequence[Setting], higher: Sequence[Setting]) -> list[Setting]:
    """Return all settings of ``higher``, and those of ``lower`` that ``higher`` neither replaces nor contradicts."""
    names = {setting.name for setting in higher}
    dests = {setting.dest for setting in higher if setting.words and setting.name not in PATTERNS}
    kept = [
        setting
        for setting in lower
        if setting.name not in names and setting.dest not in dests and not any(_contradicts(setting, h) for h in higher)
    ]
    return [*kept, *higher]


def _contradicts(setting: Setting, other: Setting | Written) -> bool:
    """Return True if the two options exclude each other, according to ``AGAINST``."""
    for one, another in AGAINST:
        for mine, theirs in ((one, another), (another, one)):
            if setting.says(mine) and other.says(theirs) and setting.name != other.name:
                return True
    return False


def _is_of_use(setting: Setting, beside: Iterable[Setting | Written]) -> bool:
    """Return True unless the setting needs another option (``_NEEDS``) that is not among ``beside``."""
    needed = _NEEDS.get(setting.name)
    return not needed or any(other.says(needed) for other in beside)
