"""An item's metadata: read from one descriptor, applied through another.

The order is chown, extended attributes, chmod, ACLs, times: chown clears set-id bits and file capabilities, a file
that its owner can't write takes no user attributes, an ACL changes the mode, and everything changes the times
(chown(2), xattr(7), capabilities(7), acl(5)).
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable
from functools import partial

from pcopy.fsio import half_written
from pcopy.fsio.attribute_names import ACCESS_ACL, DEFAULT_ACL, POSIX_ACLS, SELINUX, Kind, is_foreign, kind_of
from pcopy.fsio.patience import INTERRUPTED, patiently
from pcopy.fsio.preserve import CAP_CHOWN, CAP_FSETID, CAP_SETFCAP, CAP_SYS_ADMIN, Preserve, are_mapped, capable
from pcopy.fsio.problem import MetadataProblem, Problem
from pcopy.named import NamedTuple

SET_ID = stat.S_ISUID | stat.S_ISGID

NO_ATTRIBUTES = (errno.ENOTSUP, errno.ENOSYS)
"""Where there are no extended attributes."""

_NO_MODES = (errno.EPERM, *NO_ATTRIBUTES)
"""Errors of servers that set no mode of one's own file."""

_SECOND = 10**9
"""In nanoseconds."""
_FIRST, _END = 315_532_800 * _SECOND, 2**31 * _SECOND
"""Times that all file systems can hold: FAT from 1980 on, those with 32 bits until 2038."""
_DAY = 86_400 * _SECOND
"""As exact as access times are on FAT."""

_ALL_RIGHTS, _OWNERS_RIGHTS = 0o777, 0o700
"""Permission bits of all classes, and of the owner alone (inode(7))."""

Handle = int | bytes
"""A descriptor, or ``/proc/self/fd/N`` of an O_PATH descriptor (for what can't be opened otherwise)."""


Unread = tuple[tuple[str, int], ...]
"""The operation and the errno of each extended attribute that could not be read."""


class Attributes(NamedTuple):
    """Metadata of one item; times are nanoseconds since 1970.

    ``mode`` gives no rights that an ACL of the source denies, where the copy does not get that ACL. ``unread``: see
    ``Unread``; the item gets all other metadata, and has failed.
    """

    mode: int
    uid: int
    gid: int
    atime: int
    mtime: int
    xattrs: tuple[tuple[str, bytes], ...] = ()
    unread: tuple[tuple[str, int], ...] = ()


class Xattrs(NamedTuple):
    """The extended attributes of a source that its copy keeps, ACLs among them.

    ``rights``: permission bits that the copy may have at most. They are restricted by an access ACL that the copy does
    not get. If that ACL cannot be read, only its owner has any.
    """

    found: tuple[tuple[str, bytes], ...] = ()
    unread: Unread = ()
    rights: int = _ALL_RIGHTS

    def mode(self, mode: int) -> int:
        """Return the ``mode`` of the source without the permission bits that the copy may not have."""
        return mode & ~(_ALL_RIGHTS & ~self.rights)

    @property
    def problem(self) -> MetadataProblem | None:
        """The problem with which the item fails, though its contents are copied; None if all was read."""
        return unread_problem(self.unread)


class Applied(NamedTuple):
    """What became of metadata that was no error.

    ``excused`` items lacked a privilege, or had an attribute that their new file system does not support; ``notices``
    are for the user. ``unknown`` are such attributes, and calls that it does not support: reported once, not per item.
    ``layout`` is the reason why a file did not get the layout that was wanted (``pcopy.fsio.layout``); ``fewer`` is the
    attribute of one with fewer stripes, if it has got that instead.
    """

    excused: int = 0
    notices: tuple[str, ...] = ()
    unknown: frozenset[str] = frozenset()
    layout: str = ""
    fewer: bytes = b""


NO_XATTRS = Xattrs()


