"""``ScanDirs`` scans several directories with the same parent in one task, so that they share the fixed cost of a task.

A scan reads the source directory, creates the target directory, and passes on the items that it finds. The backend does
that for simple directories (``pcopy.fsio.backend.directory_batches``), several in one call. ``ScanDir`` handles all
others, one by one.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress

from pcopy.engine.task import Task
from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.attributes import ItemMetadata
from pcopy.fsio.backend.batches import ALL_LEVELS
from pcopy.fsio.backend.columns import OutcomeCode, pack_names, unpack_names
from pcopy.fsio.backend.directory_batches import (
    CREATED,
    HAS_COMPLETE,
    IS_NEW,
    IS_OWNED_BY_OTHER_USER,
    IS_SIMPLE,
    IS_UNCHANGED,
    LEFT_TO_SLOW_PATH,
    NOT_REACHED,
    CopiedDirectories,
    EnterDirectoriesBatch,
    EnterDirectoriesResult,
    PresentDirectoryStatus,
)
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.problem import Problem
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import ItemAction, pack_action
from pcopy.tasks.base.dividing import ItemDurations
from pcopy.tasks.base.kind import MissingDirectories, TaskSteps
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import SCAN_COST, Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.sibling_directories import (
    MAX_TASK_SECONDS,
    DirectoriesPerCall,
    SiblingDirectoriesTask,
    Siblings,
    call_deadline,
    spawn_tasks_for_siblings,
)
from pcopy.tasks.base.values import Place, unpack_numbers
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
        return ScanDirs(*self._subdirectories.selected(rows).packed())

    @property
    def _subdirectories(self) -> Siblings:
        return Siblings(self.place, unpack_names(self.names), unpack_numbers(self.inodes))

    def single_directory_tasks(self) -> Iterator[ScanDir]:
        """Yield one ``ScanDir`` for each directory; together they do the same as this task."""
        return _scan_tasks(self._subdirectories)

    def register_for_resume(self, task: Task, missing: MissingDirectories) -> None:
        if task.phase == Phase.COPY:
            missing.record_expected_scan()

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Scan the directories, several in one call of the backend. After ``MAX_TASK_SECONDS``, or if the job is being
        stopped, the remaining ones become new tasks.
        """
        found, scan = self._subdirectories, _SubdirectoryScan(rank, result, self.place)
        start, end, remaining = 0, time.monotonic() + MAX_TASK_SECONDS, list[int]()
        while start < len(found.names):
            batch = found.part(start, start + rank.shared_instance(DirectoriesPerCall).number)
            rows = yield from scan.scan_subdirectories(batch)
            remaining += [start + row for row in rows]
            start += len(batch.names)
            if rank.stop_reason is not None:
                break  # end now: a rank that is being stopped drops a task that yields, and its failures with it
            yield None
            if time.monotonic() > end:
                break
        result.reset_counted_directory()
        scan.finishes.spawn_finish_tasks(rank, result)
        remaining += range(start, len(found.names))
        if remaining:
            for task in self.task_for_some_directories(remaining).divide(min(2, len(remaining))):
                result.spawn_task(task, task.item_count * SCAN_COST, expands=True)


def _scan_tasks(found: Siblings) -> Iterator[ScanDir]:
    """Yield one ``ScanDir`` for each of the directories ``found``, whose sources must have these inode numbers."""
    parent = found.parent
    for name, inode in zip(found.names, found.inodes, strict=True):
        identity = ItemIdentity(parent.source_id.mount_code, inode)
        yield ScanDir(parent.root, parent.path_of(name), identity, parent, parent.first_run)


