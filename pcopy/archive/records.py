"""The records of pax headers, as they are read: numbers, times, maps of sparse files, ACLs and attributes.

What is not as it should be raises ``ValueError``.
"""

from __future__ import annotations

import base64
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import unquote_to_bytes

from pcopy.archive.acl_text import Lookup, from_text
from pcopy.archive.member import BLOCK, Extents, filled_up
from pcopy.fsio.attribute_names import ACCESS_ACL, DEFAULT_ACL

LARGEST = 1 << 63
"""No number reaches it: sizes, offsets and seconds are those of system calls."""
MOST_EXTENTS = 1 << 22
"""Stretches of data of one sparse file, if the user does not say otherwise: they take 64 MiB of memory."""

_ACLS = {b"SCHILY.acl.access": ACCESS_ACL, b"SCHILY.acl.default": DEFAULT_ACL}
_XATTR, _ENCODED = b"SCHILY.xattr.", b"LIBARCHIVE.xattr."
_SPARSE = b"GNU.sparse."
_TIME = re.compile(rb"(-?)(\d{1,19})(?!\d)(?:\.(\d*))?")
"""What follows a time is ignored, as GNU tar and bsdtar do: bsdtar had written letters there."""
_FLOAT = re.compile(rb"(-?)(\d)(?:\.(\d{1,20}))?e([-+]?\d{1,3})")
"""A time as Python's tarfile writes it if it is less than 1e-4 or not less than 1e16: pax(1) has no such numbers."""
_DIGITS = 19
"""Of a number, at most."""
_NUMBER = re.compile(rb"\d{1,19}")
_MINIMAL_ACL = 3
"""Entries of an ACL that says no more than a mode."""


