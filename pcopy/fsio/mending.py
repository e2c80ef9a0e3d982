"""Metadata of an item that is there and stays: compared with its source's, and mended where they differ.

Only what differs is set: nothing is written to an item that has all of its metadata. What cannot be set by us is no
difference, unless the user has asked for it by name: an owner without CAP_CHOWN, a group that we are not in.

An item is mended in place only if that can do no harm, else it is copied anew:
- A file or node with several names is not: others of them may lie anywhere, and whoever has made them may not own it.
- A regular file whose time is equal to its source's (``pcopy.fsio.existing.are_times_equal``) keeps it: its contents
  may not have been compared, and with another time nobody could see later that they differ.
- Nothing gets set-id bits or file capabilities so: its contents were looked at by size and time alone, if at all, and
  somebody else may hold it open for writing.
"""

from __future__ import annotations

import os
import stat
from functools import cache, partial
from typing import Protocol

from pcopy.fsio.attribute_names import ACCESS_ACL, Kind, kind_of
from pcopy.fsio.attributes import (
    NO_ATTRIBUTES,
    SET_ID,
    Applied,
    Attributes,
    Dressing,
    Handle,
    drop_xattr,
    is_copied,
    is_dropped,
    list_xattrs,
    needs_privilege,
)
from pcopy.fsio.existing import TIME_STEPS, are_times_equal
from pcopy.fsio.preserve import CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FSETID, Preserve, are_mapped, capable
from pcopy.fsio.problem import Problem, failing
from pcopy.named import NamedTuple

_STEPS = (*TIME_STEPS, 1_000_000)
"""Nanoseconds to which file systems cut times: those of ``TIME_STEPS``, and milliseconds of some network file systems.

``TIME_STEPS`` decide whether contents are copied, and do not have it: here the item's ctime must be cut alike.
"""


class Owned(Protocol):
    """What of an item's status is compared."""

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


