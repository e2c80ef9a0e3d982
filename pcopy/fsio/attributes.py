"""Reads the metadata of a source item and applies them to its copy, through open descriptors.

They are applied in the order chown, extended attributes, chmod, ACLs, times (chown(2), xattr(7), capabilities(7),
acl(5)):

- chown clears set-id bits and file capabilities;
- a file that its owner cannot write accepts no ``user.*`` attributes;
- an ACL changes the mode;
- every change may change the times.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable
from functools import partial

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio import incomplete_mark
from pcopy.fsio.attribute_names import (
    ACCESS_ACL_XATTR,
    DEFAULT_ACL_XATTR,
    POSIX_ACL_XATTRS,
    SELINUX_XATTR,
    XattrKind,
    is_outside_xattr_namespaces,
    xattr_kind,
)
from pcopy.fsio.preserve import (
    CAP_CHOWN,
    CAP_FSETID,
    CAP_SETFCAP,
    CAP_SYS_ADMIN,
    PreservedMetadataKinds,
    are_ids_mapped_in_namespace,
    has_capability,
)
from pcopy.fsio.problem import MetadataProblem, Problem
from pcopy.fsio.retries import NOTHING_DONE_ERRNOS, call_with_retries

SET_ID_BITS = stat.S_ISUID | stat.S_ISGID
"""The set-user-ID and set-group-ID bits."""

XATTR_UNSUPPORTED_ERRNOS = (errno.ENOTSUP, errno.ENOSYS)
"""Errors of a file system that has no extended attributes."""

_CHMOD_REFUSED_ERRNOS = (errno.EPERM, *XATTR_UNSUPPORTED_ERRNOS)
"""Errors of chmod(2) on servers that let nobody set the mode of a file, not even its owner."""

_SECOND_NS = 10**9
"""One second, in nanoseconds."""
_PORTABLE_TIMES_START, _PORTABLE_TIMES_END = 315_532_800 * _SECOND_NS, 2**31 * _SECOND_NS
"""Start and end of the times that all file systems can store, in nanoseconds since 1970.

FAT stores times from 1980 on; file systems with 32 bits store times before 2038.
"""
_DAY_NS = 86_400 * _SECOND_NS
"""One day, in nanoseconds: the resolution of access times on FAT."""

_ALL_PERMISSIONS, _OWNER_PERMISSIONS = 0o777, 0o700
"""Permission bits of all classes, and of the owner alone (inode(7))."""

ItemHandle = int | bytes
"""How a call that reads or sets metadata is given its item: a descriptor; or the path ``/proc/self/fd/N`` of an O_PATH
descriptor, for items that cannot be opened otherwise.
"""


UnreadXattrs = tuple[tuple[str, int], ...]
"""A pair for each extended attribute of a source that could not be read: the failed operation and its errno."""


class ItemMetadata(NamedTuple):
    """Metadata of one item; times are nanoseconds since 1970.

    Fields:
    - ``mode``: st_mode of the copy. If the copy does not get the access ACL of its source, the mode has fewer
      permission bits, so that it grants nobody more than the ACL does.
    - ``unread``: extended attributes that could not be read (see ``UnreadXattrs``). The copy gets all other metadata,
      and the item counts as failed.
    """

    mode: int
    uid: int
    gid: int
    atime: int
    mtime: int
    xattrs: tuple[tuple[str, bytes], ...] = ()
    unread: tuple[tuple[str, int], ...] = ()


class CopiedXattrs(NamedTuple):
    """The extended attributes of a source that its copy keeps, including ACLs.

    ``found``: names and values. ``unread``: attributes that could not be read. ``max_permissions``: the permission bits
    (at most 0o777) that the copy may have. Without the source's access ACL the copy may have only those that the ACL
    grants; if that ACL cannot be read, only those of the owner.
    """

    found: tuple[tuple[str, bytes], ...] = ()
    unread: UnreadXattrs = ()
    max_permissions: int = _ALL_PERMISSIONS

    def mode_without_excess_permissions(self, mode: int) -> int:
        """Return the source's st_mode ``mode`` without the permission bits that are not in ``max_permissions``."""
        return mode & ~(_ALL_PERMISSIONS & ~self.max_permissions)

    @property
    def problem(self) -> MetadataProblem | None:
        """The error that makes the item fail although its contents are copied; None if all attributes were read."""
        return unread_xattrs_problem(self.unread)


