"""Parser of find's tests: the words of a command line become a tree of tuples, strings and numbers, which can be sent
to all ranks.

A node of the tree is a tuple of its name and its arguments: ``("and", left, right)``, ``("name", pattern,
folds_case)``, ``("between", column, least, most)``. A column is a field of the status, such as ``size``. Values that
must be looked up (the id of a user name, the time of a file) are looked up here, once, by rank 0.
``pcopy.walk.matching`` evaluates the tree for items.

Rules: Words, precedence and rounding are those of find. Times are in nanoseconds since 1970, sizes in bytes; neither is
limited to 64 bits.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Any

from pcopy.fast_named_tuple import NamedTuple
from pcopy.text import printable_path
from pcopy.walk.permissions import parse_permissions

ExpressionTree = tuple[Any, ...]

SECOND, MINUTE, DAY = 10**9, 60 * 10**9, 86400 * 10**9
"""Units of time in nanoseconds."""

_SIZE_UNITS = {"c": 1, "w": 2, "b": 512, "k": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_TIME_COLUMNS = {"a": "atime", "c": "ctime", "m": "mtime"}
_TYPE_LETTERS = "bcdpfls"
_AGE_TESTS = {
    **dict.fromkeys(("-mtime", "-atime", "-ctime"), "_age_in_days_test"),
    **dict.fromkeys(("-mmin", "-amin", "-cmin"), "_age_in_minutes_test"),
}

ARGUMENT_COUNTS = {
    **dict.fromkeys(("-name", "-iname", "-path", "-wholename", "-ipath", "-iwholename", "-type", "-size", "-perm"), 1),
    **dict.fromkeys(("-mtime", "-atime", "-ctime", "-mmin", "-amin", "-cmin", "-newer", "-anewer", "-cnewer"), 1),
    **dict.fromkeys(("-user", "-group", "-xattr", "-samefile", "-maxdepth", "-mindepth"), 1),
    **dict.fromkeys(("-links", "-inum", "-uid", "-gid"), 1),
    **dict.fromkeys(("-empty", "-true", "-false", "-nouser", "-nogroup", "-prune", "-print", "-print0", "-ls"), 0),
    **dict.fromkeys(("-xdev", "-mount", "-not", "-o", "-or", "-a", "-and", "-noleaf"), 0),
}
"""Number of arguments of each word (test, action, option or operator of find) that pwalk supports. ``-newerXY``, which
is not listed here, has one.
"""

ARGUMENT_WORDS = {
    "-type": tuple(_TYPE_LETTERS),
    **dict.fromkeys(("-newer", "-anewer", "-cnewer", "-samefile"), "FILE"),
    **dict.fromkeys(("-user", "-group"), "NAME"),
}
"""For the completion of command lines: the words that the comma-separated list after a test may contain, or a word for
the kind of its argument.
"""

ADVICE_FOR_UNSUPPORTED_TESTS = {
    **dict.fromkeys(("-exec", "-execdir", "-ok", "-okdir"), "pwalk runs no commands; write -print0 | xargs -0"),
    "-delete": "pwalk changes nothing; write --output LIST.jsonl, and prm --from LIST.jsonl",
    **dict.fromkeys(("-printf", "-fprintf", "-fls"), "write --json-lines, or --output FILE.csv"),
    **dict.fromkeys(("-fprint", "-fprint0"), "write --output FILE"),
    **dict.fromkeys(("-regex", "-iregex", "-regextype"), "write -name or -path, or filter the lines with grep"),
    **dict.fromkeys(("-depth", "-d"), "pwalk has no fixed order; write --sort=path"),
    **dict.fromkeys(("-follow", "-lname", "-ilname", "-xtype"), "pwalk neither follows nor reads symbolic links"),
    **dict.fromkeys(("-daystart", "-used", "-fstype", "-context", "-quit"), "pwalk does not support it"),
    **dict.fromkeys(
        ("-readable", "-writable", "-executable"),
        "pwalk does not check access; -perm examines mode bits only, not owners, ACLs or mounts",
    ),
}
"""Tests of find that pwalk does not support, and what the error message advises instead."""

_NEWER_TEST = re.compile(r"-newer([acmBt])([acmBt])")


def can_begin_expression(word: str) -> bool:
    """Return True if ``word`` can be the first word of find's tests, so that all PATHs of the command line come before
    it. That includes words that find knows but pwalk does not support.
    """
    known = word in ARGUMENT_COUNTS or word in ADVICE_FOR_UNSUPPORTED_TESTS or bool(_NEWER_TEST.fullmatch(word))
    return word in ("(", ")", "!") or (known and word not in ("-o", "-or", "-a", "-and"))


def argument_count_of_test(word: str) -> int:
    """Return how many arguments follow ``word``, a test of find (0 or 1); 0 for an unknown word."""
    return 1 if _NEWER_TEST.fullmatch(word) else ARGUMENT_COUNTS.get(word, 0)


class FindExpression(NamedTuple):
    """The tests and options of find on a command line, after parsing.

    Fields:

    - ``tree``: the tests, as a tree of tuples.
    - ``prints``: True if the expression contains ``-print``, ``-print0`` or ``-ls``. Then items are reported where that
      word is evaluated; otherwise each item that fulfils the expression is reported.
    - ``nul``: True if each path ends with a NUL (``-print0``).
    - ``ls``: True if the output of ``-ls`` is asked for.
    - ``least_depth``, ``most_depth``: items above and below these depths are not tested. A PATH of the command line has
      the depth 0; a ``most_depth`` of -1 means no limit.
    - ``same_device``: True if other file systems are not entered (``-xdev``).
    """

    tree: ExpressionTree = ("true",)
    prints: bool = False
    nul: bool = False
    ls: bool = False
    least_depth: int = 0
    most_depth: int = -1
    same_device: bool = False


def parse_find_expression(words: Sequence[str], now: int) -> FindExpression:
    """Parse ``words``, the tests of find on a command line (such as ``-name '*.c' -o -size +1M``), and return them as
    an expression. Raise ``ValueError`` with a message of one line if they are wrong.

    Args:
        now: time at which the command began, in nanoseconds since 1970.
    """
    return _ExpressionParser(words, now).parse_find_expression()


class _ExpressionParser:
    """A recursive-descent parser of find's tests. Methods return what they parse as a tree of tuples."""

    def __init__(self, words: Sequence[str], now: int) -> None:
        self._words = [*words]
        self._at = 0
        self._now = now
        self._expression = FindExpression()

    def parse_find_expression(self) -> FindExpression:
        """Return the parsed tests of find; raise ``ValueError`` if the words are wrong."""
        if not self._words:
            return self._expression
        tree = self._parse_disjunction()
        if self._at < len(self._words):
            word = self._words[self._at]
            if word == ",":
                raise ValueError(",: pwalk does not support this operator; write two commands")
            raise ValueError(
                f"{_printable_word(word)}: nothing opens this bracket"
                if word == ")"
                else self._unknown_test_message(word)
            )
        return self._expression._replace(tree=tree)

    @property
    def _next_word(self) -> str:
        return self._words[self._at] if self._at < len(self._words) else ""

    def _parse_disjunction(self) -> ExpressionTree:
        """Parse the words up to the end or a closing bracket: operands joined by ``-o``. Return their tree."""
        tree = self._parse_conjunction()
        while self._next_word in ("-o", "-or"):
            word = self._take_word()
            self._require_test_after_operator(word)
            tree = ("or", tree, self._parse_conjunction())
        return tree

    def _parse_conjunction(self) -> ExpressionTree:
        """Parse the words up to ``-o``, a closing bracket or the end: tests joined by ``-a`` or by nothing. Return
        their tree.
        """
        tree = self._parse_test()
        while self._at < len(self._words) and self._next_word not in (")", "-o", "-or", ","):
            if self._next_word in ("-a", "-and"):
                self._require_test_after_operator(self._take_word())
            tree = ("and", tree, self._parse_test())
        return tree

    def _require_test_after_operator(self, word: str) -> None:
        """Raise ``ValueError`` if no test follows ``word``, an operator such as ``-o``."""
        if self._at >= len(self._words):
            raise ValueError(f"{word}: a test has to follow")

    def _parse_test(self) -> ExpressionTree:
        """Parse one test, a negated test, or tests in brackets, and return their tree."""
        word = self._take_word()
        if word in ("!", "-not"):
            self._require_test_after_operator(word)
            return ("not", self._parse_test())
        if word == "(":
            self._require_test_after_operator("(")
            if self._next_word == ")":
                raise ValueError("( ): there is nothing between the brackets")
            tree = self._parse_disjunction()
            if self._next_word != ")":
                raise ValueError("(: nothing closes this bracket")
            self._take_word()
            return tree
        if word in ("-o", "-or", "-a", "-and", ")", ","):
            raise ValueError(f"{_printable_word(word)}: a test has to stand before it")
        if argument_count_of_test(word):
            if self._at >= len(self._words):
                raise ValueError(f"{word}: its value is missing")
            return self._parse_test_with_argument(word, self._take_word())
        return self._parse_test_without_argument(word)

    def _take_word(self) -> str:
        word = self._words[self._at]
        self._at += 1
        return word

    def _parse_test_without_argument(self, word: str) -> ExpressionTree:
        """Return the tree for ``word``, which has no argument. A word that is an option, such as ``-xdev``, is recorded
        in the expression; its tree is always true.
        """
        match word:
            case "-true" | "-noleaf":
                return ("true",)
            case "-false" | "-empty" | "-nouser" | "-nogroup" | "-prune":
                return (word[1:],)
            case "-print" | "-print0" | "-ls":
                said = self._expression
                if said.prints and said.ls != (word == "-ls"):
                    raise ValueError("-ls and -print: pwalk prints all items in one format; leave one out")
                self._expression = said._replace(prints=True, nul=said.nul or word == "-print0", ls=word == "-ls")
                return ("print",)
            case "-xdev" | "-mount":
                self._expression = self._expression._replace(same_device=True)
                return ("true",)
        raise ValueError(self._unknown_test_message(word))

    def _unknown_test_message(self, word: str) -> str:
        """Return the error message for a word that is no test of pwalk, with advice."""
        if word in ADVICE_FOR_UNSUPPORTED_TESTS:
            return f"{word}: {ADVICE_FOR_UNSUPPORTED_TESTS[word]}"
        if not word.startswith("-"):
            if self._at > 1 and self._words[self._at - 2] == "-o":
                shown = _printable_word(word)
                return f"{shown}: after a test -o means or: for a file write --output {shown}"
            return f"{_printable_word(word)}: paths stand before the first test; in the shell write patterns in quotes"
        advice = ": short options stand before the first test" if len(word) == 2 else ""
        return f"unknown test {_printable_word(word)}{advice}"

    def _parse_test_with_argument(self, word: str, value: str) -> ExpressionTree:
        """Return the tree for the test ``word`` with its argument ``value``. Raise ``ValueError``, whose message names
        both, if the argument is wrong.
        """
        try:
            return self._parse_test_argument(word, value)
        except ValueError as error:
            raise ValueError(f"{word} {_printable_word(value)}: {error}") from None
        except OSError as error:
            raise ValueError(f"{word} {_printable_word(value)}: {error.strerror}") from None

    def _parse_test_argument(self, word: str, value: str) -> ExpressionTree:
        """Return the tree for the test ``word`` with its argument ``value``. Raise ``ValueError`` if the argument is
        wrong, and ``OSError`` if a file that it names cannot be statted.
        """
        if (newer := _NEWER_TEST.fullmatch(word)) is not None:
            return self._newer_than_test(newer[1], newer[2], value)
        if word in _AGE_TESTS:
            return getattr(self, _AGE_TESTS[word])(_TIME_COLUMNS[word[1]], value)  # type: ignore[no-any-return]
        if word in ("-maxdepth", "-mindepth"):
            depth = _parse_natural_number(value)
            said = self._expression
            self._expression = (
                said._replace(most_depth=depth) if word == "-maxdepth" else said._replace(least_depth=depth)
            )
            return ("true",)
        if word in ("-newer", "-anewer", "-cnewer"):
            return self._newer_than_test("m" if word == "-newer" else word[1], "m", value)
        return _VALUE_TESTS[word](value)

    def _age_in_days_test(self, column: str, value: str) -> ExpressionTree:
        """Return the tree for a test of the age in days, as ``-mtime``. The age of an item is rounded down to whole
        days: 1.9 days count as 1.

        Args:
            column: the time that is tested: ``mtime``, ``atime`` or ``ctime``.
            value: the argument: a number, or one after + (older) or - (younger).
        """
        sign, age = _parse_age(value, DAY)
        if sign == "+":
            return ("between", column, None, self._now - DAY - age - 1)
        if sign == "-":  # As in find, the bound is one second earlier here.
            return ("between", column, self._now - SECOND - age + 1, None)
        return ("between", column, self._now - DAY - age + 1, self._now - age)

    def _age_in_minutes_test(self, column: str, value: str) -> ExpressionTree:
        """Return the tree for a test of the age in minutes, as ``-mmin``. The age of an item is rounded up to whole
        minutes.

        Args:
            column: the time that is tested: ``mtime``, ``atime`` or ``ctime``.
            value: the argument: a number, or one after + (older) or - (younger).
        """
        sign, age = _parse_age(value, MINUTE)
        if sign == "+":
            return ("between", column, None, self._now - age - 1)
        if sign == "-":
            return ("between", column, self._now - age + 1, None)
        return ("between", column, self._now - age + 1, self._now - age + MINUTE)

    def _newer_than_test(self, own_time: str, other_time: str, value: str) -> ExpressionTree:
        """Return the tree for the test ``-newerXY``: the time X (``own_time``) of the item is later than the time Y
        (``other_time``) of the file ``value``, or than the date ``value`` if Y is ``t``.
        """
        if "B" in (own_time, other_time) or own_time == "t":
            raise ValueError("only the times a, c and m can be compared (not B, the time of birth)")
        time = (
            _parse_date(value) if other_time == "t" else getattr(os.lstat(value), f"st_{_TIME_COLUMNS[other_time]}_ns")
        )
        return ("between", _TIME_COLUMNS[own_time], time + 1, None)


