"""The mode, owner and ACL that each item must get. They are computed from the item's status and the user's options
(``ChangeOptions.change``), for a batch of items at a time.

Rules:

- Only what differs is changed.
- chown(2) clears the set-id bits of everything but directories. So the wanted mode is computed from the mode that
  remains after the chown.
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
from pcopy.fsio.attribute_names import ACCESS_ACL_XATTR, DEFAULT_ACL_XATTR
from pcopy.fsio.attributes import XATTR_UNSUPPORTED_ERRNOS
from pcopy.fsio.backend.batches import UNCHANGED_VALUE
from pcopy.fsio.backend.columns import GROUP_COLUMN, MODE_COLUMN, OWNER_COLUMN, ItemStatusColumns
from pcopy.fsio.backend.metadata_rows import mode_after_chown
from pcopy.fsio.modes import ModeChange, mode_after_changes, parse_mode
from pcopy.fsio.nodes import proc_path_of_descriptor
from pcopy.fsio.preserve import CAP_DAC_OVERRIDE, has_capability
from pcopy.fsio.problem import Problem
from pcopy.tasks.base.job import ChangeOptions
from pcopy.tasks.base.rank import Rank

_ACL_VERSION = struct.Struct("<I")
_ACL_ENTRY = struct.Struct("<HHI")
_ACL_USER_TAG, _ACL_GROUP_TAG, _ACL_MASK_TAG, _ACL_OTHER_TAG = 0x01, 0x04, 0x10, 0x20
"""Tags of ACL entries that name no user or group (acl(5), <linux/posix_acl.h>)."""
_NO_ACL_ID = 0xFFFFFFFF
"""Value in the field for a user or group id of an ACL entry that names no user or group."""


def acl_of_mode(mode: int) -> bytes:
    """Return the ACL that is equivalent to the permission bits of ``mode``, in the form of the extended attribute that
    contains ACLs.
    """
    entries = ((_ACL_USER_TAG, mode >> 6 & 7), (_ACL_GROUP_TAG, mode >> 3 & 7), (_ACL_OTHER_TAG, mode & 7))
    return _ACL_VERSION.pack(2) + b"".join(_ACL_ENTRY.pack(tag, bits, _NO_ACL_ID) for tag, bits in entries)


def mode_of_acl(acl: bytes) -> int:
    """Return the permission bits that correspond to the access ACL ``acl``, which is in the form of the extended
    attribute.
    """
    entries = _ACL_ENTRY.iter_unpack(acl[_ACL_VERSION.size :])
    bits: dict[int, int] = {tag: permissions for tag, permissions, _ in entries}
    return bits[_ACL_USER_TAG] << 6 | bits.get(_ACL_MASK_TAG, bits[_ACL_GROUP_TAG]) << 3 | bits[_ACL_OTHER_TAG]


class _ModeTable(dict[int, int]):
    """Maps an item's ``st_mode`` to the permission bits that it must get, or to ``UNCHANGED_VALUE`` if it has them
    already.
    """

    def __init__(self, actions: tuple[ModeChange, ...], umask: int, *, owned: bool) -> None:
        """``actions`` are the changes that ``--mode`` requests. ``owned`` is True if the table is for items that get
        another owner or group first, which clears their set-id bits.
        """
        super().__init__()
        self._actions, self._umask, self._owned = actions, umask, owned

    def __missing__(self, mode: int) -> int:
        after = mode_after_chown(mode) if self._owned else mode
        is_link = stat.S_ISLNK(mode)
        bits = stat.S_IMODE(after) if is_link else mode_after_changes(after, self._actions, self._umask)
        wanted: int = UNCHANGED_VALUE if bits == stat.S_IMODE(after) else bits
        self[mode] = wanted
        return wanted


class ChangesNeeded(NamedTuple):
    """What pchmod must change in a batch of items.

    Fields:

    - ``rows``: row numbers of the items to change.
    - ``wanted``: the mode, uid and gid that each of them gets (or ``UNCHANGED_VALUE``), in the order of ``rows``.
    - ``unreadable``: rows whose ACLs cannot be read, with the reason. They are not in ``rows``.
    """

    rows: Sequence[int]
    wanted: ItemStatusColumns
    unreadable: Mapping[int, Problem] = MappingProxyType({})

    def without_rows(self, excluded: Iterable[int]) -> ChangesNeeded:
        """Return the same changes, but without those of the items in the rows ``excluded``."""
        stay = {*excluded}
        places = [place for place, row in enumerate(self.rows) if row not in stay]
        return (
            self._replace(rows=[self.rows[at] for at in places], wanted=self.wanted.columns_of_selected_rows(places))
            if stay
            else self
        )


def rows_without_excluded(rows: Sequence[int], excluded: Collection[int]) -> Sequence[int]:
    """Return those of ``rows`` that are not in ``excluded``."""
    return [row for row in rows if row not in excluded] if excluded else rows


class WantedMetadata:
    """The mode, owner and ACL changes that the options of pchmod request; one object per rank."""

    def __init__(self, rank: Rank) -> None:
        mode, self._uid, self._gid, access, self._default = rank.program_options(ChangeOptions).change
        self.acls = (access, self._default) if access else None
        actions = parse_mode(mode) if mode else ()
        umask = rank.options.umask
        self._modes_of_owned = _ModeTable(actions, umask, owned=False)
        self._modes_after_chown = _ModeTable(actions, umask, owned=True)
        self._has_dac_override = has_capability(CAP_DAC_OVERRIDE)
        self.uid, self.gid = (UNCHANGED_VALUE if each < 0 else each for each in (self._uid, self._gid))
        self.modes = array("H", [mode_after_changes(stat.S_IFREG | bits, actions, umask) for bits in range(4096)])
        """For each value of the permission bits (0 to 07777) of an item that is not a directory: the bits that it must
        get.
        """
        self.directory_modes = array(
            "H", [mode_after_changes(stat.S_IFDIR | bits, actions, umask) for bits in range(4096)]
        )
        """For each value of the permission bits (0 to 07777) of a directory: the bits that it must get."""

    def changes_needed(self, directory: int, names: Sequence[bytes], rows: ItemStatusColumns) -> ChangesNeeded:
        """Return which items must be changed, and how.

        Args:
            directory: descriptor of the directory that contains the items.
            names: names of the items; used only if the user wants ACLs.
            rows: statuses of the items, with the columns ``MODE | OWNER | GROUP``.
        """
        modes = array("I", map(self._modes_of_owned.__getitem__, rows.mode))
        others = self._rows_to_chown(rows)
        if not others and self.acls is None:
            if modes.count(UNCHANGED_VALUE) == len(modes):
                return ChangesNeeded((), ItemStatusColumns(0, MODE_COLUMN | OWNER_COLUMN | GROUP_COLUMN))
            if UNCHANGED_VALUE not in modes:
                return ChangesNeeded(range(len(modes)), self._wanted_metadata_columns(modes, {}))
        for row in others:
            modes[row] = self._modes_after_chown[rows.mode[row]]
        lacking, unknown = self._rows_with_other_acls(directory, names, rows)
        differing = [
            row for row, mode in enumerate(modes) if mode != UNCHANGED_VALUE or row in others or row in lacking
        ]
        differing = [*rows_without_excluded(differing, unknown)]
        owners = {place: others[row] for place, row in enumerate(differing) if row in others}
        return ChangesNeeded(
            differing, self._wanted_metadata_columns(array("I", [modes[row] for row in differing]), owners), unknown
        )

    def _rows_to_chown(self, rows: ItemStatusColumns) -> dict[int, tuple[int, int]]:
        """Return which items need another owner or group: for each such row, the user and group id that the item gets.
        An id that is right already is given as ``UNCHANGED_VALUE``.
        """
        uid, gid, number = self._uid, self._gid, len(rows)
        is_owned = uid < 0 or rows.uid.count(uid) == number
        is_grouped = gid < 0 or rows.gid.count(gid) == number
        if is_owned and is_grouped:
            return {}
        return {
            row: (UNCHANGED_VALUE if uid in (-1, owner) else uid, UNCHANGED_VALUE if gid in (-1, group) else gid)
            for row, (owner, group) in enumerate(zip(rows.uid, rows.gid, strict=True))
            if uid not in (-1, owner) or gid not in (-1, group)
        }

    def _wanted_metadata_columns(self, modes: array[int], owners: dict[int, tuple[int, int]]) -> ItemStatusColumns:
        """Return the metadata to set, as status columns. ``modes`` are the modes of the items; ``owners`` are the uid
        and gid of those items that get another owner, by index in ``modes``.
        """
        wanted = ItemStatusColumns(0, MODE_COLUMN | OWNER_COLUMN | GROUP_COLUMN)
        wanted.row_count, wanted.mode = len(modes), modes
        wanted.uid = array("I", [UNCHANGED_VALUE]) * len(modes)
        wanted.gid = array("I", [UNCHANGED_VALUE]) * len(modes)
        for row, (uid, gid) in owners.items():
            wanted.uid[row], wanted.gid[row] = uid, gid
        return wanted

    def _rows_with_other_acls(
        self, directory: int, names: Sequence[bytes], rows: ItemStatusColumns
    ) -> tuple[set[int], Mapping[int, Problem]]:
        """Compare the ACLs of the items with the wanted ones. Return two things: the rows of the items whose ACLs
        differ; the rows of those whose ACLs cannot be read, with the reason.
        """
        lacking, unknown = set[int](), dict[int, Problem]()
        if self.acls is None:
            return lacking, unknown
        above = proc_path_of_descriptor(directory)
        for row, name in enumerate(names):
            mode, path = rows.mode[row], b"/".join((above, name))
            try:
                if not stat.S_ISLNK(mode) and not self._has_wanted_acls(path, mode):
                    lacking.add(row)
            except Problem as problem:
                unknown[row] = problem
        return lacking, unknown

    def _has_wanted_acls(self, path: bytes, mode: int) -> bool:
        """Return True if the item has the wanted ACLs already. Raise ``Problem`` if they cannot be read."""
        assert self.acls is not None
        access, default = self.acls
        if (_xattr_value(path, ACCESS_ACL_XATTR) or acl_of_mode(mode)) != access:
            return False
        return not stat.S_ISDIR(mode) or _xattr_value(path, DEFAULT_ACL_XATTR) == default

    def resulting_mode_bits(self, mode: int, wanted: int) -> int:
        """Return the permission bits that an item has after its change. ``mode`` is its ``st_mode`` before; ``wanted``
        are the bits that chmod sets (or ``UNCHANGED_VALUE``). ACLs may change the bits further.
        """
        if self.acls is not None and not stat.S_ISLNK(mode):
            return (stat.S_IMODE(mode) if wanted == UNCHANGED_VALUE else wanted) & ~0o777 | mode_of_acl(self.acls[0])
        return stat.S_IMODE(mode) if wanted == UNCHANGED_VALUE else wanted

    def may_lose_directory_access(self, mode: int, owner: int, wanted: int, new_owner: int) -> bool:
        """Return True if this process may not be able to enter a directory after its change, so that its contents must
        be changed first.

        Args:
            mode, owner: ``st_mode`` and uid of the directory.
            wanted: permission bits that it gets, or ``UNCHANGED_VALUE``.
            new_owner: uid that it gets, or ``UNCHANGED_VALUE``.
        """
        if self._has_dac_override:
            return False
        is_taken = bool(mode & 0o500 & ~self.resulting_mode_bits(mode, wanted)) and owner == os.geteuid()
        return is_taken or new_owner not in (UNCHANGED_VALUE, owner)


def _xattr_value(path: bytes, name: str) -> bytes:
    """Return the value of the extended attribute ``name``, or ``b""`` if the item has none. Raise ``Problem`` if it
    cannot be read.
    """
    try:
        return os.getxattr(path, name, follow_symlinks=False)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOENT, *XATTR_UNSUPPORTED_ERRNOS):
            return b""
        raise Problem.from_error(f"getxattr {name}", error) from error


def change_description(row: ItemStatusColumns, at: int, bits: int, uid: int, gid: int) -> str:
    """Return a text for the report that describes how an item changes: "mode 0644 -> 0600", "owner 0:0 -> 1000:1000",
    both, or "acl" if neither changes.

    Args:
        row, at: the statuses of a batch before the change, and the index of the item in it.
        bits: permission bits after the change.
        uid, gid: ids that the item gets, or ``UNCHANGED_VALUE``.
    """
    parts = []
    if stat.S_IMODE(row.mode[at]) != bits:
        parts.append(f"mode {stat.S_IMODE(row.mode[at]):04o} -> {bits:04o}")
    before = row.uid[at], row.gid[at]
    after = tuple(old if new == UNCHANGED_VALUE else new for old, new in zip(before, (uid, gid), strict=True))
    if before != after:
        parts.append(f"owner {before[0]}:{before[1]} -> {after[0]}:{after[1]}")
    return ", ".join(parts) or "acl"
