r"""Translation of gitignore patterns into regular expressions for paths below a root, in bytes as git treats them.

The library pathspec translates stars, slashes and ``?``. Everything that it treats differently from git is translated
here, as git's wildmatch.c does it: brackets, which pathspec reads as Python's; a backslash before a character; and
trailing blanks (pathspec also takes the last byte of an à for a blank).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from io import BytesIO
from struct import Struct

from pcopy.text import printable_path

_PATHSPEC_ENDS = {
    "(?:(?P<ps_d>/)|$)": r"/?\Z",
    "(?:(?P<ps_d>/).*)?$": r"/?\Z",
    "(?P<ps_d>/).*$": r"/\Z",
    "(?P<ps_d>/)": r"/\Z",
    "/": "/.",
}
"""Ends of the regular expressions that the library pathspec returns, for a path, or for a directory with everything
below it. ``translate_gitignore_pattern`` replaces each by its value, so that an expression matches the path itself
only. Those with ``.*`` are of versions before 1.0.
"""
_PRIVATE_USE_START = 0xF0000
"""First code point for private use (Unicode). Parts of a pattern that the library pathspec would treat differently from
git are translated here: in the text for pathspec each such part is one of these characters, which is later replaced
by the regular expression of the part.
"""
_TOKEN = re.compile(
    rb"(?P<segment>(?<![^/])\*\*+(?![^/]))|(?P<star>\*+)|(?P<kept>[?/\w.-])|\\?+(?P<byte>[^/])", re.DOTALL
)
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
MAX_PATTERN_BYTES = 4096
"""Maximum length in bytes of a pattern in a file (PATH_MAX). If a line is longer, the file is refused: it is no list of
patterns.
"""
_END, _ONE_BYTE, _ANY_BYTE, _BYTE_SET, _ANY_BYTES, _SLASH, _ANY_DIRECTORIES = map(bytes, zip(range(7)))
"""Operations of the programs into which patterns are translated for the C backend (native/filter.c)."""
_RULE_HEAD = Struct("=IB")
"""Size of a rule in bytes, and its flags: 1 if it excludes, 2 if it matches directories only, 4 if it matches paths."""
_MATCHES_NOTHING = "this pattern cannot match anything"


def translate_gitignore_pattern(line: bytes) -> tuple[bytes, bool]:
    """Return a regular expression for the paths that the gitignore pattern ``line`` matches, and True if the pattern
    excludes these paths (False: it begins with ``!`` and includes them). Raise ``ValueError`` if the pattern can
    match nothing.

    Every blank is part of the pattern, and ``#`` begins no comment.
    """
    excludes = not line.startswith(b"!")
    text, private = _pattern_for_pathspec_library(line if excludes else line[1:])
    regex = _regex_by_pathspec(text)
    if regex is None:
        raise ValueError(_MATCHES_NOTHING)
    if regex == ".":
        return b"", excludes
    for end, instead in _PATHSPEC_ENDS.items():
        if regex.endswith(end):
            regex = regex[: -len(end)] + instead
            break
    if "?P<" in regex:
        raise ValueError("this pattern is not supported")
    return "".join(private.get(character, character) for character in regex).encode(), excludes


def pattern_rules(patterns: Sequence[bytes]) -> bytes:
    """Return gitignore patterns as rules for the C backend (native/filter.c), the last one first."""
    return b"".join(map(_pattern_rule, reversed(patterns)))


def _pattern_rule(line: bytes) -> bytes:
    """Return a gitignore pattern as a rule for the C backend: its size, flags, and a program that matches paths."""
    excludes = not line.startswith(b"!")
    text, private = _pattern_for_pathspec_library(line if excludes else line[1:])
    parts = text.removeprefix("/").removesuffix("/").split("/")
    flags = excludes | 2 * text.endswith("/") | 4 * (text.startswith("/") or len(parts) > 1)
    steps = []
    for depth, part in enumerate(parts):
        is_last = depth == len(parts) - 1
        if part == "**":
            steps.append(_ANY_DIRECTORIES + _ANY_BYTES * is_last)
        else:
            steps += [_pattern_step(character, private) for character in part.replace("**", "*")]
            steps.append(b"" if is_last else _SLASH)
    program = b"".join(steps) + _END
    return _RULE_HEAD.pack(_RULE_HEAD.size + len(program), flags) + program


def _pattern_step(character: str, private: dict[str, str]) -> bytes:
    """Return the operation of a program that stands for a character of a prepared pattern."""
    if character == "*":
        return _ANY_BYTES
    if character == "?":
        return _ANY_BYTE
    if character not in private:
        return _ONE_BYTE + character.encode()
    matches = re.compile(private[character].encode(), re.DOTALL).fullmatch
    members = sum(1 << byte for byte in range(256) if matches(bytes((byte,))))
    return _BYTE_SET + members.to_bytes(32, "little")


def _regex_by_pathspec(text: str) -> str | None:
    """Return the regular expression of the library pathspec for a pattern; None if the pattern matches nothing.

    Versions before 1.0 return others for two kinds of pattern. The results are made equal here.
    """
    try:
        from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern
    except ModuleNotFoundError as error:
        if error.name == "pathspec":
            raise
    else:
        found: str | None = GitIgnoreSpecPattern.pattern_to_regex(text)[0]
        return found
    from pathspec.patterns.gitwildmatch import GitWildMatchPattern

    *parents, last = text.removeprefix("/").removesuffix("/").split("/")
    if {*parents} <= {"**"} and last in ("*", "**") and not (text.startswith("/") and [*parents, last] == ["*"]):
        return "(?P<ps_d>/)" if text.endswith("/") else "."  # all directories, or everything
    regex: str | None = GitWildMatchPattern.pattern_to_regex(text)[0]
    if regex is not None and text.endswith("/**"):
        return regex.removesuffix("(?P<ps_d>/).*$").removesuffix("/.*$") + "/"
    return regex


def _pattern_for_pathspec_library(pattern: bytes) -> tuple[str, dict[str, str]]:
    """Return ``pattern`` as text for the library pathspec. Parts that pathspec would treat differently from git are
    replaced by private characters; the dictionary has the regular expression for each of these characters.

    Raise ``ValueError`` if the pattern can match nothing.
    """
    text, at = "", 0
    private: dict[str, str] = {}
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if pattern[at : at + 1] == b"[":
            regex, at = _regex_of_bracket_expression(pattern, at + 1)
        elif token is None:
            raise ValueError(
                "a backslash before a slash or at the end is not allowed: write \\\\ for a literal backslash"
            )
        else:
            at = token.end()
            if token["byte"] is None:
                text += "**" if token["segment"] else "*" if token["star"] else token["kept"].decode()
                continue
            regex = f"\\x{ord(token['byte']):02x}"
        text += private.setdefault(regex, chr(_PRIVATE_USE_START + len(private)))
    _refuse_invalid_names(pattern, text)
    if b"/" in pattern[1:-1]:  # In git, a slash inside brackets also ties the pattern to the root.
        text = "/" + text.removeprefix("/")
    while text.endswith("/**/"):  # Pathspec would ignore these stars.
        text = text[:-4].removesuffix("/**") + ("/**/*/" if text[:-4] else "*/")
    return text, {character: regex for regex, character in private.items()}


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


def _refuse_invalid_names(pattern: bytes, text: str) -> None:
    """Raise ``ValueError`` if a component of ``pattern`` is empty, ``.`` or ``..``, so that it matches no path below a
    root. ``text`` is the pattern as it was prepared for pathspec.
    """
    if b"\0" in pattern or text in ("", "/"):
        raise ValueError(_MATCHES_NOTHING)
    parts = text.removeprefix("/").removesuffix("/").split("/")
    if {"", ".", ".."}.isdisjoint(parts):
        return
    names = b"/".join(part for part in pattern.split(b"/") if part not in (b"", b"."))
    if ".." in parts or not names:
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