def is_same_moment(source: int, present: int, changed: int, window: int) -> bool:
    """Is ``present`` the time ``source``, as exactly as its file system keeps it? In nanoseconds.

    ``changed`` is the item's ctime, which shows how exact that is: it is cut as all times are. ``window``: seconds that
    never count.
    """
    if abs(source - present) <= window * 10**9:
        return True
    return any(changed % step == 0 and source // step * step == present for step in _STEPS)


@cache
def _groups() -> frozenset[int]:
    return frozenset({os.getegid(), *os.getgroups()})


def _is_owned(source: Owned, present: Owned, preserve: Preserve) -> bool:
    """Has it the owner and group that it would get, as far as we can give it any?"""
    uid, gid = (source.st_uid, source.st_gid) if preserve.ownership else (present.st_uid, present.st_gid)
    told = preserve.chown
    wanted = tuple(named if named >= 0 else other for named, other in zip(told, (uid, gid), strict=True))
    if wanted == (present.st_uid, present.st_gid):
        return True
    if told != (-1, -1):
        return False
    if capable(CAP_CHOWN):  # ids that the user namespace lacks cannot be given
        has_user = wanted[0] == present.st_uid or not are_mapped(wanted[0], -1)
        return has_user and (wanted[1] == present.st_gid or not are_mapped(-1, wanted[1]))
    return wanted[1] == present.st_gid or present.st_uid != os.geteuid() or wanted[1] not in _groups()


def wanted_bits(source: Owned, present: Owned) -> int:
    """The mode that it would get with the owner that it has. Set-id bits come only with their owner and group."""
    mode = stat.S_IMODE(source.st_mode)
    if mode & SET_ID and (source.st_uid, source.st_gid) != (present.st_uid, present.st_gid):
        mode &= ~SET_ID
    if mode & stat.S_ISGID and not capable(CAP_FSETID) and present.st_gid not in _groups():
        mode &= ~stat.S_ISGID  # chmod(2) would take it away, and not say so
    return mode


def _has_mode(source: Owned, present: Owned, preserve: Preserve) -> bool:
    if not preserve.mode or stat.S_ISLNK(source.st_mode):
        return True
    return wanted_bits(source, present) == stat.S_IMODE(present.st_mode)


def _has_time(source: Owned, present: Owned, preserve: Preserve, window: int) -> bool:
    if not preserve.timestamps:
        return True
    if stat.S_ISREG(source.st_mode) and are_times_equal(source.st_mtime_ns, present.st_mtime_ns, window):
        return True
    return is_same_moment(source.st_mtime_ns, present.st_mtime_ns, present.st_ctime_ns, window)


def has_metadata(source: Owned, present: Owned, preserve: Preserve, window: int) -> bool:
    """As far as a status tells: has the item that is ``present`` the metadata of its ``source``?"""
    return (
        _is_owned(source, present, preserve)
        and _has_mode(source, present, preserve)
        and _has_time(source, present, preserve, window)
    )


def same_xattrs(source: bytes, present: bytes, preserve: Preserve, *, follow: bool = False) -> bool:
    """Have two items the same extended attributes and ACLs, as far as these are copied? They are paths whose last names
    are not followed, unless the source's is to (``follow``). Raises ``OSError``."""
    ours, theirs = _listed(source, follow), _listed(present, False)
    if not (ours or theirs):
        return True
    if ACCESS_ACL in ours and preserve.xattr and not preserve.acl:  # it restricts the mode, which is not looked at here
        return False
    wanted = {name for name in ours if is_copied(name, preserve)}
    if any(name not in wanted and is_dropped(name, preserve) for name in theirs) or wanted - theirs:
        return False
    return all(_value(source, name, follow) == _value(present, name, False) for name in wanted)


def _listed(path: bytes, follow: bool) -> set[str]:
    try:
        return set(os.listxattr(path, follow_symlinks=follow))
    except OSError as error:
        if error.errno in NO_ATTRIBUTES:
            return set()
        raise


def _value(path: bytes, name: str, follow: bool) -> bytes:
    return os.getxattr(path, name, follow_symlinks=follow)


class Lacking(NamedTuple):
    """What an item that is there lacks: extended attributes to ``set`` (ACLs among them) and to ``drop``, and whether
    owner, mode and times are others."""

    owner: bool
    mode: bool
    times: bool
    set: tuple[tuple[str, bytes], ...]
    drop: tuple[str, ...]

    @property
    def is_needed(self) -> bool:
        return any(self)

    def is_harmless(self, source: Attributes, present: os.stat_result) -> bool:
        """May it be done in place?"""
        if stat.S_ISDIR(present.st_mode):
            return True
        if present.st_nlink > 1 or any(name == "security.capability" for name, _ in self.set):
            return False
        if stat.S_ISREG(present.st_mode) and source.mode & SET_ID and (self.owner or self.mode):
            return False
        # A file that its owner can't write takes no user attributes from him.
        return not (self.set or self.drop) or bool(present.st_mode & stat.S_IWUSR) or capable(CAP_DAC_OVERRIDE)


class _Source(NamedTuple):
    """Fills ``Owned``."""

    st_mode: int
    st_uid: int
    st_gid: int
    st_mtime_ns: int
    st_ctime_ns: int = 0


def lacking(
    handle: Handle, present: os.stat_result, attributes: Attributes, preserve: Preserve, window: int
) -> Lacking:
    """What the item behind ``handle``, which has the status ``present``, lacks of ``attributes``. Raises
    ``Problem``."""
    source = _Source(attributes.mode, attributes.uid, attributes.gid, attributes.mtime)
    missing, extra = _xattrs(handle, attributes, preserve)
    return Lacking(
        not _is_owned(source, present, preserve),
        not _has_mode(source, present, preserve),
        not _has_time(source, present, preserve, window),
        missing,
        extra,
    )


def _xattrs(
    handle: Handle, attributes: Attributes, preserve: Preserve
) -> tuple[tuple[tuple[str, bytes], ...], tuple[str, ...]]:
    """The extended attributes that are missing, or have another value; and the names of those that must go."""
    if not (preserve.xattr or preserve.acl):
        return (), ()
    names = list_xattrs(handle)
    wanted = dict(attributes.xattrs)
    try:
        there = {name: os.getxattr(handle, name) for name in names if name in wanted}
    except OSError as error:
        raise Problem.of("getxattr", error) from error
    missing = tuple((name, value) for name, value in attributes.xattrs if there.get(name) != value)
    if attributes.unread:  # the source may have them
        return missing, ()
    extra = (name for name in names if name not in wanted and is_dropped(name, preserve))
    return missing, tuple(name for name in extra if not needs_privilege(name))


def mend(
    handle: Handle, present: os.stat_result, attributes: Attributes, preserve: Preserve, lacks: Lacking
) -> Applied:
    """Gives the item what it ``lacks``; raises ``Problem``. The order is that of ``apply_attributes``."""
    dressing = Dressing(handle, is_link=stat.S_ISLNK(attributes.mode))
    if lacks.owner:
        dressing.own(attributes, preserve, None)
    for name in lacks.drop:
        dressing.attempt(f"removexattr {name}", partial(drop_xattr, handle, name))
    acls = [(name, value) for name, value in lacks.set if kind_of(name) is Kind.ACL]
    again = attributes.xattrs if lacks.owner else lacks.set  # chown clears file capabilities
    for name, value in again:
        if kind_of(name) is not Kind.ACL:
            dressing.set_xattr(name, value)
    changes_mode = lacks.mode or lacks.owner or bool(acls) or ACCESS_ACL in lacks.drop
    if changes_mode and preserve.mode and not stat.S_ISLNK(attributes.mode):
        source = _Source(attributes.mode, attributes.uid, attributes.gid, attributes.mtime)
        with failing("stat"):
            now = os.stat(handle) if lacks.owner else present
        dressing.give_mode(wanted_bits(source, now), acls, keeps=True)
    else:
        for name, value in acls:
            dressing.set_xattr(name, value)
    if lacks.times:
        dressing.attempt("utimensat", lambda: os.utime(handle, ns=(attributes.atime, attributes.mtime)))
    return dressing.applied(attributes)
