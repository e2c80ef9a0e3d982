"""``ArchiveDirectories`` describes directories with everything below them as members of an archive (``ptar -c``).

The backend describes subtrees that contain nothing but directories and simple files, many in one call
(``DescribeMembersBatch``). Everything else is left to the slow path: ``ScanDirs`` and the visitor.
"""

from __future__ import annotations

import marshal
import time
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence

from pcopy.archive.headers import fits_name_field
from pcopy.engine.ticket import TicketGenerator
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.backend.batches import ALL_LEVELS, MAX_NAMES_IN_ROW
from pcopy.fsio.backend.columns import OutcomeCode, pack_names, unpack_names
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
from pcopy.tasks.base.sibling_directories import (
    MAX_TASK_SECONDS,
    call_deadline,
    directory_slices_per_task,
    should_task_continue,
)
from pcopy.tasks.base.tree_walk import directory_below, may_enter_subtrees, problem_of_other_directory
from pcopy.tasks.base.values import Place, pack_numbers, unpack_numbers
from pcopy.tasks.files.existing import owner_columns_if_needed
from pcopy.walk.visitor import stat_and_visit_names

DIRECTORIES_PER_GROUP = 32
"""Of this number of directories, about one begins a group. The backend begins a piece of the archive there, and tasks
are divided there, so that pieces are the same in each run.
"""
_NOT_BEGUN, _NOT_SIMPLE = b"dm"
"""Letters of directories that the backend has not described (``DescribeMembersBatch``)."""


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
        tree = _TreeDescriber(rank, result)
        tree.add(_Directories(self.place, unpack_names(self.names), unpack_numbers(self.inodes), self.is_apart))
        yield from tree.describe_directories_while_others_work()


class _Directories(NamedTuple):
    """Directories of ``parent`` that are not described yet: their names, sorted, and their inode numbers. ``is_apart``
    is the field of ``ArchiveDirectories``.
    """

    parent: Place
    names: Sequence[bytes]
    inodes: Sequence[int]
    is_apart: bool


