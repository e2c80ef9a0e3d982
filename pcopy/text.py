"""Conversion of file names and messages to text that is safe on a terminal and in a log.

File names are bytes, and may contain all bytes but ``/`` and NUL. Rule: printed text consists of printable characters
only. Characters that Unicode does not class as printable (C0 and C1 controls, changes of the writing direction,
characters without width, line separators) are escaped even if they are valid UTF-8, because a terminal acts on them.
``printable_path`` loses no information: it also escapes the backslash, so that the original bytes can be restored.
"""

from __future__ import annotations

import os
import sys

OTHER_NAMES = {"pcopy-tar": "ptar"}
"""Further names under which programs are installed, and the usual name of each."""
MAX_MESSAGE_LENGTH = 16_384
"""Maximum number of characters of a message, beyond which its middle is omitted.

That is enough for a path of PATH_MAX (4,096) bytes even if each byte is escaped.
"""
_CHARACTERS_KEPT_AT_EACH_END = 4_096
"""Number of characters that remain at each end of a longer message: the beginning of the path, and the reason."""

_SHORT_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
"""Characters with a short escape sequence; all others are escaped as ``\\xNN`` for each byte."""
_TAR_ESCAPES = {**_SHORT_ESCAPES, "\a": "\\a", "\b": "\\b", "\f": "\\f", "\v": "\\v"}
"""Characters for which GNU tar prints a letter after a backslash."""


def printable_path(path: bytes) -> str:
    r"""Return ``path`` as text for people, from which the bytes can be restored.

    Printable characters in UTF-8 remain as they are. Backslashes, unprintable characters and bytes that are not UTF-8
    are escaped: as ``\\``, ``\n``, ``\r``, ``\t``, or ``\xNN`` for each byte.
    """
    text = path.decode("utf-8", "surrogateescape")
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(_escaped_character(character) for character in text)


def tar_quoted_name(name: bytes, encoding: str) -> str:
    r"""Return the name of a member as GNU tar prints it (``--quoting-style=escape``), for a stream with this
    ``encoding``.

    Printable characters in UTF-8 remain as they are. The backslash and some control characters have a letter, as in C;
    other bytes are escaped as ``\NNN`` (octal). Unlike tar, this also escapes characters that are assigned but act on a
    terminal or cannot be seen, such as those that change the writing direction.
    """
    text = name.decode("utf-8", "surrogateescape")
    if text.isascii() and text.isprintable() and "\\" not in text:
        return text
    return "".join(_tar_escaped_character(character, encoding) for character in text)


def _tar_escaped_character(character: str, encoding: str) -> str:
    """Return ``character`` as ``tar_quoted_name`` prints it."""
    letter = _TAR_ESCAPES.get(character)
    if letter is not None:
        return letter
    if character.isprintable() and _is_character_in_encoding(character, encoding):
        return character
    return "".join(f"\\{byte:03o}" for byte in character.encode("utf-8", "surrogateescape"))


def invoked_name(program: str) -> str:
    """Return the name under which ``program`` was started: one of ``OTHER_NAMES``, or ``program`` itself."""
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    return name if OTHER_NAMES.get(name) == program else program


def with_invoked_name(text: str, program: str) -> str:
    """Return ``text``, a help text or a message, with the name under which ``program`` was started in place of the
    program's name, where that stands as a word.
    """
    name = invoked_name(program)
    if name == program:
        return text
    import re

    return re.sub(rf"(?<![^\s(]){program}(?![^\s:;,.)])", name, text)


def printable_text(text: str) -> str:
    """Return ``text``, a message, as one line; unprintable characters are escaped, backslashes are kept."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _escaped_character(character) for character in text)


def one_line_message(text: str) -> str:
    """Return a message as one line of printable characters, shortened if it is longer than ``MAX_MESSAGE_LENGTH``.

    The middle of a longer message is replaced by the number of omitted characters: archives and lists can contain names
    of 1 MiB. For messages only: other data for programs (lists, paths in ``--errors``, ``--json``) are never
    shortened.
    """
    line = printable_text(text)
    if len(line) <= MAX_MESSAGE_LENGTH:
        return line
    return (
        f"{line[:_CHARACTERS_KEPT_AT_EACH_END]}... [{len(line) - 2 * _CHARACTERS_KEPT_AT_EACH_END:,} characters not "
        f"shown] ...{line[-_CHARACTERS_KEPT_AT_EACH_END:]}"
    )


def shell_quoted(word: bytes) -> str:
    """Return ``word`` quoted for a shell, if that is necessary.

    A word with unprintable bytes is escaped in ``$'...'``, which bash, ksh and zsh understand.
    """
    import shlex

    text = printable_path(word)
    return shlex.quote(text) if os.fsencode(text) == word else "$'" + text.replace("'", "\\'") + "'"


def encodable_text(text: str, encoding: str) -> str:
    """Return ``text`` so that it can be written to a stream with this ``encoding``.

    Characters that are not printable, or that the encoding does not have, are escaped. Line breaks are kept.
    """
    if not text.isprintable():
        text = "\n".join(map(printable_text, text.split("\n")))
    if text.isascii():
        return text
    return "".join(
        character if _is_character_in_encoding(character, encoding) else _escaped_bytes_of_character(character)
        for character in text
    )


def count_with_noun(number: int, one: str, many: str) -> str:
    """Return ``number`` with a noun in the form for 1 (``one``) or for other numbers (``many``): ``1 item``, ``2,000
    items``.
    """
    return f"{number:,} {one if number == 1 else many}"


def _escaped_character(character: str) -> str:
    """Return the escape sequence of ``character``, or ``character`` itself if it is printable."""
    named = _SHORT_ESCAPES.get(character)
    if named is not None:
        return named
    return character if character.isprintable() else _escaped_bytes_of_character(character)


def _escaped_bytes_of_character(character: str) -> str:
    r"""Return ``\xNN`` for each byte of the UTF-8 encoding of a character.

    Python represents a byte of a file name that is not UTF-8 as a lone surrogate: the result is the escape of that
    byte. Any other surrogate, which UTF-8 does not permit, is encoded like other characters of its size.
    """
    error_handler = "surrogateescape" if "\udc80" <= character <= "\udcff" else "surrogatepass"
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", error_handler))


def _is_character_in_encoding(character: str, encoding: str) -> bool:
    """Return True if ``character`` can be written in ``encoding``."""
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
