"""Values of extended attributes in the encoding of the operating system, and checks of what a file system can store.

ACLs and capabilities are written in binary form, so that no program interprets them between a test and the file system.
"""

from __future__ import annotations

import os
import struct

ACCESS_ACL = "system.posix_acl_access"
DEFAULT_ACL = "system.posix_acl_default"
CAPABILITY = "security.capability"

NET_RAW = struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0)
"""cap_net_raw=ep: ``struct vfs_cap_data``, revision 2, as in linux/capability.h."""

_OWNER, _USER, _GROUP, _NAMED_GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
_NOBODY = 0xFFFFFFFF


def acl(owner: int, group: int, other: int, users: dict[int, int], groups: dict[int, int] | None = None) -> bytes:
    """An ACL with named users and groups, each a permission of 0 to 7: linux/posix_acl_xattr.h, version 2."""
    entries = [(_OWNER, owner, _NOBODY)]
    entries += [(_USER, permission, user) for user, permission in sorted(users.items())]
    entries += [(_GROUP, group, _NOBODY)]
    entries += [(_NAMED_GROUP, permission, name) for name, permission in sorted((groups or {}).items())]
    if users or groups:
        entries += [(_MASK, 7, _NOBODY)]
    entries += [(_OTHER, other, _NOBODY)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def holds(directory: bytes, name: str, value: bytes) -> bool:
    """Return True if this file system stores this attribute on a regular file."""
    probe = os.path.join(directory, b".probe-%d" % os.getpid())
    os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        os.setxattr(probe, name, value)
        return os.getxattr(probe, name) == value
    except OSError:
        return False
    finally:
        os.unlink(probe)


def has_xattrs(directory: bytes) -> bool:
    """Return True if it stores ``user.`` attributes; tmpfs does since Linux 6.6."""
    return holds(directory, "user.probe", b"x")


def has_acls(directory: bytes) -> bool:
    return holds(directory, ACCESS_ACL, acl(6, 4, 4, {1: 4}))