class _TreeDescriber:
    """Describes the directories of one task, and those below them, while all other ranks have work, too. For the
    remaining directories it spawns tasks.
    """

    def __init__(self, rank: Rank, result: TaskResult) -> None:
        self._rank = rank
        self._result = result
        self._remaining: list[_Directories] = []
        self._describing = rank.shared_instance(MemberDescriber)
        self._deadline = time.monotonic() + MAX_TASK_SECONDS

    def add(self, group: _Directories) -> None:
        """Add directories to be described."""
        if group.names:
            self._remaining.append(group)

    def describe_directories_while_others_work(self) -> TaskSteps:
        """Describe directories while all other ranks have work. Then spawn tasks for the remaining directories."""
        has_begun = False
        while self._remaining and (not has_begun or should_task_continue(self._rank, self._deadline)):
            has_begun = True
            group = self._remaining.pop()
            slow: Iterable[tuple[bytes, int]] = zip(group.names, group.inodes, strict=True)
            if can_archive_subtrees(self._rank, group.parent):
                slow = yield from self._describe_subtrees(group)
            yield from self._visit_directories(group.parent, slow)
        for group in self._remaining:
            spawn_archive_tasks(
                self._rank, self._result, group.parent, group.names, group.inodes,
                is_apart=group.is_apart, is_counted=True,
            )  # fmt: skip

    def _describe_subtrees(self, group: _Directories) -> TicketGenerator[list[tuple[bytes, int]]]:
        """Describe directories with everything below them, by one call of the backend. Return the names and inode
        numbers of those that are left to the slow path.
        """
        parent, names, inodes, _ = group
        found = yield from self._describe_in_batch(group)
        if found is None:
            return [*zip(names, inodes, strict=True)]
        codes = found.verdicts.codes
        self._count_and_send(parent, found)
        later = [row for row, code in enumerate(codes) if code == OutcomeCode.CANCELLED]
        if later:
            self.add(group._replace(names=[names[row] for row in later], inodes=[inodes[row] for row in later]))
        self._result.count(counts.UNSCANNED, -codes.count(OutcomeCode.DONE))
        for items in found.remaining:
            below = directory_below(parent, items.directory, items.directory_inode)
            rows = [row for row, letter in enumerate(items.kinds) if letter == _NOT_BEGUN]
            self._result.count(counts.UNSCANNED, len(items.names))
            self.add(
                _Directories(below, [items.names[row] for row in rows], [items.inodes[row] for row in rows], False)
            )
            left = zip(items.names, items.inodes, items.kinds, strict=True)
            yield from self._visit_directories(
                below, [(name, inode) for name, inode, letter in left if letter == _NOT_SIMPLE]
            )
        return [
            (name, inode)
            for name, inode, code in zip(names, inodes, codes, strict=True)
            if code not in (OutcomeCode.DONE, OutcomeCode.CANCELLED)
        ]

    def _describe_in_batch(self, group: _Directories) -> TicketGenerator[DescribeMembersResult | None]:
        """Have the backend describe directories. Return None if it cannot describe any in their parent."""
        rank, parent, describing = self._rank, group.parent, self._describing
        try:
            directory, device = rank.open_source_directory(parent), rank.source_device(parent)
            if device is None or rank.mover.generated_file_systems.is_on_pseudo_file_system(directory, device):
                return None
        except Problem:
            return None  # each directory meets the error on the slow path, and reports it
        reads_all = rank.shared_instance(ReadPermissions).reads_all_files(device, directory)
        if reads_all is None:
            return None
        batch = DescribeMembersBatch(
            directory,
            pack_names(group.names),
            array("Q", group.inodes),
            device,
            MAX_NAMES_IN_ROW,
            ALL_LEVELS,
            call_deadline(rank),
            describing.archive_name_prefix(parent),
            [*describing.known_owners],
            MIN_SPARSE_SIZE - 1,
            reads_all,
            group.is_apart,
            PIECE_MEMBERS,
            PIECE_BYTES,
        )
        return (yield from rank.execute_batch(batch))

    def _count_and_send(self, parent: Place, found: DescribeMembersResult) -> None:
        """Count what the backend has described below ``parent``, and send it to the rank that lays it out: that is this
        one, except for a compressed archive.
        """
        rank, result, sums = self._rank, self._result, found.counts
        result.count(counts.FOUND, sums.other_items)
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

    def _visit_directories(self, parent: Place, listed: Iterable[tuple[bytes, int]]) -> TaskSteps:
        """Pass directories of ``parent`` to the visitor, which describes them and spawns tasks that scan them.
        ``listed`` are their names and the inode numbers that the listing has shown. If another directory has taken the
        name of one, this is reported.
        """
        names = list[bytes]()
        for name, inode in listed:
            self._result.count(counts.UNSCANNED, -1)
            if (problem := problem_of_other_directory(self._rank, parent, name, inode)) is None:
                names.append(name)
            else:
                self._result.count_item_as_failed(parent, name, problem)
        if not names:
            return
        try:
            directory = self._rank.open_source_directory(parent)
        except Problem as problem:
            for name in names:
                self._result.count_item_as_failed(parent, name, problem)
            return
        visitor = self._rank.visitor(self._rank, self._result, parent, 1)  # the names were counted as found before
        yield from stat_and_visit_names(
            self._rank.backend,
            directory,
            pack_names(names),
            visitor,
            follow=False,
            extra_columns=owner_columns_if_needed(self._rank),
        )


def can_archive_subtrees(rank: Rank, place: Place) -> bool:
    """Return True if the backend may describe sub-directories of ``place`` with everything below them. That is so if
    items need no look in Python (no filter, digest or limit), if no file system is known to be mounted at ``place`` or
    below, and if names in it may be short enough for a header.
    """
    return (
        may_enter_subtrees(rank, (rank.sources[place.root], place.path))
        and not (rank.computes_digests or rank.collects_signature_entries)
        and not rank.job.roots[place.root].item
        and fits_name_field(rank.shared_instance(MemberDescriber).archive_name_prefix(place) + b"x/")
    )


def spawn_archive_tasks(
    rank: Rank,
    result: TaskResult,
    place: Place,
    names: Sequence[bytes],
    inodes: Sequence[int],
    *,
    is_apart: bool,
    is_counted: bool = False,
) -> None:
    """Spawn tasks that describe the directories ``names`` of ``place``, which are sorted, with everything below them.

    Args:
        inodes: their inode numbers.
        is_apart: the field of ``ArchiveDirectories``.
        is_counted: True if they were counted as not scanned yet.
    """
    prefix = rank.shared_instance(MemberDescriber).archive_name_prefix(place)
    for share in _slices_of_groups(rank, prefix, names):
        task = ArchiveDirectories(place, pack_names(names[share]), pack_numbers([*inodes[share]]), is_apart)
        result.spawn_task(task, task.item_count * SCAN_COST, expands=True)
    if not is_counted:
        result.count(counts.UNSCANNED, len(names))


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
