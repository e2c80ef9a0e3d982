"""``CopyListedPaths`` copies exactly the paths that a list names (``--from``).

Rank 0 reads the list (``pcopy.jobs.sorted_list``), which is sorted so that a directory comes before the paths below it.
It creates the directories that lead to listed paths. For the listed names in each of them it spawns tasks, which any
rank may run. A listed directory is copied with everything below it, so later paths below it are skipped.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from mmap import ACCESS_READ, mmap
from typing import BinaryIO

from pcopy.engine.ticket import TicketGenerator
from pcopy.errors import RequestRefused
from pcopy.fsio.backend.columns import pack_names
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import source_item_status
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import ItemAction
from pcopy.tasks.base.job_filters import JobFilter
from pcopy.tasks.base.kind import TaskKind, TaskSteps
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import CALL_COST, SCAN_COST, Rank
from pcopy.tasks.base.result import RetryMode, TaskResult
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, Place
from pcopy.tasks.directories.finish_dir import FinishDir, spawn_finish_dir_task_once
from pcopy.tasks.directories.scan_dir import ScanDir, ScanNames, ensure_device_synced, schedule_finish_dir_task
from pcopy.text import printable_path
from pcopy.walk.listing import NAMES_PER_BATCH

LIST_SLICE_SECONDS = 0.05
"""Seconds after which a task that reads the list ends. A new task for the rest of the list is then queued behind the
other tasks of the rank.
"""

_LIST_READ_BYTES = 1 << 16
"""Largest number of bytes that one read(2) of the list returns."""


class CopyListedPaths(TaskKind, code=23, doing="reading the list of paths in", is_note=False):
    """Task that reads the list of paths (``--from``) from the byte offset ``start`` on, and spawns tasks that
    copy the listed paths of one root.

    Fields:
        root: index of the root in ``Job.roots``.
        start, end: byte offsets in the list. An ``end`` of -1 means the end of the list. Any other value means that
            this task retries the one path in this range, which failed before; the directories that lead to it may exist
            by now.
        entered: the directories on the way to the last path, from the top down. Their targets exist already.
        last_path: the last path for which a task was spawned or that failed.
        copied_whole: the last directory that is copied with everything below it, or None.
        without_contents: the last directory that is copied without its contents, or is excluded; or None.
        counted_down_to: the directories from the top down to this path are already counted as found (None: not even
            SRC). Directories that could not be entered are counted by the retry of the first path below them. So each
            directory counts once, whichever path is tried again, and in whatever order.
    """

    root: int
    start: int = 0
    end: int = -1
    entered: tuple[Place, ...] = ()
    last_path: bytes = b""
    copied_whole: bytes | None = None
    without_contents: bytes | None = None
    counted_down_to: bytes | None = None

    def subject(self) -> tuple[Place, bytes]:
        return Place(self.root, b"", NO_DIRECTORY_IDENTITY, NO_DIRECTORY_IDENTITY, False, False), b""

    def assigned_rank(self, ranks: int) -> int:
        return 0

    def contained_directory_places(self) -> Iterator[Place]:
        """Yield nothing, although ``entered`` contains directories. A resumed job therefore does not replace this task
        if one of them has vanished: the task only passes through them and does not copy them.
        """
        return iter(())

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Process the paths of the list, one after the other, until ``LIST_SLICE_SECONDS`` have passed or the job is
        being stopped; then spawn a task for the rest of the list.
        """
        walk = _PathListWalk(rank, result, self)
        deadline, after = time.monotonic() + LIST_SLICE_SECONDS, self.start
        try:
            for offset, path in rank.shared_instance(ListedPaths).paths_between(self.start, self.end):
                if rank.stop_reason is not None or (after > self.start and time.monotonic() > deadline):
                    result.spawn_task(walk.continuation_task(offset))
                    break
                end = offset + len(path) + 1
                yield from walk.process_path(path, (offset, end))
                after = end
            else:
                if self.end < 0 and not walk.copies_all:
                    result.count(counts.UNSCANNED, -1)
        except OSError as error:
            rank.request_stop(f"the list of --from cannot be read: {error.strerror}")
            result.spawn_task(walk.continuation_task(after))
        walk.spawn_task_for_pending_names()


