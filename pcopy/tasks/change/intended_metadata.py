"""The mode, owner and ACL that each item must get, in columns: from its status and the options of the user
(``Options.change``).

Rules:

- Only what differs is changed.
- chown(2) clears the set-id bits of everything but directories. The wanted mode is computed from the mode that remains.
- A symbolic link has no mode and no ACL; chown changes the link itself.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.attribute_names import ACCESS_ACL, DEFAULT_ACL
from pcopy.fsio.attributes import XATTR_UNSUPPORTED_ERRNOS
from pcopy.fsio.backend.batches import UNCHANGED
from pcopy.fsio.backend.columns import GROUP, MODE, OWNER, Rows
from pcopy.fsio.backend.metadata_rows import mode_after_chown
from pcopy.fsio.modes import ModeChange, changed_mode, parse_mode
from pcopy.fsio.nodes import path_of_descriptor
from pcopy.fsio.preserve import CAP_DAC_OVERRIDE, has_capability
from pcopy.fsio.problem import Problem
from pcopy.tasks.base.rank import Rank

_ACL_VERSION = struct.Struct("<I")
_ACL_ENTRY = struct.Struct("<HHI")
_USER, _GROUP, _MASK, _OTHER = 0x01, 0x04, 0x10, 0x20
"""Tags of ACL entries that name no user or group (acl(5), <linux/posix_acl.h>)."""
_NOBODY = 0xFFFFFFFF
"""Value of the user or group id of an ACL entry that names none."""


def acl_of(mode: int) -> bytes:
    """Return the ACL that is equivalent to a mode, in the format of the extended attribute."""
    entries = ((_USER, mode >> 6 & 7), (_GROUP, mode >> 3 & 7), (_OTHER, mode & 7))
    return _ACL_VERSION.pack(2) + b"".join(_ACL_ENTRY.pack(tag, bits, _NOBODY) for tag, bits in entries)


def mode_of(acl: bytes) -> int:
    """Return the permission bits that correspond to an access ACL."""
    entries = _ACL_ENTRY.iter_unpack(acl[_ACL_VERSION.size :])
    bits: dict[int, int] = {tag: permissions for tag, permissions, _ in entries}
    return bits[_USER] << 6 | bits.get(_MASK, bits[_GROUP]) << 3 | bits[_OTHER]


class _ModeTable(dict[int, int]):
    """Maps an item's ``st_mode`` to the permission bits that it must get, or ``KEEP`` if it has them already."""

    def __init__(self, actions: tuple[ModeChange, ...], umask: int, *, owned: bool) -> None:
        """``owned``: the item gets another owner or group first."""
        super().__init__()
        self._actions, self._umask, self._owned = actions, umask, owned

    def __missing__(self, mode: int) -> int:
        after = mode_after_chown(mode) if self._owned else mode
        is_link = stat.S_ISLNK(mode)
        bits = stat.S_IMODE(after) if is_link else changed_mode(after, self._actions, self._umask)
        wanted: int = UNCHANGED if bits == stat.S_IMODE(after) else bits
        self[mode] = wanted
        return wanted


class ChangesNeeded(NamedTuple):
    """The ``rows`` that must be changed, and what each of them gets (``wanted``, as in ``SetMetadata``).

    ``unreadable`` holds the rows whose ACLs cannot be read, with the reason.
    """

    rows: Sequence[int]
    wanted: Rows
    unreadable: Mapping[int, Problem] = MappingProxyType({})

    def excluding(self, excluded: Iterable[int]) -> ChangesNeeded:
        """Return the same without the rows ``excluded``, which are not changed."""
        stay = {*excluded}
        places = [place for place, row in enumerate(self.rows) if row not in stay]
        return (
            self._replace(rows=[self.rows[at] for at in places], wanted=self.wanted.selected(places)) if stay else self
        )


def rows_without(rows: Sequence[int], excluded: Collection[int]) -> Sequence[int]:
    """Return ``rows`` without ``excluded``."""
    return [row for row in rows if row not in excluded] if excluded else rows


