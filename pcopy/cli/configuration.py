"""The configuration: options that files set, for whoever does not give them on the command line.

Rules: a file sets how work is done, never what is done to whom: what names a job, a destination, or what somebody has
to agree to is given by hand. Keys are the names of options, and their values go through the parser of the command line,
so that there is one truth. A higher place replaces what a lower one says: /etc/pcopy.yaml, the user's file, the
one of ``--config``, the command line. Only patterns of the command line come after those of files: the last one that
matches decides.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from pcopy.cli.config_files import read
from pcopy.errors import Refused
from pcopy.launch.launcher import identify, is_launched
from pcopy.named import NamedTuple
from pcopy.signature.plain_yaml import Scalar, Value
from pcopy.text import harmless, shown

if TYPE_CHECKING:
    from argparse import Action, ArgumentParser

    from pcopy.cli.mistakes import Unknown

PROGRAMS = ("pcopy", "pverify", "prm", "pstripe")
"""Programs, each of which may have a mapping of its own in a file."""

BY_HAND = frozenset(
    (
        *("help", "version", "config", "show-config", "resume", "jobs", "discard", "control"),
        *("dry-run", "yes", "force", "delete", "delete-all", "mirror", "signature", "create", "files-from"),
        "from0",
    )
)
"""Options that no file sets."""

BY_HAND_OF: Mapping[str, Collection[str]] = {"pcopy": {"manifest"}, "pverify": {"manifest"}, "pstripe": {"stripe"}}
"""The same, of one program: with ``--stripe`` pstripe changes layouts, without it it looks at them."""

PATTERNS = frozenset(("exclude", "include", "exclude-from"))
"""Options whose values from all places count, in order."""

_AGAINST: tuple[tuple[Collection[str], Collection[str]], ...] = (
    (("no-sync",), ("verify", "repair")),
    (("hash=none",), ("verify", "repair", "signature", "manifest")),
    (("dry-run",), ("metrics",)),
    (("existing", "update", "checksum", "mirror"), ("existing", "update", "checksum", "mirror")),
)
"""Options of which one side cannot be had with the other: what a higher place says counts, the other one gives way."""

_NEEDS = {"stripe-table": ("stripe=auto",), "max-delete": ("delete", "mirror")}
"""Options that a file may set for those commands only that have one of the others."""

_TRUE, _FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")
_NOTHING = ("", "~", "null", "Null", "NULL")
_PATHS = ("FILE", "DIR")
_LEAST_LIKENESS = 0.6
"""How alike an unknown key and a known one are, from 0 to 1, before it is named as the nearest."""


class Configurable(Protocol):
    """What is asked of a program (``pcopy.cli.program.Program``)."""

    unknown: Unknown

    @property
    def name(self) -> str: ...

    def parser(self) -> ArgumentParser: ...

    def configurable(self, given: Collection[str]) -> Collection[str] | None: ...


class Setting(NamedTuple):
    """A key of a file: its option's ``name``, where argparse keeps it, and the ``words`` that say the same.

    There are none where a flag is false. ``value`` is what the file has, and ``origin`` its name and line.
    """

    name: str
    dest: str
    words: tuple[str, ...]
    value: Value
    origin: str

    def says(self, options: Collection[str]) -> bool:
        """Is it one of ``options``: a name, or a name and a value?"""
        return bool(self.words) and (self.name in options or f"{self.name}={self.value}" in options)


class Written(NamedTuple):
    """An option of the command line, by its first long ``name``, with its ``raw`` value: text, texts, or None."""

    name: str
    dest: str
    raw: Any

    def says(self, options: Collection[str]) -> bool:
        return self.name in options or f"{self.name}={self.raw}" in options


def name_of(action: Action) -> str:
    """The key of an option; empty if it has only letters."""
    return next((option[2:] for option in action.option_strings if option.startswith("--")), "")


def names_of(action: Action) -> list[str]:
    return [option[2:] for option in action.option_strings if option.startswith("--")]


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
        keys = _Keys(program)
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


@contextmanager
def explaining(settings: Sequence[Setting]) -> Iterator[None]:
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
    value = setting.value
    names_it = re.search(rf"--{re.escape(setting.name)}(?![\w-])", text)
    return bool(names_it) or (isinstance(value, str) and "/" in value and text.startswith(shown(os.fsencode(value))))


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
    for one, another in _AGAINST:
        for mine, theirs in ((one, another), (another, one)):
            if setting.says(mine) and other.says(theirs) and setting.name != other.name:
                return True
    return False


def _is_of_use(setting: Setting, beside: Iterable[Setting | Written]) -> bool:
    needed = _NEEDS.get(setting.name)
    return not needed or any(other.says(needed) for other in beside)


class _Keys:
    """The keys that a file may have, and what they mean for one program."""

    def __init__(self, program: Configurable) -> None:
        self._program = program
        self._parser = program.parser()
        self._actions = _by_key(self._parser)

    def own(self, path: bytes, mapping: Mapping[str, Value]) -> list[Setting]:
        """What the program's own mapping sets."""
        found = []
        for key, value in mapping.items():
            assert isinstance(key, Scalar)
            found += self.settings(key, value, f"{shown(path)}:{key.line}", is_own=True)
        return found

    def settings(self, key: str, value: Value, place: str, *, is_own: bool = False) -> list[Setting]:
        """One, or none if the key is for other programs; raises ``Refused``."""
        program = self._program.name
        action = self._actions.get(key)
        if action is None or key in BY_HAND_OF.get(program, ()):
            if not is_own and key in _keys_of_others(program):
                return []
            raise Refused(f"{place}: {self._unknown(key, is_own)}")
        if key in BY_HAND:
            raise Refused(f"{place}: {_given_by_hand(key)}")
        name = name_of(action)
        siblings = [name_of(one) for one in self._parser._actions if one.dest == action.dest]
        words: list[str] = []
        try:
            words = _words(action, name, value, siblings)
            self._parser.parse_known_args(words)
        except (Refused, ValueError) as error:
            hint = "" if is_own else _only_for_others(words, name, program)
            raise Refused(f"{place}: {key}: {_reason(str(error))}{hint}") from None
        return [Setting(name, action.dest, tuple(words), value, place)]

    def _unknown(self, key: str, is_own: bool) -> str:
        program, option = self._program.name, f"--{key}"
        unknown = self._program.unknown
        if key in BY_HAND or key in BY_HAND_OF.get(program, ()):
            return _given_by_hand(key)
        if option in unknown.not_yet:
            return f"{key}: not yet in this version of {program}"
        if option in unknown.habits:
            return f"{key}: {unknown.habits[option]}"
        from difflib import get_close_matches

        keys = [*self._actions, *(() if is_own else (*_keys_of_others(program), *PROGRAMS))]
        keys = sorted(set(keys) - BY_HAND)
        near = get_close_matches(key.lstrip("-").replace("_", "-").lower(), keys, 1, _LEAST_LIKENESS)
        hint = f"the nearest is {near[0]}" if near else f"see {program} --show-config"
        return f"{shown(os.fsencode(key))}: there is no such key; {hint}"