class _SubdirectoryScan:
    """Scan of subdirectories of ``place`` by one task. ``finishes`` collects those that get their metadata later."""

    def __init__(self, rank: Rank, result: TaskResult, place: Place) -> None:
        self._rank = rank
        self._result = result
        self.finishes = SubdirectoryFinishCollector(place)

    def scan_subdirectories(self, found: Siblings) -> TicketGenerator[list[int]]:
        """Scan the subdirectories ``found``, as far as possible by one call of the backend. Return the indices of those
        that were not begun, because the time of the call was over or the job is being stopped.
        """
        entered = yield from self._enter_in_batch(found)
        rows: Sequence[int] = range(len(found.names))
        codes: Sequence[int] = [OutcomeCode.SLOW_PATH] * len(rows)
        left, remaining = found, list[int]()
        if entered is not None:
            codes = entered.verdicts.codes
            rows = [row for row, code in enumerate(codes) if code != OutcomeCode.DONE]
            left = found.selected(rows)
            self._result.reset_counted_directory()
            _count_finished_rows(self._result, entered)
            _record_reported_files(self._result, found.parent, entered)
            if entered.unfinished:
                yield from self._process_entered_directories(found.parent, entered.unfinished)
        for row, scan in zip(rows, _scan_tasks(left), strict=True):
            if codes[row] == OutcomeCode.CANCELLED or self._rank.stop_reason is not None:  # no directory is begun
                remaining.append(row)
            else:
                yield from self._scan_directory(scan, is_target_new=codes[row] == OutcomeCode.DECIDE_AGAIN)
        return remaining

    def _scan_directory(self, scan: ScanDir, *, is_target_new: bool) -> TaskSteps:
        """Return a generator that scans one directory by the slow path, at once.

        ``is_target_new`` is True if the backend has created its target.
        """
        self._result.set_counted_directory((scan.root, scan.path))
        return scan.scan_directory(self._rank, self._result, self.finishes.add, is_target_new=is_target_new)

    def _enter_in_batch(self, found: Siblings) -> TicketGenerator[EnterDirectoriesResult | None]:
        """Let the backend process the subdirectories ``found`` in one call, and return its result. Return None if they
        must be processed one by one (the slow path).
        """
        rank, result, place = self._rank, self._result, found.parent
        in_bulk = result.phase == Phase.COPY and not rank.throttle.is_on
        target = open_target_for_batch(rank, place, found.names, with_subtrees=True) if in_bulk else None
        if target is None:
            return None
        try:
            source = rank.open_source_directory(place)
        except Problem:  # the slow path meets the error again and reports it for each directory
            return None
        settings = directory_batch_settings(rank, place)
        batch = EnterDirectoriesBatch(
            source,
            pack_names(found.names),
            target,
            array("Q", found.inodes),
            settings,
            levels_entered_by_batch(rank),
            call_deadline(rank, copies_files=True),
        )
        if settings.copies_small_files:
            rank.detect_times_set_on_close(target, settings.target_device, result.notices)
        began = time.monotonic()
        entered = yield from rank.execute_batch(batch)
        seconds = time.monotonic() - began
        rank.shared_instance(DirectoriesPerCall).adapt_to_duration(seconds)
        names_seen = entered.skipped + _names_seen(entered.unfinished)
        if names_seen and not settings.copies_small_files:  # ``ItemDurations`` measures stat(2): copying takes longer
            rank.shared_instance(ItemDurations).record_duration(ScanNames.code, names_seen, seconds)
        return entered

    def _process_entered_directories(self, parent: Place, entered: CopiedDirectories) -> TaskSteps:
        """Count directories that the backend has entered, with the files that it has copied or skipped, and have them
        get their metadata later. Spawn tasks for what remains in them. ``parent`` contains the topmost of them.
        """
        rank, result = self._rank, self._result
        tree = _EnteredTree(rank, parent, entered)
        if any(entered.copied):
            rank.record_write_success()
            rank.counters[counts.MOVED] += sum(entered.copied_bytes)
        result.count_in_directories(parent, entered.packed_paths[:-1], _counts_of_entered_directories(entered))
        actions = tree.actions_on_existing_directories() if result.item_recorder.is_recording else {}
        alone: Sequence[int] = range(len(entered.flags))
        if all(flags & IS_SIMPLE for flags in entered.flags):
            alone = self.finishes.add_entered_directories(rank, entered, tree.unchanged, actions)
        for number in alone:
            place, attributes = tree.place(number), tree.attributes(number)
            if not (place.is_new or rank.options.preserve.mode):  # it keeps its mode, which has allowed to enter it
                attributes = attributes._replace(mode=attributes.mode | 0o700)
            finish = FinishDir(
                place, attributes, True, -1, action=actions.get(number, int(ItemAction.COPY)),
                checks_below=bool(entered.flags[number] & HAS_COMPLETE),
            )  # fmt: skip
            result.set_counted_directory(place.key)
            schedule_finish_dir_task(rank, result, finish, self.finishes.add)
        for number, (names, rows) in entered.contents.items():
            place = tree.place(number)
            result.set_counted_directory(place.key)
            visitor = rank.visitor(rank, result, place, 0)
            pass_items_to_visitor(FoundItems(-1, names, rows, {}, are_selected=True), visitor)
            yield from visitor.process_collected_items()
            visitor.end_directory_visit()
        for number, directories in entered.not_entered.items():
            yield from self._scan_directories_not_entered(tree.place(number), directories)
        result.reset_counted_directory()

    def _scan_directories_not_entered(self, place: Place, directories: Sequence[tuple[bytes, int, int]]) -> TaskSteps:
        """Spawn tasks that scan subdirectories of ``place`` that the backend has not entered, and that are counted.
        Those whose targets it has created are scanned at once, because no other task knows that.

        ``directories`` are their names and inode numbers, with the letters that say why they were not entered.
        """
        names, inodes, letters = zip(*directories, strict=True)
        if self._rank.stop_reason is not None:
            letters = (NOT_REACHED,) * len(names)
        found = Siblings(place, names, inodes, kinds=bytes(letters))
        spawn_subdirectory_scan_tasks(self._rank, self._result, found.with_letter(NOT_REACHED))
        for scan in _scan_tasks(found.with_letter(LEFT_TO_SLOW_PATH)):
            self._result.spawn_task(scan, SCAN_COST, expands=True)
        for scan in _scan_tasks(found.with_letter(CREATED)):
            yield from self._scan_directory(scan, is_target_new=True)


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


