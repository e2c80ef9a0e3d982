"""Paths as the programs print them: their module of that purpose is not loaded in the process of the caller."""

from __future__ import annotations

_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable_path(path: bytes) -> str:
    """Return ``path`` as the programs print it: one line, in which unprintable characters are escaped."""
    text = path.decode(errors="surrogateescape")
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(_ESCAPES.get(each) or (each if each.isprintable() else _escaped_bytes(each)) for each in text)


def _escaped_bytes(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode(errors="surrogateescape"))
