"""``ExamineDirectories`` finds the files in directories and everything below them, and ``LayoutVisitor`` has their
layouts examined (pstripe).
"""

from __future__ import annotations

from collections.abc import Sequence

from pcopy.engine.task import ANY_RANK
from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.backend.columns import pack_names, unpack_names
from pcopy.fsio.backend.walk_batches import ListItemsBatch, WalkResult
from pcopy.fsio.identity import ItemIdentity
from pcopy.signature.items import FILE, type_byte
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import ItemAction
from pcopy.tasks.base.hashing import SOCKET_TYPE_BYTE
from pcopy.tasks.base.kind import DivisibleTask, TaskSteps
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.sibling_directories import Siblings, spawn_tasks_for_siblings
from pcopy.tasks.base.tree_walk import TreeWalk, directory_below, may_enter_subtrees, walk_rows
from pcopy.tasks.base.values import Place, pack_numbers, unpack_numbers
from pcopy.tasks.copying import MAX_BATCH_FILES, ItemVisitor
from pcopy.tasks.directories.scan_dir import ScanDir
from pcopy.tasks.stripe.examine_layouts import ExamineLayouts
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

    def _spawn_subdirectory_tasks(self, found: Siblings) -> None:
        if not can_list_subtrees(self._rank, self._place):
            super()._spawn_subdirectory_tasks(found)
            return
        spawn_tasks_for_siblings(self._rank, self._result, found, _task_for_directories)
        self._result.count(counts.UNSCANNED, len(found.names))

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
    layouts examined. ``inodes`` are the inode numbers of the directories (8 bytes each). ``are_simple`` is False if the
    backend could not list them.
    """

    inodes: bytes
    are_simple: bool

    columns = ("inodes",)
    min_items_per_portion = 2
    estimated_operations = 0

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        walk = _LayoutWalk(rank, result)
        names, inodes = unpack_names(self.names), unpack_numbers(self.inodes)
        walk.put_back(Siblings(self.place, names, inodes, are_simple=self.are_simple))
        yield from walk.enter_directories_while_others_work()


def _task_for_directories(found: Siblings) -> ExamineDirectories:
    return ExamineDirectories(*found.packed(), found.are_simple)


class _LayoutWalk(TreeWalk):
    """The visitor of pstripe: passes the items of directories, and of everything below them, to ``LayoutVisitor``."""

    visits_on_entry = False

    def new_task(self, found: Siblings) -> ExamineDirectories:
        return _task_for_directories(found)

    def may_be_rows(self, found: Siblings) -> bool:
        return can_list_subtrees(self._rank, found.parent)

    def process_in_backend(self, found: Siblings, directories: Sequence[int]) -> TicketGenerator[WalkResult]:
        """List directories with everything below them, and pass all items to the visitors of their directories."""
        rank, parent = self._rank, found.parent
        rows = walk_rows(rank, directories[0], rank.source_device(parent), found)
        listed = yield from rank.execute_batch(ListItemsBatch(*rows, VISITOR_COLUMNS, b"", None))
        assert listed.rows is not None
        self._result.count_excluded_items(listed.counts.excluded)
        for part in listed.items_by_directory():
            self._result.count(counts.DIRECTORIES)
            if part.start == part.end:
                continue
            place, above = directory_below(parent, part.directory, part.directory_inode), len(part.directory) + 1
            kinds = listed.kinds[part.start : part.end]
            names = pack_names(path[above:] for path in listed.paths[part.start : part.end])
            items = FoundItems(-1, names, listed.rows.rows_in_range(part.start, part.end), {})
            visitor = LayoutVisitor(rank, self._result, place, 0, kinds)
            pass_items_to_visitor(items, visitor)
            yield from visitor.process_collected_items()
            visitor.end_directory_visit()
        return listed

    def enter_directory(self, parent: Place, name: bytes, inode: int, other_inode: int) -> TaskSteps:
        path = parent.path_of(name)
        self._result.count(counts.UNSCANNED)  # the scan subtracts it
        identity = ItemIdentity(parent.source_id.mount_code, inode)
        yield from ScanDir(parent.root, path, identity, parent).run(self._rank, self._result)


def can_list_subtrees(rank: Rank, place: Place) -> bool:
    """Return True if the backend may list sub-directories of ``place`` with everything below them."""
    return may_enter_subtrees(rank, (rank.sources[place.root], place.path), limits_apply_to_rows=False)
