"""The tree that results if an archive is unpacked into an empty directory. One process determines it for ``ptar -t``.

Names are compared by the same functions as in ``ptar -x`` (``pcopy.tasks.archive.names``). So ``ptar -t`` reports as
failed exactly the members that ``ptar -x`` would not unpack because of other members.
"""

from __future__ import annotations

import marshal
import os
from collections.abc import Callable, Iterator
from typing import BinaryIO

from pcopy.archive.member import HARD_LINK_MEMBER, NumberPairs, safe_member_path
from pcopy.archive.reader import FoundMember
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.problem import Problem
from pcopy.signature.sorting import ExternalSorter
from pcopy.tasks.archive.members_to_extract import MemberToExtract, member_sort_key, pack_member
from pcopy.tasks.archive.names import (
    ConflictingNames,
    LinkToResolve,
    NameConflict,
    NameRecords,
    link_problem_text,
    members_by_directory,
    name_conflicts,
    resolved_links,
)

_MEMBERS_PER_BATCH = 1024
"""Number of members whose records are collected in memory before they are passed to the sorters. It is also the maximum
number of members that are read back in one batch.
"""

_NAME_BYTES_PER_BATCH = 2 << 20
"""Bytes of their names at which a batch of members is full: names of deep trees are long."""

_SORT_MEMORY_BYTES = 8 << 20
"""Bytes of memory for each of the three sorters."""


class RemainingMember(NamedTuple):
    """A member that no later member replaces. The size in ``item`` is that of its data in the archive.

    Fields:
    - ``item``: the member as ``ptar -x`` would unpack it, but without its extended attributes and its map of holes.
    - ``problem``: the reason why the member cannot be unpacked, or "".
    - ``link_target``: for a hard link whose target is replaced by a later member: the name and the offset of the
      target, whose contents the link gets. Else None.
    """

    item: MemberToExtract
    problem: str
    link_target: tuple[bytes, int] | None

    @property
    def path(self) -> bytes:
        """The path to which the member would be unpacked."""
        return os.path.join(self.item.path, self.item.name) if self.item.name else self.item.path


class UnpackedTree:
    """Collects all members of an archive (``add_member``). Then yields the members that would remain after unpacking
    (``remaining_members``), each with the reason why it cannot be unpacked, if there is one.

    Members and records of names are sorted in temporary files, which ``open_spool`` opens.
    """

    def __init__(self, open_spool: Callable[[], BinaryIO]) -> None:
        self._open_spool = open_spool
        self._members, self._name_marks, self._links = (
            ExternalSorter(open_spool, _SORT_MEMORY_BYTES) for _ in range(3)
        )
        self._records = NameRecords(1)
        self._number = self._name_bytes = 0

    def add_member(self, found: FoundMember, trouble: str) -> None:
        """Add a member of the archive. Raise ``OSError`` if temporary files cannot be written.

        Args:
            found: a member; the caller has checked that its name stays inside the target
                (``extraction_refusal_reason``).
            trouble: the reason why the member cannot be unpacked, or "". It is reported only if no later member has the
                same path.
        """
        path = safe_member_path(found.member.name)
        member = found.member._replace(xattrs=(), extents=None, size=found.stored, user=b"")
        self._records.add_member(path, member, found.data, pack_member(path, member, found.data, trouble))
        self._number += 1
        self._name_bytes += len(path)
        if self._number % _MEMBERS_PER_BATCH == 0 or self._name_bytes >= _NAME_BYTES_PER_BATCH:
            self._pass_records_to_sorters()

    def _pass_records_to_sorters(self) -> None:
        """Pass the records of members that were collected in memory to the sorters, which may write them to temporary
        files.
        """
        for sorter, records in ((self._members, self._records.members), (self._name_marks, self._records.marks)):
            sorter.extend(records[0])
        self._records, self._name_bytes = NameRecords(1), 0

    def remaining_members(self) -> Iterator[RemainingMember]:
        """Yield the members that no later member replaces. Raise ``OSError`` if temporary files cannot be read or
        written.
        """
        self._pass_records_to_sorters()
        rivals = self._conflicting_names()
        for found in members_by_directory(self._members.sorted(), _MEMBERS_PER_BATCH):
            for value in found.values:
                each = MemberToExtract.unpack(value)
                try:
                    if not rivals.is_superseded(each):
                        problem = (
                            link_problem_text(each, rivals)
                            if each.member.kind == HARD_LINK_MEMBER
                            else each.problem_text
                        )
                        yield RemainingMember(
                            each, problem, marshal.loads(each.member.user) if each.member.user else None
                        )
                except Problem as refused:
                    yield RemainingMember(each, refused.strerror or "", None)

    def _conflicting_names(self) -> ConflictingNames:
        """Compare the names of all members, and return the conflicts: which members cannot exist together with others,
        or are replaced by later ones.

        Also add to the members the hard links: it is known now to which member each of them leads.
        """
        rivals = ConflictingNames()
        for rival in name_conflicts(self._members.sorted(), self._name_marks.sorted()):
            if isinstance(rival, NameConflict):
                rivals[rival.path] = NumberPairs.from_bytes(rival.stretches)
            elif isinstance(rival, LinkToResolve):
                self._links.add(*rival.record_for_sorting)
        with self._open_spool() as spool:
            for meaning in resolved_links(self._links.sorted(), spool):
                if meaning is not None:
                    at, each, copied = meaning
                    # A record can hold a member only. So ``copied`` (name and offset of the member whose contents the
                    # link gets) is stored in the field ``user``, which is not needed here.
                    each = each._replace(member=each.member._replace(user=marshal.dumps(copied) if copied else b""))
                    self._members.add(member_sort_key(each.path, each.name, at | 1), each.pack_as_bytes())
        return rivals

    def close(self) -> None:
        """Release the temporary files."""
        for sorter in (self._members, self._name_marks, self._links):
            sorter.close()