def is_copied(name: str, preserve: Preserve) -> bool:
    """Does this extended attribute belong to the item's contents (and not to its file system or to this host)?"""
    kind = kind_of(name)
    if kind is Kind.ACL:
        return preserve.acl
    return preserve.xattr and kind is not Kind.NEVER


def is_dropped(name: str, preserve: Preserve) -> bool:
    """Does it go from an existing target whose source lacks it?

    Only what any item may have or not have: ACLs of other models are another view of owner and mode, which every item
    has, and how a file system keeps its files is its own affair.
    """
    kind = kind_of(name)
    if name in POSIX_ACLS:
        return preserve.acl
    return preserve.xattr and kind is Kind.OWN and name != SELINUX


def read_xattrs(handle: Handle, preserve: Preserve, names: list[str] | None = None, *, follow: bool = True) -> Xattrs:
    """Return the extended attributes of a source that its copy keeps.

    Args:
        names: of all extended attributes, if they are known.
        follow: False if ``handle`` is a path whose last name may be that of a symbolic link.

    Raises ``Problem`` for a file that is marked as half written, and for a name that no longer exists. An attribute
    that cannot be read is no reason not to copy the contents: it is ``unread``.
    """
    at = partial if follow else partial(partial, follow_symlinks=False)
    if names is None:
        try:
            names = patiently(at(os.listxattr, handle))
        except OSError as error:
            return _unlisted(handle, error, preserve, follow=follow)
    if not names:
        return NO_XATTRS
    half_written.refuse(names)
    found: list[tuple[str, bytes]] = []
    unread: list[tuple[str, int]] = []
    rights = _ALL_RIGHTS
    for name in names:
        is_kept = is_copied(name, preserve)
        if not is_kept and name != ACCESS_ACL:
            continue
        try:
            value = patiently(at(os.getxattr, handle, name))
        except OSError as error:
            if error.errno == errno.ENODATA:  # it was removed meanwhile
                continue
            rights = _OWNERS_RIGHTS if name == ACCESS_ACL else rights
            if is_kept:
                unread.append(_unread(f"getxattr {name}", error, by_name=not follow))
            continue
        if is_kept:
            found.append((name, value))
        else:
            rights = rights_without(value)
    return Xattrs(tuple(found), tuple(unread), rights)


def _unlisted(handle: Handle, error: OSError, preserve: Preserve, *, follow: bool) -> Xattrs:
    """As ``read_xattrs``, where the names cannot be listed: the attributes that decide about rights are asked for."""
    if error.errno in NO_ATTRIBUTES:
        return NO_XATTRS
    unread = (_unread("listxattr", error, by_name=not follow),) if preserve.xattr or preserve.acl else ()
    if isinstance(handle, int):
        half_written.refuse_marked(handle)
    try:
        acl = os.getxattr(handle, ACCESS_ACL, follow_symlinks=follow)
    except OSError as refused:
        is_absent = refused.errno in (errno.ENODATA, *NO_ATTRIBUTES)
        return Xattrs(unread=unread, rights=_ALL_RIGHTS if is_absent else _OWNERS_RIGHTS)
    if preserve.acl:
        return Xattrs(((ACCESS_ACL, acl),), unread)
    return Xattrs(unread=unread, rights=rights_without(acl))


def rights_without(acl: bytes) -> int:
    """As ``pcopy.fsio.posix_acl.rights_without``, which few copies need."""
    from pcopy.fsio import posix_acl

    return posix_acl.rights_without(acl)


def _unread(operation: str, error: OSError, *, by_name: bool) -> tuple[str, int]:
    """Raise ``Problem`` if the item was asked for by its name, which no longer exists."""
    number = error.errno or errno.EIO
    if by_name and number == errno.ENOENT:
        raise Problem(operation, number, on_source=True, changed=True) from error
    return operation, number


def list_xattrs(handle: Handle) -> list[str]:
    """The names of a target's extended attributes; raises ``Problem``."""
    try:
        return patiently(lambda: os.listxattr(handle))
    except OSError as error:
        if error.errno in NO_ATTRIBUTES:
            return []
        raise Problem.of("listxattr", error) from error


