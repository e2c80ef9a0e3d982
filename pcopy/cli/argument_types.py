"""Converters for the values of command-line options: owners, numbers, sizes, times.

Each converter takes the value of an option as the user wrote it, and returns the value that the program uses. If the
text is not valid, it raises ``ValueError`` with the reason; the caller puts the name of the option before the reason.
"""

from __future__ import annotations

import grp
import math
import os
import pwd
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from pcopy.fsio.preserve import CAP_CHOWN, are_ids_mapped_in_namespace, has_capability
from pcopy.text import printable_path
from pcopy.units import parse_size

_MAX_USER_OR_GROUP_ID = (1 << 32) - 2
"""The largest user or group ID. The next number, 2**32 - 1, means "leave unchanged" to chown(2)."""
MAX_OPTION_NUMBER = (1 << 63) - 1
"""The largest value of an option that is a number: the C backend stores it as a signed 64-bit integer."""
MAX_OPTION_SECONDS = 10**9
"""The largest value of an option that is a time, in seconds: some 30 years.

It is less than 2**31 s, the longest wait in the C code.
"""
MAX_IN_FLIGHT = 64
"""The largest value of ``--in-flight``: the number of file operations that one process runs at the same time."""
_ZSTD_LEVELS = range(1, 23)
"""The valid compression levels of zstd (``zstd --help``: 1 to 19, and with ``--ultra`` up to 22)."""
_UNCHANGED_ID = -1
"""The user or group ID with which chown(2) leaves the owner or the group unchanged."""
_FAKEROOT_VARIABLE = "FAKEROOTKEY"
"""The environment variable that fakeroot(1) sets for the processes that run under it."""


def parse_owner(text: str) -> tuple[int, int]:
    """Return the user and group IDs of ``USER:GROUP``, ``USER``, ``:GROUP`` or ``USER:`` (that user's login group).

    An ID is -1 (leave unchanged) if ``text`` does not name a user or a group. A name takes precedence over a number of
    the same spelling, as with chown(1). Raise ``ValueError`` if a name is unknown or if this process may not give files
    to that user or group.
    """
    user, colon, group = text.partition(":")
    if not (user or group):
        raise ValueError("no user and no group is named; write USER, USER:GROUP or :GROUP")
    uid = _parse_user_or_group(lambda: pwd.getpwnam(user).pw_uid, user, "user") if user else _UNCHANGED_ID
    gid = _login_group_of_user(uid, user) if colon and not group else _UNCHANGED_ID
    if group:
        gid = _parse_user_or_group(lambda: grp.getgrnam(group).gr_gid, group, "group")
    if (
        not has_capability(CAP_CHOWN) and os.geteuid()
    ):  # A process of root without CAP_CHOWN is not refused: it may run under fakeroot, which permits any owner.
        if uid not in (_UNCHANGED_ID, os.geteuid()):
            raise ValueError("only root may give files to another user")
        if gid not in (_UNCHANGED_ID, os.getegid(), *os.getgroups()):
            raise ValueError("only root may give files to a group of which the caller is no member")
    _refuse_ids_outside_user_namespace(uid, gid)
    return uid, gid


def _refuse_ids_outside_user_namespace(uid: int, gid: int) -> None:
    """Raise ``ValueError`` if the user namespace does not map the user ID ``uid`` or the group ID ``gid``.

    chown(2) to such an ID would fail for every item.
    """
    if _FAKEROOT_VARIABLE in os.environ or (not os.geteuid() and not has_capability(CAP_CHOWN)):
        return  # Under fakeroot, chown(2) to any ID succeeds.
    for kind, word, number, is_mapped in (
        ("user", "uid", uid, are_ids_mapped_in_namespace(uid, -1)),
        ("group", "gid", gid, are_ids_mapped_in_namespace(-1, gid)),
    ):
        if not is_mapped:
            raise ValueError(
                f"the user namespace does not map {kind} {number}; name one that /proc/self/{word}_map has, "
                "or start the program outside of the namespace"
            )


