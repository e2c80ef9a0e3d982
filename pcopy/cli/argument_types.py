"""What the options of command lines take: owners, numbers, sizes, times. Each raises ``ValueError`` with the reason."""

from __future__ import annotations

import grp
import math
import os
import pwd
from collections.abc import Callable
from functools import partial
from typing import Any

from pcopy.fsio.preserve import CAP_CHOWN, are_mapped, capable
from pcopy.text import shown
from pcopy.units import parse_size

_LARGEST = (1 << 32) - 2
"""The next number stands for "as it is"."""
LARGEST_NUMBER = (1 << 63) - 1
"""The largest value of an option that is a number: the kernel in C has 64 bits and a sign for it."""
LONGEST_TIME = 10**9
"""Seconds, some 30 years: the most that an option may make a program wait; waits in C take no more than 2**31 s."""
MOST_IN_FLIGHT = 64
"""Operations that a process keeps under way at most."""
_LEVELS = range(1, 23)
"""Of zstd (``zstd --help``: 1 to 19, and with ``--ultra`` up to 22)."""
_AS_IT_IS = -1
"""What chown(2) takes for an owner or a group that stays."""
_FAKEROOT = "FAKEROOTKEY"
"""What fakeroot(1) sets in the environment."""


def parse_owner(text: str) -> tuple[int, int]:
    """Uid and gid of ``USER:GROUP``, ``USER``, ``:GROUP`` or ``USER:`` (that user's login group); -1: not named.

    A name counts before a number, as with chown(1). Raises ``ValueError`` for what is unknown, or not this process's
    to give away.
    """
    user, colon, group = text.partition(":")
    if not (user or group):
        raise ValueError("names neither a user nor a group")
    uid = _number_of(lambda: pwd.getpwnam(user).pw_uid, user, "user") if user else _AS_IT_IS
    gid = _login_group(uid, user) if colon and not group else _AS_IT_IS
    if group:
        gid = _number_of(lambda: grp.getgrnam(group).gr_gid, group, "group")
    if not capable(CAP_CHOWN) and os.geteuid():  # root without the capability may have a fakeroot, which allows it
        if uid not in (_AS_IT_IS, os.geteuid()):
            raise ValueError("only root may give files to another user")
        if gid not in (_AS_IT_IS, os.getegid(), *os.getgroups()):
            raise ValueError("only root may give files to a group that he is not in")
    _refuse_unmapped(uid, gid)
    return uid, gid


def _refuse_unmapped(uid: int, gid: int) -> None:
    """Raise ``ValueError`` for an id that the user namespace lacks, to which chown(2) would refuse each item."""
    if _FAKEROOT in os.environ or (not os.geteuid() and not capable(CAP_CHOWN)):
        return  # a fakeroot may record any owner
    for kind, word, number, is_there in (
        ("user", "uid", uid, are_mapped(uid, -1)),
        ("group", "gid", gid, are_mapped(-1, gid)),
    ):
        if not is_there:
            raise ValueError(
                f"the user namespace does not map {kind} {number}; name one that /proc/self/{word}_map has, "
                "or start it outside of the namespace"
            )


def _number_of(look_up: Callable[[], int], text: str, kind: str) -> int:
    """What ``look_up`` finds for ``text``, or else that number itself."""
    try:
        return look_up()
    except KeyError:
        digits = text.removeprefix("+")
    number = whole_number(digits, 0, _LARGEST)
    if number is None:
        advice = ", and a colon stands before the group: USER:GROUP" if kind == "user" and "." in text else ""
        raise ValueError(f"there is no {kind} {text}{advice}")
    return number


def _login_group(uid: int, name: str) -> int:
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        raise ValueError(f"user {name} has no login group here") from None


