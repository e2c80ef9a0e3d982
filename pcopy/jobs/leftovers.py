"""Removal of the temporary files (``.pcopy-JOB-...``) of a discarded job from its destination.

Only some directories can contain such files, and they follow from the recorded tasks that remain. A temporary file was
created by one of these tasks, or by a task that one of them spawned after the last record. So the file lies in a
directory that a remaining task names, or below a directory that a remaining task would have read. Files that earlier
runs left lie in directories that are not finished, or in the parent of a source that is a single file. So directories
that are finished need not be examined.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import pcopy.tasks.runner  # noqa: F401 (makes all kinds known)
from pcopy.checkpoint.resume import is_run_recorded, load_job_progress
from pcopy.errors import InvariantBroken, RequestRefused
from pcopy.fsio.close import closing_descriptor, entries_of_open_directory
from pcopy.fsio.directories import DirectoriesBelowRoot
from pcopy.fsio.problem import Problem, errors_as_problem
from pcopy.fsio.source import status_of_open_item
from pcopy.fsio.temporary import leftover_notice, remove_leftover_temporary_files
from pcopy.jobs.directories import StoredJob
from pcopy.jobs.spool import TMPDIR_ADVICE, spool_errors_as_refusal, spool_factory
from pcopy.tasks.base.codec import decode_task
from pcopy.tasks.base.kind import TaskKind
from pcopy.text import printable_path

MAX_REMEMBERED_DIRECTORIES = 1 << 16
"""Number of cleared directories that are remembered, so that a directory which many tasks name is listed only once.

When there are more, all are forgotten; that only costs time.
"""
MAX_REMEMBERED_BYTES = 4 << 20
"""Bytes of the paths of remembered directories from which on all are forgotten: the paths of a deep tree are long."""

_MISSING_ERRORS = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors of open(2) after which a directory counts as missing: it was removed, or replaced by a file or a symbolic
link.
"""


PrintMessage = Callable[[str], object]


def remove_temporary_files(job: StoredJob, report: PrintMessage) -> None:
    """Remove the temporary files of a stopped or killed job from its destination; report what cannot be removed.

    Raise ``RequestRefused`` if the search needs a temporary file of its own, in TMPDIR, and cannot write it.
    """
    for line in remove_unfinished_result_files(job.file.options, job.file.name):
        report(line)
    with spool_errors_as_refusal(b"", TMPDIR_ADVICE), closing(TemporaryFileRemover(job, report)) as clearing:
        try:
            for number, root in enumerate(job.file.roots):
                if root.item:
                    clearing.remove_files_in(number, b"")
                elif not is_run_recorded(job.path):  # Without records any directory may contain temporary files.
                    clearing.remove_temporary_files_below(number, b"")
            if is_run_recorded(job.path):
                remaining, tasks = load_job_progress(job.path, open_spool=spool_factory(b""))
                for task in tasks:
                    clearing.remove_temporary_files_of_task(decode_task(task.payload), first=remaining.run == 1)
        except (InvariantBroken, RequestRefused) as refused:
            report(f"temporary files (.pcopy-{job.file.name}-*) were not removed from the destination: {refused}")


