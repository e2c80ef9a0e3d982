"""``Option``, a row of the table of options, and converters for the values of options: owners, numbers, sizes, times.

Each converter takes the value of an option as the user wrote it, and returns the value that the program uses. If the
text is not valid, it raises ``ValueError`` with the reason; the caller puts the name of the option before the reason.
"""

from __future__ import annotations

import grp
import math
import os
import pwd
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pcopy.fast_named_tuple import NamedTuple
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


class Option(NamedTuple):
    """A row of the table of options: all that the project knows of one option.

    The parser, the help, the keys of configuration files, the rules of ``--resume``, the manuals and the completions
    are made from it.

    Fields:

    - ``words``: its spellings, separated by spaces. Hyphens become underscores in the attribute of the namespace.
    - ``programs``: the programs that have it, separated by spaces.
    - ``group``: the title of its group in the help, one of ``OPTION_GROUPS``.
    - ``help``: its text in the help; ``{program}``, ``{work}`` and ``{done}`` stand for the program's name and its
      words for what it does. Empty: the option is accepted, but not shown.
    - ``brief``: its text on the page of ``-h``, at most a line; empty: it is not on that page.
    - ``value``: the placeholder of its value in the help; empty for an option without value.
    - ``parse``: converts the text of the value; raises ``ValueError`` with the reason if it is not valid.
    - ``choices``: the valid values, if they are a fixed list. ``offered``: values that are completed, if there are
      others. ``list_words``: returns the words that the value, a comma-separated list, may contain.
    - ``nargs``: as in argparse: ``?`` for a value that may be left out, ``*`` for several values.
    - ``action``: as in argparse; empty: the value is stored, or True if there is none.
    - ``const``, ``default``: the values if the option is given without a value, or not given.
    - ``dest``: the attribute of the namespace, if it is not named as the option.
    - ``in_files``: True if a configuration file may set it. False for an option that names a job or a result, or must
      be given explicitly each time.
    - ``is_listed``: False if ``--show-config`` does not list it, because it has no effect.
    - ``is_filter``: True if it selects items.
    - ``reads_file``: True if it reads the file that its value names, where ``-`` means standard input.
    - ``excludes``: options with which it contradicts, separated by spaces, such as ``verify`` or ``hash=none``; a
      mapping if that depends on its own value. A setting of a file that contradicts a later one is ignored.
    - ``requires``: options of which one must be given, too; otherwise a setting of a file is ignored.
    - ``one_of``: options of a program with the same text here are refused together on the command line.
    - ``modes``: the modes of the program (``ProgramCommandLine.modes``) in which it has an effect, separated by spaces;
      empty: all.
    - ``with_commands``: the commands on stored jobs with which it may be given, separated by spaces. ``resume`` is one
      of them if the option does not change the copies.
    - ``field``: the field of the job's options that it sets; empty if it is not stored with the job. If
      it may be given with ``resume``, that replaces the stored value.
    - ``variants``: fields with other values for some programs: the programs, separated by spaces, and the fields.
    """

    words: str
    programs: str
    group: str
    help: str
    brief: str = ""
    value: str = ""
    parse: Callable[[str], Any] | None = None
    choices: Sequence[str] = ()
    offered: Sequence[str] = ()
    list_words: Callable[[], Sequence[str]] | None = None
    nargs: str = ""
    action: str = ""
    const: Any = None
    default: Any = None
    dest: str = ""
    in_files: bool = True
    is_listed: bool = True
    is_filter: bool = False
    reads_file: bool = False
    excludes: str | Mapping[str, str] = ""
    requires: str = ""
    one_of: str = ""
    modes: str = ""
    with_commands: str = ""
    field: str = ""
    variants: Mapping[str, Mapping[str, Any]] = {}

    @property
    def spellings(self) -> list[str]:
        """All spellings, with their dashes."""
        return self.words.split()

    @property
    def long_names(self) -> list[str]:
        """All spellings with two dashes, without these."""
        return [word[2:] for word in self.spellings if word.startswith("--")]

    @property
    def key(self) -> str:
        """The key by which a file sets it: its first long name; empty if it has only single-letter spellings."""
        return next(iter(self.long_names), "")

    @property
    def attribute(self) -> str:
        """The attribute of argparse's namespace that it sets."""
        return self.dest or self.key.replace("-", "_")

    @property
    def page_spellings(self) -> list[str]:
        """The spellings that the page of ``-h`` shows: the first one, and the first long one."""
        first = self.spellings[0]
        return [first] if first.startswith("--") else [first, *(f"--{name}" for name in self.long_names[:1])]

    @property
    def value_suffix(self) -> str:
        """Its placeholder as the page of ``-h`` shows it; in brackets if the value may be omitted."""
        if not self.value:
            return ""
        if self.nargs != "?":
            return f" {self.value}"
        return f"[={self.value}]" if self.is_value_after_equals else f" [{self.value}]"

    @property
    def takes_no_value(self) -> bool:
        return not self.value

    @property
    def is_value_after_equals(self) -> bool:
        """True for an option such as ``--inplace``: its value may be omitted, otherwise it follows an equals sign."""
        return self.nargs == "?" and self.default is None and bool(self.choices)

    @property
    def may_begin_with_dash(self) -> bool:
        """True if the next word is its value even if that begins with a dash and a digit.

        ``--stripe -1`` is valid. Negative numbers and ages are not, but the program's message about them is better than
        that of argparse.
        """
        return self.value in NUMBER_PLACEHOLDERS or self.value == "WHEN" or self.key == "stripe"

    @property
    def collects_values(self) -> bool:
        """True if it may be given several times, and all its values are used."""
        return self.action == "append"

    @property
    def conflicts(self) -> list[tuple[str, Sequence[str]]]:
        """Each form of the option (its name, or its name with a value) that contradicts others, and these."""
        pairs = {"": self.excludes} if isinstance(self.excludes, str) else self.excludes
        return [
            (f"{self.key}={value}" if value else self.key, names.split()) for value, names in pairs.items() if names
        ]

    def of_program(self, program: str, work: str = "", done: str = "") -> Option:
        """Return the row as it is for ``program``; ``work`` and ``done`` are its verb and participle for the help."""
        option = self
        for programs, fields in self.variants.items():
            if program in programs.split():
                option = option._replace(**fields)
        words = {"program": program, "work": work, "done": done}
        texts = {name: getattr(option, name).format_map(words) for name in ("group", "help", "brief")}
        return option._replace(**texts)

    def add_to(self, group: Any) -> None:
        """Add the option to a ``group`` of options of argparse."""
        from argparse import SUPPRESS  # argparse compares it by identity: an equal string would be shown as help text.

        how: dict[str, Any] = {"help": self.help or SUPPRESS, "dest": self.attribute}
        action = self.action or ("store" if self.value else "store_true")
        how["action"] = action
        if action != "store_true":
            how["default"] = self.default
        if self.value:
            how["metavar"] = self.value
        if self.const is not None:
            how["const"] = self.const
        if self.nargs:
            how["nargs"] = self.nargs
        if self.choices:
            how["choices"] = self.choices
        if self.parse is not None:
            how["type"] = converter_for_argparse(self.parse)
        group.add_argument(*self.spellings, **how)


NUMBER_PLACEHOLDERS = ("N", "SECONDS", "SIZE", "RATE")
"""Placeholders of values that are numbers."""
FILE_PLACEHOLDERS = ("FILE", "SIGNATURE", "MANIFEST", "ARCHIVE")
"""Placeholders of values that are names of files."""
DIRECTORY_PLACEHOLDERS = ("DIR",)
JOB_PLACEHOLDERS = ("JOB", "JOB|DIR")
EVERY_PROGRAM = "pcopy psync pverify prm pstripe ptar pbcast pdbench pwalk pchmod"
"""All programs, for the field ``programs`` of an option (``pcopy.cli.programs`` says what they do)."""


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


def converter_for_argparse(convert: Any) -> Any:
    """Return a function for argparse that converts as ``convert`` does, and whose error message contains the reason.

    ``convert`` raises ``ValueError`` with the reason. argparse discards that text; so the returned function raises
    ``ArgumentTypeError`` instead, whose text argparse prints.
    """
    import argparse

    def converted(text: str) -> Any:
        try:
            return convert(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(
                f"{printable_path(os.fsencode(text))}: {error}" if text else str(error)
            ) from None

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
