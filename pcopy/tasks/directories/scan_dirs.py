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
from pcopy.fsio.attributes import ItemMetadata
from pcopy.fsio.backend.batches import ALL_LEVELS
from pcopy.fsio.backend.columns import OutcomeCode, pack_names, unpack_names
from pcopy.fsio.backend.directory_batches import (
    CREATED,
    IS_NEW,
    IS_OWNED_BY_OTHER_USER,
    IS_SIMPLE,
    IS_UNCHANGED,
    NOT_REACHED,
    CopiedDirectories,
    EnterDirectoriesBatch,
    EnterDirectoriesResult,
    PresentDirectoryStatus,
)
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.problem import Problem
from pcopy.tasks.base import counts
from pcopy.tasks.base.dividing import ItemDurations
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
from pcopy.tasks.directories.finish_dirs import SubdirectoryFinishCollector, unpack_marks
from pcopy.tasks.directories.scan_dir import ScanDir, ScanNames, schedule_finish_dir_task
from pcopy.tasks.directories.simple_directories import directory_batch_settings, open_target_for_batch
from pcopy.walk.visitor import FoundItems, pass_items_to_visitor


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
        path = parent.path_of(name)
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
        finishes.spawn_finish_tasks(rank, result)
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
        that were not begun, because the time of the call was over or the job is being stopped.

        Args:
            names, inodes: names and inode numbers of the subdirectories.
            finishes: collects the directories that get their metadata later.
        """
        entered = yield from self._enter_subdirectories_in_batch(rank, result, names, inodes)
        if entered is not None:
            result.reset_counted_directory()
            _count_finished_rows(result, entered)
            if entered.unfinished:
                yield from _process_entered_directories(rank, result, self.place, entered.unfinished, finishes)
        remaining = []
        for row, (name, inode) in enumerate(zip(names, inodes, strict=True)):
            code = OutcomeCode.SLOW_PATH if entered is None else entered.verdicts.codes[row]
            if code == OutcomeCode.DONE:
                continue
            if code == OutcomeCode.CANCELLED or rank.stop_reason is not None:  # no further directory is begun
                remaining.append(row)
            else:
                scan = self.scan_task_for_subdirectory(name, inode)
                result.set_counted_directory((scan.root, scan.path))
                yield from scan.scan_directory(
                    rank, result, finishes.add, is_target_new=code == OutcomeCode.DECIDE_AGAIN
                )
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
            source,
            pack_names(names),
            target,
            inodes,
            settings,
            levels_entered_by_batch(rank),
            call_deadline(rank, copies_files=True),
        )
        if batch.settings.copies_small_files:
            rank.detect_times_set_on_close(target, batch.settings.target_device, result.notices)
        began = time.monotonic()
        entered = yield from rank.execute_batch(batch)
        seconds = time.monotonic() - began
        rank.shared_instance(DirectoriesPerCall).adapt_to_duration(seconds)
        names_seen = entered.skipped + _names_seen(entered.unfinished)
        if (
            names_seen and not batch.settings.copies_small_files
        ):  # copying takes longer than stat(2), which ``ItemDurations`` measures
            rank.shared_instance(ItemDurations).record_duration(ScanNames.code, names_seen, seconds)
        return entered


def _names_seen(entered: CopiedDirectories | None) -> int:
    """Return the number of items whose status was read, if no directory was created: that takes longer than stat(2)."""
    if entered is None or any(flags & IS_NEW for flags in entered.flags):
        return 0
    return sum(entered.skipped) + sum(entered.remaining)


def _count_finished_rows(result: TaskResult, entered: EnterDirectoriesResult) -> None:
    """Count the rows of a batch that are finished, and the items in them. They are counted for their parent directory,
    because no later task names them.
    """
    done = entered.verdicts.codes.count(OutcomeCode.DONE)
    if entered.unfinished:
        done -= entered.unfinished.rows
    result.count(counts.DIRECTORIES, entered.changed)
    result.count(counts.SKIPPED, done + entered.below - entered.changed)
    result.count(counts.UNSCANNED, -done)
    result.count(counts.FOUND, entered.below)
    result.count(counts.EXCLUDED, entered.excluded)
    if entered.skipped:
        for counter in (counts.FOUND, counts.SKIPPED):
            result.count(counter, entered.skipped)
        for counter in (counts.FOUND_BYTES, counts.SKIPPED_BYTES):
            result.count(counter, entered.skipped_bytes)


def _has_wanted_metadata(rank: Rank, above: Place, attributes: ItemMetadata, present: PresentDirectoryStatus) -> bool:
    """Return True if an existing target directory had, before the job, the owner, mode and time that it should have, as
    far as its file system can store them.

    Args:
        above: a directory above it, on the same file system.
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
        shown = new_file_status(rank.open_target_directory(above), rank.temporary_names.next_name())
    except Problem:
        return False
    if shown.has_unexpected_owner:
        present = present._replace(st_uid=source.st_uid, st_gid=source.st_gid)
    if shown.has_unexpected_mode:
        present = present._replace(st_mode=source.st_mode)
    return has_metadata_of_source(source, present, preserve, window)