def read_attributes(handle: Handle, status: os.stat_result, preserve: Preserve) -> Attributes:
    """All metadata of a source whose ``status`` is known; raises ``Problem`` as ``read_xattrs``."""
    is_bare = stat.S_ISLNK(status.st_mode) and not (preserve.xattr or preserve.acl)  # links have no ACLs
    return attributes_of(status, NO_XATTRS if is_bare else read_xattrs(handle, preserve))


def attributes_of(status: os.stat_result, xattrs: Xattrs) -> Attributes:
    """The metadata of a source by its status and extended attributes."""
    return Attributes(
        xattrs.mode(status.st_mode), status.st_uid, status.st_gid, status.st_atime_ns, status.st_mtime_ns,
        xattrs.found, xattrs.unread,
    )  # fmt: skip


def unread_problem(unread: Unread) -> MetadataProblem | None:
    """The problem of an item with ``unread`` attributes; None if there are none."""
    return MetadataProblem(*unread[0], on_source=True) if unread else None


def change_owner(handle: Handle, uid: int, gid: int) -> bool:
    """Give the item to owner and group, or to one of them at least; return False if that was not possible for both.

    Raises ``Problem`` if the failure is not excused (``_is_excused``).
    """
    try:
        patiently(partial(_set_owner, handle, uid, gid), INTERRUPTED)
        return True
    except OSError as error:
        if not _is_excused(error, uid, gid):
            raise Problem.of("chown", error) from error
        alone = ((-1, gid),) if error.errno == errno.EPERM else ((uid, -1), (-1, gid))
    for one, other in alone:
        try:
            os.chown(handle, one, other)
        except OSError as error:
            if error.errno != errno.EPERM and not _is_excused(error, one, other):
                raise Problem.of("chown", error) from error
    return False


def _set_owner(handle: Handle, uid: int, gid: int) -> None:
    """Call chown(2); raise ``OSError``. A refusal does not count if the item has this owner and group already.

    Some servers refuse each change of an owner, and show all files with one owner.
    """
    try:
        os.chown(handle, uid, gid)
    except OSError as error:
        if error.errno not in _NEVER_SET or not _has_owner(handle, uid, gid):
            raise


_NEVER_SET = (errno.EPERM, errno.EINVAL, *NO_ATTRIBUTES)
"""Errors of servers that set no owner."""


def _has_owner(handle: Handle, uid: int, gid: int) -> bool:
    """Return True if the item has this owner and group; -1 stands for any."""
    try:
        status = os.stat(handle)
    except OSError:  # the call that was refused is reported
        return False
    return uid in (-1, status.st_uid) and gid in (-1, status.st_gid)


def _is_excused(error: OSError, uid: int, gid: int) -> bool:
    """Return True if chown to these ids failed for lack of a privilege, or because they do not exist here.

    The latter is so in a user namespace that does not map them (EINVAL), and on an idmapped mount (EOVERFLOW).
    """
    if error.errno == errno.EINVAL:
        return not are_mapped(uid, gid)
    return error.errno == errno.EOVERFLOW or (error.errno == errno.EPERM and not capable(CAP_CHOWN))


def wanted_mode(attributes: Attributes, preserve: Preserve, owned: bool, umask: int) -> int:
    """The permission bits of the copy. Set-id bits come only with the owner and group that they speak for."""
    mode = stat.S_IMODE(attributes.mode)
    if not preserve.mode:
        return mode & ~umask & ~SET_ID
    return mode if owned else mode & ~SET_ID


