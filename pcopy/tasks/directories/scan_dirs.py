"""``ScanDirs`` scans several directories with the same parent in one task, so that they share the fixed cost of a task.

A scan reads the source directory, creates the target directory, and passes on the items that it finds. The backend does
that for simple directories (``pcopy.fsio.backend.directory_batches``), several in one call. ``ScanDir`` handles all
others, one by one.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator, Sequence

from pcopy.engine.task import Task
from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.attributes import ItemMetadata, are_times_portable
from pcopy.fsio.backend.columns import OutcomeCode, pack_names, unpack_names
from pcopy.fsio.backend.directory_batches import (
    CreatedDirectories,
    EnterDirectoriesBatch,
    EnterDirectoriesResult,
    PartlyProcessedDirectory,
    PresentDirectoryStatus,
)
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.problem import Problem
from pcopy.tasks.base import counts
from pcopy.tasks.base.dividing import ItemDurations
from pcopy.tasks.base.job_filters import JobFilter
from pcopy.tasks.base.kind import MissingDirectories, TaskSteps
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import SCAN_COST, Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.sibling_directories import (
    MAX_TASK_SECONDS,
    DirectoriesPerCall,
    SiblingDirectoriesTask,
    call_deadline,
    directory_slices_per_task,
)
from pcopy.tasks.base.values import Place, pack_numbers, unpack_numbers
from pcopy.tasks.directories.finish_dir import FinishDir
from pcopy.tasks.directories.finish_dirs import SubdirectoryFinishCollector, finish_state, unpack_marks
from pcopy.tasks.directories.scan_dir import ScanDir, ScanNames, can_enter_with_mode, schedule_finish_dir_task
from pcopy.tasks.directories.simple_directories import directory_batch_settings, open_target_for_batch
from pcopy.walk.visitor import FoundItems, pass_items_to_visitor

MAX_LEVELS_ENTERED = 1 << 20
"""How many levels of directories below its rows a batch may enter. Other limits end it earlier."""


class ScanDirs(SiblingDirectoriesTask, code=8, doing="scanning", is_note=False):
    """Task that scans the subdirectories ``names`` of ``place``: it lists them, creates their targets, and has their
    items copied. ``inodes`` are their inode numbers, packed.
    """

    inodes: bytes

    estimated_operations = 0  # ``ScanDir.scan_directory`` charges the operations of each directory

    def subject(self) -> tuple[Place, bytes]:
        return self.place, self.names.partition(b"/")[0]

    def task_for_some_directories(self, rows: Sequence[int]) -> ScanDirs:
        """Return a task for those directories only whose indices in ``names`` are ``rows``."""
        names, inodes = unpack_names(self.names), unpack_numbers(self.inodes)
        return ScanDirs(self.place, pack_names(names[row] for row in rows), pack_numbers([inodes[row] for row in rows]))

    def single_directory_tasks(self) -> Iterator[ScanDir]:
        """Yield one ``ScanDir`` for each directory; together they do the same as this task."""
        return map(self.scan_task_for_subdirectory, unpack_names(self.names), unpack_numbers(self.inodes))

    def scan_task_for_subdirectory(self, name: bytes, inode: int) -> ScanDir:
        """Return the ``ScanDir`` for the subdirectory ``name``, whose source must have the inode number ``inode``."""
        parent = self.place
        path = parent.path + b"/" + name if parent.path else name
        return ScanDir(parent.root, path, ItemIdentity(parent.source_id.mount_code, inode), parent, parent.first_run)

    def register_for_resume(self, task: Task, missing: MissingDirectories) -> None:
        if task.phase == Phase.COPY:
            missing.record_expected_scan()

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Scan the directories, several in one call of the backend. After ``MAX_TASK_SECONDS``, or if the job is being
        stopped, the remaining ones become new tasks.
        """
        names, inodes, finishes = (
            unpack_names(self.names),
            unpack_numbers(self.inodes),
            SubdirectoryFinishCollector(self.place),
        )
        start, end, remaining = 0, time.monotonic() + MAX_TASK_SECONDS, list[int]()
        while start < len(names):
            batch = slice(start, start + rank.shared_instance(DirectoriesPerCall).number)
            rows = yield from self._scan_subdirectory_batch(rank, result, names[batch], inodes[batch], finishes)
            remaining += [start + row for row in rows]
            start = batch.stop
            if rank.stop_reason is not None:
                break  # end now: a rank that is being stopped drops a task that yields, and its failures with it
            yield None
            if time.monotonic() > end:
                break
        result.reset_counted_directory()
        finishes.spawn_finish_task(result)
        remaining += range(start, len(names))
        if remaining:
            rest = self.task_for_some_directories(remaining)
            for task in rest.divide(min(2, rest.item_count)):
                spawn_scan_task(result, task)

    def _scan_subdirectory_batch(
        self,
        rank: Rank,
        result: TaskResult,
        names: list[bytes],
        inodes: array[int],
        finishes: SubdirectoryFinishCollector,
    ) -> TicketGenerator[list[int]]:
        """Scan the subdirectories ``names``, as far as possible by one call of the backend. Return the indices of those
        that were not begun, because the job is being stopped.

        Args:
            names, inodes: names and inode numbers of the subdirectories.
            finishes: collects the directories that get their metadata later.
        """
        entered = yield from self._enter_subdirectories_in_batch(rank, result, names, inodes)
        if entered is not None:
            result.reset_counted_directory()
            _count_batch_directories(result, entered)
            if entered.created:
                yield from process_created_directories(rank, result, self.place, entered.created, finishes)
        remaining = []
        for row, (name, inode) in enumerate(zip(names, inodes, strict=True)):
            code = OutcomeCode.SLOW_PATH if entered is None else entered.verdicts.codes[row]
            found = entered.remaining.get(row) if entered is not None else None
            if code == OutcomeCode.DONE and found is None:
                continue
            if rank.stop_reason is not None:  # no further directory is begun
                remaining.append(row)
            elif found is None:
                scan = self.scan_task_for_subdirectory(name, inode)
                result.set_counted_directory((scan.root, scan.path))
                yield from scan.scan_directory(
                    rank, result, finishes.add, is_target_new=code == OutcomeCode.DECIDE_AGAIN
                )
            else:
                yield from _visit_remaining_items(rank, result, self.place, name, inode, found, finishes)
        return remaining

    def _enter_subdirectories_in_batch(
        self, rank: Rank, result: TaskResult, names: list[bytes], inodes: array[int]
    ) -> TicketGenerator[EnterDirectoriesResult | None]:
        """Let the backend process the subdirectories ``names`` in one call, and return its result. Return None if they
        must be processed one by one (the slow path). ``inodes`` are the expected inode numbers.
        """
        place = self.place
        in_bulk = result.phase == Phase.COPY and not rank.throttle.is_on
        target = open_target_for_batch(rank, place, names, with_subtrees=True) if in_bulk else None
        if target is None:
            return None
        try:
            source = rank.open_source_directory(place)
        except Problem:  # the slow path meets the error again and reports it for each directory
            return None
        settings = directory_batch_settings(rank, place)
        batch = EnterDirectoriesBatch(
            source, pack_names(names), target, inodes, settings, levels_entered_by_batch(rank), call_deadline(rank)
        )
        if batch.settings.copies_small_files:
            rank.detect_times_set_on_close(target, batch.settings.target_device, result.notices)
        began = time.monotonic()
        entered = yield from rank.execute_batch(batch)
        seconds = time.monotonic() - began
        rank.shared_instance(DirectoriesPerCall).adapt_to_duration(seconds)
        names_seen = entered.skipped + sum(len(found.rows) + found.skipped[0] for found in entered.remaining.values())
        if names_seen and not (
            batch.settings.copies_small_files or entered.created
        ):  # copying takes longer than stat(2), which ``ItemDurations`` measures
            rank.shared_instance(ItemDurations).record_duration(ScanNames.code, names_seen, seconds)
        return entered


