"""Parsing of the records (KEY=VALUE) of pax headers: numbers, times, maps of sparse files, ACLs and extended
attributes.

The map of a sparse file lists its extents, the parts that hold data.
"""

from __future__ import annotations

import base64
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import unquote_to_bytes

from pcopy.archive.acl_text import OwnerIdLookup, acl_from_text
from pcopy.archive.member import TAR_BLOCK_BYTES, Extents, rounded_up_to_multiple
from pcopy.fsio.attribute_names import ACCESS_ACL_XATTR, DEFAULT_ACL_XATTR

NUMBER_LIMIT = 1 << 63
"""Valid sizes, offsets and numbers of seconds are below this number, because those of system calls have 63 bits."""
MAX_EXTENTS = 1 << 22
"""Maximum number of extents of a sparse file, unless ``--sparse-limit`` sets another; they take 64 MiB of memory. A
file with more is reported as damaged.
"""

_ACL_ATTRIBUTES_BY_KEY = {b"SCHILY.acl.access": ACCESS_ACL_XATTR, b"SCHILY.acl.default": DEFAULT_ACL_XATTR}
"""Extended attributes that contain ACLs, by the keys of records with ACLs as text."""
_XATTR_KEY_PREFIX, _BASE64_XATTR_KEY_PREFIX = b"SCHILY.xattr.", b"LIBARCHIVE.xattr."
"""Prefixes of the keys of records with extended attributes: with the value itself, and with the value in base 64."""
_SPARSE_KEY_PREFIX = b"GNU.sparse."
_TIME_PATTERN = re.compile(rb"(-?)(\d{1,19})(?!\d)(?:\.(\d*))?")
"""A time. Text after it is ignored, as GNU tar and bsdtar do, because old versions of bsdtar wrote letters there."""
_EXPONENT_TIME_PATTERN = re.compile(rb"(-?)(\d)(?:\.(\d{1,20}))?e([-+]?\d{1,3})")
"""A time with an exponent, which Python's tarfile writes for times below 1e-4 or from 1e16 on. pax(1) does not allow
such numbers.
"""
_MAX_DIGITS = 19
"""Maximum number of digits of a number."""
_DECIMAL_NUMBER_PATTERN = re.compile(rb"\d{1,19}")
_MINIMAL_ACL_ENTRIES = 3
"""Number of entries of an ACL that only repeats the permission bits: one each for owner, group and others."""


