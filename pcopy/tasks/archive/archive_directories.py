"""``ArchiveDirectories`` describes directories with everything below them as members of an archive (``ptar -c``).

The backend describes subtrees that contain nothing but directories and simple files, many in one call
(``DescribeMembersBatch``). Everything else is left to the slow path: ``ScanDirs`` and the visitor.
"""

from __future__ import annotations

import errno
import marshal
import zlib
from collections.abc import Iterator, Sequence

from pcopy.archive.headers import fits_name_field
from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.backend.columns import pack_names, unpack_names
from pcopy.fsio.backend.member_batches import DescribeMembersBatch, DescribeMembersResult
from pcopy.fsio.problem import Problem
from pcopy.tasks.archive.descriptions import MIN_SPARSE_SIZE, MemberDescriber
from pcopy.tasks.archive.member_records import DescribedMembersNote
from pcopy.tasks.archive.pieces import PIECE_BYTES, PIECE_MEMBERS
from pcopy.tasks.archive.readable import ReadPermissions
from pcopy.tasks.archive.tree_members import record_of_tree_members
from pcopy.tasks.base import counts
from pcopy.tasks.base.job import ArchiveOptions
from pcopy.tasks.base.kind import DivisibleTask, TaskSteps
from pcopy.tasks.base.rank import SCAN_COST, Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.sibling_directories import Siblings, directory_slices_per_task
from pcopy.tasks.base.tree_walk import TreeWalk, may_enter_subtrees, problem_of_other_directory, walk_rows
from pcopy.tasks.base.values import Place, unpack_numbers
from pcopy.tasks.directories.scan_dir import ScanNames

DIRECTORIES_PER_GROUP = 32
"""Of this number of directories, about one begins a group. The backend begins a piece of the archive there, and tasks
are divided there, so that pieces are the same in each run.
"""


class ArchiveDirectories(DivisibleTask, code=158, doing="scanning", is_note=False):
    """Task that describes the directories ``names`` (joined by slashes) of ``place`` with everything below them.
    ``inodes`` are their inode numbers (8 bytes each).

    The names are sorted. If ``is_apart`` is false, no other directory of ``place`` belongs between them.
    """

    inodes: bytes
    is_apart: bool

    columns = ("inodes",)
    min_items_per_portion = 1 << 30  # it is not divided: the division of its members into pieces would depend on that
    estimated_operations = 0

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        walk = _DescriptionWalk(rank, result, self.place if self.is_apart else None)
        names, inodes = unpack_names(self.names), unpack_numbers(self.inodes)
        walk.put_back(Siblings(self.place, names, inodes, are_visited=False))
        yield from walk.enter_directories_while_others_work()