def _count_batch_directories(result: TaskResult, entered: EnterDirectoriesResult) -> None:
    """Count the directories, and the items in them, that the backend has processed completely. They are counted for
    their parent directory, because no later task names them.
    """
    done = entered.verdicts.codes.count(OutcomeCode.DONE) - len(entered.remaining)
    if entered.created:
        done -= entered.created.rows
    result.count(counts.DIRECTORIES, entered.changed)
    result.count(counts.SKIPPED, done - entered.changed)
    result.count(counts.UNSCANNED, -done)
    _count_skipped_items(result, entered.skipped, entered.skipped_bytes)


def _count_skipped_items(result: TaskResult, items: int, size: int) -> None:
    """Count ``items`` items as found and skipped; together they have ``size`` bytes."""
    if items:
        for counter in (counts.FOUND, counts.SKIPPED):
            result.count(counter, items)
        for counter in (counts.FOUND_BYTES, counts.SKIPPED_BYTES):
            result.count(counter, size)


def _visit_remaining_items(
    rank: Rank,
    result: TaskResult,
    parent: Place,
    name: bytes,
    inode: int,
    found: PartlyProcessedDirectory,
    finishes: SubdirectoryFinishCollector,
) -> TaskSteps:
    """Pass the items of the existing subdirectory ``name`` that the backend did not handle to the visitor, which spawns
    tasks for them. Have the directory get its metadata later.

    Args:
        parent: the directory that contains the subdirectory.
        inode: inode number of the source.
        found: what the backend returned for the subdirectory.
        finishes: collects the directories that get their metadata later.
    """
    path = parent.path + b"/" + name if parent.path else name
    target = ItemIdentity(parent.target_id.mount_code, found.inode, found.mark)
    attributes = found.attributes
    result.set_counted_directory((parent.root, path))
    result.count(counts.UNSCANNED, -1)
    _count_skipped_items(result, *found.skipped)
    is_simple = are_times_portable(attributes.atime, attributes.mtime) and can_enter_with_mode(attributes)
    is_unchanged = _has_wanted_metadata(rank, parent, attributes, found.present)
    if is_simple:
        state = finish_state(is_new=False, inherits_acl=found.is_owned_by_other_user, is_unchanged=is_unchanged)
        finishes.add_subdirectory(name, inode, target, attributes, state)
    if is_simple and not found.names:
        return
    source = ItemIdentity(parent.source_id.mount_code, inode)
    is_owned_by_other = found.is_owned_by_other_user
    place = Place(parent.root, path, source, target, False, is_owned_by_other, parent.first_run, is_unchanged)
    if found.names:
        visitor = rank.visitor(rank, result, place, 0)
        pass_items_to_visitor(FoundItems(-1, found.names, found.rows, {}), visitor)
        yield from visitor.process_collected_items()
        visitor.end_directory_visit()
    if not is_simple:
        schedule_finish_dir_task(rank, result, FinishDir(place, attributes, True, -1), finishes.add)


