"""Records of members of an archive that is created, and the ranks that lay them out: a record describes an item, or
many.

``DescribedMembersNote`` carries records. The names of an inode with several hard links are first sent to one rank
(``GroupLinkNames``): the first of them in the order of the archive becomes the file, the others become links to it.

To lay out members is to determine the order of the members in the archive and the offset of each.
"""

from __future__ import annotations

import marshal
import zlib
from array import array
from collections import defaultdict
from collections.abc import Iterator

from pcopy.signature.sorting import ExternalSorter, SortRecord
from pcopy.tasks.archive.descriptions import (
    ItemToArchive,
    description_as_hard_link,
    directory_part_of_key,
    unpack_item_to_archive,
)
from pcopy.tasks.archive.simple_files import holds_simple_files, unpack_simple_files
from pcopy.tasks.base import counts
from pcopy.tasks.base.job import ArchiveOptions
from pcopy.tasks.base.kind import TaskSteps, TaskWithoutDirectory
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult

_LAYOUT_SORT_BYTES = 16 << 20
"""Bytes of memory in which a rank sorts members of an archive that is created. If they take more, they are spilled to a
temporary file.
"""
MAX_SIMPLE_BYTES = 8 << 20
"""Bytes of records of simple files (regular files without xattrs, links and holes) of one directory that are kept in
packed form, many files in one record. Further files become one record each.
"""
_DIRECTORY_GROUPS = 1 << 14
"""Number of groups into which directories are hashed. The bytes of simple files in packed form (``MAX_SIMPLE_BYTES``)
are counted for each group. With so many groups, a small directory seldom is in the same group as a large one.
"""
_LINKS_PER_NOTE = 512
"""Number of links that are sent in one message."""


def rank_laying_out_members(rank: Rank, root: int, path: bytes) -> int:
    """Return the number of the rank that lays out the members of a directory, that is, determines their order and
    offsets in the archive. ``path`` is the directory below the PATH number ``root`` of the command line.

    Rank 0 lays out all members of a compressed archive.
    """
    return 0 if rank.program_options(ArchiveOptions).compress_as else zlib.crc32(path, root) % rank.size


class MembersToLayOut:
    """The members whose order and offsets in the archive this rank determines, sorted by key (the order of the
    archive).
    """

    def __init__(self, rank: Rank) -> None:
        self.members = ExternalSorter(rank.open_spool, _LAYOUT_SORT_BYTES)
        self.linked_names = ExternalSorter(rank.open_spool, _LAYOUT_SORT_BYTES)
        """Names of inodes with several hard links, sorted by inode."""
        self.has_linked_names = False
        """True once any such name was received: then ``GroupLinkNames`` was spawned."""
        self._simple_bytes = array("Q", [0]) * _DIRECTORY_GROUPS

    def add_record(self, key: bytes, value: bytes) -> None:
        """Add the record of a member, or of many simple files.

        A record of many simple files is split into one record per file if its directory has too many. Otherwise all
        files of such a directory would be in memory at the same time.
        """
        if holds_simple_files(value):
            bucket = zlib.crc32(directory_part_of_key(key)) % _DIRECTORY_GROUPS
            self._simple_bytes[bucket] += len(value)
            if self._simple_bytes[bucket] > MAX_SIMPLE_BYTES:
                files = unpack_simple_files(value)
                for row in range(len(files)):
                    self.members.add(*files.file_description_in_row(row).record_for_sorting)
                return
        self.members.add(key, value)

    def close(self) -> None:
        """Close the sorters and their temporary files."""
        self.members.close()
        self.linked_names.close()


class DescribedMembersNote(TaskWithoutDirectory, code=130, doing="gathering members"):
    """Message to the rank that lays out members, with packed descriptions of them.

    If ``is_linked`` is true, the descriptions are names of inodes with several hard links, and their keys begin with
    the inode. The receiving rank first collects all names of each inode.
    """

    records: bytes
    is_linked: bool = False

    def run(self, rank: Rank, result: TaskResult) -> None:
        laid = rank.shared_instance(MembersToLayOut)
        if self.is_linked and not laid.has_linked_names:
            laid.has_linked_names = True
            result.spawn_task(GroupLinkNames(), phase=Phase.LINK, owner=rank.number)
        if self.is_linked:
            for record in marshal.loads(self.records):
                laid.linked_names.add(*record)
            return
        for key, value in marshal.loads(self.records):
            laid.add_record(key, value)


class GroupLinkNames(TaskWithoutDirectory, code=132, doing="finding hard links", is_note=False):
    """Task of a rank that has received names of inodes with several hard links.

    The first name of each inode becomes the file, the others become links to it.
    """

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        laid = rank.shared_instance(MembersToLayOut)
        records: defaultdict[int, list[SortRecord]] = defaultdict(list)
        for number, (owner, record) in enumerate(self._records_grouped_by_inode(rank, laid.linked_names, result)):
            records[owner].append(record)
            if number % _LINKS_PER_NOTE == _LINKS_PER_NOTE - 1:
                _send_records(result, records)
                yield None
        _send_records(result, records)
        laid.linked_names.close()

    def _records_grouped_by_inode(
        self, rank: Rank, names: ExternalSorter, result: TaskResult
    ) -> Iterator[tuple[int, SortRecord]]:
        """Generator: yield each of ``names``, which are sorted by inode, as a record, together with the number of the
        rank that owns its directory. The first name of an inode stays a file; the others become links to it.
        """
        first: ItemToArchive | None = None
        inode, others = b"", list[tuple[bytes, bytes]]()
        for key, value in names.sorted():
            described = unpack_item_to_archive(value)
            if first is not None and key[:32] == inode:
                if described.member.name == first.member.name:  # the user has given the same PATH twice
                    result.count(counts.SKIPPED)
                    continue
                others.append((described.path, described.name))
                yield _record_with_owning_rank(rank, description_as_hard_link(described, first))
                continue
            if first is not None:
                yield _record_with_owning_rank(
                    rank, first._replace(names=tuple(others) if rank.collects_signature_entries else ())
                )
            first, inode, others = described, key[:32], []
        if first is not None:
            yield _record_with_owning_rank(
                rank, first._replace(names=tuple(others) if rank.collects_signature_entries else ())
            )


def _record_with_owning_rank(rank: Rank, described: ItemToArchive) -> tuple[int, SortRecord]:
    """Return the number of the rank that owns the directory of ``described``, and the record of ``described``."""
    return rank_laying_out_members(rank, described.root, described.path), described.record_for_sorting


def _send_records(result: TaskResult, records: defaultdict[int, list[SortRecord]]) -> None:
    """Send ``records`` to the ranks that own the directories (the keys of ``records``), and clear them."""
    for owner, some in records.items():
        result.spawn_task(DescribedMembersNote(marshal.dumps(some)), owner=owner)
    records.clear()
