"""What would be there if an archive were unpacked into an empty directory, as one process finds it for ``ptar -t``.

The names are compared by the functions that ``ptar -x`` uses
(``pcopy.tasks.archive.names``), so both reject the same members.
"""

from __future__ import annotations

import marshal
import os
from collections.abc import Callable, Iterator
from typing import BinaryIO

from pcopy.archive.member import LINK, NumberPairs, safe_path
from pcopy.archive.reader import FoundMember
from pcopy.fsio.problem import Problem
from pcopy.named import NamedTuple
from pcopy.signature.sorting import ExternalSorter
from pcopy.tasks.archive.names import (
    LinkRival,
    NameRecords,
    RivalName,
    Rivals,
    by_directory,
    compared,
    followed,
    link_trouble,
)
from pcopy.tasks.archive.to_unpack import ToUnpack, key_of, packed_at

_AT_ONCE = 1024
"""Members that are handed on together."""


class LastMember(NamedTuple):
    """A member that no later one takes the place of. The size in ``item`` is that of its data in the archive.

    ``problem``: why it cannot be unpacked, or "". ``copied``: it is a hard link to the member of this name at this
    place, and a later member takes the name. Other hard links refer to names of members that are none.
    """

    item: ToUnpack
    problem: str
    copied: tuple[bytes, int] | None

    @property
    def path(self) -> bytes:
        """Where it would be unpacked to."""
        return os.path.join(self.item.path, self.item.name) if self.item.name else self.item.path


class ArchiveTree:
    """Takes the members of an archive; then it knows those that are there in the end, and which ones fail."""

    def __init__(self, open_spool: Callable[[], BinaryIO]) -> None:
        self._open_spool = open_spool
        self._members, self._marks, self._links = (ExternalSorter(open_spool) for _ in range(3))
        self._records = NameRecords(1)
        self._number = 0

    def add(self, found: FoundMember, trouble: str) -> None:
        """Add a member that is not refused; ``trouble``: why it fails if no later one has its name. Raises
        ``OSError``."""
        path = safe_path(found.member.name)
        member = found.member._replace(xattrs=(), extents=None, size=found.stored, user=b"")
        self._records.add(path, member, found.data, packed_at(path, member, found.data, trouble))
        self._number += 1
        if self._number % _AT_ONCE == 0:
            self._hand_on()

    def _hand_on(self) -> None:
        for sorter, records in ((self._members, self._records.members), (self._marks, self._records.marks)):
            sorter.extend(records[0])
        self._records = NameRecords(1)

    def last_members(self) -> Iterator[LastMember]:
        """Yield the members that no later one takes the place of. Raises ``OSError``."""
        self._hand_on()
        rivals = self._compare()
        for found in by_directory(self._members.sorted(), _AT_ONCE):
            for value in found.values:
                each = ToUnpack.unpacked(value)
                try:
                    if not rivals.refuse(each):
                        problem = link_trouble(each, rivals) if each.member.kind == LINK else each.trouble
                        yield LastMember(each, problem, marshal.loads(each.member.user) if each.member.user else None)
                except Problem as refused:
                    yield LastMember(each, refused.strerror or "", None)

    def _compare(self) -> Rivals:
        rivals = Rivals()
        for rival in compared(self._members.sorted(), self._marks.sorted()):
            if isinstance(rival, RivalName):
                rivals[rival.path] = NumberPairs.unpacked(rival.stretches)
            elif isinstance(rival, LinkRival):
                self._links.add(*rival.record)
        with self._open_spool() as spool:
            for meaning in followed(self._links.sorted(), spool):
                if meaning is not None:
                    at, each, copied = meaning
                    # Records hold members only: the name of the owner, which is not needed here, carries ``copied``.
                    each = each._replace(member=each.member._replace(user=marshal.dumps(copied) if copied else b""))
                    self._members.add(key_of(each.path, each.name, at | 1), each.packed())
        return rivals

    def close(self) -> None:
        for sorter in (self._members, self._marks, self._links):
            sorter.close()
