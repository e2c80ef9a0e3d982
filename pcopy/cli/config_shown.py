"""``--show-config``: the options that count, as YAML that ``--config`` reads, and where each comes from.

Rule: read by ``--config`` the same options count. What is at its default and has no word for that is a comment.
"""

from __future__ import annotations

import re
from argparse import SUPPRESS, Action
from collections.abc import Iterator, Sequence
from itertools import groupby

from pcopy.cli.config_keys import BY_HAND, BY_HAND_OF, Configurable, Setting, is_repeated, name_of
from pcopy.cli.configuration import Written, effective
from pcopy.named import NamedTuple
from pcopy.signature.plain_yaml import scalar
from pcopy.text import shown

_COMMAND_LINE = "command line"
_DEFAULT = "default"
_UNITS = (("G", 30), ("M", 20), ("K", 10))
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_WITHOUT_EFFECT = ("archive", "recursive")


class _Said(NamedTuple):
    """An option as it was said once: its name, its value (None: it takes none), and where."""

    name: str
    value: str | None
    origin: str


def shown_config(program: Configurable, words: Sequence[str], files: Sequence[bytes], defaults: Sequence[bytes]) -> str:
    """Its lines; ``defaults`` are the files that are read if they are there. Raises ``Refused``, as ``effective``."""
    options, settings, idle = effective(program, words, files)
    lines = [f"# {shown(path)}: {'read' if path in files else 'not there'}" for path in defaults]
    hidden = {"", *BY_HAND, *BY_HAND_OF.get(program.name, ()), *_WITHOUT_EFFECT}
    groups: dict[str, list[Action]] = {}
    for action in program.parser()._actions:
        if action.help != SUPPRESS and name_of(action) not in hidden:
            groups.setdefault(action.dest, []).append(action)
    for dest, actions in groups.items():
        here = [one for setting in settings if setting.dest == dest for one in _of_setting(setting)]
        here += [_of_given(option, actions) for option in options if option.dest == dest]
        lines += _set(actions, here) if here else _at_default(actions)
    lines += [f"# {setting.name}: does not count with the other options  # {setting.origin}" for setting in idle]
    return "\n".join(lines)


def _of_setting(setting: Setting) -> Iterator[_Said]:
    if not setting.words and isinstance(setting.value, str):  # a flag that is off
        yield _Said(setting.name, setting.value, setting.origin)
    for word in setting.words:
        name, equals, value = word[2:].partition("=")
        yield _Said(name, value if equals else None, setting.origin)


def _of_given(option: Written, actions: Sequence[Action]) -> _Said:
    """A letter that stands for an option and its value (-u) is shown as that."""
    action = next(action for action in actions if name_of(action) == option.name)
    if action.nargs == 0 and isinstance(action.const, str):
        return _Said(name_of(_main(actions)), action.const, _COMMAND_LINE)
    return _Said(option.name, None if action.nargs == 0 else str(option.raw), _COMMAND_LINE)


def _main(actions: Sequence[Action]) -> Action:
    """Of those that mean the same thing, the one that takes a value."""
    return next((action for action in actions if action.nargs != 0), actions[0])


def _set(actions: Sequence[Action], here: Sequence[_Said]) -> list[str]:
    action, last = _main(actions), here[-1]
    if is_repeated(action):
        return _list(here)
    if last.value is not None:
        return [f"{last.name}: {_yaml(last.value)}  # {last.origin}"]
    text = len(here) if _is_counted(action) else "true"
    return [f"{last.name}: {text}  # {last.origin}"]


def _list(here: Sequence[_Said]) -> list[str]:
    """Under a key each, where that keeps their order; else in one list, in which others stand by name."""
    runs = [(name, list(said)) for name, said in groupby(here, lambda said: said.name)]
    if len({name for name, _ in runs}) < len(runs):
        runs = [(here[0].name, list(here))]
    lines = []
    for name, run in runs:
        lines.append(f"{name}:")
        for said in run:
            other = "" if said.name == name else f"{said.name}: "
            lines.append(f"  - {other}{_yaml(said.value or '')}  # {said.origin}")
    return lines


def _at_default(actions: Sequence[Action]) -> list[str]:
    action = _main(actions)
    name = name_of(action)
    if is_repeated(action) and action.metavar != "LIST":
        return [f"{name_of(action)}: []  # {_DEFAULT}" for action in actions]
    if action.nargs == 0:
        return [f"{name}: {'0' if _is_counted(action) else 'false'}  # {_DEFAULT}"]
    text = _text_of(action)
    return [f"# {name}: not set" if text is None else f"{name}: {_yaml(text)}  # {_DEFAULT}"]


def _text_of(action: Action) -> str | None:
    """What a user would write for the default; None if nothing means it."""
    value = action.default
    if value is None or action.type is None or action.choices:
        return None if value is None else str(value)
    texts = [str(value), "auto", "none"]
    if isinstance(value, int):
        texts[:0] = [f"{value >> bits}{unit}" for unit, bits in _UNITS if value and not value & ((1 << bits) - 1)]
    for text in texts:
        try:
            if action.type(text) == value:  # type: ignore[operator]
                return text
        except Exception:  # it is no word for that
            continue
    return None


def _is_counted(action: Action) -> bool:
    return type(action).__name__ == "_CountAction"


def _yaml(text: str) -> str:
    return text if _NUMBER.fullmatch(text) or text == "false" else scalar(text)