def _printable_word(word: str) -> str:
    return printable_path(os.fsencode(word))


def _split_sign(value: str) -> tuple[str, str]:
    return (value[0], value[1:]) if value[:1] in ("+", "-") else ("", value)


def _parse_natural_number(value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", value):
        raise ValueError("a whole number is expected")
    return int(value)


def _parse_signed(value: str) -> tuple[str, int]:
    sign, digits = _split_sign(value)
    if not re.fullmatch(r"[0-9]{1,20}", digits):
        raise ValueError("a whole number is expected, alone or after + (more) or - (less)")
    return sign, int(digits)


def _number_test(column: str, sign: str, number: int) -> ExpressionTree:
    """Return the tree for a test of a number in the status, such as ``-links +1``: the field ``column`` is greater than
    ``number`` if ``sign`` is +, less if it is -, else equal.
    """
    least = None if sign == "-" else number + 1 if sign == "+" else number
    most = None if sign == "+" else number - 1 if sign == "-" else number
    return ("between", column, least, most)


def _parse_size(value: str) -> ExpressionTree:
    """Return the tree for ``-size`` with the argument ``value``. As in find, the size of an item is rounded up to whole
    units (512 bytes without a letter) before it is compared.
    """
    unit = _SIZE_UNITS.get(value[-1:], 0)
    try:
        sign, number = _parse_signed(value[:-1] if unit else value)
    except ValueError:
        raise ValueError(
            "a number is expected, such as 100M (units: c for bytes, k, M, G), alone or after + (more) or - (less)"
        ) from None
    unit = unit or 512
    if sign == "+":
        return ("between", "size", number * unit + 1, None)
    if sign == "-":
        return ("between", "size", None, (number - 1) * unit)
    return ("between", "size", (number - 1) * unit + 1, number * unit)


def _parse_types(value: str) -> bytes:
    kinds = value.split(",")
    if any(len(kind) != 1 or kind not in _TYPE_LETTERS for kind in kinds) or len({*kinds}) < len(kinds):
        raise ValueError("f, d, l, p, s, b or c is expected, or several of them with commas between")
    return "".join(kinds).encode()


def _parse_permissions(value: str) -> tuple[str, int, int]:
    """Parse the argument of ``-perm``. Return how bits are compared (``=``: equal, ``-``: all set, ``/``: any set), the
    bits for items other than directories, and the bits for directories.
    """
    how, mode = (value[0], value[1:]) if value[:1] in ("-", "/") else ("=", value)
    return how, parse_permissions(mode, directory=False), parse_permissions(mode, directory=True)


def _parse_age(value: str, unit: int) -> tuple[str, int]:
    """Return the sign (+, - or nothing) and the age in nanoseconds of ``value``, an argument such as "+1.5". ``unit``
    is the number of nanoseconds of its unit, a day or a minute.
    """
    sign, number = _split_sign(value)
    if not re.fullmatch(r"[0-9]+(\.[0-9]*)?|\.[0-9]+", number) or len(number) > 18:
        raise ValueError("a number is expected, alone or after + (older) or - (younger)")
    whole, _, part = number.partition(".")
    fraction = int(part or 0) * unit // 10 ** len(part) if part else 0
    return sign, int(whole or 0) * unit + fraction


def _parse_date(value: str) -> int:
    """Return the time that ``value`` denotes, a date (ISO 8601) or ``@`` and seconds since 1970, in nanoseconds since
    1970. Raise ``ValueError`` if it is neither.
    """
    from datetime import datetime

    if re.fullmatch(r"@-?[0-9]{1,11}", value):
        return int(value[1:]) * SECOND
    try:
        return round(datetime.fromisoformat(value).timestamp() * 10**6) * 1000
    except (ValueError, OverflowError, OSError):
        raise ValueError("a date is expected, such as 2026-11-24 or 2026-11-24T18:00, or @SECONDS since 1970") from None


def _parse_user(value: str) -> int:
    import pwd

    return _parse_user_or_group_id(value, lambda name: pwd.getpwnam(name).pw_uid, "user")


def _parse_group(value: str) -> int:
    import grp

    return _parse_user_or_group_id(value, lambda name: grp.getgrnam(name).gr_gid, "group")


def _parse_user_or_group_id(value: str, look_up: Callable[[str], int], kind: str) -> int:
    """Return the id of a user or group. ``value`` is its name or, if no such name exists, a number. Raise
    ``ValueError`` if it is neither. ``look_up`` returns the id for a name; ``kind`` is "user" or "group".
    """
    try:
        return look_up(value)
    except (KeyError, ValueError):
        if re.fullmatch(r"[0-9]{1,10}", value):
            return int(value)
    raise ValueError(f"there is no such {kind}")


def _parse_samefile_test(value: str) -> ExpressionTree:
    status = os.lstat(value)
    inode, device = status.st_ino, status.st_dev
    return ("and", ("between", "inode", inode, inode), ("between", "device", device, device))


_VALUE_TESTS: dict[str, Callable[[str], ExpressionTree]] = {
    "-name": lambda value: ("name", os.fsencode(value), False),
    "-iname": lambda value: ("name", os.fsencode(value), True),
    **dict.fromkeys(("-path", "-wholename"), lambda value: ("path", os.fsencode(value), False)),
    **dict.fromkeys(("-ipath", "-iwholename"), lambda value: ("path", os.fsencode(value), True)),
    "-type": lambda value: ("type", _parse_types(value)),
    "-size": _parse_size,
    "-perm": lambda value: ("perm", *_parse_permissions(value)),
    "-links": lambda value: _number_test("links", *_parse_signed(value)),
    "-inum": lambda value: _number_test("inode", *_parse_signed(value)),
    "-uid": lambda value: _number_test("uid", *_parse_signed(value)),
    "-gid": lambda value: _number_test("gid", *_parse_signed(value)),
    "-user": lambda value: _number_test("uid", "", _parse_user(value)),
    "-group": lambda value: _number_test("gid", "", _parse_group(value)),
    "-xattr": lambda value: ("xattr", os.fsencode(value)),
    "-samefile": _parse_samefile_test,
}
"""Function that returns the tree for each test with an argument. Tests of times and depths are not listed here, since
they need the state of the parser.
"""
