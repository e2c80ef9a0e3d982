"""Updating of the metadata of an existing item that is not replaced.

The metadata are compared with the source's, and only those that differ are set. So nothing is written to an item that
has all of its metadata. Metadata that this process may not set do not count as different, unless the user has named
them: an owner without CAP_CHOWN, or a group that the user is not in.

An item is updated in place only if that can do no harm; otherwise it is copied again. These rules hold:
- A file or node with several names is not updated in place: the other names may be anywhere, and the user who created
  them may not own it.
- A regular file whose modification time is equal to its source's (``pcopy.fsio.existing.are_times_equal``) keeps its
  time. The contents may not have been compared, and with another time no later run could see that they differ.
- Set-id bits and file capabilities are not added in place: the contents were compared by size and time alone, if at
  all, and another process may have the file open for writing.
"""

from __future__ import annotations

import os
import stat
from functools import cache, partial
from typing import Protocol

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.attribute_names import ACCESS_ACL, XattrKind, xattr_kind
from pcopy.fsio.attributes import (
    SET_ID_BITS,
    XATTR_UNSUPPORTED_ERRNOS,
    Attributes,
    Handle,
    MetadataOutcome,
    MetadataWriter,
    is_xattr_copied,
    is_xattr_removed,
    list_xattrs,
    needs_privilege,
    remove_xattr,
)
from pcopy.fsio.existing import TIME_RESOLUTIONS, are_times_equal
from pcopy.fsio.preserve import CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FSETID, Preserve, are_mapped, has_capability
from pcopy.fsio.problem import Problem, as_problem

_TIME_RESOLUTIONS = (*TIME_RESOLUTIONS, 1_000_000)
"""Resolutions of the times of file systems, in nanoseconds.

They are ``TIME_RESOLUTIONS``, and milliseconds for some network file systems. ``TIME_RESOLUTIONS`` does not contain
milliseconds, because it decides whether contents are copied. Here a time with such a resolution counts only if the
item's ctime has that resolution too.
"""


class OwnedStatus(Protocol):
    """The fields of an item's status that are compared with those of its source."""

    @property
    def st_mode(self) -> int: ...
    @property
    def st_uid(self) -> int: ...
    @property
    def st_gid(self) -> int: ...
    @property
    def st_mtime_ns(self) -> int: ...
    @property
    def st_ctime_ns(self) -> int: ...


