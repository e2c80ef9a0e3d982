"""Updating of the metadata of an existing item that is not replaced.

The metadata are compared with those of the source, and only those that differ are set. So nothing is written to an item
whose metadata are right. Metadata that this process may not set (an owner without CAP_CHOWN, or a group that the user
is not in) do not count as different, unless the user has requested them with ``--chown``.

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
from collections.abc import Mapping
from functools import cache, partial
from typing import Protocol

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.attribute_names import ACCESS_ACL_XATTR, XattrKind, xattr_kind
from pcopy.fsio.attributes import (
    SET_ID_BITS,
    XATTR_UNSUPPORTED_ERRNOS,
    ItemHandle,
    ItemMetadata,
    MetadataOutcome,
    MetadataWriter,
    is_xattr_copied,
    is_xattr_removed,
    lacks_privilege_to_set_xattr,
    list_xattrs,
    remove_xattr,
)
from pcopy.fsio.existing import TIME_RESOLUTIONS, are_times_equal
from pcopy.fsio.preserve import (
    CAP_CHOWN,
    CAP_DAC_OVERRIDE,
    CAP_FSETID,
    PreservedMetadataKinds,
    are_ids_mapped_in_namespace,
    has_capability,
)
from pcopy.fsio.problem import Problem, errors_as_problem

_TIME_RESOLUTIONS = (*TIME_RESOLUTIONS, 1_000_000)
"""Resolutions in which file systems store times, in nanoseconds.