def levels_entered_by_batch(rank: Rank) -> int:
    """Return how many levels of directories below its rows a batch may enter and copy. It enters none if threads
    process the rows, which then work on several directories at the same time, or if the job has directories of its own
    in the source, which are not copied.
    """
    return ALL_LEVELS if rank.backend.runs_in_poll and not rank.job.own else 0


def _process_entered_directories(
    rank: Rank, result: TaskResult, parent: Place, entered: CopiedDirectories, finishes: SubdirectoryFinishCollector
) -> TaskSteps:
    """Count directories that the backend has entered, with the files that it has copied or skipped, and have them get
    their metadata later. Spawn tasks for what remains in them.

    Args:
        parent: the directory that contains the topmost of them.
        entered: what the backend returned.
        finishes: collects the directories that get their metadata later.
    """
    tree = _EnteredTree(rank, parent, entered)
    if any(entered.copied):
        rank.record_write_success()
        rank.counters[counts.MOVED] += sum(entered.copied_bytes)
    result.count_in_directories(parent, entered.packed_paths[:-1], _counts_of_entered_directories(entered))
    if all(flags & IS_SIMPLE for flags in entered.flags):
        finishes.add_entered_directories(rank, entered, tree.unchanged)
    else:
        for number in range(len(entered.flags)):
            place, attributes = tree.place(number), tree.attributes(number)
            if not (place.is_new or rank.options.preserve.mode):  # it keeps its mode, which has allowed to enter it
                attributes = attributes._replace(mode=attributes.mode | 0o700)
            finish = FinishDir(place, attributes, True, -1)
            result.set_counted_directory(finish.place.key)
            schedule_finish_dir_task(rank, result, finish, finishes.add)
    for number, (names, rows) in entered.contents.items():
        place = tree.place(number)
        result.set_counted_directory(place.key)
        visitor = rank.visitor(rank, result, place, 0)
        pass_items_to_visitor(FoundItems(-1, names, rows, {}, are_selected=True), visitor)
        yield from visitor.process_collected_items()
        visitor.end_directory_visit()
    for number, directories in entered.not_entered.items():
        yield from _scan_directories_not_entered(rank, result, tree.place(number), directories, finishes)
    result.reset_counted_directory()


def _counts_of_entered_directories(entered: CopiedDirectories) -> dict[int, Sequence[int]]:
    """Return what is counted for each directory that the backend has entered, as columns: its subdirectories, the items
    in it that need no further task, and the finished directories below it with the files in them.
    """
    below, finished = list(entered.subdirectories), entered.finished
    for number, directories in entered.not_entered.items():
        below[number] += len(directories)
    columns: dict[int, Sequence[int]] = {
        counts.FOUND: [sum(row) for row in zip(entered.copied, entered.skipped, below, finished, strict=True)],
        counts.FOUND_BYTES: [sum(row) for row in zip(entered.copied_bytes, entered.skipped_bytes, strict=True)],
        counts.UNSCANNED: [number - 1 for number in below],
        counts.FILES: entered.copied,
        counts.BYTES: entered.copied_bytes,
    }
    if any(entered.skipped) or any(finished):
        columns[counts.SKIPPED] = [
            files + directories - changed
            for files, directories, changed in zip(entered.skipped, finished, entered.changed, strict=True)
        ]
        columns[counts.SKIPPED_BYTES] = entered.skipped_bytes
        columns[counts.EXCLUDED] = entered.excluded
        columns[counts.DIRECTORIES] = entered.changed
    return columns