def _has_wanted_metadata(rank: Rank, parent: Place, attributes: ItemMetadata, present: PresentDirectoryStatus) -> bool:
    """Return True if an existing target directory had owner, mode and time that it should have before the job, as far
    as its file system can store them.

    Args:
        parent: the directory that contains it.
        attributes: metadata of the source directory.
        present: status of the target directory before the job has changed anything.
    """
    from pcopy.fsio.metadata_update import has_metadata_of_source

    source = PresentDirectoryStatus(attributes.mode, attributes.uid, attributes.gid, attributes.mtime, 0)
    preserve, window = rank.options.preserve, rank.copy_options.modify_window
    if has_metadata_of_source(source, present, preserve, window):
        return True
    from pcopy.fsio.server import new_file_status

    try:
        shown = new_file_status(rank.open_target_directory(parent), rank.temporary_names.next_name())
    except Problem:
        return False
    if shown.has_unexpected_owner:
        present = present._replace(st_uid=source.st_uid, st_gid=source.st_gid)
    if shown.has_unexpected_mode:
        present = present._replace(st_mode=source.st_mode)
    return has_metadata_of_source(source, present, preserve, window)


def levels_entered_by_batch(rank: Rank) -> int:
    """Return how many levels of directories below its rows a batch may enter and copy. It enters none if threads
    process the rows, which then work on several directories at the same time, or if Python decides on each item.
    """
    is_decided = rank.shared_instance(JobFilter).has_filters or rank.job.own
    return MAX_LEVELS_ENTERED if rank.backend.runs_in_poll and not is_decided else 0