def _parse_user_or_group(name_lookup: Callable[[], int], text: str, kind: str) -> int:
    """Return the numeric ID of the user or group ``text``, which is a name or a number.

    Args:
        name_lookup: returns the ID of the name ``text``; raises ``KeyError`` if there is no such name.
        text: the name, or the number with or without a plus sign before it.
        kind: "user" or "group", for the message.

    Raise ``ValueError`` if ``text`` is neither a known name nor a valid ID.
    """
    try:
        return name_lookup()
    except KeyError:
        digits = text.removeprefix("+")
    number = parse_number_in_range(digits, 0, _MAX_USER_OR_GROUP_ID)
    if number is None:
        advice = "; write a colon before the group: USER:GROUP" if kind == "user" and "." in text else ""
        raise ValueError(f"there is no {kind} {text}{advice}")
    return number


def _login_group_of_user(uid: int, name: str) -> int:
    """Return the ID of the login group of the user ``uid``.

    ``name`` is what the user wrote, for the message. Raise ``ValueError`` if the password database has no such user.
    """
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        raise ValueError(f"user {name} has no login group on this host: name the group after the colon") from None


MIN_BLOCK_SIZE = 64 << 10
"""The smallest value of ``--block-size``, in bytes. With smaller blocks, the calls of the digest function (one for each
block) would take longer than the computation itself.
"""
_SECONDS_PER_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
"""Seconds per unit of an age, by the letter that follows the number."""