class PaxRecords(dict[bytes, bytes]):
    """The records of a pax header, as a dictionary with the last value of each key.

    Attributes:
      sparse_pairs: records (key, value) with the offsets and lengths of extents of a sparse file, in order; their keys
          occur many times.
      cancelled_keys: keys of records with empty values, which cancel records of global headers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sparse_pairs: list[tuple[bytes, bytes]] = []
        self.cancelled_keys: set[bytes] = set()

    def add_missing_records(self, shared: Mapping[bytes, bytes]) -> None:
        """Add those of ``shared``, the records of global headers, for which this header has no record with the same
        key.
        """
        for key, value in shared.items():
            if key not in self.cancelled_keys:
                self.setdefault(key, value)

    @property
    def is_sparse(self) -> bool:
        """True if the records describe a sparse file."""
        return bool(self.sparse_pairs) or any(key.startswith(_SPARSE_KEY_PREFIX) for key in self)

    def number_in_record(self, key: bytes, otherwise: int) -> int:
        """Return the number in the record ``key``; ``otherwise`` if there is no such record. Raise ``ValueError`` if
        the record is not a number below ``NUMBER_LIMIT``.
        """
        value = self.get(key)
        if value is None:
            return otherwise
        if not _DECIMAL_NUMBER_PATTERN.fullmatch(value):
            raise ValueError(f"its {key.decode()} is not a number")
        if (number := int(value)) >= NUMBER_LIMIT:
            raise ValueError(f"its {key.decode()} is too large")
        return number

    def time_in_record(self, key: bytes, otherwise: int) -> int:
        """Return the time in the record ``key`` in nanoseconds since 1970; decimals beyond these are dropped. Return
        ``otherwise`` if there is no such record.

        Raise ``ValueError`` if the record is not a valid time.
        """
        value = self.get(key)
        if value is None:
            return otherwise
        found = _TIME_PATTERN.match(_number_without_exponent(value))
        if found is None:
            raise ValueError(f"its {key.decode()} is not a time")
        sign, seconds, part = found.groups(b"")
        moment = to_nanoseconds(int(seconds)) + int(part[:9].ljust(9, b"0"))
        return -moment if sign else moment


def _number_without_exponent(value: bytes) -> bytes:
    """Return the number in ``value`` as digits with a decimal point, if it has an exponent; otherwise return ``value``
    unchanged.
    """
    found = _EXPONENT_TIME_PATTERN.fullmatch(value)
    if found is None:
        return value
    sign, first, rest, exponent = found.groups(b"")
    digits, point = first + rest, 1 + int(exponent)
    if point <= 0:
        return b"%b0.%b%b" % (sign, b"0" * -point, digits)
    digits = digits.ljust(point, b"0")
    return b"%b%b.%b" % (sign, digits[:point], digits[point:])


def to_nanoseconds(seconds: int) -> int:
    """Return ``seconds`` (since 1970) in nanoseconds. Raise ``ValueError`` if no system call accepts such a time."""
    if not 1 - NUMBER_LIMIT < seconds < NUMBER_LIMIT - 1:
        raise ValueError("its time is out of range")
    return seconds * 10**9


def parse_pax_records(body: bytes) -> PaxRecords:
    """Return the records in the ``body`` of a pax header. Each is ``LENGTH KEY=VALUE`` and a newline; LENGTH is the
    number of bytes of the whole record.

    Raise ``ValueError`` if the body is invalid.
    """
    records = PaxRecords()
    at, end = 0, len(body)
    while at < end:
        space = body.find(b" ", at, at + 20)
        digits = body[at:space] if space > 0 else b""
        if not digits.isdigit():
            if not body[at:].strip(b"\0"):
                break
            raise ValueError("a pax header has a record that does not begin with its length")
        following = at + int(digits)
        equals = body.find(b"=", space, following)
        if following > end or equals < 0 or body[following - 1 : following] != b"\n":
            raise ValueError("a pax header has a record with a wrong length")
        key, value = body[space + 1 : equals], body[equals + 1 : following - 1]
        if key in (b"GNU.sparse.offset", b"GNU.sparse.numbytes"):
            records.sparse_pairs.append((key, value))
        elif value:
            records[key] = value
            records.cancelled_keys.discard(key)
        else:
            records.pop(key, None)
            records.cancelled_keys.add(key)
            if key.startswith(_XATTR_KEY_PREFIX):
                records[key] = value
        at = following
    return records


def too_many_extents_error(most: int) -> ValueError:
    """Return the error for a sparse file with more than ``most`` extents."""
    return ValueError(
        f"the map of holes of this sparse file has more than {most:,} entries; --sparse-limit N allows more"
    )


def parse_sparse_map(read: Callable[[int, int], bytes], stored: int, most: int) -> tuple[Extents, int]:
    """Return the extents of a sparse file in the format GNU.sparse 1.0, and the number of bytes of their map.

    The map is at the beginning of the stored contents. Raise ``ValueError`` if it is invalid.

    Args:
      read: ``read(offset, number)`` returns that number of bytes of the stored contents.
      stored: number of bytes of the stored contents.
      most: the maximum number of extents that is accepted.
    """
    values, wanted, used, rest = array("q"), 1, 0, b""
    while len(values) < wanted:
        at = used + len(rest)
        if at >= stored or not (more := read(at, max(TAR_BLOCK_BYTES, min(at, 1 << 20)))):
            raise ValueError("its map of holes is truncated")
        *lines, rest = (rest + more).split(b"\n")
        if not values and lines:
            if not _DECIMAL_NUMBER_PATTERN.fullmatch(lines[0]):
                raise ValueError("its map of holes does not begin with the number of entries")
            if int(lines[0]) > most:
                raise too_many_extents_error(most)
            wanted += 2 * int(lines[0])
        del lines[wanted - len(values) :]
        if not all(map(_DECIMAL_NUMBER_PATTERN.fullmatch, lines)) or (
            len(rest) > _MAX_DIGITS and len(values) + len(lines) < wanted
        ):
            raise ValueError("its map of holes contains an invalid number")
        values.extend(_parse_extent_numbers(lines))
        used += sum(map(len, lines)) + len(lines)
    if rounded_up_to_multiple(used) > stored:
        raise ValueError("its map of holes is longer than its contents")
    return Extents(values[1:]), rounded_up_to_multiple(used)


def _parse_extent_numbers(digits: Sequence[bytes]) -> array[int]:
    """Return the numbers in ``digits``, in which each is a sequence of decimal digits. Raise ``ValueError`` if one is
    2**63 or more.
    """
    try:
        return array("q", map(int, digits))
    except OverflowError:
        raise ValueError("its map of holes holds a number that is too large") from None


def extents_in_pax_records(records: PaxRecords, most: int) -> Extents:
    """Return the extents of a sparse file in the formats GNU.sparse 0.0 and 0.1, which list them in pax records. Raise
    ``ValueError`` if they are invalid, or more than ``most``.
    """
    text = records.get(b"GNU.sparse.map")
    words = text.split(b",") if text else [value for _, value in records.sparse_pairs]
    if len(words) % 2 or not all(map(_DECIMAL_NUMBER_PATTERN.fullmatch, words)):
        raise ValueError("its map of holes is not a list of pairs")
    if len(words) > 2 * most:
        raise too_many_extents_error(most)
    return Extents(_parse_extent_numbers(words))


def parse_xattrs(records: PaxRecords, lookup: OwnerIdLookup) -> tuple[tuple[tuple[str, bytes], ...], str]:
    """Return the extended attributes in ``records``, as pairs of name and value, and an error text about those that are
    invalid (empty if there are none). ACLs are returned as extended attributes.

    ``lookup`` returns the id of a user or group by its name.
    """
    keys = [key for key in records if key.startswith((b"SCHILY.", b"LIBARCHIVE."))]
    if not keys:
        return (), ""
    found: dict[str, bytes] = {}
    troubles: list[str] = []
    for key in keys:
        try:
            if key.startswith(_XATTR_KEY_PREFIX):
                found[
                    _checked_attribute_name(key[len(_XATTR_KEY_PREFIX) :].replace(b"%3D", b"=").replace(b"%25", b"%"))
                ] = records[key]
            elif key.startswith(_BASE64_XATTR_KEY_PREFIX):
                name = unquote_to_bytes(key[len(_BASE64_XATTR_KEY_PREFIX) :])
                if _XATTR_KEY_PREFIX + name not in records:
                    found[_checked_attribute_name(name)] = _decode_base64(name, records[key])
        except ValueError as error:
            troubles.append(str(error))
    for key, attribute in _ACL_ATTRIBUTES_BY_KEY.items():
        if key in records:
            try:
                _add_acl_attribute(found, attribute, acl_from_text(records[key], lookup))
            except ValueError as error:
                troubles.append(str(error))
    return tuple(sorted(found.items())), "; ".join(troubles)


def _decode_base64(name: bytes, value: bytes) -> bytes:
    """Return the value of the extended attribute ``name``, whose encoded form ``value`` is base 64 without padding.
    Raise ``ValueError`` if it is invalid.
    """
    try:
        return base64.b64decode(value + b"=" * (-len(value) % 4))
    except ValueError:
        raise ValueError(f"its attribute {_checked_attribute_name(name)!r} is not in base 64") from None


def _checked_attribute_name(name: bytes) -> str:
    """Return the name of an extended attribute as text. Raise ``ValueError`` if it is empty or contains a NUL."""
    if not name or b"\0" in name:
        raise ValueError(f"an attribute has the invalid name {name!r}")
    return name.decode("utf-8", "surrogateescape")


def _add_acl_attribute(found: dict[str, bytes], attribute: str, acl: bytes) -> None:
    """Add an ACL to the extended attributes in ``found``: ``acl`` is the value of ``attribute``. An access ACL that
    only repeats the permission bits is not added, and removes one that is in ``found``.
    """
    if attribute == ACCESS_ACL_XATTR and len(acl) == 4 + 8 * _MINIMAL_ACL_ENTRIES:
        found.pop(attribute, None)
    else:
        found[attribute] = acl