class MetadataOutcome(NamedTuple):
    """Outcome of applying metadata to one item, apart from errors.

    Fields:
    - ``excused``: 1 if something was not set because this process lacks a privilege, or because the new file system
      does not support it; else 0. The item counts as copied. A sum over outcomes is a number of items.
    - ``notices``: lines for the user.
    - ``unsupported``: names of attributes and system calls that the new file system does not support. Each is reported
      once per job, not per item.
    - ``layout_reason``: the reason why a file did not get the wanted layout (on which servers its data lie); empty if
      it did.
    - ``reduced_layout``: value of the layout attribute of a file that got fewer Lustre stripes than wanted; else empty.
    """

    excused: int = 0
    notices: tuple[str, ...] = ()
    unsupported: frozenset[str] = frozenset()
    layout_reason: str = ""
    reduced_layout: bytes = b""


NO_XATTRS = CopiedXattrs()
"""The ``CopiedXattrs`` of an item without extended attributes."""


def is_xattr_copied(name: str, preserve: PreservedMetadataKinds) -> bool:
    """Return True if ``preserve`` says that the extended attribute ``name`` is copied.

    Attributes that belong to a file system or to this host (``XattrKind.NEVER``) are never copied.
    """
    kind = xattr_kind(name)
    if kind is XattrKind.ACL:
        return preserve.acl
    return preserve.xattr and kind is not XattrKind.NEVER


def is_xattr_removed(name: str, preserve: PreservedMetadataKinds) -> bool:
    """Return True if the extended attribute ``name`` is removed from an existing target that is updated, because its
    source lacks it.

    Only attributes that any item may have or lack are removed. ACLs of other models than POSIX remain, because they
    only show owner and mode in another form. So do attributes by which a file system organises its files.
    """
    kind = xattr_kind(name)
    if name in POSIX_ACL_XATTRS:
        return preserve.acl
    return preserve.xattr and kind is XattrKind.ORDINARY and name != SELINUX_XATTR


def read_xattrs(
    handle: ItemHandle, preserve: PreservedMetadataKinds, names: list[str] | None = None, *, follow: bool = True
) -> CopiedXattrs:
    """Return the extended attributes of the source ``handle`` that its copy keeps, as ``preserve`` says.

    Args:
        handle: the source: a descriptor or a path.
        preserve: the kinds of metadata that the copy gets.
        names: names of all extended attributes; None if they are not known yet.
        follow: False if ``handle`` is a path whose last component may be a symbolic link; the attributes of the link
            itself are read then.

    Raise ``Problem`` if ``--inplace`` has marked the file as half written, or if its name no longer exists. An
    attribute that cannot be read does not prevent the copy of the contents: it is listed in ``unread``.
    """
    at = partial if follow else partial(partial, follow_symlinks=False)
    if names is None:
        try:
            names = call_with_retries(at(os.listxattr, handle))
        except OSError as error:
            return _xattrs_without_listing(handle, error, preserve, follow=follow)
    if not names:
        return NO_XATTRS
    incomplete_mark.raise_if_incomplete_file_mark_listed(names)
    found: list[tuple[str, bytes]] = []
    unread: list[tuple[str, int]] = []
    rights = _ALL_PERMISSIONS
    for name in names:
        is_kept = is_xattr_copied(name, preserve)
        if not is_kept and name != ACCESS_ACL_XATTR:
            continue
        try:
            value = call_with_retries(at(os.getxattr, handle, name))
        except OSError as error:
            if error.errno == errno.ENODATA:  # another process has removed it
                continue
            rights = _OWNER_PERMISSIONS if name == ACCESS_ACL_XATTR else rights
            if is_kept:
                unread.append(_failed_xattr_read(f"getxattr {name}", error, by_name=not follow))
            continue
        if is_kept:
            found.append((name, value))
        else:
            rights = mode_without_acl(value)
    return CopiedXattrs(tuple(found), tuple(unread), rights)


