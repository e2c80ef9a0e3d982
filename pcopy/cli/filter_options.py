"""The options that select items by patterns, age and size (filters), for all programs that walk directory trees."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from pcopy.cli.argument_types import Option, parse_age
from pcopy.errors import RequestRefused, path_refused
from pcopy.jobs.paths import absolute_path
from pcopy.jobs.suggestions import suggestion_for_missing_path
from pcopy.text import printable_path
from pcopy.units import parse_size
from pcopy.walk.selection import ItemFilters

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

MAX_PATTERN_FILE_SIZE = 16 << 20
"""The maximum size of a file of ``--exclude-from`` in bytes; a larger one is refused."""
MAX_PATTERNS = 50_000
"""The maximum number of patterns of a job; more are refused.

Each pattern is matched against each name, and costs 4 KiB of memory and 0.25 ms at the start.
"""


def requested_selection(values: Namespace, paths: Sequence[bytes], *, deletes_selected: bool = False) -> ItemFilters:
    """Return the selection of items that the filters in ``values`` define.

    Ages are counted back from now.

    Args:
        paths: the operands of the program, to which patterns are relative.
        deletes_selected: True if the program deletes the selected items.

    Raise ``RequestRefused`` for too many patterns, and for patterns that cannot have the effect that the user expects.
    """
    now = time.time_ns()
    newer, older = values.newer_than, values.older_than
    patterns = tuple(line for lines in values.patterns or () for line in lines)
    if len(patterns) > MAX_PATTERNS:
        raise RequestRefused(f"there are {len(patterns):,} patterns, but at most {MAX_PATTERNS:,} may be given")
    if patterns and all(line.startswith(b"!") for line in patterns):
        included = printable_path(patterns[-1][1:])
        alone = f"--exclude '*' --include '*/' --include '{included}'"
        raise RequestRefused(
            f"--include {included} re-includes items, but nothing is excluded; to select only these: {alone}"
        )
    _refuse_absolute_patterns(patterns, paths, deletes_selected=deletes_selected)
    return ItemFilters(
        patterns=patterns,
        newer_than=newer or "",
        older_than=older or "",
        larger_than=values.larger_than,
        smaller_than=values.smaller_than,
        after=None if newer is None else _nanoseconds_since_epoch(newer, now),
        before=None if older is None else _nanoseconds_since_epoch(older, now),
    )


def has_patterns_from_standard_input(words: Sequence[str], parser: ArgumentParser) -> bool:
    """Return True if an ``--exclude-from`` in ``words`` reads patterns from standard input.

    ``parser`` is modified, and must not be used afterwards.
    """
    from pcopy.cli.configuration import command_line_options

    return any(
        option.name == "exclude-from" and is_standard_input(option.raw_value)
        for option in command_line_options(words, parser)
    )


def requested_path_list(file: str | None, program: str, *, nul: bool) -> str | None:
    """Return ``file``, the value of ``--from``, unchanged after a check; None if the option is not given.

    Args:
        program: the name of the program, for messages.
        nul: True if ``-0`` is given.

    Raise ``RequestRefused`` if the value is empty, or if ``-0`` is given without the option.
    """
    if file is None and nul:
        raise RequestRefused(f"-0 says how the paths in --from end: give --from, too; see {program} --help")
    if file == "":
        raise RequestRefused("--from: the empty string names no file; write - for standard input")
    return file


def is_standard_input(file: str) -> bool:
    """Return True if ``file``, the value of an option, means standard input: ``-``, or a path such as /dev/stdin."""
    from pcopy.fsio.named_file import inherited_descriptor

    return file == "-" or inherited_descriptor(os.fsencode(file)) == 0


def may_be_standard_input(word: str) -> bool:
    """Return True if ``word`` of a command line, an option with its value or the value alone, ends as a value for which
    ``is_standard_input`` returns True.

    This takes no time worth mentioning; to find the options and their values takes some milliseconds.
    """
    return word.endswith(("-", "/stdin")) or (word.endswith("0") and word.rstrip("0").endswith("/"))


def _refuse_absolute_patterns(patterns: Sequence[bytes], paths: Sequence[bytes], *, deletes_selected: bool) -> None:
    """Raise ``RequestRefused`` for a pattern that begins with one of ``paths``, and therefore matches nothing.

    Patterns are relative to ``paths``, the operands, so they must not contain these. A pattern is refused if it begins
    with the absolute path of one of them. If ``deletes_selected``, it is also refused if it begins with the last
    component or components of one of them: the items that the pattern is to protect would be deleted.
    """
    patterns = [line for line in patterns if b"/" in line[:-1]]
    roots: dict[bytes, bytes] = {}
    ends: dict[bytes, bytes] = {}
    for path in filter(None, paths if patterns else ()):
        absolute = absolute_path(path)
        roots |= {absolute: path, os.path.realpath(path): path}
        ends |= {absolute[slash.start() :]: path for slash in re.finditer(b"/", absolute) if deletes_selected}
    for line in patterns if b"/" not in roots else ():  # Below "/" an absolute path is a valid pattern.
        pattern = line.removeprefix(b"!")
        text = b"/" + pattern.removeprefix(b"/")
        # Find out whether one of the paths is a leading part of the pattern, which ends at a slash or at its end.
        for end in (slash.start() for slash in re.finditer(rb"/|\Z", text)):
            head, rest = re.sub(rb"\\(.)", rb"\1", text[:end]), text[end:].rstrip(b"/")
            path = roots.get(head) or (ends.get(head, b"") if rest else b"")
            if path and not any(os.path.lexists(each + head) for each in paths):
                what = f"{'--exclude' if line == pattern else '--include'} {printable_path(pattern)}"
                advice = f"write {printable_path(text[end:])}" if rest else "that item itself cannot be left out"
                raise RequestRefused(
                    f"{what}: patterns are for paths below {printable_path(path)}: {advice}", path=path
                )


def parse_age_or_date(text: str) -> str:
    """Return ``text`` unchanged if it is an age such as ``7d`` or a date. Raise ``ValueError`` otherwise."""
    if text.startswith("-"):
        raise ValueError(f"ages count back from now: write {text[1:]}")
    _nanoseconds_since_epoch(text, 0)
    return text


def age_in_seconds(text: str) -> float:
    """Return how many seconds ago the time ``text`` was. It is an age such as ``7d``, or a date."""
    now = time.time_ns()
    return (now - _nanoseconds_since_epoch(text, now)) / 10**9


def _nanoseconds_since_epoch(text: str, now: int) -> int:
    """Return the time ``text``, in nanoseconds since 1970. It is an age such as ``7d``, or a date.

    ``now`` is the time from which an age is counted back, also in nanoseconds since 1970. A date without a time zone is
    in the local one. Raise ``ValueError`` if ``text`` is neither an age nor a date.
    """
    try:
        age = parse_age(text)
    except ValueError:
        pass
    else:
        try:
            return now - round(age * 10**9)
        except OverflowError:
            raise ValueError("too large") from None
    from datetime import datetime

    try:
        return round(datetime.fromisoformat(text).timestamp()) * 10**9
    except (ValueError, OverflowError, OSError):
        raise ValueError("neither an age such as 7d or 12h nor a date such as 2026-11-24 or 2026-11-24T18:00") from None


def _line_of_exclude_pattern(text: str) -> Sequence[bytes]:
    """Return the pattern of ``--exclude`` as a line of a pattern file."""
    return _single_pattern_line(text)


def _line_of_include_pattern(text: str) -> Sequence[bytes]:
    """Return the pattern of ``--include`` as a line of a pattern file."""
    return _single_pattern_line(text, includes=True)


def _single_pattern_line(text: str, *, includes: bool = False) -> Sequence[bytes]:
    """Return ``text``, a pattern, as a list of one line in the syntax of pattern files.

    ``includes``: True if the pattern includes items; such a line begins with ``!``.
    """
    from pcopy.walk.patterns import checked_option_pattern

    return (checked_option_pattern(os.fsencode(text), includes=includes),)


def _lines_of_pattern_file(text: str) -> Sequence[bytes]:
    """Return the patterns in the file that is named ``text``, the value of ``--exclude-from``.

    Raise ``RequestRefused`` if the file cannot be read, and ``ValueError`` if it is too large.
    """
    from pcopy.walk.patterns import patterns_in_file

    path = os.fsencode(text)
    try:
        contents = _read_pattern_file(path)
    except OSError as error:
        advice = suggestion_for_missing_path(path) if isinstance(error, FileNotFoundError) else ""
        why = f"cannot be read: {error.strerror}{advice and f'; {advice}'}"
        raise path_refused(path, why, option="--exclude-from:") from None
    if len(contents) > MAX_PATTERN_FILE_SIZE:
        raise ValueError("the file is too large: a file of patterns may have at most 16 MiB")
    lines = [line for _, line in islice(patterns_in_file(contents), MAX_PATTERNS + 1)]
    if len(lines) > MAX_PATTERNS:
        raise ValueError(f"the file has more than {MAX_PATTERNS:,} patterns, the limit: list the paths with --from")
    return lines


_CONTENTS_OF_STREAMS_READ: dict[bytes | int, bytes] = {}
"""Contents that ``_read_pattern_file`` has read from a pipe or an inherited descriptor.

