"""Conversion of file names and messages to text that is safe on a terminal, in a log and for people.

File names are bytes and may hold anything but ``/`` and NUL. Rule: printed text consists of printable characters only.
``printable_path`` loses no information, because the backslash itself is escaped, too. Characters that Unicode does not
class as printable (C0 and C1 controls, changes of the writing direction, characters without width, line separators) are
escaped even if they are valid UTF-8, because a terminal acts on them.
"""

from __future__ import annotations

import os

MAX_MESSAGE_LENGTH = 16_384
"""Maximum characters of a message: enough for a name of PATH_MAX bytes even if each byte is escaped."""
_KEPT_AT_EACH_END = 4_096
"""Characters that are kept at each end of a longer message: they hold the beginning of the name, and the reason."""

_SHORT_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
"""Characters whose escape sequence is a backslash and a letter or a second backslash."""


def printable_path(path: bytes) -> str:
    r"""Return ``path`` for people: printable UTF-8 as it is; backslashes and all other bytes escaped.

    Control characters, invisible characters and undecodable bytes are escaped. The escapes are ``\\``, ``\n``, ``\r``,
    ``\t``, and ``\xNN`` for each byte of any other character.
    """
    text = path.decode("utf-8", "surrogateescape")
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(_escape(character) for character in text)


def printable_text(text: str) -> str:
    """Return a message on one line, with all characters escaped that are not printable."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _escape(character) for character in text)


def one_line_message(text: str) -> str:
    """Return a message on one line, as ``printable_text`` does, with at most ``MAX_MESSAGE_LENGTH`` characters.

    Archives and lists can hold names of 1 MiB. The middle of a longer message is replaced by the number of omitted
    characters. Data that programs read (lists, ``--errors``, ``--json``) is never shortened.
    """
    line = printable_text(text)
    if len(line) <= MAX_MESSAGE_LENGTH:
        return line
    return (
        f"{line[:_KEPT_AT_EACH_END]}... [{len(line) - 2 * _KEPT_AT_EACH_END:,} characters not shown] "
        f"...{line[-_KEPT_AT_EACH_END:]}"
    )


def shell_quoted(word: bytes) -> str:
    """Return ``word`` quoted for the shell. Escapes stand in the quotes ``$'...'`` of bash, ksh and zsh."""
    import shlex

    text = printable_path(word)
    return shlex.quote(text) if os.fsencode(text) == word else "$'" + text.replace("'", "\\'") + "'"


def encodable_text(text: str, encoding: str) -> str:
    """Return ``text`` for a stream of that ``encoding``.

    Characters that are not printable, or that the encoding does not have, are escaped. Line breaks are kept.
    """
    if not text.isprintable():
        text = "\n".join(map(printable_text, text.split("\n")))
    if text.isascii():
        return text
    return "".join(character if _is_encodable(character, encoding) else _byte_escapes(character) for character in text)


def count_with_noun(number: int, one: str, many: str) -> str:
    """Return a number with its noun: ``1 item``, ``2,000 items``."""
    return f"{number:,} {one if number == 1 else many}"


def _escape(character: str) -> str:
    """Return the escape sequence of a character, or the character if it is printable."""
    named = _SHORT_ESCAPES.get(character)
    if named is not None:
        return named
    return character if character.isprintable() else _byte_escapes(character)


def _byte_escapes(character: str) -> str:
    r"""Return ``\xNN`` for each byte of a character in UTF-8.

    An undecodable byte of a file name, which Python represents as a lone surrogate, becomes that byte again. Other
    surrogates have no UTF-8 encoding and are encoded as if they had.
    """
    error_handler = "surrogateescape" if "\udc80" <= character <= "\udcff" else "surrogatepass"
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", error_handler))


def _is_encodable(character: str, encoding: str) -> bool:
    """Return True if the encoding has the character."""
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
