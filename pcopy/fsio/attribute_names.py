"""Decides from the name of an extended attribute whether a copy gets the attribute.

Attributes in which file systems and daemons store data of their own mean nothing on another file system. Some even
damage the copy: XFS shows its ACLs to root a second time, under names of its own. The names of such attributes are
listed in this module. ``/etc/xattr.conf``, the list of libattr that ``cp -a`` reads too, may add more names.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from enum import Enum
from fnmatch import fnmatchcase
from functools import cache, lru_cache

from pcopy.fsio.retries import open_with_retries

ACCESS_ACL_XATTR = "system.posix_acl_access"
DEFAULT_ACL_XATTR = "system.posix_acl_default"
POSIX_ACL_XATTRS = (ACCESS_ACL_XATTR, DEFAULT_ACL_XATTR)
SELINUX_XATTR = "security.selinux"

_XATTR_NAMESPACES = ("user.", "trusted.", "security.", "system.")

XATTR_CONF = "/etc/xattr.conf"
"""Path of libattr's list of attribute names and their treatment (attr's xattr.conf)."""
_MAX_XATTR_CONF_BYTES = 64 << 10
"""Maximum bytes of ``XATTR_CONF`` that are read; the rest of a longer file is ignored."""


class XattrKind(Enum):
    """Treatment of the extended attributes of one name.

    - ``NEVER``: never copied, since the attribute belongs to its file system or to this host.
    - ``ACL``: an access control list of any model; copied if ACLs are preserved.
    - ``HINT``: advice to the file system, such as ``btrfs.compression``; copied if extended attributes are preserved.
      It is no failure if the target does not support the attribute.
    - ``ORDINARY``: any other attribute; copied if extended attributes are preserved.
    """

    NEVER = "never"
    ACL = "acl"
    HINT = "hint"
    ORDINARY = "own"


_ACL_XATTR_NAMES = frozenset({*POSIX_ACL_XATTRS, "system.richacl", "system.nfs4acl"})
_ACL_XATTR_PREFIXES = ("system.nfs4_", "system.cifs_", "system.smb3_")
_LUSTRE_XATTR_NAMES = frozenset({"lov", "lma", "link", "som", "fid", "version", "hsm", "dmv", "lmv"})
XATTRS_OF_LUSTRE_FILES = (b"lustre.lov", b"trusted.lov", b"trusted.lma", b"trusted.link")
"""Extended attributes that every file on Lustre has, as root sees them."""
_XATTRS_NEVER_COPIED = frozenset(
    {"security.ima", "security.evm", "trusted.gfid", *(f"trusted.{name}" for name in _LUSTRE_XATTR_NAMES)}
)
_PREFIXES_OF_XATTRS_NEVER_COPIED = (
    "trusted.pcopy.",  # set by pcopy itself (pcopy.fsio.incomplete_mark)
    "user.pcopy.",
    "lustre.",
    "trusted.SGI_",  # XFS
    "trusted.gfid2path.",  # GlusterFS, and the next five, too
    "trusted.glusterfs.",
    "trusted.afr.",
    "trusted.pgfid.",
    "trusted.ec.",
    "trusted.bit-rot.",
    "xfsroot.",
    "afs.",
    "user.Beagle.",
)


@lru_cache(1024)
def xattr_kind(name: str) -> XattrKind:
    """Return how a copy treats the extended attribute ``name``. The lists of this module decide; for names that are in
    none of them, the file ``XATTR_CONF`` does.
    """
    if name in _ACL_XATTR_NAMES or name.startswith(_ACL_XATTR_PREFIXES):
        return XattrKind.ACL
    if name in _XATTRS_NEVER_COPIED or name.startswith(_PREFIXES_OF_XATTRS_NEVER_COPIED):
        return XattrKind.NEVER
    for pattern, action in _xattr_kinds_from_conf():
        if fnmatchcase(name, pattern):
            return action
    return XattrKind.HINT if name.startswith("btrfs.") else XattrKind.ORDINARY


def is_outside_xattr_namespaces(name: str) -> bool:
    """Return True if the extended attribute ``name`` is in none of the namespaces that Linux has for all file systems
    (xattr(7)).

    Linux's namespaces are ``user.``, ``trusted.``, ``security.`` and ``system.``. Other names are used by a single file
    system or by another operating system (``gpfs.``, ``ceph.``, ``com.apple.``).
    """
    return not name.startswith(_XATTR_NAMESPACES)


@cache
def _xattr_kinds_from_conf() -> tuple[tuple[str, XattrKind], ...]:
    """Return what the file ``XATTR_CONF`` says as pairs: a shell pattern of names of extended attributes, and how a
    copy treats these attributes.

    The result is empty if the file cannot be read, or cannot be trusted: it must be a regular file that belongs to root
    and that no other user may write.
    """
    with suppress(OSError):
        descriptor = open_with_retries(XATTR_CONF, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode) and not status.st_uid and not status.st_mode & 0o022:
                return parse_xattr_conf(os.read(descriptor, _MAX_XATTR_CONF_BYTES))
        finally:
            os.close(descriptor)
    return ()


def parse_xattr_conf(text: bytes) -> tuple[tuple[str, XattrKind], ...]:
    """Return the patterns in ``text``, the contents of a file in the format of attr's xattr.conf, as pairs: a shell
    pattern of attribute names, and how a copy treats these attributes.

    Each line has a pattern and ``skip`` or ``permissions``. Lines in any other format are ignored.
    """
    actions = {"skip": XattrKind.NEVER, "permissions": XattrKind.ACL}
    lines = (line.partition("#")[0].split() for line in os.fsdecode(text).splitlines())
    return tuple((words[0], actions[words[1]]) for words in lines if len(words) == 2 and words[1] in actions)