The key is the number of the descriptor (so ``-`` and ``/dev/stdin`` are the same), or the path of a pipe. The contents
are kept because a command line is parsed several times, and such a stream can be read only once.
"""


def _read_pattern_file(path: bytes) -> bytes:
    """Return the contents of a pattern file (``-``: standard input).

    Of a file that is too large, return one byte more than ``MAX_PATTERN_FILE_SIZE``. Raise ``OSError``.
    """
    from pcopy.fsio.named_file import inherited_descriptor, open_named_file_to_read

    is_dash = path == b"-"
    number = 0 if is_dash else inherited_descriptor(path)
    stream = path if number < 0 else number
    if stream in _CONTENTS_OF_STREAMS_READ:
        return _CONTENTS_OF_STREAMS_READ[stream]
    opened = open_named_file_to_read(b"/dev/stdin" if is_dash else path)
    with open(opened.descriptor, "rb") as file:
        contents = file.read(MAX_PATTERN_FILE_SIZE + 1)
        if opened.is_inherited or not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            _CONTENTS_OF_STREAMS_READ[stream] = contents
    return contents


_PROGRAMS = "pcopy psync pverify prm pstripe ptar pwalk pchmod"
_GROUP = "which items are {done}"

FILTER_OPTIONS: tuple[Option, ...] = (
    Option(
        "--exclude",
        _PROGRAMS,
        _GROUP,
        "leave out items that match; directories that are left out are not read",
        brief="leave out what matches P, a pattern as in .gitignore",
        action="append",
        value="P",
        parse=_line_of_exclude_pattern,
        dest="patterns",
        is_filter=True,
    ),
    Option(
        "--include",
        _PROGRAMS,
        _GROUP,
        "select items that match, even if an earlier --exclude matches them",
        action="append",
        value="P",
        parse=_line_of_include_pattern,
        dest="patterns",
        is_filter=True,
    ),
    Option(
        "--exclude-from",
        _PROGRAMS,
        _GROUP,
        "patterns, a line each, as in .gitignore (!P includes); -: from standard input",
        action="append",
        value="FILE",
        parse=_lines_of_pattern_file,
        dest="patterns",
        is_filter=True,
        reads_file=True,
    ),
    Option(
        "--newer-than",
        _PROGRAMS,
        _GROUP,
        "only files with an mtime after WHEN: an age (7d, 12h; also s, m, w) or a date (2026-11-24)",
        value="WHEN",
        parse=parse_age_or_date,
        is_filter=True,
    ),
    Option(
        "--older-than",
        _PROGRAMS,
        _GROUP,
        "only files with an mtime before WHEN",
        value="WHEN",
        parse=parse_age_or_date,
        is_filter=True,
        with_commands="discard",
        variants={
            "pcopy psync": {
                "help": "only files with an mtime before WHEN; with --discard: jobs that no run has worked on since"
            },
            "prm": {"help": "only items, also directories, with an mtime before WHEN"},
        },
    ),
    Option("--larger-than", _PROGRAMS, _GROUP, "only files above SIZE", value="SIZE", parse=parse_size, is_filter=True),
    Option(
        "--smaller-than", _PROGRAMS, _GROUP, "only files below SIZE", value="SIZE", parse=parse_size, is_filter=True
    ),
    Option(
        "--from --files-from",
        "pcopy ptar prm pwalk pchmod",
        "what is {done}",
        "only what FILE lists is {done} (-: standard input): one path per line, or a listing that pwalk has saved",
        brief="only what FILE lists",
        value="FILE",
        dest="list_file",
        in_files=False,
        reads_file=True,
        variants={
            "pcopy": {
                "brief": "",
                "group": _GROUP,
                "help": "copy what FILE lists (-: standard input), a path below SRC on each "
                "line, and the directories that lead there; a directory that is listed is copied whole",
            },
            "ptar": {
                "words": "-T --from --files-from",
                "brief": "",
                "group": "what to do",
                "help": "-c: archive only what FILE lists (-: standard input), each directory with all that is in it; "
                "FILE has a path below DIR on each line, or is a listing that pwalk has saved; -x, -t: FILE lists the "
                "MEMBERs",
            },
            "pwalk": {"group": "what is walked"},
        },
    ),
    Option(
        "-0 --null --from0",
        "pcopy ptar prm pwalk pchmod",
        "what is {done}",
        "the paths in --from end with a NUL, as find -print0 writes them",
        dest="nul_separated",
        in_files=False,
        variants={
            "pcopy": {"group": _GROUP},
            "ptar": {"group": "what to do"},
            "pwalk": {"group": "what is walked"},
        },
    ),
)
"""The options that select items, and those that name a list of paths."""
