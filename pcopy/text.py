"""Names and messages in a form that a terminal, a log and a person can take.

File names are bytes and may hold anything but ``/`` and NUL. Rule: what is printed consists of printable characters
only, and ``shown`` loses nothing, since the backslash itself is escaped too. What Unicode calls other than printable
(C0 and C1 controls, changes of the writing direction, what has no width, line separators) is escaped also where it is
valid UTF-8: a terminal acts on it.
"""

from __future__ import annotations

import os

LONGEST_MESSAGE = 16_384
"""Characters of a message: room for a name of PATH_MAX bytes even if each byte is escaped."""
_ENDS = 4_096
"""Characters that remain at each end of a longer message: the beginning of the name, and the reason."""

_NAMED = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def shown(path: bytes) -> str:
    r"""``path`` for people: printable UTF-8 as it is; backslashes, control, invisible and undecodable bytes escaped.

    The escapes are ``\\``, ``\n``, ``\r``, ``\t`` and ``\xNN`` for each byte of anything else.
    """
    text = path.decode("utf-8", "surrogateescape")
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(_escaped(character) for character in text)


def harmless(text: str) -> str:
    """A message of our own, or of a library, on one line: only what is not printable is escaped."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _escaped(character) for character in text)


def message_line(text: str) -> str:
    """A message on one line, as ``harmless``, of ``LONGEST_MESSAGE`` characters at most.

    Archives and lists can hold names of 1 MiB. The middle of a longer message is replaced by the number of characters
    that were left out. Data that programs read (lists, ``--errors``, ``--json``) is never shortened.
    """
    line = harmless(text)
    if len(line) <= LONGEST_MESSAGE:
        return line
    return f"{line[:_ENDS]}... [{len(line) - 2 * _ENDS:,} characters not shown] ...{line[-_ENDS:]}"


def for_shell(word: bytes) -> str:
    """One word for the shell; what is escaped is in the quotes that bash, ksh and zsh have for that."""
    import shlex

    text = shown(word)
    return shlex.quote(text) if os.fsencode(text) == word else "$'" + text.replace("'", "\\'") + "'"


def drawable(text: str, encoding: str) -> str:
    """``text`` for a stream of that ``encoding``: what is not printable is escaped, and what it cannot express.

    Lines stay lines.
    """
    if not text.isprintable():
        text = "\n".join(map(harmless, text.split("\n")))
    if text.isascii():
        return text
    return "".join(character if _fits(character, encoding) else _as_bytes(character) for character in text)


def counted(number: int, one: str, many: str) -> str:
    """``1 item``, ``2,000 items``."""
    return f"{number:,} {one if number == 1 else many}"


def _escaped(character: str) -> str:
    named = _NAMED.get(character)
    if named is not None:
        return named
    return character if character.isprintable() else _as_bytes(character)


def _as_bytes(character: str) -> str:
    """As in the file's name, if it stands there; UTF-8 has no bytes for half a pair of surrogates."""
    lone = "surrogateescape" if "\udc80" <= character <= "\udcff" else "surrogatepass"
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", lone))


def _fits(character: str, encoding: str) -> bool:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
