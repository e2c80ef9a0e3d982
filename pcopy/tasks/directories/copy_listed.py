"""CopyListed: copy exactly the paths that a list names (``--files-from``).

Rank 0 reads the list (``pcopy.jobs.files_from``), which is sorted in the order of a walk. It creates the directories
that lead to listed paths, and spawns tasks, which any rank may run, for the listed names in each of them. A listed
directory is copied with everything below it, so later paths below it are skipped.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from mmap import ACCESS_READ, mmap
from typing import BinaryIO

from pcopy.engine.ticket import Stepwise
from pcopy.errors import Refused
from pcopy.fsio.kernel.columns import pack_names
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import source_status
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import Action
from pcopy.tasks.base.kind import Kind, Steps
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import CALL_COST, SCAN_COST, Rank
from pcopy.tasks.base.result import Result, Tried
from pcopy.tasks.base.selected import Selected
from pcopy.tasks.base.values import NOWHERE, Place
from pcopy.tasks.directories.finish_dir import FinishDir, finish_again
from pcopy.tasks.directories.scan_dir import ScanDir, ScanNames, note_device, to_be_finished
from pcopy.text import shown
from pcopy.walk.listing import NAMES_AT_ONCE

LONG = 0.05
"""Seconds after which the task ends, and the rest of the list becomes a new task behind the rank's other tasks."""

_BLOCK = 1 << 16
"""Bytes of the list that one read(2) returns at most."""


class CopyListed(Kind, code=23, doing="going through the list of", is_note=False):
    """Reads the list from the byte offset ``start`` on and spawns tasks for the listed paths of one root.

    Fields:

    - ``root``: number of the root.
    - ``start``, ``end``: byte offsets in the list. An ``end`` of -1 means the end of the list. Otherwise the task is
      the retry of the one path in this range, which failed before; the directories that lead to it may exist by now.
    - ``above``: the directories that have been entered, from the top down to the current one.
    - ``last``: the path that was handed over, or failed, last.
    - ``whole``: the last directory that is copied with everything below it.
    - ``left_out``: the last directory that is copied without its contents, or is excluded.
    - ``counted``: the directories from the top down to this path are already counted as found (None: not even SRC).
      Directories that could not be entered are counted by the retry of the first path below them. So each directory
      counts once, whichever path is tried again, and in whatever order.
    """

    root: int
    start: int = 0
    end: int = -1
    above: tuple[Place, ...] = ()
    last: bytes = b""
    whole: bytes | None = None
    left_out: bytes | None = None
    counted: bytes | None = None

    def about(self) -> tuple[Place, bytes]:
        return Place(self.root, b"", NOWHERE, NOWHERE, False, False), b""

    def home(self, ranks: int) -> int:
        return 0

    def places(self) -> Iterator[Place]:
        """Return no directories: those in ``above`` are only entered, not copied by this task."""
        return iter(())

    def run(self, rank: Rank, result: Result) -> Steps:
        """Process paths of the list until ``LONG`` seconds have passed or the rank stops, then spawn a task for the
        rest.
        """
        walk = _Walk(rank, result, self)
        deadline, after = time.monotonic() + LONG, self.start
        try:
            for offset, path in rank.own(ListedPaths).read(self.start, self.end):
                if rank.stop_reason is not None or (after > self.start and time.monotonic() > deadline):
                    result.spawn(walk.rest(offset))
                    break
                end = offset + len(path) + 1
                yield from walk.take(path, (offset, end))
                after = end
            else:
                if self.end < 0 and not walk.is_all:
                    result.count(counts.UNSCANNED, -1)
        except OSError as error:
            rank.stop(f"the list of --files-from cannot be read: {error.strerror}")
            result.spawn(walk.rest(after))
        walk.hand_over()


