"""The keys that a file of options may have: which there are, and the words that say the same on a command line.

Rule: a file sets how work is done, never what is done to whom: what names a job, a destination, or what somebody has to
agree to is given by hand. Keys are the names of options, and their values go through the parser of the command line, so
that there is one truth.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from pcopy.errors import Refused
from pcopy.jobs.meant import nearest
from pcopy.named import NamedTuple
from pcopy.signature.plain_yaml import Scalar, Value
from pcopy.text import harmless, shown

if TYPE_CHECKING:
    from argparse import Action, ArgumentParser

    from pcopy.cli.mistakes import Unknown

PROGRAMS = ("pcopy", "psync", "pverify", "prm", "pstripe", "ptar", "pbcast", "pdbench", "pwalk", "pchmod")
"""Programs, each of which may have a mapping of its own in a file."""

BY_HAND = frozenset(
    (
        *("help", "version", "config", "show-config", "insecure-links", "resume", "jobs", "discard", "control"),
        *("dry-run", "yes", "force", "delete", "delete-all", "mirror", "signature", "create", "files-from"),
        *("from0", "compare", "output", "null", "compress", "decompress", "from"),
    )
)
"""Options that no file sets."""

BY_HAND_OF: Mapping[str, Collection[str]] = {
    "pchmod": {"mode", "reference", "owner", "group", "acl-from"},
    "pdbench": {"svg"},
    "pwalk": {"page", "summary", "json-lines", "print0"},
    "pcopy": {"manifest"},
    "psync": {"manifest"},
    "pverify": {"manifest"},
    "pstripe": {"stripe"},
    "ptar": {"extract", "list", "file", "directory", "strip-components", "sparse-limit", "gzip", "zstd"},
}
"""The same, of one program: with ``--stripe`` pstripe changes layouts, without it it looks at them."""

PATTERNS = frozenset(("exclude", "include", "exclude-from"))
"""Options whose values from all places count, in order."""

_TRUE, _FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")
_NOTHING = ("", "~", "null", "Null", "NULL")
_BATCH = 250
"""Options that are parsed at once."""
_PATHS = ("FILE", "DIR")


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


def batched(words: Sequence[str]) -> Iterator[Sequence[str]]:
    """``words`` of settings as argparse is to have them: for each option it looks at all others, and thousands take
    minutes."""
    return (words[at : at + _BATCH] for at in range(0, len(words), _BATCH))


def name_of(action: Action) -> str:
    """The key of an option; empty if it has only letters."""
    return next((option[2:] for option in action.option_strings if option.startswith("--")), "")


def names_of(action: Action) -> list[str]:
    return [option[2:] for option in action.option_strings if option.startswith("--")]


class Keys:
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
            for some in batched(words):
                self._parser.parse_known_args(some)
        except (Refused, ValueError) as error:
            hint = "" if is_own else _only_for_others(words, name, program)
            raise Refused(f"{place}: {key}: {_reason(str(error))}{hint}") from None
        return [Setting(name, action.dest, tuple(words), value, place)]

    def _unknown(self, key: str, is_own: bool) -> str:
        program, option = self._program.name, f"--{key}"
        unknown = self._program.unknown
        if key in BY_HAND or key in BY_HAND_OF.get(program, ()):
            return _given_by_hand(key)
        if option in unknown.habits:
            return f"{key}: {unknown.habits[option]}"
        keys = [*self._actions, *(() if is_own else (*_keys_of_others(program), *PROGRAMS))]
        near = nearest(key.lstrip("-").replace("_", "-"), sorted(set(keys) - BY_HAND))
        hint = f"the nearest is {near}" if near else f"see {program} --show-config"
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
            keys = {**dict.fromkeys(may, (other, parser)), **keys}
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
    if action.nargs == 0 or (may_be_flag(action) and value in (*_TRUE, *_FALSE)):
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
    if action.const is not None and action.const is not True and action.nargs == 0:
        raise ValueError(f"write {action.dest}: {action.const}")
    is_plain = isinstance(value, Scalar) and value.plain
    if is_plain and value in _FALSE:
        return []
    if is_plain and value in _TRUE:
        return [f"--{name}={action.const}" if may_be_flag(action) else f"--{name}"]
    if not _is_counted(action):
        raise ValueError(f"write true or false{_not(value)}")
    if not (is_plain and isinstance(value, str) and value in ("0", "1", "2")):
        raise ValueError(f"write 0, 1 or 2{_not(value)}")
    return [f"--{name}"] * int(value)


def may_be_flag(action: Action) -> bool:
    """Return True if the option does not need a value, and has none by default."""
    return action.nargs == "?" and action.default is None and action.choices is not None


def _is_counted(action: Action) -> bool:
    return type(action).__name__ == "_CountAction"


def is_repeated(action: Action) -> bool:
    return type(action).__name__ == "_AppendAction"


def _not(value: Value) -> str:
    if isinstance(value, Scalar) and not value.plain and value in (*_TRUE, *_FALSE, "0", "1", "2"):
        return ", without quotes"
    return f", not {shown(os.fsencode(value))}" if isinstance(value, str) else ", and nothing else"


def _single(value: Value) -> str:
    if not isinstance(value, str):
        raise ValueError("takes a value, and neither a mapping nor a list within it")
    return value


def _path(action: Action, text: str) -> str:
    if action.metavar in _PATHS and text.startswith("~"):
        raise ValueError(f"{shown(os.fsencode(text))}: only a shell knows what ~ is; write the path in full")
    if action.metavar in _PATHS and text == "-":
        raise ValueError("-: name a file; standard streams are for the command line")
    return text