They are ``TIME_RESOLUTIONS`` and, for some network file systems, milliseconds. ``TIME_RESOLUTIONS`` does not contain
milliseconds, because it decides whether contents are copied. Here a rounded time is accepted only if the item's ctime
is rounded in the same way.
"""


class StatusWithOwner(Protocol):
    """Protocol of a status (``os.stat_result`` or a row of columns) with the fields that are compared between an
    existing item and its source.
    """

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


def is_time_equal_as_stored(source: int, present: int, changed: int, window: int) -> bool:
    """Return True if ``present``, a time of an existing item, is the time ``source`` as far as the item's file system
    can store it.

    Args:
        source: time of the source, in nanoseconds since 1970.
        present: time of the existing item, in nanoseconds since 1970.
        changed: ctime of the existing item, in nanoseconds since 1970. The file system rounds it down as it does all
            times, so it shows the resolution.
        window: difference of times that is ignored, in seconds.
    """
    if abs(source - present) <= window * 10**9:
        return True
    return any(changed % step == 0 and source // step * step == present for step in _TIME_RESOLUTIONS)


@cache
def _group_ids_of_process() -> frozenset[int]:
    """Return the group ids of this process: the effective one and the supplementary ones."""
    return frozenset({os.getegid(), *os.getgroups()})


def _has_wanted_owner(source: StatusWithOwner, present: StatusWithOwner, preserve: PreservedMetadataKinds) -> bool:
    """Return True if the existing item ``present`` has the owner and group that ``preserve`` requires: those of
    ``source``, or those given with ``--chown``. Without ``--chown``, an id that this process may not set does not count
    as different.
    """
    uid, gid = (source.st_uid, source.st_gid) if preserve.ownership else (present.st_uid, present.st_gid)
    named_owner = preserve.chown
    wanted = tuple(named if named >= 0 else other for named, other in zip(named_owner, (uid, gid), strict=True))
    if wanted == (present.st_uid, present.st_gid):
        return True
    if named_owner != (-1, -1):
        return False
    if has_capability(CAP_CHOWN):  # ids that the user namespace does not map cannot be set
        has_user = wanted[0] == present.st_uid or not are_ids_mapped_in_namespace(wanted[0], -1)
        return has_user and (wanted[1] == present.st_gid or not are_ids_mapped_in_namespace(-1, wanted[1]))
    return wanted[1] == present.st_gid or present.st_uid != os.geteuid() or wanted[1] not in _group_ids_of_process()


def wanted_mode_bits(source: StatusWithOwner, present: StatusWithOwner) -> int:
    """Return the permission bits that the existing item ``present`` should have as a copy of ``source``, if its owner
    and group remain as they are.

    Set-id bits are included only if owner and group are those of the source.
    """
    mode = stat.S_IMODE(source.st_mode)
    if mode & SET_ID_BITS and (source.st_uid, source.st_gid) != (present.st_uid, present.st_gid):
        mode &= ~SET_ID_BITS
    if mode & stat.S_ISGID and not has_capability(CAP_FSETID) and present.st_gid not in _group_ids_of_process():
        mode &= ~stat.S_ISGID  # chmod(2) would clear the bit without an error
    return mode


def _has_wanted_mode(source: StatusWithOwner, present: StatusWithOwner, preserve: PreservedMetadataKinds) -> bool:
    """Return True if the existing item ``present`` has the permission bits that it should have as a copy of ``source``,
    or if modes are not preserved.
    """
    if not preserve.mode or stat.S_ISLNK(source.st_mode):
        return True
    return wanted_mode_bits(source, present) == stat.S_IMODE(present.st_mode)


def _has_wanted_time(
    source: StatusWithOwner, present: StatusWithOwner, preserve: PreservedMetadataKinds, window: int
) -> bool:
    """Return True if the existing item ``present`` has the modification time of ``source``, or if times are not
    preserved. ``window``: difference of times that is ignored, in seconds.
    """
    if not preserve.timestamps:
        return True
    if stat.S_ISREG(source.st_mode) and are_times_equal(source.st_mtime_ns, present.st_mtime_ns, window):
        return True
    return is_time_equal_as_stored(source.st_mtime_ns, present.st_mtime_ns, present.st_ctime_ns, window)


def has_metadata_of_source(
    source: StatusWithOwner, present: StatusWithOwner, preserve: PreservedMetadataKinds, window: int
) -> bool:
    """Return True if an existing item (``present``) has the owner, mode and time that it should have as a copy of
    ``source``.

    Only metadata that ``preserve`` includes are compared, and no extended attributes. ``window``: difference of times
    that is ignored, in seconds.
    """
    return (
        _has_wanted_owner(source, present, preserve)
        and _has_wanted_mode(source, present, preserve)
        and _has_wanted_time(source, present, preserve, window)
    )


def differing_status_fields(
    source: StatusWithOwner, present: StatusWithOwner, preserve: PreservedMetadataKinds, window: int
) -> tuple[bool, bool, bool]:
    """Return three values: True if the owner of an existing item (``present``), its mode, and its modification time are
    not those that it should have as a copy of ``source``. The arguments are those of ``has_metadata_of_source``.
    """
    return (
        not _has_wanted_owner(source, present, preserve),
        not _has_wanted_mode(source, present, preserve),
        not _has_wanted_time(source, present, preserve, window),
    )


def differing_xattr_kinds(
    source: bytes, present: bytes, preserve: PreservedMetadataKinds, *, follow: bool = False
) -> set[XattrKind]:
    """Return the kinds of those extended attributes that an existing item lacks, has with another value than its
    source, or has in excess. The arguments are those of ``has_same_xattrs``. Raise ``OSError``.
    """
    wanted = {
        name: _xattr_value(source, name, follow)
        for name in _xattr_names(source, follow)
        if is_xattr_copied(name, preserve)
    }
    return kinds_of_xattrs_to_change(wanted, present, preserve)


def kinds_of_xattrs_to_change(
    wanted: Mapping[str, bytes], present: bytes, preserve: PreservedMetadataKinds
) -> set[XattrKind]:
    """Return the kinds of those extended attributes that the existing item with the path ``present`` lacks, has with
    another value than in ``wanted``, or has in excess. A symbolic link at the end of the path is not followed. Raise
    ``OSError``.
    """
    present_names = _xattr_names(present, False)
    extra = {name for name in present_names - wanted.keys() if is_xattr_removed(name, preserve)}
    differing = {
        name
        for name, value in wanted.items()
        if name not in present_names or value != _xattr_value(present, name, False)
    }
    return {xattr_kind(name) for name in extra | differing}


def has_same_xattrs(source: bytes, present: bytes, preserve: PreservedMetadataKinds, *, follow: bool = False) -> bool:
    """Return True if two items have the same extended attributes and ACLs, apart from those that are not copied; raise
    ``OSError``.

    Args:
        source: path of the source.
        present: path of the existing item; a symbolic link at its end is not followed.
        follow: True if a symbolic link at the end of ``source`` is followed.
    """
    source_names, present_names = _xattr_names(source, follow), _xattr_names(present, False)
    if not (source_names or present_names):
        return True
    if ACCESS_ACL_XATTR in source_names and preserve.xattr and not preserve.acl:  # it restricts the mode
        return False
    wanted = {name for name in source_names if is_xattr_copied(name, preserve)}
    if any(name not in wanted and is_xattr_removed(name, preserve) for name in present_names) or wanted - present_names:
        return False
    return all(_xattr_value(source, name, follow) == _xattr_value(present, name, False) for name in wanted)


def _xattr_names(path: bytes, follow: bool) -> set[str]:
    """Return the names of the extended attributes of the item ``path``. If ``follow`` is True and ``path`` is a
    symbolic link, the link is followed. Raise ``OSError``.
    """
    try:
        return set(os.listxattr(path, follow_symlinks=follow))
    except OSError as error:
        if error.errno in XATTR_UNSUPPORTED_ERRNOS:
            return set()
        raise


def _xattr_value(path: bytes, name: str, follow: bool) -> bytes:
    """Return the value of the extended attribute ``name`` of the item ``path``. If ``follow`` is True and ``path`` is a
    symbolic link, the link is followed. Raise ``OSError``.
    """
    return os.getxattr(path, name, follow_symlinks=follow)


class MetadataDifference(NamedTuple):
    """The metadata of an existing item that differ from those it should have.

    Fields:
    - ``owner``, ``mode``, ``times``: True if they differ.
    - ``set``: names and wanted values of extended attributes (including ACLs) that are missing or have another value.
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

    def can_update_in_place(self, source: ItemMetadata, present: os.stat_result) -> bool:
        """Return True if the existing item, whose status is ``present``, may be updated in place. ``source`` has the
        metadata of its source.

        Otherwise the item has to be copied again: it is a file with several links, or it would get set-id bits or file
        capabilities, or its mode forbids to set attributes.
        """
        if stat.S_ISDIR(present.st_mode):
            return True
        if present.st_nlink > 1 or any(name == "security.capability" for name, _ in self.set):
            return False
        if stat.S_ISREG(present.st_mode) and source.mode & SET_ID_BITS and (self.owner or self.mode):
            return False
        # A file without write permission for its owner accepts no ``user.*`` attributes from the owner.
        return not (self.set or self.remove) or bool(present.st_mode & stat.S_IWUSR) or has_capability(CAP_DAC_OVERRIDE)