class ListedPaths:
    """The list of paths to copy (``--from``), which this rank has opened. It can be read from any offset, and
    searched.
    """

    def __init__(self, rank: Rank) -> None:
        self._path = rank.job.listed
        self._file: BinaryIO | None = None

    def paths_between(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield (byte offset, path) for the paths of the list, in their order. Raise ``OSError`` if reading fails.

        Args:
            start: byte offset of the first path.
            end: byte offset at which to stop; -1 to read to the end of the list.
        """
        if self._file is None:
            self._file = _open_path_list(self._path)  # ``close`` closes the file at the end of the job
        self._file.seek(start)
        offset, rest = start, b""
        while block := self._file.read(_LIST_READ_BYTES):
            *paths, rest = (rest + block).split(b"\0")
            for path in paths:
                if 0 <= end <= offset:
                    return
                yield offset, path
                offset += len(path) + 1

    def has_path_or_parent(self, path: bytes) -> bool:
        """Return True if ``path``, or a directory above it, is in the list. Raise ``OSError`` if the list cannot be
        read.
        """
        parts = path.split(b"/")
        with _open_path_list(self._path) as file, mmap(file.fileno(), 0, access=ACCESS_READ) as text:
            return any(_contains_path(text, parts[:depth]) for depth in range(len(parts) + 1))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _open_path_list(path: bytes) -> BinaryIO:
    """Open the list of paths for reading, and return the file. Raise ``OSError`` on failure.

    The list is an unnamed file that this process inherited (/proc/self/fd/N), or a file in the job's directory.
    """
    if path.startswith(b"/proc/self/fd/"):
        return open(path, "rb")
    from pcopy.checkpoint.directory import opened_trusted_file

    try:
        with opened_trusted_file(path) as file:
            return open(os.dup(file.fileno()), "rb")
    except RequestRefused as refused:
        raise OSError(errno.EPERM, str(refused)) from None


def _contains_path(text: mmap, parts: list[bytes]) -> bool:
    """Return True if the path with the components ``parts`` is in the list ``text``. The list is sorted by components
    and is searched by bisection.
    """
    low, high = 0, len(text)
    while low < high:
        start = text.rfind(b"\0", low, (low + high) // 2) + 1 or low
        end = text.find(b"\0", start)
        found = text[start:end].split(b"/") if end > start else []
        if found == parts:
            return True
        low, high = (end + 1, high) if found < parts else (low, start)
    return False


class _PathListWalk:
    """State of a task that processes the list of paths: the directories that it has entered, and the names that it has
    collected for the next task.
    """

    def __init__(self, rank: Rank, result: TaskResult, task: CopyListedPaths) -> None:
        self._rank = rank
        self._result = result
        self._task = task
        self._is_retry = task.end >= 0
        """True if the task retries a path that has failed before: then the path was counted as found already."""
        self.entered = [*task.entered]
        self.copied_whole = task.copied_whole
        self.copies_all = task.copied_whole == b""
        """True if SRC itself is listed. Then a ``ScanDir`` task copies everything, and the rest of the list is not
        needed.
        """
        self._pending_names: list[bytes] = []
        """Listed names in the last directory of ``entered`` for which no task was spawned yet."""
        self._last_path = task.last_path
        self._blocked: tuple[bytes, Problem | None] | None = (
            None if task.without_contents is None else (task.without_contents, None)
        )
        """The directory below which nothing is copied, and the error because of which it could not be entered. The
        error is None if the directory is excluded, or if an existing item is kept in its place.
        """
        self._is_excluded = False
        self._without_contents = task.without_contents
        self._counted_down_to = task.counted_down_to

    def continuation_task(self, offset: int) -> CopyListedPaths:
        """Return a task that continues with the path at the byte ``offset`` of the list, in the state that this walk
        has reached.
        """
        task = self._task._replace(
            start=offset, entered=tuple(self.entered), last_path=self._last_path, copied_whole=self.copied_whole
        )
        return task._replace(without_contents=self._without_contents, counted_down_to=self._counted_down_to)

    def process_path(self, path: bytes, span: tuple[int, int]) -> TaskSteps:
        """Process one path of the list: collect its name for a task, skip it, or count it as skipped or failed.

        Args:
            path: the listed path, relative to SRC.
            span: byte offsets at which the path begins and ends in the list.
        """
        if self.copied_whole is not None and _is_at_or_below(path, self.copied_whole):
            return
        if not path:
            self._spawn_copy_of_whole_source()
            return
        if self._last_path and _is_at_or_below(path, self._last_path) and self._is_directory(self._last_path):
            self.copied_whole = self._last_path
            return
        parent, _, name = path.rpartition(b"/")
        yield from self._enter_directories_down_to(parent)
        if self._blocked is not None:
            self._count_unreachable_path(path, span)
            return
        self._pending_names.append(name)
        self._last_path = path
        if len(self._pending_names) >= NAMES_PER_BATCH:
            self.spawn_task_for_pending_names()
            yield None

    def _spawn_copy_of_whole_source(self) -> None:
        """Spawn the task that copies SRC with everything below it, because the list names SRC itself."""
        root = self._task.root
        top = self._rank.sources[root].identity_of_directory(b"")
        self._result.spawn_task(ScanDir(root, b"", top, None), SCAN_COST, expands=True)
        self.copied_whole, self.copies_all = b"", True

    def _is_directory(self, path: bytes) -> bool:
        """Return True if the listed ``path`` is a directory. Return True also if it cannot be examined now, because a
        retry may find a directory.
        """
        parent, _, name = path.rpartition(b"/")
        if not self.entered or self.entered[-1].path != parent:
            return True
        try:
            directory = self._rank.open_source_directory(self.entered[-1])
            status = source_item_status(directory, name, follow=self._rank.copy_options.dereference)
        except Problem:
            return True
        return stat.S_ISDIR(status.st_mode)

    def spawn_task_for_pending_names(self) -> None:
        """Spawn a task for the names that were collected in the current directory, if there are any."""
        if self._pending_names:
            task = ScanNames(self.entered[-1], pack_names(self._pending_names), int(self._is_retry))
            self._result.spawn_task(task, len(self._pending_names) * CALL_COST, expands=True)
            self._pending_names.clear()

    def _enter_directories_down_to(self, path: bytes) -> TaskSteps:
        """Enter the directories that lead to ``path`` and ``path`` itself: open each and create its target. If one of
        them cannot be entered, it is stored in ``_blocked``, and those below it are not entered.
        """
        if self._blocked is not None and not _is_at_or_below(path, self._blocked[0]):
            self._blocked = None
        if not self.entered or self.entered[-1].path != path:
            self.spawn_task_for_pending_names()
        while self.entered and not _is_at_or_below(path, self.entered[-1].path):
            self.entered.pop()
        while self._blocked is None and not (self.entered and self.entered[-1].path == path):
            yield from self._enter_next_directory(path)

    def _enter_next_directory(self, path: bytes) -> TaskSteps:
        """Enter the next directory on the way to ``path`` and append it to ``entered``. If that fails or the directory
        is excluded, store it in ``_blocked`` instead.
        """
        parent = self.entered[-1] if self.entered else None
        inner = _next_directory_toward_path(parent.path if parent else None, path)
        if inner and not self._rank.shared_instance(JobFilter).selects_directory(inner):
            self._blocked, self._is_excluded = (inner, None), True
            return
        self._is_excluded = False
        try:
            place = yield from self._create_directory(inner, parent)
        except Problem as problem:
            self._blocked = inner, self._explained_problem(problem, inner, parent)
            return
        if place is None:
            self._blocked, self._without_contents = (inner, None), inner
        else:
            self.entered.append(place)

    def _explained_problem(self, problem: Problem, path: bytes, parent: Place | None) -> Problem:
        """Return ``problem``, the error of the directory ``path``, which could not be entered. If a symbolic link has
        the name of the directory, return an error whose text says so instead. ``parent`` is the directory that contains
        it.
        """
        if parent is None or not problem.on_source or problem.errno not in (errno.ENOTDIR, errno.ELOOP):
            return problem
        try:
            status = source_item_status(self._rank.open_source_directory(parent), path.rpartition(b"/")[2])
        except Problem:
            return problem
        if not stat.S_ISLNK(status.st_mode):
            return problem
        text = f"{printable_path(path)} is a symbolic link, which only -L follows"
        return Problem(problem.operation, problem.errno, on_source=True, text=text)

    def _create_directory(self, path: bytes, parent: Place | None) -> TicketGenerator[Place | None]:
        """Create the target of the directory ``path``, whose parent directory is ``parent`` (None for SRC itself), and
        spawn the task that gives it its metadata.

        Return the directory. Return None if nothing in it is copied, because an existing item is kept in its place or
        ``--one-file-system`` excludes its contents. Raise ``Problem`` if the source cannot be opened or the target
        cannot be created.
        """
        rank, result, root = self._rank, self._result, self._task.root
        identity = NO_DIRECTORY_IDENTITY if parent else rank.sources[root].identity_of_directory(b"")
        scan = ScanDir(root, path, identity, parent).with_identity_after_mount(rank)
        begun = yield from scan.open_source_and_create_target(rank, result, is_target_new=False, should_list=False)
        if begun is None:
            return None
        place = begun.place
        if self._counted_down_to is not None and _is_at_or_below(self._counted_down_to, path):
            spawn_finish_dir_task_once(rank, result, place, result.phase)
        else:
            self._counted_down_to = path
            if parent:
                result.count(counts.FOUND, 1, place)
            result.collect_directory_entry(place)
            ensure_device_synced(rank, result, place)
            finish = FinishDir(place, begun.attributes, True, -1, action=begun.action)
            schedule_finish_dir_task(
                rank, result, finish, lambda result, task: result.spawn_task(task, phase=Phase.FINISH)
            )
        return None if scan.is_excluded_mount_point(rank) else place

    def _count_unreachable_path(self, path: bytes, span: tuple[int, int]) -> None:
        """Count the listed ``path``, which lies below a directory that was not entered: as failed with the error of
        that directory, or, if there was none, as skipped. ``span`` has the byte offsets of the path in the list.
        """
        assert self._blocked is not None
        parent, _, name = path.rpartition(b"/")
        problem, place = (
            self._blocked[1],
            Place(self._task.root, parent, NO_DIRECTORY_IDENTITY, NO_DIRECTORY_IDENTITY, False, False),
        )
        self._result.count(counts.FOUND, 0 if self._is_retry else 1, place)
        if problem is None:
            self._result.count(counts.SKIPPED, 1, place)
            self._result.count(counts.EXCLUDED, int(self._is_excluded), place)
            self._result.item_recorder.record_item_outcome(ItemAction.SKIP, place, name, b"")
        else:
            start, end = span
            if self._counted_down_to is None:  # SRC itself could not be entered: SRC fails, too
                top = place._replace(path=b"")
                self._result.count_item_as_failed(top, b"", problem, retry=RetryMode.BY_OTHER_TASK)
            again = CopyListedPaths(self._task.root, start, end, counted_down_to=self._counted_down_to)
            self._result.count_item_as_failed(place, name, problem, retry=again)
            self._counted_down_to, self._last_path = parent, path


def _is_at_or_below(path: bytes, directory: bytes) -> bool:
    """Return True if ``path`` is ``directory`` itself or lies below it."""
    return not directory or path == directory or path.startswith(directory + b"/")


def _next_directory_toward_path(above: bytes | None, path: bytes) -> bytes:
    """Return the path of the directory one level below ``above`` on the way to ``path``. If ``above`` is None, nothing
    was entered yet: return the top directory itself (``b""``).
    """
    if above is None:
        return b""
    start = len(above) + 1 if above else 0
    end = path.find(b"/", start)
    return path if end < 0 else path[:end]