def apply_attributes(
    handle: Handle,
    attributes: Attributes,
    preserve: Preserve,
    umask: int,
    *,
    kept: os.stat_result | None = None,
    inherits: bool = False,
) -> Applied:
    """Makes the item behind ``handle`` what ``attributes`` say, as far as possible; raises ``MetadataProblem``.

    ``kept`` is the status of an existing item that stays (a directory, or a file that is replaced): what is not
    preserved is taken from it. ``inherits``: the item lies in a directory with a default ACL and has got one from it.
    """
    dressing = Dressing(handle, is_link=stat.S_ISLNK(attributes.mode))
    owned = dressing.own(attributes, preserve, kept)
    acls = [(name, value) for name, value in attributes.xattrs if kind_of(name) is Kind.ACL]
    for name, value in attributes.xattrs:
        if kind_of(name) is not Kind.ACL:
            dressing.set_xattr(name, value)
    if not stat.S_ISLNK(attributes.mode):
        mode = wanted_mode(attributes, preserve, owned, umask)
        if kept is not None and not preserve.mode and stat.S_IFMT(kept.st_mode) == stat.S_IFMT(attributes.mode):
            mode = stat.S_IMODE(kept.st_mode)
            if stat.S_ISREG(kept.st_mode) and not dressing.belongs_to(kept.st_uid, kept.st_gid):
                mode &= ~SET_ID  # new contents, perhaps another owner: the bits were not given to those
        if inherits and not any(name == ACCESS_ACL for name, _ in acls):
            dressing.attempt(f"removexattr {ACCESS_ACL}", lambda: drop_xattr(handle, ACCESS_ACL))
        dressing.give_mode(mode, acls, keeps=kept is not None and stat.S_ISDIR(kept.st_mode))
    if preserve.timestamps:
        dressing.attempt("utimensat", lambda: os.utime(handle, ns=(attributes.atime, attributes.mtime)))
        if not has_common_times(attributes.atime, attributes.mtime):
            dressing.compare_times(attributes.atime, attributes.mtime)
    return dressing.applied(attributes)


def has_common_times(atime: int, mtime: int) -> bool:
    """Can all file systems hold these times? The kernel bends others to what there is, and reports success."""
    return _FIRST <= atime < _END and _FIRST <= mtime < _END


