"""The visitor of a copy: the object that receives the items which a scan finds in a directory, and spawns tasks that
copy them or only read them.

The import of this module loads all kinds of tasks of a copy and of pverify.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence

from pcopy.fsio.backend.columns import VERSION_COLUMNS, ItemStatusColumns, pack_names, unpack_names
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.incomplete_mark import SIDECAR_NAME_PREFIX, sidecar_problem
from pcopy.fsio.problem import Problem, source_changed_problem
from pcopy.signature.items import FILE, type_byte
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import ItemAction
from pcopy.tasks.base.attempts import MAX_ATTEMPTS, fail_or_retry
from pcopy.tasks.base.hashing import SOCKET_TYPE_BYTE
from pcopy.tasks.base.job_filters import JobFilter, report_excluded_items
from pcopy.tasks.base.kind import TaskSteps
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import CALL_COST, SCAN_COST, Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.sibling_directories import Siblings
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, Item, Place, inode_bucket_number, pack_numbers
from pcopy.tasks.directories.scan_dir import ScanDir
from pcopy.tasks.directories.scan_dirs import spawn_subdirectory_scan_tasks
from pcopy.tasks.files.copy_files import CopyFiles
from pcopy.tasks.files.copy_nodes import CopySpecialFiles
from pcopy.tasks.files.file_decisions import can_skip_files_in_scan, indices_of_files_to_copy
from pcopy.tasks.files.remove_marks import RemoveIncompleteMarks  # noqa: F401 (only loads the module, like the next two)
from pcopy.tasks.files.split_file import SplitFile
from pcopy.tasks.links.group_links import HardLinkNamesNote
from pcopy.tasks.links.inodes_copied import combined_notes_by_bucket  # noqa: F401
from pcopy.tasks.links.link_groups import copy_tasks_for_items  # noqa: F401
from pcopy.tasks.verify.read_items import ReadItems
from pcopy.walk.visitor import DirectoryVisitor, FoundItems

MAX_BATCH_FILES = 256
"""Largest number of items of one task. A larger task would keep one rank busy for too long."""
MAX_BATCH_BYTES = 4 << 20
"""Bytes (sum of file sizes) at which a task is full: once its files reach them, the next file begins a new task."""


def make_visitor(rank: Rank, result: TaskResult, place: Place, attempt: int) -> DirectoryVisitor:
    """Return the object that receives the items which a scan finds in the source directory of ``place``, and spawns
    tasks that copy them. If the directory has no target, the items are only read, for their digests.

    Args:
        rank, result: the rank that scans, and the result of its task, which collects the new tasks.
        attempt: number of earlier attempts in this run, from 0.
    """
    return (_ItemReadingVisitor if place.target_id == NO_DIRECTORY_IDENTITY else CopyVisitor)(
        rank, result, place, attempt
    )


class ItemVisitor:
    """Base class of both visitors of this module, of the one for items that are copied and of the one for items that
    are only read. It applies the filters, spawns tasks that scan subdirectories, and counts items as found at the first
    attempt.
    """

    needs_sorted_names = False

    def __init__(self, rank: Rank, result: TaskResult, place: Place, attempt: int) -> None:
        self._rank = rank
        self._result = result
        self._place = place
        self._attempt = attempt
        self.device = rank.source_device(place)
        self._mounts = rank.sources[place.root].mount_codes
        self._mount_points = rank.sources[place.root].expected_mounts
        self._filter = rank.shared_instance(JobFilter)
        self._found = 0
        self._found_bytes = 0

    def visit_unstatted_item(self, name: bytes, problem: Problem) -> None:
        """Handle the item ``name``, whose status could not be read because of ``problem``: it is tried again in the
        same phase, or counted as failed. Nothing is done if the filters exclude it.
        """
        if not self._is_excluded(name):
            fail_or_retry(self._result, self._place, name, problem, self._attempt, in_same_phase=True)

    def _is_excluded(self, name: bytes) -> bool:
        """Return True if the filters exclude the item ``name`` whatever its type is; the type is not known, because the
        status could not be read.
        """
        selects = self._filter.has_filters and not self._attempt
        return selects and self._filter.excludes_as_any_type(os.path.join(self._place.path, name))

    def rows_to_visit(self, found: FoundItems) -> Iterable[int]:
        """Return the rows (indices in ``found``) of the items that pass the filters. Two sorts of items are left out
        and fail.

        - A file that is a mount point, if another file is mounted there than when the job began.
        - A file whose name says that it marks another file as incomplete (``pcopy.fsio.incomplete_mark``).
        """
        self._found += len(found)
        rows = self._rows_passing_filters(found)
        mounted = self._mount_points.names_of_expected_mounts_in(self._place.path)
        if not (mounted or b"/" + SIDECAR_NAME_PREFIX in b"/" + found.packed):
            return rows
        return [row for row in rows if self._is_to_be_copied(found, row, mounted)]

    def _rows_passing_filters(self, found: FoundItems) -> Sequence[int]:
        """Return the rows of the items that pass the filters; count the others as skipped. On a later attempt all pass,
        because they passed when they were first found.
        """
        if not self._filter.has_filters or self._attempt or found.are_selected:
            return range(len(found))
        rows = self._filter.selected_rows(self._place.path, found)
        for counter in (counts.SKIPPED, counts.EXCLUDED):
            self._result.count(counter, len(found) - len(rows))
        report_excluded_items(self._rank, self._result, self._place, found, rows)
        return rows

    def _is_to_be_copied(self, found: FoundItems, row: int, mounted: set[bytes]) -> bool:
        """Return True if the item with the index ``row`` in ``found`` is copied. Record its failure if it is not.
        ``mounted`` has the names of the mount points in the directory.
        """
        name, mode = found.names[row], found.rows.mode[row]
        if row in found.problems:
            return True
        if name in mounted and not stat.S_ISDIR(mode):
            try:
                self._mount_points.check_file_is_on_expected_mount(
                    os.path.join(self._place.path, name), found.directory, name
                )
            except Problem as problem:
                fail_or_retry(self._result, self._place, name, problem, self._attempt)
                return False
        if name.startswith(SIDECAR_NAME_PREFIX) and stat.S_ISREG(mode):
            fail_or_retry(self._result, self._place, name, sidecar_problem(), MAX_ATTEMPTS)
            return False
        return True

    def visit_directories(self, found: FoundItems, rows: Sequence[int]) -> None:
        """Spawn tasks that scan subdirectories, those items of ``found`` whose indices are ``rows``. Subdirectories on
        the file system of their parent directory share tasks; any other gets a task of its own.
        """
        place, result = self._place, self._result
        inodes, devices = found.rows.inode, found.rows.device
        same_mount: list[int] = []
        is_usual = result.phase < Phase.REPAIR and not self._rank.job.own
        for row in rows:
            if is_usual and devices[row] == self.device:
                same_mount.append(row)
                continue
            path = os.path.join(place.path, found.names[row])
            # A repair copies items that are not directories; the phases in which directories are scanned are over.
            if result.phase >= Phase.REPAIR:
                problem = source_changed_problem(
                    "stat", "a directory has taken the item's name since the item was copied"
                )
                result.count_item_as_failed(place, found.names[row], problem)
            elif (place.root, path) in self._rank.job.own:
                self._found -= 1
            else:
                mount = self._mounts.mount_code_of_directory(path, devices[row], place.source_id.mount_code)
                if mount == place.source_id.mount_code:
                    same_mount.append(row)
                    continue
                task = ScanDir(place.root, path, ItemIdentity(mount, inodes[row]), place, place.first_run)
                result.spawn_task(task, SCAN_COST, expands=True)
                result.count(counts.UNSCANNED)
        if not same_mount:
            return
        self._spawn_subdirectory_tasks(Siblings(place, found.names, inodes).selected(same_mount))

    def _spawn_subdirectory_tasks(self, found: Siblings) -> None:
        """Spawn tasks that scan the subdirectories ``found``, which are on the mount of the directory."""
        spawn_subdirectory_scan_tasks(self._rank, self._result, found)
        self._result.count(counts.UNSCANNED, len(found.names))

    def process_collected_items(self) -> TaskSteps:
        """Do nothing, as a generator without steps. It is called after all items of the directory were received; a
        subclass that has collected items overrides it.
        """
        yield from ()

    def end_directory_visit(self) -> None:
        """Add the number and the sizes of the items that were found to the counts of the task. A later attempt adds
        nothing.
        """
        if not self._attempt:
            self._result.count(counts.FOUND, self._found)
            self._result.count(counts.FOUND_BYTES, self._found_bytes)


class CopyVisitor(ItemVisitor):
    """Visitor for items that are copied. It puts several small files into one task, and several links, FIFOs, sockets
    and devices into another; each large file gets a task of its own. Names of inodes with several names (hard links)
    are sent to the rank that collects all names of the inode.
    """

    def __init__(self, rank: Rank, result: TaskResult, place: Place, attempt: int) -> None:
        super().__init__(rank, result, place, attempt)
        alone = len(rank.job.roots) == 1 and rank.job.roots[0].item
        self.separates_linked = rank.options.preserve.links and not alone
        self._files: tuple[bytes, ItemStatusColumns, int] | None = None
        """Names (joined by slashes), status columns, and sum of the sizes in bytes, of the small files of the
        directory; None if there are none.
        """
        self._nodes: list[tuple[bytes, int]] = []
        """Name and inode number of each symbolic link, FIFO, socket and device."""
        self._links: dict[int, list[tuple[bytes, int, int, int]]] = {}
        """Name, mount code (number of the file system), inode number and size in bytes of each item with several names,
        by the number of the inode's bucket (``inode_bucket_number``).
        """

    def visit_small_files(self, found: FoundItems, rows: Sequence[int]) -> None:
        columns, packed = found.rows, found.packed
        if len(rows) < len(found):
            columns, packed = columns.columns_of_selected_rows(rows), pack_names(map(found.names.__getitem__, rows))
        size = sum(columns.size)
        self._found_bytes += size
        self._files = packed, columns, size

    def process_collected_items(self) -> TaskSteps:
        """Spawn tasks that copy the small files. If the scan can already decide that a file stays as it is, no task is
        spawned for it.
        """
        if self._files is None:
            return
        packed, rows, size = self._files
        if can_skip_files_in_scan(self._rank, self._place):
            to_copy = yield from indices_of_files_to_copy(self._rank, self._result, self._place, packed, rows)
            if len(to_copy) < len(rows):
                names = unpack_names(packed)
                packed, rows = pack_names(map(names.__getitem__, to_copy)), rows.columns_of_selected_rows(to_copy)
                size = sum(rows.size)
        self._spawn_copy_tasks_for_files(packed, rows, size)

    def _spawn_copy_tasks_for_files(self, packed: bytes, rows: ItemStatusColumns, total: int) -> None:
        """Spawn tasks that copy these small files, at most ``MAX_BATCH_FILES`` in each.

        Args:
            packed: names of the files, joined by slashes.
            rows: their status, in columns.
            total: sum of their sizes in bytes.
        """
        if not len(rows):
            return
        if len(rows) <= MAX_BATCH_FILES and total < MAX_BATCH_BYTES:
            self._spawn_copy_task_for_files(packed, rows, total)
            return
        names = unpack_names(packed)
        start = size = 0
        for row, each in enumerate(rows.size):
            size += each
            if row + 1 - start >= MAX_BATCH_FILES or size >= MAX_BATCH_BYTES or row + 1 == len(rows):
                self._spawn_copy_task_for_files(
                    pack_names(names[start : row + 1]), rows.rows_in_range(start, row + 1), size
                )
                start, size = row + 1, 0

    def _spawn_copy_task_for_files(self, packed: bytes, rows: ItemStatusColumns, size: int) -> None:
        task = CopyFiles(self._place, packed, rows.status_columns_as_bytes(VERSION_COLUMNS), self._attempt)
        self._result.spawn_task(task, size + len(rows) * CALL_COST)

    def visit_large_files(self, found: FoundItems, rows: Sequence[int]) -> None:
        for row in rows:
            name, size = found.names[row], found.rows.size[row]
            mount = self._mount_code_of_file(name, found.rows.device[row])
            self._found_bytes += size
            item = Item(mount, found.rows.inode[row], size, ((self._place, name),), self._attempt)
            self._result.spawn_task(SplitFile(item), size)

    def _mount_code_of_file(self, name: bytes, device: int) -> int:
        """Return the mount code (number of the file system, the same on all hosts) of the file ``name``, which lies on
        the device ``device``.
        """
        path = os.path.join(self._place.path, name) if self._rank.copy_options.dereference else b""
        return self._mounts.mount_code_of_file(device, self._place.source_id.mount_code, path)

    def visit_special_files(self, found: FoundItems, rows: Sequence[int]) -> None:
        for row in rows:
            self._nodes.append((found.names[row], found.rows.inode[row]))
            if len(self._nodes) >= MAX_BATCH_FILES:
                self._spawn_copy_task_for_special_files()

    def _spawn_copy_task_for_special_files(self) -> None:
        names, inodes = zip(*self._nodes, strict=True)
        task = CopySpecialFiles(self._place, pack_names(names), pack_numbers([*inodes]), self._attempt)
        self._result.spawn_task(task, len(names) * CALL_COST)
        self._nodes.clear()

    def visit_hard_linked_items(self, found: FoundItems, rows: Sequence[int]) -> None:
        """Collect the items with several names whose indices in ``found`` are ``rows``. Later all names of one inode
        are sent to one rank, which the inode number determines.
        """
        for row in rows:
            name, inode = found.names[row], found.rows.inode[row]
            size = found.rows.size[row] if stat.S_ISREG(found.rows.mode[row]) else 0
            link = name, self._mount_code_of_file(name, found.rows.device[row]), inode, size
            self._links.setdefault(inode_bucket_number(inode), []).append(link)

    def end_directory_visit(self) -> None:
        if self._nodes:
            self._spawn_copy_task_for_special_files()
        for bucket, links in self._links.items():
            names, *numbers = map(list, zip(*links, strict=True))
            mounts, inodes, sizes = map(pack_numbers, numbers)
            note = HardLinkNamesNote(self._place, pack_names(names), mounts, inodes, sizes, self._attempt, bucket)
            self._result.spawn_task(note)
        super().end_directory_visit()


class _ItemReadingVisitor(ItemVisitor):
    """Visitor for items that are only read for their digests, by tasks for items of all types. Sockets are skipped:
    they have no digest.
    """

    separates_linked = False

    def __init__(self, rank: Rank, result: TaskResult, place: Place, attempt: int) -> None:
        super().__init__(rank, result, place, attempt)
        self._items: list[tuple[bytes, bytes, int]] = []
        """Name, type byte and inode number of each item for the next task."""
        self._bytes = 0

    def visit_small_files(self, found: FoundItems, rows: Sequence[int]) -> None:
        for row in rows:
            kind = type_byte(found.rows.mode[row])
            if not kind:
                self._result.count(counts.SKIPPED)
                if self._rank.job.copies:
                    self._result.item_recorder.record_item_outcome(
                        ItemAction.SKIP, self._place, found.names[row], SOCKET_TYPE_BYTE
                    )
                continue
            size = found.rows.size[row] if kind == FILE else 0
            self._items.append((found.names[row], kind, found.rows.inode[row]))
            self._found_bytes += size
            self._bytes += size
            if len(self._items) >= MAX_BATCH_FILES or self._bytes >= MAX_BATCH_BYTES:
                self._spawn_read_task()

    visit_large_files = visit_special_files = visit_hard_linked_items = visit_small_files

    def _spawn_read_task(self) -> None:
        names, kinds, inodes = zip(*self._items, strict=True)
        task = ReadItems(self._place, pack_names(names), b"".join(kinds), pack_numbers([*inodes]), self._attempt, -1)
        self._result.spawn_task(task, self._bytes + len(names) * CALL_COST)
        self._items, self._bytes = [], 0

    def end_directory_visit(self) -> None:
        if self._items:
            self._spawn_read_task()
        super().end_directory_visit()
