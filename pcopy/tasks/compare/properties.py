"""Properties that are compared of an item that both sides have. Each property is one bit; the bits of an item say in
which properties it differs.

Rules: An item of another type differs in its type only; a device with another device number is of another type. Sizes
are those of regular files and of the texts of symbolic links; the text itself is the contents of a link. The owner is
user and group. An SELinux label that only the second side has is no difference, because its file system assigned it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from itertools import compress, count
from operator import ne

from pcopy.engine.ticket import TicketGenerator
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.attribute_names import SELINUX_XATTR, XattrKind, xattr_kind
from pcopy.fsio.attributes import XATTR_UNSUPPORTED_ERRNOS, is_xattr_copied
from pcopy.fsio.backend.batches import CompareXattrsBatch
from pcopy.fsio.backend.columns import GROUP_COLUMN, OWNER_COLUMN, ItemStatusColumns, OutcomeCode, pack_names
from pcopy.fsio.preserve import PreservedMetadataKinds
from pcopy.fsio.problem import Problem, errors_as_problem
from pcopy.fsio.retries import call_with_retries
from pcopy.tasks.base.rank import Rank
from pcopy.walk.visitor import VISITOR_COLUMNS

PROPERTIES = ("type", "size", "mtime", "mode", "owner", "acl", "xattr", "content")
"""Names of the properties as the user writes them, in the order of their bits, the lowest first."""

TYPE, SIZE, MTIME, MODE, OWNERSHIP, ACL, XATTR, CONTENT = (1 << at for at in range(len(PROPERTIES)))
"""The bits of the properties."""

ONLY_A, ONLY_B = 1 << 8, 1 << 9
"""Values in place of the bits of the differing properties, for an item that only the first or only the second side
has.
"""

REPORTS_EQUAL = 1 << 10
"""A bit in the mask of the properties to compare (``CompareOptions.compare``) that is no property: items without any
difference are reported, too.
"""

_PERMISSIONS = 0o7777
"""Mask of the bits of a mode that are compared: permission, set-id and sticky bits."""
_DIFFERS_BY_SIZE = {stat.S_IFREG: SIZE | CONTENT, stat.S_IFLNK: SIZE}
"""For each file type, the properties in which two items differ if their sizes differ."""


_DEVICES = (stat.S_IFCHR, stat.S_IFBLK)
"""File types that have a device number."""


def acls_and_xattrs_to_compare(wanted: int) -> PreservedMetadataKinds:
    """Return which extended attributes are compared: ACLs, others, both or none. ``wanted`` are the bits of the
    properties to compare.
    """
    return PreservedMetadataKinds(xattr=bool(wanted & XATTR), acl=bool(wanted & ACL))


def status_columns_to_compare(wanted: int) -> int:
    """Return the mask of the status columns that are needed to compare the properties ``wanted``."""
    return VISITOR_COLUMNS | (OWNER_COLUMN | GROUP_COLUMN if wanted & OWNERSHIP else 0)


class ItemPairs(NamedTuple):
    """Items that both sides have, to be compared; a row is one item. Each field is a pair, with a value for each side:
    the open ``directories``, the ``names`` of the items, and their statuses (``rows``).

    In errors that occurred on the first side, ``Problem.on_source`` is true.
    """

    directories: tuple[int, int]
    names: tuple[list[bytes], list[bytes]]
    rows: tuple[ItemStatusColumns, ItemStatusColumns]

    def status(self, side: int, row: int) -> os.stat_result:
        """Stat the item in row ``row`` again on the side ``side``. Raise ``Problem`` if that fails."""
        with errors_as_problem("stat", on_source=not side):
            return call_with_retries(
                lambda: os.stat(self.names[side][row], dir_fd=self.directories[side], follow_symlinks=False)
            )

    def link_text(self, side: int, row: int) -> bytes:
        """Return the text (target) of the symbolic link in row ``row`` on the side ``side``. Raise ``Problem`` if it
        cannot be read.
        """
        with errors_as_problem("readlink", on_source=not side):
            return call_with_retries(lambda: os.readlink(self.names[side][row], dir_fd=self.directories[side]))

    def path_in_proc(self, side: int, row: int) -> bytes:
        """Return a path through /proc/self/fd that leads to the item in row ``row`` on the side ``side``, for calls
        that take only paths.
        """
        return b"/proc/self/fd/%d/%b" % (self.directories[side], self.names[side][row])


def status_differences(pairs: ItemPairs, wanted: int, window: int) -> tuple[bytearray, dict[int, Problem]]:
    """Compare the statuses of all pairs. Return the bits of the properties in which each pair differs, and the errors
    by row.

    Args:
        wanted: bits of the properties to compare.
        window: seconds by which mtimes may differ; 0 compares nanoseconds.
    """
    first, second = pairs.rows
    bits = bytearray(len(first))
    problems: dict[int, Problem] = {}
    _compare_modes(pairs, bits, wanted)
    if wanted & (SIZE | CONTENT):
        for row in _differing_rows(first.size, second.size):
            kind = stat.S_IFMT(first.mode[row])
            bits[row] |= wanted & _DIFFERS_BY_SIZE.get(kind, 0)
    if wanted & MTIME:
        _compare_times(pairs, bits, window)
    if wanted & OWNERSHIP:
        for row in {*_differing_rows(first.uid, second.uid), *_differing_rows(first.gid, second.gid)}:
            bits[row] |= OWNERSHIP
    _compare_devices_and_links(pairs, bits, wanted, problems)
    for row in [row for row, found in enumerate(bits) if found & TYPE] if any(bits) else ():
        bits[row] = TYPE
    return bits, problems


def _compare_modes(pairs: ItemPairs, bits: bytearray, wanted: int) -> None:
    """Compare the file types and modes of all pairs. In ``bits``, set the bits TYPE and MODE of each pair that differs;
    ``wanted`` are the properties to compare.
    """
    first, second = (rows.mode for rows in pairs.rows)
    for row in _differing_rows(first, second):
        mode, other = first[row], second[row]
        if stat.S_IFMT(mode) != stat.S_IFMT(other):
            bits[row] = TYPE
        elif (mode ^ other) & _PERMISSIONS and not stat.S_ISLNK(mode):
            bits[row] |= wanted & MODE


def _differing_rows(one: Sequence[int], other: Sequence[int]) -> Iterable[int]:
    """Return the rows in which the columns ``one`` and ``other`` have different values."""
    return () if one == other else compress(count(), map(ne, one, other))


def _compare_times(pairs: ItemPairs, bits: bytearray, window: int) -> None:
    """Compare the mtimes of all pairs. In ``bits``, set the bit MTIME of each pair that differs by more than ``window``
    seconds.
    """
    first, second = (rows.exact_times_in_column("mtime") for rows in pairs.rows)
    for row in _differing_rows(first, second):
        if abs(first[row] - second[row]) > window * 10**9:
            bits[row] |= MTIME


def _compare_devices_and_links(pairs: ItemPairs, bits: bytearray, wanted: int, problems: dict[int, Problem]) -> None:
    """Compare device numbers and the texts of symbolic links. In ``bits``, set the bits of each pair that differs; add
    errors to ``problems``, by row. ``wanted`` are the properties to compare.
    """
    modes = pairs.rows[0].mode
    kinds = set(map(stat.S_IFMT, set(modes)))
    if kinds.isdisjoint((*_DEVICES, stat.S_IFLNK)):
        return
    for row, mode in enumerate(modes):
        if bits[row] & TYPE:
            continue
        try:
            if stat.S_IFMT(mode) in _DEVICES:
                one, other = (pairs.status(side, row).st_rdev for side in (0, 1))
                bits[row] |= TYPE if one != other else 0
            elif stat.S_ISLNK(mode) and wanted & CONTENT:
                bits[row] |= CONTENT if pairs.link_text(0, row) != pairs.link_text(1, row) else 0
        except Problem as problem:
            problems[row] = problem


def compare_attributes(
    rank: Rank, pairs: ItemPairs, bits: bytearray, rows: Sequence[int], wanted: int, problems: dict[int, Problem]
) -> TicketGenerator[None]:
    """Compare the ACLs and extended attributes of the pairs in ``rows``. In ``bits``, set the bits ACL and XATTR of
    each pair that differs; add errors to ``problems``, by row. ``wanted`` are the properties to compare.
    """
    first_names, second_names = (pack_names(map(each.__getitem__, rows)) for each in pairs.names)
    batch = CompareXattrsBatch(pairs.directories[0], first_names, pairs.directories[1], second_names)
    codes = (yield from rank.execute_batch(batch)).verdicts.codes
    preserve = acls_and_xattrs_to_compare(wanted)
    for row, code in zip(rows, codes, strict=True):
        if code != OutcomeCode.DONE:
            try:
                bits[row] |= _differing_attribute_bits(pairs, row, preserve)
            except Problem as problem:
                problems[row] = problem
            yield None


def _differing_attribute_bits(pairs: ItemPairs, row: int, preserve: PreservedMetadataKinds) -> int:
    """Return the bit ACL if the ACLs of the pair in ``row`` differ, and XATTR if other extended attributes do; both
    bits or 0 are possible. ``preserve`` says which of them are compared. Raise ``Problem`` if attributes cannot be
    read.
    """
    first, second = (_compared_xattrs(pairs, side, row, preserve) for side in (0, 1))
    bits = 0
    for name in first | second:
        if name == SELINUX_XATTR and name not in first:
            continue
        if (
            name not in first
            or name not in second
            or _xattr_value(pairs, 0, row, name) != _xattr_value(pairs, 1, row, name)
        ):
            bits |= ACL if xattr_kind(name) is XattrKind.ACL else XATTR
    return bits


def _compared_xattrs(pairs: ItemPairs, side: int, row: int, preserve: PreservedMetadataKinds) -> set[str]:
    """Return the names of those extended attributes that are compared (as ``preserve`` says) of the item in ``row`` on
    one side. Raise ``Problem`` if they cannot be listed.
    """
    try:
        names = call_with_retries(lambda: os.listxattr(pairs.path_in_proc(side, row), follow_symlinks=False))
    except OSError as error:
        if error.errno in XATTR_UNSUPPORTED_ERRNOS:
            return set()
        raise Problem.from_error("listxattr", error, on_source=not side) from error
    return {name for name in names if is_xattr_copied(name, preserve)}


def _xattr_value(pairs: ItemPairs, side: int, row: int, name: str) -> bytes:
    """Return the value of the extended attribute ``name`` of the item in ``row`` on one side. Raise ``Problem`` if it
    cannot be read.
    """
    with errors_as_problem(f"getxattr {name}", on_source=not side):
        return call_with_retries(lambda: os.getxattr(pairs.path_in_proc(side, row), name, follow_symlinks=False))
