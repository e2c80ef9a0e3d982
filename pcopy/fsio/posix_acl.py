"""Reads and changes POSIX ACLs as Linux encodes them in extended attributes (linux/posix_acl_xattr.h)."""

from __future__ import annotations

from pcopy.fsio.preserve import are_ids_mapped_in_namespace

_HEADER_SIZE, _ENTRY_SIZE = 4, 8
"""Bytes of the header of an ACL's encoded form (a version), and of each entry in it (tag, permissions, id)."""
_TAG_OWNER, _TAG_USER, _TAG_OWNING_GROUP, _TAG_GROUP, _TAG_MASK, _TAG_OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
"""Tags of the entries of an ACL: owner, named user, owning group, named group, mask, others."""

_AclEntry = tuple[int, int, int]
"""An entry of an ACL: (tag, permissions, id)."""


def _acl_entries(acl: bytes) -> list[_AclEntry]:
    """Return the entries of the ACL ``acl`` as (tag, permissions, id). The id is a uid or gid, and has a meaning only
    for named users and groups.
    """
    return [
        (
            int.from_bytes(acl[at : at + 2], "little"),
            int.from_bytes(acl[at + 2 : at + 4], "little") & 7,
            int.from_bytes(acl[at + 4 : at + 8], "little"),
        )
        for at in range(_HEADER_SIZE, len(acl) - _ENTRY_SIZE + 1, _ENTRY_SIZE)
    ]


def mode_without_acl(acl: bytes) -> int:
    """Return permission bits for a file that loses its access ACL ``acl``. They give no user more rights than the ACL
    does.

    The group bits that stat(2) shows are the mask of the ACL; the group itself may have fewer rights. Without the ACL,
    a named user falls under the group or the others, and a named group under the others. So group and others get no
    right that such an entry denies.
    """
    entries = _acl_entries(acl)
    first = {tag: permissions for tag, permissions, _ in reversed(entries)}
    mask = first.get(_TAG_MASK, 7)
    group, other = first.get(_TAG_OWNING_GROUP, 0) & mask, first.get(_TAG_OTHER, 0)
    for tag, permissions, _ in entries:
        if tag in (_TAG_USER, _TAG_GROUP):
            other &= permissions & mask
        if tag == _TAG_USER:
            group &= permissions & mask
    return first.get(_TAG_OWNER, 0) << 6 | group << 3 | other


def with_owner_permissions(acl: bytes, mode: int) -> bytes:
    """Return the ACL ``acl`` with those permissions of the owner that ``mode``, the mode of a file, has."""
    permissions, value = mode >> 6 & 7, bytearray(acl)
    for at in range(_HEADER_SIZE, len(acl) - _ENTRY_SIZE + 1, _ENTRY_SIZE):
        if int.from_bytes(acl[at : at + 2], "little") == _TAG_OWNER:
            value[at + 2 : at + 4] = permissions.to_bytes(2, "little")
    return bytes(value)


def has_unmapped_user_or_group(acl: bytes) -> bool:
    """Return True if the ACL ``acl`` names a user or group that is not mapped in the user namespace of this process."""
    named = [(tag, number) for tag, _, number in _acl_entries(acl) if tag in (_TAG_USER, _TAG_GROUP)]
    return not all(
        are_ids_mapped_in_namespace(number, -1) if tag == _TAG_USER else are_ids_mapped_in_namespace(-1, number)
        for tag, number in named
    )
