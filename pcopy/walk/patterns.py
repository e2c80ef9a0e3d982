r"""Patterns of gitignore as regular expressions for paths below a root, in bytes as git has them.

pathspec knows what stars, slashes and ``?`` mean, and is given nothing else: all that it reads in another way than git
is translated here, as git's wildmatch.c has it. These are brackets, which it takes for Python's; ``\x``; and blanks at
the end, for which it also takes the last byte of an à.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from io import BytesIO

from pcopy.text import shown

_EITHER, _DIRECTORY = "(?:(?P<ps_d>/)|$)", "(?P<ps_d>/)"
"""How pathspec ends what matches a path, or a directory's alone, and all below it. Here that is of no interest."""
_PRIVATE = 0xF0000
"""From here on characters mean nothing to anybody: in pathspec's text they stand for what is translated here."""
_TOKEN = re.compile(
    rb"(?P<segment>(?<![^/])\*\*+(?![^/]))|(?P<star>\*+)|(?P<kept>[?/\w.-])|\\?+(?P<byte>[^/])", re.DOTALL
)
_ITEM = rb"\[:([^\]]*):\]|(\\.|[^%b\\])(?:-(\\.|[^\]\\]))?"
_FIRST, _NEXT = (re.compile(_ITEM % excepted, re.DOTALL) for excepted in (b"", b"\\]"))
"""In brackets: a class, or a byte, or from one to another. A bracket that comes first closes nothing."""
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
"""As git has them, whatever the locale."""
LONGEST = 4096
"""Bytes of a pattern in a file: no path is longer that the system takes."""
_NOTHING = "no pattern that could match anything"


def translate(line: bytes) -> tuple[bytes, bool]:
    """A regular expression for the paths that ``line`` matches, and whether it excludes them; ``ValueError``: none.

    Each blank counts, and there are no comments.
    """
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    excludes = not line.startswith(b"!")
    text, own = _for_pathspec(line if excludes else line[1:])
    regex, _ = GitIgnoreSpecPattern.pattern_to_regex(text)
    if regex is None:
        raise ValueError(_NOTHING)
    if regex == ".":
        return b"", excludes
    for end, instead in ((_EITHER, r"/?\Z"), (_DIRECTORY, r"/\Z"), ("/", "/.")):
        if regex.endswith(end):
            regex = regex[: -len(end)] + instead
            break
    if "?P<" in regex:
        raise ValueError("a pattern that is not understood")
    return "".join(own.get(character, character) for character in regex).encode(), excludes


def _for_pathspec(pattern: bytes) -> tuple[str, dict[str, str]]:
    """``pattern`` in stars, slashes, ``?`` and characters that mean themselves, and the regular expressions of those
    that stand for something else. Raises ``ValueError`` if it can match nothing."""
    text, at = "", 0
    own: dict[str, str] = {}
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if pattern[at : at + 1] == b"[":
            regex, at = _bracket(pattern, at + 1)
        elif token is None:
            raise ValueError("a backslash before a slash or at the end: write \\\\ for one that means itself")
        else:
            at = token.end()
            if token["byte"] is None:
                text += "**" if token["segment"] else "*" if token["star"] else token["kept"].decode()
                continue
            regex = f"\\x{ord(token['byte']):02x}"
        text += own.setdefault(regex, chr(_PRIVATE + len(own)))
    _refuse_no_names(pattern, text)
    if b"/" in pattern[1:-1]:  # one in brackets makes it a path, too
        text = "/" + text.removeprefix("/")
    while text.endswith("/**/"):  # pathspec takes it for that without the stars
        text = text[:-4].removesuffix("/**") + ("/**/*/" if text[:-4] else "*/")
    return text, {character: regex for regex, character in own.items()}


def _bracket(pattern: bytes, at: int) -> tuple[str, int]:
    """The regular expression of the bracket that has been opened before ``at``, and where it has ended."""
    negated = pattern[at : at + 1] in (b"!", b"^")
    at += negated
    members, item = "", _FIRST.match(pattern, at)
    while item:
        name, first, last = item.groups()
        if name is not None and name not in _CLASSES:
            raise ValueError(f"{_NOTHING}: there is no class [:{shown(name)}:]")
        lowest, highest = ((first or b"")[-1:], (last or first or b"")[-1:])
        members += _CLASSES[name] if name is not None else f"\\x{ord(lowest):02x}"
        if lowest < highest:
            members += f"-\\x{ord(highest):02x}"
        at = item.end()
        if pattern[at : at + 1] == b"]":
            return f"(?!/)[{'^' * negated}{members}]", at + 1
        item = _NEXT.match(pattern, at)
    raise ValueError(f"{_NOTHING}: a bracket is not closed; \\[ is one that means itself")


def _refuse_no_names(pattern: bytes, text: str) -> None:
    """Raises ``ValueError`` for a ``pattern``, translated as ``text``, in which a part is no name of an item."""
    if b"\0" in pattern or text in ("", "/"):
        raise ValueError(_NOTHING)
    parts = text.removeprefix("/").removesuffix("/").split("/")
    if {"", ".", ".."}.isdisjoint(parts):
        return
    names = b"/".join(part for part in pattern.split(b"/") if part not in (b"", b"."))
    if ".." in parts or not names:
        raise ValueError(f"{_NOTHING}: patterns are for paths below SRC or PATH")
    slash = "/" if pattern.endswith(b"/") else ""
    raise ValueError(f"{_NOTHING}: write /{shown(names)}{slash}, for a path below SRC or PATH")


def line_of(pattern: bytes, *, includes: bool = False) -> bytes:
    """A pattern of the command line as a line for ``translate``; raises ``ValueError`` if it can match nothing.

    There are no comments on a command line, and blanks at the end belong to the pattern.
    """
    if includes and pattern.startswith(b"!"):
        raise ValueError("begins with !, which excludes what is included; for a name that begins so write \\!")
    if not pattern.strip():
        raise ValueError(_NOTHING)
    line = b"!" + pattern if includes else pattern
    _check(line)
    return line


def lines_in(contents: bytes) -> Iterator[tuple[int, bytes]]:
    """The patterns in a file, and in which line each stands, from 1. Blank lines and comments are none.

    Raises ``ValueError``, with the line, where one can match nothing.
    """
    for number, line in enumerate(BytesIO(contents.removeprefix(b"\xef\xbb\xbf")), 1):
        pattern = _without_blanks(line.removesuffix(b"\n").removesuffix(b"\r"))
        if pattern and not pattern.startswith(b"#"):
            try:
                if len(pattern) > LONGEST:
                    raise ValueError(f"more than {LONGEST:,} bytes, and no path is so long")
                _check(pattern)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
            yield number, pattern


def _without_blanks(line: bytes) -> bytes:
    """At the end; a backslash keeps one, unless another stands before that."""
    bare = line.rstrip(b" ")
    backslashes = len(bare) - len(bare.rstrip(b"\\"))
    return line[: len(bare) + backslashes % 2]


def _check(line: bytes) -> None:
    if line[:2] in (b"- ", b"+ "):
        option = "--exclude" if line.startswith(b"-") else "--include"
        advice = f"write {option} with what follows; a name that begins so is written \\{line[:1].decode()}"
        raise ValueError(f"a rule in rsync's form: {advice}")
    translate(line)
