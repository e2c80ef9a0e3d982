"""Modes as find's ``-perm`` accepts them: octal numbers, or symbolic modes as for chmod(1), which are applied to mode
0.
"""

from __future__ import annotations

import re

_CLAUSE = re.compile(r"([ugoa]*)((?:[-+=](?:[ugo]|[rwxXst]*))+)")
_ACTION = re.compile(r"([-+=])([ugo]|[rwxXst]*)")
_BITS_OF_CLASS = {"u": 0o4700, "g": 0o2070, "o": 0o1007}
_BITS_OF_LETTER = {"r": 0o444, "w": 0o222, "x": 0o111}
_SHIFT_OF_CLASS = {"u": 6, "g": 3, "o": 0}


def parse_permissions(mode: str, *, directory: bool) -> int:
    """Return the permission bits that ``mode``, an argument of find's ``-perm``, denotes. Raise ``ValueError`` if
    ``mode`` is neither octal nor symbolic.

    Args:
        directory: True for the bits that it denotes for a directory; they may be others (``X``).
    """
    if re.fullmatch(r"[0-7]{1,5}", mode) and int(mode, 8) <= 0o7777:
        return int(mode, 8)
    bits = 0
    for clause in mode.split(","):
        found = _CLAUSE.fullmatch(clause)
        if found is None:
            raise ValueError("an octal mode is expected, such as 0644, or a symbolic one, such as u=rw,g+w")
        for operator, letters in _ACTION.findall(found[2]):
            bits = _apply_symbolic_mode_action(bits, found[1], operator, letters, directory=directory)
    return bits


def _apply_symbolic_mode_action(bits: int, who: str, operator: str, what: str, *, directory: bool) -> int:
    """Return ``bits`` after one action of a symbolic mode, such as ``g+w``. With ``=``, a directory keeps its
    set-user-ID and set-group-ID bits unless ``what`` contains ``s``.

    Args:
        who: letters of ``ugoa``; empty: all.
        operator: ``+``, ``-`` or ``=``.
        what: letters of ``rwxXst``, or one of ``ugo`` for the bits that this class has.
        directory: True for a directory.
    """
    reached = 0o7777 if not who or "a" in who else 0
    for each in who.replace("a", ""):
        reached |= _BITS_OF_CLASS[each]
    wanted = _permission_bits_of_letters(bits, what, directory=directory) & reached
    if operator == "+":
        return bits | wanted
    if operator == "-":
        return bits & ~wanted
    kept = 0o6000 if directory and "s" not in what else 0
    return (bits & (~reached | kept)) | wanted


def _permission_bits_of_letters(bits: int, what: str, *, directory: bool) -> int:
    """Return the permission bits that ``what``, the letters of a symbolic mode such as ``rw``, denote for user, group
    and others together. ``bits`` is the mode so far, which ``X``, ``u``, ``g`` and ``o`` refer to.
    """
    if what in _SHIFT_OF_CLASS and what:
        return (bits >> _SHIFT_OF_CLASS[what] & 7) * 0o111
    wanted = 0
    for letter in what:
        if letter == "s":
            wanted |= 0o6000
        elif letter == "t":
            wanted |= 0o1000
        elif letter == "X":
            wanted |= 0o111 if directory or bits & 0o111 else 0
        else:
            wanted |= _BITS_OF_LETTER[letter]
    return wanted