class WantedMetadata:
    """The changes that the job makes to items; one object per rank."""

    def __init__(self, rank: Rank) -> None:
        mode, self._uid, self._gid, access, self._default = rank.options.change
        self.acls = (access, self._default) if access else None
        actions = parse_mode(mode) if mode else ()
        umask = rank.options.umask
        self._modes_of_owned = _ModeTable(actions, umask, owned=False)
        self._modes_after_chown = _ModeTable(actions, umask, owned=True)
        self._has_dac_override = has_capability(CAP_DAC_OVERRIDE)
        self.uid, self.gid = (UNCHANGED if each < 0 else each for each in (self._uid, self._gid))
        self.modes = array("H", [changed_mode(stat.S_IFREG | bits, actions, umask) for bits in range(4096)])
        """For each value of the permission bits of a non-directory, the bits that it gets."""
        self.directory_modes = array("H", [changed_mode(stat.S_IFDIR | bits, actions, umask) for bits in range(4096)])
        """For each value of the permission bits of a directory, the bits that it gets."""

    def changes_needed(self, directory: int, names: Sequence[bytes], rows: Rows) -> ChangesNeeded:
        """Return which items must be changed, and how.

        Args:
            directory: descriptor of the directory that contains the items.
            names: names of the items, used only if ACLs are wanted.
            rows: statuses with the columns ``MODE | OWNER | GROUP``.
        """
        modes = array("I", map(self._modes_of_owned.__getitem__, rows.mode))
        others = self._rows_to_chown(rows)
        if not others and self.acls is None:
            if modes.count(UNCHANGED) == len(modes):
                return ChangesNeeded((), Rows(0, MODE | OWNER | GROUP))
            if UNCHANGED not in modes:
                return ChangesNeeded(range(len(modes)), self._wanted_columns(modes, {}))
        for row in others:
            modes[row] = self._modes_after_chown[rows.mode[row]]
        lacking, unknown = self._rows_with_other_acls(directory, names, rows)
        differing = [row for row, mode in enumerate(modes) if mode != UNCHANGED or row in others or row in lacking]
        differing = [*rows_without(differing, unknown)]
        owners = {place: others[row] for place, row in enumerate(differing) if row in others}
        return ChangesNeeded(
            differing, self._wanted_columns(array("I", [modes[row] for row in differing]), owners), unknown
        )

    def _rows_to_chown(self, rows: Rows) -> dict[int, tuple[int, int]]:
        """Return the rows that have another owner or group than wanted, with the user and group ids that they get."""
        uid, gid, number = self._uid, self._gid, len(rows)
        is_owned = uid < 0 or rows.uid.count(uid) == number
        is_grouped = gid < 0 or rows.gid.count(gid) == number
        if is_owned and is_grouped:
            return {}
        return {
            row: (UNCHANGED if uid in (-1, owner) else uid, UNCHANGED if gid in (-1, group) else gid)
            for row, (owner, group) in enumerate(zip(rows.uid, rows.gid, strict=True))
            if uid not in (-1, owner) or gid not in (-1, group)
        }

    def _wanted_columns(self, modes: array[int], owners: dict[int, tuple[int, int]]) -> Rows:
        """Return the columns of ``ChangesNeeded.wanted`` for these modes and owners."""
        wanted = Rows(0, MODE | OWNER | GROUP)
        wanted.row_count, wanted.mode = len(modes), modes
        wanted.uid = array("I", [UNCHANGED]) * len(modes)
        wanted.gid = array("I", [UNCHANGED]) * len(modes)
        for row, (uid, gid) in owners.items():
            wanted.uid[row], wanted.gid[row] = uid, gid
        return wanted

    def _rows_with_other_acls(
        self, directory: int, names: Sequence[bytes], rows: Rows
    ) -> tuple[set[int], Mapping[int, Problem]]:
        """Return the rows whose ACLs differ from the wanted ones, and those whose ACLs cannot be read."""
        lacking, unknown = set[int](), dict[int, Problem]()
        if self.acls is None:
            return lacking, unknown
        above = path_of_descriptor(directory)
        for row, name in enumerate(names):
            mode, path = rows.mode[row], b"/".join((above, name))
            try:
                if not stat.S_ISLNK(mode) and not self._has_acls(path, mode):
                    lacking.add(row)
            except Problem as problem:
                unknown[row] = problem
        return lacking, unknown

    def _has_acls(self, path: bytes, mode: int) -> bool:
        """Return True if the item has the wanted ACLs; raise ``Problem``."""
        assert self.acls is not None
        access, default = self.acls
        if (_xattr_value(path, ACCESS_ACL) or acl_of(mode)) != access:
            return False
        return not stat.S_ISDIR(mode) or _xattr_value(path, DEFAULT_ACL) == default

    def resulting_bits(self, mode: int, wanted: int) -> int:
        """Return the permission bits of an item after the change, which had ``mode`` and gets
        ``wanted`` (or ``KEEP``).
        """
        if self.acls is not None and not stat.S_ISLNK(mode):
            return (stat.S_IMODE(mode) if wanted == UNCHANGED else wanted) & ~0o777 | mode_of(self.acls[0])
        return stat.S_IMODE(mode) if wanted == UNCHANGED else wanted

    def may_lock_out(self, mode: int, owner: int, wanted: int, new_owner: int) -> bool:
        """Return True if the change may deny this process access to a directory."""
        if self._has_dac_override:
            return False
        is_taken = bool(mode & 0o500 & ~self.resulting_bits(mode, wanted)) and owner == os.geteuid()
        return is_taken or new_owner not in (UNCHANGED, owner)


def _xattr_value(path: bytes, name: str) -> bytes:
    """Return the value of an extended attribute, or ``b""`` if there is none; raise ``Problem``."""
    try:
        return os.getxattr(path, name, follow_symlinks=False)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOENT, *XATTR_UNSUPPORTED_ERRNOS):
            return b""
        raise Problem.from_error(f"getxattr {name}", error) from error


def change_description(row: Rows, at: int, bits: int, uid: int, gid: int) -> str:
    """Return a text that describes the change of an item: old and new mode, old and new owner and group as numbers."""
    parts = []
    if stat.S_IMODE(row.mode[at]) != bits:
        parts.append(f"{stat.S_IMODE(row.mode[at]):04o} -> {bits:04o}")
    before = row.uid[at], row.gid[at]
    after = tuple(old if new == UNCHANGED else new for old, new in zip(before, (uid, gid), strict=True))
    if before != after:
        parts.append(f"{before[0]}:{before[1]} -> {after[0]}:{after[1]}")
    return " ".join(parts) or "ACL"