class _DescriptionWalk(TreeWalk):
    """The visitor of ``ptar -c``: it describes directories and everything below them.

    ``apart`` is the directory whose subdirectories may not be all that belong between them in the archive.
    """

    may_divide_siblings = False  # the division into pieces would depend on it

    def __init__(self, rank: Rank, result: TaskResult, apart: Place | None) -> None:
        super().__init__(rank, result)
        self._apart = apart
        self._describing = rank.shared_instance(MemberDescriber)

    def may_be_rows(self, found: Siblings) -> bool:
        return can_archive_subtrees(self._rank, found.parent)

    def open_parent(self, parent: Place) -> Sequence[int]:
        """Return the descriptor of a directory. Raise ``Problem`` if it cannot be opened, and with ENOTSUP if the
        backend cannot describe its items: then the slow path does.
        """
        rank, directories = self._rank, super().open_parent(parent)
        device = rank.source_device(parent)
        if (
            device is None
            or rank.mover.generated_file_systems.is_on_pseudo_file_system(directories[0], device)
            or rank.shared_instance(ReadPermissions).reads_all_files(device, directories[0]) is None
        ):
            raise Problem("open", errno.ENOTSUP, on_source=True)
        return directories

    def process_in_backend(self, found: Siblings, directories: Sequence[int]) -> TicketGenerator[DescribeMembersResult]:
        rank, parent, describing = self._rank, found.parent, self._describing
        device = rank.source_device(parent) or 0
        batch = DescribeMembersBatch(
            *walk_rows(rank, directories[0], device, found),
            describing.archive_name_prefix(parent),
            [*describing.known_owners],
            MIN_SPARSE_SIZE - 1,
            bool(rank.shared_instance(ReadPermissions).reads_all_files(device, directories[0])),
            parent == self._apart,
            PIECE_MEMBERS,
            PIECE_BYTES,
        )
        described = yield from rank.execute_batch(batch)
        self._count_and_send(parent, described)
        return described

    def process_remaining_items(self, found: Siblings) -> TaskSteps:
        """Leave directories that are not simple to the slow path."""
        return self.visit_directories(found)

    def spawn_tasks(self, found: Siblings) -> None:
        spawn_archive_tasks(self._rank, self._result, found, is_apart=found.parent == self._apart)

    def _count_and_send(self, parent: Place, found: DescribeMembersResult) -> None:
        """Count what the backend has described below ``parent``, and send it to the rank that lays it out: that is this
        one, except for a compressed archive.
        """
        rank, result, sums = self._rank, self._result, found.counts
        result.count(counts.FOUND, sums.other_items)
        result.count_excluded_items(sums.excluded)
        result.count(counts.FOUND_BYTES, sums.bytes)
        result.count(counts.DIRECTORIES, sums.directories)
        prefix = self._describing.archive_name_prefix(parent)
        records = [
            record_of_tree_members(parent.root, parent.path, prefix, piece, self._describing.known_owners)
            for piece in found.pieces()
        ]
        if records:
            owner = 0 if rank.program_options(ArchiveOptions).compress_as else rank.number
            result.spawn_task(DescribedMembersNote(marshal.dumps(records)), owner=owner)

    def visit_directories(self, found: Siblings) -> TaskSteps:
        """Pass directories to the visitor, which describes them and spawns tasks that scan them. If another directory
        has taken the name of one, this is reported.
        """
        parent, names = found.parent, list[bytes]()
        for name, inode in zip(found.names, found.inodes, strict=True):
            if (problem := problem_of_other_directory(self._rank, parent, name, inode)) is None:
                names.append(name)
            else:
                self._result.count_item_as_failed(parent, name, problem)
        if names:  # they were counted as found before
            yield from ScanNames(parent, pack_names(names), 1).run(self._rank, self._result)


def can_archive_subtrees(rank: Rank, place: Place) -> bool:
    """Return True if the backend may describe sub-directories of ``place`` with everything below them. That is so if
    items need no look in Python (no digest, no limit of age or size) and are not counted against a limit, if no file
    system is known to be mounted at ``place`` or below, and if names in it may be short enough for a header.
    """
    return (
        may_enter_subtrees(rank, (rank.sources[place.root], place.path))
        and not (rank.computes_digests or rank.collects_signature_entries)
        and not rank.job.roots[place.root].item
        and fits_name_field(rank.shared_instance(MemberDescriber).archive_name_prefix(place) + b"x/")
    )


def spawn_archive_tasks(rank: Rank, result: TaskResult, found: Siblings, *, is_apart: bool) -> None:
    """Spawn tasks that describe the directories ``found``, which are sorted by name, with everything below them.
    ``is_apart`` is the field of ``ArchiveDirectories``.
    """
    prefix = rank.shared_instance(MemberDescriber).archive_name_prefix(found.parent)
    for share in _slices_of_groups(rank, prefix, found.names):
        task = ArchiveDirectories(*found.part(share.start, share.stop).packed(), is_apart)
        result.spawn_task(task, task.item_count * SCAN_COST, expands=True)


def _slices_of_groups(rank: Rank, prefix: bytes, names: Sequence[bytes]) -> Iterator[slice]:
    """Divide directories among tasks: yield slices of ``names``, each of whole groups (``DIRECTORIES_PER_GROUP``).

    ``prefix`` is what stands before the names in the archive.
    """
    ends, start = {share.stop for share in directory_slices_per_task(rank, len(names))}, 0
    is_due = False
    for row, name in enumerate(names):
        is_due = is_due or row in ends
        if is_due and zlib.crc32(b"%b%b/" % (prefix, name)) % DIRECTORIES_PER_GROUP == 0:
            yield slice(start, row)
            start, is_due = row, False
    if start < len(names):
        yield slice(start, len(names))