def _record_reported_files(result: TaskResult, parent: Place, entered: EnterDirectoriesResult) -> None:
    """Record the files that a batch of directories in ``parent`` has reported."""
    for each in entered.reported:
        action = ItemAction.COPY if each.are_copied else ItemAction.SKIP
        place = parent._replace(path=parent.path_of(each.path))
        result.item_recorder.record_outcome_of_packed_files(action, place, each.names, each.sizes, each.nanoseconds)


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


class _EnteredTree:
    """The directories that the backend has entered, as ``Place`` and ``ItemMetadata`` objects. These are made only for
    the directories that need them.
    """

    def __init__(self, rank: Rank, parent: Place, entered: CopiedDirectories) -> None:
        self._paths: list[bytes] = []
        self._rank, self._parent = rank, parent
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

    def actions_on_existing_directories(self) -> dict[int, int]:
        """Return the packed actions that are reported for the directories that existed before, by number."""
        from pcopy.tasks.directories.forecast import existing_directory_action

        actions = {}
        for number, flags in enumerate(self._entered.flags):
            if flags & IS_NEW:
                continue
            action, differences = ItemAction.SKIP if number in self.unchanged else ItemAction.META, 0
            if action is ItemAction.META and number in self._entered.present:
                place, present = self.place(number), self._entered.present[number]
                with suppress(Problem):  # the task that finishes the directory reports the error
                    target = self._rank.open_target_directory(place)
                    _, differences = existing_directory_action(
                        self._rank, place, target, present, self.attributes(number)
                    )
            actions[number] = pack_action(action, differences)
        return actions

    def attributes(self, number: int) -> ItemMetadata:
        """Return the metadata of the source of a directory, given by its number."""
        rows = self._entered.metadata
        return ItemMetadata(
            rows.mode[number], rows.uid[number], rows.gid[number], rows.atime[number], rows.mtime[number]
        )


def spawn_subdirectory_scan_tasks(rank: Rank, result: TaskResult, found: Siblings) -> None:
    """Spawn tasks that scan the subdirectories ``found``."""
    spawn_tasks_for_siblings(rank, result, found, lambda share: ScanDirs(*share.packed()))
