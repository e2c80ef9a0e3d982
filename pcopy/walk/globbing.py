"""Patterns of the shell as fnmatch(3) matches them, for ``-name`` and ``-path``.

What is plain is translated, and tried on bytes: names in ASCII, and patterns in ASCII without classes. All else is left
to the C library, which knows what characters the locale has.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pcopy.libc import fnmatch

_PLAIN = re.compile(rb"(?:[^\\\[*?]|\\.|[*?]|\[[!^]?[\w.,:=+@%-]+\])*", re.DOTALL | re.ASCII)
"""A pattern that means the same in each locale."""
_RANGE = re.compile(rb"[\w]-[\w]")
_TOKEN = re.compile(rb"\\(.)|(\*+)|(\?)|\[([!^]?)([\w.,:=+@%-]+)\]|(.)", re.DOTALL | re.ASCII)
_ENDS_SO = re.compile(rb"\*[^\\\[*?]+", re.DOTALL)


def matcher(pattern: bytes, *, folds: bool) -> Callable[[bytes], object]:
    """Does it match all of a name? True-like if so. ``folds``: large letters and small ones are the same."""

    def careful(name: bytes) -> bool:
        return fnmatch(pattern, name, folds=folds)

    if not (pattern.isascii() and _PLAIN.fullmatch(pattern)) or _has_odd_range(pattern):
        return careful
    if not folds and _ENDS_SO.fullmatch(pattern):
        return lambda name: name.endswith(pattern[1:]) if name.isascii() else careful(name)
    match = re.compile(_translated(pattern), re.DOTALL | (re.IGNORECASE if folds else 0)).fullmatch
    return lambda name: match(name) if name.isascii() else careful(name)


def _has_odd_range(pattern: bytes) -> bool:
    """One that runs over letters and something else, or backwards: locales differ about these."""
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


def _translated(pattern: bytes) -> bytes:
    parts = []
    for escaped, stars, one, negated, members, plain in _TOKEN.findall(pattern):
        if stars:
            parts.append(b".*")
        elif one:
            parts.append(b".")
        elif members:
            inner = re.escape(members).replace(rb"\-", b"-")
            head, body, tail = _dashes(inner)
            parts.append(b"[" + (b"^" if negated else b"") + head + body + tail + b"]")
        else:
            parts.append(re.escape(escaped or plain))
    return b"".join(parts)


def _dashes(members: bytes) -> tuple[bytes, bytes, bytes]:
    """Those at the ends are themselves."""
    body = members.strip(b"-")
    has_some = len(body) < len(members)
    return (rb"\-" if has_some else b""), body, b""