class _SourceStatus(NamedTuple):
    """The status of a source, made from its ``ItemMetadata``, so that it can be compared with the status of the
    existing item.
    """

    st_mode: int
    st_uid: int
    st_gid: int
    st_mtime_ns: int
    st_ctime_ns: int = 0


def metadata_difference(
    handle: ItemHandle,
    present: StatusWithOwner,
    attributes: ItemMetadata,
    preserve: PreservedMetadataKinds,
    window: int,
) -> MetadataDifference:
    """Return how the metadata of the existing item ``handle`` differ from ``attributes``, the metadata of its source;
    raise ``Problem``.

    Args:
        handle: the existing item: a descriptor or a path.
        present: its status. The owner of a directory may have got more permissions since; that is no difference.
        attributes: metadata of the source.
        preserve: which metadata are compared.
        window: difference of times that is ignored, in seconds.
    """
    source = _SourceStatus(attributes.mode, attributes.uid, attributes.gid, attributes.mtime)
    missing, extra = _xattr_difference(handle, present, attributes, preserve)
    return MetadataDifference(
        not _has_wanted_owner(source, present, preserve),
        not _has_wanted_mode(source, present, preserve),
        not _has_wanted_time(source, present, preserve, window),
        missing,
        extra,
    )


def _xattr_difference(
    handle: ItemHandle, present: StatusWithOwner, attributes: ItemMetadata, preserve: PreservedMetadataKinds
) -> tuple[tuple[tuple[str, bytes], ...], tuple[str, ...]]:
    """Return two tuples: the extended attributes (name, wanted value) that the existing item ``handle`` lacks or has
    with another value than its source (``attributes``), and the names of those that must be removed. Raise ``Problem``.

    The permissions of the owner, which are a part of the access ACL, too, are those of ``present``, the status.
    """
    if not (preserve.xattr or preserve.acl):
        return (), ()
    names = list_xattrs(handle)
    wanted = dict(attributes.xattrs)
    try:
        values = {name: os.getxattr(handle, name) for name in names if name in wanted}
    except OSError as error:
        raise Problem.from_error("getxattr", error) from error
    if ACCESS_ACL_XATTR in values:
        from pcopy.fsio.posix_acl import with_owner_permissions  # imported here, since few items have an ACL

        values[ACCESS_ACL_XATTR] = with_owner_permissions(values[ACCESS_ACL_XATTR], present.st_mode)
    missing = tuple((name, value) for name, value in attributes.xattrs if values.get(name) != value)
    if attributes.unread:  # the source may have any attribute that is not listed
        return missing, ()
    extra = (name for name in names if name not in wanted and is_xattr_removed(name, preserve))
    return missing, tuple(name for name in extra if not lacks_privilege_to_set_xattr(name))