class ListedPaths:
    """The open list of paths, one per rank."""

    def __init__(self, rank: Rank) -> None:
        self._path = rank.job.listed
        self._file: BinaryIO | None = None

    def read(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield each path of the list with its byte offset, in their order; raise ``OSError`` if reading fails.

        Args:
            start: byte offset of the first path.
            end: byte offset at which to stop; -1 reads to the end of the list.
        """
        if self._file is None:
            self._file = _opened(self._path)  # ``close`` closes it at the end of the job
        self._file.seek(start)
        offset, rest = start, b""
        while block := self._file.read(_BLOCK):
            *paths, rest = (rest + block).split(b"\0")
            for path in paths:
                if 0 <= end <= offset:
                    return
                yield offset, path
                offset += len(path) + 1

    def names(self, path: bytes) -> bool:
        """Return True if ``path``, or a directory above it, is in the list; raise ``OSError`` if the list cannot be
        read.
        """
        parts = path.split(b"/")
        with _opened(self._path) as file, mmap(file.fileno(), 0, access=ACCESS_READ) as text:
            return any(_has(text, parts[:depth]) for depth in range(len(parts) + 1))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _opened(path: bytes) -> BinaryIO:
    """Open the list and return the file; raise ``OSError``.

    The list is an unnamed file that this process inherited (/proc/self/fd/N), or a file in the job's directory.
    """
    if path.startswith(b"/proc/self/fd/"):
        return open(path, "rb")
    from pcopy.checkpoint.directory import opened_file

    try:
        with opened_file(path) as file:
            return open(os.dup(file.fileno()), "rb")
    except Refused as refused:
        raise OSError(errno.EPERM, str(refused)) from None


def _has(text: mmap, parts: list[bytes]) -> bool:
    """Return True if the path with these components is in the list, which is sorted by components (binary search)."""
    low, high = 0, len(text)
    while low < high:
        start = text.rfind(b"\0", low, (low + high) // 2) + 1 or low
        end = text.find(b"\0", start)
        found = text[start:end].split(b"/") if end > start else []
        if found == parts:
            return True
        low, high = (end + 1, high) if found < parts else (low, start)
    return False


class _Walk:
    """The position in the source tree to which the paths of the list have led so far."""

    def __init__(self, rank: Rank, result: Result, task: CopyListed) -> None:
        self._rank = rank
        self._result = result
        self._task = task
        self._is_again = task.end >= 0
        """True if the path has failed before. It has then been counted as found already."""
        self.above = [*task.above]
        self.whole = task.whole
        self.is_all = task.whole == b""
        """True if SRC itself is listed. Another task (``ScanDir``) copies everything then."""
        self._names: list[bytes] = []
        """Listed names in the last directory of ``above`` for which no task has been spawned yet."""
        self._last = task.last
        self._closed: tuple[bytes, Problem | None] | None = None if task.left_out is None else (task.left_out, None)
        """The directory below which nothing is copied, and why: the problem that was met, or None if the directory is
        excluded or an existing item is kept in its place.
        """
        self._is_excluded = False
        self._left_out = task.left_out
        self._counted = task.counted

    def rest(self, offset: int) -> CopyListed:
        """Return a task that continues the list at byte ``offset``."""
        task = self._task._replace(start=offset, above=tuple(self.above), last=self._last, whole=self.whole)
        return task._replace(left_out=self._left_out, counted=self._counted)

    def take(self, path: bytes, span: tuple[int, int]) -> Steps:
        """Process one path of the list: spawn a task for it, gather its name, skip it, or count it as failed.

        Args:
            path: the listed path, relative to SRC.
            span: byte offsets at which the path begins and ends in the list.
        """
        if self.whole is not None and _is_below(path, self.whole):
            return
        if not path:
            self._copy_all()
            return
        if self._last and _is_below(path, self._last) and self._is_directory(self._last):
            self.whole = self._last
            return
        parent, _, name = path.rpartition(b"/")
        yield from self._go_to(parent)
        if self._closed is not None:
            self._leave_out(path, span)
            return
        self._names.append(name)
        self._last = path
        if len(self._names) >= NAMES_AT_ONCE:
            self.hand_over()
            yield None

    def _copy_all(self) -> None:
        """Spawn the task that copies SRC with everything below it."""
        root = self._task.root
        top = self._rank.sources[root].identity(b"")
        self._result.spawn(ScanDir(root, b"", top, None), SCAN_COST, expands=True)
        self.whole, self.is_all = b"", True

    def _is_directory(self, path: bytes) -> bool:
        """Return True if the listed ``path`` is a directory, or cannot be examined now: a retry may
        find a directory.
        """
        parent, _, name = path.rpartition(b"/")
        if not self.above or self.above[-1].path != parent:
            return True
        try:
            directory = self._rank.open_source(self.above[-1])
            status = source_status(directory, name, follow=self._rank.options.dereference)
        except Problem:
            return True
        return stat.S_ISDIR(status.st_mode)

    def hand_over(self) -> None:
        """Spawn a task for the gathered names of the current directory, if there are any."""
        if self._names:
            task = ScanNames(self.above[-1], pack_names(self._names), int(self._is_again))
            self._result.spawn(task, len(self._names) * CALL_COST, expands=True)
            self._names.clear()

    def _go_to(self, path: bytes) -> Steps:
        """Enter the directories down to ``path``, or down to the first one that cannot be entered (see ``_closed``)."""
        if self._closed is not None and not _is_below(path, self._closed[0]):
            self._closed = None
        if not self.above or self.above[-1].path != path:
            self.hand_over()
        while self.above and not _is_below(path, self.above[-1].path):
            self.above.pop()
        while self._closed is None and not (self.above and self.above[-1].path == path):
            yield from self._enter(path)

    def _enter(self, path: bytes) -> Steps:
        """Enter the next directory on the way to ``path``. On failure or exclusion set ``_closed`` instead."""
        parent = self.above[-1] if self.above else None
        inner = _next(parent.path if parent else None, path)
        if inner and not self._rank.own(Selected).takes_directory(inner):
            self._closed, self._is_excluded = (inner, None), True
            return
        self._is_excluded = False
        try:
            place = yield from self._entered(inner, parent)
        except Problem as problem:
            self._closed = inner, self._explained(problem, inner, parent)
            return
        if place is None:
            self._closed, self._left_out = (inner, None), inner
        else:
            self.above.append(place)

    def _explained(self, problem: Problem, path: bytes, parent: Place | None) -> Problem:
        """Return ``problem`` with a clearer text if a symbolic link stands where a directory was expected; else
        ``problem`` itself.
        """
        if parent is None or not problem.on_source or problem.errno not in (errno.ENOTDIR, errno.ELOOP):
            return problem
        try:
            status = source_status(self._rank.open_source(parent), path.rpartition(b"/")[2])
        except Problem:
            return problem
        if not stat.S_ISLNK(status.st_mode):
            return problem
        text = f"{shown(path)} is a symbolic link, which only -L follows"
        return Problem(problem.operation, problem.errno, on_source=True, text=text)

    def _entered(self, path: bytes, parent: Place | None) -> Stepwise[Place | None]:
        """Create the target of the directory ``path`` and spawn the task that finishes it.

        Return its ``Place``, or None if nothing in it is copied (an existing item is kept, or ``--one-file-system``
        excludes it). Raise ``Problem`` if the source cannot be opened or the target cannot be created.
        """
        rank, result, root = self._rank, self._result, self._task.root
        identity = NOWHERE if parent else rank.sources[root].identity(b"")
        scan = ScanDir(root, path, identity, parent).as_mounted(rank)
        begun = yield from scan.begin(rank, result, made=False, lists=False)
        if begun is None:
            return None
        place = begun.place
        if self._counted is not None and _is_below(self._counted, path):
            finish_again(rank, result, place, result.phase)
        else:
            self._counted = path
            if parent:
                result.count(counts.FOUND, 1, place)
            result.found_directory(place)
            note_device(rank, result, place)
            finish = FinishDir(place, begun.attributes, True, -1, action=begun.action)
            to_be_finished(rank, result, finish, lambda result, task: result.spawn(task, phase=Phase.FINISH))
        return None if scan.is_left_out(rank) else place

    def _leave_out(self, path: bytes, span: tuple[int, int]) -> None:
        """Count the listed ``path``, which lies below a directory that was not entered, as skipped, or as failed with
        the problem of that directory.
        """
        assert self._closed is not None
        parent, _, name = path.rpartition(b"/")
        problem, place = self._closed[1], Place(self._task.root, parent, NOWHERE, NOWHERE, False, False)
        self._result.count(counts.FOUND, 0 if self._is_again else 1, place)
        if problem is None:
            self._result.count(counts.SKIPPED, 1, place)
            self._result.count(counts.EXCLUDED, int(self._is_excluded), place)
            self._result.items.did(Action.SKIP, place, name, b"")
        else:
            start, end = span
            if self._counted is None:  # SRC itself could not be entered: it fails, too
                top = place._replace(path=b"")
                self._result.fail(top, b"", problem, retry=Tried.WITH_ANOTHER)
            again = CopyListed(self._task.root, start, end, counted=self._counted)
            self._result.fail(place, name, problem, retry=again)
            self._counted, self._last = parent, path


def _is_below(path: bytes, directory: bytes) -> bool:
    """Return True if ``path`` is ``directory`` itself or lies below it."""
    return not directory or path == directory or path.startswith(directory + b"/")


def _next(above: bytes | None, path: bytes) -> bytes:
    """Return the path of the directory that is one level below ``above`` on the way to ``path``.

    If ``above`` is None, the result is the top directory itself (``b""``).
    """
    if above is None:
        return b""
    start = len(above) + 1 if above else 0
    end = path.find(b"/", start)
    return path if end < 0 else path[:end]
