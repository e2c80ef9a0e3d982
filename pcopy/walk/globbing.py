"""Shell patterns, which match as in fnmatch(3), for ``-name`` and ``-path``.

For speed, an ASCII pattern whose meaning does not depend on the locale is translated into a regular expression, which
is applied to names in ASCII. All other patterns and names are left to fnmatch(3) of the C library, which knows the
characters of the locale.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pcopy.libc import fnmatch

_LOCALE_FREE = re.compile(rb"(?:[^\\\[*?]|\\.|[*?]|\[[!^]?[\w.,:=+@%-]+\])*", re.DOTALL | re.ASCII)
"""Matches shell patterns whose meaning does not depend on the locale: those without character classes such as
``[[:alpha:]]``. ``_has_locale_range`` tests ranges.
"""
_RANGE = re.compile(rb"[\w]-[\w]")
_TOKEN = re.compile(rb"\\(.)|(\*+)|(\?)|\[([!^]?)([\w.,:=+@%-]+)\]|(.)", re.DOTALL | re.ASCII)
_SUFFIX_ONLY = re.compile(rb"\*[^\\\[*?]+", re.DOTALL)
"""Matches shell patterns that only test the end of a name, such as ``*.txt``."""


def shell_pattern_matcher(pattern: bytes, *, ignores_case: bool) -> Callable[[bytes], object]:
    """Return a function that tests names against ``pattern``, a shell pattern such as ``*.txt``: it gets a name, and
    returns a true value if the pattern matches the whole name.

    Args:
        ignores_case: True if upper and lower case are the same.
    """

    def match_in_locale(name: bytes) -> bool:
        return fnmatch(pattern, name, ignores_case=ignores_case)

    if not (pattern.isascii() and _LOCALE_FREE.fullmatch(pattern)) or _has_locale_range(pattern):
        return match_in_locale
    if not ignores_case and _SUFFIX_ONLY.fullmatch(pattern):
        return lambda name: name.endswith(pattern[1:]) if name.isascii() else match_in_locale(name)
    match = re.compile(_regex_of_shell_pattern(pattern), re.DOTALL | (re.IGNORECASE if ignores_case else 0)).fullmatch
    return lambda name: match(name) if name.isascii() else match_in_locale(name)


def _has_locale_range(pattern: bytes) -> bool:
    """Return True if the shell pattern has a range in brackets whose meaning depends on the locale: one that is not
    inside the digits, the lower-case or the upper-case letters, or runs backwards.
    """
    for brackets in re.findall(rb"\[[!^]?([\w.,:=+@%-]+)\]", pattern, re.ASCII):
        inner = brackets.strip(b"-")
        for each in _RANGE.findall(inner):
            same = any(each[:1] in b and each[2:] in b for b in _ALPHABETS)
            if not same or each[:1] > each[2:]:
                return True
        if b"-" in _RANGE.sub(b"", inner):
            return True
    return False


_ALPHABETS = (b"0123456789", b"abcdefghijklmnopqrstuvwxyz", b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")


def _regex_of_shell_pattern(pattern: bytes) -> bytes:
    """Return the regular expression that matches the same names as ``pattern``, a shell pattern."""
    parts = []
    for escaped, stars, any_byte, negated, members, literal in _TOKEN.findall(pattern):
        if stars:
            parts.append(b".*")
        elif any_byte:
            parts.append(b".")
        elif members:
            inner = re.escape(members).replace(rb"\-", b"-")
            head, body, tail = _bracket_members_for_regex(inner)
            parts.append(b"[" + (b"^" if negated else b"") + head + body + tail + b"]")
        else:
            parts.append(re.escape(escaped or literal))
    return b"".join(parts)


def _bracket_members_for_regex(members: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the members of brackets of a shell pattern in a form for a regular expression, as three parts to be
    joined. Dashes at the ends, which stand for themselves, become one escaped dash at the beginning.
    """
    body = members.strip(b"-")
    has_some = len(body) < len(members)
    return (rb"\-" if has_some else b""), body, b""
