"""Modes in the syntax of chmod(1): octal numbers, and symbolic modes such as ``u+rwX,go-w``.

The rules are those of GNU chmod. If none of ``u``, ``g``, ``o`` and ``a`` is given, ``+``, ``-`` and ``=`` do not
affect the bits that are set in the umask. The set-id bits of a directory are kept unless they are named: by ``s``, by
an octal number of five digits or more, or by a leading 4 or 2.
"""

from __future__ import annotations

import re
import stat

from pcopy.fast_named_tuple import NamedTuple

ALL_MODE_BITS = 0o7777
"""All bits that chmod(2) can set: permission bits, set-id bits and the sticky bit."""
_SET_ID_BITS = stat.S_ISUID | stat.S_ISGID
_BITS_OF_PERMISSION_LETTERS = {"r": 0o444, "w": 0o222, "x": 0o111}
"""The mode bits of each permission letter (r, w, x), for owner, group and others together."""
_BITS_OF_CLASS_LETTERS = {"u": 0o4700, "g": 0o2070, "o": 0o1007, "a": ALL_MODE_BITS}
"""The mode bits that an action for each class letter (u, g, o, a) may change."""
_CLASS_PERMISSIONS = {"u": 0o700, "g": 0o070, "o": 0o007}
"""The permission bits (rwx) of each class: owner (u), group (g) and others (o)."""
_BITS_OF_ACTION_LETTERS = {**_BITS_OF_PERMISSION_LETTERS, "X": 0, "s": _SET_ID_BITS, "t": stat.S_ISVTX}
"""The mode bits for each letter that may follow an operator. ``X`` has none here, because its meaning depends on the
item: ``mode_after_changes`` decides about it.
"""
_CLAUSE_PATTERN = re.compile(r"([ugoa]*)((?:[-+=](?:[ugo]|[rwxXst]*))+|[-+=][0-7]+)")
"""One clause of a symbolic mode: class letters and one or more actions; or an operator and an octal number."""
_ACTION_PATTERN = re.compile(r"([-+=])([ugo](?![rwxXst])|[rwxXst]*|[0-7]+)")
"""One action of a clause: an operator, and the permission letters, or the class letter whose permissions are copied."""


class ModeChange(NamedTuple):
    """One action of a mode, such as ``+rX`` in ``u+rX,go-w``.

    Fields:
    - ``operator``: ``+``, ``-`` or ``=``.
    - ``affected``: mode bits of the classes (u, g, o, a) that are named; 0 if no class is named, so that the umask
      applies.
    - ``value``: bits to add, remove or set.
    - ``affected_on_directories``: bits that the action may change on directories; set-id bits that are not among them
      are kept.
    """

    operator: str
    affected: int
    value: int
    affected_on_directories: int
    copied_permissions: int = 0
    """Permission bits of the class whose permissions are copied (as in ``g=u``); else 0."""
    has_conditional_x: bool = False
    """True if ``X`` is among the letters (execute permission for directories and executable files only)."""


def parse_mode(text: str) -> tuple[ModeChange, ...]:
    """Return the actions of the mode ``text``, an octal number or a symbolic mode such as ``u+rX,go-w``; raise
    ``ValueError`` if it is malformed.
    """
    if re.fullmatch("[0-7]+", text):
        return (_octal_mode_change("=", text, explicit=len(text) > 4),)
    actions: list[ModeChange] = []
    for clause in text.split(","):
        found = _CLAUSE_PATTERN.fullmatch(clause)
        if found is None:
            raise ValueError(text)
        classes, rest = found.groups()
        if rest[-1].isdigit():
            if classes:
                raise ValueError(text)
            actions.append(_octal_mode_change(rest[0], rest[1:], explicit=True))
            continue
        affected = 0
        for letter in classes:
            affected |= _BITS_OF_CLASS_LETTERS[letter]
        actions += [_symbolic_mode_change(one[1], one[2], affected) for one in _ACTION_PATTERN.finditer(rest)]
    return tuple(actions)


def _octal_mode_change(operator: str, digits: str, *, explicit: bool) -> ModeChange:
    """Return the action of an operator (``+``, ``-`` or ``=``) with the octal number ``digits``; raise ``ValueError``
    if the number is too large.

    ``explicit``: True if the number sets or clears all set-id bits of directories; False if only the set-id bits in it
    are set.
    """
    value = int(digits, 8)
    if value > ALL_MODE_BITS:
        raise ValueError(digits)
    return ModeChange(operator, ALL_MODE_BITS, value, ALL_MODE_BITS if explicit else (value & _SET_ID_BITS) | 0o1777)


def _symbolic_mode_change(operator: str, letters: str, affected: int) -> ModeChange:
    """Return the action of an operator (``+``, ``-`` or ``=``) with the permission letters ``letters``. ``affected``:
    mode bits of the classes that are named; 0 if none is.
    """
    if letters in _CLASS_PERMISSIONS:
        return ModeChange(
            operator,
            affected,
            0,
            affected & _CLASS_PERMISSIONS[letters] or _CLASS_PERMISSIONS[letters],
            _CLASS_PERMISSIONS[letters],
        )
    value = 0
    for letter in letters:
        value |= _BITS_OF_ACTION_LETTERS[letter]
    return ModeChange(
        operator, affected, value, affected & value if affected else value, has_conditional_x="X" in letters
    )


def mode_after_changes(mode: int, actions: tuple[ModeChange, ...], umask: int) -> int:
    """Return the permission bits that an item with the given ``mode`` (st_mode) has after ``actions``, which
    ``parse_mode`` returned. Actions that name no class do not affect the bits that are set in ``umask``.
    """
    is_directory, bits = stat.S_ISDIR(mode), stat.S_IMODE(mode)
    for action in actions:
        kept = _SET_ID_BITS & ~action.affected_on_directories if is_directory else 0
        value = action.value
        if action.copied_permissions:
            permissions = bits & action.copied_permissions
            value = sum(each for each in _BITS_OF_PERMISSION_LETTERS.values() if permissions & each)
        if action.has_conditional_x and (is_directory or bits & 0o111):
            value |= 0o111
        value &= (action.affected or ~umask) & ~kept
        if action.operator == "+":
            bits |= value
        elif action.operator == "-":
            bits &= ~value
        else:
            bits = bits & ((~action.affected if action.affected else 0) | kept) | value
    return bits & ALL_MODE_BITS
