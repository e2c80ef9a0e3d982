"""Options that choose which items of a tree are taken, of all programs that go through trees."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from pcopy.cli.argument_types import age, taking
from pcopy.errors import Refused
from pcopy.jobs.meant import meant
from pcopy.jobs.paths import absolute
from pcopy.text import shown
from pcopy.units import parse_size
from pcopy.walk.selection import Select

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

LARGEST_FILE = 16 << 20
"""Bytes of a file of patterns at most, with its comments."""
MOST_PATTERNS = 50_000
"""Patterns at most: each is tried with each name, and takes 4 KiB of memory and 0.25 ms at the start."""


def add_filters(parser: ArgumentParser, *, done: str, older: str = "only files that have not changed since") -> Any:
    """``done``: what becomes of the items that are chosen. ``older``: what ``--older-than`` does. Returns the group."""
    root = "SRC" if done == "copied" else "PATH"
    words = f"P: a pattern as in .gitignore, for paths below {root}; the last one that\nmatches decides"
    group = parser.add_argument_group(f"which items are {done}", words)
    add = group.add_argument
    add("--exclude", metavar="P", dest="patterns", action="append", type=taking(_excluded),
        help="leave out what matches; what is in a directory that is left out is not even looked at")  # fmt: skip
    add("--include", metavar="P", dest="patterns", action="append", type=taking(_included),
        help="take what matches, though an earlier --exclude matches it")  # fmt: skip
    add("--exclude-from", metavar="FILE", dest="patterns", action="append", type=taking(_from_file),
        help="patterns, a line each, as in .gitignore (!P includes); -: from standard input")  # fmt: skip
    add("--newer-than", metavar="WHEN", type=taking(moment), default=None,
        help="only files that have changed since: an age (7d, 12h; also s, m, w) or a date (2026-11-24)")  # fmt: skip
    add("--older-than", metavar="WHEN", type=taking(moment), default=None, help=older)
    add("--larger-than", metavar="SIZE", type=taking(parse_size), default=None, help="only files above SIZE")
    add("--smaller-than", metavar="SIZE", type=taking(parse_size), default=None, help="only files below SIZE")
    return group


def select_of(values: Namespace, paths: Sequence[bytes], *, removes: bool = False) -> Select:
    """What these options mean for ``paths``; ``removes``: does what they choose lead to deletions there?

    An age is counted back from now. Raises ``Refused`` for what has no effect.
    """
    now = time.time_ns()
    newer, older = values.newer_than, values.older_than
    patterns = tuple(line for lines in values.patterns or () for line in lines)
    if len(patterns) > MOST_PATTERNS:
        raise Refused(f"there are {len(patterns):,} patterns, and {MOST_PATTERNS:,} may be given")
    if patterns and all(line.startswith(b"!") for line in patterns):
        taken = shown(patterns[-1][1:])
        alone = f"--exclude '*' --include '*/' --include '{taken}'"
        raise Refused(f"--include {taken} takes back an exclusion, and nothing is excluded; for that alone: {alone}")
    _refuse_paths(patterns, paths, removes=removes)
    return Select(
        patterns=patterns,
        newer_than=newer or "",
        older_than=older or "",
        larger_than=values.larger_than,
        smaller_than=values.smaller_than,
        after=None if newer is None else _nanoseconds(newer, now),
        before=None if older is None else _nanoseconds(older, now),
    )


def reads_standard_input(words: Sequence[str], parser: ArgumentParser) -> bool:
    """Do the options in ``words`` take patterns from there? As for ``given``, ``parser`` serves only this."""
    from pcopy.cli.configuration import given

    return any(option.name == "exclude-from" and is_standard_input(option.raw) for option in given(words, parser))


def is_standard_input(file: str) -> bool:
    """Return True if ``file``, as an option names it, stands for standard input."""
    from pcopy.fsio.named_file import inherited_descriptor

    return file == "-" or inherited_descriptor(os.fsencode(file)) == 0


def _refuse_paths(patterns: Sequence[bytes], paths: Sequence[bytes], *, removes: bool) -> None:
    """Raises ``Refused`` for a pattern that begins with one of ``paths`` from the root, or, where something is removed,
    with its last name alone: it can match nothing below that, and what it is to keep would go."""
    patterns = [line for line in patterns if b"/" in line[:-1]]
    places: dict[bytes, bytes] = {}
    names: dict[bytes, bytes] = {}
    for path in filter(None, paths if patterns else ()):
        places |= {absolute(path): path, os.path.realpath(path): path}
        names |= {os.path.join(b"/", os.path.basename(absolute(path))): path} if removes else {}
    for line in patterns if b"/" not in places else ():  # below that everything is
        pattern = line.removeprefix(b"!")
        text = b"/" + pattern.removeprefix(b"/")
        for end in (slash.start() for slash in re.finditer(rb"/|\Z", text)):
            head, rest = re.sub(rb"\\(.)", rb"\1", text[:end]), text[end:].rstrip(b"/")
            path = places.get(head) or (names.get(head, b"") if rest else b"")
            if path and not any(os.path.lexists(each + head) for each in paths):
                what = f"{'--exclude' if line == pattern else '--include'} {shown(pattern)}"
                advice = f"write {shown(text[end:])}" if rest else "that is never left out itself"
                raise Refused(f"{what}: patterns are for paths below {shown(path)}: {advice}")


def moment(text: str) -> str:
    """An age or a date, as it is written; raises ``ValueError``."""
    if text.startswith("-"):
        raise ValueError(f"ages count back from now: write {text[1:]}")
    _nanoseconds(text, 0)
    return text


def age_of(text: str) -> float:
    """Seconds from a ``moment`` to now."""
    now = time.time_ns()
    return (now - _nanoseconds(text, now)) / 10**9


def _nanoseconds(text: str, now: int) -> int:
    """Since 1970; a date without a time zone is one of here."""
    try:
        return now - round(age(text) * 10**9)
    except ValueError:
        pass
    from datetime import datetime

    try:
        return round(datetime.fromisoformat(text).timestamp()) * 10**9
    except (ValueError, OverflowError, OSError):
        raise ValueError("neither an age as in 7d or 12h, nor a date as in 2026-11-24 or 2026-11-24T18:00") from None


def _excluded(text: str) -> Sequence[bytes]:
    return _one(text)


def _included(text: str) -> Sequence[bytes]:
    return _one(text, includes=True)


def _one(text: str, *, includes: bool = False) -> Sequence[bytes]:
    from pcopy.walk.patterns import line_of

    return (line_of(os.fsencode(text), includes=includes),)


def _from_file(text: str) -> Sequence[bytes]:
    from pcopy.walk.patterns import lines_in

    path = os.fsencode(text)
    try:
        contents = _contents(path)
    except OSError as error:
        advice = meant(path) if isinstance(error, FileNotFoundError) else ""
        why = f"cannot be read: {error.strerror}{advice and f'; {advice}'}"
        raise Refused(f"--exclude-from: {shown(path)}: {why}") from None
    if len(contents) > LARGEST_FILE:
        raise ValueError("too large for a file of patterns")
    lines = [line for _, line in islice(lines_in(contents), MOST_PATTERNS + 1)]
    if len(lines) > MOST_PATTERNS:
        raise ValueError(f"more than {MOST_PATTERNS:,} patterns; list the paths instead, with --from or --files-from")
    return lines


_STREAMS: dict[bytes | int, bytes] = {}
"""What was read from pipes and from inherited descriptors, by the descriptors' numbers or the pipes' paths.

A command line is read several times, and these only once; ``-`` and ``/dev/stdin`` are the same one.
"""


def _contents(path: bytes) -> bytes:
    """Raises ``OSError``."""
    from pcopy.fsio.named_file import inherited_descriptor, open_to_read

    is_dash = path == b"-"
    number = 0 if is_dash else inherited_descriptor(path)
    stream = path if number < 0 else number
    if stream in _STREAMS:
        return _STREAMS[stream]
    opened = open_to_read(b"/dev/stdin" if is_dash else path)
    with open(opened.descriptor, "rb") as file:
        contents = file.read(LARGEST_FILE + 1)
        if opened.inherited or not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            _STREAMS[stream] = contents
    return contents