def _xattrs_without_listing(
    handle: ItemHandle, error: OSError, preserve: PreservedMetadataKinds, *, follow: bool
) -> CopiedXattrs:
    """Return those extended attributes of the source ``handle`` that can be read although listxattr(2) failed with
    ``error``. With ``follow`` a symbolic link is followed.

    Without a list of names, only two can be looked up: the mark of a half-written file, for which ``Problem`` is
    raised, and the access ACL, which may restrict the permissions of the copy.
    """
    if error.errno in XATTR_UNSUPPORTED_ERRNOS:
        return NO_XATTRS
    unread = (_failed_xattr_read("listxattr", error, by_name=not follow),) if preserve.xattr or preserve.acl else ()
    if isinstance(handle, int):
        incomplete_mark.raise_if_file_marked_incomplete(handle)
    try:
        acl = os.getxattr(handle, ACCESS_ACL_XATTR, follow_symlinks=follow)
    except OSError as refused:
        is_absent = refused.errno in (errno.ENODATA, *XATTR_UNSUPPORTED_ERRNOS)
        return CopiedXattrs(unread=unread, max_permissions=_ALL_PERMISSIONS if is_absent else _OWNER_PERMISSIONS)
    if preserve.acl:
        return CopiedXattrs(((ACCESS_ACL_XATTR, acl),), unread)
    return CopiedXattrs(unread=unread, max_permissions=mode_without_acl(acl))


def mode_without_acl(acl: bytes) -> int:
    """Return permission bits for a copy without ``acl``, its source's access ACL, that give nobody more rights."""
    from pcopy.fsio import posix_acl  # imported here, since few copies need it

    return posix_acl.mode_without_acl(acl)


def _failed_xattr_read(operation: str, error: OSError, *, by_name: bool) -> tuple[str, int]:
    """Return (name of the failed operation, errno) for an extended attribute that could not be read because of
    ``error``. Raise ``Problem`` if the item was accessed by its name (``by_name``) and that name no longer exists.
    """
    number = error.errno or errno.EIO
    if by_name and number == errno.ENOENT:
        raise Problem(operation, number, on_source=True, changed=True) from error
    return operation, number


def list_xattrs(handle: ItemHandle) -> list[str]:
    """Return the names of a target's extended attributes; none if its file system has none. Raise ``Problem``."""
    try:
        return call_with_retries(lambda: os.listxattr(handle))
    except OSError as error:
        if error.errno in XATTR_UNSUPPORTED_ERRNOS:
            return []
        raise Problem.from_error("listxattr", error) from error


def read_item_metadata(handle: ItemHandle, status: os.stat_result, preserve: PreservedMetadataKinds) -> ItemMetadata:
    """Return all metadata of a source, whose ``status`` is given; ``preserve`` says which extended attributes are read.
    Raise ``Problem`` if the source is marked as half written, or if its name no longer exists.
    """
    is_bare = stat.S_ISLNK(status.st_mode) and not (preserve.xattr or preserve.acl)  # links have no ACLs
    return metadata_from_status_and_xattrs(status, NO_XATTRS if is_bare else read_xattrs(handle, preserve))


def metadata_from_status_and_xattrs(status: os.stat_result, xattrs: CopiedXattrs) -> ItemMetadata:
    """Return the metadata of a source item, combined from its ``status`` and its extended attributes ``xattrs``."""
    return ItemMetadata(
        xattrs.mode_without_excess_permissions(status.st_mode), status.st_uid, status.st_gid, status.st_atime_ns,
        status.st_mtime_ns,
        xattrs.found, xattrs.unread,
    )  # fmt: skip


