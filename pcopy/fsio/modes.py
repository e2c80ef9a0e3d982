"""Modes as chmod(1) takes them: octal numbers, and letters such as ``u+rwX,go-w``.

Rules of GNU chmod: without ``ugoa`` the umask says which bits ``+``, ``-`` and ``=`` leave alone. The set-id bits of a
directory stay unless they are named: by ``s``, or by an octal number of five digits or more, or with 4 or 2 in front.
"""

from __future__ import annotations

import re
import stat

from pcopy.named import NamedTuple

ALL = 0o7777
"""Permission bits, set-id bits and the sticky bit."""
_SET_ID = stat.S_ISUID | stat.S_ISGID
_ANY = {"r": 0o444, "w": 0o222, "x": 0o111}
_WHO = {"u": 0o4700, "g": 0o2070, "o": 0o1007, "a": ALL}
_OF = {"u": 0o700, "g": 0o070, "o": 0o007}
_VALUES = {**_ANY, "X": 0, "s": _SET_ID, "t": stat.S_ISVTX}
_CLAUSE = re.compile(r"([ugoa]*)((?:[-+=](?:[ugo]|[rwxXst]*))+|[-+=][0-7]+)")
_ACTION = re.compile(r"([-+=])([ugo](?![rwxXst])|[rwxXst]*|[0-7]+)")


class ModeChange(NamedTuple):
    """One change. ``affected``: the bits of those whom it is for, 0 if nobody is named. ``mentioned`` are bits that it
    changes of directories, too."""

    operator: str
    affected: int
    value: int
    mentioned: int
    copied: int = 0
    """Of whom the permissions are taken over."""
    if_any: bool = False
    """Is ``X`` among the letters?"""


def parse_mode(text: str) -> tuple[ModeChange, ...]:
    """Raises ``ValueError`` if it is no mode."""
    if re.fullmatch("[0-7]+", text):
        return (_octal("=", text, explicit=len(text) > 4),)
    actions: list[ModeChange] = []
    for clause in text.split(","):
        found = _CLAUSE.fullmatch(clause)
        if found is None:
            raise ValueError(text)
        who, rest = found.groups()
        if rest[-1].isdigit():
            if who:
                raise ValueError(text)
            actions.append(_octal(rest[0], rest[1:], explicit=True))
            continue
        affected = 0
        for letter in who:
            affected |= _WHO[letter]
        actions += [_action(one[1], one[2], affected) for one in _ACTION.finditer(rest)]
    return tuple(actions)


def _octal(operator: str, digits: str, *, explicit: bool) -> ModeChange:
    value = int(digits, 8)
    if value > ALL:
        raise ValueError(digits)
    return ModeChange(operator, ALL, value, ALL if explicit else (value & _SET_ID) | 0o1777)


def _action(operator: str, letters: str, affected: int) -> ModeChange:
    if letters in _OF:
        return ModeChange(operator, affected, 0, affected & _OF[letters] or _OF[letters], _OF[letters])
    value = 0
    for letter in letters:
        value |= _VALUES[letter]
    return ModeChange(operator, affected, value, affected & value if affected else value, if_any="X" in letters)


def changed(mode: int, actions: tuple[ModeChange, ...], umask: int) -> int:
    """The permission bits of an item that had the ``mode`` of a status."""
    is_directory, bits = stat.S_ISDIR(mode), stat.S_IMODE(mode)
    for action in actions:
        kept = _SET_ID & ~action.mentioned if is_directory else 0
        value = action.value
        if action.copied:
            taken = bits & action.copied
            value = sum(each for each in _ANY.values() if taken & each)
        if action.if_any and (is_directory or bits & 0o111):
            value |= 0o111
        value &= (action.affected or ~umask) & ~kept
        if action.operator == "+":
            bits |= value
        elif action.operator == "-":
            bits &= ~value
        else:
            bits = bits & ((~action.affected if action.affected else 0) | kept) | value
    return bits & ALL