def update_metadata(
    handle: ItemHandle,
    present: os.stat_result,
    attributes: ItemMetadata,
    preserve: PreservedMetadataKinds,
    difference: MetadataDifference,
) -> MetadataOutcome:
    """Set those metadata of the existing item ``handle`` that differ from the source's according to ``difference``;
    raise ``Problem``. ``present`` is the status of the item, ``attributes`` the metadata of the source.

    The order is chown, extended attributes, mode, ACLs, times, because each step may change what the later steps set.
    """
    writer = MetadataWriter(handle, is_link=stat.S_ISLNK(attributes.mode))
    if difference.owner:
        writer.set_owner(attributes, preserve, None)
    for name in difference.remove:
        writer.attempt_call(f"removexattr {name}", partial(remove_xattr, handle, name))
    acls = [(name, value) for name, value in difference.set if xattr_kind(name) is XattrKind.ACL]
    again = attributes.xattrs if difference.owner else difference.set  # chown clears file capabilities
    for name, value in again:
        if xattr_kind(name) is not XattrKind.ACL:
            writer.set_xattr(name, value)
    changes_mode = difference.mode or difference.owner or bool(acls) or ACCESS_ACL_XATTR in difference.remove
    if changes_mode and preserve.mode and not stat.S_ISLNK(attributes.mode):
        source = _SourceStatus(attributes.mode, attributes.uid, attributes.gid, attributes.mtime)
        with errors_as_problem("stat"):
            now = os.stat(handle) if difference.owner else present
        writer.set_mode_and_acls(wanted_mode_bits(source, now), acls, skip_if_equal=True)
    else:
        for name, value in acls:
            writer.set_xattr(name, value)
    if difference.times:
        writer.attempt_call("utimensat", lambda: os.utime(handle, ns=(attributes.atime, attributes.mtime)))
    return writer.metadata_outcome(attributes)