def unread_xattrs_problem(unread: UnreadXattrs) -> MetadataProblem | None:
    """Return the error of an item some of whose extended attributes (``unread``) could not be read; None if all were
    read.
    """
    return MetadataProblem(*unread[0], on_source=True) if unread else None


def change_owner(handle: ItemHandle, uid: int, gid: int) -> bool:
    """Set owner and group of the item, or one of them if both cannot be set. Return True if both were set. Raise
    ``Problem``, unless chown(2) failed only because this process lacks the privilege, or because the ids do not exist
    here.
    """
    try:
        call_with_retries(partial(_chown, handle, uid, gid), NOTHING_DONE_ERRNOS)
        return True
    except OSError as error:
        if not _is_chown_failure_excused(error, uid, gid):
            raise Problem.from_error("chown", error) from error
        alone = ((-1, gid),) if error.errno == errno.EPERM else ((uid, -1), (-1, gid))
    for one, other in alone:
        try:
            os.chown(handle, one, other)
        except OSError as error:
            if error.errno != errno.EPERM and not _is_chown_failure_excused(error, one, other):
                raise Problem.from_error("chown", error) from error
    return False


def _chown(handle: ItemHandle, uid: int, gid: int) -> None:
    """Set owner and group of the item ``handle`` to ``uid`` and ``gid``; raise ``OSError``. Some servers refuse every
    change of an owner, and show all files with one owner: their error is ignored if the item has these ids already.
    """
    try:
        os.chown(handle, uid, gid)
    except OSError as error:
        if error.errno not in _CHOWN_UNSUPPORTED_ERRNOS or not _has_owner(handle, uid, gid):
            raise


_CHOWN_UNSUPPORTED_ERRNOS = (errno.EPERM, errno.EINVAL, *XATTR_UNSUPPORTED_ERRNOS)
"""Errors of chown(2) on servers that do not support changing the owner."""


def _has_owner(handle: ItemHandle, uid: int, gid: int) -> bool:
    """Return True if the item ``handle`` has the owner ``uid`` and the group ``gid``; -1 matches any id. Return False
    if stat(2) fails.
    """
    try:
        status = os.stat(handle)
    except OSError:  # the caller reports the refused chown instead
        return False
    return uid in (-1, status.st_uid) and gid in (-1, status.st_gid)


def _is_chown_failure_excused(error: OSError, uid: int, gid: int) -> bool:
    """Return True if chown(2) to ``uid`` and ``gid`` failed with ``error`` only for lack of a privilege, or because
    these ids do not exist here: a user namespace does not map them (EINVAL), or an idmapped mount (EOVERFLOW).
    """
    if error.errno == errno.EINVAL:
        return not are_ids_mapped_in_namespace(uid, gid)
    return error.errno == errno.EOVERFLOW or (error.errno == errno.EPERM and not has_capability(CAP_CHOWN))


def mode_of_copy(attributes: ItemMetadata, preserve: PreservedMetadataKinds, owned: bool, umask: int) -> int:
    """Return the permission bits of the copy.

    Args:
        owned: True if the copy has the owner and group of the source. Otherwise set-id bits are removed, since they
            would grant the rights of another user or group.
        umask: bits that the copy does not get if modes are not preserved.
    """
    mode = stat.S_IMODE(attributes.mode)
    if not preserve.mode:
        return mode & ~umask & ~SET_ID_BITS
    return mode if owned else mode & ~SET_ID_BITS