class Dressing:
    """Sets what can be set, and remembers the first problem."""

    def __init__(self, handle: Handle, *, is_link: bool) -> None:
        self._handle = handle
        self._is_link = is_link
        self.problem: MetadataProblem | None = None
        self.excused = False
        self.notices: list[str] = []
        self.unknown: set[str] = set()

    def attempt(self, operation: str, call: Callable[[], object]) -> None:
        try:
            try:
                call()
            except OSError as error:
                if error.errno not in INTERRUPTED:
                    raise
                patiently(call, INTERRUPTED)
        except OSError as error:
            self._remember(operation, error)

    def _remember(self, operation: str, error: OSError) -> None:
        if self._is_link and error.errno in NO_ATTRIBUTES and operation in ("chown", "utimensat"):
            self._unsupported(f"{operation} of symbolic links")
        elif self.problem is None:
            self.problem = MetadataProblem(operation, error.errno or errno.EIO)

    def _unsupported(self, what: str) -> None:
        self.excused = True
        self.unknown.add(what)

    def applied(self, attributes: Attributes) -> Applied:
        """Return what became of ``attributes``; raise ``MetadataProblem`` if some could not be set, or not be read."""
        problem = self.problem or unread_problem(attributes.unread)
        if problem is not None:
            raise problem
        return Applied(int(self.excused), tuple(self.notices), frozenset(self.unknown))

    def give_mode(self, mode: int, acls: list[tuple[str, bytes]], *, keeps: bool) -> None:
        """Set the mode, and the ACLs of an item that is no symbolic link.

        Until the access ACL is set, only the owner has rights. If it cannot be set, the mode gives no more rights than
        the ACL does. ``keeps``: a mode that is right already is not set again, which would change the item's ctime.
        """
        access = next((value for name, value in acls if name == ACCESS_ACL), None)
        without = mode if access is None else mode & (~_ALL_RIGHTS | rights_without(access))
        has_been_without = access is not None and keeps and self.has_mode(without)
        first = mode if access is None else mode & ~_ALL_RIGHTS | mode & _OWNERS_RIGHTS
        if not has_been_without:
            self._chmod(first, keeps=keeps)
        for name, value in acls:
            is_set = self.set_xattr(name, value)
            if name == ACCESS_ACL and not is_set and not has_been_without:
                self._chmod(without, keeps=keeps)

    def _chmod(self, mode: int, *, keeps: bool) -> None:
        if keeps and self.has_mode(mode):
            return
        self.attempt("chmod", lambda: os.chmod(self._handle, mode))
        if mode & stat.S_ISGID and not capable(CAP_FSETID):
            self.excused |= not self.has_mode(mode)  # chmod(2) clears the bit, and reports success

    def own(self, attributes: Attributes, preserve: Preserve, kept: os.stat_result | None) -> bool:
        """Sets owner and group as far as wanted; returns whether they are the source's.

        An owner or group that the user has named is never excused; the other one is set as without ``--chown``.
        """
        uid, gid = -1, -1
        if preserve.ownership:
            uid, gid = attributes.uid, attributes.gid
        elif kept is not None and stat.S_ISREG(kept.st_mode):
            # What takes an existing file's place stays its owner's, as when cp writes into it.
            uid, gid = kept.st_uid, kept.st_gid
        told = preserve.chown
        if told != (-1, -1):
            self.attempt("chown", lambda: _set_owner(self._handle, *told))
            uid, gid = (-1 if named >= 0 else other for named, other in zip(told, (uid, gid), strict=True))
        owned = False
        if (uid, gid) != (-1, -1):
            try:
                owned = change_owner(self._handle, uid, gid)
                self.excused |= preserve.ownership and not owned
            except Problem as problem:
                self._remember("chown", problem)
        if preserve.ownership and told == (-1, -1):
            return owned
        return not attributes.mode & SET_ID or self.belongs_to(attributes.uid, attributes.gid)

    def belongs_to(self, uid: int, gid: int) -> bool:
        """Asks the file system: a set-gid directory gives its group to what is made in it, and chown may be refused."""
        try:
            status = os.stat(self._handle)
        except OSError as error:
            self._remember("stat", error)
            return False
        return (status.st_uid, status.st_gid) == (uid, gid)

    def has_mode(self, mode: int) -> bool:
        """Then it is not set again: who is not in the group would take the set-gid bit away, silently."""
        try:
            return stat.S_IMODE(os.stat(self._handle).st_mode) == mode
        except OSError:
            return False

    def compare_times(self, atime: int, mtime: int) -> None:
        """Tells of times that have become others.

        A past access time that is no longer before the status change, which setting it made, is that of a reader.
        """
        try:
            status = os.stat(self._handle)
        except OSError as error:
            self._remember("stat", error)
            return
        was_read = atime < status.st_ctime_ns <= status.st_atime_ns
        for what, wanted, got in (("mtime", mtime, status.st_mtime_ns), ("atime", atime, status.st_atime_ns)):
            if abs(wanted - got) >= _DAY and not (what == "atime" and was_read):
                text = f"the file system cannot hold its {what} {_date(wanted)}: it has become {_date(got)}"
                self.notices.append(text)
                return  # one line for each item

    def set_xattr(self, name: str, value: bytes) -> bool:
        """Return True if the attribute was set."""
        try:
            os.setxattr(self._handle, name, value)
            return True
        except OSError as error:
            if name == SELINUX:
                self.notices.append(f"setxattr {name}: {error.strerror}")
            elif error.errno in NO_ATTRIBUTES and _is_of_its_file_system(name):
                self.excused |= kind_of(name) is not Kind.HINT
                self.unknown.add(name)
            elif _is_refused_to_us(name, value, error):
                self.excused = True
            else:
                self._remember(f"setxattr {name}", error)
            return False