def _scan_directories_not_entered(
    rank: Rank,
    result: TaskResult,
    place: Place,
    directories: Sequence[tuple[bytes, int, int]],
    finishes: SubdirectoryFinishCollector,
) -> TaskSteps:
    """Spawn tasks that scan subdirectories of ``place`` that the backend has not entered, and that are counted. Those
    whose targets it has created are scanned at once, because no other task knows that.

    Args:
        directories: name and inode number of each, and the letter that says why it was not entered.
        finishes: collects the directories that get their metadata later.
    """
    is_stopping = rank.stop_reason is not None
    later, slow, created = list[tuple[bytes, int]](), list[ScanDir](), list[ScanDir]()
    for name, inode, letter in directories:
        if letter == NOT_REACHED or is_stopping:
            later.append((name, inode))
            continue
        scan = ScanDirs(place, name, pack_numbers([inode])).scan_task_for_subdirectory(name, inode)
        (created if letter == CREATED else slow).append(scan)
    spawn_subdirectory_scan_tasks(rank, result, place, [name for name, _ in later], [inode for _, inode in later])
    for scan in slow:
        result.spawn_task(scan, SCAN_COST, expands=True)
    for scan in created:
        result.set_counted_directory((scan.root, scan.path))
        yield from scan.scan_directory(rank, result, finishes.add, is_target_new=True)


class _EnteredTree:
    """The directories that the backend has entered, as ``Place`` and ``ItemMetadata`` objects. These are made only for
    the directories that need them.
    """

    def __init__(self, rank: Rank, parent: Place, entered: CopiedDirectories) -> None:
        self._paths: list[bytes] = []
        self._parent = parent
        self._entered = entered
        self._marks: list[bytes] = []
        self.unchanged = {number for number, flags in enumerate(entered.flags) if flags & IS_UNCHANGED}
        """Numbers of the existing directories that had the metadata before the job that they should have."""
        for number, status in entered.present.items():
            if _has_wanted_metadata(rank, parent, self.attributes(number), status):
                self.unchanged.add(number)

    def place(self, number: int) -> Place:
        """Return a directory, given by its number."""
        if not self._paths:
            self._paths, self._marks = self._entered.packed_paths.split(b"\0"), unpack_marks(self._entered.marks)
        parent, entered = self._parent, self._entered
        flags = entered.flags[number]
        return Place(
            parent.root,
            parent.path_of(self._paths[number]),
            ItemIdentity(parent.source_id.mount_code, entered.sources[number]),
            ItemIdentity(parent.target_id.mount_code, entered.targets[number], self._marks[number]),
            bool(flags & IS_NEW),
            bool(flags & IS_OWNED_BY_OTHER_USER),
            parent.first_run,
            number in self.unchanged,
        )

    def attributes(self, number: int) -> ItemMetadata:
        """Return the metadata of the source of a directory, given by its number."""
        rows = self._entered.metadata
        return ItemMetadata(
            rows.mode[number], rows.uid[number], rows.gid[number], rows.atime[number], rows.mtime[number]
        )


def spawn_scan_task(result: TaskResult, scan: ScanDirs) -> None:
    """Spawn the task ``scan``, with an estimated cost for each of its directories."""
    result.spawn_task(scan, scan.item_count * SCAN_COST, expands=True)


def spawn_subdirectory_scan_tasks(
    rank: Rank, result: TaskResult, place: Place, names: Sequence[bytes], inodes: Sequence[int]
) -> None:
    """Spawn tasks that scan the subdirectories ``names`` of ``place``. ``inodes`` are their inode numbers."""
    for share in directory_slices_per_task(rank, len(names)):
        spawn_scan_task(result, ScanDirs(place, pack_names(names[share]), pack_numbers([*inodes[share]])))
