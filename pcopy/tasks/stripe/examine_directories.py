"""``ExamineDirectories`` finds the files in directories and everything below them, and ``LayoutVisitor`` has their
layouts examined (pstripe).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from pcopy.engine.task import ANY_RANK
from pcopy.fsio.backend.batches import ALL_LEVELS
from pcopy.fsio.backend.columns import OutcomeCode, pack_names, unpack_names
from pcopy.fsio.backend.walk_batches import ListItemsBatch, ListItemsResult
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.problem import Problem
from pcopy.signature.items import FILE, type_byte
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import ItemAction
from pcopy.tasks.base.hashing import SOCKET_TYPE_BYTE
from pcopy.tasks.base.job_filters import JobFilter
from pcopy.tasks.base.kind import DivisibleTask, TaskSteps
from pcopy.tasks.base.rank import CALL_COST, SCAN_COST, Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.sibling_directories import (
    DirectoriesToEnter,
    call_deadline,
    directory_slices_per_task,
    enters_several_per_call,
)
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, Place, pack_numbers, unpack_numbers
from pcopy.tasks.copying import MAX_BATCH_FILES, ItemVisitor
from pcopy.tasks.directories.scan_dir import ScanDir
from pcopy.tasks.stripe.examine_layouts import ExamineLayouts
from pcopy.walk.listing import NAMES_PER_BATCH
from pcopy.walk.visitor import VISITOR_COLUMNS, FoundItems, pass_items_to_visitor

(_DIRECTORY,) = b"d"
"""Letter of a directory in a listing."""


class LayoutVisitor(ItemVisitor):
    """Visitor of pstripe: it collects the regular files of a directory, and spawns tasks that examine their layouts,
    many files per task. Other items have no layout.
    """

    separates_linked = True

    def __init__(self, rank: Rank, result: TaskResult, place: Place, attempt: int, listed_kinds: bytes = b"") -> None:
        """Initialise the visitor. ``listed_kinds`` are the letters of the types of all items as listed, if the caller
        has entered the directories among these, or will enter them.
        """
        super().__init__(rank, result, place, attempt)
        self._listed_kinds = listed_kinds
        self._batches: dict[int, tuple[list[bytes], list[int]]] = {}
        """Names and inode numbers of the files that were collected, by the rank that must examine them (or
        ``ANY_RANK``).
        """

    def visit_directories(self, found: FoundItems, rows: Sequence[int]) -> None:
        if self._listed_kinds:
            rows = [row for row in rows if self._listed_kinds[row] != _DIRECTORY]
        super().visit_directories(found, rows)

    def _spawn_subdirectory_tasks(self, names: Sequence[bytes], inodes: Sequence[int]) -> None:
        if not can_list_subtrees(self._rank, self._place):
            super()._spawn_subdirectory_tasks(names, inodes)
            return
        for share in directory_slices_per_task(self._rank, len(names)):
            task = ExamineDirectories(self._place, pack_names(names[share]), pack_numbers([*inodes[share]]))
            self._result.spawn_task(task, task.item_count * SCAN_COST, expands=True)
        self._result.count(counts.UNSCANNED, len(names))

    def visit_small_files(self, found: FoundItems, rows: Sequence[int]) -> None:
        for row in rows:
            self._add_file(found, row, ANY_RANK)

    visit_large_files = visit_special_files = visit_small_files

    def visit_hard_linked_items(self, found: FoundItems, rows: Sequence[int]) -> None:
        """Collect files with several hard links. All names of an inode go to the same rank, which examines the inode
        only once.
        """
        for row in rows:
            self._add_file(found, row, found.rows.inode[row] % self._rank.size)

    def _add_file(self, found: FoundItems, row: int, owner: int) -> None:
        """Add the file in row ``row`` to the files that the rank ``owner`` examines; count an item of another type as
        skipped.
        """
        if type_byte(found.rows.mode[row]) != FILE:
            self._result.count(counts.SKIPPED)
            kind = type_byte(found.rows.mode[row]) or SOCKET_TYPE_BYTE
            self._result.item_recorder.record_item_outcome(ItemAction.SKIP, self._place, found.names[row], kind)
            return
        names, inodes = self._batches.setdefault(owner, ([], []))
        names.append(found.names[row])
        inodes.append(found.rows.inode[row])
        self._found_bytes += found.rows.size[row]
        if len(names) >= MAX_BATCH_FILES:
            self._spawn_examination_task(owner)

    def _spawn_examination_task(self, owner: int) -> None:
        """Spawn the task by which the rank ``owner`` examines the files that were collected for it."""
        names, inodes = self._batches.pop(owner)
        task = ExamineLayouts(self._place, pack_names(names), pack_numbers(inodes))
        self._result.spawn_task(task, len(names) * CALL_COST, owner=owner)

    def end_directory_visit(self) -> None:
        """Spawn tasks for the files that were collected."""
        for owner in [*self._batches]:
            self._spawn_examination_task(owner)
        super().end_directory_visit()


class ExamineDirectories(DivisibleTask, code=92, doing="scanning", is_note=False):
    """Task that finds the files in the directories ``names`` (joined by slashes) of ``place`` and below, and has their
    layouts examined. ``inodes`` are the inode numbers of the directories (8 bytes each).
    """

    inodes: bytes

    columns = ("inodes",)
    min_items_per_portion = 2
    estimated_operations = 0

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        walk = _LayoutWalk(rank, result)
        walk.add(self.place, unpack_names(self.names), unpack_numbers(self.inodes))
        yield from walk.enter_directories_while_others_work()


class _LayoutWalk(DirectoriesToEnter):
    """The part of a walk that one task does: it lists directories and everything below them, and passes the items to
    the visitor.
    """

    def _can_enter_several_directories(self, around: Place) -> bool:
        return can_list_subtrees(self._rank, around)

    def _enters_subtrees(self, around: Place) -> bool:
        return True

    def _enter_several_directories(self, around: Place, names: Sequence[bytes], inodes: Sequence[int]) -> TaskSteps:
        """List directories with everything below them by one call of the backend. Those that it cannot list are then
        scanned one by one.
        """
        rank, result = self._rank, self._result
        codes: Sequence[int] = bytes(len(names))
        try:
            directory, device = rank.open_source_directory(around), rank.source_device(around) or 0
        except Problem:
            pass  # each directory meets the error when it is scanned, and reports it
        else:
            batch = ListItemsBatch(
                directory,
                pack_names(names),
                array("Q", inodes),
                device,
                NAMES_PER_BATCH - 1,
                ALL_LEVELS,
                call_deadline(rank),
                VISITOR_COLUMNS,
                b"",
                None,
                0,
            )
            found = yield from rank.execute_batch(batch)
            codes = found.verdicts.codes
            yield from self._visit_listed_items(around, found)
            for group in found.remaining:
                result.count(counts.UNSCANNED, len(group.names))
                self.add(_place_below(around, group.directory, group.directory_inode), group.names, group.inodes)
        for row, code in enumerate(codes):
            if code == OutcomeCode.DONE:
                result.count(counts.UNSCANNED, -1)
            else:
                yield from self._enter_directory(around, names[row], inodes[row])

    def _visit_listed_items(self, around: Place, found: ListItemsResult) -> TaskSteps:
        """Pass all items that the backend has listed below ``around`` to the visitors of their directories."""
        assert found.rows is not None
        for part in found.items_by_directory():
            self._result.count(counts.DIRECTORIES)
            if part.start == part.end:
                continue
            place, above = _place_below(around, part.directory, part.directory_inode), len(part.directory) + 1
            kinds = found.kinds[part.start : part.end]
            names = pack_names(name[above:] for name in found.names[part.start : part.end])
            items = FoundItems(-1, names, found.rows.rows_in_range(part.start, part.end), {})
            visitor = LayoutVisitor(self._rank, self._result, place, 0, kinds)
            pass_items_to_visitor(items, visitor)
            yield from visitor.process_collected_items()
            visitor.end_directory_visit()

    def _enter_directory(self, around: Place, name: bytes, inode: int) -> TaskSteps:
        path = around.path + b"/" + name if around.path else name
        identity = ItemIdentity(around.source_id.mount_code, inode)
        yield from ScanDir(around.root, path, identity, around).run(self._rank, self._result)

    def _make_subdirectories_task(self, around: Place, names: bytes, inodes: bytes) -> ExamineDirectories:
        return ExamineDirectories(around, names, inodes)


def can_list_subtrees(rank: Rank, place: Place) -> bool:
    """Return True if the backend may list sub-directories of ``place`` with everything below them. That is so if Python
    does not decide which of them are entered, and if no file system is known to be mounted at ``place`` or below.
    """
    return (
        enters_several_per_call(rank)
        and not rank.shared_instance(JobFilter).has_filters
        and not rank.sources[place.root].expected_mounts.has_expected_mount_at_or_below(place.path)
    )


def _place_below(parent: Place, path: bytes, inode: int) -> Place:
    """Return a directory below ``parent`` on the same mount. ``path`` is its path relative to ``parent``."""
    identity = ItemIdentity(parent.source_id.mount_code, inode)
    below = parent.path + b"/" + path if parent.path else path
    return Place(parent.root, below, identity, NO_DIRECTORY_IDENTITY, False, False)