def apply_item_metadata(
    handle: ItemHandle,
    attributes: ItemMetadata,
    preserve: PreservedMetadataKinds,
    umask: int,
    *,
    existing: os.stat_result | None = None,
    inherits_acl: bool = False,
) -> MetadataOutcome:
    """Apply ``attributes`` to the item behind ``handle``, as far as possible; raise ``MetadataProblem``.

    Args:
        preserve: the kinds of metadata to apply.
        umask: bits that the mode does not get if modes are not preserved.
        existing: status of the existing item that is kept (a directory) or replaced (a file); None if there was none.
            Owner and mode that are not preserved from the source are taken from this status.
        inherits_acl: True if the item was created in a directory with a default ACL and inherited an ACL from it.
    """
    writer = MetadataWriter(handle, is_link=stat.S_ISLNK(attributes.mode))
    # The docstring of this module explains the order of the steps.
    owned = writer.set_owner(attributes, preserve, existing)
    acls = [(name, value) for name, value in attributes.xattrs if xattr_kind(name) is XattrKind.ACL]
    for name, value in attributes.xattrs:
        if xattr_kind(name) is not XattrKind.ACL:
            writer.set_xattr(name, value)
    if not stat.S_ISLNK(attributes.mode):
        mode = mode_of_copy(attributes, preserve, owned, umask)
        if existing is not None and not preserve.mode and stat.S_IFMT(existing.st_mode) == stat.S_IFMT(attributes.mode):
            mode = stat.S_IMODE(existing.st_mode)
            if stat.S_ISREG(existing.st_mode) and not writer.is_owned_by(existing.st_uid, existing.st_gid):
                mode &= ~SET_ID_BITS  # set-id bits were granted to the old contents and owner, not to the new ones
        if inherits_acl and not any(name == ACCESS_ACL_XATTR for name, _ in acls):
            writer.attempt_call(f"removexattr {ACCESS_ACL_XATTR}", lambda: remove_xattr(handle, ACCESS_ACL_XATTR))
        writer.set_mode_and_acls(mode, acls, skip_if_equal=existing is not None and stat.S_ISDIR(existing.st_mode))
    if preserve.timestamps:
        writer.attempt_call("utimensat", lambda: os.utime(handle, ns=(attributes.atime, attributes.mtime)))
        if not are_times_portable(attributes.atime, attributes.mtime):
            writer.report_altered_times(attributes.atime, attributes.mtime)
    return writer.metadata_outcome(attributes)


def are_times_portable(atime: int, mtime: int) -> bool:
    """Return True if all file systems can store the times ``atime`` and ``mtime``, in nanoseconds since 1970. Other
    times are changed to the nearest ones that the file system can store, and the operating system reports success.
    """
    return _PORTABLE_TIMES_START <= atime < _PORTABLE_TIMES_END and _PORTABLE_TIMES_START <= mtime < _PORTABLE_TIMES_END