def converter_for_argparse(convert: Any, list_words: Callable[[], Iterable[str]] | None = None) -> Any:
    """Return a function for argparse that converts as ``convert`` does, and whose error message contains the reason.

    ``convert`` raises ``ValueError`` with the reason. argparse discards that text; so the returned function raises
    ``ArgumentTypeError`` instead, whose text argparse prints.

    ``list_words`` is given for an option whose value is a comma-separated list. It returns the words that the list may
    contain; command-line completion calls it.
    """
    import argparse

    def converted(text: str) -> Any:
        try:
            return convert(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(
                f"{printable_path(os.fsencode(text))}: {error}" if text else str(error)
            ) from None

    converted.list_words = list_words  # type: ignore[attr-defined]
    return converted


def parse_number_in_range(text: str, minimum: int, maximum: int) -> int | None:
    """Return the number in ``text``; None if ``text`` does not consist of decimal digits only, or the number is less
    than ``minimum`` or more than ``maximum``.
    """
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0") or "0"
    if len(digits) > len(str(maximum)):  # Checked before int(), which raises an error for thousands of digits.
        return None
    return int(digits) if minimum <= int(digits) <= maximum else None


def parse_integer(text: str, minimum: int) -> int:
    """Return the number in ``text``. Raise ``ValueError`` unless it is whole and from ``minimum`` to
    ``MAX_OPTION_NUMBER``.
    """
    number = parse_number_in_range(text, minimum, MAX_OPTION_NUMBER)
    if number is None:
        if text.isascii() and text.isdigit() and text.strip("0"):
            raise ValueError(f"too large: write a number of {MAX_OPTION_NUMBER} or less")
        raise ValueError(f"not a whole number of {minimum} or more")
    return number


parse_non_negative = partial(parse_integer, minimum=0)
parse_positive = partial(parse_integer, minimum=1)


def parse_ranks(text: str) -> int:
    """Return the value of ``-n``, the number of processes. Raise ``ValueError`` if it is not a positive number.

    The message explains what users of rsync and cp may have meant by ``-n``, and which option of pcopy to write
    instead.
    """
    if not text.lstrip("-").isdigit():
        raise ValueError(
            "not a number of processes (rsync's -n is --dry-run here; cp's --no-clobber is --existing skip)"
        )
    return parse_positive(text)


def parse_in_flight_count(text: str) -> int:
    """Return the value of ``--in-flight``; 0 stands for ``auto``.

    Raise ``ValueError`` if ``text`` is neither ``auto`` nor a number from 1 to ``MAX_IN_FLIGHT``.
    """
    if text == "auto":
        return 0
    number = parse_number_in_range(text, 1, MAX_IN_FLIGHT)
    if number is None:
        raise ValueError(f"neither auto nor a number from 1 to {MAX_IN_FLIGHT}")
    return number


def parse_seconds(text: str) -> float:
    """Return the number of seconds in ``text``, which may have decimals.

    Raise ``ValueError`` unless it is more than 0 and at most ``MAX_OPTION_SECONDS``.
    """
    if not text.isascii() or not text.replace(".", "", 1).isdigit() or float(text) <= 0:
        raise ValueError("not a number of seconds above 0")
    if float(text) > MAX_OPTION_SECONDS:
        raise ValueError(f"too large: write {MAX_OPTION_SECONDS} seconds or less")
    return float(text)


def parse_age(text: str) -> float:
    """Return the seconds of an age such as ``7d`` (a number and a unit). Raise ``ValueError`` if ``text`` is no age."""
    number, unit = text[:-1], _SECONDS_PER_UNIT.get(text[-1:])
    if unit is None or not number.isascii() or not number.replace(".", "", 1).isdigit():
        raise ValueError(f"not an age: write a number and one of {', '.join(_SECONDS_PER_UNIT)}, such as 7d")
    if math.isinf(seconds := float(number) * unit):
        raise ValueError("no file is that old: write a shorter age")
    return seconds


def parse_positive_size(text: str, what: str) -> int:
    """Return the number of bytes of a size such as ``64K``. Raise ``ValueError`` if it is no size, or less than 1 byte.

    ``what`` is the beginning of the message for a size less than 1 byte, such as "a block holds"; "at least one byte"
    follows it.
    """
    size = parse_size(text)
    if size < 1:
        raise ValueError(f"{what} at least one byte")
    return size


def parse_rate(text: str) -> int:
    """Return the value of ``--bwlimit`` in bytes per second; 0 means no limit. A final ``/s`` is ignored.

    Raise ``ValueError`` if ``text`` is no size.
    """
    return parse_size(text[:-2] if text.lower().endswith("/s") else text)


def parse_chunk_size(text: str) -> int:
    """Return the value of ``--chunk-size`` in bytes; 0 stands for ``auto``. Raise ``ValueError`` if it is no size."""
    return 0 if text == "auto" else parse_positive_size(text, "a chunk holds")


def parse_block_size(text: str) -> int:
    """Return the value of ``--block-size`` in bytes.

    Raise ``ValueError`` if it is not a power of two of at least ``MIN_BLOCK_SIZE``.
    """
    size = parse_size(text)
    if size < MIN_BLOCK_SIZE or size & (size - 1):
        raise ValueError("not a power of two of 64 KiB or more")
    return size


def parse_stripe(text: str) -> str:
    """Return the value of ``--stripe`` unchanged, after a check. Raise ``ValueError`` if it is not valid.

    The job records the text, and parses it again where it is used.
    """
    from pcopy.lustre.layout_request import parse_stripe_option

    parse_stripe_option(text)
    return text


def parse_stripe_table(text: str) -> str:
    """Return the value of ``--stripe-table`` unchanged, after a check. Raise ``ValueError`` if it is not valid.

    The job records the text, and parses it again where it is used.
    """
    from pcopy.lustre.layout_request import parse_stripe_table

    parse_stripe_table(text)
    return text


def parse_compression(text: str) -> str:
    """Return the compression method and level that ``zstd`` or ``zstd:LEVEL`` names, as ``zstd:LEVEL``.

    The default level is that of zstd itself, 3. Raise ``ValueError`` for another method or a level out of range.
    """
    name, colon, level = text.partition(":")
    if name != "zstd":
        raise ValueError(f"'{printable_path(os.fsencode(name))}' is neither zstd nor zstd:LEVEL")
    if not colon:
        return "zstd:3"
    number = parse_number_in_range(level, _ZSTD_LEVELS[0], _ZSTD_LEVELS[-1])
    if number is None:
        raise ValueError(f"a level of zstd is a number from {_ZSTD_LEVELS[0]} to {_ZSTD_LEVELS[-1]}")
    return f"zstd:{number}"