def _is_refused_to_us(name: str, value: bytes, error: OSError) -> bool:
    """Return True if this process lacks a privilege, or if its user namespace lacks an id that the ACL names."""
    if error.errno == errno.EINVAL and name in POSIX_ACLS:
        from pcopy.fsio.posix_acl import has_unmapped_id  # few copies need it

        return has_unmapped_id(value)
    return error.errno == errno.EPERM and needs_privilege(name)


def _is_of_its_file_system(name: str) -> bool:
    """Return True if only some file systems know the attribute, whatever a user may do.

    POSIX ACLs are not of that kind: an item that lacks its ACL has failed.
    """
    kind = kind_of(name)
    return kind is Kind.HINT or (kind is Kind.ACL and name not in POSIX_ACLS) or (kind is Kind.OWN and is_foreign(name))


def _date(moment: int) -> str:
    seconds = moment // _SECOND
    try:
        return time.strftime("%Y-%m-%d", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):  # the year does not fit into a C int
        return f"{seconds} s after 1970"


def needs_privilege(name: str) -> bool:
    """Was it this process's lack of a capability that made setting ``name`` fail with EPERM?"""
    if name == "security.capability":
        return not capable(CAP_SETFCAP)
    return name.startswith(("trusted.", "security.")) and not capable(CAP_SYS_ADMIN)


def drop_other_xattrs(handle: Handle, attributes: Attributes, preserve: Preserve) -> None:
    """Removes what an existing directory has and ``attributes`` have not; raises ``Problem``."""
    if attributes.unread:  # the source may have them
        return
    wanted = {name for name, _ in attributes.xattrs}
    for name in list_xattrs(handle) if preserve.xattr or preserve.acl else []:
        if name not in wanted and is_dropped(name, preserve):
            try:
                drop_xattr(handle, name)
            except Problem as error:
                if not (error.errno == errno.EPERM and needs_privilege(name)):
                    raise


def drop_xattr(handle: Handle, name: str) -> None:
    try:
        os.removexattr(handle, name)
    except OSError as error:
        if error.errno not in (errno.ENODATA, *NO_ATTRIBUTES):
            raise Problem.of(f"removexattr {name}", error) from error


def has_default_acl(directory: int) -> bool:
    """Would files made in ``directory`` inherit an ACL? Raises ``Problem``."""
    try:
        try:
            return bool(os.getxattr(directory, DEFAULT_ACL))
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            return bool(os.getxattr(b"/proc/self/fd/%d" % directory, DEFAULT_ACL))  # it is open for searching only
    except OSError as error:
        if error.errno in (errno.ENODATA, *NO_ATTRIBUTES):
            return False
        raise Problem.of(f"getxattr {DEFAULT_ACL}", error) from error


def may_inherit_acl(directory: int, owner: int) -> bool:
    """Must files made in ``directory``, which belongs to ``owner``, be freed from ACLs? Raises ``Problem``.

    Somebody else may give his directory a default ACL at any time, also between this question and the making.
    """
    return owner != os.geteuid() or has_default_acl(directory)


def free_from_acl(temporary: int) -> None:
    """Frees a file that was just made for us alone from the ACL that it inherited; raises ``Problem``.

    That may leave its owner less than he asked for, and so keep us from opening it again. A server that refuses to set
    modes is no problem here: who opens the file again reports that.
    """
    drop_xattr(temporary, ACCESS_ACL)
    try:
        os.fchmod(temporary, 0o600)
    except OSError as error:
        if error.errno not in _NO_MODES:
            raise Problem.of("chmod", error) from error


def drop_inherited_acls(directory: int) -> None:
    """Frees a directory that was just made from the ACLs that it inherited; raises ``Problem``.

    They could make it unwritable while it is filled, and would be inherited by everything made in it. The default one
    goes last: as long as it is there, whoever tries again knows that something was inherited.
    """
    drop_xattr(directory, ACCESS_ACL)
    drop_xattr(directory, DEFAULT_ACL)