class PaxRecords(dict[bytes, bytes]):
    """The last value of each key; ``pairs`` are those of the keys of sparse files that stand there many times.
    ``withdrawn`` are the keys of empty values, which take back what an earlier header has said."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs: list[tuple[bytes, bytes]] = []
        self.withdrawn: set[bytes] = set()

    def add_missing(self, shared: Mapping[bytes, bytes]) -> None:
        """Add the records of global headers for which this member has none of its own."""
        for key, value in shared.items():
            if key not in self.withdrawn:
                self.setdefault(key, value)

    @property
    def is_sparse(self) -> bool:
        return bool(self.pairs) or any(key.startswith(_SPARSE) for key in self)

    def number(self, key: bytes, otherwise: int) -> int:
        value = self.get(key)
        if value is None:
            return otherwise
        if not _NUMBER.fullmatch(value):
            raise ValueError(f"its {key.decode()} is no number")
        if (number := int(value)) >= LARGEST:
            raise ValueError(f"its {key.decode()} is too large")
        return number

    def time(self, key: bytes, otherwise: int) -> int:
        """In nanoseconds since 1970; further digits are left out."""
        value = self.get(key)
        if value is None:
            return otherwise
        found = _TIME.match(_without_exponent(value))
        if found is None:
            raise ValueError(f"its {key.decode()} is no time")
        sign, seconds, part = found.groups(b"")
        moment = time_of(int(seconds)) + int(part[:9].ljust(9, b"0"))
        return -moment if sign else moment


def _without_exponent(value: bytes) -> bytes:
    """Return a number with an exponent as digits with a decimal point; any other ``value`` as it is."""
    found = _FLOAT.fullmatch(value)
    if found is None:
        return value
    sign, first, rest, exponent = found.groups(b"")
    digits, point = first + rest, 1 + int(exponent)
    if point <= 0:
        return b"%b0.%b%b" % (sign, b"0" * -point, digits)
    digits = digits.ljust(point, b"0")
    return b"%b%b.%b" % (sign, digits[:point], digits[point:])


def time_of(seconds: int) -> int:
    """In nanoseconds; raises ``ValueError`` for what no system call takes."""
    if not 1 - LARGEST < seconds < LARGEST - 1:
        raise ValueError("its time is too far away")
    return seconds * 10**9


def parsed_records(body: bytes) -> PaxRecords:
    """Each ``LENGTH KEY=VALUE``, of which the length counts all of it, and the newline at its end."""
    records = PaxRecords()
    at, end = 0, len(body)
    while at < end:
        space = body.find(b" ", at, at + 20)
        digits = body[at:space] if space > 0 else b""
        if not digits.isdigit():
            if not body[at:].strip(b"\0"):
                break
            raise ValueError("a pax header without lengths")
        following = at + int(digits)
        equals = body.find(b"=", space, following)
        if following > end or equals < 0 or body[following - 1 : following] != b"\n":
            raise ValueError("a pax header whose lengths are wrong")
        key, value = body[space + 1 : equals], body[equals + 1 : following - 1]
        if key in (b"GNU.sparse.offset", b"GNU.sparse.numbytes"):
            records.pairs.append((key, value))
        elif value:
            records[key] = value
            records.withdrawn.discard(key)
        else:
            records.pop(key, None)
            records.withdrawn.add(key)
            if key.startswith(_XATTR):
                records[key] = value
        at = following
    return records


def too_many_extents(most: int) -> ValueError:
    """Return the error for a sparse file with more than ``most`` stretches of data."""
    return ValueError(f"its map of holes has more than {most:,} entries; --sparse-limit N allows more")


def extents_in_map(read: Callable[[int, int], bytes], stored: int, most: int) -> tuple[Extents, int]:
    """Those of GNU.sparse 1.0, at the beginning of the contents (``stored`` bytes); and the bytes that they take."""
    values, wanted, used, rest = array("q"), 1, 0, b""
    while len(values) < wanted:
        at = used + len(rest)
        if at >= stored or not (more := read(at, max(BLOCK, min(at, 1 << 20)))):
            raise ValueError("its map of holes has no end")
        *lines, rest = (rest + more).split(b"\n")
        if not values and lines:
            if not _NUMBER.fullmatch(lines[0]):
                raise ValueError("its map of holes has no number of entries")
            if int(lines[0]) > most:
                raise too_many_extents(most)
            wanted += 2 * int(lines[0])
        del lines[wanted - len(values) :]
        if not all(map(_NUMBER.fullmatch, lines)) or (len(rest) > _DIGITS and len(values) + len(lines) < wanted):
            raise ValueError("its map of holes holds what is no number")
        values.extend(_offsets(lines))
        used += sum(map(len, lines)) + len(lines)
    if filled_up(used) > stored:
        raise ValueError("its map of holes is longer than its contents")
    return Extents(values[1:]), filled_up(used)


def _offsets(digits: Sequence[bytes]) -> array[int]:
    try:
        return array("q", map(int, digits))
    except OverflowError:
        raise ValueError("its map of holes holds a number that is too large") from None


def extents_in_records(records: PaxRecords, most: int) -> Extents:
    """Those of GNU.sparse 0.0 and 0.1."""
    text = records.get(b"GNU.sparse.map")
    words = text.split(b",") if text else [value for _, value in records.pairs]
    if len(words) % 2 or not all(map(_NUMBER.fullmatch, words)):
        raise ValueError("its map of holes is no list of pairs")
    if len(words) > 2 * most:
        raise too_many_extents(most)
    return Extents(_offsets(words))


def xattrs_of(records: PaxRecords, lookup: Lookup) -> tuple[tuple[tuple[str, bytes], ...], str]:
    """Extended attributes, ACLs among them, and what is wrong with any."""
    keys = [key for key in records if key.startswith((b"SCHILY.", b"LIBARCHIVE."))]
    if not keys:
        return (), ""
    found: dict[str, bytes] = {}
    troubles: list[str] = []
    for key in keys:
        try:
            if key.startswith(_XATTR):
                found[_named(key[len(_XATTR) :].replace(b"%3D", b"=").replace(b"%25", b"%"))] = records[key]
            elif key.startswith(_ENCODED):
                name = unquote_to_bytes(key[len(_ENCODED) :])
                if _XATTR + name not in records:
                    found[_named(name)] = _decoded(name, records[key])
        except ValueError as error:
            troubles.append(str(error))
    for key, attribute in _ACLS.items():
        if key in records:
            try:
                _add_acl(found, attribute, from_text(records[key], lookup))
            except ValueError as error:
                troubles.append(str(error))
    return tuple(sorted(found.items())), "; ".join(troubles)


def _decoded(name: bytes, value: bytes) -> bytes:
    try:
        return base64.b64decode(value + b"=" * (-len(value) % 4))
    except ValueError:
        raise ValueError(f"its attribute {_named(name)!r} is not in base 64") from None


def _named(name: bytes) -> str:
    if not name or b"\0" in name:
        raise ValueError(f"an attribute is called {name!r}")
    return name.decode("utf-8", "surrogateescape")


def _add_acl(found: dict[str, bytes], attribute: str, acl: bytes) -> None:
    if attribute == ACCESS_ACL and len(acl) == 4 + 8 * _MINIMAL_ACL:  # no more than the mode says
        found.pop(attribute, None)
    else:
        found[attribute] = acl
