"""Names and messages in a form that a terminal, a log and a person can take.

File names are bytes and may hold anything but ``/`` and NUL. Rule: what is printed consists of printable characters
only, and ``shown`` loses nothing, since the backslash itself is escaped too.
"""

from __future__ import annotations

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
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def counted(number: int, one: str, many: str) -> str:
    """``1 item``, ``2,000 items``."""
    return f"{number:,} {one if number == 1 else many}"


def _escaped(character: str) -> str:
    named = _NAMED.get(character)
    if named is not None:
        return named
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))