class MetadataWriter:
    """Sets the metadata of one item, step by step, and records the first problem.

    Every step is tried, even if an earlier one failed. ``metadata_outcome`` returns the outcome or raises the problem.
    """

    def __init__(self, handle: ItemHandle, *, is_link: bool) -> None:
        self._handle = handle
        self._is_link = is_link
        self.problem: MetadataProblem | None = None
        self.excused = False
        self.notices: list[str] = []
        self.unsupported: set[str] = set()

    def attempt_call(self, operation: str, call: Callable[[], object]) -> None:
        """Run ``call``, which sets one kind of metadata; repeat it after an interruption or for lack of open files. If
        it still fails, record the error as the item's problem, with the name ``operation``.
        """
        try:
            try:
                call()
            except OSError as error:
                if error.errno not in NOTHING_DONE_ERRNOS:
                    raise
                call_with_retries(call, NOTHING_DONE_ERRNOS)
        except OSError as error:
            self._record_error(operation, error)

    def _record_error(self, operation: str, error: OSError) -> None:
        """Record ``error`` as the item's problem, with the name ``operation``, unless another problem was recorded
        before. If the file system does not support chown or utimensat for symbolic links, only record that in
        ``unsupported``: it is no error.
        """
        if self._is_link and error.errno in XATTR_UNSUPPORTED_ERRNOS and operation in ("chown", "utimensat"):
            self._record_unsupported_feature(f"{operation} of symbolic links")
        elif self.problem is None:
            self.problem = MetadataProblem(operation, error.errno or errno.EIO)

    def _record_unsupported_feature(self, feature: str) -> None:
        """Record that the file system does not support ``feature``, an attribute or system call. This is no error."""
        self.excused = True
        self.unsupported.add(feature)

    def metadata_outcome(self, attributes: ItemMetadata) -> MetadataOutcome:
        """Return the outcome after all steps; ``attributes`` are the metadata that were to be set. Raise
        ``MetadataProblem`` if some of them could not be set, or could not be read from the source.
        """
        problem = self.problem or unread_xattrs_problem(attributes.unread)
        if problem is not None:
            raise problem
        return MetadataOutcome(int(self.excused), tuple(self.notices), frozenset(self.unsupported))

    def set_mode_and_acls(self, mode: int, acls: list[tuple[str, bytes]], *, skip_if_equal: bool) -> None:
        """Set the mode and the ACLs of an item that is not a symbolic link.

        Until the access ACL is set, only the owner has permissions. If the ACL cannot be set, the mode grants no more
        permissions than the ACL does.

        Args:
            acls: names and values of the ACL attributes to set.
            skip_if_equal: True if a mode that is right already must not be set again, because setting it would change
                the item's ctime.
        """
        access = next((value for name, value in acls if name == ACCESS_ACL_XATTR), None)
        without = mode if access is None else mode & (~_ALL_PERMISSIONS | mode_without_acl(access))
        # The mode may show that an earlier run could not set the ACL. Then it changes only if the ACL can be set now.
        has_been_without = access is not None and skip_if_equal and self.has_mode(without)
        first = mode if access is None else mode & ~_ALL_PERMISSIONS | mode & _OWNER_PERMISSIONS
        if not has_been_without:
            self._chmod(first, skip_if_equal=skip_if_equal)
        for name, value in acls:
            is_set = self.set_xattr(name, value)
            if name == ACCESS_ACL_XATTR and not is_set and not has_been_without:
                self._chmod(without, skip_if_equal=skip_if_equal)

    def _chmod(self, mode: int, *, skip_if_equal: bool) -> None:
        """Set the mode, unless ``skip_if_equal`` is True and the item has it already."""
        if skip_if_equal and self.has_mode(mode):
            return
        self.attempt_call("chmod", lambda: os.chmod(self._handle, mode))
        if mode & stat.S_ISGID and not has_capability(CAP_FSETID):
            self.excused |= not self.has_mode(mode)  # without CAP_FSETID chmod(2) may clear the bit and still succeed

    def set_owner(
        self, attributes: ItemMetadata, preserve: PreservedMetadataKinds, kept: os.stat_result | None
    ) -> bool:
        """Set owner and group as ``preserve`` says; ``attributes`` are the metadata of the source. Return True if the
        copy may have set-id bits.

        The copy may have them if its owner and group are those of the source. If ownership is not preserved, the result
        is also True for a source without set-id bits.

        With ``--chown`` the user may give an owner, a group or both. If an id that the user has given cannot be set,
        that is always an error. An id that the user has not given is set as without ``--chown``. ``kept`` is the status
        of the existing item that is replaced; None if there is none.
        """
        uid, gid = -1, -1
        if preserve.ownership:
            uid, gid = attributes.uid, attributes.gid
        elif kept is not None and stat.S_ISREG(kept.st_mode):
            # Give the new file the owner of the file that it replaces, as if cp had written into the old file.
            uid, gid = kept.st_uid, kept.st_gid
        named_owner = preserve.chown
        if named_owner != (-1, -1):
            self.attempt_call("chown", lambda: _chown(self._handle, *named_owner))
            uid, gid = (-1 if named >= 0 else other for named, other in zip(named_owner, (uid, gid), strict=True))
        owned = False
        if (uid, gid) != (-1, -1):
            try:
                owned = change_owner(self._handle, uid, gid)
                self.excused |= preserve.ownership and not owned
            except Problem as problem:
                self._record_error("chown", problem)
        if preserve.ownership and named_owner == (-1, -1):
            return owned
        return not attributes.mode & SET_ID_BITS or self.is_owned_by(attributes.uid, attributes.gid)

    def is_owned_by(self, uid: int, gid: int) -> bool:
        """Return True if the item has the owner ``uid`` and the group ``gid`` now.

        The status is read for this, because the values that were requested do not show it: a set-gid directory gives
        its group to items that are created in it, and chown may be refused.
        """
        try:
            status = os.stat(self._handle)
        except OSError as error:
            self._record_error("stat", error)
            return False
        return (status.st_uid, status.st_gid) == (uid, gid)

    def has_mode(self, mode: int) -> bool:
        """Return True if the item has this mode now. A mode that is right is not set again: for a process that is not
        in the item's group, chmod(2) would clear the set-gid bit without an error.
        """
        try:
            return stat.S_IMODE(os.stat(self._handle).st_mode) == mode
        except OSError:
            return False

    def report_altered_times(self, atime: int, mtime: int) -> None:
        """Add a notice for the user if the file system has stored other times than ``atime`` and ``mtime``, which were
        set, in nanoseconds since 1970.

        Setting the times updates the ctime. An access time at or after that ctime comes from a process that has read
        the file since, and is not reported.
        """
        try:
            status = os.stat(self._handle)
        except OSError as error:
            self._record_error("stat", error)
            return
        was_read = atime < status.st_ctime_ns <= status.st_atime_ns
        for what, wanted, got in (("mtime", mtime, status.st_mtime_ns), ("atime", atime, status.st_atime_ns)):
            if abs(wanted - got) >= _DAY_NS and not (what == "atime" and was_read):
                text = f"the file system cannot hold its {what} {_utc_date(wanted)}: it has become {_utc_date(got)}"
                self.notices.append(text)
                return  # one line for each item

    def set_xattr(self, name: str, value: bytes) -> bool:
        """Set the extended attribute ``name`` to ``value``. Return True if it was set. Otherwise record an error, or
        that a privilege is missing or the attribute is not supported; then the item still counts as copied.
        """
        try:
            os.setxattr(self._handle, name, value)
            return True
        except OSError as error:
            if name == SELINUX_XATTR:
                self.notices.append(f"setxattr {name}: {error.strerror}")
            elif error.errno in XATTR_UNSUPPORTED_ERRNOS and _is_file_system_specific_xattr(name):
                self.excused |= xattr_kind(name) is not XattrKind.HINT
                self.unsupported.add(name)
            elif _is_xattr_privilege_missing(name, value, error):
                self.excused = True
            else:
                self._record_error(f"setxattr {name}", error)
            return False


