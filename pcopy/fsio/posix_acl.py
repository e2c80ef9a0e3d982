"""POSIX ACLs as the kernel encodes them in extended attributes (linux/posix_acl_xattr.h)."""

from __future__ import annotations

from pcopy.fsio.preserve import are_mapped

_HEADER, _ENTRY = 4, 8
"""Bytes of the version, and of each entry: tag, permissions, id."""
_USER_OWNER, _USER, _GROUP_OWNER, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20

_Entry = tuple[int, int, int]


def _entries(acl: bytes) -> list[_Entry]:
    """Tag, permissions and id of each entry."""
    return [
        (
            int.from_bytes(acl[at : at + 2], "little"),
            int.from_bytes(acl[at + 2 : at + 4], "little") & 7,
            int.from_bytes(acl[at + 4 : at + 8], "little"),
        )
        for at in range(_HEADER, len(acl) - _ENTRY + 1, _ENTRY)
    ]


def rights_without(acl: bytes) -> int:
    """Return the permission bits of a mode that gives nobody more rights than the access ACL ``acl``.

    The group bits that stat(2) shows are the mask, and the group itself may have less. Without the ACL a named user is
    in the group or among the others, and a named group among the others: so these get no right that its entry denies.
    """
    entries = _entries(acl)
    first = {tag: permissions for tag, permissions, _ in reversed(entries)}
    mask = first.get(_MASK, 7)
    group, other = first.get(_GROUP_OWNER, 0) & mask, first.get(_OTHER, 0)
    for tag, permissions, _ in entries:
        if tag in (_USER, _GROUP):
            other &= permissions & mask
        if tag == _USER:
            group &= permissions & mask
    return first.get(_USER_OWNER, 0) << 6 | group << 3 | other


def has_unmapped_id(acl: bytes) -> bool:
    """Return True if the ACL names a user or a group that the user namespace of this process does not have."""
    named = [(tag, number) for tag, _, number in _entries(acl) if tag in (_USER, _GROUP)]
    return not all(are_mapped(number, -1) if tag == _USER else are_mapped(-1, number) for tag, number in named)