def remove_unfinished_result_files(options: Mapping[str, Any], job: str, run: int | None = None) -> list[str]:
    """Remove the temporary files in which killed runs were writing the signature or the manifest.

    Return messages about files that could not be removed.

    Args:
        options: the job's options by name. The temporary files lie in the directories of the files that the options
            ``signature`` and ``manifest`` name.
        job: the name of the job.
        run: only files of runs before this run number are removed; None: files of all runs.
    """
    messages = []
    outputs = [path for path in (options.get("signature"), options.get("manifest")) if path]
    for path in sorted({os.path.dirname(output) or b"." for output in outputs}):
        try:
            with closing_descriptor(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
                remove_leftover_temporary_files(descriptor, job, run)
        except OSError as error:
            messages.append(f"temporary files (.pcopy-{job}-*) may be left in {printable_path(path)}: {error.strerror}")
    return messages


class TemporaryFileRemover:
    """Removes the temporary files of one job from its destination; lists each directory only once.

    The methods take a directory as the number of its root (source and target pair), and its path below the source.
    """

    def __init__(self, job: StoredJob, tell: PrintMessage) -> None:
        self._report = tell
        self._name = job.file.name
        self._roots = [root.as_root for root in job.file.roots]
        self._stack = ExitStack()
        self.close = self._stack.close
        self._opened: dict[bytes, DirectoriesBelowRoot] = {}
        self._cleared = set[tuple[int, bytes]]()
        self._cleared_bytes = 0

    def remove_temporary_files_of_task(self, task: TaskKind, *, first: bool) -> None:
        """Remove the temporary files that ``task``, a remaining task, has left, or that tasks spawned by it have left.

        ``first``: True if the run that recorded the task was the first run of the job. Then no earlier run has left
        files.
        """
        for place in task.locations_of_leftover_files(after_first_run=first):
            (self.remove_temporary_files_below if place.is_recursive else self.remove_files_in)(place.root, place.path)

    def remove_temporary_files_below(self, root: int, path: bytes) -> None:
        """Remove the temporary files in a directory and in all directories below it.

        The directory is given by the number of its root (source and target pair) and its path below the source.
        """
        self.remove_files_in(root, path)
        waiting = [self._names_of_subdirectories(root, path)]  # of ``path`` and of each directory above it
        while waiting:
            if waiting[-1]:
                path = os.path.join(path, waiting[-1].pop())
                self.remove_files_in(root, path)
                waiting.append(self._names_of_subdirectories(root, path))
            else:
                path = os.path.dirname(path)
                waiting.pop()

    def remove_files_in(self, root: int, path: bytes) -> None:
        """Remove the temporary files in one directory; do nothing if that was done before."""
        if (root, path) in self._cleared:
            return
        if len(self._cleared) >= MAX_REMEMBERED_DIRECTORIES or self._cleared_bytes >= MAX_REMEMBERED_BYTES:
            self._cleared.clear()
            self._cleared_bytes = 0
        self._cleared.add((root, path))
        self._cleared_bytes += len(path)
        self._remove_files_in_directory(root, path)

    def _remove_files_in_directory(self, root: int, path: bytes) -> None:
        """Remove the temporary files in one directory; report errors, and ignore a missing directory.

        The directory is given by the number of its root (source and target pair) and its path below the source.
        """
        try:
            directory = self._open_destination_directory(root, path)
            with _restoring_directory_times(directory):
                still_named = remove_leftover_temporary_files(directory, self._name)
            if still_named:
                self._report(f"{self._destination_path(root, path)}: {leftover_notice(still_named)}")
        except Problem as problem:
            if problem.errno not in _MISSING_ERRORS:
                place = self._destination_path(root, path)
                self._report(f"temporary files may be left in {place}: {problem.operation}: {problem.strerror}")

    def _destination_path(self, root: int, path: bytes) -> str:
        """Return the path in the destination to which ``path`` of source number ``root`` is copied, for messages."""
        found = self._roots[root]
        return printable_path(os.path.join(found.target, found.path_below_target(path)))

    def _names_of_subdirectories(self, root: int, path: bytes) -> list[bytes]:
        """Return the names of the directories in a directory of the destination.

        It is the copy of ``path`` of the source number ``root``. Empty if the directory cannot be read:
        ``remove_files_in`` has reported that already.
        """
        try:
            with entries_of_open_directory(self._open_destination_directory(root, path)) as entries:
                return [os.fsencode(entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            return []

    def _open_destination_directory(self, root: int, path: bytes) -> int:
        """Open the directory in the destination to which ``path`` of the source number ``root`` is copied; return its
        descriptor.

        Symbolic links are not followed. Raise ``Problem`` if the directory cannot be opened.
        """
        found = self._roots[root]
        if found.target not in self._opened:
            with errors_as_problem("open"):
                base = os.open(found.target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._stack.callback(os.close, base)
            self._opened[found.target] = self._stack.enter_context(
                closing(DirectoriesBelowRoot(base, 0, on_source=False))
            )
        return self._opened[found.target].open(found.path_below_target(path))


@contextmanager
def _restoring_directory_times(directory: int) -> Iterator[None]:
    """Context manager: restore the access and modification times of ``directory`` after the block, which changes its
    entries.

    Another job may have set these times from the source already, and would not set them again.
    """
    before = status_of_open_item(directory)
    yield
    now = status_of_open_item(directory)
    if (now.st_atime_ns, now.st_mtime_ns) != (before.st_atime_ns, before.st_mtime_ns):
        with suppress(OSError):
            os.utime(directory, ns=(before.st_atime_ns, before.st_mtime_ns))