def _is_xattr_privilege_missing(name: str, value: bytes, error: OSError) -> bool:
    """Return True if setting the extended attribute ``name`` failed with ``error`` because this process lacks a
    privilege, or because the ACL ``value`` names an id that is not mapped in this process's user namespace.
    """
    if error.errno == errno.EINVAL and name in POSIX_ACL_XATTRS:
        from pcopy.fsio.posix_acl import has_unmapped_user_or_group  # imported here, since few copies need it

        return has_unmapped_user_or_group(value)
    return error.errno == errno.EPERM and lacks_privilege_to_set_xattr(name)


def _is_file_system_specific_xattr(name: str) -> bool:
    """Return True if only some file systems support the extended attribute, whatever privileges the process has. This
    is False for POSIX ACLs: if a POSIX ACL cannot be set, the item fails.
    """
    kind = xattr_kind(name)
    return (
        kind is XattrKind.HINT
        or (kind is XattrKind.ACL and name not in POSIX_ACL_XATTRS)
        or (kind is XattrKind.ORDINARY and is_outside_xattr_namespaces(name))
    )


def _utc_date(moment: int) -> str:
    """Return the date in UTC, as YYYY-MM-DD, of ``moment``, a time in nanoseconds since 1970."""
    seconds = moment // _SECOND_NS
    try:
        return time.strftime("%Y-%m-%d", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):  # the year does not fit into a C int
        return f"{seconds} s after 1970"


