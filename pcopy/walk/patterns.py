r"""Translation of gitignore patterns into regular expressions for paths below a root, in bytes as git treats them.

The library pathspec handles stars, slashes and ``?``, and is given nothing else. Everything that it reads differently
from git is translated here, following git's wildmatch.c: brackets, which pathspec treats as Python's; ``\x``; and
trailing blanks, for which pathspec also mistakes the last byte of an à.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from io import BytesIO

from pcopy.text import printable_path

_PATHSPEC_END, _PATHSPEC_DIRECTORY_END = "(?:(?P<ps_d>/)|$)", "(?P<ps_d>/)"
"""The ends of pathspec's expressions for a path, or for a directory with all below it. They are replaced here."""
_PRIVATE_USE_START = 0xF0000
"""The first private-use code point. Such characters in pathspec's text stand for what is translated here."""
_TOKEN = re.compile(
    rb"(?P<segment>(?<![^/])\*\*+(?![^/]))|(?P<star>\*+)|(?P<kept>[?/\w.-])|\\?+(?P<byte>[^/])", re.DOTALL
)
_MEMBER = rb"\[:([^\]]*):\]|(\\.|[^%b\\])(?:-(\\.|[^\]\\]))?"
_FIRST_MEMBER, _NEXT_MEMBER = (re.compile(_MEMBER % excepted, re.DOTALL) for excepted in (b"", b"\\]"))
"""Matches a member of brackets: a class, a byte, or a range. A closing bracket at the first position is a member."""
_CLASSES = {
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
"""Maximum length of a pattern in a file, in bytes: no path that the system accepts is longer (PATH_MAX)."""
_MATCHES_NOTHING = "this pattern can match nothing"


def translate(line: bytes) -> tuple[bytes, bool]:
    """Return a regular expression for the paths that ``line`` matches, and True if it excludes them. Raise
    ``ValueError`` if it can match nothing.

    Every blank is significant, and there are no comments.
    """
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    excludes = not line.startswith(b"!")
    text, private = _prepared_for_pathspec(line if excludes else line[1:])
    regex, _ = GitIgnoreSpecPattern.pattern_to_regex(text)
    if regex is None:
        raise ValueError(_MATCHES_NOTHING)
    if regex == ".":
        return b"", excludes
    for end, instead in ((_PATHSPEC_END, r"/?\Z"), (_PATHSPEC_DIRECTORY_END, r"/\Z"), ("/", "/.")):
        if regex.endswith(end):
            regex = regex[: -len(end)] + instead
            break
    if "?P<" in regex:
        raise ValueError("this pattern is not supported")
    return "".join(private.get(character, character) for character in regex).encode(), excludes


def _prepared_for_pathspec(pattern: bytes) -> tuple[str, dict[str, str]]:
    """Return ``pattern`` with all parts that pathspec reads differently replaced by private characters, and the regular
    expression of each such character.

    Raise ``ValueError`` if the pattern can match nothing.
    """
    text, at = "", 0
    private: dict[str, str] = {}
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if pattern[at : at + 1] == b"[":
            regex, at = _translated_bracket(pattern, at + 1)
        elif token is None:
            raise ValueError("a backslash before a slash or at the end: write \\\\ for a literal backslash")
        else:
            at = token.end()
            if token["byte"] is None:
                text += "**" if token["segment"] else "*" if token["star"] else token["kept"].decode()
                continue
            regex = f"\\x{ord(token['byte']):02x}"
        text += private.setdefault(regex, chr(_PRIVATE_USE_START + len(private)))
    _refuse_invalid_names(pattern, text)
    if b"/" in pattern[1:-1]:  # a slash inside brackets also makes it a path pattern
        text = "/" + text.removeprefix("/")
    while text.endswith("/**/"):  # pathspec would ignore the stars
        text = text[:-4].removesuffix("/**") + ("/**/*/" if text[:-4] else "*/")
    return text, {character: regex for regex, character in private.items()}


def _translated_bracket(pattern: bytes, at: int) -> tuple[str, int]:
    """Return the regular expression of the bracket that was opened before the offset ``at``, and the offset after it.

    Raise ``ValueError`` if it is not closed or names an unknown class.
    """
    negated = pattern[at : at + 1] in (b"!", b"^")
    at += negated
    members, item = "", _FIRST_MEMBER.match(pattern, at)
    while item:
        name, first, last = item.groups()
        if name is not None and name not in _CLASSES:
            raise ValueError(f"{_MATCHES_NOTHING}: there is no class [:{printable_path(name)}:]")
        lowest, highest = ((first or b"")[-1:], (last or first or b"")[-1:])
        members += _CLASSES[name] if name is not None else f"\\x{ord(lowest):02x}"
        if lowest < highest:
            members += f"-\\x{ord(highest):02x}"
        at = item.end()
        if pattern[at : at + 1] == b"]":
            return f"(?!/)[{'^' * negated}{members}]", at + 1
        item = _NEXT_MEMBER.match(pattern, at)
    raise ValueError(f"{_MATCHES_NOTHING}: a bracket is not closed; write \\[ for a literal bracket")


def _refuse_invalid_names(pattern: bytes, text: str) -> None:
    """Raise ``ValueError`` if a part of ``pattern``, which was translated into ``text``, cannot be
    the name of an item.
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


def pattern_line(pattern: bytes, *, includes: bool = False) -> bytes:
    """Return a pattern of the command line as a line for ``translate``; raise ``ValueError`` if it can match nothing.

    There are no comments on a command line, and trailing blanks belong to the pattern.

    Args:
        includes: True for ``--include``, False for ``--exclude``.
    """
    if includes and pattern.startswith(b"!"):
        raise ValueError("begins with !, which excludes what is included; for a name that begins so write \\!")
    if not pattern.strip():
        raise ValueError(_MATCHES_NOTHING)
    line = b"!" + pattern if includes else pattern
    _check(line)
    return line


def patterns_in(contents: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the patterns in a file with their line numbers, counted from 1; skip blank lines and comments.

    Raise ``ValueError`` with the line number if a pattern can match nothing.
    """
    for number, line in enumerate(BytesIO(contents.removeprefix(b"\xef\xbb\xbf")), 1):
        pattern = _without_trailing_blanks(line.removesuffix(b"\n").removesuffix(b"\r"))
        if pattern and not pattern.startswith(b"#"):
            try:
                if len(pattern) > MAX_PATTERN_BYTES:
                    raise ValueError(f"more than {MAX_PATTERN_BYTES:,} bytes, and no path is so long")
                _check(pattern)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
            yield number, pattern


def _without_trailing_blanks(line: bytes) -> bytes:
    """Return the line without trailing blanks. A backslash keeps one blank, unless it is itself escaped."""
    bare = line.rstrip(b" ")
    backslashes = len(bare) - len(bare.rstrip(b"\\"))
    return line[: len(bare) + backslashes % 2]


def _check(line: bytes) -> None:
    """Raise ``ValueError`` if the line is a rule in rsync's form, or can match nothing."""
    if line[:2] in (b"- ", b"+ "):
        option = "--exclude" if line.startswith(b"-") else "--include"
        advice = f"write {option} with what follows; a name that begins so is written \\{line[:1].decode()}"
        raise ValueError(f"a rule in rsync's form: {advice}")
    translate(line)
