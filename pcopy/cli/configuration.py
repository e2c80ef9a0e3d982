"""The configuration: options that files set, for whoever does not give them on the command line.

Rules: a higher place replaces what a lower one says: /etc/pcopy.yaml, the user's file, the one of ``--config``, the
command line. Only patterns of the command line come after those of files: the last one that matches decides. What is
given by hand is never refused for the sake of what a file sets: that gives way.
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
"""Options of which one side cannot be had with the other: what a higher place says counts, the other one gives way."""

_NEEDS = {"stripe-table": ("stripe=auto",), "max-delete": ("delete", "mirror")}
"""Options that a file may set for those commands only that have one of the others."""

COMMAND_LINE = "the command line"
_FILTERS = PATTERNS | {"newer-than", "older-than", "larger-than", "smaller-than"}
_OUTPUTS = frozenset(("errors", "log", "metrics", "report"))


class Written(NamedTuple):
    """An option of the command line, by its first long ``name``, with its ``raw`` value: text, texts, or None."""

    name: str
    dest: str
    raw: Any

    def says(self, options: Collection[str]) -> bool:
        return self.name in options or f"{self.name}={self.raw}" in options


def given(words: Sequence[str], parser: ArgumentParser) -> list[Written]:
    """The options in ``words``, in order; ``parser`` serves only this."""
    import argparse

    said: list[Written] = []

    class Recorder(argparse.Action):
        def __call__(self, _parser: Any, _values: Any, raw: Any, _option: Any = None) -> None:
            said.append(Written(self.metavar[0], self.metavar[1], raw))  # type: ignore[index]

    for option, action in list(parser._option_string_actions.items()):
        about = (name_of(action) or action.dest, action.dest)
        recorder = Recorder([option], action.dest, action.nargs, metavar=about)
        recorder.const = action.const
        parser._option_string_actions[option] = recorder
    for action in parser._actions:
        action.default = argparse.SUPPRESS
    parser.parse_known_args(words)
    return said


class Configuration:
    """What ``files`` set for one program; raises ``Refused``, naming file, line and key, for what is wrong in them."""

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
        """The settings that count with the options that are ``said``; ``only``: no others than these (by ``dest``)."""
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
    """The options that are ``given`` on the command line, the settings that count beside them, and those that do not,
    though no other value has replaced them."""

    given: list[Written]
    settings: list[Setting]
    idle: list[Setting]


def effective(program: Configurable, words: Sequence[str], files: Sequence[bytes]) -> Effective:
    """What counts of the ``words`` of a command line that are options, and of ``files``; raises ``Refused``."""
    options = given(words, program.parser())
    only = program.configurable({option.dest for option in options})
    configuration = Configuration(program, files)
    settings = configuration.beside(options, only)
    if is_launched(os.environ) and not identify(os.environ).is_plain:  # the launcher says how many ranks there are
        settings = [setting for setting in settings if setting.name != "ranks"]
    told = {option.dest for option in options}
    idle = [one for one in configuration.settings if one not in settings and one.dest not in told]
    return Effective(options, settings, idle)


def made_with_files(
    program: Configurable, words: Sequence[str], files: Sequence[bytes], make: Callable[[Namespace], Any]
) -> Any:
    """What ``make`` makes of the values of ``words`` and ``files``; raises ``Refused``, as ``effective`` and that."""
    from argparse import Namespace

    counting = effective(program, words, files)
    settings = counting.settings
    with _explaining(settings):
        parser, values = program.parser(), Namespace()
        for some in (*batched(words_of(settings)), words):
            values, _ = parser.parse_known_args(some, values)
        if settings and values.verbose and not values.quiet:
            told = ", ".join(f"{setting.name} ({setting.origin})" for setting in settings)
            tell(program.name, f"set by files: {told}")
        values.filter_origins = _filter_origins(counting)
        return make(values)


def _filter_origins(counting: Effective) -> tuple[str, ...]:
    """Return where filters are set, if a file sets any (an empty list is none): file and line, and the command line."""
    origins = [setting.origin for setting in counting.settings if setting.name in _FILTERS and setting.words]
    if origins and any(option.name in _FILTERS for option in counting.given):
        origins.append(COMMAND_LINE)
    return tuple(origins)


@contextmanager
def _explaining(settings: Sequence[Setting]) -> Iterator[None]:
    """What is ``Refused`` also tells where the option is set, if one of ``settings`` is meant."""
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
    return [word for setting in settings for word in setting.words]


def _is_about(text: str, setting: Setting) -> bool:
    if re.search(rf"--{re.escape(setting.name)}(?![\w-])", text):
        return True
    if setting.name in _FILTERS:
        return "the filters select nothing" in text
    paths = [one for one in _values(setting) if "/" in one or setting.name in _OUTPUTS]
    return any(re.match(rf"{re.escape(shown(os.fsencode(path)))}[: ]", text) for path in paths)


def _values(setting: Setting) -> list[str]:
    values = setting.value if isinstance(setting.value, list) else [setting.value]
    return [value for value in values if isinstance(value, str)]


def _over(lower: Sequence[Setting], higher: Sequence[Setting]) -> list[Setting]:
    """All settings, but for those that are replaced."""
    names = {setting.name for setting in higher}
    dests = {setting.dest for setting in higher if setting.words and setting.name not in PATTERNS}
    kept = [
        setting
        for setting in lower
        if setting.name not in names and setting.dest not in dests and not any(_contradicts(setting, h) for h in higher)
    ]
    return [*kept, *higher]


def _contradicts(setting: Setting, other: Setting | Written) -> bool:
    for one, another in AGAINST:
        for mine, theirs in ((one, another), (another, one)):
            if setting.says(mine) and other.says(theirs) and setting.name != other.name:
                return True
    return False


def _is_of_use(setting: Setting, beside: Iterable[Setting | Written]) -> bool:
    needed = _NEEDS.get(setting.name)
    return not needed or any(other.says(needed) for other in beside)