def lacks_privilege_to_set_xattr(name: str) -> bool:
    """Return True if this process lacks the privilege to set the extended attribute ``name``, so that it fails with
    EPERM.
    """
    if name == "security.capability":
        return not has_capability(CAP_SETFCAP)
    return name.startswith(("trusted.", "security.")) and not has_capability(CAP_SYS_ADMIN)


def remove_extra_xattrs(handle: ItemHandle, attributes: ItemMetadata, preserve: PreservedMetadataKinds) -> None:
    """Remove the extended attributes that an existing item has and its source (``attributes``) lacks; raise
    ``Problem``. Attributes remain that belong to the file system, or that this process has no privilege to remove. If
    some attributes of the source could not be read, nothing is removed.
    """
    if attributes.unread:  # the source may have any attribute that is not listed
        return
    wanted = {name for name, _ in attributes.xattrs}
    for name in list_xattrs(handle) if preserve.xattr or preserve.acl else []:
        if name not in wanted and is_xattr_removed(name, preserve):
            try:
                remove_xattr(handle, name)
            except Problem as error:
                if not (error.errno == errno.EPERM and lacks_privilege_to_set_xattr(name)):
                    raise


def remove_xattr(handle: ItemHandle, name: str) -> None:
    """Remove the extended attribute ``name`` from the item ``handle``, if the item has it; raise ``Problem``."""
    try:
        os.removexattr(handle, name)
    except OSError as error:
        if error.errno not in (errno.ENODATA, *XATTR_UNSUPPORTED_ERRNOS):
            raise Problem.from_error(f"removexattr {name}", error) from error


def has_default_acl(directory: int) -> bool:
    """Return True if items created in ``directory`` inherit an ACL; raise ``Problem``."""
    try:
        try:
            return bool(os.getxattr(directory, DEFAULT_ACL_XATTR))
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            return bool(os.getxattr(b"/proc/self/fd/%d" % directory, DEFAULT_ACL_XATTR))  # O_PATH descriptor
    except OSError as error:
        if error.errno in (errno.ENODATA, *XATTR_UNSUPPORTED_ERRNOS):
            return False
        raise Problem.from_error(f"getxattr {DEFAULT_ACL_XATTR}", error) from error


def can_inherit_acl(directory: int, owner: int) -> bool:
    """Return True if items created in ``directory`` inherit an ACL now or might do so later; raise ``Problem``.

    ``owner`` is the user id of the directory's owner. Another user may give it a default ACL at any time, also between
    this check and the creation of an item.
    """
    return owner != os.geteuid() or has_default_acl(directory)


def remove_inherited_file_acl(temporary: int) -> None:
    """Remove the ACL that a new private file (mode 0600) inherited from its directory; raise ``Problem``.

    ``temporary`` is the descriptor of the file. Without the ACL, its mode may give the owner fewer permissions than
    were requested, so that the file could not be opened again. Therefore the mode is set once more. If a server refuses
    to set modes, no error is raised here: opening the file again reports it.
    """
    remove_xattr(temporary, ACCESS_ACL_XATTR)
    try:
        os.fchmod(temporary, 0o600)
    except OSError as error:
        if error.errno not in _CHMOD_REFUSED_ERRNOS:
            raise Problem.from_error("chmod", error) from error


def remove_inherited_directory_acls(directory: int) -> None:
    """Remove the ACLs that a new directory inherited; raise ``Problem``.

    The ACLs could make the directory unwritable while it is filled, and every item created in it would inherit them.
    The default ACL is removed last: as long as it exists, a repeated attempt can see that something was inherited.
    """
    remove_xattr(directory, ACCESS_ACL_XATTR)
    remove_xattr(directory, DEFAULT_ACL_XATTR)