def process_created_directories(
    rank: Rank, result: TaskResult, parent: Place, created: CreatedDirectories, finishes: SubdirectoryFinishCollector
) -> TaskSteps:
    """Count directories that the backend has created, with the files that it has copied into them, and have them get
    their metadata later. Spawn tasks for what remains in them.

    Args:
        parent: the directory that contains the topmost of them.
        created: what the backend returned.
        finishes: collects the directories that get their metadata later.
    """
    tree = _CreatedTree(parent, created)
    size, files = sum(created.copied_bytes), sum(created.copied)
    if files:
        rank.record_write_success()
        rank.counters[counts.MOVED] += size
    found = [copied + below for copied, below in zip(created.copied, created.subdirectories, strict=True)]
    columns: dict[int, Sequence[int]] = {
        counts.FOUND: found,
        counts.FOUND_BYTES: created.copied_bytes,
        counts.UNSCANNED: [below - 1 for below in created.subdirectories],
        counts.FILES: created.copied,
        counts.BYTES: created.copied_bytes,
    }
    result.count_in_directories(parent.root, tree.paths, columns)
    if all(created.are_simple):
        finishes.add_created_directories(created)
    else:
        for number in range(len(tree.paths)):
            finish = FinishDir(tree.place(number), tree.attributes(number), True, -1)
            result.set_counted_directory(finish.place.key)
            schedule_finish_dir_task(rank, result, finish, finishes.add)
    for number, (names, rows) in created.contents.items():
        place = tree.place(number)
        result.set_counted_directory(place.key)
        visitor = rank.visitor(rank, result, place, 0)
        pass_items_to_visitor(FoundItems(-1, names, rows, {}), visitor)
        yield from visitor.process_collected_items()
        visitor.end_directory_visit()
    for number, directories in created.not_entered.items():
        yield from _scan_directories_not_entered(rank, result, tree.place(number), directories, finishes)
    result.reset_counted_directory()


def _scan_directories_not_entered(
    rank: Rank,
    result: TaskResult,
    place: Place,
    directories: Sequence[tuple[bytes, int, bool]],
    finishes: SubdirectoryFinishCollector,
) -> TaskSteps:
    """Spawn tasks that scan subdirectories of ``place`` that the backend has not entered. Those whose targets it has
    created are scanned at once, because no other task knows that.

    Args:
        directories: name and inode number of each, and whether its target was created.
        finishes: collects the directories that get their metadata later.
    """
    result.set_counted_directory(place.key)
    result.count(counts.FOUND, len(directories))
    is_stopping = rank.stop_reason is not None
    later = [(name, inode) for name, inode, is_created in directories if is_stopping or not is_created]
    spawn_subdirectory_scan_tasks(rank, result, place, [name for name, _ in later], [inode for _, inode in later])
    for name, inode, is_created in directories:
        if is_created and not is_stopping:
            scan = ScanDirs(place, name, pack_numbers([inode])).scan_task_for_subdirectory(name, inode)
            result.set_counted_directory(place.key)
            result.count(counts.UNSCANNED)
            result.set_counted_directory((scan.root, scan.path))
            yield from scan.scan_directory(rank, result, finishes.add, is_target_new=True)


class _CreatedTree:
    """The directories that the backend has created in one subtree, as ``Place`` and ``ItemMetadata`` objects. These are
    made only for the directories that need them.
    """

    def __init__(self, parent: Place, created: CreatedDirectories) -> None:
        above = parent.path + b"/" if parent.path else b""
        self.paths = [above + path for path in created.packed_paths.split(b"\0")[:-1]]
        self._parent = parent
        self._created = created
        self._marks: list[bytes] = []

    def place(self, number: int) -> Place:
        """Return a directory, given by its number."""
        if not self._marks:
            self._marks = unpack_marks(self._created.marks)
        parent, created = self._parent, self._created
        return Place(
            parent.root,
            self.paths[number],
            ItemIdentity(parent.source_id.mount_code, created.sources[number]),
            ItemIdentity(parent.target_id.mount_code, created.targets[number], self._marks[number]),
            True,
            False,
            parent.first_run,
        )

    def attributes(self, number: int) -> ItemMetadata:
        """Return the metadata of the source of a directory, given by its number."""
        rows = self._created.metadata
        return ItemMetadata(
            rows.mode[number], rows.uid[number], rows.gid[number], rows.atime[number], rows.mtime[number]
        )


def spawn_scan_task(result: TaskResult, scan: ScanDirs) -> None:
    """Spawn the task ``scan_directory``, with an estimated cost for each of its directories."""
    result.spawn_task(scan, scan.item_count * SCAN_COST, expands=True)


def spawn_subdirectory_scan_tasks(
    rank: Rank, result: TaskResult, place: Place, names: Sequence[bytes], inodes: Sequence[int]
) -> None:
    """Spawn tasks that scan the subdirectories ``names`` of ``place``, and count these as not scanned yet. ``inodes``
    are their inode numbers.
    """
    for share in directory_slices_per_task(rank, len(names)):
        spawn_scan_task(result, ScanDirs(place, pack_names(names[share]), pack_numbers([*inodes[share]])))
    result.count(counts.UNSCANNED, len(names))