def _by_key(parser: ArgumentParser) -> dict[str, Action]:
    return {name: action for action in parser._actions for name in names_of(action)}


def _keys_of_others(program: str) -> dict[str, tuple[str, ArgumentParser]]:
    """The keys that files may set for other programs, with one that has it, and its parser."""
    from importlib import import_module

    keys: dict[str, tuple[str, ArgumentParser]] = {}
    for other in PROGRAMS:
        if other != program:
            parser = getattr(import_module(f"pcopy.cli.{other}"), other.upper()).parser()
            may = (set(_by_key(parser)) - BY_HAND).difference(BY_HAND_OF.get(other, ()))
            keys |= dict.fromkeys(may, (other, parser))
    return keys


def _given_by_hand(key: str) -> str:
    return f"{key}: no file sets this; write --{key} on the command line"


def _only_for_others(words: Sequence[str], name: str, program: str) -> str:
    """What to do about a value that is good for another program."""
    other, parser = _keys_of_others(program).get(name, ("", None))
    if parser is None or not words:
        return ""
    try:
        parser.parse_known_args(words)
    except Refused:
        return ""
    return f"; {other} takes it: put it below {other}: if it is for that"


def _reason(text: str) -> str:
    """What is wrong, without the option's name, which argparse puts in front."""
    text = re.sub(r"^(-\w/)*--[\w-]+(/-[\w-]+)*: ", "", text)
    return harmless(re.sub(r"; see \w+ --help$", "", text))


def _words(action: Action, name: str, value: Value, siblings: Sequence[str]) -> list[str]:
    """The words that say on a command line what the file says; raises ``ValueError``.

    ``siblings``: the options that add to the same list. One may stand by its name in the list, which keeps the order.
    """
    if isinstance(value, Scalar) and value.plain and value in _NOTHING:
        raise ValueError("has no value: write one, or leave the line out")
    if action.nargs == 0:
        return _flag(action, name, value)
    if action.metavar == "TABLE" and isinstance(value, dict):
        return [f"--{name}={','.join(f'{size}={_single(count)}' for size, count in value.items())}"]
    if not isinstance(value, list):
        return [f"--{name}={_path(action, _single(value))}"]
    if not is_repeated(action):
        raise ValueError("takes one value, and no list")
    if not value and action.metavar == "LIST":
        raise ValueError(f"an empty list; for none of them write no-{name.removeprefix('no-')}: all")
    words = []
    for item in value:
        option, text = name, item
        if isinstance(item, dict) and len(item) == 1:
            ((option, text),) = item.items()
            if option not in siblings:
                raise ValueError(f"{shown(os.fsencode(option))}: only {', '.join(siblings)} may stand in the list")
        words.append(f"--{option}={_path(action, _single(text))}")
    return words


def _flag(action: Action, name: str, value: Value) -> list[str]:
    if action.const is not None and action.const is not True:
        raise ValueError(f"write {action.dest}: {action.const}")
    is_plain = isinstance(value, Scalar) and value.plain
    if is_plain and value in _FALSE:
        return []
    if is_plain and value in _TRUE:
        return [f"--{name}"]
    if not _is_counted(action):
        raise ValueError(f"write true or false{_not(value)}")
    if not (is_plain and isinstance(value, str) and value in ("0", "1", "2")):
        raise ValueError(f"write 0, 1 or 2{_not(value)}")
    return [f"--{name}"] * int(value)


def _is_counted(action: Action) -> bool:
    return type(action).__name__ == "_CountAction"


def is_repeated(action: Action) -> bool:
    return type(action).__name__ == "_AppendAction"


def _not(value: Value) -> str:
    return f", not {shown(os.fsencode(value))}" if isinstance(value, str) else ", and nothing else"


def _single(value: Value) -> str:
    if not isinstance(value, str):
        raise ValueError("takes a value, and neither a mapping nor a list within it")
    return value


def _path(action: Action, text: str) -> str:
    if action.metavar in _PATHS and text.startswith("~"):
        raise ValueError(f"{shown(os.fsencode(text))}: only a shell knows what ~ is; write the path in full")
    return text
