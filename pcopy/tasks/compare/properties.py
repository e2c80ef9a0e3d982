"""Properties that are compared of an item that both sides have, one bit each.

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

from pcopy.engine.ticket import Stepwise
from pcopy.fsio.attribute_names import SELINUX, Kind, kind_of
from pcopy.fsio.attributes import NO_ATTRIBUTES, is_copied
from pcopy.fsio.kernel.batches import Compare
from pcopy.fsio.kernel.columns import GROUP, OWNER, Code, Rows, pack_names
from pcopy.fsio.patience import patiently
from pcopy.fsio.preserve import Preserve
from pcopy.fsio.problem import Problem, failing
from pcopy.named import NamedTuple
from pcopy.tasks.base.rank import Rank
from pcopy.walk.visitor import LOOKED_AT

PROPERTIES = ("type", "size", "mtime", "mode", "owner", "acl", "xattr", "content")
"""Names of the properties in the order of their bits, the lowest first."""

TYPE, SIZE, MTIME, MODE, OWNED, ACL, XATTR, CONTENT = (1 << at for at in range(len(PROPERTIES)))

ONLY_A, ONLY_B = 1 << 8, 1 << 9
"""Values in place of these bits if only one side has the item."""

TELLS_COMMON = 1 << 10
"""Bit of the wanted properties: items without any difference are reported to rank 0, too."""

_PERMISSIONS = 0o7777
"""Permission bits, including set-id and sticky bits."""
_OF_SIZE = {stat.S_IFREG: SIZE | CONTENT, stat.S_IFLNK: SIZE}
"""Properties in which items of a type differ if their sizes differ."""


_DEVICES = (stat.S_IFCHR, stat.S_IFBLK)


def preserve_of(wanted: int) -> Preserve:
    """Return which attributes the backend must compare."""
    return Preserve(xattr=bool(wanted & XATTR), acl=bool(wanted & ACL))


def columns_of(wanted: int) -> int:
    """Return the mask of the columns of a status that are needed."""
    return LOOKED_AT | (OWNER | GROUP if wanted & OWNED else 0)


class Pairs(NamedTuple):
    """Items that both sides have, one per row, in two open ``directories``, with ``names`` and statuses (``rows``) on
    each side.

    A ``Problem`` with ``on_source`` was met on the first side.
    """

    directories: tuple[int, int]
    names: tuple[list[bytes], list[bytes]]
    rows: tuple[Rows, Rows]

    def status(self, side: int, row: int) -> os.stat_result:
        """Stat the item of a row again; raise ``Problem``."""
        with failing("stat", on_source=not side):
            return patiently(
                lambda: os.stat(self.names[side][row], dir_fd=self.directories[side], follow_symlinks=False)
            )

    def text(self, side: int, row: int) -> bytes:
        """Return the text of a symbolic link; raise ``Problem``."""
        with failing("readlink", on_source=not side):
            return patiently(lambda: os.readlink(self.names[side][row], dir_fd=self.directories[side]))

    def path(self, side: int, row: int) -> bytes:
        """Return a path that leads to the item through /proc/self/fd."""
        return b"/proc/self/fd/%d/%b" % (self.directories[side], self.names[side][row])


def differences(pairs: Pairs, wanted: int, window: int) -> tuple[bytearray, dict[int, Problem]]:
    """Compare the statuses of all pairs; return the bits of each row, and the problems by row.

    Args:
        wanted: bits of the properties to compare.
        window: seconds by which mtimes may differ; 0 compares nanoseconds.
    """
    first, second = pairs.rows
    bits = bytearray(len(first))
    problems: dict[int, Problem] = {}
    _compare_modes(pairs, bits, wanted)
    if wanted & (SIZE | CONTENT):
        for row in _others(first.size, second.size):
            kind = stat.S_IFMT(first.mode[row])
            bits[row] |= wanted & _OF_SIZE.get(kind, 0)
    if wanted & MTIME:
        _compare_times(pairs, bits, window)
    if wanted & OWNED:
        for row in {*_others(first.uid, second.uid), *_others(first.gid, second.gid)}:
            bits[row] |= OWNED
    _compare_nodes(pairs, bits, wanted, problems)
    for row in [row for row, found in enumerate(bits) if found & TYPE] if any(bits) else ():
        bits[row] = TYPE
    return bits, problems


def _compare_modes(pairs: Pairs, bits: bytearray, wanted: int) -> None:
    first, second = (rows.mode for rows in pairs.rows)
    for row in _others(first, second):
        mode, other = first[row], second[row]
        if stat.S_IFMT(mode) != stat.S_IFMT(other):
            bits[row] = TYPE
        elif (mode ^ other) & _PERMISSIONS and not stat.S_ISLNK(mode):
            bits[row] |= wanted & MODE


def _others(one: Sequence[int], other: Sequence[int]) -> Iterable[int]:
    """Return the rows in which two columns differ."""
    return () if one == other else compress(count(), map(ne, one, other))


def _compare_times(pairs: Pairs, bits: bytearray, window: int) -> None:
    first, second = (rows.times("mtime") for rows in pairs.rows)
    for row in _others(first, second):
        if abs(first[row] - second[row]) > window * 10**9:
            bits[row] |= MTIME


def _compare_nodes(pairs: Pairs, bits: bytearray, wanted: int, problems: dict[int, Problem]) -> None:
    """Compare device numbers and the texts of symbolic links."""
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
                bits[row] |= CONTENT if pairs.text(0, row) != pairs.text(1, row) else 0
        except Problem as problem:
            problems[row] = problem


def compare_attributes(
    rank: Rank, pairs: Pairs, bits: bytearray, rows: Sequence[int], wanted: int, problems: dict[int, Problem]
) -> Stepwise[None]:
    """Compare the ACLs and extended attributes of some ``rows``; add their bits, and the problems by row."""
    first_names, second_names = (pack_names(map(each.__getitem__, rows)) for each in pairs.names)
    batch = Compare(pairs.directories[0], first_names, pairs.directories[1], second_names)
    codes = (yield from rank.done(batch)).verdicts.codes
    preserve = preserve_of(wanted)
    for row, code in zip(rows, codes, strict=True):
        if code != Code.DONE:
            try:
                bits[row] |= _attributes_differ(pairs, row, preserve)
            except Problem as problem:
                problems[row] = problem
            yield None


def _attributes_differ(pairs: Pairs, row: int, preserve: Preserve) -> int:
    """Return the bits ACL and XATTR if the attributes of the row differ; raise ``Problem``."""
    first, second = (_listed(pairs, side, row, preserve) for side in (0, 1))
    bits = 0
    for name in first | second:
        if name == SELINUX and name not in first:
            continue
        if name not in first or name not in second or _value(pairs, 0, row, name) != _value(pairs, 1, row, name):
            bits |= ACL if kind_of(name) is Kind.ACL else XATTR
    return bits


def _listed(pairs: Pairs, side: int, row: int, preserve: Preserve) -> set[str]:
    """Return the names of the extended attributes that are compared; raise ``Problem``."""
    try:
        names = patiently(lambda: os.listxattr(pairs.path(side, row), follow_symlinks=False))
    except OSError as error:
        if error.errno in NO_ATTRIBUTES:
            return set()
        raise Problem.of("listxattr", error, on_source=not side) from error
    return {name for name in names if is_copied(name, preserve)}


def _value(pairs: Pairs, side: int, row: int, name: str) -> bytes:
    """Return the value of one extended attribute; raise ``Problem``."""
    with failing(f"getxattr {name}", on_source=not side):
        return patiently(lambda: os.getxattr(pairs.path(side, row), name, follow_symlinks=False))
