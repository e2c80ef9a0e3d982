"""Conversion of POSIX ACLs between the value of the extended attribute (acl(5), linux/posix_acl_xattr.h) and text in
archives.

GNU tar and bsdtar write the text as ``SCHILY.acl.access`` and ``SCHILY.acl.default``, with commas or newlines between
entries.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

_ACL_VERSION_FORMAT = struct.Struct("<I")
"""Format of the beginning of the attribute value: its version."""
_ACL_ENTRY_FORMAT = struct.Struct("<HHI")
"""Format of an entry in the attribute value: tag, permission bits, id."""
_ACL_FORMAT_VERSION = 2
"""Version of the attribute value: POSIX_ACL_XATTR_VERSION."""
_UNDEFINED_ID = 0xFFFFFFFF
"""Id of an entry that names no user or group: ACL_UNDEFINED_ID."""
_WORDS_OF_TAGS = {0x01: "user", 0x02: "user", 0x04: "group", 0x08: "group", 0x10: "mask", 0x20: "other"}
"""Words in the text, by the tags in the attribute value."""
_TAGS_WITH_ID = (0x02, 0x08)
"""Tags of entries that name a user or group."""
_TAGS_OF_UNNAMED_ENTRIES = {
    "user": 0x01,
    "group": 0x04,
    "mask": 0x10,
    "other": 0x20,
    "u": 0x01,
    "g": 0x04,
    "m": 0x10,
    "o": 0x20,
}
"""Tags of entries without a name, by the words in the text."""
_TAGS_OF_NAMED_ENTRIES = {"user": 0x02, "group": 0x08, "u": 0x02, "g": 0x08}
"""Tags of entries with a name, by the words in the text."""
_PERMISSION_BITS = {"r": 4, "w": 2, "x": 1, "-": 0}

OwnerIdLookup = Callable[[str, str], int | None]
"""Type: a function that gets "user" or "group" and a name, and returns the id of the user or group; None if there is
none.
"""


def acl_to_text(value: bytes) -> bytes | None:
    """Return an ACL as text, with numbers for users and groups. ``value`` is the extended attribute that contains the
    ACL; return None if it has an unknown form.
    """
    if (
        len(value) < _ACL_VERSION_FORMAT.size
        or (len(value) - _ACL_VERSION_FORMAT.size) % _ACL_ENTRY_FORMAT.size
        or _ACL_VERSION_FORMAT.unpack_from(value)[0] != _ACL_FORMAT_VERSION
    ):
        return None
    entries = []
    for tag, bits, number in _ACL_ENTRY_FORMAT.iter_unpack(value[_ACL_VERSION_FORMAT.size :]):
        if tag not in _WORDS_OF_TAGS or bits > 7:
            return None
        owner_id = str(number) if tag in _TAGS_WITH_ID else ""
        rights = "".join(letter if bits & bit else "-" for letter, bit in (("r", 4), ("w", 2), ("x", 1)))
        entries.append(f"{_WORDS_OF_TAGS[tag]}:{owner_id}:{rights}")
    return ",".join(entries).encode()


def acl_from_text(text: bytes, lookup: OwnerIdLookup) -> bytes:
    """Return the ACL in ``text``, which ``acl_to_text`` or another tar has written, in the form of the extended
    attribute that contains ACLs.

    ``lookup`` returns the id of a user or group by its name. bsdtar also puts the id at the end of an entry: that id is
    used if the name is unknown. Raise ``ValueError`` if the text is no ACL, or if it names an unknown user or group
    without an id.
    """
    entries = []
    for entry in re.split(r"[,\n]", text.decode("utf-8", "surrogateescape")):
        if stripped_entry := entry.partition("#")[0].strip():
            entries.append(_parse_acl_entry(stripped_entry, lookup))
    if not entries:
        raise ValueError("an ACL without entries")
    return _ACL_VERSION_FORMAT.pack(_ACL_FORMAT_VERSION) + b"".join(
        _ACL_ENTRY_FORMAT.pack(*each) for each in sorted(entries, key=_acl_entry_sort_key)
    )


def _parse_acl_entry(entry: str, lookup: OwnerIdLookup) -> tuple[int, int, int]:
    """Return tag, permission bits and id of ``entry``, one entry of an ACL such as ``user:alice:rw-``. ``lookup``
    returns the id of a user or group by its name. Raise ``ValueError`` if the entry is invalid.
    """
    kind, *fields = entry.split(":")
    if kind not in _TAGS_OF_UNNAMED_ENTRIES or not 1 <= len(fields) <= 3:
        raise ValueError(f"an invalid ACL entry: {entry!r}")
    name, rights, *numbers = fields if len(fields) > 1 else ["", *fields]
    if not re.fullmatch("[rwx-]{1,3}", rights):
        raise ValueError(f"an invalid ACL entry: {entry!r}")
    bits = 0
    for letter in rights:
        bits |= _PERMISSION_BITS[letter]
    if not name:
        return _TAGS_OF_UNNAMED_ENTRIES[kind], bits, _UNDEFINED_ID
    if kind not in _TAGS_OF_NAMED_ENTRIES:
        raise ValueError(f"an invalid ACL entry: {entry!r}")
    number = int(name) if name.isdigit() and len(name) < 11 else lookup("user" if kind[0] == "u" else "group", name)
    if number is None and numbers and numbers[0].isdigit() and len(numbers[0]) < 11:
        number = int(numbers[0])
    if number is None or not 0 <= number < _UNDEFINED_ID:
        raise ValueError(f"an ACL entry for a user or group that does not exist on this host: {entry!r}")
    return _TAGS_OF_NAMED_ENTRIES[kind], bits, number


def _acl_entry_sort_key(entry: tuple[int, int, int]) -> tuple[int, int]:
    """Return the key by which the entries of an ACL are sorted, as the kernel requires: by tag, then by id."""
    return entry[0], entry[2]