def is_same_stored_time(source: int, present: int, changed: int, window: int) -> bool:
    """Return True if ``present`` is the time ``source``, as exactly as the item's file system stores times.

    Args:
        source: time of the source, in nanoseconds.
        present: time of the existing item, in nanoseconds.
        changed: ctime of the existing item, in nanoseconds. It shows the resolution of its file system, which rounds it
            down as all times.
        window: difference of times that is ignored, in seconds.
    """
    if abs(source - present) <= window * 10**9:
        return True
    return any(changed % step == 0 and source // step * step == present for step in _TIME_RESOLUTIONS)


@cache
def _process_groups() -> frozenset[int]:
    """Return the groups of this process."""
    return frozenset({os.getegid(), *os.getgroups()})


def _has_wanted_owner(source: OwnedStatus, present: OwnedStatus, preserve: Preserve) -> bool:
    """Return True if the existing item has the right owner and group, as far as this process can set them."""
    uid, gid = (source.st_uid, source.st_gid) if preserve.ownership else (present.st_uid, present.st_gid)
    named_owner = preserve.chown
    wanted = tuple(named if named >= 0 else other for named, other in zip(named_owner, (uid, gid), strict=True))
    if wanted == (present.st_uid, present.st_gid):
        return True
    if named_owner != (-1, -1):
        return False
    if has_capability(CAP_CHOWN):  # ids that the user namespace does not map cannot be set
        has_user = wanted[0] == present.st_uid or not are_mapped(wanted[0], -1)
        return has_user and (wanted[1] == present.st_gid or not are_mapped(-1, wanted[1]))
    return wanted[1] == present.st_gid or present.st_uid != os.geteuid() or wanted[1] not in _process_groups()


def wanted_mode_bits(source: OwnedStatus, present: OwnedStatus) -> int:
    """Return the mode that the existing item should have with the owner that it has.

    Set-id bits are included only if owner and group are those of the source.
    """
    mode = stat.S_IMODE(source.st_mode)
    if mode & SET_ID_BITS and (source.st_uid, source.st_gid) != (present.st_uid, present.st_gid):
        mode &= ~SET_ID_BITS
    if mode & stat.S_ISGID and not has_capability(CAP_FSETID) and present.st_gid not in _process_groups():
        mode &= ~stat.S_ISGID  # chmod(2) would clear the bit without an error
    return mode


def _has_wanted_mode(source: OwnedStatus, present: OwnedStatus, preserve: Preserve) -> bool:
    """Return True if the existing item has the mode that it should have, or if modes are not preserved."""
    if not preserve.mode or stat.S_ISLNK(source.st_mode):
        return True
    return wanted_mode_bits(source, present) == stat.S_IMODE(present.st_mode)


def _has_wanted_time(source: OwnedStatus, present: OwnedStatus, preserve: Preserve, window: int) -> bool:
    """Return True if the existing item has the modification time that it should have, or if times are not preserved."""
    if not preserve.timestamps:
        return True
    if stat.S_ISREG(source.st_mode) and are_times_equal(source.st_mtime_ns, present.st_mtime_ns, window):
        return True
    return is_same_stored_time(source.st_mtime_ns, present.st_mtime_ns, present.st_ctime_ns, window)


def has_metadata_of_source(source: OwnedStatus, present: OwnedStatus, preserve: Preserve, window: int) -> bool:
    """Return True if the existing item has the metadata of its source, as far as their status shows.

    ``window`` is the difference of times that is ignored, in seconds.
    """
    return (
        _has_wanted_owner(source, present, preserve)
        and _has_wanted_mode(source, present, preserve)
        and _has_wanted_time(source, present, preserve, window)
    )


def has_same_xattrs(source: bytes, present: bytes, preserve: Preserve, *, follow: bool = False) -> bool:
    """Return True if two items have the same extended attributes and ACLs, of those that are copied; raise ``OSError``.

    Args:
        source: path of the source.
        present: path of the existing item; a symbolic link at its end is not followed.
        follow: True if a symbolic link at the end of ``source`` is followed.
    """
    source_names, present_names = _xattr_names(source, follow), _xattr_names(present, False)
    if not (source_names or present_names):
        return True
    if ACCESS_ACL in source_names and preserve.xattr and not preserve.acl:  # it restricts the mode
        return False
    wanted = {name for name in source_names if is_xattr_copied(name, preserve)}
    if any(name not in wanted and is_xattr_removed(name, preserve) for name in present_names) or wanted - present_names:
        return False
    return all(_xattr_value(source, name, follow) == _xattr_value(present, name, False) for name in wanted)


def _xattr_names(path: bytes, follow: bool) -> set[str]:
    """Return the names of an item's extended attributes; raise ``OSError``."""
    try:
        return set(os.listxattr(path, follow_symlinks=follow))
    except OSError as error:
        if error.errno in XATTR_UNSUPPORTED_ERRNOS:
            return set()
        raise


def _xattr_value(path: bytes, name: str, follow: bool) -> bytes:
    """Return the value of an item's extended attribute; raise ``OSError``."""
    return os.getxattr(path, name, follow_symlinks=follow)


class MetadataDifference(NamedTuple):
    """The metadata of an existing item that differ from those it should have.

    Fields:
    - ``owner``, ``mode``, ``times``: True if they differ.
    - ``set``: extended attributes (including ACLs) that are missing or have another value.
    - ``remove``: names of extended attributes that must be removed.
    """

    owner: bool
    mode: bool
    times: bool
    set: tuple[tuple[str, bytes], ...]
    remove: tuple[str, ...]

    @property
    def is_update_needed(self) -> bool:
        """True if anything differs."""
        return any(self)

    def can_update_in_place(self, source: Attributes, present: os.stat_result) -> bool:
        """Return True if the item may be updated in place, according to the rules of this module."""
        if stat.S_ISDIR(present.st_mode):
            return True
        if present.st_nlink > 1 or any(name == "security.capability" for name, _ in self.set):
            return False
        if stat.S_ISREG(present.st_mode) and source.mode & SET_ID_BITS and (self.owner or self.mode):
            return False
        # A file without write permission for its owner accepts no ``user.*`` attributes from the owner.
        return not (self.set or self.remove) or bool(present.st_mode & stat.S_IWUSR) or has_capability(CAP_DAC_OVERRIDE)


class _SourceStatus(NamedTuple):
    """The status of a source, made from its ``Attributes``. It has the fields of ``OwnedStatus``."""

    st_mode: int
    st_uid: int
    st_gid: int
    st_mtime_ns: int
    st_ctime_ns: int = 0


def metadata_difference(
    handle: Handle, present: os.stat_result, attributes: Attributes, preserve: Preserve, window: int
) -> MetadataDifference:
    """Return how the metadata of an existing item differ from ``attributes``; raise ``Problem``.

    Args:
        present: status of the existing item.
        window: difference of times that is ignored, in seconds.
    """
    source = _SourceStatus(attributes.mode, attributes.uid, attributes.gid, attributes.mtime)
    missing, extra = _xattr_difference(handle, attributes, preserve)
    return MetadataDifference(
        not _has_wanted_owner(source, present, preserve),
        not _has_wanted_mode(source, present, preserve),
        not _has_wanted_time(source, present, preserve, window),
        missing,
        extra,
    )


def _xattr_difference(
    handle: Handle, attributes: Attributes, preserve: Preserve
) -> tuple[tuple[tuple[str, bytes], ...], tuple[str, ...]]:
    """Return the extended attributes that are missing or have another value, and the names of those to remove.

    Raise ``Problem``.
    """
    if not (preserve.xattr or preserve.acl):
        return (), ()
    names = list_xattrs(handle)
    wanted = dict(attributes.xattrs)
    try:
        values = {name: os.getxattr(handle, name) for name in names if name in wanted}
    except OSError as error:
        raise Problem.from_error("getxattr", error) from error
    missing = tuple((name, value) for name, value in attributes.xattrs if values.get(name) != value)
    if attributes.unread:  # the source may have any attribute that is not listed
        return missing, ()
    extra = (name for name in names if name not in wanted and is_xattr_removed(name, preserve))
    return missing, tuple(name for name in extra if not needs_privilege(name))


def update_metadata(
    handle: Handle, present: os.stat_result, attributes: Attributes, preserve: Preserve, lacks: MetadataDifference
) -> MetadataOutcome:
    """Set the metadata that ``lacks`` lists; raise ``Problem``. The order is that of ``apply_attributes``."""
    writer = MetadataWriter(handle, is_link=stat.S_ISLNK(attributes.mode))
    if lacks.owner:
        writer.set_owner(attributes, preserve, None)
    for name in lacks.remove:
        writer.attempt_call(f"removexattr {name}", partial(remove_xattr, handle, name))
    acls = [(name, value) for name, value in lacks.set if xattr_kind(name) is XattrKind.ACL]
    again = attributes.xattrs if lacks.owner else lacks.set  # chown clears file capabilities
    for name, value in again:
        if xattr_kind(name) is not XattrKind.ACL:
            writer.set_xattr(name, value)
    changes_mode = lacks.mode or lacks.owner or bool(acls) or ACCESS_ACL in lacks.remove
    if changes_mode and preserve.mode and not stat.S_ISLNK(attributes.mode):
        source = _SourceStatus(attributes.mode, attributes.uid, attributes.gid, attributes.mtime)
        with as_problem("stat"):
            now = os.stat(handle) if lacks.owner else present
        writer.set_mode_and_acls(wanted_mode_bits(source, now), acls, skip_if_equal=True)
    else:
        for name, value in acls:
            writer.set_xattr(name, value)
    if lacks.times:
        writer.attempt_call("utimensat", lambda: os.utime(handle, ns=(attributes.atime, attributes.mtime)))
    return writer.outcome(attributes)
