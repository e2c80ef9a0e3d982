"""Translation of gitignore patterns into regular expressions for paths below a root, and into rules for the C backend.

Patterns are treated in bytes, as git's wildmatch.c does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from io import BytesIO
from struct import Struct

from pcopy.fast_named_tuple import NamedTuple
from pcopy.text import printable_path

_TOKEN = re.compile(
    rb"(?P<deep>(?<![^/])\*\*+(?![^/]))|(?P<star>\*+)|(?P<any>\?)|(?P<slash>/)|\\?+(?P<byte>[^/])", re.DOTALL
)
_STAR, _ANY, _DEEP = "[^/]*", "[^/]", "(?:[^/]+/)*"
"""Regular expressions for any bytes and for one byte of a name, and for any number of directories (``**/``)."""
_BRACKET_MEMBER = rb"\[:([^\]]*):\]|(\\.|[^%b\\])(?:-(\\.|[^\]\\]))?"
_FIRST_MEMBER, _NEXT_MEMBER = (re.compile(_BRACKET_MEMBER % excepted, re.DOTALL) for excepted in (b"", b"\\]"))
"""Regular expressions for one member inside the brackets of a pattern, in the first and in later positions: a class
such as ``[:alpha:]``, a byte, or a range. A closing bracket in the first position is a member.
"""
_CHARACTER_CLASSES = {
    b"alnum": "0-9A-Za-z",
    b"alpha": "A-Za-z",
    b"blank": r"\x20\t",
    b"cntrl": r"\x00-\x1f\x7f",
    b"digit": "0-9",
    b"graph": r"\x21-\x7e",
    b"lower": "a-z",
    b"print": r"\x20-\x7e",
    b"punct": r"\x21-\x2f\x3a-\x40\x5b-\x60\x7b-\x7e",
    b"space": r"\x20\t\n\r",
    b"upper": "A-Z",
    b"xdigit": "0-9A-Fa-f",
}
"""Character classes as git defines them, independent of the locale."""
NAME_BEGIN = rb"(?:\A|/)"
"""Beginning of regular expressions that are compared with names, not with whole paths."""
MAX_PATTERN_BYTES = 4096
"""Maximum length in bytes of a pattern in a file (PATH_MAX). If a line is longer, the file is refused: it is no list of
patterns.
"""
_END, _ONE_BYTE, _ANY_BYTE, _BYTE_SET, _ANY_BYTES, _SLASH, _ANY_DIRECTORIES = map(bytes, zip(range(7)))
"""Operations of the programs into which patterns are translated for the C backend (native/filter.c)."""
_STEPS = {_STAR: _ANY_BYTES, _ANY: _ANY_BYTE, _DEEP: _ANY_DIRECTORIES}
"""Operation for each regular expression in a parsed pattern that stands for more than given bytes."""
_RULE_HEAD = Struct("=IB")
"""Size of a rule in bytes, and its flags: 1 if it excludes, 2 if it matches directories only, 4 if it matches paths."""
_MATCHES_NOTHING = "this pattern cannot match anything"


class _Pattern(NamedTuple):
    """A pattern that was parsed.

    Fields:
        excludes: False if it begins with ``!``.
        matches_directories_only: True if it ends with a slash.
        matches_paths: True if it is compared with whole paths, not with names.
        components: its parts between slashes, each a list of regular expressions: ``_DEEP`` alone, or ``_STAR`` and
            expressions for one byte.
    """

    excludes: bool
    matches_directories_only: bool
    matches_paths: bool
    components: list[list[str]]


def _parsed_pattern(line: bytes) -> _Pattern:
    """Parse a gitignore pattern. Raise ``ValueError`` if it can match nothing.

    Every blank is part of the pattern, and ``#`` begins no comment.
    """
    excludes = not line.startswith(b"!")
    pattern = line if excludes else line[1:]
    texts, components, at = [b""], list[list[str]]([[]]), 0
    while at < len(pattern):
        start, token = at, _TOKEN.match(pattern, at)
        if pattern[at : at + 1] == b"[":
            regex, at = _regex_of_bracket_expression(pattern, at + 1)
        elif token is None:
            raise ValueError(
                "a backslash before a slash or at the end is not allowed: write \\\\ for a literal backslash"
            )
        else:
            at = token.end()
            if token["slash"]:
                texts.append(b"")
                components.append([])
                continue
            regex = _DEEP if token["deep"] else _STAR if token["star"] else _ANY if token["any"] else ""
            regex = regex or f"\\x{ord(token['byte']):02x}"
        texts[-1] += pattern[start:at]
        components[-1].append(regex)
    has_slash_at_begin, has_slash_at_end = not texts[0], len(texts) > 1 and not texts[-1]
    kept = slice(int(has_slash_at_begin), len(texts) - has_slash_at_end)
    _refuse_invalid_names(pattern, texts[kept])
    # In git, a slash inside brackets also ties the pattern to the root.
    is_path = has_slash_at_begin or b"/" in pattern[1:-1]
    return _Pattern(excludes, has_slash_at_end, is_path, components[kept])


def translate_gitignore_pattern(line: bytes) -> tuple[bytes, bool]:
    """Return a regular expression for the paths that the gitignore pattern ``line`` matches, and True if the pattern
    excludes these paths (False: it begins with ``!`` and includes them). Raise ``ValueError`` if the pattern can
    match nothing. Paths of directories end with a slash.
    """
    pattern = _parsed_pattern(line)
    *above, last = ("".join(component) for component in pattern.components)
    regex = "".join(part if part == _DEEP else part + "/" for part in above)
    if last in (_STAR, _DEEP):
        last = last.removesuffix(_STAR) + _ANY + "+"
    regex += last + (r"/\Z" if pattern.matches_directories_only else r"/?\Z")
    return (rb"\A" if pattern.matches_paths else NAME_BEGIN) + regex.encode(), pattern.excludes


def pattern_rules(patterns: Sequence[bytes]) -> bytes:
    """Return gitignore patterns as rules for the C backend (native/filter.c), the last one first."""
    return b"".join(map(_pattern_rule, reversed(patterns)))


def _pattern_rule(line: bytes) -> bytes:
    """Return a gitignore pattern as a rule for the C backend: its size, flags, and a program that matches paths."""
    pattern = _parsed_pattern(line)
    flags = pattern.excludes | 2 * pattern.matches_directories_only | 4 * pattern.matches_paths
    program, last = b"", pattern.components[-1]
    for component in pattern.components:
        program += b"".join(map(_pattern_step, component))
        if component is not last and component != [_DEEP]:
            program += _SLASH
    program += (_ANY_BYTES if last == [_DEEP] else b"") + _END
    return _RULE_HEAD.pack(_RULE_HEAD.size + len(program), flags) + program


def _pattern_step(regex: str) -> bytes:
    """Return the operation of a program that stands for a regular expression in a parsed pattern."""
    if regex in _STEPS:
        return _STEPS[regex]
    matches = re.compile(regex.encode(), re.DOTALL).fullmatch
    members = [byte for byte in range(256) if matches(bytes((byte,)))]
    if len(members) == 1:
        return _ONE_BYTE + bytes(members)
    return _BYTE_SET + sum(1 << byte for byte in members).to_bytes(32, "little")


def _regex_of_bracket_expression(pattern: bytes, at: int) -> tuple[str, int]:
    """Return the regular expression for brackets in a gitignore pattern, such as ``[a-z]``, and the offset after the
    closing bracket. ``at`` is the offset after the opening one.

    Raise ``ValueError`` if the brackets are not closed or contain an unknown class.
    """
    negated = pattern[at : at + 1] in (b"!", b"^")
    at += negated
    members, item = "", _FIRST_MEMBER.match(pattern, at)
    while item:
        name, first, last = item.groups()
        if name is not None and name not in _CHARACTER_CLASSES:
            raise ValueError(f"{_MATCHES_NOTHING}: there is no class [:{printable_path(name)}:]")
        lowest, highest = ((first or b"")[-1:], (last or first or b"")[-1:])
        members += _CHARACTER_CLASSES[name] if name is not None else f"\\x{ord(lowest):02x}"
        if lowest < highest:
            members += f"-\\x{ord(highest):02x}"
        at = item.end()
        if pattern[at : at + 1] == b"]":
            return f"(?!/)[{'^' * negated}{members}]", at + 1
        item = _NEXT_MEMBER.match(pattern, at)
    raise ValueError(f"{_MATCHES_NOTHING}: a bracket is not closed; write \\[ for a literal bracket")


def _refuse_invalid_names(pattern: bytes, parts: Sequence[bytes]) -> None:
    """Raise ``ValueError`` if one of ``parts``, the text between the slashes of a pattern, is empty, ``.`` or ``..``,
    so that the pattern matches no path below a root.
    """
    if b"\0" in pattern or not parts:
        raise ValueError(_MATCHES_NOTHING)
    if {b"", b".", b".."}.isdisjoint(parts):
        return
    names = b"/".join(part for part in pattern.split(b"/") if part not in (b"", b"."))
    if b".." in parts or not names:
        raise ValueError(f"{_MATCHES_NOTHING}: patterns are for paths below SRC or PATH")
    slash = "/" if pattern.endswith(b"/") else ""
    raise ValueError(f"{_MATCHES_NOTHING}: write /{printable_path(names)}{slash}, for a path below SRC or PATH")


def checked_option_pattern(pattern: bytes, *, includes: bool = False) -> bytes:
    """Return a gitignore pattern of the command line (``--exclude``, ``--include``) in the form that
    ``translate_gitignore_pattern`` accepts: one to include begins with ``!``. Raise ``ValueError`` if the pattern can
    match nothing.

    Unlike in a file, ``#`` begins no comment, and trailing blanks belong to the pattern.

    Args:
        includes: True for ``--include``, False for ``--exclude``.
    """
    if includes and pattern.startswith(b"!"):
        raise ValueError(
            "begins with !, but --include takes patterns without a leading !; for a name that begins with ! write \\!"
        )
    if not pattern.strip():
        raise ValueError(_MATCHES_NOTHING)
    line = b"!" + pattern if includes else pattern
    _check_pattern(line)
    return line


def patterns_in_file(contents: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the gitignore patterns in a file (``contents``) with their line numbers, counted from 1; skip blank lines
    and comments.

    Raise ``ValueError`` with the line number if a pattern can match nothing.
    """
    for number, line in enumerate(BytesIO(contents.removeprefix(b"\xef\xbb\xbf")), 1):
        pattern = _without_trailing_blanks(line.removesuffix(b"\n").removesuffix(b"\r"))
        if pattern and not pattern.startswith(b"#"):
            try:
                if len(pattern) > MAX_PATTERN_BYTES:
                    raise ValueError(f"the pattern is longer than {MAX_PATTERN_BYTES:,} bytes, the maximum for a path")
                _check_pattern(pattern)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
            yield number, pattern


def _without_trailing_blanks(line: bytes) -> bytes:
    """Return ``line`` of a file of patterns without the blanks at its end. A backslash keeps one blank, unless it is
    itself escaped.
    """
    bare = line.rstrip(b" ")
    backslashes = len(bare) - len(bare.rstrip(b"\\"))
    return line[: len(bare) + backslashes % 2]


def _check_pattern(line: bytes) -> None:
    """Raise ``ValueError`` if the pattern ``line`` looks like a filter rule of rsync (``- NAME``), or can match
    nothing.
    """
    if line[:2] in (b"- ", b"+ "):
        option = "--exclude" if line.startswith(b"-") else "--include"
        advice = f"write {option} with what follows the blank; if a name begins like this, write \\{line[:1].decode()}"
        raise ValueError(f"a rule in rsync's form: {advice}")
    translate_gitignore_pattern(line)
