"""POSIX ACLs: as the system keeps them in an attribute (acl(5), linux/posix_acl_xattr.h), and as text in archives.

GNU tar and bsdtar write ``SCHILY.acl.access`` and ``SCHILY.acl.default``, with commas or newlines between entries.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

_HEAD = struct.Struct("<I")
_ENTRY = struct.Struct("<HHI")
_VERSION = 2
"""POSIX_ACL_XATTR_VERSION."""
_NOBODY = 0xFFFFFFFF
"""Of an entry that names nobody: ACL_UNDEFINED_ID."""
_TAGS = {0x01: "user", 0x02: "user", 0x04: "group", 0x08: "group", 0x10: "mask", 0x20: "other"}
_NAMED = (0x02, 0x08)
_BARE = {"user": 0x01, "group": 0x04, "mask": 0x10, "other": 0x20, "u": 0x01, "g": 0x04, "m": 0x10, "o": 0x20}
_WITH_NAME = {"user": 0x02, "group": 0x08, "u": 0x02, "g": 0x08}
_BITS = {"r": 4, "w": 2, "x": 1, "-": 0}

Lookup = Callable[[str, str], int | None]
"""The number of a ``user`` or ``group`` by its name."""


def to_text(value: bytes) -> bytes | None:
    """An ACL as text, with numbers for users and groups; None if ``value`` is of no form that is known."""
    if len(value) < _HEAD.size or (len(value) - _HEAD.size) % _ENTRY.size or _HEAD.unpack_from(value)[0] != _VERSION:
        return None
    entries = []
    for tag, bits, number in _ENTRY.iter_unpack(value[_HEAD.size :]):
        if tag not in _TAGS or bits > 7:
            return None
        who = str(number) if tag in _NAMED else ""
        rights = "".join(letter if bits & bit else "-" for letter, bit in (("r", 4), ("w", 2), ("x", 1)))
        entries.append(f"{_TAGS[tag]}:{who}:{rights}")
    return ",".join(entries).encode()


def from_text(text: bytes, lookup: Lookup) -> bytes:
    """What ``to_text`` has written, or another tar; raises ``ValueError``.

    An entry may end with a number (bsdtar): that is who is meant, unless ``lookup`` knows the name.
    """
    entries = []
    for entry in re.split(r"[,\n]", text.decode("utf-8", "surrogateescape")):
        if told := entry.partition("#")[0].strip():
            entries.append(_entry(told, lookup))
    if not entries:
        raise ValueError("an ACL without entries")
    return _HEAD.pack(_VERSION) + b"".join(_ENTRY.pack(*each) for each in sorted(entries, key=_order))


def _entry(entry: str, lookup: Lookup) -> tuple[int, int, int]:
    kind, *fields = entry.split(":")
    if kind not in _BARE or not 1 <= len(fields) <= 3:
        raise ValueError(f"an ACL entry {entry!r}")
    name, rights, *numbers = fields if len(fields) > 1 else ["", *fields]
    if not re.fullmatch("[rwx-]{1,3}", rights):
        raise ValueError(f"an ACL entry {entry!r}")
    bits = 0
    for letter in rights:
        bits |= _BITS[letter]
    if not name:
        return _BARE[kind], bits, _NOBODY
    if kind not in _WITH_NAME:
        raise ValueError(f"an ACL entry {entry!r}")
    number = int(name) if name.isdigit() and len(name) < 11 else lookup("user" if kind[0] == "u" else "group", name)
    if number is None and numbers and numbers[0].isdigit() and len(numbers[0]) < 11:
        number = int(numbers[0])
    if number is None or not 0 <= number < _NOBODY:
        raise ValueError(f"an ACL entry of somebody who is not known here: {entry!r}")
    return _WITH_NAME[kind], bits, number


def _order(entry: tuple[int, int, int]) -> tuple[int, int]:
    """As the system wants them: by tag, then by number."""
    return entry[0], entry[2]