MINIMUM_BLOCK = 64 << 10
"""The smallest block in bytes: with smaller ones a digest would cost more in calls than in hashing."""
_UNITS_OF_TIME = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def taking(convert: Any) -> Any:
    """``convert``, with the reason that it gives (argparse drops that of a ValueError)."""
    import argparse

    def converted(text: str) -> Any:
        try:
            return convert(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{shown(os.fsencode(text))}: {error}" if text else str(error)) from None

    return converted


def whole_number(text: str, minimum: int, maximum: int) -> int | None:
    """Return the number that ``text`` holds in decimal digits, or None if it is no such number, or out of range."""
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0") or "0"
    if len(digits) > len(str(maximum)):  # int() refuses texts with thousands of digits
        return None
    return int(digits) if minimum <= int(digits) <= maximum else None


def integer(text: str, minimum: int) -> int:
    number = whole_number(text, minimum, LARGEST_NUMBER)
    if number is None:
        if text.isascii() and text.isdigit() and text.strip("0"):
            raise ValueError(f"too large: write a number of {LARGEST_NUMBER} or less")
        raise ValueError(f"not a whole number of {minimum} or more")
    return number


at_least_0 = partial(integer, minimum=0)
at_least_1 = partial(integer, minimum=1)


def ranks(text: str) -> int:
    """Raises ``ValueError``, which also says what else the letter n may have meant."""
    if not text.lstrip("-").isdigit():
        raise ValueError("not a number of processes (rsync's -n: --dry-run; cp's --no-clobber: --existing skip)")
    return at_least_1(text)


def in_flight(text: str) -> int:
    """0 stands for auto."""
    if text == "auto":
        return 0
    number = whole_number(text, 1, MOST_IN_FLIGHT)
    if number is None:
        raise ValueError(f"neither auto nor a number from 1 to {MOST_IN_FLIGHT}")
    return number


def seconds(text: str) -> float:
    if not text.isascii() or not text.replace(".", "", 1).isdigit() or float(text) <= 0:
        raise ValueError("not a number of seconds above 0")
    if float(text) > LONGEST_TIME:
        raise ValueError(f"too large: write {LONGEST_TIME} seconds or less")
    return float(text)


def age(text: str) -> float:
    """Seconds; raises ``ValueError``."""
    number, unit = text[:-1], _UNITS_OF_TIME.get(text[-1:])
    if unit is None or not number.isascii() or not number.replace(".", "", 1).isdigit():
        raise ValueError(f"not an age: a number and one of {', '.join(_UNITS_OF_TIME)}, as in 7d")
    if math.isinf(seconds := float(number) * unit):
        raise ValueError("older than any file")
    return seconds


def size(text: str, what: str) -> int:
    size = parse_size(text)
    if size < 1:
        raise ValueError(f"{what} at least one byte")
    return size


def rate(text: str) -> int:
    """``--bwlimit``: bytes a second; 0: no limit."""
    return parse_size(text[:-2] if text.lower().endswith("/s") else text)


def chunk_size(text: str) -> int:
    return 0 if text == "auto" else size(text, "a chunk holds")


def block_size(text: str) -> int:
    size = parse_size(text)
    if size < MINIMUM_BLOCK or size & (size - 1):
        raise ValueError("not a power of two of 64 KiB or more")
    return size


def stripe(text: str) -> str:
    """``--stripe``: it is parsed again where it is used (``pcopy.lustre.wish``)."""
    from pcopy.lustre.wish import parse_wish

    parse_wish(text)
    return text


def stripe_table(text: str) -> str:
    """``--stripe-table``, as ``stripe``."""
    from pcopy.lustre.wish import parse_table

    parse_table(text)
    return text


def compression(text: str) -> str:
    """``zstd:LEVEL``; a level that is not given is that of zstd itself."""
    name, colon, level = text.partition(":")
    if name != "zstd":
        raise ValueError(f"there is no '{shown(os.fsencode(name))}' here, only zstd and zstd:LEVEL")
    if not colon:
        return "zstd:3"
    number = whole_number(level, _LEVELS[0], _LEVELS[-1])
    if number is None:
        raise ValueError(f"a level of zstd is a number from {_LEVELS[0]} to {_LEVELS[-1]}")
    return f"zstd:{number}"
